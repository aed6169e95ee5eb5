"""A queue's messages as 4.3 keeps them: the heads of all priorities expire together, and returns may wait.

What differs from :mod:`warren.queue_index.quorum.messages`: the delivery limit counts failed deliveries, not
acquisitions. If the head has expired, what has expired at the head of the returns and of each priority goes with it. A
timer does the same even if the head has not; it also brings back the delayed messages whose time has come. A purge
takes delayed messages and dead letters, too.
"""

from __future__ import annotations

from warren.queue_index.quorum.consumers import Consumer
from warren.queue_index.quorum.delayed import Delayed
from warren.queue_index.quorum.messages import Messages
from warren.queue_index.quorum.ready_queues import ManyQueues, QueuedMessage, ReadyQueue, TwoQueues, has_expired

_HIGH = 9
"""The priority of what waited among the high ones of two queues."""


class TimedMessages(Messages):
    """Ready ones, dead letters, delayed ones, and the counts of those that are out."""

    __slots__ = ()

    @classmethod
    def of(cls, other: Messages) -> TimedMessages:
        """An older version's; they are not to be used any longer."""
        queues = ManyQueues()
        high = other.ready.high if isinstance(other.ready, TwoQueues) else ()
        for message in high:
            queues.append(message, _HIGH)
        for message in other.ready.normal if isinstance(other.ready, TwoQueues) else other.ready:
            queues.append(message, None)
        made = cls(other.settings, queues)
        made.now_ms = other.now_ms
        made.returns, made.dead_letters = other.returns, other.dead_letters
        made.ready_bytes, made.out_bytes, made.out_count = other.ready_bytes, other.out_bytes, other.out_count
        return made

    def head(self) -> QueuedMessage | None:
        head = self.returns[0] if self.returns else self.ready.head()
        if head is None or self.kept is not None or not has_expired(head, self.now_ms):
            return head
        self._expire()
        return self.returns[0] if self.returns else self.ready.head()

    def time_passes(self) -> None:
        self.come_back(self.delayed.take_due(self.now_ms))
        self._expire()

    def _expire(self) -> None:
        expired: list[QueuedMessage] = []
        while self.returns and has_expired(self.returns[0], self.now_ms):
            expired.append(self.returns.popleft())
        if isinstance(self.ready, ManyQueues):
            expired += self.ready.take_expired(self.now_ms)
        for message in expired:
            self.ready_bytes -= message.size
            self.to_dead_letters("expired", message)

    def hand_out(self, message: QueuedMessage, consumer: Consumer) -> None:
        super().hand_out(message, consumer)
        consumer.deadlines[consumer.next_msg_id - 1] = self.now_ms + consumer.timeout_ms

    def finish(self, consumer: Consumer, msg_id: int) -> bool:
        consumer.deadlines.pop(msg_id, None)
        return super().finish(consumer, msg_id)

    def is_past_limit(self, message: QueuedMessage) -> bool:
        limit = self.settings.delivery_limit
        return limit is not None and message.delivery_count > limit

    def give_back_later(self, message: QueuedMessage, ready_ms: int, token: bytes | None) -> None:
        """Not at once."""
        self._come_back(message)
        self.delayed.add(ready_ms, message, token)

    def come_back(self, messages: list[QueuedMessage]) -> None:
        """They are delayed no longer."""
        self.returns.extend(messages)

    def assign(self, messages: list[QueuedMessage], consumer: Consumer) -> None:
        """Delayed ones, to a consumer that asked for them."""
        for message in messages:
            self.ready_bytes -= message.size
            self.out_bytes += message.size
            self.out_count += 1
            consumer.hold(message)
            consumer.deadlines[consumer.next_msg_id - 1] = self.now_ms + consumer.timeout_ms

    def purge(self, empty: ReadyQueue) -> None:
        self.delayed = Delayed()
        self.dead_letters.purge()
        super().purge(empty)
