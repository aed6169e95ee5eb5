"""A node while it runs: what happens to what fails, whom a failure takes with it, and how it all ends."""

from __future__ import annotations

import contextlib
import os
import random
import time

import pytest

import warren
from tests.support.runtime_tools import BIG, DATA, bodies, hand_node, queue_path, store_path
from warren.actors.node.node_errors import UnsavedError
from warren.actors.node.node_registry import NodeRegistry
from warren.actors.queue.intake import QueueDownError
from warren.actors.queue.queue_entry import QueueEntry
from warren.storage.errors import StorageError, WarrenError
from warren.verbs.steps import run

pytestmark = pytest.mark.usefixtures("quiet")


def entry_of(queue: warren.Queue) -> QueueEntry:
    return queue._verbs.entry


def break_queue(queue: warren.Queue) -> None:
    """Let the queue's state contradict itself: the next turn finds out."""
    actor = entry_of(queue).actor
    (_, level), *_ = actor.process.backing.awake()
    level.state.length += 1


# ── supervision of queues ───────────────────────────────────────────────────────────────────────────────────────────


def test_a_queue_that_contradicts_itself_is_started_anew_from_its_files() -> None:
    scene = hand_node()
    queue, other = scene.node.queue("q"), scene.node.queue("other")
    queue.publish_many([b"1", b"2", BIG]).wait()
    break_queue(queue)
    with pytest.raises((RuntimeError, QueueDownError)):  # noqa: PT012 - the first notices, or the second
        queue.get_many(1)
        queue.stats()
    scene.run()
    assert bodies(queue) == [b"1", b"2", BIG]
    other.publish(b"x").wait()
    assert [one.body for one in queue.get_many(5, auto_ack=True)] == [b"1", b"2", BIG]
    assert scene.node.failed_queues == {}
    scene.node.close()


def test_a_write_that_fails_ends_the_queue_unconfirmed_and_it_comes_back() -> None:
    scene = hand_node()
    queue = scene.node.queue("q")
    queue.publish(b"safe").wait()
    scene.files.fail("append", f"{queue_path('q')}/*")
    confirm = queue.publish(b"lost")
    with pytest.raises(WarrenError):
        confirm.wait()
    scene.run()
    assert bodies(queue) == [b"safe"]
    queue.publish(b"next").wait()
    assert bodies(queue) == [b"safe", b"next"]
    scene.node.close()


def test_a_sync_that_fails_confirms_nothing() -> None:
    scene = hand_node()
    queue = scene.node.queue("q")
    queue.publish(b"safe").wait()
    scene.files.fail("sync", f"{queue_path('q')}/*")
    confirms = [queue.publish(b"a"), queue.publish_many([b"b", b"c"])]
    scene.advance(1)
    for confirm in confirms:
        assert confirm.done
        with pytest.raises(WarrenError):
            confirm.wait()
    queue.publish(b"next").wait()
    assert b"next" in bodies(queue)
    scene.node.close()


def test_a_queue_that_fails_too_often_stays_down_with_the_reason_and_others_serve() -> None:
    scene = hand_node(restart_limit=(2, 10.0))
    queue, other = scene.node.queue("q"), scene.node.queue("other")
    queue.publish(b"safe").wait()
    for _ in range(3):
        scene.files.fail("append", f"{queue_path('q')}/*")
        with pytest.raises(WarrenError):
            queue.publish(b"x").wait()
        scene.run()
    assert "failed on purpose" in scene.node.failed_queues["q"]
    for work in (lambda: queue.publish(b"y"), queue.get, lambda: len(queue), queue.consume):
        with pytest.raises(QueueDownError, match="failed on purpose"):
            work()
    other.publish(b"z").wait()
    assert bodies(other) == [b"z"]
    scene.node.close()
    scene.files.plan.failures.clear()
    again = hand_node(scene.files)
    assert bodies(again.node.queue("q")) == [b"safe"]
    again.node.close()


def test_failures_that_are_long_ago_do_not_count() -> None:
    scene = hand_node(restart_limit=(2, 10.0))
    queue = scene.node.queue("q")
    for _ in range(6):
        scene.files.fail("append", f"{queue_path('q')}/*")
        with pytest.raises(WarrenError):
            queue.publish(b"x").wait()
        scene.advance(6)
    assert scene.node.failed_queues == {}
    queue.publish(b"y").wait()
    scene.node.close()


