"""``warren shovel --definitions``, ``warren serve --definitions``: a dead RabbitMQ's definitions at other places."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

import pika
import pytest

from tests.support.broker import Broker, requires_broker
from tests.support.cli_tools import warren
from tests.support.rabbitmq_golden import DEFINITIONS, QUORUM, STREAMS, archives, manifest_of, name_of
from tests.support.server_tools import Served, served
from tests.support.shovel_tools import complaint, shovel
from warren import open as open_node
from warren.management import ManagementSettings
from warren.server import ServerSettings

Json = dict[str, Any]
Key = tuple[str, ...]

KILLED, CHANGED, UNUSED = (
    next(path for path in archives(DEFINITIONS) if path.name.startswith(number)) for number in ("02-", "03-", "04-")
)
MIXED_QUORUM = next(path for path in archives(QUORUM) if path.name.startswith("02-"))


def for_import(archive: Path) -> Json:
    result = warren("definitions", archive, "--for-import")
    document: Json = json.loads(result.stdout)
    return document


def named(document: Json, part: str, *fields: str) -> dict[Key, Json]:
    """Definitions by their names."""
    return {tuple(item[field] for field in fields): item for item in document[part]}


def bindings(document: Json) -> set[str]:
    return {json.dumps(binding, sort_keys=True) for binding in document["bindings"]}


def check_all(expected: Json, got: Json) -> None:
    """All of a node's definitions are there."""
    for part, *fields in (
        ("users", "name"),
        ("permissions", "user", "vhost"),
        ("topic_permissions", "user", "vhost"),
        ("policies", "vhost", "name"),
        ("exchanges", "vhost", "name"),
        ("vhosts", "name"),
        ("queues", "vhost", "name"),
    ):
        wanted, there = named(expected, part, *fields), named(got, part, *fields)
        assert wanted.keys() <= there.keys()
        if part != "vhosts":
            assert {key: there[key] for key in wanted} == wanted
    assert bindings(expected) <= bindings(got)
    for key, parameter in named(expected, "parameters", "vhost", "component", "name").items():
        assert named(got, "parameters", "vhost", "component", "name")[key] == parameter


@pytest.mark.slow
@pytest.mark.parametrize("archive", [KILLED, CHANGED, UNUSED], ids=lambda path: path.name[:2])
def test_a_directory_gets_everything(tmp_path: Path, archive: Path) -> None:
    summary = shovel(archive, tmp_path / "data", "--definitions", "--state", tmp_path / "state")
    document = for_import(archive)
    assert summary["definitions"] == {part: len(document[part]) for part in summary["definitions"]}
    with open_node(tmp_path / "data") as node:
        check_all(document, node.definitions())
    again = shovel(archive, tmp_path / "data", "--definitions", "--state", tmp_path / "state")
    assert again["definitions"] == summary["definitions"]


def test_a_brokers_own_export_is_imported(tmp_path: Path) -> None:
    own = json.loads(warren("definitions", KILLED).stdout)  # with an operator policy, whose settings are pairs
    with open_node(tmp_path / "data") as node:
        skipped = node.import_definitions(own).skipped
        assert all("of exchange 'x.headers' to" in reason for reason in skipped)  # internal, and so not exported
        expected = named(for_import(KILLED), "parameters", "vhost", "component", "name")
        got = named(node.definitions(), "parameters", "vhost", "component", "name")
        assert got.items() >= expected.items()


def test_messages_come_into_the_restored_queues(tmp_path: Path) -> None:
    with open_node(tmp_path / "node") as node:
        node.queue("jobs", arguments={"x-max-length": 7}).publish_many([b"1", b"2", b"3"]).wait()
    summary = shovel(tmp_path / "node", tmp_path / "data", "--definitions")
    assert summary["messages"] == 3
    with open_node(tmp_path / "data") as node:
        assert node.queue("jobs", passive=True).arguments == {"x-max-length": 7}
        assert [message.body for message in node.queue("jobs", passive=True).get_many(5)] == [b"1", b"2", b"3"]


