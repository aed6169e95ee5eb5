"""The CommitLog from one physical offset to another, file by file: as record objects, or by columns.

A file is over at its blank record, at a failure behind which nothing can be found, and at its end.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from msg_store.commit_log_format import (
    BLANK_HEADER_BYTES,
    MESSAGE_MAGIC,
    SCHEDULE_TOPIC,
    Blank,
    Record,
    RecordError,
    decode,
    peek,
)
from msg_store.record_check import Failure, check
from msg_store.record_columns import RecordColumns, read_columns
from storage.mapped_files import MappedFiles

_WINDOW_BYTES: Final = 1 << 20
"""Read at once; a record that is larger is read as a whole."""


def scan_columns(
    mapped: MappedFiles,
    start: int,
    stop: int,
    *,
    check_crc: bool,
    delay_levels_ms: tuple[int, ...],
    with_keys: bool,
) -> Iterator[RecordColumns | Blank | Failure]:
    """What lies from ``start`` to ``stop``, both of which are where records begin, in physical order."""
    for first, end in stretches(mapped, start, stop):
        yield from read_columns(
            mapped.read, first, end, check_crc=check_crc, delay_levels_ms=delay_levels_ms, with_keys=with_keys
        )


def scan_items(mapped: MappedFiles, start: int, stop: int) -> Iterator[Record | Blank | Failure]:
    """The same, one record at a time."""
    for first, end in stretches(mapped, start, stop):
        yield from _items_of(mapped, first, end)


def stretches(mapped: MappedFiles, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Each file's part of what is asked for."""
    for base in mapped.bases:
        first, end = max(base, start), min(base + mapped.file_size, stop)
        if first < end:
            yield first, end


def _items_of(mapped: MappedFiles, start: int, end: int) -> Iterator[Record | Blank | Failure]:
    window_base, window = start, b""

    def read(at: int, size: int) -> bytes:
        inside = at - window_base
        if inside >= 0 and inside + size <= len(window):
            return window[inside : inside + size]
        return mapped.read(at, size)

    at = start
    while at < end:
        if at - window_base >= len(window):
            window_base, window = at, mapped.read(at, min(_WINDOW_BYTES, end - at))
        record = _good(window, at - window_base)
        if record is None:
            found = check(read, at, end)
            if isinstance(found, Failure):
                yield found
                if found.resume_at is None:
                    return
                at = found.resume_at
                continue
            if isinstance(found, Blank):
                yield found
                return
            record = decode(read(at, found.size))
        yield record
        at += record.size


def _good(data: bytes, at: int) -> Record | None:
    """The record there, if it can be said at once that it is one."""
    if at + BLANK_HEADER_BYTES > len(data):
        return None
    size, magic = peek(data, at)
    if magic != MESSAGE_MAGIC or at + size > len(data):
        return None
    try:
        record = decode(data, at)
    except RecordError:
        return None
    return record if record.topic != SCHEDULE_TOPIC else None
