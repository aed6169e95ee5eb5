"""Protocol abuse of a running server: it answers as RabbitMQ 3.10.8 does, and it and its other clients go on.

What may be done wrong stands in :mod:`tests.support.amqp_link`, which the engine and a real broker are held to as
well. Beside it, valid conversations are sent with something changed, left out or said twice.
"""

from __future__ import annotations

import logging
import socket
import struct
from collections.abc import Iterator

import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pamqp import commands as c

from tests.support.amqp_link import NO_PROPERTIES, OURS, RABBITMQS, UNKNOWN_METHODS, Link
from tests.support.broker import Broker
from tests.support.server_tools import Served, served
from warren.amqp.connection import PROTOCOL_HEADER
from warren.amqp.framing import HEADER, METHOD, PUBLISH, contents, frame
from warren.amqp.methods import encode_arguments, encode_method, method_of

PATIENCE_S = 30.0
GROWTH_BYTES = 64 << 20


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("node") / "node") as found:
        yield found


@pytest.fixture(scope="module")
def bystander(here: Served) -> Iterator[Link]:
    """A client that does nothing wrong."""
    link = Link(here.port)
    link.open_channel(1)
    yield link
    link.close()


@pytest.fixture
def quiet(caplog: pytest.LogCaptureFixture, bystander: Link) -> Iterator[None]:
    """Whatever the test does, other clients are served, and the log has no errors."""
    caplog.set_level(logging.ERROR)
    yield
    assert is_served(bystander)
    assert [record.getMessage() for record in caplog.records] == []


def is_served(link: Link) -> bool:
    channel = link.channels[1]
    link.write(encode_method(1, c.Basic.Qos(0, 1)))
    while link.is_open and not channel.came:
        link.read()
    return channel.came.pop(0)[0] == "basic.qos_ok"


def closing(link: Link) -> str:
    """What the server closes a connection with; nothing where it hangs up without a word."""
    while link.is_open:
        link.read()
    return "".join(f"{one['reply_code']} {one['reply_text']}" for name, one in link.came if name == "connection.close")


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize(("data", "reply"), RABBITMQS + OURS)
def test_a_connection_is_closed_with_the_broker_s_words(here: Served, data: bytes, reply: str) -> None:
    # what is too large by our own measure is that of the server's settings
    reply = reply.replace("536870912", str(here.server.settings.max_message_size))
    link = Link(here.port)
    link.open_channel(1)
    link.write(data)
    assert closing(link) == reply


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("data", UNKNOWN_METHODS)
def test_an_unknown_method_ends_a_connection_without_a_word(here: Served, data: bytes) -> None:
    link = Link(here.port)
    link.open_channel(1)
    link.write(data)
    assert closing(link) == ""


@pytest.mark.broker
def test_a_broker_says_the_same(broker: Broker) -> None:
    broker.start()
    for data, reply in [*RABBITMQS, *((data, "") for data in UNKNOWN_METHODS)]:
        link = Link(broker.amqp_port)
        link.open_channel(1)
        link.write(data)
        assert closing(link) == reply, data


# ── mutations ───────────────────────────────────────────────────────────────────────────────────────────────────────


def frames() -> list[bytes]:
    """A valid conversation of a client's, frame by frame; nothing in it waits for an answer."""
    publish = encode_arguments(method_of(c.Basic.Publish, exchange="", routing_key="abused"))
    methods = [
        (1, c.Channel.Open()),
        (1, c.Queue.Declare(queue="abused", auto_delete=True, arguments={"x-max-length": 10})),
        (1, c.Basic.Qos(0, 10)),
        (1, c.Confirm.Select()),
        (1, c.Basic.Consume(queue="abused", consumer_tag="tag", arguments={"x-priority": 1})),
        (1, c.Basic.Ack(1, True)),
        (1, c.Basic.Nack(2)),
        (1, c.Basic.Get(queue="abused")),
        (1, c.Basic.Recover(True)),
        (1, c.Basic.Cancel("tag")),
        (2, c.Channel.Open()),
        (2, c.Tx.Select()),
        (2, c.Queue.Bind(queue="abused", exchange="amq.topic", routing_key="#", arguments={"a": {"b": [1, None]}})),
        (2, c.Tx.Commit()),
        (2, c.Queue.Delete(queue="abused")),
        (2, c.Channel.Close(200, "bye", 0, 0)),
    ]
    encoded = [encode_method(channel, method) for channel, method in methods]
    messages = contents(1, PUBLISH, (publish, b""), b"\x10\0\2", [b"", b"body" * 10, bytes(9000)], frame_max=4096)
    return [*encoded[:4], messages, *encoded[4:]]


HANDSHAKE = [
    PROTOCOL_HEADER,
    encode_method(0, c.Connection.StartOk({"product": "abuse", "n": [1, {"a": True}]}, "PLAIN", "\0guest\0guest")),
    encode_method(0, c.Connection.TuneOk(100, 4096, 0)),
    encode_method(0, c.Connection.Open("/")),
]


