"""A full disk: consumers go on, publishers get errors, and what is down comes back by itself."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest

import warren
from tests.support.runtime_tools import BIG, HandNode, bodies, hand_node, next_of, queue_path, store_path
from warren import Queue, Topic
from warren.actors.engines.topics.topic_table import TopicTable
from warren.actors.node.node_context import BlockedError
from warren.storage.errors import DiskFullError, StorageError, WarrenError
from warren.storage.memory import MemoryFileSystem

SMALL: dict[str, Any] = {
    "segment_entry_count": 16,
    "msg_store_file_size_limit": 40_000,
    "queue_index_max_journal_entries": 40,
}
BODIES = [b"%d " % number * 30 if number % 3 else b"%d " % number + BIG for number in range(100)]


def fill(scene: HandNode) -> None:
    """Leave no room at all for a byte more."""
    scene.files.capacity_bytes = scene.files.used_bytes


def filled(seed: int = 0, **settings: Any) -> tuple[HandNode, Queue]:
    """A node with a backlog, small messages and large ones, and no room left."""
    scene = hand_node(MemoryFileSystem(random.Random(seed)), seed=seed, **SMALL | settings)
    queue = scene.node.queue("q")
    queue.publish_many(BODIES).wait()
    scene.run()
    fill(scene)
    return scene, queue


def refuse(scene: HandNode, queue: Queue, body: bytes) -> None:
    """It takes one message, says that it is not safe, and then no more."""
    with pytest.raises(DiskFullError, match="not safe, for the disk is full"):
        queue.publish(body).wait()
    scene.run()
    with pytest.raises(BlockedError, match="disk alarm"):
        queue.publish(b"next", block=False)


@pytest.mark.parametrize("body", [b"small", BIG], ids=["in the index", "in the store"])
@pytest.mark.parametrize("sync", ["os", "group", "always"])
def test_consumers_drain_a_full_disk_and_publishers_are_told(sync: str, body: bytes) -> None:
    scene, queue = filled(sync=sync)
    refuse(scene, queue, body)
    assert scene.node.memory()["alarms"] == ["disk"]
    found = []
    with queue.consume(prefetch=7) as consumer:
        while (message := consumer.receive(timeout=0)) is not None:
            found.append(message.body)
            message.ack()
    assert found == [*BODIES, body]
    scene.advance(20)
    assert scene.node.memory()["alarms"] == [], "what was acked has made room"
    queue.publish(body).wait()
    assert scene.node._running.registry.down == {}
    assert scene.node.failed_queues == {}
    scene.node.close()
    again = hand_node(scene.files, seed=1, **SMALL)
    assert bodies(again.node.queue("q")) == [body]
    again.node.close()


def test_a_store_with_one_file_gives_its_space_back_when_it_is_drained() -> None:
    scene = hand_node(MemoryFileSystem(random.Random(0)), seed=0)
    queue = scene.node.queue("q")
    queue.publish_many([BIG] * 50).wait()
    scene.run()
    fill(scene)
    refuse(scene, queue, BIG)
    while (message := queue.get()) is not None:
        message.ack()
    scene.advance(20)
    assert scene.node.memory()["alarms"] == []
    assert scene.files.used_bytes < len(BIG) * 50
    queue.publish(BIG).wait()
    scene.node.close()
    again = hand_node(scene.files, seed=1)
    assert bodies(again.node.queue("q")) == [BIG]
    again.node.close()


def drain(queue: Queue) -> None:
    while (message := queue.get()) is not None:
        message.ack()


EMPTYING: dict[str, Callable[[Queue], object]] = {
    "get": drain,
    "purge": lambda queue: queue.purge(),
    "remove": lambda queue: queue.remove(where="size >= 0"),
}


@pytest.mark.slow
@pytest.mark.parametrize("priorities", [None, 2])
@pytest.mark.parametrize("sync", ["os", "group"])
@pytest.mark.parametrize("empty", EMPTYING.values(), ids=EMPTYING.keys())
def test_a_journal_gives_its_space_back_when_its_queue_is_emptied(
    empty: Callable[[Queue], object], sync: str, priorities: int | None
) -> None:
    scene = hand_node(MemoryFileSystem(random.Random(0)), seed=0, sync=sync)
    queue = scene.node.queue("q", arguments={} if priorities is None else {"x-max-priority": priorities})
    for priority in (None,) if priorities is None else range(priorities + 1):
        queue.publish_many([b"s" * 3000] * 100, priority=priority).wait()
    scene.run()
    fill(scene)
    refuse(scene, queue, b"small")
    empty(queue)
    scene.advance(20)
    assert scene.node.memory()["alarms"] == []
    assert scene.files.used_bytes < 100_000
    queue.publish(b"room again").wait()
    files = scene.kill()
    again = hand_node(files, seed=1)
    assert bodies(again.node.queue("q")) == [b"room again"]
    again.node.close()


def test_a_level_that_is_empty_makes_room_for_another() -> None:
    scene = hand_node(MemoryFileSystem(random.Random(0)), seed=0)
    queue = scene.node.queue("q", arguments={"x-max-priority": 1})
    queue.publish(b"held", priority=1).wait()
    queue.publish_many([b"s" * 3000] * 100, priority=0).wait()
    held = next_of(queue)
    drain(queue)
    queue.sync()
    fill(scene)
    queue.publish(b"high", priority=1).wait()
    assert scene.node.memory()["alarms"] == []
    held.nack()
    assert bodies(queue) == [b"held", b"high"]
    scene.node.close()


def test_what_was_removed_without_room_to_write_it_down_is_said_to_be_unsafe() -> None:
    scene, queue = filled()
    with pytest.raises(DiskFullError, match=r"^3 messages have left the queue, but a crash .* would bring back"):
        queue.remove(where="size < 4000", limit=3)
    assert bodies(queue) == [body for number, body in enumerate(BODIES) if number not in {1, 2, 4}]
    scene.files.capacity_bytes = None
    scene.node.close()


@pytest.mark.parametrize("body", [b"s" * 3000, BIG], ids=["in the index", "in the store"])
def test_a_close_on_a_full_disk_makes_room_for_acks_first(body: bytes) -> None:
    scene = hand_node(MemoryFileSystem(random.Random(0)), seed=0)
    queue = scene.node.queue("q")
    queue.publish_many([body] * 50).wait()
    scene.run()
    fill(scene)
    refuse(scene, queue, body)
    drain(queue)
    scene.node.close()
    again = hand_node(scene.files, seed=1)
    assert bodies(again.node.queue("q")) == []
    again.node.close()


def test_a_close_that_cannot_write_acks_raises_and_closes_the_others() -> None:
    scene, queue = filled()
    scene.files.capacity_bytes = None
    other = scene.node.queue("other")
    other.publish(b"1").wait()
    fill(scene)
    for message in queue.get_many(2):
        message.ack()
    with pytest.raises(DiskFullError, match=r"queue 'q'.* could not write down all acks"):
        scene.node.close()
    again = hand_node(scene.files, seed=1, **SMALL)
    assert bodies(again.node.queue("q"))[-98:] == BODIES[2:]
    assert bodies(again.node.queue("other")) == [b"1"]
    again.node.close()


def test_what_is_written_when_there_is_room_again_was_published_once() -> None:
    scene, queue = filled()
    refuse(scene, queue, b"late")
    scene.files.capacity_bytes = None
    scene.advance(5)
    queue.publish(b"later").wait()
    files = scene.kill()
    again = hand_node(files, seed=1, **SMALL)
    assert bodies(again.node.queue("q")) == [*BODIES, b"late", b"later"]
    again.node.close()


@pytest.mark.slow
@pytest.mark.parametrize("torn", [False, True])
@pytest.mark.parametrize("end", ["close", "kill", "power"])
def test_a_full_disk_is_opened_and_drained(end: str, torn: bool) -> None:
    """However the last process ended; where the ends of files are torn, too."""
    scene, queue = filled()
    if torn:
        scene.files.capacity_bytes += 700  # type: ignore[operator] # for a part of what comes
        for body in (BIG, b"x" * 900):
            with pytest.raises(WarrenError):
                queue.publish(body, block=False).wait()
        fill(scene)
    if end == "close":
        with contextlib.suppress(StorageError):
            scene.node.close()
        files = scene.files
    else:
        files = scene.kill() if end == "kill" else scene.lose_power(random.Random(1))
    files.capacity_bytes = files.used_bytes
    again = hand_node(files, seed=1, **SMALL)
    assert again.node._running.registry.down == {}
    assert again.node.failed_queues == {}
    queue = again.node.queue("q")
    found = []
    while (message := queue.get()) is not None:
        found.append(message.body)
        message.ack()
    assert found[: len(BODIES)] == BODIES
    again.advance(20)
    queue.publish(BIG).wait()
    assert bodies(queue) == [BIG]
    again.node.close()


def test_acks_that_could_not_be_written_come_back_after_a_crash_redelivered() -> None:
    scene, queue = filled()
    for message in queue.get_many(10):
        message.ack()
    scene.advance(5)
    files = scene.kill()
    files.capacity_bytes = None
    again = hand_node(files, seed=1, **SMALL)
    queue = again.node.queue("q")
    assert bodies(queue)[-90:] == BODIES[10:], "of what was not acked nothing is missing"
    again.node.close()


def test_a_queue_that_is_emptied_on_a_full_disk_leaves_no_files_but_a_journal() -> None:
    scene, queue = filled()
    assert queue.purge() == len(BODIES)
    scene.advance(30)
    left = [path for path in scene.files.contents() if path.startswith(queue_path("q"))]
    assert not any(path.endswith(".idx") for path in left)
    assert sum(len(scene.files.contents()[path]) for path in left if path.endswith(".jif")) == 0
    assert sum(path.startswith(store_path()) for path in scene.files.contents()) <= 2
    queue.publish(b"1").wait()
    scene.node.close()


def test_nothing_is_tried_again_and_again_on_a_full_disk() -> None:
    scene, queue = filled()
    refuse(scene, queue, BIG)
    refuse_small = scene.node.queue("q")
    with pytest.raises(BlockedError):
        refuse_small.publish(b"1", block=False)
    scene.advance(60)
    operations = scene.files.operations
    scene.advance(600)
    assert scene.files.operations - operations < 600
    scene.files.capacity_bytes = None
    scene.advance(20)
    queue.publish(b"1").wait()
    scene.node.close()


def test_a_vhost_that_the_disk_keeps_down_comes_back_by_itself() -> None:
    scene = hand_node(restart_limit=(1, 10.0))
    queue = scene.node.queue("q")
    queue.publish(BIG).wait()
    scene.files.fail("sync", f"{store_path()}/*", times=8)
    with pytest.raises(WarrenError):
        queue.publish(BIG).wait()
    scene.run()
    assert list(scene.node._running.registry.down) == ["/"]
    with pytest.raises(warren.errors.QueueDownError):
        queue.publish(b"1")
    scene.advance(300)
    assert scene.node._running.registry.down == {}
    queue.publish(b"by the old handle").wait()
    assert bodies(queue)[0] == BIG
    assert bodies(queue)[-1] == b"by the old handle"
    scene.node.close()


def test_a_queue_that_the_disk_keeps_down_comes_back_by_itself() -> None:
    scene = hand_node(restart_limit=(1, 10.0))
    queue = scene.node.queue("q")
    queue.publish(b"1").wait()
    scene.files.fail("sync", f"{queue_path('q')}/*", times=4)
    for _ in range(2):
        with pytest.raises(WarrenError):
            queue.publish(b"2").wait()
        scene.run()
    assert list(scene.node.failed_queues) == ["q"]
    scene.advance(300)
    assert scene.node.failed_queues == {}
    assert bodies(queue)[0] == b"1"
    scene.node.close()


# ── topics ──────────────────────────────────────────────────────────────────────────────────────────────────────────

TOPICS: dict[str, Any] = {
    "mapped_file_size_commit_log": 1 << 14,
    "mapped_file_size_consume_queue": 20 * 10,
    "max_hash_slot_num": 64,
    "max_index_num": 64,
    "message_delay_level": "1s 10s",
}


def filled_topic() -> tuple[HandNode, Topic, list[bytes]]:
    """A node with a topic whose last file is nearly full, and no room for another."""
    scene = hand_node(MemoryFileSystem(random.Random(1)), **TOPICS)
    topic = scene.node.topic("t", queues=1)
    appended = [b"%d" % number for number in range(50)]
    for body in appended:
        topic.append(body, key="k").wait()
    list(topic.read("known", max_records=1))
    scene.advance(70)
    fill(scene)
    return scene, topic, appended


def append_until_refused(topic: Topic) -> list[bytes]:
    """What was confirmed."""
    confirmed: list[bytes] = []
    while True:
        body = b"more %d" % len(confirmed)
        try:
            topic.append(body, key="k").wait()
        except DiskFullError:
            return confirmed
        confirmed.append(body)


def test_readers_of_topics_drain_a_full_disk_and_appends_are_refused() -> None:
    scene, topic, appended = filled_topic()
    appended += append_until_refused(topic)
    scene.run()
    assert scene.node.memory()["alarms"] == [], "nothing waits in memory to be written"
    read = [record.body for record in topic.read("known")]
    assert read == appended[1 : 1 + len(read)]
    assert len(read) >= 49
    scene.advance(5)
    scene.files.capacity_bytes = None
    scene.advance(40)
    topic.append(b"room again", key="k").wait()
    read += [record.body for record in topic.read("known")]
    assert read == [*appended[1:], b"room again"]
    scene.advance(70)
    files = scene.kill()
    again = hand_node(files, seed=1, **TOPICS)
    topic = again.node.topic("t")
    assert [record.body for record in topic.read("known")] == []
    assert [record.body for record in topic.read("new")] == [*appended, b"room again"]
    assert len(topic.find("k", limit=1000)) == len(appended) + 1
    again.node.close()


@pytest.mark.parametrize("disk", ["full", "read-only"])
def test_a_new_group_reads_topics_on_a_disk_that_takes_nothing(disk: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scene, topic, appended = filled_topic()
    if disk == "read-only":
        monkeypatch.setattr(TopicTable, "save", Mock(side_effect=StorageError("read-only")))
    reader = topic.reader("new")
    records = reader.read(10)
    assert [record.body for record in records] == appended[:10]
    with pytest.raises(StorageError):
        records[0].retry()
    assert "%RETRY%new" not in scene.node.topics()
    scene.files.capacity_bytes = None
    monkeypatch.undo()
    scene.advance(20)
    records[0].retry(delay_level=1)
    assert scene.node.topics()["%RETRY%new"] == 1
    scene.advance(20)
    assert appended[0] in [record.body for record in reader.read(100)]
    scene.node.close()


def test_topics_that_met_a_full_disk_with_retries_delays_and_transactions_go_on() -> None:
    scene, topic, appended = filled_topic()
    reader = topic.reader("known")
    delayed = topic.append(b"delayed", delay=1)
    append_until_refused(topic)
    record = reader.read(1)[0]
    with pytest.raises(WarrenError):
        record.retry()
    with pytest.raises(WarrenError):
        topic.prepare(b"half").commit()
    scene.advance(30)
    assert len(reader.read(10)) == 10
    scene.files.capacity_bytes = None
    scene.advance(60)
    assert delayed.done
    bodies_read = [one.body for one in topic.read("all")]
    assert bodies_read[: len(appended)] == appended
    assert b"delayed" in bodies_read
    topic.prepare(b"half").commit()
    topic.append(b"last").wait()
    scene.node.close()


@pytest.mark.parametrize("end", ["close", "kill"])
def test_topics_on_a_full_disk_are_opened_and_read(end: str) -> None:
    scene, topic, appended = filled_topic()
    appended += append_until_refused(topic)
    if end == "close":
        with contextlib.suppress(StorageError):
            scene.node.close()
        files = scene.files
    else:
        files = scene.kill()
    files.capacity_bytes = files.used_bytes + 200  # for the lock file's content; what is cut and extended again counts
    again = hand_node(files, seed=1, **TOPICS)
    topic = again.node.topic("t")
    read = [record.body for record in topic.read("known")]
    assert read == appended[1 : 1 + len(read)]
    assert len(read) >= 40
    files.capacity_bytes = None
    again.node.close()


@pytest.mark.parametrize("body", [b"small", BIG], ids=["in the index", "in the store"])
def test_a_publisher_who_waits_looks_for_room_at_once(body: bytes) -> None:
    scene, queue = filled()
    refuse(scene, queue, body)
    scene.files.capacity_bytes = None
    queue.publish(b"without any time").wait()
    assert scene.node.memory()["alarms"] == []
    scene.node.close()


class FullNode:
    """A node with something of each kind, on a disk that was found full: the alarm is set."""

    def __init__(self) -> None:
        self.scene = scene = hand_node(MemoryFileSystem(random.Random(1)), **SMALL | TOPICS)
        self.node = node = scene.node
        self.queue, self.other = node.queue("q"), node.queue("other")
        self.queue.publish_many(BODIES).wait()
        self.other.publish(b"1").wait()
        self.exchange = node.exchange("x", "direct")
        self.delaying = node.exchange("delaying", "x-delayed-message", arguments={"x-delayed-type": "direct"})
        node.bind(self.queue, self.exchange, "a")
        self.topic = node.topic("t", queues=1)
        for number in range(20):
            self.topic.append(b"%d" % number, key="k").wait()
        self.halves = [self.topic.prepare(b"half") for _ in range(2)]
        self.reader = self.topic.reader("group")
        self.records = self.reader.read(5)
        self.deliveries = self.queue.get_many(8)
        scene.run()
        fill(scene)
        for attempt in (lambda: self.queue.publish(BIG).wait(), lambda: append_until_refused(self.topic)):
            with contextlib.suppress(DiskFullError):
                attempt()
        scene.run()
        fill(scene)
        assert "disk" in node.memory()["alarms"]


DISK_VERBS: dict[str, Callable[[FullNode], object]] = {
    "append": lambda full: full.topic.append(b"x" * 9000).wait(),
    "append_many": lambda full: full.topic.append_many([b"x" * 9000] * 3).wait(),
    "append later": lambda full: full.topic.append(b"x" * 9000, delay=1).wait(),
    "prepare": lambda full: full.topic.prepare(b"x" * 9000),
    "commit": lambda full: full.halves[0].commit().wait(),
    "roll back": lambda full: full.halves[1].rollback().wait(),
    "commit an offset": lambda full: full.reader.commit(),
    "retry a record": lambda full: full.records[0].retry(),
    "seek": lambda full: full.topic.seek("other", 0),
    "publish later": lambda full: full.queue.publish(BIG, delay=1).wait(),
    "publish many later": lambda full: full.queue.publish_many([BIG] * 3, delay=1).wait(),
    "publish later to an exchange": lambda full: full.exchange.publish(BIG, "a", delay=1).wait(),
    "publish to a delaying exchange": lambda full: full.delaying.publish(BIG, "a", headers={"x-delay": 5}).wait(),
    "declare a queue": lambda full: full.node.queue("new"),
    "declare an exchange": lambda full: full.node.exchange("new", "direct"),
    "declare a topic": lambda full: full.node.topic("new", queues=1),
    "declare a vhost": lambda full: full.node.vhost("new"),
    "bind": lambda full: full.node.bind(full.queue, full.exchange, "b"),
    "unbind": lambda full: full.node.unbind(full.queue, full.exchange, "a"),
    "set a policy": lambda full: full.node.set_policy("p", "q", {"max-length": 10_000}),
    "add a user": lambda full: full.node.add_user("u", "p"),
    "ack": lambda full: full.deliveries[0].ack(),
    "ack many": lambda full: full.queue.ack(full.deliveries[1:3]),
    "nack": lambda full: full.deliveries[3].nack(),
    "reject": lambda full: full.deliveries[4].reject(),
    "retry": lambda full: full.deliveries[5].retry(1),
    "get": lambda full: full.queue.get(auto_ack=True),
    "sync": lambda full: full.queue.sync(),
    "sync a topic": lambda full: full.topic.sync(),
    "purge": lambda full: full.other.purge(),
    "delete a queue": lambda full: full.node.delete_queue("other"),
    "delete an exchange": lambda full: full.node.delete_exchange("x"),
    "close a reader": lambda full: full.reader.close(),
    "close": lambda full: full.node.close(),
}


@pytest.mark.slow
@pytest.mark.parametrize("verb", DISK_VERBS.values(), ids=DISK_VERBS.keys())
def test_each_verb_on_a_full_disk_does_its_work_or_raises(verb: Callable[[FullNode], object]) -> None:
    full = FullNode()
    with contextlib.suppress(DiskFullError):
        verb(full)
        full.scene.run()
    full.scene.files.capacity_bytes = None
    full.scene.advance(40)
    if verb is not DISK_VERBS["close"]:
        assert full.node.memory()["alarms"] == []
        full.queue.publish(b"room again").wait()
        full.topic.append(b"room again").wait()
        full.node.close()


@pytest.mark.parametrize("waiting", [{}, {"timeout": 5.0}, {"block": False}], ids=str)
def test_appends_under_the_alarm_of_a_full_disk_do_not_wait(waiting: dict[str, Any]) -> None:
    scene, topic, _ = filled_topic()
    append_until_refused(topic)
    gate = scene.node._running.gate
    gate.set(frozenset({"disk"}))
    gate.note_full_disk(is_full=True)
    for append in (
        lambda: topic.append(b"x" * 9000, **waiting).wait(),
        lambda: topic.append_many([b"x" * 9000], **waiting).wait(),
        lambda: topic.prepare(b"x" * 9000, **waiting),
    ):
        with pytest.raises(DiskFullError):
            append()
    gate.set(frozenset())
    gate.note_full_disk(is_full=False)
    scene.files.capacity_bytes = None
    topic.append(b"room again").wait()
    scene.node.close()
