"""The consumers of a queue, as its actor sees them, and the prefetch that consumers of several queues may share."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, Protocol

from warren.actors.engines.queue.consumers import UNLIMITED_ROOM, Consumer
from warren.actors.engines.queue.queue_turn import QueueTurn
from warren.actors.queue.deliveries import Deliveries
from warren.actors.queue.queue_intake import QueueIntake
from warren.actors.runtime.pooled_actor import Turns


class SharedPrefetch:
    """The shared prefetch of one channel: how many messages its consumers, of any queues, may have unacked together.

    It implements ``basic.qos`` with ``global`` for a channel. Queues deliver in threads of their own, so each first
    takes its share of what is left. A queue that found nothing left is woken when there is room again.

    It counts as RabbitMQ does: messages given to the consumers while there is a limit; when the limit is set,
    everything that is unacked on the channel. Messages taken by ``basic.get`` do not count, and make no room when they
    are settled.
    """

    __slots__ = ("_lock", "_taken", "limit", "queues")

    def __init__(self) -> None:
        self.limit = 0
        """0: no limit."""
        self.queues: dict[object, Callable[[], object]] = {}
        """By queue: the function to call, in any thread, when there is room again."""
        self._taken = 0
        self._lock = threading.Lock()

    def set_limit(self, limit: int, unacked: int) -> bool:
        """Set another limit; ``unacked``: the messages unacked on the channel. Return whether the limit has changed."""
        with self._lock:
            if limit == self.limit:
                return False
            if not limit or not self.limit:
                self._taken = unacked if limit else 0
            self.limit = limit
            return True

    @property
    def room(self) -> int:
        """The number of further messages that there is room for."""
        return max(self.limit - self._taken, 0) if self.limit else UNLIMITED_ROOM

    def take(self, count: int) -> int:
        """Take room for up to ``count`` messages; return for how many there was room."""
        with self._lock:
            if self.limit:
                count = min(count, max(self.limit - self._taken, 0))
                self._taken += count
            return count

    def give_back(self, count: int) -> None:
        """Note that ``count`` messages are no longer unacked."""
        with self._lock:
            was_full = self.limit and self._taken >= self.limit
            self._taken = max(self._taken - count, 0)
            wakes = was_full and self._taken < self.limit
            waiting = list(self.queues.items()) if wakes else []
            if waiting:  # the others come first next time
                first, wake = waiting[0]
                del self.queues[first]
                self.queues[first] = wake
        for _, wake in waiting:
            wake()


class ConsumedQueue(Protocol):
    """The queue's actor, as its consumers use it."""

    intake: QueueIntake

    @property
    def queue_turn(self) -> QueueTurn: ...

    @property
    def turns(self) -> Turns: ...

    def call_soon(self, work: Callable[[], object]) -> None: ...


class QueueConsumers:
    """The consumers of one queue. All methods are called in the queue's turns."""

    __slots__ = ("_actor",)

    def __init__(self, actor: ConsumedQueue) -> None:
        self._actor = actor

    def subscribe(self, consumer: Consumer, deliveries: Deliveries) -> None:
        """Add a consumer."""
        deliveries.acks_unseen = consumer.acks_unseen
        self._actor.queue_turn.receivers.subscribe(consumer, deliveries)
        self._bound(deliveries, consumer.prefetch)
        self._note_shared(consumer.shared)

    def set_prefetch(self, tag: str, prefetch: int, shared: SharedPrefetch | None = None) -> None:
        """Set how many messages a consumer may have unacked; 0: no limit. ``shared``: a limit together with others."""
        self._actor.queue_turn.receivers.set_prefetch(tag, prefetch, shared)
        self._note_shared(shared)
        if (deliveries := self._actor.intake.deliveries.get(tag)) is not None:
            self._bound(deliveries, prefetch)

    def _note_shared(self, shared: Any) -> None:
        if isinstance(shared, SharedPrefetch):
            resume = functools.partial(self._actor.queue_turn.receivers.resume_shared, shared)
            shared.queues[self._actor] = functools.partial(self._actor.call_soon, resume)

    def _bound(self, deliveries: Deliveries, prefetch: int) -> None:
        """Let a consumer without a prefetch get more as it takes what it has."""
        deliveries.more = None if prefetch else self._actor.turns.submit

    def cancel(self, tag: str) -> None:
        """Cancel a consumer; its unacked messages stay with the channel."""
        deliveries: Deliveries | None = self._actor.queue_turn.receivers.cancel(tag)
        if deliveries is not None:
            deliveries.end()

    def close_channel(self, channel: str, seen_up_to: int | None = None) -> int:
        """Return how many unacked messages went back to their places. ``seen_up_to``: the last tag whose message was
        seen; ``None``: all were seen, :data:`~warren.actors.engines.queue.queue_turn.LOST`: unknown."""
        closed = {
            tag: deliveries
            for tag, deliveries in self._actor.intake.deliveries.items()
            if deliveries.channel == channel
        }
        requeued = self._actor.queue_turn.close_channel(channel, list(closed), seen_up_to)
        for deliveries in closed.values():
            deliveries.end()
        return requeued
