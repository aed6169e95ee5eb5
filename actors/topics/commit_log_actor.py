"""The actor of the CommitLog, which appends messages and makes them safe.

Single appends gather in its inbox, whatever queue they go to, and share a confirm
(:class:`~warren.actors.node.front_end.PublishBatch`); batches come as messages. One turn writes everything that waits,
then makes it safe according to the store's mode:

* ``"group"`` (RocketMQ's ``SYNC_FLUSH``): synced when a caller waits, or after ``sync_interval_ms``; many share a sync.
* ``"always"``: synced in the same turn.
* ``"os"`` (``ASYNC_FLUSH``): confirmed as soon as it is written; synced by the clock (:class:`FlushTimer`).

The entries and index items of the same store are built by :mod:`warren.actors.topics.dispatch_actor`, which is notified
after every turn that appended.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import attrs
from pykka._envelope import Envelope as Letter

from warren.actors.engines.byte_budget import MESSAGE_BYTES
from warren.actors.engines.topics.stream_retention import StreamRetention, hold
from warren.actors.engines.topics.topic_store import TopicStore
from warren.actors.node.front_end import FrontEnd, PublishBatch
from warren.actors.node.node_context import NodeContext
from warren.actors.runtime.future import Confirm, Future
from warren.actors.runtime.inbox import PendingBatch
from warren.actors.topics import topic_messages as tm
from warren.actors.topics.dispatch_actor import DispatchActor
from warren.actors.topics.topic_part import MS_NS, TopicPart
from warren.msg_store.commit_log.commit_log import Appended, Batch, MessageIllegalError
from warren.msg_store.commit_log.commit_log_expiry import Hold
from warren.msg_store.commit_log.commit_log_flush import FlushTimer
from warren.msg_store.commit_log.commit_log_format import Host
from warren.storage.errors import NoRoomError, WarrenError

DISPATCH_DELAY_MS: Final = 5
"""Many small batches cost far more than a few large ones, and the thread switches double that."""
_US_OF_MS: Final = 1000


@attrs.frozen(eq=False, repr=False)
class AppendKey:
    """What single appends of one batch have in common. Compared by identity: a handle keeps its own."""

    topic: str
    born_host: Host
    store_host: Host
    born_timestamp: int | None = None
    """Milliseconds since 1970; ``None``: the time when they are appended."""
    flag: int = 0


@attrs.frozen
class AppendResult:
    """The position of an appended message."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    size: int


