"""Attached: a node that a command looks at or operates: in this process, or in another one that has its directory open.

The other process is asked as its guest, through the socket in the directory; the connection is not listed there.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import attrs
from pamqp import commands as c
from pamqp.base import Frame as Method

from warren.actors.node.node_socket import find_socket, peer_of, short_path
from warren.amqp.connection import Connection
from warren.amqp.own_methods import COMMANDS_PROPERTY, Call, CallError, CallOk
from warren.amqp.received import MethodReceived, Violation
from warren.client.calls import plain_arguments, result_of
from warren.client.errors import LinkLostError, refusal, unresponsive_host
from warren.client.handshake import RECEIVE_BYTES, Hands, Login
from warren.storage.errors import WarrenError

if TYPE_CHECKING:
    from warren.hosting.running_node import RunningNode

Request = dict[str, Any]
"""As :meth:`warren.top.snapshots.Snapshots.answer` takes it."""

PATIENCE_S: Final = 10.0
"""The longest wait for an answer of a process that is stopped; of another one, unless the caller says."""
_CHANNEL: Final = 1


class NotAttachedError(WarrenError):
    """No node answers for that directory, or it has stopped doing so."""


@attrs.frozen
class Attached:
    """A node that answers requests."""

    _answer: Callable[[Request, float], dict[str, Any]]
    """Called with a request and how many seconds it may take."""
    is_own: bool = False
    """Whether it runs in this process."""

    def ask(self, *, patience_s: float = PATIENCE_S, **request: Any) -> dict[str, Any]:
        """The node's answer, which has to come within ``patience_s`` seconds if another process gives it: else raises
        :class:`HostUnresponsiveError`. Raises what the node raises."""
        return self._answer(request, patience_s)

    def snapshot(self, sort: str = "messages", limit: int | None = None, vhost: str | None = None) -> dict[str, Any]:
        """As :meth:`warren.top.snapshots.Snapshots.take`."""
        return self.ask(want="snapshot", sort=sort, limit=limit, vhost=vhost)

    def queue(self, vhost: str, name: str) -> dict[str, Any]:
        """As :meth:`warren.top.snapshots.Snapshots.queue`."""
        return self.ask(want="queue", vhost=vhost, name=name)


def of_own(node: RunningNode) -> Attached:
    """A node of this process."""
    from warren.top.snapshots import Snapshots

    snapshots = Snapshots(node)
    return Attached(lambda request, _: snapshots.answer(request), is_own=True)


@contextlib.contextmanager
def attached(path: str) -> Iterator[Attached]:
    """The node of another process that runs in a directory. Raises :class:`NotAttachedError` if no node answers."""
    with _connected(path) as connection:
        yield Attached(_Guest(path, connection).ask)


def _connected(path: str) -> socket.socket:
    socket_path = find_socket(path)
    if socket_path is None:
        raise NotAttachedError(f"{path}: no node runs there that can be attached to")
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(PATIENCE_S)
    try:
        with short_path(socket_path) as name:
            connection.connect(name)
    except PermissionError as error:
        connection.close()
        raise NotAttachedError(f"{socket_path}: the node there is another user's") from error
    except OSError as error:
        connection.close()
        raise NotAttachedError(f"{path}: no node runs there; one that was killed has left its socket") from error
    return connection


class _Guest:
    """A connection with one channel. It ends with its host, and is not made again."""

    def __init__(self, path: str, connection: socket.socket) -> None:
        self._path = path
        self._socket = connection
        login = Login(properties={COMMANDS_PROPERTY: True})
        try:
            hands = Hands(connection, login, channel_max=_CHANNEL, frame_max=0, timeout_s=PATIENCE_S)
            hands.open([_CHANNEL])
        except TimeoutError as error:
            raise unresponsive_host(path, PATIENCE_S) from error
        except LinkLostError as error:
            raise self._closed() from error
        self._engine: Connection = hands.done()

    def ask(self, request: Request, patience_s: float) -> dict[str, Any]:
        """Return the host's answer. Raises what the host raises, :class:`HostUnresponsiveError`, and
        :class:`NotAttachedError` if the host has ended."""
        self._engine.send(_CHANNEL, Call("node.ask", plain_arguments({"request": request})))
        try:
            self._socket.settimeout(PATIENCE_S)
            self._socket.sendall(self._engine.data_to_send())
            answer = self._receive_answer(patience_s)
        except TimeoutError as error:
            raise unresponsive_host(self._path, PATIENCE_S) from error
        except OSError as error:
            raise self._closed() from error
        result: dict[str, Any] = result_of(answer)
        return result

    def _receive_answer(self, patience_s: float) -> Method:
        begin_s = time.monotonic()
        while (left_s := begin_s + patience_s - time.monotonic()) > 0:
            self._socket.settimeout(min(left_s, PATIENCE_S))
            try:
                data = self._socket.recv(RECEIVE_BYTES)
            except TimeoutError:
                if _is_stopped(peer_of(self._socket)[0]):
                    break
                continue
            if not data:
                raise self._closed()
            for event in self._engine.receive(data):
                match event:
                    case MethodReceived(_, CallOk() | CallError() as answer):
                        return answer
                    case MethodReceived(_, c.Connection.Close() | c.Channel.Close() as close):
                        raise refusal(close.reply_code, close.reply_text)
                    case Violation(error):
                        raise error
        raise unresponsive_host(self._path, time.monotonic() - begin_s)

    def _closed(self) -> NotAttachedError:
        return NotAttachedError(f"{self._path}: its node was closed")


def _is_stopped(process: int) -> bool:
    """Whether a process is suspended (SIGSTOP, Ctrl-Z), as far as the system says so."""
    try:
        with open(f"/proc/{process}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] in {b"T", b"t"}
    except OSError:
        return False
