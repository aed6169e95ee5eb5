"""A node's status server: answers other processes that inspect or operate a running node.

Requests and answers are *lines* of JSON, over a Unix-domain socket that only the node's user can open. Their content is
defined by the caller (``warren.top.snapshots``); this module has the socket and the one thread that serves it. A
connection that begins with AMQP is handed on unread.

The location of the socket is described in :mod:`warren.actors.node.node_socket`.

It never disturbs the node. One thread serves all visitors, one request after another, and never blocks: an answer is
sent as fast as its visitor reads it, and no further request is read meanwhile. Visitors that do not read, or send an
endless line, are dropped. If no socket can be created (a long path without ``/proc``), the node runs without one and
logs that.

A forked child closes its copies of the descriptors and leaves the files alone.
"""

from __future__ import annotations

import contextlib
import json
import math
import selectors
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs

from warren.actors.log_events import log_event, logger
from warren.actors.node.node_socket import NodeSocket, may_come_in, peer_of
from warren.actors.runtime.interrupts import uninterrupted
from warren.storage.errors import StorageError, WarrenError, shortly

_LOG = logger("status")

MAX_REQUEST_BYTES: Final = 1 << 16
MAX_VISITORS: Final = 16
PATIENCE_S: Final = 2.0
"""A visitor that reads nothing of an answer for this long is dropped."""

_AMQP: Final = b"A"
"""The first byte of AMQP's header."""

Request = Mapping[str, Any]
Session = Callable[[Request], Mapping[str, Any]]
"""Answers one visitor's requests in sequence; may keep state between them."""
LetIn = Callable[[socket.socket], None]
"""Takes over the connection of an AMQP client."""


@attrs.define(eq=False, repr=False)
class _Visitor:
    """One connection. All pending output is sent before more is received."""

    connection: socket.socket
    session: Session
    received: bytearray = attrs.Factory(bytearray)
    unsent: bytearray = attrs.Factory(bytearray)
    deadline_s: float = math.inf
    """When it is dropped for reading nothing."""
    has_spoken: bool = False

    @property
    def wants(self) -> int:
        """The events for which its socket is watched."""
        return selectors.EVENT_WRITE if self.unsent else selectors.EVENT_READ

    def is_guest(self) -> bool:
        """Whether its first byte, which is left unread, begins AMQP's header."""
        if self.has_spoken:
            return False
        try:
            first = self.connection.recv(1, socket.MSG_PEEK)
        except OSError:
            return False
        self.has_spoken = True
        return first == _AMQP

    def attend(self) -> bool:
        """Send pending output, or else receive and answer; return whether to keep the visitor."""
        try:
            if self.unsent:
                return self._send()
            data = self.connection.recv(1 << 16)
            self.received += data
            self._answer()
            return bool(data) and len(self.received) <= MAX_REQUEST_BYTES and self._send()
        except BlockingIOError:
            return True
        except OSError:
            return False

    def _answer(self) -> None:
        """Answer the next complete line, unless output is pending."""
        if not self.unsent and (end := self.received.find(b"\n")) >= 0:
            line = bytes(self.received[:end])
            del self.received[: end + 1]
            self.unsent += answer(self.session, line)
            self.deadline_s = time.monotonic() + PATIENCE_S

    def _send(self) -> bool:
        while self.unsent:
            sent = self.connection.send(self.unsent)
            del self.unsent[:sent]
            self.deadline_s = time.monotonic() + PATIENCE_S if self.unsent else math.inf
            self._answer()
        return True


