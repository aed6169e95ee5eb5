"""How the queues of a node are cut into tasks, and what a task knows of its part.

A *part* is a range of one queue's segments, with what its journal says of them. A task has consecutive parts, about
``partition_bytes`` of them. A queue that fits into a task is not cut. A larger one begins in a task of its own, and
each of its tasks reads the journal. Segments and queues that are not wanted belong to no part. A queue whose format has
no segments, as a quorum queue, is one part.

A part of the table ``messages`` counts for more than its files: the bodies in the vhost's store are taken to be spread
evenly over the bytes of its index.

*Positions* of messages go on from one part to the next. Where a queue is cut, a part says what comes before it, and the
task counts the messages there (:mod:`warren.tables.messages`): planning reads no index.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import takewhile
from typing import Final
from zlib import crc32

import attrs

from warren.msg_store.rdq.rdq_format import file_number
from warren.salvage.export import chosen_queues
from warren.salvage.names import as_text, from_text, split_level, to_text
from warren.salvage.queue_descriptor import QueueDescriptor
from warren.salvage.queue_directory import Extent, SizedFile, sized
from warren.salvage.queue_reader import QueueDirectory
from warren.salvage.quorum.quorum_node import QuorumNodes
from warren.salvage.read_only import ReadOnlyFileSystem, below
from warren.salvage.vhost import PERSISTENT_STORE, Vhost
from warren.storage.errors import DataError, StorageError
from warren.tables.bodies import NodeBodies
from warren.tables.filters import Bounds, Pushdown
from warren.tables.intervals import runs
from warren.tables.places import Node, NodeContents
from warren.tables.read_options import ReadOptions
from warren.tables.table import Task

_FEW_NAMES: Final = 64
"""Up to this many names, directories are found by the names' hashes: 257 for each name, because of the levels."""

NO_END: Final = sys.maxsize
"""After every segment."""


@attrs.frozen(kw_only=True)
class QueuePart:
    """Some segments of one queue; a level of a priority queue is a queue of its own."""

    vhost: bytes
    vhost_path: str
    queue: QueueDescriptor
    fingerprint: str
    """Of the sizes of the queue's files when this was planned."""
    segments: range
    before: tuple[QueuePart, ...] | None = None
    """What comes before its first message; ``None``: it goes on where the part before it in its task ends."""

    @property
    def path(self) -> str:
        return self.queue.path

    def joined(self, behind: object) -> QueuePart | None:
        """Return both as one part; ``None`` if they are not neighbours in a queue."""
        if not isinstance(behind, QueuePart) or (behind.path, behind.segments.start) != (self.path, self.segments.stop):
            return None
        return attrs.evolve(self, segments=range(self.segments.start, behind.segments.stop))

    @property
    def vhost_text(self) -> str | None:
        return as_text(to_text(self.vhost))

    @property
    def queue_text(self) -> str | None:
        """The queue's name; of a level, without the priority."""
        return as_text(to_text(split_level(self.queue.name)[0]))

    @property
    def priority(self) -> int | None:
        return split_level(self.queue.name)[1]


class QueueOpener:
    """Opens the queues of one task, which share what is read of the logs of quorum queues."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.files = node.place().files
        self._nodes = QuorumNodes(self.files)

    def open(self, queue: QueueDescriptor, vhost_path: str) -> QueueDirectory:
        """Open a queue. It has all of its segments: ask for those of a part."""
        return queue.open(self.files, self.bodies(vhost_path), self._nodes)

    def open_part(self, part: QueuePart) -> QueueDirectory:
        """Open the queue of a part."""
        return self.open(part.queue, part.vhost_path)

    def bodies(self, vhost_path: str) -> NodeBodies:
        """The store of a vhost; it is scanned when the first body is asked for."""
        return NodeBodies(self.node, self.files, below(vhost_path, PERSISTENT_STORE))


def files_of_queues(task: Task, pushdown: Pushdown, *, with_store: bool = False) -> Iterator[SizedFile]:
    """The files of a task's parts; ``with_store``: messages are looked up there, and those before a part counted."""
    opener, stores = QueueOpener(task.node), dict[str, None]()
    for part in task.work:
        before = part.before if with_store and pushdown.asks("position") else None
        for read in (part, *(before or ())):
            yield from extent_of(opener.open_part(read)).files(read.segments)
        if with_store and part.vhost_path:
            stores[below(part.vhost_path, PERSISTENT_STORE)] = None
    for store in stores:
        yield from files_of_store(opener.files, store)


