"""Consumers and what they get.

A consumer is an iterator: messages come in batches from its queue, which keeps it supplied up to its prefetch, and are
handed out one by one. What it does not settle goes back to its old place in the queue when the consumer is closed.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import NamedTuple

import attrs

from actors import messages as m
from actors.deliveries import Deliveries
from actors.engines.effects import Delivered
from actors.future import Future
from actors.handing_over import SettleKey, tag_ranges
from actors.queue_actor import QueueActor
from queue_index.fetching import Fetched
from warren.messages import ReceivedMessage
from warren.process_bound import ProcessBound


class Channel:
    """Through which messages of one queue were delivered, and are settled: a consumer's, or a handle's for its gets.

    Closes itself when nobody is left who could settle any of them: its deliveries, its consumer or handle are gone.
    """

    __slots__ = ("_actor", "_keys", "_open", "name")

    def __init__(self, actor: QueueActor, name: str) -> None:
        self._actor = actor
        self._open = True
        self.name = name
        self._keys = {outcome: SettleKey(name, outcome) for outcome in ("ack", "requeue", "reject")}

    @property
    def actor(self) -> QueueActor:
        """The queue's actor. Raises why it is no more: what it had delivered has gone back to the queue."""
        if self._actor.actor_stopped.is_set():
            raise self._actor.stopped_error()
        return self._actor

    @property
    def alive(self) -> bool:
        """Whether what was delivered through it can still be settled."""
        return not self._actor.actor_stopped.is_set()

    def settle(self, outcome: str, tag: int, *, multiple: bool) -> None:
        """Settle one delivery, or (``multiple``) all up to it."""
        if multiple:
            self.actor.actor_ref.ask(m.Settle(self.name, outcome, (), tag))
        else:
            self.actor.settle(self._keys[outcome], tag)

    def settle_many(self, outcome: str, tags: list[int]) -> None:
        """Settle deliveries in one message."""
        self.actor.actor_ref.tell(m.Settle(self.name, outcome, tag_ranges(tags)))

    def settle_all(self, outcome: str, tags: range) -> None:
        """Settle a whole batch."""
        self.actor.actor_ref.tell(m.Settle(self.name, outcome, (tags,)))

    def close(self) -> int:
        """Give back what is unsettled; returns how many messages that were."""
        if not self._open or self._actor.actor_stopped.is_set():
            return 0
        self._open = False
        requeued: int = self._actor.actor_ref.ask(m.CloseChannel(self.name))  # type: ignore[assignment]
        return requeued

    def __del__(self) -> None:
        if self._open and self._actor.alive:
            self._actor.let_go(self.name)


class StoredAs(NamedTuple):
    """A message as its queue has it. ``expiry_us``: since the epoch, 0 for never."""

    seq_id: int
    msg_id: bytes
    expiry_us: int
    encoded: bytes


class DeliveredMessage(ReceivedMessage, ProcessBound):
    """A message that was delivered, to be settled once."""

    __slots__ = ("_channel", "_settled", "delivery_tag", "redelivered")

    def __init__(self, channel: Channel, delivered: Delivered, index: int, body: bytes | None) -> None:
        # What ReceivedMessage.__init__ sets, without its call: this is made for every message.
        self._fetched = delivered.fetched
        self._index = index
        self._body = body
        self._message = None
        self._channel = channel
        self._settled = not delivered.first_tag
        self.delivery_tag = delivered.first_tag + index if delivered.first_tag else 0
        """Rises by one a delivery; 0 where no ack is expected."""
        self.redelivered = delivered.fetched.redelivered
        """Whether it may have been delivered before."""

    def mark_settled(self) -> bool:
        """Take it as settled by the caller; whether it was not before."""
        unsettled, self._settled = not self._settled, True
        return unsettled

    @property
    def channel(self) -> Channel:
        return self._channel

    @property
    def stored(self) -> StoredAs:
        """What its queue has it under."""
        fetched, index = self._fetched, self._index
        if not isinstance(fetched, Fetched):
            raise TypeError("a delivery is of what was fetched")
        return StoredAs(fetched.seq_ids[index], fetched.msg_id(index), fetched.expiry_us(index), fetched.term(index))

    @property
    def settled(self) -> bool:
        """Whether it was settled, or needs not be."""
        return self._settled


