"""The AMQP engine without a socket: what two ends say to each other, however the bytes are cut, and what is refused."""

from __future__ import annotations

import itertools
import os
import struct
import time
from collections.abc import Callable, Iterable
from typing import Any

import attrs
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pamqp import commands as c
from pamqp import frame as pamqp_frame
from pamqp.base import Frame as Method
from pamqp.body import ContentBody
from pamqp.header import ContentHeader

from tests.support.amqp_link import HEADER_OF_5, NO_PROPERTIES, OURS, PUBLISH_METHOD, RABBITMQS, UNKNOWN_METHODS
from warren.amqp.connection import FRAME_MIN_SIZE, MAX_MESSAGE_SIZE, PROTOCOL_HEADER, Connection
from warren.amqp.errors import OutOfOrderError
from warren.amqp.framing import BODY, LARGE_BYTES, METHOD, frame
from warren.amqp.methods import KINDS, decode_method, dotted_name, encode_method, method_of
from warren.amqp.received import Event, HeaderReceived, Heartbeat, Messages, MethodReceived, Settlements, Violation
from warren.amqp.states import SENT_BY, Side, State
from warren.storage.errors import MessageError

PERSISTENT = b"\x10\0\x02"


def exchange(left: Connection, right: Connection) -> tuple[list[Event], list[Event]]:
    """Hand each side what the other has to send, until both are silent. Return the events of each."""
    told: tuple[list[Event], list[Event]] = [], []
    while (to_right := left.data_to_send()) or (to_left := right.data_to_send()):
        if to_right:
            told[1].extend(right.receive(to_right))
        else:
            told[0].extend(left.receive(to_left))
    return told


def running(
    *, frame_max: int = 131_072, channels: Iterable[int] = (1,), max_message_size: int = MAX_MESSAGE_SIZE
) -> tuple[Connection, Connection]:
    """A client and a server that are through with their handshake, and have these channels open."""
    client = Connection(Side.CLIENT, frame_max=frame_max)
    server = Connection(Side.SERVER, frame_max=frame_max, max_message_size=max_message_size)
    steps: list[tuple[Connection, int, Method]] = [
        (server, 0, c.Connection.Start(server_properties={})),
        (client, 0, c.Connection.StartOk({}, "PLAIN", "\0guest\0guest")),
        (server, 0, c.Connection.Tune(2047, frame_max, 60)),
        (client, 0, c.Connection.TuneOk(2047, frame_max, 60)),
        (client, 0, c.Connection.Open("/")),
        (server, 0, c.Connection.OpenOk()),
    ]
    for number in channels:
        steps += [(client, number, c.Channel.Open()), (server, number, c.Channel.OpenOk())]
    exchange(client, server)
    for side, channel, method in steps:
        side.send(channel, method)
        exchange(client, server)
    assert client.state is server.state is State.RUNNING
    return client, server


def single(events: Iterable[Event]) -> list[tuple[object, ...]]:
    """Events, each message and each settlement of a run alone."""
    found: list[tuple[object, ...]] = []
    for event in events:
        if isinstance(event, Messages):
            arguments = [dict(method) for method in event.methods]
            if event.tags:
                arguments = [one | {"delivery_tag": tag} for one, tag in zip(arguments, event.tags, strict=True)]
            found += [
                (event.channel, method.name, one, properties, body)
                for method, one, properties, body in zip(
                    event.methods, arguments, event.properties, event.bodies, strict=True
                )
            ]
        elif isinstance(event, Settlements):
            found += [(event.channel, event.index, event.flags, tag) for tag in event.tags]
        elif isinstance(event, MethodReceived):
            found.append((event.channel, event.method.name, dict(event.method)))
        else:
            found.append((event,))
    return found


# ── what two ends say to each other ─────────────────────────────────────────────────────────────────────────────────


