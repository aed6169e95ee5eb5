"""Message ids: 16 bytes, unique for ever, cheap.

A counter, followed by eight bytes that are drawn once (passed in: random at every start). A batch's ids are made as a
column.

The counter is first because a power loss may tear a record of the message store within its id, so that zeros replace
the rest, without a checksum to detect it. A torn id of this form belongs to no message. Were the counter last, number
300 would be read as number 256, and a torn copy would pass for that message.
"""

from __future__ import annotations

from typing import Final

from warren.storage.errors import SettingsError

_FEW: Final = 24
"""Fewer ids than these are made one by one."""


def numbered_id(number: int, drawn: bytes) -> bytes:
    """The id with that number, of the source with those 8 bytes."""
    return number.to_bytes(8, "big") + drawn


class MsgIds:
    """A source of ids. ``drawn``: 8 bytes that no other source has."""

    __slots__ = ("_drawn", "_next")

    def __init__(self, drawn: bytes) -> None:
        if len(drawn) != 8:
            raise SettingsError(f"a source of message ids wants 8 bytes, not {len(drawn)}")
        self._drawn = drawn
        self._next = 0

    def one(self) -> bytes:
        """One id."""
        self._next += 1
        return self._next.to_bytes(8, "big") + self._drawn  # numbered_id, without its call

    def many(self, count: int) -> bytes:
        """Return ``count`` ids, concatenated."""
        first = self._next + 1
        self._next += count
        if count < _FEW:
            return b"".join([number.to_bytes(8, "big") + self._drawn for number in range(first, first + count)])
        import numpy as np

        columns = np.empty((count, 2), np.uint64)
        columns[:, 0] = np.arange(first, first + count, dtype=np.uint64).astype(">u8").view(np.uint64)
        columns[:, 1] = np.frombuffer(self._drawn, np.uint64)[0]
        return columns.tobytes()
