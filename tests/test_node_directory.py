"""A node's directory: damage that is found, whose it is, what does not survive, crashes while things are declared."""

from __future__ import annotations

import contextlib
import os
import random
from pathlib import Path
from typing import Any

import pytest

import warren
import warren.aio
from tests.support.disk_fault_tools import CHANGES, looked_at, prepare
from tests.support.runtime_tools import (
    BIG,
    DATA,
    HandNode,
    actor_of,
    bodies,
    forget_actors,
    hand_node,
    queue_path,
    store_path,
)
from warren.actors.engines.errors import NotFoundError, PreconditionFailedError
from warren.actors.node.node_errors import ForeignDirectoryError, VhostDownError
from warren.actors.queue.intake import QueueDownError
from warren.queue_index.index import directory as names
from warren.storage.errors import DataError, DirectoryLockedError, WarrenError
from warren.storage.faults import FaultRules, SimulatedCrash
from warren.storage.filesystem import write_file
from warren.storage.memory import MemoryFileSystem
from warren.storage.own_files import KEYS_LOG

SMALL: dict[str, Any] = {"segment_entry_count": 16, "queue_index_max_journal_entries": 8}


pytestmark = pytest.mark.usefixtures("quiet")


# ── damage that is found when a directory is opened ─────────────────────────────────────────────────────────────────


