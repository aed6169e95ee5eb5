"""WaitingRoom: threads wait in it until a condition holds, without a limit of time.

Each thread passes its condition as a question; one thread asks at a time. Code that changes something calls
:meth:`WaitingRoom.changed`, and all threads ask again. Changes without that call are noticed after :data:`LOOK_S`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")

LOOK_S: Final = 0.5
"""How late an unannounced change is noticed, such as something that expired."""


class WaitingRoom:
    """Asks one question at a time."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._waiting = 0

    def changed(self) -> None:
        """Let all waiting threads ask again."""
        if self._waiting:
            with self._condition:
                self._condition.notify_all()

    def wait_for(self, question: Callable[[], T | None], timeout: float | None = None) -> T | None:
        """Ask until the answer is not ``None``; return ``None`` after ``timeout`` seconds. With 0, ask once."""
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._condition:
            self._waiting += 1
            try:
                while (answer := question()) is None:
                    left = LOOK_S if deadline is None else min(LOOK_S, deadline - time.monotonic())
                    if left <= 0:
                        return None
                    self._condition.wait(left)
                return answer
            finally:
                self._waiting -= 1


def this_thread() -> int:
    """Return a number that no other living thread has."""
    return threading.get_ident()
