"""The bodies of the CommitLog from one physical offset to another, and nothing else of it: the fastest way through.

Neighbours of one shape (their sizes, and those of their fields, are the same) are found by comparing a few columns of
the bytes as they lie; where the shape changes all the time, :mod:`msg_store.record_columns` finds the records.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import attrs
import numpy as np

from msg_store.commit_log_format import (
    FIXED_BYTES,
    MESSAGE_MAGIC,
    SCHEDULE_TOPIC,
    SYS_FLAG_AT,
    Blank,
    header_bytes,
    peek,
)
from msg_store.commit_log_scan import stretches
from msg_store.record_check import Failure
from msg_store.record_columns import read_columns
from storage.errors import DataError
from storage.mapped_files import MappedFiles

_WINDOW_BYTES: Final = 1 << 20
_FEW: Final = 16
"""Neighbours of one shape; fewer are not worth their own list."""


@attrs.frozen
class _Window:
    """The bytes at hand; others are read when they are asked for."""

    mapped: MappedFiles
    base: int
    data: bytes

    def read(self, at: int, size: int) -> bytes:
        inside = at - self.base
        if inside >= 0 and inside + size <= len(self.data):
            return self.data if size == len(self.data) else self.data[inside : inside + size]
        return self.mapped.read(at, size)


def scan_bodies(mapped: MappedFiles, start: int, stop: int) -> Iterator[list[bytes]]:
    """Bodies of the messages from ``start`` to ``stop``, both of which are where records begin, in physical order.

    Raises :class:`DataError` at bytes that are no record. CRCs are not compared.
    """
    for first, end in stretches(mapped, start, stop):
        at = first
        while at < end:
            window = _Window(mapped, at, mapped.read(at, min(_WINDOW_BYTES, end - at)))
            bodies, size = _alike(window.data)
            if not bodies:
                bodies, size = _any(window, at, end)
            if not size:
                break
            yield bodies
            at += size


def _alike(data: bytes) -> tuple[list[bytes], int]:
    """The bodies of the first records, as far as they are of one shape, and the bytes that they take."""
    if len(data) < FIXED_BYTES:
        return [], 0
    size, magic = peek(data, 0)
    body_at = header_bytes(int.from_bytes(data[SYS_FLAG_AT : SYS_FLAG_AT + 4], "big"))
    body_size = int.from_bytes(data[body_at - 4 : body_at], "big", signed=True)
    topic_at = body_at + body_size
    if magic != MESSAGE_MAGIC or size > len(data) or body_size < 0 or topic_at >= size:
        return [], 0
    topic_size = data[topic_at]
    properties_at = topic_at + 1 + topic_size
    properties_size = int.from_bytes(data[properties_at : properties_at + 2], "big", signed=True)
    if properties_size < 0 or properties_at + 2 + properties_size != size or topic_size in (0, len(SCHEDULE_TOPIC)):
        return [], 0  # with a scheduled message more can be wrong
    if topic_size > 127:
        return [], 0
    count = len(data) // size
    for at, kind in ((0, "i8"), (SYS_FLAG_AT, "i4"), (body_at - 4, "i4"), (topic_at, "i1"), (properties_at, "i2")):
        column = np.ndarray((count,), kind, data, at, (size,))
        same = column == column[0]
        if not same.all():
            count = int(same.argmin())
    if count < _FEW:
        return [], 0
    bodies = np.ndarray((count,), f"V{body_size}", data, body_at, (size,)).tolist() if body_size else [b""] * count
    return bodies, count * size


def _any(window: _Window, at: int, end: int) -> tuple[list[bytes], int]:
    """The bodies of the next records; nothing where the file is over."""
    found = next(read_columns(window.read, at, end, with_keys=False, window_bytes=_WINDOW_BYTES))
    if isinstance(found, Blank):
        return [], 0
    if isinstance(found, Failure):
        base = window.mapped.holding(at) or 0
        raise DataError(window.mapped.path(base), at - base, found.reason)
    data = window.read(at, found.stop - at)
    starts = (found.body_starts - at).tolist()
    ends = (found.body_starts + found.body_sizes - at).tolist()
    return [data[first:last] for first, last in zip(starts, ends, strict=True)], found.stop - at
