"""Interrupts: exceptions of signal handlers (KeyboardInterrupt, a time limit) are raised between turns only.

Python runs signal handlers in the main thread, between any two instructions. An exception there would cut a turn in
half and leave a queue's state or a lock inconsistent. So while the main thread runs a turn, all current handlers are
replaced. Signals that arrive are held, and their own handlers are called as soon as the turn is over. Turns are short:
they wait for the disk, never for messages.

Other threads, including those of the pool, are never interrupted and pay nothing. Handlers written in C, such as those
of ``faulthandler``, stay in place.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # what `signal` wraps, in ten times the time; and this is every turn's
import contextlib
import os
import signal
import threading
from collections import deque
from collections.abc import Callable
from types import FrameType
from typing import Any, Final, TypeVar

T = TypeVar("T")

_SIGNALS: Final = tuple(sorted(int(number) for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}))

# These three belong to the main thread.
_aside: dict[int, Callable[[int, FrameType | None], Any]] = {}
"""The replaced handlers."""
_last_seen: tuple[list[Any], list[int]] = [], []
"""The handlers of all signals when they were last replaced, and which of them are written in Python."""
_held: deque[tuple[Callable[[int, FrameType | None], Any], int, FrameType | None]] = deque()
"""Signals that arrived meanwhile."""
_is_holding = False
_main_thread = threading.main_thread().ident


def _note_main_thread() -> None:
    """In a forked child the thread that forked is the main thread."""
    global _main_thread  # noqa: PLW0603 - there is one main thread
    _main_thread = threading.main_thread().ident


os.register_at_fork(after_in_child=_note_main_thread)


def uninterrupted(work: Callable[..., T], *args: Any) -> T:
    """Call ``work``; exceptions of signal handlers are raised when it is over. Nested calls have no further effect."""
    global _is_holding  # noqa: PLW0603 - there is one main thread
    if _is_holding or threading.get_ident() != _main_thread:
        return work(*args)
    try:
        _put_aside()
        _is_holding = True
        return work(*args)
    finally:
        _is_holding = False
        _give_back()


def _put_aside() -> None:
    global _last_seen  # noqa: PLW0603 - there is one main thread
    handlers = [*map(_signal.getsignal, _SIGNALS)]
    if handlers != _last_seen[0]:
        _last_seen = handlers, [at for at, handler in enumerate(handlers) if callable(handler)]
    for at in _last_seen[1]:
        _aside[_SIGNALS[at]] = handlers[at]
        try:
            _signal.signal(_SIGNALS[at], _hold)
        except ValueError:  # Python is embedded in another program, and this is not its main thread
            _aside.clear()
            return


def _hold(number: int, frame: FrameType | None) -> None:
    _held.append((_aside[number], number, frame))


def _give_back() -> None:
    """Restore every handler, then call those of the held signals, even if one of them raises."""
    try:
        for number, handler in list(_aside.items()):
            _signal.signal(number, handler)
            del _aside[number]
        while _held:
            handler, number, frame = _held.popleft()
            handler(number, frame)
    finally:
        if _aside or _held:
            _give_back()


class Closing:
    """Close one thing completely, once, even if many threads do so. A thread that comes while another closes it waits
    for that one."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.is_over = False
        """Set by ``work`` when nothing is left to do."""

    def run(self, work: Callable[[], None]) -> None:
        """Close, unless that is done. ``work`` resumes at the point of interruption.

        An interrupt is raised when closing is over; a second one aborts it, and the next call continues.
        """
        try:
            self.attempt(work)
        except BaseException:
            with contextlib.suppress(Exception):
                self.attempt(work)
            raise

    def attempt(self, work: Callable[[], None]) -> None:
        """Like :meth:`run`, but an interrupt aborts it."""
        with self._lock:
            if not self.is_over:
                work()
