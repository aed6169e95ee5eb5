"""RabbitMQ's firehose: while a vhost is traced, an exchange gets a copy of what its clients publish and get."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from typer.testing import CliRunner

import warren
from tests.support.broker import Broker, requires_broker
from tests.support.management_tools import Api
from tests.support.waiting import wait_until
from warren import cli
from warren.management import ManagementSettings
from warren.server import ServerSettings

TRACE = "amq.rabbitmq.trace"
Ctl = Callable[..., str]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[int, Ctl]]:
    """The port of a node's server, and warren ctl for it."""

    def ctl(*arguments: str) -> str:
        result = CliRunner().invoke(cli.app, ["ctl", str(tmp_path), *arguments])
        assert result.exit_code == 0, result.stderr
        return result.stdout

    with warren.open(tmp_path) as node:
        yield node.serve(ServerSettings(port=0)).addresses[0][1], ctl


@contextlib.contextmanager
def connected(port: int, vhost: str = "/") -> Iterator[BlockingChannel]:
    parameters = pika.ConnectionParameters("127.0.0.1", port, vhost)
    with contextlib.closing(pika.BlockingConnection(parameters)) as connection:
        yield connection.channel()


def traces(channel: BlockingChannel, count: int) -> list[tuple[str, dict[str, Any], bytes]]:
    """The next traces, without what differs from run to run."""
    found = []

    def more() -> bool:
        method, properties, body = channel.basic_get("traces", auto_ack=True)
        if method is not None:
            headers = properties.headers
            headers.get("routed_queues", []).sort()  # in any order
            assert headers.pop("node")
            assert " -> " in headers.pop("connection")
            found.append((method.routing_key, headers, body))
        return len(found) == count

    wait_until(more, f"{count} traces")
    assert channel.basic_get("traces", auto_ack=True)[0] is None
    return sorted(found, key=lambda trace: (trace[0], trace[2], trace[1].get("redelivered", 0)))


def scenario(channel: BlockingChannel) -> None:
    """Messages of every fate."""
    properties = pika.BasicProperties(
        content_type="text/plain", headers={"CC": ["a.c"], "n": {"deep": [1, "x"]}}, delivery_mode=2, priority=3,
        correlation_id="c", reply_to="r", expiration="60000", message_id="m", timestamp=1_700_000_000, type="t",
        app_id="app",
    )  # fmt: skip
    channel.basic_publish("events", "a.b", b"one", properties)
    channel.basic_publish("", "q", b"two")
    channel.basic_publish("", "nowhere", b"dropped")
    method, _, _ = channel.basic_get("q")
    channel.basic_nack(method.delivery_tag)
    got: list[bytes] = []
    channel.basic_consume("q", lambda _channel, _method, _properties, body: got.append(body), auto_ack=True)
    wait_until(lambda: channel.connection.process_data_events(0.05) or len(got) == 2, "two deliveries")
    assert channel.basic_get("plain", auto_ack=True)[0] is None


def prepare(channel: BlockingChannel) -> None:
    channel.exchange_declare("events", "topic")
    for queue in ("q", "other", "plain", "traces"):
        channel.queue_declare(queue)
    channel.queue_bind("q", "events", "a.*")
    channel.queue_bind("other", "events", "a.c")
    channel.queue_bind("traces", TRACE, "#")


def test_what_clients_publish_and_get_is_traced_while_tracing_is_on(served: tuple[int, Ctl]) -> None:
    port, ctl = served
    with connected(port) as reader, connected(port) as client:
        prepare(reader)
        client.basic_publish("", "q", b"before")
        assert ctl("trace_on") == 'Starting tracing for vhost "/" ...\nTrace enabled for vhost /\n'
        client.basic_publish("events", "a.b", b"body", pika.BasicProperties(headers={"h": 1}))
        client.basic_get("q", auto_ack=True)
        with connected(port) as later:
            later.basic_publish("", "nowhere", b"lost")
        ctl("trace_off")
        client.basic_publish("", "q", b"after")
        common = {"vhost": "/", "channel": 1, "user": "guest"}
        assert traces(reader, 3) == [
            ("deliver.q", {
                "exchange_name": "", "routing_keys": ["q"], "properties": {}, "redelivered": 0, **common,
            }, b"before"),
            ("publish.", {
                "exchange_name": "", "routing_keys": ["nowhere"], "properties": {}, "routed_queues": ["nowhere"],
                **common,
            }, b"lost"),
            ("publish.events", {
                "exchange_name": "events", "routing_keys": ["a.b"], "properties": {"headers": {"h": 1}},
                "routed_queues": ["q"], **common,
            }, b"body"),
        ]  # fmt: skip


