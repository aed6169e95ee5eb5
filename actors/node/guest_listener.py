"""GuestListener: accepts other processes at the socket of a node that is not shared, and hands their connections on.

The location of the socket is described in :mod:`warren.actors.node.node_socket`. Processes of other users are dropped.

One thread accepts, so the node is not disturbed. If no socket can be created (a long path without ``/proc``), the node
runs without one and logs that. A forked child closes its copy of the descriptor and leaves the file alone.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Final

from warren.actors.log_events import log_event, logger
from warren.actors.node.node_socket import NodeSocket, may_come_in, peer_of
from warren.actors.runtime.interrupts import uninterrupted
from warren.storage.errors import StorageError

_LOG = logger("status")

BACKLOG: Final = 128
RETRY_S: Final = 0.1
"""How long it waits if it cannot accept, because no descriptor is left."""

LetIn = Callable[[socket.socket], None]
"""Serves a connection."""


class GuestListener:
    """The socket of one node and its thread. Create it while holding the directory's lock."""

    def __init__(self, directory: str, let_in: LetIn) -> None:
        """Start listening. Raises :class:`StorageError` if no socket can be created."""
        self._let_in = let_in
        self._socket = NodeSocket(directory)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="warren-guests", daemon=True)
        with contextlib.ExitStack() as undo:
            undo.callback(self._socket.remove)
            try:
                self._listener = undo.enter_context(self._socket.listen(BACKLOG))
                undo.callback(self._end)
                self._listener.setblocking(True)
                uninterrupted(self._thread.start)
            except (OSError, ValueError, RuntimeError) as error:  # the last: no thread available
                raise StorageError(f"{self.path}: cannot create the socket: {error}") from error
            undo.pop_all()

    @property
    def path(self) -> str:
        """The path of the socket."""
        return self._socket.path

    @classmethod
    def start(cls, directory: str, let_in: LetIn) -> GuestListener | None:
        """Return a listener; on failure log a warning and return ``None``."""
        try:
            return cls(directory, let_in)
        except StorageError as error:
            _LOG.warning(
                "`warren top` cannot attach to this node: %s",
                error,
                extra=log_event("status_unavailable", error, path=directory),
            )
            return None

    # ── the end ─────────────────────────────────────────────────────────────────────────────────────────────────

    def stop(self) -> None:
        """Stop listening and remove the socket file. Wait for a connection that is being handed on."""
        self._socket.remove()
        self._end()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _end(self) -> None:
        """Let the thread end, even if it is waiting for a connection."""
        self._stopped.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)

    def forget(self) -> None:
        """In a forked child, which lacks the thread, close the parent's descriptor."""
        self._listener.close()

    # ── the thread ──────────────────────────────────────────────────────────────────────────────────────────────

    def _listen(self) -> None:
        with self._listener:
            while not self._stopped.is_set():
                try:
                    connection, _ = self._listener.accept()
                except OSError:  # stopped, the peer is gone, or no descriptor is left
                    self._stopped.wait(RETRY_S)
                else:
                    self._hand_on(connection)

    def _hand_on(self, connection: socket.socket) -> None:
        try:
            if self._stopped.is_set() or not may_come_in(peer_of(connection)[1]):
                connection.close()
            else:
                self._let_in(connection)
        except Exception as error:  # the node goes on
            _LOG.exception("another process could not connect", extra=log_event("status_failed", error))
            connection.close()
