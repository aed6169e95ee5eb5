"""A data directory that is removed, or replaced, while a node runs in it: nothing is called safe there any more."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import warren
from tests.support.runtime_tools import DATA, HandNode, hand_node
from warren.actors.topics.commit_log_actor import DISPATCH_DELAY_MS
from warren.storage.errors import DirectoryLostError, WarrenError

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


def test_what_groups_write_down_now_and_then_does_not_make_a_removed_directory_anew(tmp_path: Path) -> None:
    node = warren.open(tmp_path / "node")
    topic = node.topic("t")
    topic.append(b"1").wait()
    next(iter(topic.reader("g")))
    groups = node._running.topics_now().groups
    groups.note("t", "g", 0, 1)
    (tmp_path / "node").rename(tmp_path / "elsewhere")
    groups._persist()
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
