"""The first words on a socket, up to an open connection with open channels. The calling thread waits for each."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable
from typing import Any, Final

import attrs
from pamqp import commands as c

from warren.amqp.connection import Connection
from warren.amqp.received import Event, MethodReceived, Violation
from warren.amqp.states import Side, State
from warren.client.errors import CONNECTION_FORCED, LinkLostError, refusal
from warren.storage.errors import WarrenError

RECEIVE_BYTES: Final = 1 << 18
PATIENCE_S: Final = 30.0
"""So long a server may take for each of its words."""
_CAPABILITIES: Final = {
    "authentication_failure_close": True,
    "basic.nack": True,
    "connection.blocked": True,
    "consumer_cancel_notify": True,
    "publisher_confirms": True,
}


@attrs.frozen
class Login:
    """Who the client is, and where it wants to be. ``user`` is ``None`` where the socket itself says who it is."""

    vhost: str = "/"
    user: str | None = None
    password: str = ""
    properties: dict[str, Any] = attrs.Factory(dict)
    """What the client tells of itself."""

    def start_ok(self) -> c.Connection.StartOk:
        properties = {"product": "warren", **self.properties, "capabilities": _CAPABILITIES}
        if self.user is None:
            return c.Connection.StartOk(properties, "EXTERNAL", "")
        return c.Connection.StartOk(properties, "PLAIN", f"\0{self.user}\0{self.password}")


def shake_hands(
    connection: socket.socket, login: Login, *, channel_max: int, frame_max: int, channels: Iterable[int]
) -> tuple[Connection, list[Event]]:
    """An open connection with these channels open, and what has come beyond that.

    Raises :class:`LinkLostError` where the server hangs up, and what it refuses.
    """
    engine = Connection(Side.CLIENT, channel_max=channel_max, frame_max=frame_max, has_own_methods=True)
    rest: list[Event] = []
    waiting = set(channels)

    def until(condition: Callable[[], bool]) -> None:
        while True:
            data = engine.data_to_send()
            if data:
                connection.sendall(data)
            if condition():
                return
            received = connection.recv(RECEIVE_BYTES)
            if not received:
                raise LinkLostError("the server hung up while the connection was opened")
            for event in engine.receive(received):
                _answer(engine, login, event, waiting, rest)

    try:
        connection.settimeout(PATIENCE_S)
        until(lambda: engine.state is State.RUNNING)
        for number in sorted(waiting):
            engine.send(number, c.Channel.Open())
        until(lambda: not waiting)
        connection.settimeout(None)
    except (OSError, WarrenError) as error:
        connection.close()
        if isinstance(error, WarrenError):
            raise
        raise LinkLostError(f"the connection could not be opened: {error}") from error
    return engine, rest


def _answer(engine: Connection, login: Login, event: Event, waiting: set[int], rest: list[Event]) -> None:
    if isinstance(event, Violation):
        raise event.error
    if not isinstance(event, MethodReceived):
        rest.append(event)
        return
    match event.method:
        case c.Connection.Start():
            engine.send(0, login.start_ok())
        case c.Connection.Tune():
            engine.send(0, c.Connection.TuneOk(engine.channel_max, engine.frame_max, 0))
            engine.send(0, c.Connection.Open(login.vhost))
        case c.Connection.Close(reply_code=code, reply_text=text):
            raise LinkLostError(text or "") if code == CONNECTION_FORCED else refusal(code, text)
        case c.Channel.OpenOk():
            waiting.discard(event.channel)
        case _:
            if event.method.index >> 16 != c.Connection.frame_id:
                rest.append(event)
