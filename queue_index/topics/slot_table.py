"""The slots of the index file that is being written, in memory.

A put reads and writes slots all over the file, for a batch of a thousand keys at a thousand places. So they are kept
here, and a flush writes the changed pages of 4 KiB to the file. Memory is touched only for slots that are not 0: the
table of a file that is nearly empty costs next to nothing, and its file stays sparse.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import attrs
import numpy as np
import numpy.typing as npt

from warren.queue_index.topics.index_file_format import HEADER_BYTES, SLOT, SLOT_BYTES, Layout
from warren.storage.filesystem import File, retryable

_PAGE_BITS: Final = 10
"""A page holds 1024 slots; its borders are those of the file's pages of 4 KiB."""
_SHIFT: Final = HEADER_BYTES // SLOT_BYTES
"""The header is in the first page, in the room of this many slots."""
_READ_SLOTS: Final = 1 << 16
_MOST_PAGES_A_WRITE: Final = 256

Numbers = npt.NDArray[np.int32]


@attrs.define(eq=False, repr=False)
class SlotTable:
    """Each slot's newest item, as the file's bytes will say; nothing says that such an item exists."""

    layout: Layout
    values: Numbers = attrs.field(repr=False)
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

    def previous(self, slots: Numbers, numbers: Numbers) -> Numbers:
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

    def put(self, slots: Numbers, numbers: Numbers) -> None:
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