def test_a_consumer_of_a_queue_that_fails_is_told_why() -> None:
    scene = hand_node()
    queue = scene.node.queue("q")
    consumer = queue.consume(timeout=0)
    scene.files.fail("append", f"{queue_path('q')}/*")
    with pytest.raises(WarrenError):
        queue.publish(b"x").wait()
    with pytest.raises(QueueDownError, match="failed on purpose"):
        consumer.receive(0)
    scene.run()
    queue.publish(b"y").wait()
    with queue.consume(timeout=0) as another:
        assert [delivery.body for delivery in another] == [b"y"]
    scene.node.close()


def test_deliveries_of_a_queue_that_was_started_anew_come_again_and_old_ones_cannot_be_acked() -> None:
    scene = hand_node()
    queue = scene.node.queue("q")
    queue.publish_many([b"1", b"2"]).wait()
    (old,) = queue.get_many(1)
    scene.files.fail("append", f"{queue_path('q')}/*")
    with pytest.raises(WarrenError):
        queue.publish(b"x").wait()
    scene.run()
    with pytest.raises(WarrenError):
        old.ack()
    again = queue.get_many(5)
    assert [one.body for one in again] == [b"1", b"2"]
    assert again[0].redelivered
    queue.ack(again)
    scene.run()
    assert len(queue) == 0
    scene.node.close()


def test_a_queue_whose_files_cannot_be_deleted_fails_alone() -> None:
    scene = hand_node()
    queue, other = scene.node.queue("q"), scene.node.queue("other")
    queue.publish(b"1").wait()
    scene.files.fail("delete_tree", f"{queue_path('q')}")
    with pytest.raises(WarrenError):
        queue.delete()
    scene.run()
    other.publish(b"z").wait()
    assert bodies(other) == [b"z"]
    scene.node.queue("new").publish(b"n").wait()
    scene.node.delete_queue("q")
    with pytest.raises(WarrenError):
        scene.node.queue("q", passive=True)
    scene.node.close()


# ── stores ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", ["append", "sync"])
def test_a_store_that_fails_takes_its_vhost_down_and_up_again_and_handles_go_on(kind: str) -> None:
    scene = hand_node()
    queue, small = scene.node.queue("q"), scene.node.queue("small")
    elsewhere = scene.node.vhost("elsewhere").queue("q")
    queue.publish_many([BIG, b"2", BIG]).wait()
    small.publish(b"s").wait()
    elsewhere.publish(b"e").wait()
    scene.files.fail(kind, f"{store_path()}/*")
    confirm = queue.publish(BIG)
    with pytest.raises(WarrenError):
        confirm.wait()
    scene.run()
    assert bodies(queue)[:3] == [BIG, b"2", BIG]
    assert bodies(small) == [b"s"]
    assert bodies(elsewhere) == [b"e"]
    queue.publish(BIG + b"again").wait()
    assert bodies(queue)[-1] == BIG + b"again"
    assert scene.node.failed_queues == {}
    scene.node.close()
    again = hand_node(scene.files, seed=1)
    assert bodies(again.node.queue("q"))[-1] == BIG + b"again"
    again.node.close()


def test_a_vhost_that_cannot_be_opened_anew_is_down_and_the_others_serve() -> None:
    scene = hand_node()
    queue = scene.node.queue("q")
    elsewhere = scene.node.vhost("elsewhere").queue("q")
    queue.publish(BIG).wait()
    scene.files.fail("append", f"{store_path()}/*", times=1)
    scene.files.fail("sync_directory", f"{os.path.dirname(store_path())}*", times=1000)
    with pytest.raises(WarrenError):
        queue.publish(BIG).wait()
    scene.run()
    with pytest.raises(WarrenError):
        queue.publish(b"x").wait()
    elsewhere.publish(b"e").wait()
    assert bodies(elsewhere) == [b"e"]
    scene.node.close()
    scene.files.plan.failures.clear()
    again = hand_node(scene.files.after_process_crash(), seed=1)
    assert bodies(again.node.queue("q")) == [BIG]
    again.node.close()


