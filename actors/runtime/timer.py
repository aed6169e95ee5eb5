"""Timers: messages that are sent at a given time.

:class:`Timers` is the plain object, a queue ordered by time; the actor asks the clock to wake it for the earliest. An
actor has at most one timer per key; starting it again moves it.
"""

from __future__ import annotations

import itertools
from typing import Any, Generic, TypeVar

from pykka import ActorDeadError, ActorRef
from sortedcontainers import SortedDict

from warren.actors.clock import Clock
from warren.actors.messages import CancelTimers, StartTimer
from warren.actors.runtime.inbox import ControlCall
from warren.actors.runtime.pool import Pool
from warren.actors.runtime.pooled_actor import PooledActor

Target = TypeVar("Target")


class Timers(Generic[Target]):
    """Messages with their due times in nanoseconds of one clock. Equal times go off in the order they were set."""

    def __init__(self) -> None:
        self._by_moment: SortedDict[tuple[int, int], tuple[Target, str, object]] = SortedDict()
        self._moments: dict[Target, dict[str, tuple[int, int]]] = {}
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._by_moment)

    @property
    def next_ns(self) -> int | None:
        """The time of the earliest timer."""
        return self._by_moment.peekitem(0)[0][0] if self._by_moment else None

    def start(self, target: Target, key: str, at_ns: int, message: object) -> None:
        """Set the timer ``key`` of ``target``, or move it if it runs."""
        self._forget(target, key)
        moment = (at_ns, next(self._numbers))
        self._by_moment[moment] = (target, key, message)
        self._moments.setdefault(target, {})[key] = moment

    def cancel(self, target: Target) -> None:
        """Forget all timers of ``target``."""
        for moment in self._moments.pop(target, {}).values():
            del self._by_moment[moment]

    def _forget(self, target: Target, key: str) -> None:
        keys = self._moments.get(target, {})
        if key in keys:
            del self._by_moment[keys.pop(key)]
            if not keys:
                del self._moments[target]

    def due(self, now_ns: int) -> list[tuple[Target, object]]:
        """Take the due messages, earliest first."""
        taken: list[tuple[Target, object]] = []
        while self._by_moment and self._by_moment.peekitem(0)[0][0] <= now_ns:
            target, key, message = self._by_moment.peekitem(0)[1]
            self._forget(target, key)
            taken.append((target, message))
        return taken

    def check_invariants(self) -> None:
        """Raise ``RuntimeError`` if the two views differ."""
        by_owner = {(target, key): moment for target, keys in self._moments.items() for key, moment in keys.items()}
        if {(target, key): moment for moment, (target, key, _) in self._by_moment.items()} != by_owner:
            raise RuntimeError("timers by moment and by owner differ")


class TimerActor(PooledActor):
    """The timers of one node, with an injected clock."""

    goes_first = True

    def __init__(self, pool: Pool, clock: Clock) -> None:
        super().__init__(pool)
        self._clock = clock
        self._timers: Timers[ActorRef[Any]] = Timers()
        self._alarm_ns: int | None = None

    def on_receive(self, message: object) -> None:
        match message:
            case StartTimer():
                self._timers.start(message.target, message.key, message.at_ns, message.message)
            case CancelTimers():
                self._timers.cancel(message.target)
            case _:
                raise RuntimeError(f"a timer cannot handle {message!r}")

    def on_turn_end(self) -> None:
        for target, message in self._timers.due(self._clock.now_ns()):
            tell(target, message)
        next_ns = self._timers.next_ns
        if next_ns is not None and (self._alarm_ns is None or next_ns < self._alarm_ns):
            self._alarm_ns = next_ns
            self._clock.wake_at(next_ns, self._ring)

    def _ring(self) -> None:
        tell(self.actor_ref, ControlCall(self._rang))

    def _rang(self) -> None:
        self._alarm_ns = None


def tell(target: ActorRef[Any], message: object) -> bool:
    """Tell an actor that may have stopped; return whether it had not."""
    try:
        target.tell(message)
    except ActorDeadError:
        return False
    return True
