"""QueueProcess: one queue as its users see it.

A plain object around a :class:`~warren.actors.engines.queue.backing.Backing`, which keeps the messages. What it does
with them is up to its parts:

- *consumers*: which consumer is next, and what each channel has not settled;
- *expiry*: which messages die, when, and where they go; limits;
- *settlements*: acks, requeues, rejects, retries, ack timeouts;
- *deliveries*: to consumers and to gets;
- *confirms*: publishes that wait until they are safe;
- *early*: messages that were written or delivered outside the queue's turns.

A part uses only parts above it, and all share one :class:`~warren.actors.engines.queue.queue_context.QueueContext`. The
queue takes messages in, and does what concerns several parts. It makes no outgoing calls: its output collects in its
effects (:mod:`~warren.actors.engines.queue.effects`). The wall clock is passed in; nothing happens by itself, so the
host asks for the next deadline and calls
:meth:`~warren.actors.engines.queue.queue_settlements.QueueSettlements.tick` then.

*Dead letters* leave in numbered batches. The queue keeps the messages, as if they were unacked, until the batch is
reported safe at its destination. So confirmed messages are not lost on the way, but a crash may leave them in both
places.

*Confirms*: a publish may bring a token. It comes back once: when all of its messages are as safe as the index and the
store call it, or as soon as one of them is refused.

Invariants (:meth:`QueueProcess.check_invariants`): what the levels hold as pending is what channels have unacked, what
waits to be delivered again, and what dead letters are on their way, each once.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

from warren.actors.engines.declared.policies import AppliedPolicies
from warren.actors.engines.errors import PreconditionFailedError
from warren.actors.engines.queue.backing import RandomBytes
from warren.actors.engines.queue.expiry import Expiry
from warren.actors.engines.queue.queue_context import PendingConfirms, QueueContext, queue_stats
from warren.actors.engines.queue.queue_deliveries import QueueDeliveries
from warren.actors.engines.queue.queue_early import QueueEarly
from warren.actors.engines.queue.queue_settlements import QueueSettlements
from warren.queue_index.index.recovery_terms import RecoveryTerms
from warren.queue_index.message.message_format import Envelope
from warren.queue_index.queue.variable_queue import VariableQueue


class QueueProcess:
    """One queue. See the module's prose."""

    __slots__ = (
        "_is_watched",
        "backing",
        "confirms",
        "consumers",
        "context",
        "deliveries",
        "early",
        "expiry",
        "settlements",
    )

    def __init__(self, context: QueueContext) -> None:
        self.context = context
        self.backing = context.backing
        self.consumers = context.consumers
        self.expiry = Expiry(context)
        self.settlements = QueueSettlements(context, self.expiry)
        self.deliveries = QueueDeliveries(context, self.expiry, self.settlements)
        self.confirms = PendingConfirms(context)
        self.early = QueueEarly(context, self.expiry, self.confirms, self.settlements)
        self._is_watched = False
        self._note_arguments()

    def __len__(self) -> int:
        """The number of messages that are ready."""
        return len(self.backing)

    def watch(self, *, is_watched: bool) -> None:
        """Set whether every message must be seen; if so, none bypasses the queue."""
        self._is_watched = is_watched
        self._note_plain()

    def _note_plain(self) -> None:
        context, expiry = self.context, self.expiry
        context.takes_all = expiry.ttl_us is None and expiry.limits is None and self.backing.levels is None
        checked = context.arguments.consumer_timeout_ms is not None or context.declaration.deduplicates
        context.is_plain = context.takes_all and not checked and not self._is_watched and context.log is None

    def _note_arguments(self) -> None:
        self._note_plain()
        arguments = self.context.arguments
        if self.settlements.retries is not None:
            self.settlements.retries.arguments = arguments
        mode = arguments.set_queue_mode
        if mode is not None and self.backing.mode != mode:
            self.backing.set_mode(mode)

    def set_policies(self, policies: AppliedPolicies) -> None:
        """Apply other policies: messages beyond the new limits die, and the ``expires`` time starts again.

        As in a broker, a queue that a policy made lazy stays lazy without the policy, until the queue is restarted.
        """
        context = self.context
        context.policies = policies
        context.touch()
        arguments = context.merged(policies)
        if arguments != context.arguments:
            before, context.arguments = context.arguments, arguments
            self.expiry.arguments_changed(before)
            self._note_arguments()

    # ── consumers ───────────────────────────────────────────────────────────────────────────────────────────────

    def cancel_consumer(self, tag: str) -> bool:
        """Remove a consumer; its unacked messages stay with the channel. Return whether it existed."""
        if self.consumers.remove(tag) is None:
            return False
        self.context.touch()
        return True

    @property
    def is_auto_delete_due(self) -> bool:
        """Whether the queue is auto-delete and has lost its last consumer."""
        return self.context.declaration.auto_delete and self.consumers.had_one and not len(self.consumers)

    # ── messages in ─────────────────────────────────────────────────────────────────────────────────────────────

    def publish_many(
        self,
        envelope: Envelope,
        msg_ids: bytes,
        bodies: Sequence[bytes],
        *,
        expiration_ms: int | None = None,
        priority: int = 0,
        token: object | None = None,
    ) -> None:
        """Take messages that share an envelope. ``msg_ids``: 16 bytes each; ``token``: comes back once (see above).

        ``bodies``: contents, if the envelope says so.

        :attr:`deliveries` gives them to consumers later. But if the queue has limits, or messages expire, those for
        which consumers have room are delivered here.
        """
        envelope = self.context.as_stored(envelope)
        if not self.context.is_plain or expiration_ms is not None:
            log = self.context.log
            with nullcontext() if log is None else log.publishing(envelope, msg_ids, bodies):
                self._publish_carefully(
                    envelope, msg_ids, bodies, expiration_ms=expiration_ms, priority=priority, token=token
                )
            return
        queue = self.backing.single
        if queue is None:
            queue = self.backing.level(0)
        counts = self.context.counts
        size_before = 0 if counts is None else queue.state.bytes
        confirm = token is not None and envelope.persistent and self.backing.durable
        if len(bodies) == 1 and len(bodies[0]) < self.context.single_below_bytes:
            queue.publish(envelope, msg_ids, bodies[0], confirm=confirm)
        else:
            queue.publish_many(envelope, msg_ids, bodies, confirm=confirm)
        if counts is not None:
            size_bytes = queue.state.bytes - size_before
            counts.note_published(len(bodies), size_bytes, envelope.persistent)
        if token is not None:
            self.confirms.note(0, token, confirm=confirm)

    def _publish_carefully(
        self,
        envelope: Envelope,
        msg_ids: bytes,
        bodies: Sequence[bytes],
        *,
        expiration_ms: int | None,
        priority: int,
        token: object | None,
    ) -> None:
        if self.backing.levels is not None and len(self.consumers):
            self.deliveries.deliver()  # a waiting consumer gets the earlier messages, whatever arrives now
        self.settlements.tick()
        if self.context.counts is not None:
            self.context.counts.note_published(len(bodies), envelope.bodies_bytes(bodies), envelope.persistent)
        level = self.backing.level_of(priority)
        expiry_us = self.expiry.expiry_us(expiration_ms)
        confirm = token is not None and envelope.persistent and self.backing.durable and not self.expiry.discards
        # A message that expires at once makes room for the next, so limits are applied to such messages one by one.
        limits = self.expiry.limits
        singly = limits is not None and (0 < expiry_us <= self.context.wall_clock() or envelope.of_contents)
        step, all_taken = 1 if singly else max(len(bodies), 1), True
        for low in range(0, len(bodies), step):
            high = min(low + step, len(bodies))
            ids, part = (msg_ids[16 * low : 16 * high], bodies[low:high]) if singly else (msg_ids, bodies)
            safe = confirm and all_taken and high == len(bodies)
            part_envelope = envelope
            if singly and envelope.of_contents:
                part_envelope, body = envelope.with_content(part[0])
                part = (body,)
            all_taken &= self._take_in(level, part_envelope, ids, part, expiry_us=expiry_us, confirm=safe)
        if token is not None and not all_taken:
            self.context.effects.refused.append(token)
        elif token is not None:
            self.confirms.note(level, token, confirm=confirm and len(bodies) > 0)

    def _take_in(
        self,
        level: int,
        envelope: Envelope,
        msg_ids: bytes,
        bodies: Sequence[bytes],
        *,
        expiry_us: int,
        confirm: bool,
    ) -> bool:
        """Take messages as far as the limits allow; return whether all were taken. ``confirm``: only if all are."""
        queue, limits, at_once = self.backing.level(level), self.expiry.limits, 0
        if self.consumers.room and (limits is not None or expiry_us):
            self.deliveries.deliver()
            at_once = min(self.consumers.room, len(bodies))
        refused = limits.refused(self.backing, bodies, at_once) if limits is not None and limits.refuses else []
        if refused:
            if self.context.counts is not None:
                self.context.counts.refused += len(refused)
            dead_lettered = self.expiry.refuse(envelope, [bodies[index] for index in refused])
            if self.context.log is not None:
                refused_ids = [msg_ids[16 * index : 16 * index + 16] for index in refused]
                self.context.log.refused(refused_ids, dead_lettered=dead_lettered)
            taken = sorted(set(range(len(bodies))) - set(refused))
            msg_ids = b"".join([msg_ids[16 * index : 16 * index + 16] for index in taken])
            bodies = [bodies[index] for index in taken]
            at_once = min(at_once, len(bodies))
        if self.expiry.discards:
            msg_ids, bodies = msg_ids[: 16 * at_once], bodies[:at_once]
        if expiry_us and bodies:
            self.expiry.expiring = True  # only now: delivering above may have reset it
        for part in (range(at_once), range(at_once, len(bodies))):
            if part:
                if part.start == at_once:
                    self.consumers.next()  # there is a message, so consumers without room lose their turn
                last = part.stop == len(bodies) and not refused
                self._put(queue, envelope, msg_ids, bodies, part, expiry_us=expiry_us, confirm=confirm and last)
            if part.start == 0 and at_once:
                self.deliveries.hand_out(at_once)
        self.settlements.tick()
        return not refused

    def _put(
        self,
        queue: VariableQueue,
        envelope: Envelope,
        msg_ids: bytes,
        bodies: Sequence[bytes],
        part: range,
        *,
        expiry_us: int,
        confirm: bool,
    ) -> None:
        low, high = part.start, part.stop
        if high - low == 1 and len(bodies[low]) < self.context.single_below_bytes:
            msg_id = msg_ids[16 * low : 16 * high]
            queue.publish(envelope, msg_id, bodies[low], expiry_us=expiry_us, confirm=confirm)
        else:
            whole = high - low == len(bodies)
            ids, part_bodies = (msg_ids, bodies) if whole else (msg_ids[16 * low : 16 * high], bodies[low:high])
            queue.publish_many(envelope, ids, part_bodies, expiries_us=expiry_us, confirm=confirm)

    # ── time ────────────────────────────────────────────────────────────────────────────────────────────────────

    def next_deadline_us(self) -> int | None:
        """When :meth:`~warren.actors.engines.queue.queue_settlements.QueueSettlements.tick` next has something to do;
        ``None``: never, for the present messages."""
        of_message, due_us = self.expiry.next_deadline_us(), self.settlements.next_due_us
        return of_message if due_us is None else due_us if of_message is None else min(due_us, of_message)

    def expires_at_us(self) -> int | None:
        """Return when the queue itself is to be deleted, if it is not used until then."""
        expires_ms = self.context.arguments.expires_ms
        if expires_ms is None or len(self.consumers):
            return None
        return self.context.used_at_us + expires_ms * 1000

    # ── the whole queue ─────────────────────────────────────────────────────────────────────────────────────────

    def purge(self) -> int:
        """Delete every ready message, and those that wait to be redelivered; return their number."""
        purged = self.settlements.purge_waiting() + self.backing.purge()
        if self.context.log is not None:
            self.context.log.purged()
        if self.context.counts is not None:
            self.context.counts.purged += purged
        return purged

    def delete(self, *, if_unused: bool = False, if_empty: bool = False) -> int:
        """Delete the queue; returns how many messages were ready. It must not be used again.

        Waiting publishes are confirmed, because nothing can be lost any more. Raises
        :class:`~warren.actors.engines.errors.PreconditionFailedError` if it has consumers (``if_unused``) or messages
        (``if_empty``).
        """
        if if_empty and len(self.backing):
            raise PreconditionFailedError(f"{self.context.declaration} not empty")
        if if_unused and len(self.consumers):
            raise PreconditionFailedError(f"{self.context.declaration} in use")
        self.context.effects.cancelled += [consumer.tag for consumer in self.consumers]
        self.confirms.confirm_all()
        self.consumers.forget()
        self.expiry.forget()
        self.settlements.delete()
        return self.backing.delete()

    def close(self, random: RandomBytes) -> dict[bytes, RecoveryTerms]:
        """Stop cleanly; return the recovery terms of every level, by the name under which it is stored."""
        self.settlements.close()
        self.consumers.forget()
        self.confirms.forget()
        self.expiry.forget()
        return self.backing.close(random)

    def abandon(self) -> None:
        """Give the files up as a crash of the process would."""
        if self.settlements.retries is not None:
            self.settlements.retries.abandon()
        self.backing.abandon()

    def hibernate(self) -> bool:
        """Take as little memory as possible; return whether no message is left in memory.

        Any later call may wake the queue, except reading lengths, :meth:`stats` and deadlines.
        """
        if self.consumers.unacked or self.settlements.waiting or not self.expiry.idle or self.confirms:
            return False
        if self.backing.asleep:
            return True
        self.expiry.expire()
        self.expiry.fall_asleep()
        self.confirms.forget()
        self.context.release_effects()
        if not self.expiry.idle:
            return False
        self.settlements.rest()
        return self.backing.hibernate()

    def stats(self) -> dict[str, Any]:
        """The queue's statistics, under RabbitMQ's names; wakes nothing."""
        return queue_stats(self.context, self.settlements.waiting)

    def check_invariants(self) -> None:
        """Raise ``RuntimeError`` if the queue contradicts itself."""
        self.consumers.check_invariants()
        self.backing.check_invariants()
        self.settlements.check_invariants()
        held: dict[int, list[int]] = {}
        for run in self.consumers.runs():
            held.setdefault(run.level, []).extend(run.seq_ids)
        for level, seq_ids in (*self.expiry.held, *self.settlements.held):
            held.setdefault(level, []).extend(seq_ids)
        for level, queue in self.backing.awake():
            s = queue.state
            pieces = (s.ram_pending, s.disk_pending, s.index_pending)
            pending = [seq_id for piece in pieces for run in piece for seq_id in range(run.start, run.end)]
            if sorted(pending) != sorted(held.pop(level, [])):
                raise RuntimeError(
                    f"level {level}: pending acks differ from what channels, waits and dead letters hold"
                )
            if not self.expiry.expiring and queue.head_expiry():
                raise RuntimeError(f"level {level} has a message that expires, but no expiry is scheduled")
        if any(held.values()):
            raise RuntimeError("channels, waits or dead letters hold messages of levels that are asleep")
