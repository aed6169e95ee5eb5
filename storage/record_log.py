"""RecordLog: a file of records that is appended to, and replaced as a whole once most of its records are obsolete.

The file begins with a line that says what it is, ``warren <kind> <version>``. Records follow, without gaps; numbers are
big-endian::

    CRC-32 of all that follows  length of the payload   payload
    4 bytes                     4 bytes                 any bytes

The user of the log defines what a payload means. Appended records are *buffered* until :meth:`RecordLog.write`, which
makes one write of them, and survive a power loss after :meth:`RecordLog.sync`.

*A crash* leaves whole records, and perhaps a torn one at the end, which was never confirmed as safe: the next writer
cuts it off. A power loss may also take a write that was not synced and leave a later one: then there are zeros between
whole records, or the beginning of a record and zeros. :meth:`RecordLog.replay` skips them and yields what follows,
because it cannot tell which of it was synced. Anything else that is unreadable and followed by whole records is damage:
the other records are yielded, and :attr:`RecordLog.damage` is set. A replacement is complete or absent
(:func:`write_beside`, a rename).

*A full disk* leaves the buffer as it is, and nothing of it in the file: :class:`NoRoomError`, to be tried again.

*After a failed sync* it is unknown which part of the file is safe, and later syncs do not help, until the file is
replaced. The next reader, in this process or another one, may read what is in memory alone: the file
``<name>.failed`` marks this, and the next sync then replaces the file by a copy.

Invariants: the file's size is that of the header and the whole records; offsets ascend.
"""

from __future__ import annotations

import os
import re
import struct
import zlib
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Final

import attrs

from warren.storage.errors import DataError, StorageError
from warren.storage.filesystem import (
    FAILED,
    File,
    FileSystem,
    append_whole,
    note_failed_sync,
    replace_by_copy,
    retryable,
    sync_directories_above,
    take_failed_sync_back,
    write_beside,
)

VERSION: Final = 1
HEAD: Final = struct.Struct(">II")
"""CRC-32, and the payload's length."""
SECTOR_BYTES: Final = 512
"""The unit that a disk writes whole."""
FEW_ZEROS: Final = 4
"""Fewer zeros at a record's end could be data; a torn short record would not have more."""

_LENGTH: Final = struct.Struct(">I")
_NOT_ZERO: Final = re.compile(rb"[^\0]")
_SEARCH_BYTES: Final = 64 << 20
_SEARCH_FACTOR: Final = 64
"""Limit for checksumming in vain after a damaged record: this many bytes, plus this many per byte of the file."""


class SearchError(Exception):
    """It would take too long to find the next record."""


