"""Where sound records begin in a range of bytes whose record boundaries are unknown.

Every way to begin in the middle of a CommitLog file comes here: a range that is read on its own, a read that goes on
after damage, a check of a damaged store.

A position is *sound* if a good record begins there (:func:`warren.msg_store.commit_log.record_check.check`) whose own
physical offset is that position; or, if ``blank_end`` is given, a blank record that reaches exactly to there. A body
may hold a copy of a CommitLog, with the right physical offsets even. Nothing at one position tells such a copy from a
record, so callers compare what they found with the chain of records from the front of the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import attrs

from warren.msg_store.commit_log.commit_log_format import (
    BLANK_HEADER_BYTES,
    BLANK_MAGIC,
    BLANK_MAGIC_BYTES,
    FIXED_BYTES,
    MAGIC_AT,
    MESSAGE_MAGIC_PREFIX,
    MESSAGE_MAGICS,
    PHYSICAL_OFFSET_AT,
    decode_physical_offset,
    peek,
)
from warren.msg_store.commit_log.record_check import Read, RecordHeader, check

_BLOCK_BYTES: Final = 1 << 18
"""Searched at once."""
_AHEAD_OF_DATA_BYTES: Final = MAGIC_AT + 3
"""A record may begin so far inside a hole of its file: its magic is never zero, and neither is its whole size."""


@attrs.define(eq=False, repr=False, kw_only=True)
class RecordFinder:
    """One file, or the part of it that the log fills."""

    read: Read
    end: int
    """Nothing after it is read."""
    blank_end: int | None = None
    """Where a blank record has to end to be sound: the end of the file."""
    next_data: Callable[[int], int] | None = None
    """The first position from a given one on that is not in a hole of the file; holes are then skipped."""
    _block_at: int = 0
    _block: bytes = b""

    def first(self, start: int, stop: int) -> int | None:
        """The first sound position in [``start``, ``stop``)."""
        return next(self.positions(start, stop), None)

    def positions(self, start: int, stop: int) -> Iterator[int]:
        """All sound positions in [``start``, ``stop``), ascending, those inside of other records included."""
        at = start
        while at < stop:
            if self.next_data is not None:
                at = max(at, self.next_data(at) - _AHEAD_OF_DATA_BYTES)
            block, base = self._block_from(at)
            limit = min(stop - base, len(block) - BLANK_HEADER_BYTES + 1)
            if limit <= at - base:
                return  # fewer bytes are left than the shortest record has
            for place in self._magics(block, at - base, limit):
                if self.is_sound(base + place):
                    yield base + place
            at = base + limit

    def is_sound(self, at: int) -> bool:
        """Whether the position is sound."""
        head = self._bytes(at, PHYSICAL_OFFSET_AT + 8)
        if head.startswith(MESSAGE_MAGIC_PREFIX, MAGIC_AT):
            if len(head) < PHYSICAL_OFFSET_AT + 8 or decode_physical_offset(head) != at:
                return False
            return isinstance(check(self._bytes, at, self.end), RecordHeader)
        is_blank = self.blank_end is not None and head[MAGIC_AT : MAGIC_AT + 4] == BLANK_MAGIC_BYTES
        return is_blank and at + int.from_bytes(head[:MAGIC_AT], "big") == self.blank_end

    def unknown_magic(self, at: int) -> int | None:
        """The magic of a record of an unknown format at ``at``; ``None`` if there is no such record.

        Its magic is unknown, and a sound record begins exactly where it ends by its size, or where the last of several
        such records does. Neither a torn write nor the old bytes that RocketMQ leaves after the end of its log look
        like that.
        """
        magics: list[int] = []
        while not self.is_sound(at):
            head = self._bytes(at, BLANK_HEADER_BYTES)
            size, magic = peek(head, 0) if len(head) == BLANK_HEADER_BYTES else (0, 0)
            if size < FIXED_BYTES or magic in (*MESSAGE_MAGICS, BLANK_MAGIC):
                return None
            magics, at = magics or [magic], at + size
        return magics[0] if magics else None

    def _magics(self, block: bytes, start: int, limit: int) -> Iterator[int]:
        """Yield places from ``start`` to before ``limit`` at which a record's magic would match."""
        message = _find(block, MESSAGE_MAGIC_PREFIX, start, limit)
        blank = limit if self.blank_end is None else _find(block, BLANK_MAGIC_BYTES, start, limit)
        while (place := min(message, blank)) < limit:
            yield place
            if place == message:
                message = _find(block, MESSAGE_MAGIC_PREFIX, place + 1, limit)
            else:
                blank = _find(block, BLANK_MAGIC_BYTES, place + 1, limit)

    def _block_from(self, at: int) -> tuple[bytes, int]:
        """A block that holds what begins at ``at``, and the position of its first byte."""
        remaining = self._block_at + len(self._block) - at
        if at < self._block_at or remaining < BLANK_HEADER_BYTES:
            self._block_at, self._block = at, self.read(at, max(min(_BLOCK_BYTES, self.end - at), 0))
        return self._block, self._block_at

    def _bytes(self, at: int, size: int) -> bytes:
        size = min(size, self.end - at)
        inside = at - self._block_at
        if inside >= 0 and inside + size <= len(self._block):
            return self._block[inside : inside + size]
        return self.read(at, size) if size > 0 else b""


def _find(block: bytes, magic: bytes, start: int, limit: int) -> int:
    """Return the first place in [``start``, ``limit``) at which a record's magic would match, else ``limit``."""
    magic_at = block.find(magic, start + MAGIC_AT, limit + MAGIC_AT + len(magic) - 1)
    return limit if magic_at < 0 else magic_at - MAGIC_AT