def test_a_connection_from_the_header_to_the_end() -> None:
    client, server = Connection(Side.CLIENT), Connection(Side.SERVER, frame_max=50_000)
    assert server.receive(client.data_to_send()) == [HeaderReceived(PROTOCOL_HEADER)]
    server.send(0, c.Connection.Start(server_properties={"product": "warren"}))
    [start] = client.receive(server.data_to_send())
    assert isinstance(start, MethodReceived)
    assert isinstance(start.method, c.Connection.Start)
    assert start.method.server_properties == {"product": "warren"}
    client.send(0, c.Connection.StartOk({}, "PLAIN", "\0guest\0guest"))
    exchange(client, server)
    server.send(0, c.Connection.Tune(100, server.frame_max, 60))
    exchange(client, server)
    assert (client.channel_max, client.frame_max) == (100, 50_000), "the lower of both"
    client.send(0, c.Connection.TuneOk(client.channel_max, client.frame_max, 10))
    client.send(0, c.Connection.Open("/"))
    exchange(client, server)
    assert (server.channel_max, server.frame_max, server.heartbeat) == (100, 50_000, 10)
    server.send(0, c.Connection.OpenOk())
    client.send_heartbeat()
    assert single(exchange(client, server)[1]) == [(Heartbeat(),)]
    client.send(0, c.Connection.Close(200, "bye", 0, 0))
    exchange(client, server)
    assert (client.state, server.state) == (State.CLOSED, State.CLOSING)
    server.send(0, c.Connection.CloseOk())
    exchange(client, server)
    assert client.state is server.state is State.TERMINATED
    assert server.receive(b"more") == []


@pytest.mark.parametrize("header", [b"AMQP\0\0\x09\x01", b"AMQP\x01\x01\0\x09"])
def test_both_headers_of_amqp_0_9_are_taken(header: bytes) -> None:
    assert Connection(Side.SERVER).receive(header) == [HeaderReceived(header)]


@pytest.mark.parametrize("header", [b"AMQP\0\0\x09\x02", b"AMQP\x03\x01\0\0", b"GET / HT"])
def test_another_header_is_answered_with_ours(header: bytes) -> None:
    server = Connection(Side.SERVER)
    assert server.receive(header + b"TP/1.1\r\n\r\n") == [HeaderReceived(header, refused=True)]
    assert (server.data_to_send(), server.state) == (PROTOCOL_HEADER, State.TERMINATED)


def test_messages_that_came_together_are_one_run() -> None:
    client, server = running()
    bodies = [b"%05d" % number for number in range(1000)]
    client.publish(1, c.Basic.Publish(0, "logs", "info"), PERSISTENT, bodies)
    [published] = server.receive(client.data_to_send())
    assert isinstance(published, Messages)
    assert isinstance(published.method, c.Basic.Publish)
    assert (published.method.exchange, published.method.routing_key) == ("logs", "info")
    assert (published.properties, published.bodies, published.tags) == ([PERSISTENT] * 1000, bodies, [])
    server.deliver(1, c.Basic.Deliver("ctag", 0, False, "logs", "info"), range(7, 1007), PERSISTENT, bodies)
    [delivered] = client.receive(server.data_to_send())
    assert isinstance(delivered, Messages)
    assert (delivered.tags, delivered.bodies) == (list(range(7, 1007)), bodies)
    assert isinstance(delivered.method, c.Basic.Deliver)
    assert delivered.method.consumer_tag == "ctag"
    client.settle(1, c.Basic.Ack(multiple=False), delivered.tags)
    client.settle(1, c.Basic.Nack(multiple=False, requeue=True), [5])
    assert [(one.tags, one.flags) for one in server.receive(client.data_to_send())] == [  # type: ignore[union-attr]
        (delivered.tags, 0),
        ([5], 2),
    ]


