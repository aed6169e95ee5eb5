"""A topic store that another process may be writing, read as far as its content is certain to stay.

Nothing is opened for writing and no recovery is run: files are listed and read. Terms: the *log's end* is the first
byte of the CommitLog that no recovery would go beyond; a queue's *end* is the number of its next message.

*What may be read.* A message that has a ConsumeQueue entry (the writer adds it when the record is complete) and whose
record lies before the log's end. That end is found as recovery finds it: from where recovery would begin, record after
record, each with its checksum; after that, only new records are read. Entries that point beyond the log's end do not
count, nor do old entries that a recovery of RocketMQ's leaves after a queue's end.

*Why it stays.* A process that is killed does not undo what it wrote. A power loss undoes what was not synced, so the
reader syncs the CommitLog's files before it reports the end. A sync changes nothing in a file, and every process that
can read the file may make it. On other file systems than this machine's there is nothing to sync.

*Damage is an error* if no crash explains it: a record of an unknown format, at which warren's recovery does not cut the
log; and, after a clean stop, a bad record with good ones after it.

*Ends may go back* for a moment: a node that starts after a crash truncates its queues and rebuilds them from the log,
with the same numbers. A caller that knows a higher end waits.

A :class:`View` is one look: it opens its files each time, because a file of the same name may be another one.
"""

from __future__ import annotations

import posixpath
from bisect import bisect_left
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager
from typing import Final

import attrs

from warren.actors.engines.topics.checkpoint_format import read_checkpoint
from warren.actors.engines.topics.queue_rows import QueueKey
from warren.actors.engines.topics.store_files import ABORT, CHECKPOINT, CONSUME_QUEUES
from warren.actors.engines.topics.store_recovery import first_torn, reading_start, refuse_unknown_format
from warren.actors.engines.topics.topic_store import commit_log_directory
from warren.msg_store.commit_log.commit_log import CommitLog
from warren.msg_store.commit_log.commit_log_format import STORE_TIMESTAMP_STOP, Blank
from warren.msg_store.commit_log.record_columns import RecordColumns
from warren.queue_index.topics.consume_queue import ConsumeQueue
from warren.queue_index.topics.consume_queue_format import ENTRY_BYTES, are_good, is_filler
from warren.salvage.queue_directory import Finding
from warren.salvage.read_only import ReadOnlyFileSystem, below
from warren.salvage.rocketmq.inference import mapped_file_size
from warren.salvage.rocketmq.store_places import TOPICS
from warren.salvage.rocketmq.verify_commit_log import VerifiedCommitLog
from warren.salvage.rocketmq.verify_files import StoreFiles
from warren.storage.errors import DataError, StorageError
from warren.storage.lock_file import LOCK_FILE
from warren.storage.mapped_files import MappedFiles, parse_file_name
from warren.storage.topic_settings import ROCKETMQ_4_9, TopicSettings
from warren.tables.places import Node

Anchor = dict[str, int]
"""The physical offset of one message, as text, and when it was stored, in milliseconds."""

_NOT_READ: Final = "a stream would miss what follows; `warren topic scan --salvage` reads it"


@attrs.frozen(eq=False)
class View:
    """One look at a store; :meth:`close` it. Its queues end where their entries do."""

    log: CommitLog
    queues: dict[QueueKey, ConsumeQueue]

    def close(self) -> None:
        """Close the files."""
        self.log.close()
        for queue in self.queues.values():
            queue.close()

    def first(self, key: QueueKey) -> int:
        """The number of the first message of a queue that the CommitLog still has."""
        return self.queues[key].first_offset(self.log.min_offset)

    def contradicts(self, anchor: Anchor) -> bool:
        """Whether another message lies where a store with this anchor has its own. What has expired says nothing."""
        log = self.log
        return bool(log.mapped.bases) and any(
            int(physical_offset) >= log.min_offset
            and log.store_timestamp_of(int(physical_offset), STORE_TIMESTAMP_STOP) != timestamp_ms
            for physical_offset, timestamp_ms in anchor.items()
        )

    def at_time(self, key: QueueKey, timestamp_ms: int) -> int:
        """The number of the first message of a queue that was stored at this time or later; else the queue's end."""
        queue, log = self.queues[key], self.log
        return max(queue.first_offset_at(timestamp_ms, log.store_timestamp_of, log.min_offset), self.first(key))


