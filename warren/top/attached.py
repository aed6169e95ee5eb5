"""A client of a running node's status socket: a request and its answer are one line of JSON each."""

from __future__ import annotations

import json
import select
import socket
import time
from typing import Any, Final

from warren.actors.node.node_socket import find_socket, peer_of, short_path
from warren.actors.node.status_server import MAX_REQUEST_BYTES
from warren.client.errors import unresponsive_host
from warren.storage.errors import WarrenError

PATIENCE_S: Final = 10.0
"""The longest wait for an answer of a process that is stopped; of another one, unless the caller says."""


class NotAttachedError(WarrenError):
    """No node answers for that directory, or it has stopped doing so."""


def _is_stopped(process: int) -> bool:
    """Whether a process is suspended (SIGSTOP, Ctrl-Z), as far as the system says so."""
    try:
        with open(f"/proc/{process}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] in {b"T", b"t"}
    except OSError:
        return False


class Attached:
    """A connection to the node that runs in a directory; a context manager that closes it."""

    def __init__(self, path: str) -> None:
        """Raises :class:`NotAttachedError` if no node answers."""
        self.path = path
        socket_path = find_socket(path)
        if socket_path is None:
            raise NotAttachedError(f"{path}: no node runs there that can be attached to")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(PATIENCE_S)
        try:
            with short_path(socket_path) as name:
                self._socket.connect(name)
        except PermissionError as error:
            self._socket.close()
            raise NotAttachedError(f"{socket_path}: the node there is another user's") from error
        except OSError as error:
            self._socket.close()
            raise NotAttachedError(f"{path}: no node runs there; one that was killed has left its socket") from error
        self._lines = self._socket.makefile("rb")

    def ask(self, *, patience_s: float = PATIENCE_S, **request: object) -> dict[str, Any]:
        """The node's answer, which has to come within ``patience_s`` seconds: else raises
        :class:`HostUnresponsiveError`.

        Raises :class:`WarrenError` with the node's words if the answer is an error.
        """
        line_out = json.dumps(request).encode() + b"\n"
        if len(line_out) > MAX_REQUEST_BYTES:
            raise WarrenError(f"a request of {len(line_out):,} bytes; {MAX_REQUEST_BYTES:,} are the most")
        try:
            self._socket.sendall(line_out)
            self._wait(patience_s)
            line = self._lines.readline()
        except TimeoutError as error:
            raise unresponsive_host(self.path, PATIENCE_S) from error
        except OSError as error:
            raise NotAttachedError(f"{self.path}: its node was closed") from error
        if not line.endswith(b"\n"):
            raise NotAttachedError(f"{self.path}: its node was closed")
        try:
            answer = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise NotAttachedError(f"{self.path}: what answers there is no node") from error
        if not isinstance(answer, dict):
            raise NotAttachedError(f"{self.path}: what answers there is no node")
        if isinstance(message := answer.get("error"), str):
            raise WarrenError(message)
        return answer

    def _wait(self, patience_s: float) -> None:
        """Wait until there is something to read. Raises :class:`HostUnresponsiveError`."""
        begin_s = time.monotonic()
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        while not poll.poll(min(patience_s, PATIENCE_S) * 1000):
            waited_s = time.monotonic() - begin_s
            if waited_s >= patience_s or _is_stopped(peer_of(self._socket)[0]):
                raise unresponsive_host(self.path, waited_s)

    def snapshot(self, sort: str = "messages", limit: int | None = None, vhost: str | None = None) -> dict[str, Any]:
        """As :meth:`warren.top.snapshots.Snapshots.take`."""
        return self.ask(want="snapshot", sort=sort, limit=limit, vhost=vhost)

    def queue(self, vhost: str, name: str) -> dict[str, Any]:
        """As :meth:`warren.top.snapshots.Snapshots.queue`."""
        return self.ask(want="queue", vhost=vhost, name=name)

    def close(self) -> None:
        self._lines.close()
        self._socket.close()

    def __enter__(self) -> Attached:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