class StatusServer:
    """The socket of one node and its thread. Create it while holding the directory's lock."""

    def __init__(self, directory: str, new_session: Callable[[], Session], let_in: LetIn | None = None) -> None:
        """Start serving. Raises :class:`StorageError` if no socket can be created."""
        self._new_session = new_session
        self._guest = socket.socket.close if let_in is None else let_in
        self._socket = NodeSocket(directory)
        self._visitors: dict[socket.socket, _Visitor] = {}
        self._stopping = False
        self._thread = threading.Thread(target=self._serve, name="warren-status", daemon=True)
        with contextlib.ExitStack() as undo:
            undo.callback(self._socket.remove)
            try:
                self._wake_end, self._heard_end = map(undo.enter_context, socket.socketpair())
                self._listener = undo.enter_context(self._socket.listen(MAX_VISITORS))
                uninterrupted(self._thread.start)
            except (OSError, ValueError, RuntimeError) as error:  # the last: no thread available
                raise StorageError(f"{self.path}: cannot create the socket: {error}") from error
            undo.pop_all()

    @property
    def path(self) -> str:
        """The path of the socket."""
        return self._socket.path

    @classmethod
    def start(
        cls, directory: str, new_session: Callable[[], Session], let_in: LetIn | None = None
    ) -> StatusServer | None:
        """Return a server; on failure log a warning and return ``None``."""
        try:
            return cls(directory, new_session, let_in)
        except StorageError as error:
            _LOG.warning(
                "`warren top` cannot attach to this node: %s",
                error,
                extra=log_event("status_unavailable", error, path=directory),
            )
            return None

    # ── the end ─────────────────────────────────────────────────────────────────────────────────────────────────

    def stop(self) -> None:
        """Stop serving and remove the socket file. Wait for a request in progress, but not for visitors."""
        self._socket.remove()
        self._stopping = True
        with contextlib.suppress(OSError):
            self._wake_end.send(b"!")
        if self._thread is not threading.current_thread():
            self._thread.join()

    def forget(self) -> None:
        """In a forked child, which lacks the thread, close the parent's descriptors."""
        for sock in (self._listener, self._wake_end, self._heard_end, *self._visitors):
            sock.close()

    # ── the thread ──────────────────────────────────────────────────────────────────────────────────────────────

    def _serve(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._heard_end, selectors.EVENT_READ)
            selector.register(self._listener, selectors.EVENT_READ)
            try:
                while self._serve_ready(selector):
                    pass
            except Exception:
                _LOG.exception(
                    "`warren top` cannot attach to this node any more", extra=log_event("status_unavailable")
                )
                self._socket.remove()
        for sock in (self._listener, self._wake_end, self._heard_end, *self._visitors):
            sock.close()

    def _serve_ready(self, selector: selectors.BaseSelector) -> bool:
        """Serve all ready connections; return whether to go on."""
        patience_s = (
            min((visitor.deadline_s for visitor in self._visitors.values()), default=math.inf) - time.monotonic()
        )
        for key, _ in selector.select(None if patience_s == math.inf else max(0.0, patience_s)):
            if self._stopping:
                return False
            if key.fileobj is self._listener:
                self._let_in(selector)
            elif isinstance(visitor := key.data, _Visitor):
                if visitor.is_guest():
                    self._hand_on(selector, visitor)
                elif visitor.attend():
                    selector.modify(visitor.connection, visitor.wants, visitor)
                else:
                    self._let_out(selector, visitor)
        now_s = time.monotonic()
        for visitor in [visitor for visitor in self._visitors.values() if visitor.deadline_s <= now_s]:
            self._let_out(selector, visitor)
        return not self._stopping

    def _let_in(self, selector: selectors.BaseSelector) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:  # the peer is gone, or no descriptor is left
            return
        if len(self._visitors) >= MAX_VISITORS or not _is_ours(connection):
            connection.close()
            return
        connection.setblocking(False)
        visitor = self._visitors[connection] = _Visitor(connection, self._new_session())
        selector.register(connection, selectors.EVENT_READ, visitor)

    def _hand_on(self, selector: selectors.BaseSelector, visitor: _Visitor) -> None:
        selector.unregister(visitor.connection)
        del self._visitors[visitor.connection]
        try:
            self._guest(visitor.connection)
        except Exception as error:  # the node goes on, as after any failed request
            _LOG.exception("another process could not connect", extra=log_event("status_failed", error))
            visitor.connection.close()

    def _let_out(self, selector: selectors.BaseSelector, visitor: _Visitor) -> None:
        selector.unregister(visitor.connection)
        del self._visitors[visitor.connection]
        visitor.connection.close()


def _is_ours(connection: socket.socket) -> bool:
    try:
        return may_come_in(peer_of(connection)[1])
    except OSError:
        return False


def answer(session: Session, line: bytes) -> bytes:
    """Return the line that answers a line: the session's answer, or ``{"error": …}``."""
    try:
        request = json.loads(line)
        reply = session(request) if isinstance(request, dict) else {"error": "a request is a JSON object"}
    except (WarrenError, ValueError, RecursionError) as error:
        reply = {"error": str(error)}
    except Exception as error:  # whatever it is, the node and this thread go on
        _LOG.exception("a request could not be answered", extra=log_event("status_failed", error))
        reply = {"error": f"the request could not be answered: {shortly(error)}"}
    return json.dumps(reply, default=str).encode() + b"\n"  # names that are not UTF-8 appear as \udc80 … \udcff
