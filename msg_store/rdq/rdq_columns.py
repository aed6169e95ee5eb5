"""The records of a store file by columns: what a scan of millions of them asks for,
:func:`~warren.msg_store.rdq.rdq_format.scan` record by record. Files of both formats are read; of a typed one only the
messages count, and :func:`~warren.msg_store.rdq.sqs_format.walk` finds them. What follows is about ``.rdq``.

The file is walked in windows. In a window the records are found by their sizes alone, a run of equal ones in a few
steps; then their columns are gathered. Both scans find the same records, good and bad, and stop at the same place for
the same reason, whatever the file holds: a test holds this.

Where no messages are asked for, long records are passed over: of each only its header and its last byte are read. So a
scan reads a small part of a store of large bodies, and a reader of the bodies reads the files about once in all.

Memory: a window. A record that is longer is read as a whole where messages are asked for, up to
:data:`MOST_RECORD_BYTES`.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Final

import attrs
import numpy as np

from warren.msg_store.rdq import sqs_format
from warren.msg_store.rdq.rdq_format import (
    END_MARKER,
    HEADER,
    MSG_ID_BYTES,
    OVERHEAD_BYTES,
    SIZE_BYTES,
    TYPED_SUFFIX,
    UNCOUNTED_BYTES,
    Record,
    ScanEnd,
    end_reason,
)
from warren.storage.columns import Bytes, Longs, Mask, equal_run, gather_rows
from warren.storage.filesystem import File

WINDOW_BYTES: Final = 4 << 20

MOST_RECORD_BYTES: Final = 1 << 30
"""No broker takes a message of half that size. The message of a record that claims more is not read: otherwise a
damaged size could exhaust the memory."""

_SIZE = Struct(">Q")
_RUN: Final = 8
"""After this many records of one size, a longer run is searched for."""

_LONG_BYTES: Final = 1024
"""Records of this size are passed over. For shorter ones a read of its own takes longer than the bytes."""
_MOST_PASSED: Final = 8192
"""Records that are passed over before their columns are yielded."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class RdqColumns:
    """``n`` ≥ 1 consecutive records, by columns of ``n``."""

    offsets: Longs
    """Where each begins in the file."""
    sizes: Longs
    """Of all of its bytes on disk."""
    msg_ids: Bytes
    """A row of 16 bytes each."""
    good: Mask
    data: bytes
    """The bytes of the file from :attr:`base` on, including all of the records; empty if they were not read."""
    base: int
    header_bytes: int = HEADER.size
    """The bytes of a record before its message."""
    end_bytes: int = len(END_MARKER)
    """The bytes of a record after its message."""

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def has_messages(self) -> bool:
        """Whether :attr:`data` holds the records."""
        return bool(self.data)

    @property
    def message_starts(self) -> Longs:
        """Where in :attr:`data` each message begins."""
        return self.offsets - self.base + self.header_bytes

    @property
    def message_sizes(self) -> Longs:
        return self.sizes - self.header_bytes - self.end_bytes

    def records(self) -> Iterator[Record]:
        """The records one by one."""
        ids = np.ascontiguousarray(self.msg_ids).view(f"V{MSG_ID_BYTES}").ravel().tolist()
        return map(Record, self.offsets.tolist(), self.sizes.tolist(), ids, self.good.tolist())


class ColumnScan(Iterator[RdqColumns]):
    """The records of a file, in order; once they are used up, ``end`` says where they stopped and why.

    ``with_messages``: all bytes are read, those of longer records than the window too; else long records are passed
    over.
    """

    __slots__ = ("_columns", "end", "path")

    def __init__(self, file: File, path: str, *, window_bytes: int = WINDOW_BYTES, with_messages: bool = False) -> None:
        self.path = path
        self.end: ScanEnd | None = None
        walk = self._walk_typed if path.endswith(TYPED_SUFFIX) else self._walk
        self._columns = walk(file, max(window_bytes, HEADER.size), with_messages=with_messages)

    def __iter__(self) -> Iterator[RdqColumns]:
        return self._columns

    def __next__(self) -> RdqColumns:
        return next(self._columns)

    def finish(self) -> ScanEnd:
        """Pass over the records that are left."""
        for _ in self._columns:
            pass
        if self.end is None:
            raise RuntimeError(f"{self.path}: the scan was broken off by an error")
        return self.end

    def _walk(self, file: File, window_bytes: int, *, with_messages: bool) -> Iterator[RdqColumns]:
        file_size, at, are_long, rest = file.size(), 0, not with_messages, b""
        while at + OVERHEAD_BYTES <= file_size:
            if are_long:
                are_long = False
                if (columns := _passed_over(file, at, file_size)) is not None:
                    yield columns
                    at = int(columns.offsets[-1] + columns.sizes[-1])
                    continue
            data = rest + file.pread(min(window_bytes, file_size - at) - len(rest), at + len(rest))
            rest = b""
            if len(data) < HEADER.size:
                break  # the file was cut under the scan
            starts, behind = _find(data)
            if len(starts):
                yield _columns(data, at, starts, behind)
                at += behind
                are_long = not with_messages and behind >= _LONG_BYTES * len(starts)
                rest = b"" if are_long else data[behind:]
                continue
            size = _SIZE.unpack_from(data)[0] + UNCOUNTED_BYTES
            if size < OVERHEAD_BYTES or at + size > file_size:
                break
            yield _long_record(file, at, size, data, with_messages=with_messages)
            at += size
            are_long = not with_messages
        rest = file.pread(max(min(SIZE_BYTES, file_size - at), 0), at)
        self.end = ScanEnd(at, end_reason(rest), file_size)

    def _walk_typed(self, file: File, window_bytes: int, *, with_messages: bool) -> Iterator[RdqColumns]:
        batches = sqs_format.walk(file, window_bytes, MOST_RECORD_BYTES, with_messages=with_messages)
        while True:
            try:
                records, data, base = next(batches)
            except StopIteration as stop:
                self.end = stop.value
                return
            offsets, sizes, msg_ids, good = zip(*records, strict=True)
            yield RdqColumns(
                offsets=np.array(offsets, np.int64),
                sizes=np.array(sizes, np.int64),
                msg_ids=np.frombuffer(b"".join(msg_ids), np.uint8).reshape(-1, MSG_ID_BYTES),
                good=np.array(good),
                data=data,
                base=base,
                header_bytes=sqs_format.HEADER.size,
                end_bytes=0,
            )


