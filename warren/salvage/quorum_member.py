"""One directory of a quorum queue, open: its log, and the messages that the replay finds in it.

A queue has one directory on each node that it is a member on. The node's write-ahead logs hold the entries of all of
its queues; they are scanned once for all of them, and what is wrong with them is told with the first of the node's
directories.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property
from typing import Final

import attrs

from queue_index.message_format import message_facts
from queue_index.quorum.commands import Command, Enqueue, Requeue
from queue_index.quorum.config import CONFIG_NAME, QueueConfig, read_config
from queue_index.quorum.decoding import EntryDecoder
from queue_index.quorum.log import LogEntry, QuorumLog, WalEntries, WalIndex, is_wal_name
from queue_index.quorum.node_tables import META_FILE, NAMES_FILE, read_applied, read_uids
from queue_index.quorum.problems import Problem
from queue_index.quorum.ready_queues import QueuedMessage
from queue_index.quorum.replay import Replayed, replay
from storage.errors import DataError, MessageError, StorageError, TermError
from warren.salvage.names import printable, to_text
from warren.salvage.queue_directory import MISSING_BODY, UNREADABLE_BODY, UNREADABLE_QUEUE, Finding, StoredMessage
from warren.salvage.read_only import ReadOnlyFileSystem, below

_VERSION: Final = b"\x83"
"""What a term begins with that stands alone."""


def encoded_in(entry: LogEntry, command: Enqueue | Requeue) -> bytes:
    """The message in an entry."""
    return _VERSION + entry.data[command.body.start : command.body.end]


class NodeWals:
    """The nodes that queues' directories lie in: their write-ahead logs, and what else lies there.

    Each is looked at once, when it is asked for.
    """

    def __init__(self, files: ReadOnlyFileSystem) -> None:
        self._files = files
        self._scanned: dict[str, WalIndex] = {}
        self._beside: dict[str, list[str]] = {}
        self._byte_counts: dict[str, int] = {}
        self._applied: dict[str, dict[bytes, int] | None] = {}

    def of(self, member: str) -> WalIndex:
        """Of the node in whose folder that queue's directory lies."""
        node = posixpath.dirname(member)
        if node not in self._scanned:
            self._scanned[node] = WalIndex.scan(self._files, wal_paths(self._files, node))
        return self._scanned[node]

    def applied(self, member: str) -> int | None:
        """Up to which entry the node had come with that queue, by what it says; ``None`` where nothing can be read."""
        node = posixpath.dirname(member)
        if node not in self._applied:
            path = below(node, META_FILE)
            try:
                self._applied[node] = read_applied(self._files.read(path), path)
            except (DataError, StorageError):
                self._applied[node] = None
        applied = self._applied[node]
        return None if applied is None else applied.get(posixpath.basename(member).encode(), 0)

    def beside(self, member: str) -> list[str]:
        """The directories of all queues of its node, by name."""
        node = posixpath.dirname(member)
        if node not in self._beside:
            self._beside[node] = directories(self._files, node)
        return self._beside[node]

    def problems_at(self, member: str) -> tuple[Problem, ...]:
        """What is told with that directory of its node's write-ahead logs: with the first one all, with others nothing.

        Entries of a queue without a directory are left over: it was deleted, or its name in the log is damaged.
        """
        beside = self.beside(member)
        if member != next((one for one in beside if not is_left_of_deletion(self._files, one)), None):
            return ()
        wal, known = self.of(member), {posixpath.basename(directory).encode() for directory in beside}
        gone = [wal.of(uid) for uid in wal.uids if uid not in known]
        return (*wal.problems, *(_without_directory(entries, posixpath.dirname(member)) for entries in gone))

    def share_of(self, member: str) -> int:
        """The bytes of its node's write-ahead logs, shared among the node's queues."""
        node = posixpath.dirname(member)
        if node not in self._byte_counts:
            self._byte_counts[node] = sum(self._files.size(path) for path in wal_paths(self._files, node))
        return self._byte_counts[node] // max(len(self.beside(member)), 1)


def _without_directory(entries: WalEntries, node: str) -> Problem:
    path = entries.runs[0].path if entries.runs else node
    detail = f"{entries.count} entries of {printable(to_text(entries.uid))}, which has no directory"
    return Problem("leftover log entries", "leftover", path, None, detail)


def wal_paths(files: ReadOnlyFileSystem, node: str) -> list[str]:
    """The write-ahead logs in a node's folder."""
    return [below(node, name) for name in files.list(node) if is_wal_name(name)]


def is_left_of_deletion(files: ReadOnlyFileSystem, directory: str) -> bool:
    """Whether its queue was deleted while the node wrote a segment of it: the file came back, and its folder with it.

    It has no config then, and among the node's names it is not. Where these cannot be read, nobody knows.
    """
    if files.exists(below(directory, CONFIG_NAME)):
        return False
    path = below(posixpath.dirname(directory), NAMES_FILE)
    try:
        return posixpath.basename(directory).encode() not in read_uids(files.read(path), path)
    except (DataError, StorageError):
        return False


