"""warren.testing: a node whose clock a test turns, whose messages it sees, and which it kills."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kombu
import pika
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import warren
import warren.kombu
from warren import aio
from warren.durable_queue import DurableQueue
from warren.errors import (
    BlockedError,
    ClosedError,
    InvalidValueError,
    PublishRefusedError,
    QueueDownError,
    SettingsError,
)
from warren.testing import GIB, QueueMessages, TestNode
from warren.where import WhereError

NOT_A_NUMBER = float("nan")


@pytest.fixture
def node() -> Iterator[TestNode]:
    with TestNode() as opened:
        yield opened


def taken(queue: warren.Queue) -> warren.Delivery:
    delivery = queue.get()
    assert delivery is not None
    return delivery


def story(messages: QueueMessages) -> list[tuple[bytes, list[str]]]:
    return [(seen.body, list(seen.events)) for seen in messages.all()]


# ── time ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_message_expires_when_the_clock_is_turned_and_not_before(node: TestNode) -> None:
    queue = node.queue("jobs")
    queue.publish(b"short", expiration=10)
    queue.publish(b"long", expiration=20)
    node.advance(9.999)
    assert len(queue) == 2
    node.advance(0.001)
    assert [one.body for one in queue.browse()] == [b"long"]
    node.advance(3600)
    assert story(node.messages("jobs")) == [(b"short", ["published", "expired"]), (b"long", ["published", "expired"])]


def test_a_queue_that_nobody_uses_goes_with_the_time(node: TestNode) -> None:
    node.queue("replies", arguments={"x-expires": 60_000})
    node.advance(59)
    assert [queue.name for queue in node.queues()] == ["replies"]
    node.advance(2)
    assert node.queues() == []


def test_what_a_consumer_waits_for_comes_at_its_moment(node: TestNode) -> None:
    """A delayed topic's message, for a consumer in another thread."""
    topic = node.topic("later")
    topic.append(b"in ten seconds", delay_level=3).wait()
    reader = topic.reader("group")
    got: list[bytes] = []
    thread = threading.Thread(target=lambda: got.append(next(iter(reader)).body))
    thread.start()
    node.advance(9)
    assert got == []
    node.advance(2)
    thread.join(10)
    assert got == [b"in ten seconds"]


def test_a_month_is_no_longer_than_what_happens_in_it(node: TestNode) -> None:
    queue = node.queue("jobs")
    queue.publish(b"x", expiration=30 * 86_400)
    node.settle()
    reads = node.machine.memory_reads
    node.advance(30 * 86_400 - 1)
    assert len(queue) == 1
    assert node.machine.memory_reads - reads <= 4  # nothing goes on by itself but what has to
    node.advance(1)
    assert len(queue) == 0


def test_time_does_not_run_back(node: TestNode) -> None:
    with pytest.raises(InvalidValueError, match="seconds"):
        node.advance(-1)
    with pytest.raises(InvalidValueError, match="from 0 seconds"):
        node.clock.advance(-1)


# ── messages ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_became_of_each_message_is_seen(node: TestNode) -> None:
    queue, _ = node.queue("jobs", arguments={"x-max-length": 4, **DEAD_LETTERS}), node.queue("dead")
    queue.publish_many([b"acked", b"rejected", b"given back", b"unread"], content_type="text/plain")
    with taken(queue):
        pass
    taken(queue).reject()
    taken(queue).nack()
    queue.publish_many([b"1", b"2", b"3"])
    assert story(node.messages("jobs")) == [
        (b"acked", ["published", "delivered", "acked"]),
        (b"rejected", ["published", "delivered", "rejected", "dead_lettered"]),
        (b"given back", ["published", "delivered", "requeued", "dropped", "dead_lettered"]),
        (b"unread", ["published"]),
        (b"1", ["published"]),
        (b"2", ["published"]),
        (b"3", ["published"]),
    ]
    assert story(node.messages("dead")) == [(b"rejected", ["published"]), (b"given back", ["published"])]
    assert queue.purge() == 4
    assert [seen.body for seen in node.messages("jobs").of("purged")] == [b"unread", b"1", b"2", b"3"]
    [dead] = node.messages("dead").expect(body=b"rejected")
    assert (dead.headers["x-first-death-reason"], dead.properties.content_type) == ("rejected", "text/plain")


