"""What the write-ahead logs have of one queue: where its entries lie, as columns.

A *run* is entries of consecutive indexes and one term in one file: 12 bytes each, u64 offset and u32 length. The runs
of a queue ascend and do not overlap: an entry that was overwritten is in none.

Which records count. Within a term an index has one entry, however often it is written; a new leader overwrites with a
higher term, and what the log had from there on is void. So a record may

* go on where the queue's log ends, in the same term or a higher one;
* repeat an index in the same term: then it is the same record, or one of the two is damaged;
* go back, in a term higher than all: it overwrites;
* jump forward: what is between lies elsewhere, or is a hole.

The number of a record's id is under no checksum, so a record of one queue can be taken for another's. Such a record
goes back or jumps, and the record after it goes on where the queue was before: a jump counts only when the next record
confirms it. And a record that cannot be read may have been one that overwrites: if a term rises after such records, as
many entries before the risen term are in doubt.

A damaged record still has a place among its queue's records. What it says of its index may be wrong, so the next sound
record of the queue decides: the damaged ones before it are the entries that are missing there, if there are as many.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from typing import Final, NamedTuple

import attrs
import numpy as np
import numpy.typing as npt

from warren.salvage.queue_directory import Finding
from warren.salvage.quorum.ra.entry_runs import BadEntry
from warren.salvage.quorum.ra.wal_scan_state import EntryPosition, ScanState

Offsets = npt.NDArray[np.uint64]
Lengths = npt.NDArray[np.uint32]

NOT_FOLLOWING: Final = "record out of order"
MAX_REPORTED: Final = 1000
"""Problems of one queue that are kept."""
MAX_BAD: Final = 100_000
"""Bad entries of one queue that are kept one by one; others are holes."""
MAX_RUNS: Final = 100_000
"""Of one queue: more elections are no log's. It bounds the memory that a file can ask for."""


@attrs.frozen(eq=False, repr=False)
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
    """Number of entries before it that unreadable records may have overwritten, if they are of a lower term."""

    @property
    def last(self) -> int:
        return self.first + len(self.offsets) - 1


@attrs.frozen(eq=False, repr=False)
class WalEntries:
    """All that the write-ahead logs have of one queue."""

    uid: bytes
    runs: tuple[WalRun, ...] = ()
    """By index."""
    bad: dict[int, BadEntry] = attrs.field(factory=dict)
    """Entries that cannot be read; no run has them."""
    problems: tuple[Finding, ...] = ()
    """Of this queue's records; the index of all has them too."""

    @property
    def count(self) -> int:
        """Of its entries that can be read."""
        return sum(len(run.offsets) for run in self.runs)


class Missed(NamedTuple):
    """A single entry that a queue misses in a file."""

    index: int  # type: ignore[assignment]
    path: str
    low: int
    high: int
    """The entry lay between these offsets."""

    def spans(self, place: EntryPosition) -> bool:
        return place.path == self.path and self.low < place.offset < self.high


@attrs.define(eq=False, repr=False)
class OpenRun:
    """A run that grows."""

    path: str
    first: int
    term: int
    offsets: array[int]
    lengths: array[int]
    certain: bool = True
    doubtful: int = 0

    @classmethod
    def of(cls, place: EntryPosition, *, certain: bool = True, doubtful: int = 0) -> OpenRun:
        offsets, lengths = array("Q", [place.offset]), array("I", [place.length])
        return cls(place.path, place.index, place.term, offsets, lengths, certain, doubtful)

    @property
    def last(self) -> int:
        return self.first + len(self.offsets) - 1

    def place_of(self, index: int) -> EntryPosition:
        at = index - self.first
        return EntryPosition(self.path, index, self.term, self.offsets[at], self.lengths[at], False, 0)

    def split(self, index: int) -> OpenRun | None:
        """Keep what is below ``index``; the run of what is above it, if any."""
        at = index - self.first
        rest = None
        if index < self.last:
            rest = OpenRun(self.path, index + 1, self.term, self.offsets[at + 1 :], self.lengths[at + 1 :])
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


