"""A queue of messages with keys at work, its answers, and what a crash may make of them."""

from __future__ import annotations

import random
from typing import Any
from unittest.mock import patch

import attrs

from tests.crash_points.recording import Record, recording
from tests.support.runtime_tools import BIG, HandNode, hand_node
from warren import Queue
from warren.actors.clock import HandClock
from warren.actors.engines import unique_keys
from warren.actors.runtime.future import Confirm
from warren.storage.memory import MemoryFileSystem

SMALL: dict[str, Any] = {"segment_entry_count": 4, "queue_index_max_journal_entries": 6}
PERIOD_S = 1000.0


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
    """What one process does with a queue, and the answers."""

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


def check_keys(life: Life, files: MemoryFileSystem, clock: HandClock, *, strictly: bool) -> None:
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
