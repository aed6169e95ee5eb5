"""KeyTable: the keys that a queue's messages have taken, in a table of fixed rows; and a row's bytes, which are a
record of its log too.

::

    digest of the key   msg_id     seq_id    until      level    flags
    16 bytes            16 bytes   8 bytes   8 bytes    1 byte   1 byte      big-endian

*The digest* is BLAKE2b's. ``until``: µs since the epoch, 0 for no end. A key that is *bound* (:data:`BOUND`) is taken
as long as its message, the one of that level, seq_id and msg_id, is in the queue; ``until`` ends it all the same. One
that is not bound is taken until then, whether the message is there or not. :data:`SAFE`: the message is as safe as it
will be. :data:`IN_RAM`: the row has no record, for its message does not outlive the process.

The table is an open one: a row stands at its digest's place, or behind it where that is taken. So a key costs 50 bytes
and what is free, and no object. Rows are written over and never taken out: whoever looks says whether what he finds
still holds, and :meth:`KeyTable.rebuild` leaves out what does not.

Invariants (:meth:`KeyTable.check_invariants`): a quarter of the rows is free at least; each digest stands once, and
nothing is free between its place and where it stands.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

ROW: Final = struct.Struct(">16s16sQQBB")
BOUND: Final = 1
SAFE: Final = 2
IN_RAM: Final = 4
_TAKEN: Final = 128
"""Of a row that is not free."""
DIGEST_BYTES: Final = 16
_FEWEST_ROWS: Final = 16


def digest_of(key: bytes) -> bytes:
    """What stands for a key."""
    return hashlib.blake2b(key, digest_size=DIGEST_BYTES).digest()


def key_of(value: object) -> bytes | None:
    """The bytes of a key: text and bytes alike, numbers apart. ``None`` for what is none."""
    match value:
        case str():
            return b"t" + value.encode("utf-8", "surrogateescape")
        case bytes():
            return b"t" + value
        case bool() | int() | float():
            return b"n" + repr(value).encode("ascii")
    return None


def key_of_body(body: bytes) -> bytes:
    """The key of a message that is to be the only one with its body."""
    return b"b" + body


class TakenKey(NamedTuple):
    """A key, and the message that has it."""

    digest: bytes
    msg_id: bytes
    seq_id: int
    until_us: int
    level: int
    flags: int

    def pack(self) -> bytes:
        """The row."""
        return ROW.pack(*self[:5], self.flags | _TAKEN)

    @property
    def bound(self) -> bool:
        return bool(self.flags & BOUND)

    @property
    def safe(self) -> bool:
        return bool(self.flags & SAFE)

    @property
    def in_ram(self) -> bool:
        return bool(self.flags & IN_RAM)


def unpacked(data: bytes | bytearray, offset: int = 0) -> TakenKey:
    """The key of a row, or of a record."""
    digest, msg_id, seq_id, until_us, level, flags = ROW.unpack_from(data, offset)
    return TakenKey(digest, msg_id, seq_id, until_us, level, flags & ~_TAKEN)


class KeyTable:
    """Keys by their digests. ``len`` counts rows that are taken."""

    __slots__ = ("_count", "_rows", "_size")

    def __init__(self) -> None:
        self._empty(_FEWEST_ROWS)

    def _empty(self, size: int) -> None:
        self._size = size
        self._count = 0
        self._rows = bytearray(size * ROW.size)

    def __len__(self) -> int:
        return self._count

    def has_room(self, count: int) -> bool:
        """Whether so many other digests can be put; else :meth:`rebuild` comes first."""
        return 4 * (self._count + count) <= 3 * self._size

    @property
    def size_bytes(self) -> int:
        return len(self._rows)

    def _place(self, digest: bytes) -> int:
        """Where a digest stands in the rows, or would."""
        rows, end = self._rows, len(self._rows)
        at = int.from_bytes(digest[:8], "big") % self._size * ROW.size
        while rows[at + ROW.size - 1] and rows[at : at + DIGEST_BYTES] != digest:
            at += ROW.size
            if at == end:
                at = 0
        return at

    def get(self, digest: bytes) -> TakenKey | None:
        """What was last put under a digest."""
        at = self._place(digest)
        return unpacked(self._rows, at) if self._rows[at + ROW.size - 1] else None

    def put(self, key: TakenKey) -> None:
        """Put a key in place of what its digest had."""
        at = self._place(key.digest)
        if not self._rows[at + ROW.size - 1]:
            if not self.has_room(1):
                raise RuntimeError("a table of keys is full")
            self._count += 1
        self._rows[at : at + ROW.size] = key.pack()

    def __iter__(self) -> Iterator[TakenKey]:
        rows = self._rows
        for at in range(0, len(rows), ROW.size):
            if rows[at + ROW.size - 1]:
                yield unpacked(rows, at)

    def rebuild(self, holding: Iterable[TakenKey], room: int = 0) -> None:
        """Have these keys and no others, with room for half as many again, and for ``room`` at least."""
        found = list(map(TakenKey.pack, holding))
        self._empty(max(2 * len(found), 4 * (len(found) + room) // 3 + 1, _FEWEST_ROWS))
        for row in found:
            at = self._place(row[:DIGEST_BYTES])
            self._rows[at : at + ROW.size] = row
        self._count = len(found)

    def check_invariants(self) -> None:
        """Raise ``RuntimeError`` where the table contradicts itself."""
        taken = list(self)
        if len(taken) != self._count or 4 * self._count > 3 * self._size:
            raise RuntimeError(f"{self._count} of {self._size} rows are said to be taken, and {len(taken)} are")
        for key in taken:
            if self.get(key.digest) != key:
                raise RuntimeError(f"the key {key.digest.hex()} is not found where it stands")
