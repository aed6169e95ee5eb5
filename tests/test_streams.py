"""Streams: topics that are queues of AMQP clients. What a real RabbitMQ answers to the same calls was recorded."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker, NackError

from tests.support.server_tools import Served, events_until, served
from tests.support.stream_calls import RECORDED, STREAM, Consumer, answers, publish
from warren.actors.engines.declared.stream_arguments import StreamLimits, period_ms
from warren.actors.engines.declared.users import Users
from warren.actors.engines.errors import ArgumentsError, PreconditionFailedError
from warren.actors.engines.topics.names import check_topic_name, stream_topic
from warren.actors.engines.topics.store_opening import load_store
from warren.actors.engines.topics.stream_retention import STREAM_QUEUE_ID, StreamRetention, hold
from warren.ctl.listing import list_queues
from warren.msg_store.commit_log.commit_log import Batch
from warren.msg_store.commit_log.commit_log_format import Host
from warren.queue_index.properties import Properties, decode_properties, encode_properties
from warren.server.channels.stream_consumer import with_offset
from warren.storage.memory import MemoryFileSystem
from warren.storage.topic_settings import TopicSettings
from warren.verbs.steps import call, run

SMALL_FILES: dict[str, Any] = {"mapped_file_size_commit_log": 1 << 16, "mapped_file_size_consume_queue": 20 * 100}


def declare(channel: BlockingChannel, name: str = "events", **arguments: Any) -> None:
    channel.queue_declare(name, durable=True, arguments=STREAM | arguments)


def consume(channel: BlockingChannel, offset: Any = "first", name: str = "events", prefetch: int = 10) -> Consumer:
    return Consumer(channel, name, prefetch=prefetch, arguments={"x-stream-offset": offset})


def bodies_of(consumer: Consumer, count: int) -> list[bytes]:
    return [body for _, _, body in consumer.wait(count)]


@pytest.mark.slow
def test_every_call_is_answered_as_rabbitmq_answers_it(here: Served) -> None:
    found, recorded = answers(here.url), json.loads(RECORDED.read_text(encoding="utf-8"))
    assert {name: found[name] for name in found if found[name] != recorded.get(name)} == {}
    assert found.keys() == recorded.keys()


# ── what is kept ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_streams_and_their_messages_outlive_a_restart(tmp_path: Path) -> None:
    with served(tmp_path / "node") as first, first.channel() as channel:
        declare(channel, **{"x-max-age": "7D"})
        channel.queue_bind("events", "amq.fanout")
        publish(channel, "key", [b"0", b"1"], exchange="amq.fanout")
    with served(tmp_path / "node") as second, second.channel() as channel:
        declare(channel, **{"x-max-age": "7D"})
        publish(channel, "key", [b"2"], exchange="amq.fanout")
        assert consume(channel, 1).wait(2) == [(1, 1, b"1"), (2, 2, b"2")]


@pytest.mark.slow
def test_what_was_confirmed_outlives_a_kill(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "warren", "serve", str(tmp_path / "node"), "--port", "0"]
    bodies = [b"%d" % number for number in range(50)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline().rpartition(":")[2])
        with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port)) as connection:
            channel = connection.channel()
            declare(channel)
            declare(channel, "gone")
            publish(channel, "events", bodies)
            channel.queue_delete("gone")
            process.send_signal(signal.SIGKILL)
            process.wait(20)
            connection.close = lambda: None  # the process is gone
    with served(tmp_path / "node") as again, again.channel() as channel:
        assert bodies_of(consume(channel, prefetch=100), len(bodies)) == bodies
        with pytest.raises(ChannelClosedByBroker, match="no queue 'gone'"):
            channel.queue_declare("gone", passive=True)


def test_a_stream_that_is_declared_anew_is_empty(tmp_path: Path) -> None:
    with served(tmp_path / "node") as first, first.channel() as channel:
        declare(channel)
        publish(channel, "events", [b"old"])
        channel.queue_delete("events")
        declare(channel)
        publish(channel, "events", [b"new"])
        assert consume(channel).wait(1) == [(1, 0, b"new")]
        assert [name for name in first.node.topics() if "events" in name] == [
            first.node.stats()["vhosts"]["/"]["streams"]["events"]["topic"]
        ]
    with served(tmp_path / "node") as second, second.channel() as channel:
        assert consume(channel).wait(1) == [(1, 0, b"new")]


def test_definitions_go_out_and_in(tmp_path: Path, here: Served) -> None:
    with here.channel() as channel:
        declare(channel, "events", **{"x-max-length-bytes": 1000})
        channel.queue_bind("events", "amq.topic", "a.#")
    exported = here.node.definitions()
    assert exported["queues"] == [
        {
            "name": "events",
            "vhost": "/",
            "durable": True,
            "auto_delete": False,
            "type": "stream",
            "arguments": {"x-queue-type": "stream", "x-max-length-bytes": 1000},
        }
    ]
    with served(tmp_path / "other") as other, other.channel() as channel:
        other.node.import_definitions(exported)
        publish(channel, "a.b", [b"routed"], exchange="amq.topic")
        assert consume(channel).wait(1) == [(1, 0, b"routed")]
        assert other.node.definitions()["queues"] == exported["queues"]


def test_no_two_streams_have_one_topic_whatever_a_document_says(here: Served) -> None:
    item = {"vhost": "/", "durable": True, "auto_delete": False, "arguments": {}, "type": "stream", "topic": "t"}
    here.node.import_definitions({"queues": [item | {"name": "one"}, item | {"name": "two"}]})
    streams = here.node.stats()["vhosts"]["/"]["streams"]
    assert len({stream["topic"] for stream in streams.values()} - {"t"}) == 2


def test_a_document_with_a_stream_that_cannot_be_is_refused(here: Served) -> None:
    item = {"name": "s", "vhost": "/", "durable": False, "auto_delete": False, "arguments": {}, "type": "stream"}
    with pytest.raises(PreconditionFailedError, match="invalid property 'non-durable'"):
        here.node.import_definitions({"queues": [item]})


def test_a_vhost_goes_with_its_streams(here: Served) -> None:
    here.node.vhost("there")
    item = {"name": "s", "durable": True, "auto_delete": False, "arguments": {}, "type": "stream"}
    here.node.import_definitions({"queues": [item]}, "there")
    assert len([name for name in here.node.topics() if name.startswith("%STREAM%s%")]) == 1
    here.node.delete_vhost("there")
    assert [name for name in here.node.topics() if name.startswith("%STREAM%")] == []


# ── messages ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_message_comes_back_as_it_was_published(here: Served) -> None:
    properties = pika.BasicProperties(
        headers={"table": {"n": 1}, "list": [1, "x"], "void": None},
        content_type="text/plain",
        delivery_mode=2,
        cluster_id="c",
        message_id="id with blanks",
    )
    with here.channel() as channel:
        declare(channel, "ströme")
        publish(channel, "ströme", [b"body"], properties)
        consumer = consume(channel, name="ströme")
        consumer.wait(1)
        [(method, got, body)] = consumer.got
        assert (method.exchange, method.routing_key, body) == ("", "ströme", b"body")
        assert got.headers.pop("x-stream-offset") == 0
        assert vars(got) == vars(properties)


def test_headers_larger_than_a_record_s_properties(here: Served) -> None:
    large = pika.BasicProperties(headers={"large": "x" * 60_000}, type="t")
    with here.channel() as channel:
        declare(channel)
        publish(channel, "events", [b"body", b""], large)
        consumer = consume(channel)
        consumer.wait(2)
        assert [(got.headers["large"], got.type, body) for _, got, body in consumer.got] == [
            (large.headers["large"], "t", b"body"),
            (large.headers["large"], "t", b""),
        ]


def test_a_message_larger_than_a_topic_takes_is_nacked(tmp_path: Path) -> None:
    with served(tmp_path / "node", max_message_size=1000) as here, here.channel() as channel:
        declare(channel)
        channel.confirm_delivery()
        channel.basic_publish("", "events", bytes(500))
        with pytest.raises(NackError):
            channel.basic_publish("", "events", bytes(1000))
        channel.basic_publish("", "events", bytes(501))
        assert list(map(len, bodies_of(consume(channel), 2))) == [500, 501]


def test_many_messages_at_once(here: Served) -> None:
    bodies = [b"%d" % number for number in range(3000)]
    with here.connection() as connection:
        channel = connection.channel()
        declare(channel)
        for body in bodies:
            channel.basic_publish("", "events", body)
        consumer = consume(channel, prefetch=500)
        got: list[bytes] = []
        while len(got) < len(bodies):
            events_until(connection, lambda: consumer.got)
            got += [body for _, _, body in consumer.got]
            channel.basic_ack(consumer.got[-1][0].delivery_tag, multiple=True)
            consumer.got.clear()
        assert got == bodies


def test_dead_letters_go_to_a_stream(here: Served) -> None:
    with here.channel() as channel:
        declare(channel)
        dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "events"}
        channel.queue_declare("jobs", durable=True, arguments=dead)
        publish(channel, "jobs", [b"bad"])
        method, _, _ = channel.basic_get("jobs")
        channel.basic_reject(method.delivery_tag, requeue=False)
        consumer = consume(channel)
        assert bodies_of(consumer, 1) == [b"bad"]
        assert consumer.got[0][1].headers["x-death"][0]["queue"] == "jobs"
        assert channel.queue_declare("jobs", passive=True).method.message_count == 0


def test_programs_and_clients_meet(here: Served) -> None:
    with here.channel() as channel:
        declare(channel)
        channel.queue_bind("events", "amq.direct", "k")
        here.node.exchange("amq.direct").publish(b"through an exchange", "k").wait()
        topic = here.node.topic(here.node.stats()["vhosts"]["/"]["streams"]["events"]["topic"])
        topic.append(b"as a topic's").wait()
        publish(channel, "events", [b"by a client"])
        consumer = consume(channel)
        assert bodies_of(consumer, 3) == [b"through an exchange", b"as a topic's", b"by a client"]
        keys = [method.routing_key for method, _, _ in consumer.got]
        assert keys == ["k", "events", "events"]
        records = list(topic.read("a-group"))
        assert [(one.body, one.properties.get("x-routing-key")) for one in records] == [
            (b"through an exchange", "k"),
            (b"as a topic's", None),
            (b"by a client", "events"),
        ]


def test_a_program_uses_topics_and_declares_no_streams(here: Served) -> None:
    with pytest.raises(PreconditionFailedError, match="use a topic"):
        here.node.queue("events", arguments=STREAM)


# ── consumers ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_acks_of_one_consumer_are_not_another_s(here: Served) -> None:
    with here.connection() as connection:
        channel, other = connection.channel(), connection.channel()
        declare(channel)
        publish(channel, "events", [b"0", b"1", b"2"])
        one, two = consume(channel, prefetch=1), consume(other, prefetch=2)
        assert bodies_of(one, 1) == [b"0"]
        assert bodies_of(two, 2) == [b"0", b"1"]
        channel.basic_ack(1)
        assert bodies_of(one, 2) == [b"0", b"1"]
        assert bodies_of(two, 2) == [b"0", b"1"]


def test_a_channel_has_consumers_of_queues_and_of_streams(here: Served) -> None:
    with here.channel() as channel:
        declare(channel)
        channel.queue_declare("jobs", durable=True)
        publish(channel, "events", [b"e0", b"e1"])
        publish(channel, "jobs", [b"j0", b"j1"])
        stream = consume(channel, prefetch=1)
        assert bodies_of(stream, 1) == [b"e0"]
        jobs: list[tuple[int, bytes]] = []
        channel.basic_consume("jobs", lambda _, method, __, body: jobs.append((method.delivery_tag, body)))
        events_until(channel.connection, lambda: len(jobs) >= 1)
        channel.basic_ack(0, multiple=True)
        assert bodies_of(stream, 2) == [b"e0", b"e1"]
        events_until(channel.connection, lambda: len(jobs) >= 2)
        assert [body for _, body in jobs] == [b"j0", b"j1"]
        channel.basic_nack(jobs[1][0])
        events_until(channel.connection, lambda: len(jobs) >= 3)
        assert jobs[2][1] == b"j1"


@pytest.mark.slow
def test_a_consumer_goes_on_when_the_topics_were_opened_anew(here: Served) -> None:
    with here.channel() as channel:
        declare(channel)
        publish(channel, "events", [b"before"])
        consumer = consume(channel)
        assert bodies_of(consumer, 1) == [b"before"]
        node = here.node._running
        failing = node.topics_now()

        def fail() -> None:
            raise OSError("the disk is gone")

        with pytest.raises(OSError, match="the disk is gone"):
            call(failing.dispatcher, fail).get()
        while run(node.topics()) is failing:
            pass
        publish(channel, "events", [b"after"])
        assert bodies_of(consumer, 2) == [b"before", b"after"]


def test_a_consumer_that_waits_for_acks_is_told_that_its_stream_is_gone(here: Served) -> None:
    with here.connection() as connection:
        channel, other = connection.channel(), connection.channel()
        declare(channel)
        publish(channel, "events", [b"0", b"1"])
        consumer = consume(channel, prefetch=1)
        assert bodies_of(consumer, 1) == [b"0"]
        cancelled: list[str] = []
        channel.add_on_cancel_callback(lambda frame: cancelled.append(frame.method.consumer_tag))
        other.queue_delete("events")
        events_until(connection, lambda: cancelled)
        assert cancelled == [consumer.tag]
        channel.basic_ack(1)
        assert channel.queue_declare("jobs").method.message_count == 0, "the channel goes on"


@pytest.mark.slow
def test_a_node_closes_while_a_consumer_reads(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with served(tmp_path / "node") as here:
        connection = pika.BlockingConnection(pika.URLParameters(here.url))
        channel = connection.channel()
        declare(channel)
        topic = here.node.topic(here.node.stats()["vhosts"]["/"]["streams"]["events"]["topic"])
        topic.append_many([bytes(4000)] * 5000).wait()
        consume(channel, prefetch=5000)
    assert [
        one.getMessage() for one in caplog.records if one.levelname == "ERROR" and not one.name.startswith("pika")
    ] == []


def test_what_is_shown_of_a_stream(here: Served) -> None:
    with here.channel() as channel:
        declare(channel)
        publish(channel, "events", [b"0", b"1"])
        consumer = consume(channel)
        consumer.wait(2)
        stats = here.node.stats()["vhosts"]["/"]["streams"]["events"]
        assert {key: stats[key] for key in stats if key not in ("topic", "arguments")} == {
            "name": "events",
            "vhost": "/",
            "type": "stream",
            "durable": True,
            "auto_delete": False,
            "exclusive": False,
            "state": "running",
            "messages": 2,
            "messages_ready": 2,
            "messages_unacknowledged": 0,
            "consumers": 1,
            "first_offset": 0,
            "committed_offset": 1,
            "policy": None,
            "operator_policy": None,
            "effective_policy_definition": {},
        }
        [connection] = here.server.connections.values()
        [shown] = connection.channels[1].consumer_infos()
        assert (shown["queue"]["name"], shown["prefetch_count"], shown["ack_required"]) == ("events", 10, True)
        channel.basic_cancel(consumer.tag)
        assert here.node.stats()["vhosts"]["/"]["streams"]["events"]["consumers"] == 0


def test_streams_are_among_the_queues_that_ctl_lists(here: Served) -> None:
    with here.channel() as channel:
        channel.queue_declare("jobs", durable=True)
        declare(channel)
        publish(channel, "events", [b"0", b"1"])
        columns = ["name", "type", "messages", "state"]
        rows = list_queues(here.node._running, {"vhost": "/", "columns": columns})
        assert [[row[column] for column in columns] for row in rows] == [
            ["jobs", "classic", 0, "running"],
            ["events", "stream", 2, "running"],
        ]


def test_rights_are_those_of_a_queue(here: Served) -> None:
    def define(work: Callable[[Users], object]) -> None:
        run(here.node._running.change(lambda registry: registry.define(lambda definitions: work(definitions.users))))

    define(lambda users: users.add("reader", b"secret"))
    define(lambda users: users.set_permissions("reader", "/", "^$", "^$", "^events$"))
    with here.channel() as channel:
        declare(channel)
        publish(channel, "events", [b"0"])
    reader = pika.PlainCredentials("reader", "secret")
    with here.channel(credentials=reader) as channel:
        assert bodies_of(consume(channel), 1) == [b"0"]
        with pytest.raises(ChannelClosedByBroker, match="ACCESS_REFUSED"):
            channel.queue_delete("events")
    with here.channel(credentials=reader) as channel, pytest.raises(ChannelClosedByBroker, match="ACCESS_REFUSED"):
        declare(channel, "other")


# ── what a stream keeps ──────────────────────────────────────────────────────────────────────────────────────────────

FILE_SIZE = 1024
HOUR_MS = 3_600_000
HOST = Host.parse("127.0.0.1:0")
RECORD_BYTES = 91 + len("s") + 100


class Log:
    """A topic store in memory whose files hold five messages of 100 bytes each."""

    def __init__(self, **settings: Any) -> None:
        files = MemoryFileSystem(random.Random(0), now_ms=lambda: self.now_ms)
        files.make_directories("/topics")
        self.now_ms = 0
        known = {"mapped_file_size_commit_log": FILE_SIZE, "mapped_file_size_consume_queue": 20 * 8} | settings
        self.store = load_store(
            files,
            "/topics",
            TopicSettings(max_hash_slot_num=10, max_index_num=10, **known),
            new_index_name=lambda: "2" * 17,
        )
        self.store.start()
        self.streams: dict[str, StreamRetention] = {}

    def stream(self, topic: str, **limits: int) -> StreamRetention:
        self.streams[topic] = StreamRetention(self.store, topic, StreamLimits(**limits))
        return self.streams[topic]

    def append(self, topic: str, count: int, now_ms: int = 0) -> None:
        self.now_ms = max(self.now_ms, now_ms)
        batch = Batch(
            topic=topic,
            queue_id=STREAM_QUEUE_ID,
            bodies=[bytes(100)] * count,
            born_timestamp=0,
            born_host=HOST,
            store_host=HOST,
            as_one=False,
        )
        self.store.append(batch, self.now_ms)
        while self.store.dispatch():
            pass

    def expire(self, now_ms: int, hour: int = 0, percent: float = 10.0) -> int:
        """How many files are left."""
        self.store.expire_commit_log(now_ms, hour, percent, lambda base: hold(self.store, self.streams, base, now_ms))
        self.store.expire_queues()
        return len(self.store.commit_log.mapped.bases)


def test_without_limits_a_stream_keeps_everything_whatever_age_and_disk_say() -> None:
    log = Log()
    stream = log.stream("s")
    log.append("s", 12)
    assert log.expire(10**12, hour=4, percent=99.0) == 3
    assert stream.bounds(10**12) == range(12)


def test_by_age_files_go_at_any_hour_once_their_last_message_is_old() -> None:
    log = Log()
    stream = log.stream("s", max_age_ms=HOUR_MS)
    for minute in range(12):
        log.append("s", 1, minute * 60_000)
    assert log.expire(HOUR_MS + 4 * 60_000) == 3, "the fifth is just an hour old"
    assert stream.bounds(HOUR_MS + 4 * 60_000) == range(12)
    assert stream.bounds(HOUR_MS + 5 * 60_000) == range(5, 12), "not shown any more, though the file is there"
    assert log.expire(HOUR_MS + 5 * 60_000) == 2
    assert stream.bounds(HOUR_MS + 5 * 60_000) == range(5, 12)
    assert log.expire(10**12) == 1, "the last file never goes"
    assert stream.bounds(10**12) == range(10, 12)


def test_by_bytes_a_stream_keeps_as_many_at_least_and_a_file_more_at_most() -> None:
    log = Log()
    stream = log.stream("s", max_length_bytes=6 * RECORD_BYTES)
    kept = []
    for number in range(40):
        log.append("s", 1)
        log.expire(0)
        there = stream.bounds(0)
        kept.append(len(there))
        assert there.stop == number + 1
    assert kept[:6] == [1, 2, 3, 4, 5, 6]
    assert all(6 <= count < 6 + 5 for count in kept[6:])
    assert len(log.store.commit_log.mapped.bases) <= 3


def test_a_file_goes_when_all_streams_let_it_go() -> None:
    log = Log()
    young, old = log.stream("s", max_age_ms=HOUR_MS), log.stream("t", max_age_ms=2 * HOUR_MS)
    log.append("s", 2)
    log.append("t", 2)
    log.append("s", 8)
    now_ms = HOUR_MS + 1
    assert log.expire(now_ms) == 3
    assert (young.bounds(now_ms), old.bounds(now_ms)) == (range(8, 10), range(2))
    assert log.expire(2 * HOUR_MS + 1) == 1
    assert old.bounds(2 * HOUR_MS + 1) == range(2, 2)
    log.append("t", 1)
    assert old.bounds(2 * HOUR_MS + 1) == range(2, 3), "its numbers go on"


def test_other_topics_messages_stay_as_long_as_topics_do() -> None:
    log = Log(file_reserved_time=72)
    stream = log.stream("s", max_age_ms=HOUR_MS)
    log.append("s", 3)
    log.append("plain", 1)
    log.append("s", 8)
    assert log.expire(2 * HOUR_MS, hour=4) == 3
    assert stream.bounds(2 * HOUR_MS) == range(9, 11)
    assert log.expire(73 * HOUR_MS, hour=3) == 3, "not at this hour"
    assert log.expire(73 * HOUR_MS, hour=4) == 1


def test_a_policy_goes_before_the_arguments() -> None:
    arguments = {"x-max-age": "1h", "x-max-length-bytes": 5}
    assert StreamLimits.of(arguments, {}) == StreamLimits(HOUR_MS, 5)
    assert StreamLimits.of(arguments, {"max-age": "2h"}) == StreamLimits(2 * HOUR_MS, 5)
    assert StreamLimits.of({}, {"max-length-bytes": 9}) == StreamLimits(None, 9)


def test_a_policy_is_applied_to_a_stream_that_is_there(tmp_path: Path) -> None:
    with served(tmp_path / "node", **SMALL_FILES) as here, here.channel() as channel:
        declare(channel)
        publish(channel, "events", [bytes(8 << 10)] * 20)
        assert channel.queue_declare("events", passive=True).method.message_count == 20
        here.node.set_policy("short", "^events$", {"max-length-bytes": 1 << 15})
        assert 4 <= channel.queue_declare("events", passive=True).method.message_count < 20
        stats = here.node.stats()["vhosts"]["/"]["streams"]["events"]
        assert (stats["policy"], stats["effective_policy_definition"]) == ("short", {"max-length-bytes": 1 << 15})
        here.node.clear_policy("short")


def test_an_empty_stream_has_no_bounds_and_keeps_nothing() -> None:
    log = Log(file_reserved_time=0)
    stream = log.stream("s")
    log.append("plain", 12)
    assert stream.bounds(0) == range(0)
    assert log.expire(HOUR_MS, hour=4) == 1


def test_a_consumer_that_is_behind_goes_on_with_the_first_that_is_there(tmp_path: Path) -> None:
    settings = SMALL_FILES | {"clean_resource_interval": 1}
    with served(tmp_path / "node", **settings) as here, here.channel() as channel:
        declare(channel, "events", **{"x-max-length-bytes": 1 << 16})
        publish(channel, "events", [b"0", b"1"])
        consumer = consume(channel, prefetch=1)
        assert consumer.wait(1) == [(1, 0, b"0")]
        publish(channel, "events", [os.urandom(8 << 10) for _ in range(40)])
        log = here.server.node.topics_now().store.commit_log
        events_until(channel.connection, lambda: log.min_offset > 0)
        channel.basic_ack(1)
        consumer.wait(2)
        offset = int(consumer.got[1][1].headers["x-stream-offset"])
        assert 2 < offset < 42
        assert channel.queue_declare("events", passive=True).method.message_count < 42


# ── small things ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1s", 1000), ("2m", 120_000), ("1h", HOUR_MS), ("7D", 604_800_000), ("1M", 2_592_000_000), ("1Y", 31_536_000_000)]
    + [(text, None) for text in ("", "s", "0s", "1", "1d", "-1s", "1 s", "1s ", "١s")],
)
def test_periods(text: str, expected: int | None) -> None:
    assert period_ms(text) == expected


@pytest.mark.parametrize(
    "properties",
    [
        Properties(),
        Properties(headers={}),
        Properties(headers={"n": 1, "t": {"x": [1]}}, content_type="a", content_encoding="b", message_id="c"),
        Properties(content_type="a", delivery_mode=2, cluster_id="z"),
        Properties(headers={"x-stream-offset": "mine", "n": 1}, content_encoding="b"),
    ],
)
def test_the_offset_is_one_more_header(properties: Properties) -> None:
    found = decode_properties(with_offset(encode_properties(properties), 1 << 40))
    assert found.headers == {**(properties.headers or {}), "x-stream-offset": 1 << 40}
    without = {name: getattr(found, name) for name in ("message_id", "cluster_id")}
    assert without == {name: getattr(properties, name) for name in without}


@pytest.mark.parametrize("name", ["events", "ströme / a.b", "%STREAM%", "x" * 255])
def test_any_stream_has_a_topic(name: str) -> None:
    topic = stream_topic(name, bytes(8))
    check_topic_name(topic)
    assert topic.endswith("%" + "00" * 8)


def test_refused_arguments_say_which(here: Served) -> None:
    with pytest.raises(ArgumentsError, match="invalid arg 'x-max-age' for queue 's' in vhost '/': invalid_max_age"):
        here.node.queue("s", arguments=STREAM | {"x-max-age": "soon"})


def test_a_served_node_without_streams_has_no_topics(here: Served) -> None:
    with here.channel() as channel:
        channel.queue_declare("jobs", durable=True)
    assert here.node.stats()["topics"] is None
