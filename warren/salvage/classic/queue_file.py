"""One file of a queue, opened for reading: its bytes on demand; of a journal or segment also its records, as columns.

A file up to :data:`warren.salvage.read_only.WHOLE_BYTES` is held in memory while it is open, from the first read on (a
journal and one segment at a time); of a larger one only the records' numbers are held. If only the records are asked
for, and not the messages in them, long messages are passed over, and of each record only the head is read: counting a
queue's messages, or asking which of them are in the store, needs no message. A file of short messages is not worth it,
and one that is not sound from its first byte to its last is for the parser that looks closer.
"""

from __future__ import annotations

from typing import Final, Self

import attrs
import numpy as np
import numpy.typing as npt

from warren.queue_index.index.record_format import (
    BODY_SIZE,
    EMBEDDED_SIZE_AT,
    JOURNAL,
    SEGMENT,
    Columns,
    Ints,
    Layout,
    Octets,
    parse,
)
from warren.salvage.classic.resuming import Gap, parsed, read_records
from warren.salvage.read_only import WHOLE_BYTES, WINDOW_BYTES, ReadOnlyFileSystem, has_bytes_behind
from warren.storage.columns import gather
from warren.storage.errors import StorageError
from warren.storage.filesystem import File

_HEAD_BYTES: Final = SEGMENT.head_size + BODY_SIZE
_LONG_BYTES: Final = 512
"""Of a record with its message, on average. Shorter ones are read faster than they are passed over."""
_WINDOW_BYTES: Final = 4096
"""What is read where short records stand."""
_FEW_BYTES: Final = 64 << 10
"""No more than this is read of a file before its records are seen to be short."""


