"""FrontEnd: an actor that takes work from publishers, and makes them wait while it lags.

*Credit*: it is full while ``credit_flow_default_credit`` messages wait, or an actor that it feeds lags. How publishers
then wait is described in :mod:`warren.actors.node.admission`.

*Hurry*: a caller waits for the safety of what it handed over, so the next turn makes it safe at once.
"""

from __future__ import annotations

import contextlib
from collections import deque

from warren.actors.clock import Clock
from warren.actors.engines.credit import PublisherCredit
from warren.actors.node.gate import Gate
from warren.actors.node.node_context import NodeContext
from warren.actors.node.node_part import NodePart
from warren.actors.runtime.future import Confirm, Future
from warren.actors.runtime.inbox import PendingBatch
from warren.actors.runtime.pool import Pool


class PublishBatch(PendingBatch):
    """Single publishes that wait together; ``items`` are the publishes."""

    __slots__ = ("confirm",)

    def __init__(self, key: object, confirm: Confirm) -> None:
        super().__init__(key)
        self.confirm = confirm


class FrontEnd(NodePart):
    """An actor that publishers publish to."""

    __slots__ = ("_credit", "_hurry", "_waiting_publishers")

    def __init__(self, context: NodeContext) -> None:
        super().__init__(context)
        self._credit = PublisherCredit.of(context.settings.credit_flow_default_credit)
        self._waiting_publishers: deque[Future] = deque()  # never replaced: any thread may append
        self._hurry = False

    @property
    def gate(self) -> Gate:
        """The gate that holds the node's publishers."""
        return self._context.gate

    @property
    def clock(self) -> Clock:
        return self._context.clock

    @property
    def pool(self) -> Pool:
        return self._context.pool

    @property
    def held_publishers(self) -> int:
        """The number of publishers that wait for it."""
        return len(self._waiting_publishers)

    @property
    def tries_full_disk(self) -> bool:
        """Whether publishing on a full disk raises an error instead of waiting for room."""
        return False

    def _is_held_up(self) -> bool:
        """Whether an actor that this one feeds lags."""
        return False

    def look_for_room(self) -> None:
        """Check for room on the disk again, if this actor found none; called when a publisher waits."""

    def is_full(self) -> bool:
        """Whether publishers have to wait. Raises the reason if it has stopped."""
        if self.actor_stopped.is_set():
            raise self.stopped_error()
        return self.actor_inbox.weight >= self._credit.limit or self._is_held_up()

    def backpressure_wait(self) -> Future:
        """Return a future that is answered once the actor is no longer full."""
        wait = Future(self)
        self._waiting_publishers.append(wait)
        if not self.is_full():
            self._let_publishers_in()
        return wait

    def _let_publishers_in(self) -> None:
        if self._waiting_publishers and (
            self.actor_stopped.is_set()
            or (self.actor_inbox.weight <= self._credit.reopens_at and not self._is_held_up())
        ):
            with contextlib.suppress(IndexError):
                for _ in range(len(self._waiting_publishers)):
                    self._waiting_publishers.popleft().set()

    def _new_batch(self, key: object) -> PublishBatch:
        return PublishBatch(key, Confirm(self))

    def help(self, future: Future, deadline: float | None = None) -> None:
        """Run a turn in this thread unless another thread runs one; a confirm is settled without delay."""
        if isinstance(future, Confirm):
            self._hurry = True
            if self.actor_inbox.owner is self and not self.turn():
                self.get_in_line()  # the turn that is running may be past the check of _hurry
                self._pool.help(future, deadline)
                return
        if not future.done:
            super().help(future, deadline)

    def hurry_up(self) -> None:
        """Sync without delay, in a thread of the pool, for a waiter that cannot help."""
        self._hurry = True
        self.get_in_line()


class InFront:
    """Stands in for a front end: publishers use it, and it delegates to the front end."""

    __slots__ = ()

    @property
    def tries_full_disk(self) -> bool:
        """That of the front end."""
        return self.behind.tries_full_disk

    @property
    def behind(self) -> FrontEnd:
        """The front end. Raises an error if it is down or deleted."""
        raise NotImplementedError

    def is_full(self) -> bool:
        """Whether publishers have to wait. Raises an error if the front end is down or deleted."""
        return self.behind.is_full()

    def turn(self) -> bool:
        """Run a turn of the front end in this thread."""
        return self.behind.turn()

    def backpressure_wait(self) -> Future:
        """Return a future that is answered once the front end is no longer full."""
        return self.behind.backpressure_wait()

    def look_for_room(self) -> None:
        """Let the front end check for room on the disk."""
        self.behind.look_for_room()
