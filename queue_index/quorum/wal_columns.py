"""What the write-ahead logs have of one queue: where its entries lie, as columns.

A *run* is entries of consecutive indexes and one term in one file: 12 bytes each, u64 offset and u32 length. The runs
of a queue ascend and do not overlap: an entry that was overwritten is in none.

Which records count. Within a term an index has one entry, whoever writes it how often; a new leader overwrites with a
higher term, and what the log had from there on is void. So a record may

* go on where the queue's log ends, in the same term or a higher one;
* come again (its index is there, in the same term): then it is the same, or one of the two is damaged;
* go back, in a term higher than all: it overwrites;
* jump forward: what is between lies elsewhere, or is a hole.

The number of a record's id is under no checksum, so a record of one queue can be taken for another's. Such a one goes
back or jumps, and the record after it goes on where the queue was before: a jump counts only when the next record
confirms it. And a record that cannot be read may have been one that overwrites: where a term rises behind such ones,
as many entries before the risen term are in doubt.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable
from typing import Final, NamedTuple

import attrs
import numpy as np
import numpy.typing as npt

from queue_index.quorum.log_entries import BadEntry
from queue_index.quorum.problems import Problem

Offsets = npt.NDArray[np.uint64]
Lengths = npt.NDArray[np.uint32]

NOT_FOLLOWING: Final = "record out of order"
MAX_TOLD: Final = 1000
"""Problems of one queue that are kept."""
MAX_BAD: Final = 100_000
"""Bad entries of one queue that are kept one by one; others are holes."""
MAX_RUNS: Final = 100_000
"""Of one queue: more elections are no log's. It bounds the memory that a file can ask for."""


@attrs.frozen(eq=False)
class WalRun:
    """Entries of consecutive indexes and one term in one file."""

    path: str
    first: int
    term: int
    offsets: Offsets
    """Of the entries themselves."""
    lengths: Lengths
    certain: bool = True
    """False: it begins with a jump that no later record confirms."""
    doubtful: int = 0
    """So many entries before it may be overwritten, if they are of a lower term: records that cannot be read."""

    @property
    def last(self) -> int:
        return self.first + len(self.offsets) - 1


@attrs.frozen(eq=False)
class WalEntries:
    """All that the write-ahead logs have of one queue."""

    uid: bytes
    runs: tuple[WalRun, ...] = ()
    """By index."""
    bad: dict[int, BadEntry] = attrs.field(factory=dict)
    """Entries that cannot be read; no run has them."""
    problems: tuple[Problem, ...] = ()
    """Of this queue's records; the index of all has them too."""

    @property
    def count(self) -> int:
        """Of its entries that can be read."""
        return sum(len(run.offsets) for run in self.runs)


class Place(NamedTuple):
    """A record of a queue, as far as the columns want it."""

    path: str
    index: int  # type: ignore[assignment]
    term: int
    offset: int
    """Of the entry."""
    length: int
    truncates: bool
    checksum: int


class OpenRun:
    """A run that grows."""

    __slots__ = ("certain", "doubtful", "first", "lengths", "offsets", "path", "term")

    def __init__(self, place: Place, *, certain: bool = True, doubtful: int = 0) -> None:
        self.path, self.first, self.term = place.path, place.index, place.term
        self.certain, self.doubtful = certain, doubtful
        self.offsets = array("Q", [place.offset])
        self.lengths = array("I", [place.length])

    @property
    def last(self) -> int:
        return self.first + len(self.offsets) - 1

    def split(self, index: int) -> OpenRun | None:
        """Keep what is below ``index``; the run of what is above it, if any."""
        at = index - self.first
        rest = None
        if index < self.last:
            rest = OpenRun.__new__(OpenRun)
            rest.path, rest.first, rest.term, rest.certain, rest.doubtful = self.path, index + 1, self.term, True, 0
            rest.offsets, rest.lengths = self.offsets[at + 1 :], self.lengths[at + 1 :]
        del self.offsets[at:], self.lengths[at:]
        return rest

    def closed(self) -> WalRun:
        return WalRun(
            self.path,
            self.first,
            self.term,
            np.frombuffer(self.offsets, np.uint64) if self.offsets else np.empty(0, np.uint64),
            np.frombuffer(self.lengths, np.uint32) if self.lengths else np.empty(0, np.uint32),
            self.certain,
            self.doubtful,
        )


