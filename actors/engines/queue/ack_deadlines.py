"""AckDeadlines: which deliveries of one queue have been held for too long.

Only channels and consumers with a *timeout* are tracked. A message is due between its timeout and a sixteenth more:
all deliveries within that time share one mark. The holder of a message may *extend* its time any number of times.

A message that is due and not settled goes back to the queue: it has *lapsed*.

Invariants: the marks of a channel do not overlap, and are in the order of their deadlines, except for extended ones.
"""

from __future__ import annotations

from typing import Final

import attrs
from sortedcontainers import SortedDict

from warren.actors.engines.queue.seq_id_map import SeqIdMap

_SHARE: Final = 16
_TAGS: Final = 0
"""The level under which maps hold delivery tags."""


@attrs.define(eq=False, repr=False)
class _Mark:
    """Deliveries of one channel that are due together."""

    channel: str
    tags: range
    until_us: int
    """Until when deliveries with the same timeout join it."""
    timeout_us: int


@attrs.define(eq=False, repr=False)
class AckDeadlines:
    """The deadlines of one queue."""

    _due: SortedDict[int, list[_Mark]] = attrs.field(factory=SortedDict)
    _last: dict[str, _Mark] = attrs.field(factory=dict)
    """By channel: the mark that the next delivery may join."""
    _extended: dict[str, SeqIdMap] = attrs.field(factory=dict)
    """By channel and tag: until when (µs since the epoch) extended messages may be held."""

    def given(self, channel: str, first: int, count: int, timeout_ms: int, now_us: int) -> None:
        """Note that a channel got ``count`` messages, under the tags from ``first`` on."""
        timeout_us = timeout_ms * 1000
        last = self._last.get(channel)
        if last is not None and now_us < last.until_us and (last.tags.stop, last.timeout_us) == (first, timeout_us):
            last.tags = range(last.tags.start, first + count)
            return
        mark = _Mark(channel, range(first, first + count), now_us + timeout_us // _SHARE, timeout_us)
        self._last[channel] = mark
        self._add(mark.until_us + timeout_us, mark)

    def _add(self, due_us: int, mark: _Mark) -> None:
        self._due.setdefault(due_us, []).append(mark)

    def extend(self, channel: str, tag: int, until_us: int) -> None:
        """Let a message be held until then, if that is later than its present deadline."""
        extended, tags = self._extended.setdefault(channel, SeqIdMap()), range(tag, tag + 1)
        extended.put(_TAGS, tags, max(until_us, *extended.of(_TAGS, tags, 0)))

    def next_due_us(self) -> int | None:
        """When the next deadline is, unless its messages are settled before; ``None`` without deadlines."""
        return self._due.peekitem(0)[0] if self._due else None

    def take_due(self, now_us: int) -> list[tuple[str, range]]:
        """Take what is due, by channel and tags; it may have been settled already."""
        due: list[tuple[str, range]] = []
        while self._due and self._due.peekitem(0)[0] <= now_us:
            _, marks = self._due.popitem(0)
            for mark in marks:
                last = self._last.get(mark.channel)
                if last is not None and last is mark:
                    del self._last[mark.channel]
                due += self._without_extended(mark, now_us)
        return due

    def _without_extended(self, mark: _Mark, now_us: int) -> list[tuple[str, range]]:
        extended = self._extended.get(mark.channel)
        if extended is None:
            return [(mark.channel, mark.tags)]
        due, start = [], mark.tags.start
        for tag, until_us in zip(mark.tags, extended.of(_TAGS, mark.tags, 0), strict=True):
            if until_us <= now_us:
                continue
            if start < tag:
                due.append((mark.channel, range(start, tag)))
            start = tag + 1
            self._add(until_us, _Mark(mark.channel, range(tag, tag + 1), 0, mark.timeout_us))
        if start < mark.tags.stop:
            due.append((mark.channel, range(start, mark.tags.stop)))
        for _, tags in due:
            extended.forget(_TAGS, tags)
        return due

    def close_channel(self, channel: str) -> None:
        """Forget a closed channel."""
        self._last.pop(channel, None)
        self._extended.pop(channel, None)
        for due_us, marks in list(self._due.items()):
            remaining = [mark for mark in marks if mark.channel != channel]
            if remaining:
                self._due[due_us] = remaining
            else:
                del self._due[due_us]

    def check_invariants(self) -> None:
        """Raise ``RuntimeError`` if marks overlap, or are not listed where they belong."""
        for extended in self._extended.values():
            extended.check_invariants()
        due_marks = [mark for marks in self._due.values() for mark in marks]
        tags = [(mark.channel, tag) for mark in due_marks for tag in mark.tags]
        if len(set(tags)) != len(tags) or any(not mark.tags for mark in due_marks):
            raise RuntimeError("two marks share a delivery, or a mark has no delivery")
        if any(not any(mark is due_mark for due_mark in due_marks) for mark in self._last.values()):
            raise RuntimeError("the last mark of a channel is not due at any time")
