"""A DETS file, version 9, type set: Erlang's hash table on disk, as bytes. The terms in it stay bytes here.

Terms. An *object* is a stored Erlang tuple in the external term format; its *key* is the first element. The table has
*slots*, found by linear hashing of the key; the objects of one slot stand together in a *collection*. *Segments* hold
256 slots, *parts* hold 512 positions of segments, the header those of up to 256 parts. All integers are big-endian
u32; positions are offsets in the file, and 0 says "none".

::

    header       0  position of the free lists
                 4  0x00ABCDEF
                 8  1 = closed properly, 0 = open, or not closed properly
                12  type: 1 = set
                16  version: 9
                20  m: the largest power of two ≤ slots
                24  slots: a multiple of 256
                28  element of an object that is the key: 1
                32  objects
                36  keys: as many, in a set
                40  fewest slots the table is made with · 44  most it grows to
                48  hash: 1 = phash2
                52  n: slots - m
                56  28 numbers: how many collections take a block of 2**4, 2**5 … 2**31 bytes
               168  16 bytes: MD5 of the bytes 12 … 168; zeros in files older than it
               184  base: the first position of blocks; 0 = 1336
               188  124 zeros
               312  256 positions of parts
    1336         parts:      512 positions of segments each
                 segments:   256 slots of size · position of the collection each
    base         blocks, each a power of two, at base + a multiple of its own size; in one that is taken, a
                 collection:  size of the whole · 0x12345678 · for each object: 4 + size of the term · the term
    free lists   for each size with free blocks:  size of the record · 0x03ABCDEF · 1 + log2(size) · positions, rising
                 at the end:                      12 · 0x03ABCDEF · 12345
    last 4       size of the file - the number at 184

Linear hashing. A key with hash h belongs in slot h mod 2m or, if that slot does not exist yet, in h mod m. The table
grows by a segment whenever it holds more keys than slots.

Reading trusts nothing: every part, segment and collection claims its bytes, and no byte may be claimed twice; so time
and memory stay in proportion to the file, however its positions are bent. Free blocks and their lists are not read.
Writing makes a whole new file: parts and segments first, then the collections, large blocks before small ones (which
leaves each at a multiple of its size, without a gap), and all that follows is free.

After a crash the file is old or new, as far as the file system guarantees it: writers must write a new file and rename.
"""

from __future__ import annotations

import hashlib
import struct
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, Final, Self

import attrs

from warren.storage.errors import DataError

SEGMENT_SLOTS: Final = 256
PART_SEGMENTS: Final = 512
PARTS: Final = 256
MAX_SLOTS: Final = PARTS * PART_SEGMENTS * SEGMENT_SLOTS

_COOKIE, _ACTIVE, _FREE, _END_OF_FREE_LISTS = 0x00ABCDEF, 0x12345678, 0x03ABCDEF, 12345
_VERSION, _SET, _FIRST_ELEMENT, _PHASH2, _CLOSED = 9, 1, 1, 1, 1

_U32 = struct.Struct(">I")
_HEADER = struct.Struct(">14I 28I 16s I 124x")
_DIGESTED, _MD5 = slice(12, 168), slice(168, 184)
_PARTS_OFFSET = _HEADER.size
_FIRST_POSITION = _PARTS_OFFSET + 4 * PARTS
_SLOT = struct.Struct(">2I")
_COLLECTION = struct.Struct(">2I")
_FREE_LIST = struct.Struct(">4I")
_FREE_LISTS_END = struct.Struct(">3I")
_PART_BYTES = 4 * PART_SEGMENTS
_SEGMENT_BYTES = _SLOT.size * SEGMENT_SLOTS
_SMALLEST_BLOCK_LOG2 = 4

_BLOCK_SPACE = 1 << 31
"""The space that the free lists divide, from the base on; equal in every file, or blocks would lose their buddies."""
_RESERVED = 50_000_000
"""The part of it that DETS reserves for the free lists; DETS gives up a table that reaches into it."""


@attrs.frozen
class TableObject:
    """An object to be written."""

    key: bytes
    """Orders the objects of a slot; must do so as Erlang orders the keys (strings: by their characters)."""
    key_hash: int
    """``erlang:phash2`` of the key."""
    term: bytes
    """The whole object in the external term format."""


@attrs.frozen
class StoredObject:
    """An object that was read."""

    slot: int
    file_offset: int
    """Where its term begins."""
    term: bytes


