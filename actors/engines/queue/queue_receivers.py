"""QueueReceivers: the receiving sides of a queue's consumers, and what they are handed in a turn.

A consumer without a prefetch has a buffer of bounded size: it gets more as it takes what it has.
"""

from __future__ import annotations

from typing import Any, Final

import attrs

from warren.actors.engines.queue.consumers import Consumer, Shared
from warren.actors.engines.queue.effects import Effects
from warren.actors.engines.queue.queue_turn_host import Receiver, TurnContext

BUFFER: Final = 1000
"""The most messages in the buffer of a consumer without a prefetch, so that its memory is bounded."""

BUFFER_BYTES: Final = 1 << 20
"""The same in bytes of bodies, estimated from the average of the queue's messages."""


@attrs.define(eq=False, repr=False)
class QueueReceivers:
    """The receivers of one queue. See the module's prose."""

    _context: TurnContext
    by_tag: dict[str, Any]
    """A :class:`Receiver` for each consumer, by consumer tag."""
    _unbounded: dict[str, None] | None = None
    """The consumers without a prefetch."""
    _handed_over: int = 0
    """How many of the collected deliveries were handed to their consumers."""

    def subscribe(self, consumer: Consumer, receiver: Receiver) -> None:
        """Add a consumer."""
        self._context.worked = True
        self._context.process.consumers.add(consumer)
        self.by_tag[consumer.tag] = receiver
        self._bound(consumer.tag, consumer.prefetch)

    def set_prefetch(self, tag: str, prefetch: int, shared: Shared | None = None) -> None:
        """Set a consumer's prefetch, and the one that it shares with others."""
        self._context.worked = True
        self._context.process.consumers.set_prefetch(tag, prefetch, shared)
        if tag in self.by_tag:
            self._bound(tag, prefetch)

    def resume_shared(self, shared: Shared) -> None:
        """Note that a shared prefetch has room again."""
        self._context.worked = True
        self._context.process.consumers.resume(shared)

    def _bound(self, tag: str, prefetch: int) -> None:
        if self._unbounded is not None:
            self._unbounded.pop(tag, None)
        if not prefetch:
            if self._unbounded is None:
                self._unbounded = {}
            self._unbounded[tag] = None

    def cancel(self, tag: str) -> Any | None:
        """Remove a consumer; return its receiver. Its unacked messages stay with the channel."""
        self._context.worked = True
        self._context.process.cancel_consumer(tag)
        return self.drop(tag)

    def drop(self, tag: str) -> Any | None:
        """Remove and return the receiver of a consumer that the queue no longer has."""
        self._bound(tag, 1)
        return self.by_tag.pop(tag, None)

    def deliver(self) -> None:
        """At a turn's end: hand ready messages to consumers with room."""
        process = self._context.process
        if self._unbounded and len(process.backing):
            limit = self.most_at_once()
            for tag in self._unbounded:
                process.consumers.set_room(tag, max(limit - self.by_tag[tag].buffered, 0))
        process.deliveries.deliver()
        self._hand_over(process.context.effects)  # a consumer waits for no sync

    def most_at_once(self) -> int:
        """How many messages may be buffered for a consumer without a prefetch, by the size of the ready messages."""
        backing = self._context.process.backing
        size_bytes = backing.ready_bytes
        return BUFFER if size_bytes <= BUFFER_BYTES else max(min(BUFFER, BUFFER_BYTES * len(backing) // size_bytes), 1)

    def tell(self, effects: Effects) -> None:
        """Pass on the turn's last deliveries, and what consumers have lost."""
        if len(effects.deliveries) > self._handed_over:
            self._hand_over(effects)
        self._handed_over = 0
        output = self._context.output
        for tag, tags in effects.lapsed:
            if (receiver := self.by_tag.get(tag)) is not None:
                output.lapsed(receiver, tags)
        for tag in effects.cancelled:
            if (receiver := self.drop(tag)) is not None:
                output.consumer_cancelled(receiver)

    def _hand_over(self, effects: Effects) -> None:
        """Give consumers the deliveries that were collected since the last call."""
        for delivered in effects.deliveries[self._handed_over :]:
            receiver = self.by_tag.get(delivered.consumer or "")
            if receiver is not None:
                receiver.put(delivered)
        self._handed_over = len(effects.deliveries)
