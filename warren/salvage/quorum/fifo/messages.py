"""A queue's messages that are not at a consumer, and the counts of their bytes.

What was *returned* is delivered first, in the order in which it came back; then the others
(:mod:`warren.salvage.quorum.fifo.ready_queues`). What is *delayed* (:mod:`warren.salvage.quorum.fifo.delayed`) is not
ready, but counts for the queue's limits. Messages leave at the head: to a consumer, because they have expired, or
because the queue is over its limits; the last two as dead letters, if those are sent on at all. Expiry is checked when
a message is the head, never before: an expired message may wait for one before it that has not expired.

In 4.3 the delivery limit counts failed deliveries, not acquisitions. If the head has expired, what has expired at the
head of the returns and of each priority goes with it; a timer does the same even if the head has not, and brings back
the delayed messages whose time has come. A purge takes delayed messages and dead letters, too.

During a restart (``restart_losses`` is set) nothing is lost: what a broker would send away is put aside, with its
place, and put back at the end.

Dead letters of a queue that forwards them *at least once* stay in the queue's state until they have arrived. A worker
of the broker forwards them. It is a consumer of its own: it holds a limited number at a time, under numbers of its own,
and settles what has arrived. A new worker first gets what the old one held.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import attrs

from warren.salvage.quorum.fifo.commands import Pid
from warren.salvage.quorum.fifo.consumers import Consumer
from warren.salvage.quorum.fifo.delayed import Delayed
from warren.salvage.quorum.fifo.ready_queues import ManyQueues, QueuedMessage, ReadyQueue, has_expired
from warren.salvage.quorum.fifo.rules import QueueSettings, Rules


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


@attrs.define(eq=False, repr=False)
class Messages:
    """Ready messages, dead letters, and the counts of messages that are out."""

    settings: QueueSettings
    rules: Rules
    now_ms: int = 0
    """Milliseconds since 1970, of the command that is being applied, or was last: there is no other clock."""
    returns: deque[QueuedMessage] = attrs.Factory(deque)
    ready: ReadyQueue = attrs.field(init=False)
    dead_letters: DeadLetters = attrs.Factory(DeadLetters)
    """On their way to another queue, neither ready nor out; the log is all that still has them."""
    delayed: Delayed = attrs.Factory(Delayed)
    """Only from 4.3 on."""
    ready_bytes: int = 0
    """Including returned and delayed messages."""
    out_bytes: int = 0
    out_count: int = 0
    restart_losses: RestartLosses | None = None
    past_limit: dict[int, int] = attrs.Factory(dict)
    """The delivery counts, by index, of messages that a restart sends away: they are past the delivery limit."""
    past_length: set[int] = attrs.Factory(set)
    """Indexes of messages that a restart drops at the head, because returned ones make the queue too long."""

    def __attrs_post_init__(self) -> None:
        self.ready = self.rules.ready_queue()

    def __len__(self) -> int:
        return len(self.returns) + len(self.ready)

    def __iter__(self) -> Iterator[QueuedMessage]:
        """In the order in which they would be delivered."""
        yield from self.returns
        yield from self.ready

    def add(self, message: QueuedMessage, priority: int | None) -> None:
        self.ready.append(message, priority)
        self.ready_bytes += message.size

    def add_later(self, message: QueuedMessage, ready_ms: int) -> None:
        """Version 9: delay a message that is published with a delivery time."""
        self.delayed.add(ready_ms, message)
        self.ready_bytes += message.size

    def head(self) -> QueuedMessage | None:
        """The next message, after expired messages at the head are removed."""
        returns, ready = self.returns, self.ready
        while (head := returns[0] if returns else ready.head()) is not None:
            if head.expiry_ms is None or self.now_ms < head.expiry_ms or self.restart_losses is not None:
                return head
            if self.rules.has_timeouts:
                self._expire_heads()
            else:
                self._drop_head()
                self.to_dead_letters("expired", head)
        return None

    def _expire_heads(self) -> None:
        """4.3's: remove what has expired at the head of the returns and of each priority."""
        expired: list[QueuedMessage] = []
        while self.returns and has_expired(self.returns[0], self.now_ms):
            expired.append(self.returns.popleft())
        if isinstance(self.ready, ManyQueues):
            expired += self.ready.take_expired(self.now_ms)
        for message in expired:
            self.ready_bytes -= message.size
            self.to_dead_letters("expired", message)

    def time_passes(self) -> None:
        """The timer's command; it does nothing up to 4.2, where messages expire only at the head."""
        if self.rules.has_timeouts:
            self.returns.extend(self.delayed.take_due(self.now_ms))
            self._expire_heads()

    def hand_out(self, message: QueuedMessage, consumer: Consumer) -> None:
        """Deliver the head to a consumer."""
        if self.returns:
            self.returns.popleft()
        else:
            self.ready.take()
        self._go_out(message, consumer)

    def _go_out(self, message: QueuedMessage, consumer: Consumer) -> None:
        size = message.size
        self.ready_bytes -= size
        self.out_bytes += size
        self.out_count += 1
        consumer.hold(message)
        if self.rules.has_timeouts:
            consumer.deadlines[consumer.next_msg_id - 1] = self.now_ms + consumer.timeout_ms

    def finish(self, consumer: Consumer, msg_id: int) -> bool:
        """Remove a message from those that are out; return whether it was there."""
        message = consumer.held.pop(msg_id, None)
        if message is None:
            return False
        self.out_bytes -= message.size
        self.out_count -= 1
        consumer.deadlines.pop(msg_id, None)
        return True

    def is_past_limit(self, message: QueuedMessage) -> bool:
        limit = self.settings.delivery_limit
        if limit is None:
            return False
        return (message.delivery_count if self.rules.has_timeouts else message.acquired_count) > limit

    def send_away(self, message: QueuedMessage) -> None:
        """Send away a message that is past the delivery limit."""
        if self.restart_losses is None:
            self.to_dead_letters("delivery_limit", message)
        else:
            self.past_limit[message.index] = message.delivery_count
            self.restart_losses.keep_in_place(message, self.returns)

    def give_back(self, message: QueuedMessage) -> None:
        """Append a message to the returns."""
        self._come_back(message)
        self.returns.append(message)

    def give_back_later(self, message: QueuedMessage, ready_ms: int, token: bytes | None) -> None:
        """4.3's: delay a returned message."""
        self._come_back(message)
        self.delayed.add(ready_ms, message, token, shared=self.rules.has_delivery_times)

    def assign(self, messages: list[QueuedMessage], consumer: Consumer) -> None:
        """Deliver delayed messages to the consumer that asked for them."""
        for message in messages:
            self._go_out(message, consumer)

    def requeue(self, message: QueuedMessage) -> None:
        """Append a message to the queue."""
        self._come_back(message)
        self.ready.append(message, None)

    def _come_back(self, message: QueuedMessage) -> None:
        self.out_count -= 1
        self.out_bytes -= message.size
        self.ready_bytes += message.size

    def to_dead_letters(self, reason: str, message: QueuedMessage) -> None:
        """Keep it if dead letters are sent at least once; else the broker has published it elsewhere."""
        if self.settings.dead_lettering == "at_least_once":
            self.dead_letters.add(reason, message)

    def apply_limits(self) -> None:
        """Drop heads as long as the queue is over its limits; they are not kept as dead letters."""
        settings, letters = self.settings, self.dead_letters
        if not settings.drops_head or not settings.has_limits:
            return
        max_length, max_bytes = settings.max_length, settings.max_bytes
        other_count = len(letters) + len(self.delayed)
        while len(self) and (
            (max_length is not None and len(self) + other_count > max_length)
            or (max_bytes is not None and self.ready_bytes + letters.payload_bytes > max_bytes)
        ):
            message = self._drop_head()
            if self.restart_losses is not None:
                self.past_length.add(message.index)
                self.restart_losses.heads.append(message)

    def _drop_head(self) -> QueuedMessage:
        message = self.returns.popleft() if self.returns else self.ready.take()
        self.ready_bytes -= message.size
        return message

    def purge(self) -> None:
        if self.rules.has_timeouts:
            self.delayed = Delayed()
            self.dead_letters.purge()
        self.returns.clear()
        self.ready = self.rules.ready_queue()
        self.ready_bytes = sum(message.size for message in self.delayed)

    def keep(self) -> None:
        """From here on keep what a broker would lose."""
        self.restart_losses = RestartLosses()

    def put_back(self) -> None:
        """Put what was kept back in its place."""
        if self.restart_losses is not None:
            self.returns = self.restart_losses.merged(self.returns)
            self.ready_bytes += self.restart_losses.payload_bytes
            self.restart_losses = None

    def check_invariants(self) -> None:
        """Raises :class:`RuntimeError` if an invariant does not hold."""
        self.dead_letters.check_invariants()
        messages = list(self)
        if len(messages) != len(self):
            raise RuntimeError("the ready messages' count is wrong")
        self.delayed.check_invariants()
        if self.ready_bytes != sum(message.size for message in [*messages, *self.delayed]):
            raise RuntimeError("the ready messages' bytes do not add up")


@attrs.define(eq=False, repr=False)
class RestartLosses:
    """Messages that a broker would lose by a restart, with their places."""

    heads: list[QueuedMessage] = attrs.Factory(list)
    _placed: list[tuple[QueuedMessage, int | None]] = attrs.Factory(list)
    """Each with the index of the last of the returns at that time; ``None``: there were no returns."""

    @property
    def payload_bytes(self) -> int:
        return sum(message.size for message, _ in self._placed) + sum(message.size for message in self.heads)

    def keep_in_place(self, message: QueuedMessage, returns: deque[QueuedMessage]) -> None:
        self._placed.append((message, returns[-1].index if returns else None))

    def merged(self, returns: deque[QueuedMessage]) -> deque[QueuedMessage]:
        """Heads first, then the returns with the others in their places; in front if a place is gone."""
        indexes = {message.index for message in returns}
        placed: dict[int | None, list[QueuedMessage]] = {}
        for message, place in self._placed:
            placed.setdefault(place if place in indexes else None, []).append(message)
        merged = deque(self.heads)
        merged.extend(placed.get(None, ()))
        for message in returns:
            merged.append(message)
            merged.extend(placed.get(message.index, ()))
        return merged
