"""Records of a part of one CommitLog file: the reading of a file in pieces, each on its own, over damage.

A piece is a range of physical offsets, and has the records that *begin* in it. Whoever begins in the middle has to find
where a record begins. Bytes are an *anchor* where a good record begins that says it lies there (its magic, its physical
offset, fields that add up), or a blank record that reaches to the end of its file exactly.

The *chain* of a file goes from its first byte from each record to the next one. Where something is that is no good
record, it goes on where RocketMQ's dispatch would, if a good record is there, else at the next anchor; dispatch would
go on at the next file. A blank that reaches to the file's end ends it.

A body may hold a copy of a record, with the right physical offset even, and such an anchor is none. So a piece begins
to look for an anchor a *lookback* ahead of its range, and follows the chain from there. A record that lies around the
false anchor ends before the range does begin, if the lookback is no smaller than the largest record; behind its end the
chain from the false anchor goes on at the next true one. So each piece has the same records, wherever a file is cut.
Where the lookback holds no anchor (a larger record; records that say they lie elsewhere) it is doubled.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import attrs

from msg_store.columns import RecordColumns
from msg_store.commit_log_format import (
    BLANK_HEADER_BYTES,
    BLANK_MAGIC,
    MAX_PROPERTIES_BYTES,
    MAX_TOPIC_BYTES,
    MESSAGE_MAGIC,
    Blank,
    header_bytes,
)
from msg_store.record_check import Failure, Outline, Read, check
from msg_store.record_columns import WINDOW_BYTES, read_columns

_MAGIC_AT: Final = 4
_PHYSICAL_OFFSET_AT: Final = 28
_MAGIC: Final = MESSAGE_MAGIC.to_bytes(4, "big")
_BLANK_MAGIC: Final = BLANK_MAGIC.to_bytes(4, "big")
_BLOCK_BYTES: Final = 1 << 18
"""Searched for anchors at once."""
_FIRST_WINDOW_BYTES: Final = 1 << 16
"""Read behind a failure, and twice as much whenever that was good."""
_HEADROOM_BYTES: Final = header_bytes(-1) + MAX_TOPIC_BYTES + MAX_PROPERTIES_BYTES + 3


def lookback_bytes(max_message_bytes: int) -> int:
    """How far ahead of a range to look: over the largest record, and the largest blank that one left."""
    return 2 * (max_message_bytes + _HEADROOM_BYTES)


@attrs.frozen(eq=False)
class Stretch:
    """Neighbouring good records of a piece, and the bytes that they lie in."""

    columns: RecordColumns
    first: int
    """Records of the columns before this one lie ahead of the piece."""
    stop: int
    """Records of the columns from this one on lie behind the piece."""
    data: bytes
    base: int
    """The physical offset of the first byte of ``data``."""


@attrs.define(eq=False, kw_only=True)
class RecordSearch:
    """One file, or the part of it that the log fills."""

    read: Read
    begin: int
    """The physical offset of the file's first byte."""
    end: int
    """Of the log in it; nothing behind is read."""
    file_end: int
    lookback_bytes: int
    window_bytes: int = WINDOW_BYTES
    _block_at: int = 0
    _block: bytes = b""

    def records(self, low: int, high: int) -> Iterator[Stretch | Failure]:
        """The records that begin in [``low``, ``high``), and the failures there. Memory: a window, or a record."""
        high = min(high, self.end)
        at: int | None = self._entry(low) if low < high else None
        window = self.window_bytes
        while at is not None and at < high:
            held = _Held(self.read, at)
            item = next(read_columns(held.read, at, self.end, with_keys=False, window_bytes=window), None)
            if isinstance(item, RecordColumns):
                if (stretch := _inside(item, low, high, held)) is not None:
                    yield stretch
                at, window = item.stop, min(2 * window, self.window_bytes)
                continue
            if item is None or (isinstance(item, Blank) and self._is_last(item)):
                return
            if isinstance(item, Blank):
                left = self.file_end - item.physical_offset
                item = Failure(
                    item.physical_offset, f"a blank record of {item.size} bytes, where {left} are left", None
                )
            if item.physical_offset >= low:
                yield item
            at, window = self._behind(item, high), min(_FIRST_WINDOW_BYTES, self.window_bytes)

    def first(self) -> RecordColumns | None:
        """The first record of the file, if it begins with a good one."""
        item = next(read_columns(self.read, self.begin, self.end, with_keys=False, window_bytes=4096), None)
        return item if isinstance(item, RecordColumns) else None

    def _is_last(self, blank: Blank) -> bool:
        return blank.physical_offset + blank.size == self.file_end

    def _entry(self, low: int) -> int:
        """Where to follow the chain from, so as to have all that is from ``low`` on."""
        back, stop = self.lookback_bytes, low
        while (start := low - back) > self.begin:
            found = self._anchor(start, stop)
            if found is not None:
                return found
            back, stop = 2 * back, start
        return self.begin

    def _behind(self, failure: Failure, high: int) -> int | None:
        """Where the chain goes on behind a failure, if that is ahead of ``high``."""
        resume_at = failure.resume_at
        if resume_at is not None and resume_at < self.end:
            found = check(self.read, resume_at, self.end)
            if isinstance(found, Outline) or (isinstance(found, Blank) and self._is_last(found)):
                return resume_at
        return self._anchor(failure.physical_offset + 1, high)

    # ── anchors ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _anchor(self, start: int, stop: int) -> int | None:
        """The first anchor in [``start``, ``stop``)."""
        at = start
        while at < stop:
            block = self._block_from(at)
            inside = at - self._block_at
            limit = min(stop - self._block_at, len(block) - BLANK_HEADER_BYTES + 1)
            if limit <= inside:
                return None  # fewer bytes are left than the shortest record has
            message, blank = (_find(block, magic, inside, limit) for magic in (_MAGIC, _BLANK_MAGIC))
            while (found := min(message, blank)) < limit:
                if self._is_anchor(self._block_at + found, is_blank=found == blank):
                    return self._block_at + found
                if found == message:
                    message = _find(block, _MAGIC, found + 1, limit)
                else:
                    blank = _find(block, _BLANK_MAGIC, found + 1, limit)
            at = self._block_at + limit
        return None

    def _block_from(self, at: int) -> bytes:
        """Bytes at hand that hold what begins ``at``, if there is as much."""
        left = self._block_at + len(self._block) - at
        if at < self._block_at or left < BLANK_HEADER_BYTES:
            self._block_at, self._block = at, self.read(at, min(_BLOCK_BYTES, self.end - at))
        return self._block

    def _is_anchor(self, at: int, *, is_blank: bool) -> bool:
        if is_blank:
            return at + int.from_bytes(self._some(at, 4), "big") == self.file_end
        said = self._some(at + _PHYSICAL_OFFSET_AT, 8)
        return int.from_bytes(said, "big") == at and isinstance(check(self._some, at, self.end), Outline)

    def _some(self, at: int, size: int) -> bytes:
        inside = at - self._block_at
        if inside >= 0 and inside + size <= len(self._block):
            return self._block[inside : inside + size]
        return self.read(at, size)


def _find(block: bytes, magic: bytes, start: int, limit: int) -> int:
    """The first place in [``start``, ``limit``) with that magic 4 bytes behind it; ``limit``: none."""
    found = block.find(magic, start + _MAGIC_AT, limit + _MAGIC_AT + len(magic) - 1)
    return limit if found < 0 else found - _MAGIC_AT


@attrs.define(eq=False)
class _Held:
    """Reads, and keeps the longest of what was read from ``at`` on: the bytes that columns are made of."""

    source: Read
    at: int
    data: bytes = b""

    def read(self, at: int, size: int) -> bytes:
        data = self.source(at, size)
        if at == self.at and len(data) > len(self.data):
            self.data = data
        return data


def _inside(columns: RecordColumns, low: int, high: int, held: _Held) -> Stretch | None:
    first, stop = 0, len(columns)
    if columns.start < low or columns.stop > high:
        first, stop = (int(edge) for edge in columns.positions.searchsorted((low, high)))
    return Stretch(columns, first, stop, held.data, held.at) if first < stop else None
