"""What other clients' test suites found, each as a situation of its own."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable

import pamqp.frame
import pytest
from pamqp import commands as c
from pamqp.base import Frame as Method
from pika import spec
from pika.exceptions import ChannelClosedByBroker

from tests.support.server_tools import Served, events_until
from warren.amqp.connection import Connection
from warren.amqp.methods import encode_method
from warren.amqp.received import Event
from warren.amqp.states import Side, State

PATIENCE_S = 10.0
ROUNDS = 200


def test_who_deletes_a_queue_that_it_consumes_is_answered_before_its_consumer_is_cancelled(here: Served) -> None:
    """py-amqp takes a cancel for an error of the call that it waits for."""
    said: list[str] = []
    with here.connection() as connection:
        channel = connection.channel()
        channel.queue_declare("going")
        channel.add_on_cancel_callback(lambda _: said.append("cancelled"))
        channel.basic_consume("going", lambda *_: None)
        channel._impl.add_callback(lambda _: said.append("deleted"), [spec.Queue.DeleteOk])
        channel.queue_delete("going")
        events_until(connection, lambda: len(said) >= 2)
        assert said == ["deleted", "cancelled"]


def test_the_server_names_the_platform_of_the_broker_whose_behaviour_it_has(here: Served) -> None:
    """kiwipy's tests ask for it."""
    with here.connection() as connection:
        properties = connection._impl.server_properties
    assert (properties["product"], properties["version"]) == ("RabbitMQ", "3.10.8")
    assert properties["platform"].startswith("Erlang/OTP ")


class Raw:
    """A client that is let in, and then says what it likes."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
        self.engine = Connection(Side.CLIENT)
        self.until(bool)
        self.engine.send(0, c.Connection.StartOk({}, "PLAIN", "\0guest\0guest"))
        self.until(bool)
        self.engine.send(0, c.Connection.TuneOk(2047, 131_072, 0))
        self.engine.send(0, c.Connection.Open("/"))
        self.until(bool)
        assert self.engine.state is State.RUNNING

    def until(self, condition: Callable[[list[Event]], bool]) -> list[Event]:
        self.socket.sendall(self.engine.data_to_send())
        events: list[Event] = []
        while not condition(events):
            data = self.socket.recv(1 << 16)
            assert data, "the server has hung up"
            events += self.engine.receive(data)
        return events


def sent(*methods: tuple[int, Method]) -> bytes:
    return b"".join(encode_method(channel, method) for channel, method in methods)


def read_until(raw: socket.socket, end: bytes) -> bytes:
    data = b""
    while not data.endswith(end):
        more = raw.recv(1 << 16)
        assert more, "the server has hung up"
        data += more
    return data


def names(data: bytes) -> list[tuple[int, str]]:
    found = []
    while data:
        size, channel, frame = pamqp.frame.unmarshal(data)
        found.append((channel, frame.name))
        data = data[size:]
    return found


def test_what_comes_in_one_piece_with_the_close_is_answered_before_it(here: Served) -> None:
    """A client that pipelines, as Go's does when many threads close a connection at once."""
    with Raw(here.port).socket as raw:
        raw.sendall(
            sent(
                (1, c.Channel.Open()),
                (1, c.Queue.Declare(0, "pipelined", exclusive=True)),
                (2, c.Channel.Open()),
                (0, c.Connection.Close(200, "", 0, 0)),
            )
        )
        answer = read_until(raw, encode_method(0, c.Connection.CloseOk()))
    assert sorted(names(answer)[:-1]) == [(1, "Channel.OpenOk"), (1, "Queue.DeclareOk"), (2, "Channel.OpenOk")]
    assert names(answer)[-1] == (0, "Connection.CloseOk")


def test_what_comes_in_one_piece_with_a_violation_ends_in_its_reason_alone(
    here: Served, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    with Raw(here.port).socket as raw:
        raw.sendall(sent((1, c.Channel.Open()), (1, c.Queue.Declare(0, "pipelined")), (1, c.Channel.Open())))
        *_, (number, last) = names(raw.recv(1 << 16))
        assert (number, last) == (0, "Connection.Close")
        raw.sendall(sent((0, c.Connection.CloseOk())))
        assert raw.recv(1 << 16) == b""
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    with here.channel() as channel:
        channel.queue_delete("pipelined")


@pytest.mark.slow
def test_a_channel_is_closed_while_its_queue_goes(here: Served) -> None:
    """Celery's remote control: a queue that deletes itself with its consumer, and the channel closed in its back."""
    with Raw(here.port).socket as raw:
        for number in range(ROUNDS):
            raw.sendall(
                sent(
                    (1, c.Channel.Open()),
                    (1, c.Queue.Declare(0, f"reply-{number}", auto_delete=True, arguments={"x-expires": 10_000})),
                    (1, c.Queue.Bind(0, f"reply-{number}", "amq.direct", f"reply-{number}")),
                    (1, c.Basic.Consume(0, f"reply-{number}", "tag")),
                    (1, c.Basic.Cancel("tag")),
                )
            )
            read_until(raw, encode_method(1, c.Basic.CancelOk("tag")))
            raw.sendall(sent((1, c.Channel.Close(200, "", 0, 0))))
            read_until(raw, encode_method(1, c.Channel.CloseOk()))
    assert not [queue for queue in here.node.vhost("/").queues() if queue.name.startswith("reply-")]


def test_what_a_client_has_still_on_its_way_when_it_closes_costs_it_no_answer(here: Served) -> None:
    """amqplib sends what it has buffered for its channels after the close; it is the client that closes the socket."""
    with Raw(here.port).socket as raw:
        raw.sendall(sent((1, c.Channel.Open()), (0, c.Connection.Close(200, "", 0, 0))))
        behind = sent((1, c.Queue.Declare(0, "behind"))) * 10_000
        raw.sendall(behind)
        answer = read_until(raw, encode_method(0, c.Connection.CloseOk()))
        raw.sendall(behind)
        assert names(answer) == [(1, "Channel.OpenOk"), (0, "Connection.CloseOk")]
    with here.channel() as channel, pytest.raises(ChannelClosedByBroker, match="NOT_FOUND"):
        channel.queue_declare("behind", passive=True)