class AppendConfirm:
    """One message on its way: answered once it is as safe as the store's mode promises."""

    __slots__ = ("_appended", "_row", "body", "confirm", "key", "properties", "queue_id")

    def __init__(self, key: AppendKey, queue_id: int, body: bytes, properties: bytes) -> None:
        self.key = key
        self.queue_id = queue_id
        self.body = body
        self.properties = properties
        self.confirm: Confirm
        """Shared with messages that came together; set when the message is handed over."""
        self._appended: Appended | None = None
        self._row = 0

    @property
    def size_bytes(self) -> int:
        """The bytes that the message takes on its way."""
        return MESSAGE_BYTES + len(self.body) + len(self.properties)

    @property
    def done(self) -> bool:
        """Whether it is safe, or never will be."""
        return self.confirm.done

    def wait(self, timeout: float | None = None) -> AppendResult:
        """Wait until it is safe; return its position. Raises ``TimeoutError``, or the error that failed it."""
        self.confirm.wait(timeout)
        return self.position()

    def position(self) -> AppendResult:
        """Return its position, once :attr:`confirm` is answered."""
        appended, row = self._appended, self._row
        if appended is None:
            raise RuntimeError("confirmed, and not written")
        return AppendResult(
            self.key.topic,
            self.queue_id,
            appended.queue_offset + row,
            int(appended.physical_offsets[row]),
            int(appended.sizes[row]),
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {'failed' if self.confirm.error else 'answered' if self.done else 'pending'}>"


def went_all(items: Iterable[AppendConfirm], appended: Appended) -> None:
    """Note the positions of written messages, and drop their bytes."""
    for row, item in enumerate(items):
        item._appended = appended
        item._row = row
        item.body = item.properties = b""


class CommitLogActor(TopicPart, FrontEnd):
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
        super().__init__(context)
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

    def describe(self) -> str:
        return f"the topics of {self.store.directory}"

    @property
    def tries_full_disk(self) -> bool:
        return True  # readers make no room, so waiting could last for ever

    # ── any thread ──────────────────────────────────────────────────────────────────────────────────────────────

    def append(self, item: AppendConfirm, reserved_bytes: int | None = None) -> AppendConfirm:
        """Hand over one message, for which bytes are reserved; ``None``: not reserved, and its sender is not held."""
        if reserved_bytes is None:
            reserved_bytes = self._context.gate.enter(item.size_bytes)
        self._check_alive(reserved_bytes)
        item.confirm = self.actor_inbox.gather(
            item.key, item, self._new_batch, 1, size_bytes=item.size_bytes, reserved_bytes=reserved_bytes
        ).confirm
        return item

    def join(self, item: AppendConfirm) -> bool:
        """The fast path for one message: add it to messages that wait already, if bytes are reserved for it."""
        batch = self.actor_inbox.join(item.key, item, MESSAGE_BYTES + len(item.body) + len(item.properties))
        if batch is None:
            return False
        item.confirm = batch.confirm  # type: ignore[attr-defined]
        return True

    def hand_over(self, batches: Sequence[Batch], confirm: Future, reserved_bytes: int | None = None) -> None:
        """Hand over batches; the confirm is answered with what was appended. ``None``: nothing is reserved for them.

        ``None`` is for messages that result from stored ones, whose sender is not held.
        """
        if reserved_bytes is None:
            reserved_bytes = self._context.gate.enter(size_of(batches))
        self._check_alive(reserved_bytes)
        count = sum(len(batch.bodies) for batch in batches)
        self.actor_inbox.put(Letter(tm.AppendBatches(batches, confirm, reserved_bytes)), count)

    def _check_alive(self, reserved_bytes: int) -> None:
        if self.actor_stopped.is_set():
            self._context.gate.leave(reserved_bytes, unused_bytes=reserved_bytes)
            raise self.stopped_error()

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
        self._hurry = True
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
        synced = Future(self)
        self.store.flush_commit_log()
        self._unconfirmed.append((synced, None))
        self._hurry = True
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
        hurry, self._hurry = self._hurry, False
        if hurry and not self.actor_inbox.empty():
            self._hurry = True  # a message that is waited for may not have been taken yet
        if self._unconfirmed:
            self._make_safe(hurry=hurry)
        if self._appended:
            self._appended = False
            self._dispatch_soon()
        if self._waiting_publishers:
            self._let_publishers_in()

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
        return self._hurry and bool(self._unconfirmed)

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
        self._hurry = True

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
        self._let_publishers_in()


def _by_queue(items: list[AppendConfirm]) -> dict[int, list[AppendConfirm]]:
    queue_ids = {item.queue_id for item in items}
    if len(queue_ids) == 1:
        return {queue_ids.pop(): items}
    by_queue: dict[int, list[AppendConfirm]] = {}
    for item in items:
        by_queue.setdefault(item.queue_id, []).append(item)
    return by_queue


def size_of(batches: Iterable[Batch]) -> int:
    """Return the bytes that batches take on their way."""
    size_bytes = 0
    for batch in batches:
        count, properties = len(batch.bodies), batch.properties
        size_bytes += count * MESSAGE_BYTES + sum(map(len, batch.bodies))
        size_bytes += count * len(properties) if isinstance(properties, bytes) else sum(map(len, properties))
    return size_bytes


def batch_of_items(key: AppendKey, queue_id: int, items: list[AppendConfirm], now_ms: int) -> Batch:
    """Make a batch of messages for one queue that were appended one by one."""
    return Batch(
        topic=key.topic,
        queue_id=queue_id,
        bodies=[item.body for item in items],
        properties=[item.properties for item in items],
        born_timestamp=now_ms if key.born_timestamp is None else key.born_timestamp,
        born_host=key.born_host,
        store_host=key.store_host,
        flag=key.flag,
        as_one=False,
    )
