"""Messages with keys: the run and the promises of :mod:`tests.support.unique_life`."""

from __future__ import annotations

import random
from typing import Any
from unittest.mock import patch

import attrs

from tests.crash_points.recording import Record, recording
from tests.support.runtime_tools import hand_node
from tests.support.unique_life import SMALL, Life
from tests.support.unique_life import check as check_keys
from warren.actors.clock import HandClock
from warren.actors.engines import unique_keys
from warren.storage.memory import MemoryFileSystem


@attrs.frozen
class Tried:
    """One publish, as it was known then."""

    key: str
    body: bytes
    period: bool
    got: bool
    confirmed: bool


@attrs.frozen
class Promises:
    tries: tuple[Tried, ...]
    wall_us: int


def run(seed: int) -> Record:
    """Publishes with keys, some of them again, some in a batch; a stop in the middle, or a kill and a takeover."""
    rng = random.Random(seed)
    base = MemoryFileSystem(seed)
    tries: list[Any] = []
    clock = HandClock()

    def promised() -> Promises:
        known = (Tried(one.key, one.body, one.period, one.got, one.confirmed) for one in tries)
        return Promises(tuple(known), clock.wall_us())

    files = recording(base, promised)
    with patch.object(unique_keys, "MIN_LOG_BYTES", 300):
        life = Life(hand_node(files, seed=seed, clock=clock, **SMALL), tries)
        for _ in range(rng.randrange(2, 5)):
            _work(life, rng)
            if rng.random() < 0.5:
                life.scene.node.close()
                left = life.scene.files.after_process_crash()
            else:
                left = life.scene.kill()
            life = Life(hand_node(left, seed=rng.getrandbits(32), clock=clock, **SMALL), tries)
        files.record.end()
        life.scene.forget()
    return files.record


def _work(life: Life, rng: random.Random) -> None:
    for _ in range(rng.randrange(3, 9)):
        period = rng.random() < 0.5
        key = f"{'t' if period else 'w'}{rng.randrange(6)}"
        match rng.choice(("publish", "publish", "publish", "many", "done", "sync", "time")):
            case "publish":
                life.publish(key, period=period, wait=rng.random() < 0.6, big=rng.random() < 0.2)
            case "many":
                life.publish_many([f"{key[0]}{rng.randrange(6)}" for _ in range(4)], period=period)
            case "done":
                life.done(rng.randrange(1, 4))
            case "sync":
                life.queue.sync()
            case "time":
                life.scene.advance(0.1)


def check(files: MemoryFileSystem, promises: Promises, *, power: bool, deep: bool) -> None:
    """After a confirm no second message with the key is stored; a lost message never counts as the first one."""
    with patch.object(unique_keys, "MIN_LOG_BYTES", 300):
        life: Any = attrs.make_class("Known", ["tries"])(list(promises.tries))
        check_keys(life, files, HandClock(promises.wall_us), strictly=False)
