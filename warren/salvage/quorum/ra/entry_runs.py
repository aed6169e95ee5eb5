"""The entries of a queue's log, and how runs of them are read: in windows of a few megabytes, each checksum checked.

A *run* is columns: entries of ascending index, where they lie and how long they are. A *window* is read at once; it
holds entries that lie close to each other. An entry of another queue between two of them is read with them if it is
small, else passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import attrs
import numpy as np
import numpy.typing as npt
from zlib_ng import zlib_ng

from warren.salvage.quorum.ra.wal_format import ENTRY_HEADER, INDEX_AND_TERM
from warren.storage.errors import StorageError
from warren.storage.filesystem import FileSystem

WINDOW_BYTES: Final = 4 << 20
GAP_BYTES: Final = 32 << 10
"""Between two entries of a window; reading this much takes less time than another read."""

AHEAD_BYTES: Final = 256 << 10
"""Read at once if single entries are read in ascending order."""

_ENTRIES_AT_ONCE = 8192
"""Whose columns are turned into Python's integers together."""

Column: TypeAlias = "Sequence[int] | npt.NDArray[Any]"

CHECKSUM: Final = "its checksum is wrong"
CUT_SHORT: Final = "the file ends before it does"


class LogEntry(NamedTuple):
    """An entry; its checksum is right."""

    index: int  # type: ignore[assignment]
    term: int
    data: bytes
    """An Erlang term."""
    path: str
    offset: int
    """Of ``data`` in the file."""


@attrs.frozen
class Hole:
    """Indexes, first and last, that no file has."""

    first: int
    last: int


@attrs.frozen
class BadEntry:
    """An entry that exists and cannot be read."""

    index: int
    term: int
    path: str
    offset: int
    """Of the entry, or of its record."""
    reason: str
    length: int = 0
    """Of what stands there in place of the entry; 0: that is not known."""


@attrs.frozen(eq=False, repr=False)
class EntryRun:
    """Entries of one file, of ascending index."""

    path: str
    indexes: Column
    terms: Column
    offsets: Column
    lengths: Column
    checksums: Column | None
    """CRC-32 each, 0 = none; ``None``: the entries are the write-ahead log's, and have theirs before them."""

    @property
    def lead_bytes(self) -> int:
        """Before each entry, and read with it."""
        return ENTRY_HEADER.size if self.checksums is None else 0


def read_run(files: FileSystem, run: EntryRun) -> Iterator[LogEntry | BadEntry]:
    """The run's entries; needs memory for a window, or for one entry if that is larger."""
    try:
        handle = files.open_read(run.path)
    except StorageError as error:
        for index, term, offset in zip(run.indexes, run.terms, run.offsets, strict=True):
            yield BadEntry(int(index), int(term), run.path, int(offset), str(error))
        return
    with closing(handle):
        reader = _RunReader(handle, run)
        for first in range(0, len(run.indexes), _ENTRIES_AT_ONCE):
            yield from reader.entries(first, min(first + _ENTRIES_AT_ONCE, len(run.indexes)))


