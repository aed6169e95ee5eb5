"""Messages with keys through a crash at every file operation.

What must hold at any crash: after a confirm no second message with the key is stored, as long as the key is taken; and
a lost message never counts as the first one, so publishing it again stores it. The death of a process never leaves
two messages of a key, even if the first one was never called safe.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator

import pytest

from tests.crash_points.unique import PERIOD_S, SMALL, Life, check_keys
from tests.support.effort import every
from tests.support.runtime_tools import bodies, hand_node
from warren import Queue
from warren.actors.engines import unique_keys
from warren.storage.errors import StorageError, WarrenError
from warren.storage.faults import SimulatedCrash
from warren.storage.memory import MemoryFileSystem


@pytest.fixture(autouse=True)
def small_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rewrite the log although there are few keys."""
    monkeypatch.setattr(unique_keys, "MIN_LOG_BYTES", 300)


def log_path(files: MemoryFileSystem) -> str:
    """The log of the keys of the queue that :func:`begun` makes."""
    [path] = [path for path in files.contents() if path.endswith("/unique.log")]
    return path


def begun(seed: int) -> Life:
    scene = hand_node(MemoryFileSystem(random.Random(seed)), seed=seed, **SMALL)
    life = Life(scene)
    life.queue.publish(b"old").wait()
    life.queue.get(auto_ack=True)
    life.queue.sync()
    scene.run()
    return life


def operations_of(work: Callable[[Life], object]) -> int:
    life = begun(0)
    before = life.scene.files.plan.operations
    work(life)
    return life.scene.files.plan.operations - before


def cut(life: Life, operation: int, *, torn: bool, work: Callable[[Life], object] = Life.live) -> None:
    life.scene.files.crash_at(operation, torn=torn)
    with contextlib.suppress(SimulatedCrash, WarrenError):
        work(life)


def left(life: Life, *, power: bool, seed: int) -> MemoryFileSystem:
    return life.scene.lose_power(random.Random(seed)) if power else life.scene.kill()


@pytest.mark.slow
@pytest.mark.parametrize("power", [False, True], ids=["kill", "power"])
@pytest.mark.parametrize("torn", [False, True], ids=["between", "torn"])
def test_a_crash_at_every_operation(power: bool, torn: bool) -> None:
    count = operations_of(Life.live)
    assert count > 60
    for operation in range(1, count + 1, every(4)):
        life = begun(operation)
        cut(life, operation, torn=torn)
        check_keys(life, left(life, power=power, seed=operation), life.scene.clock, strictly=not power)


def _closes(life: Life) -> None:
    """A stop with publishes that were not waited for, done ones among them."""
    life.publish("t1", period=True)
    life.publish("t2", period=True, wait=False)
    life.done(2)
    life.publish("t3", period=True, wait=False)
    life.publish("w1", wait=False)
    life.scene.node.close()


@pytest.mark.slow
@pytest.mark.parametrize("power", [False, True], ids=["kill", "power"])
def test_a_crash_at_every_operation_of_a_stop(power: bool) -> None:
    count = operations_of(_closes)
    for operation in range(1, count + 2, every(3)):
        life = begun(operation)
        cut(life, operation, torn=power, work=_closes)
        check_keys(life, left(life, power=power, seed=operation), life.scene.clock, strictly=not power)


