"""The bytes of a ConsumeQueue: one entry a message, both directions of the codec.

::

    0   physical offset 8 | 8  size 4 | 12 tags code 8

All integers big-endian and signed. Entry n of a queue is the message with queue offset n, and stands at logical byte
20 n of the queue's mapped files. The *tags code* is Java's hash of the message's tags (0 without); in the topic of
delayed messages it is the time at which the message is due. In a store with ``enableConsumeQueueExt`` it can be the
address of an entry in the extension files, which are not read: a number below all hashes.

*Filler* stands ahead of the first message's entry in a queue whose first file does not begin with it. It points at no
message, yet counts as good when a queue is recovered.
"""

from __future__ import annotations

import struct
from typing import Final

import numpy as np

from warren.storage.columns import Ints, Longs, Mask
from warren.storage.topic_settings import CONSUME_QUEUE_ENTRY_BYTES

ENTRY: Final = np.dtype([("physical_offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])
_ENTRY: Final = struct.Struct(">qiq")
ENTRY_BYTES: Final = CONSUME_QUEUE_ENTRY_BYTES

MAX_QUEUE_OFFSET: Final = (2**63 - 1) // ENTRY_BYTES - 1
"""The position of an entry beyond it would not fit into 64 bits."""

FILLER_SIZE: Final = 0x7FFFFFFF
_LEAST_HASH: Final = -(1 << 31)
FILLER: Final = np.array([(0, FILLER_SIZE, 0)], ENTRY).tobytes()

if not ENTRY.itemsize == _ENTRY.size == ENTRY_BYTES:
    raise RuntimeError("the entry's layout does not add up")

Entries = np.ndarray[tuple[int], np.dtype[np.void]]
"""Entries as a structured array of :data:`ENTRY`."""


def decode(data: bytes) -> Entries:
    """The entries in ``data``, a whole number of them."""
    return np.frombuffer(data, ENTRY)


def decode_entry(data: bytes) -> tuple[int, int, int]:
    """Physical offset, size and tags code of the one entry in ``data``."""
    physical_offset, size, tags_code = _ENTRY.unpack(data)
    return physical_offset, size, tags_code


def encode(physical_offsets: Longs, sizes: Ints, tags_codes: Longs) -> bytes:
    """Encode entries from their columns."""
    entries = np.empty(len(physical_offsets), ENTRY)
    entries["physical_offset"] = physical_offsets
    entries["size"] = sizes
    entries["tags_code"] = tags_codes
    return entries.tobytes()


def are_good(entries: Entries) -> Mask:
    """Return which entries recovery accepts; it rejects zeros, among others."""
    good: Mask = (entries["physical_offset"] >= 0) & (entries["size"] > 0)
    return good


def are_extension_addresses(tags_codes: Longs) -> Mask:
    """Which tags codes are addresses in the extension files, and say nothing about the tags."""
    addresses: Mask = tags_codes < _LEAST_HASH
    return addresses


def physical_stops(physical_offsets: Longs, sizes: Ints) -> Longs:
    """Return the offsets after the messages; 64 bits wrap around, as Java's do."""
    stops: Longs = physical_offsets.astype(np.int64) + sizes.astype(np.int64)
    return stops


def is_filler(physical_offset: int, size: int) -> bool:
    return physical_offset == 0 and size == FILLER_SIZE
