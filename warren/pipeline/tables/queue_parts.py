"""How the queues of a node are cut into tasks, and what a task knows of its part.

A *part* is a stretch of one queue's segments, with all of its journal that speaks of them. A task has parts one behind
the other, about ``partition_bytes`` of them. A queue that fits into a task is not cut. One that does not begins in a
task of its own, and every task of it reads the journal anew. Segments that are not wanted belong to no part; so do
queues that are not. A queue whose format has no such pieces, as a quorum queue, is one part.

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
from storage.errors import DataError
from warren.pipeline.arrays import as_text
from warren.pipeline.bare_queues import Opening, bare
from warren.pipeline.filters import Bounds, Wanted
from warren.pipeline.options import ReadOptions
from warren.pipeline.places import Node
from warren.pipeline.table import Task
from warren.pipeline.tables.bodies import NodeBodies
from warren.salvage.export import chosen_queues
from warren.salvage.names import split_level, to_text
from warren.salvage.queue_directory import Extent, QueueDirectory
from warren.salvage.read_only import ReadOnlyFileSystem, below
from warren.salvage.vhost import PERSISTENT_STORE, Vhost

NO_END: Final = sys.maxsize
"""Behind every segment."""


@attrs.frozen(kw_only=True)
class QueuePart:
    """Some segments of one queue; a level of a priority queue is a queue of its own."""

    vhost: bytes
    vhost_path: str
    queue: QueueDirectory
    """As :func:`warren.pipeline.bare_queues.bare` makes it."""
    segments: range
    before: Before | None = None
    """What comes before its first message; ``None``: what the part before it ended with."""

    @property
    def path(self) -> str:
        return self.queue.path

    @property
    def vhost_text(self) -> str | None:
        return as_text(to_text(self.vhost))

    @property
    def queue_text(self) -> str | None:
        """Its name; of a level the bare one."""
        return as_text(to_text(split_level(self.queue.name)[0]))

    @property
    def priority(self) -> int | None:
        return split_level(self.queue.name)[1]

    def open(self, opening: Opening, node: Node) -> QueueDirectory:
        """What reads it. All segments are there: ask for :attr:`segments`."""
        return opening.opened(self.queue, self.bodies(opening.files, node))

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
            queues = [[queue] for queue in vhost.queues] if as_stored else [one for _, one in chosen_queues(vhost)]
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
        self._seq_ids = wanted.of_column("seq_id")
        self._factor = 1.0
        stored = 0 if spread_over is None else _store_bytes(vhost)
        if spread_over is not None and stored > spread_over:
            extents = [queue.extent() for queue in vhost.queues]
            self._factor += stored / max(sum(byte_count(extent) for extent in extents if _may_store(extent)), 1)

    def pieces(self, queue: QueueDirectory) -> Iterator[_Piece]:
        """In order; without files of its own a queue is one piece, too."""
        extent = queue.extent()
        if not self._cut:
            yield _Piece(self._part(queue, range(NO_END)), byte_count(extent))
            return
        factor = self._factor if _may_store(extent) else 1.0
        for segments in wanted_segments(self._seq_ids, extent.seq_ids_per_piece):
            inside = sorted(filter(segments.__contains__, extent.pieces)) or [segments.start]
            for number, low, high in zip(
                inside, [segments.start, *inside[1:]], [*inside[1:], segments.stop], strict=True
            ):
                weight = extent.pieces.get(number, 0) + (extent.shared_bytes if low == segments.start else 0)
                yield _Piece(self._part(queue, range(low, high)), int(weight * factor))

    def _part(self, queue: QueueDirectory, segments: range) -> QueuePart:
        return QueuePart(vhost=self._vhost.name, vhost_path=self._vhost.path, queue=bare(queue), segments=segments)


class _Counting:
    """Counts what comes before the parts of a queue, which are asked for in order: each segment is looked at once."""

    def __init__(self, directories: list[QueueDirectory]) -> None:
        self._left = list(directories)
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

    def _take(self, directory: QueueDirectory, part: QueuePart, until: int) -> None:
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
            self._stored.append(attrs.evolve(part, queue=bare(directory), segments=segments))


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


def wanted_segments(seq_ids: Bounds, seq_ids_per_piece: int | None) -> list[range]:
    """The numbers of the segments that have seq_ids which are wanted: ascending, nothing between them."""
    if seq_ids_per_piece is None:
        return [range(NO_END)]
    low = max(0, 0 if seq_ids.low is None else int(seq_ids.low) // seq_ids_per_piece)
    high = NO_END if seq_ids.high is None else int(seq_ids.high) // seq_ids_per_piece + 1
    if seq_ids.choice is None:
        return [range(low, high)] if low < high else []
    numbers = sorted({int(one) // seq_ids_per_piece for one in seq_ids.choice if one >= 0})
    found: list[range] = []
    for number in numbers:
        if low <= number < high:
            if found and found[-1].stop == number:
                found[-1] = range(found[-1].start, number + 1)
            else:
                found.append(range(number, number + 1))
    return found


def byte_count(extent: Extent) -> int:
    """Of all files of a queue."""
    return extent.shared_bytes + sum(extent.pieces.values())


def _may_store(extent: Extent) -> bool:
    """Whether bodies in the vhost's store are to be counted to it; what is read as a whole is never cut."""
    return extent.seq_ids_per_piece is not None


def _store_bytes(vhost: Vhost) -> int:
    if not vhost.path:
        return 0
    directory = below(vhost.path, PERSISTENT_STORE)
    return sum(
        vhost.files.size(below(directory, name))
        for name in vhost.files.list(directory)
        if file_number(name) is not None
    )
