"""Publishes that differ and come together: how a server divides them into batches, which no client can observe."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands as c

from tests.support.amqp_link import Link, LinkChannel
from tests.support.server_tools import Served, served
from warren.amqp.methods import encode_method, method_of
from warren.queue_index.message.amqp_tables import LongInteger, SingleFloat, Timestamp
from warren.queue_index.properties import (
    Outline,
    Properties,
    decode_properties,
    encode_properties,
    outline_of,
)
from warren.server.channels.batches import Address, Batches, Route
from warren.storage.errors import MessageError

PUBLISH = c.Basic.Publish(0, "", "q")


@given(st.lists(st.tuples(st.integers(0, 3), st.sets(st.integers(0, 3))), max_size=40))
def test_each_receiver_gets_its_messages_in_order(sent: list[tuple[int, set[int]]]) -> None:
    addresses = [cast(Address, object()) for _ in range(4)]
    receivers: list[Any] = [[], [], [], []]
    routes = {number: {id(receivers[to]) for to in to_all} for number, to_all in sent}
    batches = Batches()
    for position, (number, _) in enumerate(sent):
        mine = [receiver for receiver in receivers if id(receiver) in routes[number]]
        batches.batch_for(PUBLISH, addresses[number], Route(mine)).given.append(b"%d" % position)
    for batch in batches.in_order:
        for receiver in cast(Any, batch.route.receivers):
            receiver.extend(batch.given)
    for receiver in receivers:
        expected = [b"%d" % position for position, (number, _) in enumerate(sent) if id(receiver) in routes[number]]
        assert receiver == expected


def test_messages_to_other_queues_do_not_end_a_batch() -> None:
    batches, left, right = Batches(), cast(Address, object()), cast(Address, object())
    routes = {left: Route([cast(Any, [])]), right: Route([cast(Any, [])])}
    for number in range(10):
        address = (left, right)[number % 2]
        batches.batch_for(PUBLISH, address, routes[address]).given.append(b"")
    assert [len(batch.given) for batch in batches.in_order] == [5, 5]


# ── outlines ────────────────────────────────────────────────────────────────────────────────────────────────────────

HEADERS: dict[str, Any] = {
    "text": "x" * 300, "none": None, "list": [None, 1, ["deep"]], "table": {"in": {"it": b"\xff"}}, "yes": True,
    "long": LongInteger(7), "single": SingleFloat(0.5), "double": 0.25, "time": Timestamp(9), "bytes": b"\0\1",
}  # fmt: skip
ALL_SET = encode_properties(
    Properties(
        content_type="text/plain", headers=HEADERS, delivery_mode=2, priority=3, correlation_id="c", reply_to="r",
        expiration="1000", message_id="m", timestamp=5, type="t", user_id="guest", app_id="a",
    )
)  # fmt: skip


def test_an_outline_has_what_decides_where_a_message_goes() -> None:
    outline = outline_of(ALL_SET)
    assert outline[1:] == (2, 3, b"r", b"1000", b"guest")
    assert outline.headers in ALL_SET
    assert outline_of(b"\0\0") == Outline()


@given(st.data())
def test_an_outline_of_damaged_properties_is_refused_as_they_are(data: st.DataObject) -> None:
    """As decoding refuses them, which answers a publisher."""
    damaged = bytearray(ALL_SET[: data.draw(st.integers(2, len(ALL_SET)))])
    for _ in range(data.draw(st.integers(0, 3))):
        damaged[data.draw(st.integers(2, len(damaged) - 1)) if len(damaged) > 2 else 0] = data.draw(st.integers(0, 255))
    try:
        decoded = decode_properties(bytes(damaged))
    except MessageError:
        with pytest.raises(MessageError):
            outline_of(bytes(damaged))
    else:
        outline = outline_of(bytes(damaged))
        assert (outline.delivery_mode, outline.priority) == (decoded.delivery_mode, decoded.priority)


# ── through a server ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("server") / "node") as here:
        yield here


def opened(here: Served, *methods: Any) -> tuple[Link, LinkChannel]:
    """A channel in confirm mode, after those methods."""
    link = Link(here.port)
    channel = link.open_channel(1)
    for method in (*methods, c.Confirm.Select()):
        before = len(channel.came)
        link.write(link.encoded(channel, method, None))
        while len(channel.came) == before:
            link.read()
    channel.came.clear()
    return link, channel


def send(
    link: Link, channel: LinkChannel, *messages: tuple[str, str, Properties, bytes], mandatory: bool = False
) -> None:
    """Publish messages in one write: exchange, routing key, properties, body."""
    data = [
        link.encoded(
            channel,
            method_of(c.Basic.Publish, exchange=exchange, routing_key=key, mandatory=mandatory),
            (encode_properties(properties), [body]),
        )
        for exchange, key, properties, body in messages
    ]
    link.write(b"".join(data))


def until_confirmed(link: Link, channel: LinkChannel) -> None:
    while channel.unconfirmed and channel.is_open and link.is_open:
        link.read()


def in_queue(here: Served, name: str) -> list[tuple[bytes, Mapping[str, Any]]]:
    """Bodies and headers of a queue's messages, which are taken."""
    deliveries = list(here.node.vhost("/").queue(name).get_many(1000))
    for delivery in deliveries:
        delivery.ack()
    return [(delivery.body, delivery.headers) for delivery in deliveries]


