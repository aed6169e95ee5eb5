"""Bell: tells one thread, or one event loop, that something has come up elsewhere. Who rings does not wait.

A bell that was rung stays so until it is cleared; rings in between are one. Clear it first and look afterwards: what
comes up in between rings again.
"""

from __future__ import annotations

import contextlib
import socket
import threading

from actors.future import Future


class Bell:
    """Rung from any thread, heard by one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rung = False
        self._waiting: Future | None = None
        self._ends: tuple[socket.socket, socket.socket] | None = None

    def ring(self) -> None:
        """Wake whoever waits."""
        with self._lock:
            if self._rung:
                return
            self._rung = True
            waiting, self._waiting = self._waiting, None
            if self._ends is not None:
                self._ends[1].send(b"\0")
        if waiting is not None:
            waiting.set()

    def clear(self) -> None:
        """Forget that it was rung."""
        with self._lock:
            if self._rung and self._ends is not None:
                with contextlib.suppress(BlockingIOError):
                    self._ends[0].recv(1)
            self._rung = False

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is rung; whether it was, after ``timeout`` seconds. It stays rung."""
        with self._lock:
            if self._rung:
                return True
            waiting = self._waiting = Future()
        waiting.settled(timeout)
        with self._lock:
            self._waiting = None
            return self._rung

    def fileno(self) -> int:
        """A file that is readable while the bell is rung, for a selector; there from the first call on."""
        with self._lock:
            if self._ends is None:
                self._ends = socket.socketpair()
                for end in self._ends:
                    end.setblocking(False)
                if self._rung:
                    self._ends[1].send(b"\0")
            return self._ends[0].fileno()

    def close(self) -> None:
        """Close its file."""
        with self._lock:
            ends, self._ends = self._ends, None
        for end in ends or ():
            end.close()
