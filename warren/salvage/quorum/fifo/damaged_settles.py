"""Messages that a command named which cannot be trusted: a settle, or a discard, whose checksum is wrong.

Its numbers may be other ones. So what it names is out no longer, and its consumer gets the credit back, as the broker's
did: what was delivered later stays right. But it is not gone: it comes back at the restart, unless a later command of
that consumer names it.
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
    """Those messages, by consumer and number."""

    def __init__(self) -> None:
        self._messages: dict[tuple[Consumer, int], QueuedMessage] = {}

    def __bool__(self) -> bool:
        return bool(self._messages)

    def finish(self, consumer: Consumer, msg_ids: Sequence[int], deliveries: Deliveries) -> list[int]:
        """What the command takes from the consumer; returns the messages' indexes."""
        messages = [consumer.held[msg_id] for msg_id in msg_ids]
        self._messages.update(((consumer, msg_id), message) for msg_id, message in zip(msg_ids, messages, strict=True))
        deliveries.finish(consumer, msg_ids)
        return [message.index for message in messages]

    def recall(self, consumer: Consumer, msg_ids: Sequence[int], messages: Messages) -> None:
        """A sound command names these: those that are doubtful are out as before."""
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
            again = message._replace(
                delivery_count=message.delivery_count + 1, acquired_count=message.acquired_count + 1
            )
            messages.returns.append(again)
            messages.ready_bytes += again.size
        self._messages.clear()


def meant_by(
    consumers: Consumers, said: Consumer | None, key: ConsumerKey, msg_ids: Sequence[int], later: LaterCommands
) -> tuple[Consumer | None, list[int]]:
    """Whose deliveries a damaged command named, and their numbers, where it says ``key`` and ``msg_ids``.

    ``said``: the consumer that is called so. Of the deliveries that no later command names these are, in this order:
    what the command says; others of that consumer, the nearest numbers first; those numbers of the consumer whose
    name is nearest; the only consumer's that has any.
    """
    free = {
        consumer: [msg_id for msg_id in consumer.held if (consumer.key, msg_id) not in later.deliveries]
        for consumer in consumers
        if consumer.held
    }
    free = {consumer: numbers for consumer, numbers in free.items() if numbers}
    if said is not None and said in free:
        return said, _nearest_numbers(free[said], msg_ids)
    fitting = [consumer for consumer, numbers in free.items() if msg_ids and set(msg_ids) <= set(numbers)]
    if isinstance(key, tuple):
        name = b"\0".join(key)
        named = [(changes_of(name, b"\0".join(consumer.consumer_id)), consumer) for consumer in fitting]
        near = [(changes, consumer) for changes, consumer in named if changes[0] <= MAX_CHANGED]
        if near:
            return min(near, key=lambda one: one[0])[1], list(msg_ids)
    for candidates in (fitting, list(free)):
        if len(candidates) == 1:
            return candidates[0], _nearest_numbers(free[candidates[0]], msg_ids)
    return None, []


def _nearest_numbers(free: Sequence[int], msg_ids: Sequence[int]) -> list[int]:
    """As many of ``free`` as were named, at least one: the same, else those that differ in the fewest bits."""
    found = [msg_id for msg_id in dict.fromkeys(msg_ids) if msg_id in set(free)]
    others = [msg_id for msg_id in free if msg_id not in set(found)]
    for missing in [msg_id for msg_id in dict.fromkeys(msg_ids) if msg_id not in set(found)] or [0] * (not msg_ids):
        if others:
            found.append(min(others, key=lambda msg_id: (msg_id ^ missing).bit_count()) if msg_ids else others[0])
            others.remove(found[-1])
    return found
