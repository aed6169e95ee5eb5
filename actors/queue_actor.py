"""The actor of one queue: a thin coat around its :class:`~actors.engines.queue_process.QueueProcess`.

It turns messages into calls, and what the calls brought about (:class:`~actors.engines.queue_process.Effects`) into
messages. A turn: work off what waits; hand out what consumers have room for; make safe what somebody waits for; tell
everybody; set the timers.

How messages get in, and who has to wait, is the outer half: :mod:`actors.queue_door`.

*Confirms* are grouped: what was published is synced within ``sync_interval_ms``, at once where somebody waits
(:meth:`QueueActor.help`), after every turn with sync="always"; with "os" it is written, which survives the process.
Acks, which nobody waits for, are made safe with them, or within the same time.

*Rest.* A queue that has had nothing to do for ``hibernate_after_ms`` flushes its journal and closes its files. What it
has in RAM stays there for its next consumer, until the memory monitor says that memory is wanted: as the answer to the
last report, or at any time later. Then it gives up its lists too, where all is on disk; else it pages. One with nothing
in RAM gives them up at once, and leaves the memory monitor, which so never wakes it. The next message brings it back.

A crash, or an error: the files are given up as they are, and the node opens the queue anew from them.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, TypeGuard

import attrs
from pykka import ActorRef
from pykka._envelope import Envelope as Letter

from actors import messages as m
from actors.deliveries import BUFFER, Deliveries
from actors.engines.arguments import QueueDeclaration
from actors.engines.byte_budget import MESSAGE_BYTES
from actors.engines.dead_letters import is_cycle
from actors.engines.effects import DeadLetterBatch, Delivered
from actors.engines.queue_process import QueueProcess
from actors.future import CountDown, Future
from actors.handing_over import (
    CLOSED_WEIGHT,
    PublishBatch,
    PublishKey,
    PublishRefusedError,
    QueueDownError,
    QueueGoneError,
    SettleKey,
    tag_ranges,
)
from actors.inbox import Gathering
from actors.looking import allocated_bytes, browse, is_pageable
from actors.queue_door import QueueDoor
from actors.sampling import sample_queue
from actors.store_actor import MAX_ROOM_INTERVAL_NS, ROOM_INTERVAL_NS, RemoteStore
from actors.surroundings import Surroundings
from actors.timer import tell
from queue_index.message_format import Envelope
from queue_index.msg_ids import MsgIds
from queue_index.recovery_terms import RecoveryTerms
from storage.errors import DiskFullError, NoRoomError, StorageError, WarrenError

_LOG = logging.getLogger("warren.queue")
_rest_numbers = itertools.count(1)

IDLE_BYTES: Final = 4096
"""What an idle queue is taken to need, where memory is counted by the engine itself."""


Dispatch = Callable[[str, tuple[str, ...], Any], list[tuple[str, ActorRef[Any] | None]]]
"""exchange, routing keys, headers → name and actor (``None``: down) of each queue that a dead letter goes to."""


@attrs.frozen
class OpenedQueue:
    """A queue brought up from its files."""

    process: QueueProcess
    stores: list[RemoteStore]
    recovered: Callable[[], None]
    """To be called once no segment is left to scan."""


class QueueActor(QueueDoor):
    """Owner of one queue."""

    __slots__ = (
        "_bump_told",
        "_deadline_us",
        "_dispatch",
        "_has_files",
        "_idle_armed",
        "_is_store_full",
        "_last_work_ns",
        "_no_room",
        "_open_process",
        "_recovered",
        "_recovering_armed",
        "_report_armed",
        "_reporting",
        "_room_wait_ns",
        "_settled",
        "_sync_armed",
        "_unused_told",
        "_worked",
        "msg_ids",
        "rest_number",
        "turns",
    )

    def __init__(
        self,
        around: Surroundings,
        declaration: QueueDeclaration,
        *,
        open_process: Callable[[QueueActor], OpenedQueue],
        dispatch: Dispatch,
    ) -> None:
        super().__init__(around, declaration)
        self._open_process = open_process
        self._dispatch = dispatch
        self.msg_ids = MsgIds(around.random(8))
        self._settled = False
        """Whether something was settled that is not safe yet: a crash would bring it back."""
        self._sync_armed = self._report_armed = self._idle_armed = self._recovering_armed = False
        self._deadline_us: int | None = None
        self._last_work_ns = 0
        self.rest_number = 0
        """Another one in each rest, 0 at work: while it stays the same the queue's numbers do too."""
        self.turns = 0
        """How many of its turns had something to do."""
        self._has_files = False
        """Whether something was published to it since it was started."""
        self._reporting = False
        self._worked = self._unused_told = self._bump_told = False
        self._recovered: Callable[[], None] | None = None
        self._no_room: NoRoomError | None = None
        """The disk was full when this queue last wrote."""
        self._room_wait_ns = ROOM_INTERVAL_NS
        self._is_store_full = False

    @property
    def process(self) -> QueueProcess:
        if self._process is None:
            raise RuntimeError(f"{self.describe()} is not open")
        return self._process

    # ── beginning and end ───────────────────────────────────────────────────────────────────────────────────────

    def on_start(self) -> None:
        opened = self._open_process(self)
        self._process, self._stores, self._recovered = opened.process, opened.stores, opened.recovered
        self._recover_on()
        self._account()  # ten thousand that were just found take memory too
        if not self.process.recovering:  # a queue that nobody ever uses expires, too
            self._arm_deadline(self._next_deadline_us())

    def _recover_on(self) -> None:
        """Go on recovering, behind what has come meanwhile; when it is through, say so."""
        if self._recovered is None:
            return
        if not self.process.recovering:
            self._recovered()
            self._recovered = None
        elif not self._recovering_armed:
            self._recovering_armed = True
            self.actor_ref.tell(m.RecoverStep())

    def _on_recover_step(self, _: m.RecoverStep) -> None:
        self._recovering_armed = False
        self.process.recover_step()
        self._recover_on()

    def _on_close(self, _: m.CloseQueue) -> tuple[dict[bytes, RecoveryTerms], list[Future]]:
        while (entry := self.actor_inbox.take()) is not None:  # what came before is handled before the end
            if isinstance(entry, Gathering):
                self._guard(None, self.on_gathered, entry)
            else:
                self._handle(entry)
            if self.actor_stopped.is_set():
                raise self.stopped_error()
        self._carry_out()
        self._say_last_word()
        try:
            terms = self.process.close(self._around.random)
        except NoRoomError as error:  # half-closed: that is no refusal any more
            raise StorageError(str(error)) from error
        self._recover_on()
        confirms, self._confirms = list(self._confirms), set()  # safe once the stores are closed, too
        self._end(None)
        return terms, confirms

    def _on_delete(self, message: m.DeleteQueue) -> int:
        process = self.process
        deleted = process.delete(if_empty=message.if_empty, if_unused=message.if_unused)
        self._say_last_word()
        self._recover_on()
        self._carry_out()
        for store in self._stores:
            store.leave()
        self._error = QueueGoneError(f"{self.describe()} was deleted")
        self._end(self._error)
        return deleted

    def _on_give_up(self, message: m.GiveUp) -> None:
        """Its store has failed: leave everything as a crash would."""
        self._error = message.error
        self.process.abandon()
        self._end(self.stopped_error())

    def _end(self, error: BaseException | None) -> None:
        """Whatever the end: tell consumers and publishers, and be forgotten."""
        for deliveries in self.deliveries.values():
            deliveries.end(error)
        for confirm in self._confirms:
            confirm.fail(error if error is not None else self.stopped_error())
        self._confirms.clear()
        for store in self._stores:
            store.give_up()
        self._around.allocated.account(self.actor_urn, 0)
        self._around.syncing.discard(self.actor_urn)
        tell(self._around.timer, m.CancelTimers(self.actor_ref))
        tell(self._around.monitor, m.LeaveMonitor(self.actor_ref))
        tell(self._around.monitor, m.DiskRoom(self.actor_ref, found=True))
        self.alive = False
        self.actor_inbox.weight = CLOSED_WEIGHT
        self._stop()
        self._let_publishers_in()

    def on_failure(
        self,
        exception_type: type[BaseException] | None,
        exception_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._error = exception_value
        if self._process is not None:
            with contextlib.suppress(Exception):
                self._process.abandon()
        for store in self._stores:
            store.leave()
        self._end(self.stopped_error())
        error = exception_value if exception_value is not None else RuntimeError("no error")
        tell(self._around.node, m.QueueFailed(self.actor_ref, error))

    def on_undelivered(self, message: Any, error: WarrenError) -> None:
        if isinstance(message, (PublishBatch, m.Publish)):
            self._around.gate.leave(message.reserved_bytes)
            message.confirm.fail(error)
        elif isinstance(message, m.Subscribe):
            message.deliveries.end(error)

    # ── messages ────────────────────────────────────────────────────────────────────────────────────────────────

    def on_receive(self, message: object) -> object:
        handler = _HANDLERS.get(type(message))
        if handler is None:
            raise RuntimeError(f"a queue cannot handle {message!r}")
        if type(message) not in _NO_WORK:
            self._worked = True
        return handler(self, message)

    def on_gathered(self, entry: Gathering) -> None:
        self._worked = True
        items = entry.items
        if isinstance(entry, PublishBatch):
            key: PublishKey = entry.key  # type: ignore[assignment]
            self.actor_inbox.lighten(len(items))
            ids = self.msg_ids.many(len(items)) if len(items) > 1 else self.msg_ids.one()
            try:
                self._publish(key.envelope, ids, items, key.expiration_ms, key.priority, entry.confirm)
            finally:  # what of it went on to a store is on the way there now
                self._around.gate.leave(entry.reserved_bytes, unused_bytes=entry.room_bytes)
            return
        settle: SettleKey = entry.key  # type: ignore[assignment]
        self._settle(settle.channel, settle.outcome, tag_ranges(items))

    def _on_publish(self, message: m.Publish) -> None:
        self.actor_inbox.lighten(len(message.bodies))
        ids = message.msg_ids or self.msg_ids.many(len(message.bodies))
        try:
            self._publish(
                message.envelope, ids, message.bodies, message.expiration_ms, message.priority, message.confirm
            )
        finally:
            self._around.gate.leave(message.reserved_bytes)

    def _publish(  # noqa: PLR0917
        self, envelope: Envelope, ids: bytes, bodies: Any, expiration_ms: int | None, priority: int, confirm: Future
    ) -> None:
        self._confirms.add(confirm)
        if not self._has_files:  # made now, with the directories above them: not where those were removed
            self._around.check_directory()
            self._has_files = True
        try:
            self.process.publish_many(
                envelope, ids, bodies, expiration_ms=expiration_ms, priority=priority, token=confirm
            )
        except WarrenError as error:
            self._confirms.discard(confirm)
            confirm.fail(error)
            raise

    def _on_get_many(self, message: m.GetMany) -> list[Delivered]:
        found = self.process.get_many(message.channel, message.count, ack_required=message.ack_required)
        if found:
            self._worked = True
            self._settled |= not message.ack_required
        return found

    def _on_subscribe(self, message: m.Subscribe) -> None:
        self.process.add_consumer(message.consumer)
        self.deliveries[message.consumer.tag] = message.deliveries
        self._bound(message.deliveries, message.consumer.prefetch)

    def _on_set_prefetch(self, message: m.SetPrefetch) -> None:
        self.process.set_prefetch(message.tag, message.prefetch)
        if (deliveries := self.deliveries.get(message.tag)) is not None:
            self._bound(deliveries, message.prefetch)

    def _bound(self, deliveries: Deliveries, prefetch: int) -> None:
        """Without a prefetch a consumer gets more as it takes what it has: see :data:`actors.deliveries.BUFFER`."""
        deliveries.more = None if prefetch else self.get_in_line

    def _on_cancel_consumer(self, message: m.CancelConsumer) -> None:
        self.process.cancel_consumer(message.tag)
        if (deliveries := self.deliveries.pop(message.tag, None)) is not None:
            deliveries.end()

    def _on_close_channel(self, message: m.CloseChannel) -> int:
        requeued = self.process.close_channel(message.channel)
        for tag in [tag for tag, deliveries in self.deliveries.items() if deliveries.channel == message.channel]:
            self.deliveries.pop(tag).end()
        return requeued

    def _on_settle(self, message: m.Settle) -> None:
        self._settled = True
        if message.up_to is None:
            self._settle(message.channel, message.outcome, message.tags)
        elif message.outcome == "ack":
            self.process.ack_up_to(message.channel, message.up_to)
        else:
            self.process.nack_up_to(message.channel, message.up_to, requeue=message.outcome == "requeue")

    def _settle(self, channel: str, outcome: str, tags: Any) -> None:
        self._settled = True
        if outcome == "ack":
            self.process.ack(channel, tags)
        else:
            self.process.nack(channel, tags, requeue=outcome == "requeue")

    def _on_purge(self, _: m.Purge) -> int:
        self._settled = True
        return self.process.purge()

    def _on_store_progress(self, message: m.StoreProgress) -> None:
        for store in self._stores:
            if store.client == message.client:
                self._is_store_full = False
                was_blocked = store.credit.blocked
                store.progress(message)
                if was_blocked and not store.credit.blocked:
                    self.process.resume()

    def _on_resume_paging(self, _: m.ResumePaging) -> None:
        self._bump_told = False
        self.process.resume()
        self._account()

    def _on_sync(self, _: m.Sync) -> object:
        """What was acked before is safe now, what was published once the last confirm of today is."""
        self._hurry = True
        try:
            self.process.sync_index()
        except NoRoomError as error:
            self._wait_for_room(error)
            raise
        self._around.check_directory()
        self._settled = False
        self._carry_out()  # a publish that was refused is answered so: it is no error of this call's
        return CountDown(list(self._confirms))

    def _on_duration_target(self, message: m.SetDurationTarget) -> None:
        self.process.set_ram_duration_target(message.duration_s)
        if self.rest_number and message.duration_s is not None:
            self._take_rest()
            if not is_pageable(self.process):
                tell(self._around.monitor, m.LeaveMonitor(self.actor_ref))
        self._account()

    def _account(self) -> None:
        """Say how much memory the queue needs now."""
        process = self.process
        size_bytes = IDLE_BYTES if process.is_asleep else allocated_bytes(process)
        self._around.allocated.account(self.actor_urn, size_bytes)

    def _on_report_due(self, _: m.ReportDue) -> None:
        self._report_armed = True
        self._start_timer("report", self._around.settings.queue_ram_report_interval_ms * 1_000_000, m.ReportDue())
        self._report()

    def _report(self) -> None:
        self._reporting = True
        report = m.ReportDuration(self.actor_ref, self.process.ram_duration(), is_pageable(self.process))
        tell(self._around.monitor, report)

    def _on_idle_due(self, _: m.IdleDue) -> None:
        self._idle_armed = False
        idle_ns = self._around.clock.now_ns() - self._last_work_ns
        if idle_ns < self._around.settings.hibernate_after_ms * 1_000_000 or not self.actor_inbox.empty():
            return  # the turn's end sets the timer again
        deadline_us = self._next_deadline_us()
        if self.process.recovering or self._confirms or self._settled or not self._has_come_to_rest():
            self._last_work_ns = self._around.clock.now_ns()
            return
        self._worked = False
        self._account()
        self._sync_armed = self._report_armed = self._reporting = False
        self._deadline_us = None
        tell(self._around.timer, m.CancelTimers(self.actor_ref))
        self._arm_deadline(deadline_us)  # what expires does so while its queue rests, too
        if is_pageable(self.process):  # what is in RAM lasts for ever, as things are; but it can be told to go
            tell(self._around.monitor, m.ReportDuration(self.actor_ref, None, pageable=True, resting=True))
        else:
            tell(self._around.monitor, m.LeaveMonitor(self.actor_ref))

    def _has_come_to_rest(self) -> bool:
        """Whether the queue rests now: not where the disk has no room for what it has to write before."""
        try:
            self._take_rest()
        except NoRoomError:
            return False
        return True

    def _take_rest(self) -> None:
        self.process.hibernate()
        self.actor_inbox.rest()
        self.rest_number = next(_rest_numbers)

    def _on_sync_due(self, _: m.SyncDue) -> None:
        self._sync_armed = False
        self._hurry = True

    def _on_deadline_due(self, _: m.DeadlineDue) -> None:
        self._deadline_us = None
        self.process.tick()
        expires_at_us = self.process.expires_at_us()
        if expires_at_us is not None and expires_at_us <= self._around.clock.wall_us():
            tell(self._around.node, m.QueueUnused(self.actor_ref))

    def _on_get_stats(self, _: m.GetStats) -> dict[str, Any]:
        stats = self.process.stats()
        return stats | {"state": "hibernated"} if self.rest_number else stats

    # ── being recorded ──────────────────────────────────────────────────────────────────────────────────────────

    def has_changed(self, turns: int) -> bool:
        """Whether it did anything since it had had so many turns. Any thread may ask."""
        counts = None if self._process is None else self._process.counts
        return self.turns != turns or (counts is not None and counts.published > 0)  # past the queue: without a turn

    def _on_sample(self, message: m.SampleQueue) -> None:
        self._sample(message.step)
        if self.rest_number:
            self.actor_inbox.rest()

    def _sample(self, step: int | None) -> None:
        recorder = self._around.recorder
        if recorder is None:
            return
        unbounded = any(deliveries.more is not None for deliveries in list(self.deliveries.values()))
        prefetch = 0 if unbounded else max((one.prefetch for one in self.process.consumers), default=0)
        ram_bytes = self._around.allocated.by_owner.get(self.actor_urn, 0)
        row = sample_queue(self.process, prefetch=prefetch)
        tell(recorder, m.QueueSampled(self.actor_urn, step, self._around.clock.now_ns(), self.turns, ram_bytes, row))

    def _say_last_word(self) -> None:
        """To the recorder, if there is one and it does not know all there is."""
        if self._around.recorder is not None and (not self.process.is_asleep or self.process.has_counted):
            self._sample(None)

    # ── the end of a turn ───────────────────────────────────────────────────────────────────────────────────────

    def on_turn_end(self) -> None:
        if self._process is None:
            return
        process = self._process
        if self.deliveries:
            for tag, deliveries in self.deliveries.items():
                if deliveries.more is not None:
                    process.set_room(tag, max(BUFFER - deliveries.buffered, 0))
            process.deliver()
        hurry, self._hurry = self._hurry, False
        if hurry and not self.actor_inbox.empty():
            self._hurry = True  # what somebody waits for may not have been taken yet
        if self._confirms or self._settled or (hurry and self._is_store_full):
            self._make_safe(hurry=hurry)
        self._carry_out()
        if self._waiting_for_room:
            self._let_publishers_in()
        if self._worked:
            self._worked = False
            self.turns += 1
            self.rest_number = 0
            self._last_work_ns = self._around.clock.now_ns()
            self._arm_timers()
            self._account()
        while self._abandoned:  # behind what was sent through the channel
            self.actor_inbox.put(Letter(m.CloseChannel(self._abandoned.popleft())))
        if self._around.check_invariants:
            process.check_invariants()

    def _make_safe(self, *, hurry: bool) -> None:
        """Sync what publishers wait for, and what was settled, now or soon."""
        process, mode = self.process, self._around.settings.sync
        if hurry or (self._confirms and mode != "group" and self._no_room is None):
            try:
                if mode == "os":
                    process.write_out()
                else:
                    process.sync_index()
            except NoRoomError as error:
                process.drain_confirms()
                self._wait_for_room(error)
                return
            self._found_room()
            for store in self._stores:
                store.sync()
            self._settled = False
            self._around.syncing.discard(self.actor_urn)
        elif not self._sync_armed:
            self._sync_armed = True
            self._start_timer("sync", self._around.sync_delay_ns(), m.SyncDue())
            self._around.syncing.add(self.actor_urn)
        process.drain_confirms()

    def _wait_for_room(self, error: NoRoomError) -> None:
        """The disk is full: who waits for a confirm is told so, publishers are held, and consumers go on.

        What could not be written stays in memory and is tried again in a while. Without it a crash loses messages that
        were not confirmed, and brings those back whose acks were not written.
        """
        if self._no_room is None:
            _LOG.warning("%s waits for room on the disk: %s", self.describe(), error)
            self._room_wait_ns = ROOM_INTERVAL_NS
        self._no_room = error
        self._settled = True  # so that it is tried again
        if not self._sync_armed:
            self._sync_armed = True
            self._start_timer("sync", self._room_wait_ns, m.SyncDue())
            self._room_wait_ns = min(2 * self._room_wait_ns, MAX_ROOM_INTERVAL_NS)
        tell(self._around.monitor, m.DiskRoom(self.actor_ref, found=False))
        self._fail_confirms(error)

    def _fail_confirms(self, error: NoRoomError) -> None:
        self._carry_out()  # what is safe is confirmed
        for confirm in self._confirms:
            confirm.fail(DiskFullError(f"{self.describe()}: not safe, for the disk is full: {error}"))
        self._confirms.clear()

    def _found_room(self) -> None:
        if self._no_room is not None:
            _LOG.warning("%s: there is room on the disk again", self.describe())
            self._no_room = None
            tell(self._around.monitor, m.DiskRoom(self.actor_ref, found=True))

    def look_for_room(self) -> None:
        if self._no_room is not None or self._is_store_full:
            self._hurry = True
            self.turn()

    def _on_store_full(self, message: m.StoreFull) -> None:
        if any(store.client == message.client for store in self._stores):
            self._is_store_full = True
            self.process.drain_confirms()
            self._fail_confirms(message.error)

    def _carry_out(self) -> None:
        """Pass on what the engine's calls have brought about."""
        effects = self.process.drain_effects()
        if effects.confirmed:
            self._around.check_directory()
        for delivered in effects.deliveries:
            deliveries = self.deliveries.get(delivered.consumer or "")
            if deliveries is not None:
                deliveries.put(delivered)
        for confirm in filter(_is_future, effects.confirmed):
            self._confirms.discard(confirm)
            if not confirm.done:
                confirm.set()
        for confirm in filter(_is_future, effects.refused):
            self._confirms.discard(confirm)
            confirm.fail(PublishRefusedError(f"{self.describe()} is full"))
        for tag in effects.cancelled:
            if (ended := self.deliveries.pop(tag, None)) is not None:
                ended.end(QueueGoneError(f"{self.describe()} was deleted"))
        for batch in effects.dead_letters:
            self._send_dead_letters(batch)
        unused = self.process.is_auto_delete_due
        if unused and not self._unused_told:
            tell(self._around.node, m.QueueUnused(self.actor_ref))
        self._unused_told = unused
        if self.process.wants_bump and not self._bump_told:
            self._bump_told = True
            self.actor_ref.tell(m.ResumePaging())

    def _send_dead_letters(self, batch: DeadLetterBatch) -> None:
        """Publish dead letters to where their exchange leads; what is safe there may go here."""
        confirms: list[Future] = []
        gate = self._around.gate
        for letter in batch.publications:
            msg_id = self.msg_ids.one()
            for name, target in self._dispatch(batch.exchange, letter.routing_keys, letter.headers):
                if not is_cycle(letter.headers, name):
                    confirms.append(confirm := Future())
                    if target is None or target.actor_stopped.is_set():
                        confirm.fail(QueueDownError(f"queue '{name}' is down"))
                        continue
                    envelope, body = letter.envelope, letter.body
                    size_bytes = gate.enter(MESSAGE_BYTES + len(body) + len(envelope.properties))
                    message = m.Publish(envelope, msg_id, [body], None, letter.priority, confirm, size_bytes)
                    # They weigh like others, but whoever sends them waits neither for room nor for bytes.
                    target.actor_inbox.put(Letter(message), 1)  # type: ignore[call-arg]
        CountDown(confirms).on_done(lambda done: self._dead_lettered(batch.number, done))

    def _dead_lettered(self, number: int, done: Future) -> None:
        """Safe at the targets; or refused by a full one, or that was deleted: lost, as in RabbitMQ. Down: kept here."""
        error = done.error
        if error is None or isinstance(error, (PublishRefusedError, QueueGoneError)):
            tell(self.actor_ref, m.DeadLettersSafe(number))
        else:
            _LOG.warning("%s keeps dead letters: %s", self.describe(), error)

    def _on_dead_letters_safe(self, message: m.DeadLettersSafe) -> None:
        self._settled = True
        self.process.dead_letters_safe(message.batch)

    def _arm_timers(self) -> None:
        settings = self._around.settings
        self._arm_deadline(self._next_deadline_us())
        if not self._report_armed:
            self._report_armed = True
            self._start_timer("report", settings.queue_ram_report_interval_ms * 1_000_000, m.ReportDue())
            if not self._reporting:  # new to the monitor, or back from its rest: it has to hear what holds now
                self._report()
        if not self._idle_armed:
            self._idle_armed = True
            self._start_timer("idle", settings.hibernate_after_ms * 1_000_000, m.IdleDue())

    def _next_deadline_us(self) -> int | None:
        """When the next message expires, or the queue itself."""
        of_message, declaration = self.process.next_deadline_us(), self.declaration
        if of_message == 0 and declaration.message_ttl_ms is None and declaration.dead_letter_exchange is None:
            of_message = None  # it has not been opened yet, and for a message that is only dropped it need not be
        deadlines = [at for at in (of_message, self.process.expires_at_us()) if at is not None]
        return min(deadlines, default=None)

    def _arm_deadline(self, deadline_us: int | None) -> None:
        if deadline_us is not None and deadline_us != self._deadline_us:
            self._deadline_us = deadline_us
            wait_us = max(0, deadline_us - self._around.clock.wall_us())
            self._start_timer("deadline", wait_us * 1000, m.DeadlineDue())

    def _start_timer(self, key: str, wait_ns: int, message: object) -> None:
        due_ns = self._around.clock.now_ns() + wait_ns
        tell(self._around.timer, m.StartTimer(self.actor_ref, key, due_ns, message))


def _is_future(token: object) -> TypeGuard[Future]:
    return isinstance(token, Future)


_NO_WORK: Final = frozenset({m.GetStats, m.GetMany, m.ReportDue, m.SetDurationTarget, m.ResumePaging, m.SampleQueue})
"""Messages that keep no queue from its rest; a get that finds nothing is one, however often somebody asks."""

_HANDLERS: Final[dict[type, Callable[[QueueActor, Any], object]]] = {
    m.Publish: QueueActor._on_publish,
    m.GetMany: QueueActor._on_get_many,
    m.Settle: QueueActor._on_settle,
    m.Subscribe: QueueActor._on_subscribe,
    m.SetPrefetch: QueueActor._on_set_prefetch,
    m.CancelConsumer: QueueActor._on_cancel_consumer,
    m.CloseChannel: QueueActor._on_close_channel,
    m.StoreProgress: QueueActor._on_store_progress,
    m.StoreFull: QueueActor._on_store_full,
    m.SetDurationTarget: QueueActor._on_duration_target,
    m.ReportDue: QueueActor._on_report_due,
    m.IdleDue: QueueActor._on_idle_due,
    m.SyncDue: QueueActor._on_sync_due,
    m.DeadlineDue: QueueActor._on_deadline_due,
    m.DeadLettersSafe: QueueActor._on_dead_letters_safe,
    m.RecoverStep: QueueActor._on_recover_step,
    m.ResumePaging: QueueActor._on_resume_paging,
    m.Purge: QueueActor._on_purge,
    m.Browse: lambda actor, message: browse(actor.process, message.limit, message.after),
    m.GetStats: QueueActor._on_get_stats,
    m.SampleQueue: QueueActor._on_sample,
    m.Sync: QueueActor._on_sync,
    m.Touch: lambda actor, _: actor.process.touch(),
    m.SetMode: lambda actor, message: actor.process.set_mode(message.mode),
    m.DeleteQueue: QueueActor._on_delete,
    m.CloseQueue: QueueActor._on_close,
    m.GiveUp: QueueActor._on_give_up,
}
