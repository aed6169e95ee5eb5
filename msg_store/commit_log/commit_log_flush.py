"""When a log that is flushed by the clock is flushed: RocketMQ's rule, as an object that is asked and does nothing.

Every *interval* it looks. A few pages that were written since the last flush wait for more; when the *thorough
interval* is over, whatever there is goes. A file that is full always goes. (The ConsumeQueues have the same rule with
numbers of their own.)
"""

from __future__ import annotations

from typing import Final

import attrs

PAGE_BYTES: Final = 4096


@attrs.define
class FlushTimer:
    """Times in milliseconds, by whatever clock the caller has."""

    interval_ms: int
    thorough_interval_ms: int
    least_pages: int
    last_thorough_ms: int
    """When it last looked thoroughly; at first: when it began."""

    def is_due(self, now_ms: int, flushed_end: int, end: int, file_size: int) -> bool:
        """Whether to flush now, if ``end`` is written and ``flushed_end`` flushed."""
        is_thorough = now_ms >= self.last_thorough_ms + self.thorough_interval_ms
        if is_thorough:
            self.last_thorough_ms = now_ms
        if end <= flushed_end:
            return False
        if is_thorough or not self.least_pages or flushed_end // file_size != end // file_size:
            return True
        pages = end % file_size // PAGE_BYTES - flushed_end % file_size // PAGE_BYTES
        return pages >= self.least_pages
