"""A client's connection for a test: the engine's client side on a blocking socket, which tells all that comes.

It answers what a client must answer (``close``), and sends what a client must not send where a test wants it. The
tables at the end have what a peer may do wrong once channel 1 is open, and what the connection is closed with.
"""

from __future__ import annotations

import socket
import struct
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

import attrs
from pamqp import commands as c
from pamqp.base import Frame as Method

from warren.amqp.connection import Connection
from warren.amqp.framing import ACK, BODY, HEADER, HEARTBEAT, METHOD, PUBLISH, MethodRun, contents, frame
from warren.amqp.methods import dotted_name, encode_arguments, encode_method, method_of
from warren.amqp.received import Event, Messages, MethodReceived, Violation
from warren.amqp.states import Side, State

PATIENCE_S: Final = 120.0
"""A watchdog: how long an answer may take on a busy machine."""
CAPABILITIES: Final = {
    "publisher_confirms": True,
    "exchange_exchange_bindings": True,
    "basic.nack": True,
    "consumer_cancel_notify": True,
    "connection.blocked": True,
    "authentication_failure_close": True,
}
KINDS: Final[Mapping[str, type[Method]]] = {dotted_name(kind): kind for kind in c.INDEX_MAPPING.values()}
"""By RabbitMQ's names: ``basic.recover_async``."""

Record = tuple[str, Mapping[str, Any]]
"""A received method: its name, and its arguments, with ``properties`` and ``body`` if it has content."""


@attrs.define
class LinkChannel:
    """A channel as its client knows it."""

    number: int
    came: list[Record] = attrs.Factory(list)
    """What has come and was not taken."""
    is_open: bool = True
    is_closing: bool = False
    """Whether the client has asked for its end."""
    gets: deque[bool] = attrs.Factory(deque)
    """For each ``basic.get`` that has to be answered, whether it wants no ack."""
    needs_no_ack: set[str] = attrs.Factory(set)
    """Tags of consumers that want no ack."""
    flows: deque[bool] = attrs.Factory(deque)
    """For each ``channel.flow-ok`` that has to come, whether it is to be told."""
    confirms: bool = False
    published: int = 0
    unconfirmed: set[int] = attrs.Factory(set)


