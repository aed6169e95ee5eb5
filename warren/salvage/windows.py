"""How much of a file is held in memory, and how the rest is gone through."""

from __future__ import annotations

from typing import Final

from warren.storage.filesystem import File, data_windows

WHOLE_BYTES: Final = 24 << 20
"""A file of a queue up to this size is held in memory while it is open."""

WINDOW_BYTES: Final = 4 << 20
"""So much of a larger one is read at a time."""

MAX_MESSAGE_BYTES: Final = 64 << 20
"""No message in a queue's own files is nearly so long: else what a record claims would be our memory."""


def has_bytes_behind(file: File, offset: int) -> bool:
    """Whether anything but zeros stands behind ``offset``."""
    pieces = (file.pread(WINDOW_BYTES, at) for at in data_windows(file, offset, file.size(), WINDOW_BYTES))
    return any(piece.count(0) != len(piece) for piece in pieces)
