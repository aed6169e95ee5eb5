"""The actor of the CommitLog, which appends messages and makes them safe.

One turn writes everything that waits (:mod:`warren.actors.topics.log_intake`), then makes it safe according to the
store's mode:

* ``"group"`` (RocketMQ's ``SYNC_FLUSH``): synced when a caller waits, or after ``sync_interval_ms``; many share a sync.
* ``"always"``: synced in the same turn.
* ``"os"`` (``ASYNC_FLUSH``): confirmed as soon as it is written; synced by the clock (:class:`FlushTimer`).

The entries and index items of the same store are built by :mod:`warren.actors.topics.dispatch_actor`, which is notified
after every turn that appended.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from typing import Any, Final

from warren.actors.engines.topics.stream_retention import StreamRetention, hold
from warren.actors.engines.topics.topic_store import TopicStore
from warren.actors.node.backpressure import PublishBatch
from warren.actors.node.node_context import NodeContext
from warren.actors.runtime.future import Future
from warren.actors.runtime.inbox import PendingBatch
from warren.actors.topics import topic_messages as tm
from warren.actors.topics.dispatch_actor import DispatchActor
from warren.actors.topics.log_intake import AppendConfirm, AppendKey, LogIntake, batch_of_items, went_all
from warren.actors.topics.topic_part import MS_NS, TopicPart
from warren.msg_store.commit_log.commit_log import Appended, Batch, MessageIllegalError
from warren.msg_store.commit_log.commit_log_expiry import Hold
from warren.msg_store.commit_log.commit_log_flush import FlushTimer
from warren.storage.errors import NoRoomError, WarrenError

DISPATCH_DELAY_MS: Final = 5
"""Many small batches cost far more than a few large ones, and the thread switches double that."""
_US_OF_MS: Final = 1000


class CommitLogActor(TopicPart):
    """Owns the writing half of a topic store."""

    def __init__(
        self,
        context: NodeContext,
        store: TopicStore,
        *,
        dispatcher: DispatchActor,
        sync: str,
        used_disk_percent: Callable[[], float],
        streams: Callable[[], Mapping[str, StreamRetention]] = dict,
    ) -> None:
        """``streams`` returns the retention of the streams, by topic."""
        super().__init__(context, f"the topics of {store.directory}")
        # Readers make no room on a full disk, so waiting could last for ever.
        self.intake = LogIntake(self, context, tries_full_disk=True)
        self.store = store
        self._streams = streams
        self._dispatcher = dispatcher
        self._sync = sync
        self._used_disk_percent = used_disk_percent
        self._dispatch_armed = False
        settings = store.settings
        self._flush_timer = FlushTimer(
            settings.flush_interval_commit_log,
            settings.flush_commit_log_thorough_interval,
            settings.flush_commit_log_least_pages,
            context.clock.now_ns() // MS_NS,
        )
        self._unconfirmed: list[tuple[Future, object]] = []
        self._appended = self._flush_armed = False

    # ── turns ───────────────────────────────────────────────────────────────────────────────────────────────────

    def on_start(self) -> None:
        self._clean_later()

    def on_batch(self, entry: PendingBatch) -> None:
        if not isinstance(entry, PublishBatch) or not isinstance(entry.key, AppendKey):
            raise RuntimeError(f"a CommitLog cannot handle {entry!r}")  # noqa: TRY004
        self.actor_inbox.lighten(len(entry.items))
        by_queue = _by_queue(entry.items)
        now_ms = self._now_ms()
        try:
            for queue_id, items in by_queue.items():
                appended = self._append(batch_of_items(entry.key, queue_id, items, now_ms), now_ms)
                went_all(items, appended)
        except BaseException as error:
            entry.confirm.fail(error)
            raise
        finally:
            self._context.gate.leave(entry.reserved_bytes, unused_bytes=max(entry.room_bytes, 0))
        self._unconfirmed.append((entry.confirm, None))

    def on_receive(self, message: object) -> object:
        if not isinstance(message, tm.AppendBatches):
            raise RuntimeError(f"a CommitLog cannot handle {message!r}")  # noqa: TRY004
        self._append_batches(message)
        return None

    def _close(self) -> None:
        self.intake.hurry = True
        self._make_safe(hurry=True)

    def _append_batches(self, message: tm.AppendBatches) -> None:
        self.actor_inbox.lighten(sum(len(batch.bodies) for batch in message.batches))
        now_ms = self._now_ms()
        try:
            appended = [self._append(batch, now_ms) for batch in message.batches]
        except BaseException as error:
            message.confirm.fail(error)
            raise
        finally:
            self._context.gate.leave(message.reserved_bytes)
        self._unconfirmed.append((message.confirm, appended))

    def _append(self, batch: Batch, now_ms: int) -> Appended:
        """Append one batch. If one of several related batches is refused, those before it stay."""
        try:
            appended = self.store.append(batch, now_ms)
        except NoRoomError:
            self._appended = True  # a part of the batch may have been written
            raise
        self._appended = True
        if self.no_room is not None:
            self._found_room("append")
        if appended.status != "PUT_OK":  # RocketMQ reports success here, and has stored nothing
            raise MessageIllegalError(f"{batch.topic}: a message is larger than a file of the CommitLog")
        return appended

    def on_refused(self, error: Exception) -> None:
        if isinstance(error, NoRoomError):  # every append gets the error; the log has it once
            self._note_full("append", error)
        else:
            super().on_refused(error)

    def sync(self) -> Future:
        """Return a future that is answered when everything appended before is safe."""
        synced = Future(self.intake)
        self.store.flush_commit_log()
        self._unconfirmed.append((synced, None))
        self.intake.hurry = True
        return synced

    def _flush_by_the_clock(self) -> None:
        """Sync what was confirmed unsynced, if it is enough or old enough; otherwise check again later."""
        self._flush_armed = False
        log = self.store.commit_log
        if self._flush_timer.is_due(
            self._context.clock.now_ns() // MS_NS, log.flushed_end, log.end, log.mapped.file_size
        ):
            self.store.flush_commit_log()
        elif log.has_unflushed:
            self._arm_flush()

    def _arm_flush(self) -> None:
        if not self._flush_armed:
            self._flush_armed = True
            wait_ns = self.store.settings.flush_interval_commit_log * MS_NS
            self.call_later("flush", wait_ns, self._flush_by_the_clock, first=True)

    def _now_ms(self) -> int:
        return self._context.clock.wall_us() // _US_OF_MS

    # ── the end of a turn ───────────────────────────────────────────────────────────────────────────────────────

    def on_turn_end(self) -> None:
        hurry = self.intake.take_hurry()
        if self._unconfirmed:
            self._make_safe(hurry=hurry)
        if self._appended:
            self._appended = False
            self._dispatch_soon()
        if self.intake.waiting_publishers:
            self.intake.let_publishers_in()

    def _dispatch_soon(self) -> None:
        """Dispatch at once if a reader waits for messages; otherwise collect those of the next few milliseconds."""
        if self._dispatcher.arrivals.is_awaited():
            self._dispatcher.call_soon(self._dispatcher.dispatch)
        elif not self._dispatch_armed:
            self._dispatch_armed = True
            self.call_later("dispatch", DISPATCH_DELAY_MS * MS_NS, self._dispatch_now, first=True)

    def _dispatch_now(self) -> None:
        self._dispatch_armed = False
        self._dispatcher.call_soon(self._dispatcher.dispatch)

    def wants_turn(self) -> bool:
        return self.intake.hurry and bool(self._unconfirmed)

    def _make_safe(self, *, hurry: bool) -> None:
        if self._sync == "os":
            self._arm_flush()
        elif hurry or self._sync == "always":
            self.store.flush_commit_log()
        else:
            if not self._flush_armed:
                self._flush_armed = True
                self.call_later("flush", self._context.settings.sync_interval_ms * MS_NS, self._sync_due)
            return
        self._context.check_directory()
        unconfirmed, self._unconfirmed = self._unconfirmed, []
        for confirm, value in unconfirmed:
            if not confirm.done:
                confirm.set(value)

    def _sync_due(self) -> None:
        self._flush_armed = False
        self.intake.hurry = True

    def _clean_later(self) -> None:
        self.call_later("clean", self.store.settings.clean_resource_interval * MS_NS, self._clean, first=True)

    def _clean(self) -> None:
        """Delete expired files, if it is time for that."""
        self._clean_later()
        wall_us = self._context.clock.wall_us()
        hour = datetime.datetime.fromtimestamp(wall_us // 1_000_000).astimezone().hour
        now_ms, streams = wall_us // _US_OF_MS, self._streams()

        def held(base: int) -> Hold:
            return hold(self.store, streams, base, now_ms) if streams else "not held"

        if self.store.expire_commit_log(now_ms, hour, self._used_disk_percent(), held):
            self._dispatcher.call_soon(self.store.expire_queues)

    # ── the end ─────────────────────────────────────────────────────────────────────────────────────────────────

    def on_undelivered(self, message: Any, error: WarrenError) -> None:
        if isinstance(message, (PublishBatch, tm.AppendBatches)):
            self._context.gate.leave(message.reserved_bytes)
            message.confirm.fail(error)

    def end_with(self, error: BaseException) -> None:
        super().end_with(error)
        unconfirmed, self._unconfirmed = self._unconfirmed, []
        for confirm, _ in unconfirmed:
            confirm.fail(self.stopped_error())
        self.intake.let_publishers_in()


def _by_queue(items: list[AppendConfirm]) -> dict[int, list[AppendConfirm]]:
    queue_ids = {item.queue_id for item in items}
    if len(queue_ids) == 1:
        return {queue_ids.pop(): items}
    by_queue: dict[int, list[AppendConfirm]] = {}
    for item in items:
        by_queue.setdefault(item.queue_id, []).append(item)
    return by_queue
