"""Looks for records in a store file whose chain of records is broken.

From 3.13 on a broker compacts inside a file: live messages from its end are copied into holes at its front, and the end
is cut off once no reader needs it. So a file holds, between its live records, zeros or what is left of dead ones, and
perhaps a message twice; where such garbage begins, a scan from record to record ends, or goes astray.

It looks for records of *given* ids: a size that fits into the file, followed by one of the ids, and 0xFF at the
record's end. Nothing less tells a record from what looks like one. A message's first place in the file counts, as it
does for a broker: copies go to the front, and the originals may since have been overwritten. The inside of a record
that was found is not searched, nor is the inside of a record of a *sound chain*: the one from the file's beginning up
to the first damage, or one that ends where the file does. A body may hold a copy of a record, so a message with two
different records elsewhere is *ambiguous*.

Terms. A *candidate* is an offset at which eight bytes could be the size of a record of this file. Nearly every one has
zeros in front and not all of them are zeros, and windows of the file are searched for that, all offsets at once.

Memory: about a hundred times a window of :data:`WINDOW_BYTES`, at the worst, and the records that were found.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

import attrs
import numpy as np
import numpy.typing as npt

from warren.msg_store.rdq.rdq_format import (
    END_MARKER,
    HEADER,
    MSG_ID_BYTES,
    OVERHEAD_BYTES,
    SIZE_BYTES,
    UNCOUNTED_BYTES,
)
from warren.storage.columns import Longs, Mask, gather_rows
from warren.storage.filesystem import File, data_windows

WINDOW_BYTES: Final = 1 << 20
_TERM_VERSION: Final = b"\x83"

Ids = npt.NDArray[np.bytes_]
"""Strings of 16 bytes, as numpy compares them: NULs at the end do not count, which is harmless at one length."""


@attrs.frozen(eq=False, repr=False)
class RecordTable:
    """Records by columns, in the order of the file; no two have one id."""

    offsets: Longs
    sizes: Longs
    """Of all of a record's bytes on disk."""
    msg_ids: Ids
    ambiguous: tuple[tuple[bytes, int, int], ...] = ()
    """Messages with the offsets of two different records."""

    def __len__(self) -> int:
        return len(self.offsets)

    def rows(self, chosen: Mask) -> RecordTable:
        """Some of them."""
        return RecordTable(self.offsets[chosen], self.sizes[chosen], self.msg_ids[chosen])

    def merged(self, other: RecordTable) -> RecordTable:
        """Return the records of both, in the order of the file."""
        offsets = np.concatenate([self.offsets, other.offsets])
        order = np.argsort(offsets, kind="stable")
        sizes, msg_ids = (self.sizes, other.sizes), (self.msg_ids, other.msg_ids)
        return RecordTable(offsets[order], np.concatenate(sizes)[order], np.concatenate(msg_ids)[order])


def search(
    file: File, msg_ids: Ids, *, last: tuple[int, int] = (0, 0), window_bytes: int = WINDOW_BYTES
) -> RecordTable:
    """Return the records in ``file`` whose ids are in ``msg_ids``, which is sorted.

    ``last``: where the last record before the first damage begins and ends.
    """
    file_size = file.size()
    start = last[1] if _holds_term(file, last[0]) else last[0]
    candidates: list[tuple[int, int, bytes]] = []
    all_starts: list[Longs] = []
    all_sizes: list[Longs] = []
    overlap = HEADER.size - 1  # a record may begin with zeros that are a hole's
    for at in data_windows(file, start, file_size if len(msg_ids) else 0, window_bytes, overlap=overlap):
        data = file.pread(min(window_bytes + overlap, file_size - at), at)
        offsets, sizes, ids = _candidates(data, at, file_size)
        all_starts.append(offsets)
        all_sizes.append(sizes)
        is_match = msg_ids[np.minimum(np.searchsorted(msg_ids, ids), len(msg_ids) - 1)] == ids
        rows = zip(offsets[is_match].tolist(), sizes[is_match].tolist(), ids[is_match].tolist(), strict=True)
        candidates += [row for row in rows if _ends_well(file, data, at, row[0] + row[1] - 1)]
    if candidates:
        chain = _sound_chain(file, np.concatenate(all_starts), np.concatenate(all_sizes))
        candidates = [row for row in candidates if not _is_inside(row[0], chain)]
    return _chosen(file, candidates, msg_ids.dtype)


