"""Users between warren's rules and a real RabbitMQ: each logs in whom the other's definitions let in."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pika
import pytest

from tests.support.broker import Broker
from warren.actors.engines.errors import AccessRefusedError
from warren.actors.engines.permissions import permissions_of, topic_permissions_of
from warren.actors.engines.users import Users

pytestmark = pytest.mark.broker


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("broker")) as running:
        running.start()
        yield running


def log_in(broker: Broker, name: str, password: str) -> pika.BlockingConnection:
    credentials = pika.PlainCredentials(name, password)
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.amqp_port, credentials=credentials))


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