class Link:
    """One connection."""

    def __init__(self, port: int, *, capable: bool = True, login: str = "\0guest\0guest", vhost: str = "/") -> None:
        """``capable``: whether the client says that it can do what 0-9-1 itself does not have."""
        self.socket = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.connection = Connection(Side.CLIENT)
        self.channels: dict[int, LinkChannel] = {}
        self.came: list[Record] = []
        """What has come on channel 0, ``eof`` at the end."""
        self.is_open = True
        self.is_closing = False
        """Whether one side has asked for the end, and only that has to come."""
        self._login(login, {"capabilities": CAPABILITIES} if capable else {}, vhost)

    def _login(self, login: str, client_properties: Mapping[str, Any], vhost: str) -> None:
        self.flush()
        while self.connection.state is not State.RUNNING and self.is_open:
            self.read()
            match self.connection.state:
                case State.STARTING:
                    self.connection.send(0, c.Connection.StartOk(dict(client_properties), "PLAIN", login))
                case State.TUNING:
                    limits = self.connection.channel_max, self.connection.frame_max
                    self.connection.send(0, c.Connection.TuneOk(*limits, 0))
                    self.connection.send(0, c.Connection.Open(vhost))
            self.flush()
        self.came = [one for one in self.came if one[0] in ("connection.close", "eof")]

    # ── sending ─────────────────────────────────────────────────────────────────────────────────────────────────

    def flush(self) -> None:
        self.write(self.connection.data_to_send())

    def write(self, data: bytes) -> None:
        """Bytes as they are; the other end may have hung up."""
        with suppress(OSError):  # what it had to say is read as ever
            self.socket.sendall(data)

    def open_channel(self, number: int) -> LinkChannel:
        """Return that channel; open it if it is closed."""
        channel = self.channels.get(number)
        if channel is None or not channel.is_open:
            came = [] if channel is None else channel.came
            channel = self.channels[number] = LinkChannel(number, came)
            self.connection.send(number, c.Channel.Open())
            self.flush()
        return channel

    def encoded(self, channel: LinkChannel, method: Method, content: tuple[bytes, list[bytes]] | None) -> bytes:
        """The bytes of a method, with ``content`` (properties and bodies) one for each message; and what it means."""
        if isinstance(method, c.Channel.Flow):
            channel.flows.append(True)
        elif isinstance(method, c.Confirm.Select):
            channel.confirms = True
        elif isinstance(method, c.Basic.Get):
            channel.gets.append(method.no_ack)
        elif isinstance(method, c.Basic.Consume) and method.no_ack:
            channel.needs_no_ack.add(method.consumer_tag)
        elif isinstance(method, c.Channel.Close):
            channel.is_closing = True
            self.connection.send(channel.number, method)
            return self.connection.data_to_send()
        if content is None:
            return encode_method(channel.number, method)
        properties, bodies = content
        if channel.confirms:
            first = channel.published + 1
            channel.published += len(bodies)
            channel.unconfirmed |= set(range(first, first + len(bodies)))
        arguments, limit = encode_arguments(method), self.connection.frame_max
        return contents(channel.number, PUBLISH, (arguments, b""), properties, bodies, frame_max=limit)

    def ask_to_close(self) -> None:
        """Say goodbye; its answer and the end have to come."""
        self.is_closing = True
        self.connection.send(0, method_of(c.Connection.Close, reply_code=200, reply_text="bye"))
        self.flush()

    def probe(self, channel: LinkChannel) -> None:
        """Ask for an answer that changes nothing."""
        channel.flows.append(False)
        self.write(encode_method(channel.number, c.Channel.Flow(True)))

    def close(self) -> None:
        """Hang up."""
        self.is_open = False
        self.socket.close()

    # ── what comes ──────────────────────────────────────────────────────────────────────────────────────────────

    def read(self) -> None:
        """Take what comes next; blocks."""
        try:
            data = self.socket.recv(1 << 20)
        except ConnectionError:
            data = b""
        if not data:
            self.came.append(("eof", {}))
            self.close()
            return
        for event in self.connection.receive(data):
            self._take(event)
        if self.is_open:
            self.flush()

    def _take(self, event: Event) -> None:
        match event:
            case Messages():
                tags: list[int | None] = [*event.tags] or [None] * len(event.bodies)
                for method, tag, properties, body in zip(
                    event.methods, tags, event.properties, event.bodies, strict=True
                ):
                    content = {"properties": properties, "body": body}
                    which = {} if tag is None else {"delivery_tag": tag}
                    told = _arguments(method) | which | content
                    self.channels[event.channel].came.append((dotted_name(method), told))
            case MethodRun():
                name = "basic.ack" if event.index == ACK else "basic.nack"
                for tag in event.tags:
                    self._confirmed(self.channels[event.channel], name, tag, bool(event.flags & 1))
            case MethodReceived(0, method):
                self.came.append((dotted_name(method), _arguments(method)))
                if isinstance(method, c.Connection.CloseOk):  # now it is the client that hangs up
                    self.close()
                elif isinstance(method, c.Connection.Close):
                    self.is_closing = True
                    self.connection.send(0, c.Connection.CloseOk())
            case MethodReceived():
                self._take_method(self.channels[event.channel], event.method)
            case Violation():
                raise AssertionError(f"the server broke the protocol: {event.error}")

    def _confirmed(self, channel: LinkChannel, name: str, tag: int, multiple: bool) -> None:
        """Tell a confirm message by message."""
        meant = {one for one in channel.unconfirmed if one <= tag} if multiple else {tag}
        channel.came += [(name, {"delivery_tag": one}) for one in sorted(meant)]
        if not meant or not meant <= channel.unconfirmed:
            channel.came.append((f"{name} of what is not to be confirmed", {"delivery_tag": tag}))
        channel.unconfirmed -= meant

    def _take_method(self, channel: LinkChannel, method: Method) -> None:
        match method:
            case c.Channel.OpenOk():
                return
            case c.Channel.FlowOk() if not channel.flows.popleft():
                return
            case c.Channel.Close():
                channel.is_open = False
                self.connection.send(channel.number, c.Channel.CloseOk())
            case c.Channel.CloseOk():
                channel.is_open = False
        channel.came.append((dotted_name(method), _arguments(method)))


def _arguments(method: Method) -> dict[str, Any]:
    return {name: getattr(method, name) for name in method.attributes()}


NO_PROPERTIES: Final = b"\0\0"
PUBLISH_METHOD: Final = encode_method(1, c.Basic.Publish(0, "", "q"))
HEADER_OF_5: Final = frame(HEADER, 1, struct.pack(">HHQ", 60, 0, 5) + NO_PROPERTIES)
_DECLARE: Final = c.Queue.Declare(queue="q")

