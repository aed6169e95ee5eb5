"""Door: how any thread comes in to an actor that others hand their work to, and is held while it is behind.

*Credit*: while ``credit_flow_default_credit`` messages wait, or what the actor itself hands on to is behind, a
publisher is held in :meth:`Door.admit`, where it first runs a turn itself. An event loop may neither wait nor run
turns: it asks :meth:`Door.admission`, and lets the actor :meth:`~Door.hurry_up`.

*Hurry*: somebody waits for what was handed over to be safe, so that the next turn makes it so at once.
"""

from __future__ import annotations

import contextlib
from collections import deque

import pykka

from actors.clock import NS
from actors.future import Future
from actors.pool import PooledActor
from actors.surroundings import BlockedError, Surroundings


class Door(PooledActor):
    """An actor with publishers."""

    __slots__ = ("_around", "_hurry", "_limit", "_room_at", "_waiting_for_room")

    def __init__(self, around: Surroundings) -> None:
        super().__init__(around.pool)
        self._around = around
        self._limit, more_after = around.settings.credit_flow_default_credit
        self._room_at = self._limit - more_after
        self._waiting_for_room: deque[Future] = deque()  # one for good: any thread may append
        self._hurry = False

    def _is_held_up(self) -> bool:
        """Whether what this actor hands on to is behind."""
        return False

    def admit(self, *, block: bool = True, timeout: float | None = None, here: bool = True) -> None:
        """Hold a publisher while too much waits; raises :class:`BlockedError` where it may not wait any longer.

        ``here``: whether the calling thread may do the actor's work; an event loop's may not.
        """
        gate = self._around.gate
        clock = self._around.clock
        deadline = None if timeout is None else clock.now_ns() + round(timeout * NS)
        while True:
            if gate.reasons:
                if not block:
                    raise BlockedError(f"publishers are blocked: {', '.join(sorted(gate.reasons))} alarm")
                waiter = gate.opening(self._around.pool)
            elif self._full():
                if here and self.turn() and not self._full():
                    return
                if not block:
                    raise BlockedError(f"{self.describe()} is behind")
                waiter = self._room()
            else:
                return
            remaining = None if deadline is None else (deadline - clock.now_ns()) / NS
            if remaining is not None and remaining <= 0 and not waiter.done:
                why = f" by the {' and '.join(sorted(gate.reasons))} alarm" if gate.reasons else ": the disk is behind"
                raise BlockedError(f"{self.describe()}: blocked for {timeout} seconds{why}")
            try:
                waiter.settled(remaining)
            except pykka.Timeout as error:
                raise BlockedError(f"{self.describe()}: blocked, and nobody is left who could help") from error

    def admission(self) -> Future | None:
        """Without holding anybody: ``None`` where a publisher may go on, or what to wait for and then ask again."""
        gate = self._around.gate
        if gate.reasons:
            return gate.opening(self._around.pool)
        return self._room() if self._full() else None

    def _full(self) -> bool:
        if self.actor_stopped.is_set():
            raise self.stopped_error()
        return self.actor_inbox.weight >= self._limit or self._is_held_up()

    def _room(self) -> Future:
        room = Future(self)
        self._waiting_for_room.append(room)
        if not self._full():
            self._let_publishers_in()
        return room

    def _let_publishers_in(self) -> None:
        if self._waiting_for_room and (
            self.actor_stopped.is_set() or (self.actor_inbox.weight <= self._room_at and not self._is_held_up())
        ):
            with contextlib.suppress(IndexError):
                for _ in range(len(self._waiting_for_room)):
                    self._waiting_for_room.popleft().set()

    def help(self, future: Future) -> None:
        """Somebody waits: sync without delay, and do it in this thread if nobody else is at it."""
        self._hurry = True
        if self.actor_inbox.owner is self and not self.turn():
            self.schedule()  # whoever is at it may have passed the point where it would have seen the hurry
        super().help(future)

    def hurry_up(self) -> None:
        """Somebody waits who cannot help: sync without delay, in one of the pool's threads."""
        self._hurry = True
        self.get_in_line()
