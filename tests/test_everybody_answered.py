"""Every waiting call gets an answer, whichever operation of the disk fails: alone, or with all that follow.

A node without threads: an answer that never comes is an error there (``pykka.Timeout``), not an endless wait.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Final

import attrs
import pytest

import warren
from tests.support.disk_fault_tools import SMALL, ReadOnly
from tests.support.effort import EFFORT, new_seed, times
from tests.support.runtime_tools import BIG, HandNode, hand_node
from tests.support.tried import Count, Tried
from warren.errors import WarrenError
from warren.storage.errors import DiskFullError, StorageError
from warren.storage.memory import MemoryFileSystem

STEPS: Final = 30


@attrs.define
class Users:
    """Users of a node in one thread, drawn from a seed: a publisher waits for its confirm at once, or later."""

    scene: HandNode
    draw: random.Random
    confirms: list[warren.Confirm | warren.AppendConfirm] = attrs.Factory(list)

    def work(self) -> None:
        for _ in range(STEPS):
            try:
                self.step()
            except WarrenError:
                continue  # that is an answer
        self.scene.advance(1.0)

    def step(self) -> None:
        often: dict[Callable[[], None], int] = {
            self.single: 8,
            self.one_by_one: 4,
            self.several: 2,
            self.with_a_key: 2,
            self.delayed: 1,
            self.append: 3,
            self.transaction: 1,
            self.read: 1,
            self.take: 4,
            self.consume: 2,
            self.retry: 1,
            self.look: 1,
            self.sync: 1,
            self.purge: 1,
            self.time: 1,
        }
        self.draw.choices(list(often), list(often.values()))[0]()

    def queue(self, name: str = "") -> warren.Queue:
        name = name or self.draw.choice(["q", "q", "q", "levels", "keyed"])
        return self.scene.node.queue(name, arguments={"x-max-priority": 2} if name == "levels" else {})

    def body(self) -> bytes:
        return BIG if self.draw.random() < 0.2 else b"small"

    def later(self, confirm: warren.Confirm | warren.AppendConfirm) -> None:
        self.confirms.append(confirm)
        if self.draw.random() < 0.6:
            confirm.wait()

    def single(self) -> None:
        self.later(self.queue().publish(self.body(), block=False))

    def one_by_one(self) -> None:
        """What is safe before it is taken in, and something that has to be taken in for that."""
        queue = self.queue()
        for _ in range(self.draw.randrange(1, 5)):
            self.confirms.append(confirm := queue.publish(b"small", block=False))
            confirm.wait()
        self.later(queue.publish(BIG, block=False))

    def several(self) -> None:
        self.later(self.queue().publish_many([self.body() for _ in range(self.draw.randrange(1, 6))], block=False))

    def with_a_key(self) -> None:
        key = b"%d" % self.draw.randrange(20)
        self.later(self.queue("keyed").publish(self.body(), unique=key, block=False))

    def delayed(self) -> None:
        self.later(self.queue().publish(self.body(), delay=self.draw.choice([0.5, 60]), block=False))

    def append(self) -> None:
        self.later(self.scene.node.topic("t", queues=2).append(self.body(), key="k", block=False))

    def transaction(self) -> None:
        self.later(self.scene.node.topic("t", queues=2).prepare(self.body()).commit())

    def read(self) -> None:
        list(self.scene.node.topic("t", queues=2).read("group", max_records=2))

    def take(self) -> None:
        for message in self.queue().get_many(self.draw.randrange(1, 5)):
            self.draw.choice([message.ack, message.ack, message.nack])()

    def consume(self) -> None:
        with self.queue().consume(prefetch=2) as consumer:
            while (delivery := consumer.take_now()) is not None:
                delivery.ack()

    def retry(self) -> None:
        queue = self.scene.node.queue("retried", retry=warren.Retry(delay=0.2))
        self.later(queue.publish(self.body(), block=False))
        if (message := queue.get()) is not None:
            message.retry()

    def sync(self) -> None:
        self.queue().sync()

    def purge(self) -> None:
        self.queue().purge()

    def look(self) -> None:
        len(self.queue())

    def time(self) -> None:
        self.scene.advance(self.draw.choice([0.01, 0.3]))


def scene_of(seed: int) -> Users:
    draw = random.Random(seed)
    drawn: dict[str, Any] = {
        "segment_entry_count": draw.choice([4, 8]),
        "queue_index_max_journal_entries": draw.choice([2, 5, 12]),
        "sync": draw.choice(["group", "group", "always", "os"]),
    }
    scene = hand_node(MemoryFileSystem(random.Random(seed)), seed=seed, **SMALL | drawn)
    users = Users(scene, draw)
    for name in ("q", "levels", "keyed"):  # what is made at the first use is there
        users.queue(name)
    return users


def one_fails(files: MemoryFileSystem, operation: int, error: type[StorageError]) -> None:
    files.fail_at(operation, error=error)


def all_fail(files: MemoryFileSystem, operation: int, error: type[StorageError]) -> None:
    files.plan.failures.append(ReadOnly(error=error, skip=operation - 1))


FAULTS: Final[dict[str, Callable[[MemoryFileSystem, int, type[StorageError]], None]]] = {
    "one operation": one_fails,
    "it and all that follow": all_fail,
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_whoever_waits_is_answered_whichever_operation_fails(fault: str, tried: Count) -> None:
    first = new_seed() if EFFORT == "nightly" else 0
    rounds = times(60, quick=4, nightly=240)
    for seed in range(first, first + rounds):
        users = scene_of(seed)
        before = users.scene.files.operations
        users.work()
        total = users.scene.files.operations - before
        for confirm in users.confirms:
            confirm.wait()
        users.scene.kill()
        for operation in random.Random(seed).sample(range(1, total + 1), 10):
            for error in (StorageError, DiskFullError):
                users = scene_of(seed)
                FAULTS[fault](users.scene.files, operation, error)
                where = f"seed {seed}, operation {operation} of {total}, {error.__name__}"
                try:
                    users.work()
                except Exception as unexpected:
                    raise AssertionError(where) from unexpected
                waiting = [confirm for confirm in users.confirms if not confirm.done]
                assert not waiting, f"{where}: {len(waiting)} wait for ever"
                users.scene.kill()
    tried(Tried.DISK_FAULTS, 20 * rounds)
