"""QueueDeliveries: one queue's consumers and channels, what goes out to them, and what they settle.

The half of a queue (:class:`~warren.actors.engines.queue_process.QueueProcess`) that hands out. A message that is
handed to a waiting consumer as it comes never expires, and never counts for a limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import attrs

from warren.actors.engines.arguments import QueueDeclaration
from warren.actors.engines.backing import Backing
from warren.actors.engines.consumers import Consumer, Consumers, ConsumerState, Run, Shared
from warren.actors.engines.counts import Counts
from warren.actors.engines.effects import DeadLetterBatch, Delivered, Effects
from warren.actors.engines.errors import PreconditionFailedError
from warren.actors.engines.expiry import DeathWatcher, Expiry, WallClock
from warren.actors.engines.policies import NO_POLICIES, AppliedPolicies
from warren.actors.engines.queue_arguments import QueueArguments, effective
from warren.queue_index.fetching import Fetched, fetched_alone
from warren.queue_index.message_format import Envelope

_ROUND_MESSAGES: Final = 1024
"""So many are taken at once for several consumers in turns."""


@attrs.define(eq=False, repr=False)
class QueueDeliveries:
    """What goes out of one queue, and comes back. See the module's prose."""

    declaration: QueueDeclaration
    backing: Backing
    """For what its files and memory need: paging, syncs, recovery. Messages come and go by the queue's own calls."""
    _wall_clock: WallClock = attrs.field(kw_only=True)
    counts: Counts | None = attrs.field(default=None, kw_only=True)
    """What has happened; ``None``: nobody counts."""
    policies: AppliedPolicies = attrs.field(default=NO_POLICIES, kw_only=True)
    arguments: QueueArguments = attrs.field(init=False)
    """What the declaration and the policies come to."""
    _consumers: Consumers = attrs.field(init=False)
    _effects: Effects | None = attrs.field(init=False, default=None)
    _expiry: Expiry = attrs.field(init=False)
    _used_at_us: int = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._consumers = Consumers(single_active=self.declaration.single_active_consumer)
        self.arguments = effective(self.declaration, self.policies.definition)
        self._expiry = Expiry(self.arguments, self.backing, self._wall_clock, self._send_dead_letters)
        self._used_at_us = self._wall_clock()

    @property
    def effects(self) -> Effects:
        """What has collected for others; :meth:`drain_effects` takes it away."""
        if self._effects is None:
            self._effects = Effects()
        return self._effects

    def watch(self, watcher: DeathWatcher) -> None:
        """Tell somebody which messages die, and how."""
        self._expiry.watcher = watcher

    def _send_dead_letters(self, batch: DeadLetterBatch) -> None:
        if self.counts is not None:
            self.counts.dead_lettered += len(batch.publications)
        self.effects.dead_letters.append(batch)

    def tick(self) -> None:
        """Delete what is due at the head, and with what a stop brought back past the limits."""
        self._expiry.shed()
        self._expiry.expire()

    # ── messages out ────────────────────────────────────────────────────────────────────────────────────────────

    def get_many(self, channel: str, count: int, *, ack_required: bool) -> list[Delivered]:
        """At most ``count`` messages from the head for one who asks. They do not show in the effects.

        Raises :class:`~warren.actors.engines.errors.PreconditionFailedError` where that is no number of messages.
        """
        if not hasattr(count, "__index__") or count < 0:
            raise PreconditionFailedError(f"{count!r} is no number of messages that can be taken")
        self._used_at_us = self._wall_clock()
        delivered: list[Delivered] = []
        for level, fetched in self._take(count, ack_required=ack_required):
            first = self._consumers.channel(channel).give(level, fetched.seq_ids, None) if ack_required else 0
            if self.counts is not None:
                self.counts.note_delivered(fetched.count, fetched.redelivered, ack_required)
                self.counts.got += fetched.count if ack_required else 0
            delivered.append(Delivered(None, channel, first, fetched))
        return delivered

    def hand_off(self, envelope: Envelope, body: bytes) -> Delivered | None:
        """Give a message straight to a consumer that acks unseen, past the empty queue; ``None``: publish it.

        It is done with as soon as it was there: nothing is written, and no rate counts it.
        """
        chosen = self._consumers.next() if not len(self.backing) else None
        if chosen is None or not chosen[0].consumer.acks_unseen or self.backing.recovering:
            return None
        if envelope.of_contents:
            envelope, body = envelope.with_content(body)
        limits = self._expiry.limits
        if limits is not None and limits.refuses and limits.refused(self.backing, (body,), 1):
            return None
        self._consumers.pass_turn(chosen[0])
        consumer = chosen[0].consumer
        if self.counts is not None:
            self.counts.note_published(1, len(body), envelope.persistent)
            self.counts.note_delivered(1, False, False)
        return Delivered(consumer.tag, consumer.channel, 0, fetched_alone(envelope, (body,)))

    def deliver(self, at_most: int | None = None) -> bool:
        """Hand ready messages, at most so many, to consumers with room; returns whether more could be handed out."""
        consumers = self._consumers
        left = at_most
        while (ready := len(self.backing)) and (chosen := consumers.next()) is not None and left != 0:
            state, room = chosen
            limit = ready if left is None else min(ready, left)
            given = self._give_in_turns(limit) or self._give(state, min(limit, room), fresh=False)
            if left is not None:
                left -= given
        return bool(ready) and consumers.next() is not None

    def _hand_out(self, count: int) -> None:
        """Hand so many messages to consumers, who have room for them; due or not."""
        while count and (chosen := self._consumers.next()) is not None:
            state, room = chosen
            given = self._give(state, min(room, count), fresh=True)
            if not given and state.consumer.shared is not None:
                continue  # others of those who share have taken the room meanwhile
            if not given:
                raise RuntimeError("messages that were just published are not at the head")
            count -= given

    def _give_in_turns(self, limit: int) -> int:
        """Take messages off the head for several consumers at once, one each in turn; 0: that cannot be done here."""
        consumers, single = self._consumers, self.backing.single
        if single is None or self._expiry.expiring or (turns := consumers.round()) is None:
            return 0
        ack_required, room = turns
        deliveries, given = self.effects.deliveries, 0
        for fetched in single.fetch_many(min(limit, room, _ROUND_MESSAGES), ack_required=ack_required):
            if self.counts is not None:
                self.counts.note_delivered(fetched.count, fetched.redelivered, ack_required)
            offset = 0
            while offset < fetched.count:
                states, each = consumers.turns(fetched.count - offset)
                if not states:
                    raise RuntimeError("consumers had room for less than they said")
                for place, state in enumerate(states, offset):
                    part, consumer = fetched.every(place, len(states), each), state.consumer
                    first = consumers.give(state, 0, part.seq_ids)
                    deliveries.append(Delivered(consumer.tag, consumer.channel, first, part))
                offset += len(states) * each
            given += fetched.count
        return given

    def _give(self, state: ConsumerState, count: int, *, fresh: bool) -> int:
        """Take messages off the head for one consumer; returns how many there were."""
        consumer, given = state.consumer, 0
        if consumer.shared is not None and not (count := state.take_shared(count)):
            return 0
        taken = self._take(count, ack_required=consumer.ack_required, fresh=fresh)
        deliveries = self.effects.deliveries
        for level, fetched in taken:
            seq_ids = fetched.seq_ids
            first = self._consumers.give(state, level, seq_ids)
            if self.counts is not None:
                self.counts.note_delivered(len(seq_ids), fetched.redelivered, consumer.ack_required)
            deliveries.append(Delivered(consumer.tag, consumer.channel, first, fetched))
            given += len(seq_ids)
        if consumer.shared is not None:
            state.give_shared_back(count - given)
        return given

    def _take(self, count: int, *, ack_required: bool, fresh: bool = False) -> list[tuple[int, Fetched]]:
        """At most ``count`` messages off the head, none of them due (``fresh``: they may be); by level."""
        backing, expiry = self.backing, self._expiry
        expiring = expiry.expiring and not fresh
        if backing.single is not None and not expiring:
            return [(0, fetched) for fetched in backing.single.fetch_many(count, ack_required=ack_required)]
        taken: list[tuple[int, Fetched]] = []
        if expiring:
            expiry.expire()
        while count and (level := backing.first_level()) is not None:
            queue, part = backing.level(level), min(count, backing.length_of(level))
            if expiring:
                part = expiry.fresh_at_head(level, part)
            for fetched in queue.fetch_many(part, ack_required=ack_required):
                taken.append((level, fetched))
                count -= fetched.count
            if expiring:
                expiry.expire()
        return taken

    # ── consumers and channels ──────────────────────────────────────────────────────────────────────────────────

    def add_consumer(self, consumer: Consumer) -> None:
        """Let a consumer in; its messages come from :meth:`deliver`.

        Raises :class:`~warren.actors.engines.errors.AccessRefusedError` where it, or another one, is the only one
        allowed.
        """
        before = self._consumers.active
        self._consumers.add(consumer)
        self._note_active(before)

    def set_room(self, tag: str, room: int) -> None:
        """Let a consumer have room for so many more, whatever is unacked with it."""
        self._consumers.set_room(tag, room)

    def set_prefetch(self, tag: str, prefetch: int, shared: Shared | None = None) -> None:
        """Let a consumer have another prefetch; :meth:`deliver` goes by it."""
        self._consumers.set_prefetch(tag, prefetch, shared)

    def resume(self, shared: Shared) -> None:
        """There is room again in what consumers share."""
        self._consumers.resume(shared)

    def cancel_consumer(self, tag: str) -> bool:
        """Let a consumer go; what is unacked stays with its channel. Returns whether it was there."""
        before = self._consumers.active
        if self._consumers.remove(tag) is None:
            return False
        self._used_at_us = self._wall_clock()
        self._note_active(before)
        return True

    def close_channel(self, channel: str) -> int:
        """Let a channel's consumers go and requeue what it has unacked; returns how many messages that were."""
        before = self._consumers.active
        tags, runs = self._consumers.remove_channel(channel)
        if tags or runs:
            self._used_at_us = self._wall_clock()
        self._note_active(before)
        return self._requeue(runs)

    def _note_active(self, before: ConsumerState | None) -> None:
        active = self._consumers.active
        if active is not None and active is not before and self.declaration.single_active_consumer:
            self.effects.activated.append(active.consumer.tag)

    def ack(self, channel: str, tags: Sequence[range]) -> None:
        """Done with: messages by their delivery tags. Raises :class:`~warren.actors.engines.errors.UnknownTagError`."""
        runs = self._ack(self._consumers.settle(channel, tags))
        if self.counts is not None:
            self.counts.note_acked(runs)

    def ack_up_to(self, channel: str, tag: int) -> None:
        """Done with everything up to a tag; 0: everything."""
        runs = self._ack(self._consumers.settle_up_to(channel, tag))
        if self.counts is not None:
            self.counts.note_acked(runs)

    def nack(self, channel: str, tags: Sequence[range], *, requeue: bool) -> None:
        """Not done with: back to their old places, or away: dead letters, where the queue has an exchange for them."""
        self._nack(self._consumers.settle(channel, tags), requeue=requeue)

    def nack_up_to(self, channel: str, tag: int, *, requeue: bool) -> None:
        """As :meth:`nack`, everything up to a tag; 0: everything."""
        self._nack(self._consumers.settle_up_to(channel, tag), requeue=requeue)

    def _ack(self, runs: Sequence[Run]) -> Sequence[Run]:
        for level, seq_ids in _by_level(runs).items():
            self.backing.level(level).ack(seq_ids)
        return runs

    def _nack(self, runs: list[Run], *, requeue: bool) -> None:
        if requeue:
            self._requeue(runs)
            return
        if self.counts is not None:
            self.counts.rejected += sum(run.count for run in runs)
        if not self._expiry.reject([(run.level, run.seq_ids) for run in runs]):
            self._ack(runs)

    def _requeue(self, runs: Sequence[Run]) -> int:
        for level, seq_ids in _by_level(runs).items():
            self.backing.level(level).requeue(seq_ids)
        requeued = sum(run.count for run in runs)
        if self.counts is not None:
            self.counts.requeued += requeued
        if runs:
            self._consumers.hand_out_anew()
            self.tick()
        return requeued


def _by_level(runs: Sequence[Run]) -> dict[int, list[range]]:
    """The seq_ids of runs, by level."""
    if len(runs) == 1:
        return {runs[0].level: [runs[0].seq_ids]}
    levels: dict[int, list[range]] = {}
    for run in runs:
        levels.setdefault(run.level, []).append(run.seq_ids)
    return levels
