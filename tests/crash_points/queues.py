"""Queues of a vhost: publishes, acks, requeues, paging, flushes of journals, ends of segments, compaction of the store,
stops and starts, and processes that die and are followed by others."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

from tests.crash_points.recording import Record, recording
from tests.support import vhost_life
from tests.support.queue_model import QueueModel, found_in, new_files
from tests.support.vhost_life import LARGE, SMALL, Life, crash_to_models, recovered
from warren.storage.memory import MemoryFileSystem

Step = Callable[[Life, bytes, random.Random], object]


def _publish(life: Life, name: bytes, rng: random.Random) -> None:
    sizes = rng.choices([SMALL, LARGE, 0, 97, 600], [6, 3, 1, 1, 1], k=rng.choice([1, 1, 2, 5, 9]))
    other = rng.choice([None, None, *life.models])
    life.publish(name, *sizes, persistent=rng.random() < 0.9, also=None if other == name else other)


def _die(life: Life, name: bytes, rng: random.Random) -> None:
    """The process dies between two of its steps, and the next one recovers what it left."""
    life.files = life.files.after_process_crash()
    life.start()
    crash_to_models(life)


def _stop(life: Life, name: bytes, rng: random.Random) -> None:
    life.close()
    life.start()
    for queue, model in life.models.items():
        following = life.queue(queue).state.next_seq_id  # transient messages that went with the stop may free theirs
        assert following >= max(model.ready, default=-1) + 1
        model.next_seq_id = following


STEPS: Final[dict[Step, int]] = {
    _publish: 10,
    lambda life, name, rng: life.fetch(name, rng.randrange(1, 12), ack_required=rng.random() < 0.8): 6,
    lambda life, name, rng: life.ack(name, rng.randrange(1, 12)): 6,
    lambda life, name, rng: life.ack_but_every_fifth(name): 2,
    lambda life, name, rng: life.requeue(name): 2,
    lambda life, name, rng: life.take(name, slice(rng.randrange(3), rng.randrange(3, 9), 2)): 1,
    lambda life, name, rng: life.remove(name, slice(rng.randrange(3), rng.randrange(3, 9), 2)): 1,
    lambda life, name, rng: life.purge(name): 1,
    lambda life, name, rng: life.sync(): 7,
    lambda life, name, rng: life.flush(name): 3,
    lambda life, name, rng: life.squeeze(name, rng.randrange(4)): 2,
    lambda life, name, rng: life.compact(): 2,
    _stop: 2,
    _die: 2,
}


def run(seed: int) -> Record:
    """A vhost from its first moment, with steps that are drawn."""
    rng = random.Random(seed)
    life = Life(new_files())
    files = life.files = recording(life.files, lambda: {name: model.copy() for name, model in life.models.items()})
    life.start()
    _work(life, rng, rng.randrange(10, 25))
    files.record.end()
    return files.record


def run_of_all(seed: int) -> Record:
    """The backlog, and after it all that is done to one, in an order that is drawn."""
    rng = random.Random(seed)
    life = Life(new_files())
    files = life.files = recording(life.files, lambda: {name: model.copy() for name, model in life.models.items()})
    vhost_life.backlog(life)
    for work in rng.sample(vhost_life.WORKS, 2):
        work(life)
        if work is vhost_life.stops:
            life.start()
    files.record.end()
    return files.record


def go_on(files: MemoryFileSystem, promises: dict[bytes, QueueModel], seed: int, *, power: bool = False) -> Record:
    """A process takes up what a crash left, and works on."""
    rng = random.Random(seed)
    life = Life(files, {name: model.copy() for name, model in promises.items()}, sent=10_000)
    record = recording(files, lambda: {name: model.copy() for name, model in life.models.items()})
    life.files = record
    life.start()
    crash_to_models(life)
    _work(life, rng, rng.randrange(6))
    record.record.end()
    return record.record


def _work(life: Life, rng: random.Random, steps: int) -> None:
    for step in rng.choices(list(STEPS), list(STEPS.values()), k=steps):
        step(life, rng.choice(list(life.models)), rng)


def check(files: MemoryFileSystem, promises: dict[bytes, QueueModel], *, power: bool, deep: bool) -> None:
    """What was confirmed is there, in order and whole, nothing foreign, nothing that is surely gone; twice the same."""
    if deep:
        vhost_life.assert_promises_are_kept(files, promises)
        return
    vhost = recovered(files, promises)
    found = {name: found_in(vhost.queue(name)) for name in promises}
    vhost = recovered(files.after_process_crash(), promises)
    assert {name: found_in(vhost.queue(name)) for name in promises} == found, "a second recovery finds something else"