def test_what_is_refused_is_seen_by_itself(node: TestNode) -> None:
    queue = node.queue("jobs", arguments={"x-max-length": 2, "x-overflow": "reject-publish"})
    confirm = queue.publish_many([b"1", b"2", b"3"])
    with pytest.raises(PublishRefusedError):
        confirm.wait()
    assert story(node.messages("jobs"))[2] == (b"3", ["published", "refused"])
    node.messages("jobs").expect("refused", 1)


@pytest.mark.parametrize("auto_ack", [False, True])
def test_what_consumers_take_is_seen_whichever_way_it_goes(node: TestNode, auto_ack: bool) -> None:
    queue = node.queue("jobs")
    with queue.consume(auto_ack=auto_ack, timeout=0.01) as consumer:
        queue.publish(b"waited for")  # nothing is handed past the queue here
        for delivery in consumer:
            if not auto_ack:
                delivery.ack()
    queue.publish(b"got")
    queue.get(auto_ack=auto_ack)
    node.messages("jobs").wait_for("delivered", 2)
    node.messages("jobs").expect("acked", 2 if auto_ack else 1)


def test_messages_of_servers_exchanges_and_dead_letters_are_seen(node: TestNode) -> None:
    events = node.exchange("events", "topic")
    node.queue("all")
    node.bind("all", "events", "#")
    events.publish(b"by hand", "a.b").wait()
    host, port = node.serve(port=0).addresses[0]
    with pika.BlockingConnection(pika.ConnectionParameters(host, port)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish("events", "c", b"by pika", pika.BasicProperties(headers={"kind": "x"}))
        method, _, body = channel.basic_get("all")
        assert body == b"by hand"
        channel.basic_ack(method.delivery_tag)
        [seen] = node.messages("all").wait_for("acked")
        assert (seen.routing_key, seen.exchange) == ("a.b", "events")
        [seen] = node.messages("all").expect(headers={"kind": "x"})
        assert (seen.body, seen.events) == (b"by pika", ["published"])


def test_a_message_is_waited_for_until_another_thread_has_published_it(node: TestNode) -> None:
    queue, go_on = node.queue("jobs"), threading.Event()

    def program() -> None:
        go_on.wait()
        queue.publish(b"late", headers={"n": 1})

    thread = threading.Thread(target=program)
    thread.start()
    node.messages("jobs").expect(count=0)
    go_on.set()
    [seen] = node.messages("jobs").wait_for(body=b"late", headers={"n": 1}, where=lambda one: one.persistent)
    assert seen.body == b"late"
    thread.join()


def test_who_waits_in_vain_is_told_what_was_there_instead(node: TestNode) -> None:
    queue = node.queue("jobs")
    queue.publish(b"other", headers={"n": 1}).wait()
    messages = node.messages("jobs")
    with pytest.raises(AssertionError) as caught:
        messages.wait_for("acked", 2, headers={"n": 2}, timeout=0.01)
    assert str(caught.value) == (
        "queue 'jobs': expected 2 or more acked with headers {'n': 2} within 0.01 seconds, got 0\n"
        "  b'other' published, headers {'n': 1}"
    )
    with pytest.raises(AssertionError) as caught:
        node.messages("jbos").expect()
    assert str(caught.value) == (
        "queue 'jbos': expected 1 published, got 0\n  no message ever came here; there were some in 'jobs'"
    )
    with pytest.raises(ValueError, match="no 'eaten' becomes of a message; there is published, refused"):
        messages.wait_for("eaten")  # type: ignore[arg-type]
    messages.expect(where="headers['n'] = 1 AND body LIKE 'oth%'")
    with pytest.raises(AssertionError, match="expected 1 published where size > 100, got 0"):
        messages.expect(where="size > 100")
    with pytest.raises(WhereError):
        messages.expect(where="size >")


def test_what_is_handed_out_says_what_it_is(node: TestNode) -> None:
    topic = node.topic("t")
    one, two = topic.append(b"1"), topic.append_many([b"2", b"3"])
    assert (repr(one), repr(two)) == ("<AppendConfirm pending>", "<AppendManyConfirm pending>")
    node.advance(1)
    assert (repr(one), repr(two)) == ("<AppendConfirm answered>", "<AppendManyConfirm answered>")
    assert repr(two.wait()) == "<AppendResults of 2>"
    assert repr(node.messages("jobs", "v")) == "<warren.testing.QueueMessages of queue 'jobs' in vhost 'v'>"
    assert repr(aio.open("here")) == "<warren.aio.Opening 'here'>"


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda node: TestNode(""), "path"),
        (lambda node: TestNode(snyc="os"), "sync"),  # type: ignore[call-arg]
        (lambda node: node.advance(NOT_A_NUMBER), "seconds"),
        (lambda node: node.advance("5"), "seconds"),
        (lambda node: node.messages(None), "queue"),
        (lambda node: node.lose_power("seed"), "seed"),
        (lambda node: node.messages("jobs").expect("ackd"), "ackd"),
        (lambda node: node.messages("jobs").expect("published", "1"), "count"),
        (lambda node: node.messages("jobs").expect(body="text"), "body"),
        (lambda node: node.messages("jobs").of(headers=["n"]), "headers"),
        (lambda node: node.messages("jobs").of(bdoy=b""), "did you mean 'body'"),
        (lambda node: node.messages("jobs").wait_for(timeout=NOT_A_NUMBER), "timeout"),
        (lambda node: node.messages("jobs").arrived(timeout=NOT_A_NUMBER), "timeout"),
    ],
)
def test_wrong_arguments_are_refused(node: TestNode, call: Callable[[Any], object], match: str) -> None:
    with pytest.raises(InvalidValueError, match=match):
        call(node)


