"""A node from opening to closing: supervision, damage, crashes while things are declared, whose directory it is."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import time
from collections.abc import Callable
from typing import Any

import pytest
from runtime_tools import DATA, HandNode, forget_actors, hand_node

import warren
from actors.node_actor import ForeignDirectoryError, UnsavedError
from actors.queue_actor import QueueDownError
from actors.running_vhost import QueueCell
from queue_index import directory as names
from storage.errors import DataError, DirectoryLockedError, WarrenError
from storage.faults import FaultRules, SimulatedCrash
from storage.filesystem import write_file
from storage.memory import MemoryFileSystem

SMALL = {"segment_entry_count": 16, "queue_index_max_journal_entries": 8}
BIG = b"B" * 5000
"""Goes to the shared store."""


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "warren")


def queue_path(queue: str, vhost: str = "/") -> str:
    directory = names.vhost_directory_name(vhost.encode())
    entry = names.queue_directory_name(vhost.encode(), queue.encode())
    return f"{DATA}/msg_stores/vhosts/{directory}/queues/{entry}"


def store_path(vhost: str = "/") -> str:
    return f"{DATA}/msg_stores/vhosts/{names.vhost_directory_name(vhost.encode())}/msg_store_persistent"


def bodies(queue: warren.Queue) -> list[bytes]:
    return [message.body for message in queue.browse()]


def cell_of(queue: warren.Queue) -> QueueCell:
    return queue._cell


def break_queue(queue: warren.Queue) -> None:
    """Let the queue's state contradict itself: the next turn finds out."""
    actor = cell_of(queue).actor
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
    assert scene.node.down == {}
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
    assert "failed on purpose" in scene.node.down["q"]
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
    assert scene.node.down == {}
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
    assert scene.node.down == {}
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
    scene = hand_node(segment_entry_count=16)
    queue = scene.node.queue("q")
    queue.publish_many([BIG, b"2"]).wait()
    queue.set_mode("lazy")
    scene.run()
    scene.files.fail("pread", f"{store_path()}/*")
    with pytest.raises(WarrenError):
        queue.get_many(1)
        queue.get_many(1)
    scene.run()
    assert [one.body for one in queue.get_many(5)] == [BIG, b"2"]
    scene.node.close()


# ── damage that is found when a directory is opened ─────────────────────────────────────────────────────────────────