def test_a_vhost_whose_store_fails_again_and_again_stays_down_with_the_reason() -> None:
    scene = hand_node(restart_limit=(3, 10.0), msg_store_file_size_limit=20_000)
    queue = scene.node.queue("q")
    elsewhere = scene.node.vhost("elsewhere").queue("q")
    queue.publish_many([BIG] * 20).wait()
    queue.purge()
    scene.run()
    files = scene.kill()
    files.fail("delete", f"{store_path()}/*.rdq", times=1000)
    scene = hand_node(files, seed=1, restart_limit=(3, 10.0), msg_store_file_size_limit=20_000)
    queue, elsewhere = scene.node.queue("q"), scene.node.vhost("elsewhere").queue("q")
    for _ in range(10):
        with contextlib.suppress(WarrenError):
            queue.publish_many([BIG] * 20).wait()
            queue.purge()
        scene.run()
    with pytest.raises(WarrenError, match="failed on purpose"):
        queue.publish(b"x")
    with pytest.raises(WarrenError, match="failed on purpose"):
        scene.node.queue("q")
    elsewhere.publish(b"e").wait()
    scene.node.close()


def test_a_read_that_fails_costs_no_message() -> None:
    scene = hand_node()
    scene.node.queue("q").publish_many([BIG, b"2"]).wait()
    scene.node.close()
    scene = hand_node(scene.files, seed=1)
    queue = scene.node.queue("q")
    scene.files.fail("pread", f"{store_path()}/*", times=100)
    with pytest.raises(StorageError):
        queue.get_many(1)
    scene.files.plan.failures.clear()
    scene.run()
    assert [one.body for one in queue.get_many(5)] == [BIG, b"2"]
    scene.node.close()


# ── closing ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_closing_answers_every_confirm_and_keeps_every_message() -> None:
    scene = hand_node()
    queue = scene.node.queue("q")
    confirms = [queue.publish(b"1"), queue.publish(BIG), queue.publish_many([b"2", BIG])]
    scene.node.close()
    for confirm in confirms:
        assert confirm.done
        confirm.wait()
    again = hand_node(scene.lose_power(random.Random(1)), seed=1)
    assert bodies(again.node.queue("q")) == [b"1", BIG, b"2", BIG]
    again.node.close()


def test_a_confirm_at_closing_comes_when_the_store_is_safe_and_not_before() -> None:
    scene = hand_node()
    queue = scene.node.queue("q")
    confirm = queue.publish(BIG)
    scene.files.fail("sync", f"{store_path()}/*", times=10)
    with pytest.raises(WarrenError):
        scene.node.close()
    assert confirm.done
    with pytest.raises(WarrenError):
        confirm.wait()


def test_closing_twice_is_fine_and_everything_else_says_that_it_is_closed() -> None:
    scene = hand_node()
    queue = scene.node.queue("q")
    consumer = queue.consume(timeout=0)
    scene.node.close()
    scene.node.close()
    for work in (
        lambda: scene.node.queue("q"),
        lambda: queue.publish(b"x"),
        queue.get,
        scene.node.memory,
        scene.node.vhosts,
    ):
        with pytest.raises(WarrenError):
            work()
    assert consumer.receive(0) is None
    consumer.close()


def test_a_node_that_nobody_closed_is_opened_again() -> None:
    scene = hand_node()
    queue = scene.node.queue("q")
    queue.publish_many([b"1", BIG]).wait()
    queue.publish(b"written, not confirmed")
    again = hand_node(scene.lose_power(random.Random(3)), seed=1)
    assert bodies(again.node.queue("q"))[:2] == [b"1", BIG]
    again.node.close()


def test_a_clean_stop_is_known_as_one_and_queues_are_asleep() -> None:
    scene = hand_node()
    for number in range(3):
        scene.node.queue(f"q{number}").publish_many([b"1", BIG]).wait()
    scene.node.close()
    again = hand_node(scene.files, seed=1)
    again.run()
    assert all(entry_of(queue).actor.process.backing.asleep for queue in again.node.queues())
    assert [len(queue) for queue in again.node.queues()] == [2, 2, 2]
    again.node.close()