@attrs.define(eq=False)
class LiveStore:
    """One node's topic store; knows how far it was walked and synced."""

    node: Node
    changes: dict[str, str] = attrs.Factory(dict)
    """Settings that the user gives."""
    sync: bool = True
    _log_end: int = 0
    _synced: int = 0
    _stuck_at: int = -1
    """Where a walk from the log's end found nothing valid and therefore started over."""
    _true_end: int = -1
    """A bad record, after which a walk through a closed store found no good one."""
    _reported_ends: dict[QueueKey, int] = attrs.Factory(dict)
    """The ends that were reported."""

    # ── looking ─────────────────────────────────────────────────────────────────────────────────────────────────

    @contextmanager
    def view(self, topics: Collection[str] | None = None, only: Collection[QueueKey] | None = None) -> Iterator[View]:
        """The current state of some topics or queues, or of all; queues without a file are left out."""
        files, directory = self._place()
        keys = self._keys(files, directory, topics) if only is None else only
        # Queues first: what an entry points at was there before it.
        queues = {
            key: queue
            for key in keys
            if (
                queue := _queue(
                    files, below(directory, f"{CONSUME_QUEUES}/{key[0]}/{key[1]}"), key, self._reported_ends
                )
            )
        }
        settings = self._settings()
        mapped, _ = _mapped(files, commit_log_directory(directory, settings))
        log = CommitLog(mapped, settings, mapped.file_end, mapped.min_offset)
        with closing(View(log, queues)) as view:
            yield view

    def ends_of(self, view: View) -> dict[QueueKey, tuple[int, int]]:
        """By queue: the number of the first message, and the number after the last one that may be read."""
        furthest = max((_stop(queue, queue.max_offset - 1) for queue in view.queues.values()), default=0)
        log_end = self._reach(view.log, furthest)
        ends = {}
        for key in view.queues:
            first = view.first(key)
            end = self._end(view, key, first, log_end)
            self._reported_ends[key] = end
            ends[key] = (min(first, end), end)
        if self.sync and not self.node.is_remote:
            self._make_safe(view.log, log_end)
        return ends

    def anchor(self, view: View) -> Anchor:
        """A message that tells this store from others: the first of its CommitLog.

        Empty if :meth:`ends_of` found none that may be read, because a crash may still replace it.
        """
        first = view.log.min_offset
        timestamp_ms = view.log.store_timestamp_of(first, STORE_TIMESTAMP_STOP) if self._log_end > first else None
        return {} if timestamp_ms is None else {str(first): timestamp_ms}

    def _place(self) -> tuple[ReadOnlyFileSystem, str]:
        place = self.node.place()
        try:
            return place.files, place.store()
        except DataError:
            if place.is_warren_node():  # it has no topic yet
                return place.files, below(place.directory, TOPICS)
            raise

    def _settings(self) -> TopicSettings:
        return ROCKETMQ_4_9.with_changes(self.changes)

    @staticmethod
    def _keys(files: ReadOnlyFileSystem, directory: str, topics: Collection[str] | None) -> list[QueueKey]:
        queues = below(directory, CONSUME_QUEUES)
        keys = []
        for topic in files.list(queues) if topics is None else topics:
            for name in files.list(below(queues, topic)) if files.is_directory(below(queues, topic)) else ():
                if name.isascii() and name.isdecimal() and str(int(name)) == name:
                    keys.append((topic, int(name)))
        return sorted(keys)

    # ── where queues end ────────────────────────────────────────────────────────────────────────────────────────

    def _end(self, view: View, key: QueueKey, first: int, log_end: int) -> int:
        """The number after the last entry whose message lies before the log's end and is this queue's."""
        queue, reported_end = view.queues[key], self._reported_ends.get(key, 0)
        end = queue.max_offset
        if end <= first:
            return end
        if _stop(queue, end - 1) > log_end:
            end = first + bisect_left(range(first, end), log_end + 1, key=lambda number: _stop(queue, number))
        if end <= max(first, reported_end) or _is_at_home(view.log, queue, end - 1):
            return end
        low = min(max(first, reported_end), end)
        return low + bisect_left(range(low, end), True, key=lambda number: not _is_at_home(view.log, queue, number))

    # ── where the log ends ──────────────────────────────────────────────────────────────────────────────────────

    def _reach(self, log: CommitLog, limit: int) -> int:
        """The log's end, as far as it matters: not walked further than ``limit``, where a message ends."""
        if not log.mapped.bases:
            return 0
        files, directory = self._place()
        is_clean = not files.exists(below(directory, ABORT))
        checkpoint = read_checkpoint(files, below(directory, CHECKPOINT))
        start = reading_start(log.mapped.read, log.mapped.bases, log.settings, checkpoint, was_clean=is_clean)
        mends = not is_clean and files.exists(below(posixpath.dirname(directory), LOCK_FILE))
        if self._log_end > log.mapped.file_end:
            self._log_end = self._synced = 0  # another store than the one that was walked
        self._synced = max(self._synced, start)
        at = max(self._log_end, start)
        if limit > at:
            end, is_bad = _walked(log, at, limit, look_for_torn=mends)
            if end == at > start and at != self._stuck_at:
                self._stuck_at = at
                end, is_bad = _walked(log, start, limit, look_for_torn=mends)
            if is_bad:
                refuse_unknown_format(log.mapped, end, _NOT_READ)
                if is_clean and end != self._true_end:
                    self._check_end(log, end, limit)
                    self._true_end = end
            at = end
        self._log_end = at
        return at

    def _check_end(self, log: CommitLog, physical_offset: int, limit: int) -> None:
        """Raise :class:`DataError` for a bad record of a closed store if good ones with entries follow."""
        files, directory = self._place()
        settings = attrs.evolve(log.settings, mapped_file_size_commit_log=log.mapped.file_size)
        with closing(StoreFiles.of(files, directory, settings)) as store_files:
            verified = VerifiedCommitLog.of(store_files)
            verified.dispatched_until = limit
            file = verified.holding(physical_offset)
            place = None if file is None else (file.path, physical_offset - file.base)
            for item in verified.walk():
                if isinstance(item, Finding) and (item.path, item.offset) == place:
                    raise DataError(item.path, item.offset, f"{item.kind}: {item.detail}; {_NOT_READ}")

    def _make_safe(self, log: CommitLog, end: int) -> None:
        """Sync what lies before ``end``; all of it, because data after a hole would be lost with the hole."""
        if end <= self._synced:
            return
        mapped = log.mapped
        for base in mapped.bases:
            if base < end and base + mapped.file_size > self._synced:
                with closing(mapped.files.open_read(mapped.path(base))) as handle:
                    handle.sync()
        self._synced = end