def test_messages_that_differ_in_their_sizes_are_one_event() -> None:
    client, server = running()
    bodies = [bytes(size) for size in (3, 3, 0, 5000, 5000, 200_000, 1)]
    client.publish(1, c.Basic.Publish(0, "logs", "info"), PERSISTENT, bodies)
    [published] = server.receive(client.data_to_send())
    assert isinstance(published, Messages)
    assert published.bodies == bodies
    server.deliver(1, c.Basic.Deliver("ctag", 0, False, "logs", "info"), range(1, 8), PERSISTENT, bodies)
    [delivered] = client.receive(server.data_to_send())
    assert isinstance(delivered, Messages)
    assert (delivered.tags, delivered.bodies) == (list(range(1, 8)), bodies)


def test_every_get_has_its_own_answer() -> None:
    client, server = running()
    for tag in (1, 2):
        server.send_message(1, c.Basic.GetOk(tag, False, "logs", "info", 0), PERSISTENT, b"got")
    assert [one.tags for one in client.receive(server.data_to_send()) if isinstance(one, Messages)] == [[1], [2]]


def test_large_bodies_are_sent_uncopied() -> None:
    client, server = running()
    bodies = [b"small", bytes(LARGE_BYTES), b"", bytes(2 * LARGE_BYTES), bytes(LARGE_BYTES)]
    client.publish(1, c.Basic.Publish(0, "", "q"), PERSISTENT, bodies)
    pieces = client.pieces_to_send()
    assert [piece for piece in pieces if any(piece is body for body in bodies)] == [bodies[1], bodies[3], bodies[4]]
    [published] = server.receive(b"".join(pieces))
    assert isinstance(published, Messages)
    assert published.bodies == bodies


def test_a_large_frame_that_comes_in_many_pieces_is_put_together_once() -> None:
    client, server = running(frame_max=0)
    body = os.urandom(1 << 23)
    client.publish(1, c.Basic.Publish(0, "", "q"), PERSISTENT, [body, b"next"])
    data = client.data_to_send()
    step = 1 << 11
    begun = time.process_time()
    events = [event for at in range(0, len(data), step) for event in server.receive(data[at : at + step])]
    assert [one[-1] for one in single(events)] == [body, b"next"]
    assert time.process_time() - begun < 1.0, "not once for each piece"


def test_deliveries_may_differ_in_their_properties() -> None:
    client, server = running(frame_max=FRAME_MIN_SIZE)
    bodies = [b"", b"small", bytes(FRAME_MIN_SIZE)]
    properties = [PERSISTENT, NO_PROPERTIES, PERSISTENT]
    server.deliver(1, c.Basic.Deliver("ctag", 0, False, "logs", "info"), range(7, 10), properties, bodies)
    [delivered] = client.receive(server.data_to_send())
    assert isinstance(delivered, Messages)
    assert (delivered.tags, delivered.properties, delivered.bodies) == ([7, 8, 9], properties, bodies)
    assert [(one.tags, one.properties[0]) for one in delivered.alike()] == [
        ([7], PERSISTENT),
        ([8], NO_PROPERTIES),
        ([9], PERSISTENT),
    ]


def test_publishes_to_several_keys_are_one_event_of_several_methods() -> None:
    client, server = running()
    for key, properties in (("a", PERSISTENT), ("b", NO_PROPERTIES), ("a", NO_PROPERTIES)):
        client.publish(1, c.Basic.Publish(0, "logs", key), properties, [key.encode()])
    [published] = server.receive(client.data_to_send())
    assert isinstance(published, Messages)
    assert [dict(method)["routing_key"] for method in published.methods] == ["a", "b", "a"]
    assert published.methods[0] is published.methods[2]
    assert published.properties == [PERSISTENT, NO_PROPERTIES, NO_PROPERTIES]
    assert published.bodies == [b"a", b"b", b"a"]


def test_a_message_that_is_too_large_comes_after_those_before_it() -> None:
    client, server = running(max_message_size=100)
    client.publish(1, c.Basic.Publish(0, "", "q"), PERSISTENT, [b"fits", bytes(101), b"ignored"])
    published, violation = server.receive(client.data_to_send())
    assert isinstance(published, Messages)
    assert published.bodies == [b"fits"]
    assert isinstance(violation, Violation)


