"""Quorum queues as clients see them: the same on RabbitMQ 3.10.8 and here, except where a test says so."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection
from pika.exceptions import ChannelClosedByBroker

import warren
from tests.support.broker import Broker, requires_broker
from tests.support.management_tools import Api
from tests.support.server_tools import events_until, served
from tests.support.waiting import wait_until
from warren.actors.engines.declared.stream_arguments import FILTER_SIZE
from warren.management import ManagementSettings
from warren.server import ServerSettings

QUORUM: Final = {"x-queue-type": "quorum"}
FULL: Final[dict[str, Any]] = {
    **QUORUM,
    "x-dead-letter-exchange": "a",
    "x-dead-letter-routing-key": "k",
    "x-dead-letter-strategy": "at-least-once",
    "x-delivery-limit": 3,
    "x-expires": 900_000,
    "x-max-in-memory-bytes": 4,
    "x-max-in-memory-length": 4,
    "x-max-length": 4,
    "x-max-length-bytes": 4,
    "x-message-ttl": 70_000,
    "x-overflow": "reject-publish",
    "x-queue-leader-locator": "balanced",
    "x-quorum-initial-group-size": 1,
    "x-single-active-consumer": True,
}
SEEDS: Final = range(5)
TO_DEAD: Final = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}


@pytest.fixture(scope="module", params=["warren", pytest.param("rabbitmq", marks=requires_broker)])
def port(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    if request.param == "warren":
        with served(tmp_path_factory.mktemp("warren") / "node") as here:
            yield here.port
    else:
        with Broker(tmp_path_factory.mktemp("broker")) as broker:
            broker.start()
            yield broker.amqp_port


@pytest.fixture
def connection(port: int) -> Iterator[BlockingConnection]:
    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port, heartbeat=0)) as opened:
        yield opened


@pytest.fixture
def channel(connection: BlockingConnection) -> Iterator[BlockingChannel]:
    """With an empty queue ``q``, which is gone at the end."""
    opened = connection.channel()
    opened.confirm_delivery()
    declare(opened, "q")
    declare(opened, "dead", type=None)
    yield opened
    if opened.is_open:
        opened.queue_delete("q")
        opened.queue_delete("dead")


def declare(channel: BlockingChannel, name: str, type: str | None = "quorum", **arguments: Any) -> None:
    given = {f"x-{name.replace('_', '-')}": value for name, value in arguments.items()}
    channel.queue_declare(name, durable=True, arguments={"x-queue-type": type, **given} if type else given)


def got(channel: BlockingChannel, queue: str = "q") -> tuple[int, tuple[bytes, bool, Any]]:
    """The next message's tag, and its body, whether it was delivered before, and the count that its headers tell."""
    found: list[Any] = []

    def get() -> bool:
        found[:] = channel.basic_get(queue)
        return found[0] is not None

    wait_until(get, "a message is there")
    method, properties, body = found
    return method.delivery_tag, (body, method.redelivered, (properties.headers or {}).get("x-delivery-count"))


def refusal(port: int, act: Callable[[BlockingChannel], object]) -> str:
    """The code and text that an act on a channel of its own is refused with."""
    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port, heartbeat=0)) as connection:
        with pytest.raises((pika.exceptions.ChannelClosedByBroker, pika.exceptions.ConnectionClosedByBroker)) as raised:
            act(connection.channel())
        if connection.is_closed:
            connection.close = lambda: None
    return f"{raised.value.reply_code} {raised.value.reply_text}"


