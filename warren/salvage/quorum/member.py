"""One directory of a quorum queue, open: its log, and the messages that the replay finds in it.

A queue has one directory on each node that it is a member on (:mod:`warren.salvage.quorum.quorum_node`).
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property
from typing import Final

import attrs

from warren.queue_index.message.message_format import message_facts
from warren.salvage.queue_directory import (
    MISSING_BODY,
    UNREADABLE_BODY,
    UNREADABLE_QUEUE,
    Finding,
    StoredMessage,
    damage_by,
)
from warren.salvage.quorum.fifo.commands import Command, Enqueue, Requeue
from warren.salvage.quorum.fifo.decoding import EntryDecoder
from warren.salvage.quorum.fifo.ready_queues import QueuedMessage
from warren.salvage.quorum.fifo.replay import Replayed, replay
from warren.salvage.quorum.quorum_node import QuorumNodes
from warren.salvage.quorum.ra.config import QueueConfig, read_config
from warren.salvage.quorum.ra.entry_runs import LogEntry
from warren.salvage.quorum.ra.log import QuorumLog
from warren.salvage.read_only import ReadOnlyFileSystem
from warren.storage.errors import DataError, MessageError, StorageError, TermError

_VERSION: Final = b"\x83"
"""The first byte of a term that stands alone."""


def encoded_in(entry: LogEntry, command: Enqueue | Requeue) -> bytes:
    """The message in an entry."""
    return _VERSION + entry.data[command.body.start : command.body.end]


@attrs.define(eq=False, repr=False, slots=False)
class Member:
    """One of a queue's directories."""

    path: str
    config: QueueConfig | None
    """``None`` if it cannot be read, or is another queue's."""
    log: QuorumLog
    wal_records: int
    """Entries that the node's write-ahead logs have of it."""
    wal_problems: tuple[Finding, ...]
    """Problems of the node's write-ahead logs, if they are reported with this queue."""
    applied: int | None
    """The last entry that the node has applied; ``None``: unknown."""
    _decoder: EntryDecoder = attrs.Factory(EntryDecoder)

    @classmethod
    def open(cls, files: ReadOnlyFileSystem, path: str, nodes: QuorumNodes) -> Member:
        """Open a queue's directory. :attr:`log` has the problems of the log, ``quorum_places`` those of the config."""
        config = None
        with suppress(DataError, StorageError):
            config = read_config(files, path)
        node = nodes.of(path)
        if config is not None and node.is_anothers(path, config.uid):
            config = None
        entries = node.wal.of(posixpath.basename(path).encode() if config is None else config.uid)
        applied = node.applied(path)
        log = QuorumLog(files, path, entries, applied)
        return cls(path, config, log, entries.count, node.problems_at(path), applied)

    def replayed(self) -> Replayed:
        """Raises :class:`DataError` for a version that is not known."""
        return replay(self.log, self.config, self.applied)

    @cached_property
    def log_problems(self) -> tuple[Finding, ...]:
        """The problems of the log; all of it is read."""
        return tuple(self.log.problems())

    @property
    def is_sound(self) -> bool:
        """Whether nothing of the log is damaged."""
        return not any(problem.severity == "damage" for problem in self.log_problems)

    def damage(self, replayed: Replayed) -> Iterator[Finding]:
        """The damage that a replay finds: parts of the queue may be missing."""
        for problem in (*self.wal_problems, *self.log.opening_problems, *replayed.missing, *replayed.problems):
            if problem.severity == "damage":
                yield problem

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
        """The messages in the log that are no longer in the queue; once each, even if they were requeued."""
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


def unreadable(error: DataError) -> Finding:
    """The finding about a queue that cannot be read."""
    return damage_by(error, UNREADABLE_QUEUE)
