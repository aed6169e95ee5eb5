"""Tails: who reads along at the end of a queue and takes nothing.

A *tail* stands at a place, in each level of a priority queue at one of its own: what lies before it has seen, or was
never to see. It is given pages of what lies behind, and told when there is more. A message that is gone again before
its page is asked for is not seen; one that a consumer has is. Messages that are requeued go to their old places, and
are not seen twice.

A level that is empty when the queue rests begins its seq_ids anew, and the tails in it do, too.
"""

from __future__ import annotations

from collections.abc import Hashable

import attrs

from warren.actors.engines.backing import Backing
from warren.actors.future import Future
from warren.actors.looking import BrowsedMessage


@attrs.define(eq=False, repr=False)
class _Tail:
    places: dict[int, int]
    """By level, the seq_id of the first message that it has not seen."""
    arrival: Future | None = None


class Tails:
    """Those of one queue, by whatever they are called. Used in the queue's turns only."""

    __slots__ = ("_backing", "_tails")

    def __init__(self, backing: Backing) -> None:
        self._backing = backing
        self._tails: dict[Hashable, _Tail] = {}

    def __bool__(self) -> bool:
        return bool(self._tails)

    def begin(self, name: Hashable, count: int) -> None:
        """A new tail, ``count`` messages before the end: the last ones in the order of delivery."""
        places = {}
        for level in reversed(self._backing.numbers):
            if self._is_empty(level):
                places[level] = 0
                continue
            places[level], found = self._backing.level(level).first_of_last(count)
            count -= found
        self.end(name)
        self._tails[name] = _Tail(places)

    def page(self, name: Hashable, limit: int) -> list[BrowsedMessage] | None:
        """At most ``limit`` messages that it has not seen; ``None`` where there is no such tail (any more)."""
        tail = self._tails.get(name)
        if tail is None:
            return None
        found: list[BrowsedMessage] = []
        for level in self._backing.numbers:
            if len(found) >= limit or self._is_empty(level):
                continue
            queue, left = self._backing.level(level), limit - len(found)
            page = [BrowsedMessage(level, one) for one in queue.browse(tail.places[level], left)]
            tail.places[level] = page[-1].browsed.seq_id + 1 if len(page) == left else queue.state.next_seq_id
            found += page
        return found

    def arrival(self, name: Hashable) -> Future:
        """Answered when there is more for a tail than it has seen, or when it is no more."""
        arrival = Future()
        tail = self._tails.get(name)
        if tail is None or self._has_more(tail):
            arrival.set()
        else:
            if tail.arrival is not None:
                tail.arrival.offer(None)
            tail.arrival = arrival
        return arrival

    def end(self, name: Hashable) -> None:
        """A tail is no more."""
        tail = self._tails.pop(name, None)
        if tail is not None and tail.arrival is not None:
            tail.arrival.offer(None)

    # ── what happens to the queue ───────────────────────────────────────────────────────────────────────────────

    def look(self) -> None:
        """At a turn's end: tell those who wait for what has come."""
        for tail in self._tails.values():
            if tail.arrival is not None and self._has_more(tail):
                tail.arrival.offer(None)
                tail.arrival = None

    def rested(self) -> None:
        """Levels may have gone to sleep, or away."""
        for tail in self._tails.values():
            for level in filter(self._is_empty, tail.places):
                tail.places[level] = 0

    def fail(self, error: BaseException) -> None:
        """The queue is no more, or not this one."""
        for tail in self._tails.values():
            if tail.arrival is not None:
                tail.arrival.fail(error)
        self._tails.clear()

    def _is_empty(self, level: int) -> bool:
        """Whether nobody has asked for it since it was last empty; asking would make files for it."""
        return level not in dict(self._backing.awake()) and not self._backing.length_of(level)

    def _has_more(self, tail: _Tail) -> bool:
        return any(queue.state.next_seq_id > tail.places[level] for level, queue in self._backing.awake())
