"""``warren ctl``: rabbitmqctl's verbs, on a node that runs and on a directory that is free."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pika
import pytest
from typer.testing import CliRunner, Result

import warren as runtime
from tests.support.broker import Broker
from tests.support.waiting import wait_until
from warren import cli
from warren.ctl.verbs import VERBS
from warren.server.server import Server
from warren.server.settings import ServerSettings


def ctl(data: Path, *arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(cli.app, ["ctl", str(data), *arguments], input=stdin)


def said(data: Path, *arguments: str, stdin: str | None = None) -> str:
    """What is printed beside what is done."""
    result = ctl(data, *arguments, "-q", stdin=stdin)
    assert result.exit_code == 0, result.stderr
    return result.stdout


def as_json(data: Path, *arguments: str) -> Any:
    return json.loads(said(data, *arguments, "--json"))


def refused(data: Path, *arguments: str, stdin: str | None = None) -> str:
    """One of rabbitmqctl's exit codes, and one line on stderr, which is returned."""
    result = ctl(data, *arguments, "-q", stdin=stdin)
    assert result.exit_code in (64, 65, 67, 69, 70)
    assert result.stdout == ""
    assert result.stderr.startswith("warren: ")
    assert result.stderr.count("\n") == 1
    return result.stderr


@pytest.fixture
def data(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A directory with a queue, whose node runs, or with the parameter "closed" does not."""
    path = tmp_path / "data"
    node = runtime.open(path)
    node.queue("orders", arguments={"x-max-length": 5, "x-dead-letter-exchange": "dead"}).publish(b"one").wait()
    node.bind("orders", node.exchange("logs", "topic"), "a.*", {"k": "v"})
    if getattr(request, "param", None) == "closed":
        node.close()
    yield path
    node.close()


@pytest.mark.slow
@pytest.mark.parametrize("data", ["running", "closed"], indirect=True)
def test_users_come_and_go(data: Path) -> None:
    assert said(data, "list_users") == "user\ttags\nguest\t[administrator]\n"
    result = ctl(data, "add_user", "bob", "secret")
    assert (result.exit_code, result.stdout) == (0, 'Adding user "bob" ...\n')
    assert said(data, "add_user", "carol", stdin="pass word\n") == ""
    assert said(data, "authenticate_user", "carol", "pass word") == "Success\n"
    assert "invalid credentials" in refused(data, "authenticate_user", "carol", "pass word\n")
    said(data, "set_user_tags", "bob", "management", "x")
    said(data, "change_password", "bob", "other")
    said(data, "authenticate_user", "bob", "other")
    said(data, "clear_password", "bob")
    assert "invalid credentials" in refused(data, "authenticate_user", "bob", "other")
    said(data, "delete_user", "carol")
    assert as_json(data, "list_users") == [
        {"user": "bob", "tags": ["management", "x"]}, {"user": "guest", "tags": ["administrator"]},
    ]  # fmt: skip
    said(data, "set_user_tags", "bob")
    assert said(data, "list_users", "--no-table-headers") == "bob\t[]\nguest\t[administrator]\n"
    assert "no user 'nobody'" in refused(data, "delete_user", "nobody")
    assert "user 'bob' exists already" in refused(data, "add_user", "bob", "x")


def test_permissions_and_limits(data: Path) -> None:
    said(data, "add_vhost", "shop", "--description", "sells", "--tags", "a, b")
    said(data, "add_vhost", "shop")
    said(data, "add_user", "bob", "secret")
    said(data, "set_permissions", "-p", "shop", "bob", "^bob", "", ".*")
    assert said(data, "list_permissions", "-p", "shop") == "user\tconfigure\twrite\tread\nbob\t^bob\t\t.*\n"
    assert as_json(data, "list_user_permissions", "bob") == [
        {"vhost": "shop", "configure": "^bob", "write": "", "read": ".*"}
    ]
    said(data, "set_topic_permissions", "-p", "shop", "bob", "amq.topic", "^b", ".*")
    assert said(data, "list_topic_permissions", "-p", "shop", "--no-table-headers") == "bob\tamq.topic\t^b\t.*\n"
    assert said(data, "list_user_topic_permissions", "bob", "--no-table-headers") == "shop\tamq.topic\t^b\t.*\n"
    said(data, "clear_topic_permissions", "-p", "shop", "bob", "amq.topic")
    assert said(data, "list_topic_permissions", "-p", "shop") == ""
    assert said(data, "list_vhosts", "name", "description", "tags") == (
        "name\tdescription\ttags\n/\tDefault virtual host\t[]\nshop\tsells\t[a, b]\n"
    )
    said(data, "set_vhost_tags", "shop", "c")
    assert as_json(data, "list_vhosts", "name", "tags")[1] == {"name": "shop", "tags": ["c"]}
    said(data, "set_vhost_limits", "-p", "shop", '{"max-queues": 3}')
    assert said(data, "list_vhost_limits", "-p", "shop") == '{"max-queues":3}\n'
    assert said(data, "list_vhost_limits", "--global") == 'vhost\tlimits\nshop\t{"max-queues":3}\n'
    said(data, "clear_vhost_limits", "-p", "shop")
    assert said(data, "list_vhost_limits", "--global") == ""
    said(data, "set_user_limits", "bob", '{"max-connections": 3}')
    assert said(data, "list_user_limits", "--user", "bob") == '{"max-connections":3}\n'
    assert as_json(data, "list_user_limits", "--global") == [{"user": "bob", "limits": '{"max-connections":3}'}]
    said(data, "clear_user_limits", "bob", "all")
    assert said(data, "list_user_limits", "--user", "bob") == "{}\n"
    said(data, "clear_permissions", "-p", "shop", "bob")
    assert said(data, "list_permissions", "-p", "shop") == ""
    said(data, "delete_vhost", "shop")
    assert "no vhost 'shop'" in refused(data, "list_permissions", "-p", "shop")


def test_policies_and_parameters(data: Path) -> None:
    said(data, "set_policy", "short", "^o", '{"max-length":3}', "--priority", "2", "--apply-to", "queues")
    said(data, "set_operator_policy", "small", ".*", '{"max-length-bytes":99}')
    assert said(data, "list_policies") == (
        'vhost\tname\tpattern\tapply-to\tdefinition\tpriority\n/\tshort\t^o\tqueues\t{"max-length":3}\t2\n'
    )
    assert as_json(data, "list_operator_policies") == [
        {
            "vhost": "/", "name": "small", "pattern": ".*", "apply-to": "all",
            "definition": '{"max-length-bytes":99}', "priority": 0,
        }
    ]  # fmt: skip
    assert said(data, "list_queues", "name", "policy", "--no-table-headers") == "orders\tshort\n"
    said(data, "clear_policy", "short")
    said(data, "clear_operator_policy", "small")
    assert said(data, "list_policies") == said(data, "list_operator_policies") == ""
    assert "Parameter does not exist" in refused(data, "clear_policy", "short")
    said(data, "set_parameter", "shovel", "mine", '{"src-uri":"amqp://"}')
    assert said(data, "list_parameters") == 'component\tname\tvalue\nshovel\tmine\t{"src-uri":"amqp://"}\n'
    said(data, "clear_parameter", "shovel", "mine")
    said(data, "set_global_parameter", "g", "[1]")
    assert said(data, "list_global_parameters") == "name\tvalue\ng\t[1]\n"
    said(data, "clear_global_parameter", "g")
    assert said(data, "list_parameters") == said(data, "list_global_parameters") == ""


@pytest.mark.slow
@pytest.mark.parametrize("data", ["running", "closed"], indirect=True)
def test_queues_exchanges_and_bindings(data: Path) -> None:
    assert said(data, "list_queues") == "name\tmessages\norders\t1\n"
    assert said(data, "list_queues", "name", "arguments", "durable", "state") == (
        'name\targuments\tdurable\tstate\norders\t[{"x-max-length",5},{"x-dead-letter-exchange","dead"}]\ttrue\trunning\n'
    )
    assert as_json(data, "list_queues", "name", "arguments", "policy", "messages_ready") == [
        {
            "name": "orders",
            "arguments": [["x-max-length", "signedint", 5], ["x-dead-letter-exchange", "longstr", "dead"]],
            "policy": "",
            "messages_ready": 1,
        }
    ]
    assert "logs\ttopic\n" in said(data, "list_exchanges")
    assert said(data, "list_bindings", "--no-table-headers") == (
        '\texchange\torders\tqueue\torders\t[]\nlogs\texchange\torders\tqueue\ta.*\t[{"k","v"}]\n'
    )
    assert "not empty" in refused(data, "delete_queue", "orders", "--if-empty")
    assert as_json(data, "purge_queue", "orders") == {"purged": 1}
    assert said(data, "delete_queue", "orders", "--if-empty", "--if-unused") == (
        "Queue was successfully deleted with 0 ready messages\n"
    )
    assert said(data, "list_queues") == ""
    for verb in ("delete_queue", "purge_queue"):
        assert "no queue 'orders' in vhost '/'" in refused(data, verb, "orders")


def test_names_cannot_speak_to_the_terminal(tmp_path: Path) -> None:
    with runtime.open(tmp_path) as node:
        node.queue("a\tb\x1b[31m")
        assert said(tmp_path, "list_queues", "name", "--no-table-headers") == "a\\tb\\x1b[31m\n"


@pytest.mark.slow
@pytest.mark.parametrize("data", ["running", "closed"], indirect=True)
def test_definitions_go_out_and_in(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "definitions.json"
    said(data, "add_user", "bob", "secret")
    said(data, "export_definitions", str(out))
    assert out.stat().st_mode & 0o777 == 0o600
    exported = json.loads(out.read_text())
    assert exported == json.loads(ctl(data, "export_definitions", "-").stdout)
    said(data, "delete_user", "bob")
    counts = as_json(data, "import_definitions", str(out))
    assert (counts["users"], counts["queues"], counts["ignored"]) == (1, 0, {})
    said(data, "delete_user", "bob")
    said(data, "import_definitions", "-", stdin=out.read_text())
    said(data, "authenticate_user", "bob", "secret")
    assert "No such file" in refused(data, "import_definitions", str(tmp_path / "missing"))
    out.write_text("{")
    assert "not JSON" in refused(data, "import_definitions", str(out))


def test_status_and_environment(data: Path) -> None:
    status = as_json(data, "status")
    assert (status["rabbitmq_version"], status["data_directory"]) == ("3.10.8", str(data))
    assert status["totals"] == {"connection_count": 0, "queue_count": 1, "virtual_host_count": 1}
    assert "totals:\n  connection_count: 0\n" in said(data, "status")
    assert as_json(data, "environment")["rabbit"]["vm_memory_high_watermark"] == 0.4
    assert said(data, "ping") == "Ping succeeded\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["list_user"], "no verb 'list_user'; did you mean 'list_users'?"),
        (["xyz"], "no verb 'xyz'"),
        (["add_user"], "not enough arguments; usage: warren ctl PATH add_user <user> [<password>]"),
        (["set_permissions", "bob", "a", "b"], "not enough arguments"),
        (["delete_user", "a", "b"], "too many arguments; usage: warren ctl PATH delete_user <user>"),
        (["list_users", "-p", "/"], "--vhost does not apply to list_users"),
        (["list_queues", "name", "pid"], "columns of list_queues are name, durable"),
        (["set_policy", "p", ".*", "{"], "not JSON: {"),
        (["set_policy", "p", ".*", "[]"], "a JSON object is expected, not []"),
        (["set_permissions", "guest", "(", "", ""], "no regular expression"),
        (["add_user", "", "x"], "a user's name cannot be empty"),
        (["purge_queue", "q", "-p", "nowhere"], "no vhost 'nowhere'"),
        (["close_connection", "x", "why"], "no connection 'x'"),
        (["set_user_limits", "guest", '{"max-x": 1}'], "limit 'max-x' is not one of"),
    ],
)
def test_what_is_wrong_is_said(data: Path, arguments: list[str], why: str) -> None:
    assert why in refused(data, *arguments)


LIMIT = '{"max-length":1}'
WRONG_USES: dict[tuple[str, ...], int] = {
    (): 64,
    ("nonsense",): 64,
    ("list_queues", "--nonsense"): 64,
    ("list_queues", "-z"): 64,
    ("list_queues", "--priority", "1"): 64,
    ("set_policy", "p", ".*", LIMIT, "--priority", "x"): 64,
    ("set_policy", "p", ".*", LIMIT, "--priority"): 64,
    ("list_queues", "nonsense"): 64,
    ("add_user",): 64,
    ("set_permissions", "guest", ".*"): 64,
    ("delete_user", "a", "b"): 64,
    ("set_policy", "p", ".*", "nojson", "x"): 64,
    ("delete_queue", "nowhere"): 64,
    ("delete_queue", "-p", "nowhere", "q"): 64,
    ("add_user", "", "x"): 65,
    ("authenticate_user", "guest", "wrong"): 65,
    ("await_startup", "x"): 64,
    ("list_feature_flags", "foo"): 64,
    ("set_vm_memory_high_watermark",): 64,
    ("set_vm_memory_high_watermark", "absolute"): 64,
    ("set_vm_memory_high_watermark", "0.5", "3"): 64,
    ("set_vm_memory_high_watermark", "x"): 65,
    ("set_vm_memory_high_watermark", "1.5"): 65,
    ("set_vm_memory_high_watermark", "absolute", "1x"): 65,
    ("set_vm_memory_high_watermark", "absolute", "1.5GB"): 65,
    ("delete_vhost", "nowhere"): 65,
    ("list_permissions", "-p", "nowhere"): 65,
    ("list_vhost_limits", "-p", "nowhere"): 65,
    ("list_policies", "-p", "nowhere"): 65,
    ("set_policy", "-p", "nowhere", "p", ".*", LIMIT): 65,
    ("import_definitions", "/no/such/file"): 65,
    ("export_definitions", "/no/such/file"): 65,
    ("delete_user", "nobody"): 67,
    ("change_password", "nobody", "x"): 67,
    ("clear_password", "nobody"): 69,
    ("set_permissions", "nobody", ".*", ".*", ".*"): 67,
    ("set_user_tags", "nobody", "x"): 67,
    ("set_user_limits", "nobody", '{"max-connections":1}'): 69,
    ("list_user_limits", "--user", "nobody"): 69,
    ("list_user_permissions", "nobody"): 69,
    ("set_permissions", "-p", "nowhere", "guest", ".*", ".*", ".*"): 69,
    ("set_vhost_limits", "-p", "nowhere", '{"max-queues":1}'): 65,
    ("clear_parameter", "-p", "nowhere", "c", "n"): 69,
    ("clear_policy", "-p", "nowhere", "p"): 69,
    ("purge_queue", "-p", "nowhere", "q"): 69,
    ("purge_queue", "nowhere"): 69,
    ("set_permissions", "guest", "(", ".*", ".*"): 69,
    ("set_policy", "p", ".*", '{"x":1}'): 69,
    ("set_policy", "p", ".*", "nojson"): 69,
    ("clear_policy", "nobody"): 69,
    ("close_connection", "x", "y"): 69,
    ("add_user", "guest", "x"): 70,
    ("restart_vhost", "-p", "nowhere"): 70,
    ("list_queues", "-p", "nowhere"): 0,
    ("list_exchanges", "-p", "nowhere"): 0,
    ("list_bindings", "-p", "nowhere"): 0,
    ("list_consumers", "-p", "nowhere"): 0,
    ("list_unresponsive_queues", "-p", "nowhere"): 0,
    ("close_all_connections", "-p", "nowhere", "why"): 0,
}
"""Arguments, and the exit code of rabbitmqctl."""


@pytest.mark.slow
@pytest.mark.parametrize("data", ["running", "closed"], indirect=True)
def test_it_exits_with_the_codes_of_rabbitmqctl(data: Path, tmp_path: Path) -> None:
    assert {arguments: ctl(data, "-q", *arguments).exit_code for arguments in WRONG_USES} == WRONG_USES
    assert ctl(data, "-q", "check_port_listener", "5").exit_code == 69
    assert ctl(tmp_path / "no node", "list_users").exit_code == 69


def test_wrong_arguments_of_other_commands_have_their_own_code(data: Path) -> None:
    assert CliRunner().invoke(cli.app, ["queues", str(data), "--nonsense"]).exit_code == 2


def test_a_list_of_an_unknown_vhost_is_empty_and_warns(data: Path) -> None:
    result = ctl(data, "list_queues", "-p", "nowhere", "-q")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "warren: no vhost 'nowhere'\n")
    result = ctl(data, "close_all_connections", "-p", "nowhere", "why", "-q")
    assert (result.stdout, result.stderr) == ("Closed 0 connections\n", "warren: no vhost 'nowhere'\n")


def test_the_memory_limit_is_set_until_the_node_is_closed(data: Path) -> None:
    before = as_json(data, "status")["vm_memory_high_watermark_limit"]
    result = ctl(data, "set_vm_memory_high_watermark", "0.25")
    assert (result.exit_code, result.stdout) == (0, "Setting memory threshold on the node to 0.25 ...\n")
    status = as_json(data, "status")
    assert status["vm_memory_high_watermark_setting"] == 0.25
    assert status["vm_memory_high_watermark_limit"] == pytest.approx(before * 0.25 / 0.4, rel=1e-6)
    result = ctl(data, "set_vm_memory_high_watermark", "absolute", "1KiB")
    assert result.stdout == "Setting memory threshold on the node to 1KiB bytes ...\n"
    assert as_json(data, "status")["vm_memory_high_watermark_limit"] == 1024
    assert as_json(data, "status")["alarms"] == ["memory"]  # the node uses more, and says so at once
    said(data, "set_vm_memory_high_watermark", "1")
    assert as_json(data, "status")["alarms"] == []


def test_a_command_waits_until_a_node_has_started(tmp_path: Path) -> None:
    path = tmp_path / "later"
    assert ctl(path, "await_startup", "--timeout", "0").exit_code == 69
    assert not path.exists()
    opened: list[runtime.Node] = []
    starting = threading.Timer(0.3, lambda: opened.append(runtime.open(path)))
    starting.start()
    try:
        result = ctl(path, "await_startup", "--timeout", "60")
        assert (result.exit_code, result.stdout, result.stderr) == (0, "", "")
    finally:
        starting.join()
        opened[0].close()


def test_feature_flags_are_listed(data: Path) -> None:
    lines = said(data, "list_feature_flags").splitlines()
    assert lines[0] == "name\tstate"
    assert {"quorum_queue\tenabled", "maintenance_mode_status\tunavailable"} <= set(lines)


def test_no_directory_is_made(tmp_path: Path) -> None:
    assert "no such directory" in refused(tmp_path / "missing", "list_users")
    assert not (tmp_path / "missing").exists()


# ── clients ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Path, Server]]:
    with runtime.open(tmp_path) as node:
        server = node.serve(ServerSettings(port=0))
        yield tmp_path, server
        server.stop()


def connected(server: Server) -> pika.BlockingConnection:
    host, port = server.addresses[0]
    return pika.BlockingConnection(pika.ConnectionParameters(host, port))


def test_clients_are_listed_and_closed(served: tuple[Path, Server]) -> None:
    data, server = served
    client = connected(server)
    channel = client.channel()
    channel.queue_declare("q")
    channel.basic_qos(prefetch_count=7)
    channel.basic_consume("q", lambda *_: None, consumer_tag="mine", arguments={"x-priority": 5})
    (connection,) = as_json(data, "list_connections", "name", "user", "vhost", "state", "channels", "protocol")
    name = connection.pop("name")
    assert connection == {
        "user": "guest", "vhost": "/", "state": "running", "channels": 1, "protocol": "AMQP 0-9-1",
    }  # fmt: skip
    assert said(data, "list_connections").startswith("user\tpeer_host\tpeer_port\tstate\nguest\t127.0.0.1\t")
    assert '{"product","Pika Python Client Library"}' in said(data, "list_connections", "client_properties")
    assert as_json(data, "list_channels", "connection", "number", "consumer_count", "prefetch_count", "confirm") == [
        {"connection": name, "number": 1, "consumer_count": 1, "prefetch_count": 7, "confirm": False}
    ]
    (consumer,) = as_json(data, "list_consumers")
    assert consumer == {
        "queue_name": "q", "channel_pid": f"{name} (1)", "consumer_tag": "mine", "ack_required": True,
        "prefetch_count": 7, "active": True, "arguments": [["x-priority", "signedint", 5]],
    }  # fmt: skip
    assert as_json(data, "status")["totals"]["connection_count"] == 1
    assert as_json(data, "status")["listeners"][0]["port"] == server.addresses[0][1]
    said(data, "close_connection", name, "enough")
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="CONNECTION_FORCED - enough"):
        client.process_data_events(5)
    wait_until(lambda: said(data, "list_connections") == "", "the connection is gone")


def test_streams_are_queues_too(served: tuple[Path, Server]) -> None:
    data, server = served
    client = connected(server)
    channel = client.channel()
    channel.queue_declare("log", durable=True, arguments={"x-queue-type": "stream"})
    channel.confirm_delivery()
    channel.basic_publish("", "log", b"one")
    client.close()
    assert said(data, "list_queues", "name", "type", "messages", "state", "--no-table-headers") == (
        "log\tstream\t1\trunning\n"
    )
    assert as_json(data, "status")["totals"]["queue_count"] == 1
    assert "is a stream, which cannot be purged" in refused(data, "purge_queue", "log")
    said(data, "delete_queue", "log")
    assert said(data, "list_queues", "name") == ""


def test_health_checks_and_what_the_node_is_called(served: tuple[Path, Server]) -> None:
    data, server = served
    host, port = server.addresses[0]
    name = server.node.name
    for verb, sentence in (
        ("check_running", f"RabbitMQ on node {name} is fully booted and running"),
        ("check_alarms", f"Node {name} reported no alarms, local or clusterwide"),
        ("check_local_alarms", f"Node {name} reported no local alarms"),
        ("alarms", f"Node {name} reported no alarms, local or clusterwide"),
        ("check_virtual_hosts", f"Node {name} reported all vhosts as running"),
        ("check_port_connectivity", f"Successfully connected to ports {port} on node {name}."),
        ("node_health_check", "Health check passed"),
        ("restart_vhost", f"Vhost '/' is already running on node '{name}'"),
        ("server_version", "3.10.8"),
        ("listeners", f"Interface: {host}, port: {port}, protocol: amqp, purpose: AMQP 0-9-1"),
    ):
        assert said(data, verb) == sentence + "\n"
    assert said(data, "check_port_listener", str(port)).endswith("is running on node " + name + ".\n")
    assert said(data, "check_protocol_listener", "amqp091").startswith("A listener for protocol amqp091")
    assert f"ports: {port}" in refused(data, "check_port_listener", "5")
    assert "No listener for protocol mqtt" in refused(data, "check_protocol_listener", "mqtt")
    assert as_json(data, "list_unresponsive_queues") == []
    assert as_json(data, "memory_breakdown").keys() == {"queue_procs", "other_proc"}
    assert as_json(data, "cluster_status")["cluster_name"] == name
    said(data, "set_cluster_name", "shop")
    assert as_json(data, "cluster_status")["cluster_name"] == "shop"
    with pika.BlockingConnection(pika.ConnectionParameters(host, port)) as connection:
        assert connection._impl.server_properties["cluster_name"] == "shop"
        connection.channel().queue_declare("q")
        report = as_json(data, "report")
        assert report["list_connections"][0]["user"] == "guest"
        assert report["vhosts"]["/"]["list_queues"] == [{"name": "q", "messages": 0}]
        said(data, "close_all_user_connections", "guest", "bye")
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="bye"):
            connection.process_data_events(5)


@pytest.mark.slow
def test_all_connections_are_closed(served: tuple[Path, Server]) -> None:
    data, server = served
    clients = [connected(server) for _ in range(3)]
    said(data, "add_vhost", "empty")
    assert said(data, "close_all_connections", "no", "-p", "empty") == "Closed 0 connections\n"
    assert said(data, "close_all_connections", "one", "--limit", "1") == "Closed 1 connections\n"
    wait_until(lambda: len(as_json(data, "list_connections")) == 2, "one is gone")
    assert said(data, "close_all_connections", "all") == "Closed 2 connections\n"
    for client in clients:
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match=r"CONNECTION_FORCED - (one|all)"):
            client.process_data_events(5)


# ── beside the real one ──────────────────────────────────────────────────────────────────────────────────────────────

DEFINITIONS: dict[str, Any] = {
    "vhosts": [{"name": "/"}, {"name": "shop", "metadata": {"description": "sells", "tags": []}}],
    "users": [{"name": "bob", "password": "secret", "tags": ["management", "x"], "limits": {"max-connections": 3}}],
    "permissions": [{"user": "bob", "vhost": "shop", "configure": "^bob", "write": "", "read": ".*"}],
    "topic_permissions": [{"user": "bob", "vhost": "shop", "exchange": "amq.topic", "write": "^b", "read": ".*"}],
    "policies": [
        {
            "vhost": "/", "name": "p", "pattern": "^q", "apply-to": "queues", "priority": 3,
            "definition": {"max-length": 5},
        }
    ],
    "queues": [
        {
            "name": "q", "vhost": "/", "durable": True, "auto_delete": False,
            "arguments": {"x-dead-letter-exchange": "dead", "x-max-length": 9},
        }
    ],
    "bindings": [
        {
            "source": "amq.topic", "vhost": "/", "destination": "q", "destination_type": "queue", "routing_key": "a.*",
            "arguments": {"k": "v", "n": 5},
        }
    ],
}  # fmt: skip
SAME: Final[tuple[tuple[str, ...], ...]] = (
    ("list_users",),
    ("list_vhosts", "name"),
    ("list_permissions", "-p", "shop"),
    ("list_user_permissions", "bob"),
    ("list_topic_permissions", "-p", "shop"),
    ("list_user_limits", "--global"),
    ("list_policies",),
    ("list_queues", "name", "durable", "arguments", "policy", "messages", "state", "type"),
    ("list_bindings",),
    ("authenticate_user", "bob", "secret"),
)
SAME_JSON = (("list_queues", "name", "durable", "messages"), ("list_policies",))


@pytest.mark.broker
def test_what_is_listed_is_what_the_real_one_lists(tmp_path: Path) -> None:
    file, data = tmp_path / "definitions.json", tmp_path / "data"
    file.write_text(json.dumps(DEFINITIONS))
    with Broker(tmp_path / "broker") as broker, runtime.open(data):
        broker.start()
        broker.ctl("import_definitions", str(file))
        said(data, "import_definitions", str(file))
        for command in SAME:
            theirs, ours = broker.ctl(*command).splitlines(), said(data, *command).splitlines()
            assert sorted(ours) == sorted(theirs), command
        for command in SAME_JSON:
            rows = json.loads(broker.ctl(*command, "--formatter", "json"))
            assert sorted(map(str, as_json(data, *command))) == sorted(map(str, rows)), command


@pytest.mark.broker
@pytest.mark.slow
def test_wrong_uses_end_with_the_same_codes_on_the_real_one(tmp_path: Path) -> None:
    with Broker(tmp_path / "broker") as broker:
        broker.start()
        assert {arguments: broker.run_ctl(*arguments).returncode for arguments in WRONG_USES} == WRONG_USES
        broker.stop()
        assert broker.run_ctl("list_users").returncode == 69


def test_every_verb_is_told_on_its_page() -> None:
    page = (Path(__file__).parent.parent / "docs" / "ctl.md").read_text(encoding="utf-8")
    assert [verb for verb in VERBS if f"`{verb}" not in page] == []
