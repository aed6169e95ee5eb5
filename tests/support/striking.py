"""An interrupt at any line that a test chooses."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def struck_at(line: int, module: str, work: Callable[[], object]) -> bool:
    """Do ``work``, and raise KeyboardInterrupt as its ``line``-th line of ``module`` begins; whether it came so far.

    Not at a ``with``: Python looks for signals behind a lock's ``__exit__``, never ahead of it.
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
