"""How much of a file is held in memory, and how the rest is read."""

from __future__ import annotations

from typing import Final

from warren.storage.filesystem import File, data_windows

WHOLE_BYTES: Final = 24 << 20
"""A file of a queue up to this size is held in memory while it is open."""

WINDOW_BYTES: Final = 4 << 20
"""A larger file is read this much at a time."""

MAX_MESSAGE_BYTES: Final = 64 << 20
"""No message in a queue's own files is nearly this long: without a limit, damaged lengths would fill the memory."""


def has_bytes_behind(file: File, offset: int) -> bool:
    """Whether there is anything but zeros from ``offset`` on."""
    pieces = (file.pread(WINDOW_BYTES, at) for at in data_windows(file, offset, file.size(), WINDOW_BYTES))
    return any(piece.count(0) != len(piece) for piece in pieces)