# ── declarations ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_it_is_declared_with_all_its_arguments(connection: BlockingConnection) -> None:
    channel = connection.channel()
    for number, arguments in enumerate([FULL, *({**QUORUM, name: value} for name, value in {
        "x-quorum-target-group-size": 3,
        "x-delivery-limit": "3",
        "x-overflow": "reject-publish-dlx",
        "x-unknown": 5,
    }.items())]):  # fmt: skip
        for _ in range(2):
            channel.queue_declare(f"full{number}", durable=True, arguments=arguments)
        channel.queue_declare(f"full{number}", durable=True, arguments={**arguments, "x-max-priority": 3})


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"durable": False}, "invalid property 'non-durable' for queue 'new' in vhost '/'"),
        ({"exclusive": True}, "invalid property 'exclusive-owner' for queue 'new' in vhost '/'"),
        ({"auto_delete": True, "durable": False}, "invalid property 'auto-delete' for queue 'new' in vhost '/'"),
        ({"queue": ""}, "Cannot declare a server-named queue for type rabbit_quorum_queue"),
    ],
)
def test_properties_that_it_cannot_have_are_refused(port: int, more: dict[str, Any], text: str) -> None:
    fields = {"queue": "new", "durable": True, "arguments": QUORUM, **more}
    assert refusal(port, lambda channel: channel.queue_declare(**fields)) == f"406 PRECONDITION_FAILED - {text}"


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("x-dead-letter-strategy", "no", ": invalid_dlx_strategy"),
        ("x-dead-letter-strategy", 1, ": {unacceptable_type,signedint}"),
        ("x-dead-letter-routing-key", "k", ": routing_key_but_no_dlx_defined"),
        ("x-overflow", "x", ": invalid_overflow"),
        ("x-quorum-initial-group-size", 0, ": {value_zero,0}"),
        ("x-quorum-initial-group-size", "1", ': "expected integer, got longstr"'),
        ("x-queue-leader-locator", "zz", ": invalid_queue_locator_arg"),
        ("x-max-in-memory-length", -1, ": {value_negative,-1}"),
        ("x-max-in-memory-bytes", "1", ': "expected integer, got longstr"'),
        ("x-message-ttl", 1 << 40, ": {value_too_large,1099511627776}"),
        ("x-expires", 0, ": {value_zero,0}"),
        ("x-single-active-consumer", 1, ": {unacceptable_type,signedint}"),
        *[
            (name, 5, " of queue type rabbit_quorum_queue")
            for name in ("x-max-priority", "x-queue-mode", "x-queue-version", "x-queue-master-locator", "x-max-age")
        ],
    ],
)
def test_arguments_that_it_cannot_have_are_refused(port: int, name: str, value: Any, why: str) -> None:
    said = refusal(port, lambda channel: channel.queue_declare("new", durable=True, arguments={**QUORUM, name: value}))
    assert said == f"406 PRECONDITION_FAILED - invalid arg '{name}' for queue 'new' in vhost '/'{why}"


def test_a_redeclaration_has_to_be_the_same(port: int, connection: BlockingConnection) -> None:
    connection.channel().queue_declare("limited", durable=True, arguments=FULL)
    for name, current in FULL.items():
        less = {key: value for key, value in FULL.items() if key != name}
        said = refusal(port, partial(BlockingChannel.queue_declare, queue="limited", durable=True, arguments=less))
        kind = {str: "longstr", int: "signedint", bool: "bool"}[type(current)]
        assert said == (
            f"406 PRECONDITION_FAILED - inequivalent arg '{name}' for queue 'limited' in vhost '/': received none but "
            f"current is the value '{str(current).lower() if current is True else current}' of type '{kind}'"
        )


def test_what_it_does_not_support_is_refused(port: int, channel: BlockingChannel) -> None:
    def consume_with_global_qos(other: BlockingChannel) -> None:
        other.basic_qos(prefetch_count=5, global_qos=True)
        other.basic_consume("q", lambda *_: None)

    queue = "queue 'q' in vhost '/'"
    assert refusal(port, consume_with_global_qos) == f"540 NOT_IMPLEMENTED - {queue} does not support global qos"
    for flag in ("if_unused", "if_empty"):
        flags: dict[str, Any] = {flag: True}
        said = refusal(port, partial(BlockingChannel.queue_delete, queue="q", **flags))
        assert said == (
            f"540 NOT_IMPLEMENTED - cannot delete {queue}. queue.delete operations with {flag.replace('_', '-')} flag "
            "set are not supported by quorum queues"
        )
    for name in ("x-stream-offset", "x-cancel-on-ha-failover"):
        how: dict[str, Any] = {"on_message_callback": print, "arguments": {name: True}}
        said = refusal(port, partial(BlockingChannel.basic_consume, queue="q", **how))
        assert said == f"406 PRECONDITION_FAILED - invalid arg '{name}' for {queue} of queue type rabbit_quorum_queue"


