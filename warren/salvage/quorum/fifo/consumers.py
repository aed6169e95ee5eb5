"""A queue's consumers: what each holds, and how much more it may get.

A consumer has *credit*, a number of messages. A delivery takes one; with ``simple_prefetch`` it comes back with each
message that is settled or returned, with ``credited`` only by the command ``credit``. A consumer that lives *once* (a
basic.get, a cancelled one) gets no credit back, and is removed when it holds nothing and has no credit left.

The broker numbers the deliveries to a consumer from 0: its *msg_ids*. The messages that a consumer holds are in this
order.

From 4.3 on it holds each message until a *deadline*. Then the message returns, and the consumer is *timed out*: it gets
nothing until it has settled or returned all messages that were taken from it. The status before a time-out, or before
its node was away (up, cancelled, quiescing), is its *inner* status.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import attrs

from warren.salvage.quorum.fifo.commands import ConsumerId, ConsumerKey, Pid
from warren.salvage.quorum.fifo.ready_queues import QueuedMessage

UP: Final = "up"
SUSPECTED: Final = "suspected_down"
"""Its node is away; it may come back."""
CANCELLED: Final = "cancelled"
QUIESCING: Final = "quiescing"
"""From 4.0 on: the single active one, to be replaced when it has finished; one of a higher priority waits."""

TIMED_OUT: Final = "timeout"
"""From 4.3 on: it held a message for too long; until it has answered for what was taken from it, it gets nothing."""

_SERIALS: Final = 1 << 32


@attrs.define(eq=False, repr=False)
class Consumer:
    """A consumer, or a basic.get."""

    key: ConsumerKey
    tag: bytes
    pid: Pid
    once: bool
    credited: bool
    cap: int | None
    """Its credit does not rise above it; ``None`` or 0: no limit."""
    priority: int
    credit: int
    delivery_count: int = 0
    """Deliveries so far; if ``serial``, modulo 2**32 and from the consumer's own start."""
    serial: bool = False
    """Whether the count is the consumer's own (4.0's ``{credited, N}``); from 4.3 on all count so."""
    prefetch: int | None = None
    """As requested, 0: no limit; ``None``: unknown."""
    status: str = UP
    next_msg_id: int = 0
    held: dict[int, QueuedMessage] = attrs.field(factory=dict)
    inner: str | None = None
    """From 4.3 on: the status before a suspicion or a time-out; ``None`` without either."""
    timeout_ms: int = 0
    """From 4.3 on: how long it may hold a message."""
    deadlines: dict[int, int] = attrs.field(factory=dict)
    """From 4.3 on: in milliseconds since 1970, by msg_id."""
    timed_out: list[int] = attrs.field(factory=list)
    """From 4.3 on: msg_ids that were taken from it, and that it has not settled or returned yet."""

    @property
    def consumer_id(self) -> ConsumerId:
        return self.tag, self.pid

    def take_on(self, other: Consumer) -> None:
        """Take over the settings of another consumer, attached under the same key."""
        self.once, self.credited, self.cap, self.serial = other.once, other.credited, other.cap, other.serial
        self.priority, self.prefetch = other.priority, other.prefetch

    def give_back(self, count: int) -> None:
        """Give back the credit of ``count`` finished messages."""
        if self.once or self.credited:
            return
        self.credit += count
        if self.cap and self.credit > self.cap:
            self.credit = self.cap

    def grant(self, credit: int, delivery_count: int) -> None:
        """Apply the command ``credit``, less the deliveries since the consumer sent it."""
        more = delivery_count + credit - self.delivery_count
        if self.serial:
            more = (more + _SERIALS // 2) % _SERIALS - _SERIALS // 2
        self.credit = max(0, more)

    def drain(self) -> None:
        """Count the remaining credit as used."""
        self.delivery_count += self.credit
        if self.serial:
            self.delivery_count %= _SERIALS
        self.credit = 0

    def suspect(self) -> None:
        """Its node is away, in 4.3. The broker forgets the inner status if this happens twice."""
        if self.status == SUSPECTED and self.inner is not None:
            self.inner = None
        else:
            self.inner = self.status if self.inner is None else self.inner
            self.status = SUSPECTED

    def clear(self) -> None:
        """Its node is back, in 4.3."""
        if self.inner is not None and self.timed_out:
            self.status = TIMED_OUT
        else:
            self.status, self.inner = self.inner or UP, None

    def answer_for(self, msg_ids: Sequence[int]) -> None:
        """Count messages that were taken from it as answered; after the last one the inner status is restored."""
        if self.status != TIMED_OUT:
            return
        for msg_id in msg_ids:
            if msg_id in self.timed_out:
                self.timed_out.remove(msg_id)
        if not self.timed_out:
            self.status, self.inner = self.inner or UP, None

    def hold(self, message: QueuedMessage) -> None:
        self.held[self.next_msg_id] = message
        self.next_msg_id += 1
        self.credit -= 1
        self.delivery_count += 1
        if self.serial:
            self.delivery_count %= _SERIALS


def key_order(key: ConsumerKey) -> tuple[int, ConsumerKey]:
    """Erlang's order of keys: numbers before pairs."""
    return (0, key) if isinstance(key, int) else (1, key)


@attrs.define(eq=False, repr=False)
class Consumers:
    """Consumers by key and by process."""

    by_key: dict[ConsumerKey, Consumer] = attrs.Factory(dict)
    _by_pid: dict[Pid, dict[ConsumerKey, Consumer]] = attrs.Factory(dict)

    def __len__(self) -> int:
        return len(self.by_key)

    def __iter__(self) -> Iterator[Consumer]:
        """In the order of keys."""
        return iter([self.by_key[key] for key in sorted(self.by_key, key=key_order)])

    def pids(self) -> Iterator[Pid]:
        return iter(self._by_pid)

    def add(self, consumer: Consumer) -> None:
        """Add a consumer, or replace the one with its key."""
        self.by_key[consumer.key] = consumer
        self._by_pid.setdefault(consumer.pid, {})[consumer.key] = consumer

    def remove(self, consumer: Consumer) -> None:
        """Remove a consumer if it is present."""
        if self.by_key.pop(consumer.key, None) is None:
            return
        consumers = self._by_pid[consumer.pid]
        del consumers[consumer.key]
        if not consumers:
            del self._by_pid[consumer.pid]

    def of_pid(self, pid: Pid) -> list[Consumer]:
        """In the order of keys."""
        consumers = self._by_pid.get(pid, {})
        return [consumers[key] for key in sorted(consumers, key=key_order)]

    def find(self, key: ConsumerKey) -> Consumer | None:
        """The consumer with this key; one that has a number is also found by its tag and pid."""
        consumer = self.by_key.get(key)
        if consumer is None and isinstance(key, tuple):
            return next(
                (candidate for candidate in self._by_pid.get(key[1], {}).values() if candidate.tag == key[0]), None
            )
        return consumer

    def check_invariants(self) -> None:
        """Raises :class:`RuntimeError` if an invariant does not hold."""
        if sum(map(len, self._by_pid.values())) != len(self.by_key) or not all(self._by_pid.values()):
            raise RuntimeError("consumers by key and by process are not the same")
        for key, consumer in self.by_key.items():
            if consumer.key != key or self._by_pid.get(consumer.pid, {}).get(key) is not consumer:
                raise RuntimeError(f"consumer {key!r} is in the wrong place")
            check_consumer(consumer)


def check_consumer(consumer: Consumer) -> None:
    """Raises :class:`RuntimeError` if a consumer is not consistent."""
    if consumer.credit < 0:
        raise RuntimeError(f"consumer {consumer.key!r} has a credit of {consumer.credit}")
    msg_ids = list(consumer.held)
    if msg_ids != sorted(msg_ids) or (msg_ids and msg_ids[-1] >= consumer.next_msg_id):
        raise RuntimeError(f"consumer {consumer.key!r} holds numbers out of order, or not given yet: {msg_ids}")
    if consumer.deadlines and consumer.deadlines.keys() != consumer.held.keys():
        raise RuntimeError(
            f"consumer {consumer.key!r} has deadlines for what it does not hold, or none for what it does"
        )
