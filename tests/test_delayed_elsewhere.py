"""Delayed messages from coroutines, from another process of a shared directory, over AMQP and HTTP, from Kombu, and on
the command line."""

from __future__ import annotations

import functools
import json
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pika
import pytest
from kombu import Connection, Exchange, Queue
from pika.exceptions import ChannelClosedByBroker, NackError
from typer.testing import CliRunner

import warren
import warren.aio
import warren.kombu
from tests.support.both_ways import in_a_loop
from tests.support.management_tools import Api
from tests.support.runtime_tools import hand_node
from tests.support.server_tools import served
from warren import cli, management
from warren.actors.queue.intake import QueueGoneError
from warren.errors import MessageError
from warren.handles.node import Node
from warren.management import ManagementSettings
from warren.values.scheduling import Scheduled

SOON_S = 0.05
PATIENCE_S = 30.0


@in_a_loop
async def test_coroutines_delay_list_and_call_back(tmp_path: Path) -> None:
    async with warren.aio.open(tmp_path / "node") as node:
        queue = await node.queue("jobs")
        assert await queue.publish(b"now") is None
        sent = await queue.publish(b"soon", delay=SOON_S)
        assert isinstance(sent, Scheduled)
        for body in (b"now", b"soon"):
            got = await queue.get(timeout=PATIENCE_S, auto_ack=True)
            assert got is not None
            assert got.body == body
        later = queue.publish_nowait(b"later", delay=1000)
        await later
        assert [one.body for one in await queue.delayed()] == [b"later"]
        assert await queue.cancel_delayed(later.message_id) == 1
        await (await node.exchange("amq.fanout")).publish(b"x", delay=1000, message_id="x")
        assert [one.message_id for one in await node.delayed()][-1] == "x"
        assert await node.cancel_delayed("x") == 1
        await queue.publish_many([b"a", b"b"], delay=1000)
        assert await queue.purge_delayed() == 2
        with pytest.raises(AttributeError):
            _ = queue.publish_nowait(b"").message_id


def test_a_guest_of_a_shared_directory_delays_as_the_host_does(host: Node, guest: Node) -> None:
    here, there = host.queue("jobs"), guest.queue("jobs")
    sent = there.publish(b"soon", delay=SOON_S, headers={"h": 1})
    assert isinstance(sent, Scheduled)
    sent.wait()
    got = here.get(timeout=PATIENCE_S, auto_ack=True)
    assert got is not None
    assert (got.body, got.headers, got.properties.message_id) == (b"soon", {"h": 1}, sent.message_id)
    many = there.publish_many([b"1", b"2"], delay=[2000, 1000], correlation_id=["a", "b"])
    assert isinstance(many, Scheduled)
    many.wait()
    found = there.delayed()
    assert [(one.body, one.properties.correlation_id, one.message_id) for one in found] == [
        (b"2", "b", many.message_ids[1]),
        (b"1", "a", many.message_ids[0]),
    ]
    assert [one.body for one in here.delayed()] == [b"2", b"1"]
    assert there.stats()["messages_delayed"] == 2
    assert there.cancel_delayed(many.message_ids[0]) == 1
    assert there.purge_delayed() == 1
    there.delete()
    with pytest.raises(QueueGoneError):
        there.publish(b"x", delay=1).wait()


def test_a_guest_publishes_later_to_exchanges_and_several_queues(host: Node, guest: Node) -> None:
    queue = host.queue("jobs")
    exchange = guest.exchange("later", "x-delayed-message", arguments={"x-delayed-type": "topic"})
    guest.bind("jobs", exchange, "a.*")
    exchange.publish(b"header", "a.b", headers={"x-delay": 20}).wait()
    got = queue.get(timeout=PATIENCE_S, auto_ack=True)
    assert got is not None
    assert (got.body, got.headers) == (b"header", {"x-delay": -20})
    sent = exchange.publish_many([b"1", b"2"], "a.b", at=datetime.now(UTC) + timedelta(hours=1))
    assert isinstance(sent, Scheduled)
    sent.wait()
    assert len(guest.delayed()) == 2
    assert guest.cancel_delayed(sent.message_id) == 2
    host.queue("other")
    guest.publish_to(["jobs", "other"], b"both", delay=1000, message_id="both").wait()
    assert guest.cancel_delayed("both") == 2
    with pytest.raises(MessageError, match="a delay is a number"):
        guest.queue("jobs").publish(b"x", delay="soon")  # type: ignore[arg-type]


