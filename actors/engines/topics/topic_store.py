"""A topic store: the CommitLog, and what is built from it: a ConsumeQueue for each queue, and the index of keys.

*Files.* ``commitlog/`` holds every message; ``consumequeue/<topic>/<queue id>/`` the positions of each queue's
messages; ``index/`` those of messages with a key; ``checkpoint`` up to when all this is safe; ``abort`` exists while
the store is not closed. The layout and the bytes are RocketMQ's.

*How a message moves.* :meth:`append` writes it to the CommitLog, with its queue's next queue offset. :meth:`dispatch`
reads on in the CommitLog and makes entries and index items of the messages; so building is resumable, and is the same
for a new message, one from before a crash, and one that another program wrote.

*Invariant.* Every queued message before ``dispatched`` has its entry, every key before ``indexed`` is in the index;
neither is beyond the CommitLog's end. They differ only after a dirty stop (below).

*What a crash leaves.* Loading follows RocketMQ's recovery step by step: index files that were not full and safe are
deleted, the end of the CommitLog is found by reading it from the checkpoint's position, the messages read are
dispatched again, and ConsumeQueues are cut to that end. RocketMQ stops there, and loses the keys of messages before
those that it read. With ``rebuild_after_crash`` the index, like the queues, is cut back to what the checkpoint says is
safe, or further to where its files end, and is rebuilt from there while the store already serves. Old bytes after an
end are cut off, so that no later recovery takes them for messages.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Final

import attrs

from warren.actors.engines.topics.checkpoint_format import Checkpoint, write_checkpoint
from warren.actors.engines.topics.consumer_group import Bounds
from warren.actors.engines.topics.queue_rows import QueueKey, rows_of_queues
from warren.actors.engines.topics.reput import reput
from warren.actors.engines.topics.store_files import (
    ABORT,
    CHECKPOINT,
    COMMIT_LOG,
    CONFIG,
    CONSUME_QUEUES,
    LOCK,
    Cut,
)
from warren.actors.engines.topics.store_loading import load_queue, queue_place
from warren.actors.engines.topics.topic_table import TopicTable
from warren.msg_store.commit_log.commit_log import Appended, Batch, CommitLog, MessageIllegalError
from warren.msg_store.commit_log.commit_log_expiry import Hold
from warren.msg_store.commit_log.commit_log_format import BLANK_HEADER_BYTES, Blank
from warren.msg_store.commit_log.message_batch import measure
from warren.msg_store.commit_log.record_check import Failure
from warren.msg_store.commit_log.record_columns import RecordColumns
from warren.queue_index.topics.consume_queue import ConsumeQueue
from warren.queue_index.topics.key_index import KeyIndex
from warren.storage.columns import Ints, Longs
from warren.storage.errors import DataError, NoRoomError, StorageError, shortly
from warren.storage.filesystem import FileSystem, note_failed_sync, retryable
from warren.storage.java_hash import index_hash
from warren.storage.topic_settings import TopicSettings

_QUEUE_ID: Final = re.compile("[+-]?[0-9]{1,20}", re.ASCII)
_MOST_QUEUE_ID: Final = (1 << 31) - 1

FOR_EVER_MS: Final = (1 << 63) - 1


def commit_log_directory(directory: str, settings: TopicSettings) -> str:
    """Return the directory of the CommitLog of the store in ``directory``."""
    return settings.store_path_commit_log or f"{directory}/{COMMIT_LOG}"


@attrs.define(eq=False, repr=False)
class TopicStore:
    """One store. Call :meth:`start` before writing. One writer; any thread may read.

    :func:`warren.actors.engines.topics.store_opening.load_store` makes it.
    """

    files: FileSystem
    directory: str
    settings: TopicSettings
    commit_log: CommitLog
    queues: dict[QueueKey, ConsumeQueue]
    index: KeyIndex
    checkpoint: Checkpoint
    was_clean: bool
    cuts: list[Cut] = attrs.Factory(list)
    """What recovery cut off and what dispatch could not read, for display."""
    dispatched: int = 0
    """Physical offset up to which queues have their entries."""
    indexed: int = 0
    """Physical offset up to which keys are in the index."""
    writable: bool = True
    next_offsets: dict[QueueKey, int] = attrs.Factory(dict)
    """Queue offsets that the queues' next messages get; a missing queue's is its ``max_offset``."""
    skip_keys: int = 0
    """How many keys of the message at ``indexed`` are in the index."""
    last_stored_ms: int = 0
    """The latest store timestamp known."""
    _touched: set[str] = attrs.Factory(set)
    _last_dispatched_ms: int = 0
    _is_torn: bool = False
    """Whether a write to the CommitLog failed."""

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Return a queue, creating it if missing. Raises :class:`DataError` for a topic that cannot be a directory."""
        key = (topic, queue_id)
        queue = self.queues.get(key)
        if queue is None:
            if topic in ("", ".", "..") or "/" in topic or "\0" in topic:
                place = queue_place(self.directory, key)
                raise DataError(place, None, f"the topic '{shortly(topic)}' cannot be a directory's name")
            queue = load_queue(self.files, self.directory, key, self.settings, writable=self.writable)
            self.queues = {**self.queues, key: queue}  # other threads may iterate over the old one
        return queue

    def bounds(self, topic: str) -> Bounds:
        """Return a function that gives, for a queue_id of the topic, its minimum and maximum queue offset."""
        queues = self.queues

        def bounds(queue_id: int) -> tuple[int, int]:
            queue = queues.get((topic, queue_id))
            return (0, 0) if queue is None else (queue.min_offset, queue.max_offset)

        return bounds

    def start(self) -> None:
        """Start writing: dispatch what is not dispatched yet, and mark the store as open."""
        if self.settings.rebuild_after_crash:
            self.files.make_directories(f"{self.directory}/{CONFIG}")
            self._touch(ABORT, b"")
            self._touch(LOCK, b"lock")
            self.files.sync_directory(self.directory)
            with contextlib.suppress(NoRoomError):  # the dispatcher continues when there is room
                while self.dispatched < self.commit_log.end:
                    self.dispatch()
        else:
            furthest = max([queue.max_physical_offset for queue in self.queues.values()], default=-1)
            start = max(furthest, self.commit_log.min_offset, 0)
            for columns in reput(self.commit_log, start, self.settings.delay_levels_ms()):
                self.dispatch_columns(columns)
            self.dispatched = self.indexed = self.commit_log.end
        self.next_offsets.clear()
        for queue in self.queues.values():
            queue.correct_min_offset(self.commit_log.min_offset)

    def _touch(self, name: str, content: bytes) -> None:
        path = f"{self.directory}/{name}"
        if not self.files.exists(path):
            handle = self.files.open_append(path)
            handle.append(content)
            handle.close()

    # ── writing ─────────────────────────────────────────────────────────────────────────────────────────────────

    def append(self, batch: Batch, now_ms: int) -> Appended:
        """Append messages at the next offsets of their queue. Store timestamps never decrease.

        Raises as :meth:`CommitLog.append` does. After a :class:`StorageError` other than :class:`NoRoomError` the store
        must be reopened: some of the messages may have been written and have used their offsets.
        """
        if self._is_torn:
            raise StorageError(f"{self.directory}: a write failed; close the store and open it again")
        stored_ms = max(self.last_stored_ms, now_ms)
        key = (batch.topic, batch.queue_id)
        number = self.next_offset(*key) if batch.is_queued else 0
        try:
            appended = self.commit_log.append(batch, number, stored_ms)
        except NoRoomError:
            if batch.is_queued:
                self.next_offsets[key] = number + self.commit_log.appended
            raise
        except StorageError:
            self._is_torn = True
            raise
        self.last_stored_ms = stored_ms
        if appended.status == "PUT_OK" and batch.is_queued:
            self.next_offsets[key] = number + len(batch.bodies)
        return appended

    def check(self, batch: Batch) -> None:
        """Raise :class:`MessageIllegalError` if :meth:`append` would reject a message or not store it."""
        measured = measure(batch, self.settings.max_message_size)
        largest = measured.total if batch.as_one else int(measured.sizes.max(initial=0))
        if largest > self.settings.mapped_file_size_commit_log - BLANK_HEADER_BYTES:
            raise MessageIllegalError(f"{batch.topic}: a message is larger than a file of the CommitLog")

    def next_offset(self, topic: str, queue_id: int) -> int:
        """Return the queue offset that a queue's next message gets."""
        number = self.next_offsets.get((topic, queue_id))
        if number is None:
            queue = self.queues.get((topic, queue_id))
            number = self.next_offsets[topic, queue_id] = 0 if queue is None else queue.max_offset
        return number

    # ── dispatching ─────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def behind_bytes(self) -> int:
        """Bytes of the CommitLog that have no entries or no index items yet."""
        return self.commit_log.end - min(self.dispatched, self.indexed)

    def dispatch(self) -> bool:
        """Build entries and items for the next part of the CommitLog. Return whether there was one.

        New messages come first; an index that lags (after a dirty stop) catches up in between. Raises
        :class:`NoRoomError` if the disk is full; a later call then builds what is missing.
        """
        try:
            return self._dispatch_part()
        except NoRoomError:
            if self.index.end_physical_offset >= self.indexed:  # some of its keys are in the index
                self.indexed = max(self.index.end_physical_offset, self.commit_log.min_offset)
                self.skip_keys = self.index.already_put(self.indexed)
            raise

    def _dispatch_part(self) -> bool:
        end = self.commit_log.end
        together = self.indexed == self.dispatched
        if self.indexed < self.commit_log.min_offset:  # its message has expired, and no other has keys in the index
            self.skip_keys = 0
        if self.dispatched < end:
            start = self.dispatched = max(self.dispatched, self.commit_log.min_offset)
            self.dispatched = self._walk(start, end, to_queues=True, to_index=together)
            if together:
                self.indexed = self.dispatched
            return True
        if self.indexed < self.dispatched:
            start = max(self.indexed, self.commit_log.min_offset)
            self.indexed = min(self._walk(start, self.dispatched, to_queues=False, to_index=True), self.dispatched)
            return True
        return False

    def drain_touched(self) -> set[str]:
        """Return the topics that got entries since the last call."""
        touched, self._touched = self._touched, set()
        return touched

    def _walk(self, start: int, end: int, *, to_queues: bool, to_index: bool) -> int:
        """Dispatch the next part from ``start``. Return where the part after it begins."""
        for item in self.commit_log.columns(start, end, delay_levels_ms=self.settings.delay_levels_ms()):
            match item:
                case RecordColumns():
                    self.dispatch_columns(item, to_queues=to_queues, to_index=to_index)
                    return item.stop
                case Blank():
                    return self._next_file(item.physical_offset, end)
                case Failure():
                    self._note_failure(item)
                    return self._next_file(start, end) if item.resume_at is None else item.resume_at
        return end

    def _note_failure(self, failure: Failure) -> None:
        mapped = self.commit_log.mapped
        base = mapped.holding(failure.physical_offset)
        if base is not None:
            reason = f"the dispatch stopped here: {failure.reason}"
            self.cuts.append(Cut(mapped.path(base), failure.physical_offset - base, reason))

    def _next_file(self, physical_offset: int, end: int) -> int:
        base = self.commit_log.mapped.holding(physical_offset)
        following = None if base is None else self.commit_log.mapped.after(base)
        return end if following is None else following

    def dispatch_columns(self, columns: RecordColumns, *, to_queues: bool = True, to_index: bool = True) -> None:
        """Build queue entries and index items from ``columns``."""
        if to_queues:
            for key, rows in rows_of_queues(columns):
                self.put_entries(
                    key,
                    columns.queue_offsets[rows],
                    columns.physical_offsets[rows],
                    columns.sizes[rows],
                    columns.tags_codes[rows],
                )
            self._last_dispatched_ms = int(columns.store_timestamps[-1])
        if to_index and self.settings.message_index_enable:
            self.index.put_many(
                columns.physical_offsets,
                columns.store_timestamps,
                columns.key_counts,
                columns.key_hashes,
                skip_first=self.skip_keys,
            )
            self.skip_keys = 0

    def put_entries(
        self, key: QueueKey, queue_offsets: Longs, physical_offsets: Longs, sizes: Ints, tags_codes: Longs
    ) -> None:
        """Add entries for a queue's next messages, at least one. An impossible queue is noted in ``cuts``."""
        try:
            queue = self.queue(*key)
        except DataError as error:
            self.cuts.append(Cut(error.path, error.offset, error.reason))
            return
        self._touched.add(key[0])
        if queue.max_offset < int(queue_offsets[0]) and self._has_only_expired(queue):
            queue.delete_all()  # a power loss took entries of expired messages, and the next would get their places
        queue.put_many(queue_offsets, physical_offsets, sizes, tags_codes)

    def _has_only_expired(self, queue: ConsumeQueue) -> bool:
        """Whether the CommitLog has no message of the queue. Only for warren's stores: RocketMQ does not check."""
        is_own = self.settings.rebuild_after_crash
        return is_own and bool(queue.mapped.bases) and queue.max_physical_offset <= self.commit_log.min_offset

    # ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────

    def query(
        self,
        topic: str,
        key: str,
        max_num: int | None = None,
        begin_ms: int = 0,
        end_ms: int = FOR_EVER_MS,
        *,
        damage: list[DataError] | None = None,
    ) -> list[int]:
        """Return physical offsets of messages with this key, or another of the same hash, newest first.

        At most ``max_msgs_num_batch``; a message may come twice. Times are those of the index: to the second.
        ``damage``: see :meth:`warren.queue_index.topics.key_index.KeyIndex.query`.
        """
        limit = self.settings.default_query_max_num if max_num is None else max_num
        bounded = min(limit, self.settings.max_msgs_num_batch)
        return self.index.query(index_hash(f"{topic}#{key}"), bounded, begin_ms, end_ms, damage)

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """Return RocketMQ's answer, which relies on the files' modification times; 0 if the queue does not exist."""
        queue = self.queues.get((topic, queue_id))
        if queue is None:
            return 0
        return queue.offset_by_time(timestamp_ms, self.commit_log.store_timestamp_of, self.commit_log.min_offset)

    # ── making safe ─────────────────────────────────────────────────────────────────────────────────────────────

    def flush_commit_log(self) -> int:
        """Sync the CommitLog without writing the checkpoint. Return the physical offset up to which it is safe."""
        return self.commit_log.flush()

    def flush_queues(self, least_bytes: int = 0) -> None:
        """Sync ConsumeQueues with at least ``least_bytes`` new bytes; if 0, sync all and the index, and write the
        checkpoint."""
        # A recovery relies on everything older than this, in the index too.
        dispatched_ms = self._last_dispatched_ms if self.indexed == self.dispatched else 0
        index_ms = 0 if least_bytes else self.index.flush_full()
        for queue in self.queues.values():
            if queue.has_unflushed and queue.unflushed_bytes >= least_bytes:
                queue.flush()
        if not least_bytes:
            self._note(logics_msg_timestamp=dispatched_ms, index_msg_timestamp=index_ms)

    def flush_index(self) -> None:
        """Sync what a recovery of the index needs, so that all keys up to here outlive a crash; and the checkpoint."""
        self._note(index_msg_timestamp=self.index.flush_full())

    def _note(self, *, logics_msg_timestamp: int = 0, index_msg_timestamp: int = 0) -> None:
        before = self.checkpoint
        noted = Checkpoint(
            physic_msg_timestamp=self.commit_log.flushed_store_timestamp or before.physic_msg_timestamp,
            logics_msg_timestamp=logics_msg_timestamp or before.logics_msg_timestamp,
            index_msg_timestamp=index_msg_timestamp or before.index_msg_timestamp,
        )
        if noted != before:
            with retryable():
                write_checkpoint(self.files, f"{self.directory}/{CHECKPOINT}", noted, sync=True)
            self.checkpoint = noted

    def close(self) -> None:
        """Stop cleanly: dispatch, write and sync everything, and delete ``abort``."""
        while self.dispatch():
            pass
        self.flush_commit_log()
        self.index.flush()
        self.flush_index()
        self.flush_queues()
        if self.files.exists(f"{self.directory}/{ABORT}"):
            self.files.delete(f"{self.directory}/{ABORT}")
            self.files.sync_directory(self.directory)
        self.abandon()

    def fail(self) -> None:
        """Abandon the files after a disk error: what is read from them may exist only in memory."""
        self.abandon()
        note_failed_sync(self.files, self.commit_log.mapped.directory)

    def abandon(self) -> None:
        """Close the files and leave them as they are, as a crash would."""
        self.commit_log.close()
        self.index.close()
        for queue in self.queues.values():
            queue.close()

    # ── expiry ──────────────────────────────────────────────────────────────────────────────────────────────────

    def expire_commit_log(
        self, now_ms: int, hour: int, disk_used_percent: float, hold: Callable[[int], Hold] = lambda _: "not held"
    ) -> bool:
        """Delete CommitLog files that are old enough, or if the disk is full; return whether any were. ``hour``: local.

        None is deleted before all candidates are dispatched, or later messages would get their queue offsets.
        """
        bases = self.commit_log.mapped.bases
        if not bases or self.dispatched < bases[-1]:
            return False
        return bool(self.commit_log.expire(now_ms, hour, disk_used_percent, hold))

    def expire_queues(self) -> None:
        """Delete the entries and index items of messages before the CommitLog's first file."""
        first = self.commit_log.min_offset
        for queue in self.queues.values():
            queue.expire(first)
        self.index.expire(first)

    def delete_topic(self, topic: str) -> None:
        """Delete a topic's ConsumeQueues; messages go with their CommitLog files. Only the dispatcher calls this."""
        doomed = [key for key in self.queues if key[0] == topic]
        queues = [self.queues[key] for key in doomed]
        self.queues = {key: queue for key, queue in self.queues.items() if key[0] != topic}
        for queue in queues:
            queue.close()
        if doomed:
            self.files.delete_tree(f"{self.directory}/{CONSUME_QUEUES}/{topic}")

    def check_built(self) -> None:
        """Raise ``RuntimeError`` if queues or index contradict the CommitLog. Only the dispatcher calls this."""
        for key, queue in self.queues.items():
            queue.check_invariants()
            if queue.max_offset > self.next_offsets.get(key, queue.max_offset):
                raise RuntimeError(f"{key} has entries beyond the messages that were appended")
        self.index.check_invariants()
        if max(self.indexed, self.dispatched) > self.commit_log.end:
            raise RuntimeError(f"indexed {self.indexed}, dispatched {self.dispatched}, end {self.commit_log.end}")

    def check_invariants(self) -> None:
        """Raise ``RuntimeError`` if the parts contradict themselves or each other."""
        self.commit_log.check_invariants()
        self.check_built()


def table_of(store: TopicStore) -> TopicTable:
    """The declared topics, and those that only have files. Raises :class:`DataError`."""
    table = TopicTable.load(store.files, f"{store.directory}/{CONFIG}")
    table.declare_all(store.queues)
    return table


def queue_directories(files: FileSystem, place: str) -> Iterator[QueueKey]:
    """The queues with a directory, sorted within each topic."""
    for topic in files.list(place):
        names = files.list(f"{place}/{topic}") if files.is_directory(f"{place}/{topic}") else []
        ids = {int(name) for name in names if _QUEUE_ID.fullmatch(name)}
        yield from ((topic, queue_id) for queue_id in sorted(ids) if -_MOST_QUEUE_ID - 1 <= queue_id <= _MOST_QUEUE_ID)
