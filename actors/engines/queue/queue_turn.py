"""QueueTurn: what a queue does in one turn, independent of the host that runs it.

A *turn* handles what waits in the queue's inbox, and ends in three steps:

1. :meth:`QueueTurn.make_safe` hands ready messages to consumers with room, and writes and syncs what has to be safe. It
   returns the :class:`~warren.actors.engines.queue.effects.Effects`, which are to be passed on.
2. :meth:`QueueTurn.tell` passes them on. A host that must wait for its disk, or check something, does so before.
3. :meth:`QueueTurn.finish` sets the timers, if the turn had something to do.

The two hosts are :class:`warren.actors.queue.queue_actor.QueueActor` and
:class:`warren.simulation.node.simulated_queue.SimulatedQueue`. A host has the inbox, runs the turns, and implements
:class:`~warren.actors.engines.queue.queue_turn_host.QueueTurnHost`. The clock is passed in; there is no thread, file or
randomness here.

*Syncs* are grouped. What was published is synced after the node's sync interval
(:class:`~warren.actors.engines.queue.sync_group.SyncGroup`), or at once if a publisher waits; after every turn with
``sync="always"``. With ``"os"`` it is written and not synced. Settlements, which have no waiters, are synced along with
publishes, or within the same time.

*Reports.* A queue at work tells the memory monitor its RAM duration at a fixed interval.

*Rest.* A queue that has had nothing to do for ``hibernate_after_ms`` flushes its journal and closes its files. What it
has in RAM stays there until the memory monitor reports that memory is short: in answer to the last report, or later. A
queue with nothing in RAM leaves the memory monitor. The next message wakes it.

*A full disk.* What cannot be written stays in memory, and is retried after growing waits. Publishers that wait for a
confirm are notified at once that their messages are not safe; consumers continue.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import attrs

from warren.actors.engines.declared.policies import AppliedPolicies
from warren.actors.engines.full_disk import FullDisk
from warren.actors.engines.node_settings import NodeSettings
from warren.actors.engines.queue.consumers import Consumer, Shared
from warren.actors.engines.queue.effects import Delivered, DeliveredEarly, Effects
from warren.actors.engines.queue.queue_process import QueueProcess
from warren.actors.engines.queue.queue_turn_host import Clock, QueueStore, QueueTurnHost, QueueTurnOutput, Receiver
from warren.actors.engines.queue.read_ahead import MOST_AHEAD, ReadAhead
from warren.actors.engines.queue.sync_group import SyncGroup
from warren.queue_index.message.message_format import Envelope
from warren.storage.errors import NoRoomError, WarrenError

if TYPE_CHECKING:
    from warren.queue_index.queue.removal import ChosenIds

BUFFER: Final = 1000
"""The most messages in the buffer of a consumer without a prefetch, so that its memory is bounded."""

BUFFER_BYTES: Final = 1 << 20
"""The same in bytes of bodies, estimated from the average of the queue's messages."""

PART_MESSAGES: Final = 64
"""How many messages are taken before their headers are counted. Each may have as many header bytes as a frame."""

LOST: Final = -1
"""Instead of a delivery tag, for a lost channel: it is unknown which messages were seen."""

_MS_NS: Final = 1_000_000
_FOREVER_NS: Final = 1 << 62


