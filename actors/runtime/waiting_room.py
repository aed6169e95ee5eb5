"""WaitingRoom: where threads wait until something is so, for as long as they like.

What it is that they wait for is a question that each of them asks, one thread at a time. Whoever changes something
calls :meth:`WaitingRoom.changed`, and everybody asks again. What changes without that call is noticed after
:data:`LOOK_S`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")

LOOK_S: Final = 0.5
"""How late a change is noticed that nobody told: something that expired, or was done past the room."""


class WaitingRoom:
    """A question at a time."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._waiting = 0

    def changed(self) -> None:
        """Let everybody who waits ask again."""
        if self._waiting:
            with self._condition:
                self._condition.notify_all()

    def wait_for(self, question: Callable[[], T | None], timeout: float | None = None) -> T | None:
        """Ask until the answer is not ``None``; ``None`` after ``timeout`` seconds. 0: ask once."""
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
    """A number that no other living thread has."""
    return threading.get_ident()
