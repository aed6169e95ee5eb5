"""Reads a store that belongs to somebody else, or that is not to be touched: no byte is written, no name changed.

All files are scanned once (``.rdt`` files too, each on its own) and a table of places is kept, sorted by msg_id: 36
bytes a message, so that ten gigabytes can be looked into within a small process. Where a message stands several times,
the last place counts, as in :mod:`msg_store.recovery`. Whether anybody refers to a message is not known here.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

import attrs
import numpy as np
import numpy.typing as npt

from msg_store.body_reader import ReadHandles
from msg_store.rdq_format import MSG_ID_BYTES, Record, ScanEnd, decode_record, file_name, in_age_order, scan
from msg_store.recovery import report_unreadable
from storage.errors import DataError, UnknownMessageError
from storage.filesystem import FileSystem

_ID = np.dtype(f"S{MSG_ID_BYTES}")
"""Compares as bytes do. It hides NULs at the end, which is harmless while every id is 16 bytes."""


@attrs.frozen(eq=False)
class _Table:
    """Columns, one row for each message, in order of the ids."""

    ids: npt.NDArray[np.bytes_]
    files: npt.NDArray[np.int32]
    offsets: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]


@attrs.frozen(eq=False)
class StoreReader:
    """The bodies in a directory of store files; made by :meth:`open`."""

    _files: FileSystem
    _handles: ReadHandles
    _table: _Table
    ends: dict[str, ScanEnd]
    """File name → where its scan stopped, oldest first."""
    unreadable: list[DataError]
    """What the scans met and could not read; after a crash, torn ends too."""

    @classmethod
    def open(cls, files: FileSystem, directory: str) -> StoreReader:
        """Scan the files in ``directory``; one that is missing has none. Damage does not stop it."""
        handles = ReadHandles(files, directory)
        ends: dict[str, ScanEnd] = {}
        unreadable: list[DataError] = []
        ids, numbers, offsets, sizes = bytearray(), array("i"), array("q"), array("q")
        for number in in_age_order(files.list(directory)):
            handle = files.open_read(handles.path(number))
            try:
                scanned, bad_offsets = scan(handle, handles.path(number)), list[int]()
                for offset, size, msg_id, good in scanned:
                    if good:
                        ids += msg_id
                        numbers.append(number)
                        offsets.append(offset)
                        sizes.append(size)
                    else:
                        bad_offsets.append(offset)
                ends[file_name(number)] = scanned.finish()
                report_unreadable(scanned, bad_offsets, unreadable)
            finally:
                handle.close()
        return cls(files, handles, _sorted_table(ids, numbers, offsets, sizes), ends, unreadable)

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

    def read_many(self, msg_ids: Sequence[bytes]) -> list[bytes]:
        """:meth:`read` for many, in the order asked for; the files are read front to back."""
        rows = [self._row(msg_id) for msg_id in msg_ids]
        bodies = [b""] * len(rows)
        found = [(self._table.files[row], self._table.offsets[row], n) for n, row in enumerate(rows) if row is not None]
        if len(found) < len(rows):
            raise UnknownMessageError(msg_ids[rows.index(None)].hex())
        for _, _, n in sorted(found):
            bodies[n] = self.read(msg_ids[n])
        return bodies

    def records(self) -> Iterator[tuple[str, Record]]:
        """Every record with the name of its file, oldest first, bad ones and repeated ones too; scans anew."""
        for name in self.ends:
            path = f"{self._handles.directory}/{name}"
            handle = self._files.open_read(path)
            try:
                for record in scan(handle, path):
                    yield name, record
            finally:
                handle.close()

    def close(self) -> None:
        """Close the files."""
        self._handles.close()

    def _row(self, msg_id: bytes) -> int | None:
        row = int(np.searchsorted(self._table.ids, np.bytes_(msg_id)))
        if len(msg_id) != MSG_ID_BYTES or row == len(self._table.ids):
            return None
        return row if self._table.ids[row] == msg_id.rstrip(b"\0") else None

    def _read_row(self, row: int, msg_id: bytes) -> bytes:
        number, offset, size = (
            int(column[row]) for column in (self._table.files, self._table.offsets, self._table.sizes)
        )
        return decode_record(
            self._handles.pread(number, size, offset), msg_id, self._handles.path(number), offset, size
        )


def _sorted_table(ids: bytearray, numbers: array[int], offsets: array[int], sizes: array[int]) -> _Table:
    """Sort by id and keep of equal ones the last. Column by column: all of them twice would be too much at once."""
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