def files_of_store(files: ReadOnlyFileSystem, directory: str) -> tuple[SizedFile, ...]:
    """The files of the store in that directory; empty if it cannot be listed."""
    try:
        names = files.list(directory)
    except StorageError:
        return ()
    return sized(files, [below(directory, name) for name in names if file_number(name) is not None])


def plan_queues(
    contents: NodeContents, options: ReadOptions, pushdown: Pushdown, *, messages: bool = False, as_stored: bool = False
) -> Iterator[Task]:
    """The tasks of a node's queues in the order of export: each task's work is a tuple of parts.

    ``messages``: for that table. ``as_stored``: each directory is one part, in the order of inspect. With
    ``mode=failfast`` damage of the vhost itself raises :class:`DataError`.
    """
    packing = _Packing(contents.node, options.partition_bytes)
    for vhost in contents.opened_vhosts(_names(pushdown)):
        if not pushdown.allows("vhost", as_text(to_text(vhost.name))):
            continue
        cutter = QueueCutter(
            vhost, pushdown, spread_over=options.partition_bytes if messages else None, cut=not as_stored
        )
        queues = [[queue] for queue in vhost.queues] if as_stored else [levels for _, levels in chosen_queues(vhost)]
        chosen = [
            levels for levels in queues if pushdown.allows("queue", as_text(to_text(split_level(levels[0].name)[0])))
        ]
        if options.mode == "failfast":
            _stop_at_problem(vhost, {directory.path for directories in chosen for directory in directories})
        for directories in chosen:
            yield from packing.add([cutter.cut(directory) for directory in directories])
    yield from packing.rest()


def _names(pushdown: Pushdown) -> list[bytes]:
    """The names of the only queues that are wanted; empty if that is not known, or if they are many."""
    names = pushdown.of_column("queue").choice or frozenset()
    is_plain = len(names) <= _FEW_NAMES and all(isinstance(name, str) and "\\" not in name for name in names)
    return [from_text(name) for name in sorted(names)] if is_plain else []


def _stop_at_problem(vhost: Vhost, chosen: set[str]) -> None:
    other_paths = tuple(queue.path for queue in vhost.queues if queue.path not in chosen)
    for problem in vhost.problems:
        if problem.severity == "damage" and not problem.path.startswith(other_paths):
            raise DataError(problem.path, problem.offset, f"{problem.kind}: {problem.detail}")


@attrs.frozen
class Piece:
    """A part that is not cut further, and its weight."""

    part: QueuePart
    weight: int


