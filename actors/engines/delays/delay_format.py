"""The two formats of delayed messages on disk: the records of a log, and the index of a full log.

**Records** are stored in a :class:`~warren.storage.record_log.RecordLog` of the kind ``delayed``. A payload is a
delayed message, or a list of messages that are removed; big-endian::

    "M"  due  id digest  target  replaces: file  offset   encoded message
    (:mod:`warren.queue_index.message.message_format`)
     1    8       8        8              4       4
    "G"  file  offset   file  offset  …
     1    4      4

*due*: milliseconds since 1970. *id digest* (:func:`digest_of_id`): finds a message to be cancelled; 0: it has no id.
*target* (:func:`target_of_queue`, :func:`target_of_exchange`): whose message it is. *replaces*: the message's previous
place, which no longer counts; 0 and 0: it is new. One record says both, so no crash comes between.

**An index** lists the messages of a log, in columns sorted by due and then by offset, and the places that the log marks
as removed; little-endian::

    "warren due 1\\n"   CRC-32 of all that follows   the log's size   messages   removed   damaged
                                  4                      8              4         4         4
    due i64 …  id digest u64 …  target u64 …  offset u32 …  size u32 …      one of each for every message
    file u32  offset u32  …                                                 for every one that is removed

*size*: of the whole record. *damaged*: 1 if part of the log cannot be read. An index that is missing or damaged, or
belongs to a log of another size, is rebuilt from the log.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from warren.queue_index.message.message_format import decode_message
from warren.storage.errors import DataError, MessageError
from warren.storage.filesystem import File, FileSystem

KIND: Final = "delayed"

_MESSAGE, _REMOVED = b"M", b"G"
_HEAD: Final = struct.Struct(">cQQQII")
_REPLACES: Final = struct.Struct(">II")
_REPLACES_AT: Final = _HEAD.size - _REPLACES.size

LINE: Final = b"warren due 1\n"
_INDEX_HEAD: Final = struct.Struct("<IQIII")
_COLUMNS: Final = (("due_ms", "<i8"), ("id_digest", "<u8"), ("target", "<u8"), ("offset", "<u4"), ("size", "<u4"))
ENTRY: Final = np.dtype(list(_COLUMNS))
REMOVED: Final = np.dtype([("file", "<u4"), ("offset", "<u4")])

Entries = npt.NDArray[Any]
"""An array of :data:`ENTRY`."""
Removed = npt.NDArray[Any]
"""An array of :data:`REMOVED`."""


class Entry(NamedTuple):
    """One message of a log."""

    due_ms: int
    id_digest: int
    target: int
    offset: int
    size: int


class Place(NamedTuple):
    """The place of a record: the number of its file, and the offset in it."""

    file: int
    offset: int


NOWHERE: Final = Place(0, 0)


def digest_of_id(message_id: bytes) -> int:
    """The digest by which a ``message_id`` is looked up; 0 for an empty one."""
    return _digest(message_id) if message_id else 0


def has_id(term: bytes, message_id: bytes) -> bool:
    """Whether an encoded message has this ``message_id``."""
    try:
        decoded_id = decode_message(term).properties.message_id
    except MessageError:
        return False
    return message_id == (decoded_id.encode() if isinstance(decoded_id, str) else decoded_id)


def target_of_queue(name: bytes) -> int:
    """The target of messages that were published to a queue directly."""
    return _digest(b"q" + name)


def target_of_exchange(name: bytes) -> int:
    """The target of messages that were published to an exchange."""
    return _digest(b"x" + name)


def _digest(data: bytes) -> int:
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "big") or 1


# ── records ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class Record(NamedTuple):
    """A delayed message."""

    due_ms: int
    id_digest: int
    target: int
    replaces: Place
    term: bytes
    """The encoded message."""


def encode_message_record(due_ms: int, id_digest: int, target: int, term: bytes, replaces: Place = NOWHERE) -> bytes:
    """The payload of a message."""
    return _HEAD.pack(_MESSAGE, due_ms, id_digest, target, *replaces) + term


def moved(payload: bytes, replaces: Place, due_ms: int | None = None) -> bytes:
    """The payload of a message that is rewritten elsewhere; ``due_ms``: its new due time, if that changes."""
    if due_ms is not None:
        record = message_in(payload)
        return encode_message_record(due_ms, record.id_digest, record.target, record.term, replaces)
    return payload[:_REPLACES_AT] + _REPLACES.pack(*replaces) + payload[_HEAD.size :]


def message_in(payload: bytes) -> Record:
    """The message in a payload. Raises ``ValueError`` for any other payload."""
    if len(payload) < _HEAD.size or not payload.startswith(_MESSAGE):
        raise ValueError("not a delayed message")
    _, due_ms, id_digest, target, file, offset = _HEAD.unpack_from(payload)
    return Record(due_ms, id_digest, target, Place(file, offset), payload[_HEAD.size :])


def encode_removed(places: Iterable[Place]) -> bytes:
    """The payload that marks these places as removed."""
    return _REMOVED + b"".join([_REPLACES.pack(*place) for place in places])


def removed_in(payload: bytes) -> list[Place] | None:
    """The places that a payload marks as removed; ``None``: it is a message. Raises ``ValueError`` if it is neither."""
    if payload.startswith(_REMOVED) and not (len(payload) - 1) % _REPLACES.size:
        return [Place(*pair) for pair in _REPLACES.iter_unpack(memoryview(payload)[1:])]
    if payload.startswith(_MESSAGE):
        return None
    raise ValueError("neither a delayed message nor a list of removed ones")


# ── index ────────────────────────────────────────────────────────────────────────────────────────────────────────────


class Index(NamedTuple):
    """The contents of an index."""

    entries: Entries
    removed: Removed
    damaged: bool


def encode_index(index: Index, log_bytes: int) -> bytes:
    """The bytes of an index. ``log_bytes``: the log's size; the entries may be in any order."""
    entries, places, damaged = index
    ordered = entries[np.lexsort((entries["offset"], entries["due_ms"]))]
    body = b"".join([*(ordered[name].tobytes() for name, _ in _COLUMNS), places.tobytes()])
    head = _INDEX_HEAD.pack(0, log_bytes, len(entries), len(places), damaged)[4:]
    return b"".join((LINE, zlib.crc32(body, zlib.crc32(head)).to_bytes(4, "little"), head, body))


