"""Users' and vhosts' limits, and what becomes of connections whose user or vhost goes: as on a real RabbitMQ."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pika
import pytest

import warren
from tests.support.broker import Broker
from warren.server.settings import ServerSettings

Change = Callable[..., object]


class Side:
    """A server, and how its operator changes things."""

    def __init__(self, port: int, change: dict[str, Change]) -> None:
        self.port = port
        self.change = change

    def connect(self, user: str = "bob", vhost: str = "shop") -> Any:
        credentials = pika.PlainCredentials(user, "secret" if user == "bob" else "guest")
        return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", self.port, vhost, credentials))


def close_reason(work: Callable[[], object]) -> tuple[int, str]:
    with pytest.raises((pika.exceptions.ConnectionClosedByBroker, pika.exceptions.ProbableAccessDeniedError)) as closed:
        work()
    found = re.search(r"\((\d+),? ?\)? ?[\"'](.*)[\"']", str(closed.value))
    assert found is not None, str(closed.value)
    return int(found[1]), found[2]


def lives(side: Side) -> list[tuple[int, str]]:
    """What is seen of a few lives of connections."""
    change, seen = side.change, list[tuple[int, str]]()
    change["vhost limits"]({"max-connections": 1})
    first = side.connect()
    seen.append(close_reason(side.connect))
    change["vhost limits"]({"max-connections": -1})
    change["user limits"]({"max-connections": 2, "max-channels": 3})
    second = side.connect()
    seen.append(close_reason(side.connect))
    for connection in (first, second, second):
        connection.channel()
    seen.append(close_reason(second.channel))
    change["user limits"]({"max-connections": -1, "max-channels": -1})
    other = side.connect()
    change["delete vhost"]()
    for connection in (first, other):
        seen.append(close_reason(lambda connection=connection: connection.process_data_events(5)))  # type: ignore[misc]
    last = side.connect(vhost="/")
    change["delete user"]()
    seen.append(close_reason(lambda: last.process_data_events(5)))
    guest = side.connect("guest", "/")
    guest.channel().queue_declare("mine", exclusive=True)
    guest.close()
    return seen


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Side]:
    with warren.open(tmp_path / "data") as node:
        node.vhost("shop")
        node.add_user("bob", "secret")
        for vhost in ("/", "shop"):
            node.set_permissions("bob", ".*", ".*", ".*", vhost=vhost)
        server = node.serve(ServerSettings(port=0))
        change: dict[str, Change] = {
            "vhost limits": lambda limits: node.set_vhost_limits(limits, vhost="shop"),
            "user limits": lambda limits: node.set_user_limits("bob", limits),
            "delete vhost": lambda: node.delete_vhost("shop"),
            "delete user": lambda: node.delete_user("bob"),
        }
        yield Side(server.addresses[0][1], change)
        server.stop()


SEEN = [
    (530, "NOT_ALLOWED - access to vhost 'shop' refused for user 'bob': connection limit (1) is reached"),
    (530, "NOT_ALLOWED - connection refused for user 'bob': user connection limit (2) is reached"),
    (530, "NOT_ALLOWED - number of channels opened for user 'bob' has reached the maximum allowed user limit of (3)"),
    (320, "CONNECTION_FORCED - vhost 'shop' is deleted"),
    (320, "CONNECTION_FORCED - vhost 'shop' is deleted"),
    (320, "CONNECTION_FORCED - user 'bob' is deleted"),
]


def test_limits_hold_and_connections_go_with_their_vhost_and_user(served: Side) -> None:
    assert lives(served) == SEEN


@pytest.mark.broker
def test_the_real_one_says_the_same(tmp_path: Path) -> None:
    with Broker(tmp_path / "broker") as broker:
        broker.start()
        broker.ctl("add_vhost", "shop")
        broker.ctl("add_user", "bob", "secret")
        for vhost in ("/", "shop"):
            broker.ctl("set_permissions", "-p", vhost, "bob", ".*", ".*", ".*")
        change: dict[str, Change] = {
            "vhost limits": lambda limits: broker.ctl("set_vhost_limits", "-p", "shop", json.dumps(limits)),
            "user limits": lambda limits: broker.ctl("set_user_limits", "bob", json.dumps(limits)),
            "delete vhost": lambda: broker.ctl("delete_vhost", "shop"),
            "delete user": lambda: broker.ctl("delete_user", "bob"),
        }
        seen = lives(Side(broker.amqp_port, change))
        # which of two processes there is first to end its connections differs from run to run
        assert [(code, text.replace("is down", "is deleted")) for code, text in seen] == SEEN


def test_a_close_whose_reason_is_too_long_for_it_is_cut(tmp_path: Path) -> None:
    name = "v" * 255
    with warren.open(tmp_path / "data") as node:
        node.add_user("bob", "secret")
        side = Side(node.serve(ServerSettings(port=0)).addresses[0][1], {})
        seen = [close_reason(lambda: side.connect(vhost=name))]
        node.vhost(name)
        seen.append(close_reason(lambda: side.connect(vhost=name)))
        node.set_permissions("bob", ".*", ".*", ".*", vhost=name)
        node.set_vhost_limits({"max-connections": 1}, vhost=name)
        connections = [side.connect(vhost=name)]
        seen.append(close_reason(lambda: side.connect(vhost=name)))
        node.set_vhost_limits({"max-connections": -1}, vhost=name)
        connections.append(side.connect(vhost=name))
        node.delete_vhost(name)
        seen += [close_reason(lambda one=one: one.process_data_events(5)) for one in connections]  # type: ignore[misc]
    texts = ["vhost", "access to vhost '", "access to vhost '", "vhost '", "vhost '"]
    assert [code for code, _ in seen] == [530, 530, 530, 320, 320]
    assert [text.partition(" - ")[2].partition("vvv")[0].rstrip() for _, text in seen] == texts
    assert {(len(text), text[-4:]) for _, text in seen} == {(255, "v...")}


def refused(work: Callable[[], object]) -> tuple[int, str]:
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as closed:
        work()
    return closed.value.reply_code, closed.value.reply_text


@pytest.mark.slow
def test_a_right_that_is_taken_away_is_gone_for_channels_that_have_used_it(tmp_path: Path) -> None:
    with warren.open(tmp_path / "data") as node:
        node.add_user("bob", "secret")
        node.set_permissions("bob", ".*", ".*", ".*")
        side = Side(node.serve(ServerSettings(port=0)).addresses[0][1], {})
        channel = side.connect(vhost="/").channel()
        channel.confirm_delivery()
        channel.queue_declare("q")
        channel.basic_publish("", "q", b"m")
        node.set_permissions("bob", ".*", "^other$", ".*")
        why = "ACCESS_REFUSED - access to exchange 'amq.default' in vhost '/' refused for user 'bob'"
        assert refused(lambda: channel.basic_publish("", "q", b"m")) == (403, why)


@pytest.mark.slow
def test_an_impersonator_publishes_in_the_name_of_others(tmp_path: Path) -> None:
    alices = pika.BasicProperties(user_id="alice")
    with warren.open(tmp_path / "data") as node:
        node.add_user("bob", "secret", tags=["impersonator"])
        node.set_permissions("bob", ".*", ".*", ".*")
        side = Side(node.serve(ServerSettings(port=0)).addresses[0][1], {})
        channel = side.connect(vhost="/").channel()
        channel.confirm_delivery()
        channel.queue_declare("q")
        channel.basic_publish("", "q", b"m", alices)
        assert channel.basic_get("q")[1].user_id == "alice"
        node.set_user_tags("bob", [])
        why = "PRECONDITION_FAILED - user_id property set to 'alice' but authenticated user was 'bob'"
        assert refused(lambda: channel.basic_publish("", "q", b"m", alices)) == (406, why)