def test_a_body_that_is_larger_than_a_frame_stands_in_several() -> None:
    client, server = running(frame_max=FRAME_MIN_SIZE)
    body = bytes(range(256)) * 100
    client.publish(1, c.Basic.Publish(0, "", "q"), NO_PROPERTIES, [b"small", body, b""])
    data = client.data_to_send()
    assert max(len(payload) for _, _, payload in frames(data)) <= FRAME_MIN_SIZE - 8
    assert [one[-1] for one in single(server.receive(data))] == [b"small", body, b""]


def test_get_and_return_bring_one_message() -> None:
    client, server = running()
    server.send_message(1, c.Basic.GetOk(9, True, "logs", "info", 3), PERSISTENT, b"got")
    server.send_message(1, c.Basic.Return(312, "NO_ROUTE", "logs", "info"), NO_PROPERTIES, b"back")
    got, returned = client.receive(server.data_to_send())
    assert isinstance(got, Messages)
    assert isinstance(returned, Messages)
    assert isinstance(got.method, c.Basic.GetOk)
    assert isinstance(returned.method, c.Basic.Return)
    assert (got.method.message_count, got.tags, got.bodies) == (3, [9], [b"got"])
    assert (returned.method.reply_code, returned.tags, returned.bodies) == (312, [], [b"back"])


def test_what_comes_for_a_channel_that_we_close_is_passed_over() -> None:
    client, server = running(channels=(1, 2))
    server.send(1, c.Channel.Close(404, "NOT_FOUND - no queue 'q'", 50, 10))
    client.publish(1, c.Basic.Publish(0, "", "q"), NO_PROPERTIES, [b"unheard"] * 3)
    client.settle(1, c.Basic.Ack(), [1, 2])
    client.send(1, c.Queue.Declare(queue="q"))
    client.publish(2, c.Basic.Publish(0, "", "q"), NO_PROPERTIES, [b"heard"])
    assert [one[-1] for one in single(server.receive(client.data_to_send()))] == [b"heard"]
    with pytest.raises(OutOfOrderError, match="channel 1 is not open"):
        server.send(1, c.Queue.DeclareOk("q", 0, 0))
    exchange(client, server)
    client.send(1, c.Channel.CloseOk())
    exchange(client, server)
    client.send(1, c.Channel.Open())
    server_heard = exchange(client, server)[1]
    assert single(server_heard) == [(1, "Channel.Open", {"out_of_band": "0"})]


def test_a_channel_may_be_closed_before_its_opening_was_answered() -> None:
    client, server = running(channels=())
    client.send(1, c.Channel.Open())
    client.send(1, c.Channel.Close(200, "", 0, 0))
    server.receive(client.data_to_send())
    server.send(1, c.Channel.OpenOk())
    server.send(1, c.Channel.CloseOk())
    [closed] = client.receive(server.data_to_send())
    assert isinstance(closed, MethodReceived)
    assert isinstance(closed.method, c.Channel.CloseOk)
    client.send(1, c.Channel.Open())


def test_a_channel_that_was_asked_to_close_may_be_closed_for_what_came_before_that() -> None:
    client, server = running()
    client.publish(1, c.Basic.Publish(0, "not there", "q"), NO_PROPERTIES, [b""])
    client.send(1, c.Channel.Close(200, "", 0, 0))
    assert len(server.receive(client.data_to_send())) == 2
    server.send(1, c.Channel.Close(404, "NOT_FOUND - no exchange 'not there'", 60, 40))
    assert server.is_closing(1)
    server.send(1, c.Channel.CloseOk())  # the client's, too, is answered
    assert server.is_closing(1)
    client.receive(server.data_to_send())
    server.receive(client.data_to_send() or encode_method(1, c.Channel.CloseOk()))
    assert not server.is_closing(1)


