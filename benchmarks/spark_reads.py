"""Counts the bytes that Spark's Python workers read from files: the module of their daemon while reads are measured.

Each process adds up what its reads of files returned, in a small file of its own in the directory that the environment
names; :func:`bytes_read` adds the files up. The reads of Spark itself, and of Python as it imports, are not counted.
"""

from __future__ import annotations

import mmap
import os
import struct
from pathlib import Path
from typing import Final

from warren.storage.real_file import RealFile

DIRECTORY: Final = "WARREN_BENCHMARK_READS"
"""The environment's name for the directory of counts."""

_COUNT: Final = struct.Struct("<Q")


class _Counter:
    """What this process has read; a forked one begins a count of its own."""

    def __init__(self, directory: str) -> None:
        self._directory, self._pid = directory, 0
        self._map: mmap.mmap | None = None

    def add(self, count: int) -> None:
        if self._map is None or self._pid != os.getpid():
            self._pid = os.getpid()
            with open(Path(self._directory, str(self._pid)), "wb+") as file:
                file.write(bytes(_COUNT.size))
                file.flush()
                self._map = mmap.mmap(file.fileno(), _COUNT.size)
        _COUNT.pack_into(self._map, 0, _COUNT.unpack_from(self._map)[0] + count)


def count_reads(directory: str) -> None:
    """Count what this process, and those that it forks, read from files from now on."""
    counter, pread = _Counter(directory), RealFile.pread

    def counting(file: RealFile, size: int, offset: int) -> bytes:
        data = pread(file, size, offset)
        counter.add(len(data))
        return data

    setattr(RealFile, "pread", counting)  # noqa: B010 - a measurement from outside


def bytes_read(directory: str) -> int:
    """What all processes have read so far."""
    return sum(_COUNT.unpack(path.read_bytes())[0] for path in Path(directory).iterdir())


if __name__ == "__main__":
    from pyspark.daemon import manager

    import warren.pipeline.spark_source  # noqa: F401

    count_reads(os.environ[DIRECTORY])
    manager()
