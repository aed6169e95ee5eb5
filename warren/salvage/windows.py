"""How much of a file is held in memory, and how the rest is gone through."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

WHOLE_BYTES: Final = 24 << 20
"""A file of a queue up to this size is held in memory while it is open."""

WINDOW_BYTES: Final = 4 << 20
"""So much of a larger one is read at a time."""

MAX_MESSAGE_BYTES: Final = 64 << 20
"""No message in a queue's own files is nearly so long: else what a record claims would be our memory."""


def has_bytes_behind(read: Callable[[int, int], bytes], offset: int) -> bool:
    """Whether anything but zeros stands behind ``offset``; ``read(size, offset)`` gives less at the end alone."""
    while piece := read(WINDOW_BYTES, offset):
        if piece.count(0) != len(piece):
            return True
        offset += len(piece)
    return False
