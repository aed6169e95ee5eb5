"""A node's status server: answers other processes that want to look at a running node, and changes nothing.

A *line* of JSON comes in, a line goes out, over a Unix-domain socket that only the node's user can open. What is asked
and answered is the caller's (``warren.top.snapshots``); here are the socket and the one thread that serves it.

*Where it is.* ``warren.sock`` in the data directory. Where that path is longer than a socket's may be, it lies in a
private directory among the temporary ones, and ``warren.sock.path`` in the data directory says where.

It never disturbs. One thread serves all, one request after another; who does not read his answer, or sends no end of a
line, is dropped. Where no socket can be made the node runs without one and says so in its log.

A crash leaves the socket behind. Whoever opens the directory next has its lock, so nobody answers there any more: what
lies there is removed. A forked child closes its copies of the descriptors and leaves the files alone.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import selectors
import socket
import stat
import tempfile
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs

from storage.errors import StorageError, WarrenError

_LOG = logging.getLogger("warren.status")

SOCKET_NAME: Final = "warren.sock"
POINTER_NAME: Final = "warren.sock.path"
PRIVATE_PREFIX: Final = "warren-sock-"
MAX_SOCKET_PATH_BYTES: Final = 103
"""What every system's ``sun_path`` holds; Linux has room for four more."""

MAX_REQUEST_BYTES: Final = 1 << 16
MAX_VISITORS: Final = 16
PATIENCE_S: Final = 2.0
"""An answer that nobody reads for so long is given up, with its connection."""

Request = Mapping[str, Any]
Session = Callable[[Request], Mapping[str, Any]]
"""Answers one visitor's requests, one after the other; may remember what it answered last."""


def find_socket(directory: str) -> str | None:
    """Where the socket of the node in ``directory`` is, if there is one; perhaps nobody answers there any more."""
    path = os.path.join(directory, SOCKET_NAME)
    if _fits(path):
        return path if _is_socket(path) else None
    try:
        with open(os.path.join(directory, POINTER_NAME), encoding="utf-8", errors="surrogateescape") as file:
            path = file.read(4096).rstrip("\n")
    except OSError:
        return None
    return path if _is_socket(path) else None


@attrs.define(eq=False)
class _Visitor:
    """One connection."""

    connection: socket.socket
    session: Session
    received: bytearray = attrs.Factory(bytearray)