class Delivery(DeliveredMessage):
    """A message that was delivered, to be settled once: acked, given back or rejected.

    As a context manager it acks at the end, and gives the message back if an error gets out of the block.
    """

    __slots__ = ()

    def ack(self, *, multiple: bool = False) -> None:
        """Done: the message goes away. ``multiple``: and all that this channel delivered before it."""
        self._settle("ack", multiple)

    def nack(self, *, requeue: bool = True, multiple: bool = False) -> None:
        """Not done: back to its place in the queue, or (without ``requeue``) to the dead letters."""
        self._settle("requeue" if requeue else "reject", multiple)

    def reject(self, *, requeue: bool = False) -> None:
        """AMQP's basic.reject."""
        self._settle("requeue" if requeue else "reject", multiple=False)

    def _settle(self, outcome: str, multiple: bool) -> None:
        if self.mark_settled():
            self._channel.settle(outcome, self.delivery_tag, multiple=multiple)

    def __enter__(self) -> Delivery:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.ack()
        else:
            self.nack()


class Consumer(ProcessBound):
    """An iterator over deliveries; a context manager that closes it.

    Ends after ``timeout`` seconds without a message (``None``: never), and when it is cancelled or closed. Raises what
    its queue failed of.
    """

    def __init__(
        self, channel: Channel, deliveries: Deliveries, tag: str, timeout: float | None, *, auto_ack: bool = False
    ) -> None:
        self._auto_ack = auto_ack
        self.tag = tag
        self.channel = channel
        self._deliveries = deliveries
        self._timeout = timeout
        self._batch: Iterator[Delivery] = iter(())
        self._closed = False
        _CONSUMERS.add(self)

    def __iter__(self) -> Consumer:
        return self

    def __next__(self) -> Delivery:
        delivery = next(self._batch, None)
        if delivery is None:
            delivery = self.receive(self._timeout)
            if delivery is None:
                self.close()
                raise StopIteration
        return delivery

    def receive(self, timeout: float | None = None) -> Delivery | None:
        """The next message; ``None`` after ``timeout`` seconds (``None``: wait), or when no more will come."""
        delivery = next(self._batch, None)
        deadline = None if timeout is None else time.monotonic() + timeout
        while delivery is None and not self._closed:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            delivered = self._deliveries.take(left)
            if delivered is None:
                return None
            delivery = self._begin(delivered)
        return delivery

    def take_now(self) -> Delivery | None:
        """The next message, if it is here already: nobody is asked for one."""
        delivery = next(self._batch, None)
        if delivery is None and not self._closed and (delivered := self._deliveries.take_now()) is not None:
            delivery = self._begin(delivered)
        return delivery

    def _begin(self, delivered: Delivered) -> Delivery | None:
        take_out = spread_acked if self._auto_ack and delivered.first_tag else spread
        self._batch = take_out(self.channel, delivered)
        return next(self._batch, None)

    def on_ready(self, callback: Callable[[Future], None]) -> None:
        """Call ``callback`` once, in whichever thread brings it about, when there is a message to take or the end."""
        self._deliveries.on_ready(callback)

    @property
    def buffered(self) -> int:
        """Messages that have come and were not taken yet, but for the batch that is being handed out."""
        return self._deliveries.buffered

    @property
    def ended(self) -> bool:
        """Whether no more will come; what has come can still be taken."""
        return self._closed or self._deliveries.ended

    def set_prefetch(self, prefetch: int) -> None:
        """How many messages may be unacked with it from now on; 0: any number."""
        if self.channel.alive:
            self.channel.actor.actor_ref.tell(m.SetPrefetch(self.tag, prefetch))

    def cancel(self) -> None:
        """Ask for no more messages. What was delivered can still be taken and settled."""
        if self.channel.alive:
            self.channel.actor.actor_ref.ask(m.CancelConsumer(self.tag))

    def close(self) -> None:
        """Cancel, and give everything back that was not settled."""
        if not self._closed:
            self._closed = True
            self._batch = iter(())
            self._deliveries.drain()
            self.channel.close()
            self._deliveries.end()

    def __enter__(self) -> Consumer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


_CONSUMERS: weakref.WeakSet[Consumer] = weakref.WeakSet()


def _forget_all() -> None:
    """In a forked child: what was delivered is the parent's."""
    for consumer in list(_CONSUMERS):
        consumer._batch = iter(())


os.register_at_fork(after_in_child=_forget_all)


def spread(channel: Channel, delivered: Delivered) -> Iterator[Delivery]:
    """The messages of a batch, one by one; one that cannot be read says so when it is asked for its body."""
    for index, body in enumerate(delivered.fetched.readable_bodies()):
        yield Delivery(channel, delivered, index, body)


def spread_acked(channel: Channel, delivered: Delivered) -> Iterator[Delivery]:
    """The same, each acked as it is handed out."""
    settled = attrs.evolve(delivered, first_tag=0)
    for tag, delivery in zip(delivered.tags, spread(channel, settled), strict=True):
        channel.settle("ack", tag, multiple=False)
        yield delivery
