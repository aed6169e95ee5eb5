"""Admission: how actors admit publishers, or make them wait (*backpressure*).

No publisher is admitted while an alarm is set or one of the actors is full (:mod:`warren.actors.node.backpressure`).
Then bytes are reserved from the limit that all publishers of the node share (:mod:`warren.actors.node.gate`). Bytes
come last, for a whole publish at once: a publisher that holds some waits for nothing else, and so keeps them from no
other.

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
    """The intakes that get messages (:class:`~warren.actors.node.backpressure.Intake`): all of one node, or none."""
    size_of: Callable[[Sequence[Any]], int]
    """Return the bytes that the messages take on their way to their actors."""
    give: Callable[[Sequence[Any], int, bool], Any]
    """Called with the intakes, the reserved bytes, and whether this thread may do the actors' work. It hands the bytes
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
        intakes = self.find()
        deadline = None if self.timeout is None or not intakes else self._now_ns(intakes) + round(self.timeout * NS)
        while True:
            outcome = uninterrupted(self.attempt, intakes, True)
            if not isinstance(outcome, BackpressureWait):
                return outcome
            wait, gate = outcome.future, intakes[0].gate
            try:
                while not wait.done:
                    left_s = LOOK_S if deadline is None else (deadline - self._now_ns(intakes)) / NS
                    if left_s <= 0:
                        raise self.blocked(intakes)
                    if not wait.settled(min(LOOK_S, left_s)):
                        gate.look_if_stale()
                if isinstance(wait, Reservation):
                    return uninterrupted(self.take, intakes, wait, True)
            except pykka.Timeout as error:
                raise BlockedError(f"{intakes[0].describe()}: blocked, and no thread is left to unblock it") from error
            finally:
                gate.withdraw(wait)

    @staticmethod
    def _now_ns(intakes: Sequence[Any]) -> int:
        now_ns: int = intakes[0].clock.now_ns()
        return now_ns

    def attempt(self, intakes: Sequence[Any], here: bool) -> Any:
        """Give the messages, or return a :class:`BackpressureWait`, which the waiter withdraws from the gate.

        ``here``: whether the calling thread may do the actors' work; that of an event loop may not. Raises
        :class:`BlockedError` for a publisher that may not wait (``block``).
        """
        if not intakes:
            return self.give(intakes, 0, here)
        gate, size_bytes = intakes[0].gate, max(self.size_of(intakes), 1)  # reserve() returns 0 if there is no room
        passes_alarms = self.passes_alarms
        if passes_alarms is None:
            is_full = gate.disk_is_full and gate.reasons == {"disk"}
            passes_alarms = is_full and all(intake.tries_full_disk for intake in intakes)
        if gate.reasons and not passes_alarms:
            return self._wait_for_alarms(intakes, here)
        for intake in intakes:
            if intake.is_full() and not (here and intake.turn() and not intake.is_full()):
                if not self.block:
                    raise BlockedError(f"{intake.describe()} has too many waiting messages")
                return BackpressureWait(intake.backpressure_wait())
        if gate.reasons and passes_alarms:
            return self.give(intakes, gate.enter(size_bytes), here)
        reserved_bytes = gate.reserve(size_bytes, ahead=self.ahead and here, here=here)
        if not reserved_bytes and here:
            for intake in intakes:
                intake.turn()
            reserved_bytes = gate.reserve(size_bytes, ahead=self.ahead)
        if reserved_bytes:
            return self.give(intakes, reserved_bytes, here)
        if gate.reasons:  # the memory was read meanwhile and set an alarm
            return self._wait_for_alarms(intakes, here)
        if not self.block:
            raise BlockedError(f"{intakes[0].describe()}: too many bytes wait for the disk")
        return BackpressureWait(gate.get_in_line(size_bytes, intakes[0].pool))

    def _wait_for_alarms(self, intakes: Sequence[Any], here: bool) -> BackpressureWait:
        gate = intakes[0].gate
        if not self.block:
            raise BlockedError(f"publishers are blocked: {', '.join(sorted(gate.reasons))} alarm")
        if here:
            for intake in intakes:
                intake.look_for_room()
        return BackpressureWait(gate.alarms_cleared(intakes[0].pool))

    def take(self, intakes: Sequence[Any], place: Reservation, here: bool) -> Any:
        """Give the messages with the bytes reserved for an answered place in the line."""
        return self.give(intakes, intakes[0].gate.take_over(place), here)

    def blocked(self, intakes: Sequence[Any]) -> BlockedError:
        """Return the error for a publisher whose time is over."""
        reasons = intakes[0].gate.reasons
        why = f" by the {' and '.join(sorted(reasons))} alarm" if reasons else ": the disk is too slow"
        return BlockedError(f"{intakes[0].describe()}: blocked for {self.timeout} seconds{why}")
