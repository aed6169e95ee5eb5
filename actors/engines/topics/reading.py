"""Reading messages by their ConsumeQueue entries: neighbours in the CommitLog come with one read.

A body is compared with its checksum. Safe from any thread. Messages whose CommitLog file has expired meanwhile are left
out; whoever asked sees the gap in the queue offsets.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from warren.msg_store.commit_log import CommitLog
from warren.msg_store.commit_log_format import Record, RecordError
from warren.msg_store.packed_record import PackedRecord, pack
from warren.storage.errors import DataError, StorageError

_READ_BYTES: Final = 1 << 20


def read_records(log: CommitLog, entries: npt.NDArray[Any]) -> Iterator[Record]:
    """The messages of these entries, in their order. Raises :class:`DataError` for one that is damaged."""
    return (packed.unpack() for packed in read_packed(log, entries))


def read_packed(log: CommitLog, entries: npt.NDArray[Any]) -> Iterator[PackedRecord]:
    """The same, not taken apart."""
    starts: npt.NDArray[np.int64] = entries["physical_offset"].astype(np.int64)
    ends = starts + entries["size"].astype(np.int64)
    size = log.mapped.file_size
    breaks = np.flatnonzero((starts[1:] != ends[:-1]) | (starts[1:] % size == 0)) + 1
    for first, last in _contiguous(starts, ends, breaks):
        try:
            yield from _read_contiguous(log, starts[first:last].tolist(), ends[first:last].tolist())
        except (DataError, StorageError):
            if starts[last - 1] >= log.min_offset:
                raise


def read_sound_records(log: CommitLog, entries: npt.NDArray[Any]) -> tuple[list[Record], list[DataError]]:
    """The messages of these entries that are not damaged, and what is wrong with those that are."""
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


def _contiguous(
    starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64], breaks: npt.NDArray[np.intp]
) -> Iterator[tuple[int, int]]:
    """From and to of entries that follow one another, a read's worth at most."""
    bounds = [0, *breaks.tolist(), len(starts)]
    for at in range(len(bounds) - 1):
        first, stop = bounds[at], bounds[at + 1]
        while first < stop:
            last = int(np.searchsorted(ends[first:stop], starts[first] + _READ_BYTES, "right")) + first
            last = min(max(last, first + 1), stop)
            yield first, last
            first = last


def _read_contiguous(log: CommitLog, starts: list[int], ends: list[int]) -> Iterator[PackedRecord]:
    first = starts[0]
    data = memoryview(log.read(first, ends[-1] - first))
    for start, end in zip(starts, ends, strict=True):
        try:
            yield pack(data, start - first, end - start)
        except RecordError:
            sound(log, start, log.record(start, end - start))  # which says what is wrong
            raise


def sound(log: CommitLog, physical_offset: int, record: Record) -> Record:
    """The record; raises :class:`DataError` where its body is not what was stored."""
    if not record.crc_ok:
        base = log.mapped.holding(physical_offset) or 0
        raise DataError(log.mapped.path(base), physical_offset - base, "the body does not fit its checksum")
    return record