def numbered(number: int, **more: Any) -> Properties:
    return Properties(headers={"number": number, "id": f"{number:036d}"[: 30 + number % 7]}, delivery_mode=2, **more)


def test_interleaved_keys_reach_each_queue_in_order(server: Served) -> None:
    link, channel = opened(
        server,
        c.Exchange.Declare(exchange="topic", exchange_type="topic"),
        *(c.Queue.Declare(queue=f"t{number}") for number in range(3)),
        c.Queue.Declare(queue="t-all"),
        *(c.Queue.Bind(queue=f"t{number}", exchange="topic", routing_key=f"k{number}") for number in range(3)),
        c.Queue.Bind(queue="t-all", exchange="topic", routing_key="#"),
    )
    sent = [("topic", f"k{number % 3}", numbered(number), b"%d" % number) for number in range(60)]
    for _ in range(2):  # the second time each key's route is cached
        send(link, channel, *sent)
        until_confirmed(link, channel)
        assert in_queue(server, "t-all") == [(body, properties.headers) for *_, properties, body in sent]
        for number in range(3):
            expected = [(body, properties.headers) for _, key, properties, body in sent if key == f"k{number}"]
            assert in_queue(server, f"t{number}") == expected
    link.close()


def test_messages_of_every_kind_keep_their_order_in_one_queue(server: Served) -> None:
    """Some are transient, large, expire, have copies, or the same properties as the one before."""
    link, channel = opened(server, c.Queue.Declare(queue="kinds"), c.Queue.Declare(queue="copies"))
    kinds = [
        numbered(0),
        numbered(1, priority=4),
        Properties(headers={"number": 2}),
        Properties(headers={"number": 2}),
        numbered(3, expiration="600000"),
        Properties(headers={"number": 4, "CC": ["copies"]}, delivery_mode=2),
        Properties(headers={"number": 5, "ID": "x" * 300}, delivery_mode=1),
        Properties(),
        numbered(6, user_id="guest"),
    ]
    bodies = [b"%d" % number + bytes(number % 4 * 3000) for number in range(5 * len(kinds))]
    sent = [("", "kinds", kinds[number % len(kinds)], body) for number, body in enumerate(bodies)]
    send(link, channel, *sent)
    until_confirmed(link, channel)
    assert [body for body, _ in in_queue(server, "kinds")] == bodies
    assert [headers for _, headers in in_queue(server, "copies")] == [kinds[5].headers] * 5
    link.close()


def test_mandatory_messages_come_back_with_their_own_properties(server: Served) -> None:
    link, channel = opened(server)
    sent = [("", "nowhere", numbered(number), b"%d" % number) for number in range(5)]
    send(link, channel, *sent, mandatory=True)
    until_confirmed(link, channel)
    returned = [arguments for name, arguments in channel.came if name == "basic.return"]
    assert [(one["properties"], one["body"]) for one in returned] == [
        (encode_properties(properties), body) for *_, properties, body in sent
    ]
    link.close()


@pytest.mark.parametrize(
    ("third", "code"),
    [
        (b"\x20\0\0\0\0\x09\x01hS\xff\0\0\0", 541),
        (encode_properties(numbered(3, user_id="somebody")), 406),
        (encode_properties(Properties(headers={"n": 3}, delivery_mode=3)), 406),
        (encode_properties(numbered(3, expiration="soon")), 406),
    ],
)
def test_what_comes_before_a_refused_message_is_published(server: Served, third: bytes, code: int) -> None:
    link, channel = opened(server, c.Queue.Declare(queue="refusals"))
    publish = method_of(c.Basic.Publish, exchange="", routing_key="refusals")
    contents = [encode_properties(numbered(number)) for number in range(5)]
    contents[3] = third
    data = [link.encoded(channel, publish, (encoded, [b"%d" % at])) for at, encoded in enumerate(contents)]
    link.write(b"".join(data))
    while link.is_open and channel.is_open and not link.is_closing:
        link.read()
    came = channel.came if code == 406 else link.came
    [close] = [arguments for name, arguments in came if name in ("channel.close", "connection.close")]
    assert close["reply_code"] == code
    link.close()
    assert [body for body, _ in in_queue(server, "refusals")] == [b"0", b"1", b"2"]


