"""A queue of runs: what Q1, Q2, Q3 and Q4 are.

Messages stand in seq_id order, head first; between runs there may be gaps, never overlaps. Counting, looking at either
end, and cutting a part off either end cost the same however long the queue is. One that never held a run costs next
to nothing: most of ten thousand queues are empty.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, cast

from warren.queue_index.queue.run import Run

_NO_RUNS: Final = cast(deque[Run], ())
"""Used for every empty deque, which would take 600 bytes each; a tuple, so that it cannot be changed."""


def _end_of(run: Run) -> int:
    return run.end


def part_of(run: Run, seq_ids: range) -> Run:
    """A window on the messages of a run that have these seq_ids."""
    low, high = max(seq_ids.start, run.start), min(seq_ids.stop, run.end)
    return run.window(low - run.start, high - low)


class RunQueue:
    """Runs in seq_id order. Truth value: whether it holds a message."""

    __slots__ = ("_count", "_runs")

    def __init__(self, runs: Iterable[Run] = ()) -> None:
        self._runs = _NO_RUNS
        self._count = 0
        for run in runs:
            self.append(run)

    def __len__(self) -> int:
        return self._count

    def __bool__(self) -> bool:
        return self._count > 0

    def __iter__(self) -> Iterator[Run]:
        return iter(self._runs)

    @property
    def first_seq_id(self) -> int:
        return self._runs[0].start

    @property
    def last_seq_id(self) -> int:
        return self._runs[-1].end - 1

    def since(self, seq_id: int) -> Iterator[Run]:
        """Yield windows on the messages from ``seq_id`` on; earlier ones cost next to nothing."""
        runs = self._runs
        for index in range(bisect_right(runs, seq_id, key=_end_of), len(runs)):
            run = runs[index]
            skipped = max(seq_id - run.start, 0)
            yield run.window(skipped, run.count - skipped)

    @property
    def head(self) -> Run:
        return self._runs[0]

    @property
    def tail(self) -> Run:
        return self._runs[-1]

    def append(self, run: Run) -> None:
        """Put a run after the last one."""
        self._count += run.count
        runs = self._runs
        if runs and runs[-1].continues(run):
            runs[-1].count += run.count
        elif runs is _NO_RUNS:
            self._runs = deque((run,))
        else:
            runs.append(run)

    def prepend(self, run: Run) -> None:
        """Put a run before the first one."""
        self._count += run.count
        runs = self._runs
        if runs and run.continues(runs[0]):
            run.count += runs[0].count
            runs[0] = run
        elif runs is _NO_RUNS:
            self._runs = deque((run,))
        else:
            runs.appendleft(run)

    def grow_tail(self) -> None:
        """Count one message that joined the last run's open batch."""
        self._runs[-1].count += 1
        self._count += 1

    def take_left(self, count: int) -> Run:
        """Cut at most ``count`` messages off the head, as far as they are one run."""
        run = self._runs[0]
        if run.count <= count:
            self._runs.popleft()
        else:
            rest, run = run, run.take_left(count)
            rest.settle()
        self._count -= run.count
        return run

    def take_right(self, count: int) -> Run:
        """Cut at most ``count`` messages off the tail, as far as they are one run."""
        run = self._runs[-1]
        if run.count <= count:
            self._runs.pop()
        else:
            rest, run = run, run.take_right(count)
            rest.settle()
        self._count -= run.count
        return run

    def within(self, ranges: Sequence[range]) -> list[Run]:
        """Return windows on the messages in ``ranges``: seq_ids, ascending, neighbours joined."""
        runs, windows = self._runs, list[Run]()
        for part in ranges:
            for index in range(bisect_right(runs, part.start, key=_end_of), len(runs)):
                run = runs[index]
                if run.start >= part.stop:
                    break
                windows.append(part_of(run, part))
        return windows

    def remove(self, ranges: Sequence[range]) -> None:
        """Remove what :meth:`within` returns for ``ranges``. Nothing else moves."""
        if not ranges or not self._runs:
            return
        runs, remaining, at = self._runs, list[Run](), 0
        first = bisect_right(runs, ranges[0].start, key=_end_of)
        runs.rotate(-first)  # the runs before are at the end meanwhile
        for _ in range(len(runs) - first):
            if at == len(ranges):
                break
            run = whole = runs.popleft()
            while at < len(ranges) and ranges[at].start < whole.end:
                removed = ranges[at]
                low, high = max(removed.start, run.start), min(removed.stop, whole.end)
                if low < high:
                    if run.start < low:
                        remaining.append(run.window(0, low - run.start).settle())
                    run = run.window(high - run.start, whole.end - high)
                    self._count -= high - low
                if removed.stop > whole.end:
                    break
                at += 1
            if run.count:
                remaining.append(run if run is whole else run.settle())
        runs.extendleft(reversed(remaining))
        runs.rotate(first)

    def extend(self, other: RunQueue) -> None:
        """Put all of another queue after this one."""
        for run in other:
            self.append(run)

    def merge(self, incoming: list[Run]) -> None:
        """Insert runs, in seq_id order, each at its place."""
        if not incoming:
            return
        previous, self._runs, self._count = self._runs, _NO_RUNS, 0
        for run in incoming:
            while previous and previous[0].start < run.start:
                self.append(previous.popleft())
            self.append(run)
        for run in previous:
            self.append(run)

    def release(self) -> None:
        """Give up memory that holds nothing."""
        if not self._runs:
            self._runs = _NO_RUNS

    def check_invariants(self, segment_entry_count: int) -> None:
        """Raise ``RuntimeError`` if runs are empty, out of order, overlapping or across a segment boundary."""
        position = -1
        total = 0
        for run in self._runs:
            if run.count < 1 or run.start <= position or run.high > run.batch.count:
                raise RuntimeError(f"{run} is out of order, empty or outside its batch")
            if run.start // segment_entry_count != (run.end - 1) // segment_entry_count:
                raise RuntimeError(f"{run} crosses a segment boundary")
            position = run.end - 1
            total += run.count
        if total != self._count:
            raise RuntimeError(f"{self._count} messages counted, {total} there")
