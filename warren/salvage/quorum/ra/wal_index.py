"""What the write-ahead logs of a node hold, queue by queue: found in one pass over each file, in their order.

Memory: 12 bytes an entry (:mod:`warren.salvage.quorum.ra.wal_columns`), and a window of a file
(:mod:`warren.salvage.quorum.ra.wal_scan`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import closing

import attrs

from warren.salvage.queue_directory import Finding, unreadable_file
from warren.salvage.quorum.ra.entry_runs import CHECKSUM, BadEntry
from warren.salvage.quorum.ra.file_names import file_number
from warren.salvage.quorum.ra.wal_columns import Missed, QueueColumns, WalEntries
from warren.salvage.quorum.ra.wal_format import KNOWN_RECORD
from warren.salvage.quorum.ra.wal_scan import UNREADABLE_RECORD, FileScan
from warren.salvage.quorum.ra.wal_scan_state import MAX_PROBLEMS, ScanState
from warren.storage.errors import StorageError
from warren.storage.filesystem import FileSystem


@attrs.define(eq=False, repr=False)
class WalIndex:
    """The entries of all queues of a node in its write-ahead logs."""

    counts: dict[str, int] = attrs.field(factory=dict)
    """The sound records of each file."""
    problems: list[Finding] = attrs.field(factory=list)
    _queues: Mapping[bytes, WalEntries] = attrs.field(factory=dict)

    @classmethod
    def scan(cls, files: FileSystem, paths: Sequence[str], known_uids: Collection[bytes] = ()) -> WalIndex:
        """Read the files at ``paths``, lowest number first. What is damaged becomes a problem, not an error.

        ``known_uids``: the names of the queues' directories, by which a damaged name is recognised.
        """
        index = cls()
        shared = ScanState(files, index.problems, frozenset(known_uids))
        columns: dict[bytes, QueueColumns] = {}
        for path in sorted(paths, key=lambda path: (file_number(path), path)):
            index.counts[path] = 0
            shared.begin(path)
            try:
                handle = files.open_read(path)
            except StorageError as error:
                shared.report(unreadable_file(path, error))
                continue
            with closing(handle):
                index.counts[path] = FileScan(shared, columns, handle, path).run()
        for queue in columns.values():
            queue.finish()
        _settle_missed(shared, columns)
        index._queues = {uid: queue.closed() for uid, queue in columns.items()}
        return index

    @property
    def uids(self) -> tuple[bytes, ...]:
        """Of all queues that have a record."""
        return tuple(self._queues)

    def of(self, uid: bytes) -> WalEntries:
        """The entries of one queue; empty if the files do not have it."""
        return self._queues.get(uid) or WalEntries(uid)


def _settle_missed(shared: ScanState, columns: Mapping[bytes, QueueColumns]) -> None:
    """Find single entries that queues miss: the number by which a record names its queue is under no checksum."""
    for queue in columns.values():
        for missed in queue.missed[:MAX_PROBLEMS]:
            if not queue.lacks(missed):
                continue
            strays = [place for _, place in shared.strays if place.index == missed.index and missed.spans(place)]
            if len(strays) == 1:
                queue.take_back(strays[0])
            elif not _is_elsewhere(shared, columns, queue, missed):
                _take_lost(shared, queue, missed)


def _is_elsewhere(
    shared: ScanState, columns: Mapping[bytes, QueueColumns], queue: QueueColumns, missed: Missed
) -> bool:
    """Whether another queue has an entry of that index there. If one refused record of the other queue has the index
    too, each gets its own; else the entry belongs to neither."""
    for other in columns.values():
        place = None if other is queue else other.place_at(missed)
        if place is None:
            continue
        refused = [stray for uid, stray in shared.strays if uid == other.uid and stray.index == missed.index]
        if len(refused) == 1:
            queue.take_back(place)
            other.take_back(refused[0])
        elif missed.index not in other.bad:
            reason = "another queue misses an entry of this index here"
            other.drop(missed.index, reason)
            other.report(UNREADABLE_RECORD, place, reason)
        return True
    return False


def _take_lost(shared: ScanState, queue: QueueColumns, missed: Missed) -> None:
    """If there is only one damaged range in that place, it is the missing entry."""
    lost = [
        lost_range
        for lost_range in shared.lost
        if lost_range.path == missed.path and missed.low < lost_range.start < missed.high
    ]
    if len(lost) == 1:
        offset = lost[0].start + KNOWN_RECORD.size
        length = max(lost[0].end - offset, 0)
        queue.bad[missed.index] = BadEntry(missed.index, queue.term, missed.path, offset, CHECKSUM, length)
