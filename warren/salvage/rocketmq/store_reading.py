"""Reads messages from a topic store: one queue's in their order, all in physical order, and those with a key.

A message that cannot be read is a finding in its place; the others are returned.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from itertools import islice
from typing import Literal, TypeVar

import numpy as np

from warren.actors.engines.topics.errors import QueueRangeError
from warren.actors.engines.topics.queue_rows import rows_of_queues
from warren.msg_store.commit_log.commit_log import CommitLog
from warren.msg_store.commit_log.commit_log_format import Blank, Record, RecordError, decode
from warren.msg_store.commit_log.record_bodies import sent_records
from warren.msg_store.commit_log.record_columns import RecordColumns
from warren.queue_index.topics.consume_queue import ConsumeQueue
from warren.queue_index.topics.consume_queue_format import ENTRY_BYTES
from warren.salvage.queue_directory import UNREADABLE_BODY, Finding, Severity, damage_by
from warren.salvage.read_only import ReadOnlyFileSystem
from warren.salvage.rocketmq.batch_queues import BatchQueue
from warren.salvage.rocketmq.record_lines import carries
from warren.salvage.rocketmq.rocketmq_store import RocketmqStore
from warren.salvage.rocketmq.verify_commit_log import VerifiedCommitLog
from warren.salvage.rocketmq.verify_files import StoreFiles
from warren.salvage.rocketmq.verify_queues import ConsumeQueues
from warren.salvage.rocketmq.walking import walk_records
from warren.storage.errors import DataError, MessageError
from warren.storage.topic_settings import TopicSettings

T = TypeVar("T")

_MANY = 1024
"""Entries that are read at once."""
_FIELDS = "physical_offset", "size", "tags_code"


def queue_entries(
    queue: ConsumeQueue | BatchQueue, queue_offset: int | None, limit: int | None
) -> Iterator[tuple[int, int, int, int] | Finding]:
    """Queue offset, physical offset, size and tags code of the entries from ``queue_offset`` on, or the queue's first;
    of a queue of batches, from the batch on that has it.

    If a file is missing, a finding says so, and the next one's entries follow, as they would for a consumer. Raises
    :class:`QueueRangeError` if the queue ends before ``queue_offset``.
    """
    if queue_offset is not None and queue_offset > queue.max_offset:
        raise QueueRangeError(f"{_directory(queue)} ends at {queue.max_offset}, before {queue_offset}")
    if isinstance(queue, BatchQueue):
        units = (
            unit for units in queue.units(queue_offset or 0) for unit in units[["queue_offset", *_FIELDS]].tolist()
        )
        yield from islice(units, limit)
        return
    at = queue.min_offset if queue_offset is None else max(queue_offset, queue.min_offset)
    remaining = queue.max_offset if limit is None else limit
    while at < queue.max_offset and remaining > 0:
        entries = queue.entries(at, min(remaining, _MANY))
        if not len(entries):
            following = queue.mapped.after(at * ENTRY_BYTES)
            stop = queue.max_offset if following is None else following // ENTRY_BYTES
            expired = at * ENTRY_BYTES < queue.mapped.min_offset
            reason = "expired with their file" if expired else "the file with the entries is missing"
            detail = f"queue offset {at} to {stop - 1}: {reason}"
            yield Finding("no entries", "leftover" if expired else "damage", queue.mapped.directory, None, detail)
            at = stop
            continue
        yield from zip(range(at, at + len(entries)), *(entries[name].tolist() for name in _FIELDS), strict=True)
        at, remaining = at + len(entries), remaining - len(entries)


def queue_messages(
    opened: RocketmqStore, queue: ConsumeQueue | BatchQueue, queue_offset: int | None, limit: int | None
) -> Iterator[Record | Finding]:
    """One queue's messages; neighbouring entries whose records cannot be read make one finding."""
    directory = _directory(queue)
    if isinstance(queue, ConsumeQueue) and (queue_offset or 0) < queue.mapped.min_offset // ENTRY_BYTES:
        yield from _missing_head(opened, queue)
    lost = _Lost(directory)
    for entry in queue_entries(queue, queue_offset, limit):
        if isinstance(entry, Finding):
            yield from lost.end()
            yield entry
            continue
        number, physical_offset, size, _ = entry
        record = _message(opened.store.commit_log, physical_offset, size)
        if isinstance(record, Record):
            yield from lost.end()
            yield record
        else:
            yield from lost.add(number, *record)
    yield from lost.end()
    yield from (finding for finding in _missing(opened, "entries") if finding.path == directory)
    yield from (finding for finding in _missing(opened, "messages") if finding.path == directory)


def _directory(queue: ConsumeQueue | BatchQueue) -> str:
    return queue.directory if isinstance(queue, BatchQueue) else queue.mapped.directory


