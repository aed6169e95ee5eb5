"""A quorum queue's directories, read as a restarting broker reads them: the log is replayed.

A restarted broker finds every process of the previous run gone. What was out at a consumer comes first, in the order in
which it returned; then the rest, by index. A message was delivered before if its delivery count is above 0.
Messages that this return takes past the queue's delivery limit would be dead-lettered or dropped by the restart itself:
here they stay at their places, and a finding says so.

If there are several directories, members' or of a queue that was declared again, one is read: among those with sound
logs the one with the latest term, then the longest, as the members would elect it. Everything that a log of one node
holds counts as committed.

Memory is that of the messages that are live, and about 16 bytes for each entry that is still in a write-ahead log.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from typing import Final

import attrs
import numpy as np

from warren.salvage.classic.needed_body import Reference
from warren.salvage.names import Json
from warren.salvage.queue_directory import (
    MSG_IDS,
    BodySource,
    Extent,
    Finding,
    IndexColumns,
    MsgIds,
    OnFinding,
    SegmentColumns,
    StoredMessage,
    Summary,
)
from warren.salvage.queue_reader import QueueDirectory
from warren.salvage.quorum import entry_columns, quorum_findings
from warren.salvage.quorum.member import Member, best_of, unreadable
from warren.salvage.quorum.quorum_node import QuorumNodes
from warren.salvage.read_only import ReadOnlyFileSystem, below
from warren.storage.errors import DataError

KIND: Final = "rabbitmq-quorum"


@attrs.frozen(eq=False, repr=False, kw_only=True)
class QuorumDirectory(QueueDirectory):
    """Implements :class:`warren.salvage.queue_reader.QueueDirectory`. It has no segments: it is read as a whole."""

    files: ReadOnlyFileSystem
    path: str
    name: bytes
    members: tuple[str, ...]
    """Its directories."""
    bodies: BodySource
    """Not used: the bodies are in the log."""
    nodes: QuorumNodes | None = None
    """``None``: they are read for this queue alone."""

    @property
    def kind(self) -> str:
        return KIND

    def summary(self, report: OnFinding = lambda _: None) -> Summary:
        try:
            member = self.chosen()
            replayed = member.replayed()
        except DataError as error:
            report(unreadable(error))
            return Summary(0, 0, {"type": "quorum", "unreadable": str(error)})
        for finding in member.damage(replayed):
            report(finding)
        machine, log = replayed.machine, member.log
        snapshot = log.snapshot
        details: dict[str, Json] = {
            "type": "quorum",
            "machine_version": machine.machine_version,
            "outstanding": replayed.outstanding,
            "past_limit": len(machine.messages.past_limit),
            "past_length": len(machine.messages.past_length),
            "dead_letters": len(machine.messages.dead_letters),
            "log": {"first_index": log.first_index, "last_index": log.last_index, "term": log.last_term},
            "snapshot": None
            if snapshot is None
            else {"index": snapshot.index, "term": snapshot.term, "machine_version": snapshot.machine_version},
            "segments": [
                {
                    "name": posixpath.basename(segment.path),
                    "entries": segment.entries,
                    "first_index": segment.first_index,
                    "last_index": segment.last_index,
                }
                for segment in log.segments
            ],
            "wal_records": member.wal_records,
            "members": [node for _, node in replayed.members],
            "directories": [posixpath.basename(directory) for directory in self.members],
        }
        return Summary(machine.ready_count, machine.payload_bytes, details)

    def extent(self) -> Extent:
        nodes = self.nodes or QuorumNodes(self.files)
        return Extent({}, sum(self._byte_count(member, nodes) for member in self.members), None)

    def deliveries(
        self, only: range | None, *, include_acked: bool
    ) -> Iterator[SegmentColumns | StoredMessage | Finding]:
        try:
            member = self.chosen()
            replayed = member.replayed()
        except DataError as error:
            yield unreadable(error)
            return
        yield from member.damage(replayed)
        live: set[int] = set()
        for queued in replayed.machine.ready():
            if include_acked:
                live.add(queued.index)
            yield member.message(queued)
        if include_acked:
            yield from member.acked(live)

    def count(self, only: range) -> int:
        try:
            return self.chosen().replayed().machine.ready_count
        except DataError:
            return 0

    def deliverable(self, only: range) -> Iterator[tuple[int, MsgIds]]:
        yield self.count(only), np.empty(0, MSG_IDS)

    def index_columns(self, only: range | None = None) -> Iterator[IndexColumns | Finding]:
        try:
            member = self.chosen()
            replayed = member.replayed()
        except DataError as error:
            yield unreadable(error)
            return
        yield from member.damage(replayed)
        left = entry_columns.Left.of(replayed.machine)
        del replayed
        yield from entry_columns.of_member(member, left)

    def own_findings(self) -> Iterator[Finding | Reference]:
        return quorum_findings.of_members(self.each())

    def each(self) -> list[Member]:
        """Its directories, in order of their paths."""
        nodes = self.nodes or QuorumNodes(self.files)
        return [Member.open(self.files, directory, nodes) for directory in self.members]

    def chosen(self) -> Member:
        """The directory that is read."""
        return best_of(self.each())

    def _byte_count(self, member: str, nodes: QuorumNodes) -> int:
        """Of a directory, with its share of the node's write-ahead logs."""
        paths = (below(member, name) for name in self.files.list(member))
        return nodes.of(member).wal_share + sum(
            self.files.size(path) for path in paths if not self.files.is_directory(path)
        )
