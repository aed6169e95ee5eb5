"""A client that costs next to nothing, so that the server is measured: bytes are made once and sent often."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator, Sequence
from typing import Any, Self

from pamqp import commands as c
from pamqp.base import Frame as Method

from warren.amqp.connection import Connection
from warren.amqp.framing import ACK, contents
from warren.amqp.methods import encode_arguments, method_of
from warren.amqp.received import Event, Messages, MethodReceived, Settlements
from warren.amqp.states import Side
from warren.queue_index.properties import Properties, encode_properties

PERSISTENT = encode_properties(Properties(delivery_mode=2))
_CHANNEL = 1


class Client:
    """One connection with one channel, over a blocking socket."""

    def __init__(self, port: int, *, receive_buffer: int | None = None) -> None:
        """``receive_buffer``: bytes that the kernel buffers before they are read; ``None``: as many as it will."""
        self.socket = socket.socket()
        if receive_buffer is not None:  # before it connects: then the other end knows
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.connect(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._engine = Connection(Side.CLIENT)
        self._acked_to = 0
        self._acked_above: set[int] = set()
        self._log_in()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def _log_in(self) -> None:
        self._flush()
        self._expect(c.Connection.Start)
        response = "\0guest\0guest"
        self._engine.send(0, method_of(c.Connection.StartOk, mechanism="PLAIN", response=response, locale="en_US"))
        self._flush()
        tune: Any = self._expect(c.Connection.Tune)
        self._engine.send(0, c.Connection.TuneOk(tune.channel_max, tune.frame_max, 0))
        self._engine.send(0, c.Connection.Open("/"))
        self._flush()
        self._expect(c.Connection.OpenOk)
        self.call(c.Channel.Open(), c.Channel.OpenOk)

    def _flush(self) -> None:
        self.socket.sendall(self._engine.data_to_send())

    def events(self) -> list[Event]:
        """What one read brings."""
        data = self.socket.recv(1 << 18)
        if not data:
            raise ConnectionError("the server has closed the connection")
        return self._engine.receive(data)

    def _expect(self, kind: type[Method]) -> Method:
        while True:
            for event in self.events():
                if isinstance(event, MethodReceived) and isinstance(event.method, kind):
                    return event.method

    def call(self, method: Method, answer: type[Method]) -> Any:
        """A method on the channel, and its answer."""
        self._engine.send(_CHANNEL, method)
        self._flush()
        return self._expect(answer)

    # ── publishing ──────────────────────────────────────────────────────────────────────────────────────────────

    @staticmethod
    def publish_of(exchange: str, routing_key: str, properties: bytes, bodies: Sequence[bytes]) -> bytes:
        """The bytes that publish such messages."""
        publish = encode_arguments(method_of(c.Basic.Publish, exchange=exchange, routing_key=routing_key))
        return contents(_CHANNEL, c.Basic.Publish.index, (publish, b""), properties, bodies, frame_max=131_072)

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def wait_for_confirms(self, tag: int) -> None:
        """Come back when everything up to this number is confirmed; each is, in some order."""
        while self._acked_to < tag:
            for event in self.events():
                self.note_confirms(event)

    def note_confirms(self, event: Event) -> bool:
        """Whether the event is confirms."""
        if not isinstance(event, Settlements) or event.index != ACK:
            return False
        if event.flags & 1:
            self._acked_to = max(self._acked_to, *event.tags)
        else:
            self._acked_above.update(event.tags)
        while self._acked_to + 1 in self._acked_above:
            self._acked_to += 1
            self._acked_above.discard(self._acked_to)
        return True

    # ── consuming ───────────────────────────────────────────────────────────────────────────────────────────────

    def consume(self, queue: str, *, no_ack: bool = False, prefetch: int = 0) -> None:
        if prefetch:
            self.call(c.Basic.Qos(0, prefetch, False), c.Basic.QosOk)
        self._engine.send(_CHANNEL, method_of(c.Basic.Consume, queue=queue, no_ack=no_ack, nowait=True))
        self._flush()

    def deliveries(self) -> Iterator[Messages]:
        """What comes, without an end."""
        while True:
            for event in self.events():
                if isinstance(event, Messages):
                    yield event

    def ack_each(self, tags: Sequence[int]) -> None:
        self._engine.settle(_CHANNEL, method_of(c.Basic.Ack), tags)
        self._flush()

    def ack_up_to(self, tag: int) -> None:
        self._engine.settle(_CHANNEL, method_of(c.Basic.Ack, multiple=True), [tag])
        self._flush()


def until_answered(port: int, deadline_s: float) -> float:
    """Seconds until a first connection is answered."""
    begun = time.perf_counter()
    while True:
        try:
            with Client(port):
                return time.perf_counter() - begun
        except OSError:
            if time.perf_counter() - begun > deadline_s:
                raise
            time.sleep(0.005)
