"""SeqIdMap: a number for each of some messages of one queue, by level and seq_id.

Consecutive messages with the same number are one entry: a million that come back together take as much memory as one.

Invariants: entries of a level are in order and not empty; adjacent entries have different numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sortedcontainers import SortedDict

Entry = tuple[int, int, int, int]
"""Level, first seq_id, the one after the last, number."""


class SeqIdMap:
    """The numbers of one queue's messages. Truth value: whether there are any."""

    __slots__ = ("_levels",)

    def __init__(self) -> None:
        self._levels: dict[int, SortedDict[int, tuple[int, int]]] = {}

    def __bool__(self) -> bool:
        return bool(self._levels)

    def __iter__(self) -> Iterator[Entry]:
        for level, entries in self._levels.items():
            for start, (stop, number) in entries.items():
                yield level, start, stop, number

    def of(self, level: int, seq_ids: range, default: int) -> list[int]:
        """The number of each message; ``default`` for messages without a number."""
        entries = self._levels.get(level)
        if entries is None:
            return [default] * len(seq_ids)
        numbers: list[int] = []
        for part in stretches(seq_ids):
            at = part.start
            for start, stop, number in _overlapping(entries, part):
                numbers += [default] * (start - at)
                at = min(stop, part.stop)
                numbers += [number] * (at - max(start, part.start))
            numbers += [default] * (part.stop - at)
        return numbers

    def add(self, level: int, seq_ids: range, amount: int) -> list[tuple[range, int]]:
        """Add to the number of each message, 0 for those without a number; return the new numbers."""
        pieces: list[tuple[range, int]] = []
        for part in stretches(seq_ids):
            at = part.start
            for start, stop, number in self._cut(level, part):
                if at < start:
                    pieces.append((range(at, start), amount))
                pieces.append((range(start, stop), number + amount))
                at = stop
            if at < part.stop:
                pieces.append((range(at, part.stop), amount))
        for piece, number in pieces:
            self.put(level, piece, number)
        return pieces

    def put(self, level: int, seq_ids: range, number: int) -> None:
        """Set the number of consecutive messages."""
        self._cut(level, seq_ids)
        if not seq_ids:
            return
        entries = self._levels.setdefault(level, SortedDict())
        start, stop = seq_ids.start, seq_ids.stop
        before = _around(entries, start - 1)
        if before is not None and before[2] == number:
            start = before[0]
        behind = entries.get(stop)
        if behind is not None and behind[1] == number:
            del entries[stop]
            stop = behind[0]
        entries[start] = (stop, number)

    def forget(self, level: int, seq_ids: range) -> None:
        """Remove the numbers of some messages."""
        if level in self._levels:
            for part in stretches(seq_ids):
                self._cut(level, part)

    def forget_outside(self, level: int, seq_ids: range) -> None:
        """Remove the numbers of all messages of a level except these."""
        for _, start, stop, _ in [entry for entry in self if entry[0] == level]:
            self.forget(level, range(start, min(stop, seq_ids.start)))
            self.forget(level, range(max(start, seq_ids.stop), stop))

    def _cut(self, level: int, part: range) -> list[tuple[int, int, int]]:
        """Remove and return the entries of consecutive messages: first, after the last, number."""
        entries = self._levels.get(level)
        if entries is None or not part:
            return []
        removed = []
        for start, stop, number in _overlapping(entries, part):
            del entries[start]
            if start < part.start:
                entries[start] = (part.start, number)
            if part.stop < stop:
                entries[part.stop] = (stop, number)
            removed.append((max(start, part.start), min(stop, part.stop), number))
        if not entries:
            del self._levels[level]
        return removed

    def check_invariants(self) -> None:
        """Raise ``RuntimeError`` if entries are empty, out of order, or could be merged."""
        for level, entries in self._levels.items():
            end, last = -1, -1
            for start, (stop, number) in entries.items():
                if start >= stop or start < end or (start == end and number == last):
                    raise RuntimeError(f"level {level}: the entry {start} … {stop - 1} is empty or touches another")
                end, last = stop, number
            if not entries:
                raise RuntimeError(f"level {level} has no entries, and is there")


def stretches(seq_ids: range) -> Iterable[range]:
    """Split seq_ids into ranges of consecutive ones."""
    if seq_ids.step == 1:
        return (seq_ids,) if seq_ids else ()
    return (range(seq_id, seq_id + 1) for seq_id in seq_ids)


def _overlapping(entries: SortedDict[int, tuple[int, int]], part: range) -> list[tuple[int, int, int]]:
    """Return the entries with any of consecutive messages: first, after the last, number."""
    starts = list(entries.irange(part.start, part.stop, inclusive=(True, False)))
    overlapping = [(start, *entries[start]) for start in starts]
    first = _around(entries, part.start)
    return overlapping if first is None or first[0] == part.start else [first, *overlapping]


def _around(entries: SortedDict[int, tuple[int, int]], seq_id: int) -> tuple[int, int, int] | None:
    """Return the entry that a message is in: first, after the last, number."""
    index = entries.bisect_right(seq_id) - 1
    if index < 0:
        return None
    start, (stop, number) = entries.peekitem(index)
    return (start, stop, number) if seq_id < stop else None