def test_an_emptied_queue_is_asleep_after_a_clean_stop_and_goes_on() -> None:
    scene = hand_node()
    queue = scene.node.queue("q")
    queue.publish_many([b"1", BIG]).wait()
    queue.ack(queue.get_many(2))
    scene.node.close()
    again = hand_node(scene.files, seed=1)
    queue = again.node.queue("q")
    again.run()
    assert entry_of(queue).actor.process.backing.asleep
    assert (len(queue), queue.get()) == (0, None)
    queue.publish_many([b"3", b"4"]).wait()
    entry_of(queue).actor.process.backing.level(0).check_invariants()
    once_more = hand_node(again.lose_power(random.Random(3)), seed=2)
    assert bodies(once_more.node.queue("q")) == [b"3", b"4"]
    once_more.node.close()


def test_a_queue_that_cannot_be_closed_does_not_keep_the_others_from_it() -> None:
    scene = hand_node()
    bad, good = scene.node.queue("bad"), scene.node.queue("good")
    bad.publish(b"1").wait()
    good.publish(b"2").wait()
    scene.files.fail("sync", f"{queue_path('bad')}/*", times=10)
    lost = bad.publish(b"unconfirmed")
    with pytest.raises(StorageError, match="sync failed on purpose"):
        scene.node.close()
    with pytest.raises(WarrenError):
        lost.wait()
    scene.files.plan.failures.clear()
    again = hand_node(scene.files, seed=1)
    assert bodies(again.node.queue("bad"))[:1] == [b"1"]
    assert bodies(again.node.queue("good")) == [b"2"]
    again.node.close()


# ── ten thousand queues ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@pytest.mark.parametrize("durable", [True, False])
def test_what_it_costs_to_declare_a_queue_does_not_rise_with_how_many_there_are(durable: bool) -> None:
    scene = hand_node(check_invariants=False)
    count = 3000

    def declare(first: int) -> tuple[int, float]:
        operations, began = scene.files.operations, time.process_time()
        for number in range(first, first + 100):
            scene.node.queue(f"q{number}", durable=durable)
        return scene.files.operations - operations, time.process_time() - began

    early = declare(0)
    for number in range(100, count - 100):
        scene.node.queue(f"q{number}", durable=durable)
    late = min((declare(first) for first in (count - 100, count, count + 100)), key=lambda cost: cost[1])
    assert late[0] <= early[0]
    assert late[1] < 10 * early[1] + 0.05, "declaring a queue is slower the more there are"
    scene.kill()


def test_a_definition_that_cannot_be_saved_fails_the_change_and_not_the_node() -> None:
    scene = hand_node()
    queue = scene.node.queue("q")
    queue.publish(b"1").wait()
    scene.files.fail("append", f"{DATA}/*definitions*")
    with pytest.raises(UnsavedError):
        scene.node.queue("new")
    with pytest.raises(warren.errors.NotFoundError):
        scene.node.queue("new", passive=True)
    scene.files.fail("append", f"{DATA}/*definitions*")
    with pytest.raises(UnsavedError):
        scene.node.vhost("new")
    assert scene.node.vhosts() == ["/"]
    scene.run()
    queue.publish(b"2").wait()
    assert bodies(queue) == [b"1", b"2"]
    scene.node.queue("new").publish(b"n").wait()
    scene.node.close()
    again = hand_node(scene.files, seed=1)
    assert bodies(again.node.queue("new", passive=True)) == [b"n"]
    again.node.close()


def test_a_node_that_has_failed_says_why_to_everybody() -> None:
    scene = hand_node()
    queue = scene.node.queue("q")
    queue.publish(b"1").wait()

    def break_what_is_declared(registry: NodeRegistry) -> None:
        registry.definitions.vhost("/").routing.add_queue("nobody's")
        raise ZeroDivisionError

    with pytest.raises(RuntimeError, match="default exchange"):
        run(scene.node._running.change(break_what_is_declared))
    scene.run()
    for work in (lambda: scene.node.queue("other"), scene.node.vhosts, lambda: queue.publish(b"2"), scene.node.memory):
        with pytest.raises(WarrenError):
            work()
    again = hand_node(scene.files, seed=1)  # its directory was given free
    assert bodies(again.node.queue("q")) == [b"1"]
    again.node.close()
