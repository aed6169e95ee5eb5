"""Records of a range of one CommitLog file: a file is read in ranges, each on its own, over damage.

A range of physical offsets has the records that *begin* in it. A reader that begins in the middle of a file looks for a
sound position first (:mod:`warren.msg_store.commit_log.record_finder`).

The *chain* of a file goes from its first byte from each record to the next one. After bytes that are not a good record
it goes on where RocketMQ's dispatch would, if a good record is there, and else at the next sound position. (Dispatch
would go on at the next file.) A blank record that reaches to the file's end ends it.

A body may hold a copy of a record with the right physical offset; such a position is sound, but not in the chain. So a
reader begins to look a *lookback* ahead of its range, and follows the chain from there. A record that lies around the
false position ends ahead of the range, if the lookback is no smaller than the largest record; after its end the chain
from the false position goes on at the next true one. So every range has the same records, wherever a file is cut. If
the lookback holds no sound position (a larger record; records that say they lie elsewhere) it is doubled.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import attrs

from warren.msg_store.commit_log.commit_log_format import (
    MAX_PROPERTIES_BYTES,
    MAX_TOPIC_BYTES_V2,
    Blank,
    header_bytes,
)
from warren.msg_store.commit_log.record_check import Failure, Read, RecordHeader, check
from warren.msg_store.commit_log.record_columns import RecordColumns
from warren.msg_store.commit_log.record_finder import RecordFinder
from warren.msg_store.commit_log.record_scan import WINDOW_BYTES, read_columns

_FIRST_WINDOW_BYTES: Final = 1 << 16
"""Read after a failure, and doubled after each good read."""
_HEADROOM_BYTES: Final = header_bytes(-1) + MAX_TOPIC_BYTES_V2 + MAX_PROPERTIES_BYTES + 4


def lookback_bytes(max_message_bytes: int) -> int:
    """How far ahead of a range to look: over the largest record, and the largest blank that one left."""
    return 2 * (max_message_bytes + _HEADROOM_BYTES)


@attrs.define(eq=False, repr=False, kw_only=True)
class RecordSearch:
    """One file, or the part of it that the log fills."""

    read: Read
    begin: int
    """The physical offset of the file's first byte."""
    end: int
    """The end of the log in the file; nothing after it is read."""
    file_end: int
    lookback_bytes: int
    window_bytes: int = WINDOW_BYTES
    _finder: RecordFinder = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._finder = RecordFinder(read=self.read, end=self.end, blank_end=self.file_end)

    def records(self, low: int, high: int) -> Iterator[RecordColumns | Failure]:
        """The records that begin in [``low``, ``high``), and the failures there. Memory: a window, or a record."""
        high = min(high, self.end)
        at: int | None = self._entry(low) if low < high else None
        window = self.window_bytes
        while at is not None and at < high:
            item = next(read_columns(self.read, at, self.end, with_keys=False, window_bytes=window), None)
            if isinstance(item, RecordColumns):
                if (inside := _inside(item, low, high)) is not None:
                    yield inside
                at, window = item.stop, min(2 * window, self.window_bytes)
                continue
            if item is None or (isinstance(item, Blank) and self._is_last(item)):
                return
            if isinstance(item, Blank):
                remaining = self.file_end - item.physical_offset
                item = Failure(
                    item.physical_offset, f"a blank record of {item.size} bytes, where {remaining} are left", None
                )
            if item.physical_offset >= low:
                yield item
            at, window = self._behind(item, high), min(_FIRST_WINDOW_BYTES, self.window_bytes)

    def _is_last(self, blank: Blank) -> bool:
        return blank.physical_offset + blank.size == self.file_end

    def _entry(self, low: int) -> int:
        """Return where to start following the chain, to get all records from ``low`` on."""
        back, stop = self.lookback_bytes, low
        while (start := low - back) > self.begin:
            entry = self._finder.first(start, stop)
            if entry is not None:
                return entry
            back, stop = 2 * back, start
        return self.begin

    def _behind(self, failure: Failure, high: int) -> int | None:
        """Return where the chain continues after a failure, if that is before ``high``."""
        resume_at = failure.resume_at
        if resume_at is not None and resume_at < self.end:
            outcome = check(self.read, resume_at, self.end)
            if isinstance(outcome, RecordHeader) or (isinstance(outcome, Blank) and self._is_last(outcome)):
                return resume_at
        return self._finder.first(failure.physical_offset + 1, high)


def _inside(columns: RecordColumns, low: int, high: int) -> RecordColumns | None:
    """The records that begin in [``low``, ``high``)."""
    if columns.start >= low and columns.stop <= high:
        return columns
    first, stop = (int(edge) for edge in columns.positions.searchsorted((low, high)))
    return columns.take(slice(first, stop)) if first < stop else None
