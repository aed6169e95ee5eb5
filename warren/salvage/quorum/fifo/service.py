"""The service queue of consumers, and the consumers that wait to become the single active one.

Consumers that are up and have credit are in the service queue, by priority and then in turns: a consumer that gets a
message goes to the end of its priority's row if it has credit left. One that lost its credit otherwise, or left, is
removed when its turn comes; a consumer that comes back in the meantime keeps its old place.

With a *single active consumer* only one of them is among the consumers proper (besides cancelled ones that still hold
messages); the others wait. Up to 3.13 the next active one is the first that is up. From 4.0 on they wait in the order
of their priorities, then credit, then age, and one with a higher priority takes over: at once if the active one holds
nothing, else when it has finished (it is *quiescing* until then).
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable, Iterator

import attrs

from warren.salvage.quorum.fifo.commands import ConsumerId, ConsumerKey, Pid
from warren.salvage.quorum.fifo.consumers import (
    CANCELLED,
    QUIESCING,
    SUSPECTED,
    UP,
    Consumer,
    Consumers,
    check_consumer,
    key_order,
)


@attrs.define(eq=False, repr=False)
class ServiceQueue:
    """Keys of consumers, each once: highest priority first, then in the order of arrival."""

    _rows: dict[int, deque[ConsumerKey]] = attrs.Factory(dict)
    """Those that are not empty."""
    _priorities: list[int] = attrs.Factory(list)
    """Of the rows, ascending."""
    _members: set[ConsumerKey] = attrs.Factory(set)

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[tuple[int, ConsumerKey]]:
        """With their priorities, in the order of their turns."""
        for priority in reversed(self._priorities):
            for key in self._rows[priority]:
                yield priority, key

    def append(self, key: ConsumerKey, priority: int) -> None:
        """Append a key, unless it is in the queue already, at any priority."""
        if key in self._members:
            return
        self._members.add(key)
        row = self._rows.get(priority)
        if row is None:
            row = self._rows[priority] = deque()
            insort(self._priorities, priority)
        row.append(key)

    def first(self) -> ConsumerKey | None:
        return self._rows[self._priorities[-1]][0] if self._priorities else None

    def drop_first(self) -> None:
        priority = self._priorities[-1]
        row = self._rows[priority]
        self._members.discard(row.popleft())
        if not row:
            del self._rows[priority]
            self._priorities.pop()

    def check_invariants(self) -> None:
        """Raises :class:`RuntimeError` if an invariant does not hold."""
        keys = [key for _, key in self]
        if len(keys) != len(self._members) or set(keys) != self._members:
            raise RuntimeError("a consumer stands twice in the service queue, or is not known to stand there")
        if self._priorities != sorted(self._rows) or not all(self._rows.values()):
            raise RuntimeError("the service queue's rows are not those of its priorities")


@attrs.define(eq=False, repr=False, kw_only=True)
class Service:
    """The consumers, those that wait, and the order of their turns."""

    consumers: Consumers = attrs.Factory(Consumers)
    waiting: list[Consumer] = attrs.Factory(list)
    """Only with a single active consumer; the next one first."""
    queue: ServiceQueue = attrs.Factory(ServiceQueue)
    single_active: bool
    ranked: bool
    """Whether waiting consumers are in 4.0's order."""
    waits_for_suspected: bool
    """4.3: one whose node is away stays the active one for a time."""

    def pids(self) -> Iterator[Pid]:
        """Of all consumers, in no order, some more than once."""
        yield from self.consumers.pids()
        for consumer in self.waiting:
            yield consumer.pid

    def key_of(self, consumer_id: ConsumerId) -> ConsumerKey | None:
        """The key of a consumer, perhaps a waiting one, with this tag and pid."""
        consumer = self.consumers.find(consumer_id)
        if consumer is None:
            consumer = next((candidate for candidate in self.waiting if candidate.consumer_id == consumer_id), None)
        return None if consumer is None else consumer.key

    def attach(self, consumer: Consumer) -> None:
        """Add a consumer to those that are served; it may be one already."""
        self.consumers.add(consumer)
        self.refresh(consumer)

    def refresh(self, consumer: Consumer) -> None:
        """Remove, move or enqueue a consumer after its messages, its credit or its status have changed."""
        if consumer.once and not consumer.credit:
            if not consumer.held:
                self.consumers.remove(consumer)
        elif consumer.status == QUIESCING and not consumer.held:
            consumer.status = UP
            self.consumers.remove(consumer)
            self.add_waiting(consumer)
        else:
            self.enqueue(consumer)

    def enqueue(self, consumer: Consumer) -> None:
        """Give a consumer a turn if it is up and has credit."""
        if consumer.credit and consumer.status == UP:
            self.queue.append(consumer.key, consumer.priority)

    def active(self) -> Consumer | None:
        """The single active one, also if it is about to be replaced."""
        return next((consumer for consumer in self.consumers if self._is_active(consumer)), None)

    def _is_active(self, consumer: Consumer) -> bool:
        suspected = self.waits_for_suspected and consumer.status == SUSPECTED
        return (consumer.inner if suspected else consumer.status) in (UP, QUIESCING)

    def add_waiting(self, consumer: Consumer, *, first: bool = False) -> None:
        """If ranked, replace a waiting consumer with the same key; if not, ``first`` puts it first."""
        if self.ranked:
            self.waiting = [waiting for waiting in self.waiting if waiting.key != consumer.key]
            self.waiting.append(consumer)
            self.rank_waiting()
        else:
            self.waiting.insert(0 if first else len(self.waiting), consumer)

    def rank_waiting(self) -> None:
        if self.ranked:
            self.waiting.sort(key=_rank)

    def take_waiting(self, key: ConsumerKey) -> Consumer | None:
        """Remove and return the first waiting consumer with this key."""
        for position, consumer in enumerate(self.waiting):
            if consumer.key == key:
                return self.waiting.pop(position)
        return None

    def forget_waiting(self, pid: Pid) -> None:
        self.waiting = [consumer for consumer in self.waiting if consumer.pid != pid]

    def mark_waiting(self, is_meant: Callable[[Consumer], bool], mark: Callable[[Consumer], None]) -> None:
        """Mark waiting consumers; cancelled ones are removed in any case."""
        self.waiting = [consumer for consumer in self.waiting if consumer.status != CANCELLED]
        for consumer in self.waiting:
            if is_meant(consumer):
                mark(consumer)
        self.rank_waiting()

    def activate_next(self) -> None:
        """With a single active consumer, activate the next one if possible."""
        if not self.single_active or not self.waiting:
            return
        candidate = self._next_waiting()
        if candidate is None:
            return
        active = self.active()
        if active is None:
            self._activate(candidate)
        elif self.ranked and candidate.priority > active.priority:
            if active.held:
                active.status, active.inner = QUIESCING, None
            else:
                self._activate(candidate)
                self.consumers.remove(active)
                self.add_waiting(active)

    def _next_waiting(self) -> Consumer | None:
        if self.ranked:
            return self.waiting[0] if self.waiting[0].status == UP else None
        return next((consumer for consumer in self.waiting if consumer.status == UP), None)

    def _activate(self, consumer: Consumer) -> None:
        if self.take_waiting(consumer.key) is not consumer:  # up to 3.13 it may wait twice: the other one went
            consumer = attrs.evolve(consumer, held={}, deadlines={}, timed_out=[])
        existing = self.consumers.by_key.get(consumer.key)
        if existing is not None:  # cancelled, and attached again before it had finished
            existing.take_on(consumer)
            consumer = existing
        self.consumers.add(consumer)
        self.enqueue(consumer)

    def check_invariants(self) -> None:
        """Raises :class:`RuntimeError` if an invariant does not hold."""
        self.consumers.check_invariants()
        self.queue.check_invariants()
        if not self.single_active and not self.waits_for_suspected:
            turns = {key for _, key in self.queue}
            for consumer in self.consumers:
                if consumer.credit and consumer.status == UP and consumer.key not in turns:
                    raise RuntimeError(f"consumer {consumer.key!r} has credit and no turn")
        for consumer in self.waiting:
            check_consumer(consumer)
            if consumer.held:
                raise RuntimeError(f"consumer {consumer.key!r} waits and holds messages")


def _rank(consumer: Consumer) -> tuple[object, ...]:
    if consumer.status != UP:
        return (1,)
    return 0, -consumer.priority, -consumer.credit, key_order(consumer.key)
