"""Interrupts: what a signal's handler raises (KeyboardInterrupt, a time limit) strikes between turns only.

Python runs the handlers of signals in the main thread, between any two instructions; what one raises would cut a turn
in half, and with it a queue's state or a lock that is held. So while the main thread runs a turn, the handlers that it
has at that moment are put aside, whoever set them; a signal that comes is held, and its own handler is called as soon
as the turn is over. Turns are short: they wait for the disk, never for anybody's messages.

Other threads, the pool's among them, are never struck, and pay nothing. Handlers that are written in C, as those of
``faulthandler``, are not Python's, and stay.
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

# All three belong to the main thread.
_aside: dict[int, Callable[[int, FrameType | None], Any]] = {}
"""The handlers that are put aside."""
_last_seen: tuple[list[Any], list[int]] = [], []
"""The handlers of all signals when they were last put aside, and where those of them stand that are Python's."""
_held: deque[tuple[Callable[[int, FrameType | None], Any], int, FrameType | None]] = deque()
"""Signals that came meanwhile."""
_is_holding = False
_main_thread = threading.main_thread().ident


def _note_main_thread() -> None:
    """In a forked child it is the thread that forked."""
    global _main_thread  # noqa: PLW0603 - there is one main thread
    _main_thread = threading.main_thread().ident


os.register_at_fork(after_in_child=_note_main_thread)


def uninterrupted(work: Callable[..., T], *args: Any) -> T:
    """Call ``work``; what signals would raise meanwhile is raised when it is over. Calls within it change nothing."""
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
        except ValueError:  # Python runs in somebody else's program, and its main thread is not the one
            _aside.clear()
            return


def _hold(number: int, frame: FrameType | None) -> None:
    _held.append((_aside[number], number, frame))


def _give_back() -> None:
    """Give every handler its signal back, then let the signals that came strike, whatever strikes in between."""
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
    """The closing of one thing that many threads may close, once and whole. Who comes while another thread is at it
    waits for that one."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.is_over = False
        """Set by the work, when nothing is left to do."""

    def run(self, work: Callable[[], None]) -> None:
        """Close, unless that is over. ``work`` goes on where it was broken off.

        An interrupt is raised when it is over; a second one breaks it off, and the next call goes on with it.
        """
        try:
            self.attempt(work)
        except BaseException:
            with contextlib.suppress(Exception):
                self.attempt(work)
            raise

    def attempt(self, work: Callable[[], None]) -> None:
        """The same, but for an interrupt, which breaks it off."""
        with self._lock:
            if not self.is_over:
                work()
