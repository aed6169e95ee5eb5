"""Message ids: 16 bytes, unique for ever, cheap.

Eight bytes that are drawn once (handed in: random at every start) and a counter behind them. A batch's ids are made as
a column.
"""

from __future__ import annotations

from typing import Final

from warren.storage.errors import SettingsError

_FEW: Final = 24
"""Fewer ids than these are made one by one."""


class MsgIds:
    """A source of ids. ``prefix``: 8 bytes that no other source has."""

    __slots__ = ("_next", "_prefix")

    def __init__(self, prefix: bytes) -> None:
        if len(prefix) != 8:
            raise SettingsError(f"a source of message ids wants 8 bytes, not {len(prefix)}")
        self._prefix = prefix
        self._next = 0

    def one(self) -> bytes:
        """One id."""
        self._next += 1
        return self._prefix + self._next.to_bytes(8, "big")

    def many(self, count: int) -> bytes:
        """``count`` ids, one behind the other."""
        first = self._next + 1
        self._next += count
        if count < _FEW:
            return b"".join([self._prefix + number.to_bytes(8, "big") for number in range(first, first + count)])
        import numpy as np

        columns = np.empty((count, 2), np.uint64)
        columns[:, 0] = np.frombuffer(self._prefix, np.uint64)[0]
        columns[:, 1] = np.arange(first, first + count, dtype=np.uint64).astype(">u8").view(np.uint64)
        return columns.tobytes()
