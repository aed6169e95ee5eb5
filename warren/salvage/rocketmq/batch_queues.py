"""ConsumeQueues of RocketMQ 5 for topics of the type BatchCQ, whose records hold several messages; they are only read.

They lie in ``batchconsumequeue/<topic>/<queue>/``, in mapped files of units::

    0  physical offset 8 | 8  size 4 | 12 tags code 8 | 20 store timestamp 8
    28 queue offset of the first message 8 | 36 number of messages 2 | 38 compacted offset 4 | 42 reserved 4

All integers are big-endian and signed. A queue ends at the first unit that points to nothing, or beyond the CommitLog,
as RocketMQ's recovery ends it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, Final

import attrs
import numpy as np
import numpy.typing as npt

from warren.actors.engines.topics.store_files import BATCH_QUEUES
from warren.actors.engines.topics.topic_store import queue_directories
from warren.msg_store.commit_log.commit_log import CommitLog
from warren.storage.filesystem import FileSystem
from warren.storage.mapped_files import file_name, parse_file_name

UNIT: Final = np.dtype(
    [
        ("physical_offset", ">i8"),
        ("size", ">i4"),
        ("tags_code", ">i8"),
        ("store_timestamp", ">i8"),
        ("queue_offset", ">i8"),
        ("count", ">i2"),
        ("compacted_offset", ">i4"),
        ("reserved", "V4"),
    ]
)
UNIT_BYTES: Final = 46
_UNITS_AT_ONCE: Final = 20_000

if UNIT.itemsize != UNIT_BYTES:
    raise RuntimeError("the unit's layout does not add up")

Units = npt.NDArray[Any]
"""Units as a structured array of :data:`UNIT`."""


@attrs.frozen
class BatchQueue:
    """One queue. ``min_offset`` and ``max_offset``: the numbers of its first message and of the one to come."""

    directory: str
    min_offset: int
    max_offset: int
    _files: FileSystem
    _log: CommitLog

    @classmethod
    def of(cls, files: FileSystem, directory: str, log: CommitLog) -> BatchQueue:
        """The queue in this directory, whose messages are in that CommitLog."""
        first = end = 0
        for number, units in enumerate(_units(files, directory, log)):
            first = first if number else int(units["queue_offset"][0])
            end = int(units["queue_offset"][-1]) + int(units["count"][-1])
        return cls(directory, first, end, files, log)

    def units(self, queue_offset: int) -> Iterator[Units]:
        """The units from the one on that has the message with this number, many at a time."""
        for units in _units(self._files, self.directory, self._log):
            rest = units[units["queue_offset"] + units["count"] > queue_offset]
            if len(rest):
                yield rest

    def offset_at(self, timestamp_ms: int) -> int:
        """The number of the first message that was stored then or later, or of the one to come."""
        for units in self.units(self.min_offset):
            later = units[units["store_timestamp"] >= timestamp_ms]
            if len(later):
                return int(later["queue_offset"][0])
        return self.max_offset


def batch_queues(files: FileSystem, directory: str, log: CommitLog) -> dict[tuple[str, int], BatchQueue]:
    """The queues of the store in this directory, by topic and queue id."""
    place = f"{directory}/{BATCH_QUEUES}"
    if not files.is_directory(place):
        return {}
    return {
        (topic, queue_id): BatchQueue.of(files, f"{place}/{topic}/{queue_id}", log)
        for topic, queue_id in queue_directories(files, place)
    }


def _units(files: FileSystem, directory: str, log: CommitLog) -> Iterator[Units]:
    """The good units whose records the CommitLog has, many at a time."""

    def are_good(units: Units) -> npt.NDArray[np.bool_]:
        good: npt.NDArray[np.bool_] = are_good_units(units) & (units["physical_offset"] < log.end)
        return good

    for base in sorted(base for name in files.list(directory) if (base := parse_file_name(name)) is not None):
        path, count = f"{directory}/{file_name(base)}", 0
        for units in good_units(files, path, UNIT, are_good):
            count += len(units)
            present = units[units["physical_offset"] >= log.min_offset]
            if len(present):
                yield present
        if count < files.size(path) // UNIT_BYTES:
            return


def are_good_units(units: Units) -> npt.NDArray[np.bool_]:
    """Which units recovery accepts."""
    good: npt.NDArray[np.bool_] = (units["physical_offset"] >= 0) & (units["size"] > 0)
    good &= (units["queue_offset"] >= 0) & (units["count"] > 0)
    return good


def good_units(
    files: FileSystem, path: str, unit: np.dtype[np.void], are_good: Callable[[Units], npt.NDArray[np.bool_]]
) -> Iterator[Units]:
    """The units of a file up to the first that is not good, many at a time."""
    with closing(files.open_read(path)) as file:
        position = 0
        while data := file.pread(_UNITS_AT_ONCE * unit.itemsize, position):
            units = np.frombuffer(data[: len(data) // unit.itemsize * unit.itemsize], unit)
            good = are_good(units)
            count = len(units) if good.all() else int(good.argmin())
            if count:
                yield units[:count]
            if not count or count < len(units):
                return
            position += len(data)
