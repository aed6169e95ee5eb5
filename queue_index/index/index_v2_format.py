"""The bytes of a classic queue's files, version 2: the index (``<n>.qi``) and the queue's own store (``<n>.qs``).

Both files of segment n hold the positions from n * count on; the count, 4096 by default, stands in their headers. All
integers are big-endian, and what is reserved is 0.

Header of either file::

     0        4         5                      13                    21             64
    ┌────────┬─────────┬──────────────────────┬─────────────────────┬──────────────┐
    │ magic  │ version │ first position       │ first after it      │ reserved     │
    └────────┴─────────┴──────────────────────┴─────────────────────┴──────────────┘

Index: 32 bytes for each position, at the place that the position gives; the file ends with the highest one written::

     0        1       2   3          4                       20      24          32
    ┌────────┬───────┬───┬──────────┬───────────────────────┬───────┬───────────┐
    │ status │ flags │ 0 │ location │ place                 │ size  │ expiry µs │
    └────────┴───────┴───┴──────────┴───────────────────────┴───────┴───────────┘
      status 1: a message stands here; 0: none, or an acked one, whose other bytes stay      flags, bit 0: persistent
      location 0: in memory, place 0 · 1: the vhost's store, place = msg_id · 2: the .qs file, place =
         4               12         16        20
        ┌───────────────┬──────────┬─────────┐
        │ record offset │ length   │ 0       │
        └───────────────┴──────────┴─────────┘

Store: consecutive records, in the order in which the messages were written::

     0        4       5          7   8
    ┌────────┬───────┬──────────┬───┬──────────────┐
    │ length │ flags │ checksum │ 0 │ message      │      flags, bit 0: there is a checksum, CRC-32's low 16 bits
    └────────┴───────┴──────────┴───┴──────────────┘

The index points at a record's first byte and repeats its length. A *size* is the payload's; an *expiry* of 0
means none.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final

import attrs
import numpy as np
import numpy.typing as npt

from warren.storage.errors import DataError

INDEX_SUFFIX: Final = ".qi"
STORE_SUFFIX: Final = ".qs"
INDEX_MAGIC: Final = int.from_bytes(b"RCQI", "big")
STORE_MAGIC: Final = int.from_bytes(b"RCQS", "big")
VERSION: Final = 2

DEFAULT_ENTRIES: Final = 4096
"""The default number of entries of a segment."""

MAX_ENTRIES: Final = 1 << 20
"""No segment has more here: a header's range would be our memory."""

MAX_POSITION: Final = 1 << 62
"""No position is so high; columns hold all below."""

_HEADER = struct.Struct(">IBQQ43s")
HEADER_SIZE: Final = _HEADER.size

ENTRY: Final = np.dtype(
    {
        "names": ["status", "flags", "unused", "location", "msg_id", "offset", "length", "rest", "size", "expiry_us"],
        "formats": ["u1", "u1", "u1", "u1", "V16", ">u8", ">u4", ">u4", ">u4", ">u8"],
        "offsets": [0, 1, 2, 3, 4, 4, 12, 16, 20, 24],
        "itemsize": 32,
    }
)
"""An entry; its place is read as ``msg_id``, or as ``offset``, ``length`` and ``rest``."""
ENTRY_SIZE: Final = ENTRY.itemsize

NOTHING, MESSAGE = 0, 1
"""Status."""
PERSISTENT: Final = 1
"""Flag."""
IN_MEMORY, IN_VHOST_STORE, IN_QUEUE_STORE = 0, 1, 2
"""Location."""

_ENTRY = struct.Struct(">BBBB16sIQ")
_RECORD_PLACE = struct.Struct(">QII")

RECORD_HEAD: Final = np.dtype([("length", ">u4"), ("flags", "u1"), ("checksum", ">u2"), ("unused", "u1")])
"""A record's head."""
RECORD_HEAD_SIZE: Final = RECORD_HEAD.itemsize
_RECORD_HEAD = struct.Struct(">IBHB")
CHECKSUM: Final = 1
"""Flag of a record."""

if (HEADER_SIZE, _ENTRY.size, _RECORD_PLACE.size, _RECORD_HEAD.size) != (64, ENTRY_SIZE, 16, RECORD_HEAD_SIZE):
    raise RuntimeError("a classic queue's files, version 2, have two layouts")

