"""Tails: readers that follow the end of a queue without taking messages.

A *tail* has a place in the queue, one in each level of a priority queue: messages before it were seen, or are not to be
seen. At the end of each turn it looks at new messages, so that it sees them before consumers are through with them; a
limited number of them is kept ready for it. If there are more, or a consumer needs no ack, a message may be gone before
it is looked at: then it is skipped. Requeued messages return to their old places, and are not seen twice.

No message bypasses a queue that has tails (:meth:`~warren.actors.engines.queue.queue_process.QueueProcess.watch`). If a
level is empty when the queue rests, its seq_ids restart at 0, and so do the places of its tails.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Final

import attrs

from warren.actors.engines.queue.queue_process import QueueProcess
from warren.actors.queue.inspecting import BrowsedMessage
from warren.actors.runtime.future import Future

AHEAD: Final = 256
"""How many messages at most are looked at before they are asked for."""
LOOK: Final = 16
"""How many messages are looked at in one step."""
AHEAD_BYTES: Final = 1 << 20
"""The same limit in bytes; the last message may exceed it."""


@attrs.define(eq=False, repr=False)
class _Tail:
    places: dict[int, int]
    """By level, the seq_id of the first message that it has not looked at."""
    ahead: deque[BrowsedMessage] = attrs.Factory(deque)
    """Messages that it has looked at, and that were not asked for yet."""
    ahead_bytes: int = 0
    arrival: Future | None = None

    def take(self, count: int) -> list[BrowsedMessage]:
        """Take up to ``count`` messages that were looked at."""
        messages = [self.ahead.popleft() for _ in range(min(count, len(self.ahead)))]
        self.ahead_bytes -= sum(len(message.browsed.term) for message in messages)
        return messages


class Tails:
    """The tails of one queue, by name. Used in the queue's turns only."""

    __slots__ = ("_backing", "_process", "_tails")

    def __init__(self, process: QueueProcess) -> None:
        self._process = process
        self._backing = process.backing
        self._tails: dict[Hashable, _Tail] = {}

    def __bool__(self) -> bool:
        return bool(self._tails)

    def begin(self, name: Hashable, count: int) -> None:
        """Begin a new tail, ``count`` messages before the end: the last ones in the order of delivery."""
        places = {}
        for level in reversed(self._backing.numbers):
            if self._is_empty(level):
                places[level] = 0
                continue
            places[level], level_count = self._backing.level(level).first_of_last(count)
            count -= level_count
        self.end(name)
        self._tails[name] = _Tail(places)
        self._process.watch(is_watched=True)

    def page(self, name: Hashable, limit: int) -> list[BrowsedMessage] | None:
        """Return at most ``limit`` messages that the tail has not seen; ``None`` if there is no such tail."""
        tail = self._tails.get(name)
        if tail is None:
            return None
        return tail.take(limit) or self._look_on(tail, limit)

    def _look_on(self, tail: _Tail, limit: int) -> list[BrowsedMessage]:
        messages: list[BrowsedMessage] = []
        for level in self._backing.numbers:
            if len(messages) >= limit or self._is_empty(level):
                continue
            queue, room = self._backing.level(level), limit - len(messages)
            page = [BrowsedMessage(level, browsed) for browsed in queue.browse(tail.places[level], room)]
            tail.places[level] = page[-1].browsed.seq_id + 1 if len(page) == room else queue.state.next_seq_id
            messages += page
        return messages

    def arrival(self, name: Hashable) -> Future:
        """Return a future that is answered when there is a new message for the tail, or when the tail ends."""
        arrival = Future()
        tail = self._tails.get(name)
        if tail is None or tail.ahead or self._has_more(tail):
            arrival.set()
        else:
            if tail.arrival is not None:
                tail.arrival.offer(None)
            tail.arrival = arrival
        return arrival

    def end(self, name: Hashable) -> None:
        """End a tail."""
        tail = self._tails.pop(name, None)
        if tail is not None and tail.arrival is not None:
            tail.arrival.offer(None)
        self._process.watch(is_watched=bool(self._tails))

    # ── what happens to the queue ───────────────────────────────────────────────────────────────────────────────

    def look(self) -> None:
        """Look at new messages, at the end of a turn, and wake those who wait for them."""
        for tail in self._tails.values():
            while len(tail.ahead) < AHEAD and tail.ahead_bytes < AHEAD_BYTES and self._has_more(tail):
                for message in self._look_on(tail, LOOK):
                    tail.ahead.append(message)
                    tail.ahead_bytes += len(message.browsed.term)
            if tail.ahead and tail.arrival is not None:
                tail.arrival.offer(None)
                tail.arrival = None

    def rested(self) -> None:
        """Reset places in levels that are asleep or gone."""
        for tail in self._tails.values():
            for level in filter(self._is_empty, tail.places):
                tail.places[level] = 0

    def fail(self, error: BaseException) -> None:
        """End all tails: the queue has ended."""
        for tail in self._tails.values():
            if tail.arrival is not None:
                tail.arrival.fail(error)
        self._tails.clear()

    def _is_empty(self, level: int) -> bool:
        """Whether the level is asleep and empty; using it would create files for it."""
        return level not in dict(self._backing.awake()) and not self._backing.length_of(level)

    def _has_more(self, tail: _Tail) -> bool:
        return any(queue.state.next_seq_id > tail.places[level] for level, queue in self._backing.awake())
