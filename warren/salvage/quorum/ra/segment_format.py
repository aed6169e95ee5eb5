"""A segment: a closed part of one queue's log.

::

    "RASG" · u16 version · u16 M, the number of record slots

    version 2, 32 bytes a record            version 1, 28 bytes
    +-------+------+--------+--------+-----+
    | index | term | offset | length | CRC |  offset: 4 bytes
    |   8   |  8   |   8    |   4    |  4  |
    +-------+------+--------+--------+-----+
    M of them, unused ones zero; then the entries, in the order of the records

The CRC-32 is that of the entry; 0 = none. A record whose index is not above the one before voids what the file has
from that index on.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from typing import Final

import numpy as np

SEGMENT_MAGIC: Final = b"RASG"
SEGMENT_HEADER: Final = struct.Struct(">4sHH")

RECORD_DTYPES: Final = {
    1: np.dtype([("index", ">u8"), ("term", ">u8"), ("offset", ">u4"), ("length", ">u4"), ("checksum", ">u4")]),
    2: np.dtype([("index", ">u8"), ("term", ">u8"), ("offset", ">u8"), ("length", ">u4"), ("checksum", ">u4")]),
}
"""By version."""

MAX_INDEX: Final = (1 << 64) - 1
"""The highest that a record can say."""

if {version: dtype.itemsize for version, dtype in RECORD_DTYPES.items()} != {1: 28, 2: 32}:
    raise RuntimeError("a record of a segment does not have its size")


def encode_segment(
    entries: Iterable[tuple[int, int, bytes]], *, room: int = 4096, version: int = 2, checksums: bool = True
) -> bytes:
    """A segment with these entries, as (index, term, entry), and room for ``room``."""
    dtype = RECORD_DTYPES[version]
    start = SEGMENT_HEADER.size + room * dtype.itemsize
    table = np.zeros(room, dtype)
    bodies: list[bytes] = []
    offset = start
    for position, (index, term, entry) in enumerate(entries):
        table[position] = (index, term, offset, len(entry), zlib.crc32(entry) if checksums else 0)
        bodies.append(entry)
        offset += len(entry)
    return SEGMENT_HEADER.pack(SEGMENT_MAGIC, version, room) + table.tobytes() + b"".join(bodies)
