"""A message store file, ``<n>.rdq``: consecutive records, and nothing else.

    size u64 = 16 + len(message) · msg_id 16 bytes · message · 0xFF          (big-endian; size + 9 bytes in all)

A *scan* walks the records from the front. It stops where the file ends, at zeros, at a record that runs past the end
and at a size below 16, which no record has; the bytes after that cannot be interpreted. A record whose last byte is
not 0xFF is *bad*: it was not written whole, and is skipped.

A file's *number* says how old its messages are. A compaction that crashed leaves ``<n>.rdt``, records in the same
format; it is numbered ``-1 - n`` here, so that one integer names any file of a store. A typed file ``<n>.sqs``
(:mod:`warren.msg_store.rdq.sqs_format`) is numbered ``TYPED_FILES + n``.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from struct import Struct
from typing import NamedTuple

import attrs

from warren.storage.errors import DataError
from warren.storage.filesystem import File
from warren.storage.pieces import Piece, Whole

MSG_ID_BYTES = 16
END_MARKER = b"\xff"

HEADER = Struct(f">Q{MSG_ID_BYTES}s")
"""size, msg_id"""

SIZE_BYTES = HEADER.size - MSG_ID_BYTES
OVERHEAD_BYTES = HEADER.size + len(END_MARKER)
"""The size of a record without its message."""

UNCOUNTED_BYTES = OVERHEAD_BYTES - MSG_ID_BYTES
"""The bytes of a record that ``size`` does not count: itself and the marker."""

TYPED_SUFFIX = ".sqs"
STORE_SUFFIXES = (".rdq", ".rdt", TYPED_SUFFIX)
TYPED_FILES = 1 << 30
"""Typed files are numbered from here on: a broker that writes them writes no ``.rdq``, so they are the youngest."""

MAX_FILE_NUMBER = TYPED_FILES - 1
"""Tables of places keep a file's number in four bytes, that of an ``.rdt`` or ``.sqs`` too."""

SCAN_CHUNK_BYTES = 128 * 1024
"""Memory that a scan holds; larger messages are skipped without being read."""


def encode_record(msg_id: bytes, message: bytes) -> bytes:
    """The record that stores ``message`` under ``msg_id`` (16 bytes)."""
    return b"".join(records_in_pieces(((msg_id, message),)))


def records_in_pieces(messages: Iterable[tuple[bytes, Whole]]) -> list[Piece]:
    """Encode many records as pieces for a gathered write: the bytes between two bodies are one piece."""
    records: list[Piece] = []
    separator = b""
    pack = HEADER.pack
    for msg_id, message in messages:
        if isinstance(message, bytes):
            records += (separator + pack(MSG_ID_BYTES + len(message), msg_id), message)
            separator = END_MARKER
        else:
            pieces = message.pieces
            records.append(separator + pack(MSG_ID_BYTES + message.size, msg_id) + pieces[0])
            records += pieces[1:-1]
            separator = bytes(pieces[-1]) + END_MARKER
    records.append(separator)
    return records


def decode_record(record: bytes, msg_id: bytes, path: str, offset: int, size: int) -> bytes:
    """The message in ``record``, which was read from ``offset`` of ``path``.

    Raises :class:`DataError` if it is not ``size`` bytes long, whole, and under ``msg_id``.
    """
    if len(record) < size:
        raise DataError(path, offset, f"the file ends {size - len(record)} bytes before the record does")
    found_size, found_id = HEADER.unpack_from(record)
    if found_id != msg_id:
        raise DataError(path, offset, f"holds message {found_id.hex()}, not {msg_id.hex()}")
    if found_size + UNCOUNTED_BYTES != size:
        raise DataError(path, offset, f"a record of {found_size + UNCOUNTED_BYTES} bytes, not {size}")
    if record[-1:] != END_MARKER:
        raise DataError(path, offset, "the record does not end in 0xFF")
    return record[HEADER.size : -1]


class Record(NamedTuple):
    """Where a record stands; ``size`` counts all of its bytes on disk."""

    offset: int
    size: int
    msg_id: bytes
    good: bool


class EndReason(enum.Enum):
    """Why a scan stopped; the value is for people."""

    CLEAN = "the end of the file"
    ZEROS = "zeros"
    PAST_END = "a record that runs past the end of the file"
    TOO_SMALL = "a size that no record has"
    SHORT_HEADER = "a header that is cut short"
    NO_TYPE = "a type that no record has"
    TWO_HOLES = "a hole after a hole"
    LONG_RUN = "more than four holes of one byte"


