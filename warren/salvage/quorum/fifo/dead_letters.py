"""Dead letters of a queue that forwards them *at least once*: they stay in the queue's state until they have arrived.

A worker of the broker forwards them. It is a consumer of its own: it holds a limited number at a time, under numbers of
its own, and settles what has arrived. A new worker first gets what the old one held.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import attrs

from warren.salvage.quorum.fifo.commands import Pid
from warren.salvage.quorum.fifo.ready_queues import QueuedMessage


class DeadLetter(NamedTuple):
    """A message on its way out."""

    reason: str
    """``rejected``, ``expired`` or ``delivery_limit``."""
    message: QueuedMessage


@attrs.define(eq=False, repr=False)
class DeadLetters:
    """Dead letters that wait, and those that the worker holds."""

    waiting: deque[DeadLetter] = attrs.Factory(deque)
    held: dict[int, DeadLetter] = attrs.Factory(dict)
    payload_bytes: int = 0
    worker: Pid | None = None
    prefetch: int = 0
    next_msg_id: int = 0

    def __len__(self) -> int:
        return len(self.waiting) + len(self.held)

    def __iter__(self) -> Iterator[DeadLetter]:
        """In the order in which a new worker would get them."""
        for msg_id in sorted(self.held):
            yield self.held[msg_id]
        yield from self.waiting

    def add(self, reason: str, message: QueuedMessage) -> None:
        plain = QueuedMessage(message.index, message.size)  # its counts and its expiry no longer matter
        self.waiting.append(DeadLetter(reason, plain))
        self.payload_bytes += message.size

    def hand_out(self) -> None:
        """Deliver to the worker as many as it may hold."""
        if self.worker is None:
            return
        while self.waiting and len(self.held) < self.prefetch:
            self.held[self.next_msg_id] = self.waiting.popleft()
            self.next_msg_id += 1

    def settle(self, msg_ids: Sequence[int]) -> None:
        for msg_id in msg_ids:
            letter = self.held.pop(msg_id, None)
            if letter is not None:
                self.payload_bytes -= letter.message.size

    def new_worker(self, worker: Pid, prefetch: int) -> None:
        self.waiting.extendleft(self.held[msg_id] for msg_id in sorted(self.held, reverse=True))
        self.held = {}
        self.worker, self.prefetch, self.next_msg_id = worker, prefetch, 0

    def purge(self) -> None:
        """Remove all of them; the worker stays."""
        self.waiting.clear()
        self.held.clear()
        self.payload_bytes = 0

    def check_invariants(self) -> None:
        """Raises :class:`RuntimeError` if an invariant does not hold."""
        if self.payload_bytes != sum(letter.message.size for letter in self):
            raise RuntimeError("the dead letters' bytes do not add up")
        if any(msg_id >= self.next_msg_id for msg_id in self.held):
            raise RuntimeError("the worker holds a number that was not assigned")
        if self.worker is None and self.held:
            raise RuntimeError("dead letters are held without a worker")
