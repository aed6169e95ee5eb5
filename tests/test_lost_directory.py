"""A data directory that is removed, or replaced, while a node runs in it: nothing is called safe there any more."""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import warren
from tests.support.runtime_tools import DATA, HandNode, hand_node
from tests.support.waiting import wait_until
from warren.actors.topics.log_upkeep import DISPATCH_DELAY_MS
from warren.storage.errors import DirectoryLostError, WarrenError

LONG_S = 60.0

WAYS: dict[str, Callable[[HandNode], object]] = {
    "publish": lambda scene: scene.node.queue("q", passive=True).publish(b"2").wait(),
    "append": lambda scene: scene.node.topic("t").append(b"2").wait(),
    "sync": lambda scene: scene.node.queue("q", passive=True).sync(),
    "declare": lambda scene: scene.node.queue("new"),
    "close": lambda scene: scene.node.close(),
}


def scene_with(sync: str = "group") -> HandNode:
    scene = hand_node(sync=sync, mapped_file_size_commit_log=1 << 15, mapped_file_size_consume_queue=20 * 50)
    scene.node.queue("q").publish(b"1").wait()
    scene.node.topic("t").append(b"1").wait()
    return scene


@pytest.mark.parametrize("sync", ["os", "group", "always"])
@pytest.mark.parametrize("what", ["a queue", "a topic"])
def test_nothing_is_confirmed_in_a_directory_that_was_removed(sync: str, what: str) -> None:
    scene = scene_with(sync)
    queue, topic = scene.node.queue("q"), scene.node.topic("t")
    fresh = scene.node.queue("fresh")
    scene.files.delete_tree(DATA)
    if what == "a queue":
        with pytest.raises(WarrenError, match="removed"):
            fresh.publish(b"2").wait()
    with pytest.raises(WarrenError, match="removed or replaced"):
        queue.publish(b"2").wait() if what == "a queue" else topic.append(b"2").wait()
    scene.run()
    for verb in WAYS.values():
        with pytest.raises(WarrenError, match="removed or replaced"):
            verb(scene)
    assert not scene.files.exists(DATA)


@pytest.mark.parametrize("way", WAYS)
def test_a_directory_that_is_anothers_now_is_left_alone(way: str) -> None:
    scene = scene_with()
    scene.files.delete_tree(DATA)
    other = hand_node(scene.files)
    other.node.queue("q").publish(b"other's").wait()
    before = scene.files.contents()
    with pytest.raises(WarrenError, match="removed or replaced"):
        WAYS[way](scene)
    scene.run()
    assert scene.files.contents() == before
    other.node.close()
    again = hand_node(scene.files)
    assert [message.body for message in again.node.queue("q").browse()] == [b"other's"]
    again.node.close()


def test_a_real_directory_that_is_removed(tmp_path: Path) -> None:
    node = warren.open(tmp_path / "node")
    queue, topic = node.queue("q"), node.topic("t")
    queue.publish_many([b"1", b"L" * 10_000]).wait()
    topic.append(b"1").wait()
    next(iter(topic.reader("g")))  # nothing is on its way in the background
    (tmp_path / "node").rename(tmp_path / "elsewhere")
    with pytest.raises(WarrenError, match="removed or replaced"):
        queue.publish(b"2").wait()
    with pytest.raises(WarrenError, match="removed or replaced"):
        topic.append(b"2").wait()
    with pytest.raises(DirectoryLostError):
        node.close()
    assert not (tmp_path / "node").exists()


REAL_VERBS: dict[str, Callable[[warren.Node], object]] = {
    "publish": lambda node: node.queue("q").publish(b"2").wait(LONG_S),
    "publish to an exchange": lambda node: node.exchange("x").publish(b"2").wait(LONG_S),
    "publish to queues": lambda node: node.publish_to(["q"], b"2").wait(LONG_S),
    "publish later": lambda node: node.queue("q").publish(b"2", delay=60).wait(LONG_S),
    "get": lambda node: node.queue("q").get(),
    "consume": lambda node: node.queue("q").consume(),
    "browse": lambda node: next(iter(node.queue("q").browse())),
    "delayed": lambda node: node.delayed(),
    "append": lambda node: node.topic("t").append(b"2").wait(LONG_S),
    "read": lambda node: node.topic("t").reader("g").read(1, timeout=LONG_S),
    "queues": lambda node: node.queues(),
    "failed queues": lambda node: node.failed_queues,
    "memory": lambda node: node.memory(),
    "stats": lambda node: node.stats(),
}


def outcome(verb: Callable[[warren.Node], object], node: warren.Node) -> object:
    """What it returns, or the class of its error."""
    try:
        return verb(node)
    except WarrenError as error:
        return type(error)


