"""Virtual time: SimPy's clock in whole nanoseconds, for everything that is simulated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import simpy

from warren.simulation.scenarios.units import ns


class VirtualTime:
    """The clock of one simulation. ``start_of_day_s``: the time of day at which it begins."""

    __slots__ = ("_wall_us", "env")

    def __init__(self, start_of_day_s: float = 0.0) -> None:
        self.env = simpy.Environment(0)
        self._wall_us = ns(start_of_day_s) // 1000

    def now_ns(self) -> int:
        """Return the nanoseconds since the simulation's start."""
        return int(self.env.now)

    def wall_us(self) -> int:
        """Return the microseconds since the midnight before the start."""
        return self._wall_us + int(self.env.now) // 1000

    def after(self, delay_ns: int, call: Callable[[], object]) -> None:
        """Call ``call`` once, ``delay_ns`` from now."""
        timeout: Any = self.env.timeout(delay_ns)
        timeout.callbacks.append(lambda _: call())


class Event:
    """Something that processes wait for and others set."""

    __slots__ = ("_env", "_event")

    def __init__(self, env: simpy.Environment) -> None:
        self._env = env
        self._event: simpy.Event | None = None

    def wait(self) -> simpy.Event:
        """Return SimPy's event for the next time that it is set."""
        if self._event is None:
            self._event = self._env.event()
        return self._event

    def set(self) -> None:
        """Wake the processes that wait now."""
        if self._event is not None:
            event, self._event = self._event, None
            event.succeed()


class QueueTimers:
    """The timers of one queue, at most one for each key.

    SimPy's events cannot be cancelled. A timer that is moved to a later time keeps its event, and waits again when the
    event comes. The event of a cancelled timer does nothing. So a deadline that moves with every message costs nothing.
    """

    __slots__ = ("_events", "_time", "_timers")

    def __init__(self, time: VirtualTime) -> None:
        self._time = time
        self._timers: dict[str, tuple[int, Callable[[], None]]] = {}
        """By key: when it goes off, and what is then done."""
        self._events: dict[str, int] = {}
        """When the next event of a key comes."""

    def start(self, key: str, delay_ns: int, due: Callable[[], None]) -> None:
        """Set the timer ``key``; if it runs, move it."""
        due_ns = self._time.now_ns() + delay_ns
        self._timers[key] = due_ns, due
        if key not in self._events or due_ns < self._events[key]:
            self._come_at(key, due_ns)

    def cancel(self) -> None:
        """Forget all timers."""
        self._timers.clear()

    def _come_at(self, key: str, at_ns: int) -> None:
        self._events[key] = at_ns
        self._time.after(at_ns - self._time.now_ns(), lambda: self._come(key, at_ns))

    def _come(self, key: str, at_ns: int) -> None:
        if self._events.get(key) != at_ns:
            return  # an earlier one has come instead
        del self._events[key]
        if key not in self._timers:
            return
        due_ns, due = self._timers[key]
        if due_ns > at_ns:  # moved meanwhile
            self._come_at(key, due_ns)
            return
        del self._timers[key]
        due()