def test_a_failed_expectation_is_shown_at_the_line_of_the_test(node: TestNode) -> None:
    with pytest.raises(AssertionError) as caught:
        node.messages("jobs").expect()
    assert [entry for entry in caught.traceback if not entry.ishidden(None)] == [caught.traceback[0]]


def test_coroutines_wait_without_holding_up_others(node: TestNode) -> None:
    async def program(queue: aio.Queue) -> None:
        await asyncio.sleep(0)
        await queue.publish(b"from a coroutine")
        async for delivery in queue.consume():
            await delivery.ack()
            return

    async def test() -> None:
        here = aio.Node(node)
        queue = await here.queue("jobs")
        running = asyncio.create_task(program(queue))
        [seen] = await node.messages("jobs").arrived("acked")
        assert seen.body == b"from a coroutine"
        await running
        with pytest.raises(AssertionError, match=r"expected 2 or more acked within 0\.01 seconds, got 1"):
            await node.messages("jobs").arrived("acked", 2, timeout=0.01)

    asyncio.run(test())


# ── ends ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(params=["memory", "directory"])
def any_node(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TestNode]:
    with TestNode(None if request.param == "memory" else tmp_path / "node") as opened:
        yield opened


@pytest.mark.parametrize("size", [10, 10_000])
def test_a_crash_leaves_what_was_written_and_gives_back_what_was_unacked(any_node: TestNode, size: int) -> None:
    queue = any_node.queue("jobs")
    queue.publish_many([b"a" * size, b"b" * size]).wait()
    taken(queue).ack()
    queue.sync()
    held = taken(queue)
    any_node.crash()
    with pytest.raises(ClosedError):
        queue.publish(b"to the dead")
    with pytest.raises(warren.WarrenError):
        held.ack()
    [again] = any_node.queue("jobs").get_many(10)
    assert (again.body, again.redelivered) == (b"b" * size, True)
    assert [seen.events for seen in any_node.messages("jobs").all()] == [
        ["published", "delivered", "acked"],
        ["published", "delivered", "delivered"],
    ]