class QueueCutter:
    """Cuts the queues of a vhost into pieces: its segments, as far as they are wanted.

    ``spread_over``: a store of more bytes than this is counted to the pieces; ``None``: no store is. ``cut``: a queue
    is cut at all.
    """

    def __init__(self, vhost: Vhost, pushdown: Pushdown, *, spread_over: int | None, cut: bool = True) -> None:
        self._vhost, self._cut = vhost, cut
        self._seq_ids = pushdown.of_column("seq_id")
        self._factor = 1.0
        stored = 0
        if spread_over is not None and vhost.path:
            stored = sum(file.size_bytes for file in files_of_store(vhost.files, below(vhost.path, PERSISTENT_STORE)))
        if spread_over is not None and stored > spread_over:
            extents = [extent_of(queue) for queue in vhost.queues]
            self._factor += stored / max(sum(extent.size_bytes for extent in extents if _may_store(extent)), 1)

    def cut(self, queue: QueueDirectory) -> tuple[QueuePart, list[Piece]]:
        """All of a queue as one part, and its pieces in order. A queue without files of its own is one piece."""
        extent = extent_of(queue)
        whole = QueuePart(
            vhost=self._vhost.name,
            vhost_path=self._vhost.path,
            queue=self._vhost.descriptors[queue.path],
            fingerprint=f"{crc32(repr(extent).encode()):08x}",
            segments=range(NO_END),
        )
        return whole, list(self._pieces(whole, extent)) if self._cut else [Piece(whole, extent.size_bytes)]

    def _pieces(self, whole: QueuePart, extent: Extent) -> Iterator[Piece]:
        factor = self._factor if _may_store(extent) else 1.0
        for segments in wanted_segments(self._seq_ids, extent.seq_ids_per_piece):
            numbers = sorted(filter(segments.__contains__, extent.pieces)) or [segments.start]
            for number, low, high in zip(
                numbers, [segments.start, *numbers[1:]], [*numbers[1:], segments.stop], strict=True
            ):
                weight = extent.piece_bytes(number) + (extent.shared_bytes if low == segments.start else 0)
                yield Piece(attrs.evolve(whole, segments=range(low, high)), int(weight * factor))


class _Packing:
    """Puts pieces into tasks."""

    def __init__(self, node: Node, partition_bytes: int) -> None:
        self._node, self._partition_bytes = node, partition_bytes
        self._parts: list[QueuePart] = []
        self._weight = 0

    def add(self, levels: list[tuple[QueuePart, list[Piece]]]) -> Iterator[Task]:
        """Add one queue, or all levels of one, in the order of their messages."""
        pieces = [piece for _, of_level in levels for piece in of_level]
        wholes = [whole for whole, _ in levels]
        total = sum(piece.weight for piece in pieces)
        if self._weight + total > self._partition_bytes:
            yield from self.rest()
        share = total / max(-(-total // self._partition_bytes), 1)  # of each task, if the queue is cut
        previous: QueuePart | None = None
        done, number = 0, 0
        for part, weight in ((piece.part, piece.weight) for piece in pieces):
            number_here = int((done + weight / 2) // share) if total > self._partition_bytes else 0
            if number_here > number:
                yield from self.rest()
            done, number = done + weight, number_here
            goes_on = bool(self._parts) and previous is not None and _follows(part, previous)
            joined = self._parts[-1].joined(part) if goes_on else None
            if joined is not None:
                self._parts[-1] = joined
            else:
                self._parts.append(part if goes_on else attrs.evolve(part, before=_before(part, wholes)))
            self._weight += weight
            previous = part

    def rest(self) -> Iterator[Task]:
        """What is left, as a task."""
        if self._parts:
            yield Task(self._node, tuple(self._parts))
        self._parts, self._weight = [], 0


def _before(part: QueuePart, levels: list[QueuePart]) -> tuple[QueuePart, ...]:
    """What comes before a part of a queue: higher levels, and segments of its own level, wanted ones or not."""
    before = list(takewhile(lambda level: level.path != part.path, levels))
    if part.segments.start:
        before.append(attrs.evolve(part, segments=range(part.segments.start)))
    return tuple(before)


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
    numbers = (int(seq_id) // seq_ids_per_piece for seq_id in seq_ids.choice if seq_id >= 0)
    return [range(first, last + 1) for first, last in runs(number for number in numbers if low <= number < high)]


def extent_of(queue: QueueDirectory) -> Extent:
    """How large a queue is; empty if that cannot be read: the task that reads the queue reports it."""
    try:
        return queue.extent()
    except StorageError:
        return Extent({}, (), None)


def _may_store(extent: Extent) -> bool:
    """Whether bodies in the vhost's store are to be counted to it; what is read as a whole is never cut."""
    return extent.seq_ids_per_piece is not None
