"""Expiry: which messages of a queue die, and when: because they expired, exceeded a limit, were rejected or refused.

*Expiry* is checked only at the head. A message that is due and not at the head stays, and counts, until it gets there.

*Limits* (``x-max-length``, ``x-max-length-bytes``) apply to ready messages, and to the bytes of their bodies. With the
``x-overflow`` ``drop-head``, messages are dropped after others arrived, from the head of a priority queue's highest
level. With the other two, an arriving message that exceeds a limit is refused; a smaller one after it may still fit. As
in a broker, messages restored at the start are dropped from the head in any case. If a whole batch arrived and some of
the dropped messages are also due, either reason may be reported.

Without a dead-letter exchange such messages are removed; with one they go to the
:mod:`~warren.actors.engines.queue.dead_letter_outbox`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs

from warren.actors.engines.declared.queue_arguments import Overflow, QueueArguments
from warren.actors.engines.queue.backing import Backing
from warren.actors.engines.queue.dead_letter_outbox import BATCH_MESSAGES, DeadLetterOutbox, Held
from warren.actors.engines.queue.dead_letters import Reason
from warren.actors.engines.queue.queue_context import QueueContext
from warren.queue_index.message.message_format import Envelope
from warren.queue_index.queue.variable_queue import VariableQueue


@attrs.frozen
class Limits:
    """How many ready messages a queue may hold, and how many bytes of bodies; ``None``: any number."""

    messages: int | None
    size: int | None
    overflow: Overflow

    @classmethod
    def of(cls, arguments: QueueArguments) -> Limits | None:
        """Return the limits that arguments set; ``None`` without limits."""
        messages, size = arguments.max_length, arguments.max_length_bytes
        return None if messages is None and size is None else cls(messages, size, arguments.overflow)

    @property
    def refuses(self) -> bool:
        """Whether an arriving message that exceeds a limit is refused."""
        return self.overflow != "drop-head"

    @property
    def dead_letters_refused(self) -> bool:
        """Whether refused messages become dead letters."""
        return self.overflow == "reject-publish-dlx"

    def excess(self, backing: Backing) -> tuple[int, int] | None:
        """Return by how many messages and bytes the limits are exceeded; ``None`` if they are not."""
        messages = 0 if self.messages is None else len(backing) - self.messages
        size = 0 if self.size is None else backing.ready_bytes - self.size
        return (max(messages, 0), max(size, 0)) if messages > 0 or size > 0 else None

    def refused(self, backing: Backing, bodies: Sequence[bytes], at_once: int) -> list[int]:
        """Return the indexes of refused bodies. The first ``at_once`` others go to consumers, and do not count."""
        count, size, refused = len(backing), backing.ready_bytes, []
        for index, body in enumerate(bodies):
            if (self.messages is not None and count >= self.messages) or (
                self.size is not None and size + len(body) > self.size
            ):
                refused.append(index)
            elif at_once:
                at_once -= 1
            else:
                count += 1
                size += len(body)
        return refused


@attrs.define(eq=False, repr=False)
class Expiry:
    """Decides which messages of one queue die."""

    _context: QueueContext
    _backing: Backing = attrs.field(init=False)
    _outbox: DeadLetterOutbox | None = attrs.field(init=False, default=None)
    limits: Limits | None = attrs.field(init=False)
    ttl_us: int | None = attrs.field(init=False)
    expiring: bool = attrs.field(init=False)
    """Whether a message may have an expiry."""
    _starting: bool = attrs.field(init=False)
    """Whether limits must still be applied to messages restored at the start."""
    _deadline_us: int | None = attrs.field(init=False)
    """While the queue is asleep: when the message at the head expires; 0 if not looked up yet."""

    def __attrs_post_init__(self) -> None:
        self._backing = self._context.backing
        self._take_limits()
        self.expiring = len(self._backing) > 0 or self._backing.recovering
        self._starting = self.expiring and self.limits is not None
        self._deadline_us = 0 if self.expiring else None

    def _take_limits(self) -> None:
        ttl_ms = self._context.arguments.message_ttl_ms
        self.limits = Limits.of(self._context.arguments)
        self.ttl_us = None if ttl_ms is None else ttl_ms * 1000

    def arguments_changed(self, before: QueueArguments) -> None:
        """Apply the queue's new arguments; messages that exceed the new limits die.

        As in a broker, the new limits apply before the new overflow: if either the old or the new one is ``drop-head``,
        excess messages are dropped from the head. Messages in the queue keep their expiry.
        """
        self._take_limits()
        limits = self.limits
        if limits is not None and limits.refuses and before.overflow == "drop-head":
            self.limits = attrs.evolve(limits, overflow=before.overflow)
            self.shed()
            self.limits = limits
        self.shed()
        self.expire()

    @property
    def idle(self) -> bool:
        """Whether no dead letters are on their way."""
        return not self._outbox

    @property
    def held(self) -> Iterator[tuple[int, range]]:
        """Dead letters that are on their way, by level and seq_ids."""
        return iter(self._outbox or ())

    # ── when ────────────────────────────────────────────────────────────────────────────────────────────────────

    def expiry_us(self, expiration_ms: int | None) -> int:
        """When a message that arrives now expires; 0: never."""
        ttl_us = self.ttl_us
        if expiration_ms is not None:
            ttl_us = expiration_ms * 1000 if ttl_us is None else min(ttl_us, expiration_ms * 1000)
        return 0 if ttl_us is None else self._context.wall_clock() + ttl_us

    def next_deadline_us(self) -> int | None:
        """When there is something to do next; ``None``: never, for the present messages. Wakes nothing."""
        if self.limits is not None and self.is_over:
            return 0
        if not self.expiring:
            return None
        if self._backing.asleep:
            return self._deadline_us
        level = self._backing.first_level()
        return None if level is None else self._backing.level(level).head_expiry() or None

    @property
    def _sheds(self) -> Limits | None:
        """The limits, if excess messages are dropped from the head."""
        limits = self.limits
        return None if limits is None or (limits.refuses and not self._starting) else limits

    @property
    def is_over(self) -> bool:
        """Whether messages exceed the limits, so that :meth:`shed` would drop some."""
        return self._sheds is not None and self._sheds.excess(self._backing) is not None

    @property
    def discards(self) -> bool:
        """Whether an arriving message is dropped at once, at any position, unless a consumer takes it."""
        return self.ttl_us == 0 and self._context.arguments.dead_letter_exchange is None

    def fall_asleep(self) -> None:
        """Prepare for the queue's sleep: remember the deadline, which cannot be looked up then."""
        self._deadline_us = self.next_deadline_us()
        self.expiring = self.expiring and len(self._backing) > 0

    # ── who ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def expire(self) -> None:
        """Drop or dead-letter the due messages at the head."""
        if not self.expiring:
            return
        now_us = self._context.wall_clock()
        while (level := self._backing.first_level()) is not None:
            queue = self._backing.level(level)
            if not 0 < (queue.head_expiry() or 0) <= now_us:
                return
            count, _ = queue.head_due(now_us, BATCH_MESSAGES)
            self._take_head(level, queue, count, "expired")
        if not self._backing.depth and not self._backing.recovering:
            self.expiring = False

    def fresh_at_head(self, level: int, limit: int) -> int:
        """Return how many messages at the head of a level, at most ``limit``, may be handed out now."""
        count, due = self._backing.level(level).head_due(self._context.wall_clock(), limit)
        return 0 if due else count

    def shed(self) -> None:
        """Drop or dead-letter messages that exceed the limits, from the head."""
        limits = self._sheds
        if limits is None:
            return
        self._starting = self._backing.recovering
        while excess := limits.excess(self._backing):
            level = self._backing.first_level()
            if level is None:
                return
            queue = self._backing.level(level)
            count = min(queue.head_excess(*excess), BATCH_MESSAGES)
            if self.expiring:  # as if messages had arrived one by one: due messages after the first ones expire
                fresh, due = queue.head_due(self._context.wall_clock(), count)
                count = 1 if due else fresh
            self._take_head(level, queue, count, "maxlen")
            self.expire()

    def reject(self, held: Held, reason: Reason = "rejected") -> bool:
        """Dead-letter messages held by a channel. ``False`` if the queue has no dead letters: the caller acks them."""
        outbox = self._open_outbox()
        if outbox is None:
            return False
        outbox.take_held(held, reason, self._context.wall_clock())
        return True

    def refuse(self, envelope: Envelope, bodies: Sequence[bytes]) -> bool:
        """Dead-letter messages that the limits refused, if the limits say so; return whether they do."""
        outbox = self._open_outbox()
        if outbox is None or self.limits is None or not self.limits.dead_letters_refused:
            return False
        outbox.take_refused(envelope, bodies, self._context.wall_clock())
        return True

    def safe(self, number: int) -> None:
        """Remove the messages of a batch of dead letters that is safe at its target, or without a target."""
        if self._outbox is None:
            raise RuntimeError(f"no dead letters are on their way, batch {number} least of all")
        self._outbox.safe(number)

    def forget(self) -> None:
        """Forget the dead letters that are on their way, because the queue ends."""
        self._outbox = None
        self.expiring = False

    def _take_head(self, level: int, queue: VariableQueue, count: int, reason: Reason) -> None:
        outbox = self._open_outbox()
        if (log := self._context.log) is not None:
            log.dying(queue, count, "expired" if reason == "expired" else "dropped", dead_lettered=outbox is not None)
        if outbox is None:
            queue.drop_many(count)
        else:
            outbox.take_head(level, count, reason, self._context.wall_clock())

    def _open_outbox(self) -> DeadLetterOutbox | None:
        """Return the outbox; ``None`` if the queue has no dead-letter exchange, so that messages are dropped."""
        if self._context.arguments.dead_letter_exchange is None:
            return None
        if self._outbox is None:
            self._outbox = DeadLetterOutbox(self._context)
        return self._outbox
