"""How an export is cut into parts: what lies in the nodes, and which part writes what.

The order of an export is that of nodes (by their names), vhosts, queues (by the bytes of their names) and positions; a
node's topic store comes behind its queues. A *chunk* is a piece of that order that lies in one place: some segments
of one queue's directory, or a range of bytes of a CommitLog. A *part* is a few chunks in a row, and becomes one file.

Of a part that begins in the middle of a queue the first position is known when the chunks before it are counted.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final

import attrs

from warren.pipeline.jobs.export_log import LogChunk, survey_log
from warren.pipeline.places import Kind, Node
from warren.salvage.export import Selection, chosen_queues, problems_of
from warren.salvage.names import to_text
from warren.salvage.queue_directory import Extent, Finding
from warren.salvage.queue_reader import QueueDirectory
from warren.salvage.read_only import below
from warren.salvage.vhost import PERSISTENT_STORE, Vhost
from warren.storage.errors import StorageError
from warren.storage.filesystem import FileSystem

LEAST_BYTES: Final = 64 << 10
"""What opening a queue costs, however small it is."""


@attrs.frozen
class QueueChunk:
    """Some segments of a queue's directory."""

    node: Node
    vhost: bytes
    queue: bytes
    """The bare name."""
    directory: str
    segments: range
    byte_count: int
    """About."""

    @property
    def group(self) -> tuple[str, bytes | None, bytes | None]:
        """What its positions are counted in: the queues of one name."""
        return self.node.name, self.vhost, self.queue

    def joined(self, behind: object) -> QueueChunk | None:
        """Both as one; ``None``: they are not neighbours."""
        if not isinstance(behind, QueueChunk) or (behind.node, behind.directory) != (self.node, self.directory):
            return None
        segments = range(self.segments.start, behind.segments.stop)
        return attrs.evolve(self, segments=segments, byte_count=self.byte_count + behind.byte_count)


Chunk = QueueChunk | LogChunk


@attrs.frozen
class NodeSurvey:
    """What lies in a node."""

    kinds: Kind
    """That are exported."""
    chunks: tuple[Chunk, ...]
    """The finest there are, in order."""
    matches: bool
    """Whether there is a queue (or a vhost) that is wanted."""
    names: frozenset[bytes]
    """Of the queues that are wanted by name, those that are there."""
    problems: tuple[Finding, ...]
    notes: tuple[str, ...]


def survey_node(node: Node, selection: Selection, settings: Mapping[str, str]) -> NodeSurvey:
    """Lists what is wanted of the queues, and of the topic store where no queues are asked for by name."""
    wants_all = selection.vhost is None and not selection.queues
    contents = node.contents()
    kinds = contents.kinds & (Kind.BOTH if wants_all else Kind.QUEUES)
    chunks: list[Chunk] = []
    problems: list[Finding] = []
    notes: list[str] = []
    matches, names = False, frozenset[bytes]()
    if Kind.QUEUES in kinds:
        vhosts = [vhost for vhost in contents.opened_vhosts() if selection.vhost in (None, to_text(vhost.name))]
        found = [(vhost, name, of) for vhost in vhosts for name, of in chosen_queues(vhost, selection.queues)]
        chunks += _queue_chunks(node, found)
        problems += [one for vhost in vhosts for one in problems_of(vhost, selection.queues)]
        matches = bool(found) if selection.queues else bool(vhosts)
        names = frozenset(name for _, name, _ in found) if selection.queues else names
    if Kind.TOPICS in kinds:
        log_chunks, missing, notes = survey_log(node, settings)
        chunks += log_chunks
        problems += missing
    return NodeSurvey(kinds, tuple(chunks), matches, names, tuple(problems), tuple(notes))


def _queue_chunks(node: Node, found: list[tuple[Vhost, bytes, list[QueueDirectory]]]) -> Iterator[QueueChunk]:
    """In order of the names."""
    shares: dict[tuple[bytes, str], int] = {}
    for vhost, name, directories in sorted(found, key=lambda one: (one[0].name, one[1], one[0].path)):
        key = vhost.name, vhost.path
        if key not in shares:
            pieces = sum(len(_extent(queue).pieces) for queue in vhost.queues)
            shares[key] = _store_bytes(vhost) // max(pieces, 1)
        for directory in directories:
            yield from _chunks(node, vhost, name, directory, shares[key])


def _chunks(node: Node, vhost: Vhost, name: bytes, directory: QueueDirectory, store_bytes: int) -> Iterator[QueueChunk]:
    """A segment each; one that only the journal knows belongs to the one before it, or to the first.

    ``store_bytes``: what is thought to lie in the store of each segment.
    """
    extent = _extent(directory)
    numbers = sorted(extent.pieces)
    if not numbers:
        size = extent.shared_bytes + (0 if extent.seq_ids_per_piece is None else store_bytes)
        yield QueueChunk(node, vhost.name, name, directory.path, range(sys.maxsize), size)
        return
    for number, (low, high) in zip(numbers, pairwise([0, *numbers[1:], sys.maxsize]), strict=True):
        yield QueueChunk(node, vhost.name, name, directory.path, range(low, high), extent.pieces[number] + store_bytes)


def _extent(directory: QueueDirectory) -> Extent:
    try:
        return directory.extent()
    except StorageError:  # the task that reads it will say so
        return Extent({}, 0, None)


def _size(files: FileSystem, path: str) -> int:
    try:
        return files.size(path)
    except StorageError:  # the task that reads it will say so
        return 0


def _store_bytes(vhost: Vhost) -> int:
    """Of the persistent store's files: which queue's bodies lie there is not known before the indexes are read."""
    if not vhost.path:
        return 0
    store = below(vhost.path, PERSISTENT_STORE)
    try:
        names = vhost.files.list(store)
    except StorageError:
        return 0
    return sum(_size(vhost.files, below(store, name)) for name in names if name.endswith(".rdq"))


@attrs.frozen
class Part:
    """What one task writes."""

    number: int
    chunks: tuple[Chunk, ...]


def pack(chunks: Iterable[Chunk], part_bytes: int) -> list[Part]:
    """Chunks in order, as parts of about so many bytes; neighbours become one chunk."""
    parts: list[list[Chunk]] = []
    room = 0
    for chunk in chunks:
        if room <= 0:
            parts.append([])
            room = part_bytes
        room -= max(chunk.byte_count, LEAST_BYTES)
        last = parts[-1][-1] if parts[-1] else None
        joined = None if last is None else last.joined(chunk)
        if joined is None:
            parts[-1].append(chunk)
        else:
            parts[-1][-1] = joined
    return [Part(number, tuple(chunks)) for number, chunks in enumerate(parts)]


def uncounted(parts: Sequence[Part]) -> list[Chunk]:
    """The chunks behind which their group goes on in another part."""
    return [chunk for part, behind in pairwise(parts) for chunk in part.chunks if chunk.group == behind.chunks[0].group]


def first_positions(parts: Sequence[Part], counts: Mapping[Chunk, int]) -> list[int]:
    """With which position each part begins, where the chunks that matter are counted."""
    found: list[int] = []
    group: object = None
    position = 0
    for part in parts:
        found.append(position if part.chunks[0].group == group else 0)
        for chunk in part.chunks:
            if chunk.group != group:
                group, position = chunk.group, 0
            position += counts.get(chunk, 0)
    return found
