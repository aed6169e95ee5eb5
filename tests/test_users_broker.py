"""Users between warren's rules and a real RabbitMQ: each logs in whom the other's definitions let in."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest

import warren
from tests.support.broker import Broker
from tests.support.runtime_tools import hand_node
from warren.actors.engines.declared.permissions import Permissions, permissions_of, topic_permissions_of
from warren.actors.engines.declared.users import Users
from warren.actors.engines.errors import AccessRefusedError, ArgumentsError, PreconditionFailedError

pytestmark = pytest.mark.broker


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("broker")) as running:
        running.start()
        yield running


def log_in(broker: Broker, name: str, password: str, vhost: str = "/") -> pika.BlockingConnection:
    credentials = pika.PlainCredentials(name, password)
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.amqp_port, vhost, credentials))


def test_a_broker_lets_in_whom_our_definitions_name(broker: Broker, tmp_path: Path) -> None:
    users = Users(os.urandom)
    users.add("alice", "pässword".encode(), ["management"])
    users.set_permissions("alice", "/", "^mine-", ".*", ".*")
    file = tmp_path / "definitions.json"
    file.write_text(json.dumps(users.to_json()))
    broker.ctl("import_definitions", str(file))
    connection = log_in(broker, "alice", "pässword")
    channel = connection.channel()
    channel.queue_declare("mine-1")
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as refused:
        channel.queue_declare("yours")
    connection.close()
    with pytest.raises(AccessRefusedError) as ours:
        users.check("alice", "/", "queue", "yours", "configure")
    assert refused.value.reply_text == f"ACCESS_REFUSED - {ours.value}"
    with pytest.raises(pika.exceptions.ProbableAuthenticationError):
        log_in(broker, "alice", "password")


def test_we_let_in_whom_a_brokers_definitions_name(broker: Broker, tmp_path: Path) -> None:
    broker.ctl("add_user", "bob", "pässword")
    broker.ctl("set_user_tags", "bob", "monitoring", "policymaker")
    broker.ctl("set_permissions", "bob", "^bob", ".*", "")
    broker.ctl("set_topic_permissions", "bob", "amq.topic", "^b", ".*")
    broker.ctl("add_user", "silent", "x")
    broker.ctl("clear_password", "silent")
    file = tmp_path / "definitions.json"
    broker.ctl("export_definitions", str(file))
    exported = json.loads(file.read_text())
    users = Users(os.urandom)
    for item in exported["users"]:
        users.put(users.from_json(item))
    for item in exported["permissions"]:
        users.grant(item["user"], item["vhost"], permissions_of(item))
    for item in exported["topic_permissions"]:
        users.grant_topics(item["user"], item["vhost"], item["exchange"], topic_permissions_of(item))
    assert set(users.authenticate("bob", "pässword".encode()).tags) == {"monitoring", "policymaker"}
    assert users.authenticate("guest", b"guest")
    assert not users["silent"].has_password(b"")
    assert users.permissions("bob")["/"].configure == "^bob"
    ours = users.to_json()
    for part in ("users", "permissions", "topic_permissions"):
        theirs = {json.dumps(one, sort_keys=True) for one in exported[part]}
        assert {json.dumps(one, sort_keys=True) for one in ours[part]} == theirs


def shaped(document: dict[str, Any]) -> dict[str, list[str]]:
    """The users and vhosts of definitions, in no order; a vhost of an import has tags in another form."""
    found = {part: list(document[part]) for part in PARTS}
    for vhost in found["vhosts"]:
        vhost["metadata"]["tags"] = vhost["metadata"]["tags"] or []
    return {part: sorted(json.dumps(item, sort_keys=True) for item in items) for part, items in found.items()}


PARTS = ("users", "vhosts", "permissions", "topic_permissions", "parameters", "global_parameters")


def test_definitions_of_users_go_there_and_back_again(broker: Broker, tmp_path: Path) -> None:
    broker.ctl("add_vhost", "shop", "--description", "sells", "--tags", "a,b", "--default-queue-type", "classic")
    broker.ctl("set_vhost_limits", "-p", "shop", json.dumps({"max-connections": 10, "max-queues": -1}))
    broker.ctl("add_user", "carol", "pässword")
    broker.ctl("set_user_limits", "carol", json.dumps({"max-connections": 3}))
    broker.ctl("set_permissions", "-p", "shop", "carol", "^c", "", ".*")
    broker.ctl("set_topic_permissions", "-p", "shop", "carol", "amq.topic", "^{username}", ".*")
    broker.ctl("set_global_parameter", "mine", json.dumps({"a": 1}))
    first, ours, second = tmp_path / "first.json", tmp_path / "ours.json", tmp_path / "second.json"
    broker.ctl("export_definitions", str(first))
    exported = json.loads(first.read_text())
    with warren.open(tmp_path / "node") as node:
        node.import_definitions(exported)
        assert node.authenticate("carol", "pässword")["tags"] == []
        assert node.vhost_limits("shop") == {"max-connections": 10, "max-queues": -1}
        ours.write_text(json.dumps(node.definitions()))
    with warren.open(tmp_path / "node") as node:
        assert shaped(node.definitions()) == shaped(json.loads(ours.read_text()))
    assert shaped(json.loads(ours.read_text())) == shaped(exported)
    for command in (("delete_user", "carol"), ("delete_vhost", "shop"), ("clear_global_parameter", "mine")):
        broker.ctl(*command)
    broker.ctl("import_definitions", str(ours))
    broker.ctl("export_definitions", str(second))
    assert shaped(json.loads(second.read_text())) == shaped(exported)
    broker.ctl("authenticate_user", "carol", "pässword")


def test_a_queue_too_many_is_refused_in_the_brokers_words(broker: Broker) -> None:
    broker.ctl("add_vhost", "small")
    broker.ctl("set_vhost_limits", "-p", "small", json.dumps({"max-queues": 1}))
    broker.ctl("set_permissions", "-p", "small", "guest", ".*", ".*", ".*")
    connection = log_in(broker, "guest", "guest", "small")
    channel = connection.channel()
    channel.queue_declare("one")
    channel.queue_declare("one")
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as refused:
        channel.queue_declare("two")
    connection.close()
    with hand_node().node as node:
        small = node.vhost("small")
        node.set_vhost_limits({"max-queues": 1}, vhost="small")
        small.queue("one")
        small.queue("one")
        with pytest.raises(PreconditionFailedError) as ours:
            small.queue("two")
    assert (refused.value.reply_code, refused.value.reply_text) == (406, f"PRECONDITION_FAILED - {ours.value}")


MATCHES = [
    (pattern, name)
    for pattern in (
        "^\\w+$", "^.{5}$", "^.{6}$", "^[é]$", "ï", "^(?i)A", "a$", "^a.b$", "^a|b$", "\\d", "^[^a]+$", "(?:x|y)++z",
        "^[[:alpha:]]+$", "^[^[:space:][:lower:]]", "^a{,2}$", "a\\z", "a\\Z", "^\\Qa{\\E", "(?<n>a)", "^\\w(?!\\n)",
        "^(a|aa)+$", "^[]a]+$", "[[:punct:]]", "(?i)A$", "^[\\w{]+,", "\\W", "[^\\W]", "[[:punct:]]$", "\\v",
    )
    for name in ("naïve", "é", "a\n", "a\nb", "A", "b", "٣", "7", "xyz", "aa", "a{,2}", "]", "")
]  # fmt: skip


def test_patterns_match_what_they_match_on_a_broker(broker: Broker) -> None:
    def binary(text: str) -> str:
        return f"<<{','.join(map(str, text.encode()))}>>"

    ours, asked = [], []
    for pattern, name in MATCHES:
        try:
            ours.append(str(Permissions(pattern, "", "").allow("configure", name)).lower())
        except ArgumentsError:  # what Python does not know is refused, not taken for something else
            continue
        asked.append(f"{{{binary(name)}, {binary(pattern)}}}")
    found = broker.eval(f"[match =:= re:run(N, P, [{{capture, none}}]) || {{N, P}} <- [{', '.join(asked)}]]")
    theirs = [word.strip() for word in found.strip("[]").split(",")]
    assert len(asked) > len(MATCHES) // 2
    assert ours == theirs