Entries = npt.NDArray[np.void]
"""An array of type :data:`ENTRY`."""


# ── header ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@attrs.frozen
class SegmentHeader:
    """The header of either file."""

    first: int
    """Its first position."""
    end: int
    """The first position after the segment."""
    reserved_is_zero: bool = True

    def entry_count(self, number: int) -> int | None:
        """The positions of a segment, if that is a range that segment ``number`` can have."""
        count = self.end - self.first
        return count if 1 <= count <= MAX_ENTRIES and self.first == number * count else None


def encode_header(magic: int, number: int, entry_count: int = DEFAULT_ENTRIES) -> bytes:
    """The header of segment ``number``'s index or store."""
    return _HEADER.pack(magic, VERSION, number * entry_count, (number + 1) * entry_count, b"")


def decode_header(data: bytes, magic: int, path: str) -> SegmentHeader:
    """What ``data``, a file's first bytes, says. Raises :class:`DataError` for what a broker does not take as its own:
    another magic or version, or too few bytes."""
    if len(data) < HEADER_SIZE:
        raise DataError(path, 0, f"{len(data)} bytes, which is shorter than a header")
    actual_magic, version, first, end, reserved = _HEADER.unpack_from(data)
    if actual_magic != magic:
        raise DataError(path, 0, f"begins with {data[:4].hex()}, not with {magic:08x}")
    if version != VERSION:
        raise DataError(path, 4, f"version {version}, not {VERSION}")
    return SegmentHeader(first, end, not any(reserved))


# ── entries ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def encode_entry(
    *,
    msg_id: bytes | None = None,
    record: tuple[int, int] | None = None,
    size: int,
    expiry_us: int = 0,
    persistent: bool = True,
    acked: bool = False,
) -> bytes:
    """An entry; ``msg_id``: the body is in the vhost's store, ``record`` (offset, length): in the queue's own; neither:
    in memory."""
    location, place = IN_MEMORY, b""
    if msg_id is not None:
        location, place = IN_VHOST_STORE, msg_id
    elif record is not None:
        location, place = IN_QUEUE_STORE, _RECORD_PLACE.pack(*record, 0)
    status = NOTHING if acked else MESSAGE
    return _ENTRY.pack(status, PERSISTENT if persistent else 0, 0, location, place, size, expiry_us)


def decode_entries(data: bytes) -> Entries:
    """Return the whole entries in ``data``, the bytes after an index file's header."""
    return np.frombuffer(data, ENTRY, count=len(data) // ENTRY_SIZE)


# ── records ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def encode_record_v2(message: bytes, *, with_checksum: bool = True) -> bytes:
    """A record of the queue's store."""
    checksum = checksum_of(message) if with_checksum else 0
    return _RECORD_HEAD.pack(len(message), CHECKSUM if with_checksum else 0, checksum, 0) + message


def checksum_of(message: bytes | memoryview) -> int:
    """What a record says of its message."""
    return zlib.crc32(message) & 0xFFFF


def record_length(head: bytes) -> int:
    """Return the length of the message after a record's head."""
    length: int = _RECORD_HEAD.unpack_from(head)[0]
    return length


def message_of(record: bytes, length: int) -> bytes | str:
    """Return the message in a record whose length is ``length`` according to the index; otherwise what is wrong."""
    if len(record) != RECORD_HEAD_SIZE + length:
        return f"{len(record)} bytes, where a record of {length} bytes should be"
    stored_length, flags, checksum, _ = _RECORD_HEAD.unpack_from(record)
    if stored_length != length:
        return f"the record is of {stored_length} bytes, the index says {length}"
    message = record[RECORD_HEAD_SIZE:]
    if flags & CHECKSUM and checksum_of(message) != checksum:
        return f"the checksum is {checksum_of(message):04x}, the record says {checksum:04x}"
    return message


def strange_head(head: bytes) -> str | None:
    """Return what no broker writes in a record's head, although all of them accept it."""
    _, flags, checksum, unused = _RECORD_HEAD.unpack_from(head)
    if flags & ~CHECKSUM or unused:
        return f"flags {flags:#04x} and {unused:#04x}, which are not known"
    if not flags and checksum:
        return f"a checksum, {checksum:04x}, and no flag that says so"
    return None
