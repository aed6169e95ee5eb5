"""A quorum queue's directories, read as a restarting broker reads them: the log is replayed.

A restarted broker finds every process of the previous run gone. What was out at a consumer comes first, in the order in
which it returned; then the rest, by index. A message was delivered before if its delivery count is above 0.
Messages that this return takes past the queue's delivery limit would be dead-lettered or dropped by the restart itself:
here they stay at their places, and a finding says so.

If there are several directories, members' or of a queue that was declared again, one is read: among those with sound
logs the one with the latest term, then the longest, as the members would elect it. Everything that a log of one node
holds counts as committed.

The log as columns has all messages that were written to it, left in the queue or not: it is read twice, once to replay
what is left, then for its messages.

Memory is that of the messages that are live, and about 16 bytes for each entry that is still in a write-ahead log, and
for each live message while columns are made.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from typing import Final

import attrs
import numpy as np
import numpy.typing as npt

from warren.queue_index.message.message_format import MSG_ID_BYTES, message_facts
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
    SizedFile,
    StoredMessage,
    Summary,
)
from warren.salvage.queue_reader import QueueDirectory
from warren.salvage.quorum import quorum_findings
from warren.salvage.quorum.fifo.commands import Enqueue, Requeue
from warren.salvage.quorum.fifo.machine import QuorumMachine
from warren.salvage.quorum.fifo.replay import Replayed
from warren.salvage.quorum.member import Member, best_of, encoded_in, unreadable
from warren.salvage.quorum.quorum_node import QuorumNodes
from warren.salvage.quorum.ra.entry_runs import LogEntry
from warren.salvage.read_only import ReadOnlyFileSystem, below
from warren.storage.errors import DataError, MessageError, TermError

KIND: Final = "rabbitmq-quorum"

_ROWS: Final = 4096
_PATHS: Final = 64
"""Maximum number of files for the rows of one batch."""


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
    kind = KIND

    def summary(self, report: OnFinding = lambda _: None) -> Summary:
        try:
            member, replayed = self._replayed()
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
        paths = [below(member, name) for member in self.members for name in self.files.list(member)]
        own = tuple(SizedFile(path, self.files.size(path)) for path in paths if not self.files.is_directory(path))
        its_nodes = [nodes.of(member) for member in self.members]
        logs = {log: None for node in its_nodes for log in node.logs}
        return Extent({}, own, None, tuple(logs), sum(node.logs_share_bytes for node in its_nodes))

    def deliveries(
        self, only: range | None, *, include_acked: bool
    ) -> Iterator[SegmentColumns | StoredMessage | Finding]:
        try:
            member, replayed = self._replayed()
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
            return self._replayed()[1].machine.ready_count
        except DataError:
            return 0

    def deliverable(self, only: range) -> Iterator[tuple[int, MsgIds]]:
        yield self.count(only), np.empty(0, MSG_IDS)

    def index_columns(self, only: range | None = None) -> Iterator[IndexColumns | Finding]:
        try:
            member, replayed = self._replayed()
        except DataError as error:
            yield unreadable(error)
            return
        yield from member.damage(replayed)
        left = _Left.of(replayed.machine)
        del replayed
        yield from _entry_columns(member, left)

    def own_findings(self) -> Iterator[Finding | Reference]:
        return quorum_findings.of_members(self.each())

    def each(self) -> list[Member]:
        """Its directories, in order of their paths."""
        nodes = self.nodes or QuorumNodes(self.files)
        return [Member.open(self.files, directory, nodes) for directory in self.members]

    def chosen(self) -> Member:
        """The directory that is read."""
        return best_of(self.each())

    def _replayed(self) -> tuple[Member, Replayed]:
        """That directory, and its log replayed. Raises :class:`DataError`."""
        member = self.chosen()
        return member, member.replayed()


# ── the log as columns ───────────────────────────────────────────────────────────────────────────────────────────────


@attrs.frozen(eq=False, repr=False)
class _Left:
    """The messages that are left in the queue, by index."""

    indexes: npt.NDArray[np.int64]
    expiries_us: npt.NDArray[np.uint64]

    @classmethod
    def of(cls, machine: QuorumMachine) -> _Left:
        facts = ((queued.index, (queued.expiry_ms or 0) * 1000) for queued in machine.ready())
        table = np.fromiter(facts, [("index", np.int64), ("expiry_us", np.uint64)], machine.ready_count)
        table.sort(order="index")
        return cls(table["index"].copy(), table["expiry_us"].copy())

    def among(self, seq_ids: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.uint64]]:
        """Which messages are left, and when they expire."""
        at = np.searchsorted(self.indexes, seq_ids)
        inside = at < len(self.indexes)
        are_left = np.zeros(len(seq_ids), np.bool_)
        are_left[inside] = self.indexes[at[inside]] == seq_ids[inside]
        expiries_us = np.zeros(len(seq_ids), np.uint64)
        expiries_us[are_left] = self.expiries_us[at[are_left]]
        return are_left, expiries_us


@attrs.define
class _PendingEntries:
    """Entries that are collected for a batch."""

    seq_ids: list[int] = attrs.Factory(list)
    msg_ids: list[bytes] = attrs.Factory(list)
    persistent: list[bool] = attrs.Factory(list)
    sizes: list[int] = attrs.Factory(list)
    paths: dict[str, int] = attrs.Factory(dict)
    path_of: list[int] = attrs.Factory(list)
    offsets: list[int] = attrs.Factory(list)

    @property
    def is_full(self) -> bool:
        return len(self.seq_ids) >= _ROWS or len(self.paths) >= _PATHS

    def add(self, entry: LogEntry, command: Enqueue | Requeue) -> None:
        try:
            msg_id, persistent = message_facts(encoded_in(entry, command))
        except (MessageError, TermError):  # the reader of the message reports it
            msg_id, persistent = b"", True
        self.seq_ids.append(entry.index)
        self.msg_ids.append(msg_id)
        self.persistent.append(persistent)
        self.sizes.append(command.body.size)
        self.path_of.append(self.paths.setdefault(entry.path, len(self.paths)))
        self.offsets.append(entry.offset)

    def columns(self, left: _Left) -> IndexColumns:
        count, seq_ids = len(self.seq_ids), np.array(self.seq_ids, np.int64)
        are_left, expiries_us = left.among(seq_ids)
        ids = b"".join(msg_id.ljust(MSG_ID_BYTES, b"\0")[:MSG_ID_BYTES] for msg_id in self.msg_ids)
        return IndexColumns(
            seq_ids=seq_ids,
            msg_ids=np.frombuffer(ids, np.uint8).reshape(count, MSG_ID_BYTES),
            has_msg_id=np.array([len(msg_id) == MSG_ID_BYTES for msg_id in self.msg_ids]),
            persistent=np.array(self.persistent),
            delivered=None,
            acked=~are_left,
            expiries_us=expiries_us,
            sizes=np.array(self.sizes, np.int64),
            embedded=np.ones(count, np.bool_),
            in_journal=np.zeros(count, np.bool_),
            paths=tuple(self.paths),
            path_of=np.array(self.path_of, np.int8),
            offsets=np.array(self.offsets, np.int64),
        )


def _entry_columns(member: Member, left: _Left) -> Iterator[IndexColumns]:
    """A row for each entry that holds a message, by index."""
    rows = _PendingEntries()
    for entry, command in member.commands():
        if isinstance(command, Enqueue | Requeue):
            rows.add(entry, command)
            if rows.is_full:
                yield rows.columns(left)
                rows = _PendingEntries()
    if rows.seq_ids:
        yield rows.columns(left)