def test_a_client_of_a_server_delays_by_the_header(tmp_path: Path) -> None:
    with served(tmp_path / "node") as here, here.channel() as channel:
        channel.exchange_declare("later", "x-delayed-message", durable=True, arguments={"x-delayed-type": "direct"})
        channel.queue_declare("jobs", durable=True)
        channel.queue_bind("jobs", "later", "k")
        channel.confirm_delivery()
        began = time.monotonic()
        for delay_ms in (300, 100, 200):
            channel.basic_publish("later", "k", b"%d" % delay_ms, pika.BasicProperties(headers={"x-delay": delay_ms}))
        channel.basic_publish("later", "k", b"now", pika.BasicProperties(headers={"x-delay": -1}), mandatory=True)
        channel.basic_publish("later", "k", b"also now")
        found = []
        for method, properties, body in channel.consume("jobs", auto_ack=True, inactivity_timeout=PATIENCE_S):
            assert method is not None
            found.append((body, (properties.headers or {}).get("x-delay")))
            if len(found) == 5:
                break
        assert found == [(b"now", -1), (b"also now", None), (b"100", -100), (b"200", -200), (b"300", -300)]
        assert time.monotonic() - began >= 0.3
        channel.basic_publish("", "jobs", b"y", pika.BasicProperties(headers={"x-warren-due": 1 << 40}))  # not ours
        assert here.node.delayed() == []


def test_what_is_delayed_comes_into_a_stream_too(tmp_path: Path) -> None:
    with served(tmp_path / "node") as here, here.channel() as channel:
        channel.exchange_declare("later", "x-delayed-message", arguments={"x-delayed-type": "fanout"})
        channel.queue_declare("s", durable=True, arguments={"x-queue-type": "stream"})
        channel.queue_bind("s", "later")
        for n in range(3):
            channel.basic_publish("later", "k", b"%d" % n, pika.BasicProperties(headers={"x-delay": 20, "n": n}))
        channel.basic_qos(prefetch_count=10)
        found = []
        arguments = {"x-stream-offset": "first"}
        for method, properties, body in channel.consume("s", inactivity_timeout=PATIENCE_S, arguments=arguments):
            assert method is not None
            found.append((body, properties.headers["n"], properties.headers["x-delay"], method.routing_key))
            if len(found) == 3:
                break
        assert found == [(b"%d" % n, n, -20, "k") for n in range(3)]


def test_delayed_messages_that_are_down_are_a_nack(tmp_path: Path) -> None:
    with served(tmp_path / "node") as here:
        here.node.queue("jobs").publish(b"x", delay=1000).wait()
    [log] = (tmp_path / "node" / "warren.delayed").glob("*/1.delayed")
    log.write_bytes(b"something else\n")
    with served(tmp_path / "node") as here, here.channel() as channel:
        channel.exchange_declare("later", "x-delayed-message", arguments={"x-delayed-type": "fanout"})
        channel.confirm_delivery()
        with pytest.raises(NackError):
            channel.basic_publish("later", "", b"x", pika.BasicProperties(headers={"x-delay": 20}))
        channel.queue_declare("plain")
        channel.basic_publish("", "plain", b"x")


def test_a_server_refuses_an_exchange_whose_type_to_delay_cannot_be(tmp_path: Path) -> None:
    with served(tmp_path / "node") as here, here.connection() as connection:
        for arguments in ({}, {"x-delayed-type": "x-delayed-message"}):
            with pytest.raises(ChannelClosedByBroker) as refused:
                connection.channel().exchange_declare("later", "x-delayed-message", arguments=arguments)
            assert refused.value.reply_code == 406


def test_the_management_api_makes_such_an_exchange_publishes_to_it_and_counts(tmp_path: Path) -> None:
    settings = ManagementSettings(management_tcp_port=0)
    with warren.open(tmp_path / "node") as node, management.serve(node, settings) as server, Api(server.url) as api:
        made = api.ask(
            "PUT", "/exchanges/%2F/later", {"type": "x-delayed-message", "arguments": {"x-delayed-type": "fanout"}}
        )
        assert made.status == 201
        said = {"routing_key": "k", "properties": {"headers": {"x-delay": 100_000}}, "payload": "x",
                "payload_encoding": "string"}  # fmt: skip
        assert api.ask("POST", "/exchanges/%2F/later/publish", said).document == {"routed": True}
        assert api.get("/exchanges/%2F/later")["messages_delayed"] == 1
        assert "x-delayed-message" in {one["name"] for one in api.get("/overview")["exchange_types"]}
        [waiting] = node.delayed()
        assert (waiting.body, waiting.headers) == (b"x", {"x-delay": -100_000})


