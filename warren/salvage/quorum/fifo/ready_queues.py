"""Messages that wait for a consumer, in the order in which they are delivered.

Three orders, by the machine's version: as they came; two queues, high before normal, with a normal one at least every
third time (4.0 to 4.2); 32 queues, the highest first (4.3). What was returned does not wait here: it goes before all
of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final, NamedTuple, Protocol

import attrs

NORMAL_PRIORITY: Final = 4
"""Of a message without one; with two queues, a message up to this priority is normal."""

HIGHEST_PRIORITY: Final = 31
"""Of 32 queues; what is higher counts as this."""

_TURNS: Final = 3
"""Of two queues: every third message may be a normal one while there are high ones."""


class QueuedMessage(NamedTuple):
    """A message, as far as the queue knows it; its body lies in the log's entry."""

    index: int  # type: ignore[assignment]  # a tuple's method of that name is not needed
    """Of the entry."""
    size: int
    """Bytes of its payload."""
    expiry_ms: int | None = None
    """Milliseconds since 1970."""
    delivery_count: int = 0
    """How often its delivery failed; up to 3.13 also how often it was given back."""
    acquired_count: int = 0
    """How often a consumer had it and did not finish it; the delivery limit looks here."""

    def returned(self, *, failed: bool) -> QueuedMessage:
        """The message after it came back; ``failed``: whether that is a failed delivery."""
        return self._replace(delivery_count=self.delivery_count + failed, acquired_count=self.acquired_count + 1)


class ReadyQueue(Protocol):
    """The messages, the head being the one that is delivered next."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[QueuedMessage]:
        """In the order of delivery."""

    def append(self, message: QueuedMessage, priority: int | None) -> None: ...
    def head(self) -> QueuedMessage | None: ...
    def take(self) -> QueuedMessage:
        """Remove and return the head; the queue must not be empty."""


@attrs.define(eq=False, repr=False)
class OneQueue:
    """Messages in the order in which they were published."""

    _messages: deque[QueuedMessage] = attrs.Factory(deque)

    def __len__(self) -> int:
        return len(self._messages)

    def __iter__(self) -> Iterator[QueuedMessage]:
        return iter(self._messages)

    def append(self, message: QueuedMessage, priority: int | None) -> None:
        self._messages.append(message)

    def head(self) -> QueuedMessage | None:
        return self._messages[0] if self._messages else None

    def take(self) -> QueuedMessage:
        return self._messages.popleft()


@attrs.define(eq=False, repr=False)
class TwoQueues:
    """High and normal. Of every three that leave, the third is the one with the lower index."""

    high: deque[QueuedMessage] = attrs.Factory(deque)
    normal: deque[QueuedMessage] = attrs.Factory(deque)
    turn: int = 0
    """0 … 2; goes on with each message that leaves, from whichever queue."""

    def __len__(self) -> int:
        return len(self.high) + len(self.normal)

    def __iter__(self) -> Iterator[QueuedMessage]:
        high, normal = iter(self.high), iter(self.normal)
        next_high, next_normal = next(high, None), next(normal, None)
        turn = self.turn
        while True:
            if next_high is not None and (next_normal is None or _high_first(next_high, next_normal, turn)):
                yield next_high
                next_high = next(high, None)
            elif next_normal is not None:
                yield next_normal
                next_normal = next(normal, None)
            else:
                return
            turn = (turn + 1) % _TURNS

    def append(self, message: QueuedMessage, priority: int | None) -> None:
        queue = self.normal if priority is None or priority <= NORMAL_PRIORITY else self.high
        queue.append(message)

    def head(self) -> QueuedMessage | None:
        queue = self._next()
        return queue[0] if queue else None

    def take(self) -> QueuedMessage:
        message = self._next().popleft()
        self.turn = (self.turn + 1) % _TURNS
        return message

    def _next(self) -> deque[QueuedMessage]:
        if not self.high:
            return self.normal
        if self.normal and not _high_first(self.high[0], self.normal[0], self.turn):
            return self.normal
        return self.high


def _high_first(high: QueuedMessage, normal: QueuedMessage, turn: int) -> bool:
    return turn != _TURNS - 1 or high.index < normal.index


@attrs.define(eq=False, repr=False)
class ManyQueues:
    """32 queues; the highest that is not empty is next."""

    queues: dict[int, deque[QueuedMessage]] = attrs.Factory(dict)
    """Those that are not empty, by priority."""
    _length: int = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[QueuedMessage]:
        for priority in sorted(self.queues, reverse=True):
            yield from self.queues[priority]

    def append(self, message: QueuedMessage, priority: int | None) -> None:
        place = NORMAL_PRIORITY if priority is None else min(priority, HIGHEST_PRIORITY)
        self.queues.setdefault(place, deque()).append(message)
        self._length += 1

    def head(self) -> QueuedMessage | None:
        return self.queues[max(self.queues)][0] if self.queues else None

    def take(self) -> QueuedMessage:
        priority = max(self.queues)
        queue = self.queues[priority]
        message = queue.popleft()
        if not queue:
            del self.queues[priority]
        self._length -= 1
        return message

    def take_expired(self, ts_ms: int) -> list[QueuedMessage]:
        """Remove and return what has expired at the head of each queue; the highest first."""
        taken: list[QueuedMessage] = []
        for priority in sorted(self.queues, reverse=True):
            queue = self.queues[priority]
            while queue and has_expired(queue[0], ts_ms):
                taken.append(queue.popleft())
            if not queue:
                del self.queues[priority]
        self._length -= len(taken)
        return taken


def has_expired(message: QueuedMessage, ts_ms: int) -> bool:
    return message.expiry_ms is not None and ts_ms >= message.expiry_ms
