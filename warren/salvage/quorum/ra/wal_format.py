"""The write-ahead log of a node: the entries of all its queues, in the order in which they were written.

::

    "RAWA" · version, 1 · records, as many as there are

    a record:
    +----------+---------------------+------------+-----------+----------+---------+-----------+
    | 3: id    | (2 + n: the id's    | 4: Adler-32| 4: length | 8: index | 8: term | the entry |
    |          |  length and text)   | 0 = none   |           |          |         |           |
    +----------+---------------------+------------+-----------+----------+---------+-----------+
    id: bit 23 this entry truncates · bit 22 the id is known · 22 bits: its number in this file

The checksum covers what follows the length. The id's text is there if bit 22 is 0; from there on its number stands for
it, in this file. Ids are numbered 0, 1, 2, … as they come. Zeros end a file that was made larger beforehand.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final, NamedTuple

WAL_MAGIC: Final = b"RAWA"
WAL_VERSION: Final = 1
WAL_HEADER: Final = WAL_MAGIC + bytes([WAL_VERSION])

KNOWN_RECORD: Final = struct.Struct(">BHIIQQ")
"""Id (its upper byte, its lower two), checksum, length, index, term: a record whose id is known, up to the entry."""
ENTRY_HEADER: Final = struct.Struct(">IIQQ")
"""Checksum, length, index, term: what stands before every entry."""
INDEX_AND_TERM: Final = struct.Struct(">QQ")
UID_LENGTH: Final = struct.Struct(">H")
UID_AT: Final = 3 + UID_LENGTH.size
"""Where the id's text stands in a record that has it."""

TRUNCATES: Final = 1 << 23
IS_KNOWN: Final = 1 << 22
ID_MASK: Final = IS_KNOWN - 1
END_MARK_BYTES: Final = 13
"""This many zeros are the end: no id, no checksum, no length."""

if KNOWN_RECORD.size != 27 or ENTRY_HEADER.size != 24:
    raise RuntimeError("a record of the write-ahead log does not have its size")


class WalRecord(NamedTuple):
    """A record's fields, not checked yet."""

    offset: int
    number: int
    """The id's, in this file."""
    uid: bytes | None
    """``None``: known by its number."""
    truncates: bool
    checksum: int
    length: int
    index: int  # type: ignore[assignment]
    term: int
    entry_offset: int

    @property
    def end(self) -> int:
        return self.entry_offset + self.length


def parse_head(head: bytes | memoryview, offset: int) -> WalRecord | None:
    """The record that begins with ``head``, which lies at ``offset``; ``None`` if that is not enough of it."""
    if len(head) < 5:
        return None
    mark = int.from_bytes(head[:3], "big")
    position = 3
    uid = None
    if not mark & IS_KNOWN:
        (length,) = UID_LENGTH.unpack_from(head, position)
        position += UID_LENGTH.size + length
        uid = bytes(head[position - length : position])
    if len(head) < position + ENTRY_HEADER.size:
        return None
    checksum, length, index, term = ENTRY_HEADER.unpack_from(head, position)
    return WalRecord(
        offset=offset,
        number=mark & ID_MASK,
        uid=uid,
        truncates=bool(mark & TRUNCATES),
        checksum=checksum,
        length=length,
        index=index,
        term=term,
        entry_offset=offset + position + ENTRY_HEADER.size,
    )


MAX_HEAD_BYTES: Final = 3 + UID_LENGTH.size + 0xFFFF + ENTRY_HEADER.size
"""Of a record, up to its entry."""


def encode_record(
    number: int,
    index: int,
    term: int,
    entry: bytes,
    *,
    uid: bytes | None = None,
    truncates: bool = False,
    checksum: bool = True,
) -> bytes:
    """A record; ``uid`` if it is the first one of its queue in the file."""
    mark = number | (TRUNCATES if truncates else 0) | (IS_KNOWN if uid is None else 0)
    text = b"" if uid is None else UID_LENGTH.pack(len(uid)) + uid
    covered = INDEX_AND_TERM.pack(index, term) + entry
    header = struct.pack(">II", zlib.adler32(covered) if checksum else 0, len(entry))
    return mark.to_bytes(3, "big") + text + header + covered
