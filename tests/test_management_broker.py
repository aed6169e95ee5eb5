"""The management API beside a real RabbitMQ's: the same requests, and rabbitmqadmin, to both."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import httpx
import pika
import pytest

import warren
from tests.support.broker import Broker, requires_broker
from tests.support.management_tools import REQUESTS, Api, Request, differences, said, shape
from warren.management import ManagementSettings
from warren.server import ServerSettings

pytestmark = [requires_broker, pytest.mark.xdist_group("management")]

RABBITMQADMIN = Path("/usr/bin/rabbitmqadmin")


@attrs.frozen
class Side:
    """One of the two."""

    api: Api
    amqp_port: int

    @property
    def port(self) -> int:
        return int(self.api.url.rpartition(":")[2])


def _populate(port: int) -> pika.BlockingConnection:
    """The same on both sides; the connection stays, with a consumer that holds three messages."""
    properties = {"connection_name": "populate"}
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port, client_properties=properties))
    channel = connection.channel()
    channel.exchange_declare("ex", "topic", durable=True)
    channel.queue_declare("q1", durable=True, arguments={"x-max-length": 100})
    channel.queue_bind("q1", "ex", "a.*", arguments={"x": 1})
    channel.confirm_delivery()
    for number in range(10):
        channel.basic_publish("", "q1", b"%d" % number, pika.BasicProperties(delivery_mode=2, headers={"a": 1}))
    channel.basic_qos(prefetch_count=3)
    channel.basic_consume("q1", lambda *_: None, consumer_tag="tag")
    return connection


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Side, Side]]:
    """A RabbitMQ and a warren, with the same in them."""
    with (
        Broker(tmp_path_factory.mktemp("broker"), management=True) as broker,
        warren.open(tmp_path_factory.mktemp("node")) as node,
    ):
        broker.start()
        server = node.serve(ServerSettings(port=0, management=ManagementSettings(management_tcp_port=0)))
        assert server.management is not None
        with Api(f"http://127.0.0.1:{broker.management_port}") as there, Api(server.management.url) as here:
            found = Side(there, broker.amqp_port), Side(here, server.addresses[0][1])
            connections = [_populate(side.amqp_port) for side in found]
            for side in found:  # RabbitMQ's statistics come every five seconds
                _wait_for(side.api)
            yield found
            for connection in connections:
                connection.close()


def _wait_for(api: Api) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        channels = api.get("/channels")
        stats = api.get("/queues/%2F/q1").get("message_stats", {})
        overview = api.get("/overview")
        told = overview.get("message_stats", {}).get("publish") and api.get("/vhosts/%2F").get("message_stats")
        if channels and channels[0].get("messages_unacknowledged") == 3 and stats.get("deliver") == 3 and told:
            return
        time.sleep(0.2)
    raise AssertionError("the numbers did not come")


# ── differences that there are, and why ──────────────────────────────────────────────────────────────────────────────

OF_ERLANG = ("garbage_collection", "reductions", "idle_since", "head_message_timestamp")
"""What RabbitMQ says of the process that a queue, a channel or a connection is, and it sometimes leaves out."""

SHAPES: dict[str, tuple[str, ...]] = {
    "/overview": ("socket_opts", ".protocol"),  # options of RabbitMQ's own sockets; the one of Prometheus
    "/nodes": (".protocol",),
    "/vhosts": ("cluster_state.",),  # the node's name is a key
    "/definitions": (".vhosts[].",),  # descriptions of vhosts are kept
    "/vhosts/v1": ("cluster_state", ".messages", "_oct"),  # RabbitMQ has no numbers yet of a vhost without queues
}
"""By the beginning of a path: what may differ in the shape of an answer, as a part of its place."""

STATUSES: dict[str, str] = {
    "GET /queues/nov/none/bindings": "RabbitMQ says 200 and nothing of a vhost that is not there",
    'properties": []': "RabbitMQ fails, with 500",
    '"ackmode": "bogus"': "RabbitMQ fails, with 500",
    "GET /nodes/none": "RabbitMQ fails, with 500",
    "GET /connections/none/channels": "RabbitMQ fails, with 500",
    "POST /queues/%2F/log/get": "RabbitMQ says 400 as we do, and now and then fails, with 500",
}

TEXTS: dict[str, str] = {
    'PUT /queues/%2F/log {"durable": true}': "a stream's type",
    "x-message-ttl": "the value is said, too",
    '"configure": "("': "Erlang's texts as lists of numbers",
    '"pattern": "("': "other words for what is wrong with a regular expression",
    "/health/checks/p": "other ports and protocols",
}


def _compare(sides: tuple[Side, Side], request: Request) -> list[str]:
    there, here = (side.api.ask(*request) for side in sides)
    name = said(request)
    if there.status != here.status:
        known = any(part in name for part in STATUSES)
        return [] if known else [f"{there.status} there ({there.document}), {here.status} here ({here.document})"]
    if there.status >= 400:
        same = there.document == here.document or any(part in name for part in TEXTS)
        return [] if same else [f"{there.document} there, {here.document} here"]
    if request[1].startswith("/bindings") and request[0] == "POST":  # an opaque part of it stands for arguments
        there, here = (attrs.evolve(one, headers={}) for one in (there, here))
    allowed = OF_ERLANG + tuple(part for path, parts in SHAPES.items() if request[1].startswith(path) for part in parts)
    found = differences(shape(there.document), shape(here.document))
    problems = [one for one in found if not any(part in one for part in allowed)]
    if there.headers.get("allow") != here.headers.get("allow"):
        problems.append(f"{there.headers} there, {here.headers} here")
    return problems


LOOKS: tuple[Request, ...] = tuple(
    ("GET", path, None)
    for path in (
        "/overview", "/overview?disable_stats=true", "/nodes", "/vhosts", "/vhosts/%2F", "/queues", "/queues/%2F/q1",
        "/queues/%2F/q1/bindings", "/exchanges", "/exchanges/%2F/ex", "/bindings", "/connections", "/channels",
        "/consumers", "/consumers/%2F", "/users", "/users/guest", "/whoami", "/permissions", "/definitions",
        "/definitions/%2F", "/auth", "/extensions", "/cluster-name", "/parameters", "/healthchecks/node",
        "/health/checks/alarms", "/vhosts/%2F/connections", "/vhosts/%2F/channels", "/connections/username/guest",
        "/feature-flags", "/global-parameters", "/global-parameters/internal_cluster_id",
        "/connections?disable_stats=true", "/queues?page=1&page_size=5&sort=messages&sort_reverse=true",
    )
)  # fmt: skip


@pytest.mark.parametrize("request_", LOOKS, ids=said)
def test_what_there_is_looks_the_same(sides: tuple[Side, Side], request_: Request) -> None:
    assert not _compare(sides, request_)


_NOT_COUNTED = ("_reductions_total", "erlang_", "io_", "schema_db_", "queue_index_", "telemetry_")
"""What RabbitMQ counts and warren does not: Erlang's processes, its file handles, the database's transactions."""


def _detailed(side: Side, port: int, query: str) -> tuple[set[str], dict[str, float]]:
    """The families in a scrape of ``/metrics/detailed``, and the series of queues and vhosts, by name and labels."""
    text = httpx.get(f"http://127.0.0.1:{port}/metrics/detailed?{query}").raise_for_status().text
    series = {}
    for name, labels, value in re.findall(r"^(\w+){(.*)} (\S+)$", text, re.MULTILINE):
        if "vhost=" in labels and not name.endswith("_reductions_total"):
            series[f"{name} {sorted(labels.split(','))}"] = float(value)
    return {name for name in _families(text) if not any(part in name for part in _NOT_COUNTED)}, series


@pytest.mark.parametrize(
    "query",
    [
        "", "family=nonsense", "family=queue_coarse_metrics", "vhost=%2F&family=queue_consumer_count",
        "family=queue_coarse_metrics&vhost=nov", "family=queue_coarse_metrics&family=queue_metrics&vhost=nov&vhost=%2F",
        "family=connection_coarse_metrics", "family=connection_metrics", "family=channel_metrics",
        "family=connection_churn_metrics", "family=node_coarse_metrics", "family=node_metrics",
        "family=node_persister_metrics", "family=vhost_status", "family=exchange_names&vhost=nov",
    ],
)  # fmt: skip
def test_detailed_metrics_are_those_of_rabbitmq(sides: tuple[Side, Side], query: str) -> None:
    (families, series), (ours, own) = (
        _detailed(side, port, query) for side, port in zip(sides, (sides[0].port + 1, sides[1].port), strict=True)
    )
    assert ours == families
    if "queue_metrics" not in query:  # how many messages are in memory differs
        assert own == series
    assert bool(own) == (
        "family=vhost" in query
        or "exchange" in query
        or ("queue" in query and "%2F" in query)
        or query == "family=queue_coarse_metrics"
    )


def test_single_fields_have_the_values_that_rabbitmq_has(sides: tuple[Side, Side]) -> None:
    """Those that can be compared: a queue with messages at rest, one that is exclusive, flags, churn."""
    connections = [pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", side.amqp_port)) for side in sides]
    try:
        channels = [connection.channel() for connection in connections]
        for channel in channels:
            channel.queue_declare("stamped")
            channel.basic_publish("", "stamped", b"", pika.BasicProperties(timestamp=1_700_000_000))
            channel.queue_declare("waited for", exclusive=True)
            channel.queue_declare("stamped")
            channel.basic_consume("waited for", lambda *_: None)
        deadline, fields = time.monotonic() + 30, [_single_fields(side) for side in sides]
        while fields[0] != fields[1] and time.monotonic() < deadline:
            time.sleep(0.5)
            fields = [_single_fields(side) for side in sides]
        assert fields[1] == fields[0]
        assert fields[1]["stamped"] == {"idle_since": True, "head_message_timestamp": 1_700_000_000}
        assert fields[1]["waited for"]["consumer_capacity"] == 1.0
    finally:
        for channel, connection in zip(channels, connections, strict=True):
            channel.queue_delete("stamped")
            connection.close()


def _single_fields(side: Side) -> dict[str, Any]:
    stamped, waited_for = (side.api.get(f"/queues/%2F/{name}") for name in ("stamped", "waited%20for"))
    cluster_id = side.api.get("/global-parameters/internal_cluster_id")["value"]
    of_vhost = {name: number for name, number in side.api.get("/overview")["churn_rates"].items() if "queue_" in name}
    return {
        "stamped": {
            "idle_since": "idle_since" in stamped,
            "head_message_timestamp": stamped.get("head_message_timestamp"),
        },
        "waited for": {
            "consumer_capacity": waited_for.get("consumer_capacity"),
            "consumer_utilisation": waited_for.get("consumer_utilisation"),
            "owner": sorted(waited_for.get("owner_pid_details", {})),
        },
        "cluster id": (cluster_id.startswith("rabbitmq-cluster-id-"), len(cluster_id)),
        "queues": {name: number for name, number in of_vhost.items() if isinstance(number, int)},
        "flags": [flag["name"] for flag in side.api.get("/feature-flags")],
        "packets": all(
            connection["recv_cnt"] and connection["send_cnt"] for connection in side.api.get("/connections")
        ),
    }


def test_every_request_is_answered_alike(sides: tuple[Side, Side]) -> None:
    problems = {}
    for number, request in enumerate(REQUESTS):
        if found := _compare(sides, request):
            problems[f"{number}: {said(request)}"] = found
    assert not problems


def test_a_connection_is_closed_by_a_request(sides: tuple[Side, Side]) -> None:
    for side in sides:
        connection = pika.BlockingConnection(
            pika.ConnectionParameters("127.0.0.1", side.amqp_port, client_properties={"connection_name": "victim"})
        )
        name = _connection_named(side.api, "victim")
        answer = side.api.ask("DELETE", f"/connections/{name.replace(' ', '%20').replace('>', '%3E')}")
        assert answer.status == 204
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as closed:
            connection.process_data_events(time_limit=10)
        assert closed.value.reply_code == 320
        assert closed.value.reply_text == "CONNECTION_FORCED - Closed via management plugin"


def _connection_named(api: Api, name: str) -> str:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        for one in api.get("/connections"):
            if one.get("user_provided_name") == name:
                return str(one["name"])
        time.sleep(0.2)
    raise AssertionError("no such connection")


# ── rabbitmqadmin ─────────────────────────────────────────────────────────────────────────────────────────────────────

COMMANDS: tuple[tuple[str, ...], ...] = (
    ("declare", "vhost", "name=admin"),
    ("declare", "permission", "vhost=admin", "user=guest", "configure=.*", "write=.*", "read=.*"),
    ("-V", "admin", "declare", "queue", "name=work", "durable=true", 'arguments={"x-max-length": 5}'),
    ("-V", "admin", "declare", "exchange", "name=events", "type=topic"),
    ("-V", "admin", "declare", "binding", "source=events", "destination=work", "routing_key=a.#"),
    ("-V", "admin", "publish", "exchange=events", "routing_key=a.b", "payload=hello"),
    ("-V", "admin", "publish", "routing_key=nowhere", "payload=hello"),
    ("-V", "admin", "get", "queue=work"),
    ("-V", "admin", "get", "queue=work", "ackmode=ack_requeue_false", "encoding=base64"),
    ("-V", "admin", "-f", "raw_json", "list", "bindings", "source", "destination", "routing_key", "properties_key"),
    ("-V", "admin", "-f", "tsv", "list", "queues", "vhost", "name", "durable", "arguments"),
    ("-V", "admin", "-f", "tsv", "list", "exchanges", "name", "type"),
    ("-V", "admin", "purge", "queue", "name=work"),
    ("-V", "admin", "delete", "binding", "source=events", "destination_type=queue", "destination=work",
     "properties_key=a.%23"),
    ("declare", "user", "name=ann", "password=secret", "tags=monitoring"),
    ("-f", "tsv", "list", "users", "name", "tags"),
    ("-u", "ann", "-p", "secret", "-f", "tsv", "list", "vhosts", "name"),
    ("-u", "ann", "-p", "wrong", "list", "vhosts", "name"),
    ("-f", "tsv", "list", "permissions"),
    ("-f", "tsv", "show", "overview", "rabbitmq_version"),
    ("-V", "admin", "delete", "exchange", "name=events"),
    ("-V", "admin", "delete", "queue", "name=work"),
    ("-V", "admin", "delete", "queue", "name=work"),
    ("delete", "user", "name=ann"),
    ("delete", "vhost", "name=admin"),
)  # fmt: skip


def _rabbitmqadmin(side: Side, *arguments: str) -> tuple[int, str]:
    command = [sys.executable, str(RABBITMQADMIN), "-P", str(side.port), "-H", "127.0.0.1", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.skipif(not RABBITMQADMIN.exists(), reason="no rabbitmqadmin on this machine")
def test_rabbitmqadmin_says_the_same(sides: tuple[Side, Side], tmp_path: Path) -> None:
    for command in COMMANDS:
        there, here = (_rabbitmqadmin(side, *command) for side in sides)
        assert here == there, command
    for name, side in zip(("there", "here"), sides, strict=True):
        done, text = _rabbitmqadmin(side, "export", str(tmp_path / name))
        assert done == 0, text
    done, text = _rabbitmqadmin(sides[1], "import", str(tmp_path / "there"))
    assert done == 0, text
    done, text = _rabbitmqadmin(sides[0], "import", str(tmp_path / "here"))
    assert done == 0, text


def _traffic(port: int) -> pika.BlockingConnection:
    """Messages of every fate, on two channels: one that publishes and gets, one that consumes."""
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))
    channel, consuming = connection.channel(), connection.channel()
    channel.queue_declare("traffic")
    channel.exchange_declare("copies", "fanout")
    for name in ("copy1", "copy2"):
        channel.queue_declare(name)
        channel.queue_bind(name, "copies")
    channel.confirm_delivery()
    for _ in range(6):
        channel.basic_publish("copies", "", b"x")
        channel.basic_publish("", "traffic", b"x")
        channel.basic_publish("", "nowhere", b"dropped")
    with contextlib.suppress(pika.exceptions.UnroutableError):
        channel.basic_publish("", "nowhere", b"returned", mandatory=True)
    channel.basic_nack(channel.basic_get("traffic")[0].delivery_tag)
    channel.basic_ack(channel.basic_get("traffic")[0].delivery_tag)
    channel.basic_get("traffic", auto_ack=True)
    consuming.basic_consume("copy1", lambda channel, method, *_: channel.basic_ack(method.delivery_tag))
    consuming.basic_consume("copy2", lambda *_: None, auto_ack=True)
    for _ in range(3):
        connection.process_data_events(0.1)
    while channel.basic_get("copy1")[0] is not None:  # it is empty: so the consumer has what there was
        pass
    return connection


def _counts(side: Side, known: set[str]) -> dict[str, Any]:
    """What an exchange, and the channels of new connections, have counted."""
    found = {"copies": side.api.get("/exchanges/%2F/copies").get("message_stats", {})}
    for one in side.api.get("/channels"):
        if one["connection_details"].get("name") not in known:
            found[f"channel {one['number']}"] = one.get("message_stats", {})
    return {name: {key: n for key, n in stats.items() if isinstance(n, int)} for name, stats in found.items()}


def test_exchanges_and_channels_count_alike(sides: tuple[Side, Side]) -> None:
    names = [{one["name"] for one in side.api.get("/connections")} for side in sides]
    connections = [_traffic(side.amqp_port) for side in sides]
    try:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:  # RabbitMQ's statistics come every five seconds
            there, here = (_counts(side, known) for side, known in zip(sides, names, strict=True))
            if there == here:
                break
            time.sleep(0.2)
        assert here == there
        assert here["copies"] == {"publish_in": 6, "publish_out": 12}
        assert here["channel 1"]["drop_unroutable"] == 6
    finally:
        for connection in connections:
            connection.close()


def test_prometheus_finds_the_metrics_that_rabbitmq_has(sides: tuple[Side, Side]) -> None:
    there, here = (
        httpx.get(f"http://127.0.0.1:{port}/metrics").raise_for_status().text
        for port in (sides[0].port + 1, sides[1].port)
    )
    ours = {name for name in _families(here) if name.startswith("rabbitmq_")}
    assert ours <= _families(there)
    assert {"rabbitmq_queue_messages_ready", "rabbitmq_connections", "rabbitmq_global_messages_received_total"} <= ours
    both = [re.search(r"^rabbitmq_channel_messages_unacked (\d+)", text, re.MULTILINE) for text in (there, here)]
    assert [found and found[1] for found in both] == ["3", "3"]


def _families(text: str) -> set[str]:
    return set(re.findall(r"^# TYPE (\w+)", text, re.MULTILINE))
