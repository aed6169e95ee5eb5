"""Deliveries: messages that a queue has handed to a consumer and the consumer has not taken yet.

This is the only place where a queue's actor and a consumer's thread (or event loop) meet. The queue's prefetch limits
how many messages it holds. A consumer that finds none first lets the queue work, in its own thread if the queue is
idle, then waits.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from pykka import Timeout

from warren.actors.engines.queue.effects import Delivered
from warren.actors.engines.queue.queue_receivers import BUFFER
from warren.actors.runtime.future import Future, Helper


class TurnTaker(Helper, Protocol):
    """The queue, as seen by a thread that waits for a message."""

    def wait_for_turn(self) -> None:
        """Wait for the end of a turn that another thread is running."""


class Arrival(Future):
    """A consumer's future: answered when there is a message to take, or at the end."""

    __slots__ = ()


class Deliveries:
    """Batches on their way to one consumer, in order."""

    def __init__(self, channel: str, helper: TurnTaker) -> None:
        self.channel = channel
        self._helper = helper
        self.more: Callable[[], None] | None = None
        """Set by the queue for a consumer without a prefetch: called when half of the buffer is taken."""
        self.acks_unseen = False
        """Set by the queue: whether deliveries need no ack, so that messages may bypass the queue."""
        self.in_order = False
        """Whether the channel has other consumers of the same queue. All get messages in the order of the queue's
        delivery tags."""
        self.buffered = 0
        """The number of messages held here."""
        self.lapsed: set[int] | None = None
        """The delivery tags of messages that the consumer held for too long, and has lost."""
        self._batches: deque[Delivered] = deque()
        self._lock = threading.Lock()
        self._waiting: list[Future] = []
        self._ended = False
        self._error: BaseException | None = None

    def put(self, batch: Delivered) -> None:
        """Hand over a batch; called by the queue."""
        for future in self.add(batch):
            future.set()

    def add(self, batch: Delivered) -> list[Future]:
        """Add a batch; return the waiting futures, which the caller must set."""
        with self._lock:
            self._batches.append(batch)
            self.buffered += batch.count
            waiting, self._waiting = self._waiting, []
        return waiting

    def give(self, batch: Delivered) -> bool:
        """Hand over a batch if a consumer is waiting for one; return whether it was."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
            if waiting:
                self._batches.append(batch)
                self.buffered += batch.count
        for future in waiting:
            future.set()
        return bool(waiting)

    def end(self, error: BaseException | None = None) -> None:
        """End the deliveries: the consumer was cancelled, or (``error``) its queue has failed or is gone."""
        with self._lock:
            self._ended = True
            self._error = error
            waiting, self._waiting = self._waiting, []
        for future in waiting:
            future.set()

    def lapse(self, tags: range) -> None:
        """Note messages that went back to the queue, whether or not this consumer had them; called by the queue."""
        self.lapsed = {*(self.lapsed or ()), *tags}

    def forget_all(self, error: BaseException) -> None:
        """Drop everything in a forked child: it belongs to the parent."""
        self._lock = threading.Lock()  # the holder of the old one may not exist here
        self._batches.clear()
        self.buffered = 0
        self._ended, self._error = True, error

    @property
    def ended(self) -> bool:
        """Whether nothing more comes; earlier messages can still be taken."""
        return self._ended

    @property
    def waiting(self) -> bool:
        """Whether a consumer is waiting."""
        return bool(self._waiting)

    def peek_tag(self) -> int | None:
        """Return the first delivery tag of the next batch, 0 for a batch without tags; ``None`` if there is no batch.
        For the thread that takes them. Raises the error that ended the deliveries.
        For the thread that takes them. Raises what ended the deliveries by error.
        """
        if self._batches:
            return self._batches[0].first_tag
        if self._error is not None:
            raise self._error
        return None

    def take_now(self) -> Delivered | None:
        """Return the next batch, if there is one. Raises the error that ended the deliveries."""
        with self._lock:
            batch = self._batches.popleft() if self._batches else None
            if batch is not None:
                self.buffered -= batch.count
        if batch is None and self._error is not None:
            raise self._error
        if self.more is not None and self.buffered <= BUFFER // 2:
            self.more()
        return batch

    def take(self, timeout: float | None) -> Delivered | None:
        """Return the next batch; ``None`` after ``timeout`` seconds without one, or when no more will come."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while (batch := self.take_now()) is None and not self._ended:
            remaining = None if deadline is None else max(0.0, deadline - time.monotonic())
            arrival = self.arrival()
            try:
                arrived = arrival.settled(remaining)  # even with a timeout of 0 the queue may do pending work
            except Timeout:  # no thread is left that could bring one
                if timeout is None:
                    raise
                arrived = False
            if not arrived:
                if remaining == 0:  # another thread may be running a turn that delivers messages
                    self._helper.wait_for_turn()
                self.forget(arrival)
                return self.take_now()
        return batch

    def arrival(self) -> Future:
        """Return a future that is answered when there is a message to take, or at the end."""
        future = Arrival(self._helper)
        with self._lock:
            if not self._batches and not self._ended:
                self._waiting.append(future)
                return future
        future.set()
        return future

    def forget(self, future: Future) -> None:
        """Forget a future that is no longer waited for."""
        with self._lock:
            if future in self._waiting:
                self._waiting.remove(future)

    def drain(self) -> list[Delivered]:
        """Take everything that was not taken: it goes back when the channel is closed."""
        with self._lock:
            batches = list(self._batches)
            self._batches.clear()
            self.buffered = 0
        return batches

    def on_ready(self, callback: Callable[[Future], None]) -> None:
        """Call ``callback`` once, in the queue's thread, when there is something to take."""
        self.arrival().on_done(callback)
