"""Reads a store without writing a byte or changing a name: another process's store, or one that must not be touched.

All files are scanned once (``.rdt`` files too, each on its own) and a table of places is kept, sorted by msg_id: 36
bytes a message, so that ten gigabytes can be looked into within a small process. If a message is stored several times,
the last place counts, as in :mod:`warren.msg_store.rdq.recovery`. Whether a message is referenced is not known here.

A ``.rdq`` file is *broken* if its scan ended before its end, or met a bad record. A requested message that no scan
reached is looked for everywhere in the broken files (:mod:`warren.msg_store.rdq.hole_search`): brokers from 3.13 on
leave garbage between messages, and a scan may go astray in it and notice only later. If :meth:`StoreReader.open` was
given ``needed``, one search covers all needed ids; otherwise each request searches for its ids, each id once. Messages
found this way count as if a scan had reached them. A message for which different records were found, in one file or in
two, cannot be read: either may be part of another message's body.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator

import attrs
import numpy as np
import numpy.typing as npt

from warren.msg_store.rdq.body_reader import ReadHandles, runs
from warren.msg_store.rdq.hole_search import Ids, RecordTable, search
from warren.msg_store.rdq.locations import Location
from warren.msg_store.rdq.rdq_columns import ColumnScan
from warren.msg_store.rdq.rdq_format import (
    END_MARKER,
    HEADER,
    MSG_ID_BYTES,
    SCAN_CHUNK_BYTES,
    TYPED_FILES,
    UNCOUNTED_BYTES,
    EndReason,
    Record,
    ScanEnd,
    file_name,
    in_age_order,
)
from warren.msg_store.rdq.recovery import report_unreadable
from warren.msg_store.rdq.sqs_format import decode_stored
from warren.storage.columns import distinct
from warren.storage.errors import DataError, StorageError, UnknownMessageError, WarrenError
from warren.storage.filesystem import File, FileSystem

_ID = np.dtype(f"S{MSG_ID_BYTES}")
"""Compares as bytes do. It hides NULs at the end, which is harmless while every id is 16 bytes."""

AHEAD_BYTES = 4 << 20
"""About how many bytes of records are read before the first of their bodies is returned."""

_GAP_BYTES = 256
"""The unwanted bytes that are read between two records. With more, a reader of one queue after the other would read
a store that many queues share several times."""


@attrs.frozen(eq=False, repr=False)
class _Table:
    """Columns, one row for each message, in order of the ids."""

    ids: npt.NDArray[np.bytes_]
    files: npt.NDArray[np.int32]
    offsets: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]

    def rows(self, chosen: npt.NDArray[np.bool_]) -> _Table:
        """Some of them."""
        return _Table(self.ids[chosen], self.files[chosen], self.offsets[chosen], self.sizes[chosen])


@attrs.define(eq=False, repr=False)
class StoreReader:
    """The bodies in a directory of store files; made by :meth:`open`."""

    _files: FileSystem
    _handles: ReadHandles
    _table: _Table
    ends: dict[str, ScanEnd]
    """File name → where its scan stopped, oldest first."""
    unreadable: list[DataError]
    """What the scans met and could not read; after a crash, torn ends too."""
    _broken: dict[int, tuple[int, int]]
    """The broken files, oldest first, each with the bounds of the last record before the damage."""
    _needed: Callable[[], Ids] | None
    _searched: Ids = attrs.field(factory=lambda: np.empty(0, _ID))
    """Ids that were looked for in broken files, sorted."""
    _hidden: dict[str, RecordTable] = attrs.field(factory=dict)
    """File name → what was found there."""
    _ambiguous: dict[bytes, DataError] = attrs.field(factory=dict)
    """Messages with different records in broken files."""
    _missing: int = 0
    """How many of the ids that were looked for were not found."""
    _failed: StorageError | None = None
    """Why broken files could not be searched to their ends."""

    @classmethod
    def open(
        cls,
        files: FileSystem,
        directory: str,
        *,
        needed: Callable[[], Ids] | None = None,
        refused: dict[str, StorageError] | None = None,
    ) -> StoreReader:
        """Scan the files in ``directory``; a missing directory counts as empty. Damage does not stop it.

        ``needed``: called at most once, returns all ids (16-byte strings) that are needed; then no other ids are
        looked for in broken files. ``refused``: receives path and reason of each file (or of the directory) that the
        system refuses to read, which is then skipped; without it, :class:`StorageError` is raised.
        """
        handles = ReadHandles(files, directory)
        ends: dict[str, ScanEnd] = {}
        unreadable: list[DataError] = []
        broken = dict[int, tuple[int, int]]()
        ids, numbers, offsets, sizes = bytearray(), array("i"), array("q"), array("q")
        for number in _numbers(files, directory, refused):
            handle = _opened(files, handles.path(number), refused)
            if handle is None:
                continue
            try:
                scanned = ColumnScan(handle, handles.path(number), window_bytes=SCAN_CHUNK_BYTES)
                bad_offsets, last_start = list[int](), 0
                for columns in scanned:
                    good = columns.good
                    ids += columns.msg_ids[good].tobytes()
                    numbers.frombytes(np.full(int(good.sum()), number, np.int32).tobytes())
                    offsets.frombytes(columns.offsets[good].tobytes())
                    sizes.frombytes(columns.sizes[good].tobytes())
                    sound = columns.offsets if good.all() else columns.offsets[: int(good.argmin())]
                    if len(sound) and not bad_offsets:
                        last_start = int(sound[-1])
                    bad_offsets += columns.offsets[~good].tolist()
                end = ends[file_name(number)] = scanned.finish()
                if number < TYPED_FILES and (bad_offsets or end.reason is not EndReason.CLEAN):
                    broken[number] = last_start, min([end.offset, *bad_offsets])
                report_unreadable(scanned, bad_offsets, unreadable)
            except StorageError as error:  # what came before it in the file is good
                if refused is None:
                    raise
                refused[handles.path(number)] = error
            finally:
                handle.close()
        return cls(files, handles, _sorted_table(ids, numbers, offsets, sizes), ends, unreadable, broken, needed)

    def __len__(self) -> int:
        """Different messages."""
        return len(self._table.ids)

    def contains(self, msg_id: bytes) -> bool:
        """Whether there is a good record of a message."""
        return self._row(msg_id) is not None

    def read(self, msg_id: bytes) -> bytes:
        """The body of a message. Raises :class:`UnknownMessageError`, and :class:`DataError` for a damaged record."""
        row = self._row(msg_id)
        if row is None:
            raise UnknownMessageError(msg_id.hex())
        return self._read_row(row, msg_id)

    def contains_each(self, msg_ids: npt.NDArray[np.bytes_]) -> npt.NDArray[np.bool_]:
        """:meth:`contains` for many, as 16-byte strings."""
        is_present = self._scanned(msg_ids)
        if self._broken and not is_present.all() and self._search(msg_ids[~is_present]):
            is_present = self._scanned(msg_ids)
        return is_present

    def _scanned(self, msg_ids: Ids) -> npt.NDArray[np.bool_]:
        return _among(msg_ids, self._table.ids)

    def read_each(self, msg_ids: npt.NDArray[np.bytes_]) -> Iterator[bytes | WarrenError]:
        """:meth:`read` for many, as 16-byte strings: each one's body, or what it would raise, in the order asked for.

        About :data:`AHEAD_BYTES` are read ahead, front to back, neighbours in a file at once.
        """
        is_present = self.contains_each(msg_ids)
        table = self._table
        rows = np.searchsorted(table.ids, msg_ids)
        sizes = np.zeros(len(rows), np.int64)
        sizes[is_present] = table.sizes[rows[is_present]]
        bytes_before = np.cumsum(sizes) - sizes
        start = 0
        while start < len(rows):
            stop = max(int(np.searchsorted(bytes_before, bytes_before[start] + AHEAD_BYTES)), start + 1)
            bodies = self._read_rows(table, rows[start:stop][is_present[start:stop]])
            for present, msg_id in zip(is_present[start:stop].tolist(), msg_ids[start:stop].tolist(), strict=True):
                yield next(bodies) if present else UnknownMessageError(msg_id.ljust(MSG_ID_BYTES, b"\0").hex())
            start = stop

    def read_uniform(self, msg_ids: npt.NDArray[np.bytes_]) -> npt.NDArray[np.uint8] | None:
        """The bodies of many as the rows of a matrix.

        Returns ``None`` if a body is missing, damaged or in a typed file, or if their lengths differ.
        """
        if not self.contains_each(msg_ids).all() or self._ambiguous:
            return None
        rows = np.searchsorted(self._table.ids, msg_ids)
        files, offsets, sizes = self._table.files[rows], self._table.offsets[rows], self._table.sizes[rows]
        size = int(sizes[0])
        if (sizes != size).any() or (files >= TYPED_FILES).any():
            return None
        records = np.empty((len(rows), size), np.uint8)
        try:
            for number in distinct(files).tolist():
                in_file = np.flatnonzero(files == number)
                for part in _neighbours(in_file[np.argsort(offsets[in_file], kind="stable")], offsets, size):
                    low, high = int(offsets[part[0]]), int(offsets[part[-1]]) + size
                    window = np.frombuffer(self._handles.pread(number, high - low, low), np.uint8)
                    if len(window) < high - low:
                        return None
                    records[part] = np.lib.stride_tricks.sliding_window_view(window, size)[offsets[part] - low]
        except StorageError:
            return None
        header = np.frombuffer(HEADER.pack(size - UNCOUNTED_BYTES, b""), np.uint8)[:-MSG_ID_BYTES]
        ids = np.ascontiguousarray(msg_ids).view(np.uint8).reshape(len(rows), MSG_ID_BYTES)
        start, stop = len(header), HEADER.size
        is_good = (
            (records[:, :start] == header).all()
            and (records[:, start:stop] == ids).all()
            and (records[:, -1] == END_MARKER[0]).all()
        )
        return records[:, stop:-1] if is_good else None

    def records(self) -> Iterator[tuple[str, Record]]:
        """Scan again and yield every record with the name of its file, oldest first, bad and repeated ones too.

        Records found in a broken file come after its other records.
        """
        for name in self.ends:
            path = f"{self._handles.directory}/{name}"
            handle = self._files.open_read(path)
            try:
                for columns in ColumnScan(handle, path, window_bytes=SCAN_CHUNK_BYTES):
                    for record in columns.records():
                        yield name, record
            finally:
                handle.close()
            for record in self.hidden(name):
                yield name, record

    def hidden(self, name: str) -> Iterator[Record]:
        """The messages that were found in that file and that no scan reached, in the order of the file."""
        if (records := self._hidden.get(name)) is not None:
            columns = records.offsets.tolist(), records.sizes.tolist(), records.msg_ids.tolist()
            for offset, size, msg_id in zip(*columns, strict=True):
                yield Record(offset, size, msg_id.ljust(MSG_ID_BYTES, b"\0"), True)

    def has_hidden(self, name: str) -> bool:
        """Whether messages were found in that file that no scan reached; only for ids that were requested."""
        return name in self._hidden

    def has_all_needed(self) -> bool:
        """Whether nothing is missing that :meth:`open`'s ``needed`` names.

        Searches the broken files first.
        """
        self._search(_nothing())
        return not self._missing

    @property
    def has_failed(self) -> bool:
        """Whether broken files could not be searched; from then on, asking for a missing message raises the error."""
        return self._failed is not None

    def close(self) -> None:
        """Close the files."""
        self._handles.close()

    def _search(self, msg_ids: Ids) -> bool:
        """Look for messages in the broken files; whether any was found."""
        if self._failed is not None:
            raise StorageError(str(self._failed)) from self._failed
        try:
            return self._search_broken(msg_ids)
        except StorageError as error:
            self._failed = error
            raise

    def _search_broken(self, msg_ids: Ids) -> bool:
        if self._needed is not None:
            needed, self._needed = self._needed, _nothing
            msg_ids = needed()
        sought = distinct(np.asarray(msg_ids, _ID))
        sought = sought[~_among(sought, self._searched) & ~self._scanned(sought)]
        if not len(sought):
            return False
        self._searched = np.union1d(self._searched, sought)
        count = len(sought)
        hidden = _Table(sought, np.zeros(count, np.int32), np.zeros(count, np.int64), np.zeros(count, np.int64))
        is_found = np.zeros(count, np.bool_)
        for number, last in reversed(self._broken.items()):
            handle = self._files.open_read(self._handles.path(number))
            try:
                records = search(handle, sought, last=last)
            finally:
                handle.close()
            for msg_id, offset, other in records.ambiguous:
                self._note_ambiguous(msg_id, number, offset, str(other))
            rows = np.searchsorted(sought, records.msg_ids)
            is_new = ~is_found[rows]
            self._compare(hidden, rows[~is_new], number, records.rows(~is_new))
            records, rows = records.rows(is_new), rows[is_new]
            if len(records):
                is_found[rows] = True
                hidden.files[rows], hidden.offsets[rows], hidden.sizes[rows] = number, records.offsets, records.sizes
                previous = self._hidden.get(file_name(number))
                self._hidden[file_name(number)] = records if previous is None else records.merged(previous)
        self._missing += int((~is_found).sum())
        self._table = _merged([self._table, hidden.rows(is_found)] if is_found.any() else [self._table])
        return bool(is_found.any())

    def _compare(self, hidden: _Table, rows: npt.NDArray[np.intp], number: int, records: RecordTable) -> None:
        """Note which of the records that a file has again differ from those that a younger file has."""
        for row, offset, size in zip(rows.tolist(), records.offsets.tolist(), records.sizes.tolist(), strict=True):
            first, at = int(hidden.files[row]), int(hidden.offsets[row])
            if size != hidden.sizes[row] or (
                self._handles.pread(first, size, at) != self._handles.pread(number, size, offset)
            ):
                self._note_ambiguous(hidden.ids[row], first, at, f"{offset} in {file_name(number)}")

    def _note_ambiguous(self, msg_id: bytes, number: int, offset: int, other: str) -> None:
        reason = f"a different record with this id is at {other}; either may be part of another message's body"
        error = DataError(self._handles.path(number), offset, reason)
        self._ambiguous.setdefault(msg_id.ljust(MSG_ID_BYTES, b"\0"), error)

    def _row(self, msg_id: bytes) -> int | None:
        row = self._row_scanned(msg_id)
        if row is None and self._broken and len(msg_id) == MSG_ID_BYTES and self._search(np.array([msg_id], _ID)):
            row = self._row_scanned(msg_id)
        return row

    def _row_scanned(self, msg_id: bytes) -> int | None:
        row = int(np.searchsorted(self._table.ids, np.bytes_(msg_id)))
        if len(msg_id) != MSG_ID_BYTES or row == len(self._table.ids):
            return None
        return row if self._table.ids[row] == msg_id.rstrip(b"\0") else None

    def _read_rows(self, table: _Table, rows: npt.NDArray[np.int64]) -> Iterator[bytes | WarrenError]:
        """The bodies of rows of a table, in their order; the files are read front to back."""
        files, offsets, sizes = table.files[rows], table.offsets[rows], table.sizes[rows]
        order = np.lexsort((offsets, files))
        columns = (column[order].tolist() for column in (files, offsets, sizes))
        places = [Location(*place) for place in zip(*columns, strict=True)]
        ids = [msg_id.ljust(MSG_ID_BYTES, b"\0") for msg_id in table.ids[rows].tolist()]
        bodies: list[bytes | WarrenError] = [b""] * len(rows)
        for run in runs(list(zip(places, order.tolist(), strict=True)), _GAP_BYTES):
            number, start, _ = run[0][0]
            path = self._handles.path(number)
            try:
                data = self._handles.pread(number, max(at + size for (_, at, size), _ in run) - start, start)
            except StorageError as error:
                for _, position in run:
                    bodies[position] = error
                continue
            for (_, offset, size), position in run:
                record = data[offset - start : offset - start + size]
                try:
                    bodies[position] = self._decode(record, ids[position], path, offset, size)
                except DataError as error:
                    bodies[position] = error
        return iter(bodies)

    def _read_row(self, row: int, msg_id: bytes) -> bytes:
        number, offset, size = (
            int(column[row]) for column in (self._table.files, self._table.offsets, self._table.sizes)
        )
        return self._decode(self._handles.pread(number, size, offset), msg_id, self._handles.path(number), offset, size)

    def _decode(self, record: bytes, msg_id: bytes, path: str, offset: int, size: int) -> bytes:
        if (error := self._ambiguous.get(msg_id)) is not None:
            raise DataError(error.path, error.offset, error.reason)
        return decode_stored(record, msg_id, path, offset, size)


def _numbers(files: FileSystem, directory: str, refused: dict[str, StorageError] | None) -> list[int]:
    try:
        return in_age_order(files.list(directory))
    except StorageError as error:
        if refused is None:
            raise
        refused[directory] = error
        return []


def _opened(files: FileSystem, path: str, refused: dict[str, StorageError] | None) -> File | None:
    """Open the file and read a byte from it: a failing disk may still open a file."""
    handle = None
    try:
        handle = files.open_read(path)
        handle.pread(1, 0)
    except StorageError as error:
        if handle is not None:
            handle.close()
        if refused is None:
            raise
        refused[path] = error
        return None
    return handle


def _neighbours(rows: npt.NDArray[np.intp], offsets: npt.NDArray[np.int64], size: int) -> list[npt.NDArray[np.intp]]:
    """Cut rows, which are in the order of their offsets in one file, where the next record is not near."""
    ends = np.flatnonzero(np.diff(offsets[rows]) > size + _GAP_BYTES) + 1
    return np.split(rows, ends)


def _nothing() -> Ids:
    return np.empty(0, _ID)


def _among(ids: Ids, ordered: Ids) -> npt.NDArray[np.bool_]:
    """Return which of the ids are in ``ordered``."""
    if not len(ordered):
        return np.zeros(len(ids), np.bool_)
    is_member: npt.NDArray[np.bool_] = ordered[np.minimum(np.searchsorted(ordered, ids), len(ordered) - 1)] == ids
    return is_member


def _merged(parts: list[_Table]) -> _Table:
    """One table of several that have no id in common."""
    if len(parts) == 1:
        return parts[0]
    ids = np.concatenate([part.ids for part in parts])
    order = np.argsort(ids, kind="stable")
    return _Table(
        ids[order],
        np.concatenate([part.files for part in parts])[order],
        np.concatenate([part.offsets for part in parts])[order],
        np.concatenate([part.sizes for part in parts])[order],
    )


def _sorted_table(ids: bytearray, numbers: array[int], offsets: array[int], sizes: array[int]) -> _Table:
    """Sort by id and keep the last of equal ones. Column by column, to save memory."""
    unsorted = np.frombuffer(ids, _ID)
    order = np.argsort(unsorted, kind="stable")
    ordered = unsorted[order]
    last = np.ones(len(ordered), bool)
    last[:-1] = ordered[1:] != ordered[:-1]
    order = order[last]
    return _Table(
        ordered if last.all() else ordered[last],
        np.frombuffer(numbers, np.int32)[order],
        np.frombuffer(offsets, np.int64)[order],
        np.frombuffer(sizes, np.int64)[order],
    )
