"""Pending acks: messages that were delivered and neither acked nor requeued yet.

Three of these stand in a queue: *ram* (payload in RAM, store-bound), *index* (payload in RAM, embedded) and *disk*
(payload dropped: it is in the store or in the index). Each holds runs by their first seq_id, so that an ack of a
thousand messages is one cut. One that never held a run costs next to nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, cast

from sortedcontainers import SortedDict

from warren.queue_index.run import Run

_NO_RUNS: Final[SortedDict[int, Run]] = SortedDict()
"""In place of an empty one, which takes 1 KB; all share it, and nobody puts anything in."""


class PendingAcks:
    """Runs by seq_id. ``len`` counts messages."""

    __slots__ = ("_count", "_runs")

    def __init__(self) -> None:
        self._runs = _NO_RUNS
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Run]:
        return iter(self._runs.values())

    @property
    def last_seq_id(self) -> int:
        """The highest; not of an empty one."""
        return int(self._runs.peekitem(-1)[1].end) - 1

    def add(self, run: Run) -> None:
        """Hold a run; it joins the one before it where that goes on in the same batch."""
        self._count += run.count
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
        return None if run is None or seq_id >= run.end else run.window(seq_id - run.start, 1)

    def covers_any(self, start: int, end: int) -> bool:
        """Whether a message of ``start … end-1`` is held."""
        run = self._before(end)
        return run is not None and run.end > start

    def within(self, start: int, end: int) -> list[Run]:
        """Windows on what is held of ``start … end-1``, in seq_id order."""
        first = self._runs.bisect_left(start + 1) - 1
        return [
            run.window(max(start, run.start) - run.start, min(end, run.end) - max(start, run.start))
            for run in self._runs.values()[max(first, 0) : self._runs.bisect_left(end)]
            if run.end > start
        ]

    def since(self, seq_id: int) -> Iterator[Run]:
        """Windows on what is held from ``seq_id`` on, in seq_id order; what comes before costs next to nothing."""
        before = self._before(seq_id + 1)
        for key in self._runs.irange(seq_id if before is None or before.end <= seq_id else before.start):
            run = self._runs[key]
            skipped = max(seq_id - run.start, 0)
            yield run.window(skipped, run.count - skipped)

    def remove(self, start: int, end: int) -> list[Run]:
        """Give up what is held of ``start … end-1``, in seq_id order."""
        removed: list[Run] = []
        run = self._before(start + 1)
        if run is not None and run.end > start:
            removed += self._cut(run, start, end)
        if removed and removed[-1].end >= end:
            return removed
        for key in list(self._runs.irange(start, end, inclusive=(False, False))):
            removed += self._cut(self._runs[key], key, end)
        return removed

    def pop_largest(self, count: int) -> Run:
        """Give up at most ``count`` messages of the highest seq_ids: as many of them as are one run."""
        key, run = cast(tuple[int, Run], self._runs.peekitem(-1))
        if run.count <= count:
            del self._runs[key]
        else:
            run = run.take_right(count)
        self._count -= run.count
        return run

    def clear(self) -> list[Run]:
        """Give up everything, in seq_id order."""
        runs = list(self._runs.values())
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

    def _cut(self, run: Run, start: int, end: int) -> list[Run]:
        low, high = max(start, run.start), min(end, run.end)
        if low >= high:
            return []
        del self._runs[run.start]
        if high < run.end:
            rest = run.window(high - run.start, run.end - high).settle()
            self._runs[rest.start] = rest
        piece = run.window(low - run.start, high - low)
        if low > run.start:
            rest = run.window(0, low - run.start).settle()
            self._runs[rest.start] = rest
        self._count -= piece.count
        return [piece]