@attrs.define(eq=False, repr=False)
class EntryReader:
    """Reads entries one by one. If they ascend in a file, the following bytes are read with them."""

    _files: FileSystem
    _path: str = ""
    _size: int = 0
    _start: int = 0
    _window: bytes = b""
    _asked: int = 0
    """The end of what was asked for last."""
    _columns: _Columns = attrs.field(factory=lambda: _Columns([], [], [], [], []))
    _first: int = 0

    def hold(self, run: EntryRun) -> None:
        """Entries of consecutive indexes: :meth:`held` gives them more quickly than :meth:`read`."""
        self._turn_to(run.path)
        self._columns = _Columns.of(run, 0, len(run.indexes))
        self._first = self._columns.indexes[0] if self._columns.indexes else 0

    def held(self, index: int) -> LogEntry | None:
        """The entry ``index`` if it is held and sound."""
        position = index - self._first
        columns = self._columns
        if not 0 <= position < len(columns.indexes):
            return None
        offset, length, term = columns.offsets[position], columns.lengths[position], columns.terms[position]
        if offset + length > self._size or length > WINDOW_BYTES:
            return None
        if columns.checksums is None:
            data = self.pread(length + ENTRY_HEADER.size, offset - ENTRY_HEADER.size)
            checksum, *fields = ENTRY_HEADER.unpack_from(data)
            if fields != [length, index, term] or (checksum and zlib_ng.adler32(data[8:]) != checksum):
                return None
            return LogEntry(index, term, data[ENTRY_HEADER.size :], self._path, offset)
        data = self.pread(length, offset)
        checksum = columns.checksums[position]
        return None if checksum and zlib_ng.crc32(data) != checksum else LogEntry(index, term, data, self._path, offset)

    def read(self, run: EntryRun) -> LogEntry | BadEntry:
        """The one entry of a run."""
        try:
            self._turn_to(run.path)
            (entry,) = _RunReader(self, run).entries(0, 1)
        except StorageError as error:
            columns = _Columns.of(run, 0, 1)
            return BadEntry(columns.indexes[0], columns.terms[0], run.path, columns.offsets[0], str(error))
        return entry

    def _turn_to(self, path: str) -> None:
        if path != self._path:
            self._size = self._files.size(path)
            self._path, self._start, self._window, self._asked = path, 0, b"", 0
            self._columns = _Columns([], [], [], [], [])

    def size(self) -> int:
        """Of the current file."""
        return self._size

    def pread(self, size: int, offset: int) -> bytes:
        """A part of the current file."""
        at = offset - self._start
        if at < 0 or at + size > len(self._window):
            ascends = 0 <= offset - self._asked <= AHEAD_BYTES
            with closing(self._files.open_read(self._path)) as handle:
                self._window = handle.pread(max(size, AHEAD_BYTES) if ascends else size, offset)
            self._start, at = offset, 0
        self._asked = offset + size
        return self._window[at : at + size]


class _Readable(Protocol):
    def size(self) -> int: ...

    def pread(self, size: int, offset: int) -> bytes: ...