def test_a_vhost_is_traced_by_itself(served: tuple[int, Ctl]) -> None:
    port, ctl = served
    ctl("add_vhost", "v")
    ctl("set_permissions", "-p", "v", "guest", ".*", ".*", ".*")
    ctl("trace_on", "-p", "v")
    assert "v\ttrue\n" in ctl("list_vhosts", "name", "tracing")
    assert "/\tfalse\n" in ctl("list_vhosts", "name", "tracing")
    with connected(port) as reader, connected(port, "v") as client:
        reader.queue_declare("traces")
        reader.queue_bind("traces", TRACE, "#")
        client.basic_publish("", "nowhere", b"x")
        reader.basic_publish("", "nowhere", b"x")
        client.queue_declare("seen")
        assert reader.basic_get("traces")[0] is None
    ctl("delete_vhost", "v")
    ctl("add_vhost", "v")
    assert "v\tfalse\n" in ctl("list_vhosts", "name", "tracing")


def test_the_management_api_turns_tracing_on_and_off(tmp_path: Path) -> None:
    management = ManagementSettings(management_tcp_port=0)
    with warren.open(tmp_path) as node:
        server = node.serve(ServerSettings(port=0, management=management))
        assert server.management is not None
        with Api(server.management.url) as api, connected(server.addresses[0][1]) as client:
            client.queue_declare("traces")
            client.queue_bind("traces", TRACE, "#")
            shown = []
            for body in ({"tracing": True}, {}, {"tracing": False}):
                assert api.ask("PUT", "/vhosts/%2F", body).status == 204
                client.basic_publish("", "nowhere", b"x")
                traced = client.basic_get("traces", auto_ack=True)[0] is not None
                shown.append((api.get("/vhosts/%2F")["tracing"], traced))
            assert shown == [(True, True), (True, True), (False, False)]


def test_traces_and_consumers_of_traces_are_not_traced_again(served: tuple[int, Ctl]) -> None:
    port, ctl = served
    ctl("trace_on")
    with connected(port) as reader, connected(port) as client:
        prepare(reader)
        got: list[str] = []
        reader.basic_consume("traces", lambda _channel, method, *_: got.append(method.routing_key), auto_ack=True)
        client.basic_publish("", "q", b"x")
        wait_until(lambda: reader.connection.process_data_events(0.05) or bool(got), "a delivery")
        client.queue_declare("later")
        reader.connection.process_data_events(0.2)
        assert got == ["publish."]


def test_a_streams_deliveries_are_traced(served: tuple[int, Ctl]) -> None:
    port, ctl = served
    ctl("trace_on")
    with connected(port) as reader, connected(port) as client:
        prepare(reader)
        client.queue_declare("log", durable=True, arguments={"x-queue-type": "stream"})
        client.basic_qos(prefetch_count=5)
        client.basic_publish("", "log", b"x")
        got: list[bytes] = []
        client.basic_consume("log", lambda *delivered: got.append(delivered[3]), arguments={"x-stream-offset": "first"})
        wait_until(lambda: client.connection.process_data_events(0.05) or bool(got), "a delivery")
        assert [(key, body) for key, _, body in traces(reader, 2)] == [("deliver.log", b"x"), ("publish.", b"x")]


@requires_broker
def test_traces_are_those_of_rabbitmq(served: tuple[int, Ctl], tmp_path: Path) -> None:
    with Broker(tmp_path / "broker") as broker:
        broker.start()
        sides = []
        for port, ctl in ((broker.amqp_port, broker.ctl), served):
            with connected(port) as reader, connected(port) as client:
                prepare(reader)
                said = ctl("trace_on", *(() if ctl == broker.ctl else ("-q",))).splitlines()
                scenario(client)
                sides.append((said, traces(reader, 6), ctl("list_vhosts", "name", "tracing").splitlines()[-1]))
        for theirs, ours in zip(sides[0][1], sides[1][1], strict=True):
            assert ours == theirs
        assert sides[1] == sides[0]