@attrs.frozen(eq=False, repr=False)
class RecordHeads:
    """A segment's records."""

    columns: Columns
    _heads: Octets
    """A row for each publish, in the order of the file."""

    @classmethod
    def read(cls, file: File, size: int) -> Self | None:
        """The records of a file of that size; ``None`` if its messages are short, or if it is not sound."""
        first_kind, last_kind = SEGMENT.publish_kinds[0] << 6, SEGMENT.publish_kinds[-1] + 1 << 6
        short_kind, publishes, places, shorts = SEGMENT.short_kinds[0], list[bytes](), list[int](), bytearray()
        size_at, at, bytes_read = SEGMENT.head_size + EMBEDDED_SIZE_AT, 0, 0
        while at < size:
            window = file.pread(_HEAD_BYTES, at)
            bytes_read += len(window)
            if not window or bytes_read > max(_FEW_BYTES, at * _HEAD_BYTES // _LONG_BYTES):
                return None
            if first_kind <= window[0] < last_kind:
                if len(window) < _HEAD_BYTES:
                    return None
                publishes.append(window)
                places.append(at)
                at += _HEAD_BYTES + int.from_bytes(window[size_at : size_at + 4], "big")
                continue
            run = _run_of_shorts(file.pread(_WINDOW_BYTES, at), short_kind)
            if not run:
                return None
            shorts += run
            at += len(run)
        return cls._of(publishes, places, bytes(shorts), size) if at == size else None

    @classmethod
    def _of(cls, publishes: list[bytes], places: list[int], shorts: bytes, size: int) -> Self:
        heads = np.frombuffer(b"".join(publishes), np.uint8).reshape(len(publishes), _HEAD_BYTES)
        numbers, mask = heads[:, : SEGMENT.head_size].copy().view(SEGMENT.head).ravel(), (1 << SEGMENT.number_bits) - 1
        embedded = heads[:, SEGMENT.head_size + EMBEDDED_SIZE_AT :].copy().view(">u4").ravel()
        columns = Columns(
            publish_numbers=(numbers & mask).astype(np.int64),
            publish_persistent=numbers >> SEGMENT.number_bits == SEGMENT.persistent_kind,
            body_at=np.array(places, np.int64) + SEGMENT.head_size,
            embedded_sizes=embedded.astype(np.int64),
            delivers=(np.frombuffer(shorts, SEGMENT.head) & mask).astype(np.int64),
            acks=np.empty(0, np.int64),
            end=size,
            reason="complete",
        )
        return cls(columns, heads)

    def bodies(self, offsets: Ints) -> Octets:
        """The publish bodies at these offsets, of :data:`~warren.queue_index.index.record_format.BODY_SIZE` each."""
        rows = np.searchsorted(self.columns.body_at, offsets)
        return np.ascontiguousarray(self._heads[rows, SEGMENT.head_size :]).ravel()


def _run_of_shorts(window: bytes, kind: int) -> bytes:
    """The short records with which a window begins."""
    heads = np.frombuffer(window, SEGMENT.head, len(window) // SEGMENT.head_size)
    is_other = heads >> SEGMENT.number_bits != kind
    count = int(is_other.argmax()) if is_other.any() else len(heads)
    return window[: count * SEGMENT.head_size]


BODIES: Final = np.dtype([("msg_id", "V16"), ("expiry_us", ">u8"), ("size", ">u4"), ("embedded_size", ">u4")])
"""A publish's body (:data:`warren.queue_index.index.record_format.BODY`) as columns."""

Bodies = npt.NDArray[np.void]

if BODIES.itemsize != BODY_SIZE:
    raise RuntimeError("a publish's body has two layouts")


@attrs.define(eq=False, repr=False)
class QueueFile:
    """A file; one that is missing or cannot be read is empty."""

    path: str
    exists: bool
    size: int = 0
    problem: StorageError | None = None
    """Why it cannot be read."""
    _file: File | None = None
    _data: bytes | None = None

    @classmethod
    def open(cls, files: ReadOnlyFileSystem, path: str) -> Self:
        """Open the file; only its size is read."""
        file = cls(path, files.exists(path))
        if file.exists:
            try:
                file._file = files.open_read(path)
                file.size = file._file.size()
                file._file.pread(1, 0)  # a directory can be opened
            except StorageError as error:
                file.problem, file.size = error, 0
        return file

    def read(self, size: int, offset: int) -> bytes:
        """Up to ``size`` bytes from ``offset``."""
        if self._data is None:
            if self._file is None or self.problem is not None:
                return b""
            if self.size > WHOLE_BYTES:
                return self._file.pread(size, offset)
            self._data = self._file.pread(self.size, 0)
        return self._data[offset : offset + size]

    def has_bytes_behind(self, offset: int) -> bool:
        """Whether there is anything but zeros from ``offset`` on."""
        return self._file is not None and self.problem is None and has_bytes_behind(self._file, offset)

    def close(self) -> None:
        """Close the file."""
        self._data = None
        if self._file is not None:
            self._file.close()
            self._file = None


@attrs.define(eq=False, repr=False)
class QueueIndexFile(QueueFile):
    """A journal or a segment file, parsed."""

    layout: Layout = JOURNAL
    columns: Columns = attrs.field(factory=lambda: parse(JOURNAL, b""))
    gaps: list[Gap] = attrs.Factory(list)
    """Bytes between records that belong to no record."""
    only_zeros: bool = False
    """A segment file of NULs alone counts as empty, as do its columns here."""
    _heads: RecordHeads | None = None
    """The heads of a sound file with long messages, where only records are asked for."""

    @classmethod
    def parsed(
        cls, files: ReadOnlyFileSystem, path: str, layout: Layout, *, only_heads: bool = False
    ) -> QueueIndexFile:
        """Open and parse the file; ``only_heads``: its messages will hardly be read."""
        file = cls.open(files, path)
        file.layout = layout
        if file._file is not None and file.problem is None:
            try:
                file._heads = RecordHeads.read(file._file, file.size) if only_heads and layout is SEGMENT else None
                if file._heads is None:
                    file._parse(file._file)
                else:
                    file.columns = file._heads.columns
            except StorageError as error:
                file.problem, file.size = error, 0
        return file

    def _parse(self, file: File) -> None:
        if self.size <= WHOLE_BYTES:
            columns = parse(self.layout, self.read(self.size, 0))
        else:
            columns = parsed(self.layout, self.read, 0, self.size)
        self.only_zeros = self.layout is SEGMENT and self.size > 0 == columns.end and not self.has_bytes_behind(0)
        if not self.only_zeros:
            self.columns, self.gaps = read_records(self.layout, file, self.read, columns)

    def bodies(self, offsets: Ints) -> Bodies:
        """The publish bodies at these offsets, of type :data:`BODIES`; the file is read front to back."""
        if self._heads is not None:
            return self._heads.bodies(offsets).view(BODIES)
        if self.size <= WHOLE_BYTES:
            return gather(self.read(self.size, 0), offsets, BODIES)
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
