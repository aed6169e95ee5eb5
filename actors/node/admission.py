"""Admission: how actors admit publishers, or make them wait (*backpressure*).

No publisher is admitted while an alarm is set or one of the actors is full (:mod:`warren.actors.node.front_end`). Then
bytes are reserved from the limit that all publishers of the node share (:mod:`warren.actors.node.gate`). Bytes come
last, for a whole publish at once: a publisher that holds some waits for nothing else, and so keeps them from no other.

A thread first runs a turn of a full actor. An event loop may neither wait nor run turns: it calls
:meth:`Admission.attempt`, and awaits the future that it gets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import attrs
import pykka

from warren.actors.clock import NS
from warren.actors.node.gate import Reservation
from warren.actors.node.node_context import BlockedError
from warren.actors.runtime.future import Future
from warren.actors.runtime.interrupts import uninterrupted

LOOK_S: Final = 1.0
"""How often a waiting publisher checks that the memory is still being read."""


class BackpressureWait(NamedTuple):
    """A publisher has to wait for ``future``: then it tries again, or, for a :class:`Reservation`, has its bytes."""

    future: Future


@attrs.define(eq=False, repr=False)
class Admission:
    """Wait until actors have room for messages, then call ``give`` and return its result.

    No interrupt comes between a reservation and ``give``.
    """

    find: Callable[[], Sequence[Any]]
    """The actors that get messages (:class:`~warren.actors.node.front_end.FrontEnd`): all of one node, or none."""
    size_of: Callable[[Sequence[Any]], int]
    """Return the bytes that the messages take on their way to these actors."""
    give: Callable[[Sequence[Any], int, bool], Any]
    """Called with the actors, the reserved bytes, and whether this thread may do the actors' work. It hands the bytes
    over, or gives them back."""
    block: bool = True
    timeout: float | None = None
    ahead: bool = False
    """Whether to reserve bytes for messages that will join these."""
    passes_alarms: bool | None = None
    """Whether to admit the messages during an alarm. ``True`` for messages that a guest sent before it learned of the
    alarm: its program may have ended since. ``False`` for AMQP clients, which may not ask for confirms and so would not
    learn of a refusal. ``None``: only if the disk is full and the actors refuse such messages (``tries_full_disk``)."""

    def get(self) -> Any:
        """Wait in this thread. Raises :class:`BlockedError` if the publisher may not wait any longer."""
        actors = self.find()
        deadline = None if self.timeout is None or not actors else self._now_ns(actors) + round(self.timeout * NS)
        while True:
            outcome = uninterrupted(self.attempt, actors, True)
            if not isinstance(outcome, BackpressureWait):
                return outcome
            wait, gate = outcome.future, actors[0].gate
            try:
                while not wait.done:
                    left_s = LOOK_S if deadline is None else (deadline - self._now_ns(actors)) / NS
                    if left_s <= 0:
                        raise self.blocked(actors)
                    if not wait.settled(min(LOOK_S, left_s)):
                        gate.look_if_stale()
                if isinstance(wait, Reservation):
                    return uninterrupted(self.take, actors, wait, True)
            except pykka.Timeout as error:
                raise BlockedError(f"{actors[0].describe()}: blocked, and no thread is left to unblock it") from error
            finally:
                gate.withdraw(wait)

    @staticmethod
    def _now_ns(actors: Sequence[Any]) -> int:
        now_ns: int = actors[0].clock.now_ns()
        return now_ns

    def attempt(self, actors: Sequence[Any], here: bool) -> Any:
        """Give the messages, or return a :class:`BackpressureWait`, which the waiter withdraws from the gate.

        ``here``: whether the calling thread may do the actors' work; that of an event loop may not. Raises
        :class:`BlockedError` for a publisher that may not wait (``block``).
        """
        if not actors:
            return self.give(actors, 0, here)
        gate, size_bytes = actors[0].gate, max(self.size_of(actors), 1)  # reserve() returns 0 if there is no room
        passes_alarms = self.passes_alarms
        if passes_alarms is None:
            is_full = gate.disk_is_full and gate.reasons == {"disk"}
            passes_alarms = is_full and all(actor.tries_full_disk for actor in actors)
        if gate.reasons and not passes_alarms:
            return self._wait_for_alarms(actors, here)
        for actor in actors:
            if actor.is_full() and not (here and actor.turn() and not actor.is_full()):
                if not self.block:
                    raise BlockedError(f"{actor.describe()} has too many waiting messages")
                return BackpressureWait(actor.backpressure_wait())
        if gate.reasons and passes_alarms:
            return self.give(actors, gate.enter(size_bytes), here)
        reserved_bytes = gate.reserve(size_bytes, ahead=self.ahead and here, here=here)
        if not reserved_bytes and here:
            for actor in actors:
                actor.turn()
            reserved_bytes = gate.reserve(size_bytes, ahead=self.ahead)
        if reserved_bytes:
            return self.give(actors, reserved_bytes, here)
        if gate.reasons:  # the memory was read meanwhile and set an alarm
            return self._wait_for_alarms(actors, here)
        if not self.block:
            raise BlockedError(f"{actors[0].describe()}: too many bytes wait for the disk")
        return BackpressureWait(gate.get_in_line(size_bytes, actors[0].pool))

    def _wait_for_alarms(self, actors: Sequence[Any], here: bool) -> BackpressureWait:
        gate = actors[0].gate
        if not self.block:
            raise BlockedError(f"publishers are blocked: {', '.join(sorted(gate.reasons))} alarm")
        if here:
            for actor in actors:
                actor.look_for_room()
        return BackpressureWait(gate.alarms_cleared(actors[0].pool))

    def take(self, actors: Sequence[Any], place: Reservation, here: bool) -> Any:
        """Give the messages with the bytes reserved for an answered place in the line."""
        return self.give(actors, actors[0].gate.take_over(place), here)

    def blocked(self, actors: Sequence[Any]) -> BlockedError:
        """Return the error for a publisher whose time is over."""
        reasons = actors[0].gate.reasons
        why = f" by the {' and '.join(sorted(reasons))} alarm" if reasons else ": the disk is too slow"
        return BlockedError(f"{actors[0].describe()}: blocked for {self.timeout} seconds{why}")
