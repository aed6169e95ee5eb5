"""Walking a CommitLog file (or the part of it that the log fills) from record to record, in windows.

Neighbouring good records come as one item: by columns, or as records. Between them stand the
:class:`Blank` at the end of a file and every :class:`Failure`. In a window the records are found by their sizes
(:func:`warren.msg_store.commit_log.record_spans.record_starts`). If the next one is not good,
:mod:`warren.msg_store.commit_log.record_check` finds what it is, and where RocketMQ's dispatch goes on after it.

A file is over at its blank record, at a failure after which nothing can be found, and at its end. The scans go on with
the next file then.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

import attrs

from warren.msg_store.commit_log.commit_log_format import Blank, Record, decode
from warren.msg_store.commit_log.record_check import Failure, Read, RecordHeader, check
from warren.msg_store.commit_log.record_columns import ColumnRequest, RecordColumns, columns_of
from warren.msg_store.commit_log.record_spans import RecordSpans, record_starts
from warren.storage.columns import Longs
from warren.storage.mapped_files import MappedFiles

WINDOW_BYTES: Final = 4 << 20
"""Bytes read at once; a record that is longer is read as a whole."""
_OBJECTS_WINDOW_BYTES: Final = 1 << 20
"""The same if every record becomes an object of its own."""

_REACH_BEHIND_FAILURE_BYTES: Final = 4096
"""Read after a failure, and doubled after each good read: among failures little is read in vain."""

_T = TypeVar("_T")
_Make = Callable[[bytes, int, Longs, int], tuple[_T, int] | None]
"""Makes an item of the records that begin at some positions in a window, and returns where the next one begins.

Arguments: the window, the physical offset of its first byte, the positions, and where the last record ends by its size.
The item has the records before the first that is not good; ``None`` without any.
"""


def read_columns(
    read: Read,
    start: int,
    end: int,
    *,
    check_crc: bool = False,
    delay_levels_ms: tuple[int, ...] = (),
    with_keys: bool = True,
    with_codes: bool = True,
    window_bytes: int = WINDOW_BYTES,
) -> Iterator[RecordColumns | Blank | Failure]:
    """What lies in one file from ``start`` (where a record begins) on; ``end``: of the file, or of the log in it.

    Nothing at or after ``end`` is read or believed. The walk is over after a blank record, after a failure without
    ``resume_at``, and at ``end`` (then the last item is neither a blank nor such a failure). With ``check_crc`` a wrong
    body CRC is a failure. Memory: a window, or the longest good record.
    """
    request = ColumnRequest(
        check_crc=check_crc, delay_levels_ms=delay_levels_ms, with_keys=with_keys, with_codes=with_codes
    )
    make = functools.partial(_make_columns, request=request)
    return _walk(read, start, end, make, check_crc=check_crc, window_bytes=window_bytes)


def scan_columns(
    mapped: MappedFiles, start: int, stop: int, request: ColumnRequest
) -> Iterator[RecordColumns | Blank | Failure]:
    """Yield what lies from ``start`` to ``stop``, which must both be beginnings of records, in physical order."""
    make = functools.partial(_make_columns, request=request)
    for first, end in _parts(mapped, start, stop):
        yield from _walk(mapped.read, first, end, make, check_crc=request.check_crc, window_bytes=WINDOW_BYTES)


def scan_records(mapped: MappedFiles, start: int, stop: int) -> Iterator[Record | Blank | Failure]:
    """The same, one record at a time."""
    for first, end in _parts(mapped, start, stop):
        for item in _walk(mapped.read, first, end, _make_records, window_bytes=_OBJECTS_WINDOW_BYTES):
            if isinstance(item, list):
                yield from item
            else:
                yield item


def _parts(mapped: MappedFiles, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Yield each file's part of the range."""
    for base in mapped.bases:
        first, end = max(base, start), min(base + mapped.file_size, stop)
        if first < end:
            yield first, end


# ── one file ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@attrs.frozen
class _Window:
    """A window of bytes; others are read on demand."""

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

    def make(self, at: int, stop: int, make: _Make[_T]) -> tuple[_T, int] | None:
        """Make an item of the good records from ``at`` on that end at or before ``stop``."""
        starts, last = record_starts(self.data, at - self.base, stop - self.base)
        return make(self.data, self.base, starts, last) if len(starts) else None


def _walk(
    read: Read, start: int, end: int, make: _Make[_T], *, check_crc: bool = False, window_bytes: int
) -> Iterator[_T | Blank | Failure]:
    window = _Window(read, start, read(start, min(window_bytes, end - start)) if start < end else b"")
    at, reach = start, window_bytes
    while at < end:
        parsed = window.make(at, min(at + reach, window.stop, end), make)
        if parsed is not None:
            item, at = parsed
            yield item
            reach *= 2
            continue
        outcome = check(window.read, at, end, check_crc=check_crc)
        if isinstance(outcome, RecordHeader):
            if at + outcome.size <= min(at + reach, window.stop):
                raise RuntimeError(f"the record at {at} is good, and not good by columns")
            reach = max(reach, outcome.size)
            if at + outcome.size <= window.stop:
                continue
            window = _Window(read, at, read(at, min(max(window_bytes, outcome.size), end - at)))
            if len(window.data) >= outcome.size:
                continue
            outcome = Failure(at, "its bytes cannot be read", None)
        yield outcome
        if isinstance(outcome, Blank) or outcome.resume_at is None:
            return
        at = outcome.resume_at
        reach = _REACH_BEHIND_FAILURE_BYTES


def _make_columns(
    data: bytes, base: int, starts: Longs, stop: int, request: ColumnRequest
) -> tuple[RecordColumns, int] | None:
    columns = columns_of(data, base, starts, stop, request)
    return None if columns is None else (columns, columns.stop)


def _make_records(data: bytes, base: int, starts: Longs, stop: int) -> tuple[list[Record], int] | None:
    spans = RecordSpans.locate(data, base, starts, stop)
    if spans.may_be_scheduled():
        columns = columns_of(data, base, starts, stop, ColumnRequest(with_keys=False))  # looks at delay levels too
        spans = spans.take(slice(0 if columns is None else len(columns)))
    return ([decode(data, at) for at in spans.starts.tolist()], spans.stop) if len(spans) else None
