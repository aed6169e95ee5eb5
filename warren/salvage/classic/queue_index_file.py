"""One file of a queue's index, journal or segment, opened for reading: its records as columns, its bytes on demand.

A file up to :data:`warren.salvage.windows.WHOLE_BYTES` is held in memory while it is open (a journal and one segment
at a time); of a larger one only the records' numbers are held, and bytes are read on demand.
"""

from __future__ import annotations

from typing import Final

import attrs
import numpy as np
import numpy.typing as npt

from warren.queue_index.index.record_format import BODY_SIZE, SEGMENT, Columns, Ints, Layout, parse
from warren.salvage.classic.resuming import Gap, parsed, read_records
from warren.salvage.read_only import WHOLE_BYTES, WINDOW_BYTES, ReadOnlyFileSystem, has_bytes_behind
from warren.storage.columns import gather
from warren.storage.errors import StorageError
from warren.storage.filesystem import File

BODIES: Final = np.dtype([("msg_id", "V16"), ("expiry_us", ">u8"), ("size", ">u4"), ("embedded_size", ">u4")])
"""A publish's body (:data:`warren.queue_index.index.record_format.BODY`) as columns."""

Bodies = npt.NDArray[np.void]

if BODIES.itemsize != BODY_SIZE:
    raise RuntimeError("a publish's body has two layouts")


@attrs.define(eq=False, repr=False)
class QueueIndexFile:
    """A journal or a segment file; one that is missing or cannot be read is empty."""

    path: str
    layout: Layout
    exists: bool
    size: int = 0
    columns: Columns = attrs.field(init=False)
    gaps: list[Gap] = attrs.Factory(list)
    """Bytes between records that belong to no record."""
    only_zeros: bool = False
    """A segment file of NULs alone counts as empty, as do its columns here."""
    problem: StorageError | None = None
    """Why it cannot be read; the file then counts as empty."""
    _data: bytes | None = None
    _file: File | None = None

    def __attrs_post_init__(self) -> None:
        self.columns = parse(self.layout, b"")

    @classmethod
    def open(cls, files: ReadOnlyFileSystem, path: str, layout: Layout) -> QueueIndexFile:
        """Read and parse it."""
        file = cls(path, layout, files.exists(path))
        if file.exists:
            try:
                file._load(files)
            except StorageError as error:
                file.problem = error
        return file

    def _load(self, files: ReadOnlyFileSystem) -> None:
        self._file = files.open_read(self.path)
        size = self._file.size()
        if size <= WHOLE_BYTES:
            self._data = self._file.pread(size, 0)
            columns = parse(self.layout, self._data)
        else:
            columns = parsed(self.layout, self.read, 0, size)
        self.size = size
        self.only_zeros = self.layout is SEGMENT and size > 0 == columns.end and not self.has_bytes_behind(0)
        if not self.only_zeros:
            self.columns, self.gaps = read_records(self.layout, self._file, self.read, columns)

    def read(self, size: int, offset: int) -> bytes:
        """Up to ``size`` bytes from ``offset``."""
        if self._data is not None:
            return self._data[offset : offset + size]
        return self._file.pread(size, offset) if self._file is not None else b""

    def bodies(self, offsets: Ints) -> Bodies:
        """The publish bodies at these offsets, of type :data:`BODIES`; the file is read front to back."""
        if self._data is not None:
            return gather(self._data, offsets, BODIES)
        bodies = np.zeros(len(offsets), BODIES)
        order = np.argsort(offsets, kind="stable")
        ascending = offsets[order]
        low = 0
        while low < len(order):
            start = int(ascending[low])
            window = self.read(WINDOW_BYTES, start)
            high = int(np.searchsorted(ascending, start + len(window) - BODY_SIZE, "right"))
            bodies[order[low:high]] = gather(window, ascending[low:high] - start, BODIES)
            low = max(high, low + 1)
        return bodies

    def has_bytes_behind(self, offset: int) -> bool:
        """Whether there is anything but zeros from ``offset`` on."""
        return self._file is not None and has_bytes_behind(self._file, offset)

    def close(self) -> None:
        """Close the file."""
        self._data = None
        if self._file is not None:
            self._file.close()
            self._file = None