@attrs.define(eq=False, repr=False)
class QueueColumns:
    """The columns of one queue, while the logs are scanned."""

    uid: bytes
    _scan: ScanState
    runs: list[OpenRun] = attrs.Factory(list)
    bad: dict[int, BadEntry] = attrs.Factory(dict)
    problems: list[Finding] = attrs.Factory(list)
    next_index: int = -1
    term: int = -1
    hot_index: int = -1
    """The index of a record that needs nothing but two appends (in the same term and file); -1: none."""
    hot: OpenRun | None = None
    """The run to append to."""
    missed: list[Missed] = attrs.Factory(list)
    """Single entries that the queue misses."""
    _waiting: EntryPosition | None = None
    _damaged: list[BadEntry] = attrs.Factory(list)
    """Damaged records since the last sound one; of none of them the index is known."""

    @property
    def last(self) -> int:
        return self.next_index - 1

    def report(self, kind: str, place: EntryPosition, detail: str) -> None:
        problem = Finding(kind, "damage", place.path, place.offset, detail)
        if len(self.problems) < MAX_REPORTED:
            self.problems.append(problem)
        self._scan.report(problem)

    def add(self, place: EntryPosition) -> None:
        """A record whose checksum is right."""
        if self._damaged:
            self._settle_damaged(place)
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

    def _may_follow(self, waiting: EntryPosition, place: EntryPosition) -> bool:
        """Whether both can be the queue's, though not consecutive: a jump ahead, or one election more."""
        if place.index > waiting.index:
            return place.term >= waiting.term
        return place.term > waiting.term and waiting.index < self.next_index

    def _place(self, place: EntryPosition) -> None:
        index, term = place.index, place.term
        if self.next_index < 0:
            self._start(place, certain=True)
        elif len(self.runs) >= MAX_RUNS and (term != self.term or index != self.next_index):
            self._refuse(place, f"entry {index} after {MAX_RUNS} elections")
        elif term < self.term and index >= self.next_index:
            self._refuse(place, f"entry {index} of term {term} after one of term {self.term}")
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

    def _go_on(self, place: EntryPosition) -> None:
        run = self.runs[-1] if self.runs else None
        if run is None or run.path != place.path or run.term != place.term or run.last + 1 != place.index:
            self._start(place, certain=True)
            return
        run.offsets.append(place.offset)
        run.lengths.append(place.length)
        self.next_index = place.index + 1

    def _doubtful(self, place: EntryPosition) -> int:
        """How many entries before ``place`` may have been overwritten by lost records."""
        if place.term <= self.term:
            return 0
        last = self.runs[-1] if self.runs else None
        return self._scan.lost_since("", 0) if last is None else self._scan.lost_since(last.path, last.offsets[-1])

    def _start(self, place: EntryPosition, *, certain: bool, doubtful: int | None = None) -> None:
        if doubtful is None:
            doubtful = self._doubtful(place)
        self.runs.append(OpenRun.of(place, certain=certain, doubtful=doubtful))
        self.next_index = place.index + 1
        self.term = place.term

    def _jump(self, place: EntryPosition, *, certain: bool) -> None:
        """Continue at an earlier index in a higher term, or at a later one."""
        if place.index > self.next_index:
            if place.index == self.next_index + 1 and self.runs and self.runs[-1].path == place.path:
                self.missed.append(Missed(self.next_index, place.path, self.runs[-1].offsets[-1], place.offset))
            self._start(place, certain=certain)
            return
        doubtful = self._doubtful(place)
        self._cut(place.index)
        self._start(place, certain=True, doubtful=doubtful)

    def _cut(self, index: int) -> None:
        """Void all entries from ``index`` on."""
        while self.runs and self.runs[-1].first >= index:
            self.runs.pop()
        if self.runs and self.runs[-1].last >= index:
            self.runs[-1].split(index)
        for above in [bad for bad in self.bad if bad >= index]:
            del self.bad[above]

    def _again(self, place: EntryPosition) -> None:
        """A record whose index is before the queue's end, and whose term is not higher."""
        index = place.index
        at = bisect_right(self.runs, index, key=lambda run: run.first) - 1
        run = self.runs[at] if at >= 0 else None
        if run is None or index > run.last:
            if index in self.bad and place.term == self.bad[index].term:
                del self.bad[index]
                self._insert(place)
                return
            self._refuse(place, f"entry {index}, where {self.next_index} should follow")
            return
        existing = run.place_of(index)
        if run.term != place.term:
            self._refuse(place, f"entry {index} of term {place.term} in place of one of term {run.term}")
        elif not self._scan.are_same(existing, place):
            if index == self.last:  # nothing tells which of the two is the queue's
                self.drop(index, "two different entries have its index and term")
            self._refuse(place, f"entry {index} of term {place.term} differs from another one")

    def _insert(self, place: EntryPosition) -> None:
        at = next((n for n, run in enumerate(self.runs) if run.first > place.index), len(self.runs))
        self.runs.insert(at, OpenRun.of(place))

    def drop(self, index: int, reason: str) -> None:
        """An entry that cannot be trusted: from here on it is a bad one."""
        for at, run in enumerate(self.runs):
            if run.first <= index <= run.last:
                position = index - run.first
                offset, length = run.offsets[position], run.lengths[position]
                self.bad[index] = BadEntry(index, run.term, run.path, offset, reason, length)
                rest = run.split(index)
                self.runs[at : at + 1] = [part for part in (run, rest) if part is not None and part.offsets]
                self.hot_index = -1
                return

    def add_damaged(self, bad: BadEntry) -> None:
        """A record whose checksum is wrong. It counts as the next one if it says so."""
        if bad.index == self.next_index and bad.term == self.term and not self._damaged:
            self._miss(bad)
        elif len(self._damaged) < MAX_REPORTED:
            self._damaged.append(bad)

    def _settle_damaged(self, place: EntryPosition) -> None:
        """Which entries the damaged records before ``place`` are."""
        damaged, self._damaged = self._damaged, []
        first = place.index - len(damaged)
        begins = self.next_index < 0 <= first  # nothing is known of the queue before them
        if begins or (first == self.next_index and place.term >= self.term):
            for index, bad in enumerate(damaged, first):
                self._miss(attrs.evolve(bad, index=index, term=place.term if begins else self.term))

    def _miss(self, bad: BadEntry) -> None:
        """The next entry cannot be read."""
        if len(self.bad) < MAX_BAD:
            self.bad[bad.index] = bad
        self.next_index = bad.index + 1
        self.hot_index = -1

    def take_back(self, place: EntryPosition) -> None:
        """Insert an entry of the queue at its index, even if its record names another queue."""
        self.drop(place.index, "")
        self.bad.pop(place.index, None)
        self._insert(place)

    def lacks(self, missed: Missed) -> bool:
        """Whether the entry is still missing."""
        return missed.index not in self.bad and not any(run.first <= missed.index <= run.last for run in self.runs)

    def _refuse(self, place: EntryPosition, detail: str) -> None:
        self.report(NOT_FOLLOWING, place, detail)
        self._scan.lose(place.path, place.offset, 1)
        self._scan.stray(self.uid, place)

    def place_at(self, missed: Missed) -> EntryPosition | None:
        """This queue's entry at a place where another queue misses one of the same index."""
        index = missed.index
        bad = self.bad.get(index)
        run = next((run for run in self.runs if run.first <= index <= run.last), None)
        if bad is not None:
            place = EntryPosition(bad.path, index, bad.term, bad.offset, bad.length, False, 0)
        elif run is not None:
            place = run.place_of(index)
        else:
            return None
        return place if place.length and missed.spans(place) else None

    def finish(self) -> None:
        """No more records."""
        if self.next_index >= 0 and self._waiting is None:
            for index, bad in enumerate(self._damaged, self.next_index):
                self._miss(attrs.evolve(bad, index=index, term=self.term))
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            self._jump(waiting, certain=False)

    def closed(self) -> WalEntries:
        runs = tuple(run.closed() for run in self.runs if run.offsets)
        return WalEntries(self.uid, runs, self.bad, tuple(self.problems))