def test_two_sides_that_close_a_channel_at_once_agree() -> None:
    client, server = running()
    client.send(1, c.Channel.Close(200, "", 0, 0))
    server.send(1, c.Channel.Close(404, "", 0, 0))
    exchange(client, server)
    client.send(1, c.Channel.Open())
    assert [one[1] for one in single(exchange(client, server)[1])] == ["Channel.Open"]


# ── however the bytes are cut ───────────────────────────────────────────────────────────────────────────────────────

names = st.text(max_size=8)
sizes = st.one_of(st.integers(0, 12), st.integers(4000, 4200), st.integers(8000, 9000))


@attrs.frozen
class Sent:
    """A thing that a client sends on one of two channels."""

    channel: int
    what: Callable[[Connection, int], None]


@st.composite
def sendings(draw: st.DrawFn) -> Sent:
    channel = draw(st.sampled_from((1, 2)))
    kind = draw(st.integers(0, 4))
    if kind == 0:
        bodies = [bytes([draw(st.integers(0, 255))]) * size for size in draw(st.lists(sizes, max_size=4))]
        bodies = bodies * draw(st.sampled_from((1, 1, 12)))
        method = method_of(
            c.Basic.Publish, exchange=draw(names), routing_key=draw(names), mandatory=draw(st.booleans())
        )
        properties = draw(st.sampled_from((NO_PROPERTIES, PERSISTENT)))
        return Sent(channel, lambda side, number: side.publish(number, method, properties, bodies))
    if kind == 1:
        tags = draw(st.lists(st.integers(0, 2**64 - 1), max_size=20))
        settling: Any = draw(
            st.sampled_from(
                (c.Basic.Ack(), c.Basic.Ack(multiple=True), c.Basic.Nack(requeue=False), c.Basic.Reject(requeue=True))
            )
        )
        return Sent(channel, lambda side, number: side.settle(number, settling, tags))
    if kind == 2:
        declare = c.Queue.Declare(queue="q", durable=draw(st.booleans()), arguments={"x-max-length": 5})
        return Sent(channel, lambda side, number: side.send(number, declare))
    if kind == 3:
        return Sent(channel, lambda side, _: side.send_heartbeat())
    return Sent(channel, lambda side, number: side.send(number, c.Basic.Qos(prefetch_count=10)))


@pytest.mark.slow
@given(
    st.lists(sendings(), max_size=8),
    st.lists(st.integers(0, 40_000), max_size=12),
    st.sampled_from((FRAME_MIN_SIZE, 131_072)),
)
def test_any_cut_of_the_bytes_tells_the_same(program: list[Sent], cuts: list[int], frame_max: int) -> None:
    client, server = running(frame_max=frame_max, channels=(1, 2))
    _, other = running(frame_max=frame_max, channels=(1, 2))
    for one in program:
        one.what(client, one.channel)
    data = b"".join(client.pieces_to_send())
    whole = single(server.receive(data))
    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    parts = [event for start, stop in itertools.pairwise(places) for event in other.receive(data[start:stop])]
    assert single(parts) == whole
    assert not any(isinstance(one[0], Violation) for one in whole)


@given(st.lists(sendings(), max_size=6))
def test_pamqp_reads_the_same(program: list[Sent]) -> None:
    client, server = running(frame_max=FRAME_MIN_SIZE, channels=(1, 2))
    for one in program:
        one.what(client, one.channel)
    data = client.data_to_send()
    assert [(one[0], one[-1]) for one in single(server.receive(data)) if "Basic.Publish" in one] == list(
        published_by_pamqp(data)
    )


def published_by_pamqp(data: bytes) -> Iterable[tuple[int, bytes]]:
    """Channel and body of each message that is published."""
    bodies: dict[int, tuple[int, bytes]] = {}
    for channel, found in unmarshalled(data):
        if isinstance(found, ContentHeader):
            bodies[channel] = found.body_size, b""
        elif isinstance(found, ContentBody):
            bodies[channel] = bodies[channel][0], bodies[channel][1] + found.value
        else:
            continue
        if bodies[channel][0] == len(bodies[channel][1]):
            yield channel, bodies.pop(channel)[1]


