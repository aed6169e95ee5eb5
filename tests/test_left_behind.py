"""What a program leaves at its end: acks that were not waited for, consumers that were never closed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.runtime_tools import HandNode, hand_node
from warren.handles.queue import Queue
from warren.storage.memory import MemoryFileSystem


@pytest.fixture
def scene() -> Iterator[HandNode]:
    found = hand_node()
    yield found
    if not found.node._running._forked:
        found.node.close()


def filled(scene: HandNode, count: int = 10) -> Queue:
    queue = scene.node.queue("q")
    queue.publish_many([b"%d" % number for number in range(count)]).wait()
    return queue


def bodies_after(disk: MemoryFileSystem) -> list[bytes]:
    again = hand_node(disk)
    found = [message.body for message in again.node.queue("q").browse()]
    again.node.close()
    return found


def test_acks_that_nobody_waits_for_are_safe_after_the_sync_interval(scene: HandNode) -> None:
    consumer = filled(scene).consume(prefetch=4)
    for _ in range(7):
        next(consumer).ack()
    scene.advance(0.03)
    assert bodies_after(scene.kill()) == [b"7", b"8", b"9"]


def test_acks_of_a_queue_that_consumers_keep_awake_are_safe(scene: HandNode) -> None:
    queue = filled(scene)
    held, done = queue.get_many(2)
    done.ack()
    scene.advance(5)
    assert bodies_after(scene.kill()) == [b"0", *(b"%d" % number for number in range(2, 10))]
    assert not held.settled


@pytest.mark.parametrize("sync", ["os", "group", "always"])
def test_what_was_taken_without_acks_or_purged_stays_away(sync: str) -> None:
    scene = hand_node(sync=sync)
    queue = filled(scene)
    assert len(queue.get_many(4, auto_ack=True)) == 4
    scene.advance(0.03)
    left = bodies_after(scene.kill())
    assert left == [b"%d" % number for number in range(4, 10)]
    scene = hand_node(sync=sync)
    assert filled(scene).purge() == 10
    scene.advance(0.03)
    assert bodies_after(scene.kill()) == []


def test_a_loop_that_was_left_gives_its_messages_back(scene: HandNode) -> None:
    queue = filled(scene)
    for delivery in queue.consume():
        delivery.ack()
        break
    del delivery
    scene.run()
    stats = queue.stats()
    assert (stats["messages_ready"], stats["messages_unacknowledged"], stats["consumers"]) == (9, 0, 0)
    again = queue.get()
    assert again is not None
    assert (again.body, again.redelivered) == (b"1", True)


def test_a_handle_that_is_gone_gives_back_what_it_got(scene: HandNode) -> None:
    filled(scene)
    taken = scene.node.queue("q").get_many(3)
    assert scene.node.queue("q").stats()["messages_unacknowledged"] == 3
    del taken
    scene.run()
    assert scene.node.queue("q").stats()["messages_ready"] == 10
