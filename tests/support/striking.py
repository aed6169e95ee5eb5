"""An error that strikes a test's work: an interrupt at a line, or at any moment at which Python looks for signals, that
the test chooses; or an error of its own when the work takes too long.
"""

from __future__ import annotations

import dis
import linecache
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final

from warren.actors.runtime import interrupts


def struck_at(line: int, module: str, work: Callable[[], object]) -> bool:
    """Do ``work``; raise KeyboardInterrupt at its ``line``-th line of ``module``. Return whether it got there.

    Not at a ``with``: Python looks for signals after a lock's ``__exit__``, never before it.
    """
    left = line

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal left
        if not frame.f_code.co_filename.endswith(module):
            return None
        if event == "line" and "with " not in linecache.getline(frame.f_code.co_filename, frame.f_lineno):
            left -= 1
            if left == 0:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


_PROJECT: Final = Path(__file__).parent.parent.parent
OURS: Final = tuple(f"{_PROJECT / room}/" for room in ("warren", "actors", "queue_index", "msg_store", "storage"))
"""The project's own code."""
LOOKS: Final = frozenset({"RESUME", "CALL", "CALL_KW", "CALL_FUNCTION_EX", "JUMP_BACKWARD"})
"""Behind these instructions Python looks for signals, and runs their handlers."""


def struck_at_look(number: int, folders: tuple[str, ...], work: Callable[[], object]) -> bool:
    """Do ``work``, and raise SIGINT as Python looks for signals for the ``number``-th time in a file of ``folders``;
    whether it came so far. Not in turns: what comes then waits until they are over."""
    left = number

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        if interrupts._is_holding or not frame.f_code.co_filename.startswith(folders):
            return None
        frame.f_trace_opcodes = True
        code, before = frame.f_code.co_code, ""

        def step(frame: FrameType, event: str, argument: Any) -> Any:
            nonlocal left, before
            if event == "opcode":
                looks, before = before in LOOKS, dis.opname[code[frame.f_lasti]]
                if looks and not interrupts._is_holding:
                    left -= 1
                    if left == 0:
                        signal.raise_signal(signal.SIGINT)
            return step

        return step

    last = sys.gettrace()
    sys._getframe().f_trace_opcodes = True  # Python 3.12 traces instructions only if this is set before the next line
    sys.settrace(trace)
    try:
        work()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(last)
    return left <= 0


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