def test_a_queue_whose_name_file_is_damaged_is_down_and_the_rest_serves() -> None:
    scene = hand_node(MemoryFileSystem(random.Random(0), rules=FaultRules(damage=True)))
    scene.node.queue("bad").publish_many([b"1", BIG]).wait()
    scene.node.queue("good").publish(b"g").wait()
    scene.node.close()
    path = f"{queue_path('bad')}/{names.QUEUE_NAME_FILE}"
    scene.files.flip_bit(path, scene.files.size(path) // 2, 3)
    again = hand_node(scene.files, seed=1)
    assert list(again.node.failed_queues) == ["bad"]
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
    assert "0.idx" in again.node.failed_queues["bad"]
    again.node.close()


def test_a_queue_that_is_down_is_deleted_by_force_alone_and_begins_anew() -> None:
    scene = hand_node(MemoryFileSystem(random.Random(0), rules=FaultRules(damage=True)))
    scene.node.queue("bad").publish_many([b"1", BIG]).wait()
    scene.node.queue("good").publish_many([b"g", BIG]).wait()
    scene.node.close()
    scene.files.flip_bit(f"{queue_path('bad')}/{names.QUEUE_NAME_FILE}", 0, 3)
    again = hand_node(scene.files, seed=1)
    with pytest.raises(QueueDownError):
        again.node.delete_queue("bad")
    again.node.delete_queue("bad", force=True)
    assert again.node.failed_queues == {}
    again.node.queue("bad").publish(b"new").wait()
    again.node.close()
    last = hand_node(again.files, seed=2)
    assert bodies(last.node.queue("bad")) == [b"new"]
    assert bodies(last.node.queue("good")) == [b"g", BIG]
    last.node.close()


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
    assert "0.idx" in again.node.failed_queues["bad"]
    third = hand_node(again.kill(), seed=2, **SMALL)
    third.run()
    assert "0.idx" in third.node.failed_queues["bad"]
    third.node.close()


def test_a_vhost_can_be_deleted_though_a_queue_of_it_is_down() -> None:
    scene = hand_node(restart_limit=(0, 10.0))
    vhost = scene.node.vhost("v")
    queue = vhost.queue("q")
    scene.files.fail("append", f"{queue_path('q', 'v')}/*")
    with pytest.raises(WarrenError):
        queue.publish(b"x").wait()
    scene.run()
    assert list(vhost.failed_queues) == ["q"]
    vhost.queue("other").publish(b"o").wait()
    scene.node.delete_vhost("v")
    assert scene.node.vhosts() == ["/"]
    with pytest.raises(WarrenError):
        queue.publish(b"x")
    assert vhost.name not in scene.node._running.registry.vhosts
    assert not any("/v" in path and names.vhost_directory_name(b"v") in path for path in scene.files.contents())
    scene.node.close()


def test_no_power_loss_brings_back_a_vhost_that_was_deleted_or_what_was_delayed_in_it() -> None:
    scene = hand_node()
    queue = scene.node.vhost("v").queue("q")
    queue.publish(BIG).wait()
    queue.publish(b"later", delay=3600).wait()
    scene.node.delete_vhost("v")
    scene.forget()
    for seed in range(30):
        files = scene.files.after_power_loss(random.Random(seed))
        assert not any(names.vhost_directory_name(b"v") in path for path in files.contents())
        again = hand_node(files, seed=seed)
        assert again.node.vhosts() == ["/"]
        again.forget()


def test_no_power_loss_brings_back_the_keys_of_a_queue_that_was_deleted() -> None:
    scene = hand_node()
    scene.node.queue("q").publish(b"1", unique="key", unique_for=60).wait()
    scene.files.sync_all()
    sides = [path for path in scene.files.contents() if path.endswith(KEYS_LOG)]
    assert sides, "keys are kept beside the queue"
    scene.node.delete_queue("q")
    scene.forget()
    for seed in range(10):
        left = scene.files.after_power_loss(random.Random(seed)).contents()
        assert not any(path in left for path in sides)


def test_the_directory_of_all_queues_is_synced_once_when_it_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = hand_node()
    for number in range(5):
        scene.node.queue(f"q{number}").publish(b"1").wait()
    synced: list[str] = []
    sync = MemoryFileSystem.sync_directory
    monkeypatch.setattr(
        MemoryFileSystem, "sync_directory", lambda files, path: synced.append(path) or sync(files, path)
    )
    scene = hand_node(scene.kill())
    for number in range(5):
        assert len(scene.node.queue(f"q{number}")) == 1
    above = os.path.dirname(queue_path("q0"))
    assert [path for path in synced if os.path.dirname(path) == above].count(queue_path("q0")) == 2  # file and segment
    assert synced.count(above) == 1
    scene.node.queue("new").publish(b"1").wait()
    assert synced.count(above) == 2
    scene.node.close()


@pytest.mark.parametrize("change", ["kept", "made anew", "failed", "made anew and failed"])
def test_a_queue_of_a_process_that_died_before_it_synced_the_directory_above_survives_a_power_loss(
    change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync, above = MemoryFileSystem.sync_directory, os.path.dirname(queue_path("orders"))
    for seed in range(10):
        scene = hand_node(seed=seed)
        with monkeypatch.context() as dying:
            dying.setattr(
                MemoryFileSystem, "sync_directory", lambda files, path: None if path == above else sync(files, path)
            )
            scene.node.queue("orders").publish(b"1").wait()
        scene = hand_node(scene.kill(), seed=seed)
        orders = scene.node.queue("orders")
        assert len(orders) == 1
        if "anew" in change:
            scene.node.delete_queue("orders")
            orders = scene.node.queue("orders")
        if "failed" in change:  # the queue's actor opens the files again
            actor_of(orders).turns.fail(RuntimeError("a bug"), None)
            scene.run()
        orders.publish(b"2").wait()
        reopened = hand_node(scene.lose_power(random.Random(seed)))
        assert bodies(reopened.node.queue("orders")) == ([b"2"] if "anew" in change else [b"1", b"2"]), seed
        reopened.node.close()


def test_a_queue_of_a_process_that_synced_nothing_keeps_its_name_in_a_power_loss() -> None:
    for seed in range(10):
        scene = hand_node(seed=seed, sync="os")
        scene.node.queue("orders").publish(b"1").wait()
        scene = hand_node(scene.kill(), seed=seed)
        orders = scene.node.queue("orders")
        orders.publish(b"2").wait()
        reopened = hand_node(scene.lose_power(random.Random(seed)))
        assert bodies(reopened.node.queue("orders"))[-1:] == [b"2"], seed
        reopened.node.close()


def test_a_vhost_whose_directory_is_another_ones_is_down_and_the_node_serves() -> None:
    scene = hand_node(MemoryFileSystem(random.Random(0), rules=FaultRules(damage=True)))
    scene.node.vhost("bad").queue("q").publish(b"1").wait()
    scene.node.queue("good").publish(b"g").wait()
    scene.node.close()
    scene.files.flip_bit(f"{os.path.dirname(store_path('bad'))}/{names.VHOST_NAME_FILE}", 0, 0)
    scene = hand_node(scene.files, seed=1)
    for work in (lambda: scene.node.vhost("bad"), lambda: scene.node.delete_vhost("bad")):
        with pytest.raises(VhostDownError, match=names.VHOST_NAME_FILE):
            work()
    assert bodies(scene.node.queue("good")) == [b"g"]
    scene.node.close()


@pytest.mark.parametrize("kind", ["make_directory", "create", "sync"])
def test_a_vhost_that_cannot_be_made_is_down_and_the_node_serves(kind: str) -> None:
    scene = hand_node()
    scene.files.fail(kind, f"{DATA}/msg_stores/*")
    with pytest.raises(VhostDownError, match="failed on purpose"):
        scene.node.vhost("new")
    scene.node.queue("q").publish(b"1").wait()
    scene.node.close()
    scene = hand_node(scene.files, seed=1)
    scene.node.vhost("new").queue("q").publish(b"2").wait()
    scene.node.close()


def test_a_vhost_whose_files_cannot_be_deleted_is_down_and_the_node_serves() -> None:
    scene = hand_node()
    scene.node.vhost("v").queue("q").publish(b"1").wait()
    scene.files.fail("delete_tree", f"{os.path.dirname(store_path('v'))}/msg*")
    with pytest.raises(WarrenError, match="failed on purpose"):
        scene.node.delete_vhost("v")
    scene.node.queue("q").publish(b"1").wait()
    scene.node.close()
    scene = hand_node(scene.files, seed=1)
    scene.node.delete_vhost("v")
    assert scene.node.vhosts() == ["/"]
    scene.node.close()


def test_a_nodes_numbers_can_be_asked_for_while_a_vhost_is_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = hand_node()
    scene.node.vhost("v").queue("q").publish(b"1").wait()
    seen: list[set[str]] = []
    delete_tree = MemoryFileSystem.delete_tree

    def watched(files: MemoryFileSystem, path: str) -> None:
        if "queues" not in path:  # the vhost's own, its stores are closed
            seen.append(set(scene.node.stats()["vhosts"]))
        delete_tree(files, path)

    monkeypatch.setattr(MemoryFileSystem, "delete_tree", watched)
    scene.node.delete_vhost("v")
    assert seen
    assert all(vhosts == {"/"} for vhosts in seen)
    assert set(scene.node.stats()["vhosts"]) == {"/"}
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


@pytest.mark.slow
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
    with pytest.raises(warren.errors.NotFoundError):
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
    mine.bind("q", "amq.fanout")
    for work in (
        lambda: other.queue("q", exclusive=True),
        lambda: other.queue("q", passive=True),
        lambda: other.bind("q", "amq.direct", "key"),
        lambda: other.unbind("q", "amq.fanout"),
        lambda: other.delete_queue("q"),
        lambda: scene.node.delete_queue("q"),
    ):
        with pytest.raises(warren.errors.ResourceLockedError):
            work()
    other.unbind("q", "amq.direct", "key")  # there is no such binding: nothing is done to the queue
    with pytest.raises(warren.errors.NotFoundError):
        other.bind("q", "nowhere")
    scene.node.exchange("amq.fanout").publish(b"2").wait()
    assert bodies(queue) == [b"1", b"2"]
    mine.release()
    with pytest.raises(warren.errors.NotFoundError):
        other.queue("q", passive=True)
    assert mine.queue("q", exclusive=True).delete() == 0
    scene.node.close()


# ── crashes while something is declared or deleted ──────────────────────────────────────────────────────────────────


@pytest.mark.slow
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
        for part in ("vhosts", "policies", "exchanges", "bindings", "users", "permissions"):
            assert found[part] in (before[part], after[part]), where
        for key in before["queues"].keys() & after["queues"].keys():
            assert found["queues"][key] == before["queues"][key], where
        for key, messages in found["queues"].items():
            whole = before["queues"].get(key) or after["queues"].get(key)
            assert messages in (whole, []), f"{where}: {key} is half there"
        with contextlib.suppress(NotFoundError, PreconditionFailedError):  # it can be done again, unless it was done
            work(again.node)
        again.run()
        done = looked_at(again)
        for part in ("policies", "bindings", "users", "permissions"):
            assert done[part] == after[part], where
        assert done["queues"].keys() == after["queues"].keys(), where
        again.node.close()
        forget_actors(again.pool)


def test_a_node_says_where_it_is(tmp_path: Path) -> None:
    node = warren.open(tmp_path)
    with node:
        assert repr(node) == f"<warren.Node {str(tmp_path)!r}>"
        assert repr(warren.aio.Node(node)) == f"<warren.aio.Node {str(tmp_path)!r}>"
        assert repr(node.vhost("/")) == "<warren.Vhost '/'>"
    assert repr(node) == f"<warren.Node {str(tmp_path)!r} (closed)>"
