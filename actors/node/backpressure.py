"""Intake: the part of an actor that takes messages from publishers, and makes them wait while the actor lags.

*Credit*: an intake is full while ``credit_flow_default_credit`` messages wait, or an actor that it feeds lags. How
publishers then wait is described in :mod:`warren.actors.node.admission`.

*Hurry*: a caller waits for the safety of what it handed over, so the next turn makes it safe at once.
"""

from __future__ import annotations

import contextlib
from collections import deque
from typing import Any, Final

from warren.actors.clock import Clock
from warren.actors.engines.credit import PublisherCredit
from warren.actors.node.gate import Gate
from warren.actors.node.node_context import NodeContext
from warren.actors.node.node_part import NodePart
from warren.actors.runtime.future import Confirm, Future
from warren.actors.runtime.inbox import PendingBatch
from warren.actors.runtime.pool import Pool
from warren.storage.errors import WarrenError

CLOSED_WEIGHT: Final = 1 << 60
"""An inbox weight at which no publisher is admitted; the publisher then checks why."""


class PublishBatch(PendingBatch):
    """Single publishes that wait together; ``items`` are the publishes."""

    __slots__ = ("confirm",)

    def __init__(self, key: object, confirm: Confirm) -> None:
        super().__init__(key)
        self.confirm = confirm


class Intake:
    """The intake of one actor. Any thread may call it."""

    __slots__ = (
        "_actor",
        "_credit",
        "_turns",
        "clock",
        "gate",
        "hurry",
        "inbox",
        "pool",
        "tries_full_disk",
        "waiting_publishers",
    )

    def __init__(self, actor: NodePart, context: NodeContext, *, tries_full_disk: bool = False) -> None:
        self._actor = actor
        self._turns = actor.turns
        self.inbox = actor.actor_inbox
        self._credit = PublisherCredit.of(context.settings.credit_flow_default_credit)
        self.waiting_publishers: deque[Future] = deque()
        """Publishers that wait for room. Never replaced: any thread may append."""
        self.gate: Gate = context.gate
        """The gate that holds the node's publishers."""
        self.clock: Clock = context.clock
        self.pool: Pool = context.pool
        self.tries_full_disk = tries_full_disk
        """Whether publishing on a full disk raises an error instead of waiting for room."""
        self.hurry = False
        """Whether a caller waits for the safety of messages; the end of a turn resets it."""

    def describe(self) -> str:
        return self._actor.describe()

    def turn(self) -> bool:
        """Run a turn of the actor in this thread."""
        return self._turns.run()

    def wait_for_turn(self) -> None:
        """Wait for the end of a turn of the actor that another thread is running."""
        self._turns.wait_for_turn()

    def is_held_up(self) -> bool:
        """Whether an actor that this one feeds lags."""
        return False

    def look_for_room(self) -> None:
        """Check for room on the disk again, if the actor found none; called when a publisher waits."""

    def is_full(self) -> bool:
        """Whether publishers have to wait. Raises the reason if the actor has stopped."""
        if self._actor.actor_stopped.is_set():
            raise self._actor.stopped_error()
        return self.inbox.weight >= self._credit.limit or self.is_held_up()

    def backpressure_wait(self) -> Future:
        """Return a future that is answered once the actor is no longer full."""
        wait = Future(self)
        self.waiting_publishers.append(wait)
        if not self.is_full():
            self.let_publishers_in()
        return wait

    def let_publishers_in(self) -> None:
        """Answer the waiting publishers, if there is room for them or the actor has stopped."""
        if self.waiting_publishers and (
            self._actor.actor_stopped.is_set()
            or (self.inbox.weight <= self._credit.reopens_at and not self.is_held_up())
        ):
            with contextlib.suppress(IndexError):
                for _ in range(len(self.waiting_publishers)):
                    self.waiting_publishers.popleft().set()

    def close(self) -> None:
        """Admit no publisher any more; those that wait check why once the actor has stopped."""
        self.inbox.weight = CLOSED_WEIGHT

    def refuse_if_stopped(self, reserved_bytes: int) -> None:
        """Raise the reason if the actor has stopped, and give the bytes back that are reserved for a message."""
        if self._actor.actor_stopped.is_set():
            self.gate.leave(reserved_bytes, unused_bytes=reserved_bytes)
            raise self._actor.stopped_error()

    def refusal(self, reserved_bytes: int) -> WarrenError:
        """Return why the actor's inbox is closed, and give the bytes back that are reserved for a message."""
        self.gate.leave(reserved_bytes, unused_bytes=reserved_bytes)
        return self._actor.stopped_error()

    def new_batch(self, key: Any) -> PublishBatch:
        """Return the entry of the inbox in which single publishes of one key gather."""
        return PublishBatch(key, Confirm(self))

    def take_hurry(self) -> bool:
        """Return whether a caller waits, and forget it; for the end of a turn.

        A message that is waited for may not have been taken yet; then the next turn hurries, too.
        """
        hurry, self.hurry = self.hurry, False
        if hurry and not self.inbox.empty():
            self.hurry = True
        return hurry

    def help(self, future: Future, deadline: float | None = None) -> None:
        """Run a turn in this thread unless another thread runs one; a confirm is settled without delay."""
        turns = self._turns
        if isinstance(future, Confirm):
            self.hurry = True
            if self.inbox.owner is turns and not turns.run():
                turns.submit()  # the turn that is running may be past the check of hurry
                self.pool.help(future, deadline)
                return
        if not future.done:
            turns.help(future, deadline)

    def hurry_up(self) -> None:
        """Sync without delay, in a thread of the pool, for a waiter that cannot help."""
        self.hurry = True
        self._turns.submit()


class InFront:
    """Stands in for an intake: publishers use it, and it delegates to the intake."""

    __slots__ = ()

    @property
    def behind(self) -> Intake:
        """The intake. Raises an error if its actor is down or deleted."""
        raise NotImplementedError

    @property
    def gate(self) -> Gate:
        return self.behind.gate

    @property
    def clock(self) -> Clock:
        return self.behind.clock

    @property
    def pool(self) -> Pool:
        return self.behind.pool

    @property
    def tries_full_disk(self) -> bool:
        return self.behind.tries_full_disk

    def describe(self) -> str:
        return self.behind.describe()

    def is_full(self) -> bool:
        """Whether publishers have to wait. Raises an error if the actor is down or deleted."""
        return self.behind.is_full()

    def turn(self) -> bool:
        """Run a turn of the actor in this thread."""
        return self.behind.turn()

    def backpressure_wait(self) -> Future:
        """Return a future that is answered once the actor is no longer full."""
        return self.behind.backpressure_wait()

    def look_for_room(self) -> None:
        """Let the actor check for room on the disk."""
        self.behind.look_for_room()
