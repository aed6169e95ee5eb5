"""Subscription: one consumer of a Kombu channel, and how many messages it may have ahead.

The queue's actor hands out messages up to a prefetch; they wait in the consumer's deliveries until the connection is
drained, and count as unacked meanwhile. If the channel has a prefetch count, that is the prefetch: messages that wait
here are kept from other consumers no longer than AMQP allows. Without one AMQP's is unlimited; here the queue is
asked for :data:`AHEAD` messages beyond those that the program has, so that a long queue is not loaded into memory.

With Kombu's ``no_ack`` each message is acked as it is handed over: the others go back when the channel is
closed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Final, Protocol

from warren.actors.runtime.future import Future
from warren.actors.runtime.pooled_actor import ActorStoppedError
from warren.actors.runtime.wake_event import WakeEvent
from warren.handles.consumer import Consumer, Delivery
from warren.handles.queue import Queue

AHEAD: Final = 256
"""A lower number means more messages to the queue's actor; a higher one keeps messages from other consumers."""


class Receiver(Protocol):
    """The channel of a consumer."""

    channel_id: int

    @property
    def has_room(self) -> bool:
        """Whether its prefetch count allows another message."""

    def deliver(self, subscription: Subscription, delivery: Delivery) -> None:
        """Hand a message to a consumer's callback."""

    def cancelled(self, subscription: Subscription, error: Exception | None) -> None:
        """Handle a consumer that the node has ended."""

    def close(self) -> None:
        """Give back the channel's unsettled messages."""


class Subscription:
    """One consumer."""

    def __init__(
        self,
        channel: Receiver,
        queue: Queue,
        consumer: Consumer,
        tag: str,
        callback: Callable[[Any], Any],
        *,
        no_ack: bool,
        prefetch: int,
        on_cancel: Callable[[str], Any] | None,
        wake: WakeEvent,
    ) -> None:
        """``prefetch``: the channel's, 0 for none; the consumer begins with it or :data:`AHEAD`."""
        self.channel = channel
        self.queue = queue
        self.tag = tag
        self.callback = callback
        self.no_ack = no_ack
        self.on_cancel = on_cancel
        self.unacked: dict[int, None] = {}
        """Delivery tags of the channel. Different threads add and remove entries, each with one operation."""
        self._wake = wake
        self._armed = False
        self._limit = prefetch
        self._asked = prefetch or AHEAD
        self._consumer = consumer

    def take(self) -> Delivery | None:
        """Return the next message, if there is one; raise what ended the queue."""
        if not self._limit and len(self.unacked) + AHEAD // 2 > self._asked:
            self._ask_for(len(self.unacked) + AHEAD)
        return self._consumer.take_now()

    @property
    def has_room(self) -> bool:
        """Whether it may get another message."""
        return self.no_ack or self.channel.has_room

    @property
    def ended(self) -> bool:
        """Whether no more messages will come."""
        return self._consumer.ended

    def arm(self) -> None:
        """Let the event be set when a message can be taken."""
        if not self._armed:
            self._armed = True
            self._consumer.on_ready(self._ready)

    def _ready(self, _: Future) -> None:
        self._armed = False
        self._wake.set()

    def set_prefetch(self, prefetch: int) -> None:
        """Follow a change of the channel's prefetch count."""
        if not self.no_ack and prefetch != self._limit:
            self._limit = prefetch
            self._ask_for(prefetch or len(self.unacked) + AHEAD)

    def _ask_for(self, prefetch: int) -> None:
        self._asked = prefetch
        self._consumer.set_prefetch(prefetch)

    def stop(self) -> None:
        """Request no more messages. Those that have come can still be taken; the program's stay with the channel."""
        with contextlib.suppress(ActorStoppedError):  # the queue is gone or restarts: it has all of them already
            self._consumer.cancel()

    def take_last(self) -> Delivery | None:
        """Return the next message that came before the stop; ``None``: there are no more."""
        with contextlib.suppress(ActorStoppedError):
            return self._consumer.take_now()
        return None

    def give_back(self) -> None:
        """Return messages that the program has not seen to the queue."""
        with contextlib.suppress(ActorStoppedError):
            self.queue.nack(iter(self.take_last, None))

    def close(self) -> None:
        """Give back all unsettled messages."""
        self._consumer.close()
