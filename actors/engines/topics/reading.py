"""Reading messages by their ConsumeQueue entries: messages close together in the CommitLog take one read.

Bodies are compared with their checksums. Any thread may read. Messages whose CommitLog file has expired meanwhile are
left out; the caller sees the gap in the queue offsets.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from warren.msg_store.commit_log.commit_log import CommitLog
from warren.msg_store.commit_log.commit_log_format import Record, RecordError
from warren.msg_store.commit_log.packed_records import PackedRecords, sound_records
from warren.storage.columns import Longs
from warren.storage.errors import DataError, StorageError

_READ_BYTES: Final = 1 << 20
_MOST_BETWEEN_BYTES: Final = 4096
"""Reading up to this many more bytes costs less than another read."""


def read_records(log: CommitLog, entries: npt.NDArray[Any]) -> Iterator[Record]:
    """Yield the entries' messages, in order. Raises :class:`DataError` for a damaged one."""
    return (packed.unpack(row) for packed in read_packed(log, entries) for row in range(len(packed)))


def read_packed(log: CommitLog, entries: npt.NDArray[Any]) -> Iterator[PackedRecords]:
    """The same, as packed records: at least one for each read."""
    starts: Longs = entries["physical_offset"].astype(np.int64)
    sizes: Longs = entries["size"].astype(np.int64)
    for first, last in _stretches(starts, sizes, log.mapped.file_size):
        try:
            yield from _read_stretch(log, starts[first:last], sizes[first:last])
        except (DataError, StorageError):
            if starts[last - 1] >= log.min_offset:
                raise


def read_sound_records(log: CommitLog, entries: npt.NDArray[Any]) -> tuple[list[Record], list[DataError]]:
    """Return the entries' undamaged messages, and an error for each damaged one."""
    try:
        return list(read_records(log, entries)), []
    except DataError:
        records: list[Record] = []
        damage: list[DataError] = []
        for row in range(len(entries)):
            try:
                records += read_records(log, entries[row : row + 1])
            except DataError as error:
                damage.append(error)
        return records, damage


def _stretches(starts: Longs, sizes: Longs, file_size: int) -> Iterator[tuple[int, int]]:
    """Start and end of the entries that are read together: in one file, ascending, and not too large for one read."""
    if len(starts) == 1:
        yield 0, 1
        return
    ends = starts + sizes
    between = starts[1:] - ends[:-1]
    together = (between >= 0) & (between <= _MOST_BETWEEN_BYTES) & (sizes[1:] > 0) & (sizes[:-1] > 0)
    together &= starts[1:] // file_size == starts[:-1] // file_size
    bounds = [0, *(np.flatnonzero(~together) + 1).tolist(), len(starts)]
    for at in range(len(bounds) - 1):
        first, stop = bounds[at], bounds[at + 1]
        while first < stop:
            last = int(np.searchsorted(ends[first:stop], starts[first] + _READ_BYTES, "right")) + first
            last = min(max(last, first + 1), stop)
            yield first, last
            first = last


def _read_stretch(log: CommitLog, starts: Longs, sizes: Longs) -> Iterator[PackedRecords]:
    base = int(starts[0])
    records = sound_records(log.read(base, int(starts[-1] + sizes[-1]) - base), starts - base, sizes)
    count = len(records)
    if count:
        yield records
    if count < len(starts):
        start = int(starts[count])
        if not log.record(start, int(sizes[count])).crc_ok:  # which says what is wrong
            raise body_damage(log, start)
        raise RecordError(f"the record at {start} was another one when it was read first")


def body_damage(log: CommitLog, physical_offset: int) -> DataError:
    """The error for a record whose body is not what was stored."""
    base = log.mapped.holding(physical_offset) or 0
    return DataError(log.mapped.path(base), physical_offset - base, "the body does not fit its checksum")
