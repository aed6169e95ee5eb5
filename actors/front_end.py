"""FrontEnd: how any thread comes in to an actor that others hand their work to, and is held while it is behind.

*Credit*: while ``credit_flow_default_credit`` messages wait, or what the actor itself hands on to is behind, a
publisher is held in :func:`admit`, where it first runs a turn itself; and then for bytes, which the whole node has
together (:mod:`warren.actors.gate`). An event loop may neither wait nor run turns: it asks :meth:`FrontEnd.admission`,
reserves by itself, and lets the actor :meth:`~FrontEnd.hurry_up`.

Bytes come last, for all of a publish at once: whoever has some waits for nothing else, and so keeps them from nobody.

*Hurry*: somebody waits for what was handed over to be safe, so that the next turn makes it so at once.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeVar

import pykka

from warren.actors.clock import NS, Clock
from warren.actors.engines.credit import PublisherCredit
from warren.actors.future import Future
from warren.actors.gate import Gate, Reservation
from warren.actors.interrupts import uninterrupted
from warren.actors.node_context import BlockedError, NodeContext
from warren.actors.pool import PooledActor

T = TypeVar("T")

LOOK_S: Final = 1.0
"""A publisher who is held looks so often whether somebody still reads the memory."""


class FrontEnd(PooledActor):
    """An actor with publishers."""

    __slots__ = ("_context", "_credit", "_hurry", "_waiting_for_room")

    def __init__(self, context: NodeContext) -> None:
        super().__init__(context.pool)
        self._context = context
        self._credit = PublisherCredit.of(context.settings.credit_flow_default_credit)
        self._waiting_for_room: deque[Future] = deque()  # never replaced: any thread may append
        self._hurry = False

    @property
    def gate(self) -> Gate:
        """Where the node's publishers are held."""
        return self._context.gate

    def _is_held_up(self) -> bool:
        """Whether what this actor hands on to is behind."""
        return False

    def admission(self) -> Future | None:
        """Without holding anybody: ``None`` where there is room, or what to wait for and then ask again."""
        gate = self._context.gate
        if gate.reasons:
            return gate.opening(self._context.pool)
        return self._room() if self._full() else None

    def look_for_room(self) -> None:
        """Somebody waits for room on the disk: if it is this actor that found none, look again."""

    def _full(self) -> bool:
        if self.actor_stopped.is_set():
            raise self.stopped_error()
        return self.actor_inbox.weight >= self._credit.limit or self._is_held_up()

    def _room(self) -> Future:
        room = Future(self)
        self._waiting_for_room.append(room)
        if not self._full():
            self._let_publishers_in()
        return room

    def _let_publishers_in(self) -> None:
        if self._waiting_for_room and (
            self.actor_stopped.is_set()
            or (self.actor_inbox.weight <= self._credit.reopens_at and not self._is_held_up())
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


class _Held(NamedTuple):
    """A publisher who has to wait, and for what."""

    wait: Future


def admit(
    front_ends: Sequence[FrontEnd],
    size_bytes: int,
    give: Callable[[int], T],
    *,
    ahead: bool = False,
    block: bool = True,
    timeout: float | None = None,
    here: bool = True,
) -> T:
    """Hold a publisher until all of ``front_ends`` have room, and the node has it for ``size_bytes``; then ``give``.

    ``give`` is called with how many bytes are reserved, and hands them over, or gives them back; no interrupt comes
    between. ``ahead``: more than ``size_bytes``, for messages that join it. ``here``: whether the calling thread may do
    the actors' work; an event loop's may not. Raises :class:`BlockedError` where the publisher may not wait any longer.
    """
    size_bytes = max(size_bytes, 1)  # nothing reserved means that there was no room
    gate, clock = front_ends[0].gate, front_ends[0]._context.clock
    deadline = None if timeout is None else clock.now_ns() + round(timeout * NS)
    while True:
        found: T | _Held = uninterrupted(_pass, front_ends, size_bytes, give, ahead, block, here)
        if not isinstance(found, _Held):
            return found
        wait = found.wait
        try:
            if not _settled(wait, gate, clock, deadline):
                why = f" by the {' and '.join(sorted(gate.reasons))} alarm" if gate.reasons else ": the disk is behind"
                raise BlockedError(f"{front_ends[0].describe()}: blocked for {timeout} seconds{why}")
            if isinstance(wait, Reservation):
                given: T = uninterrupted(_give, gate, wait, give)
                return given
        except pykka.Timeout as error:
            raise BlockedError(f"{front_ends[0].describe()}: blocked, and nobody is left who could help") from error
        finally:
            gate.withdraw(wait)


def _settled(wait: Future, gate: Gate, clock: Clock, deadline: int | None) -> bool:
    """Wait until a publisher may ask again, or has what it asked for; whether that came in time."""
    while not wait.done:
        left_s = LOOK_S if deadline is None else (deadline - clock.now_ns()) / NS
        if left_s <= 0:
            return False
        if not wait.settled(min(LOOK_S, left_s)):
            gate.look_if_stale()
    return True


def _give(gate: Gate, place: Reservation, give: Callable[[int], T]) -> T:
    return give(gate.take_over(place))


def _pass(  # noqa: PLR0917
    front_ends: Sequence[FrontEnd], size_bytes: int, give: Callable[[int], T], ahead: bool, block: bool, here: bool
) -> T | _Held:
    """Reserve and give, or say what to wait for. Raises :class:`BlockedError` for who may not (``block``)."""
    gate = front_ends[0].gate
    if gate.reasons:
        if not block:
            raise BlockedError(f"publishers are blocked: {', '.join(sorted(gate.reasons))} alarm")
        if here:
            for front_end in front_ends:
                front_end.look_for_room()
        return _Held(gate.opening(front_ends[0]._context.pool))
    for front_end in front_ends:
        if front_end._full() and not (here and front_end.turn() and not front_end._full()):
            if not block:
                raise BlockedError(f"{front_end.describe()} is behind")
            return _Held(front_end._room())
    reserved_bytes = gate.reserve(size_bytes, ahead=ahead, here=here)
    if not reserved_bytes and here:
        for front_end in front_ends:
            front_end.turn()
        reserved_bytes = gate.reserve(size_bytes, ahead=ahead)
    if reserved_bytes:
        return give(reserved_bytes)
    if gate.reasons:  # the memory was read meanwhile
        return _pass(front_ends, size_bytes, give, ahead, block, here)
    if not block:
        raise BlockedError(f"{front_ends[0].describe()}: too much is on its way to the disk")
    return _Held(gate.get_in_line(size_bytes, front_ends[0]._context.pool))
