"""A server in a test's hands: no threads and no sockets. Its loop runs when a client sends something."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, cast

from pamqp import commands as c
from pamqp.base import Frame as Method

from tests.support.runtime_tools import HandNode
from warren.actors.runtime.loop_thread import LoopThread
from warren.amqp.connection import Connection
from warren.amqp.methods import method_of
from warren.amqp.received import Event, MethodReceived
from warren.amqp.states import Side
from warren.server.connection import ClientConnection
from warren.server.peer import Peer
from warren.server.server_context import Rounds, ServerContext
from warren.server.settings import ServerSettings

CHANNEL = 1
_ROUNDS = 10
"""More than the turns and callbacks that one method takes, one after the other."""
_PEER = Peer(host="127.0.0.1", port=5672, peer_host="127.0.0.1", peer_port=50_000)


class _HandRounds(Rounds):
    """Rounds of a loop that the calling thread runs."""

    def __init__(self) -> None:
        super().__init__()
        self.thread = LoopThread("by hand", asyncio.new_event_loop, self._flush)
        self.thread._thread = threading.current_thread()


class HandServer:
    """A server for any number of clients, who are all admitted."""

    def __init__(self, hand: HandNode) -> None:
        self.hand = hand
        self.context = ServerContext(hand.node._running, ServerSettings(), rounds=_HandRounds())

    def run(self) -> None:
        """Run turns and callbacks until nothing is left to do."""
        loop = self.context.loop
        for _ in range(_ROUNDS):
            self.hand.run()
            loop.call_soon(loop.stop)
            loop.run_forever()

    def admit(self, _: ClientConnection) -> bool:
        return True

    def discard(self, _: ClientConnection) -> None:
        """Forget nothing: it counts no connections."""

    def connection_refused(self, user: str, vhost: str) -> str | None:
        return None

    def channel_refused(self, user: str) -> str | None:
        return None

    def close(self) -> None:
        self.context.loop.close()


class _Transport:
    """Keeps what the server writes."""

    def __init__(self) -> None:
        self.written: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def writelines(self, pieces: list[bytes]) -> None:
        self.written += pieces

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        """What is sent meanwhile is handed over all the same."""

    resume_reading = close = abort = pause_reading

    def get_extra_info(self, _: str) -> Any:
        return None


class HandClient:
    """A client with one open channel."""

    def __init__(self, server: HandServer) -> None:
        self._server = server
        self._transport = _Transport()
        self.engine = Connection(Side.CLIENT)
        self._connection = ClientConnection(server.context, server, lambda _: _PEER)
        self._connection.connection_made(cast(asyncio.Transport, self._transport))
        self.exchange()
        self.engine.send(0, method_of(c.Connection.StartOk, mechanism="PLAIN", response="\0guest\0guest"))
        self.exchange()
        self.engine.send(0, c.Connection.TuneOk(2047, 131_072, 0))
        self.engine.send(0, c.Connection.Open("/"))
        self.exchange()
        self.engine.send(CHANNEL, c.Channel.Open())
        self.exchange()

    def send(self, data: bytes) -> None:
        """Hand bytes to the server as one read, and let it work."""
        self._connection.data_received(data)
        self._server.run()

    def exchange(self) -> list[Event]:
        """Send what the engine has to send; return what the server has answered."""
        if data := self.engine.data_to_send():
            self.send(data)
        else:
            self._server.run()
        written, self._transport.written = b"".join(self._transport.written), []
        return self.engine.receive(written)

    def call(self, method: Method) -> Method:
        """Send a method on the channel, and return the answer."""
        self.engine.send(CHANNEL, method)
        [answer] = [event.method for event in self.exchange() if isinstance(event, MethodReceived)]
        return answer
