"""What consumers answer: settles, discards, returns, modifications and requeues; and what damaged answers meant.

A command names a consumer and its deliveries. Every command ends with a checkout.

A checkout whose checksum is wrong may give its consumer a wrong name: then commands with the same tag or the same pid
may mean that consumer (:meth:`Settlements.doubt_key`).

A settle, or a discard, whose checksum is wrong may have wrong msg_ids. So the messages that it names are no longer out,
and their consumer gets the credit back, as in the broker; this keeps later deliveries right. But they are not removed:
these *doubtful* messages come back at the restart, unless a later command of that consumer names them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import attrs

from warren.salvage.quorum.fifo import commands
from warren.salvage.quorum.fifo.commands import ConsumerKey
from warren.salvage.quorum.fifo.consumers import Consumer
from warren.salvage.quorum.fifo.deliveries import Deliveries
from warren.salvage.quorum.fifo.later_commands import LaterCommands
from warren.salvage.quorum.fifo.membership import Membership
from warren.salvage.quorum.fifo.ready_queues import QueuedMessage
from warren.salvage.quorum.ra.similar_names import MAX_CHANGED, changes_of

UNKNOWN_PID: Final = b""
"""The pid of a consumer whose process is unknown."""


@attrs.define(eq=False, repr=False)
class Settlements:
    """The answers of a queue's consumers. Methods with an ``index`` (of its entry) apply a command."""

    _deliveries: Deliveries
    _membership: Membership
    _doubtful: dict[tuple[Consumer, int], QueuedMessage] = attrs.Factory(dict)
    """Messages by consumer and msg_id."""
    _unsure_key: ConsumerKey | None = None
    """Of a consumer whose tag or pid may be wrong."""

    def settle(self, index: int, command: commands.Settle) -> None:
        consumer = self._named(command.consumer, command.msg_ids)
        if consumer is not None:
            self._deliveries.finish(consumer, command.msg_ids)
        else:
            self._membership.answer_waiting(command.consumer, command.msg_ids)

    def discard(self, index: int, command: commands.Discard) -> None:
        consumer = self._named(command.consumer, command.msg_ids)
        if consumer is not None and (consumer.key == command.consumer or self._deliveries.rules.finds_by_id):
            self._deliveries.discard(consumer, command.msg_ids)
        else:
            self._membership.answer_waiting(command.consumer, command.msg_ids)

    def give_back(self, index: int, command: commands.Return) -> None:
        consumer = self._named(command.consumer, command.msg_ids)
        if consumer is not None:
            self._deliveries.give_back(consumer, command.msg_ids, failed=not self._deliveries.rules.has_keys)
        else:
            self._membership.answer_waiting(command.consumer, command.msg_ids)

    def modify(self, index: int, command: commands.Modify) -> None:
        """Its annotations go with the message to the next consumer; a reader ignores them otherwise."""
        consumer = self._named(command.consumer, command.msg_ids) if self._deliveries.rules.has_keys else None
        if consumer is None:
            self._membership.answer_waiting(command.consumer, command.msg_ids)
        elif command.undeliverable_here:
            self._deliveries.discard(consumer, command.msg_ids)
        else:
            failed, annotations = command.delivery_failed, command.annotations
            self._deliveries.give_back(consumer, command.msg_ids, failed=failed, annotations=annotations)

    def requeue(self, index: int, command: commands.Requeue) -> None:
        consumers = self._deliveries.service.consumers
        consumer = consumers.by_key.get(command.consumer) or self._unsure(command.consumer)
        if consumer is not None:
            self._deliveries.requeue(consumer, command.msg_id, index)

    # ── whom a command names ─────────────────────────────────────────────────────────────────────────────────────────

    def held(self, key: ConsumerKey, msg_id: int) -> QueuedMessage | None:
        """The message that is out under a number."""
        consumer = self._find(key)
        return None if consumer is None else consumer.held.get(msg_id)

    def _named(self, key: ConsumerKey, msg_ids: Sequence[int]) -> Consumer | None:
        """The consumer that a command names; the doubtful messages that the command names are out again."""
        consumer = self._find(key)
        if self._doubtful and consumer is not None:
            self._recall(consumer, msg_ids)
        return consumer

    def _recall(self, consumer: Consumer, msg_ids: Sequence[int]) -> None:
        messages = self._deliveries.messages
        for msg_id in msg_ids:
            message = self._doubtful.pop((consumer, msg_id), None)
            if message is not None:
                consumer.held = dict(sorted({**consumer.held, msg_id: message}.items()))
                messages.out_count += 1
                messages.out_bytes += message.size
                if messages.rules.has_timeouts:
                    consumer.deadlines[msg_id] = messages.now_ms + consumer.timeout_ms

    def _find(self, key: ConsumerKey) -> Consumer | None:
        consumers = self._deliveries.service.consumers
        by_id = consumers.find if self._deliveries.rules.has_keys else self._unsure
        return consumers.by_key.get(key) or by_id(key)

    def _unsure(self, key: ConsumerKey) -> Consumer | None:
        """The consumer that an unknown name may mean."""
        unsure = self._unsure_key
        if unsure is None or not _may_be(key, unsure):
            return None
        return self._deliveries.service.consumers.by_key.get(unsure)

    # ── damaged commands ─────────────────────────────────────────────────────────────────────────────────────────────

    def meant_by(
        self, key: ConsumerKey, msg_ids: Sequence[int], later: LaterCommands
    ) -> tuple[Consumer | None, list[int]]:
        """The consumer and the deliveries that a damaged command named, which says ``key`` and ``msg_ids``.

        Only deliveries that no later command names are possible; these are tried, in this order: those in the command;
        others of the consumer with that key, the nearest numbers first; the same numbers of the consumer with the
        nearest name; those of the only consumer that has any.
        """
        free: dict[Consumer, list[int]] = {}
        for consumer in self._deliveries.service.consumers:
            numbers = [msg_id for msg_id in consumer.held if (consumer.key, msg_id) not in later.deliveries]
            if numbers:
                free[consumer] = numbers
        key_owner = self._find(key)
        if key_owner is not None and key_owner in free:
            return key_owner, _nearest_numbers(free[key_owner], msg_ids)
        fitting = [consumer for consumer, numbers in free.items() if msg_ids and set(msg_ids) <= set(numbers)]
        if isinstance(key, tuple):
            name = b"\0".join(key)
            named = [(changes_of(name, b"\0".join(consumer.consumer_id)), consumer) for consumer in fitting]
            near = [(changes, consumer) for changes, consumer in named if changes[0] <= MAX_CHANGED]
            if near:
                return min(near, key=lambda pair: pair[0])[1], list(msg_ids)
        for candidates in (fitting, list(free)):
            if len(candidates) == 1:
                return candidates[0], _nearest_numbers(free[candidates[0]], msg_ids)
        return None, []

    def goes_with_a_return(self, consumer: Consumer, msg_id: int) -> bool:
        """Whether the message is sent away if it comes back once more: it has reached the delivery limit."""
        return self._deliveries.messages.is_past_limit(consumer.held[msg_id].returned(failed=True))

    def doubt_key(self, key: ConsumerKey) -> None:
        """Note a consumer's name that may be wrong: commands with the same tag or the same pid may mean it."""
        self._unsure_key = key

    def doubt(self, consumer: Consumer, msg_ids: Sequence[int]) -> list[int]:
        """Apply an untrusted settle; return the indexes of what it may have settled, which comes back."""
        doubtful = [consumer.held[msg_id] for msg_id in msg_ids]
        self._doubtful.update(((consumer, msg_id), message) for msg_id, message in zip(msg_ids, doubtful, strict=True))
        self._deliveries.finish(consumer, msg_ids)
        return [message.index for message in doubtful]

    def put_back(self) -> None:
        """Put back what untrusted settles took, at the restart, after all other returns."""
        messages = self._deliveries.messages
        for message in self._doubtful.values():
            messages.returns.append(message.returned(failed=True))
            messages.ready_bytes += message.size
        self._doubtful.clear()


def _may_be(key: ConsumerKey, unsure: ConsumerKey) -> bool:
    """Whether both can name one consumer, with an error in the tag or in the pid."""
    if isinstance(key, int) or isinstance(unsure, int):
        return False
    return key[0] == unsure[0] or unsure[1] in (key[1], UNKNOWN_PID)


def _nearest_numbers(free: Sequence[int], msg_ids: Sequence[int]) -> list[int]:
    """As many of ``free`` as were named, at least one: the same, else those that differ in the fewest bits."""
    chosen = [msg_id for msg_id in dict.fromkeys(msg_ids) if msg_id in set(free)]
    others = [msg_id for msg_id in free if msg_id not in set(chosen)]
    for missing in [msg_id for msg_id in dict.fromkeys(msg_ids) if msg_id not in set(chosen)] or [0] * (not msg_ids):
        if others:
            chosen.append(min(others, key=lambda msg_id: (msg_id ^ missing).bit_count()) if msg_ids else others[0])
            others.remove(chosen[-1])
    return chosen
