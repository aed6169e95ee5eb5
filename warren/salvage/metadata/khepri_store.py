"""The metadata of a RabbitMQ 4 as Khepri keeps it: the log of a Ra server, whose machine is a tree.

::

    coordination/<node's name>/<UId>/config      names the store, rabbitmq_metadata
                                    /…           segments and snapshots     (warren.salvage.quorum.ra)
                              /00000001.wal      the log of all servers of the folder

    {khepri_machine, Config, Tree, …}            the state in a snapshot; from version 1 of the machine with
                                                 #{Ref => {Reply, Expiry}} at its end
    {'$usr', Meta, Command, ReplyMode}           an entry

    {put, Pattern, Payload, Options}
    {delete, Pattern, Options}
    {tx, Function, Arguments}                    :mod:`warren.salvage.metadata.khepri_transactions`
    {dedup, Ref, Expiry, Command}                sent again with the same reference until it is answered: counts once

All other commands (``dedup_ack``, projections, triggers) leave the tree as it is. What cannot be replayed is reported,
and left out: the definitions may then be older in some respect than those of the node. In a cluster the last entries
of a member may be ones that the cluster has not agreed upon; they count.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from typing import Final

import attrs

from warren.salvage.metadata.khepri_metadata import KhepriMetadata
from warren.salvage.metadata.khepri_transactions import replay_transaction
from warren.salvage.metadata.khepri_tree import TreeNode
from warren.salvage.queue_directory import Finding, OnFinding
from warren.salvage.quorum.quorum_node import QuorumNode
from warren.salvage.quorum.ra.entry_runs import BadEntry, Hole, LogEntry
from warren.salvage.quorum.ra.file_names import CONFIG_NAME
from warren.salvage.quorum.ra.log import HOLE, QuorumLog
from warren.salvage.quorum.ra.wal_scan import UNREADABLE_RECORD
from warren.salvage.read_only import ReadOnlyFileSystem, below, directories
from warren.storage.erlang_terms import Atom, Term, decode
from warren.storage.errors import DataError, MessageError, StorageError, TermError

COORDINATION_FOLDER: Final = "coordination"
"""In a node's data directory."""
_STORE: Final = b"rabbitmq_metadata"
_CONFIG_BYTES: Final = 1 << 16
_WITHOUT_EFFECT: Final = frozenset(
    {
        "dedup_ack", "drop_dedups", "register_trigger", "ack_triggered",
        "register_projection", "unregister_projection", "unregister_projections",
    }
)  # fmt: skip


def khepri_members(files: ReadOnlyFileSystem, directory: str) -> list[str]:
    """The directories of the metadata's log in a node's data directory: one, unless several nodes' are put together."""
    nodes = directories(files, below(directory, COORDINATION_FOLDER))
    return [member for node in nodes for member in directories(files, node) if _is_metadata(files, member)]


def _is_metadata(files: ReadOnlyFileSystem, member: str) -> bool:
    """Whether a config names the store; that it does is enough, so a damaged one may do."""
    path = below(member, CONFIG_NAME)
    try:
        return files.exists(path) and files.size(path) <= _CONFIG_BYTES and _STORE in files.read(path)
    except StorageError:
        return False


def read_khepri(files: ReadOnlyFileSystem, member: str, report: OnFinding) -> KhepriMetadata:
    """What the log in ``member`` has; ``report`` gets what could not be read or replayed."""
    node = QuorumNode(files, posixpath.dirname(member))
    log = QuorumLog(files, member, node.wal.of(posixpath.basename(member).encode()), node.applied(member))
    for problem in (*node.wal.problems, *log.opening_problems):
        report(problem)
    return _Replay.begin(log, report).replayed()


@attrs.define
class _Replay:
    log: QuorumLog
    report: OnFinding
    metadata: KhepriMetadata
    answered: set[Term]
    """The references of commands that have been applied."""

    @classmethod
    def begin(cls, log: QuorumLog, report: OnFinding) -> _Replay:
        """At the snapshot, if there is one that can be read."""
        snapshot = log.snapshot
        if snapshot is None:
            return cls(log, report, KhepriMetadata(), set())
        try:
            return cls(log, report, *_state(snapshot.state()))
        except (MessageError, DataError) as error:
            report(Finding("damaged snapshot", "damage", snapshot.path, None, f"no tree: {error}"))
        return cls(log, report, KhepriMetadata(), set())

    def replayed(self) -> KhepriMetadata:
        for entry in self.log.entries():
            if isinstance(entry, LogEntry):
                self._apply(entry)
            else:
                self.report(self._missing(entry))
        return self.metadata

    def _missing(self, entry: Hole | BadEntry) -> Finding:
        if isinstance(entry, BadEntry):
            return Finding(
                UNREADABLE_RECORD, "damage", entry.path, entry.offset, f"entry {entry.index}: {entry.reason}"
            )
        detail = f"no file has the entries {entry.first} to {entry.last}; what they changed may be missing"
        return Finding(HOLE, "damage", self.log.directory, None, detail)

    def _apply(self, entry: LogEntry) -> None:
        try:
            self._run(_command_in(decode(entry.data)))
        except (MessageError, TermError, ValueError, TypeError, LookupError) as error:
            detail = f"entry {entry.index}: not replayed, so what it changed may be missing: {error}"
            self.report(Finding("unreadable change", "damage", entry.path, entry.offset, detail))

    def _run(self, command: Term | None) -> None:
        match command:
            case ("put", [*pattern], payload, _):
                self.metadata.tree.put(pattern, payload)
            case ("delete", [*pattern], _):
                self.metadata.delete(pattern)
            case ("tx", function, []):
                replay_transaction(self.metadata, function)
            case ("dedup", reference, _, inner):
                if reference not in self.answered:
                    self.answered.add(reference)
                    self._run(inner)
            case None:
                pass
            case (Atom() as name, *_) if name in _WITHOUT_EFFECT:
                pass
            case _:
                raise MessageError(f"{command!r:.100} in place of a command")


def _state(state: Term) -> tuple[KhepriMetadata, set[Term]]:
    """The metadata of a machine's state, and the references of commands that it has applied."""
    match state:
        case ("khepri_machine", _, tree, _, _, _, _, *rest):
            return KhepriMetadata(TreeNode.from_term(tree)), set(
                rest[0] if rest and isinstance(rest[0], Mapping) else ()
            )
        case _:
            raise MessageError(f"{state!r:.100} in place of a machine's state")


def _command_in(entry: Term) -> Term | None:
    """The command to the machine in an entry; ``None``: Ra's own."""
    match entry:
        case ("$usr", _, command, _):
            return command
        case "undefined" | ("noop" | "machine_version", *_):
            return None
        case (Atom() as name, *_) if name.startswith("$ra_"):
            return None
        case _:
            raise MessageError(f"{entry!r:.100} in place of an entry")
