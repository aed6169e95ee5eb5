"""The actor of the CommitLog, which appends messages and makes them safe.

One turn writes everything that waits (:mod:`warren.actors.topics.log_intake`), then makes it safe according to the
store's mode (:mod:`warren.actors.node.group_commit`): ``"group"`` is RocketMQ's ``SYNC_FLUSH``, and ``"os"``, synced by
the clock, its ``ASYNC_FLUSH``.

The entries and index items of the same store are built by :mod:`warren.actors.topics.dispatch_actor`, which is notified
after every turn that appended.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from warren.actors.engines.topics.stream_retention import StreamRetention
from warren.actors.engines.topics.topic_store import TopicStore
from warren.actors.node.backpressure import PublishBatch
from warren.actors.node.group_commit import GroupCommit
from warren.actors.node.node_context import NodeContext
from warren.actors.runtime.future import Future
from warren.actors.runtime.inbox import PendingBatch
from warren.actors.topics.dispatch_actor import DispatchActor
from warren.actors.topics.log_intake import AppendBatches, AppendConfirm, AppendKey, LogIntake, batch_of_items, went_all
from warren.actors.topics.log_upkeep import LogUpkeep
from warren.actors.topics.topic_part import TopicPart
from warren.msg_store.commit_log.commit_log import Appended, Batch, MessageIllegalError
from warren.storage.errors import NoRoomError, WarrenError


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
        self._upkeep = LogUpkeep(
            self, context, store, dispatcher=dispatcher, used_disk_percent=used_disk_percent, streams=streams
        )
        make_safe = self._upkeep.arm_flush if sync == "os" else store.flush_commit_log
        self._commits = GroupCommit(self, context, self.intake, mode=sync, sync=make_safe)
        self._appended = False

    # ── turns ───────────────────────────────────────────────────────────────────────────────────────────────────

    def on_start(self) -> None:
        self._upkeep.clean_later()

    def on_batch(self, entry: PendingBatch) -> None:
        if not isinstance(entry, PublishBatch) or not isinstance(entry.key, AppendKey):
            raise TypeError(f"a CommitLog cannot handle {entry!r}")
        self.actor_inbox.lighten(len(entry.items))
        by_queue = _by_queue(entry.items)
        now_ms = self._context.clock.wall_us() // 1000
        try:
            for queue_id, items in by_queue.items():
                appended = self._append(batch_of_items(entry.key, queue_id, items, now_ms), now_ms)
                went_all(items, appended)
        except BaseException as error:
            entry.confirm.fail(error)
            raise
        finally:
            self._context.gate.leave(entry.reserved_bytes, unused_bytes=max(entry.room_bytes, 0))
        self._commits.unconfirmed.append((entry.confirm, None))

    def on_receive(self, message: object) -> object:
        if not isinstance(message, AppendBatches):
            raise TypeError(f"a CommitLog cannot handle {message!r}")
        self.actor_inbox.lighten(sum(len(batch.bodies) for batch in message.batches))
        now_ms = self._context.clock.wall_us() // 1000
        try:
            appended = [self._append(batch, now_ms) for batch in message.batches]
        except BaseException as error:
            message.confirm.fail(error)
            raise
        finally:
            self._context.gate.leave(message.reserved_bytes)
        self._commits.unconfirmed.append((message.confirm, appended))
        return None

    def _save(self) -> None:
        self.intake.hurry = True
        self._commits.make_safe(hurry=True)

    def _append(self, batch: Batch, now_ms: int) -> Appended:
        """Append one batch. If one of several related batches is refused, those before it stay."""
        try:
            appended = self.store.append(batch, now_ms)
        except NoRoomError:
            self._appended = True  # a part of the batch may have been written
            raise
        self._appended = True
        if self.full_disk.error is not None:
            self.full_disk.found_room("append")
        if appended.status != "PUT_OK":  # RocketMQ reports success here, and has stored nothing
            raise MessageIllegalError(f"{batch.topic}: a message is larger than a file of the CommitLog")
        return appended

    def on_refused(self, error: Exception) -> None:
        if isinstance(error, NoRoomError):  # every append gets the error; the log has it once
            self.full_disk.note("append", error)
        else:
            super().on_refused(error)

    def sync(self) -> Future:
        """Return a future that is answered when everything appended before is safe."""
        synced = Future(self.intake)
        self.store.flush_commit_log()
        self._commits.unconfirmed.append((synced, None))
        self.intake.hurry = True
        return synced

    # ── the end of a turn ───────────────────────────────────────────────────────────────────────────────────────

    def on_turn_end(self) -> None:
        hurry = self.intake.take_hurry()
        if self._commits.unconfirmed:
            self._commits.make_safe(hurry=hurry)
        if self._appended:
            self._appended = False
            self._upkeep.dispatch_soon()
        if self.intake.waiting_publishers:
            self.intake.let_publishers_in()

    def wants_turn(self) -> bool:
        return self.intake.hurry and bool(self._commits.unconfirmed)

    # ── the end ─────────────────────────────────────────────────────────────────────────────────────────────────

    def close(self) -> None:
        self.turns.handle_last()
        super().close()

    def on_undelivered(self, message: Any, error: WarrenError) -> None:
        if isinstance(message, (PublishBatch, AppendBatches)):
            self._context.gate.leave(message.reserved_bytes)
            message.confirm.fail(error)

    def end(self) -> None:
        self._commits.fail(self.stopped_error())
        self.intake.let_publishers_in()


def _by_queue(items: list[AppendConfirm]) -> dict[int, list[AppendConfirm]]:
    queue_ids = {item.queue_id for item in items}
    if len(queue_ids) == 1:
        return {queue_ids.pop(): items}
    by_queue: dict[int, list[AppendConfirm]] = {}
    for item in items:
        by_queue.setdefault(item.queue_id, []).append(item)
    return by_queue
