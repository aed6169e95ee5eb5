"""Good records of the CommitLog by columns: what dispatch, recovery, rebuild and scans ask of millions of them.

:func:`read_columns` walks one file (or the part of it that the log fills) in windows. Neighbouring good records come
as one :class:`RecordColumns`; between them stand the :class:`Blank` at the end of a file and every :class:`Failure`.

In a window the records are first found by their sizes alone (a stretch of equal ones in a few steps), then their
columns are made (:mod:`msg_store.many_records` or :mod:`msg_store.few_records`). From the first record on that turns
out not to be good, all of this is dropped; :mod:`msg_store.record_check` says what that one is.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

import attrs
import numpy as np

from msg_store.columns import ColumnRequest, RecordColumns
from msg_store.commit_log_format import FIXED_BYTES, MESSAGE_MAGIC, Blank
from msg_store.few_records import MOST_FEW_RECORDS, columns_of_few
from msg_store.gathering import Longs, alike_stretch
from msg_store.many_records import gather_columns
from msg_store.record_check import Failure, Outline, Read, check

__all__ = ["WINDOW_BYTES", "Blank", "Failure", "RecordColumns", "read_columns"]

WINDOW_BYTES: Final = 4 << 20
"""Read at once; a record that is longer is read as a whole."""

_START = struct.Struct(">II")

_REACH_BEHIND_FAILURE_BYTES: Final = 4096
"""Looked at behind a failure, and twice as much whenever that was good: among failures nothing is gathered in vain."""
_STRETCH: Final = 8
"""So many records of one size, and a longer stretch of them is looked for."""


def read_columns(
    read: Read,
    start: int,
    end: int,
    *,
    check_crc: bool = False,
    delay_levels_ms: tuple[int, ...] = (),
    with_keys: bool = True,
    window_bytes: int = WINDOW_BYTES,
) -> Iterator[RecordColumns | Blank | Failure]:
    """What lies in one file from ``start`` (where a record begins) on; ``end``: of the file, or of the log in it.

    Nothing behind ``end`` is read or believed. The walk is over behind a blank record, behind a failure that names no
    ``resume_at``, and at ``end``: neither of these two comes last then. With ``check_crc`` a body whose sum is wrong is
    a failure. Memory: a window, or the longest good record.
    """
    request = ColumnRequest(check_crc=check_crc, delay_levels_ms=delay_levels_ms, with_keys=with_keys)
    window = _Window(read, start, read(start, min(window_bytes, end - start)) if start < end else b"")
    at, reach = start, window_bytes
    while at < end:
        columns = _scan(window, at, min(at + reach, window.stop, end), request)
        if columns is not None:
            yield columns
            at = columns.stop
            reach *= 2
            continue
        found = check(window.read, at, end, check_crc=check_crc)
        if isinstance(found, Outline):
            if at + found.size <= min(at + reach, window.stop):
                raise RuntimeError(f"the record at {at} is good, and not good by columns")
            reach = max(reach, found.size)
            if at + found.size <= window.stop:
                continue
            window = _Window(read, at, read(at, min(max(window_bytes, found.size), end - at)))
            if len(window.data) >= found.size:
                continue
            found = Failure(at, "its bytes cannot be read", None)
        yield found
        if isinstance(found, Blank) or found.resume_at is None:
            return
        at = found.resume_at
        reach = _REACH_BEHIND_FAILURE_BYTES


@attrs.frozen
class _Window:
    """Bytes at hand; others are read when asked for."""

    source: Read
    base: int
    data: bytes

    @property
    def stop(self) -> int:
        return self.base + len(self.data)

    def read(self, at: int, size: int) -> bytes:
        if self.base <= at and at + size <= self.stop:
            return self.data[at - self.base : at - self.base + size]
        return self.source(at, size)


def _scan(window: _Window, at: int, stop: int, request: ColumnRequest) -> RecordColumns | None:
    """The good records from ``at`` on that end at ``stop`` or before; ``None`` without any."""
    starts, stop = _walk(window.data, at - window.base, stop - window.base)
    while len(starts):
        if len(starts) <= MOST_FEW_RECORDS:
            found = columns_of_few(window.data, window.base, starts.tolist(), stop, request)
        else:
            found = gather_columns(window.data, window.base, starts, stop, request)
        if isinstance(found, RecordColumns):
            return found
        starts, stop = starts[:found], int(starts[found])
    return None


def _walk(data: bytes, at: int, limit: int) -> tuple[Longs, int]:
    """Where records begin, by their sizes alone, and where the last of them ends: at ``limit`` or before."""
    parts: list[Longs] = []
    single: list[int] = []
    previous = alike = 0
    last, unpack, add = limit - FIXED_BYTES, _START.unpack_from, single.append
    while at <= last:
        size, magic = unpack(data, at)
        if magic != MESSAGE_MAGIC or size < FIXED_BYTES or size > limit - at:
            break
        add(at)
        at += size
        if size != previous:
            previous = size
            alike = 0
            continue
        alike += 1
        if alike == _STRETCH:
            alike = 0
            count = alike_stretch(data, at, size, limit)
            if count:
                parts += [np.array(single, np.int64), at + size * np.arange(count)]
                single.clear()
                at += size * count
    return np.concatenate([*parts, np.array(single, np.int64)]), at