def _missing_head(opened: RocketmqStore, queue: ConsumeQueue) -> Iterator[Finding]:
    """The messages before the queue's first entry that the CommitLog still has: RocketMQ deletes no entry of theirs."""
    log, number = opened.store.commit_log, queue.mapped.min_offset // ENTRY_BYTES
    entries = queue.entries(number, 1)
    stop = int(entries["physical_offset"][0]) if number and len(entries) else log.min_offset
    if stop <= log.min_offset:
        return
    queue_offsets: list[int] = []
    for item in log.columns(log.min_offset, min(stop, log.end), with_keys=False, with_codes=False):
        if isinstance(item, RecordColumns):
            queue_offsets += (
                int(item.queue_offsets[row])
                for key, rows in rows_of_queues(item)
                if key == (queue.topic, queue.queue_id)
                for row in np.arange(len(item))[rows]
                if item.queue_offsets[row] < number
            )
    if queue_offsets:
        detail = f"queue offset {min(queue_offsets)} to {number - 1}: the file with the entries is missing"
        yield Finding("no entries", "damage", queue.mapped.directory, None, detail)


def _missing(opened: RocketmqStore, kind: Literal["messages", "entries"]) -> Iterator[Finding]:
    """What is missing although the store was closed."""
    for cut in opened.store.cuts:
        if cut.missing == kind:
            yield Finding(f"missing {kind}", "damage", cut.path, cut.file_offset, cut.what)


def _message(log: CommitLog, physical_offset: int, size: int) -> Record | tuple[Severity, str]:
    """A message, or why it cannot be read."""
    if physical_offset < log.min_offset:
        return "leftover", f"expired: the CommitLog begins at {log.min_offset}"
    try:
        return log.record(physical_offset, size)
    except DataError as error:
        return "damage", str(error)


class _Lost:
    """Consecutive messages that cannot be read for one reason."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._numbers: list[int] = []
        self._why: tuple[Severity, str] = ("damage", "")

    def add(self, number: int, severity: Severity, reason: str) -> Iterator[Finding]:
        if self._why != (severity, reason):
            yield from self.end()
            self._why = severity, reason
        self._numbers = [*self._numbers[:1], number]

    def end(self) -> Iterator[Finding]:
        if self._numbers:
            which = " to ".join(map(str, self._numbers))
            severity, reason = self._why
            yield Finding("no message", severity, self._directory, None, f"queue offset {which}: {reason}")
        self._numbers = []


def scan_records(opened: RocketmqStore) -> Iterator[Record | Blank | Finding]:
    """All of the CommitLog in physical order, and what is missing of it although the store was closed."""
    yield from walk_records(opened.store.commit_log)
    yield from _missing(opened, "messages")


def salvaged_records(files: ReadOnlyFileSystem, directory: str, settings: TopicSettings) -> Iterator[Record | Finding]:
    """All that is whole in the CommitLog as it lies, before any recovery: the walk of verify, past damage too.

    A record with nothing wrong but its checksum is included; it says so. Messages that the ConsumeQueues know of and
    the log does not have are reported.
    """
    with closing(StoreFiles.of(files, directory, settings)) as store_files:
        log = VerifiedCommitLog.of(store_files)
        queues = ConsumeQueues.of(store_files, log)
        for item in log.walk():
            if isinstance(item, Finding):
                yield item
                continue
            yield from queues.take(item)
            for position, size in zip(item.positions.tolist(), item.sizes.tolist(), strict=True):
                try:
                    yield decode(log.read(position, size))
                except RecordError as error:
                    yield log.finding("unreadable message", position, str(error))
        yield from queues.finish(log.end.physical_offset)


def as_sent(items: Iterable[Record | T], path: str, first_offset: int = 0) -> Iterator[Record | T | Finding]:
    """The messages of records as their producers sent them; ``path``: whose records they are.

    ``first_offset``: of a batch, only its messages from this queue offset on.
    A record whose body is not what its flags say is a finding.
    """
    for item in items:
        if isinstance(item, Record):
            try:
                messages = sent_records(item)
                yield from messages if len(messages) == 1 else _from(messages, first_offset)
            except MessageError as error:
                yield unreadable_body(item, path, error)
        else:
            yield item


def _from(messages: Sequence[Record], first_offset: int) -> Iterator[Record]:
    return (message for message in messages if message.queue_offset >= first_offset)


def unreadable_body(record: Record, path: str, error: MessageError) -> Finding:
    """The finding about a record that :func:`~warren.msg_store.commit_log.record_bodies.sent_records` refuses."""
    place = f"physical offset {record.physical_offset}, of {record.topic!r}, queue {record.queue_id}"
    return Finding(UNREADABLE_BODY, "damage", path, None, f"{place}, queue offset {record.queue_offset}: {error}")


def exact(opened: RocketmqStore, topic: str, key: str, physical_offsets: list[int]) -> Iterator[Record | Finding]:
    """The messages among the index's answers that do have the key, each once."""
    log = opened.store.commit_log
    for physical_offset in dict.fromkeys(physical_offsets):
        try:
            record = log.record(physical_offset)
        except DataError as error:
            yield damage_by(error, "unreadable message")
            continue
        if carries(record, topic, key):
            yield record
