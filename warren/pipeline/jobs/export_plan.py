"""How an export is cut into parts: what lies in the nodes, and which part writes what.

The order of an export is that of nodes (by their names), vhosts, queues (by the bytes of their names) and positions; a
node's topic store comes after its queues. A *chunk* is a piece of that order that lies in one place: some segments
of one queue's directory, or a range of bytes of a CommitLog. A *part* is a few chunks in a row, and becomes one file.

The first position of a part that begins in the middle of a queue is known when the chunks before it are counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from operator import itemgetter
from typing import Final

import attrs

from warren.salvage.export import Selection, chosen_queues, problems_of, unread_parts
from warren.salvage.names import split_level, to_text
from warren.salvage.queue_directory import Finding
from warren.salvage.rocketmq.walking import gap, gapless_ranges
from warren.tables.filters import Pushdown
from warren.tables.places import Kind, Node
from warren.tables.queue_parts import QueueCutter, QueuePart
from warren.tables.rocketmq.log_ranges import LogLayout, Range, ranges
from warren.tables.survey import recovered

LEAST_BYTES: Final = 64 << 10
"""What opening a queue costs, however small it is."""
FINEST_BYTES: Final = 16 << 20
"""The size of a range of a CommitLog, before ranges are put together."""


@attrs.frozen
class Chunk:
    """A piece of a node that lies in one place."""

    node: Node
    what: QueuePart | Range
    byte_count: int
    """Approximate."""

    @property
    def group(self) -> tuple[str, bytes | None, bytes | None]:
        """What its positions are counted in: the queues of one name in a vhost, or the topic store."""
        if isinstance(self.what, Range):
            return self.node.name, None, None
        return self.node.name, self.what.vhost, split_level(self.what.queue.name)[0]

    def joined(self, behind: Chunk) -> Chunk | None:
        """Return both as one chunk, or ``None`` if they are not neighbours."""
        what = self.what.joined(behind.what) if behind.node == self.node else None
        return None if what is None else Chunk(self.node, what, self.byte_count + behind.byte_count)


Part = tuple[Chunk, ...]
"""What one task writes."""


@attrs.frozen
class NodeSurvey:
    """What lies in a node."""

    kinds: Kind
    """The kinds that are exported."""
    chunks: tuple[Chunk, ...]
    """The smallest possible ones, in order."""
    matches: bool
    """Whether a selected queue (or vhost) exists."""
    names: frozenset[bytes]
    """The existing queues among those selected by name."""
    problems: tuple[Finding, ...]
    notes: tuple[str, ...]
    unread: tuple[Finding, ...]
    """What is not read of its queues, even if queues are selected by name."""


def survey_node(node: Node, selection: Selection, settings: Mapping[str, str]) -> NodeSurvey:
    """List the selected queues, and the topic store if no queues are selected by name."""
    wants_all = selection.vhost is None and not selection.queues
    contents = node.contents()
    kinds = contents.kinds & (Kind.BOTH if wants_all else Kind.QUEUES)
    chunks: list[Chunk] = []
    problems: list[Finding] = []
    notes: list[str] = []
    matches, names = False, frozenset[bytes]()
    unread: list[Finding] = []
    if Kind.QUEUES in kinds:
        vhosts = [vhost for vhost in contents.opened_vhosts() if selection.vhost in (None, to_text(vhost.name))]
        chosen = []
        for vhost in vhosts:
            cutter = QueueCutter(vhost, Pushdown(), spread_over=0)
            chosen += [
                (vhost.name, name, vhost.path, cutter, directories)
                for name, directories in chosen_queues(vhost, selection.queues)
            ]
        for _, _, _, cutter, directories in sorted(chosen, key=itemgetter(0, 1, 2)):
            pieces = [piece for directory in directories for piece in cutter.cut(directory)[1]]
            chunks += [Chunk(node, piece.part, piece.weight) for piece in pieces]
        problems += [problem for vhost in vhosts for problem in problems_of(vhost, selection.queues)]
        unread = [part for vhost in vhosts for part in unread_parts(vhost)]
        matches = bool(chosen if selection.queues else vhosts)
        names = frozenset(entry[1] for entry in chosen) if selection.queues else names
    if Kind.TOPICS in kinds:
        with recovered(node, settings) as opened:
            layout, log = LogLayout.of_recovered(node, opened), opened.store.commit_log
            problems += [gap(log, stop) for _, stop in gapless_ranges(log) if stop < log.end]
            notes = list(opened.notes)
        chunks += [
            Chunk(node, log_range, log_range.stop - log_range.start) for log_range in ranges(layout, FINEST_BYTES)
        ]
    return NodeSurvey(kinds, tuple(chunks), matches, names, tuple(problems), tuple(notes), tuple(unread))


def pack(chunks: Iterable[Chunk], part_bytes: int) -> list[Part]:
    """Return chunks, in order, as parts of about ``part_bytes``; neighbours become one chunk."""
    parts: list[list[Chunk]] = []
    room = 0
    for chunk in chunks:
        if room <= 0:
            parts.append([])
            room = part_bytes
        room -= max(chunk.byte_count, LEAST_BYTES)
        joined = parts[-1][-1].joined(chunk) if parts[-1] else None
        if joined is None:
            parts[-1].append(chunk)
        else:
            parts[-1][-1] = joined
    return [tuple(part) for part in parts]


Counts = dict[tuple[int, int], int]
"""The number of positions in a chunk, by the numbers of its part and of the chunk in it."""


def uncounted(parts: Sequence[Part]) -> list[tuple[int, int]]:
    """Return the places of the chunks whose group goes on in the next part."""
    return [
        (number, at)
        for number, (part, next_part) in enumerate(pairwise(parts))
        for at, chunk in enumerate(part)
        if chunk.group == next_part[0].group
    ]


def first_positions(parts: Sequence[Part], counts: Counts) -> list[int]:
    """Return the position with which each part begins, from the counts of the chunks that matter."""
    positions: list[int] = []
    group: object = None
    position = 0
    for number, part in enumerate(parts):
        positions.append(position if part[0].group == group else 0)
        for at, chunk in enumerate(part):
            if chunk.group != group:
                group, position = chunk.group, 0
            position += counts.get((number, at), 0)
    return positions
