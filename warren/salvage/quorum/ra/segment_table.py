"""The records of one segment: which entries it has, and where.

Its table is all that is kept of a segment, and only while it is used. A table is under no checksum, but it has an
order: the indexes go up by one, and an index comes back only with the same entry (written again after a crash) or in a
higher term (after an election: then it voids what is above it). A record that breaks the order is damaged: the entry
that should be there cannot be read. Up to the snapshot's index entries may be missing (RabbitMQ 4.3 compacts).
"""

from __future__ import annotations

from bisect import bisect_left
from contextlib import closing
from typing import Any, Final

import attrs
import numpy as np
import numpy.typing as npt

from warren.salvage.queue_directory import Finding
from warren.salvage.quorum.ra.entry_runs import BadEntry, EntryRun
from warren.salvage.quorum.ra.segment_format import MAX_INDEX, RECORD_DTYPES, SEGMENT_HEADER, SEGMENT_MAGIC
from warren.storage.errors import DataError
from warren.storage.filesystem import File, FileSystem

DAMAGED_TABLE: Final = "damaged table of records"
OUT_OF_ORDER: Final = "its record is out of order"

Records = npt.NDArray[Any]


@attrs.frozen(eq=False, repr=False)
class SegmentTable:
    """The entries of a segment, by index."""

    path: str
    records: Records
    """Those that count; see :mod:`warren.salvage.quorum.ra.segment_format`."""
    bad: dict[int, BadEntry]
    """Entries whose records cannot be trusted."""
    problems: tuple[Finding, ...]
    written: int
    """Records in the file."""
    indexes: npt.NDArray[np.uint64]
    """Of the records."""

    @property
    def is_plain(self) -> bool:
        """Whether all records count, and the record of an index has its place in the file."""
        count = len(self.indexes)
        sound = not self.problems and 0 < count == self.written
        return sound and int(self.indexes[-1]) - int(self.indexes[0]) + 1 == count

    @property
    def range(self) -> tuple[int, int] | None:
        """The lowest and the highest index, bad ones too; ``None`` if it has no entries."""
        indexes = [*self.bad, *(int(self.indexes[end]) for end in ((0, -1) if len(self.indexes) else ()))]
        return (min(indexes), max(indexes)) if indexes else None

    def position_of(self, index: int) -> int | None:
        """Where ``index`` is in the records."""
        position = int(np.searchsorted(self.indexes, np.uint64(index)))
        return position if position < len(self.indexes) and int(self.indexes[position]) == index else None

    def run(self, first: int, last: int) -> EntryRun:
        """The entries ``first`` … ``last``."""
        low = int(np.searchsorted(self.indexes, np.uint64(first), "left"))
        high = int(np.searchsorted(self.indexes, np.uint64(last), "right"))
        part = self.records[low:high]
        return EntryRun(
            self.path, self.indexes[low:high], part["term"], part["offset"], part["length"], part["checksum"]
        )


def read_table(files: FileSystem, path: str, missing_up_to: int = -1) -> SegmentTable:
    """The records of the segment at ``path``, where entries may be missing up to that index (the snapshot's).

    Raises :class:`DataError` if it is no segment.
    """
    problems: list[Finding] = []
    with closing(files.open_read(path)) as handle:
        table = _records_of(handle, path, problems)
    return _Order(path, table, problems, missing_up_to).result()


def read_record(files: FileSystem, path: str, position: int) -> EntryRun:
    """The entry of one record of a plain segment; empty if the file has changed meanwhile."""
    with closing(files.open_read(path)) as handle:
        _, version, _ = SEGMENT_HEADER.unpack(handle.pread(SEGMENT_HEADER.size, 0))
        dtype = RECORD_DTYPES[version]
        data = handle.pread(dtype.itemsize, SEGMENT_HEADER.size + position * dtype.itemsize)
    part = np.frombuffer(data, dtype)
    return EntryRun(path, part["index"], part["term"], part["offset"], part["length"], part["checksum"])


