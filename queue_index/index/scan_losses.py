"""What a scan of a queue's index had to drop, for a report."""

from __future__ import annotations

import attrs

from warren.storage.errors import DataError


@attrs.define(eq=False, repr=False)
class Losses:
    """Of one queue's index, as far as it has been scanned."""

    messages: int = 0
    """Persistent messages, not acked, whose bodies the store does not have."""
    cuts: list[DataError] = attrs.Factory(list)
    """Ends of files that are no records: where each begins."""

    def cut(self, path: str, file_offset: int, size_bytes: int) -> None:
        """Note that ``size_bytes`` bytes at a file's end are not records."""
        self.cuts.append(
            DataError(path, file_offset, f"{size_bytes:,} bytes from here on are no records, and are cut off")
        )
