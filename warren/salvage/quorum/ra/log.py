"""One queue's log: what its directory and the node's write-ahead logs have together.

::

    <UId>/00000001.segment …       closed parts                     :mod:`warren.salvage.quorum.ra.segment_table`
         /snapshots/…              what stands for the log's begin  :mod:`warren.salvage.quorum.ra.snapshots`
    ../00000001.wal …              what is not in segments yet      :mod:`warren.salvage.quorum.ra.wal_index`

Terms. The log has one *entry* for each index, ascending by one, in terms that never go back;
:mod:`warren.salvage.quorum.ra.log_plan` decides which file's counts. The *live* entries are those after the snapshot;
they are replayed. Up to the snapshot's index the log may have holes. An index that no file has is a *hole*; one whose
entry or record is damaged, a *bad entry*. A bad entry in one file is a good one if another file has it too.

Memory: tables of a few segments at a time, a window of bodies.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import closing
from typing import Final

import attrs
import numpy as np

from warren.salvage.queue_directory import UNREADABLE_FILE, Finding, damage_by
from warren.salvage.quorum.ra.entry_runs import WINDOW_BYTES, BadEntry, EntryReader, EntryRun, Hole, LogEntry, read_run
from warren.salvage.quorum.ra.file_names import CONFIG_NAME, META_FILE, file_number, is_segment_name
from warren.salvage.quorum.ra.log_plan import Part, Plan, Source
from warren.salvage.quorum.ra.segment_table import SegmentTable, read_record, read_table
from warren.salvage.quorum.ra.snapshots import CHECKPOINTS, SNAPSHOTS, SnapshotInfo, find_snapshot
from warren.salvage.quorum.ra.wal_columns import WalEntries, WalRun
from warren.salvage.quorum.ra.wal_scan import UNREADABLE_RECORD
from warren.storage.errors import DataError, StorageError
from warren.storage.filesystem import FileSystem

HOLE: Final = "hole in the log"
SNAPSHOT_MISFIT: Final = "snapshot that does not fit the log"
TERM_BACK: Final = "term that goes back"
SEGMENT_MISFIT: Final = "segment that does not fit the log"
EMPTY_LOG: Final = "empty log"
CUT_SHORT: Final = "log cut short"
LEFTOVER: Final = "leftover file"

_TABLES_KEPT = 4
_HELD_ENTRIES = 512
"""Whose places are looked up together if entries are read in ascending order."""
_KNOWN_NAMES = frozenset({CONFIG_NAME, SNAPSHOTS, CHECKPOINTS, "recovery_checkpoint"})


@attrs.frozen
class SegmentInfo:
    """A segment, as its table says."""

    path: str
    number: int
    entries: int
    """Records in it."""
    first_index: int | None
    last_index: int | None


class QuorumLog:
    """The log of one queue."""

    def __init__(self, files: FileSystem, directory: str, wal: WalEntries, applied: int | None = None) -> None:
        """The log of the queue in ``directory``. Damage is no error here: :meth:`problems` and the entries tell it.

        ``applied``: the index of the last entry that the node is known to have applied.
        """
        self._files = files
        self.directory: Final = directory
        self._wal = wal
        self._problems: list[Finding] = []
        self._bad: dict[int, BadEntry] = {}
        self._tables: OrderedDict[int, SegmentTable] = OrderedDict()
        self._paths: list[str] = []
        self._plain: list[int | None] = []
        """The first index of each segment that has one record for each index from there on."""
        self._ahead = EntryReader(files)
        self._asked = -1
        self.snapshot: SnapshotInfo | None = find_snapshot(files, directory, self._problems)
        """The one that counts."""
        self.segments: list[SegmentInfo] = []
        self._plan = Plan(self._term_in)
        self._lay_segments()
        self._lay_runs()
        self._bad_indexes = sorted(self._bad)
        self._compare_end(applied or 0)

    @property
    def opening_problems(self) -> tuple[Finding, ...]:
        """What was wrong when it was opened: the first of :meth:`problems`, without reading bodies."""
        return tuple(self._problems)

    @property
    def first_index(self) -> int | None:
        """The lowest index that a file has; it may lie below the snapshot. ``None``: there is no entry."""
        return self._plan.first

    @property
    def last_index(self) -> int | None:
        """The highest one, or the snapshot's; ``None``: there is neither."""
        last = self._plan.last
        if self.snapshot is None or (last is not None and last > self.snapshot.index):
            return last
        return self.snapshot.index

    @property
    def last_term(self) -> int | None:
        """That of the last index."""
        last = self._plan.last
        if self.snapshot is not None and (last is None or last <= self.snapshot.index):
            return self.snapshot.term
        return None if last is None else self._plan.term_at(last)

    @property
    def _replayed_from(self) -> int:
        return 0 if self.snapshot is None else self.snapshot.index + 1

    def entries(self, after: int | None = None) -> Iterator[LogEntry | Hole | BadEntry]:
        """The entries after ``after`` (default: the snapshot's index), by index, each checksum checked.

        Missing indexes up to the snapshot's are skipped.
        """
        start = self._replayed_from if after is None else after + 1
        expected = start
        for part in self._plan:
            if part.last < start:
                continue
            for entry in read_run(self._files, self._entry_run(part.source, max(part.first, start), part.last)):
                index = entry.index
                if index != expected:
                    yield from self._missing(expected, index - 1)
                yield entry
                expected = index + 1
        yield from self._missing(expected, max(self._bad, default=-1))

    def _missing(self, first: int, last: int) -> Iterator[Hole | BadEntry]:
        """What stands for the indexes ``first`` … ``last``, which the files do not give."""
        low, high = bisect_left(self._bad_indexes, first), bisect_right(self._bad_indexes, last)
        for index in self._bad_indexes[low:high]:
            yield from self._hole(first, index - 1)
            yield self._bad[index]
            first = index + 1
        yield from self._hole(first, last)

    def _hole(self, first: int, last: int) -> Iterator[Hole]:
        first = max(first, self._replayed_from)
        if not first and self.snapshot is None:
            first = 1  # nothing is lost without the entry that opens a log
        if first <= last:
            yield Hole(first, last)

    def read(self, index: int) -> LogEntry:
        """The entry ``index``, live or below the snapshot. Raises :class:`DataError` if it cannot be read."""
        ascends, self._asked = 0 < index - self._asked <= _HELD_ENTRIES, index
        try:
            return self._ahead.held(index) or self._find(index, ascends=ascends)
        except StorageError as error:
            raise DataError(self.directory, None, f"entry {index}: {error}") from error

    def bytes_of(self, bad: BadEntry) -> bytes:
        """The bytes in place of a bad entry, up to a window of them; empty if they cannot be read."""
        try:
            with closing(self._files.open_read(bad.path)) as handle:
                return handle.pread(min(bad.length, WINDOW_BYTES), bad.offset)
        except StorageError:
            return b""

    def _find(self, index: int, *, ascends: bool) -> LogEntry:
        part = self._plan.part_of(index)
        run = None
        if part is not None:
            last = min(part.last, index + _HELD_ENTRIES) if ascends else index
            run = self._single(part.source, index) if last == index else self._entry_run(part.source, index, last)
        if run is None or not len(run.indexes) or int(run.indexes[0]) != index:
            if index in self._bad:
                bad = self._bad[index]
                raise DataError(bad.path, bad.offset, f"entry {index}: {bad.reason}")
            raise DataError(self.directory, None, f"no file has entry {index}")
        if int(run.indexes[-1]) - index + 1 == len(run.indexes) > 1:
            self._ahead.hold(run)
        entry = self._ahead.read(run)
        if isinstance(entry, BadEntry):
            raise DataError(entry.path, entry.offset, f"entry {index}: {entry.reason}")
        return entry

    def problems(self) -> Iterator[Finding]:
        """What is wrong with the directory's files, and with the log. Reads all segments.

        Not the write-ahead logs' own problems (:attr:`WalIndex.problems`, :attr:`WalEntries.problems`).
        """
        yield from self._problems
        for position in range(len(self._paths)):
            yield from self._bodies(position)
        yield from self._sequence()

    def _bodies(self, position: int) -> Iterator[Finding]:
        """Entries of a segment that cannot be read, and whether they are needed."""
        table = self._table(position)
        span = table.range
        if span is None:
            return
        for bad in table.bad.values():
            yield self._unreadable(bad, self._is_needed(bad.index, position))
        for entry in read_run(self._files, table.run(*span)):
            if isinstance(entry, BadEntry):
                yield self._unreadable(entry, self._is_needed(entry.index, position))

    @staticmethod
    def _unreadable(entry: BadEntry, needed: bool) -> Finding:
        detail = f"entry {entry.index}: {entry.reason}" + ("" if needed else "; it is not needed")
        return Finding(UNREADABLE_RECORD, "damage" if needed else "leftover", entry.path, entry.offset, detail)

    def _is_needed(self, index: int, position: int) -> bool:
        """Whether this segment's entry is one that is replayed, or whose message the snapshot has."""
        if index < self._replayed_from:
            ranges = () if self.snapshot is None else self.snapshot.indexes
            return any(first <= index <= last for first, last in ranges)
        part = self._plan.part_of(index)
        return part.source == position if part is not None else self._bad.get(index) is not None

    def _sequence(self) -> Iterator[Finding]:
        """Holes after the snapshot, and terms that go back."""
        expected, term = self._replayed_from, -1 if self.snapshot is None else self.snapshot.term
        start = expected
        for part in self._plan:
            run = self._entry_run(part.source, max(part.first, start), part.last)
            indexes, terms = np.asarray(run.indexes, np.uint64), np.asarray(run.terms, np.uint64)
            if not len(indexes):
                continue
            path = run.path
            jumps = np.flatnonzero(indexes[1:] - indexes[:-1] != 1) + 1
            yield from self._holes(expected, int(indexes[0]) - 1, path)
            for at in jumps:
                yield from self._holes(int(indexes[at - 1]) + 1, int(indexes[at]) - 1, path)
            falls = np.flatnonzero(terms[1:] < terms[:-1]) + 1
            if int(terms[0]) < term:
                yield _falling(path, int(indexes[0]), int(terms[0]), term)
            for at in falls:
                yield _falling(path, int(indexes[at]), int(terms[at]), int(terms[at - 1]))
            expected, term = int(indexes[-1]) + 1, int(terms[-1])
        yield from self._holes(expected, max(self._bad, default=-1), self.directory)
        if not self._plan and self.snapshot is None:
            yield Finding(EMPTY_LOG, "leftover", self.directory, None, "neither entries nor a snapshot")

    def _holes(self, first: int, last: int, path: str) -> Iterator[Finding]:
        for hole in self._missing(first, last):
            if isinstance(hole, BadEntry):
                continue
            detail = f"no file has the entries {hole.first} to {hole.last}"
            if self.snapshot is not None and hole.first == self.snapshot.index + 1:
                yield Finding(SNAPSHOT_MISFIT, "damage", self.snapshot.path, None, f"{detail}, which follow it")
            else:
                yield Finding(HOLE, "damage", path, None, detail)

    def _lay_segments(self) -> None:
        names = self._files.list(self.directory)
        segment_names = [name for name in names if is_segment_name(name)]
        for name in sorted(set(names) - set(segment_names) - _KNOWN_NAMES):
            self._problems.append(Finding(LEFTOVER, "leftover", f"{self.directory}/{name}", None, "no part of a log"))
        for name in sorted(segment_names, key=lambda name: (file_number(name), name)):
            path = f"{self.directory}/{name}"
            try:
                table = read_table(self._files, path, self._replayed_from - 1)
            except (DataError, StorageError) as error:
                self._problems.append(damage_by(error, UNREADABLE_FILE, path))
                continue
            self._problems += table.problems
            span = table.range
            self.segments.append(SegmentInfo(path, file_number(name), table.written, *(span or (None, None))))
            position = len(self._paths)
            self._paths.append(path)
            self._plain.append(int(table.indexes[0]) if table.is_plain else None)
            self._keep_table(position, table)
            if span is not None and self._fits(table, span):
                self._plan.lay(Part(*span, position))
                self._bad.update({index: bad for index, bad in table.bad.items() if self._is_missing(index)})

    def _fits(self, table: SegmentTable, span: tuple[int, int]) -> bool:
        """Whether a segment can have been written after those before it."""
        last = self._plan.last
        if last is None or not len(table.records) or int(table.records["index"][0]) > last:
            return True
        first = table.records[0]
        index, term = int(first["index"]), int(first["term"])
        part = self._plan.part_of(index)
        if part is None or isinstance(part.source, WalRun):
            return True
        earlier = self._table(part.source)
        at = earlier.position_of(index)
        if at is None or int(earlier.records["term"][at]) < term:
            return True
        record = earlier.records[at]
        if all(int(record[field]) == int(first[field]) for field in ("term", "length", "checksum")):
            return True
        detail = f"entries {span[0]} to {span[1]}, which other segments have otherwise"
        self._problems.append(Finding(SEGMENT_MISFIT, "damage", table.path, None, detail))
        return False

    def _compare_end(self, applied: int) -> None:
        """Report entries that the node has applied and that are missing from the end of the log."""
        end = max(self.last_index or 0, max(self._bad, default=0))
        if end < applied:
            ending = f"the log ends at entry {end}" if end else "the log has no entries"
            detail = f"{ending}, but {META_FILE} says that entry {applied} was applied"
            self._problems.append(Finding(CUT_SHORT, "damage", self.directory, None, detail))

    def _is_missing(self, index: int) -> bool:
        return self._plan.term_at(index) is None

    def _lay_runs(self) -> None:
        bad_indexes: set[int] = set()
        for run in self._wal.runs:
            reached = max(self._plan.last or 0, self._replayed_from - 1)
            if run.certain or run.first <= reached + 1:
                self._plan.lay(Part(run.first, run.last, run))
                bad_indexes.update(self._doubt(run))
                continue
            reason = "it does not follow what is before it"
            for index, offset in enumerate(run.offsets.tolist(), run.first):
                self._bad[index] = BadEntry(index, run.term, run.path, offset, reason)
                bad_indexes.add(index)
        self._bad = {
            index: bad for index, bad in self._bad.items() if index in bad_indexes or self._plan.part_of(index)
        }
        self._bad.update({index: bad for index, bad in self._wal.bad.items() if self._is_missing(index)})

    def _doubt(self, run: WalRun) -> Iterator[int]:
        """Entries before the run that unreadable records may have overwritten; they become bad entries."""
        for index in range(max(self._replayed_from, run.first - run.doubtful), run.first):
            term = self._plan.term_at(index)
            if term is not None and term < run.term:
                reason = f"it may be overwritten: records before entry {run.first}, of term {run.term}, cannot be read"
                self._bad[index] = BadEntry(index, term, run.path, int(run.offsets[0]), reason)
                self._plan.cut_out(index, index)
                yield index

    def _table(self, position: int) -> SegmentTable:
        """The table of a segment, cached or read again."""
        table = self._tables.get(position)
        if table is None:
            table = read_table(self._files, self._paths[position], self._replayed_from - 1)
            self._keep_table(position, table)
        else:
            self._tables.move_to_end(position)
        return table

    def _keep_table(self, position: int, table: SegmentTable) -> None:
        self._tables[position] = table
        while len(self._tables) > _TABLES_KEPT:
            self._tables.popitem(last=False)

    def _term_in(self, source: Source, index: int) -> int | None:
        if isinstance(source, WalRun):
            return source.term if source.first <= index <= source.last else None
        table = self._table(source)
        at = table.position_of(index)
        return None if at is None else int(table.records["term"][at])

    def _single(self, source: Source, index: int) -> EntryRun:
        """One entry of a source, without reading a whole table for it if possible."""
        first = None if isinstance(source, WalRun) or source in self._tables else self._plain[source]
        if isinstance(source, WalRun) or first is None:
            return self._entry_run(source, index, index)
        return read_record(self._files, self._paths[source], index - first)

    def _entry_run(self, source: Source, first: int, last: int) -> EntryRun:
        """The entries ``first`` … ``last`` of a source."""
        if not isinstance(source, WalRun):
            return self._table(source).run(first, last)
        low, high = max(0, first - source.first), last - source.first + 1
        count = max(0, min(high, len(source.offsets)) - low)
        indexes = range(source.first + low, source.first + low + count)
        offsets, lengths = source.offsets[low:high], source.lengths[low:high]
        terms = np.broadcast_to(np.uint64(source.term), count)
        return EntryRun(source.path, indexes, terms, offsets, lengths, None)


def _falling(path: str, index: int, term: int, before: int) -> Finding:
    return Finding(TERM_BACK, "damage", path, None, f"entry {index} has term {term} after one of term {before}")
