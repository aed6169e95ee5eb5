"""One index file: putting keys at its end, and finding those of a hash by its chain, newest first.

An item names the one before it in its slot's chain, so every step of a chain goes to a lower number. A file is *full*
when its index count has reached the number of items that it has room for; it never changes again.

What is where. A put writes its items at once, all of a batch in one go; header and slots stay in memory until
:meth:`IndexFile.write` or :meth:`IndexFile.flush` writes them. The header of a full file that is on the disk stands for
its items and its slots. Of a file that is not full a power loss can leave any of what was written since the last flush:
recovery goes no further than what was flushed, and rebuilds the slots from the items
(:mod:`warren.queue_index.topics.index_recovery`). A file without a table in memory (full, or only read) is read in
place: four bytes for the slot and twenty for each step of the chain.

Invariants: every item's number is above that of the one before it in its chain, and both hashes fall into the same
slot; the hash slot count is the number of chains; an item's physical offset is not below the one's before it.

One thread puts; others may ask meanwhile: an item is written before the header counts it, and counted before a slot
names it.

A put reads and writes slots all over the file, for a batch of a thousand keys at a thousand places. So the slots of the
file that is being written are kept in memory (:class:`SlotTable`), and a flush writes the changed pages of 4 KiB to the
file. Memory is touched only for slots that are not 0: the table of a file that is nearly empty costs next to nothing,
and its file stays sparse.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import attrs
import numpy as np
import numpy.typing as npt

from warren.queue_index.topics.index_file_format import (
    HEADER_BYTES,
    ITEM,
    ITEM_BYTES,
    SLOT,
    SLOT_BYTES,
    Header,
    Items,
    Layout,
    decode_item,
    decode_slot,
)
from warren.storage.columns import Ints, Longs
from warren.storage.errors import DataError, DiskFullError
from warren.storage.filesystem import File, FileSystem, replace_by_copy, retryable

_PAGE_BITS: Final = 10
"""A page holds 1024 slots; its borders are those of the file's pages of 4 KiB."""
_SHIFT: Final = HEADER_BYTES // SLOT_BYTES
"""The header is in the first page, in the room of this many slots."""
_READ_SLOTS: Final = 1 << 16
_MOST_PAGES_A_WRITE: Final = 256