@attrs.frozen
class Table:
    """What a file holds."""

    slots: int
    objects: tuple[StoredObject, ...]


def slots_for(keys: int) -> int:
    """Return the slots of a table with ``keys`` keys: whole segments, at least one, and at most :data:`MAX_SLOTS`."""
    return min(max(1, -(-keys // SEGMENT_SLOTS)) * SEGMENT_SLOTS, MAX_SLOTS)


def slot_of(key_hash: int, slots: int) -> int:
    """The slot in which a table of ``slots`` keeps keys with this hash."""
    m = _power_of_two_within(slots)
    slot = key_hash % (2 * m)
    return slot if slot < slots else slot - m


def _power_of_two_within(slots: int) -> int:
    return 1 << (slots.bit_length() - 1)


def _block_log2(size: int) -> int:
    """The logarithm of the smallest block that ``size`` bytes fit in."""
    return max(_SMALLEST_BLOCK_LOG2, (size - 1).bit_length())


def _digest(header: bytes | bytearray) -> bytes:
    return hashlib.md5(header[_DIGESTED], usedforsecurity=False).digest()


@attrs.frozen(kw_only=True)
class Header:
    """The first 312 bytes, as far as they differ from table to table."""

    free_lists_position: int
    slots: int
    objects: int
    base: int
    """As it stands there; 0 in files older than it."""
    block_counts: tuple[int, ...]
    """Collections by size of their blocks: 2**4, 2**5 … 2**31."""

    def encode(self) -> bytes:
        """312 bytes of a table that is closed properly."""
        m = _power_of_two_within(self.slots)
        kind = (self.free_lists_position, _COOKIE, _CLOSED, _SET, _VERSION, m, self.slots, _FIRST_ELEMENT)
        sizes = (self.objects, self.objects, SEGMENT_SLOTS, MAX_SLOTS, _PHASH2, self.slots - m)
        header = bytearray(_HEADER.pack(*kind, *sizes, *self.block_counts, bytes(16), self.base))
        header[_MD5] = _digest(header)
        return bytes(header)

    @classmethod
    def decode(cls, data: bytes, path: str) -> Self:
        """The header of the file that ``data`` holds whole.

        Raises :class:`DataError` if it is not a DETS file, not closed properly, of a kind that no broker writes, or
        not of the size it was closed with.
        """
        fields = _header_fields(data, path)
        free_lists, _, closed, kind, _, m, slots, key_element, objects, keys, _, _, hashing, n = fields[:14]
        *block_counts, md5, base = fields[14:]
        if any(md5) and md5 != _digest(data):
            raise DataError(path, _MD5.start, "the header's MD5 does not fit the header")
        if closed != _CLOSED:
            raise DataError(path, 8, "not closed properly")
        (size_without_base,) = _U32.unpack_from(data, len(data) - _U32.size)
        if size_without_base + base != len(data):
            raise DataError(path, len(data) - _U32.size, "not of the size it was closed with")
        if (kind, key_element, hashing) != (_SET, _FIRST_ELEMENT, _PHASH2):
            raise DataError(path, 12, "not a set, hashed by phash2 of the first element")
        if not 0 < slots <= MAX_SLOTS or slots % SEGMENT_SLOTS:
            raise DataError(path, 24, f"{slots} slots")
        if m != _power_of_two_within(slots) or n != slots - m:
            raise DataError(path, 20, f"{slots} slots as {m} and {n}")
        if objects != keys:
            raise DataError(path, 32, f"{objects} objects with {keys} keys")
        if not _FIRST_POSITION <= free_lists <= len(data) - _FREE_LISTS_END.size - _U32.size:
            raise DataError(path, 0, f"free lists at {free_lists}, outside the file")
        return cls(
            free_lists_position=free_lists,
            slots=slots,
            objects=objects,
            base=base,
            block_counts=tuple(block_counts),
        )


def _header_fields(data: bytes, path: str) -> tuple[Any, ...]:
    """Return the header's numbers; raise :class:`DataError` if it is not a DETS file's header."""
    if len(data) < _FIRST_POSITION + _FREE_LISTS_END.size + _U32.size:
        raise DataError(path, None, f"{len(data)} bytes are too few for a DETS file")
    fields = _HEADER.unpack_from(data)
    _, cookie, _, _, version, *_ = fields
    if cookie != _COOKIE:
        raise DataError(path, 4, f"no DETS file: its cookie is {cookie:#010x}")
    if version != _VERSION:
        raise DataError(path, 16, f"DETS version {version} is not {_VERSION}")
    return fields


def encode_table(objects: Iterable[TableObject]) -> bytes:
    """A whole file, closed properly, that holds these objects; no two may have the same key.

    Raises ``ValueError`` if they take more than DETS can hold, nearly 2 GiB.
    """
    table_objects = list(objects)
    slots = slots_for(len(table_objects))
    segments = slots // SEGMENT_SLOTS
    parts = -(-segments // PART_SEGMENTS)
    parts_end = _FIRST_POSITION + parts * _PART_BYTES
    base = parts_end + segments * _SEGMENT_BYTES
    collections = _encode_collections(table_objects, slots)
    blocks_end = base + sum(1 << log2 for log2, _, _ in collections)
    if blocks_end > _BLOCK_SPACE - _RESERVED:
        raise ValueError(f"{len(table_objects)} objects, {blocks_end} bytes, are more than a DETS file holds")

    slot_table = bytearray(segments * _SEGMENT_BYTES)
    blocks: list[bytes] = []
    counts = Counter[int]()
    position = free_lists_position = base
    for log2, slot, collection in collections:
        _SLOT.pack_into(slot_table, slot * _SLOT.size, len(collection), position)
        blocks.append(collection.ljust(1 << log2, b"\0"))
        counts[log2] += 1
        free_lists_position = position + len(collection)  # the last block is not padded, as DETS leaves it
        position += 1 << log2

    header = Header(
        free_lists_position=free_lists_position,
        slots=slots,
        objects=len(table_objects),
        base=base,
        block_counts=tuple(counts[log2] for log2 in range(_SMALLEST_BLOCK_LOG2, 32)),
    ).encode()
    part_positions = _positions(_FIRST_POSITION, parts, _PART_BYTES, PARTS)
    segment_positions = _positions(parts_end, segments, _SEGMENT_BYTES, parts * PART_SEGMENTS)
    body = b"".join(blocks)[: free_lists_position - base]
    file = b"".join((header, part_positions, segment_positions, slot_table, body, _encode_free_lists(base, blocks_end)))
    return file + _U32.pack(len(file) + _U32.size - base)


def _encode_collections(held: list[TableObject], slots: int) -> list[tuple[int, int, bytes]]:
    """Logarithm of the block, slot and bytes of every collection, in the order of their places: large ones first."""
    by_slot: defaultdict[int, list[TableObject]] = defaultdict(list)
    for held_object in held:
        by_slot[slot_of(held_object.key_hash, slots)].append(held_object)
    collections = []
    for slot, slot_objects in by_slot.items():
        slot_objects.sort(key=lambda held_object: held_object.key)
        body = b"".join(
            _U32.pack(_U32.size + len(table_object.term)) + table_object.term for table_object in slot_objects
        )
        size = _COLLECTION.size + len(body)
        collections.append((_block_log2(size), slot, _COLLECTION.pack(size, _ACTIVE) + body))
    collections.sort(key=lambda collection: (-collection[0], collection[1]))
    return collections


def _positions(start: int, count: int, step: int, places: int) -> bytes:
    """``count`` positions from ``start`` on, then "none" up to ``places``."""
    return struct.pack(f">{count}I", *range(start, start + count * step, step)).ljust(_U32.size * places, b"\0")


def _encode_free_lists(base: int, end: int) -> bytes:
    """Return the free lists of a table whose blocks end at ``end``: after it one free block of each size that is needed
    to reach the next larger one, up to the end of the space."""
    records: list[bytes] = []
    used = end - base
    while used < _BLOCK_SPACE:
        size = used & -used or _BLOCK_SPACE
        records.append(_FREE_LIST.pack(_FREE_LIST.size, _FREE, size.bit_length(), base + used))
        used += size
    return b"".join(records) + _FREE_LISTS_END.pack(_FREE_LISTS_END.size, _FREE, _END_OF_FREE_LISTS)


def read_table(data: bytes, path: str) -> Table:
    """All objects of the file that ``data`` holds whole, in the order of their slots.

    Raises :class:`DataError`, with ``path``, if the file is damaged or not closed properly. The terms are not
    decoded, and whether they stand in the slot of their key is for the caller to say (:func:`slot_of`).
    """
    header = Header.decode(data, path)
    space = _Space(data, path, bytearray(header.free_lists_position))
    segments_left = header.slots // SEGMENT_SLOTS
    segments: list[int] = []
    for part in space.follow(_PARTS_OFFSET, PARTS, -(-segments_left // PART_SEGMENTS), _PART_BYTES, "part"):
        used = min(segments_left, PART_SEGMENTS)
        segments += space.follow(part, PART_SEGMENTS, used, _SEGMENT_BYTES, "segment")
        segments_left -= used
    objects = tuple(
        stored
        for number, segment in enumerate(segments)
        for stored in _read_segment(space, segment, number * SEGMENT_SLOTS)
    )
    if len(objects) != header.objects:
        raise DataError(path, 32, f"{len(objects)} objects where the header counts {header.objects}")
    return Table(header.slots, objects)


def surviving_terms(data: bytes, path: str) -> Iterator[bytes]:
    """Yield the terms of all objects in a file that need not have been closed, in the order of their places.

    An open file may not have slots yet, so every used block is read, as in the repair that opens such a file. Damaged
    objects are left out. Raises :class:`DataError` if it is not a DETS file.
    """
    position = _header_fields(data, path)[-1] or _FIRST_POSITION
    while position + _COLLECTION.size <= len(data):
        size, status = _COLLECTION.unpack_from(data, position)
        if status != _ACTIVE or not _COLLECTION.size < size <= len(data) - position:
            position += 1 << _SMALLEST_BLOCK_LOG2
            continue
        with suppress(DataError):
            for _, term in _read_objects(data, path, position, size):
                yield term
        position += 1 << _block_log2(size)


@attrs.define(eq=False, repr=False)
class _Space:
    """The bytes before the free lists, each to be claimed once."""

    data: bytes
    path: str
    claimed: bytearray

    def claim(self, position: int, size: int, pointer_offset: int, what: str) -> None:
        """Take ``size`` bytes from ``position`` for ``what``; raises :class:`DataError` if the pointer is invalid."""
        end = position + size
        if position < _FIRST_POSITION or end > len(self.claimed):
            raise DataError(self.path, pointer_offset, f"a {what} of {size} bytes at {position}, outside the file")
        if self.claimed.find(1, position, end) >= 0:
            raise DataError(self.path, pointer_offset, f"a {what} of {size} bytes at {position}, where others lie")
        self.claimed[position:end] = b"\1" * size

    def follow(self, offset: int, places: int, used: int, size: int, what: str) -> list[int]:
        """The first ``used`` of the ``places`` positions at ``offset``, their ``size`` bytes claimed."""
        positions = struct.unpack_from(f">{places}I", self.data, offset)
        if any(positions[used:]):
            raise DataError(self.path, offset, f"more than the {used} {what}s that the slots need")
        for index, position in enumerate(positions[:used]):
            self.claim(position, size, offset + _U32.size * index, what)
        return list(positions[:used])


def _read_segment(space: _Space, segment: int, first_slot: int) -> Iterator[StoredObject]:
    slots = space.data[segment : segment + _SEGMENT_BYTES]
    for index, (size, position) in enumerate(_SLOT.iter_unpack(slots)):
        if size or position:
            space.claim(position, size, segment + index * _SLOT.size, "collection")
            yield from _read_collection(space, first_slot + index, position, size)


def _read_collection(space: _Space, slot: int, position: int, size: int) -> Iterator[StoredObject]:
    data, path = space.data, space.path
    if size <= _COLLECTION.size or _COLLECTION.unpack_from(data, position) != (size, _ACTIVE):
        raise DataError(path, position, f"no collection of {size} bytes")
    for term_offset, term in _read_objects(data, path, position, size):
        yield StoredObject(slot, term_offset, term)


def _read_objects(data: bytes, path: str, position: int, size: int) -> Iterator[tuple[int, bytes]]:
    """Yield the terms in a collection, with their offsets. Raises :class:`DataError` if one exceeds it."""
    end = position + size
    position += _COLLECTION.size
    while position < end:
        object_size = int.from_bytes(data[position : position + _U32.size])
        if not _U32.size < object_size <= end - position:
            raise DataError(path, position, f"an object of {object_size} bytes where {end - position} are left")
        term_offset = position + _U32.size
        position += object_size
        yield term_offset, data[term_offset:position]
