"""Messages that a command named which cannot be trusted: a settle, or a discard, whose checksum is wrong.

Its numbers may be other ones. So what it names is out no longer, and its consumer gets the credit back, as the broker's
did: what was delivered later stays right. But it is not gone: it comes back at the restart, unless a later command of
that consumer names it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from queue_index.quorum.commands import ConsumerKey
from queue_index.quorum.consumers import Consumer, Consumers
from queue_index.quorum.deliveries import Deliveries
from queue_index.quorum.messages import Messages
from queue_index.quorum.ready_queues import QueuedMessage
from queue_index.quorum.timed_messages import TimedMessages

MAX_CHANGED: Final = 3
"""Bytes in which a damaged name may differ from the one that it was."""


class Doubtful:
    """Those messages, by consumer and number."""

    def __init__(self) -> None:
        self._messages: dict[tuple[Consumer, int], QueuedMessage] = {}

    def __bool__(self) -> bool:
        return bool(self._messages)

    def finish(
        self, consumer: Consumer, msg_ids: Sequence[int], deliveries: Deliveries, ts_ms: int
    ) -> list[QueuedMessage]:
        """What the command takes from the consumer: for a number that is not out, the oldest that is."""
        named = [msg_id for msg_id in dict.fromkeys(msg_ids) if msg_id in consumer.held]
        others = [msg_id for msg_id in consumer.held if msg_id not in set(named)]
        taken = named + others[: max(len(msg_ids), 1) - len(named)]
        messages = [consumer.held[msg_id] for msg_id in taken]
        self._messages.update(((consumer, msg_id), message) for msg_id, message in zip(taken, messages, strict=True))
        deliveries.finish(consumer, taken, ts_ms)
        return messages

    def recall(self, consumer: Consumer, msg_ids: Sequence[int], messages: Messages, ts_ms: int) -> None:
        """A sound command names these: those that are doubtful are out as before."""
        for msg_id in msg_ids:
            message = self._messages.pop((consumer, msg_id), None)
            if message is not None:
                consumer.held = dict(sorted({**consumer.held, msg_id: message}.items()))
                messages.out_count += 1
                messages.out_bytes += message.size
                if isinstance(messages, TimedMessages):
                    consumer.deadlines[msg_id] = ts_ms + consumer.timeout_ms

    def come_back(self, messages: Messages) -> None:
        """At the restart: behind all that returns."""
        for message in self._messages.values():
            again = message._replace(
                delivery_count=message.delivery_count + 1, acquired_count=message.acquired_count + 1
            )
            messages.returns.append(again)
            messages.ready_bytes += again.size
        self._messages.clear()


def consumer_of(consumers: Consumers, key: ConsumerKey, msg_ids: Sequence[int]) -> Consumer | None:
    """Whose command it was, where nobody has that name: of those that hold all these, or anything, the only one, or
    the one whose name is nearly this."""
    holding = [consumer for consumer in consumers if consumer.held]
    fitting = [consumer for consumer in holding if all(msg_id in consumer.held for msg_id in msg_ids)]
    for candidates in (fitting, holding):
        if len(candidates) == 1:
            return candidates[0]
        if isinstance(key, tuple):
            names = {b"\0".join(consumer.consumer_id): consumer for consumer in candidates}
            name = nearest(b"\0".join(key), names)
            if name is not None:
                return names[name]
    return None


def nearest(value: bytes, known: Iterable[bytes]) -> bytes | None:
    """The one of these that differs in the fewest bytes; ``None``: there are several, or all differ in too many."""
    changes = sorted((sum(map(int.__ne__, value, one)), one) for one in known if len(one) == len(value))
    if not changes or changes[0][0] > MAX_CHANGED or (len(changes) > 1 and changes[1][0] == changes[0][0]):
        return None
    return changes[0][1]