def test_it_does_not_keep_an_exclusive_consumer_alone(channel: BlockingChannel) -> None:
    channel.basic_consume("q", lambda *_: None, exclusive=True)
    assert channel.basic_consume("q", lambda *_: None)


# ── deliveries ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_gets_tell_how_often_a_message_came_back(connection: BlockingConnection, channel: BlockingChannel) -> None:
    headers = {"mine": 1, "x-delivery-count": 7}
    channel.basic_publish("", "q", b"a", pika.BasicProperties(headers=headers))
    tag, first = got(channel)
    assert first == (b"a", False, 0)
    channel.basic_nack(tag)
    tag, second = got(channel)
    assert second == (b"a", True, 1)
    channel.basic_reject(tag)
    _, third = got(channel)
    assert third == (b"a", True, 2)
    channel.basic_recover(requeue=True)
    other = connection.channel()
    assert got(other)[1] == (b"a", True, 3)
    other.close()
    assert got(channel)[1] == (b"a", True, 4)


def test_consumers_are_told_from_the_first_redelivery(connection: BlockingConnection, channel: BlockingChannel) -> None:
    seen: list[Any] = []

    def reject(channel: BlockingChannel, method: Any, properties: Any, _: bytes) -> None:
        seen.append((method.redelivered, properties.headers))
        channel.basic_reject(method.delivery_tag, requeue=len(seen) < 3)

    channel.basic_publish("", "q", b"a")
    channel.basic_consume("q", reject)
    events_until(connection, lambda: len(seen) == 3)
    assert seen == [(False, None), (True, {"x-delivery-count": 1}), (True, {"x-delivery-count": 2})]


@pytest.mark.parametrize("limit", [0, 1, 3])
def test_a_message_dies_of_the_delivery_limit(channel: BlockingChannel, limit: int) -> None:
    channel.queue_delete("q")
    channel.queue_declare("q", durable=True, arguments={**QUORUM, **TO_DEAD, "x-delivery-limit": limit})
    channel.basic_publish("", "q", b"a", pika.BasicProperties(delivery_mode=1))
    for count in range(limit + 1):
        tag, delivered = got(channel)
        assert delivered == (b"a", count > 0, count)
        channel.basic_nack(tag)
    wait_until(lambda: channel.queue_declare("dead", passive=True).method.message_count, "it is dead")
    method, properties, body = channel.basic_get("dead", auto_ack=True)
    assert method is not None
    assert (body, properties.delivery_mode) == (b"a", 1)
    (death,) = properties.headers["x-death"]
    assert (death["reason"], death["queue"], death["count"]) == ("delivery_limit", "q", 1)
    assert "x-delivery-count" not in properties.headers


@pytest.mark.parametrize("limit", ["3", None, True])
def test_a_delivery_limit_that_is_no_number_limits_nothing(channel: BlockingChannel, limit: Any) -> None:
    channel.queue_delete("q")
    channel.queue_declare("q", durable=True, arguments={**QUORUM, "x-delivery-limit": limit})
    channel.basic_publish("", "q", b"a")
    for count in range(6):
        tag, delivered = got(channel)
        assert delivered == (b"a", count > 0, count)
        channel.basic_nack(tag)


@pytest.mark.parametrize("strategy", ["at-most-once", "at-least-once"])
def test_rejected_messages_are_dead_lettered(channel: BlockingChannel, strategy: str) -> None:
    channel.queue_delete("q")
    more = {"x-dead-letter-strategy": strategy, "x-overflow": "reject-publish"}
    channel.queue_declare("q", durable=True, arguments={**QUORUM, **TO_DEAD, **more})
    channel.basic_publish("", "q", b"a", pika.BasicProperties(headers={"mine": 1}))
    channel.basic_reject(got(channel)[0], requeue=False)
    wait_until(lambda: channel.queue_declare("dead", passive=True).method.message_count, "it is dead")
    _, properties, body = channel.basic_get("dead", auto_ack=True)
    assert body == b"a"
    assert (properties.headers["mine"], properties.headers["x-death"][0]["reason"]) == (1, "rejected")


