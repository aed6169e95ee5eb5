"""``python -m benchmarks.long_run.member DIRECTORY NAME LIMIT``: one program of a shared directory, under mixed load.

It publishes to queues, in batches and with delays, and appends to a topic; its consumers and readers come and go, and
fail at times. On its standard input: ``reopen`` closes its node and opens it again, ``drain`` ends publishing, ``end``
closes it. What it says is :mod:`~benchmarks.long_run.ledger`'s.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Final

import attrs

import warren
from benchmarks.long_run.ledger import body_of, say, say_got
from warren.errors import WarrenError

QUEUES: Final = 4
BATCH: Final = 50
PUBLISH_EVERY_S: Final = 0.125
"""A batch, to one queue after the other."""
APPEND_EVERY_S: Final = 0.02
DELAY_EVERY_S: Final = 0.1
PROBE_EVERY_S: Final = 0.25
CONSUME_S: Final = (10.0, 40.0)
AWAY_S: Final = (20.0, 60.0)
WAIT_S: Final = 5.0
"""How long a thread waits for a message; on a busy machine the host of the directory may be silent for some seconds."""
FAILS: Final = 0.002
"""Share of the messages that a consumer gives back."""
HAND_OVER_S: Final = 1.0
"""Between a close and the next open: the other program takes over."""
RETRY: Final = warren.Retry(limit=50, delay=0.5, max_delay=2)
"""For the queue of jobs; a tenth of them fails."""


@attrs.define
class Member:
    """A node, and the threads that use it."""

    directory: str
    name: str
    limit: int
    random: random.Random
    life: int = 0
    """How often the node was opened."""
    draining: threading.Event = attrs.Factory(threading.Event)
    over: threading.Event = attrs.Factory(threading.Event)
    """Of the threads that use the node now."""
    threads: list[threading.Thread] = attrs.Factory(list)
    node: warren.Node | None = None

    def begin(self) -> None:
        self.node = node = warren.open(self.directory, share=True, vm_memory_high_watermark=self.limit)
        self.over = threading.Event()
        works: list[Callable[[warren.Node], None]] = [
            *(partial(self.publish, number=number) for number in range(QUEUES)),
            self.consume, self.append, self.read, self.delay, self.do_jobs, self.probe,
        ]  # fmt: skip
        self.threads = [threading.Thread(target=self._run, args=(work, node)) for work in works]
        for thread in self.threads:
            thread.start()
        self.life += 1

    def end(self) -> None:
        self.over.set()
        for thread in self.threads:
            thread.join()
        if self.node is not None:
            self.node.close()

    def _run(self, work: Callable[[warren.Node], None], node: warren.Node) -> None:
        try:
            work(node)
        except WarrenError as error:
            say("failed", type(error).__name__, error)

    # ── what goes in ────────────────────────────────────────────────────────────────────────────────────────────

    def publish(self, node: warren.Node, number: int) -> None:
        queue, stream, count = node.queue(f"work {number}"), f"{self.name}.{self.life}.work{number}", 0
        while not self._pause(PUBLISH_EVERY_S * QUEUES):
            queue.publish_many([body_of(stream, count + index) for index in range(BATCH)]).wait()
            count += BATCH
            say("confirmed", stream, count)

    def append(self, node: warren.Node) -> None:
        topic, stream, count = node.topic("log"), f"{self.name}.{self.life}.log", 0
        while not self._pause(APPEND_EVERY_S):
            topic.append(body_of(stream, count), key=stream).wait()
            count += 1
            say("confirmed", stream, count)

    def delay(self, node: warren.Node) -> None:
        queue, stream, count = node.queue("jobs", retry=RETRY), f"{self.name}.{self.life}.jobs", 0
        while not self._pause(DELAY_EVERY_S):
            queue.publish(body_of(stream, count), delay=self.random.uniform(0, 10)).wait()
            count += 1
            say("confirmed", stream, count)

    def _pause(self, seconds: float) -> bool:
        """Whether there is nothing more to publish."""
        return self.over.wait(seconds) or self.draining.is_set()

    # ── what comes out ──────────────────────────────────────────────────────────────────────────────────────────

    def consume(self, node: warren.Node) -> None:
        """From all queues for a while, then from none."""
        while not self.over.is_set():
            end = time.monotonic() + self.random.uniform(*CONSUME_S)
            consumers = [node.queue(f"work {number}").consume(prefetch=200) for number in range(QUEUES)]
            while not self.over.is_set() and (self.draining.is_set() or time.monotonic() < end):
                for consumer in consumers:
                    self._settle(consumer)
            for consumer in consumers:
                consumer.close()
            away_until = time.monotonic() + self.random.uniform(*AWAY_S)
            while not self.draining.is_set() and time.monotonic() < away_until and not self.over.wait(0.5):
                pass

    def _settle(self, consumer: warren.Consumer) -> None:
        delivery = consumer.receive(0.05)
        taken = []
        while delivery is not None:
            taken.append(delivery)
            delivery = consumer.take_now() if len(taken) < 100 else None
        say_got(delivery.body for delivery in taken)
        for delivery in taken:
            if self.random.random() < FAILS:
                delivery.nack()
            else:
                delivery.ack()

    def read(self, node: warren.Node) -> None:
        topic = node.topic("log")
        while not self.over.is_set():
            for record in topic.read("readers", max_records=self.random.randrange(100, 3000), timeout=WAIT_S):
                say_got([record.body])
                if self.over.is_set():
                    break

    def do_jobs(self, node: warren.Node) -> None:
        queue = node.queue("jobs", retry=RETRY)
        while not self.over.is_set():
            delivery = queue.get(timeout=WAIT_S)
            if delivery is None:
                continue
            if self.random.random() < 0.1:
                delivery.retry(1.0)
            else:
                say_got([delivery.body])
                delivery.ack()

    # ── how long it takes ───────────────────────────────────────────────────────────────────────────────────────

    def probe(self, node: warren.Node) -> None:
        """One message there and back, in a queue of its own."""
        queue = node.queue(f"probe {self.name}")
        while not self.over.wait(PROBE_EVERY_S):
            begun = time.monotonic()
            queue.publish(b"probe").wait()
            confirmed = time.monotonic()
            queue.get(auto_ack=True, timeout=30)
            say("waited", self.name, f"{confirmed - begun:.6f}", f"{time.monotonic() - begun:.6f}")


def main(directory: str, name: str, limit: str) -> None:
    member = Member(directory, name, int(limit), random.Random(name))
    member.begin()
    say("ready")
    for line in sys.stdin:
        match line.split():
            case ["reopen"]:
                member.end()
                time.sleep(HAND_OVER_S)
                member.begin()
                say("ready")
            case ["drain"]:
                member.draining.set()
            case ["end"]:
                break
    member.end()
    say("ended")


if __name__ == "__main__":
    main(*sys.argv[1:])