@st.composite
def mutated(draw: st.DrawFn, said: list[bytes]) -> bytes:
    """Frames of a conversation, some moved, left out or said twice, with bytes changed, left out or put in."""
    chosen = draw(st.lists(st.integers(0, len(said) - 1), min_size=1, max_size=30))
    data = bytearray(b"".join(said[index] for index in chosen))
    for _ in range(draw(st.integers(0, 6))):
        at = draw(st.integers(0, len(data) - 1))
        match draw(st.sampled_from(["change", "drop", "insert", "number"])):
            case "change":
                data[at] = draw(st.integers(0, 255))
            case "drop":
                del data[at : at + draw(st.integers(1, 20))]
            case "insert":
                data[at:at] = draw(st.binary(min_size=1, max_size=20))
            case "number":
                data[at : at + 4] = struct.pack(">I", draw(st.sampled_from([0, 1, 0x7FFFFFFF, 0xFFFFFFFF, 4096])))
        if not data:
            break
    return bytes(data)


ABUSE = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def said_by_a_stranger(link: socket.socket, data: bytes) -> None:
    """Say that and nothing more, and hear the server out."""
    with link:
        try:
            link.sendall(data)
            link.shutdown(socket.SHUT_WR)
            while link.recv(1 << 20):
                pass
        except OSError:
            pass  # it had nothing to say to that


def check_unharmed(bystander: Link, caplog: pytest.LogCaptureFixture) -> None:
    assert is_served(bystander)
    assert [record.getMessage() for record in caplog.records] == []


@given(data=mutated(frames()))
@ABUSE
def test_mutated_conversations_harm_nobody(
    here: Served, bystander: Link, caplog: pytest.LogCaptureFixture, data: bytes
) -> None:
    caplog.set_level(logging.ERROR)
    before = psutil.Process().memory_info().rss
    said_by_a_stranger(Link(here.port).socket, data)
    check_unharmed(bystander, caplog)
    assert psutil.Process().memory_info().rss - before < GROWTH_BYTES


@given(data=mutated([*HANDSHAKE, encode_method(1, c.Channel.Open())]), cut=st.integers(0, 4))
@ABUSE
def test_mutated_handshakes_harm_nobody(
    here: Served, bystander: Link, caplog: pytest.LogCaptureFixture, data: bytes, cut: int
) -> None:
    caplog.set_level(logging.ERROR)
    stranger = socket.create_connection(("127.0.0.1", here.port), PATIENCE_S)
    begun = b"".join(HANDSHAKE[:cut])
    stranger.sendall(begun[:8])
    if cut:
        stranger.recv(1 << 16)
    stranger.sendall(begun[8:])
    said_by_a_stranger(stranger, data)
    check_unharmed(bystander, caplog)


@pytest.mark.usefixtures("quiet")
def test_what_is_announced_takes_no_memory_before_it_comes(here: Served, bystander: Link) -> None:
    before = psutil.Process().memory_info().rss
    header = struct.pack(">HHQ", 60, 0, here.server.settings.max_message_size) + NO_PROPERTIES
    links = [Link(here.port) for _ in range(20)]
    for link in links:
        link.open_channel(1)
        link.write(encode_method(1, c.Basic.Publish(0, "", "nowhere")))
        link.write(struct.pack(">BHI", 2, 1, len(header)) + header + b"\xce" + struct.pack(">BHI", 3, 1, 100_000))
    assert is_served(bystander)
    assert psutil.Process().memory_info().rss - before < GROWTH_BYTES
    for link in links:
        link.close()


def nested(depth: int) -> bytes:
    table = b""
    for _ in range(depth):
        table = b"\1aF" + struct.pack(">I", len(table)) + table
    return struct.pack(">I", len(table)) + table


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("depth", [65, 10_000])
def test_tables_that_are_nested_too_deep_close_what_they_came_on(here: Served, depth: int) -> None:
    link = Link(here.port)
    link.open_channel(1)
    link.write(encode_method(1, c.Basic.Publish(0, "amq.headers", "")))
    link.write(frame(HEADER, 1, struct.pack(">HHQH", 60, 0, 0, 1 << 13) + nested(depth)))
    assert closing(link) == "541 INTERNAL_ERROR"
    link = Link(here.port)
    link.open_channel(1)
    link.write(frame(METHOD, 1, struct.pack(">HHH", 50, 10, 0) + b"\1q\0" + nested(depth)))
    assert closing(link) == "", "as for any table that cannot be read"


@pytest.mark.usefixtures("quiet")
def test_a_flood_of_bindings_that_match_in_many_ways_keeps_nobody_waiting(here: Served, bystander: Link) -> None:
    before = psutil.Process().memory_info().rss
    link = Link(here.port)
    channel = link.open_channel(1)
    binds = [
        c.Queue.Bind(queue="flooded", exchange="amq.topic", routing_key=f"{'#.a.' * 60}{at}") for at in range(1000)
    ]
    declare = c.Queue.Declare(queue="flooded", exclusive=True)
    link.write(b"".join(encode_method(1, method) for method in (declare, *binds)))
    assert is_served(bystander)
    link.write(encode_method(1, c.Basic.Publish(0, "amq.topic", "a." * 127)))
    link.write(frame(HEADER, 1, struct.pack(">HHQ", 60, 0, 0) + NO_PROPERTIES))
    link.write(encode_method(1, c.Basic.Qos(0, 1)))
    while channel.came[-1:] != [("basic.qos_ok", {})]:
        link.read()
    assert is_served(bystander)
    assert psutil.Process().memory_info().rss - before < GROWTH_BYTES
    link.close()
