"""QueueProcess: one queue as its users see it.

A plain object around a :class:`~warren.actors.engines.queue.backing.Backing`, which keeps the messages. It tracks
consumers and unacked messages (:mod:`~warren.actors.engines.queue.queue_deliveries`), and which messages die, when, and
where they go (:mod:`~warren.actors.engines.queue.expiry`). It makes no outgoing calls: its output collects in its
effects (:mod:`~warren.actors.engines.queue.effects`). The wall clock is passed in; nothing happens by itself, so the
host asks for the next deadline and calls :meth:`QueueProcess.tick` then.

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
from typing import Any

import attrs

from warren.actors.engines.declared.policies import AppliedPolicies
from warren.actors.engines.declared.queue_arguments import effective
from warren.actors.engines.errors import PreconditionFailedError
from warren.actors.engines.queue.backing import RandomBytes
from warren.actors.engines.queue.consumers import Consumer, Consumers
from warren.actors.engines.queue.effects import Effects
from warren.actors.engines.queue.queue_early import QueueEarly
from warren.actors.engines.queue.queue_stats import queue_stats
from warren.queue_index.index.recovery_terms import RecoveryTerms
from warren.queue_index.message.message_format import Envelope
from warren.queue_index.queue.variable_queue import VariableQueue


@attrs.define(eq=False, repr=False)
class QueueProcess(QueueEarly):
    """One queue. See the module's prose."""

    single_below_bytes: int = attrs.field(default=1 << 62, kw_only=True)
    """A single message whose body is smaller than this is stored encoded, together with the message before it.

    That takes the least memory, unless many messages share one body object, as simulated ones do.
    """

    def __attrs_post_init__(self) -> None:
        QueueEarly.__attrs_post_init__(self)
        self._note_arguments()

    def watch(self, *, is_watched: bool) -> None:
        """Set whether every message must be seen; if so, none bypasses the queue."""
        self._is_watched = is_watched
        self._note_plain()

    def _note_plain(self) -> None:
        expiry, arguments = self._expiry, self.arguments
        self.takes_all = expiry.ttl_us is None and expiry.limits is None and self.backing.levels is None
        self.is_plain = self.takes_all and arguments.consumer_timeout_ms is None and not self.declaration.deduplicates
        self.is_plain = self.is_plain and not self._is_watched

    def _note_arguments(self) -> None:
        self._note_plain()
        if self._retries is not None:
            self._retries.arguments = self.arguments
        mode = self.arguments.set_queue_mode
        if mode is not None and self.backing.mode != mode:
            self.backing.set_mode(mode)

    def set_policies(self, policies: AppliedPolicies) -> None:
        """Apply other policies: messages beyond the new limits die, and the ``expires`` time starts again.

        As in a broker, a queue that a policy made lazy stays lazy without the policy, until the queue is restarted.
        """
        self.policies = policies
        self._used_at_us = self._wall_clock()
        arguments = effective(self.declaration, policies.definition)
        if arguments != self.arguments:
            self.arguments = arguments
            self._expiry.set_arguments(arguments)
            self._note_arguments()

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

        :meth:`deliver` gives them to consumers. But if the queue has limits, or messages expire, those for which
        consumers have room are delivered here.
        """
        if not self.is_plain or expiration_ms is not None:
            self._publish_carefully(
                envelope, msg_ids, bodies, expiration_ms=expiration_ms, priority=priority, token=token
            )
            return
        queue = self.backing.single
        if queue is None:
            queue = self.backing.level(0)
        counts = self.counts
        size_before = 0 if counts is None else queue.state.bytes
        confirm = token is not None and envelope.persistent and self.backing.durable
        if len(bodies) == 1 and len(bodies[0]) < self.single_below_bytes:
            queue.publish(envelope, msg_ids, bodies[0], confirm=confirm)
        else:
            queue.publish_many(envelope, msg_ids, bodies, confirm=confirm)
        if counts is not None:
            size_bytes = queue.state.bytes - size_before
            counts.note_published(len(bodies), size_bytes, envelope.persistent)
        if token is not None:
            self._note_confirm(0, token, confirm=confirm)

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
        if self.backing.levels is not None and len(self._consumers):
            self.deliver()  # a waiting consumer gets the earlier messages, whatever arrives now
        self.tick()
        if self.counts is not None:
            self.counts.note_published(len(bodies), envelope.bodies_bytes(bodies), envelope.persistent)
        level = self.backing.level_of(priority)
        expiry_us = self._expiry.expiry_us(expiration_ms)
        confirm = token is not None and envelope.persistent and self.backing.durable and not self._expiry.discards
        # A message that expires at once makes room for the next, so limits are applied to such messages one by one.
        limits = self._expiry.limits
        singly = limits is not None and (0 < expiry_us <= self._wall_clock() or envelope.of_contents)
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
            self.effects.refused.append(token)
        elif token is not None:
            self._note_confirm(level, token, confirm=confirm and len(bodies) > 0)

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
        queue, limits, at_once = self.backing.level(level), self._expiry.limits, 0
        if self._consumers.room and (limits is not None or expiry_us):
            self.deliver()
            at_once = min(self._consumers.room, len(bodies))
        refused = limits.refused(self.backing, bodies, at_once) if limits is not None and limits.refuses else []
        if refused:
            if self.counts is not None:
                self.counts.refused += len(refused)
            self._expiry.refuse(envelope, [bodies[index] for index in refused])
            taken = sorted(set(range(len(bodies))) - set(refused))
            msg_ids = b"".join([msg_ids[16 * index : 16 * index + 16] for index in taken])
            bodies = [bodies[index] for index in taken]
            at_once = min(at_once, len(bodies))
        if self._expiry.discards:
            msg_ids, bodies = msg_ids[: 16 * at_once], bodies[:at_once]
        if expiry_us and bodies:
            self._expiry.expiring = True  # only now: delivering above may have reset it
        for part in (range(at_once), range(at_once, len(bodies))):
            if part:
                if part.start == at_once:
                    self._consumers.next()  # there is a message, so consumers without room lose their turn
                last = part.stop == len(bodies) and not refused
                self._put(queue, envelope, msg_ids, bodies, part, expiry_us=expiry_us, confirm=confirm and last)
            if part.start == 0 and at_once:
                self._hand_out(at_once)
        self.tick()
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
        if high - low == 1 and len(bodies[low]) < self.single_below_bytes:
            msg_id = msg_ids[16 * low : 16 * high]
            queue.publish(envelope, msg_id, bodies[low], expiry_us=expiry_us, confirm=confirm)
        else:
            whole = high - low == len(bodies)
            ids, part_bodies = (msg_ids, bodies) if whole else (msg_ids[16 * low : 16 * high], bodies[low:high])
            queue.publish_many(envelope, ids, part_bodies, expiries_us=expiry_us, confirm=confirm)

    def confirm_when_safe(self, level: int, token: object) -> None:
        """Return ``token`` when everything published to a level until now is safe."""
        confirm = self.backing.durable
        if confirm:
            self.backing.level(level).expect_confirm()
        self._note_confirm(level, token, confirm=confirm)

    def ids_at(self, level: int, seq_ids: Sequence[int]) -> list[bytes | None]:
        """Return the msg_ids of a level's messages with these ascending seq_ids; ``None`` for each missing message."""
        if level not in self.backing.numbers:
            return [None] * len(seq_ids)
        return self.backing.level(level).ids_at(seq_ids)

    def expiry_us(self, expiration_ms: int | None) -> int:
        """When a message that arrives now expires; 0: never."""
        return self._expiry.expiry_us(expiration_ms)

    @property
    def discards(self) -> bool:
        """Whether an arriving message is dropped at once, unless a consumer takes it."""
        return self._expiry.discards

    # ── death and time ──────────────────────────────────────────────────────────────────────────────────────────

    @property
    def has_dead_letters_under_way(self) -> bool:
        """Whether dead letters are on their way that may not be safe yet."""
        return not self._expiry.idle

    def dead_letters_safe(self, number: int) -> None:
        """Remove the messages of a batch of dead letters that is safe at its target, or without a target."""
        self._expiry.safe(number)

    def next_deadline_us(self) -> int | None:
        """When :meth:`tick` next has something to do; ``None``: never, for the present messages."""
        of_message = self._expiry.next_deadline_us()
        if self._retries is None and self._deadlines is None:
            return of_message
        due_us = self.next_due_us
        return of_message if due_us is None else due_us if of_message is None else min(due_us, of_message)

    @property
    def is_over_limits(self) -> bool:
        """Whether messages exceed the limits, so that :meth:`tick` would drop some."""
        return self._expiry.is_over

    def expires_at_us(self) -> int | None:
        """Return when the queue itself is to be deleted, if it is not used until then."""
        expires_ms = self.arguments.expires_ms
        if expires_ms is None or len(self._consumers):
            return None
        return self._used_at_us + expires_ms * 1000

    # ── the whole queue ─────────────────────────────────────────────────────────────────────────────────────────

    def purge(self) -> int:
        """Delete every ready message, and those that wait to be redelivered; return their number."""
        purged = self._purge_waiting() + self.backing.purge()
        if self.counts is not None:
            self.counts.purged += purged
        return purged

    def delete(self, *, if_unused: bool = False, if_empty: bool = False) -> int:
        """Delete the queue; returns how many messages were ready. It must not be used again.

        Waiting publishes are confirmed, because nothing can be lost any more. Raises
        :class:`~warren.actors.engines.errors.PreconditionFailedError` if it has consumers (``if_unused``) or messages
        (``if_empty``).
        """
        if if_empty and len(self.backing):
            raise PreconditionFailedError(f"{self.declaration} not empty")
        if if_unused and len(self._consumers):
            raise PreconditionFailedError(f"{self.declaration} in use")
        effects = self.effects
        for consumer in self._consumers:
            effects.cancelled.append(consumer.tag)
        if self._pending_confirms is not None:
            effects.confirmed += self._pending_confirms.all()
        self._consumers = Consumers(single_active=self.declaration.single_active_consumer)
        self._pending_confirms = None
        self._expiry.forget()
        if self._retries is not None:
            self._retries.delete()
        self._retries = self._deadlines = None
        return self.backing.delete()

    @property
    def is_auto_delete_due(self) -> bool:
        """Whether the queue is auto-delete and has lost its last consumer."""
        return self.declaration.auto_delete and self._consumers.had_one and not len(self._consumers)

    def close(self, random: RandomBytes) -> dict[bytes, RecoveryTerms]:
        """Stop cleanly; return the recovery terms of every level, by the name under which it is stored."""
        if self._retries is not None or self._consumers.unacked:
            consumers = self._consumers
            out = [(run.level, run.seq_ids) for run in consumers.runs()]
            self._open_retries().close(out, [(run.level, run.seq_ids[0]) for run in consumers.oldest_runs()])
        self._consumers = Consumers(single_active=self.declaration.single_active_consumer)
        self._pending_confirms = self._retries = self._deadlines = None
        self._expiry.forget()
        return self.backing.close(random)

    def abandon(self) -> None:
        """Give the files up as a crash of the process would."""
        if self._retries is not None:
            self._retries.abandon()
        self.backing.abandon()

    def hibernate(self) -> bool:
        """Take as little memory as possible; return whether no message is left in memory.

        Any later call may wake the queue, except reading lengths, :meth:`stats` and deadlines.
        """
        if self._consumers.unacked or not self._expiry.idle or self._pending_confirms:
            return False
        if self._retries is not None and self._retries.waiting:
            return False
        if self.backing.asleep:
            return True
        self._expiry.expire()
        self._expiry.fall_asleep()
        self._pending_confirms = None
        if self._effects is not None and self._effects == Effects():
            self._effects = None
        if not self._expiry.idle:
            return False
        if self._retries is not None:
            self._retries.begin_anew([level for level in self.backing.numbers if not self.backing.length_of(level)])
            self._retries = self._retries if self._retries.counts else None
        self._remembers = self._remembers and len(self.backing) > 0
        return self.backing.hibernate()

    # ── answers ─────────────────────────────────────────────────────────────────────────────────────────────────

    def drain_effects(self) -> Effects:
        """Take the collected effects."""
        effects, self._effects = self._effects, None
        return Effects() if effects is None else effects

    def drain_confirms(self) -> None:
        """Move the tokens of publishes that have become safe into the effects."""
        if self._pending_confirms:
            self.effects.confirmed += self._pending_confirms.take_safe(self.backing)

    def __len__(self) -> int:
        """Ready messages."""
        return len(self.backing)

    def __bool__(self) -> bool:
        return True

    @property
    def depth(self) -> int:
        """Ready messages, unacked ones, and dead letters on their way."""
        return self.backing.depth

    @property
    def unacked(self) -> int:
        """Messages that channels have not settled."""
        return self._consumers.unacked

    @property
    def consumer_count(self) -> int:
        return len(self._consumers)

    @property
    def consumers(self) -> list[Consumer]:
        return list(self._consumers)

    @property
    def is_asleep(self) -> bool:
        return self.backing.asleep

    @property
    def has_counted(self) -> bool:
        """Whether anything was counted since the counts were last taken."""
        return self.counts is not None and self.counts.any

    def stats(self) -> dict[str, Any]:
        """The queue's statistics, under RabbitMQ's names; wakes nothing."""
        waiting = 0 if self._retries is None else self._retries.waiting
        return queue_stats(self.declaration, self.policies, self.backing, self._consumers, waiting)

    def check_invariants(self) -> None:
        """Raise ``RuntimeError`` if the queue contradicts itself."""
        self._consumers.check_invariants()
        self.backing.check_invariants()
        held: dict[int, list[int]] = {}
        for run in self._consumers.runs():
            held.setdefault(run.level, []).extend(run.seq_ids)
        for level, seq_ids in self._expiry.held:
            held.setdefault(level, []).extend(seq_ids)
        if self._deadlines is not None:
            self._deadlines.check_invariants()
        if self._retries is not None:
            self._retries.check_invariants()
            for level, seq_ids in self._retries.held:
                held.setdefault(level, []).extend(seq_ids)
        for level, queue in self.backing.awake():
            s = queue.state
            pieces = (s.ram_pending, s.disk_pending, s.index_pending)
            pending = [seq_id for piece in pieces for run in piece for seq_id in range(run.start, run.end)]
            if sorted(pending) != sorted(held.pop(level, [])):
                raise RuntimeError(
                    f"level {level}: pending acks differ from what channels, waits and dead letters hold"
                )
            if not self._expiry.expiring and queue.head_expiry():
                raise RuntimeError(f"level {level} has a message that expires, but no expiry is scheduled")
        if any(held.values()):
            raise RuntimeError("channels, waits or dead letters hold messages of levels that are asleep")
