"""What the passes over a node's write-ahead logs share: what is damaged, what is lost, and records without a queue."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from typing import Final, NamedTuple

import attrs

from warren.salvage.queue_directory import Finding
from warren.salvage.quorum.ra.wal_format import ENTRY_HEADER
from warren.storage.filesystem import FileSystem

MAX_PROBLEMS: Final = 1000
"""Maximum number of problems that are reported for a file."""
MAX_DOUBTFUL: Final = 4096
"""Entries before a risen term that lost records make doubtful, at most."""


class EntryPosition(NamedTuple):
    """A record of a queue, as far as the columns need it."""

    path: str
    index: int  # type: ignore[assignment]
    term: int
    offset: int
    """Of the entry."""
    length: int
    truncates: bool
    checksum: int


class Lost(NamedTuple):
    """A range of a file that cannot be read."""

    path: str
    start: int
    end: int


@attrs.define(eq=False, repr=False)
class ScanState:
    """What the passes over all files have in common."""

    _files: FileSystem
    _problems: list[Finding]
    known_uids: frozenset[bytes]
    """Of the queues that have a directory."""
    strays: list[tuple[bytes | None, EntryPosition]] = attrs.Factory(list)
    """Sound records that name no queue (``None``), or cannot belong to the one that they name."""
    lost: list[Lost] = attrs.Factory(list)
    """Damaged ranges of the files."""
    _problem_counts: Counter[str] = attrs.Factory(Counter)
    _order: dict[str, int] = attrs.Factory(dict)
    _lost_records: list[tuple[int, int, int]] = attrs.Factory(list)
    """Damaged places: the file's place in the order, the offset, and how many records there may have been."""

    def begin(self, path: str) -> None:
        self._order[path] = len(self._order)

    def stray(self, uid: bytes | None, place: EntryPosition) -> None:
        """Keep a sound record that cannot belong to the queue that it names."""
        if len(self.strays) < MAX_PROBLEMS:
            self.strays.append((uid, place))

    def report(self, problem: Finding) -> None:
        self._problem_counts[problem.path] += 1
        count = self._problem_counts[problem.path]
        if count <= MAX_PROBLEMS:
            self._problems.append(problem)
        elif count == MAX_PROBLEMS + 1:
            detail = f"more than {MAX_PROBLEMS} problems; the others are not told"
            self._problems.append(Finding(problem.kind, "damage", problem.path, problem.offset, detail))

    def lose(self, path: str, offset: int, records: int) -> None:
        """Note that up to ``records`` records cannot be read from ``offset`` on."""
        self._lost_records.append((self._order[path], offset, records))

    def lost_since(self, path: str, offset: int) -> int:
        """How many records may be lost after that place (no path: anywhere)."""
        place = (self._order.get(path, -1), offset)
        return min(MAX_DOUBTFUL, sum(count for order, at, count in self._lost_records if (order, at) > place))

    def are_same(self, before: EntryPosition, after: EntryPosition) -> bool:
        """Whether two records of one index and term have the same entry, by its length and checksum."""
        with closing(self._files.open_read(before.path)) as handle:
            header = handle.pread(ENTRY_HEADER.size, before.offset - ENTRY_HEADER.size)
        if len(header) < ENTRY_HEADER.size or before.length != after.length:
            return False
        return bool(ENTRY_HEADER.unpack(header)[0] == after.checksum)