@attrs.define(eq=False, repr=False, kw_only=True)
class QueueTurn:
    """One queue's turns. See the module's prose."""

    _host: QueueTurnHost
    _output: QueueTurnOutput
    process: QueueProcess
    stores: Sequence[QueueStore]
    _name: Hashable
    _clock: Clock
    _settings: NodeSettings
    _sync_group: SyncGroup
    _rests_as_rabbitmq: bool = False
    """Whether a queue that comes to rest keeps what it has in RAM, and is woken to page it. A simulated RabbitMQ's
    queues do this; the node's own release what they can, so that paging need not wake them."""
    receivers: dict[str, Any] = attrs.Factory(dict)
    """A :class:`Receiver` for each consumer, by tag."""
    _unbounded: dict[str, None] | None = None
    """The consumers without a prefetch."""
    waiting: dict[Any, None] = attrs.Factory(dict)
    """Tokens of publishes that have not been answered."""
    settled: bool = False
    """Whether settlements are not safe yet: a crash would bring the messages back."""
    worked: bool = False
    """Whether this turn has had something to do."""
    turns: int = 0
    """How many turns had something to do."""
    resting: bool = False
    _sync_now: bool = False
    """Whether the next turn syncs."""
    _handed_over: int = 0
    """How many of the collected deliveries were handed to their consumers."""
    _is_store_full: bool = False
    _sync_armed: bool = False
    _report_armed: bool = False
    _idle_armed: bool = False
    _reporting: bool = False
    _bump_told: bool = False
    _unused_told: bool = False
    _deadline_us: int | None = None
    _last_work_ns: int = 0
    _synced_ns: int = 0
    _got_ns: int = -_FOREVER_NS
    """When a get of one message last returned one."""
    _acks_on: str | None = None
    """The channel that has acked since then, whose acks will need a sync."""
    _reads_on: str | None = None
    """The channel that may get more: it got two messages in quick succession, or got one after acking the last."""
    _ahead_of: str | None = None
    """The channel for which the last turn left messages."""
    _ahead_pays: bool = True
    """Whether any of the messages last left this way were taken."""
    _full_disk: FullDisk | None = None

    # ── messages in, out and settled ────────────────────────────────────────────────────────────────────────────

    def publish(  # noqa: PLR0917
        self,
        envelope: Envelope,
        msg_ids: bytes,
        bodies: Sequence[bytes],
        expiration_ms: int | None,
        priority: int,
        token: Any,
    ) -> None:
        """Take messages that share an envelope. ``token``: answered once; ``None``: no answer is needed."""
        self.worked = True
        if token is not None:
            self.waiting[token] = None
        try:
            self.process.publish_many(
                envelope, msg_ids, bodies, expiration_ms=expiration_ms, priority=priority, token=token
            )
        except WarrenError:
            self.waiting.pop(token, None)
            raise

    def wait_until_safe(self, level: int, token: Any) -> None:
        """Answer a token when everything published to a level until now is safe."""
        self.worked = True
        self.waiting[token] = None
        self.process.confirms.when_safe(level, token)

    def publish_delivered(self, envelope: Envelope, msg_ids: bytes, early: DeliveredEarly, token: Any) -> None:
        """Take in what was delivered early. ``token``: ``None`` if other messages of the publish follow."""
        self.worked = True
        if token is not None:
            self.waiting[token] = None
        self.process.early.publish_delivered(envelope, msg_ids, early, token)

    @property
    def takes_early(self) -> bool:
        """Whether a message may be delivered before a turn takes it in. Any thread may ask while no turn runs."""
        return self.comes_soon and self.process.early.takes_early

    @property
    def takes_ahead(self) -> bool:
        """Whether a message with a waiting publisher may be made safe before a turn takes it in: if nothing else waits
        to be made safe. Once per sync interval a turn takes in what was written, while a publisher waits anyway."""
        if self.waiting or self._sync_now or self.resting or self.waits_for_room or not self.process.early.takes_ahead:
            return False
        return self._clock.now_ns() < self._synced_ns + self._sync_group.delay_ns()

    def write_ahead(self, envelope: Envelope, msg_ids: bytes, bodies: Sequence[bytes]) -> bool:
        """Make some messages safe; the next turn that has more to do begins with :meth:`enter_written`.

        ``False``, and nothing is done: they have to be taken in first. Raises what a sync raises.
        """
        if not self.process.early.write_ahead(envelope, msg_ids, bodies):
            return False
        if not self._sync_armed:
            self._arm_sync(self._sync_group.delay_ns())
        return True

    def enter_written(self, envelope: Envelope, early: DeliveredEarly | None) -> None:
        """Take in what was written ahead. ``early``: its first message, if already delivered."""
        self.worked = True
        self.settled = self.settled or early is not None
        self.process.early.enter_written(envelope, early)

    def get_many(
        self, channel: str, count: int, *, ack_required: bool, limit_bytes: int | None = None
    ) -> list[Delivered]:
        """Take at most ``count`` messages. A get from an empty queue does not keep the queue awake.

        ``limit_bytes``: take no more once the bodies and properties of the messages reach this size.
        """
        self.hand_out()
        if limit_bytes is None:
            deliveries = self.process.deliveries.get_many(channel, count, ack_required=ack_required)
        else:
            deliveries = self._get_some(channel, count, limit_bytes, ack_required=ack_required)
        if deliveries:
            self.worked = True
            if not ack_required:
                self.settled = True
            elif count == 1:
                now_ns = self._clock.now_ns()
                soon = now_ns < self._got_ns + self._sync_group.delay_ns()
                self._reads_on = channel if soon or (self._ahead_pays and channel == self._acks_on) else None
                self._got_ns, self._acks_on = now_ns, None
        elif self.process.settlements.retries is not None:  # fetched messages may have to wait, which needs a timer
            self.worked = True
        return deliveries

    def _get_some(self, channel: str, count: int, limit_bytes: int, *, ack_required: bool) -> list[Delivered]:
        """Take messages in parts, because headers can be counted only after messages are taken, unlike bodies."""
        deliveries, backing = list[Delivered](), self.process.backing
        while count > 0 and limit_bytes > 0 and (level := backing.first_level()) is not None:
            part = min(count, PART_MESSAGES, max(backing.level(level).head_excess(0, limit_bytes), 1))
            taken = self.process.deliveries.get_many(channel, part, ack_required=ack_required)
            for delivered in taken:
                count -= delivered.count
                limit_bytes -= delivered.fetched.size_bytes
            if not taken:
                break
            deliveries += taken
        return deliveries

    def take(self, channel: str, chosen: Mapping[int, ChosenIds]) -> list[Delivered]:
        """Get messages by level and seq_id, at any position."""
        self.hand_out()
        self.worked = True
        return self.process.deliveries.get_many(channel, 0, ack_required=True, chosen=chosen)

    def remove(self, chosen: Mapping[int, ChosenIds]) -> int:
        """Remove messages by level and seq_id; returns how many of them were ready."""
        self.hand_out()
        self.worked = self.settled = True
        return self.process.deliveries.remove(chosen)

    def read_ahead(self) -> ReadAhead | None:
        """At a turn's end: messages at the head, for a channel that gets them one by one. The next turn, which comes
        soon, begins with :meth:`take_off`."""
        channel, self._reads_on = self._reads_on, None
        if channel is None and self._ahead_of is not None:
            self._ahead_pays = False
        self._ahead_of = None
        if channel is None or self.receivers or self.waits_for_room:
            return None
        fetched = self.process.early.read_ahead(MOST_AHEAD)
        if fetched is None:
            return None
        self._share_sync()
        self._ahead_of = channel
        return ReadAhead(channel, self.process.consumers.channel(channel), fetched)

    def take_off(self, ahead: ReadAhead) -> None:
        """Take what was read ahead and delivered off the queue."""
        acked = ahead.acked
        self.worked = True
        self._reads_on, self._ahead_pays = ahead.channel, True
        if any(acked):
            self.settled, self._acks_on = True, ahead.channel
        self.process.context.touch()
        self.process.early.take_off(ahead.channel, None, ahead.first_tag, acked)

    def hand_out(self) -> None:
        """Deliver what arrived earlier in this turn to consumers, before another operation takes or reads it."""
        if self.worked and self.receivers:
            self.process.deliveries.deliver()

    def settle(self, channel: str, outcome: str, tags: Sequence[range]) -> None:
        """Settle a channel's messages. ``outcome`` is "ack"; "reject": to the dead letters; "requeue": back to the
        queue; "failed": the same, because the delivery failed; "retry": the same, to wait there."""
        self.worked = self.settled = True
        if outcome == "ack":
            self._acks_on = channel
            if channel == self._ahead_of:
                self._reads_on = channel
            self.process.settlements.ack(channel, tags)
        elif outcome == "retry":
            self.process.settlements.retry(channel, tags)
        else:
            self.process.settlements.nack(channel, tags, requeue=outcome != "reject", failed=outcome == "failed")

    def retry_in(self, channel: str, tags: Sequence[range], wait_ms: int) -> None:
        """Take back a channel's messages, and redeliver them after ``wait_ms``."""
        self.worked = self.settled = True
        self.process.settlements.retry(channel, tags, wait_ms)

    def extend(self, channel: str, tag: int, time_ms: int) -> None:
        """Let a channel hold a message for ``time_ms`` from now on."""
        self.worked = True
        self.process.settlements.extend(channel, tag, time_ms)

    def settle_up_to(self, channel: str, outcome: str, tag: int) -> None:
        """As :meth:`settle`, everything up to a tag; 0: everything."""
        self.worked = self.settled = True
        if outcome == "ack":
            self.process.settlements.ack_up_to(channel, tag)
        else:
            self.process.settlements.nack_up_to(channel, tag, requeue=outcome == "requeue")

    def purge(self) -> int:
        """Remove every ready message; returns how many there were."""
        self.hand_out()
        self.worked = self.settled = True
        return self.process.purge()

    def set_policies(self, policies: AppliedPolicies) -> None:
        """Apply other policies. A queue that is asleep and has no messages is not woken."""
        self.process.set_policies(policies)
        if not self.process.backing.asleep or self.process.backing.depth:
            self.worked = self.settled = True
            return
        self.arm_deadline()
        if self.resting:
            self._host.rested()  # its numbers have changed

    def dead_letters_safe(self, number: int) -> None:
        """Note that a batch of dead letters is safe at its target."""
        self.worked = self.settled = True
        self.process.expiry.safe(number)

    # ── consumers ───────────────────────────────────────────────────────────────────────────────────────────────

    def subscribe(self, consumer: Consumer, receiver: Receiver) -> None:
        """Add a consumer."""
        self.worked = True
        self.process.consumers.add(consumer)
        self.receivers[consumer.tag] = receiver
        self._bound(consumer.tag, consumer.prefetch)

    def set_prefetch(self, tag: str, prefetch: int, shared: Shared | None = None) -> None:
        """Set a consumer's prefetch, and the one that it shares with others."""
        self.worked = True
        self.process.consumers.set_prefetch(tag, prefetch, shared)
        if tag in self.receivers:
            self._bound(tag, prefetch)

    def resume_shared(self, shared: Shared) -> None:
        """Note that a shared prefetch has room again."""
        self.worked = True
        self.process.consumers.resume(shared)

    def _bound(self, tag: str, prefetch: int) -> None:
        if self._unbounded is not None:
            self._unbounded.pop(tag, None)
        if not prefetch:
            if self._unbounded is None:
                self._unbounded = {}
            self._unbounded[tag] = None

    def cancel(self, tag: str) -> Any | None:
        """Remove a consumer; return its receiver. Its unacked messages stay with the channel."""
        self.worked = True
        self.process.cancel_consumer(tag)
        return self._drop(tag)

    def close_channel(self, channel: str, tags: Sequence[str], seen_up_to: int | None = None) -> int:
        """Remove a channel and its consumers; return how many messages came back. ``seen_up_to``: the tag of the last
        message that was seen; ``None``: all were seen; :data:`LOST`: unknown."""
        self.worked = True
        if seen_up_to == LOST:
            seen_up_to = self.process.consumers.oldest_tag(channel)
        requeued = self.process.settlements.close_channel(channel, seen_up_to)
        if requeued:
            self.settled = True
        for tag in tags:
            self._drop(tag)
        return requeued

    def _drop(self, tag: str) -> Any | None:
        self._bound(tag, 1)
        return self.receivers.pop(tag, None)

    # ── stores and memory ───────────────────────────────────────────────────────────────────────────────────────

    def store_progress(self, store: QueueStore, taken: int, safe: int) -> None:
        """Note a store's progress. If that unblocks paging, it continues."""
        self.worked = True
        self._is_store_full = False
        was_blocked = store.credit.blocked
        store.progress(taken, safe)
        if was_blocked and not store.credit.blocked:
            self.process.backing.resume()

    def store_full(self, error: NoRoomError) -> None:
        """Note that a store had no room on the disk for what was handed over."""
        self.worked = True
        self._is_store_full = True
        self.process.confirms.drain()
        self._fail_waiting(error)

    def resume(self) -> None:
        """Continue a reduction of memory that was cut short."""
        self._bump_told = False
        self.worked |= self._rests_as_rabbitmq
        self.process.backing.resume()
        self._output.account_memory()

    def set_duration_target(self, duration_s: float | None) -> None:
        """Set the memory monitor's target; pages at once if it fell. A resting queue releases what it can."""
        self.process.backing.set_ram_duration_target(duration_s)
        if self.resting and duration_s is not None and not self._rests_as_rabbitmq:
            self._hibernate()
            if not self.process.backing.is_pageable:
                self._output.leave_monitor()
        self._output.account_memory()

    # ── the end of a turn ───────────────────────────────────────────────────────────────────────────────────────

    def make_safe(self, *, hurry: bool, may_wait: bool = True) -> Effects:
        """The first step.

        ``hurry``: a publisher waits for a confirm. ``may_wait``: whether to wait for the disk; else the next turn does.
        """
        process = self.process
        if self.receivers:
            if self._unbounded and len(process.backing):
                limit = self.most_at_once()
                for tag in self._unbounded:
                    process.consumers.set_room(tag, max(limit - self.receivers[tag].buffered, 0))
            process.deliveries.deliver()
            self._hand_over_deliveries(process.context.effects)  # a consumer waits for no sync
        if self._sync_now:
            hurry, self._sync_now = True, False
        if hurry and self._host.has_work():
            self._sync_now = True  # the publish to be confirmed may still be in the inbox
        mode = self._settings.sync
        if not may_wait and mode != "os" and (hurry or mode == "always") and (self.waiting or self.settled):
            self._sync_now = True
            process.confirms.drain()
        elif self.waiting or self.settled or (hurry and self._is_store_full):
            self._sync(hurry=hurry)
        return process.context.drain_effects()

    def most_at_once(self) -> int:
        """How many messages may be buffered for a consumer without a prefetch, by the size of the ready messages."""
        backing = self.process.backing
        size_bytes = backing.ready_bytes
        return BUFFER if size_bytes <= BUFFER_BYTES else max(min(BUFFER, BUFFER_BYTES * len(backing) // size_bytes), 1)

    def _sync(self, *, hurry: bool) -> None:
        """Sync what publishers wait for, and what was settled: now, or when the timer expires."""
        process, mode = self.process, self._settings.sync
        if hurry or (self.waiting and mode == "always" and self._full_disk is None):
            try:
                if mode == "os":
                    process.backing.write_out()
                else:
                    process.backing.sync_index()
                if process.settlements.retries is not None:
                    process.settlements.retries.sync()
            except NoRoomError as error:
                process.confirms.drain()
                self._wait_for_room(error)
                return
            self._note_room()
            for store in self.stores:
                store.sync()
            self.settled = False
            self._synced_ns = self._clock.now_ns()
            self._sync_group.discard(self._name)
            if self.waiting and mode != "always" and not self._sync_armed:
                self._arm_sync(self._sync_group.delay_ns())  # the publisher's next message may wait for the next turn
        else:
            self._share_sync()
        process.confirms.drain()

    def _share_sync(self) -> None:
        """Let the next turn come within the sync interval."""
        if not self._sync_armed:
            self._arm_sync(self._sync_group.delay_ns())
        self._sync_group.add(self._name)

    def _arm_sync(self, wait_ns: int) -> None:
        self._sync_armed = True
        self._host.call_later("sync", wait_ns, self.sync_due)

    def sync_index(self) -> None:
        """Make settlements safe now. Publishes are safe when their tokens have been answered.

        Raises :class:`~warren.storage.errors.NoRoomError`.
        """
        self.worked = self._sync_now = True
        try:
            self.process.backing.sync_index()
            if self.process.settlements.retries is not None:
                self.process.settlements.retries.sync()
        except NoRoomError as error:
            self._wait_for_room(error)
            raise
        self._note_room()
        self.settled = False

    @property
    def wants_sync(self) -> bool:
        """Whether another turn must follow, for a sync that this one left to it."""
        return self._sync_now

    @property
    def is_quick(self) -> bool:
        """Whether publishing or getting a few messages now reads no files and is fast."""
        single = self.process.backing.single
        return single is not None and single.state.works_in_ram and not self._is_store_full and self._full_disk is None

    @property
    def comes_soon(self) -> bool:
        """Whether a turn comes within the sync interval anyway, and arriving messages may be left to it, because they
        start no timeout and reach no limit. Any thread may ask."""
        return self._sync_armed and self._full_disk is None and self.process.context.is_plain

    @property
    def waits_for_room(self) -> bool:
        """Whether a full disk keeps something from being safe."""
        return self._full_disk is not None or self._is_store_full

    def _wait_for_room(self, error: NoRoomError) -> None:
        """Handle a full disk: retry later. A crash before then loses unconfirmed messages and brings back settled ones.

        Publishers that wait for a confirm are notified.
        """
        since_now = self._full_disk is None
        if self._full_disk is None:
            self._full_disk = FullDisk()
        self.settled = True  # so that it is tried again
        if not self._sync_armed:
            self._arm_sync(self._full_disk.next_wait_ns())
        self._output.disk_is_full(error, since_now=since_now)
        self._fail_waiting(error)

    def _note_room(self) -> None:
        if self._full_disk is not None:
            self._full_disk = None
            self._output.disk_has_room()
            self.process.confirms.drain()  # of publishers that did not wait for it

    def _fail_waiting(self, error: NoRoomError) -> None:
        effects = self.process.context.effects
        answered = {*effects.confirmed, *effects.refused}
        for token in [token for token in self.waiting if token not in answered]:
            del self.waiting[token]
            self._output.not_safe(token, error)

    def tell(self, effects: Effects) -> None:
        """The second step: pass the turn's effects on."""
        output = self._output
        self._hand_over_deliveries(effects)
        self._handed_over = 0
        for token in effects.confirmed:
            self.waiting.pop(token, None)
            output.confirmed(token)
        for token in effects.refused:
            self.waiting.pop(token, None)
            output.refused(token)
        for tag, tags in effects.lapsed:
            if (receiver := self.receivers.get(tag)) is not None:
                output.lapsed(receiver, tags)
        for tag in effects.cancelled:
            if (ended := self._drop(tag)) is not None:
                output.consumer_cancelled(ended)
        for batch in effects.dead_letters:
            output.send_dead_letters(batch)
        unused = self.process.is_auto_delete_due
        if unused and not self._unused_told:
            output.unused()
        self._unused_told = unused
        if self.process.backing.wants_bump and not self._bump_told:
            self._bump_told = True
            self._host.call_soon(self.resume)

    def _hand_over_deliveries(self, effects: Effects) -> None:
        """Give consumers the deliveries that were collected since the last call."""
        for delivered in effects.deliveries[self._handed_over :]:
            receiver = self.receivers.get(delivered.consumer or "")
            if receiver is not None:
                receiver.put(delivered)
        self._handed_over = len(effects.deliveries)

    def finish(self) -> None:
        """The third step: set the timers and account for memory, if the turn had something to do."""
        if self.worked:
            self.worked = self.resting = False
            self.turns += 1
            self._last_work_ns = self._clock.now_ns()
            self._arm_timers()
            self._output.account_memory()

    # ── timers ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _arm_timers(self) -> None:
        self._arm_deadline(self._next_deadline_us())
        if not self._report_armed:
            self._arm_report()
            if not self._reporting:  # new to the monitor, or back from rest: it needs the present target
                self._report()
        if not self._idle_armed:
            self._idle_armed = True
            self._host.call_later("idle", self._settings.hibernate_after_ms * _MS_NS, self.idle_due)

    def _arm_report(self) -> None:
        self._report_armed = True
        wait_ns = self._settings.queue_ram_report_interval_ms * _MS_NS
        self._host.call_later("report", wait_ns, self.report_due, first=True)

    def arm_deadline(self) -> None:
        """Set the timer for the next message that expires, or for the queue itself."""
        self._arm_deadline(self._next_deadline_us())

    def _next_deadline_us(self) -> int | None:
        of_message, arguments = self.process.next_deadline_us(), self.process.context.arguments
        if of_message == 0 and not (
            arguments.message_ttl_ms is not None
            or arguments.dead_letter_exchange is not None
            or self.process.expiry.is_over
        ):
            of_message = None  # not opened yet, and it need not be for a message that is only dropped
        of_queue = self.process.expires_at_us()
        if of_message is None or of_queue is None:
            return of_queue if of_message is None else of_message
        return min(of_message, of_queue)

    def _arm_deadline(self, deadline_us: int | None) -> None:
        if deadline_us is not None and deadline_us != self._deadline_us:
            self._deadline_us = deadline_us
            wait_ns = max(0, deadline_us - self._clock.wall_us()) * 1000
            self._host.call_later("deadline", wait_ns, self.deadline_due, first=True)

    def sync_due(self) -> None:
        """Sync pending writes at this turn's end, or later if another sync has happened meanwhile."""
        self._sync_armed = False
        wait_ns = self._synced_ns + self._sync_group.delay_ns() - self._clock.now_ns()
        if wait_ns > 0 and self._full_disk is None:
            self._arm_sync(wait_ns)
        else:
            self._sync_group.discard(self._name)
            self.worked = self._sync_now = True

    def report_due(self) -> None:
        """Tell the memory monitor how long what is in RAM lasts."""
        self._arm_report()
        self._report()

    def _report(self) -> None:
        self._reporting = True
        backing = self.process.backing
        pageable = backing.is_pageable or self._rests_as_rabbitmq
        self._output.report(backing.ram_duration(), pageable=pageable, resting=False)

    def deadline_due(self) -> None:
        """Drop or dead-letter what is due."""
        self.worked = True
        self._deadline_us = None
        self.process.settlements.tick()
        expires_at_us = self.process.expires_at_us()
        if expires_at_us is not None and expires_at_us <= self._clock.wall_us():
            self._output.unused()

    def idle_due(self) -> None:
        """Rest if idle for ``hibernate_after_ms`` and nothing waits to be safe. Else the turn's end sets the timer."""
        self._idle_armed = False
        self.worked = True
        now_ns = self._clock.now_ns()
        if now_ns - self._last_work_ns < self._settings.hibernate_after_ms * _MS_NS or self._host.has_more():
            return
        deadline_us = self._next_deadline_us()
        if self.process.backing.recovering or self.waiting or self.settled or not self._has_come_to_rest():
            self._last_work_ns = now_ns
            return
        self.worked = False
        self._output.account_memory()
        self._host.cancel_timers()
        self._sync_armed = self._report_armed = self._reporting = False
        self._deadline_us = None
        self._arm_deadline(deadline_us)  # messages also expire while the queue rests
        self._tell_of_rest()

    def _has_come_to_rest(self) -> bool:
        """Whether the queue rests now; it cannot if the disk has no room for what must be written first."""
        try:
            self._hibernate()
        except NoRoomError:
            return False
        self.resting = True
        return True

    def _tell_of_rest(self) -> None:
        if self._rests_as_rabbitmq:  # it has reported a last time
            return
        if self.process.backing.is_pageable:  # its duration is infinite, but the monitor can have it page
            self._output.report(None, pageable=True, resting=True)
        else:
            self._output.leave_monitor()

    def _hibernate(self) -> None:
        if self._rests_as_rabbitmq:
            self._report()
            self.process.backing.flush()
        else:
            self.process.hibernate()
            self._host.rested()
