"""An error that strikes what takes too long, in the main thread."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def raised_after(seconds: float, error: BaseException, *, again_after: float = 0.0) -> Iterator[None]:
    """Raise ``error`` in the block after ``seconds``, from a signal's handler, as a time limit does.

    ``again_after``: raise it again each time after this many seconds; 0: never.
    """

    def strike(number: int, frame: FrameType | None) -> None:
        raise error

    before = signal.signal(signal.SIGALRM, strike)
    signal.setitimer(signal.ITIMER_REAL, seconds, again_after)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
