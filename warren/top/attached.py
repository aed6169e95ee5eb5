"""A client of a running node's status socket: a request and its answer are one line of JSON each."""

from __future__ import annotations

import json
import socket
from typing import Any, Final

from warren.actors.node.node_socket import find_socket, short_path
from warren.actors.node.status_server import MAX_REQUEST_BYTES
from warren.storage.errors import WarrenError

PATIENCE_S: Final = 10.0
"""The longest wait for an answer."""


class NotAttachedError(WarrenError):
    """No node answers for that directory, or it has stopped doing so."""


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
        """The node's answer, which has to come within ``patience_s`` seconds.

        Raises :class:`WarrenError` with the node's words if the answer is an error.
        """
        line_out = json.dumps(request).encode() + b"\n"
        if len(line_out) > MAX_REQUEST_BYTES:
            raise WarrenError(f"a request of {len(line_out):,} bytes; {MAX_REQUEST_BYTES:,} are the most")
        try:
            self._socket.settimeout(patience_s)
            self._socket.sendall(line_out)
            line = self._lines.readline()
        except TimeoutError as error:
            raise NotAttachedError(f"{self.path}: its node has not answered for {patience_s:.0f} seconds") from error
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
