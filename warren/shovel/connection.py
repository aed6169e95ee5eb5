"""A connection to a broker, driven by its user: calls that wait, and events in between.

A caller collects what it asked for (confirms, deliveries) while :class:`Loop` turns. One loop serves both connections
of a shovel from broker to broker, so that heartbeats go on at one while the other is waited for. Properties pass as the
bytes that they are.
"""

from __future__ import annotations

import select
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from socket import socket
from typing import Any, Final

import attrs
from pamqp import commands as c
from pamqp.base import Frame as Method

from warren.actors.runtime.interrupts import uninterrupted
from warren.amqp.connection import Connection as Engine
from warren.amqp.framing import MethodRun
from warren.amqp.methods import method_of
from warren.amqp.own_methods import MAX_BODY_BYTES
from warren.amqp.received import Event, Messages, MethodReceived, Violation
from warren.amqp.states import Side, State
from warren.client.handshake import RECEIVE_BYTES
from warren.shovel.address import Address
from warren.shovel.errors import ChannelRefusedError, ShovelError

WAIT_S: Final = 1.0
"""How long one turn of the loop waits at most."""
ANSWER_S: Final = 15.0
"""How long a broker may take to open or to close a connection."""

_NOT_NOW: Final = BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError


@attrs.define
class Loop:
    """Sends and receives for every connection of a shovel."""

    connections: list[Connection] = attrs.field(factory=list)

    def turn(self, wait_s: float) -> None:
        """Send and receive; wait at most ``wait_s`` seconds for an event."""
        connections = [connection for connection in self.connections if connection.lost is None]
        poll = select.poll()
        for connection in connections:
            uninterrupted(connection.send)
            poll.register(connection.socket, select.POLLIN | (select.POLLOUT if connection.unsent else 0))
        poll.poll(1000 * wait_s)
        for connection in connections:
            uninterrupted(connection.receive)
            uninterrupted(connection.send)


@attrs.define(eq=False)
class Connection:
    """An open connection. Made by :meth:`open`."""

    address: Address
    loop: Loop
    notify: Callable[[str], None]
    """Called when the broker blocks publishers (a memory or disk alarm)."""
    socket: socket
    engine: Engine = attrs.field(factory=lambda: Engine(Side.CLIENT, max_message_size=MAX_BODY_BYTES))
    channels: dict[int, Channel] = attrs.field(factory=dict)
    """Open channels, by their numbers."""
    unsent: bytearray = attrs.field(factory=bytearray)
    lost: str | None = None
    """Why the connection is lost."""
    _sent_s: float = attrs.field(factory=time.monotonic)
    _heard_s: float = attrs.field(factory=time.monotonic)

    @classmethod
    @contextmanager
    def open(cls, address: Address, loop: Loop, notify: Callable[[str], None]) -> Iterator[Connection]:
        """Connect and log in. Raises :class:`ShovelError` if that fails."""
        try:
            connection = cls(address, loop, notify, address.connect())
        except (OSError, ValueError) as error:
            raise ShovelError(f"{address}: no connection: {error}") from error
        loop.connections.append(connection)
        try:
            connection._turn_until(State.RUNNING)
            if connection.lost is not None:
                raise ShovelError(f"{address}: no connection: {connection.lost}")
            yield connection
        finally:
            connection._close()

    def _close(self) -> None:
        if self.lost is None and self.engine.state is State.RUNNING:
            self.engine.send(0, c.Connection.Close(200, "Goodbye", 0, 0))
            self._turn_until(State.TERMINATED)
        self.loop.connections.remove(self)
        self.socket.close()

    def _turn_until(self, state: State) -> None:
        """Let the loop turn until the connection is in this state, or lost."""
        end_s = time.monotonic() + ANSWER_S
        while self.engine.state is not state and self.lost is None:
            if time.monotonic() > end_s:
                self.lost = f"the broker has not answered for {ANSWER_S:.0f} s"
            self.loop.turn(WAIT_S)

    def check(self) -> None:
        """Raise :class:`ShovelError` if the connection is lost."""
        if self.lost is not None:
            raise ShovelError(f"{self.address}: the connection is lost: {self.lost}")

    def channel(self, on_event: Callable[[Event], None] = lambda _: None) -> Channel:
        """Open a channel. ``on_event`` is called with messages, confirms and the broker's ``basic.cancel``."""
        number = next(number for number in count(1) if number not in self.channels)
        channel = self.channels[number] = Channel(self, number, on_event)
        channel.call(c.Channel.Open)
        return channel

    # ── the loop's side ─────────────────────────────────────────────────────────────────────────────────────────

    def send(self) -> None:
        """Send what the socket takes; and a heartbeat if nothing was sent for half of the interval."""
        now_s = time.monotonic()
        if self.engine.heartbeat and now_s - self._sent_s >= self.engine.heartbeat / 2:
            self.engine.send_heartbeat()
        if data := self.engine.data_to_send():
            self.unsent += data
            self._sent_s = now_s
        try:
            while self.unsent:
                del self.unsent[: self.socket.send(self.unsent)]
        except _NOT_NOW:
            return
        except OSError:
            self.unsent.clear()  # `receive` finds out why: the broker may have given a reason

    def receive(self) -> None:
        """Handle what has come."""
        data = b""
        end: str | None = "the broker hung up"
        try:
            while len(data) < RECEIVE_BYTES and (piece := self.socket.recv(RECEIVE_BYTES)):  # of TLS a record at a time
                data += piece
        except _NOT_NOW:
            end = self._silence()
        except OSError as error:
            end = str(error)
        if not data:
            self.lost = end
            return
        self._heard_s = time.monotonic()
        for event in self.engine.receive(data):
            match event:
                case Violation(error=violation):
                    self.lost = f"the broker breaks the rules of AMQP 0-9-1: {violation}"
                case MethodReceived(channel=0, method=method):
                    self._receive_method(method)
                case MethodReceived() | Messages() | MethodRun() if event.channel in self.channels:
                    self.channels[event.channel].receive(event)

    def _silence(self) -> str | None:
        """Return why the connection is lost if two heartbeats are missing."""
        silent_s = time.monotonic() - self._heard_s
        if 0 < 2 * self.engine.heartbeat < silent_s:
            return f"the broker has sent nothing for {silent_s:.0f} s, not even a heartbeat"
        return None

    def _receive_method(self, method: Method) -> None:
        engine, login = self.engine, self.address.login
        match method:
            case c.Connection.Start():
                engine.send(0, login.start_ok())
            case c.Connection.Tune():
                engine.send(0, c.Connection.TuneOk(engine.channel_max, engine.frame_max, self.address.heartbeat_s))
                engine.send(0, method_of(c.Connection.Open, virtual_host=login.vhost))
            case c.Connection.Blocked(reason=reason):
                self.notify(f"{self.address}: takes no messages for the time being, waiting: {reason}")
            case c.Connection.Close(reply_code=code, reply_text=reply_text):
                engine.send(0, c.Connection.CloseOk())
                self.lost = f"{code} {reply_text}"