def _crashed(operations: int) -> Iterator[tuple[int, Life, MemoryFileSystem]]:
    for operation in range(1, operations + 1, max(operations // 4, 1)):
        life = begun(operation)
        cut(life, operation, torn=True)
        yield operation, life, life.scene.kill()


@pytest.mark.slow
def test_a_crash_at_every_operation_of_the_next_start() -> None:
    """What the next process calls safe is safe: here a duplicate whose first message was never called safe."""
    for operation, life, files in _crashed(operations_of(Life.live)):
        keys = list(dict.fromkeys(one.key for one in life.tries))
        for at in range(1, 1000, every(4)):
            copy = files.after_process_crash()
            copy.crash_at(at, torn=True)
            told: dict[str, bool] = {}
            pool = None
            try:
                scene = hand_node(copy, seed=7_919 + at, clock=life.scene.clock, **SMALL)
                pool = scene
                queue = scene.node.queue("q")
                for key in keys:
                    confirm = queue.publish(b"second " + key.encode(), unique=key, unique_for=PERIOD_S)
                    confirm.wait()
                    told[key] = confirm.duplicate
                for message in queue.get_many(99):
                    message.ack()
                queue.sync()
            except (SimulatedCrash, WarrenError):
                left_over = copy.after_power_loss(random.Random(at))
                if pool is not None:
                    pool.forget()
            else:
                scene.forget()
                break
            again = hand_node(left_over, seed=104_729 + at, clock=life.scene.clock, **SMALL)
            queue = again.node.queue("q")
            for key, duplicate in told.items():
                confirm = queue.publish(b"third", unique=key)
                confirm.wait()
                if not duplicate or key.startswith("t"):  # it has the key for its time
                    assert confirm.duplicate, f"{operation}, {at}: {key} taken twice after a confirm"
            again.node.close()


def _acked(life: Life, key: str) -> bytes:
    """A message with the key that is confirmed, and acked, which is not safe yet: a crash brings it back."""
    life.publish(key)
    life.done()
    return life.tries[-1].body


def _duplicate(queue: Queue, key: str) -> bool:
    confirm = queue.publish(b"another", unique=key)
    confirm.wait()
    return confirm.duplicate


@pytest.mark.parametrize("period", [False, True], ids=["waits", "time"])
def test_a_message_that_comes_back_has_its_key_though_the_next_one_was_lost(period: bool) -> None:
    """The process dies when the next one's row is written, and its message is not."""
    life = begun(1)
    old = _acked(life, "w1")
    size = life.scene.files.size(log_path(life.scene.files))
    cut(life, 2, torn=False, work=lambda life: life.publish("w1", period=period))
    files = life.scene.kill()
    assert files.size(log_path(files)) > size
    again = hand_node(files, seed=2, clock=life.scene.clock, **SMALL)
    queue = again.node.queue("q")
    assert bodies(queue) == [old]
    assert _duplicate(queue, "w1"), "free, and its message waits"
    again.node.close()
    again = hand_node(again.files, seed=3, clock=life.scene.clock, **SMALL)  # and so it stays
    queue = again.node.queue("q")
    assert _duplicate(queue, "w1")
    queue.get(auto_ack=True)
    assert not _duplicate(queue, "w1")
    again.node.close()


def test_a_message_that_comes_back_has_its_key_though_its_log_was_made_anew() -> None:
    life = begun(1)
    old = _acked(life, "w1")
    size = life.scene.files.size(log_path(life.scene.files))
    for number in range(9):
        life.queue.publish(b"transient", unique=f"t{number}", unique_for=PERIOD_S, persistent=False)
        life.scene.run()
        if life.scene.files.size(log_path(life.scene.files)) < size:
            break
        size = life.scene.files.size(log_path(life.scene.files))
    else:
        raise AssertionError("the log was not made anew")
    again = hand_node(life.scene.kill(), seed=2, clock=life.scene.clock, **SMALL)
    queue = again.node.queue("q")
    assert _duplicate(queue, "w1") is (old in bodies(queue)[:1]), "free, and its message waits"
    again.node.close()


def test_of_two_messages_that_a_crash_leaves_each_keeps_the_key() -> None:
    """The next one has a higher priority, so it is written first."""
    life = begun(1)
    arguments = {"x-max-priority": 1}
    queue = life.scene.node.queue("levels", arguments=arguments)
    queue.publish(b"old", unique="w", priority=0).wait()
    job = queue.get()
    assert job is not None
    job.ack()
    queue.publish(b"new", unique="w", priority=1)
    life.scene.run()
    life.scene.files.crash_at(2, torn=False)  # level 1's journal is written, level 0's is not
    with contextlib.suppress(SimulatedCrash, WarrenError):
        queue.sync()
    again = hand_node(life.scene.kill(), seed=2, clock=life.scene.clock, **SMALL)
    queue = again.node.queue("levels", arguments=arguments)
    assert bodies(queue) == [b"new", b"old"]
    for body in (b"new", b"old"):
        assert _duplicate(queue, "w"), f"free, and {body!r} waits"
        job = queue.get()
        assert job is not None
        assert job.body == body
        assert _duplicate(queue, "w"), f"free, and a consumer has {body!r}"
        job.ack()
    assert not _duplicate(queue, "w")
    again.node.close()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["append", "sync", "rename", "truncate", "make_directory"])
def test_a_disk_that_fails_once_at_the_keys_log_loses_no_promise(kind: str) -> None:
    """The queue restarts from its files if it must; what was confirmed holds."""
    for skip in range(12):
        life = begun(skip)
        life.scene.files.fail(kind, "*warren.queues*", error=StorageError, skip=skip)
        with contextlib.suppress(WarrenError):
            life.live()
        life.scene.run()
        check_keys(life, left(life, power=True, seed=skip), life.scene.clock, strictly=False)
