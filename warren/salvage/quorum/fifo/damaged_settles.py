"""Messages that were named by a command that cannot be trusted: a settle, or a discard, whose checksum is wrong.

Its msg_ids may be wrong. So the messages that it names are no longer out, and their consumer gets the credit back, as
in the broker; this keeps later deliveries right. But they are not removed: they come back at the restart, unless a
later command of that consumer names them.
"""

from __future__ import annotations

from collections.abc import Sequence

from warren.salvage.quorum.fifo.commands import ConsumerKey
from warren.salvage.quorum.fifo.consumers import Consumer, Consumers
from warren.salvage.quorum.fifo.deliveries import Deliveries
from warren.salvage.quorum.fifo.later_commands import LaterCommands
from warren.salvage.quorum.fifo.messages import Messages
from warren.salvage.quorum.fifo.ready_queues import QueuedMessage
from warren.salvage.quorum.ra.similar_names import MAX_CHANGED, changes_of


class Doubtful:
    """Doubtful messages, by consumer and msg_id."""

    def __init__(self) -> None:
        self._messages: dict[tuple[Consumer, int], QueuedMessage] = {}

    def __bool__(self) -> bool:
        return bool(self._messages)

    def finish(self, consumer: Consumer, msg_ids: Sequence[int], deliveries: Deliveries) -> list[int]:
        """Take the command's messages from the consumer; return their indexes."""
        messages = [consumer.held[msg_id] for msg_id in msg_ids]
        self._messages.update(((consumer, msg_id), message) for msg_id, message in zip(msg_ids, messages, strict=True))
        deliveries.finish(consumer, msg_ids)
        return [message.index for message in messages]

    def recall(self, consumer: Consumer, msg_ids: Sequence[int], messages: Messages) -> None:
        """A sound command names these: the doubtful ones among them are out again."""
        for msg_id in msg_ids:
            message = self._messages.pop((consumer, msg_id), None)
            if message is not None:
                consumer.held = dict(sorted({**consumer.held, msg_id: message}.items()))
                messages.out_count += 1
                messages.out_bytes += message.size
                if messages.rules.has_timeouts:
                    consumer.deadlines[msg_id] = messages.now_ms + consumer.timeout_ms

    def come_back(self, messages: Messages) -> None:
        """Put them back at the restart, after all other returns."""
        for message in self._messages.values():
            returned = message._replace(
                delivery_count=message.delivery_count + 1, acquired_count=message.acquired_count + 1
            )
            messages.returns.append(returned)
            messages.ready_bytes += returned.size
        self._messages.clear()


def meant_by(
    consumers: Consumers, key_owner: Consumer | None, key: ConsumerKey, msg_ids: Sequence[int], later: LaterCommands
) -> tuple[Consumer | None, list[int]]:
    """The consumer and the deliveries that a damaged command named, which says ``key`` and ``msg_ids``.

    ``key_owner``: the consumer with that key. Only deliveries that no later command names are possible; these are
    tried, in this order: those in the command; others of that consumer, the nearest numbers first; the same numbers of
    the consumer with the nearest name; those of the only consumer that has any.
    """
    free = {
        consumer: [msg_id for msg_id in consumer.held if (consumer.key, msg_id) not in later.deliveries]
        for consumer in consumers
        if consumer.held
    }
    free = {consumer: numbers for consumer, numbers in free.items() if numbers}
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


def _nearest_numbers(free: Sequence[int], msg_ids: Sequence[int]) -> list[int]:
    """As many of ``free`` as were named, at least one: the same, else those that differ in the fewest bits."""
    chosen = [msg_id for msg_id in dict.fromkeys(msg_ids) if msg_id in set(free)]
    others = [msg_id for msg_id in free if msg_id not in set(chosen)]
    for missing in [msg_id for msg_id in dict.fromkeys(msg_ids) if msg_id not in set(chosen)] or [0] * (not msg_ids):
        if others:
            chosen.append(min(others, key=lambda msg_id: (msg_id ^ missing).bit_count()) if msg_ids else others[0])
            others.remove(chosen[-1])
    return chosen
