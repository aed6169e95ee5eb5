"""The handshake on a socket, up to an open connection with open channels. The calling thread waits for each answer."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import attrs
from pamqp import commands as c
from pamqp.base import Frame as Method

from warren.actors.log_events import log_event, logger
from warren.amqp.connection import Connection
from warren.amqp.methods import method_of
from warren.amqp.own_methods import MAX_BODY_BYTES, PROTOCOL, PROTOCOL_PROPERTY, VERSION_PROPERTY, Call, CallError
from warren.amqp.received import Event, MethodReceived, Violation
from warren.amqp.states import Side, State
from warren.client.errors import CONNECTION_FORCED, LinkLostError, refusal
from warren.storage.data_version import WARREN_VERSION, VersionError
from warren.storage.errors import WarrenError

_LOG = logger("client")

RECEIVE_BYTES: Final = 1 << 18
_CAPABILITIES: Final = {
    "authentication_failure_close": True,
    "basic.nack": True,
    "connection.blocked": True,
    "consumer_cancel_notify": True,
    "publisher_confirms": True,
}


@attrs.frozen
class Login:
    """The client's user and vhost. ``user`` is ``None`` if the socket itself identifies the client."""

    vhost: str = "/"
    user: str | None = None
    password: str = ""
    properties: dict[str, Any] = attrs.Factory(dict)
    """The client's properties."""

    def start_ok(self) -> c.Connection.StartOk:
        properties = {"product": "warren", **self.properties, "capabilities": _CAPABILITIES}
        if self.user is None:
            return c.Connection.StartOk(properties, "EXTERNAL", "")
        return c.Connection.StartOk(properties, "PLAIN", f"\0{self.user}\0{self.password}")


class Hands:
    """A connection that is being opened. The calling thread waits for each answer.

    Raises :class:`LinkLostError` if the server hangs up, ``TimeoutError`` if it does not answer within ``timeout_s``,
    and the server's refusals; the socket is closed then.
    """

    def __init__(
        self, connection: socket.socket, login: Login, channel_max: int, frame_max: int, timeout_s: float
    ) -> None:
        self._socket = connection
        self._login = login
        self._engine = Connection(
            Side.CLIENT,
            channel_max=channel_max,
            frame_max=frame_max,
            max_message_size=MAX_BODY_BYTES,
            has_own_methods=True,
        )
        self.rest: list[Event] = []
        """Events that came after the handshake, for the connection's user."""
        self._mine: int | None = None
        self._answers: list[Method] = []
        connection.settimeout(timeout_s)
        self._until(lambda: self._engine.state is State.RUNNING)

    def declare(self, number: int, calls: list[Call]) -> None:
        """Make these calls, in order, through a separate channel; log those that are refused."""
        if not calls:
            return
        self._mine = number
        for method in (c.Channel.Open(), *calls):
            self._engine.send(number, method)
        self._until(lambda: len(self._answers) > len(calls))
        self._engine.send(number, c.Channel.Close(200, "Goodbye", 0, 0))
        self._until(lambda: len(self._answers) > len(calls) + 1)
        for refused in self._answers:
            if isinstance(refused, CallError):
                _LOG.warning(
                    "a declaration was rejected on a new connection: %s",
                    refused.text,
                    extra=log_event("link_undeclared", reason=refused.text),
                )
        self._mine = None

    def open(self, numbers: Iterable[int]) -> None:
        """Open these channels."""
        waiting = set(numbers)
        for number in sorted(waiting):
            self._engine.send(number, c.Channel.Open())
        self._until(lambda: self._take_opened(waiting))

    def _take_opened(self, waiting: set[int]) -> bool:
        opened = [event for event in self.rest if isinstance(event, MethodReceived) and _is_open_ok(event.method)]
        for event in opened:
            self.rest.remove(event)
            waiting.discard(event.channel)
        return not waiting

    def done(self) -> Connection:
        """The open connection."""
        self._socket.settimeout(None)
        return self._engine

    def _until(self, condition: Callable[[], bool]) -> None:
        try:
            while True:
                data = self._engine.data_to_send()
                if data:
                    self._socket.sendall(data)
                if condition():
                    return
                received = self._socket.recv(RECEIVE_BYTES)
                if not received:
                    raise LinkLostError("the server hung up while the connection was opened")
                for event in _to_answer(self._engine.receive(received)):
                    self._answer(event)
        except TimeoutError:
            self._socket.close()
            raise
        except OSError as error:
            self._socket.close()
            raise LinkLostError(f"the connection could not be opened: {error}") from error
        except WarrenError:
            self._socket.close()
            raise

    def _answer(self, event: Event) -> None:
        engine = self._engine
        if isinstance(event, Violation):
            raise event.error
        if not isinstance(event, MethodReceived):
            self.rest.append(event)
            return
        match event.method:
            case c.Connection.Start(server_properties=properties):
                if self._login.user is None:
                    _check_protocol(properties or {})
                engine.send(0, self._login.start_ok())
            case c.Connection.Tune():
                engine.send(0, c.Connection.TuneOk(engine.channel_max, engine.frame_max, 0))
                engine.send(0, method_of(c.Connection.Open, virtual_host=self._login.vhost))
            case c.Connection.Close(reply_code=code, reply_text=text):
                raise LinkLostError(text or "") if code == CONNECTION_FORCED else refusal(code, text)
            case c.Connection.Blocked() | c.Connection.Unblocked():
                self.rest.append(event)
            case method if event.channel == self._mine:
                self._answers.append(method)
            case method if event.channel:
                self.rest.append(event)


def _check_protocol(properties: Mapping[str, Any]) -> None:
    """Raise :class:`VersionError` if the directory's host speaks another protocol than guests of this version."""
    spoken = properties.get(PROTOCOL_PROPERTY, 0)
    if spoken != PROTOCOL:
        raise VersionError(
            f"the process that has the directory open is of warren {properties.get(VERSION_PROPERTY, 'before 0.1.0')}, "
            f"which speaks protocol {spoken!r:.20} to its guests; this is warren {WARREN_VERSION}, which speaks "
            f"{PROTOCOL}: let all processes that share a directory be of one version"
        )


def _to_answer(events: list[Event]) -> list[Event]:
    """Return only the server's ``connection.close`` if it sent one, as it reads no answer any more; else all events."""
    closes: list[Event] = [
        event for event in events if isinstance(event, MethodReceived) and isinstance(event.method, c.Connection.Close)
    ]
    return closes or events


def _is_open_ok(method: Method) -> bool:
    return isinstance(method, c.Channel.OpenOk)
