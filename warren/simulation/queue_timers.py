"""The timers of one simulated queue. There is at most one for each key; starting it again moves it.

SimPy's events cannot be cancelled. A timer that is moved to a later time keeps its event, and waits again when the
event comes. The event of a cancelled timer does nothing. So a deadline that moves with every message costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from warren.simulation.virtual_time import VirtualTime


class QueueTimers:
    """By key: when it goes off, and what is then done."""

    __slots__ = ("_events", "_time", "_timers")

    def __init__(self, time: VirtualTime) -> None:
        self._time = time
        self._timers: dict[str, tuple[int, Callable[[], None]]] = {}
        self._events: dict[str, int] = {}
        """When the next event of a key comes."""

    def start(self, key: str, delay_ns: int, due: Callable[[], None]) -> None:
        """Set the timer ``key``; one that runs is moved."""
        due_ns = self._time.now_ns() + delay_ns
        self._timers[key] = due_ns, due
        if key not in self._events or due_ns < self._events[key]:
            self._come_at(key, due_ns)

    def cancel(self) -> None:
        """Forget them all."""
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