def unmarshalled(data: bytes) -> Iterable[tuple[int, object]]:
    while data:
        size, channel, found = pamqp_frame.unmarshal(data)
        yield channel, found
        data = data[size:]


def frames(data: bytes) -> Iterable[tuple[int, int, bytes]]:
    at = 0
    while at < len(data):
        kind, channel, size = struct.unpack_from(">BHI", data, at)
        yield kind, channel, data[at + 7 : at + 7 + size]
        at += size + 8


# ── what is refused ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("data", "reply"), RABBITMQS + OURS)
def test_a_violation_closes_the_connection_with_the_reason(data: bytes, reply: str) -> None:
    client, server = running()
    *before, violation = server.receive(data)
    assert before == []
    assert isinstance(violation, Violation)
    assert str(violation.error) == reply
    assert server.receive(PUBLISH_METHOD) == []
    [closed] = client.receive(server.data_to_send())
    assert isinstance(closed, MethodReceived)
    assert isinstance(closed.method, c.Connection.Close | c.Channel.Close)
    assert f"{closed.method.reply_code} {closed.method.reply_text}" == reply


@pytest.mark.parametrize("data", UNKNOWN_METHODS)
def test_an_unknown_method_gets_no_answer(data: bytes) -> None:
    _, server = running()
    [violation] = server.receive(data)
    assert isinstance(violation, Violation)
    assert (server.data_to_send(), server.state) == (b"", State.TERMINATED)


def test_after_a_violation_nothing_that_comes_raises() -> None:
    _, server = running()
    server.receive(frame(BODY, 1, b"x"))
    assert server.state is State.CLOSED
    assert server.receive(frame(METHOD, 0, b"") + frame(METHOD, 0, b"abc") + PUBLISH_METHOD + HEADER_OF_5) == []
    [closed] = server.receive(encode_method(0, c.Connection.CloseOk()))
    assert isinstance(closed, MethodReceived)
    assert server.state is State.TERMINATED


WHOLE = PUBLISH_METHOD + HEADER_OF_5 + frame(BODY, 1, b"12345")
ACK = encode_method(1, c.Basic.Ack(1))
LOST = WHOLE[:-1] + b"\0"


def opening() -> Connection:
    """A server that waits for ``connection.open``."""
    server = Connection(Side.SERVER)
    server.receive(PROTOCOL_HEADER)
    server.send(0, c.Connection.Start(server_properties={}))
    server.receive(encode_method(0, c.Connection.StartOk({}, "PLAIN", "")))
    server.send(0, c.Connection.Tune(2047, 131_072, 0))
    server.receive(encode_method(0, c.Connection.TuneOk(2047, 131_072, 0)))
    return server


def small() -> Connection:
    return running(max_message_size=4)[1]


@pytest.mark.parametrize(
    ("server", "data"),
    [
        pytest.param(opening, WHOLE, id="a message before the connection runs"),
        pytest.param(opening, ACK, id="an ack before the connection runs"),
        pytest.param(lambda: running()[1], ACK[:1] + b"\0\0" + ACK[3:], id="an ack on channel 0"),
        pytest.param(lambda: running()[1], WHOLE[:1] + b"\0\0" + WHOLE[3:], id="a message on channel 0"),
        pytest.param(lambda: running(channels=())[1], LOST, id="a closed channel, and a frame without its end"),
        pytest.param(small, WHOLE, id="a body that is too large"),
    ],
)
def test_a_violation_is_the_same_in_one_piece_and_byte_by_byte(server: Callable[[], Connection], data: bytes) -> None:
    found: list[str] = []
    for pieces in ([data], [bytes((byte,)) for byte in data]):
        peer = server()
        [violation] = [event for piece in pieces for event in peer.receive(piece)]
        assert isinstance(violation, Violation)
        found.append(str(violation.error))
    assert found[0] == found[1]


