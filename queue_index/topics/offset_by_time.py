"""Which message of a queue was stored at a time: RocketMQ's search, with all its oddities.

The CommitLog knows when a message was stored (:data:`StoreTimestampOf`); a queue's entry, where it lies
(:data:`EntryAt`). Both are passed in, and called for one message at a time: some twenty in a full file.
"""

from __future__ import annotations

from collections.abc import Callable

StoreTimestampOf = Callable[[int, int], int | None]
"""Milliseconds at which the message of this physical offset and size was stored; ``None``: it cannot be read."""

EntryAt = Callable[[int], tuple[int, int]]
"""Physical offset and size of the message with this queue offset."""


def nearest(
    entry_at: EntryAt,
    queue_offsets: range,
    timestamp_ms: int,
    commit_log_min: int,
    *,
    store_timestamp_of: StoreTimestampOf,
) -> int | None:
    """RocketMQ's answer among these queue offsets: the message stored nearest to the time.

    Equal ends the search, a tie goes to the earlier one. A message below ``commit_log_min`` is gone, and not the answer
    unless it stands (only after damage) after one that is there. ``None``: a message could not be read; ``-1``: every
    one is gone.
    """
    earlier: tuple[int, int] | None = None
    later: tuple[int, int] | None = None
    low, high = queue_offsets.start, queue_offsets.stop - 1
    while low <= high:
        middle = (low + high) // 2
        physical_offset, size = entry_at(middle)
        if physical_offset < commit_log_min:
            low = middle + 1
            if earlier is not None:  # only among damaged entries: it stands for the one found before, and is the answer
                earlier = (middle, earlier[1])
            continue
        stored_ms = store_timestamp_of(physical_offset, size)
        if stored_ms is None or stored_ms < 0:
            return None
        if stored_ms == timestamp_ms:
            return middle
        if stored_ms > timestamp_ms:
            high = middle - 1
            later = (middle, stored_ms)
        else:
            low = middle + 1
            earlier = (middle, stored_ms)
    if earlier is None:
        return -1 if later is None else later[0]
    if later is None:
        return earlier[0]
    return later[0] if abs(timestamp_ms - earlier[1]) > abs(timestamp_ms - later[1]) else earlier[0]