class Channel:
    """A channel. If the broker closes it, the next call raises the reason."""

    def __init__(self, connection: Connection, number: int, on_event: Callable[[Event], None]) -> None:
        self._connection = connection
        self._number = number
        self._on_event = on_event
        self._answer: Method | None = None
        self._closed: tuple[int, str] | None = None
        """The reply code and text with which it was closed."""

    def check(self) -> None:
        """Raise :class:`ChannelRefusedError`, or :class:`ShovelError` if the whole connection is lost."""
        self._connection.check()
        if self._closed is not None:
            code, reply_text = self._closed
            hint = ""
            if "user_id" in reply_text:
                hint = " (to publish in the name of others, a user needs the tag impersonator)"
            raise ChannelRefusedError(f"{self._connection.address}: {code} {reply_text}{hint}", code)

    def turn(self, wait_s: float) -> None:
        """Let the loop turn once."""
        self.check()
        self._connection.loop.turn(wait_s)

    def tell(self, kind: type[Method], **arguments: Any) -> None:
        """Send a method; it leaves when the loop turns."""
        self.check()
        self._connection.engine.send(self._number, method_of(kind, **arguments))

    def call(self, kind: type[Method], **arguments: Any) -> Any:
        """Send a method and return its answer."""
        self._answer = None
        self.tell(kind, **arguments)
        while self._answer is None or self._answer.name not in kind.valid_responses:
            self.turn(WAIT_S)
        return self._answer

    def publish(self, exchange: str, routing_key: bytes, properties: bytes, body: bytes) -> None:
        """Publish a mandatory message; it leaves when the loop turns."""
        self.check()
        method = method_of(c.Basic.Publish, exchange=exchange, routing_key=routing_key, mandatory=True)
        self._connection.engine.publish(self._number, method, properties, [body])

    def close(self) -> None:
        """Close it in order: the broker has acted on everything that was sent before."""
        if self._closed is None:
            self.tell(c.Channel.Close, reply_code=200, reply_text="Goodbye")
            while self._closed is None:
                self._connection.check()
                self._connection.loop.turn(WAIT_S)

    def receive(self, event: MethodReceived | Messages | MethodRun) -> None:
        """Handle an event. Called by the connection."""
        match event:
            case MethodReceived(method=c.Channel.Close(reply_code=code, reply_text=reply_text)):
                self._connection.engine.send(self._number, c.Channel.CloseOk())
                self._end(code or 0, reply_text)
            case MethodReceived(method=c.Channel.CloseOk()):
                self._end(200, "the channel is closed")
            case MethodReceived(method=method) if not isinstance(method, c.Basic.Cancel):
                self._answer = method
            case _:
                self._on_event(event)

    def _end(self, code: int, reply_text: str) -> None:
        self._closed = code, reply_text
        del self._connection.channels[self._number]


def text(name: bytes) -> str:
    """Decode a name for a method; raises :class:`ShovelError` if it is not UTF-8."""
    try:
        return name.decode()
    except UnicodeDecodeError:
        raise ShovelError(
            f"a name that is not UTF-8 cannot be told to a broker; --rename helps with a queue's: {name!r}"
        ) from None
