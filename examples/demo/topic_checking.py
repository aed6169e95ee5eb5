"""What a group must have read of the topic, and what must be found by key; and whether it was.

*A group* has read every message once, whichever of its readers had it; of each queue only one reader, in the order of
the queue. A message is right if key and body are what its number makes of them, and if it lies where its confirm said.

*An order* is some messages with one key, far from each other. They go to one queue, and are found by the key, the
newest first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import attrs

from examples.demo.checking import Faults
from examples.demo.numbered import body_of, number_of
from warren.values.topic_record import StoredMessage

MESSAGES_OF_AN_ORDER: Final = 3
"""At least."""

QueuePosition = tuple[int, int]
"""Queue, and queue offset."""


@attrs.frozen
class Orders:
    """``total`` numbered messages; which of them belong together."""

    total: int

    @property
    def count(self) -> int:
        """How many orders there are."""
        return max(1, self.total // MESSAGES_OF_AN_ORDER)

    def key(self, number: int) -> str:
        """That of message ``number``."""
        return f"order-{number % self.count:07d}"

    def numbers(self, order: int) -> range:
        """The messages of an order, the newest first."""
        return range(order, self.total, self.count)[::-1]


@attrs.define
class GroupCheck:
    """Takes what the readers of a group read; :meth:`finish` when there is no more."""

    group: str
    orders: Orders
    places: Sequence[QueuePosition]
    """Where each message is, as its confirm said."""
    damaged: Faults = attrs.field(factory=Faults)
    """Not what was appended, or not where."""
    misplaced: Faults = attrs.field(factory=Faults)
    """Out of the queue's order, read by two readers, or twice."""
    lost: Faults = attrs.field(factory=Faults)
    read: int = 0
    _seen: bytearray = attrs.field(init=False)
    _next: dict[int, int] = attrs.field(factory=dict)
    """By queue the queue offset that is due."""
    _owners: dict[int, str] = attrs.field(factory=dict)
    """By queue who reads it."""

    def __attrs_post_init__(self) -> None:
        self._seen = bytearray(self.orders.total)

    def take(self, reader: str, records: Sequence[StoredMessage]) -> None:
        """Check messages that a reader read in this order."""
        self.read += len(records)
        for record in records:
            number = right_number(record, self.orders, self.places)
            if number is None:
                self.damaged.add(f"{self.group}: what is at {record.queue_offset:,} of queue {record.queue_id}")
                continue
            queue_id, queue_offset = self.places[number]
            due = self._next.get(queue_id, 0)
            if self._seen[number] or queue_offset < due or self._owners.setdefault(queue_id, reader) != reader:
                self.misplaced.add(f"{self.group}: message {number:,} came to {reader} where {due:,} was due")
            self._seen[number] = 1
            self._next[queue_id] = max(due, queue_offset + 1)

    def finish(self) -> None:
        """Nothing more comes: what was not read is lost."""
        missing = self._seen.count(0)
        if missing:
            self.lost.add(f"{self.group}: {missing:,} messages, the first is {self._seen.index(0):,}", missing)


def right_number(record: StoredMessage, orders: Orders, places: Sequence[QueuePosition]) -> int | None:
    """The number of a message that is, to the last byte, what was appended where it lies; ``None`` for another one."""
    number = number_of(record.body)
    if number is None or number >= orders.total or places[number] != (record.queue_id, record.queue_offset):
        return None
    return number if record.body == body_of(number) and record.keys == [orders.key(number)] else None


def compare_found(
    order: int, found: Sequence[StoredMessage], orders: Orders, places: Sequence[QueuePosition], faults: Faults
) -> None:
    """Add to ``faults`` what was not found of an order, or should not have been."""
    expected = list(orders.numbers(order))
    numbers = [right_number(record, orders, places) for record in found]
    if numbers != expected:
        faults.add(f"{orders.key(order)}: {numbers} in place of {expected}")


def compare_lags(group: str, lags: Mapping[int, int], faults: Faults) -> None:
    """Add to ``faults`` what a group has not finished, by its own account."""
    for queue_id, lag in lags.items():
        if lag:
            faults.add(f"{group} is {lag:,} messages behind in queue {queue_id}", lag)