def test_a_queue_whose_name_file_is_damaged_is_down_and_the_rest_serves() -> None:
    scene = hand_node(MemoryFileSystem(random.Random(0), rules=FaultRules(damage=True)))
    scene.node.queue("bad").publish_many([b"1", BIG]).wait()
    scene.node.queue("good").publish(b"g").wait()
    scene.node.close()
    path = f"{queue_path('bad')}/{names.QUEUE_NAME_FILE}"
    scene.files.flip_bit(path, scene.files.size(path) // 2, 3)
    again = hand_node(scene.files, seed=1)
    assert list(again.node.down) == ["bad"]
    with pytest.raises(QueueDownError) as caught:
        again.node.queue("bad", passive=True).publish(b"x")
    assert names.QUEUE_NAME_FILE in str(caught.value)
    assert bodies(again.node.queue("good")) == [b"g"]
    again.node.close()


def test_a_queue_whose_segment_is_damaged_is_down_with_the_file_and_the_rest_serves() -> None:
    scene = hand_node(MemoryFileSystem(random.Random(0), rules=FaultRules(damage=True)), **SMALL)
    for number in range(40):
        scene.node.queue("bad").publish(b"%d" % number).wait()
    scene.node.queue("good").publish(b"g").wait()
    scene.node.close()
    path = f"{queue_path('bad')}/0.idx"
    scene.files.flip_bit(path, 0, 0)
    again = hand_node(scene.files.after_process_crash(), seed=1, **SMALL)
    assert bodies(again.node.queue("good")) == [b"g"]
    with pytest.raises((QueueDownError, DataError)) as caught:
        bodies(again.node.queue("bad"))
    assert "0.idx" in str(caught.value)
    again.run()
    assert "0.idx" in again.node.down["bad"]
    again.node.close()


def test_a_damaged_directory_that_no_definition_names_keeps_nothing_else_from_being_opened() -> None:
    scene = hand_node(MemoryFileSystem(random.Random(0), rules=FaultRules(damage=True)), **SMALL)
    bad = scene.node.queue("bad")
    for number in range(40):
        bad.publish(b"%d" % number).wait()
    scene.node.queue("good").publish(b"g").wait()
    files = scene.kill()
    files.flip_bit(f"{queue_path('bad')}/0.idx", 0, 0)
    forget_definitions(files)
    again = hand_node(files, seed=1, **SMALL)
    assert bodies(again.node.queue("good")) == [b"g"]
    again.run()
    assert "0.idx" in again.node.down["bad"]
    third = hand_node(again.kill(), seed=2, **SMALL)
    third.run()
    assert "0.idx" in third.node.down["bad"]
    third.node.close()


def test_a_vhost_can_be_deleted_though_a_queue_of_it_is_down() -> None:
    scene = hand_node(restart_limit=(0, 10.0))
    vhost = scene.node.vhost("v")
    queue = vhost.queue("q")
    scene.files.fail("append", f"{queue_path('q', 'v')}/*")
    with pytest.raises(WarrenError):
        queue.publish(b"x").wait()
    scene.run()
    assert list(vhost.down) == ["q"]
    vhost.queue("other").publish(b"o").wait()
    scene.node.delete_vhost("v")
    assert scene.node.vhosts() == ["/"]
    with pytest.raises(WarrenError):
        queue.publish(b"x")
    assert vhost.name not in scene.node.actor.vhosts
    assert not any("/v" in path and names.vhost_directory_name(b"v") in path for path in scene.files.contents())
    scene.node.close()


def test_definitions_that_are_damaged_say_where() -> None:
    scene = hand_node(MemoryFileSystem(random.Random(0), rules=FaultRules(damage=True)))
    scene.node.queue("q").publish(b"1").wait()
    scene.node.close()
    path = next(path for path in scene.files.contents() if "definitions" in path)
    scene.files.flip_bit(path, 0, 3)
    with pytest.raises(DataError, match="definitions"):
        hand_node(scene.files)


# ── whose directory it is ───────────────────────────────────────────────────────────────────────────────────────────


def test_a_directory_that_is_in_use_says_by_which_process() -> None:
    scene = hand_node()
    with pytest.raises(DirectoryLockedError, match=f"process {os.getpid()}"):
        hand_node(scene.files)
    scene.node.queue("q").publish(b"1").wait()
    scene.node.close()
    assert not any(path.endswith("warren.lock") for path in scene.files.contents())
    hand_node(scene.files).node.close()


def forget_definitions(files: MemoryFileSystem) -> None:
    """Put those of an empty node in the place of the definitions."""
    empty = MemoryFileSystem(random.Random(0))
    hand_node(empty).node.close()
    for path in [path for path in files.contents() if "definitions" in path]:
        files.delete(path)
    for path in [path for path in empty.contents() if "definitions" in path]:
        write_file(files, path, empty.read(path), sync=True)


def foreign(files: MemoryFileSystem) -> None:
    """Make it a directory that warren knows nothing of: a broker's."""
    scene = hand_node(files)
    scene.node.queue("q").publish_many([b"1", BIG]).wait()
    scene.node.queue("empty")
    scene.node.vhost("other").queue("in other").publish(b"o").wait()
    scene.node.close()
    for path in list(files.contents()):
        if "definitions" in path:
            files.delete(path)


def test_a_foreign_directory_is_refused_untouched_and_can_be_adopted() -> None:
    files = MemoryFileSystem(random.Random(0))
    foreign(files)
    before = files.contents()
    with pytest.raises(ForeignDirectoryError, match="adopt"):
        hand_node(files)
    assert files.contents() == before
    scene = hand_node(files, adopt=True)
    assert bodies(scene.node.queue("q")) == [b"1", BIG]
    assert sorted(scene.node.vhosts()) == ["/", "other"]
    assert bodies(scene.node.vhost("other").queue("in other")) == [b"o"]
    scene.node.close()
    again = hand_node(files)
    assert bodies(again.node.queue("q")) == [b"1", BIG]
    again.node.close()


@pytest.mark.parametrize("power", [False, True])
def test_a_crash_while_a_directory_is_opened_first_leaves_none_that_looks_foreign(power: bool) -> None:
    files = MemoryFileSystem(random.Random(0))
    scene = hand_node(files)
    total = files.operations
    scene.kill()
    for operation in range(1, total + 1):
        files = MemoryFileSystem(random.Random(operation))
        files.crash_at(operation, torn=True)
        with pytest.raises(SimulatedCrash):
            hand_node(files)
        left = files.after_power_loss(random.Random(operation)) if power else files.after_process_crash()
        again = hand_node(left)
        again.node.queue("q").publish(b"1").wait()
        again.node.close()
        again = hand_node(left)
        assert bodies(again.node.queue("q")) == [b"1"]
        again.node.close()


def test_a_directory_without_a_definition_is_taken_in() -> None:
    scene = hand_node()
    scene.node.queue("plain").publish(b"1").wait()
    scene.node.queue("levels", arguments={"x-max-priority": 3}).publish(b"high", priority=3).wait()
    scene.node.close()
    forget_definitions(scene.files)
    again = hand_node(scene.files, seed=1)
    assert bodies(again.node.queue("plain")) == [b"1"]
    assert bodies(again.node.queue("levels", passive=True)) == [b"high"]
    assert again.node.queue("levels", passive=True).arguments["x-max-priority"] == 3
    again.node.close()


# ── what is not to survive ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("crash", [True, False])
@pytest.mark.parametrize("kind", [{"durable": False}, {"exclusive": True}])
def test_a_queue_that_is_not_to_survive_leaves_nothing(kind: dict[str, bool], crash: bool) -> None:
    scene = hand_node()
    scene.node.queue("kept").publish(b"k").wait()
    queue = scene.node.queue("gone", **kind)  # type: ignore[arg-type]
    queue.publish_many([b"1", BIG]).wait()
    if crash:
        files = scene.kill()
    else:
        scene.node.close()
        files = scene.files
    again = hand_node(files, seed=1)
    assert sorted(queue.name for queue in again.node.queues()) == ["kept"]
    with pytest.raises(warren.NotFoundError):
        again.node.queue("gone", passive=True)
    again.run()
    assert not any(path.startswith(queue_path("gone")) for path in files.contents())
    assert again.node.stats()["vhosts"]["/"]["stores"]["persistent"]["messages"] == 0
    again.node.close()


def test_an_exclusive_queue_is_its_owners_alone() -> None:
    scene = hand_node()
    mine, other = scene.node.vhost(), scene.node.vhost()
    queue = mine.queue("q", exclusive=True)
    queue.publish(b"1").wait()
    assert bodies(mine.queue("q", exclusive=True)) == [b"1"]
    for work in (lambda: other.queue("q", exclusive=True), lambda: other.queue("q", passive=True)):
        with pytest.raises(warren.ResourceLockedError):
            work()
    mine.release()
    with pytest.raises(warren.NotFoundError):
        other.queue("q", passive=True)
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
    assert all(cell_of(queue).actor.process.is_asleep for queue in again.node.queues())
    assert [len(queue) for queue in again.node.queues()] == [2, 2, 2]
    again.node.close()


def test_a_queue_that_cannot_be_closed_does_not_keep_the_others_from_it() -> None:
    scene = hand_node()
    bad, good = scene.node.queue("bad"), scene.node.queue("good")
    bad.publish(b"1").wait()
    good.publish(b"2").wait()
    scene.files.fail("sync", f"{queue_path('bad')}/*", times=10)
    lost = bad.publish(b"unconfirmed")
    scene.node.close()
    with pytest.raises(WarrenError):
        lost.wait()
    scene.files.plan.failures.clear()
    again = hand_node(scene.files, seed=1)
    assert bodies(again.node.queue("bad"))[:1] == [b"1"]
    assert bodies(again.node.queue("good")) == [b"2"]
    again.node.close()


# ── ten thousand queues ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("durable", [True, False])
def test_what_it_costs_to_declare_a_queue_does_not_rise_with_how_many_there_are(durable: bool) -> None:
    scene = hand_node(check_invariants=False)
    count = 3000

    def declare(first: int) -> tuple[int, float]:
        operations, began = scene.files.operations, time.perf_counter()
        for number in range(first, first + 100):
            scene.node.queue(f"q{number}", durable=durable)
        return scene.files.operations - operations, time.perf_counter() - began

    early = declare(0)
    for number in range(100, count - 100):
        scene.node.queue(f"q{number}", durable=durable)
    late = min((declare(first) for first in (count - 100, count, count + 100)), key=lambda cost: cost[1])
    assert late[0] <= early[0]
    assert late[1] < 10 * early[1] + 0.05, "declaring a queue is slower the more there are"
    scene.kill()


# ── crashes while something is declared or deleted ──────────────────────────────────────────────────────────────────


def prepare(scene: HandNode) -> None:
    node = scene.node
    node.queue("old").publish_many([b"o1", BIG]).wait()
    node.exchange("old exchange", "direct")
    node.bind("old", "old exchange", "old key")
    node.queue("doomed").publish_many([b"d", BIG]).wait()
    node.exchange("doomed exchange", "topic")
    node.bind("doomed", "old exchange", "doomed key")
    node.vhost("doomed vhost").queue("in it").publish_many([b"v", BIG]).wait()
    scene.run()


CHANGES: dict[str, Callable[[warren.Node], Any]] = {
    "declare a queue": lambda node: node.queue("new").publish(b"n").wait(),
    "declare a priority queue": lambda node: node.queue("new", arguments={"x-max-priority": 2}).publish(b"n").wait(),
    "delete a queue": lambda node: node.delete_queue("doomed"),
    "declare an exchange": lambda node: node.exchange("new exchange", "fanout"),
    "delete an exchange": lambda node: node.delete_exchange("doomed exchange"),
    "bind": lambda node: node.bind("old", "old exchange", "new key"),
    "unbind": lambda node: node.unbind("doomed", "old exchange", "doomed key"),
    "declare a vhost": lambda node: node.vhost("new vhost").queue("q").publish(b"n").wait(),
    "delete a vhost": lambda node: node.delete_vhost("doomed vhost"),
}


def looked_at(scene: HandNode) -> dict[str, Any]:
    """What is declared, and what every queue has."""
    node = scene.node
    document = node.definitions()
    assert node.down == {}
    for vhost in node.vhosts():
        assert node.vhost(vhost).down == {}
    return {
        "vhosts": sorted(node.vhosts()),
        "queues": {
            (vhost, queue.name): bodies(queue)
            for vhost in sorted(node.vhosts())
            for queue in node.vhost(vhost).queues()
        },
        "exchanges": sorted((one["vhost"], one["name"], one["type"]) for one in document["exchanges"]),
        "bindings": sorted((one["source"], one["destination"], one["routing_key"]) for one in document["bindings"]),
    }


@pytest.mark.parametrize("power", [False, True])
@pytest.mark.parametrize("change", CHANGES)
def test_a_crash_while_something_is_changed_leaves_it_done_or_not(change: str, power: bool) -> None:
    work = CHANGES[change]

    def begin(seed: int) -> HandNode:
        scene = hand_node(seed=seed, check_invariants=False)
        prepare(scene)
        scene.files.sync_all()
        return scene

    scene = begin(0)
    before = looked_at(scene)
    operations = scene.files.operations
    work(scene.node)
    after = looked_at(scene)
    total = scene.files.operations - operations
    scene.kill()
    assert total > 0
    for operation in range(1, total + 1):
        scene = begin(operation)
        scene.files.crash_at(operation, torn=operation % 2 == 0)
        with pytest.raises(SimulatedCrash):
            work(scene.node)
        rng = random.Random(operation)
        files = scene.lose_power(rng) if power else scene.kill()
        again = hand_node(files, seed=operation + 1)
        again.run()
        found = looked_at(again)
        where = f"{change}: operation {operation} of {total}"
        for part in ("vhosts", "exchanges", "bindings"):
            assert found[part] in (before[part], after[part]), where
        for key in before["queues"].keys() & after["queues"].keys():
            assert found["queues"][key] == before["queues"][key], where
        for key, messages in found["queues"].items():
            whole = before["queues"].get(key) or after["queues"].get(key)
            assert messages in (whole, []), f"{where}: {key} is half there"
        with contextlib.suppress(warren.NotFoundError):  # and it can be done again, where it was not
            work(again.node)
        again.run()
        done = looked_at(again)
        assert done["bindings"] == after["bindings"], where
        assert done["queues"].keys() == after["queues"].keys(), where
        again.node.close()
        forget_actors(again.pool)


def test_a_definition_that_cannot_be_saved_fails_the_change_and_not_the_node() -> None:
    scene = hand_node()
    queue = scene.node.queue("q")
    queue.publish(b"1").wait()
    scene.files.fail("append", f"{DATA}/*definitions*")
    with pytest.raises(UnsavedError):
        scene.node.queue("new")
    with pytest.raises(warren.NotFoundError):
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
    with pytest.raises(ZeroDivisionError):
        scene.node.change(lambda _: 1 // 0)
    scene.run()
    for work in (lambda: scene.node.queue("other"), scene.node.vhosts, lambda: queue.publish(b"2"), scene.node.memory):
        with pytest.raises(WarrenError):
            work()
    again = hand_node(scene.files, seed=1)  # its directory was given free
    assert bodies(again.node.queue("q")) == [b"1"]
    again.node.close()
