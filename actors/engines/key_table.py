"""KeyTable: the keys that a queue's messages have taken, in a table of fixed-size rows. A row's bytes are also a record
of the log.

::

    digest of the key   msg_id     seq_id    until      level    flags
    16 bytes            16 bytes   8 bytes   8 bytes    1 byte   1 byte      big-endian

*The digest* is BLAKE2b's. ``until``: µs since the epoch, 0 for no end. A key that is *bound* (:data:`BOUND`) is taken
while its message (the one with this level, seq_id and msg_id) is in the queue, but no longer than ``until``. One that
is not bound is taken until then, even if the message is gone. :data:`SAFE`: the message is as safe as it will be.
:data:`IN_RAM`: the row has no record, because its message does not outlive the process.

The table uses open addressing: a row stands at its digest's place, or after it if that is taken; some more rows follow
the last places. So a key costs 50 bytes plus free space, and no object. Rows are overwritten but never removed: the
caller decides whether a row still holds, and :meth:`KeyTable.rebuild` leaves out rows that do not.

Invariants (:meth:`KeyTable.check_invariants`): there are at least a third more places than keys; each digest stands
once, and nothing is free between its place and where it stands.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from typing import TypeAlias

    import numpy as np
    import numpy.typing as npt

    Rows: TypeAlias = npt.NDArray[np.uint8]

ROW: Final = struct.Struct(">16s16sQQBB")
BOUND: Final = 1
SAFE: Final = 2
IN_RAM: Final = 4
_TAKEN: Final = 128
"""The flag of a row that is not free."""
DIGEST_BYTES: Final = 16
_FEWEST_PLACES: Final = 16
_UNTIL_AT: Final = 40
_FLAGS_AT: Final = ROW.size - 1


def digest_of(key: bytes) -> bytes:
    """The digest of a key."""
    return hashlib.blake2b(key, digest_size=DIGEST_BYTES).digest()


def key_of(value: object) -> bytes | None:
    """Return the bytes of a key; text and bytes are alike, numbers are distinct. ``None`` for an invalid key."""
    match value:
        case str():
            return b"t" + value.encode("utf-8", "surrogateescape")
        case bytes():
            return b"t" + value
        case bool() | int() | float():
            return b"n" + repr(value).encode("ascii")
    return None


def key_of_body(body: bytes) -> bytes:
    """The key of a message that is deduplicated by its body."""
    return b"b" + body


class TakenKey(NamedTuple):
    """A key, and the message that has it."""

    digest: bytes
    msg_id: bytes
    seq_id: int
    until_us: int
    level: int
    flags: int

    @property
    def bound(self) -> bool:
        return bool(self.flags & BOUND)

    @property
    def safe(self) -> bool:
        return bool(self.flags & SAFE)

    @property
    def in_ram(self) -> bool:
        return bool(self.flags & IN_RAM)


def packed(key: TakenKey) -> bytes:
    """The row of a key."""
    digest, msg_id, seq_id, until_us, level, flags = key
    return ROW.pack(digest, msg_id, seq_id, until_us, level, flags | _TAKEN)


def unpacked(data: bytes | bytearray, offset: int = 0) -> TakenKey:
    """The key of a row."""
    digest, msg_id, seq_id, until_us, level, flags = ROW.unpack_from(data, offset)
    return TakenKey(digest, msg_id, seq_id, until_us, level, flags & ~_TAKEN)


def is_anothers(before: bytes, row: bytes) -> bool:
    """Whether ``before`` is the row of a bound key, and ``row`` is of another message."""
    ids = slice(DIGEST_BYTES, 2 * DIGEST_BYTES)
    return bool(before[_FLAGS_AT] & BOUND) and before[ids] != row[ids]


class KeyTable:
    """Keys by their digests. ``len`` is the number of keys."""

    __slots__ = ("_count", "_places", "_rows")

    def __init__(self) -> None:
        self._places = _FEWEST_PLACES
        self._count = 0
        self._rows = bytearray(_FEWEST_PLACES * ROW.size)

    def __len__(self) -> int:
        return self._count

    def has_room(self, count: int) -> bool:
        """Return whether ``count`` more digests fit; if not, call :meth:`rebuild` first."""
        return 4 * (self._count + count) <= 3 * self._places

    @property
    def size_bytes(self) -> int:
        return len(self._rows)

    def _find(self, digest: bytes) -> int:
        """The offset of a digest's row, or of the free row for it, which may be the end of the rows."""
        rows = self._rows
        at = int.from_bytes(digest[:8], "big") % self._places * ROW.size
        while at < len(rows) and rows[at + _FLAGS_AT] and rows[at : at + DIGEST_BYTES] != digest:
            at += ROW.size
        return at

    def get(self, digest: bytes) -> TakenKey | None:
        """The key with this digest, if there is one."""
        at = self._find(digest)
        return unpacked(self._rows, at) if at < len(self._rows) and self._rows[at + _FLAGS_AT] else None

    def put(self, row: bytes) -> bytes | None:
        """Put a key's row; return the previous row of its digest."""
        at = self._find(row[:DIGEST_BYTES])
        if at == len(self._rows):
            self._rows += bytes(len(self._rows) // 64 * ROW.size + ROW.size)
        before = None
        if self._rows[at + _FLAGS_AT]:
            before = bytes(self._rows[at : at + ROW.size])
        else:
            if not self.has_room(1):
                raise RuntimeError("a table of keys is full")
            self._count += 1
        self._rows[at : at + ROW.size] = row
        return before

    def note_safe(self, digest: bytes, msg_id: bytes) -> bytes | None:
        """If the message with this id has the key and was not safe, mark it as safe; return the row to write to disk.

        A timed key is recorded by itself from now on, whatever its message had. ``None``: there is nothing to write.
        """
        rows, at = self._rows, self._find(digest)
        if at == len(rows) or rows[at + DIGEST_BYTES : at + 2 * DIGEST_BYTES] != msg_id:
            return None
        flags = rows[at + _FLAGS_AT]
        if flags & SAFE:
            return None
        if flags & BOUND:
            rows[at + _FLAGS_AT] = flags | SAFE
            return None
        rows[at + _FLAGS_AT] = (flags | SAFE) & ~IN_RAM
        return bytes(rows[at : at + ROW.size])

    def __iter__(self) -> Iterator[TakenKey]:
        rows = self._rows
        for at in range(0, len(rows), ROW.size):
            if rows[at + _FLAGS_AT]:
                yield unpacked(rows, at)

    # ── all of them ─────────────────────────────────────────────────────────────────────────────────────────────

    def rows(self) -> Rows:
        """The rows of all keys."""
        rows = rows_of([self._rows])
        taken: Rows = rows[rows[:, _FLAGS_AT] != 0]
        return taken

    def rebuild(self, rows: Rows, room: int = 0) -> None:
        """Replace all keys by these, with room for half as many again, and for ``room`` at least."""
        import numpy as np

        count = len(rows)
        places = max(2 * count, 4 * (count + room) // 3 + 1, _FEWEST_PLACES)
        first = (_numbers(rows, 0) % np.uint64(places)).astype(np.int64)
        order = np.argsort(first, kind="stable")
        # A row stands at its place, or right after the one before it: at the largest of all places before, moved on.
        behind = np.arange(count)
        at = np.maximum.accumulate(first[order] - behind) + behind
        table = np.zeros((max(places, int(at[-1]) + 1 if count else 0), ROW.size), np.uint8)
        table[at] = rows[order]
        self._places, self._count, self._rows = places, count, bytearray(table.tobytes())

    def check_invariants(self) -> None:
        """Raise ``RuntimeError`` if the table contradicts itself."""
        taken = list(self)
        if len(taken) != self._count or 4 * self._count > 3 * self._places:
            raise RuntimeError(f"{len(taken)} keys in {self._places} places, but {self._count} were counted")
        for key in taken:
            if self.get(key.digest) != key:
                raise RuntimeError(f"the key {key.digest.hex()} is not found in its place")


# ── rows as a matrix of bytes ─────────────────────────────────────────────────────────────────────────────────────────


def rows_of(data: Iterable[bytes | bytearray]) -> Rows:
    """Return consecutive rows as an array."""
    import numpy as np

    return np.frombuffer(b"".join(data), np.uint8).reshape(-1, ROW.size)


def keys_in(rows: Rows) -> Iterator[TakenKey]:
    """The keys of rows."""
    data = rows.tobytes()
    return (unpacked(data, at) for at in range(0, len(data), ROW.size))


def flags_of(rows: Rows) -> Rows:
    """The flags of rows."""
    flags: Rows = rows[:, _FLAGS_AT]
    return flags


def lasting(rows: Rows, now_us: int) -> Rows:
    """The rows whose time is not over."""
    until_us = _numbers(rows, _UNTIL_AT)
    retained: Rows = rows[(until_us == 0) | (until_us > now_us)]
    return retained


def _numbers(rows: Rows, at: int) -> npt.NDArray[np.uint64]:
    import numpy as np

    return rows[:, at : at + 8].copy().view(">u8")[:, 0].astype(np.uint64)