def test_a_body_may_not_be_cut_short_by_another_message() -> None:
    _, server = running()
    assert server.receive(PUBLISH_METHOD + HEADER_OF_5 + frame(BODY, 1, b"123")) == []
    whole = PUBLISH_METHOD + HEADER_OF_5 + frame(BODY, 1, b"12345")
    [violation] = server.receive(whole)
    assert isinstance(violation, Violation)
    assert violation.error.reply_code == 505


def test_more_channels_than_were_agreed_on_are_refused() -> None:
    client, server = Connection(Side.CLIENT), Connection(Side.SERVER, channel_max=2)
    exchange(client, server)
    for side, method in (
        (server, c.Connection.Start(server_properties={})),
        (client, c.Connection.StartOk({}, "PLAIN", "")),
        (server, c.Connection.Tune(2, 4096, 0)),
        (client, c.Connection.TuneOk(2, 4096, 0)),
        (client, c.Connection.Open("/")),
        (server, c.Connection.OpenOk()),
    ):
        side.send(0, method)
        exchange(client, server)
    for number in (1, 2, 3):
        client.send(number, c.Channel.Open())
    *_, violation = server.receive(client.data_to_send())
    assert isinstance(violation, Violation)
    assert violation.error.text == "number of channels opened (2) has reached the negotiated channel_max (2)"


@pytest.mark.parametrize(
    ("tune_ok", "why"),
    [
        ((0, 4096, 0), "negotiated channel_max = 0 is higher than the maximum allowed value (2047)"),
        ((2047, 4095, 0), "negotiated frame_max = 4095 is lower than the minimum allowed value (4096)"),
        ((2047, 131_073, 0), "negotiated frame_max = 131073 is higher than the maximum allowed value (131072)"),
    ],
)
def test_what_is_negotiated_stays_within_what_was_offered(tune_ok: tuple[int, int, int], why: str) -> None:
    server = Connection(Side.SERVER)
    server.receive(PROTOCOL_HEADER)
    server.send(0, c.Connection.Start(server_properties={}))
    server.receive(encode_method(0, c.Connection.StartOk({}, "PLAIN", "")))
    server.send(0, c.Connection.Tune(2047, 131_072, 60))
    [violation] = server.receive(encode_method(0, c.Connection.TuneOk(*tune_ok)))
    assert isinstance(violation, Violation)
    assert violation.error.text == why


def test_a_peer_that_is_not_let_in_yet_gets_no_reasons() -> None:
    server = Connection(Side.SERVER)
    server.receive(PROTOCOL_HEADER)
    server.send(0, c.Connection.Start(server_properties={}))
    server.data_to_send()
    [violation] = server.receive(encode_method(0, c.Connection.Open("/")))
    assert isinstance(violation, Violation)
    assert (server.data_to_send(), server.state) == (b"", State.TERMINATED)


@given(st.data())
def test_nothing_that_comes_raises(data: st.DataObject) -> None:
    client, server = running(frame_max=FRAME_MIN_SIZE, channels=(1, 2))
    for one in data.draw(st.lists(sendings(), max_size=4)):
        one.what(client, one.channel)
    sent = bytearray(client.data_to_send())
    for _ in range(data.draw(st.integers(0, 4)) if sent else 0):
        sent[data.draw(st.integers(0, len(sent) - 1))] = data.draw(st.integers(0, 255))
    sent += data.draw(st.binary(max_size=40))
    events = server.receive(bytes(sent))
    assert not any(isinstance(event, Violation) for event in events[:-1])
    assert server._reader.pending_bytes <= max(len(sent), FRAME_MIN_SIZE + 8)
    server.data_to_send()


@given(st.sampled_from(tuple(Side)), st.binary(max_size=200))
@example(Side.SERVER, PROTOCOL_HEADER + frame(METHOD, 0, b"\0\x0a\0\x0b" + b"\0\0\xff\xff"))
def test_nothing_that_a_stranger_says_raises(side: Side, data: bytes) -> None:
    end = Connection(side)
    events = end.receive(data if side is Side.CLIENT else PROTOCOL_HEADER + data)
    assert not any(isinstance(event, Violation) for event in events[:-1])


