"""FrontEnd: an actor that publishers hand their work to, and that makes them wait while it is behind.

*Credit*: it is full while ``credit_flow_default_credit`` messages wait, or what it hands on to itself is behind. What
becomes of a publisher then is :mod:`warren.actors.node.admission`.

*Hurry*: somebody waits for what was handed over to be safe, so that the next turn makes it so at once.
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
    """Single publishes that wait together; ``items``: what is published."""

    __slots__ = ("confirm",)

    def __init__(self, key: object, confirm: Confirm) -> None:
        super().__init__(key)
        self.confirm = confirm


class FrontEnd(NodePart):
    """An actor with publishers."""

    __slots__ = ("_credit", "_hurry", "_waiting_publishers")

    def __init__(self, context: NodeContext) -> None:
        super().__init__(context)
        self._credit = PublisherCredit.of(context.settings.credit_flow_default_credit)
        self._waiting_publishers: deque[Future] = deque()  # never replaced: any thread may append
        self._hurry = False

    @property
    def gate(self) -> Gate:
        """Where the node's publishers wait."""
        return self._context.gate

    @property
    def clock(self) -> Clock:
        return self._context.clock

    @property
    def pool(self) -> Pool:
        return self._context.pool

    @property
    def held_publishers(self) -> int:
        """How many publishers wait for it at the moment."""
        return len(self._waiting_publishers)

    @property
    def tries_full_disk(self) -> bool:
        """Whether publishing on a full disk raises an error instead of waiting for room."""
        return False

    def _is_held_up(self) -> bool:
        """Whether what this actor hands on to is behind."""
        return False

    def look_for_room(self) -> None:
        """Somebody waits for room on the disk: if it is this actor that found none, look again."""

    def is_full(self) -> bool:
        """Whether publishers have to wait. Raises why it has stopped."""
        if self.actor_stopped.is_set():
            raise self.stopped_error()
        return self.actor_inbox.weight >= self._credit.limit or self._is_held_up()

    def backpressure_wait(self) -> Future:
        """What a publisher waits for who finds it full."""
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
        """Somebody waits: do it in this thread if nobody else is at it; what is to be safe, without delay."""
        if isinstance(future, Confirm):
            self._hurry = True
            if self.actor_inbox.owner is self and not self.turn():
                self.get_in_line()  # whoever is at it may have passed the point where it would have seen the hurry
                self._pool.help(future, deadline)
                return
        if not future.done:
            super().help(future, deadline)

    def hurry_up(self) -> None:
        """Somebody waits who cannot help: sync without delay, in one of the pool's threads."""
        self._hurry = True
        self.get_in_line()


class InFront:
    """Somebody whom publishers use in place of a front end that stands behind, and wait for as for that."""

    __slots__ = ()

    @property
    def tries_full_disk(self) -> bool:
        """As of the front end behind it."""
        return self.behind.tries_full_disk

    @property
    def behind(self) -> FrontEnd:
        """Whom they wait for. Raises why there is nobody to publish to."""
        raise NotImplementedError

    def is_full(self) -> bool:
        """Whether publishers have to wait. Raises why there is nobody to publish to."""
        return self.behind.is_full()

    def turn(self) -> bool:
        """Let it have a turn in this thread."""
        return self.behind.turn()

    def backpressure_wait(self) -> Future:
        """What a publisher waits for who finds it full."""
        return self.behind.backpressure_wait()

    def look_for_room(self) -> None:
        """Somebody waits for room on the disk."""
        self.behind.look_for_room()