def decode_index(data: bytes, path: str, log_bytes: int) -> Index:
    """Parse an index. Raises :class:`DataError` if it is damaged, or belongs to a log of another size."""
    start = len(LINE) + _INDEX_HEAD.size
    if not data.startswith(LINE) or len(data) < start:
        raise DataError(path, 0, "not an index of delayed messages")
    crc, of_bytes, count, removed_count, damaged = _INDEX_HEAD.unpack_from(data, len(LINE))
    if len(data) != start + count * ENTRY.itemsize + removed_count * REMOVED.itemsize:
        raise DataError(path, None, f"{len(data)} bytes for {count} messages and {removed_count} removed ones")
    if crc != zlib.crc32(memoryview(data)[len(LINE) + 4 :]):
        raise DataError(path, len(LINE), "another checksum")
    if of_bytes != log_bytes:
        raise DataError(path, len(LINE) + 4, f"the index of a log of {of_bytes} bytes, but the log has {log_bytes}")
    entries = np.empty(count, ENTRY)
    for name, kind in _COLUMNS:
        entries[name] = np.frombuffer(data, kind, count, start)
        start += count * np.dtype(kind).itemsize
    ends = entries["offset"].astype(np.int64) + entries["size"]
    if count and (int(ends.max()) > log_bytes or int(entries["size"].min()) < _HEAD.size):
        raise DataError(path, None, "entries outside of its log")
    return Index(entries, np.frombuffer(data, REMOVED, removed_count, start), bool(damaged))


def read_rows(files: FileSystem, path: str, count: int, first: int, number: int) -> Entries:
    """At most ``number`` messages, from place ``first``, of an index of ``count``. Raises :class:`DataError`."""
    file = files.open_read(path)
    try:
        rows = np.empty(min(number, count - first), ENTRY)
        for name, _ in _COLUMNS:
            rows[name] = _read_column(file, path, name, count, range(first, first + len(rows)))
        return rows
    finally:
        file.close()


def read_column(files: FileSystem, path: str, count: int, name: str) -> npt.NDArray[Any]:
    """A whole column of an index with ``count`` messages. Raises :class:`DataError`."""
    file = files.open_read(path)
    try:
        return _read_column(file, path, name, count, range(count))
    finally:
        file.close()


def _read_column(file: File, path: str, name: str, count: int, rows: range) -> npt.NDArray[Any]:
    start = len(LINE) + _INDEX_HEAD.size
    for column, kind in _COLUMNS:
        width = np.dtype(kind).itemsize
        if column == name:
            at = start + rows.start * width
            data = file.pread(len(rows) * width, at)
            if len(data) != len(rows) * width:
                raise DataError(path, at, "cut short")
            return np.frombuffer(data, kind)
        start += count * width
    raise ValueError(f"no column {name}")


def entries_of(entries: Sequence[Entry]) -> Entries:
    """As columns."""
    return np.array(entries, ENTRY)


def removed_of(places: Sequence[Place]) -> Removed:
    """As columns."""
    return np.array(places, REMOVED)
