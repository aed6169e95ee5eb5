"""A message store: files fill up, lose all they have, are combined; the store is stopped, killed and recovered."""

from __future__ import annotations

import random

from tests.crash_points.recording import Record, recording
from tests.support.store_life import DIRECTORY, Life, Promises, key, open_store, recover, small_pieces
from warren.storage.memory import MemoryFileSystem


def run(seed: int) -> Record:
    base = MemoryFileSystem(0)
    base.make_directories(DIRECTORY.rpartition("/")[0])  # the opener of a store must do that
    base.sync_all()
    return go_on(base, Promises(), seed)


def go_on(base: MemoryFileSystem, promises: Promises, seed: int, *, power: bool = False) -> Record:
    """A store from its first moment, or on what a crash left, with steps that are drawn."""
    rng = random.Random(seed)
    said = promises.copy()
    if power:  # what was written and not synced is promised to no process any more
        said.issued &= said.synced
    files: MemoryFileSystem = recording(base, said.copy)
    record = files.record  # type: ignore[attr-defined]
    with small_pieces():
        life = _taken_up(files, said)
        for _ in range(rng.randrange(8, 20)):
            first = max(said.handed_over, default=-1) + 1
            there = sorted(said.handed_over - said.removed - said.lost)
            match rng.choice(
                ["write", "write", "write", "flush", "sync", "remove", "remove", "compact", "die", "stop"]
            ):
                case "write":
                    life.write(*range(first, first + rng.randrange(1, 16)))
                case "flush":
                    life.flush()
                case "sync":
                    life.sync()
                case "remove" if there:
                    life.remove(*rng.sample(there, max(1, len(there) * rng.randrange(1, 4) // 4)))
                case "compact":
                    life.store.compact(max_steps=rng.randrange(1, 5))
                case "die":
                    files = files.after_process_crash()
                    life = _taken_up(files, said)
                case "stop":
                    life.stop()
                    files = files.after_process_crash()
                    life = _taken_up(files, said)
        record.end()
    return record


def _taken_up(files: MemoryFileSystem, said: Promises) -> Life:
    """The next process: what is not there any more was never safe."""
    store = open_store(files, said)
    for n in said.handed_over - said.removed:
        if not store.contains(key(n)):
            said.lost.add(n)
    said.issued -= said.lost
    said.synced -= said.lost
    return Life(store, said)


def check(files: MemoryFileSystem, promises: Promises, *, power: bool, deep: bool) -> None:
    with small_pieces():
        kept = (promises.synced if power else promises.issued) - promises.removed - promises.lost
        store = recover(files, promises, kept)
        there = {n for n in promises.handed_over if store.contains(key(n))}
        if store.clean:  # a power loss brought the stop's counts back, with what was removed since
            there -= promises.removed
        store.abandon()
        again = recover(files.after_process_crash(), promises, kept)
        assert {n for n in promises.handed_over if again.contains(key(n))} == there, "a second recovery finds others"