def _records_of(handle: File, path: str, problems: list[Finding]) -> Records:
    """The table up to its last record, as the file has it."""
    header = handle.pread(SEGMENT_HEADER.size, 0)
    if len(header) < SEGMENT_HEADER.size:
        if header.strip(b"\0") and not SEGMENT_MAGIC.startswith(header[:4]):
            raise DataError(path, 0, f"{len(header)} bytes that are no segment's header")
        problems.append(Finding("torn record", "leftover", path, 0, f"{len(header)} bytes, not even a header"))
        return np.empty(0, RECORD_DTYPES[2])
    magic, version, room = SEGMENT_HEADER.unpack(header)
    dtype = RECORD_DTYPES.get(version)
    if dtype is None:
        raise DataError(path, 4, f"version {version}, neither 1 nor 2")
    first = handle.pread(2 * dtype.itemsize, SEGMENT_HEADER.size)
    implied_room = _implied_room(np.frombuffer(first, dtype)) if len(first) == 2 * dtype.itemsize else room
    if magic != SEGMENT_MAGIC:
        if implied_room != room or not any(first):
            raise DataError(path, 0, f"begins with {magic!r} in place of {SEGMENT_MAGIC!r}")
        problems.append(_damage(path, 0, f"the file begins with {magic!r} in place of {SEGMENT_MAGIC!r}"))
    if implied_room not in (None, room):
        problems.append(_damage(path, 6, f"room for {room} records, but the entries begin after {implied_room}"))
        room = implied_room
    data = handle.pread(room * dtype.itemsize, SEGMENT_HEADER.size)
    table = np.frombuffer(data, dtype, len(data) // dtype.itemsize)
    used = np.flatnonzero(table.view(np.uint8).reshape(len(table), dtype.itemsize).any(axis=1))
    return _up_to_the_zeros(table, used, path, problems)


def _up_to_the_zeros(table: Records, used: npt.NDArray[np.intp], path: str, problems: list[Finding]) -> Records:
    """The records before the first zeros. After zeros, only records that continue the numbering are records."""
    indexes = table["index"].astype(np.uint64)
    gaps = np.flatnonzero(np.diff(used, prepend=-1) != 1)
    for at in gaps.tolist():
        place = int(used[at])
        before = int(used[at - 1]) if at else -1
        offset = SEGMENT_HEADER.size + (before + 1) * table.dtype.itemsize
        candidates = used[at : at + 2].tolist()  # the first one may have been covered in part
        if before < 0 or not any(int(indexes[n]) - int(indexes[before]) == n - before for n in candidates):
            problems.append(_damage(path, offset, f"{len(used) - at} records after the zeros that end the table"))
            return table[used[:at]]
        problems.append(_damage(path, offset, f"{place - before - 1} records that are zero before others"))
    return table[used]


def _implied_room(records: Records) -> int | None:
    """For how many records there is room by the first entry's offset; ``None`` if that is not certain."""
    first, second = records
    place = int(first["offset"]) - SEGMENT_HEADER.size
    size = records.dtype.itemsize
    follows = int(second["offset"]) in (0, int(first["offset"]) + int(first["length"]))
    return place // size if follows and place > 0 and place % size == 0 and place // size <= 0xFFFF else None


def _damage(path: str, offset: int, detail: str) -> Finding:
    return Finding(DAMAGED_TABLE, "damage", path, offset, detail)


def _lone_zeros(checksums: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Which records have no checksum, while others have one and both neighbours too: they have lost it."""
    missing = np.asarray(checksums == 0, np.bool_)
    if not missing.any() or missing.all():
        return np.zeros(len(missing), np.bool_)
    lone = missing.copy()
    lone[1:] &= ~missing[:-1]
    lone[:-1] &= ~missing[1:]
    return lone


class _Order:
    """Which records of a table count."""

    def __init__(self, path: str, table: Records, problems: list[Finding], missing_up_to: int) -> None:
        self._path = path
        self._table = table
        self._problems = problems
        self._missing_up_to = missing_up_to
        self._bad: dict[int, BadEntry] = {}
        self._indexes: list[int] = table["index"].tolist()
        self._terms: list[int] = table["term"].tolist()
        self._positions: list[int] = []
        """Positions of the records that count, in the order of their indexes."""
        self._position_indexes: list[int] = []
        self._last = -1
        """The index that the sequence has reached, bad ones too."""

    def result(self) -> SegmentTable:
        column = self._table["index"].astype(np.uint64)
        records = self._table
        if len(column) > 1 and not bool(np.all(column[1:] - column[:-1] == 1)):
            for position in range(len(self._indexes)):
                self._look_at(position)
            records = self._table[self._positions]
            column = column[self._positions]
        lone = _lone_zeros(records["checksum"])
        for record in records[lone]:
            index = int(record["index"])
            reason = "its record has no checksum, other than those around it"
            place, length = int(record["offset"]), int(record["length"])
            self._bad[index] = BadEntry(index, int(record["term"]), self._path, place, reason, length)
        records, column = records[~lone], column[~lone]
        return SegmentTable(self._path, records, self._bad, tuple(self._problems), len(self._table), column)

    def _look_at(self, position: int) -> None:
        index = self._indexes[position]
        following = self._indexes[position + 1 : position + 3]
        if not position:
            if self._stands_alone(following):
                self._refuse(position, following[0] - 1)
            else:
                self._keep(position)
        elif index == self._last + 1:
            self._keep(position)
        elif following[:1] == [self._last + 2]:
            self._refuse(position, self._last + 1)
        elif index > self._last:
            if following or self._may_jump(self._last, index):
                self._keep(position)
            else:
                self._refuse(position, self._last + 1)
        else:
            self._again(position)

    def _stands_alone(self, following: list[int]) -> bool:
        """Whether the first record has nothing to do with those that follow it."""
        index = self._indexes[0]
        if not following or following[0] in (0, index + 1) or following[1:] == [index + 2]:
            return False
        if following[0] > index:
            return not self._may_jump(index, following[0])
        written_again = following[0] == index and self._is_same(0, 1)
        return self._terms[1] <= self._terms[0] and not written_again

    def _may_jump(self, before: int, after: int) -> bool:
        return before < after <= self._missing_up_to + 1

    def _keep(self, position: int) -> None:
        self._positions.append(position)
        self._last = self._indexes[position]
        self._position_indexes.append(self._last)

    def _refuse(self, position: int, index: int) -> None:
        """The record at ``position`` stands where that of ``index`` should, and says something else."""
        self._report(position, f"the record of entry {index} says {self._indexes[position]}")
        if index > MAX_INDEX:
            return  # there is no such entry
        offset, length = (int(self._table[field][position]) for field in ("offset", "length"))
        self._bad[index] = BadEntry(index, self._terms[position], self._path, offset, OUT_OF_ORDER, length)
        self._last = index

    def _report(self, position: int, detail: str) -> None:
        offset = SEGMENT_HEADER.size + position * self._table.dtype.itemsize
        self._problems.append(_damage(self._path, offset, detail))

    def _again(self, position: int) -> None:
        """A record whose index is not above the one before."""
        index, term = self._indexes[position], self._terms[position]
        at = bisect_left(self._position_indexes, index)
        stored = at < len(self._positions) and self._position_indexes[at] == index
        if self._positions and term > self._terms[self._positions[-1]]:
            del self._positions[at:], self._position_indexes[at:]
            for bad in [bad for bad in self._bad if bad >= index]:
                del self._bad[bad]
            self._keep(position)
        elif not stored or self._terms[self._positions[at]] != term or not self._is_same(self._positions[at], position):
            if position + 1 == len(self._indexes):
                self._refuse(position, self._last + 1)
            else:
                self._report(position, f"a record of entry {index} after that of {self._last}")

    def _is_same(self, position: int, other_position: int) -> bool:
        first, second = self._table[position], self._table[other_position]
        return bool(first["length"] == second["length"] and first["checksum"] == second["checksum"])
