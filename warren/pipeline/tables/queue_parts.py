"""How the queues of a node are cut into tasks, and what a task knows of its part.

A *part* is a stretch of one queue's segments, with all of its journal that speaks of them. A task has parts one behind
the other, about ``partition_bytes`` of them. A queue that fits into a task is not cut. One that does not begins in a
task of its own, and every task of it reads the journal anew. Segments that are not wanted belong to no part; so do
queues that are not.

A part of the table ``messages`` weighs more than its files: the bodies in the vhost's store are taken to be spread over
the index as its bytes are.

*Positions* of messages go on from one part to the next. Where a queue is cut, how many messages come before a part is
counted in two steps: of what stands in the index when the table is planned, and of what lies in the store by the task
itself, which has to look into the store anyway.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Final

import attrs

from msg_store.rdq_format import file_number
from queue_index import directory as disk
from queue_index.recovery_terms import RecoveryTerms
from storage.errors import DataError
from storage.filesystem import FileSystem
from warren.pipeline.arrays import as_text
from warren.pipeline.filters import Bounds, Wanted
from warren.pipeline.options import ReadOptions
from warren.pipeline.places import Node
from warren.pipeline.table import Task
from warren.pipeline.tables.bodies import NodeBodies
from warren.salvage.classic_v1 import ClassicV1Directory
from warren.salvage.export import chosen_queues
from warren.salvage.names import split_level, to_text
from warren.salvage.queue_directory import QueueDirectory
from warren.salvage.read_only import ReadOnlyFileSystem, below
from warren.salvage.unreadable import UnreadableQueue
from warren.salvage.vhost import PERSISTENT_STORE, Vhost

NO_END: Final = sys.maxsize
"""Behind every segment."""


@attrs.frozen(kw_only=True)
class QueuePart:
    """Some segments of one queue; a level of a priority queue is a queue of its own."""

    vhost: bytes
    vhost_path: str
    path: str
    name: bytes
    segment_entry_count: int
    terms: RecoveryTerms | None
    segments: range
    kind: str
    unreadable: str | None
    """Why nothing comes out of it."""
    before: Before | None = None
    """What comes before its first message; ``None``: what the part before it ended with."""

    @property
    def vhost_text(self) -> str | None:
        return as_text(to_text(self.vhost))

    @property
    def queue_text(self) -> str | None:
        """Its name; of a level the bare one."""
        return as_text(to_text(split_level(self.name)[0]))

    @property
    def priority(self) -> int | None:
        return split_level(self.name)[1]

    def open(self, files: ReadOnlyFileSystem, node: Node) -> QueueDirectory:
        """What reads it. Of a classic queue all segments are there: ask for :attr:`segments`."""
        if self.unreadable is not None:
            return UnreadableQueue(self.kind, "classic", self.path, self.name, self.unreadable)
        return self.classic(files, node)

    def classic(self, files: ReadOnlyFileSystem, node: Node) -> ClassicV1Directory:
        """The same of one that can be read."""
        return ClassicV1Directory(
            files=files,
            path=self.path,
            name=self.name,
            segment_entry_count=self.segment_entry_count,
            terms=self.terms,
            bodies=self.bodies(files, node),
        )

    def bodies(self, files: ReadOnlyFileSystem, node: Node) -> NodeBodies:
        """The store that its messages are in."""
        return NodeBodies(node, files, below(self.vhost_path, PERSISTENT_STORE))


@attrs.frozen
class Before:
    """How many messages of a queue come before a part."""

    embedded: int = 0
    stored: tuple[QueuePart, ...] = ()
    """Where those of them that lie in the store are spoken of."""


def plan_queues(
    node: Node, options: ReadOptions, wanted: Wanted, *, messages: bool = False, as_stored: bool = False
) -> Iterator[Task]:
    """The tasks of a node's queues in the order of export: each task's work is a tuple of parts.

    ``messages``: for that table. ``as_stored``: each directory is one part, in the order of inspect. With
    ``mode=failfast`` damage of the vhost itself raises :class:`DataError`.
    """
    source = node.place().queues()
    try:
        packing = _Packing(node, options.partition_bytes)
        for vhost in source.vhosts:
            if not wanted.allows("vhost", as_text(to_text(vhost.name))):
                continue
            cutter = _Cutter(
                vhost, wanted, cut=not as_stored, spread_over=options.partition_bytes if messages else None
            )
            queues = (
                [[queue] for queue in vhost.queues] if as_stored else [one for _, one in chosen_queues(vhost, None)]
            )
            chosen = [one for one in queues if wanted.allows("queue", as_text(to_text(split_level(one[0].name)[0])))]
            if options.mode == "failfast":
                _stop_at_problem(vhost, {one.path for directories in chosen for one in directories})
            for directories in chosen:
                pieces = [piece for directory in directories for piece in cutter.pieces(directory)]
                asks = messages and wanted.asks("position")
                yield from packing.add(pieces, _Counting(directories) if asks else None)
        yield from packing.rest()
    finally:
        source.close()


def _stop_at_problem(vhost: Vhost, chosen: set[str]) -> None:
    others = tuple(queue.path for queue in vhost.queues if queue.path not in chosen)
    for problem in vhost.problems:
        if problem.severity == "damage" and not problem.path.startswith(others):
            raise DataError(problem.path, problem.offset, f"{problem.kind}: {problem.detail}")


@attrs.frozen
class _Piece:
    """What is never cut, and what it weighs."""

    part: QueuePart
    weight: int


class _Cutter:
    """Cuts the queues of a vhost into pieces: its segments, as far as they are wanted."""

    def __init__(self, vhost: Vhost, wanted: Wanted, *, cut: bool, spread_over: int | None) -> None:
        self._vhost, self._cut = vhost, cut
        self._files = vhost.files
        self._ranges = wanted_segments(wanted.of_column("seq_id"), vhost.segment_entry_count)
        self._factor = 1.0
        stored = 0 if spread_over is None else _store_bytes(vhost)
        if spread_over is not None and stored > spread_over:
            indexed = sum(sum(index_sizes(self._files, queue.path).values()) for queue in vhost.queues)
            self._factor += stored / max(indexed, 1)

    def pieces(self, queue: QueueDirectory) -> Iterator[_Piece]:
        """In order; without files of its own a queue is one piece, too."""
        sizes = index_sizes(self._files, queue.path)
        if not isinstance(queue, ClassicV1Directory):
            yield _Piece(self._part(queue, range(NO_END)), 0)
            return
        journal = sizes.pop(disk.JOURNAL_NAME, 0)
        by_number = {disk.segment_number(name) or 0: size for name, size in sizes.items()}
        if not self._cut:
            yield _Piece(self._part(queue, range(NO_END)), journal + sum(by_number.values()))
            return
        for segments in self._ranges:
            inside = sorted(filter(segments.__contains__, by_number)) or [segments.start]
            for number, low, high in zip(
                inside, [segments.start, *inside[1:]], [*inside[1:], segments.stop], strict=True
            ):
                weight = by_number.get(number, 0) + (journal if low == segments.start else 0)
                yield _Piece(self._part(queue, range(low, high)), int(weight * self._factor))

    def _part(self, queue: QueueDirectory, segments: range) -> QueuePart:
        return QueuePart(
            vhost=self._vhost.name,
            vhost_path=self._vhost.path,
            path=queue.path,
            name=queue.name,
            segment_entry_count=self._vhost.segment_entry_count,
            terms=queue.terms if isinstance(queue, ClassicV1Directory) else None,
            segments=segments,
            kind=queue.kind,
            unreadable=queue.reason if isinstance(queue, UnreadableQueue) else None,
        )


class _Counting:
    """Counts what comes before the parts of a queue, which are asked for in order: each segment is looked at once."""

    def __init__(self, directories: list[QueueDirectory]) -> None:
        self._left = [one for one in directories if isinstance(one, ClassicV1Directory)]
        self._until = 0
        self._embedded = 0
        self._stored: list[QueuePart] = []

    def before(self, part: QueuePart) -> Before:
        while self._left and self._left[0].path != part.path:
            self._take(self._left.pop(0), part, NO_END)
            self._until = 0
        if self._left:
            self._take(self._left[0], part, part.segments.start)
        return Before(self._embedded, tuple(self._stored))

    def _take(self, directory: ClassicV1Directory, part: QueuePart, until: int) -> None:
        """All of a directory up to that segment; ``part`` is a later one of the queue."""
        segments = range(self._until, until)
        self._until = until
        are_stored = False
        for embedded, stored in directory.deliverable(segments) if segments else ():
            self._embedded += embedded
            are_stored = are_stored or len(stored) > 0
        if not are_stored:
            return
        last = self._stored[-1] if self._stored else None
        if last is not None and (last.path, last.segments.stop) == (directory.path, segments.start):
            self._stored[-1] = attrs.evolve(last, segments=range(last.segments.start, until))
        else:
            its = attrs.evolve(part, path=directory.path, name=directory.name, terms=directory.terms, segments=segments)
            self._stored.append(its)


class _Packing:
    """Puts pieces into tasks."""

    def __init__(self, node: Node, partition_bytes: int) -> None:
        self._node, self._partition_bytes = node, partition_bytes
        self._parts: list[QueuePart] = []
        self._weight = 0

    def add(self, pieces: list[_Piece], counting: _Counting | None) -> Iterator[Task]:
        """All pieces of one queue, its levels too."""
        if self._weight + sum(piece.weight for piece in pieces) > self._partition_bytes:
            yield from self.rest()
        previous: QueuePart | None = None
        for part, weight in ((piece.part, piece.weight) for piece in pieces):
            if self._weight + weight > self._partition_bytes:
                yield from self.rest()
            goes_on = bool(self._parts) and previous is not None and _follows(part, previous)
            if goes_on and part.path == self._parts[-1].path:
                last = self._parts[-1]
                self._parts[-1] = attrs.evolve(last, segments=range(last.segments.start, part.segments.stop))
            elif goes_on:
                self._parts.append(part)
            else:
                self._parts.append(attrs.evolve(part, before=counting.before(part) if counting else Before()))
            self._weight += weight
            previous = part

    def rest(self) -> Iterator[Task]:
        """What is left, as a task."""
        if self._parts:
            yield Task(self._node, tuple(self._parts))
        self._parts, self._weight = [], 0


def _follows(part: QueuePart, previous: QueuePart) -> bool:
    """Whether there is nothing between two parts of a queue."""
    if part.path == previous.path:
        return part.segments.start == previous.segments.stop
    return part.segments.start == 0 and previous.segments.stop == NO_END


def wanted_segments(seq_ids: Bounds, segment_entry_count: int) -> list[range]:
    """The numbers of the segments that have seq_ids which are wanted: ascending, nothing between them."""
    low = max(0, 0 if seq_ids.low is None else int(seq_ids.low) // segment_entry_count)
    high = NO_END if seq_ids.high is None else int(seq_ids.high) // segment_entry_count + 1
    if seq_ids.choice is None:
        return [range(low, high)] if low < high else []
    numbers = sorted({int(one) // segment_entry_count for one in seq_ids.choice if one >= 0})
    found: list[range] = []
    for number in numbers:
        if low <= number < high:
            if found and found[-1].stop == number:
                found[-1] = range(found[-1].start, number + 1)
            else:
                found.append(range(number, number + 1))
    return found


def index_sizes(files: FileSystem, directory: str) -> dict[str, int]:
    """The bytes of the files of a queue's index, by name."""
    names = [
        name for name in files.list(directory) if name == disk.JOURNAL_NAME or disk.segment_number(name) is not None
    ]
    return {name: files.size(below(directory, name)) for name in names}


def _store_bytes(vhost: Vhost) -> int:
    directory = below(vhost.path, PERSISTENT_STORE)
    return sum(
        vhost.files.size(below(directory, name))
        for name in vhost.files.list(directory)
        if file_number(name) is not None
    )