def test_reject_publish_dlx_drops_the_head(channel: BlockingChannel) -> None:
    channel.queue_delete("q")
    more = {"x-max-length": 2, "x-overflow": "reject-publish-dlx"}
    channel.queue_declare("q", durable=True, arguments={**QUORUM, **TO_DEAD, **more})
    for number in range(5):
        channel.basic_publish("", "q", b"%d" % number)
    assert [got(channel)[1][0] for _ in range(2)] == [b"3", b"4"]
    assert [got(channel, "dead")[1][0] for _ in range(3)] == [b"0", b"1", b"2"]


# ── random programs ──────────────────────────────────────────────────────────────────────────────────────────────────

GET_TRIES: Final = 10
Transcript = list[tuple[str, object]]


def taken(connection: BlockingConnection, channel: BlockingChannel, queue: str) -> tuple[int, object] | None:
    """The next message's tag, and what can be seen of it; ``None`` if none comes soon."""
    for _ in range(GET_TRIES):
        method, properties, body = channel.basic_get(queue)
        if method is not None:
            headers = dict(properties.headers or {})
            deaths = [(death["queue"], death["reason"], death["count"]) for death in headers.pop("x-death", ())]
            headers = {name: value for name, value in headers.items() if not name.startswith("x-first-death-")}
            return method.delivery_tag, (body, method.redelivered, headers, deaths, properties.delivery_mode)
        connection.sleep(0.02)
    return None


def played(port: int, seed: int) -> Transcript:
    """Play a random program, in which one message is out at a time: so all come back in the same order everywhere."""
    rng = random.Random(f"quorum {seed}")
    limit = rng.choice((0, 1, 2, 3))
    transcript: Transcript = []
    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port, heartbeat=0)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for queue in ("q", "dead"):
            channel.queue_delete(queue)
        declare(channel, "q", delivery_limit=limit, dead_letter_exchange="", dead_letter_routing_key="dead")
        declare(channel, "dead", delivery_limit=99)
        for number in range(30):
            act = rng.choice(
                ("publish", "ack", "requeue", "requeue", "requeue", "reject", "recover", "close", "consume")
            )
            queue = rng.choice(("q", "q", "q", "dead"))
            if act == "publish":
                properties = pika.BasicProperties(delivery_mode=rng.choice((1, 2)), headers={"n": number})
                channel.basic_publish("", "q", b"%d" % number, properties)
                continue
            other = connection.channel()
            got = consumed(connection, other, queue) if act == "consume" else taken(connection, other, queue)
            transcript.append((f"{act} {queue}", None if got is None else got[1]))
            if got is not None:
                settle(other, act, got[0])
            other.close()
    return transcript


def consumed(connection: BlockingConnection, channel: BlockingChannel, queue: str) -> tuple[int, object] | None:
    seen: list[tuple[int, object]] = []

    def note(_: BlockingChannel, method: Any, properties: Any, body: bytes) -> None:
        count = (properties.headers or {}).get("x-delivery-count")
        seen.append((method.delivery_tag, (body, method.redelivered, count)))

    channel.basic_qos(prefetch_count=1)
    channel.basic_consume(queue, note)
    for _ in range(GET_TRIES):
        if not seen:
            connection.process_data_events(0.02)
    return seen[0] if seen else None


def settle(channel: BlockingChannel, act: str, tag: int) -> None:
    match act:
        case "ack":
            channel.basic_ack(tag)
        case "requeue" | "consume":
            channel.basic_nack(tag)
        case "reject":
            channel.basic_reject(tag, requeue=False)
        case "recover":
            channel.basic_recover(requeue=True)


@requires_broker
def test_random_programs_see_the_same(tmp_path: Path) -> None:
    with served(tmp_path / "node") as here, Broker(tmp_path / "broker") as broker:
        broker.start()
        for seed in SEEDS:
            assert played(here.port, seed) == played(broker.amqp_port, seed), f"seed {seed}"


# ── here only ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("limit", [-1, -5])
def test_a_negative_delivery_limit_is_none(limit: int) -> None:
    """With RabbitMQ 3.10.8 the message dies when it first comes back; later versions mean no limit."""
    with warren.open(":memory:") as node:
        queue = node.queue("q", arguments={**QUORUM, "x-delivery-limit": limit})
        queue.publish(b"a").wait()
        for count in range(5):
            message = queue.get()
            assert message is not None
            assert message.delivery_count == count
            queue.nack([message])