@attrs.define(eq=False, repr=False)
class RecordLog:
    """One file of records. ``kind``: one word, what they are. Nothing is made before something is written.

    A log has one writer. Call :meth:`replay` first if the file may exist.
    """

    _files: FileSystem
    path: str
    kind: str
    damage: DataError | None = attrs.field(init=False, default=None)
    """What :meth:`replay` found that no crash explains."""
    torn: DataError | None = attrs.field(init=False, default=None)
    """What :meth:`replay` passed over first that a crash explains: a record that was not written to its end."""
    _file: File | None = attrs.field(init=False, default=None)
    _cut: bool = attrs.field(init=False, default=False)
    """Whether the open file has the expected size."""
    _end: int = attrs.field(init=False, default=0)
    """Where the next write goes; 0: there is no file yet, or not a valid one."""
    _buffer: list[bytes] = attrs.field(init=False, factory=list)
    _buffered_bytes: int = attrs.field(init=False, default=0)
    _unsynced: bool = attrs.field(init=False, default=False)
    _named: bool = attrs.field(init=False, default=False)
    """Whether the file's name is synced."""
    _sync_failed: bool = attrs.field(init=False, default=False)
    _is_suspect: bool = attrs.field(init=False, default=False)
    """Whether bytes that were read may be in memory only."""
    _headless: bool = attrs.field(init=False, default=False)
    """Whether a power loss took the header and left records."""

    @property
    def header(self) -> bytes:
        """The line at the beginning of the file."""
        return f"warren {self.kind} {VERSION}\n".encode("ascii")

    @property
    def size_bytes(self) -> int:
        """Size of the file with the buffered records."""
        return (self._end or len(self.header)) + self._buffered_bytes

    @property
    def is_empty(self) -> bool:
        """Whether it has no record."""
        return self.size_bytes == len(self.header)

    # ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────

    def replay(self) -> Iterator[tuple[int, bytes]]:
        """Every whole record, the oldest first: its offset, and its payload. To be read to the end.

        Raises :class:`DataError` for a file that is something else, or of another version.
        """
        if not self._files.exists(self.path):
            return
        data = self._files.read(self.path)
        header = self.header
        if not data.startswith(header):
            if not header.startswith(data[: len(header)].rstrip(b"\0")):  # else a crash cut its making short
                self._check_header(data)
            self._pass_over(0, "the beginning of the file is missing")
        position, end = len(header), len(header) if data.startswith(header) else 0
        while position < len(data):
            payload = payload_at(data, position)
            if payload is None:
                following = self._behind(data, position)
                if following is None:
                    self._pass_over(position, f"{len(data) - position} bytes after the last record")
                    break
                position = following
                continue
            yield position, payload
            position += HEAD.size + len(payload)
            end = position
        self._end, self._headless = end, end > 0 and not data.startswith(header)
        self._unsynced = end > len(header)  # the writer may have died before it synced
        self._is_suspect = self._unsynced and self._files.exists(self.path + FAILED)

    def _behind(self, data: bytes, torn: int) -> int | None:
        """Where whole records go on after an invalid one, if they do; damage, unless a power loss explains it."""
        try:
            following = next_whole(data, torn + 1)
        except SearchError:
            reason = "a damaged record; too much after it looks like a record to find the next whole one"
            self.damage = self.damage or DataError(self.path, torn, reason)
            return None
        if following is not None and _is_lost_write(data, torn, following):
            self._pass_over(torn, f"{following - torn} bytes between whole records")
        elif following is not None and self.damage is None:
            self.damage = DataError(self.path, torn, "a damaged record, followed by whole ones")
        return following

    def _pass_over(self, offset: int, what: str) -> None:
        self.torn = self.torn or DataError(self.path, offset, what)

    def _check_header(self, data: bytes) -> None:
        line = data[: data.find(b"\n", 0, 80) + 1]
        words = line.split()
        if len(words) == 3 and words[:2] == self.header.split()[:2] and words[2].isdigit():
            raise DataError(self.path, 0, f"of version {int(words[2])}; this warren reads {VERSION}")
        raise DataError(self.path, 0, f"not a file of the kind 'warren {self.kind}'")

    def read(self, offset: int) -> bytes:
        """The payload of the record at an offset, which has been written. Raises :class:`DataError`."""
        file = self._open()
        head = file.pread(HEAD.size, offset)
        if len(head) == HEAD.size:
            crc, length = HEAD.unpack(head)
            if length <= file.size() - offset - HEAD.size:
                payload = file.pread(length, offset + HEAD.size)
                if crc == _crc(payload):
                    return payload
        raise DataError(self.path, offset, "there is no whole record here")

    # ── writing ─────────────────────────────────────────────────────────────────────────────────────────────────

    def append(self, payload: bytes) -> int:
        """Append a record; return the offset that it will have in the file."""
        offset = self.size_bytes
        self._buffer.append(encode_record(payload))
        self._buffered_bytes += HEAD.size + len(payload)
        return offset

    def write(self) -> None:
        """Write the buffered records at once: they survive the process. :class:`NoRoomError` leaves them buffered."""
        if not self._buffer:
            return
        file = self._open()
        if not self._cut and file.size() != self._end:  # a torn record, or what is left of a write that failed
            file.truncate(self._end)
        self._cut = True
        if self._headless:
            file.pwrite(self.header, 0)
            self._headless = False
        head = [] if self._end else [self.header]
        try:
            append_whole(file, [[*head, *self._buffer]])
        except StorageError:
            self.close()  # the rest of it is cut off when the file is opened again
            raise
        self._end = self.size_bytes
        self._buffer, self._buffered_bytes, self._unsynced = [], 0, True

    def drop(self) -> None:
        """Drop the buffered records."""
        self._buffer, self._buffered_bytes = [], 0

    def sync(self) -> None:
        """Write the buffered records and sync: all survive a power loss."""
        self.write()
        if not self._unsynced:
            return
        if self._sync_failed:
            raise StorageError(f"{self.path}: what was written before a sync that failed may not be on the disk")
        self._sync_failed = True
        self._sync_file()
        if not self._named:
            sync_directories_above(self._files, self.path)
            self._named = True
        self._unsynced = self._sync_failed = False

    def _sync_file(self) -> None:
        if self._is_suspect:
            self.close()
            replace_by_copy(self._files, self.path, self._end, self._end)
            self._note_sound()
            return
        try:
            self._open().sync()
        except StorageError:
            note_failed_sync(self._files, self.path)
            raise

    def _note_sound(self) -> None:
        """What the file says is on the disk, or gone: nothing of it is in memory alone."""
        if self._is_suspect or self._sync_failed:
            self._is_suspect = self._sync_failed = False
            take_failed_sync_back(self._files, self.path)

    def replace(self, payloads: Iterable[bytes], *, sync: bool) -> None:
        """Replace the file's contents by these records, in one step; drop buffered records.

        Raises :class:`NoRoomError` if the disk is full; the log is unchanged then.
        """
        data = b"".join([self.header, *map(encode_record, payloads)])
        self.close()
        with retryable():
            self._files.make_directories(os.path.dirname(self.path))
            self._files.rename(write_beside(self._files, self.path, data, sync=sync), self.path)
        self._buffer, self._buffered_bytes = [], 0
        self._end, self._unsynced, self._named, self.damage = len(data), True, False, None
        self.torn = None
        self._headless = False
        self._note_sound()
        if sync:
            sync_directories_above(self._files, self.path)
            self._unsynced, self._named = False, True

    def delete(self) -> None:
        """Delete the file, if it exists; drop buffered records. The log may be appended to again."""
        self.close()
        if self._files.exists(self.path):
            self._files.delete(self.path)
        self._note_sound()
        self._buffer, self._buffered_bytes = [], 0
        self._end, self._unsynced, self._named, self._headless = 0, False, False, False

    def close(self) -> None:
        """Close the file without writing buffered records. The next use opens it again."""
        file, self._file, self._cut = self._file, None, False
        if file is not None:
            file.close()

    def _open(self) -> File:
        if self._file is None:
            self._files.make_directories(os.path.dirname(self.path))
            self._file = self._files.open_append(self.path)
        return self._file

    def check_invariants(self) -> None:
        """Raise ``RuntimeError`` if the log contradicts itself, or the file."""
        if sum(map(len, self._buffer)) != self._buffered_bytes:
            raise RuntimeError(f"the buffered bytes differ from the count, {self._buffered_bytes}")
        if self._end and self._files.size(self.path) < self._end:
            raise RuntimeError(f"{self.path} is shorter than what was written")