@attrs.define(eq=False, repr=False)
class SlotTable:
    """Each slot's newest item, as the file's bytes will say; nothing says that such an item exists."""

    layout: Layout
    values: Ints = attrs.field(repr=False)
    _dirty: npt.NDArray[np.bool_] = attrs.field(repr=False)

    @classmethod
    def empty(cls, layout: Layout) -> SlotTable:
        """That of a new file."""
        pages = (layout.slot_count + _SHIFT >> _PAGE_BITS) + 1
        return cls(layout, np.zeros(layout.slot_count, np.int32), np.zeros(pages, np.bool_))

    @classmethod
    def load(cls, layout: Layout, handle: File) -> SlotTable:
        """Load the table of a file; missing bytes count as zeros."""
        table = cls.empty(layout)
        for start in range(0, layout.slot_count, _READ_SLOTS):
            count = min(_READ_SLOTS, layout.slot_count - start)
            data = handle.pread(count * SLOT_BYTES, layout.slot_offset(start))
            slots = np.frombuffer(data, SLOT, len(data) // SLOT_BYTES)
            used = np.flatnonzero(slots)
            table.values[start + used] = slots[used]
        return table

    def previous(self, slots: Ints, numbers: Ints) -> Ints:
        """What each new item, of ascending ``numbers``, has to name as the one before it in its chain (0: none)."""
        before = self.values[slots]
        before[(before < 0) | (before > numbers)] = 0
        if len(slots) > 1:
            in_order = np.sort(slots)
            if (in_order[1:] == in_order[:-1]).any():
                order = np.argsort(slots, kind="stable")
                repeats = np.flatnonzero(slots[order[1:]] == slots[order[:-1]])
                before[order[repeats + 1]] = numbers[order[repeats]]
        return before

    def put(self, slots: Ints, numbers: Ints) -> None:
        """Make each item the newest of its slot; of several in one slot, the last."""
        self.values[slots] = numbers
        self._dirty[slots + _SHIFT >> _PAGE_BITS] = True

    @property
    def is_dirty(self) -> bool:
        return bool(self._dirty.any())

    def write(self, handle: File) -> None:
        """Write the pages that were changed."""
        pages = np.flatnonzero(self._dirty)
        if not len(pages):
            return
        starts = np.flatnonzero(np.diff(pages, prepend=-2) != 1)
        for low, high in pairwise([*starts.tolist(), len(pages)]):
            for first in range(low, high, _MOST_PAGES_A_WRITE):
                last = min(first + _MOST_PAGES_A_WRITE, high) - 1
                self._write_pages(handle, int(pages[first]), int(pages[last]) + 1)

    def _write_pages(self, handle: File, start: int, stop: int) -> None:
        first = max((start << _PAGE_BITS) - _SHIFT, 0)
        behind = min((stop << _PAGE_BITS) - _SHIFT, self.layout.slot_count)
        with retryable():
            handle.pwrite(self.values[first:behind].astype(SLOT).tobytes(), self.layout.slot_offset(first))
        self._dirty[start:stop] = False


_MOST_SECONDS: Final = 0x7FFFFFFF


@attrs.define(eq=False, repr=False)
class IndexFile:
    """A file of the index; made by :meth:`load` or :meth:`create`."""

    files: FileSystem
    path: str
    layout: Layout
    header: Header
    """The current header; the file's bytes may be older. Replaced, never changed."""
    writable: bool
    _table: SlotTable | None = None
    _handle: File | None = None
    _unwritten: bool = False
    """The header differs from the file's."""
    _unsynced: bool = False

    @classmethod
    def load(cls, files: FileSystem, path: str, layout: Layout, *, writable: bool) -> IndexFile:
        """Load an existing file; if it is ``writable`` and too short, extend it."""
        file = cls(files, path, layout, Header(), writable)
        handle = file.handle()
        file.header = Header.decode(handle.pread(HEADER_BYTES, 0))
        if writable and handle.size() < layout.file_size:
            handle.truncate(layout.file_size)
            file._unsynced = True
        else:
            file.close()
        return file

    @classmethod
    def create(cls, files: FileSystem, path: str, layout: Layout, header: Header) -> IndexFile:
        """Create a new file, all zeros except for ``header``, which a flush writes."""
        file = cls(files, path, layout, header, writable=True, table=SlotTable.empty(layout))
        with retryable():
            try:
                file.handle().truncate(layout.file_size)
            except DiskFullError:
                file.close()
                files.delete(path)
                raise
        file._unwritten = file._unsynced = True
        return file

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def room(self) -> int:
        """How many more items it takes."""
        return max(self.layout.item_count - self.header.index_count, 0)

    @property
    def is_full(self) -> bool:
        return self.header.index_count >= self.layout.item_count

    @property
    def has_unflushed(self) -> bool:
        """Slots included."""
        return self._unwritten or self._unsynced or (self._table is not None and self._table.is_dirty)

    # ── putting ─────────────────────────────────────────────────────────────────────────────────────────────────

    def put(self, key_hashes: Ints, physical_offsets: Longs, store_timestamps: Longs) -> None:
        """Put keys, not more than there is :attr:`room` for, in this order. At least one."""
        count, first = len(key_hashes), self.header.index_count
        if not (self.writable and 0 < count <= self.room):
            raise RuntimeError(f"{self.path}: {count} keys do not go into a file with room for {self.room}")
        table = self._slots()
        numbers = np.arange(first, first + count, dtype=np.int32)
        slots = key_hashes % np.int32(self.layout.slot_count)
        previous = table.previous(slots, numbers)
        items = np.empty(count, ITEM)
        items["key_hash"] = key_hashes
        items["physical_offset"] = physical_offsets
        items["time_difference_s"] = self._time_differences_s(store_timestamps)
        items["previous"] = previous
        self._unsynced = True
        with retryable():
            self.handle().pwrite(items.tobytes(), self.layout.item_offset(first))
        self.header = self._header_after(physical_offsets, store_timestamps, count - int(np.count_nonzero(previous)))
        self._unwritten = True
        table.put(slots, numbers)

    def _time_differences_s(self, store_timestamps: Longs) -> Longs:
        """Seconds since the begin; of the very first item, since the begin that the header had before it."""
        begin = self.header.begin_timestamp
        if self.header.index_count > 1:
            return _seconds_since(begin, store_timestamps)
        first = _seconds_since(begin, store_timestamps[:1])
        return np.concatenate((first, _seconds_since(int(store_timestamps[0]), store_timestamps[1:])))

    def _header_after(self, physical_offsets: Longs, store_timestamps: Longs, new_chains: int) -> Header:
        header = self.header
        is_first = header.index_count <= 1
        slot_count = (header.hash_slot_count + new_chains + (1 << 31)) % (1 << 32) - (1 << 31)  # Java's int
        return Header(
            begin_timestamp=int(store_timestamps[0]) if is_first else header.begin_timestamp,
            end_timestamp=int(store_timestamps[-1]),
            begin_physical_offset=int(physical_offsets[0]) if is_first else header.begin_physical_offset,
            end_physical_offset=int(physical_offsets[-1]),
            hash_slot_count=slot_count,
            index_count=header.index_count + len(physical_offsets),
        )

    def write_anew(self) -> None:
        """Replace the file by a synced copy: after a failed sync, the system takes its pages for written."""
        self.close()
        replace_by_copy(self.files, self.path, self.layout.file_size, self.layout.file_size)

    # ── asking ──────────────────────────────────────────────────────────────────────────────────────────────────

    def find(self, key_hash: int, physical_offsets: list[int], max_num: int, begin: int, end: int) -> None:
        """Add a key's messages to ``physical_offsets``, newest first, until it has ``max_num`` of them.

        Only messages whose store time, at the file's precision, is in [``begin``, ``end``]. Raises :class:`DataError`
        if a chain leads out of the file or to a newer item, which no put ever wrote.
        """
        layout = self.layout
        slot = key_hash % layout.slot_count
        table = self._table
        if table is not None:
            number = int(table.values[slot])
        else:
            number = decode_slot(self._read(SLOT_BYTES, layout.slot_offset(slot)))
        header = self.header
        if number <= 0 or number > header.index_count or header.index_count <= 1:
            return
        place = None
        while len(physical_offsets) < max_num:
            if number >= layout.item_count:
                place = layout.slot_offset(slot) if place is None else place
                raise DataError(self.path, place, f"names item {number}; the file ends at {layout.item_count}")
            place = layout.item_offset(number)
            item_hash, physical_offset, time_difference_s, previous = decode_item(self._read(ITEM_BYTES, place))
            if time_difference_s < 0:
                return
            timestamp = header.begin_timestamp + time_difference_s * 1000
            if item_hash == key_hash and begin <= timestamp <= end:
                physical_offsets.append(physical_offset)
            if previous <= 0 or previous > header.index_count or previous == number or timestamp < begin:
                return
            if previous > number and len(physical_offsets) < max_num:
                raise DataError(self.path, place, f"item {number} names a newer one, {previous}, as the one before it")
            number = previous

    def items(self, start: int = 1, stop: int | None = None) -> Items:
        """The items with the numbers ``start`` … ``stop`` - 1 (default: all there are), as :data:`ITEM` columns."""
        stop = min(self.header.index_count if stop is None else stop, self.layout.item_count)
        count = max(stop - start, 0)
        return np.frombuffer(self._read(count * ITEM_BYTES, self.layout.item_offset(start)), ITEM)

    def used_slots(self) -> tuple[Longs, Ints]:
        """The slots that are not 0, and what each holds. Of a file that is only read, all slots are read for it."""
        table = self._table or SlotTable.load(self.layout, self.handle())
        used = np.flatnonzero(table.values)
        return used, table.values[used]

    def _read(self, size: int, offset: int) -> bytes:
        data = (self._handle or self.handle()).pread(size, offset)
        return data if len(data) == size else data.ljust(size, b"\0")  # a shorter file counts as followed by zeros

    # ── to the disk ─────────────────────────────────────────────────────────────────────────────────────────────

    def write(self) -> None:
        """Write the header and the slots that are in memory to the file, for concurrent readers or copies.

        Nothing is synced; a full file is left to :meth:`flush`, which keeps the order that a power loss requires.
        """
        if self.is_full or not self.has_unflushed:
            return
        if self._unwritten:
            with retryable():  # before the slots: they may name no item that is not counted
                self.handle().pwrite(self.header.encode(), 0)
            self._unwritten = False
        if self._table is not None:
            self._table.write(self.handle())

    def flush(self, *, with_slots: bool = True) -> None:
        """Write and sync everything that is only in memory.

        ``with_slots=False``: without the slots, unless the file is full. That is cheap, and enough for
        :mod:`warren.queue_index.topics.index_recovery`, but other programs cannot read such a file.
        """
        table, handle = self._table, self.handle() if self.has_unflushed else None
        if handle is None:
            return
        if self._unwritten:
            handle.sync()  # a header on the disk must never count items that did not get there
        if table is not None and table.is_dirty and (with_slots or self.is_full):
            table.write(handle)
            if self._unwritten and self.is_full:
                handle.sync()  # recovery does not check the slots of a full file
        if self._unwritten:
            with retryable():
                handle.pwrite(self.header.encode(), 0)
            self._unwritten = False
        handle.sync()
        self._unsynced = False
        if self.is_full:
            self._table = None

    def replace(self, header: Header, table: SlotTable) -> None:
        """Take another header and other slots: what recovery found. They are written at the next flush."""
        self.header, self._table = header, table
        self._unwritten = self._unsynced = True

    def close(self) -> None:
        """Give the file up; nothing is written."""
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.close()

    def check_invariants(self) -> None:
        """Raise ``RuntimeError`` if chains, slots and header contradict each other. Reads the whole file."""
        header, items = self.header, self.items()
        hashes = items["key_hash"].astype(np.int32)
        slots = hashes % np.int32(self.layout.slot_count)
        expected = SlotTable.empty(self.layout)
        numbers = np.arange(1, header.index_count, dtype=np.int32)
        if (items["previous"] != expected.previous(slots, numbers)).any():
            raise RuntimeError(f"{self.path}: an item does not name the one before it in its chain")
        expected.put(slots, numbers)
        used, newest = self.used_slots()
        if not np.array_equal(expected.values[used], newest) or len(used) != np.count_nonzero(expected.values):
            raise RuntimeError(f"{self.path}: a slot does not name the newest item of its chain")
        if header.hash_slot_count != len(used):
            raise RuntimeError(f"{self.path}: {len(used)} slots have a chain, the header says {header.hash_slot_count}")
        offsets = items["physical_offset"]
        if len(items) and (offsets[0], offsets[-1]) != (header.begin_physical_offset, header.end_physical_offset):
            raise RuntimeError(f"{self.path}: the header begins or ends elsewhere than the items")

    def _slots(self) -> SlotTable:
        if self._table is None:
            self._table = SlotTable.load(self.layout, self.handle())
        return self._table

    def handle(self) -> File:
        """The file, open."""
        handle = self._handle
        if handle is None:
            handle = self._handle = (self.files.open_append if self.writable else self.files.open_read)(self.path)
        return handle


def _seconds_since(begin: int, timestamps: Longs) -> Longs:
    if begin <= 0:
        return np.zeros(len(timestamps), np.int64)
    seconds: Longs = np.minimum(np.maximum((timestamps - np.int64(begin)) // 1000, 0), _MOST_SECONDS)
    return seconds