def test_transient_messages_survive_a_restart(tmp_path: Path) -> None:
    transient = pika.BasicProperties(delivery_mode=1)
    for late in (False, True):
        with served(tmp_path / "node") as here, here.channel() as channel:
            if not late:
                channel.confirm_delivery()
                declare(channel, "q")
                declare(channel, "plain", type=None)
                for body in (b"1", b"2", b"3"):
                    channel.basic_publish("", "q", body, transient)
                    channel.basic_publish("", "plain", body, transient)
                assert got(channel)[1] == (b"1", False, 0)
            else:
                assert channel.queue_declare("plain", passive=True).method.message_count == 0
                assert channel.queue_declare("q", passive=True).method.message_count == 3
                method, properties, body = channel.basic_get("q")
                assert method is not None
                assert (body, properties.delivery_mode, method.redelivered) == (b"1", 1, True)
                assert properties.headers == {"x-delivery-count": 1}


def test_the_management_api_shows_one_member(tmp_path: Path) -> None:
    settings = ServerSettings(management=ManagementSettings(management_tcp_port=0))
    with served(tmp_path / "node", settings) as here, here.channel() as channel:
        declare(channel, "q")
        assert here.server.management is not None
        with Api(here.server.management.url) as api:
            queue = api.get("/queues/%2F/q")
        node = queue["node"]
        assert (queue["type"], queue["leader"], queue["members"], queue["online"]) == ("quorum", node, [node], [node])
        assert queue["arguments"] == QUORUM
        assert "backing_queue_status" not in queue
        assert here.node.definitions()["queues"][0]["type"] == "quorum"


@pytest.mark.parametrize(("arguments", "limit"), [({}, 2), ({"x-delivery-limit": 1}, 1), ({"x-delivery-limit": -1}, 9)])
def test_a_setting_limits_queues_without_a_limit(arguments: dict[str, Any], limit: int) -> None:
    with warren.open(":memory:", quorum_delivery_limit=2) as node:
        queue = node.queue("q", arguments={**QUORUM, **arguments})
        classic = node.queue("classic")
        for each, at_most in ((queue, limit), (classic, 9)):
            each.publish(b"a").wait()
            for count in range(at_most + 1):
                message = each.get()
                assert message is not None
                assert message.delivery_count == count
                each.nack([message])
            assert len(each) == (at_most == 9)
        assert node.queue("q", passive=True).arguments == {**QUORUM, **arguments}


def test_a_policy_limits_before_the_setting() -> None:
    with warren.open(":memory:", quorum_delivery_limit=2) as node:
        queue = node.queue("q", arguments=QUORUM)
        node.set_policy("limit", "q", {"delivery-limit": 5})
        queue.publish(b"a").wait()
        for _ in range(6):
            message = queue.get()
            assert message is not None
            queue.nack([message])
        assert queue.get() is None


def test_another_version_is_announced(tmp_path: Path) -> None:
    with served(tmp_path / "node", ServerSettings(announced_version="4.1.0")) as here, here.connection() as connection:
        assert connection._impl.server_properties["version"] == "4.1.0"
        channel = connection.channel()
        channel.queue_declare("events", durable=True, arguments={"x-queue-type": "stream", FILTER_SIZE: 16})
        channel.queue_declare("jobs", arguments={FILTER_SIZE: 15})
        for size, reason in ((15, "Invalid value for"), (256, "Invalid value for"), ("16", "invalid arg")):
            with pytest.raises(ChannelClosedByBroker, match=f"{reason}.*{FILTER_SIZE}"):
                connection.channel().queue_declare(
                    "others", durable=True, arguments={"x-queue-type": "stream", FILTER_SIZE: size}
                )
    with served(tmp_path / "older", ServerSettings(announced_version="3.12.14")) as here, here.connection() as old:
        old.channel().queue_declare("events", durable=True, arguments={"x-queue-type": "stream", FILTER_SIZE: 15})
    with pytest.raises(warren.errors.SettingsError, match="announced_version is a version"):
        ServerSettings(announced_version="four")
