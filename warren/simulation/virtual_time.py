"""Virtual time: SimPy's clock in whole nanoseconds, for everything that is simulated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import simpy

from warren.simulation.units import ns


class VirtualTime:
    """The clock of one simulation. ``start_of_day_s``: the time of day at which it begins."""

    __slots__ = ("_wall_us", "env")

    def __init__(self, start_of_day_s: float = 0.0) -> None:
        self.env = simpy.Environment(0)
        self._wall_us = ns(start_of_day_s) // 1000

    def now_ns(self) -> int:
        """Nanoseconds since the simulation's start."""
        return int(self.env.now)

    def wall_us(self) -> int:
        """Microseconds since the midnight before the start."""
        return self._wall_us + int(self.env.now) // 1000

    def after(self, delay_ns: int, call: Callable[[], object]) -> None:
        """Call ``call`` once, ``delay_ns`` from now."""
        self._call_at(self.env.timeout(delay_ns), call)

    @staticmethod
    def _call_at(event: Any, call: Callable[[], object]) -> None:
        event.callbacks.append(lambda _: call())


class Event:
    """Something that processes wait for and others set."""

    __slots__ = ("_env", "_event")

    def __init__(self, env: simpy.Environment) -> None:
        self._env = env
        self._event: simpy.Event | None = None

    def wait(self) -> simpy.Event:
        """SimPy's event of the next time that it is set."""
        if self._event is None:
            self._event = self._env.event()
        return self._event

    def set(self) -> None:
        """Let who waits go on; what nobody waits for is forgotten."""
        if self._event is not None:
            event, self._event = self._event, None
            event.succeed()