def test_a_restart_keeps_what_is_persistent_and_goes_on_in_time(any_node: TestNode) -> None:
    queue = any_node.queue("jobs")
    queue.publish(b"kept", expiration=100)
    queue.publish(b"transient", persistent=False)
    any_node.advance(60)
    any_node.restart()
    assert [one.body for one in any_node.queue("jobs").browse()] == [b"kept"]
    any_node.advance(41)
    assert len(any_node.queue("jobs")) == 0


def test_a_power_loss_takes_what_nobody_waited_for(node: TestNode) -> None:
    queue = node.queue("jobs")
    queue.publish(b"confirmed").wait()
    queue.publish(b"not waited for")
    node.lose_power()
    assert [one.body for one in node.queue("jobs").browse()] == [b"confirmed"]
    node.queue("jobs").publish(b"synced by time")
    node.advance(1)
    node.lose_power()
    assert [one.body for one in node.queue("jobs").browse()] == [b"confirmed", b"synced by time"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_a_power_loss_of_any_outcome_keeps_what_was_confirmed(node: TestNode, seed: int) -> None:
    queue = node.queue("jobs")
    queue.publish_many([b"%d" % n for n in range(20)]).wait()
    queue.publish_many([b"%d" % n for n in range(20, 40)])
    node.lose_power(seed)
    found = [one.body for one in node.queue("jobs").browse()]
    assert found[:20] == [b"%d" % n for n in range(20)]
    assert found == [b"%d" % n for n in range(len(found))]


def test_a_program_that_opens_its_node_itself_gets_this_one(node: TestNode, monkeypatch: pytest.MonkeyPatch) -> None:
    def program() -> int:
        with warren.open("/var/lib/program", sync="always") as opened:
            opened.queue("jobs").publish(b"x")
            return len(opened.queue("jobs"))

    monkeypatch.setattr(warren, "open", node.opened)
    assert [program(), program()] == [1, 2]
    assert story(node.messages("jobs")) == [(b"x", ["published"])] * 2


def test_only_a_disk_in_memory_loses_power(tmp_path: Path) -> None:
    with TestNode(tmp_path / "node") as node, pytest.raises(RuntimeError, match="machine's own disk"):
        node.lose_power()


@pytest.mark.slow
def test_a_client_of_the_server_meets_the_crash(node: TestNode) -> None:
    host, port = node.serve(port=0).addresses[0]
    connection = pika.BlockingConnection(pika.ConnectionParameters(host, port))
    channel = connection.channel()
    channel.queue_declare("jobs", durable=True)
    channel.confirm_delivery()
    channel.basic_publish("", "jobs", b"confirmed", pika.BasicProperties(delivery_mode=2))
    node.crash()
    with pytest.raises((pika.exceptions.AMQPError, OSError)):
        channel.basic_publish("", "jobs", b"to the dead")
    assert [one.body for one in node.queue("jobs").browse()] == [b"confirmed"]


# ── the machine ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_memory_runs_short_when_the_test_says_so(node: TestNode) -> None:
    queue = node.queue("jobs")
    node.machine.used_bytes = 9 * GIB
    node.advance(60)
    with pytest.raises(BlockedError):
        queue.publish(b"x", block=False)
    node.machine.used_bytes = 0
    node.advance(60)
    queue.publish(b"x", block=False).wait()


def test_the_disk_fails_when_the_test_says_so(node: TestNode) -> None:
    queue = node.queue("jobs")
    queue.publish(b"safe").wait()
    node.disk.fail("sync", "*.jif")
    with pytest.raises(QueueDownError, match="sync failed on purpose"):
        queue.publish(b"never safe").wait()
    node.settle()  # it restarts from its files
    assert [one.body for one in queue.browse()][:1] == [b"safe"]


# ── what is seen is what is there ───────────────────────────────────────────────────────────────────────────────────

STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["publish", "expiring", "many", "get", "consume", "ack", "nack", "reject", "retry", "release", "purge",
             "advance", "restart", "crash"],
        ),
        st.integers(0, 3),
    ),
    max_size=25,
)  # fmt: skip
DEAD_LETTERS = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
ARGUMENTS: list[dict[str, Any]] = [
    {},
    {"x-max-length": 3},
    {"x-max-length": 3, "x-overflow": "reject-publish-dlx", **DEAD_LETTERS},
    {"x-max-priority": 3, "x-message-ttl": 5000},
    {"x-delivery-limit": 1, "x-consumer-timeout": 2000},
]  # fmt: skip


