"""Clocks: the time, and alarms.

All uses of time in the actors go through a :class:`Clock`: the system's, or one that a test or a simulation advances. A
clock has one alarm at a time, that of the node's timer (:mod:`warren.actors.runtime.timer`).
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import Protocol

from warren.actors.runtime.interrupts import uninterrupted
from warren.storage.errors import InvalidValueError

NS = 1_000_000_000


class Clock(Protocol):
    """Monotonic and wall-clock time, and one alarm."""

    def now_ns(self) -> int:
        """Return monotonic time in nanoseconds."""

    def wall_us(self) -> int:
        """Return the time since the Unix epoch in microseconds."""

    def wake_at(self, at_ns: int | None, wake: Callable[[], None]) -> None:
        """Call ``wake`` once, from any thread, as soon as ``now_ns`` has reached ``at_ns``; ``None``: cancel.

        Replaces the previous alarm.
        """

    def close(self) -> None:
        """Cancel the alarm and accept no more."""


class SystemClock:
    """The machine's clocks, and a thread that sleeps until the alarm. The thread is created with the first alarm."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._alarm: tuple[int, Callable[[], None]] | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    def now_ns(self) -> int:
        return time.monotonic_ns()

    def wall_us(self) -> int:
        return time.time_ns() // 1000

    def wake_at(self, at_ns: int | None, wake: Callable[[], None]) -> None:
        with self._changed:
            self._alarm = None if at_ns is None else (at_ns, wake)
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="warren-clock", daemon=True)
                uninterrupted(self._thread.start)
            self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._closed:
                    return
                if self._alarm is None:
                    self._changed.wait()
                    continue
                at_ns, wake = self._alarm
                remaining = at_ns - time.monotonic_ns()
                if remaining > 0:
                    self._changed.wait(remaining / NS)
                    continue
                self._alarm = None
            wake()


class HandClock:
    """A clock that stands still until it is advanced. Any thread may read it; one at a time may advance it."""

    def __init__(self, wall_us: int = 1_600_000_000_000_000) -> None:
        self._now_ns = 0
        self._wall_us = wall_us
        self._alarm: tuple[int, Callable[[], None]] | None = None
        self._lock = threading.Lock()

    def now_ns(self) -> int:
        return self._now_ns

    def wall_us(self) -> int:
        return self._wall_us + self._now_ns // 1000

    def wake_at(self, at_ns: int | None, wake: Callable[[], None]) -> None:
        with self._lock:
            self._alarm = None if at_ns is None else (at_ns, wake)

    def close(self) -> None:
        self.wake_at(None, lambda: None)

    def _take_alarm(self, end_ns: int) -> Callable[[], None] | None:
        """Take the alarm if it is due by ``end_ns``, and advance to its time."""
        with self._lock:
            if self._alarm is None or self._alarm[0] > end_ns:
                return None
            (at_ns, wake), self._alarm = self._alarm, None
            self._now_ns = max(self._now_ns, at_ns)
            return wake

    def advance(self, seconds: float, settle: Callable[[], object] = lambda: None) -> None:
        """Let ``seconds`` pass. Each alarm on the way goes off at its own time; ``settle`` is called after each.

        ``settle`` lets the actors do what the alarm triggered, and set the next one.
        """
        if not 0 <= seconds < math.inf:
            raise InvalidValueError(f"a time is from 0 seconds, not {seconds}")
        end_ns = self._now_ns + round(seconds * NS)
        settle()
        while (wake := self._take_alarm(end_ns)) is not None:
            wake()
            settle()
        self._now_ns = end_ns