@pytest.mark.parametrize(
    "archive",
    [
        pytest.param(path, marks=() if path.name.startswith("01-") else pytest.mark.slow, id=name_of(path))
        for path in archives(STREAMS)
    ],
)
def test_streams_are_restored_as_streams(tmp_path: Path, archive: Path) -> None:
    expected = manifest_of(archive)["after_restart"]
    summary = shovel(archive, tmp_path / "data", "--definitions", "--state", tmp_path / "state")
    assert {queue["queue"]: queue["messages"] for queue in summary["queues"]} == {
        name: len(rows) for name, rows in expected.items()
    }
    again = shovel(archive, tmp_path / "data", "--definitions", "--state", tmp_path / "state")
    assert (again["messages"], sum(queue["already"] for queue in again["queues"])) == (0, summary["messages"])
    with served(tmp_path / "data") as here, here.channel() as channel:
        for name, rows in expected.items():
            arguments = {"x-queue-type": "stream"} | manifest_of(archive)["arguments"].get(name, {})
            channel.queue_declare(name, durable=True, arguments=arguments)
            channel.basic_qos(prefetch_count=1000)
            delivered = []
            for method, properties, body in (
                channel.consume(name, arguments={"x-stream-offset": "first"}) if rows else ()
            ):
                delivered.append([len(body), sha256(body).hexdigest()[:16], method.exchange, method.routing_key])
                assert properties.headers["x-stream-offset"] == len(delivered) - 1
                channel.basic_ack(method.delivery_tag)
                if len(delivered) == len(rows):
                    break
            assert delivered == [row[1:5] for row in rows]
            channel.cancel()


def test_streams_and_queues_are_filled_in_turns(tmp_path: Path) -> None:
    with open_node(tmp_path / "node") as node:
        for name in "abcd":
            node.queue(name).publish_many([name.encode()] * 3).wait()
    with open_node(tmp_path / "data") as node:
        stream = {"vhost": "/", "durable": True, "auto_delete": False, "arguments": {"x-queue-type": "stream"}}
        node.import_definitions({"queues": [stream | {"name": name} for name in "ac"]})
    assert shovel(tmp_path / "node", tmp_path / "data")["messages"] == 12
    with open_node(tmp_path / "data") as node:
        assert {name: len(node.queue(name)) for name in "bd"} == {"b": 3, "d": 3}
        streams = node.stats()["vhosts"]["/"]["streams"]
        assert {name: streams[name]["messages"] for name in streams} == {"a": 3, "c": 3}


def test_one_vhost_is_restored_alone(tmp_path: Path) -> None:
    shovel(KILLED, tmp_path / "data", "--definitions", "--vhost", "vh/ö", "--state", tmp_path / "state")
    with open_node(tmp_path / "data") as node:
        assert sorted(node.vhosts()) == ["/", "vh/ö"]
        assert {queue["vhost"] for queue in node.definitions()["queues"]} == {"vh/ö"}
        assert named(node.definitions(), "users", "name").keys() == {("guest",)}


def declared(here: Served) -> Json:
    document: Json = here.node.definitions()
    return document


def test_a_broker_gets_exchanges_queues_and_bindings_by_amqp(tmp_path: Path) -> None:
    with served(tmp_path / "data") as here:
        summary = shovel(KILLED, here.url, "--definitions", "--vhost", "/", "--state", tmp_path / "state")
        document = for_import(KILLED)
        expected = {
            part: [item for item in document[part] if item["vhost"] == "/"]
            for part in ("exchanges", "queues", "bindings")
        }
        assert summary["definitions"] == {part: len(items) for part, items in expected.items()}
        got = declared(here)
        assert named(got, "exchanges", "vhost", "name") == named(expected, "exchanges", "vhost", "name")
        assert named(got, "queues", "vhost", "name").keys() == named(expected, "queues", "vhost", "name").keys()
        assert bindings(got) == bindings(expected)
        assert named(got, "users", "name").keys() == {("guest",)}


def test_a_queue_that_exists_with_other_arguments_ends_it(tmp_path: Path) -> None:
    with served(tmp_path / "data") as here:
        here.node.queue("q.0.é", arguments={"x-max-length": 99})
        said = complaint(KILLED, here.url, "--definitions", "--vhost", "/", "--state", tmp_path / "state")
        assert "406 PRECONDITION_FAILED" in said
        assert "q.0" in said