def test_of_messages_with_one_body_those_are_known_that_were_refused() -> None:
    with TestNode() as node:
        queue = node.queue("q", arguments={"x-max-length": 3, "x-overflow": "reject-publish"})
        for count in (2, 3):
            queue.publish_many([b"the same"] * count)
            node.settle()
        assert len(node._log.of("/", "q").ready) == len(queue) == 3


@pytest.mark.slow
@settings(deadline=None)
@given(STEPS, st.sampled_from(ARGUMENTS))
def test_what_is_seen_to_wait_is_what_waits(steps: list[tuple[str, int]], arguments: dict[str, Any]) -> None:
    with TestNode() as node:
        queue, held = node.queue("q", arguments=arguments), list[Any]()
        node.queue("dead")
        log = node._log.of("/", "q")
        for number, (step, count) in enumerate(steps):
            body = b"%d" % number
            match step:
                case "publish":
                    queue.publish(body, priority=count)
                case "expiring":
                    queue.publish(body, expiration=count)
                case "many":
                    queue.publish_many([body] * count)
                case "get":
                    held += queue.get_many(count)
                case "consume":
                    with queue.consume(count + 1, timeout=0) as consumer:
                        for delivery in consumer:
                            delivery.ack()
                case "ack" | "nack" | "reject" | "retry" if held:
                    delivery = held.pop(count % len(held))
                    getattr(delivery, step)()
                case "release":
                    queue.release()
                    held.clear()
                case "purge":
                    queue.purge()
                case "advance":
                    node.advance(count)
                case "restart" | "crash":
                    queue.sync()
                    getattr(node, step)()
                    queue = node.queue("q", arguments=arguments)
                    held.clear()
            node.settle()
            browsed = list(queue.browse())
            ready = [one.message.msg_id for one in browsed if not one.unacked]
            pending = [one.message.msg_id for one in browsed if one.unacked]  # unacked, or waiting to come again
            assert sorted([*log.ready, *log.held.values()]) == sorted([*ready, *pending]), step
            assert set(ready) <= set(log.ready), step
            assert set(log.held.values()) <= set(pending), step


# ── a node in memory, for programs ──────────────────────────────────────────────────────────────────────────────────


def test_a_node_in_memory_is_a_node_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with warren.open(":memory:") as node, warren.open(":memory:") as other:
        queue = node.queue("jobs", arguments={"x-dead-letter-exchange": ""})
        queue.publish_many([b"x" * 10_000] * 3).wait()
        assert len(queue) == 3
        assert other.queues() == []
        topic = node.topic("events")
        topic.append(b"one", key="k").wait()
        assert [record.body for record in topic.find("k")] == [b"one"]
        assert (node.path, node.stats()["path"]) == (":memory:", ":memory:")
        with pytest.raises(SettingsError, match="recording"):
            warren.open(":memory:", record="x.parquet")
        with pytest.raises(SettingsError, match="share"):
            warren.open(":memory:", share=True)
    assert list(tmp_path.iterdir()) == []


def test_a_node_in_memory_for_coroutines() -> None:
    async def program() -> bytes:
        async with aio.open(":memory:", sync="os") as node:
            queue = await node.queue("jobs")
            await queue.publish(b"x")
            got = await queue.get()
            assert got is not None
            return got.body

    assert asyncio.run(program()) == b"x"