class _RunReader:
    """One pass over a run's file. A sound file's entries do not overlap, so what is read is bounded by its size."""

    def __init__(self, handle: _Readable, run: EntryRun) -> None:
        self._handle = handle
        self._entry_run = run
        self._size = handle.size()
        self._budget = 2 * self._size
        """Bytes that may still be read; one damaged length can ask for the whole file once more."""

    def entries(self, first: int, last: int) -> Iterator[LogEntry | BadEntry]:
        """Those at the positions ``first`` … ``last - 1``."""
        columns = _Columns.of(self._entry_run, first, last)
        read = self._logged if columns.checksums is None else self._segmented
        lead = self._entry_run.lead_bytes
        position = 0
        while position < last - first:
            stop, end = self._window(columns, position)
            start = columns.offsets[position] - lead
            if end > self._size or columns.lengths[position] > WINDOW_BYTES or not self._afford(end - start):
                yield self._alone(columns, position)
                position += 1
                continue
            try:
                window = self._handle.pread(end - start, start)
            except StorageError:  # perhaps some of its entries can be read
                self._afford(start - end)
                yield from (self._alone(columns, single) for single in range(position, stop))
            else:
                yield from read(window, start, columns, range(position, stop))
            position = stop

    def _afford(self, size: int) -> bool:
        self._budget -= size
        return self._budget >= 0

    def _window(self, columns: _Columns, first: int) -> tuple[int, int]:
        """The position after the last entry of the window that begins with ``first``, and that entry's end."""
        offsets, lengths, lead = columns.offsets, columns.lengths, self._entry_run.lead_bytes
        end = offsets[first] + lengths[first]
        limit = min(offsets[first] + WINDOW_BYTES, self._size)
        for position in range(first + 1, len(offsets)):
            offset = offsets[position]
            if not end <= offset - lead <= end + GAP_BYTES or offset + lengths[position] > limit:
                return position, end
            end = offset + lengths[position]
        return len(offsets), end

    def _segmented(
        self, window: bytes, start: int, columns: _Columns, positions: range
    ) -> Iterator[LogEntry | BadEntry]:
        path, crc32 = self._entry_run.path, zlib_ng.crc32
        indexes, terms, offsets, lengths, checksums = columns
        for position in positions:
            offset = offsets[position]
            at = offset - start
            length = lengths[position]
            data = window[at : at + length]
            checksum = checksums[position] if checksums else 0
            if len(data) == length and (not checksum or crc32(data) == checksum):
                yield LogEntry(indexes[position], terms[position], data, path, offset)
            else:
                reason = CHECKSUM if len(data) == length else CUT_SHORT
                yield BadEntry(indexes[position], terms[position], path, offset, reason, length)

    def _logged(self, window: bytes, start: int, columns: _Columns, positions: range) -> Iterator[LogEntry | BadEntry]:
        path, adler32, unpack, view = (
            self._entry_run.path,
            zlib_ng.adler32,
            ENTRY_HEADER.unpack_from,
            memoryview(window),
        )
        indexes, terms, offsets, lengths, _ = columns
        for position in positions:
            offset = offsets[position]
            at = offset - start
            length = lengths[position]
            end = at + length
            index, term = indexes[position], terms[position]
            reason = CUT_SHORT
            if end <= len(window):
                checksum, header_length, header_index, header_term = unpack(window, at - 24)
                same = header_index == index and header_term == term
                if same and (adler32(view[at - 16 : end]) == checksum if checksum else header_length == length):
                    yield LogEntry(index, term, window[at:end], path, offset)
                    continue
                reason = CHECKSUM
            yield BadEntry(index, term, path, offset, reason, length)

    def _alone(self, columns: _Columns, position: int) -> LogEntry | BadEntry:
        try:
            return self._piecewise(columns, position)
        except StorageError as error:
            index, term, offset = columns.indexes[position], columns.terms[position], columns.offsets[position]
            return BadEntry(index, term, self._entry_run.path, offset, str(error))

    def _piecewise(self, columns: _Columns, position: int) -> LogEntry | BadEntry:
        """An entry that no window holds: checked piece by piece before it is taken as a whole."""
        handle, path = self._handle, self._entry_run.path
        index, term = columns.indexes[position], columns.terms[position]
        offset, length = columns.offsets[position], columns.lengths[position]
        if offset + length > self._size:
            return BadEntry(index, term, path, offset, CUT_SHORT, length)
        if not self._afford(length):
            return BadEntry(index, term, path, offset, "records that overlap")
        if columns.checksums is None:
            checksum, header_length, *fields = ENTRY_HEADER.unpack(
                handle.pread(ENTRY_HEADER.size, offset - ENTRY_HEADER.size)
            )
            actual = adler32_of(handle, offset, length, zlib_ng.adler32(INDEX_AND_TERM.pack(index, term)))
            sound = fields == [index, term] and (checksum == actual if checksum else header_length == length)
        else:
            sound = columns.checksums[position] in (0, crc32_of(handle, offset, length))
        if not sound:
            return BadEntry(index, term, path, offset, CHECKSUM, length)
        return LogEntry(index, term, handle.pread(length, offset), path, offset)


class _Columns(NamedTuple):
    """A part of a run, as Python's integers, which are quicker one by one than numpy's."""

    indexes: list[int]
    terms: list[int]
    offsets: list[int]
    lengths: list[int]
    checksums: list[int] | None

    @classmethod
    def of(cls, run: EntryRun, first: int, last: int) -> _Columns:
        return cls(
            _integers(run.indexes[first:last]),
            _integers(run.terms[first:last]),
            _integers(run.offsets[first:last]),
            _integers(run.lengths[first:last]),
            None if run.checksums is None else _integers(run.checksums[first:last]),
        )


def _integers(column: Column) -> list[int]:
    return column.tolist() if isinstance(column, np.ndarray) else list(column)


def crc32_of(handle: _Readable, offset: int, length: int) -> int:
    """The CRC-32 of a part of a file."""
    return _checksum(zlib_ng.crc32, handle, offset, length, 0)


def adler32_of(handle: _Readable, offset: int, length: int, value: int) -> int:
    """The Adler-32 of a part of a file; ``value``: of what stands before it."""
    return _checksum(zlib_ng.adler32, handle, offset, length, value)


def _checksum(add: Callable[[bytes, int], int], handle: _Readable, offset: int, length: int, value: int) -> int:
    """Read in windows."""
    while length > 0 and (piece := handle.pread(min(length, WINDOW_BYTES), offset)):
        value = add(piece, value)
        offset += len(piece)
        length -= len(piece)
    return value
