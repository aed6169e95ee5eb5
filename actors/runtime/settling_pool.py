"""SettlingPool: threads that run turns, and report when none is left to run. For tests with a manual clock."""

from __future__ import annotations

import threading

from pykka import Timeout

from warren.actors.runtime.pool import ThreadPool
from warren.actors.runtime.pooled_actor import Turns

PATIENCE_S = 30.0
"""Turns that go on for this long are taken to be endless."""


class SettlingPool(ThreadPool):
    """A thread pool with :meth:`settle`. Turns run by a user's own thread are not counted."""

    def __init__(self, threads: int, name: str = "warren") -> None:
        self._waiting = 0
        self._changed = threading.Condition()
        super().__init__(threads, name)

    def submit(self, turns: Turns) -> None:
        if self._holding.held is None:
            with self._changed:
                self._waiting += 1
        super().submit(turns)

    def _run_turn(self, turns: Turns) -> None:
        try:
            super()._run_turn(turns)
        finally:
            with self._changed:
                self._waiting -= 1
                if not self._waiting:
                    self._changed.notify_all()

    def settle(self) -> None:
        """Wait until no turn is left. Raises :class:`Timeout` if turns cause further turns endlessly."""
        with self._changed:
            if not self._changed.wait_for(lambda: not self._waiting, PATIENCE_S):
                raise Timeout(f"turns go on for {PATIENCE_S:.0f} seconds")