def _find(data: bytes) -> tuple[Longs, int]:
    """Return where whole records begin in ``data``, by their sizes alone, and where the last one ends."""
    parts: list[Longs] = []
    single: list[int] = []
    at = previous = equal = 0
    limit = len(data)
    last, unpack, add = limit - HEADER.size, _SIZE.unpack_from, single.append
    while at <= last:
        size = unpack(data, at)[0] + UNCOUNTED_BYTES
        if size < OVERHEAD_BYTES or size > limit - at:
            break
        add(at)
        at += size
        if size != previous:
            previous, equal = size, 0
            continue
        equal += 1
        if equal == _RUN:
            equal = 0
            if count := equal_run(data, at, size, len(data)):
                parts += [np.array(single, np.int64), at + size * np.arange(count)]
                single.clear()
                at += size * count
    return np.concatenate([*parts, np.array(single, np.int64)]), at


def _passed_over(file: File, at: int, file_size: int) -> RdqColumns | None:
    """The long records from ``at`` on, without their messages; ``None`` if there is a short one, or none."""
    offsets, sizes, msg_ids, last_bytes = list[int](), list[int](), list[bytes](), list[bytes]()
    head = file.pread(HEADER.size, at)
    while len(head) == HEADER.size and len(offsets) < _MOST_PASSED:
        size = _SIZE.unpack_from(head)[0] + UNCOUNTED_BYTES
        if size < _LONG_BYTES or size > file_size - at:
            break
        behind = file.pread(1 + HEADER.size, at + size - 1)
        offsets.append(at)
        sizes.append(size)
        msg_ids.append(head[SIZE_BYTES:])
        last_bytes.append(behind[:1])
        head, at = behind[1:], at + size
    if not offsets:
        return None
    return RdqColumns(
        offsets=np.array(offsets, np.int64),
        sizes=np.array(sizes, np.int64),
        msg_ids=np.frombuffer(b"".join(msg_ids), np.uint8).reshape(len(offsets), -1),
        good=np.array([last == END_MARKER for last in last_bytes]),
        data=b"",
        base=offsets[0],
    )


def _columns(data: bytes, base: int, starts: Longs, behind: int) -> RdqColumns:
    sizes = np.diff(starts, append=behind)
    return RdqColumns(
        offsets=starts + base,
        sizes=sizes,
        msg_ids=gather_rows(data, starts + SIZE_BYTES, MSG_ID_BYTES),
        good=np.frombuffer(data, np.uint8)[starts + sizes - 1] == END_MARKER[0],
        data=data,
        base=base,
    )


def _long_record(file: File, at: int, size: int, begin: bytes, *, with_messages: bool) -> RdqColumns:
    """One that does not fit into the window that begins with it."""
    is_read = with_messages and size <= MOST_RECORD_BYTES
    data = begin + file.pread(size - len(begin), at + len(begin)) if is_read else b""
    if len(data) < size:  # not to be read, or the file was cut under the scan
        data = b""
    last = data[-1:] or file.pread(1, at + size - 1)
    return RdqColumns(
        offsets=np.array([at]),
        sizes=np.array([size]),
        msg_ids=np.frombuffer(begin, np.uint8, MSG_ID_BYTES, SIZE_BYTES).reshape(1, -1),
        good=np.array([last == END_MARKER]),
        data=data,
        base=at,
    )
