"""The bytes of an index file, RocketMQ's hash index of message keys; both directions of the codec.

::

    0   begin timestamp 8        | 8   end timestamp 8
    16  begin physical offset 8  | 24  end physical offset 8
    32  hash slot count 4        | 36  index count 4
    40  slots, 4 each: the number of the newest item of the slot's chain; 0: none
    ..  items, 20 each; the first (number 0) is never used:
        key hash 4 | physical offset 8 | time difference 4 | previous item of the chain 4 (0: none)

All integers big-endian and signed. The *key hash* is of ``topic#key`` (:func:`warren.storage.java_hash.index_hash`),
its slot is the rest of its division by the number of slots. The *time difference* is in whole seconds after the begin
timestamp. The *index count* is the number of the next item: 1 in a file without items, where the bytes say 0.

Begin and end are the store timestamp and the physical offset of the first and of the last message put; in a file
without items they are the end of the file before.

How many slots and items a file has its bytes do not say; the settings do. Nearly all of a file may be a hole.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

import attrs
import numpy as np
import numpy.typing as npt

HEADER_BYTES: Final = 40
SLOT_BYTES: Final = 4
ITEM_BYTES: Final = 20
NAME_DIGITS: Final = 17
"""The length of a name: its creation time as yyyyMMddHHmmssSSS. Sorted by name, the oldest is first."""
_MOST_NAME_DIGITS: Final = 18

ITEM: Final = np.dtype(
    [("key_hash", ">i4"), ("physical_offset", ">i8"), ("time_difference_s", ">i4"), ("previous", ">i4")]
)
SLOT: Final = np.dtype(">i4")
_HEADER = struct.Struct(">qqqqii")
_ITEM = struct.Struct(">iqii")
_SLOT = struct.Struct(">i")

if (_HEADER.size, _ITEM.size, ITEM.itemsize, SLOT.itemsize) != (HEADER_BYTES, ITEM_BYTES, ITEM_BYTES, SLOT_BYTES):
    raise RuntimeError("the index file's layout does not add up")

Items = npt.NDArray[np.void]


@attrs.frozen
class Layout:
    """The positions in a file with given numbers of slots and items (RocketMQ's maxHashSlotNum and maxIndexNum)."""

    slot_count: int
    item_count: int
    """Number 0 included: a file holds one less."""

    @property
    def file_size(self) -> int:
        return HEADER_BYTES + self.slot_count * SLOT_BYTES + self.item_count * ITEM_BYTES

    def slot_offset(self, slot: int) -> int:
        """The file offset of a slot."""
        return HEADER_BYTES + slot * SLOT_BYTES

    def item_offset(self, number: int) -> int:
        """The file offset of an item."""
        return HEADER_BYTES + self.slot_count * SLOT_BYTES + number * ITEM_BYTES


@attrs.frozen(kw_only=True)
class Header:
    """What a file says of itself. Times in milliseconds since 1970."""

    begin_timestamp: int = 0
    end_timestamp: int = 0
    begin_physical_offset: int = 0
    end_physical_offset: int = 0
    hash_slot_count: int = 0
    """Slots with a chain."""
    index_count: int = 1
    """The number of the next item."""

    def encode(self) -> bytes:
        return _HEADER.pack(
            self.begin_timestamp,
            self.end_timestamp,
            self.begin_physical_offset,
            self.end_physical_offset,
            self.hash_slot_count,
            self.index_count if self.index_count > 1 else 0,
        )

    @classmethod
    def decode(cls, data: bytes) -> Header:
        """Return the header at the beginning of ``data``; missing bytes count as zeros."""
        begin, end, begin_offset, end_offset, slots, count = _HEADER.unpack(
            data[:HEADER_BYTES].ljust(HEADER_BYTES, b"\0")
        )
        return cls(
            begin_timestamp=begin,
            end_timestamp=end,
            begin_physical_offset=begin_offset,
            end_physical_offset=end_offset,
            hash_slot_count=slots,
            index_count=max(count, 1),
        )

    def follow(self) -> Header:
        """The header of the next file, begun when this one is full: it begins and ends where this one ends."""
        timestamp, physical_offset = max(self.end_timestamp, 0), max(self.end_physical_offset, 0)
        return Header(
            begin_timestamp=timestamp,
            end_timestamp=timestamp,
            begin_physical_offset=physical_offset,
            end_physical_offset=physical_offset,
        )

    def matches(self, begin: int, end: int) -> bool:
        """Whether a query from ``begin`` to ``end`` looks into this file."""
        return (
            (begin < self.begin_timestamp and end > self.end_timestamp)
            or self.begin_timestamp <= begin <= self.end_timestamp
            or self.begin_timestamp <= end <= self.end_timestamp
        )


def decode_slot(data: bytes) -> int:
    """The number that a slot holds."""
    (number,) = _SLOT.unpack(data)
    return int(number)


decode_item: Callable[[bytes], tuple[int, int, int, int]] = _ITEM.unpack
"""Key hash, physical offset, time difference in seconds and previous item."""


def is_file_name(name: str) -> bool:
    """Whether a file of that name is an index file; RocketMQ takes whatever is a number, and leaves the rest alone."""
    return 0 < len(name) <= _MOST_NAME_DIGITS and name.isascii() and name.isdigit()


def name_after(name: str, last: str | None) -> str:
    """Return ``name``, or, if it does not sort after the ``last`` file's, the next one that does.

    Two files may be made within a millisecond, and a clock may go backwards.
    """
    if last is None or name > last:
        return name
    return f"{int(last) + 1:0{len(last)}d}"
