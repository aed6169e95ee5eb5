"""Messages with keys through a crash at every file operation.

What must hold, whatever died when: after a confirm no second message with the key is stored, as long as the key is
taken; and a message that was lost never counts as the first one, so that who publishes it again has it stored. A
process that dies leaves not even two messages of a key whose first one nobody had called safe.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import pytest

from tests.support.effort import every
from tests.support.runtime_tools import BIG, HandNode, hand_node
from warren import Queue
from warren.actors.clock import HandClock
from warren.actors.engines import unique_keys
from warren.actors.future import Confirm
from warren.storage.errors import StorageError, WarrenError
from warren.storage.faults import SimulatedCrash
from warren.storage.memory import MemoryFileSystem

SMALL: dict[str, Any] = {"segment_entry_count": 4, "queue_index_max_journal_entries": 6}
PERIOD_S = 1000.0


@pytest.fixture(autouse=True)
def small_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys are few here, and their log is made anew all the same."""
    monkeypatch.setattr(unique_keys, "MIN_LOG_BYTES", 300)


@attrs.define
class Try:
    """One publish."""

    key: str
    body: bytes
    period: bool
    confirm: Confirm | None = None
    got: bool = False
    """A consumer has had it."""

    @property
    def confirmed(self) -> bool:
        return self.confirm is not None and self.confirm.done and self.confirm.error is None


@attrs.define
class Life:
    """What one process does with a queue, and what it was told."""

    scene: HandNode
    tries: list[Try] = attrs.Factory(list)

    @property
    def queue(self) -> Queue:
        return self.scene.node.queue("q")

    def publish(self, key: str, *, period: bool = False, wait: bool = True, big: bool = False) -> None:
        body = b"%s %d " % (key.encode(), len(self.tries)) + (BIG if big else b"")
        self.tries.append(one := Try(key, body, period))
        one.confirm = self.queue.publish(body, unique=key, unique_for=PERIOD_S if period else None)
        if wait:
            one.confirm.wait()

    def publish_many(self, keys: list[str], *, period: bool = False) -> None:
        some = [Try(key, b"%s %d " % (key.encode(), len(self.tries) + at), period) for at, key in enumerate(keys)]
        self.tries += some
        confirm = self.queue.publish_many(
            [one.body for one in some], unique=keys, unique_for=PERIOD_S if period else None
        )
        for one in some:
            one.confirm = confirm
        confirm.wait()

    def done(self, count: int = 1) -> None:
        for message in self.queue.get_many(count):
            next(one for one in self.tries if one.body == message.body).got = True
            message.ack()

    def live(self) -> None:
        self.publish("w1")
        self.publish("t1", period=True)
        self.publish("w1")
        self.done()
        self.publish("w1", wait=False)
        self.publish("t2", period=True, wait=False)
        self.publish("t2", period=True)
        self.done(2)
        self.publish("t1", period=True, wait=False)
        self.publish("w2", big=True)
        self.publish("t3", period=True, big=True, wait=False)
        self.done(3)
        self.queue.sync()
        self.publish_many(["w3", "w4", "w3", "w2"])
        self.publish_many(["t4", "t5", "t4"], period=True)
        self.done(3)
        for number in range(6):
            self.publish(f"t{number + 6}", period=True, wait=number % 2 > 0)
        self.done(9)
        self.publish("w5", wait=False)
        self.scene.advance(0.1)
        self.publish("w6")


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


def check(life: Life, files: MemoryFileSystem, clock: HandClock, *, strictly: bool) -> None:
    """What the next process finds. ``strictly``: nothing that was written is lost."""
    scene = hand_node(files, seed=1_000_003, clock=clock, **SMALL)
    queue = scene.node.queue("q")
    found = [message.body for message in queue.browse()]
    for key in dict.fromkeys(one.key for one in life.tries):
        tries = [one for one in life.tries if one.key == key]
        there = [one for one in tries if one.body in found]
        confirm = queue.publish(b"again", unique=key)
        confirm.wait()
        if confirm.duplicate:
            assert there or any(one.got for one in tries if one.period), f"{key}: lost, and called a duplicate"
        else:
            period = [one for one in tries if one.period]
            assert not any(one.confirmed for one in period), f"{key}: taken twice after a confirm"
            assert not any(one.confirmed and one.body in found for one in tries), f"{key}: taken twice, it waits"
            if strictly:
                assert not there, f"{key}: taken though one was there"
        assert len(there) <= 1 or not strictly, f"{key}: there twice"
        for one in tries:
            first = one.confirmed and one is tries[0]
            assert not first or one.got or one in there, f"{key}: lost after its confirm"
    scene.node.close()


@pytest.mark.parametrize("power", [False, True], ids=["kill", "power"])
@pytest.mark.parametrize("torn", [False, True], ids=["between", "torn"])
def test_a_crash_at_every_operation(power: bool, torn: bool) -> None:
    count = operations_of(Life.live)
    assert count > 60
    for operation in range(1, count + 1, every(4)):
        life = begun(operation)
        cut(life, operation, torn=torn)
        check(life, left(life, power=power, seed=operation), life.scene.clock, strictly=not power)


def _closes(life: Life) -> None:
    """A stop with publishes that nobody waited for, done ones among them."""
    life.publish("t1", period=True)
    life.publish("t2", period=True, wait=False)
    life.done(2)
    life.publish("t3", period=True, wait=False)
    life.publish("w1", wait=False)
    life.scene.node.close()


@pytest.mark.parametrize("power", [False, True], ids=["kill", "power"])
def test_a_crash_at_every_operation_of_a_stop(power: bool) -> None:
    count = operations_of(_closes)
    for operation in range(1, count + 2, every(3)):
        life = begun(operation)
        cut(life, operation, torn=power, work=_closes)
        check(life, left(life, power=power, seed=operation), life.scene.clock, strictly=not power)


def _crashed(operations: int) -> Iterator[tuple[int, Life, MemoryFileSystem]]:
    for operation in range(1, operations + 1, max(operations // 4, 1)):
        life = begun(operation)
        cut(life, operation, torn=True)
        yield operation, life, life.scene.kill()


def test_a_crash_at_every_operation_of_the_next_start() -> None:
    """And what the next process says is safe is so: here a duplicate, whose first one nobody had called safe."""
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
                    pool._forget()
            else:
                scene._forget()
                break
            again = hand_node(left_over, seed=104_729 + at, clock=life.scene.clock, **SMALL)
            queue = again.node.queue("q")
            for key, duplicate in told.items():
                confirm = queue.publish(b"third", unique=key)
                confirm.wait()
                if not duplicate or key.startswith("t"):  # it has the key for its time
                    assert confirm.duplicate, f"{operation}, {at}: {key} taken twice after a confirm"
            again.node.close()


@pytest.mark.parametrize("kind", ["append", "sync", "rename", "truncate", "make_directory"])
def test_a_disk_that_fails_once_at_the_keys_log_loses_no_promise(kind: str) -> None:
    """The queue starts anew from its files where it must; what was confirmed holds."""
    for skip in range(12):
        life = begun(skip)
        life.scene.files.fail(kind, "*warren.queues*", error=StorageError, skip=skip)
        with contextlib.suppress(WarrenError):
            life.live()
        life.scene.run()
        check(life, left(life, power=True, seed=skip), life.scene.clock, strictly=False)
