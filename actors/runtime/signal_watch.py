"""Wake a main thread that may wait for ever when a signal comes, and notice when a pipe has lost its reader.

Python calls a signal's handler in the main thread, between two instructions. A signal that comes just before that
thread begins to wait for a lock is handled when the wait is over: perhaps never. So a dedicated thread is notified of
each signal, too, and wakes the main thread until the handler has been called. It also notices that a pipe has no reader
any more, and wakes the main thread with SIGPIPE.
"""

from __future__ import annotations

import select
import signal
import socket
import threading
import time
from collections.abc import Callable
from typing import Final

from warren.actors.runtime.interrupts import uninterrupted

AGAIN_S: Final = 0.02
"""How often the main thread is woken until its handler has been called."""


class SignalWatch:
    """For the main thread, which must have a handler for SIGPIPE as long as this is open."""

    def __init__(self, pipe: int, has_heard: Callable[[], bool]) -> None:
        """``pipe``: its descriptor, or -1; ``has_heard`` returns whether a handler has been called."""
        self._pipe = pipe
        self._has_heard = has_heard
        self.is_reader_gone = False
        self._whom = threading.get_ident()
        self._mine, self._pythons = socket.socketpair()
        self._pythons.setblocking(False)
        self._before = signal.set_wakeup_fd(self._pythons.fileno(), warn_on_full_buffer=False)
        self._thread = threading.Thread(target=self._watch, name="warren-signals", daemon=True)
        uninterrupted(self._thread.start)

    def close(self) -> None:
        """Stop watching."""
        signal.set_wakeup_fd(self._before)
        self._has_heard = lambda: True
        self._pythons.close()  # the other end sees that
        self._thread.join()
        self._mine.close()

    def _watch(self) -> None:
        events = select.poll()
        events.register(self._mine, select.POLLIN)
        if self._pipe >= 0:
            events.register(self._pipe, 0)  # poll always reports errors, and the reader's end is one
        while True:
            ready = [descriptor for descriptor, _ in events.poll()]
            if self._pipe in ready:
                self.is_reader_gone = True
                events.unregister(self._pipe)
            elif not self._mine.recv(64):
                return
            while not self._has_heard():
                signal.pthread_kill(self._whom, signal.SIGPIPE)
                time.sleep(AGAIN_S)
