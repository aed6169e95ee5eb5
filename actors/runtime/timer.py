"""Timers: messages that actors get at a given time.

:class:`Timers` is the plain object, a queue ordered by time; :class:`Timer` shares one between threads. An actor has at
most one timer per key; starting it again moves it.
"""

from __future__ import annotations

import itertools
import threading
from typing import Any, Generic, TypeVar

from pykka import ActorDeadError, ActorRef
from sortedcontainers import SortedDict

from warren.actors.clock import Clock

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
        while self._by_moment:
            (at_ns, _), (target, key, message) = self._by_moment.peekitem(0)
            if at_ns > now_ns:
                break
            self._forget(target, key)
            taken.append((target, message))
        return taken

    def check_invariants(self) -> None:
        """Raise ``RuntimeError`` if the two views differ."""
        by_owner = {(target, key): moment for target, keys in self._moments.items() for key, moment in keys.items()}
        if {(target, key): moment for moment, (target, key, _) in self._by_moment.items()} != by_owner:
            raise RuntimeError("timers by moment and by owner differ")


class Timer:
    """The timers of one node. Any thread may use it; the clock wakes it for the earliest."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._timers: Timers[ActorRef[Any]] = Timers()
        self._alarm_ns: int | None = None
        """When the clock wakes it."""
        self._closed = False
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._timers)

    def start(self, target: ActorRef[Any], key: str, at_ns: int, message: object) -> None:
        """Tell ``target`` the message at ``at_ns``, or now if that is past. Replaces its timer of that ``key``."""
        with self._lock:
            if not self._closed:
                self._timers.start(target, key, at_ns, message)
            is_next = self._alarm_ns is None or at_ns < self._alarm_ns
        if is_next:
            self._go_off()

    def cancel(self, target: ActorRef[Any]) -> None:
        """Cancel all timers of ``target``."""
        with self._lock:
            self._timers.cancel(target)

    def close(self) -> None:
        """Forget all timers, and take no more."""
        with self._lock:
            self._closed = True
            self._timers = Timers()

    def _ring(self) -> None:
        with self._lock:
            self._alarm_ns = None
        self._go_off()

    def _go_off(self) -> None:
        """Send what is due, and set the clock's alarm for what comes next."""
        with self._lock:
            due = self._timers.due(self._clock.now_ns())
            next_ns = self._timers.next_ns
            if next_ns is not None and (self._alarm_ns is None or next_ns < self._alarm_ns):
                self._alarm_ns = next_ns
                self._clock.wake_at(next_ns, self._ring)
        for target, message in due:
            tell(target, message)


def tell(target: ActorRef[Any], message: object) -> bool:
    """Tell an actor that may have stopped; return whether it had not."""
    try:
        target.tell(message)
    except ActorDeadError:
        return False
    return True