def directories(files: ReadOnlyFileSystem, place: str) -> list[str]:
    """What lies in ``place`` and is a directory."""
    if not files.is_directory(place):
        return []
    return [inner for name in files.list(place) if files.is_directory(inner := below(place, name))]


@attrs.define(eq=False, slots=False)
class Member:
    """One of a queue's directories."""

    path: str
    config: QueueConfig | None
    """``None``: there is none that can be read."""
    log: QuorumLog
    wal_records: int
    """Entries that the node's write-ahead logs have of it."""
    wal_problems: tuple[Problem, ...]
    """Of the node's write-ahead logs, if this is where they are told."""
    applied: int | None
    """Up to this entry the node had come; ``None``: it does not say."""
    _decoder: EntryDecoder = attrs.Factory(EntryDecoder)

    @classmethod
    def open(cls, files: ReadOnlyFileSystem, path: str, wals: NodeWals) -> Member:
        """What cannot be read of it is told by :attr:`log`, and of its config by whoever found the place."""
        config = None
        with suppress(DataError, StorageError):
            config = read_config(files, path)
        wal = wals.of(path)
        entries = wal.of(posixpath.basename(path).encode() if config is None else config.uid)
        log = QuorumLog.open(files, path, entries)
        return cls(path, config, log, entries.count, wals.problems_at(path), wals.applied(path))

    def replayed(self) -> Replayed:
        """Raises :class:`DataError` for a version that is not known."""
        return replay(self.log, self.config, self.applied)

    @cached_property
    def log_problems(self) -> tuple[Problem, ...]:
        """What is wrong with the log, for which all of it is read."""
        return tuple(self.log.problems())

    @property
    def is_sound(self) -> bool:
        """Whether nothing of the log is damaged."""
        return not any(problem.severity == "damage" for problem in self.log_problems)

    def damage(self, replayed: Replayed) -> Iterator[Finding]:
        """What of the queue may be missing, as far as a replay tells it."""
        for problem in (*self.wal_problems, *self.log.opening_problems, *replayed.missing, *replayed.problems):
            if problem.severity == "damage":
                yield of_problem(problem)

    def message(self, queued: QueuedMessage) -> StoredMessage | Finding:
        """A live message, with its body from the log."""
        try:
            entry = self.log.read(queued.index)
        except DataError as error:
            return Finding(MISSING_BODY, "damage", error.path, error.offset, f"message {queued.index}: {error.reason}")
        try:
            command = self._decoder.decode(entry.data).command
            return _stored(entry, command, queued.delivery_count, queued.expiry_ms, acked=False)
        except (MessageError, TermError) as error:
            return Finding(UNREADABLE_BODY, "damage", entry.path, entry.offset, f"message {queued.index}: {error}")

    def acked(self, live: set[int]) -> Iterator[StoredMessage]:
        """The messages in the log that are in the queue no longer; once each, however often they were written again."""
        written_again = {command.old_index for _, command in self.commands() if isinstance(command, Requeue)}
        for entry, command in self.commands():
            if isinstance(command, Enqueue | Requeue) and entry.index not in live and entry.index not in written_again:
                try:
                    yield _stored(entry, command, 0, None, acked=True)
                except MessageError:
                    continue

    def commands(self) -> Iterator[tuple[LogEntry, Command]]:
        """All entries that can be read, with their commands."""
        for entry in self.log.entries():
            if isinstance(entry, LogEntry):
                try:
                    yield entry, self._decoder.decode(entry.data).command
                except TermError:
                    continue


def _stored(
    entry: LogEntry, command: Command, delivery_count: int, expiry_ms: int | None, *, acked: bool
) -> StoredMessage:
    if not isinstance(command, Enqueue | Requeue):
        raise MessageError(f"the entry is a command without a message ({type(command).__name__})")
    encoded = encoded_in(entry, command)
    msg_id, persistent = message_facts(encoded)
    return StoredMessage(
        seq_id=entry.index,
        msg_id=msg_id,
        persistent=persistent,
        redelivered=delivery_count > 0,
        acked=acked,
        expiry_us=0 if expiry_ms is None else expiry_ms * 1000,
        encoded=encoded,
        path=entry.path,
        offset=entry.offset,
        delivery_count=delivery_count,
    )


def best_of(members: list[Member]) -> Member:
    """The member whose log is read."""
    if len(members) == 1:
        return members[0]
    return max(members, key=lambda member: (member.is_sound, member.log.last_term or 0, member.log.last_index or 0))


def of_problem(problem: Problem) -> Finding:
    """What a file has, as a finding."""
    return Finding(problem.kind, problem.severity, problem.path, problem.offset, problem.detail)


def unreadable(error: DataError) -> Finding:
    """Nothing comes out of the queue."""
    return Finding(UNREADABLE_QUEUE, "damage", error.path, error.offset, error.reason)
