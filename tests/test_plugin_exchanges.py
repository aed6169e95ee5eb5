"""Exchanges of the types of RabbitMQ's plugins: the same on RabbitMQ 3.10.8 and here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection

import warren
from tests.support.broker import Broker, requires_broker
from tests.support.server_tools import Served, served
from tests.support.waiting import wait_until
from warren.queue_index.index.erlang_hash import jump_consistent_hash, phash2

PLUGINS: Final = (
    "rabbitmq_consistent_hash_exchange", "rabbitmq_random_exchange", "rabbitmq_recent_history_exchange",
    "rabbitmq_sharding",
)  # fmt: skip
QUEUES: Final = ("a", "b", "c")
PERSISTENT: Final = pika.BasicProperties(delivery_mode=2)


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with served(tmp_path_factory.mktemp("warren") / "node") as here:
        yield here.port


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with Broker(tmp_path_factory.mktemp("broker"), plugins=PLUGINS) as broker:
        broker.start()
        yield broker.amqp_port


@pytest.fixture(params=["own", pytest.param("real", marks=requires_broker)])
def port(request: pytest.FixtureRequest) -> int:
    chosen: int = request.getfixturevalue(request.param)
    return chosen


def opened(port: int) -> BlockingConnection:
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port, heartbeat=0))


@pytest.fixture
def channel(port: int) -> Iterator[BlockingChannel]:
    """With the queues and without the exchange ``x``."""
    with opened(port) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        prepare(channel)
        yield channel


def prepare(channel: BlockingChannel) -> None:
    channel.exchange_delete("x")
    for queue in QUEUES:
        channel.queue_delete(queue)
        channel.queue_declare(queue)


def refusal(port: int, act: partial[Any]) -> str:
    with opened(port) as connection, pytest.raises(pika.exceptions.ChannelClosedByBroker) as raised:
        act(connection.channel())
    return f"{raised.value.reply_code} {raised.value.reply_text}"


def bodies(channel: BlockingChannel, queue: str) -> list[bytes]:
    """All messages of a queue, whose publishes are confirmed."""
    count = channel.queue_declare(queue, passive=True).method.message_count
    return [body for _ in range(count) if (body := channel.basic_get(queue, auto_ack=True)[2]) is not None]


# ── what they refuse ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("type", "arguments", "text"),
    [
        ("x-consistent-hash", {"hash-property": "app_id"}, "Unsupported property: app_id"),
        (
            "x-consistent-hash",
            {"hash-header": "a", "hash-property": "message_id"},
            "hash-header and hash-property are mutually exclusive",
        ),
        *[
            (
                "x-recent-history",
                {"x-recent-history-length": length},
                f"Invalid argument {shown}, 'x-recent-history-length' must be a positive integer",
            )
            for length, shown in ((0, "0"), (-1, "-1"), ("5", '<<"5">>'), (True, "true"), (None, "undefined"))
        ],
    ],
)
def test_invalid_arguments_are_refused(port: int, type: str, arguments: dict[str, Any], text: str) -> None:
    declare = partial(BlockingChannel.exchange_declare, exchange="wrong", exchange_type=type, arguments=arguments)
    assert refusal(port, declare) == f"406 PRECONDITION_FAILED - {text}"


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("0", "The binding key must be greater than 0"),
        ("-1", "The binding key must be greater than 0"),
        ("x", 'The binding key must be an integer: <<"x">>'),
        (" 2", 'The binding key must be an integer: <<" 2">>'),
        ("", "The binding key must be an integer: <<>>"),
    ],
)
def test_a_weight_is_a_number_from_1(port: int, channel: BlockingChannel, key: str, text: str) -> None:
    channel.exchange_declare("x", "x-consistent-hash")
    bind = partial(BlockingChannel.queue_bind, queue="a", exchange="x", routing_key=key)
    assert refusal(port, bind) == f"406 PRECONDITION_FAILED - {text}"


# ── where messages go ────────────────────────────────────────────────────────────────────────────────────────────────


def routes(port: int, type: str, arguments: dict[str, Any], bindings: list[tuple[str, str]]) -> list[list[str]]:
    """The queues of many messages with different keys, headers and properties."""
    messages: list[tuple[str, dict[str, Any]]] = [(f"key {number}", {}) for number in range(40)] + [
        ("", {}),
        ("k", {"headers": {"CC": ["l", "m"]}}),
    ]
    for number in range(10):
        for value in (f"v{number}", number, number << 40, -number, number % 2 == 0):
            messages.append(("k", {"headers": {"h": value}}))
        messages.append(("k", {"message_id": f"id {number}", "correlation_id": "", "timestamp": number << 20}))
    with opened(port) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        prepare(channel)
        channel.exchange_declare("x", type, arguments=arguments)
        for queue, key in bindings:
            channel.queue_bind(queue, "x", key)
        for number, (key, properties) in enumerate(messages):
            channel.basic_publish("x", key, b"%d" % number, pika.BasicProperties(delivery_mode=2, **properties))
        found: list[list[str]] = [[] for _ in messages]
        for queue in QUEUES:
            for body in bodies(channel, queue):
                found[int(body)].append(queue)
    return found


@requires_broker
@pytest.mark.parametrize(
    ("type", "arguments", "bindings"),
    [
        ("x-consistent-hash", {}, [("a", "1"), ("b", "3"), ("c", "+2")]),
        ("x-consistent-hash", {"hash-header": "h"}, [("b", "10"), ("a", "1"), ("c", "7")]),
        ("x-consistent-hash", {"hash-property": "message_id"}, [("a", "1"), ("b", "1"), ("c", "1")]),
        ("x-consistent-hash", {"hash-property": "correlation_id"}, [("a", "1"), ("b", "1")]),
        ("x-consistent-hash", {"hash-property": "timestamp"}, [("a", "1"), ("b", "2"), ("a", "5")]),
        ("x-consistent-hash", {}, []),
        ("x-modulus-hash", {}, [("c", "z"), ("a", "y"), ("b", ""), ("a", "x")]),
        ("x-modulus-hash", {}, [("b", ""), ("a", "")]),
        ("x-recent-history", {}, [("a", "1"), ("a", "2"), ("b", "")]),
    ],
)
def test_messages_go_to_the_same_queues(
    own: int, real: int, type: str, arguments: dict[str, Any], bindings: list[tuple[str, str]]
) -> None:
    assert routes(own, type, arguments, bindings) == routes(real, type, arguments, bindings)


def test_the_hashes_are_erlangs() -> None:
    """Values of OTP 25."""
    hashes: dict[Any, int] = {
        b"": 13708901,
        b"abcdefghijklmnopqrstuvwxyz": 21348335,
        "undefined": 45914356,
        ("longstr", b"a"): 65711459,
        ("long", -5): 54650909,
        ("long", 123456789012345): 61026054,
        ("bool", "true"): 32030443,
    }
    assert {term: phash2(term) for term in hashes} == hashes
    assert [phash2([b"a", b"bc"]), phash2([b""])] == [20875735, 38220213]
    counts = Counter(jump_consistent_hash(key, 4) for key in range(4000))
    assert sorted(counts) == [0, 1, 2, 3]
    assert min(counts.values()) > 900


def test_most_keys_keep_their_queue_when_another_is_bound(channel: BlockingChannel) -> None:
    channel.exchange_declare("x", "x-consistent-hash")
    places: list[dict[bytes, str]] = []
    for bound in (("a", "b"), ("c",)):
        for queue in bound:
            channel.queue_bind(queue, "x", "1")
        for number in range(90):
            channel.basic_publish("x", f"k{number}", b"%d" % number, PERSISTENT)
        places.append({body: queue for queue in QUEUES for body in bodies(channel, queue)})
    before, after = places
    assert {queue for body, queue in after.items() if queue != before[body]} == {"c"}
    assert 10 < list(after.values()).count("c") < 60


def test_equal_messages_are_spread_at_random(channel: BlockingChannel) -> None:
    channel.exchange_declare("x", "x-random")
    for queue in QUEUES:
        channel.queue_bind(queue, "x", "")
    channel.exchange_declare("all", "fanout")
    channel.exchange_bind("x", "all")
    channel.queue_bind("a", "all")
    for _ in range(90):
        channel.basic_publish("x", "k", b"m", PERSISTENT)
    assert sum(found := [len(bodies(channel, queue)) for queue in QUEUES]) == 90
    assert min(found) > 5
    for _ in range(60):
        channel.basic_publish("all", "k", b"m", PERSISTENT)
    found = [len(bodies(channel, queue)) for queue in QUEUES]
    assert found[0] == 60
    assert 20 < found[1] + found[2] < 60
    channel.exchange_delete("all")


def test_equal_messages_in_one_write_are_spread_at_random(own: int) -> None:
    with opened(own) as connection:
        channel = connection.channel()
        prepare(channel)
        channel.exchange_declare("x", "x-random")
        for queue in QUEUES:
            channel.queue_bind(queue, "x", "")
        channel.tx_select()
        for _ in range(90):
            channel.basic_publish("x", "k", b"m", PERSISTENT)
        channel.tx_commit()
        assert sum(found := [len(bodies(channel, queue)) for queue in QUEUES]) == 90
        assert min(found) > 5
        channel.exchange_delete("x")


# ── recent history ───────────────────────────────────────────────────────────────────────────────────────────────────


def came(channel: BlockingChannel, queue: str, count: int) -> list[bytes]:
    wait_until(
        lambda: channel.queue_declare(queue, passive=True).method.message_count >= count, f"{count} messages in {queue}"
    )
    return bodies(channel, queue)


def test_a_new_binding_gets_the_last_messages(channel: BlockingChannel) -> None:
    channel.exchange_declare("x", "x-recent-history", arguments={"x-recent-history-length": 3})
    for number in range(5):
        channel.basic_publish("x", f"k{number}", b"%d" % number, pika.BasicProperties(headers={"n": number}))
    not_stored = pika.BasicProperties(headers={"x-recent-history-no-store": True})
    channel.basic_publish("x", "", b"not stored", not_stored)
    channel.queue_bind("a", "x", "")
    assert came(channel, "a", 3) == [b"2", b"3", b"4"]
    channel.queue_bind("a", "x", "")  # the same again
    channel.basic_publish("x", "k5", b"5")
    channel.queue_bind("b", "x", "other")
    assert came(channel, "b", 3) == [b"3", b"4", b"5"]
    assert bodies(channel, "a") == [b"5"]
    channel.basic_publish("x", "", b"not stored", not_stored)
    assert [bodies(channel, queue) for queue in "ab"] == [[b"not stored"]] * 2


def test_a_history_is_as_it_was_published(channel: BlockingChannel) -> None:
    channel.exchange_declare("x", "x-recent-history")
    for number in range(25):
        channel.basic_publish("x", "key", b"%d" % number, pika.BasicProperties(headers={"n": number}, message_id="i"))
    channel.queue_bind("a", "x", "")
    wait_until(lambda: channel.queue_declare("a", passive=True).method.message_count == 20, "20 messages, the default")
    method, properties, body = channel.basic_get("a", auto_ack=True)
    assert method is not None
    assert (method.exchange, method.routing_key, method.redelivered, body) == ("x", "key", False, b"5")
    assert (properties.headers, properties.message_id) == ({"n": 5}, "i")


def test_a_bound_exchange_routes_the_history(channel: BlockingChannel) -> None:
    channel.exchange_declare("x", "x-recent-history")
    channel.exchange_declare("first", "fanout")
    channel.exchange_declare("then", "direct")
    channel.exchange_bind("x", "first")
    channel.queue_bind("a", "then", "k")
    channel.queue_bind("b", "then", "l")
    for number, key in enumerate("klkl"):
        channel.basic_publish("first", key, b"%d" % number)
    channel.exchange_bind("then", "x")
    assert sorted(came(channel, "a", 2)) == [b"0", b"2"]  # RabbitMQ's come in the opposite order
    assert sorted(came(channel, "b", 2)) == [b"1", b"3"]
    for exchange in ("first", "then"):
        channel.exchange_delete(exchange)


# ── here only ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_handles_publish_through_them() -> None:
    with warren.open(":memory:") as node:
        queues = [node.queue(name) for name in QUEUES]
        for type in ("x-random", "x-consistent-hash", "x-modulus-hash"):
            exchange = node.exchange(type, type)
            for queue in queues:
                node.bind(queue, exchange, "1")
            if type == "x-random":
                exchange.publish_many([b"m"] * 90, "k").wait()
            else:
                for number in range(90):
                    exchange.publish(b"m", f"k{number}").wait()
            lengths = [queue.purge() for queue in queues]
            assert sum(lengths) == 90
            assert min(lengths) > 5
        history = node.exchange("h", "x-recent-history", arguments={"x-recent-history-length": 2})
        history.publish_many([b"1", b"2", b"3"], "k").wait()
        node.bind(queues[0], history)
        assert [message.body for message in queues[0].get_many(5)] == [b"2", b"3"]


def test_keys_keep_their_queues_over_a_restart_and_the_history_is_forgotten(tmp_path_factory: Any) -> None:
    place = tmp_path_factory.mktemp("restart") / "node"

    def spread(here: Served) -> list[list[bytes]]:
        with here.channel() as channel:
            channel.confirm_delivery()
            for number in range(50):
                channel.basic_publish("x", f"k{number}", b"%d" % number, PERSISTENT)
            return [bodies(channel, queue) for queue in "dac"]

    with served(place) as here, here.channel() as channel:
        channel.exchange_declare("x", "x-consistent-hash", durable=True)
        channel.exchange_declare("h", "x-recent-history", durable=True)
        for queue, weight in (("d", "2"), ("a", "3"), ("c", "1")):
            channel.queue_declare(queue, durable=True)
            channel.queue_bind(queue, "x", weight)
        channel.basic_publish("h", "", b"forgotten", PERSISTENT)
        before = spread(here)
    with served(place) as here, here.channel() as channel:
        assert spread(here) == before
        channel.queue_bind("a", "h", "")
        channel.basic_publish("h", "", b"new", PERSISTENT)
        assert came(channel, "a", 1) == [b"new"]
