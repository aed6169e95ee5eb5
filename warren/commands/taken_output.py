"""Standard output that knows how much of it its reader has taken.

What is written into a pipe is not read yet: its buffer holds thousands of small messages when the reader goes away, as
``head`` does. So a command that acks what it has written asks here first. A pipe tells how many bytes wait in it; a
file has taken what was written.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import io
import os
import select
import stat
import sys
import termios
import time
from collections.abc import Callable
from typing import Final

_FIRST_PAUSE_S: Final = 20e-6
_LONGEST_PAUSE_S: Final = 2e-3


class TakenOutput:
    """Standard output, for messages that a command acks afterwards."""

    def __init__(self) -> None:
        self._descriptor = _pipe_of_stdout()
        self.is_gone = False
        """The reader has gone away; nothing more can be written."""

    @property
    def number(self) -> int:
        """The pipe's descriptor, -1 if it is not a pipe."""
        return -1 if self._descriptor is None else self._descriptor

    @property
    def is_pipe(self) -> bool:
        return self._descriptor is not None

    def write(self, data: bytes, is_interrupted: Callable[[], object]) -> int:
        """Write ``data``; return how many bytes of it were taken: all, unless the reader goes away or an interrupt
        ends the wait. Raises ``OSError`` if a file cannot be written."""
        if self._descriptor is None:
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
            return len(data)
        written = 0
        while written < len(data) and not self.is_gone:
            try:
                written += os.write(self._descriptor, data[written:])
            except BrokenPipeError:
                self.is_gone = True
        return max(written - self._wait(self._descriptor, is_interrupted), 0)

    def _wait(self, descriptor: int, is_interrupted: Callable[[], object]) -> int:
        """Wait until the pipe is empty or its reader gone; return the number of bytes that are left in it."""
        pause_s = _FIRST_PAUSE_S
        closed = select.poll()
        closed.register(descriptor, select.POLLERR)
        while _waiting_bytes(descriptor) and not self.is_gone and not is_interrupted():
            self.is_gone = bool(closed.poll(0))
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        return _waiting_bytes(descriptor)  # again: the reader may have taken it just before the interrupt


def _pipe_of_stdout() -> int | None:
    with contextlib.suppress(OSError, io.UnsupportedOperation):
        sys.stdout.flush()
        descriptor = sys.stdout.fileno()
        if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            _waiting_bytes(descriptor)
            return descriptor
    return None


def _waiting_bytes(descriptor: int) -> int:
    buffer = array.array("i", [0])
    fcntl.ioctl(descriptor, termios.FIONREAD, buffer)
    return buffer[0]