# ── what our own side may not send ──────────────────────────────────────────────────────────────────────────────────


def test_each_side_sends_its_own_methods_only() -> None:
    every = {method for side in Side for method in SENT_BY[side]}
    assert every == set(KINDS.values())
    client, server = running()
    with pytest.raises(OutOfOrderError, match=r"a server does not send queue\.declare"):
        server.send(1, c.Queue.Declare(queue="q"))
    with pytest.raises(OutOfOrderError, match=r"a client does not send basic\.get_ok"):
        client.send(1, c.Basic.GetOk(1))
    with pytest.raises(OutOfOrderError, match=r"connection\.tune cannot be sent in connection state running"):
        server.send(0, c.Connection.Tune(1, 4096, 0))
    with pytest.raises(OutOfOrderError, match="channel 7 is not open"):
        server.send(7, c.Queue.DeclareOk("q", 0, 0))
    assert server.data_to_send() == client.data_to_send() == b""


def test_names_may_be_any_text() -> None:
    client, server = running()
    odd = "a!b ü"
    client.send(1, method_of(c.Queue.Declare, queue=odd, arguments={"x": {"y": [1, "two"]}}))
    [declare] = server.receive(client.data_to_send())
    assert isinstance(declare, MethodReceived)
    assert isinstance(declare.method, c.Queue.Declare)
    assert (declare.method.queue, declare.method.arguments) == (odd, {"x": {"y": [1, "two"]}})
    with pytest.raises(MessageError, match=r"queue\.declare: queue does not fit"):
        client.send(1, method_of(c.Queue.Declare, queue="q" * 256))


def test_bytes_that_are_no_text_may_be_published_with_and_declared_with_not() -> None:
    client, server = running()
    client.publish(1, method_of(c.Basic.Publish, routing_key="\udcff"), NO_PROPERTIES, [b""])
    [published] = server.receive(client.data_to_send())
    assert isinstance(published, Messages)
    assert isinstance(published.method, c.Basic.Publish)
    assert published.method.routing_key == "\udcff"
    client.send(1, method_of(c.Queue.Declare, queue="\udcff"))
    [violation] = server.receive(client.data_to_send())
    assert isinstance(violation, Violation)
    assert str(violation.error) == "501 FRAME_ERROR - Malformed UTF-8 in shortstr"
    assert violation.error.method_index == 0


@pytest.mark.filterwarnings("ignore:This command is deprecated")  # basic.recover-async
@pytest.mark.parametrize("kind", c.INDEX_MAPPING.values(), ids=lambda kind: kind.name)
def test_methods_are_written_as_pamqp_writes_them(kind: type[Method]) -> None:
    """They are also read back: numbers, bits, strings and tables in every method's places."""
    values = {"bit": True, "octet": 7, "short": 513, "long": 70_000, "longlong": 1 << 40, "table": {"a": "b"}}
    fixed = {
        "exchange_type": "topic",
        "ticket": 0,
        "channel_max": 9,
        "cluster_id": "",
        "known_hosts": "",
        "channel_id": "0",
        "insist": False,
    }
    fixed |= {"capabilities": "", "out_of_band": "0", "version_major": 0, "version_minor": 9}
    arguments = {name: fixed.get(name, values.get(kind.amqp_type(name), "text")) for name in kind.attributes()}
    method = method_of(kind, **arguments)
    payload = encode_method(3, method)
    assert payload == pamqp_frame.marshal(method, 3)
    assert dict(decode_method(payload[7:-1])) == arguments


def test_methods_are_named_as_rabbitmq_names_them() -> None:
    assert [dotted_name(kind) for kind in (c.Queue.DeclareOk, c.Connection.UpdateSecret, c.Basic.Ack)] == [
        "queue.declare_ok",
        "connection.update_secret",
        "basic.ack",
    ]