def encode_record(payload: bytes) -> bytes:
    """A record as it stands in the file."""
    length = _LENGTH.pack(len(payload))
    return b"".join((_LENGTH.pack(zlib.crc32(payload, zlib.crc32(length))), length, payload))


def payload_at(data: bytes, position: int) -> bytes | None:
    """The payload of the whole record at a position of a file's bytes; ``None`` if none begins."""
    if position + HEAD.size > len(data):
        return None
    crc, length = HEAD.unpack_from(data, position)
    start = position + HEAD.size
    if start + length > len(data):
        return None
    payload = data[start : start + length]
    return payload if crc == _crc(payload) else None


def next_whole(data: bytes, position: int) -> int | None:
    """Return where the next whole, non-empty record begins, from a position on; zeros are not a record.

    Raises :class:`SearchError` if the search would take hours because too many places look like a record's beginning:
    a publisher may have chosen such a body.
    """
    left_bytes = _SEARCH_BYTES + _SEARCH_FACTOR * len(data)
    while position + HEAD.size < len(data):
        length = int.from_bytes(data[position + _LENGTH.size : position + HEAD.size], "big")
        if not length:
            match = _NOT_ZERO.search(data, position + _LENGTH.size)
            if match is None:
                return None
            position = max(position + 1, match.start() - HEAD.size + 1)
            continue
        if position + HEAD.size + length <= len(data):
            if left_bytes < 0:
                raise SearchError
            left_bytes -= length
            if payload_at(data, position):
                return position
        position += 1
    return None


def _is_lost_write(data: bytes, start: int, stop: int) -> bool:
    """Whether the bytes between two records may be what a power loss left of unsynced writes: they begin or end in
    zeros, or one of their sectors has nothing else. (A damaged record that looks like this is not told apart.)"""
    bounds = (start, *range(start + -start % SECTOR_BYTES, stop, SECTOR_BYTES), stop)
    pieces = [*pairwise(bounds), (start, min(start + FEW_ZEROS, stop)), (max(stop - FEW_ZEROS, start), stop)]
    return any(not data[low:high].strip(b"\0") for low, high in pieces if low < high)


def _crc(payload: bytes) -> int:
    return zlib.crc32(payload, zlib.crc32(_LENGTH.pack(len(payload))))
