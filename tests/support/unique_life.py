"""A queue of messages with keys at work, its answers, and what a crash may make of that."""

from __future__ import annotations

from typing import Any

import attrs

from tests.support.runtime_tools import BIG, HandNode, hand_node
from warren import Queue
from warren.actors.clock import HandClock
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
