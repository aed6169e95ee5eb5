"""Recovery of a topic store: where its data ends, and what was cut off.

In RocketMQ's order, because for RocketMQ's directories the results must be the same:

1. Each ConsumeQueue finds its own end (:meth:`~warren.queue_index.topics.consume_queue.ConsumeQueue.recover`).
2. After a clean stop the CommitLog is read from its third last file on. After a dirty one, from the last file whose
   first message is older than the checkpoint (if none, the first file), and what is read is dispatched. The end is the
   first bytes that are not a good record, or a blank record without a following file.
3. CommitLog files that begin after the end are deleted.
4. ConsumeQueues are cut to the end, if one of them reached it before any dispatching.
5. Without any CommitLog file, ConsumeQueues are deleted; with ``rebuild_after_crash`` entries without a CommitLog are
   an error, because it may be elsewhere.

With ``rebuild_after_crash`` (set for stores that will be written to), step 2 and those after it differ after a dirty
stop. The CommitLog is only read. A record that was not written to its end (no CRC tells that) is not good, nor is one
whose physical offset is not its position. Old bytes after the log's end are deleted permanently. ConsumeQueues are cut
back to where the reading began, the index to what its files surely hold
(:mod:`warren.queue_index.topics.index_recovery`), and both are dispatched again from there. In RocketMQ's way, entries
of messages that are gone can stay, and keys are lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs
import numpy as np

from warren.actors.engines.topics.queue_rows import QueueKey, rows_of_queues
from warren.actors.engines.topics.store_files import Cut, Missing
from warren.msg_store.commit_log.commit_log_format import (
    MESSAGE_MAGICS,
    STORE_TIMESTAMP_STOP,
    Blank,
    decode_store_timestamp,
    peek,
)
from warren.msg_store.commit_log.record_check import Failure
from warren.msg_store.commit_log.record_columns import RecordColumns
from warren.msg_store.commit_log.record_finder import RecordFinder
from warren.queue_index.topics.index_recovery import recover as recover_index
from warren.storage.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from warren.actors.engines.topics.checkpoint_format import Checkpoint
    from warren.actors.engines.topics.topic_store import TopicStore
    from warren.msg_store.commit_log.record_check import Read
    from warren.queue_index.topics.consume_queue import ConsumeQueue
    from warren.storage.mapped_files import MappedFiles
    from warren.storage.topic_settings import TopicSettings

_CLEAN_FILES: Final = 3
"""CommitLog files that are read after a clean stop."""

_NOT_OPENED: Final = (
    "the store was not opened, because that would cut the log here; `warren topic scan --salvage` reads the others"
)
_LOOK_BYTES: Final = 16 << 20
_ZEROS: Final = bytes(1 << 20)


def reading_start(
    read: Read, bases: Sequence[int], settings: TopicSettings, checkpoint: Checkpoint, *, was_clean: bool
) -> int:
    """Return the base of the file from which recovery reads a CommitLog. ``bases`` must not be empty."""
    if was_clean:
        return bases[max(len(bases) - _CLEAN_FILES, 0)]
    bound = checkpoint.min_timestamp
    if settings.message_index_enable and settings.message_index_safe:
        bound = min(bound, checkpoint.index_msg_timestamp)
    return next((base for base in reversed(bases) if _is_safe_before(read, base, bound)), bases[0])


def _is_safe_before(read: Read, base: int, bound_ms: int) -> bool:
    """Whether everything before this file is known to be safe, and dispatched."""
    data = read(base, STORE_TIMESTAMP_STOP)
    if len(data) < STORE_TIMESTAMP_STOP or peek(data, 0)[1] not in MESSAGE_MAGICS:
        return False
    stored_ms = decode_store_timestamp(data)
    return stored_ms != 0 and stored_ms <= bound_ms


def refuse_unknown_format(mapped: MappedFiles, physical_offset: int, consequence: str) -> None:
    """Raise :class:`DataError` if a record of an unknown format is there; ``consequence``: what it prevents."""
    base = mapped.holding(physical_offset)
    if base is None:
        return
    file_end = base + mapped.file_size
    magic = RecordFinder(read=mapped.read, end=file_end, blank_end=file_end).unknown_magic(physical_offset)
    if magic is not None:
        reason = f"a record of an unknown format (magic 0x{magic:08X}), with sound records after it; {consequence}"
        raise DataError(mapped.path(base), physical_offset - base, reason)


def first_torn(columns: RecordColumns) -> int | None:
    """The position of the first record whose end was never written to the disk: zeros are there instead.

    The CRC covers only the body; neither a topic nor properties that are complete end in a zero. A record whose own
    physical offset differs from its position counts as torn, too.
    """
    spans = columns.spans
    octets = np.frombuffer(spans.data, np.uint8)
    ends, topic_ends = spans.starts + spans.sizes, spans.topic_starts + spans.topic_sizes
    has_topic, has_properties = spans.topic_sizes > 0, spans.properties_sizes > 0
    zeros = (has_topic & (octets[topic_ends - 1] == 0)) | (has_properties & (octets[ends - 1] == 0))
    torn = np.flatnonzero(zeros | (columns.positions != columns.physical_offsets))
    return int(columns.positions[torn[0]]) if len(torn) else None


@attrs.define(eq=False, repr=False)
class Recovery:
    """One recovery of one store; :meth:`run` once."""

    store: TopicStore
    sync_failed: bool = attrs.field(default=False, kw_only=True)
    _last_stops: dict[QueueKey, int] = attrs.field(init=False, factory=dict)
    """The queue offset after the last message read of each queue, after a clean stop."""
    good_until: int = attrs.field(default=0, kw_only=True)
    """The start of a record before which all are known to be good: reading begins there or later."""

    @property
    def _is_own(self) -> bool:
        return self.store.settings.rebuild_after_crash

    def run(self) -> None:
        store, log = self.store, self.store.commit_log
        rebuilding = self._is_own and not store.was_clean
        furthest = self._recover_queues()
        if log.mapped.bases:
            start = reading_start(
                log.mapped.read, log.mapped.bases, store.settings, store.checkpoint, was_clean=store.was_clean
            )
            end = self._find_end(
                max(start, self.good_until), dispatching=not store.was_clean and not rebuilding, rebuilding=rebuilding
            )
            self._cut_commit_log(end)
            store.dispatched = store.indexed = log.end
            early = [queue for key, queue in store.queues.items() if self._ends_early(key, queue)]
            if rebuilding:
                self._take_back(start)
            elif furthest >= end:
                self._cut_queues(end)
            if store.was_clean:
                self._note_missing_entries(early)
                if self._is_own:
                    self._rebuild_missing_entries(furthest, early)
        elif self._is_own and furthest >= 0:
            reason = "is empty, but the ConsumeQueues have entries; is the CommitLog elsewhere (store_path_commit_log)?"
            raise DataError(log.mapped.directory, None, reason)
        else:
            self._delete_queues()
        for queue in store.queues.values():
            queue.correct_min_offset(log.min_offset)

    def _recover_queues(self) -> int:
        furthest = -1
        for queue in self.store.queues.values():
            before = {queue.mapped.path(base) for base in queue.mapped.bases}
            queue.recover()
            after = {queue.mapped.path(base) for base in queue.mapped.bases}
            for path in sorted(before - after):
                self._note(path, None, "ConsumeQueue file deleted: it begins after the queue's last good entry")
            furthest = max(furthest, queue.max_physical_offset)
        return furthest

    # ── the CommitLog's end ─────────────────────────────────────────────────────────────────────────────────────

    def _find_end(self, start: int, *, dispatching: bool, rebuilding: bool) -> int:
        store = self.store
        end = start
        # As RocketMQ recovers, its delay levels are not loaded yet: a delayed message gets the code of its tags.
        levels = store.settings.delay_levels_ms() if self._is_own else ()
        check_crc = store.settings.check_crc_on_recover
        bounds = store.commit_log.mapped
        records = store.commit_log.columns(
            start, check_crc=check_crc, delay_levels_ms=levels, with_keys=dispatching, with_codes=dispatching
        )
        for item in records:
            match item:
                case RecordColumns():
                    if rebuilding and (torn := first_torn(item)) is not None:
                        self._note_failure(Failure(torn, "a record that ends in zeros: not written completely", None))
                        return torn
                    if dispatching:
                        store.dispatch_columns(item)
                    if store.was_clean:
                        stops = item.positions + item.sizes
                        self._last_stops |= {key: int(stops[rows][-1]) for key, rows in rows_of_queues(item)}
                    store.last_stored_ms = max(store.last_stored_ms, int(item.store_timestamps[-1]))
                    end = item.stop
                case Blank():
                    base = bounds.holding(item.physical_offset)
                    following = None if base is None else bounds.after(base)
                    if following is None:
                        return item.physical_offset
                    end = following
                case Failure():
                    if self._is_own:
                        refuse_unknown_format(bounds, item.physical_offset, _NOT_OPENED)
                    self._note_failure(item)
                    return item.physical_offset
        return end

    def _note_failure(self, failure: Failure) -> None:
        """Note a failure, unless there are only zeros: then it is the usual end."""
        mapped = self.store.commit_log.mapped
        base = mapped.holding(failure.physical_offset)
        if base is not None and (count := self._bytes_at(failure.physical_offset)):
            reason = f"{count:,} bytes after the last good record are ignored: {failure.reason}"
            self._note(mapped.path(base), failure.physical_offset - base, reason)

    def _bytes_at(self, physical_offset: int) -> int:
        """How many bytes there are up to the last one that is not zero, within the length of a few messages."""
        mapped, count = self.store.commit_log.mapped, 0
        for at in range(0, _LOOK_BYTES, len(_ZEROS)):
            data = mapped.read(physical_offset + at, len(_ZEROS))
            if data and data != _ZEROS[: len(data)]:
                count = at + len(data.rstrip(b"\0"))
            if len(data) < len(_ZEROS):
                break
        return count

    def _cut_commit_log(self, end: int) -> None:
        mapped = self.store.commit_log.mapped
        for base in mapped.bases:
            if base > end and self._bytes_at(base):
                self._note(mapped.path(base), None, "CommitLog file deleted: it begins after the last good record")
        self.store.commit_log.set_end(end)

    # ── the queues ──────────────────────────────────────────────────────────────────────────────────────────────

    def _cut_queues(self, end: int) -> None:
        for queue in self.store.queues.values():
            before, furthest = queue.max_offset, queue.max_physical_offset
            queue.truncate(end)
            if queue.max_offset < before:
                count = before - queue.max_offset
                reason = f"{count:,} entries of messages after the end of the CommitLog are ignored"
                # RocketMQ's own recovery can leave entries of messages in its last file.
                is_missing = self.store.was_clean and furthest > self.store.commit_log.mapped.file_end
                self._note(queue.mapped.directory, None, reason, missing="messages" if is_missing else None)

    def _delete_queues(self) -> None:
        for queue in self.store.queues.values():
            for base in queue.mapped.bases:
                self._note(queue.mapped.path(base), None, "ConsumeQueue file deleted: there is no CommitLog")
            queue.delete_all()
        self.store.commit_log.set_end(0)

    # ── warren's own ────────────────────────────────────────────────────────────────────────────────────────────

    def _take_back(self, start: int) -> None:
        """Cut queues and index back to a point up to which they are surely complete, and dispatch again from there."""
        store, log = self.store, self.store.commit_log
        store.dispatched = min(start, log.end)
        if self.sync_failed:
            self._write_anew(store.dispatched, log.end)
        log.clear_behind_end()
        for queue in store.queues.values():
            queue.settle(store.dispatched)
        self._take_back_index(store.dispatched)

    def _write_anew(self, start: int, end: int) -> None:
        """Write again what is read, because after a failed sync the system considers it written."""
        mapped = self.store.commit_log.mapped
        for base in mapped.bases:
            if base < end and start < base + mapped.file_size:
                mapped.write_anew(base, end)
        for file in self.store.index.index_files:
            if not file.is_full:
                file.write_anew()

    def _note_missing_entries(self, early: list[ConsumeQueue]) -> None:
        """Note entries missing after a clean stop, which means that files were deleted or cut since."""
        queues = self.store.queues
        empty = [queues[key] for key in self._last_stops if key in queues and not queues[key].mapped.bases]
        for queue in [*early, *empty]:
            reason = f"entries are missing from number {queue.max_offset} on, after a clean stop"
            if self._is_own:
                reason += "; they are rebuilt"
            self._note(queue.mapped.directory, None, reason, missing="entries")

    def _rebuild_missing_entries(self, furthest: int, early: list[ConsumeQueue]) -> None:
        """Dispatch from the end of the first queue that ends early."""
        store, log = self.store, self.store.commit_log
        store.dispatched = min(max(furthest, log.min_offset), log.end)
        for queue in early:
            queue.settle(log.end)
            store.dispatched = min(store.dispatched, max(queue.max_physical_offset, log.min_offset))
        if not store.index.index_files:
            store.indexed = log.min_offset
        elif store.index.end_physical_offset >= log.end:
            self._take_back_index(log.end)

    def _ends_early(self, key: QueueKey, queue: ConsumeQueue) -> bool:
        """Whether a queue has lost entries since a clean stop: there are some after its end, or it ends early."""
        if not (self.store.was_clean and queue.mapped.bases):
            return False
        return queue.entries_behind() > 0 or queue.max_physical_offset < self._last_stops.get(key, -1)

    def _take_back_index(self, end: int) -> None:
        """Keep items of messages before ``end``. An item that was not safe may look good and be half an older one."""
        store, log = self.store, self.store.commit_log
        recover_index(store.index, end, self._stored_ms)
        store.indexed = max(store.index.end_physical_offset, log.min_offset)
        store.skip_keys = store.index.already_put(store.indexed)

    def _stored_ms(self, physical_offset: int) -> int | None:
        try:
            return self.store.commit_log.record(physical_offset).store_timestamp
        except DataError:
            return None

    def _note(self, path: str, file_offset: int | None, reason: str, *, missing: Missing = None) -> None:
        self.store.cuts.append(Cut(path, file_offset, reason, missing))