def test_threads_share_a_node_in_memory() -> None:
    with warren.open(":memory:", sync="os") as node:
        queues = [node.queue(f"q{number}") for number in range(4)]

        def work(queue: warren.Queue) -> None:
            for number in range(500):
                queue.publish(b"%d" % number * 500)

        threads = [threading.Thread(target=work, args=(queue,)) for queue in queues for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [len(queue) for queue in queues] == [1000] * 4
        assert sum(len(one.body) for one in queues[0].browse()) == 2 * sum(len(b"%d" % n) * 500 for n in range(500))


@pytest.mark.slow
def test_a_server_in_memory_leaves_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "warren", "serve", ":memory:", "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path) as server:
        assert server.stdout is not None
        assert server.stderr is not None
        [[host, port]] = json.loads(server.stdout.readline())["addresses"]
        with pika.BlockingConnection(pika.ConnectionParameters(host, port)) as connection:
            channel = connection.channel()
            channel.queue_declare("jobs", durable=True)
            channel.confirm_delivery()
            channel.basic_publish("", "jobs", b"x")
            assert channel.basic_get("jobs")[2] == b"x"
        server.send_signal(signal.SIGTERM)
        assert server.stderr.read() == ""
    assert list(tmp_path.iterdir()) == []
    refused = subprocess.run(
        [sys.executable, "-m", "warren", "queues", ":memory:"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert (refused.returncode, refused.stderr) == (
        2,
        "warren: :memory:: a node in memory would be gone with this command\n",
    )


def test_connections_of_kombu_share_a_node_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with kombu.Connection("warren://:memory:") as one, kombu.Connection("warren://:memory:") as other:
        with one.SimpleQueue("jobs") as queue:
            queue.put({"n": 1})
        with other.SimpleQueue("jobs") as queue:
            assert queue.get(timeout=10).payload == {"n": 1}
    with kombu.Connection("warren://:memory:") as one, one.SimpleQueue("jobs") as queue:
        assert queue.qsize() == 0  # another one
    with DurableQueue(":memory:", "jobs") as durable:
        durable.put(b"x")
        assert durable.get() == b"x"
    assert list(tmp_path.iterdir()) == []


def test_what_kombu_does_on_a_node_of_a_test_is_seen(node: TestNode) -> None:
    with kombu.Connection("warren://", transport_options={"node": node}) as connection:
        with connection.SimpleQueue("jobs") as queue:
            queue.put("x")
            queue.get(timeout=10).ack()
        [seen] = node.messages("jobs").wait_for("acked")
    assert seen.events == ["published", "delivered", "acked"]


def test_what_failed_or_was_held_for_too_long_is_seen_to_come_again(node: TestNode) -> None:
    queue = node.queue("jobs", arguments={"x-delivery-limit": 2, "x-consumer-timeout": 60_000, **DEAD_LETTERS})
    dead = node.queue("dead")
    queue.publish(b"job")
    with pytest.raises(ZeroDivisionError), taken(queue):
        _ = 1 / 0
    assert queue.get() is None  # it has to wait
    node.advance(1.5)
    taken(queue)
    node.advance(64)  # a sixteenth more at most
    taken(queue).nack()
    [seen] = node.messages("jobs").wait_for("dead_lettered")
    assert seen.events == [
        *("published", "delivered", "retried", "delivered", "timed_out", "delivered", "requeued"),
        *("delivery_limit", "dead_lettered"),
    ]
    node.messages("dead").wait_for()
    assert taken(dead).body == b"job"


def test_what_is_mended_is_seen(node: TestNode) -> None:
    queue = node.queue("jobs")
    node.queue("other")
    queue.publish_many([b"removed", b"moved", b"stays"]).wait()
    assert queue.remove(where="body = 'removed'") == 1
    assert queue.move("other", where="body = 'moved'") == 1
    queue.sync()
    [seen] = node.messages("jobs").of("removed")
    assert seen.body == b"removed"
    assert [one.body for one in node.messages("other").wait_for()] == [b"moved"]
    assert len(node._log.of("/", "jobs").ready) == 1


def test_a_node_that_counts_its_own_memory_pages_without_its_machine() -> None:
    node = TestNode(vm_memory_calculation_strategy="allocated", vm_memory_high_watermark="1MB")
    queue = node.queue("jobs")
    for _ in range(40):
        queue.publish(bytes(20_000)).wait()
    memory = node.stats()["memory"]
    assert (memory["used_bytes"] > 800_000 * 0.9, node.machine.used_bytes) == (True, 0)
    node.advance(10)
    assert queue.stats()["messages_ram"] < 40
    assert len(queue.get_many(40)) == 40
    node.close()
