"""Recovery of the key index after a crash: nothing that is sound is thrown away.

RocketMQ deletes every index file that ends after the checkpoint, which is always the last one, with up to twenty
million keys in it. Here the index is cut back to what its files surely hold. The owner of the CommitLog then puts the
rest again, from :attr:`KeyIndex.end_physical_offset` on (and the first :meth:`KeyIndex.already_put` keys of that
message are there).

1. Files after the first one that is not full are deleted: they were begun after what that one has lost. So is a last
   file without items; the next put makes it again, with the right header.
2. The last file's items are read from the first on, as far as its header counts them, up to the first that no put made
   (it names another one before it than the slots had by then, or goes back in the CommitLog), or that lies after the
   CommitLog's end.
3. Its slots and header are rebuilt from the items read. If there are no items, the file is deleted, and the previous
   one is the last.

Full files before it are trusted: the header of a full file is written when all else is on the disk.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import attrs
import numpy as np

from warren.queue_index.topics.index_file import IndexFile, SlotTable
from warren.queue_index.topics.index_file_format import Header, Items
from warren.queue_index.topics.key_index import KeyIndex
from warren.storage.columns import Ints

_ITEMS_AT_A_TIME: Final = 1 << 16

StoreTimestampOf = Callable[[int], int | None]
"""The store timestamp of the message at a physical offset; ``None`` if it cannot be read."""


def recover(index: KeyIndex, commit_log_end: int, store_timestamp_of: StoreTimestampOf) -> None:
    """Truncate a writable index, loaded as after a clean stop, to its sound part. Nothing is flushed."""
    files = index.index_files
    full = next((at for at, file in enumerate(files) if not file.is_full), len(files))
    index.delete(files[full + 1 :])
    while index.index_files:
        last = index.index_files[-1]
        header, table = _read_anew(last, commit_log_end, store_timestamp_of)
        if header.index_count > 1:
            last.replace(header, table)
            return
        index.delete([last])


def _read_anew(file: IndexFile, commit_log_end: int, store_timestamp_of: StoreTimestampOf) -> tuple[Header, SlotTable]:
    """Recompute the header and the slots of a file from its items."""
    table = SlotTable.empty(file.layout)
    number, stop, reached, time_difference_s = 1, file.header.index_count, 0, 0
    while number < stop:
        items = file.items(number, min(stop, number + _ITEMS_AT_A_TIME))
        good = _put_good(table, items, number, reached, commit_log_end)
        if good:
            number += good
            reached = int(items["physical_offset"][good - 1])
            time_difference_s = int(items["time_difference_s"][good - 1])
        if not good or good < len(items):
            break
    timestamp = store_timestamp_of(reached) if number > 1 else None
    if timestamp is None:
        timestamp = file.header.begin_timestamp + time_difference_s * 1000
    header = attrs.evolve(
        file.header,
        end_timestamp=timestamp,
        end_physical_offset=reached,
        hash_slot_count=int(np.count_nonzero(table.values)),
        index_count=number,
    )
    stored_table = SlotTable.load(file.layout, file.handle())
    wrong = np.flatnonzero(stored_table.values != table.values).astype(np.int32)
    stored_table.put(wrong, table.values[wrong])
    return header, stored_table


def _put_good(table: SlotTable, items: Items, first: int, reached: int, commit_log_end: int) -> int:
    """Put the items, numbered from ``first`` on, up to the first that is not good; return how many."""
    hashes: Ints = items["key_hash"].astype(np.int32)
    offsets = items["physical_offset"].astype(np.int64)
    slots = np.abs(hashes) % np.int32(table.layout.slot_count)
    numbers = np.arange(first, first + len(items), dtype=np.int32)
    good = (hashes >= 0) & (items["time_difference_s"] >= 0) & (offsets < commit_log_end)
    good &= offsets >= np.maximum.accumulate(np.concatenate(([reached], offsets[:-1])))
    good &= items["previous"] == table.previous(np.maximum(slots, 0), numbers)
    count = len(items) if good.all() else int(np.argmin(good))
    table.put(slots[:count], numbers[:count])
    return count
