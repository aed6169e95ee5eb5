"""WakeEvent: an event that one thread, or one event loop through a file, waits for. Setting it never blocks.

It stays set until it is cleared. Clear it first and look for work afterwards: what comes up in between sets it again.
"""

from __future__ import annotations

import contextlib
import socket
import threading

from warren.actors.runtime.future import Future


class WakeEvent:
    """Set by any thread, waited for by one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_set = False
        self._waiting: Future | None = None
        self._ends: tuple[socket.socket, socket.socket] | None = None

    def set(self) -> None:
        """Set the event and wake its waiter."""
        with self._lock:
            if self._is_set:
                return
            self._is_set = True
            waiting, self._waiting = self._waiting, None
            if self._ends is not None:
                self._ends[1].send(b"\0")
        if waiting is not None:
            waiting.set()

    def clear(self) -> None:
        """Reset the event."""
        with self._lock:
            if self._is_set and self._ends is not None:
                with contextlib.suppress(BlockingIOError):
                    self._ends[0].recv(1)
            self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set, at most ``timeout`` seconds; return whether it is. It stays set."""
        with self._lock:
            if self._is_set:
                return True
            waiting = self._waiting = Future()
        waiting.settled(timeout)
        with self._lock:
            self._waiting = None
            return self._is_set

    def fileno(self) -> int:
        """Return a file descriptor that is readable while the event is set; created by the first call."""
        with self._lock:
            if self._ends is None:
                self._ends = socket.socketpair()
                for end in self._ends:
                    end.setblocking(False)
                if self._is_set:
                    self._ends[1].send(b"\0")
            return self._ends[0].fileno()

    def close(self) -> None:
        """Close its file."""
        with self._lock:
            ends, self._ends = self._ends, None
        for end in ends or ():
            end.close()
