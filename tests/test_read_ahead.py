"""Messages at the head that go out before a turn has taken them off: gets one by one cost no turn each."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest

import warren
from tests.support.runtime_tools import HandNode, actor_of, bodies, hand_node, next_of
from tests.support.striking import struck_at
from warren import Delivery, Queue
from warren.actors.engines.queue.read_ahead import MOST_AHEAD
from warren.actors.messages import SetDurationTarget


def backlog(count: int, **settings: object) -> tuple[HandNode, Queue]:
    """A node, and a queue of it with ``count`` messages, safe and never delivered."""
    scene = hand_node(**settings)  # type: ignore[arg-type]
    queue = scene.node.queue("q")
    queue.publish_many([b"%d" % number for number in range(count)]).wait()
    return scene, queue


def one_by_one(queue: Queue, count: int) -> list[Delivery]:
    return [delivery for _ in range(count) if (delivery := queue.get()) is not None]


def test_gets_and_acks_one_by_one_take_two_turns_and_then_none() -> None:
    scene, queue = backlog(100)
    for delivery in one_by_one(queue, 2):
        delivery.ack()
    turns, operations = actor_of(queue).turn_count, scene.files.operations
    for number in range(2, 100):
        delivery = next_of(queue)
        assert (delivery.body, delivery.delivery_tag, delivery.redelivered) == (b"%d" % number, number + 1, False)
        assert delivery.routing_key == "q"
        delivery.ack()
    assert (actor_of(queue).turn_count, scene.files.operations) == (turns, operations)
    assert queue.get() is None
    scene.advance(0.05)
    assert (len(queue), queue.stats()["messages_unacknowledged"]) == (0, 0)
    scene.node.close()


def test_who_asks_now_and_then_has_a_turn_for_each() -> None:
    scene, queue = backlog(9)
    for _ in range(3):
        turns = actor_of(queue).turn_count
        one_by_one(queue, 1)
        assert actor_of(queue).intake.fast.ahead is None
        assert actor_of(queue).turn_count == turns + 1
        scene.advance(0.05)
    scene.node.close()


def test_who_acks_each_before_he_asks_for_the_next_has_no_turn_for_it_while_he_goes_on() -> None:
    scene, queue = backlog(9)
    for delivery in one_by_one(queue, 1):
        delivery.ack()
    scene.advance(0.03)
    for delivery in one_by_one(queue, 1):
        delivery.ack()
    for number in range(2, 5):
        scene.advance(0.03)  # a sync takes off what went out, and leaves what follows it
        turns = actor_of(queue).turn_count
        (delivery,) = one_by_one(queue, 1)
        assert (delivery.body, actor_of(queue).turn_count) == (b"%d" % number, turns)
        delivery.ack()
    scene.advance(0.1)
    assert actor_of(queue).intake.fast.ahead is None
    assert (len(queue), actor_of(queue).process.consumers.unacked) == (4, 0)
    scene.node.close()


def test_for_who_acks_each_and_is_slow_nothing_is_left_a_second_time() -> None:
    scene, queue = backlog(9)
    left = []
    for _ in range(4):
        (delivery,) = one_by_one(queue, 1)
        left.append(actor_of(queue).intake.fast.ahead is not None)
        delivery.ack()
        scene.advance(0.5)
        assert actor_of(queue).intake.fast.ahead is None
    assert left == [False, True, False, False]
    for delivery in one_by_one(queue, 3):  # quick again
        delivery.ack()
    assert actor_of(queue).intake.fast.ahead is not None
    scene.node.close()


def test_what_was_not_acked_is_unacked() -> None:
    scene, queue = backlog(10)
    held = one_by_one(queue, 6)
    for at in (1, 3, 4):
        held[at].ack()
    assert (len(queue), queue.stats()["messages_unacknowledged"]) == (4, 3)
    assert [(each.body, each.unacked) for each in queue.browse()][:4] == [
        (b"0", True),
        (b"2", True),
        (b"5", True),
        (b"6", False),
    ]
    held[5].ack()
    scene.advance(0.05)
    assert actor_of(queue).process.consumers.unacked == 2
    assert queue.release() == 2
    assert [(one.body, one.redelivered) for one in queue.get_many(3)] == [(b"0", True), (b"2", True), (b"6", False)]
    scene.node.close()


def test_an_ack_that_comes_twice_has_no_effect(caplog: pytest.LogCaptureFixture) -> None:
    scene, queue = backlog(10)
    held = one_by_one(queue, 5)
    queue._verbs.local.own_channel().settle("ack", held[3].delivery_tag)
    queue._verbs.local.own_channel().settle("ack", held[3].delivery_tag)
    scene.run()
    assert not caplog.text
    assert (len(queue), actor_of(queue).process.consumers.unacked) == (5, 4)
    scene.node.close()


@pytest.mark.parametrize("power", [False, True])
def test_after_a_crash_what_was_acked_within_the_last_interval_may_come_again_and_nothing_is_missing(
    power: bool,
) -> None:
    scene, queue = backlog(10)
    held = one_by_one(queue, 6)
    for one in held[:3]:
        one.ack()
    scene.advance(0.05)
    held[3].ack()
    files = scene.lose_power(random.Random(1)) if power else scene.kill()
    scene = hand_node(files)
    assert bodies(scene.node.queue("q")) == [b"%d" % number for number in range(3, 10)]
    scene.node.close()


def test_a_stop_keeps_what_was_not_acked() -> None:
    scene, queue = backlog(10)
    for one in one_by_one(queue, 6)[1:]:
        one.ack()
    scene.node.close()
    scene = hand_node(scene.files)
    found = scene.node.queue("q").get_many(9)
    assert [(one.body, one.redelivered) for one in found] == [(b"0", True)] + [
        (b"%d" % number, False) for number in range(6, 10)
    ]
    scene.node.close()


@pytest.mark.parametrize(
    "use", ["len", "publish", "publish_many", "purge", "consume", "another handle", "get_many", "delete", "memory"]
)
def test_whatever_the_queue_is_asked_then_it_is_as_if_each_had_had_its_turn(use: str) -> None:
    scene, queue = backlog(8)
    held = one_by_one(queue, 4)
    held[3].ack()
    rest = [b"%d" % number for number in range(4, 8)]
    if use == "len":
        assert len(queue) == 4
    elif use == "publish":
        queue.publish(b"8")
        assert [one.body for one in one_by_one(queue, 9)] == [*rest, b"8"]
    elif use == "publish_many":
        queue.publish_many([b"8", b"9"]).wait()
        assert [one.body for one in queue.get_many(9)] == [*rest, b"8", b"9"]
    elif use == "purge":
        assert queue.purge() == 4
    elif use == "consume":
        consumer = queue.consume(prefetch=9)
        scene.run()
        assert [one.body for one in iter(consumer.take_now, None)] == rest
        consumer.close()
    elif use == "another handle":
        other = scene.node.queue("q")
        assert [one.body for one in (*one_by_one(other, 2), *one_by_one(queue, 1), *one_by_one(other, 1))] == rest
        assert queue.release() == 4
        assert other.release() == 3
    elif use == "get_many":
        assert [one.body for one in queue.get_many(3)] == rest[:3]
    elif use == "delete":
        assert queue.delete() == 4
    elif use == "memory":
        actor_of(queue).actor_ref.tell(SetDurationTarget(0.0))
        scene.run()
        assert [one.body for one in one_by_one(queue, 9)] == rest
    scene.node.close()


def test_so_many_go_out_before_a_turn_has_to_come() -> None:
    count = MOST_AHEAD * 2 + 9
    scene, queue = backlog(count)
    turns = actor_of(queue).turn_count
    assert [one.body for one in one_by_one(queue, count)] == [b"%d" % number for number in range(count)]
    assert 3 <= actor_of(queue).turn_count - turns <= 5
    scene.node.close()


def test_a_backlog_that_is_not_in_memory_comes_in_order_too() -> None:
    scene, queue = backlog(300, target_ram_count_max=20, segment_entry_count=64)
    for number in range(300):
        delivery = queue.get()
        assert delivery is not None
        assert delivery.body == b"%d" % number
        delivery.ack()
    scene.advance(0.05)
    assert (len(queue), actor_of(queue).process.consumers.unacked) == (0, 0)
    scene.node.close()


@pytest.mark.parametrize("arguments", [{"x-message-ttl": 60_000}, {"x-max-length": 100}, {"x-max-priority": 3}])
def test_a_queue_that_has_to_look_at_each_message_first_reads_none_ahead(arguments: dict[str, object]) -> None:
    scene = hand_node()
    queue = scene.node.queue("q", arguments=arguments)
    queue.publish_many([b"1", b"2", b"3", b"4"]).wait()
    assert [one.body for one in one_by_one(queue, 3)] == [b"1", b"2", b"3"]
    assert actor_of(queue).intake.fast.ahead is None
    scene.node.close()


def test_a_message_with_a_time_to_live_is_not_read_ahead() -> None:
    scene, queue = backlog(4)
    queue.publish(b"4", expiration=5.0).wait()
    one_by_one(queue, 3)
    assert actor_of(queue).intake.fast.ahead is None
    scene.node.close()


def test_what_was_read_ahead_is_counted() -> None:
    scene, queue = backlog(6)
    actor = actor_of(queue)
    actor.count()
    for one in one_by_one(queue, 4)[1:]:
        one.ack()
    scene.advance(0.05)
    counts = actor.process.context.counts
    assert counts is not None
    assert (counts.delivered, counts.got, counts.acked) == (4, 4, 3)
    scene.node.close()


def test_it_is_used_as_far_as_expiry_of_the_queue_goes() -> None:
    scene = hand_node()
    queue = scene.node.queue("q", arguments={"x-expires": 1000})
    queue.publish_many([b"1", b"2", b"3"]).wait()
    scene.advance(0.9)
    one_by_one(queue, 3)
    scene.advance(0.9)
    assert len(queue) == 0, "it is there"
    scene.node.close()


@pytest.mark.parametrize("module", ["actors/queue/fast_paths.py", "actors/engines/queue/read_ahead.py"])
def test_ctrl_c_while_a_message_goes_out_loses_none_and_brings_none_twice(module: str) -> None:
    line, struck = 0, True
    while struck:
        line += 1
        scene, queue = backlog(6)
        for one in one_by_one(queue, 3):
            one.ack()
        got = list[bytes]()

        def work(queue: Queue = queue, got: list[bytes] = got) -> None:
            delivery = queue.get()
            assert delivery is not None
            delivery.ack()
            got.append(delivery.body)

        struck = struck_at(line, module, work)
        queue.release()
        left = bodies(queue)
        assert [*got, *left] in ([b"3", b"4", b"5"], [b"4", b"5"]), line
        if not struck:
            assert got == [b"3"]
        scene.node.close()
    assert line > 8


def test_threads_that_get_from_one_queue_share_it_out(tmp_path: Path) -> None:
    total = 4000
    with warren.open(tmp_path, sync="os") as node:
        queue = node.queue("q")
        queue.publish_many([b"%d" % number for number in range(total)]).wait()
        taken: list[list[int]] = []

        def work() -> None:
            mine: list[int] = []
            taken.append(mine)
            own = node.queue("q")
            while (delivery := own.get()) is not None:
                mine.append(int(delivery.body))
                delivery.ack()

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(number for mine in taken for number in mine) == [*range(total)]
        assert all(mine == sorted(mine) for mine in taken)
        assert queue.stats()["messages_unacknowledged"] == 0