class QueueColumns:
    """The columns of one queue, while the logs are scanned."""

    def __init__(
        self,
        uid: bytes,
        report: Callable[[Problem], None],
        same: Callable[[Place, Place], bool],
        lose: Callable[[str, int, int], None],
        lost_since: Callable[[str, int], int],
    ) -> None:
        self.uid = uid
        self.runs: list[OpenRun] = []
        self.bad: dict[int, BadEntry] = {}
        self.problems: list[Problem] = []
        self._report = report
        self._same = same
        self._lose = lose
        """Note that so many records at a place (path, offset) are lost to the queue whose they are."""
        self._lost_since = lost_since
        """How many records may have been lost since one in a file (path, offset), or at all (no path)."""
        self._waiting: Place | None = None
        self.next_index = -1
        self.term = -1
        self.hot_index = -1
        """The index of a record that needs nothing but two appends (in the same term and file); -1: none."""
        self.hot: OpenRun | None = None
        """The run to append to."""
        self.suspects: list[tuple[int, str, int, int]] = []
        """Single entries that the queue misses: the index, the file, and between which offsets the record was."""

    @property
    def last(self) -> int:
        return self.next_index - 1

    def report(self, kind: str, place: Place, detail: str) -> None:
        problem = Problem(kind, "damage", place.path, place.offset, detail)
        if len(self.problems) < MAX_TOLD:
            self.problems.append(problem)
        self._report(problem)

    def add(self, place: Place) -> None:
        """A record whose checksum is right."""
        waiting = self._waiting
        if waiting is not None:
            self._waiting = None
            if place.index == waiting.index + 1 and place.term >= waiting.term:
                self._jump(waiting, certain=True)
            elif place.index == self.next_index and place.term >= self.term:
                self._refuse(waiting, f"entry {waiting.index}, where {self.next_index} follows")
            elif self._may_follow(waiting, place):
                self._jump(waiting, certain=waiting.index < self.next_index)
            else:
                self._refuse(waiting, f"entry {waiting.index}, where {self.next_index} should follow")
        self._place(place)
        run = self.runs[-1] if self.runs else None
        if run is not None and self._waiting is None and run.last + 1 == self.next_index:
            self.hot, self.hot_index = run, self.next_index
        else:
            self.hot_index = -1

    def _may_follow(self, waiting: Place, place: Place) -> bool:
        """Whether both can be the queue's, though not one behind the other: a jump ahead, or one election more."""
        if place.index > waiting.index:
            return place.term >= waiting.term
        return place.term > waiting.term and waiting.index < self.next_index

    def _place(self, place: Place) -> None:
        index, term = place.index, place.term
        if self.next_index < 0:
            self._start(place, certain=True)
        elif len(self.runs) >= MAX_RUNS and (term != self.term or index != self.next_index):
            self._refuse(place, f"entry {index} behind {MAX_RUNS} elections")
        elif term < self.term and index >= self.next_index:
            self._refuse(place, f"entry {index} of term {term} behind one of term {self.term}")
        elif index == self.next_index:
            self._go_on(place)
        elif index > self.next_index:
            if place.truncates:
                self._start(place, certain=True)
            else:
                self._waiting = place
        elif term > self.term:
            self._waiting = place
        else:
            self._again(place)

    def _go_on(self, place: Place) -> None:
        run = self.runs[-1] if self.runs else None
        if run is None or run.path != place.path or run.term != place.term or run.last + 1 != place.index:
            self._start(place, certain=True)
            return
        run.offsets.append(place.offset)
        run.lengths.append(place.length)
        self.next_index = place.index + 1

    def _doubtful(self, place: Place) -> int:
        """How many entries before ``place`` may have been overwritten by lost records."""
        if place.term <= self.term:
            return 0
        last = self.runs[-1] if self.runs else None
        return self._lost_since("", 0) if last is None else self._lost_since(last.path, last.offsets[-1])

    def _start(self, place: Place, *, certain: bool, doubtful: int | None = None) -> None:
        if doubtful is None:
            doubtful = self._doubtful(place)
        self.runs.append(OpenRun(place, certain=certain, doubtful=doubtful))
        self.next_index = place.index + 1
        self.term = place.term

    def _jump(self, place: Place, *, certain: bool) -> None:
        """Back in a higher term, or forward."""
        if place.index > self.next_index:
            if place.index == self.next_index + 1 and self.runs and self.runs[-1].path == place.path:
                self.suspects.append((self.next_index, place.path, self.runs[-1].offsets[-1], place.offset))
            self._start(place, certain=certain)
            return
        doubtful = self._doubtful(place)
        self._cut(place.index)
        self._start(place, certain=True, doubtful=doubtful)

    def _cut(self, index: int) -> None:
        """Void what there is from ``index`` on."""
        while self.runs and self.runs[-1].first >= index:
            self.runs.pop()
        if self.runs and self.runs[-1].last >= index:
            self.runs[-1].split(index)
        for above in [bad for bad in self.bad if bad >= index]:
            del self.bad[above]

    def _again(self, place: Place) -> None:
        """An index that the queue is past, and no higher term."""
        index = place.index
        at = bisect_right(self.runs, index, key=lambda run: run.first) - 1
        found = self.runs[at] if at >= 0 else None
        if found is None or index > found.last:
            if index in self.bad and place.term == self.bad[index].term:
                del self.bad[index]
                self._insert(place)
                return
            self._refuse(place, f"entry {index}, where {self.next_index} should follow")
            return
        at = index - found.first
        before = Place(found.path, index, found.term, found.offsets[at], found.lengths[at], False, 0)
        if found.term != place.term:
            self._refuse(place, f"entry {index} of term {place.term} in place of one of term {found.term}")
        elif not self._same(before, place):
            if index == self.last:  # nothing tells which of the two is the queue's
                self.drop(index, "two different entries have its index and term")
            self._refuse(place, f"entry {index} of term {place.term} differs from another one")

    def _insert(self, place: Place) -> None:
        at = next((n for n, run in enumerate(self.runs) if run.first > place.index), len(self.runs))
        self.runs.insert(at, OpenRun(place))

    def drop(self, index: int, reason: str) -> None:
        """An entry that cannot be trusted: from here on it is a bad one."""
        for at, run in enumerate(self.runs):
            if run.first <= index <= run.last:
                position = index - run.first
                self.bad[index] = BadEntry(index, run.term, run.path, run.offsets[position], reason)
                rest = run.split(index)
                self.runs[at : at + 1] = [part for part in (run, rest) if part is not None and part.offsets]
                self.hot_index = -1
                return

    def skip(self, bad: BadEntry) -> None:
        """A record whose checksum is wrong, and which says that it is the next one."""
        if len(self.bad) < MAX_BAD:
            self.bad[bad.index] = bad
        self.next_index = bad.index + 1
        self.hot_index = -1

    def _refuse(self, place: Place, detail: str) -> None:
        self.report(NOT_FOLLOWING, place, detail)
        self._lose(place.path, place.offset, 1)

    def has_at(self, index: int, path: str, low: int, high: int) -> bool:
        """Whether the entry ``index`` lies in ``path`` between two offsets."""
        return any(
            run.path == path and run.first <= index <= run.last and low < run.offsets[index - run.first] < high
            for run in self.runs
        )

    def finish(self) -> None:
        """No more records."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            self._jump(waiting, certain=False)

    def closed(self) -> WalEntries:
        runs = tuple(run.closed() for run in self.runs if run.offsets)
        return WalEntries(self.uid, runs, self.bad, tuple(self.problems))
