"""Pending acks: messages that were delivered and neither acked nor requeued yet.

A queue has three such sets: *ram* (payload in RAM, store-bound), *index* (payload in RAM, embedded) and *disk*
(payload dropped: it is in the store or in the index). Each holds runs by their first seq_id, so that an ack of a
thousand messages is one cut. One that never held a run costs next to nothing.

If few messages are acked in the middle of a run, or every n-th of it because several consumers got them in turns, the
run stays whole with its *holes*: a byte for each message, 1 if it is no longer held. Once a quarter or less of such a
run's payloads is still held, it drops the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, cast

from sortedcontainers import SortedDict

from warren.queue_index.queue.run import SMALL_BATCH, Run

_HELD, _HOLE = b"\0", b"\1"
_COPY_RATIO: Final = 4
"""A run with holes has at most this many times the payloads that it needs."""
_NO_RUNS: Final[SortedDict[int, Run]] = SortedDict()
"""Used for every empty list, which would take 1 KB each; shared, and never changed."""


class _Holed(Run):
    """A run some of whose messages are no longer held."""

    __slots__ = ("marks", "payloads")

    def __init__(self, run: Run, marks: bytearray, payloads: int) -> None:
        super().__init__(run.start, run.batch, run.low, run.count, run.flags)
        self.marks = marks
        self.payloads = payloads
        """How many it has, if it has any."""

    def continues(self, other: Run) -> bool:
        return False

    def held(self, low: int, high: int) -> list[range]:
        """Return the ranges of held messages among the rows ``low … high-1``."""
        ranges: list[range] = []
        while (first := self.marks.find(_HELD, low, high)) >= 0:
            low = self.marks.find(_HOLE, first, high)
            if low < 0:
                low = high
            ranges.append(range(first, low))
        return ranges


class PendingAcks:
    """Runs by seq_id. ``len`` counts messages."""

    __slots__ = ("_count", "_runs")

    def __init__(self) -> None:
        self._runs = _NO_RUNS
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Run]:
        for run in self._runs.values():
            if isinstance(run, _Holed):
                yield from _held(run, run.start, run.end)
            else:
                yield run

    @property
    def last_seq_id(self) -> int:
        """The highest; not of an empty one."""
        run = cast(Run, self._runs.peekitem(-1)[1])
        return run.start + run.marks.rindex(_HELD) if isinstance(run, _Holed) else run.end - 1

    def add(self, run: Run) -> None:
        """Hold a run; it joins the previous run if it continues that in the same batch."""
        self._count += run.count
        before = self._before(run.start)
        overlaps = before is not None and before.end > run.start
        if overlaps or (self._runs and self._runs.peekitem(-1)[0] >= run.start):
            self._make_way(run)
            before = self._before(run.start)
        if before is not None and before.continues(run):
            before.count += run.count
        else:
            if self._runs is _NO_RUNS:
                self._runs = SortedDict()
            self._runs[run.start] = run

    def find(self, seq_id: int) -> Run | None:
        """A window on the one message of that seq_id."""
        run = self._before(seq_id + 1)
        return next(iter(_held(run, seq_id, seq_id + 1)), None) if run is not None else None

    def within(self, start: int, end: int) -> list[Run]:
        """Yield windows on the held messages of ``start … end-1``, in seq_id order."""
        first = self._runs.bisect_left(start + 1) - 1
        runs = self._runs.values()[max(first, 0) : self._runs.bisect_left(end)]
        return [part for run in runs for part in _held(run, start, end)]

    def since(self, seq_id: int) -> Iterator[Run]:
        """Yield windows on the held messages from ``seq_id`` on, in order; earlier messages cost next to nothing."""
        before = self._before(seq_id + 1)
        for key in self._runs.irange(seq_id if before is None or before.end <= seq_id else before.start):
            run = self._runs[key]
            yield from _held(run, seq_id, run.end)

    def remove(self, start: int, end: int, step: int = 1) -> list[Run]:
        """Remove and return, in seq_id order, the held messages of ``start … end-1``, or only every ``step``-th one."""
        removed: list[Run] = []
        run = self._before(start + 1)
        if run is not None and run.end > start:
            last = run.end >= end
            removed += self._take(run, start, end, step)
            if last:
                return removed
        for key in list(self._runs.irange(start, end, inclusive=(False, False))):
            removed += self._take(self._runs[key], key + (start - key) % step, end, step)
        return removed

    def pop_largest(self, count: int) -> Run:
        """Remove and return at most ``count`` messages with the highest seq_ids, as far as they are one run."""
        key, run = cast(tuple[int, Run], self._runs.peekitem(-1))
        if isinstance(run, _Holed):
            last = _held(run, run.start, run.end)[-1]
            return self._mark(run, range(last.end - min(count, last.count), last.end))[0]
        if run.count <= count:
            del self._runs[key]
        else:
            run = run.take_right(count)
        self._count -= run.count
        return run

    def clear(self) -> list[Run]:
        """Give up everything, in seq_id order."""
        runs = list(self)
        self._runs = _NO_RUNS
        self._count = 0
        return runs

    def release(self) -> None:
        """Give up memory that holds nothing."""
        if not self._runs:
            self._runs = _NO_RUNS

    def _before(self, seq_id: int) -> Run | None:
        """The run with the highest first seq_id below ``seq_id``."""
        index = self._runs.bisect_left(seq_id) - 1
        return None if index < 0 else self._runs.peekitem(index)[1]

    def _take(self, run: Run, start: int, end: int, step: int) -> list[Run]:
        low, high = max(start, run.start), min(end, run.end)
        if low >= high:
            return []
        if step == 1 and not isinstance(run, _Holed):
            in_the_middle = run.start < low and high < run.end
            if not in_the_middle or high - low > SMALL_BATCH:
                return [self._cut(run, low, high)]
        return self._mark(run, range(low, high, step))

    def _cut(self, run: Run, low: int, high: int) -> Run:
        """Cut ``low … high-1`` out of a run without holes."""
        del self._runs[run.start]
        if high < run.end:
            rest = run.window(high - run.start, run.end - high).settle()
            self._runs[rest.start] = rest
        piece = run.window(low - run.start, high - low)
        if low > run.start:
            rest = run.window(0, low - run.start).settle()
            self._runs[rest.start] = rest
        self._count -= piece.count
        return piece

    def _make_way(self, run: Run) -> None:
        """Replace runs with holes by their remaining messages, for requeued messages that are delivered again."""
        keys = list(self._runs.irange(run.start, run.end, inclusive=(True, False)))
        before = self._before(run.start)
        if before is not None and before.end > run.start:
            keys.append(before.start)
        for key in keys:
            holed = self._runs.pop(key)
            self._runs.update({part.start: part.settle() for part in _held(holed, holed.start, holed.end)})

    def _mark(self, run: Run, seq_ids: range) -> list[Run]:
        """Remove the held messages among ``seq_ids`` from a run, leaving holes in it."""
        if not isinstance(run, _Holed):
            run = self._runs[run.start] = _Holed(run, bytearray(run.count), run.count)
        marks, step = run.marks, seq_ids.step
        low, high = seq_ids.start - run.start, seq_ids.stop - run.start
        if 1 not in marks[low:high:step]:
            pieces = [run.every(range(low, high, step), with_terms=run.in_ram)]
        else:
            rows = run.held(low, high) if step == 1 else [range(at, at + 1) for at in range(low, high, step)]
            pieces = [run.window(part.start, len(part)) for part in rows if not marks[part.start]]
        marks[low:high:step] = _HOLE * len(seq_ids)
        self._count -= sum([piece.count for piece in pieces])
        left = marks.count(_HELD)
        if not left:
            del self._runs[run.start]
        elif run.in_ram and run.worth_copying and left * _COPY_RATIO <= run.payloads:
            self._runs[run.start] = _Holed(run.emptied(marks), marks, left)
        return pieces


def _held(run: Run, start: int, end: int) -> list[Run]:
    """Yield windows on the held messages among a run's ``start … end-1``."""
    low, high = max(start, run.start) - run.start, min(end, run.end) - run.start
    if low >= high:
        return []
    if not isinstance(run, _Holed):
        return [run.window(low, high - low)]
    return [run.window(part.start, len(part)) for part in run.held(low, high)]
