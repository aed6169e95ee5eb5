"""SettlingPool: threads that run turns, and tell when none is left to run. For tests with a clock turned by hand."""

from __future__ import annotations

import threading

from warren.actors.runtime.future import Timeout
from warren.actors.runtime.pool import PooledActor, ThreadPool

PATIENCE_S = 30.0
"""Turns that go on for so long have no end."""


class SettlingPool(ThreadPool):
    """See the module's prose. Turns that a user's own thread runs are that thread's business."""

    def __init__(self, threads: int, name: str = "warren") -> None:
        self._waiting = 0
        self._changed = threading.Condition()
        super().__init__(threads, name)

    def submit(self, actor: PooledActor) -> None:
        if self._holding.held is None:
            with self._changed:
                self._waiting += 1
        super().submit(actor)

    def _run_turn(self, actor: PooledActor) -> None:
        try:
            super()._run_turn(actor)
        finally:
            with self._changed:
                self._waiting -= 1
                if not self._waiting:
                    self._changed.notify_all()

    def settle(self) -> None:
        """Come back when nobody waits for a turn. Raises :class:`Timeout` where turns bring about turns for ever."""
        with self._changed:
            if not self._changed.wait_for(lambda: not self._waiting, PATIENCE_S):
                raise Timeout(f"turns go on for {PATIENCE_S:.0f} seconds")
