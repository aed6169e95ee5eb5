"""The log of what was written to a disk, and of its flushes.

    record   offset u64 | size u32 | kind u32 | data: size bytes      little-endian

A flush has neither offset nor data. Beside the log a *counter* stands in a file of its own, eight bytes that processes
share: how many records there are. It is set before the write or flush is answered.
"""

from __future__ import annotations

import enum
import mmap
import os
import struct
from pathlib import Path

import attrs

_HEAD = struct.Struct("<QII")


class Kind(enum.IntEnum):
    WRITE = 1
    FLUSH = 2


class Counter:
    """How many records a log has, for all processes that have opened it."""

    def __init__(self, path: Path, *, create: bool = False) -> None:
        if create:
            path.write_bytes(bytes(8))
        with path.open("r+b") as file:
            self._words = memoryview(mmap.mmap(file.fileno(), 8)).cast("Q")

    @property
    def value(self) -> int:
        return int(self._words[0])

    def add_one(self) -> None:
        self._words[0] += 1


class LogWriter:
    """Appends records, and counts them."""

    def __init__(self, path: Path, counter: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._counter = Counter(counter)

    def write(self, offset: int, data: memoryview) -> None:
        _write_all(self._descriptor, _HEAD.pack(offset, len(data), Kind.WRITE), data)
        self._counter.add_one()

    def flush(self) -> None:
        _write_all(self._descriptor, _HEAD.pack(0, 0, Kind.FLUSH))
        self._counter.add_one()


@attrs.frozen
class Record:
    offset: int
    data: memoryview | None
    """None: a flush."""


def read_log(path: Path) -> list[Record]:
    """All records, in the order in which they came."""
    content = memoryview(path.read_bytes())
    records, position = [], 0
    while position < len(content):
        offset, size, kind = _HEAD.unpack_from(content, position)
        position += _HEAD.size
        data = content[position : position + size]
        if len(data) < size:
            raise ValueError(f"{path}: the record at {position - _HEAD.size} is torn")
        records.append(Record(offset, data if Kind(kind) is Kind.WRITE else None))
        position += size
    return records


def _write_all(descriptor: int, *parts: bytes | memoryview) -> None:
    if os.writev(descriptor, parts) != sum(map(len, parts)):
        raise OSError("no room for the log")