def _chosen(file: File, candidates: list[tuple[int, int, bytes]], dtype: np.dtype[np.bytes_]) -> RecordTable:
    """The first record of each message, and which messages have another one that differs."""
    records: dict[bytes, tuple[int, int]] = {}
    ambiguous: dict[bytes, int] = {}
    end = 0
    for offset, size, msg_id in candidates:
        if offset < end:
            continue
        if msg_id not in records:
            records[msg_id] = offset, size
            end = offset + size
        elif msg_id not in ambiguous:
            first_offset, first_size = records[msg_id]
            if size != first_size or file.pread(size, offset) != file.pread(size, first_offset):
                ambiguous[msg_id] = offset
    places = list(records.values())
    return RecordTable(
        np.array([offset for offset, _ in places], np.int64),
        np.array([size for _, size in places], np.int64),
        np.array(list(records), dtype),
        tuple((msg_id, records[msg_id][0], other_offset) for msg_id, other_offset in ambiguous.items()),
    )


def _sound_chain(file: File, starts: Longs, sizes: Longs) -> list[tuple[int, int]]:
    """Return the bounds of the records that form a chain up to the file's end; of nested ones the outermost."""
    sound = {file.size()}
    spans: list[tuple[int, int]] = []
    for start, end in zip(starts[::-1].tolist(), (starts + sizes)[::-1].tolist(), strict=True):
        if end in sound and file.pread(1, end - 1) == END_MARKER and _holds_term(file, start):
            sound.add(start)
            spans.append((start, end))
    outermost: list[tuple[int, int]] = []
    for start, end in reversed(spans):
        if not outermost or start >= outermost[-1][1]:
            outermost.append((start, end))
    return outermost


def _holds_term(file: File, offset: int) -> bool:
    """Whether the body of the record at ``offset`` begins as an Erlang term, as a message does and garbage does not."""
    return file.pread(1, offset + HEADER.size) == _TERM_VERSION


def _is_inside(offset: int, spans: list[tuple[int, int]]) -> bool:
    """Whether ``offset`` is inside one of the spans, and not its beginning."""
    index = bisect_left(spans, (offset, 0)) - 1
    return index >= 0 and spans[index][0] < offset < spans[index][1]


def _candidates(data: bytes, base: int, file_size: int) -> tuple[Longs, Longs, Ids]:
    """Offsets, sizes and ids of what could be records: all that begins in the first bytes of ``data``."""
    starts = _where_sizes_may_be(data, file_size)
    claimed = gather_rows(data, starts, SIZE_BYTES).view(">u8")[:, 0].astype(np.int64)
    sizes = claimed + UNCOUNTED_BYTES
    fits = (sizes >= OVERHEAD_BYTES) & (sizes <= file_size - base - starts)
    starts, sizes = starts[fits], sizes[fits]
    ids = gather_rows(data, starts + SIZE_BYTES, MSG_ID_BYTES).view(f"S{MSG_ID_BYTES}")[:, 0]
    return starts + base, sizes, ids


def _where_sizes_may_be(data: bytes, file_size: int) -> Longs:
    """Where in ``data`` a header has room whose size begins with as many zeros as any in the file, but not with more
    than seven."""
    zeros = SIZE_BYTES - (file_size.bit_length() + 7) // 8
    count = len(data) - HEADER.size + 1
    if count <= 0:
        return np.empty(0, np.int64)
    is_zero: Mask = np.frombuffer(data, np.uint8) == 0
    front = np.ones(count, np.bool_)
    for place in range(zeros):
        front &= is_zero[place : place + count]
    rest = is_zero[zeros : zeros + count].copy()
    for place in range(zeros + 1, SIZE_BYTES):
        rest &= is_zero[place : place + count]
    return np.flatnonzero(front & ~rest)


def _ends_well(file: File, data: bytes, base: int, last: int) -> bool:
    """Whether the record's last byte, at ``last`` in the file, is what it should be."""
    if last - base < len(data):
        return data[last - base] == END_MARKER[0]
    return file.pread(1, last) == END_MARKER
