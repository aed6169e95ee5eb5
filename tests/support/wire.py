"""A client on a raw socket, which sends any bytes and tells what comes back frame by frame.

Frames are read and decoded with pamqp alone, not with the code under test.
"""

from __future__ import annotations

import re
import socket
import struct
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Final, Self

from pamqp import commands as c
from pamqp import frame as frames
from pamqp.base import Frame as Method

PATIENCE_S: Final = 60.0
"""A watchdog: no answer takes this long, even on a busy machine."""
PROTOCOL_HEADER: Final = b"AMQP\0\0\x09\x01"
START_OK: Final = c.Connection.StartOk(
    {"capabilities": {"consumer_cancel_notify": True, "authentication_failure_close": True, "basic.nack": True}},
    "PLAIN",
    "\0guest\0guest",
)
_START: Final = struct.Struct(">BHI")
_METHOD: Final = 1
_DECODED: Final = frozenset(struct.pack(">I", index) for index in c.INDEX_MAPPING)
_KINDS: Final = {2: "header", 3: "body", 8: "heartbeat"}
_MADE_NAMES: Final = (
    (re.compile(r"amq\.gen-[\w-]{22}"), "amq.gen-*"),
    (re.compile(r"amq\.ctag-[\w-]{22}"), "amq.ctag-*"),
)


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    """Any frame."""
    return _START.pack(kind, channel, len(payload)) + payload + b"\xce"


def method(what: Method, channel: int = 1) -> bytes:
    """A method's frame."""
    encoded: bytes = frames.marshal(what, channel)
    return encoded


class Wire:
    """One connection. ``told`` has everything that has come, as texts, with ``end`` when the server hung up."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._received = b""
        self.told: list[str] = []
        self.is_open = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._socket.close()

    def send(self, *data: bytes) -> None:
        """Send bytes as they are. A server that has hung up says why in what it sent before."""
        try:
            self._socket.sendall(b"".join(data))
        except OSError:
            return

    def log_in(self, *, heartbeat_s: int = 0, channels: Sequence[int] = (1,)) -> None:
        """Open the connection and some channels, and forget what came meanwhile."""
        self.send(PROTOCOL_HEADER)
        self.read_to("0 Connection.Start")
        self.send(method(START_OK, 0))
        self.read_to("0 Connection.Tune")
        self.send(method(c.Connection.TuneOk(2047, 131072, heartbeat_s), 0), method(c.Connection.Open("/"), 0))
        self.read_to("0 Connection.OpenOk")
        for number in channels:
            self.send(method(c.Channel.Open(), number))
            self.read_to(f"{number} Channel.OpenOk")
        self.told.clear()

    def read_to(self, *beginnings: str) -> str:
        """Read until an entry begins with one of ``beginnings``, or the server hangs up. Return it."""
        text = "end"
        while self.is_open and not (text := self._read()).startswith(beginnings):
            self.told.append(text)
        self.told.append(text)
        return text

    def _read(self) -> str:
        """The next frame. A close is answered, as a client must."""
        start = self._take(8)
        if start is None:
            self.is_open = False
            return "end"
        if start.startswith(b"AMQP"):
            return f"header {start!r}"
        kind, channel, size = _START.unpack_from(start)
        rest = self._take(size)
        if rest is None:
            self.is_open = False
            return f"a frame of type {kind} that is cut"
        payload = (start + rest)[_START.size : -1]
        if kind != _METHOD:
            return f"{channel} {_KINDS.get(kind, kind)} {payload!r}"
        if payload[:4] not in _DECODED:
            return f"{channel} method {payload!r}"
        what: Any = frames.unmarshal(start + rest)[2]
        if isinstance(what, c.Connection.Close):
            self.send(method(c.Connection.CloseOk(), 0))
        elif isinstance(what, c.Channel.Close):
            self.send(method(c.Channel.CloseOk(), channel))
        return f"{channel} {_told(what)}"

    def _take(self, count: int) -> bytes | None:
        while len(self._received) < count:
            try:
                data = self._socket.recv(65536)
            except ConnectionError:
                data = b""
            if not data:
                return None
            self._received += data
        taken, self._received = self._received[:count], self._received[count:]
        return taken


def _told(what: Method) -> str:
    text = f"{what.name} {_sorted(dict(what))}"
    for pattern, name in _MADE_NAMES:
        text = pattern.sub(name, text)
    return text


def _sorted(value: Any) -> Any:
    """A value whose tables tell their fields in the order of their names."""
    if isinstance(value, dict):
        return {name: _sorted(value[name]) for name in sorted(value)}
    return [_sorted(one) for one in value] if isinstance(value, list) else value