RABBITMQS: Final[list[tuple[bytes, str]]] = [
    (
        struct.pack(">BHI", 1, 1, 200_000),
        "501 FRAME_ERROR - type 1, all octets = <<>>: {frame_too_large,200000,131064}",
    ),
    (
        struct.pack(">BHI", 3, 1, 5) + b"hello\0",
        '501 FRAME_ERROR - type 3, all octets = <<"hello">>: {invalid_frame_end_marker,0}',
    ),
    (
        frame(4, 1, bytes(range(20))),
        "501 FRAME_ERROR - type 4, first 16 octets = <<0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15>>: unknown_frame",
    ),
    (
        frame(4, 1, b'a "quoted" \\ word'),
        '501 FRAME_ERROR - type 4, first 16 octets = <<"a \\"quoted\\" \\\\ wor">>: unknown_frame',
    ),
    (frame(METHOD, 0, b""), "501 FRAME_ERROR - type 1, all octets = <<>>: unknown_frame"),
    (frame(METHOD, 1, b""), "501 FRAME_ERROR - type 1, all octets = <<>>: unknown_frame"),
    (frame(HEADER, 1, b"abc"), '501 FRAME_ERROR - type 2, all octets = <<"abc">>: unknown_frame'),
    (frame(HEARTBEAT, 1, b""), "505 UNEXPECTED_FRAME - type 8, all octets = <<>>"),
    (frame(BODY, 0, b"x"), '505 UNEXPECTED_FRAME - type 3, all octets = <<"x">>'),
    (frame(BODY, 1, b"x"), "505 UNEXPECTED_FRAME - expected method frame, got non method frame instead"),
    (
        PUBLISH_METHOD + PUBLISH_METHOD,
        "505 UNEXPECTED_FRAME - expected content header for class 60, got non content header frame instead",
    ),
    (
        PUBLISH_METHOD + frame(HEADER, 1, struct.pack(">HHQ", 60, 1, 5) + NO_PROPERTIES),
        "505 UNEXPECTED_FRAME - expected content header for class 60, got non content header frame instead",
    ),
    (
        PUBLISH_METHOD + frame(HEADER, 1, struct.pack(">HHQ", 50, 0, 5) + NO_PROPERTIES),
        "505 UNEXPECTED_FRAME - expected content header for class 60, got one for class 50 instead",
    ),
    (
        PUBLISH_METHOD + HEADER_OF_5 + HEADER_OF_5,
        "505 UNEXPECTED_FRAME - expected content body, got non content body frame instead",
    ),
    (encode_method(2, _DECLARE), "504 CHANNEL_ERROR - expected 'channel.open'"),
    (encode_method(2, c.Channel.Close(200, "", 0, 0)), "504 CHANNEL_ERROR - expected 'channel.open'"),
    (encode_method(2, c.Channel.CloseOk()), "504 CHANNEL_ERROR - expected 'channel.open'"),
    (encode_method(1, c.Channel.Open()), "504 CHANNEL_ERROR - second 'channel.open' seen"),
    (encode_method(1, c.Queue.DeclareOk("q", 0, 0)), "503 COMMAND_INVALID - unimplemented method"),
    (encode_method(1, c.Channel.CloseOk()), "503 COMMAND_INVALID - unimplemented method"),
    (encode_method(1, c.Channel.FlowOk(True)), "503 COMMAND_INVALID - unimplemented method"),
    (encode_method(1, c.Basic.CancelOk("tag")), "503 COMMAND_INVALID - unimplemented method"),
    (encode_method(1, c.Connection.Open("/")), "503 COMMAND_INVALID - unimplemented method"),
    (
        encode_method(0, c.Connection.TuneOk(1, 4096, 0)),
        "504 CHANNEL_ERROR - unexpected method in connection state running",
    ),
    (encode_method(0, c.Connection.Open("/")), "504 CHANNEL_ERROR - unexpected method in connection state running"),
    (encode_method(0, _DECLARE), "504 CHANNEL_ERROR - unexpected method in connection state running"),
    (frame(METHOD, 1, b"\0\x32\0\x0a\0"), "501 FRAME_ERROR - cannot decode <<0>>"),
    (frame(METHOD, 1, b"\0\x3c\0\x28\0\0\x20x"), "501 FRAME_ERROR - cannot decode <<0,0,32,120>>"),
    (frame(METHOD, 1, b"\0\x5a\0\x0ax"), "501 FRAME_ERROR - cannot decode <<120>>"),
    (frame(METHOD, 0, b"\0\x0a\0\x28\x20x"), "541 INTERNAL_ERROR"),
]
"""As RabbitMQ 3.10.8 does it."""

OURS: Final[list[tuple[bytes, str]]] = [
    (
        PUBLISH_METHOD + HEADER_OF_5 + frame(BODY, 1, b"123456"),
        "501 FRAME_ERROR - content body frame exceeds remaining content size",
    ),
    (
        PUBLISH_METHOD + frame(HEADER, 1, struct.pack(">HHQ", 60, 0, 1 << 40) + NO_PROPERTIES),
        "501 FRAME_ERROR - content body size 1099511627776 exceeds maximum allowed size 536870912",
    ),
]
"""Where RabbitMQ 3.10.8 waits for more, and later ones close."""

UNKNOWN_METHODS: Final = [frame(METHOD, 0, b"\0\x63\0\x0a"), frame(METHOD, 1, b"\0\x3c\0\x09")]
"""After which the socket is closed without a word."""