def test_kombu_declares_such_an_exchange_and_publishes_to_it(tmp_path: Path) -> None:
    exchange = Exchange("later", "x-delayed-message", arguments={"x-delayed-type": "direct"})
    queue = Queue("jobs", exchange, "k")
    with Connection(f"warren://{tmp_path}/node") as connection:
        bound = queue(connection.default_channel)
        bound.declare()
        connection.Producer().publish("x", exchange=exchange, routing_key="k", headers={"x-delay": 50})
        assert bound.get() is None
        deadline = time.monotonic() + PATIENCE_S
        while (message := bound.get(no_ack=True)) is None:
            assert time.monotonic() < deadline
        assert message.headers["x-delay"] == -50


def test_a_task_with_an_eta_waits_in_the_directory_where_that_is_asked_for(tmp_path: Path) -> None:
    for asked, waiting in ((True, 1), (False, 0)):
        options: dict[str, Any] = {"delay_eta": asked}
        with Connection(f"warren://{tmp_path}/{asked}", transport_options=options) as connection:
            bound = Queue("jobs")(connection.default_channel)
            bound.declare()
            now = datetime.now(UTC)
            for eta in (now + timedelta(hours=1), now - timedelta(hours=1), None, "no time"):
                headers = {"eta": eta.isoformat() if isinstance(eta, datetime) else eta}
                connection.Producer().publish("x", routing_key="jobs", headers=headers)
            vhost = connection.connection.vhost
            assert len(vhost.delayed()) == waiting
            assert len(vhost.queue("jobs", passive=True)) == 4 - waiting


def command(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(cli.app, arguments)
    assert result.exit_code == code, result.output
    return result.output


def test_the_command_publishes_after_a_delay_or_at_a_time(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    done = functools.partial(command, "publish", data)
    [first] = json.loads(done("jobs", "x", "--declare", "--delay", "3600", "--json"))["message_ids"]
    done("jobs", "y", "--at", "2100-01-31T08:00:00+00:00")
    done("jobs", "z", "--at", "0.5")
    assert "message_ids" not in json.loads(done("jobs", "now", "--json"))
    for wrong in (("--at", "tomorrow"), ("--at", "1", "--delay", "1"), ("--delay", "nan")):
        done("jobs", "x", *wrong, code=2)
    with warren.open(data) as node:
        queue = node.queue("jobs")
        assert [(one.body, one.due_ms) for one in queue.delayed()][1:] == [(b"y", 4_105_065_600_000)]
        assert queue.cancel_delayed(first) == 1
        assert sorted(one.body for one in queue.get_many(5)) == [b"now", b"z"]


def test_the_command_lists_what_waits_and_calls_back(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    done = functools.partial(command, "delayed", data)
    with warren.open(data) as node:
        assert node.queue("jobs").delayed() == []
    assert done() == "Nothing waits.\n"
    with warren.open(data) as node:
        node.queue("jobs").publish(b"x" * 1234, at=4_105_065_600, message_id="a").wait()
        node.exchange("amq.topic").publish(b"y", "k", delay=1000, message_id="b").wait()
    lines = done().splitlines()
    assert "amq.topic" in lines[2]
    assert lines[3].split()[-3:] == ["jobs", "a", "1,234"]
    found = json.loads(done("jobs", "--json"))["delayed"]
    assert [(row["message_id"], row["due_ms"], row["bytes"]) for row in found] == [("a", 4_105_065_600_000, 1234)]
    assert len(json.loads(done("--limit", "1", "--json"))["delayed"]) == 1
    assert done("--cancel", "b") == "b: 1 message cancelled\n"
    assert json.loads(done("jobs", "--cancel", "a", "--cancel", "b", "--json", code=1)) == {
        "cancelled": {"a": 1, "b": 0}
    }
    done("nothing", code=2)


def test_a_forked_child_is_told_that_the_node_is_its_parent_s() -> None:
    hand = hand_node()
    queue = hand.node.queue("jobs")
    queue.publish(b"x", delay=1).wait()
    exchange = hand.node.exchange("later", "x-delayed-message", arguments={"x-delayed-type": "fanout"})
    hand.node._running.forget()
    for ask in (
        lambda: queue.publish(b"y", delay=1),
        lambda: exchange.publish(b"y", delay=1),
        lambda: exchange.publish(b"y", headers={"x-delay": 1}),
        queue.delayed,
        lambda: queue.cancel_delayed("x"),
    ):
        with pytest.raises(warren.errors.WrongProcessError):
            ask()