@pytest.mark.parametrize("role", ["host", "guest"])
def test_every_verb_says_that_the_directory_was_removed(role: str, tmp_path: Path) -> None:
    host = warren.open(tmp_path / "node", share=True)
    node = host if role == "host" else warren.open(tmp_path / "node", share=True)
    queue, exchange, topic = node.queue("q"), node.exchange("x", "fanout"), node.topic("t")
    node.bind(queue, exchange)
    queue.publish_many([b"1"] * 3).wait(LONG_S)
    topic.append(b"1").wait(LONG_S)
    delivered, consumer = queue.get(), node.queue("empty").consume()
    assert delivered is not None
    handles = REAL_VERBS | {
        "wait for a message": lambda _: consumer.receive(LONG_S),
        "ack": lambda _: (delivered.ack(), queue.sync()),
        "publish with the queue": lambda _: queue.publish(b"2").wait(LONG_S),
        "publish with the exchange": lambda _: exchange.publish(b"2").wait(LONG_S),
        "publish many": lambda _: exchange.publish_many([b"2", b"3"]).wait(LONG_S),
        "count": lambda _: len(queue),
        "append with the topic": lambda _: topic.append(b"2").wait(LONG_S),
        "close": lambda _: node.close(),
    }
    (tmp_path / "node").rename(tmp_path / "elsewhere")
    with pytest.raises(DirectoryLostError):
        host.queue("new")
    outcomes = {name: outcome(verb, node) for name, verb in handles.items()}
    assert outcomes == dict.fromkeys(handles, DirectoryLostError)
    with contextlib.suppress(DirectoryLostError):
        host.close()


def test_a_publisher_that_waits_for_the_end_of_an_alarm_gets_the_error(tmp_path: Path) -> None:
    node = warren.open(tmp_path / "node", disk_free_limit=1 << 60)
    queue, errors = node.queue("q"), list[Exception]()

    def publish() -> None:
        try:
            queue.publish(b"1").wait(LONG_S)
        except WarrenError as error:
            errors.append(error)

    publisher = threading.Thread(target=publish, daemon=True)
    publisher.start()
    wait_until(lambda: node._running.gate.held, "it waits")
    (tmp_path / "node").rename(tmp_path / "elsewhere")
    with pytest.raises(DirectoryLostError):
        node.queue("new")
    publisher.join(LONG_S)
    assert [type(error) for error in errors] == [DirectoryLostError]
    with pytest.raises(DirectoryLostError):
        node.close()


def test_an_error_that_is_raised_again_and_again_does_not_grow() -> None:
    scene = scene_with()
    queue = scene.node.queue("q")
    scene.files.delete_tree(DATA)
    with pytest.raises(WarrenError):
        queue.sync()
    scene.run()
    for verb in (queue.get, lambda: queue.publish(b"2"), lambda: scene.node.queue("new")):
        depths = []
        for _ in range(3):
            with pytest.raises(DirectoryLostError) as raised:
                verb()
            depths.append(len(raised.traceback))
        assert len(set(depths)) == 1


def test_what_groups_write_down_now_and_then_does_not_make_a_removed_directory_anew(tmp_path: Path) -> None:
    node = warren.open(tmp_path / "node")
    topic = node.topic("t")
    topic.append(b"1").wait()
    next(iter(topic.reader("g")))
    groups = node._running.topics_now().groups
    groups.consumer_groups.note("t", "g", 0, 1)
    (tmp_path / "node").rename(tmp_path / "elsewhere")
    groups._save()
    assert not (tmp_path / "node").exists()
    with pytest.raises(DirectoryLostError):
        node.close()


@pytest.mark.slow
def test_entries_of_a_message_that_is_not_safe_yet_do_not_make_a_removed_directory_anew() -> None:
    """A message was written to the file that is still open, and the first entry of its queue made the directory."""
    scene = scene_with()
    topic = scene.node.topic("t")
    topic.append(b"2", queue=1)
    scene.run()
    scene.files.delete_tree(DATA)
    scene.advance(2 * DISPATCH_DELAY_MS / 1000)
    assert not scene.files.exists(DATA)


def test_a_plain_vhost_says_that_nothing_is_safe(tmp_path: Path) -> None:
    vhost = warren.engine.open_vhost(tmp_path / "node")
    queue = vhost.queue(b"q")
    shutil.rmtree(tmp_path / "node")
    queue.publish(vhost.envelope(b"q"), vhost.msg_ids.one(), b"1")
    for verb in (vhost.sync, vhost.close):
        with pytest.raises(DirectoryLostError):
            verb()