@pytest.mark.slow
def test_a_broker_gets_everything_by_its_http_api(tmp_path: Path) -> None:
    settings = ServerSettings(management=ManagementSettings(management_tcp_port=0))
    with served(tmp_path / "data", settings) as here:
        assert here.server.management is not None
        url = here.server.management.url.replace("http://", "http://guest:guest@")
        run = "--definitions", "--management", url, "--state", tmp_path / "state", "--vhost"
        shovel(CHANGED, here.url, *run, "vh/ö")
        assert named(declared(here), "users", "name").keys() == {("guest",)}  # a vhost's definitions lack users
        assert named(declared(here), "vhosts", "name").keys() == {("/",)}
        assert declared(here)["queues"]
        with served(tmp_path / "whole", settings) as other:
            assert other.server.management is not None
            whole = other.server.management.url.replace("http://", "http://guest:guest@")
            shovel(
                CHANGED, other.url, "--definitions", "--management", whole, "--vhost", "/", "--state", tmp_path / "2"
            )
            check_all(for_import(CHANGED), declared(other))
        said = complaint(KILLED, here.url, *run, "vh/ö")
        assert "refused the definitions: 400 Bad Request" in said
        assert "inequivalent arg 'x-queue-mode' for queue 'q.3.é'" in said


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["{archive}", "data", "--definitions", "--rename", "a=b"], "under their own names"),
        (["{archive}", "data", "--management", "http://h"], "--management is for --definitions into a broker"),
        (["{archive}", "data", "--definitions", "--management", "http://h"], "into a broker"),
        (["amqp://h/", "data", "--definitions", "--queue", "q"], "--definitions: amqp://guest@h:5672/%2F has none"),
        (["file.jsonl", "data", "--definitions"], "has none"),
        (["{archive}", "amqp://127.0.0.1:1/", "--definitions"], "no connection"),
    ],
    ids=lambda value: "" if isinstance(value, str) else " ".join(value[1:]),
)
def test_options_that_do_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file.jsonl").write_text("")
    assert sentence in complaint(*(argument.replace("{archive}", str(KILLED)) for argument in arguments))


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("ftp://h", "a URL such as http://user:password@host:15672"),
        ("http://:x", "a URL such as http://user:password@host:15672"),
        ("http://u:secret@127.0.0.1:1", "http://127.0.0.1:1: no answer"),
    ],
)
def test_the_http_api_of_a_broker_that_is_not_there(tmp_path: Path, url: str, sentence: str) -> None:
    said = complaint(KILLED, "amqp://127.0.0.1:1/", "--definitions", "--management", url, "--state", tmp_path / "state")
    assert sentence in said
    assert "secret" not in said


@pytest.mark.slow
def test_a_server_begins_with_the_definitions_of_a_dead_node(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "warren", "serve", str(tmp_path / "data"), "--port", "0", "--json"]
    options = ["--definitions", str(KILLED)]
    with subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        ((_, port),) = json.loads(server.stdout.readline())["addresses"]
        with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port)) as connection:
            connection.channel().queue_declare("q.4.é", passive=True)
        server.send_signal(signal.SIGTERM)
        assert server.wait(30) == 0
    with open_node(tmp_path / "data") as node:
        check_all(for_import(KILLED), node.definitions())


def test_definitions_are_imported_from_a_dead_node_or_its_export(tmp_path: Path) -> None:
    assert warren("definitions", KILLED, "--for-import", "--export", tmp_path / "d.json").exit_code == 0
    for number, source in enumerate((KILLED, tmp_path / "d.json")):
        place = tmp_path / f"data{number}"
        result = warren("definitions", place, "--import", source)
        assert result.exit_code == 0, result.stderr
        with open_node(place) as node:
            check_all(for_import(KILLED), node.definitions())


@requires_broker
def test_a_real_broker_gets_everything(tmp_path: Path) -> None:
    with Broker(tmp_path / "broker", management=True) as broker:
        broker.start()
        for archive in (MIXED_QUORUM, KILLED):
            url = f"http://guest:guest@127.0.0.1:{broker.management_port}"
            run = "--definitions", "--management", url, "--state", tmp_path / archive.name
            into = broker.amqp_url if archive == MIXED_QUORUM else broker.amqp_url.replace("%2F", "vh%2F%C3%B6")
            only = ("--vhost", "vh/ö") if archive == KILLED else ()
            warren("shovel", archive, into, *run, *only)
            document = for_import(archive)
            broker.ctl("export_definitions", str(tmp_path / "got.json"))
            got = json.loads((tmp_path / "got.json").read_text())
            queues = named(got, "queues", "vhost", "name")
            assert named(document, "queues", "vhost", "name").items() <= queues.items()
            assert bindings(document) <= bindings(got)
            assert named(document, "users", "name").items() <= named(got, "users", "name").items()


@requires_broker
def test_a_real_broker_gets_exchanges_queues_and_bindings_by_amqp(tmp_path: Path) -> None:
    with Broker(tmp_path / "broker") as broker:
        broker.start()
        shovel(KILLED, broker.amqp_url, "--definitions", "--vhost", "/", "--state", tmp_path / "state")
        document = for_import(KILLED)
        broker.ctl("export_definitions", str(tmp_path / "got.json"))
        got = json.loads((tmp_path / "got.json").read_text())
        of_vhost = {part: [item for item in document[part] if item["vhost"] == "/"] for part in ("queues", "bindings")}
        assert named(got, "queues", "vhost", "name") == named(of_vhost, "queues", "vhost", "name")
        assert bindings(got) == bindings(of_vhost)
