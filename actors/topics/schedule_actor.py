"""The actor of the delayed messages: it appends them to their topics when they are due.

A level's messages are read, handed to the CommitLog and, once they are safe there, counted as delivered; one batch of a
level is on its way at a time. The offsets are saved every ``flush_delay_offset_interval``; messages delivered after the
last save before a crash are delivered once more.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from warren.actors.engines.topics.names import SCHEDULE_TOPIC
from warren.actors.engines.topics.schedule import DelaySchedule, deliverable, queue_of_level
from warren.actors.engines.topics.topic_store import TopicStore
from warren.actors.log_events import log_event, logger
from warren.actors.node.node_context import NodeContext
from warren.actors.runtime.future import Future
from warren.actors.topics.log_intake import LogIntake
from warren.actors.topics.topic_part import MS_NS, Autosave, TopicPart
from warren.msg_store.commit_log.commit_log import Batch
from warren.queue_index.index.config_file import ConfigFile
from warren.queue_index.topics.consume_queue import ConsumeQueue
from warren.queue_index.topics.consume_queue_format import Entries
from warren.queue_index.topics.consumer_offsets_format import encode_delay_offsets
from warren.storage.errors import NoRoomError

_LOG = logger("topics")

_AT_A_TIME: Final = 256
_MOST_WAIT_MS: Final = 5_000
"""Messages are due by the wall clock, timers use the monotonic one: a clock change is noticed within this time."""
_NOTHING: Final = np.empty(0, np.int64)


class ScheduleActor(TopicPart):
    """Owns the offsets of the delay levels."""

    def __init__(
        self, context: NodeContext, store: TopicStore, file: ConfigFile, offsets: dict[int, int], *, log: LogIntake
    ) -> None:
        super().__init__(context, f"the delayed messages of {store.directory}")
        self._store = store
        self._log = log
        self._file = file
        self._schedule = DelaySchedule(store.settings.delay_levels_ms(), offsets)
        self._on_their_way: set[int] = set()
        self._is_closing = False
        self._autosave = Autosave(self, self._save)

    def on_start(self) -> None:
        for level in self._schedule.levels:
            self._correct(level, self._queue(level))
        self._deliver_due()

    def _correct(self, level: int, queue: ConsumeQueue | None) -> None:
        lost = self._schedule.correct(level, *((0, 0) if queue is None else (queue.min_offset, queue.max_offset)))
        if lost:
            _LOG.warning(
                "%s: %d of level %d expired before they were delivered",
                self.describe(),
                lost,
                level,
                extra=log_event("topics_expired", part=self.describe(), count=lost),
            )

    def stop_delivering(self) -> None:
        """Stop handing messages to the CommitLog."""
        self._is_closing = True

    def _queue(self, level: int) -> ConsumeQueue | None:
        return self._store.queues.get((SCHEDULE_TOPIC, queue_of_level(level)))

    def follow(self) -> None:
        """Handle new delayed messages."""
        for level in self._schedule.levels:
            queue = self._queue(level)
            if queue is not None and queue.max_offset > self._schedule.offset(level):
                entries = queue.entries(self._schedule.offset(level), 1)
                due_ms = int(entries[0]["tags_code"]) if len(entries) else 0  # expired: due at once, to be skipped
                self._schedule.arrived(level, due_ms)
        self._deliver_due()

    def _deliver_due(self) -> None:
        """Deliver due messages, and set a timer for the next one."""
        if self._is_closing:
            return
        now_ms = self._context.clock.wall_us() // 1000
        while wanting := [level for level in self._schedule.wanting(now_ms) if level not in self._on_their_way]:
            for level in wanting:
                self._look(level, now_ms)
        if self._on_their_way:  # the last delivery to return checks again
            return
        due_ms = self._schedule.next_due_ms()
        if due_ms is not None:
            wait_ms = min(max(due_ms - now_ms, 0), _MOST_WAIT_MS)
            self.call_later("due", wait_ms * MS_NS, self._deliver_due, first=True)

    def _look(self, level: int, now_ms: int) -> None:
        queue = self._queue(level)
        if queue is None:
            self._schedule.look(level, _NOTHING, now_ms)
            return
        self._correct(level, queue)
        entries = queue.entries(self._schedule.offset(level), _AT_A_TIME)
        count = self._schedule.look(level, entries["tags_code"].astype("i8"), now_ms)
        if not count:
            return
        batches = _deliverable(self.describe(), self._store, entries[:count])
        self._on_their_way.add(level)
        confirm = Future()
        confirm.on_done(lambda future: self._answered(future, level, count))
        if batches:
            self._log.hand_over(batches, confirm)
        else:
            confirm.set()

    def _answered(self, confirm: Future, level: int, count: int) -> None:
        """Called in the CommitLog's turn. Delivery is retried if there was no room; other errors reopen the store."""
        error = confirm.error
        if error is None:
            self.call_soon(lambda: self._delivered(level, count))
        elif isinstance(error, NoRoomError):
            self.call_soon(lambda: self.full_disk.retry("refused", error, lambda: self._deliver_again(level)))

    def _delivered(self, level: int, count: int) -> None:
        self.full_disk.found_room("refused")
        self._schedule.delivered(level, count)
        self._autosave.arm(self._store.settings.flush_delay_offset_interval)
        self._deliver_again(level)

    def _deliver_again(self, level: int) -> None:
        self._on_their_way.discard(level)
        self._deliver_due()

    def _save(self) -> None:
        if self._schedule.is_dirty:
            self._file.replace(encode_delay_offsets(self._schedule.offsets, pretty=True), sync=True)
            self._schedule.is_dirty = False

    def on_turn_end(self) -> None:
        if self._context.check_invariants:
            self._schedule.check_invariants()


def _deliverable(part: str, store: TopicStore, entries: Entries) -> list[Batch]:
    """Return the batches to append for these entries. A message that can never be delivered is skipped, so that it does
    not block later ones."""
    batches, errors, expired = deliverable(store, entries)
    for error in errors:
        _LOG.error("%s: not delivered: %s", part, error, extra=log_event("topics_undelivered", error, part=part))
    if expired:
        _LOG.warning(
            "%s: %d expired before they were delivered",
            part,
            expired,
            extra=log_event("topics_expired", part=part, count=expired),
        )
    return batches
