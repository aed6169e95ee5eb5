"""Queues as a load of a process that is killed: publishers of bodies of all sizes, to one queue and to two at once,
and consumers of all kinds (:mod:`tests.support.kill_child`)."""

from __future__ import annotations

import functools
import random
import threading
from collections import deque
from typing import Any

import warren
from tests.support.kill_child import Load
from warren.actors.runtime.future import Confirm, CountDown, Future

STREAMS: dict[str, tuple[tuple[str, ...], int]] = {
    "small": (("small",), 0),
    "large": (("large",), 5000),
    "thin": (("left", "right"), 0),
    "thick": (("left", "right"), 6000),
}
"""By publisher: its queues, and the least number of bytes of a body. Bodies over 4096 go into the store."""

QUEUES = ("small", "large", "left", "right")
BACKLOG = 150
"""Publishers pause where a queue has more."""

AHEAD = 4
"""How many batches of a publisher are unconfirmed at most."""


def body_of(stream: str, number: int) -> bytes:
    """The one body that this message has."""
    head = b"%s:%d;" % (stream.encode(), number)
    size = STREAMS[stream][1]
    return head if not size else (head * (size // len(head) + 1))


def name_of(body: bytes) -> str:
    """``stream:number``; raises where the body is not whole."""
    name = body.partition(b";")[0].decode()
    stream, _, number = name.partition(":")
    if body != body_of(stream, int(number)):
        raise ValueError(f"a body of {len(body)} bytes that begins with {body[:40]!r} was never published")
    return name


class QueueLoad(Load):
    """See the module's prose."""

    kind = "queues"

    def works(self) -> list[tuple[Any, ...]]:
        self._room = threading.Event()
        """Something was acked: a publisher that pauses looks again."""
        queues = {name: self.node.queue(name) for name in QUEUES}
        works: list[tuple[Any, ...]] = [(self.consume, queues, name) for name in ("small", "left")]
        works += [(self.get, queues, name) for name in ("large", "right")]
        return works + [(self.publish, queues, stream) for stream in STREAMS]

    # ── publishers ──────────────────────────────────────────────────────────────────────────────────────────────

    def publish(self, rng: random.Random, queues: dict[str, warren.Queue], stream: str) -> None:
        names, size = STREAMS[stream]
        number, waiting = self.started[stream], deque[Confirm]()
        while True:
            while any(len(queues[name]) > BACKLOG for name in names):
                self._room.clear()
                self._room.wait(0.05)
            first, count = number, rng.choice([1, 3, 20, 20 if size else 60])
            number += count
            self.tell("p", stream, number - 1)
            bodies = [body_of(stream, n) for n in range(first, number)]
            if len(names) > 1:
                confirm: Confirm = CountDown([self.node.publish_to(names, body) for body in bodies])
            elif rng.random() < 0.5:
                confirm = queues[names[0]].publish_many(bodies)
            else:
                confirm = CountDown(
                    self.publish_singly(queues[names[0]], bodies, waiting if rng.random() < 0.5 else None)
                )
            confirm.on_done(functools.partial(self.confirmed, stream, first, number - 1))
            waiting.append(confirm)
            while len(waiting) > AHEAD or (waiting and any(len(queues[name]) > BACKLOG for name in names)):
                waiting.popleft().wait()

    @staticmethod
    def publish_singly(queue: warren.Queue, bodies: list[bytes], waiting: deque[Confirm] | None) -> list[Future]:
        """One at a time. ``waiting``: what is to be waited for before, and then for each."""
        while waiting:
            waiting.popleft().wait()
        confirms: list[Future] = []
        for body in bodies:
            confirm = queue.publish(body)
            confirms.append(confirm)
            if waiting is not None:
                confirm.wait()
        return confirms

    def confirmed(self, stream: str, first: int, last: int, confirm: Future) -> None:
        if confirm.error is None:
            self.tell("c", stream, first, last)
        else:
            self.tell("e", confirm.error)

    # ── consumers ───────────────────────────────────────────────────────────────────────────────────────────────

    def consume(self, rng: random.Random, queues: dict[str, warren.Queue], name: str) -> None:
        """Consumers that come and go, with acks one by one, of batches, and not at all."""
        queue = queues[name]
        while True:
            taken: list[warren.Delivery] = []
            with queue.consume(prefetch=rng.choice([5, 30, 300]), timeout=0.02) as consumer:
                for delivery in consumer:
                    taken.append(delivery)
                    if len(taken) >= rng.choice([1, 25, 100]):
                        self.settle(rng, queue, taken)
                        taken = []
                        if rng.random() < 0.05:
                            break
                self.tell_taken(queue, taken)
                self.tell("x", name)

    def get(self, rng: random.Random, queues: dict[str, warren.Queue], name: str) -> None:
        queue = queues[name]
        while True:
            taken = queue.get_many(rng.choice([1, 10, 100]))
            if taken:
                self.settle(rng, queue, taken)
            elif rng.random() < 0.2:
                self._room.wait(0.01)

    def tell_taken(self, queue: warren.Queue, taken: list[warren.Delivery]) -> None:
        for start in range(0, len(taken), 100):
            flags = [f"{name_of(one.body)}={one.redelivered:d}" for one in taken[start : start + 100]]
            self.tell("d", queue.name, *flags)

    def settle(self, rng: random.Random, queue: warren.Queue, taken: list[warren.Delivery]) -> None:
        self.tell_taken(queue, taken)
        how = rng.random()
        if how < 0.1:
            queue.nack(taken)
            return
        names = [name_of(delivery.body) for delivery in taken]
        for start in range(0, len(names), 100):
            self.tell("a", queue.name, *names[start : start + 100])
        if how < 0.3:
            for delivery in taken:
                delivery.ack()
        else:
            queue.ack(taken)
        self._room.set()
        if rng.random() < 0.3:
            queue.sync()
            self.tell("s", queue.name)
