"""Which queue of its topic a message goes to.

*By key*: Java's hash of the key, modulo the number of queues, as RocketMQ's ``SelectMessageQueueByHash`` does for a
string. So a key always has the same queue (as long as the number of queues stays the same), in every process, and also
for a Java producer that selects by key. *By a callable*, which gets the number of the message in its batch. *To a
queue* that is named. Or *in turn*: the messages of a batch stay together, up to :data:`TURN_MESSAGES`, and go to the
next queue, so that a batch is one write and not one for each queue.

Messages of one batch that go to one queue keep their order. Invariant: the queue whose turn it is exists.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Final

import attrs
import numpy as np

from warren.actors.engines.topics.errors import QueueRangeError, check_queues
from warren.storage.java_hash import hash_many, java_hash

TURN_MESSAGES: Final = 1024
"""How many messages of a batch go to one queue before the next queue's turn."""


@attrs.frozen
class Part:
    """The messages of a batch that go to one queue."""

    queue_id: int
    positions: Sequence[int]
    """Their numbers in the batch, ascending; a ``range`` if they are consecutive."""

    def of(self, column: Sequence[bytes]) -> Sequence[bytes]:
        """Select this queue's values from a column of the batch (bodies, properties)."""
        if isinstance(self.positions, range):
            whole = self.positions.start == 0 and self.positions.stop == len(column)
            return column if whole else column[self.positions.start : self.positions.stop]
        return [column[position] for position in self.positions]


def queue_of_key(key: str, queues: int) -> int:
    """Return the queue_id of a key, for a topic with ``queues`` queues."""
    return abs(java_hash(key)) % queues


def queues_of_keys(keys: Sequence[str], queues: int) -> Sequence[int]:
    """:func:`queue_of_key` of many keys in one go."""
    if len(keys) < _FEW:
        return [queue_of_key(key, queues) for key in keys]
    try:
        hashes = hash_many([key.encode("utf-8") for key in keys])
    except UnicodeEncodeError:  # half a surrogate pair, which is a string in Java, but not UTF-8
        return [queue_of_key(key, queues) for key in keys]
    queue_ids: list[int] = (np.abs(hashes.view(np.int32).astype(np.int64)) % queues).tolist()
    return queue_ids


_FEW = 8
"""Below this a loop is faster than a column."""


@attrs.define
class Router:
    """Chooses queues for the messages of one topic."""

    queues: int = attrs.field(validator=check_queues)
    """The number of the topic's queues; may grow."""
    next_in_turn: int = 0

    def to_queue(self, count: int, queue_id: int) -> list[Part]:
        """Route ``count`` messages to the given queue; raises :class:`QueueRangeError`."""
        return [Part(self._checked(queue_id), range(count))] if count else []

    def in_turn(self, count: int) -> list[Part]:
        """Route ``count`` messages to the queue whose turn it is, and, if they are many, to the next ones."""
        starts = range(0, count, TURN_MESSAGES)
        return [Part(self._take_turn(), range(start, min(start + TURN_MESSAGES, count))) for start in starts]

    def by_keys(self, keys: Sequence[str]) -> list[Part]:
        """Route one message for each key to the key's queue."""
        return self._parts(queues_of_keys(keys, self.queues))

    def by_choice(self, count: int, choose: Callable[[int], int]) -> list[Part]:
        """Route each of ``count`` messages to the queue that ``choose`` returns for its number; raises
        :class:`QueueRangeError`."""
        return self._parts([self._checked(choose(number)) for number in range(count)])

    def one_in_turn(self) -> int:
        """The queue_id for one message, in turn."""
        return self._take_turn()

    def _take_turn(self) -> int:
        queue_id = self.next_in_turn % self.queues
        self.next_in_turn = (queue_id + 1) % self.queues
        return queue_id

    def _checked(self, queue_id: int) -> int:
        try:
            number = operator.index(queue_id)  # also accepts NumPy integers
        except TypeError:
            number = -1
        if not 0 <= number < self.queues:
            raise QueueRangeError(f"there is no queue {queue_id!r:.100}: the topic has {self.queues}")
        return number

    @staticmethod
    def _parts(chosen: Sequence[int]) -> list[Part]:
        """Parts in the order of their queues."""
        if not chosen:
            return []
        if len(set(chosen)) == 1:
            return [Part(chosen[0], range(len(chosen)))]
        positions: dict[int, list[int]] = {}
        for position, queue_id in enumerate(chosen):
            positions.setdefault(queue_id, []).append(position)
        return [Part(queue_id, _as_range(indexes)) for queue_id, indexes in sorted(positions.items())]

    def check_invariants(self) -> None:
        """Raise ``RuntimeError`` if the queue whose turn is next does not exist."""
        if self.queues < 1 or not 0 <= self.next_in_turn < self.queues:
            raise RuntimeError(f"queue {self.next_in_turn} of {self.queues} is next")


def _as_range(positions: list[int]) -> Sequence[int]:
    first, last = positions[0], positions[-1]
    return range(first, last + 1) if last - first + 1 == len(positions) else positions
