"""The AMQP engine against a real RabbitMQ: what it answers to violations is what the engine answers."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator

import pytest
from pamqp import commands as c
from pamqp.base import Frame

from tests.support.amqp_link import RABBITMQS, UNKNOWN_METHODS
from tests.support.broker import Broker
from warren.amqp.connection import Connection
from warren.amqp.received import Event, MethodReceived
from warren.amqp.states import Side, State

pytestmark = pytest.mark.broker
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with Broker(tmp_path_factory.mktemp("broker")) as broker:
        broker.start()
        yield broker.amqp_port


class Peer:
    """A client of the broker's, with channel 1 open."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
        self.connection = Connection(Side.CLIENT)
        self.call()
        self.call((0, c.Connection.StartOk({}, "PLAIN", "\0guest\0guest")))
        self.call(
            (0, c.Connection.TuneOk(self.connection.channel_max, self.connection.frame_max, 0)),
            (0, c.Connection.Open("/")),
        )
        self.call((1, c.Channel.Open()))
        assert self.connection.state is State.RUNNING

    def call(self, *methods: tuple[int, Frame]) -> list[Event]:
        """Send these, and wait for an answer."""
        for channel, method in methods:
            self.connection.send(channel, method)
        self.socket.sendall(self.connection.data_to_send())
        return self.until(bool)

    def until(self, condition: Callable[[list[Event]], bool]) -> list[Event]:
        """What comes, until that holds; raises ``ConnectionError`` at the end of the stream."""
        events: list[Event] = []
        while not condition(events):
            data = self.socket.recv(1 << 16)
            if not data:
                raise ConnectionError("the broker has hung up")
            events += self.connection.receive(data)
        return events

    def close(self) -> None:
        self.socket.close()


@pytest.mark.parametrize(("data", "reply"), RABBITMQS)
def test_the_broker_closes_a_connection_with_the_same_words(port: int, data: bytes, reply: str) -> None:
    peer = Peer(port)
    peer.socket.sendall(data)
    [closed] = peer.until(bool)
    peer.close()
    assert isinstance(closed, MethodReceived)
    assert isinstance(closed.method, c.Connection.Close)
    assert f"{closed.method.reply_code} {closed.method.reply_text}" == reply


@pytest.mark.parametrize("data", UNKNOWN_METHODS)
def test_the_broker_hangs_up_on_an_unknown_method(port: int, data: bytes) -> None:
    peer = Peer(port)
    peer.socket.sendall(data)
    with pytest.raises(ConnectionError):
        peer.until(bool)
    peer.close()


def test_messages_come_back_from_the_broker_as_they_went(port: int) -> None:
    peer = Peer(port)
    bodies = [b"", b"small", bytes(300_000)] + [b"%04d" % number for number in range(500)]
    peer.call((1, c.Queue.Declare(queue="there-and-back")))
    peer.connection.publish(1, c.Basic.Publish(0, "", "there-and-back"), b"\x10\0\x02", bodies)
    peer.connection.send(1, c.Basic.Consume(0, "there-and-back", "tag"))
    peer.socket.sendall(peer.connection.data_to_send())
    found: list[bytes] = []
    tags: list[int] = []
    while len(found) < len(bodies):
        for event in peer.until(bool):
            if not isinstance(event, MethodReceived):
                found += event.bodies  # type: ignore[union-attr]
                tags += event.tags  # type: ignore[union-attr]
    peer.connection.settle(1, c.Basic.Ack(), tags)
    [deleted] = [one for one in peer.call((1, c.Queue.Delete(0, "there-and-back"))) if isinstance(one, MethodReceived)]
    peer.close()
    assert (found, tags) == (bodies, list(range(1, len(bodies) + 1)))
    assert isinstance(deleted.method, c.Queue.DeleteOk)
    assert deleted.method.message_count == 0
