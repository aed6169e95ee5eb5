"""Looks for records in a store file whose chain of records is broken.

From 3.13 on a broker compacts inside a file: live messages from its end are copied into holes at its front, and the end
is cut off once no reader needs it. So a file holds, between its live records, zeros or what is left of dead ones, and
perhaps a message twice; where such garbage begins, a scan from record to record ends, or goes astray.

What is looked for are the records of *wanted* ids: a size that fits into the file, a wanted id behind it, and 0xFF at
its end. Nothing less tells a record from what looks like one. A message's first place in the file counts, as it does
for a broker: copies go to the front, and what they left behind may since have been written over. What lies inside of a
record that was found is not looked at.

Terms. A *candidate* is an offset at which eight bytes could be the size of a record of this file. Nearly every one has
zeros in front and not all of them are zeros, and windows of the file are searched for that, all offsets at once.

Memory: about a hundred times a window of :data:`WINDOW_BYTES`, at the worst, and the records that were found.
"""

from __future__ import annotations

from typing import Final

import attrs
import numpy as np
import numpy.typing as npt

from warren.msg_store.rdq_format import END_MARKER, HEADER, MSG_ID_BYTES, OVERHEAD_BYTES, SIZE_BYTES, UNCOUNTED_BYTES
from warren.storage.filesystem import File, data_windows
from warren.storage.strided import Longs, Mask, gather_rows

WINDOW_BYTES: Final = 1 << 20

Ids = npt.NDArray[np.bytes_]
"""Strings of 16 bytes, as numpy compares them: NULs at the end do not count, which is harmless at one length."""


@attrs.frozen(eq=False, repr=False)
class FoundRecords:
    """Records by columns, in the order of the file; no two have one id."""

    offsets: Longs
    sizes: Longs
    """Of all of a record's bytes on disk."""
    msg_ids: Ids

    def __len__(self) -> int:
        return len(self.offsets)

    def merged(self, other: FoundRecords) -> FoundRecords:
        """These and those, in the order of the file."""
        offsets = np.concatenate([self.offsets, other.offsets])
        order = np.argsort(offsets, kind="stable")
        sizes, msg_ids = (self.sizes, other.sizes), (self.msg_ids, other.msg_ids)
        return FoundRecords(offsets[order], np.concatenate(sizes)[order], np.concatenate(msg_ids)[order])


def search(file: File, wanted: Ids, *, window_bytes: int = WINDOW_BYTES) -> FoundRecords:
    """The records in ``file`` whose ids are among ``wanted``, which are sorted."""
    file_size = file.size()
    found: list[tuple[int, int, bytes]] = []
    known: set[bytes] = set()
    behind = 0
    overlap = HEADER.size - 1  # a record may begin with zeros that are a hole's
    for at in data_windows(file, 0, file_size if len(wanted) else 0, window_bytes, overlap=overlap):
        data = file.pread(min(window_bytes + overlap, file_size - at), at)
        offsets, sizes, ids = _candidates(data, at, file_size, wanted)
        for offset, size, msg_id in zip(offsets.tolist(), sizes.tolist(), ids.tolist(), strict=True):
            if offset >= behind and msg_id not in known and _ends_well(file, data, at, offset + size - 1):
                known.add(msg_id)
                found.append((offset, size, msg_id))
                behind = offset + size
    columns = list(zip(*found, strict=True)) or [(), (), ()]
    return FoundRecords(
        np.array(columns[0], np.int64), np.array(columns[1], np.int64), np.array(columns[2], wanted.dtype)
    )


def _candidates(data: bytes, base: int, file_size: int, wanted: Ids) -> tuple[Longs, Longs, Ids]:
    """Offsets, sizes and ids of what could be wanted records: all that begins in the first bytes of ``data``."""
    starts = _where_sizes_may_be(data, file_size)
    claimed = gather_rows(data, starts, SIZE_BYTES).view(">u8")[:, 0].astype(np.int64)
    sizes = claimed + UNCOUNTED_BYTES
    fits = (sizes >= OVERHEAD_BYTES) & (sizes <= file_size - base - starts)
    starts, sizes = starts[fits], sizes[fits]
    ids = gather_rows(data, starts + SIZE_BYTES, MSG_ID_BYTES).view(wanted.dtype)[:, 0]
    is_wanted = wanted[np.minimum(np.searchsorted(wanted, ids), len(wanted) - 1)] == ids
    return starts[is_wanted] + base, sizes[is_wanted], ids[is_wanted]


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
