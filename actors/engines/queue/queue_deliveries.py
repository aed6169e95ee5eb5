"""QueueDeliveries: deliveries of one queue to its consumers and to gets.

The delivering part of a queue (:class:`~warren.actors.engines.queue.queue_process.QueueProcess`). A message that goes
to a waiting consumer on arrival never expires, and never counts for a limit. Redeliveries are counted
(:mod:`~warren.actors.engines.queue.retries`); a message that came back too often dies instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

import attrs

from warren.actors.engines.errors import PreconditionFailedError
from warren.actors.engines.queue.consumers import ConsumerState
from warren.actors.engines.queue.effects import Delivered
from warren.actors.engines.queue.expiry import Expiry
from warren.actors.engines.queue.queue_context import QueueContext
from warren.actors.engines.queue.queue_settlements import QueueSettlements
from warren.queue_index.message.message_format import Envelope
from warren.queue_index.queue.fetching import Fetched, fetched_alone

if TYPE_CHECKING:
    from warren.queue_index.queue.removal import ChosenIds

_ROUND_MESSAGES: Final = 1024
"""How many messages are taken at once for several consumers in turns."""


@attrs.define(eq=False, repr=False)
class QueueDeliveries:
    """The deliveries of one queue. See the module's prose."""

    _context: QueueContext
    _expiry: Expiry
    _settlements: QueueSettlements

    def get_many(
        self, channel: str, count: int, *, ack_required: bool, chosen: Mapping[int, ChosenIds] | None = None
    ) -> list[Delivered]:
        """Get at most ``count`` messages from the head, or those of ``chosen``, by level, that are ready.

        They are returned, and not added to the effects.

        Raises :class:`~warren.actors.engines.errors.PreconditionFailedError` if ``count`` is not a valid number.
        """
        if not hasattr(count, "__index__") or count < 0:
            raise PreconditionFailedError(f"{count!r} is no number of messages that can be taken")
        context = self._context
        context.used_at_us = context.wall_clock()
        delivered: list[Delivered] = []
        taken = self._take(count, ack_required=ack_required) if chosen is None else self._take_chosen(chosen)
        for level, fetched in taken:
            first = context.consumers.channel(channel).give(level, fetched.seq_ids, None) if ack_required else 0
            if first and (timeout_ms := context.arguments.consumer_timeout_ms) is not None:
                self._settlements.limit_time(channel, first, fetched.count, timeout_ms)
            if context.counts is not None:
                context.counts.note_delivered(fetched.count, fetched.redelivered, ack_required)
                context.counts.got += fetched.count if ack_required else 0
            delivered.append(Delivered(None, channel, first, fetched))
            if context.log is not None:
                context.log.delivered(delivered[-1])
        return delivered

    def remove(self, chosen: Mapping[int, ChosenIds]) -> int:
        """Delete those messages that are ready, at any position; return their number."""
        context = self._context
        context.touch()
        self._settlements.tick()
        held = [
            (level, part)
            for level, msg_ids in self._of_levels(chosen)
            for part in context.backing.level(level).remove(msg_ids)
        ]
        if self._settlements.retries is not None:
            self._settlements.retries.forget(held)
        removed = sum(len(part) for _, part in held)
        if context.counts is not None:
            context.counts.purged += removed
        if context.log is not None:
            context.log.removed(chosen[level][seq_id] for level, part in held for seq_id in part)
        return removed

    def _take_chosen(self, selection: Mapping[int, ChosenIds]) -> list[tuple[int, Fetched]]:
        """Take those messages that are ready, at any position; by level."""
        self._settlements.tick()
        taken = [
            (level, fetched)
            for level, msg_ids in self._of_levels(selection)
            for fetched in self._context.backing.level(level).take(msg_ids)
        ]
        return self._counted(taken, True) if self._settlements.remembers else taken

    def _of_levels(self, selection: Mapping[int, ChosenIds]) -> list[tuple[int, ChosenIds]]:
        """The selection for each level that has messages, highest first."""
        backing = self._context.backing
        levels = (level for level in backing.numbers if level in selection and backing.length_of(level))
        return [(level, selection[level]) for level in levels]

    def hand_off(self, envelope: Envelope, body: bytes, give: Callable[[Delivered], bool]) -> bool:
        """Give a message directly to a consumer that acks unseen, bypassing the empty queue; ``False``: publish it.

        ``give``: returns whether the receiver takes it. If so, nothing is written, and no rate counts it.
        """
        context = self._context
        backing, consumers = context.backing, context.consumers
        chosen = consumers.next() if not len(backing) else None
        if chosen is None or not chosen[0].consumer.acks_unseen or backing.recovering or context.log is not None:
            return False
        if envelope.of_contents:
            envelope, body = envelope.with_content(body)
        limits = self._expiry.limits
        if limits is not None and limits.refuses and limits.refused(backing, (body,), 1):
            return False
        consumer = chosen[0].consumer
        if not give(Delivered(consumer.tag, consumer.channel, 0, fetched_alone(envelope, (body,)))):
            return False
        consumers.pass_turn(chosen[0])
        if context.counts is not None:
            context.counts.note_published(1, len(body), envelope.persistent)
            context.counts.note_delivered(1, False, False)
        return True

    def deliver(self, at_most: int | None = None) -> bool:
        """Deliver at most ``at_most`` ready messages to consumers with room; return whether more could be delivered."""
        backing, consumers = self._context.backing, self._context.consumers
        left = at_most
        while (ready := len(backing)) and (chosen := consumers.next()) is not None and left != 0:
            state, room = chosen
            limit = ready if left is None else min(ready, left)
            given = self._give_in_turns(limit) or self._give(state, min(limit, room), fresh=False)
            if left is not None:
                left -= given
        return bool(ready) and consumers.next() is not None

    def hand_out(self, count: int) -> None:
        """Deliver ``count`` messages, due or not, to consumers with room for them."""
        consumers = self._context.consumers
        while count and (chosen := consumers.next()) is not None:
            state, room = chosen
            given = self._give(state, min(room, count), fresh=True)
            if not given and state.consumer.shared is not None:
                continue  # other consumers have used up the shared room meanwhile
            if not given:
                raise RuntimeError("messages that were just published are not at the head")
            count -= given

    def _give_in_turns(self, limit: int) -> int:
        """Deliver messages from the head to several consumers in turn; return their number, 0 if that is impossible."""
        context, consumers, single = self._context, self._context.consumers, self._context.backing.single
        if single is None or self._expiry.expiring or (turns := consumers.round()) is None:
            return 0
        ack_required, room = turns
        deliveries, given = context.effects.deliveries, 0
        taken = [
            (0, fetched) for fetched in single.fetch_many(min(limit, room, _ROUND_MESSAGES), ack_required=ack_required)
        ]
        for _, fetched in self._counted(taken, ack_required) if self._settlements.remembers else taken:
            if context.counts is not None:
                context.counts.note_delivered(fetched.count, fetched.redelivered, ack_required)
            offset = 0
            while offset < fetched.count:
                states, share = consumers.turns(fetched.count - offset)
                if not states:
                    raise RuntimeError("consumers had room for less than they said")
                for place, state in enumerate(states, offset):
                    part, consumer = fetched.every(place, len(states), share), state.consumer
                    first = consumers.give(state, 0, part.seq_ids)
                    timeout_ms = consumer.ack_timeout_ms or context.arguments.consumer_timeout_ms
                    if first and timeout_ms is not None:
                        self._settlements.limit_time(consumer.channel, first, part.count, timeout_ms)
                    deliveries.append(Delivered(consumer.tag, consumer.channel, first, part))
                    if context.log is not None:
                        context.log.delivered(deliveries[-1])
                offset += len(states) * share
            given += fetched.count
        return given

    def _give(self, state: ConsumerState, count: int, *, fresh: bool) -> int:
        """Deliver messages from the head to one consumer; return their number."""
        context, consumer, given = self._context, state.consumer, 0
        if consumer.shared is not None and not (count := state.take_shared(count)):
            return 0
        taken = self._take(count, ack_required=consumer.ack_required, fresh=fresh)
        deliveries = context.effects.deliveries
        timeout_ms = consumer.ack_timeout_ms or context.arguments.consumer_timeout_ms
        for level, fetched in taken:
            seq_ids = fetched.seq_ids
            first = context.consumers.give(state, level, seq_ids)
            if first and timeout_ms is not None:
                self._settlements.limit_time(consumer.channel, first, len(seq_ids), timeout_ms)
            if context.counts is not None:
                context.counts.note_delivered(len(seq_ids), fetched.redelivered, consumer.ack_required)
            deliveries.append(Delivered(consumer.tag, consumer.channel, first, fetched))
            if context.log is not None:
                context.log.delivered(deliveries[-1])
            given += len(seq_ids)
        if consumer.shared is not None:
            state.give_shared_back(count - given)
        return given

    def _take(
        self, count: int, *, ack_required: bool, fresh: bool = False, counted: bool = True
    ) -> list[tuple[int, Fetched]]:
        """Take at most ``count`` messages off the head, by level. ``fresh``: due messages are taken, too.

        ``counted``: with their delivery counts, and without those that must not be delivered.
        """
        backing, expiry = self._context.backing, self._expiry
        expiring = expiry.expiring and not fresh
        if backing.single is not None and not expiring:
            taken = [(0, fetched) for fetched in backing.single.fetch_many(count, ack_required=ack_required)]
            return self._counted(taken, ack_required, count) if counted and self._settlements.remembers else taken
        taken, left = [], count
        if expiring:
            expiry.expire()
        while left and (level := backing.first_level()) is not None:
            queue, part = backing.level(level), min(left, backing.length_of(level))
            if expiring:
                part = expiry.fresh_at_head(level, part)
            for fetched in queue.fetch_many(part, ack_required=ack_required):
                taken.append((level, fetched))
                left -= fetched.count
            if expiring:
                expiry.expire()
        return self._counted(taken, ack_required, count) if counted and self._settlements.remembers else taken

    def _counted(
        self, taken: list[tuple[int, Fetched]], ack_required: bool, missing: int = 0
    ) -> list[tuple[int, Fetched]]:
        """Return the taken messages, redelivered ones with their delivery counts.

        Messages that still wait, or exceed the delivery limit, are left out. ``missing``: how many messages are
        requested; if some are left out, others are taken instead.
        """
        deliverable: list[tuple[int, Fetched]] = []
        while taken:
            previous, missing = missing, missing - sum(fetched.count for _, fetched in taken)
            for level, fetched in taken:
                parts = self._settlements.to_deliver(level, fetched, ack_required) if fetched.redelivered else [fetched]
                deliverable += [(level, part) for part in parts]
                missing += fetched.count - sum(part.count for part in parts)
            taken = self._take(missing, ack_required=ack_required, counted=False) if 0 < missing <= previous else []
        return deliverable
