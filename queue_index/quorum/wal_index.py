"""What the write-ahead logs of a node hold, queue by queue: found in one pass over each file, in their order.

Memory: 12 bytes an entry (:mod:`queue_index.quorum.wal_columns`), and a window of a file
(:mod:`queue_index.quorum.wal_scan`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import attrs

from queue_index.quorum.problems import Problem
from queue_index.quorum.wal_columns import Place, QueueColumns, WalEntries
from queue_index.quorum.wal_scan import MAX_PROBLEMS, UNREADABLE_FILE, UNREADABLE_RECORD, FileScan, ScanState
from storage.errors import StorageError
from storage.filesystem import FileSystem

__all__ = ["UNREADABLE_FILE", "UNREADABLE_RECORD", "WalIndex", "file_number", "is_wal_name"]

WAL_SUFFIX: Final = ".wal"


def is_wal_name(name: str) -> bool:
    """Whether ``name`` is a write-ahead log's: digits, eight or (later) sixteen."""
    return name.endswith(WAL_SUFFIX) and name.removesuffix(WAL_SUFFIX).isdecimal()


def file_number(path: str) -> int:
    """The number that is a file's name, without its suffix."""
    digits = path.rpartition("/")[2].partition(".")[0]
    return int(digits) if digits.isdecimal() and len(digits) <= 32 else 0


@attrs.define(eq=False)
class WalIndex:
    """The entries of all queues of a node in its write-ahead logs."""

    counts: dict[str, int] = attrs.field(factory=dict)
    """The sound records of each file."""
    problems: list[Problem] = attrs.field(factory=list)
    _queues: Mapping[bytes, WalEntries] = attrs.field(factory=dict)

    @classmethod
    def scan(cls, files: FileSystem, paths: Sequence[str]) -> WalIndex:
        """Read the files at ``paths``, lowest number first. What is damaged becomes a problem, not an error."""
        index = cls()
        shared = ScanState(files, index.problems)
        columns = shared.columns
        for path in sorted(paths, key=lambda path: (file_number(path), path)):
            index.counts[path] = 0
            shared.begin(path)
            try:
                handle = files.open_read(path)
            except StorageError as error:
                shared.report(Problem(UNREADABLE_FILE, "damage", path, None, str(error)))
                continue
            try:
                index.counts[path] = FileScan(shared, handle, path).run()
            finally:
                handle.close()
        for queue in columns.values():
            queue.finish()
        _drop_suspects(columns)
        index._queues = {uid: queue.closed() for uid, queue in columns.items()}
        return index

    @property
    def uids(self) -> tuple[bytes, ...]:
        """Of all queues that have a record."""
        return tuple(self._queues)

    def of(self, uid: bytes) -> WalEntries:
        """The entries of one queue; none where the files do not know it."""
        return self._queues.get(uid) or WalEntries(uid)


def _drop_suspects(columns: Mapping[bytes, QueueColumns]) -> None:
    """An entry that one queue misses and another one has at its place in the file belongs to nobody."""
    for queue in columns.values():
        for index, path, low, high in queue.suspects[:MAX_PROBLEMS]:
            for other in columns.values():
                if other is not queue and other.has_at(index, path, low, high):
                    other.drop(index, "another queue misses an entry of this index here")
                    bad = other.bad[index]
                    other.report(UNREADABLE_RECORD, Place(path, index, bad.term, bad.offset, 0, False, 0), bad.reason)
