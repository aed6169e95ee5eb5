"""Every ConsumeQueue of a store, beside the CommitLog; and those of other versions, which are only named."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

import attrs
import numpy as np

from warren.actors.engines.topics.names import LMQ_PREFIX
from warren.actors.engines.topics.queue_rows import rows_of_queues
from warren.actors.engines.topics.store_files import BATCH_QUEUES, CONSUME_QUEUES, rocksdb_reason
from warren.msg_store.commit_log.record_columns import RecordColumns
from warren.salvage.queue_directory import Finding
from warren.salvage.rocketmq.verify_commit_log import VerifiedCommitLog
from warren.salvage.rocketmq.verify_consume_queue import Messages, VerifiedQueue
from warren.salvage.rocketmq.verify_files import StoreFiles, mapped_files

_MOST_QUEUE_ID: Final = (1 << 31) - 1


@attrs.define(eq=False, repr=False)
class ConsumeQueues:
    """Every queue of a store: those that have a directory, and those that only messages know of."""

    store_files: StoreFiles
    log: VerifiedCommitLog
    name_findings: list[Finding] = attrs.Factory(list)
    queues: dict[tuple[str, int], VerifiedQueue] = attrs.Factory(dict)
    unverified: Collection[str] = frozenset()
    """Topics whose messages have their entries elsewhere."""
    in_rocksdb: bool = False

    @classmethod
    def of(cls, store_files: StoreFiles, log: VerifiedCommitLog) -> ConsumeQueues:
        queues = cls(store_files, log)
        queues._pass_over()
        for topic in () if queues.in_rocksdb else store_files.files.list(store_files.path(CONSUME_QUEUES)):
            if topic.startswith(LMQ_PREFIX):
                continue
            path = store_files.path(CONSUME_QUEUES, topic)
            names = store_files.files.list(path) if store_files.files.is_directory(path) else None
            for name in [""] if names is None else names:
                inner = f"{path}/{name}" if name else path
                if not (name.isascii() and name.isdigit() and int(name) <= _MOST_QUEUE_ID):
                    detail = "no directory of a topic, or of a queue"
                    queues.name_findings.append(Finding("misplaced file", "damage", inner, None, detail))
                    continue
                queues._add(topic, int(name), inner)
        log.dispatched_until = max((queue.max_physical_offset for queue in queues.queues.values()), default=-1)
        log.points_at = queues.points_at
        return queues

    def _pass_over(self) -> None:
        """Note what of other versions is not compared with the CommitLog."""
        files, path = self.store_files.files, self.store_files.path(CONSUME_QUEUES)
        place = self.store_files.path(BATCH_QUEUES)
        self.unverified = frozenset(files.list(place) if files.is_directory(place) else ())
        if self.unverified:
            self.name_findings.append(Finding("queues not read", "unread", place, None, "those of batches"))
        if any(topic.startswith(LMQ_PREFIX) for topic in files.list(path)):
            self.name_findings.append(Finding("queues not read", "unread", path, None, f"those of {LMQ_PREFIX}"))
        if (reason := rocksdb_reason(files, self.store_files.place)) is not None:
            self.name_findings.append(Finding("queues not read", "unread", path, None, reason))
            self.in_rocksdb = True

    def _add(self, topic: str, queue_id: int, path: str) -> None:
        size = self.store_files.settings.mapped_file_size_consume_queue
        files, findings = mapped_files(self.store_files, path, size)
        self.name_findings += findings
        queue = self.queues[topic, queue_id] = VerifiedQueue(self.store_files, self.log, topic, queue_id, files)
        queue.load()

    @property
    def has_entries(self) -> bool:
        return any(queue.end > queue.first for queue in self.queues.values())

    def take(self, columns: RecordColumns) -> Iterator[Finding]:
        """Compare the next messages of the CommitLog with their entries."""
        if self.in_rocksdb:
            return
        for key, rows in rows_of_queues(columns):
            if key[0] in self.unverified:
                continue
            queue = self.queues.get(key)
            if queue is None:
                queue = self.queues[key] = VerifiedQueue(self.store_files, self.log, *key, [])
            yield from queue.take(
                Messages(
                    columns.queue_offsets[rows],
                    columns.positions[rows],
                    columns.physical_offsets[rows],
                    columns.sizes[rows].astype(np.int64),
                    columns.tags_codes[rows],
                )
            )

    def points_at(self, physical_offset: int) -> bool:
        """Whether any entry that is not judged yet points there."""
        return any(queue.points_at(physical_offset) for queue in self.queues.values())

    def finish(self, end: int) -> Iterator[Finding]:
        """The findings that are left after all messages."""
        for queue in self.queues.values():
            yield from queue.finish(end)