def test_headers_decide_behind_another_exchange(server: Served) -> None:
    link, channel = opened(
        server,
        c.Exchange.Declare(exchange="front", exchange_type="fanout"),
        c.Exchange.Declare(exchange="behind", exchange_type="headers"),
        c.Exchange.Bind(destination="behind", source="front"),
        c.Queue.Declare(queue="even"),
        c.Queue.Bind(queue="even", exchange="behind", arguments={"even": True}),
    )
    sent = [
        ("front", "", Properties(headers={"even": number % 2 == 0, "n": number}), b"%d" % number) for number in range(9)
    ]
    send(link, channel, *sent)
    until_confirmed(link, channel)
    assert [body for body, _ in in_queue(server, "even")] == [b"0", b"2", b"4", b"6", b"8"]
    link.close()


def test_a_stream_gets_messages_with_their_own_properties(server: Served) -> None:
    link, channel = opened(
        server,
        c.Exchange.Declare(exchange="fan", exchange_type="fanout"),
        c.Queue.Declare(queue="stream", durable=True, arguments={"x-queue-type": "stream"}),
        c.Queue.Declare(queue="beside"),
        c.Queue.Bind(queue="stream", exchange="fan"),
        c.Queue.Bind(queue="beside", exchange="fan"),
    )
    sent = [("fan", "", numbered(number), b"%d" % number) for number in range(20)]
    for _ in range(2):
        send(link, channel, *sent)
        until_confirmed(link, channel)
    assert [body for body, _ in in_queue(server, "beside")] == [body for *_, body in sent] * 2
    consume = method_of(c.Basic.Consume, queue="stream", consumer_tag="s", arguments={"x-stream-offset": "first"})
    link.write(encode_method(1, c.Basic.Qos(0, 100, False)) + encode_method(1, consume))
    delivered: list[Mapping[str, Any]] = []
    while len(delivered) < 40:
        link.read()
        delivered = [arguments for name, arguments in channel.came if name == "basic.deliver"]
    for arguments, (_, _, properties, body) in zip(delivered, sent * 2, strict=True):
        headers = dict(decode_properties(arguments["properties"]).headers or {})
        del headers["x-stream-offset"]
        assert (headers, arguments["body"]) == (properties.headers, body)
    link.close()


def test_a_full_queue_refuses_single_messages_of_a_batch(server: Served) -> None:
    limits: dict[str, Any] = {"x-max-length": 2, "x-overflow": "reject-publish"}
    link, channel = opened(server, c.Queue.Declare(queue="full", arguments=limits))
    send(link, channel, *(("", "full", numbered(number), b"%d" % number) for number in range(5)))
    until_confirmed(link, channel)
    confirmed = sorted((arguments["delivery_tag"], name) for name, arguments in channel.came)
    assert confirmed == [(1, "basic.ack"), (2, "basic.ack"), *((tag, "basic.nack") for tag in (3, 4, 5))]
    link.close()


def test_priorities_order_messages_that_came_together(server: Served) -> None:
    link, channel = opened(server, c.Queue.Declare(queue="ranks", arguments={"x-max-priority": 3}))
    send(link, channel, *(("", "ranks", numbered(number, priority=number % 3), b"%d" % number) for number in range(6)))
    until_confirmed(link, channel)
    assert [body for body, _ in in_queue(server, "ranks")] == [b"2", b"5", b"1", b"4", b"0", b"3"]
    link.close()


def test_a_transaction_publishes_messages_that_differ(server: Served) -> None:
    link = Link(server.port)
    channel = link.open_channel(1)
    link.write(encode_method(1, c.Queue.Declare(queue="tx")) + encode_method(1, c.Tx.Select()))
    send(link, channel, *(("", "tx", numbered(number), b"%d" % number) for number in range(4)))
    link.write(encode_method(1, c.Tx.Commit()))
    while "tx.commit_ok" not in [name for name, _ in channel.came]:
        link.read()
    assert [body for body, _ in in_queue(server, "tx")] == [b"0", b"1", b"2", b"3"]
    link.close()