class StatusServer:
    """The socket of one node and the thread behind it. Made with the directory's lock in hand."""

    def __init__(self, directory: str, new_session: Callable[[], Session]) -> None:
        """Start serving. Raises :class:`StorageError` where no socket can be made."""
        self._directory = directory
        self._new_session = new_session
        self.path = ""
        self._visitors: dict[socket.socket, _Visitor] = {}
        self._thread = threading.Thread(target=self._serve, name="warren-status", daemon=True)
        with contextlib.ExitStack() as undo:
            undo.callback(self._remove_files)
            try:
                self._remove_stale()
                self._bell, self._rung = map(undo.enter_context, socket.socketpair())
                self._listener = undo.enter_context(self._listen())
                self._thread.start()
            except (OSError, ValueError, RuntimeError) as error:  # the last: no thread is to be had
                raise StorageError(f"{self.path or directory}: no socket can be made: {error}") from error
            undo.pop_all()

    @classmethod
    def start(cls, directory: str, new_session: Callable[[], Session]) -> StatusServer | None:
        """A server, or ``None`` and a line in the log."""
        try:
            return cls(directory, new_session)
        except StorageError as error:
            _LOG.warning("nobody can attach to this node: %s", error)
            return None

    # ── files ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _listen(self) -> socket.socket:
        path = os.path.join(self._directory, SOCKET_NAME)
        private = not _fits(path)
        if private:
            path = os.path.join(_new_private_directory(), SOCKET_NAME)
        self.path = path
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(path)
            os.chmod(path, 0o600)  # before it listens: nobody else has got in
            listener.listen(MAX_VISITORS)
            listener.setblocking(False)
            if private:
                self._write_pointer(path)
        except OSError:
            listener.close()
            raise
        return listener

    def _write_pointer(self, path: str) -> None:
        pointer = os.path.join(self._directory, POINTER_NAME)
        descriptor = os.open(pointer, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(descriptor, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(path + "\n")

    def _remove_stale(self) -> None:
        """Remove what a process that was killed has left."""
        left = find_socket(self._directory)
        if left is not None:
            self.path = left
        self._remove_files()
        self.path = ""

    def _remove_files(self) -> None:
        """Remove the socket, and where it lies elsewhere its directory and what points there; nothing else."""
        with contextlib.suppress(OSError):
            if _is_socket(self.path):
                os.unlink(self.path)
            if (parent := os.path.dirname(self.path)) and os.path.basename(parent).startswith(PRIVATE_PREFIX):
                os.rmdir(parent)
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(self._directory, POINTER_NAME))

    # ── the end ─────────────────────────────────────────────────────────────────────────────────────────────────

    def stop(self) -> None:
        """Answer nobody any more, and leave no file. A request that is being answered is waited for."""
        self._remove_files()
        with contextlib.suppress(OSError):
            self._bell.send(b"!")
        if self._thread is not threading.current_thread():
            self._thread.join()

    def forget(self) -> None:
        """In a forked child, where the thread is not: let go of the parent's descriptors."""
        for one in (self._listener, self._bell, self._rung, *self._visitors):
            one.close()

    # ── the thread ──────────────────────────────────────────────────────────────────────────────────────────────

    def _serve(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._rung, selectors.EVENT_READ)
            selector.register(self._listener, selectors.EVENT_READ)
            try:
                while self._serve_ready(selector):
                    pass
            except Exception:
                _LOG.exception("nobody can attach to this node any more")
                self._remove_files()
        for one in (self._listener, self._bell, self._rung, *self._visitors):
            one.close()

    def _serve_ready(self, selector: selectors.BaseSelector) -> bool:
        """Serve whoever wants something; whether to go on."""
        for key, _ in selector.select():
            if key.fileobj is self._rung:
                return False
            if key.fileobj is self._listener:
                self._let_in(selector)
                continue
            visitor: _Visitor = key.data
            if not self._attend(visitor):
                selector.unregister(visitor.connection)
                del self._visitors[visitor.connection]
                visitor.connection.close()
        return True

    def _let_in(self, selector: selectors.BaseSelector) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:  # gone again, or no descriptor left for him
            return
        if len(self._visitors) >= MAX_VISITORS:
            connection.close()
            return
        connection.settimeout(PATIENCE_S)
        visitor = self._visitors[connection] = _Visitor(connection, self._new_session())
        selector.register(connection, selectors.EVENT_READ, visitor)

    def _attend(self, visitor: _Visitor) -> bool:
        """Read what has come and answer every whole line; whether the visitor stays."""
        try:
            data = visitor.connection.recv(1 << 16)
            visitor.received += data
            while (end := visitor.received.find(b"\n")) >= 0:
                line = bytes(visitor.received[:end])
                del visitor.received[: end + 1]
                visitor.connection.sendall(answer(visitor.session, line))
        except OSError:  # among them: nobody reads
            return False
        return bool(data) and len(visitor.received) <= MAX_REQUEST_BYTES


def answer(session: Session, line: bytes) -> bytes:
    """The line that answers a line: what the session says, or ``{"error": …}``."""
    try:
        request = json.loads(line)
        said = session(request) if isinstance(request, dict) else {"error": "a request is a JSON object"}
    except (WarrenError, ValueError, RecursionError) as error:
        said = {"error": str(error)}
    except Exception as error:  # whatever it is: the node goes on, and so does this thread
        _LOG.exception("a request could not be answered")
        said = {"error": f"it could not be answered: {error!r}"}
    return json.dumps(said, default=str).encode() + b"\n"  # names that are not UTF-8 stand there as \udc80 … \udcff


def _fits(path: str) -> bool:
    return len(os.fsencode(path)) <= MAX_SOCKET_PATH_BYTES


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.lstat(path).st_mode)
    except (OSError, ValueError):
        return False


def _new_private_directory() -> str:
    """A directory with a short path that is the user's alone."""
    usual = tempfile.gettempdir()
    room = len(PRIVATE_PREFIX) + 16 + len(SOCKET_NAME)  # 8 letters of chance, and the slashes
    return tempfile.mkdtemp(prefix=PRIVATE_PREFIX, dir=usual if len(os.fsencode(usual)) + room < 100 else "/tmp")
