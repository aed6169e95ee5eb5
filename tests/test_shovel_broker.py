"""``warren shovel`` with a real RabbitMQ at one end or both: what arrives, kills on the way, refusals."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pika
import pytest

from tests.support.broker import Broker, Delivery, Message
from tests.support.cli_tools import warren
from tests.support.rabbitmq_golden import GOLDEN
from tests.support.shovel_tools import (
    FOR_BROKERS,
    TEXTS,
    complaint,
    exported,
    fill,
    found_in,
    numbers,
    shovel,
    shovel_and_die,
)
from tests.support.waiting import wait_until
from warren import engine
from warren import open as open_node
from warren.errors import BrokerRunningError
from warren.queue_index.message.message_format import Envelope
from warren.queue_index.properties import Properties, encode_properties

pytestmark = pytest.mark.broker
DEAD_LETTERS = GOLDEN / "13-clean-dead-letter-cc.tar.gz"
FANOUT = GOLDEN / "03-clean-fanout-refcount.tar.gz"
MIXED_V2 = GOLDEN / "rabbitmq-3.10.8-cqv2" / "02-crash-small-mixed.tar.gz"
MIXED_QUORUM = GOLDEN / "rabbitmq-3.10.8-quorum" / "02-crash-small-mixed.tar.gz"
SETTLE_COPY = "warren.shovel.copying:_CopiedQueue.settle"
SETTLE_MOVE = "warren.shovel.writing:_EmptiedQueue.settle"
SETTLE_BROKER = "warren.shovel.broker_source:_ConsumedQueue.settle"
WINDOW = "--prefetch", "200"


VHOSTS = [f"vhost-{number:02}" for number in range(40)]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("broker")) as broker:
        broker.start()
        names = ", ".join(f'<<"{name}">>' for name in VHOSTS)
        broker.eval(  # all at once: a call of rabbitmqctl takes longer than most tests
            f"[begin rabbit_vhost:add(Name, <<>>), rabbit_auth_backend_internal:set_permissions("
            f'<<"guest">>, Name, <<".*">>, <<".*">>, <<".*">>, <<>>) end || Name <- [{names}]]'
        )
        yield broker


@pytest.fixture(scope="module")
def fresh_vhosts() -> Iterator[str]:
    return iter(VHOSTS)


@pytest.fixture
def vhost(shared: Broker, fresh_vhosts: Iterator[str]) -> Vhost:
    """A vhost of its own for each test."""
    return Vhost(shared, next(fresh_vhosts))


class Vhost:
    """A vhost of a running broker."""

    def __init__(self, broker: Broker, name: str) -> None:
        self.broker = broker
        self.name = name
        self.url = broker.amqp_url.replace("%2F", name)

    def do(self, work: Callable[[Any], Any]) -> Any:
        with self.broker.channel(self.name) as channel:
            return work(channel)

    def declare(self, queue: str, **arguments: Any) -> None:
        self.broker.declare(queue, arguments=arguments, vhost=self.name)

    def publish(self, count: int, queue: str = "q", first: int = 0) -> None:
        self.declare(queue)
        self.broker.publish((Message(b"%d" % n, queue) for n in range(first, first + count)), vhost=self.name)

    def drain(self, queue: str = "q") -> list[Delivery]:
        return self.broker.drain(queue, self.name)

    def bodies(self, queue: str = "q") -> list[int]:
        return [int(delivery.body) for delivery in self.drain(queue)]

    def exchanges(self) -> set[str]:
        """All but those that every vhost has."""
        names = self.broker.ctl("list_exchanges", "--vhost", self.name, "name", "--no-table-headers").split()
        return {name for name in names if not name.startswith("amq.")}


# ── a dead broker's directory into a live one ────────────────────────────────────────────────────────────────────────


def expected_of(archive: Path) -> dict[str, list[tuple[str, str, str, str | None]]]:
    """What that broker itself delivered after a restart: digest, exchange, key and message id, queue by queue."""
    manifest = json.loads(archive.with_name(archive.name.replace(".tar.gz", ".json")).read_text())
    published = {message["n"]: message for message in manifest["messages"]}
    expected = {}
    for queue in manifest["queues"]:
        after = queue["after_restart"]
        if not after["exists"]:
            continue
        delivered_as = after.get("delivered_as") or [None] * len(after["rows"])
        expected[queue["name"]] = [
            (
                row[2],
                (said or published[row[0]])["exchange"],
                (said or published[row[0]])["routing_key"],
                (said or published[row[0]])["properties"].get("message_id"),
            )
            for row, said in zip(after["rows"], delivered_as, strict=True)
        ]
    return expected


def arrived(deliveries: list[Delivery]) -> list[tuple[str, str, str, str | None]]:
    return [
        (hashlib.sha256(each.body).hexdigest(), each.exchange, each.routing_key, each.properties.message_id)
        for each in deliveries
    ]


@pytest.mark.parametrize("archive", [FANOUT, MIXED_V2, MIXED_QUORUM], ids=["v1", "v2", "quorum"])
def test_a_dead_brokers_queues_arrive_as_that_broker_would_have_delivered_them(
    archive: Path, vhost: Vhost, tmp_path: Path
) -> None:
    expected = expected_of(archive)
    summary = shovel(archive, vhost.url, "--state", tmp_path / "state")
    assert summary["messages"] == sum(map(len, expected.values()))
    assert summary["queues"]
    assert not any(queue["renamed_exchanges"] for queue in summary["queues"])
    assert {name: arrived(vhost.drain(name)) for name in expected} == expected
    assert vhost.exchanges() == set()  # stand-ins are gone


def test_a_quorum_queues_count_of_deliveries_stays_behind(vhost: Vhost, tmp_path: Path) -> None:
    lines = warren("export", MIXED_QUORUM, "--queue", "orders").stdout_bytes.splitlines()
    assert any(json.loads(line)["delivery_count"] for line in lines)
    shovel(MIXED_QUORUM, vhost.url, "--queue", "orders", "--state", tmp_path / "state")
    deliveries = vhost.drain("orders")
    assert len(deliveries) == len(lines)
    assert not any(delivery.redelivered for delivery in deliveries)
    assert not any("x-delivery-count" in (delivery.properties.headers or {}) for delivery in deliveries)


def test_everything_that_a_header_can_be_goes_there_and_back(vhost: Vhost, tmp_path: Path) -> None:
    shovel(DEAD_LETTERS, vhost.url, "--state", tmp_path / "state")
    queues = [
        word for queue in shovel(DEAD_LETTERS, tmp_path / "direct")["queues"] for word in ("--queue", queue["queue"])
    ]
    shovel(vhost.url, tmp_path / "data", *queues)
    back, straight = (exported(tmp_path / place) for place in ("data", "direct"))
    marked = 0
    for line, original in zip(back, straight, strict=True):
        said = line["headers"] or {}
        line["vhost"] = original["vhost"]
        if "x-original-exchange" in said:  # it had a header CC: its exchange is not to be had
            marked += 1
            assert said.pop("x-original-exchange") == original["exchange"]
            assert line["exchange"] == f"warren.shovel.{line['queue']}"
            line |= {"exchange": original["exchange"], "headers": said or original["headers"]}
        line["expiry_us"] = original["expiry_us"]  # a broker starts it again
        copied_to = (original["headers"] or {}).get("CC", [])
        original["routing_keys"] = [original["routing_keys"][0], *copied_to]  # those of BCC stand on the old disk only
    assert back == straight
    assert 0 < marked < len(back)


def test_an_exchange_with_other_bindings_gets_no_message(vhost: Vhost, tmp_path: Path) -> None:
    with engine.open_vhost(tmp_path / "source") as source:
        envelope = source.envelope(b"key", Properties(headers={"a": 1}), exchange=b"events")
        source.queue(b"q").publish(envelope, source.msg_ids.one(), b"1")

    def bind(channel: Any) -> None:
        channel.exchange_declare("events", "fanout", durable=True)
        channel.queue_declare("other", durable=True)
        channel.queue_bind("other", "events")

    vhost.do(bind)
    assert shovel(tmp_path / "source", vhost.url, "--state", tmp_path / "s1")["queues"][0]["renamed_exchanges"] == 1
    [delivery] = vhost.drain("q")
    assert (delivery.exchange, delivery.routing_key) == ("warren.shovel.q", "key")
    assert delivery.properties.headers == {"a": 1, "x-original-exchange": "events"}
    assert vhost.drain("other") == []
    assert vhost.exchanges() == {"events"}
    # and where the user wants the bindings to decide, they do
    shovel(tmp_path / "source", vhost.url, "--state", tmp_path / "s2", "--as-published")
    [delivery] = vhost.drain("other")
    assert (delivery.exchange, delivery.routing_key, delivery.properties.headers) == ("events", "key", {"a": 1})
    assert vhost.drain("q") == []


def test_without_stand_ins_no_exchange_of_the_users_is_made(vhost: Vhost, tmp_path: Path) -> None:
    shovel(FANOUT, vhost.url, "--state", tmp_path / "state", "--no-stand-ins")
    deliveries = [delivery for name in expected_of(FANOUT) for delivery in vhost.drain(name)]
    assert {delivery.exchange for delivery in deliveries} & {"fan", "fan2"} == set()
    assert any("x-original-exchange" in (delivery.properties.headers or {}) for delivery in deliveries)


def test_a_stand_in_that_a_kill_left_is_made_anew(vhost: Vhost, tmp_path: Path) -> None:
    with engine.open_vhost(tmp_path / "source") as source:
        for queue in (b"a", b"b"):
            envelope = source.envelope(b"key", exchange=b"events")
            source.queue(queue).publish_many(envelope, source.msg_ids.many(10), [b"%d" % n for n in range(10)])
    shovel_and_die(SETTLE_COPY, 1, True, tmp_path / "source", vhost.url, "--queue", "a", "--state", tmp_path / "state")
    assert vhost.exchanges() == {"events"}
    shovel(tmp_path / "source", vhost.url, "--queue", "b", "--state", tmp_path / "state")
    assert vhost.exchanges() == set()
    assert (vhost.bodies("a"), vhost.bodies("b")) == (list(range(10)), list(range(10)))  # nothing of b came to a


def test_copies_to_other_queues_are_not_made_again(vhost: Vhost, tmp_path: Path) -> None:
    with engine.open_vhost(tmp_path / "source") as source:
        envelope = Envelope(b"/", b"", (b"a", b"b"), encode_properties(Properties(headers={"CC": ["b"]})), True)
        for queue in (b"a", b"b"):
            source.queue(queue).publish(envelope, source.msg_ids.one(), b"1")
    shovel(tmp_path / "source", vhost.url, "--state", tmp_path / "state")
    for name in ("a", "b"):
        [delivery] = vhost.drain(name)
        assert delivery.routing_key == "a"
        assert delivery.properties.headers == {"CC": ["b"], "x-original-exchange": ""}


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "parquet"])
def test_a_file_of_exported_messages_is_published_byte_for_byte(vhost: Vhost, tmp_path: Path, suffix: str) -> None:
    with engine.open_vhost(tmp_path / "source") as source:
        for number, encoded in enumerate(FOR_BROKERS):
            envelope = Envelope(b"/", b"", (b"q",), encoded, True)
            source.queue(b"q").publish_many(envelope, source.msg_ids.many(1), [TEXTS[number % len(TEXTS)]])
    file = tmp_path / f"messages.{suffix}"
    assert warren("export", tmp_path / "source", "--out", file).exit_code == 0
    assert shovel(file, vhost.url, "--state", tmp_path / "state")["messages"] == len(FOR_BROKERS)
    assert shovel(file, vhost.url, "--state", tmp_path / "state")["messages"] == 0
    assert shovel(vhost.url, tmp_path / "back", "--queue", "q")["messages"] == len(FOR_BROKERS)
    expected = [(encoded, TEXTS[number % len(TEXTS)]) for number, encoded in enumerate(FOR_BROKERS)]
    assert [(letter.properties, letter.body) for letter in found_in(tmp_path / "back", vhost=vhost.name)] == expected


def test_a_queue_that_is_there_is_used_as_it_is(vhost: Vhost, tmp_path: Path) -> None:
    fill(tmp_path / "source", 5)
    vhost.declare("q2", **{"x-max-priority": 5})
    shovel(tmp_path / "source", vhost.url, "--rename", "q=q2", "--state", tmp_path / "state")
    deliveries = vhost.drain("q2")
    assert [int(each.body) for each in deliveries] == list(range(5))
    assert {(each.exchange, each.routing_key) for each in deliveries} == {("", "q2")}


# ── kills ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def check_all_there(there: list[int], count: int) -> None:
    assert list(dict.fromkeys(there)) == list(range(count))  # all of them, first come in order
    assert len(there) <= count + 200  # twice only what was on the way


@pytest.mark.parametrize("before", [True, False])
def test_a_copy_into_a_broker_that_is_killed_goes_on(vhost: Vhost, tmp_path: Path, before: bool) -> None:
    fill(tmp_path / "source", 2000)
    places = tmp_path / "source", vhost.url, "--state", tmp_path / "state", *WINDOW
    shovel_and_die(SETTLE_COPY, 7, before, *places)
    assert 300 <= shovel(*places)["queues"][0]["already"] < 2000
    check_all_there(vhost.bodies(), 2000)


@pytest.mark.parametrize("before", [True, False])
def test_a_move_into_a_broker_that_is_killed_loses_nothing(vhost: Vhost, tmp_path: Path, before: bool) -> None:
    fill(tmp_path / "source", 2000)
    places = tmp_path / "source", vhost.url, "--move", *WINDOW
    shovel_and_die(SETTLE_MOVE, 7, before, *places)
    assert 0 < len(numbers(tmp_path / "source")) < 2000
    shovel(*places)
    check_all_there(vhost.bodies(), 2000)
    assert numbers(tmp_path / "source") == []


@pytest.mark.parametrize("before", [True, False])
def test_emptying_a_broker_into_a_directory_that_is_killed_loses_nothing(
    vhost: Vhost, tmp_path: Path, before: bool
) -> None:
    vhost.publish(2000)
    places = vhost.url, tmp_path / "data", "--queue", "q", *WINDOW
    shovel_and_die(SETTLE_BROKER, 5, before, *places)
    wait_until_ready(vhost, "q")
    shovel(*places)
    assert vhost.drain() == []
    with engine.open_vhost(tmp_path / "data", vhost.name) as data:
        check_all_there([int(browsed.message.body) for browsed in data.queue(b"q").browse()], 2000)


def wait_until_ready(vhost: Vhost, queue: str) -> None:
    """The broker has noticed that the consumer is gone."""

    def has_nobody() -> bool:
        return not vhost.do(lambda channel: channel.queue_declare(queue, passive=True)).method.consumer_count

    wait_until(has_nobody, "the consumer is still there")


# ── a stopped broker's own directory, written to ─────────────────────────────────────────────────────────────────────


def test_messages_are_taken_out_of_a_stopped_broker_and_put_into_it(broker: Broker, tmp_path: Path) -> None:
    broker.start()
    for queue in ("out", "into"):
        broker.declare(queue)
    headers = {"n": 1, "t": {"deep": [True, None]}}
    properties = pika.BasicProperties(delivery_mode=2, headers=headers, expiration="3600000")
    broker.publish(Message(b"%d" % n * 1000, "out", properties=properties) for n in range(3000))
    broker.stop()
    node = broker.node_directory
    first = shovel(node, tmp_path / "data", "--move", "--queue", "out", "--limit", "1000")
    assert first["messages"] == 1000
    assert shovel(tmp_path / "data", node, "--rename", "out=into")["messages"] == 1000
    broker.start()
    there = broker.drain("into")
    assert [each.body for each in there] == [b"%d" % n * 1000 for n in range(1000)]
    assert {(each.exchange, each.routing_key, each.properties.expiration) for each in there} == {
        ("", "into", "3600000")
    }
    assert all(each.properties.headers == headers for each in there)
    assert [each.body for each in broker.drain("out")] == [b"%d" % n * 1000 for n in range(1000, 3000)]


# ── live brokers as sources ──────────────────────────────────────────────────────────────────────────────────────────


def test_a_broker_is_emptied_into_a_directory_with_everything_that_a_message_has(vhost: Vhost, tmp_path: Path) -> None:
    properties = pika.BasicProperties(
        content_type="text/plain",
        headers={"n": -1, "deep": {"list": [True, None, "ż"]}, "bytes": b"\xff"},
        delivery_mode=1,
        priority=3,
        expiration="3600000",
        message_id="m",
        timestamp=1_700_000_000,
    )

    def publish(channel: Any) -> None:
        channel.exchange_declare("topics", "topic")
        channel.queue_declare("q")
        channel.queue_bind("q", "topics", "a.*")
        channel.basic_publish("topics", "a.b", b"body", properties)

    vhost.do(publish)
    before_us = time.time_ns() // 1000
    assert shovel(vhost.url, tmp_path / "data", "--queue", "q")["kind"] == "move"
    [line] = exported(tmp_path / "data")
    assert (line["vhost"], line["queue"], line["exchange"], line["routing_keys"]) == (
        vhost.name,
        "q",
        "topics",
        ["a.b"],
    )
    assert line["headers"] == {"n": -1, "deep": {"list": [True, None, "ż"]}, "bytes": {"base64": "/w=="}}
    assert line["properties"]["expiration"] == "3600000"
    assert (line["properties"]["delivery_mode"], line["properties"]["priority"]) == (1, 3)
    assert 3_590 < (line["expiry_us"] - before_us) / 1e6 < 3_660


def test_not_one_more_than_asked_for_is_taken(vhost: Vhost, tmp_path: Path) -> None:
    vhost.publish(50)
    assert shovel(vhost.url, tmp_path / "data", "--queue", "q", "--limit", "20", "--prefetch", "7")["messages"] == 20
    left = vhost.drain()
    assert [int(each.body) for each in left] == list(range(20, 50))
    assert not any(each.redelivered for each in left)  # none of them was ever on its way


def test_a_broker_to_itself_under_another_name(vhost: Vhost) -> None:
    vhost.publish(3000)
    assert "into itself" in complaint(vhost.url, vhost.url + "?heartbeat=30", "--queue", "q")
    assert shovel(vhost.url, vhost.url, "--queue", "q", "--rename", "q=r", *WINDOW)["messages"] == 3000
    assert vhost.bodies("q") == []
    assert vhost.bodies("r") == list(range(3000))


def test_an_empty_queue_is_done_at_once(vhost: Vhost, tmp_path: Path) -> None:
    vhost.declare("q")
    assert shovel(vhost.url, tmp_path / "data", "--queue", "q")["messages"] == 0


def test_large_and_empty_bodies(vhost: Vhost, tmp_path: Path) -> None:
    sizes = [0, 1, 131_063, 131_064, 131_065, 3_000_000, 0]
    with engine.open_vhost(tmp_path / "source") as source:
        bodies = [bytes([65 + n]) * size for n, size in enumerate(sizes)]
        source.queue(b"q").publish_many(source.envelope(b"q"), source.msg_ids.many(len(bodies)), bodies)
    shovel(tmp_path / "source", vhost.url, "--state", tmp_path / "state")
    shovel(vhost.url, tmp_path / "data", "--queue", "q")
    with engine.open_vhost(tmp_path / "data", vhost.name) as data:
        assert [browsed.message.body for browsed in data.queue(b"q").browse()] == bodies


# ── refusals ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("how", ["copy", "move", "broker"])
def test_what_a_full_queue_refuses_stays_at_the_source(vhost: Vhost, tmp_path: Path, how: str) -> None:
    vhost.declare("full", **{"x-max-length": 10, "x-overflow": "reject-publish"})
    if how == "broker":
        vhost.publish(50)
    else:
        fill(tmp_path / "source", 50)
    source = vhost.url if how == "broker" else tmp_path / "source"
    options: dict[str, list[Any]] = {"copy": ["--state", tmp_path / "state"], "move": ["--move"], "broker": []}
    command = source, vhost.url, "--queue", "q", "--rename", "q=full", *options[how]
    there: list[int] = []
    for _ in range(4):
        assert "refused it (nack); still at the source" in complaint(*command)
        there += vhost.bodies("full")
    # A message that was accepted after a refused one is not sent again; the refused ones follow.
    assert sorted(there) == sorted(set(there))
    left = {"copy": [], "move": numbers(tmp_path / "source") if how == "move" else []}.get(how)
    if how == "broker":
        left = vhost.bodies()
    if left:
        assert sorted(there + left) == list(range(50))
        assert left == sorted(left)
    assert len(there) >= 40


def test_what_leads_to_no_queue_stays_at_the_source(vhost: Vhost, tmp_path: Path) -> None:
    with engine.open_vhost(tmp_path / "source") as source:
        for key in (b"known", b"unknown", b"known"):
            source.queue(b"q").publish(source.envelope(key, exchange=b"events"), source.msg_ids.one(), key)

    def bind(channel: Any) -> None:
        channel.exchange_declare("events", "direct")
        channel.queue_declare("r")
        channel.queue_bind("r", "events", "known")

    complained = complaint(tmp_path / "source", vhost.url, "--move", "--as-published")
    assert "404" in complained
    assert "events" in complained
    vhost.do(bind)
    assert "'events' with key 'unknown' leads to no queue" in complaint(
        tmp_path / "source", vhost.url, "--move", "--as-published"
    )
    assert [delivery.body for delivery in vhost.drain("r")] == [b"known", b"known"]
    assert [line["routing_keys"] for line in exported(tmp_path / "source")] == [["unknown"]]


def test_a_message_in_the_name_of_another_user(vhost: Vhost, tmp_path: Path) -> None:
    fill(tmp_path / "source", 5, user_id="somebody")
    assert "impersonator" in complaint(tmp_path / "source", vhost.url, "--move")
    assert numbers(tmp_path / "source") == list(range(5))


def test_what_a_broker_says_no_to(vhost: Vhost, tmp_path: Path) -> None:
    fill(tmp_path / "source", 1)
    state = "--state", tmp_path / "state"
    wrong = complaint(tmp_path / "source", vhost.url.replace(":guest@", ":s3cret@"), *state)
    assert "ACCESS_REFUSED" in wrong
    assert "s3cret" not in wrong
    assert "vhost nothing not found" in complaint(tmp_path / "source", vhost.url.replace(vhost.name, "nothing"), *state)
    assert "no queue 'x'" in complaint(vhost.url, tmp_path / "data", "--queue", "x")
    assert "--queue" in complaint(vhost.url, tmp_path / "data")
    assert "no connection" in complaint(tmp_path / "source", "amqp://127.0.0.1:1/", *state)
    assert "is part of its URL" in complaint(vhost.url, tmp_path / "data", "--queue", "q", "--vhost", "v")


def test_several_vhosts_do_not_become_one(vhost: Vhost, tmp_path: Path) -> None:
    fill(tmp_path / "source", 1)
    with engine.open_vhost(tmp_path / "source", "two") as two:
        two.queue(b"t").publish(two.envelope(b"t"), two.msg_ids.one(), b"2")
    state = "--state", tmp_path / "state"
    assert "--vhost" in complaint(tmp_path / "source", vhost.url, *state)
    assert shovel(tmp_path / "source", vhost.url, "--vhost", "two", *state)["messages"] == 1


def test_a_running_brokers_directory_is_not_written_to(shared: Broker, tmp_path: Path) -> None:
    fill(tmp_path / "source", 1)
    assert "a broker runs on it" in complaint(tmp_path / "source", shared.node_directory, "--state", tmp_path / "state")
    assert "a broker runs on it" in complaint(shared.node_directory, tmp_path / "data", "--move", "--vhost", "/")
    pid_file = shared.node_directory.with_name(shared.node_directory.name + ".pid")
    assert pid_file.exists()
    pid_file.rename(tmp_path / "pid")  # as where RABBITMQ_PID_FILE says another place
    with pytest.raises(BrokerRunningError, match=r"which has .* open"):
        open_node(shared.node_directory, adopt=True)
    (tmp_path / "pid").rename(pid_file)


def test_a_broker_that_goes_away(vhost: Vhost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path / "source", 2000)
    from warren.shovel.writing import _EmptiedQueue

    settle, calls = _EmptiedQueue.settle, [0]

    def cutting(queue: _EmptiedQueue, positions: Any) -> None:
        settle(queue, positions)
        calls[0] += 1
        if calls[0] == 3:
            vhost.broker.ctl("close_all_connections", "--vhost", vhost.name, "maintenance")

    monkeypatch.setattr(_EmptiedQueue, "settle", cutting)
    assert "the connection is lost" in complaint(tmp_path / "source", vhost.url, "--move", *WINDOW)
    assert shovel(tmp_path / "source", vhost.url, "--move", *WINDOW)["messages"] < 2000
    check_all_there(vhost.bodies(), 2000)


def test_a_queue_that_another_consumer_has_to_itself(
    vhost: Vhost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vhost.declare("q", **{"x-single-active-consumer": True})
    with vhost.broker.channel(vhost.name) as channel:
        channel.basic_qos(prefetch_count=1)
        channel.basic_consume("q", lambda *_: None)
        channel.queue_declare("q", passive=True)
        vhost.broker.publish([Message(b"0", "q"), Message(b"1", "q")], vhost=vhost.name)
        monkeypatch.setattr("warren.shovel.broker_source.STALLED_S", 0.3)
        assert "has it to itself" in complaint(vhost.url, tmp_path / "data", "--queue", "q")


def test_a_broker_without_memory_is_waited_for(vhost: Vhost, tmp_path: Path) -> None:
    fill(tmp_path / "source", 500)
    vhost.broker.ctl("set_vm_memory_high_watermark", "0")
    command = [sys.executable, "-m", "warren.cli", "shovel", str(tmp_path / "source"), vhost.url, "--move", "--json"]
    with subprocess.Popen(command, cwd=GOLDEN.parent.parent, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            assert process.stderr is not None
            assert b"takes no messages for the time being, waiting: low on memory" in process.stderr.readline()
        finally:
            vhost.broker.ctl("set_vm_memory_high_watermark", "0.6")
        said, _ = process.communicate(timeout=60)
    assert json.loads(said)["messages"] == 500
    assert vhost.bodies() == list(range(500))
