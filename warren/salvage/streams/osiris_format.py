"""The files of a stream: segments of chunks, and an index beside each (Osiris, version 1). All integers are big-endian.

::

    segment  "OSIL" · u32 1 · chunks
    index    "OSII" · u32 1 · a record for each chunk: u64 offset · i64 timestamp · u64 epoch · u32 position · u8 type

    chunk     0  0x50: magic 5, version 0
              1  type: 0 messages · 1 what changed in the tracking · 2 all of the tracking
              2  u16 entries                        4  u32 records: messages, or 1
              8  i64 timestamp in milliseconds     16  u64 epoch
             24  u64 offset of the first record    32  u32 CRC-32 of the entries
             36  u32 bytes of entries              40  u32 bytes of the trailer
             44  u8 bytes of the filter            45  3 bytes, reserved
             48  filter · entries · trailer

    entry    simple     0 in the highest bit, 31 bits of size · a record
             sub-batch  1 in the highest bit, 3 bits of compression, 4 reserved · u16 records
                        u32 bytes without compression · u32 bytes · simple entries, perhaps compressed

A file is named after the offset of its first record, in 20 digits. A record's *offset* is its number in the stream; the
records of tracking chunks count, and are no messages. A *trailer* tells which publishers' messages are in the chunk; a
*filter* (3.13 and later) which filter values they have.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from warren.storage.errors import MessageError

SEGMENT_SUFFIX: Final = ".segment"
INDEX_SUFFIX: Final = ".index"
SEGMENT_HEADER: Final = b"OSIL\0\0\0\1"
INDEX_HEADER: Final = b"OSII\0\0\0\1"
FILE_HEADER_BYTES: Final = len(SEGMENT_HEADER)

MESSAGES: Final = 0
"""The type of a chunk with messages."""
_TYPES: Final = range(3)

INDEX_RECORD: Final = np.dtype(
    [("offset", ">u8"), ("timestamp_ms", ">i8"), ("epoch", ">u8"), ("position", ">u4"), ("type", "u1")]
)
Index = npt.NDArray[np.void]
"""Index records."""

_OFFSETS: Final = 1 << 63
"""No offset is higher: columns could not hold it."""
_NAME_DIGITS: Final = 20
_MAGIC: Final = 0x50
_CHUNK = struct.Struct(">BBHIqQQIIIB3x")
CHUNK_HEADER_BYTES: Final = _CHUNK.size
_SIZE = struct.Struct(">I")
_SUB_BATCH = struct.Struct(">BHII")
_SUB_BATCH_BIT: Final = 0x80


class ChunkHeader(NamedTuple):
    """The first bytes of a chunk."""

    type: int
    entry_count: int
    record_count: int
    timestamp_ms: int
    epoch: int
    offset: int
    """Of its first record."""
    crc32: int
    data_bytes: int
    trailer_bytes: int
    filter_bytes: int

    @property
    def next_offset(self) -> int:
        return self.offset + self.record_count

    @property
    def data_start(self) -> int:
        """Where the entries begin, from the chunk's first byte on."""
        return CHUNK_HEADER_BYTES + self.filter_bytes

    @property
    def size(self) -> int:
        """Of the whole chunk, in bytes."""
        return self.data_start + self.data_bytes + self.trailer_bytes


class SubBatch(NamedTuple):
    """Messages that a publisher sent as one entry."""

    compression: int
    record_count: int
    uncompressed_bytes: int
    data: bytes


def file_offset(name: str, suffix: str) -> int | None:
    """The offset that a file of a stream is named after; ``None`` if ``name`` is not such a name."""
    digits = name.removesuffix(suffix)
    is_name = len(digits) == _NAME_DIGITS and digits.isascii() and digits.isdigit() and name != digits
    return int(digits) if is_name and int(digits) < _OFFSETS else None


def file_name(offset: int, suffix: str) -> str:
    """The name of a file that begins at that offset."""
    return f"{offset:0{_NAME_DIGITS}}{suffix}"


def read_index(data: bytes) -> Index:
    """The whole records of an index file."""
    count = max(len(data) - FILE_HEADER_BYTES, 0) // INDEX_RECORD.itemsize
    return np.frombuffer(data, INDEX_RECORD, count, FILE_HEADER_BYTES) if count else np.empty(0, INDEX_RECORD)


def parse_chunk_header(data: bytes) -> ChunkHeader | None:
    """Return the chunk's header that ``data`` is, or ``None``. Every chunk has records and entries."""
    if len(data) != CHUNK_HEADER_BYTES:
        return None
    magic, *fields = _CHUNK.unpack(data)
    header = ChunkHeader(*fields)
    is_header = magic == _MAGIC and header.type in _TYPES and header.record_count and header.data_bytes
    return header if is_header and header.next_offset < _OFFSETS else None


def parse_entries(data: bytes) -> Iterator[bytes | SubBatch]:
    """The entries of a chunk with messages, or of a sub-batch; raises :class:`MessageError` at an invalid one."""
    position, size = 0, len(data)
    while position < size:
        if data[position] & _SUB_BATCH_BIT:
            start = position + _SUB_BATCH.size
            if start > size:
                raise MessageError("a sub-batch that is cut short")
            flags, record_count, uncompressed_bytes, length = _SUB_BATCH.unpack_from(data, position)
            position = start + length
            if position > size:
                raise MessageError("a sub-batch that is cut short")
            yield SubBatch(flags >> 4 & 7, record_count, uncompressed_bytes, data[start:position])
            continue
        start = position + _SIZE.size
        if start > size:
            raise MessageError("an entry that is cut short")
        position = start + int(_SIZE.unpack_from(data, position)[0])
        if position > size:
            raise MessageError("an entry that is cut short")
        yield data[start:position]
