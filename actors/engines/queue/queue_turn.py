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

The turn has parts: its *syncs*, the *receivers* of its consumers, what it does about *memory*, the *deadline* of its
messages, and the *head* that it reads ahead. They share a
:class:`~warren.actors.engines.queue.queue_turn_host.TurnContext`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from warren.actors.engines.declared.policies import AppliedPolicies
from warren.actors.engines.queue.effects import Delivered, DeliveredEarly, Effects
from warren.actors.engines.queue.queue_memory import QueueDeadline, QueueMemory
from warren.actors.engines.queue.queue_receivers import QueueReceivers
from warren.actors.engines.queue.queue_syncs import QueueSyncs
from warren.actors.engines.queue.queue_turn_host import TurnContext
from warren.actors.engines.queue.read_ahead import HeadReader
from warren.queue_index.message.message_format import Envelope
from warren.queue_index.queue.state import Mode
from warren.storage.errors import WarrenError

if TYPE_CHECKING:
    from warren.queue_index.queue.removal import ChosenIds

PART_MESSAGES: Final = 64
"""How many messages are taken before their headers are counted. Each may have as many header bytes as a frame."""

LOST: Final = -1
"""Instead of a delivery tag, for a lost channel: it is unknown which messages were seen."""


class QueueTurn:
    """One queue's turns. See the module's prose."""

    __slots__ = ("_unused_told", "context", "deadline", "head", "memory", "process", "receivers", "syncs", "turns")

    def __init__(self, context: TurnContext, receivers: dict[str, Any] | None = None) -> None:
        """``receivers``: is filled with the :class:`Receiver` of each consumer, by tag."""
        self.context = context
        self.process = context.process
        self.syncs = QueueSyncs(context)
        self.receivers = QueueReceivers(context, {} if receivers is None else receivers)
        self.deadline = QueueDeadline(context)
        self.memory = QueueMemory(context, self.syncs, self.deadline)
        self.head = HeadReader(context, self.syncs, self.receivers)
        self.turns = 0
        """How many turns had something to do."""
        self._unused_told = False

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
        self.context.worked = True
        if token is not None:
            self.syncs.waiting[token] = None
        try:
            self.process.publish_many(
                envelope, msg_ids, bodies, expiration_ms=expiration_ms, priority=priority, token=token
            )
        except WarrenError:
            self.syncs.waiting.pop(token, None)
            raise

    def wait_until_safe(self, level: int, token: Any) -> None:
        """Answer a token when everything published to a level until now is safe."""
        self.context.worked = True
        self.syncs.waiting[token] = None
        self.process.confirms.when_safe(level, token)

    def publish_delivered(self, envelope: Envelope, msg_ids: bytes, early: DeliveredEarly, token: Any) -> None:
        """Take in what was delivered early. ``token``: ``None`` if other messages of the publish follow."""
        self.context.worked = True
        if token is not None:
            self.syncs.waiting[token] = None
        self.process.early.publish_delivered(envelope, msg_ids, early, token)

    @property
    def takes_early(self) -> bool:
        """Whether a message may be delivered before a turn takes it in. Any thread may ask while no turn runs."""
        return self.comes_soon and self.process.early.takes_early

    @property
    def takes_ahead(self) -> bool:
        """Whether a message with a waiting publisher may be made safe before a turn takes it in: if nothing else waits
        to be made safe. Once per sync interval a turn takes in what was written, while a publisher waits anyway."""
        return not self.memory.resting and self.process.early.takes_ahead and self.syncs.are_current

    def write_ahead(self, envelope: Envelope, msg_ids: bytes, bodies: Sequence[bytes]) -> bool:
        """Make some messages safe; the next turn that has more to do begins with :meth:`enter_written`.

        ``False``, and nothing is done: they have to be taken in first. Raises what a sync raises.
        """
        if not self.process.early.write_ahead(envelope, msg_ids, bodies):
            return False
        self.syncs.arm()
        return True

    def enter_written(self, envelope: Envelope, early: DeliveredEarly | None) -> None:
        """Take in what was written ahead. ``early``: its first message, if already delivered."""
        self.context.worked = True
        self.syncs.settled = self.syncs.settled or early is not None
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
            self.context.worked = True
            if not ack_required:
                self.syncs.settled = True
            elif count == 1:
                self.head.note_got(channel)
        elif self.process.settlements.retries is not None:  # fetched messages may have to wait, which needs a timer
            self.context.worked = True
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
        self.context.worked = True
        return self.process.deliveries.get_many(channel, 0, ack_required=True, chosen=chosen)

    def remove(self, chosen: Mapping[int, ChosenIds]) -> int:
        """Remove messages by level and seq_id; returns how many of them were ready."""
        self.hand_out()
        self.context.worked = self.syncs.settled = True
        return self.process.deliveries.remove(chosen)

    def hand_out(self) -> None:
        """Deliver what arrived earlier in this turn to consumers, before another operation takes or reads it."""
        if self.context.worked and self.receivers.by_tag:
            self.process.deliveries.deliver()

    def settle(self, channel: str, outcome: str, tags: Sequence[range]) -> None:
        """Settle a channel's messages. ``outcome`` is "ack"; "reject": to the dead letters; "requeue": back to the
        queue; "failed": the same, because the delivery failed; "retry": the same, to wait there."""
        self.context.worked = self.syncs.settled = True
        if outcome == "ack":
            self.head.note_acked(channel)
            self.process.settlements.ack(channel, tags)
        elif outcome == "retry":
            self.process.settlements.retry(channel, tags)
        else:
            self.process.settlements.nack(channel, tags, requeue=outcome != "reject", failed=outcome == "failed")

    def retry_in(self, channel: str, tags: Sequence[range], wait_ms: int) -> None:
        """Take back a channel's messages, and redeliver them after ``wait_ms``."""
        self.context.worked = self.syncs.settled = True
        self.process.settlements.retry(channel, tags, wait_ms)

    def extend(self, channel: str, tag: int, time_ms: int) -> None:
        """Let a channel hold a message for ``time_ms`` from now on."""
        self.context.worked = True
        self.process.settlements.extend(channel, tag, time_ms)

    def settle_up_to(self, channel: str, outcome: str, tag: int) -> None:
        """As :meth:`settle`, everything up to a tag; 0: everything."""
        self.context.worked = self.syncs.settled = True
        if outcome == "ack":
            self.process.settlements.ack_up_to(channel, tag)
        else:
            self.process.settlements.nack_up_to(channel, tag, requeue=outcome == "requeue")

    def purge(self) -> int:
        """Remove every ready message; returns how many there were."""
        self.hand_out()
        self.context.worked = self.syncs.settled = True
        return self.process.purge()

    def set_mode(self, mode: Mode) -> None:
        """Keep messages in RAM ("default") or on disk ("lazy")."""
        self.context.worked = True
        self.process.backing.set_mode(mode)

    def set_policies(self, policies: AppliedPolicies) -> None:
        """Apply other policies. A queue that is asleep and has no messages is not woken."""
        self.process.set_policies(policies)
        if not self.process.backing.asleep or self.process.backing.depth:
            self.context.worked = self.syncs.settled = True
            return
        self.deadline.arm()
        self.context.host.rested()  # its numbers have changed

    def dead_letters_safe(self, number: int) -> None:
        """Note that a batch of dead letters is safe at its target."""
        self.context.worked = self.syncs.settled = True
        self.process.expiry.safe(number)

    def close_channel(self, channel: str, tags: Sequence[str], seen_up_to: int | None = None) -> int:
        """Remove a channel and its consumers; return how many messages came back. ``seen_up_to``: the tag of the last
        message that was seen; ``None``: all were seen; :data:`LOST`: unknown."""
        self.context.worked = True
        if seen_up_to == LOST:
            seen_up_to = self.process.consumers.oldest_tag(channel)
        requeued = self.process.settlements.close_channel(channel, seen_up_to)
        if requeued:
            self.syncs.settled = True
        for tag in tags:
            self.receivers.drop(tag)
        return requeued

    # ── the end of a turn ───────────────────────────────────────────────────────────────────────────────────────

    def make_safe(self, *, hurry: bool, may_wait: bool = True) -> Effects:
        """The first step.

        ``hurry``: a publisher waits for a confirm. ``may_wait``: whether to wait for the disk; else the next turn does.
        """
        if self.receivers.by_tag:
            self.receivers.deliver()
        self.syncs.end_turn(hurry=hurry, may_wait=may_wait)
        return self.process.context.drain_effects()

    @property
    def is_quick(self) -> bool:
        """Whether publishing or getting a few messages now reads no files and is fast."""
        single = self.process.backing.single
        return single is not None and single.state.works_in_ram and not self.syncs.waits_for_room

    @property
    def comes_soon(self) -> bool:
        """Whether a turn comes within the sync interval anyway, and arriving messages may be left to it, because they
        start no timeout and reach no limit. Any thread may ask."""
        return self.syncs.is_armed and self.syncs.full_disk is None and self.process.context.is_plain

    def tell(self, effects: Effects) -> None:
        """The second step: pass the turn's effects on."""
        output = self.context.output
        self.receivers.tell(effects)
        for token in effects.confirmed:
            self.syncs.waiting.pop(token, None)
            output.confirmed(token)
        for token in effects.refused:
            self.syncs.waiting.pop(token, None)
            output.refused(token)
        for batch in effects.dead_letters:
            output.send_dead_letters(batch)
        unused = self.process.is_auto_delete_due
        if unused and not self._unused_told:
            output.unused()
        self._unused_told = unused
        if self.process.backing.wants_bump:
            self.memory.resume_later()

    def finish(self) -> None:
        """The third step: set the timers and account for memory, if the turn had something to do."""
        context = self.context
        if context.worked:
            context.worked = self.memory.resting = False
            self.turns += 1
            self.deadline.arm()
            self.memory.note_work()
            context.output.account_memory()
