"""Every ConsumeQueue of a store, beside the CommitLog; those in RocksDB are only named.

A record has an entry in its queue. RocketMQ 5 makes entries for two more kinds of records: one that is a batch has a
unit in its queue of batches, and one that names further queues (light message queues) has an entry in each of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from typing import Final

import attrs
import numpy as np

from warren.actors.engines.topics.names import LMQ_PREFIX, RETRY_PREFIX, SCHEDULE_TOPIC, SYSTEM_PREFIX
from warren.actors.engines.topics.queue_rows import QueueKey, rows_of_queues
from warren.actors.engines.topics.store_files import BATCH_QUEUES, CONSUME_QUEUES, rocksdb_reason
from warren.msg_store.commit_log.commit_log_format import decode_properties
from warren.msg_store.commit_log.record_columns import RecordColumns
from warren.queue_index.topics.consume_queue_format import ENTRY
from warren.salvage.queue_directory import Finding
from warren.salvage.read_only import below
from warren.salvage.rocketmq.batch_queues import UNIT, UNIT_BYTES
from warren.salvage.rocketmq.inference import queue_file_size
from warren.salvage.rocketmq.record_lines import number_in
from warren.salvage.rocketmq.verify_commit_log import VerifiedCommitLog
from warren.salvage.rocketmq.verify_consume_queue import Messages, VerifiedQueue
from warren.salvage.rocketmq.verify_files import StoreFiles, mapped_files
from warren.storage.columns import Longs

_MOST_QUEUE_ID: Final = (1 << 31) - 1

_BASE, _COUNT = "INNER_BASE", "INNER_NUM"
"""Properties of a record that is a batch: the queue offset of its first message, and how many it has."""
_QUEUES, _QUEUE_OFFSETS = "INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET"
"""Properties of a record that is in further queues: their names, with commas between them, and its numbers there."""


@attrs.define(eq=False, repr=False)
class ConsumeQueues:
    """Every queue of a store: those that have a directory, and those that only messages know of."""

    store_files: StoreFiles
    log: VerifiedCommitLog
    name_findings: list[Finding] = attrs.Factory(list)
    queues: dict[tuple[str, int], VerifiedQueue] = attrs.Factory(dict)
    batch_topics: Collection[str] = frozenset()
    """Topics whose queues have a unit for each record that is a batch."""
    in_rocksdb: bool = False
    _batch_file_bytes: int = UNIT_BYTES

    @classmethod
    def of(cls, store_files: StoreFiles, log: VerifiedCommitLog) -> ConsumeQueues:
        queues, files = cls(store_files, log), store_files.files
        if (reason := rocksdb_reason(files, store_files.place)) is not None:
            path = store_files.path(CONSUME_QUEUES)
            queues.name_findings.append(Finding("queues not read", "unread", path, None, reason))
            queues.in_rocksdb = True
        else:
            if files.is_directory(place := store_files.path(BATCH_QUEUES)):
                queues.batch_topics = frozenset(files.list(place))
                queues._batch_file_bytes = queue_file_size(files, place) or UNIT_BYTES
                queues._add_all(place)
            queues._add_all(store_files.path(CONSUME_QUEUES))
        log.dispatched_until = max((queue.max_physical_offset for queue in queues.queues.values()), default=-1)
        log.points_at = queues.points_at
        return queues

    def _add_all(self, place: str) -> None:
        files = self.store_files.files
        for topic in files.list(place):
            path = below(place, topic)
            names = files.list(path) if files.is_directory(path) else None
            for name in [""] if names is None else names:
                inner = f"{path}/{name}" if name else path
                detail = ""
                if not (name.isascii() and name.isdigit() and int(name) <= _MOST_QUEUE_ID):
                    detail = "no directory of a topic, or of a queue"
                elif topic in self.batch_topics and place != self.store_files.path(BATCH_QUEUES):
                    detail = f"the topic is in {BATCH_QUEUES} too; RocketMQ loads no store that has both"
                if detail:
                    self.name_findings.append(Finding("misplaced file", "damage", inner, None, detail))
                else:
                    self._add(topic, int(name), inner)

    def _add(self, topic: str, queue_id: int, path: str = "") -> VerifiedQueue:
        """Add a queue; without a path, one that has no files."""
        layout, size = ENTRY, self.store_files.settings.mapped_file_size_consume_queue
        if topic in self.batch_topics:
            layout, size = UNIT, self._batch_file_bytes
        files, findings = mapped_files(self.store_files, path, size) if path else ([], [])
        self.name_findings += findings
        queue = VerifiedQueue(self.store_files, self.log, topic, queue_id, files, size, layout)
        queue.load()
        self.queues[topic, queue_id] = queue
        return queue

    @property
    def has_entries(self) -> bool:
        return any(queue.end > queue.first for queue in self.queues.values())

    def take(self, columns: RecordColumns) -> Iterator[Finding]:
        """Compare the next messages of the CommitLog with their entries."""
        if self.in_rocksdb:
            return
        for key, rows in rows_of_queues(columns):
            if key[0] in self.batch_topics:
                batches = _batches(columns, np.arange(len(columns))[rows])
                yield from self._take(key, batches)
                bases = batches.entries["queue_offset"]
                for row in np.flatnonzero(bases != batches.queue_offsets).tolist():
                    detail = f"the record says {batches.queue_offsets[row]}, and its property {_BASE} {bases[row]}"
                    yield self.log.finding("wrong queue offset", int(batches.positions[row]), detail)
            else:
                yield from self._take(key, _messages(columns, rows))
        for key, numbers in _light_messages(columns, self.batch_topics).items():
            yield from self._take(key, _messages(columns, np.array([*numbers]), np.array([*numbers.values()])))

    def _take(self, key: QueueKey, messages: Messages) -> Iterator[Finding]:
        if len(messages.queue_offsets):
            yield from (self.queues.get(key) or self._add(*key)).take(messages)

    def points_at(self, physical_offset: int) -> bool:
        """Whether any entry that is not judged yet points there."""
        return any(queue.points_at(physical_offset) for queue in self.queues.values())

    def finish(self, end: int) -> Iterator[Finding]:
        """The findings that are left after all messages."""
        for queue in self.queues.values():
            yield from queue.finish(end)


# ── the entries that records should have ─────────────────────────────────────────────────────────────────────────────


def _messages(
    columns: RecordColumns, rows: Longs | slice, queue_offsets: Longs | None = None, **more: Longs
) -> Messages:
    """Messages of one queue; ``queue_offsets``: if not those of the records; ``more``: further fields of entries."""
    fields = {
        "physical_offset": columns.positions[rows],
        "size": columns.sizes[rows].astype(np.int64),
        "tags_code": columns.tags_codes[rows],
    }
    offsets = columns.queue_offsets[rows] if queue_offsets is None else queue_offsets
    return Messages(offsets, columns.physical_offsets[rows], fields | more)


def _batches(columns: RecordColumns, rows: Longs) -> Messages:
    """The records that are batches: RocketMQ makes no unit of another one."""
    batches: dict[int, tuple[int, int]] = {}
    for row, properties in _with_property(columns, rows, _COUNT):
        base, count = number_in(properties.get(_BASE)), number_in(properties.get(_COUNT))
        if base is not None and count is not None:
            batches[row] = base, count
    rows, (bases, counts) = np.array([*batches], np.int64), np.array([*batches.values()], np.int64).reshape(-1, 2).T
    return _messages(
        columns,
        rows,
        store_timestamp=columns.store_timestamps[rows],
        queue_offset=bases,
        count=counts,
        compacted_offset=np.full(len(rows), -1),
    )


def _light_messages(columns: RecordColumns, batch_topics: Collection[str]) -> dict[QueueKey, dict[int, int]]:
    """By the queues that records name beside their own: the rows, and the queue offsets there."""
    queues: defaultdict[QueueKey, dict[int, int]] = defaultdict(dict)
    queue_ids = columns.queue_ids
    for row, properties in _with_property(columns, np.flatnonzero(columns.are_queued), _QUEUES):
        topic = columns.topics[columns.topic_of[row]]
        if topic in batch_topics or topic == SCHEDULE_TOPIC or topic.startswith((RETRY_PREFIX, SYSTEM_PREFIX)):
            continue
        names, numbers = (properties.get(name, "").rstrip(",").split(",") for name in (_QUEUES, _QUEUE_OFFSETS))
        for name, text in zip(names, numbers, strict=True) if len(names) == len(numbers) else ():
            if (number := number_in(text)) is None:
                break  # RocketMQ's dispatch fails here
            if name and "/" not in name:
                queues[name, 0 if name.startswith(LMQ_PREFIX) else int(queue_ids[row])][row] = number
    return queues


def _with_property(columns: RecordColumns, rows: Longs, name: str) -> Iterator[tuple[int, dict[str, str]]]:
    """The rows that have a property, and all their properties."""
    spans, encoded = columns.spans, name.encode()
    if encoded not in spans.data:
        return
    starts, sizes = spans.properties_starts[rows].tolist(), spans.properties_sizes[rows].tolist()
    for row, start, size in zip(rows.tolist(), starts, sizes, strict=True):
        stored = spans.data[start : start + size]
        if encoded in stored:
            yield row, decode_properties(stored)