@attrs.frozen
class ScanEnd:
    """Where and why a scan stopped, in a file of ``file_size`` bytes."""

    offset: int
    reason: EndReason
    file_size: int

    @property
    def unread_bytes(self) -> int:
        """The number of bytes after the scan's end."""
        return self.file_size - self.offset

    @property
    def damage(self) -> str | None:
        """The kind of damage that stopped the scan; ``None`` at the file's end and at zeros."""
        if self.reason in (EndReason.CLEAN, EndReason.ZEROS):
            return None
        return "record out of bounds" if self.reason in (EndReason.PAST_END, EndReason.TOO_SMALL) else "broken record"


class Scan(Iterator[Record]):
    """The records of a file, in order; once they are used up, ``end`` says where they stopped and why.

    Holds ``SCAN_CHUNK_BYTES`` of the file at a time, whatever sizes its records claim. Damage ends it, without an
    exception.
    """

    __slots__ = ("_records", "end", "path")

    def __init__(self, file: File, path: str, start: int) -> None:
        self.path = path
        self.end: ScanEnd | None = None
        self._records = self._walk(file, start)

    def __iter__(self) -> Iterator[Record]:
        return self._records

    def __next__(self) -> Record:
        return next(self._records)

    def finish(self) -> ScanEnd:
        """Pass over the records that are left."""
        for _ in self._records:
            pass
        if self.end is None:
            raise RuntimeError(f"{self.path}: the scan was broken off by an error")
        return self.end

    def _walk(self, file: File, offset: int) -> Iterator[Record]:
        file_size = file.size()
        unpack, header_size, end_byte = HEADER.unpack_from, HEADER.size, END_MARKER[0]
        chunk, chunk_start = b"", offset
        while offset + OVERHEAD_BYTES <= file_size:
            start = offset - chunk_start
            if start + header_size > len(chunk):
                chunk, chunk_start, start = file.pread(SCAN_CHUNK_BYTES, offset), offset, 0
                if len(chunk) < header_size:
                    break  # the file was cut under the scan
            size, msg_id = unpack(chunk, start)
            size += UNCOUNTED_BYTES
            if size < OVERHEAD_BYTES or offset + size > file_size:
                break
            last = start + size - 1
            if last >= len(chunk):
                chunk_start, last = offset + size - 1, 0
                chunk = file.pread(SCAN_CHUNK_BYTES, chunk_start) or b"\0"
            yield Record(offset, size, msg_id, chunk[last] == end_byte)
            offset += size
        rest = file.pread(max(min(SIZE_BYTES, file_size - offset), 0), offset)
        self.end = ScanEnd(offset, end_reason(rest), file_size)


def end_reason(rest: bytes) -> EndReason:
    """Why no record begins with ``rest``, the first bytes (up to 8) after the last record."""
    if not rest:
        return EndReason.CLEAN
    if not any(rest):
        return EndReason.ZEROS
    if len(rest) == SIZE_BYTES and int.from_bytes(rest) < MSG_ID_BYTES:
        return EndReason.TOO_SMALL
    return EndReason.PAST_END


def scan(file: File, path: str, *, start: int = 0) -> Scan:
    """The records of ``file`` from offset ``start``, where one must begin; ``path`` is for messages."""
    return Scan(file, path, start)


def scan_end(file: File, path: str, *, start: int = 0) -> ScanEnd:
    """Where a scan of ``file`` stops, and why."""
    return scan(file, path, start=start).finish()


def leftover_of(number: int) -> int:
    """The number that stands for ``<number>.rdt``; and back."""
    return -1 - number


def file_name(number: int) -> str:
    """The name of a file of a store by its number."""
    if number >= TYPED_FILES:
        return f"{number - TYPED_FILES}{TYPED_SUFFIX}"
    return f"{number}.rdq" if number >= 0 else f"{leftover_of(number)}.rdt"


def path_of(directory: str, number: int) -> str:
    """The path of a file of the store in ``directory``."""
    return f"{directory}/{file_name(number)}"


def file_number(name: str) -> int | None:
    """The number of a store's file by its name; ``None`` for any other file, and for a number that none can have."""
    stem, _, extension = name.rpartition(".")
    if f".{extension}" not in STORE_SUFFIXES or not stem.isdecimal():
        return None
    if (number := int(stem)) > MAX_FILE_NUMBER:
        return None
    number = {"rdq": number, "rdt": leftover_of(number)}.get(extension, TYPED_FILES + number)
    return number if file_name(number) == name else None


def in_age_order(names: list[str]) -> list[int]:
    """The numbers of a store's files among ``names``: oldest first, each ``.rdt`` after its ``.rdq``, ``.sqs`` last.

    If a message stands in several of them, the last place is the one to trust: a compaction leaves the originals in
    the ``.rdt``, or in the younger file, until the copy in the older one is synced.
    """
    numbers = [number for name in names if (number := file_number(name)) is not None]
    return sorted(numbers, key=lambda number: (number, 0) if number >= 0 else (leftover_of(number), 1))