def _walked(log: CommitLog, start: int, limit: int, *, look_for_torn: bool) -> tuple[int, bool]:
    """Return where the good records from ``start`` on end, at ``limit`` or before, and whether a bad one is there."""
    end = start
    check_crc = log.settings.check_crc_on_recover
    for item in log.columns(start, limit, check_crc=check_crc, with_keys=False, with_codes=False):
        match item:
            case RecordColumns():
                if look_for_torn and (torn := first_torn(item)) is not None:
                    return torn, False
                end = item.stop
            case Blank():
                base = log.mapped.holding(item.physical_offset)
                following = None if base is None else log.mapped.after(base)
                if following is None:
                    return item.physical_offset, False
                end = following
            case _:
                return end, True
    return end, False


# ── a directory of mapped files ──────────────────────────────────────────────────────────────────────────────────────


def _mapped(files: ReadOnlyFileSystem, directory: str) -> tuple[MappedFiles, int]:
    """Return the existing files and the size of the last one; a file that is being made or deleted does not count."""
    sizes: dict[int, int] = {}
    for name in files.list(directory):
        if (base := parse_file_name(name)) is not None and (size := _size(files, below(directory, name))):
            sizes[base] = size
    bases = sorted(sizes)
    size = mapped_file_size([sizes]) or 1
    return MappedFiles(files, directory, size, bases, False), min(sizes[bases[-1]], size) if bases else 0


def _size(files: ReadOnlyFileSystem, path: str) -> int:
    try:
        return files.size(path)
    except StorageError:
        return 0  # deleted meanwhile


def _queue(
    files: ReadOnlyFileSystem, directory: str, key: QueueKey, reported_ends: dict[QueueKey, int]
) -> ConsumeQueue | None:
    mapped, last_size = _mapped(files, directory)
    if not mapped.bases or mapped.file_size % ENTRY_BYTES:
        return None
    stop = mapped.bases[-1] + last_size - last_size % ENTRY_BYTES
    queue = ConsumeQueue(mapped=mapped, topic=key[0], queue_id=key[1], end_byte=stop)
    first, stop = mapped.bases[-1] // ENTRY_BYTES, stop // ENTRY_BYTES
    at = reported_ends.get(key, first)
    if first < at < stop and _is_good(queue, at - 1) and not _is_good(queue, at):
        end = at
    else:
        end = first + bisect_left(range(first, stop), True, key=lambda number: not _is_good(queue, number))
    queue.end_byte = end * ENTRY_BYTES
    return queue


def _is_good(queue: ConsumeQueue, number: int) -> bool:
    return bool(are_good(queue.entries(number, 1)).all())


def place_of(queue: ConsumeQueue, number: int) -> tuple[int, int]:
    """Return physical offset and size of the message with this number; -1 and 0 for filler or a missing entry."""
    entry = queue.entries(number, 1)
    if not len(entry):
        return -1, 0
    physical_offset, size = int(entry["physical_offset"][0]), int(entry["size"][0])
    return (-1, 0) if is_filler(physical_offset, size) else (physical_offset, size)


def _stop(queue: ConsumeQueue, number: int) -> int:
    physical_offset, size = place_of(queue, number)
    return physical_offset + size


def _is_at_home(log: CommitLog, queue: ConsumeQueue, number: int) -> bool:
    """Whether the entry leads to a message of this queue."""
    physical_offset, size = place_of(queue, number)
    try:
        record = log.record(physical_offset, size)
    except DataError:
        return False
    record_place = (record.topic, record.queue_id, record.physical_offset)
    return record_place == (queue.topic, queue.queue_id, physical_offset)
