"""``python -m benchmarks.long_run.clients PORT``: AMQP clients that come and go, in one program, by pika.

Standard input and output: as in :mod:`~benchmarks.long_run.member`.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final

import attrs
import pika
from pika.adapters.blocking_connection import BlockingChannel

from benchmarks.long_run.ledger import body_of, say, say_got

QUEUES: Final = 2
PUBLISH_EVERY_S: Final = 0.02
CHURN_EVERY_S: Final = 0.5
PROBE_EVERY_S: Final = 0.25
CONSUME_S: Final = (10.0, 40.0)
AWAY_S: Final = (20.0, 60.0)
PERSISTENT: Final = pika.BasicProperties(delivery_mode=2)


@attrs.define
class Clients:
    """Threads, each with connections of its own."""

    port: int
    random: random.Random
    draining: threading.Event = attrs.Factory(threading.Event)
    over: threading.Event = attrs.Factory(threading.Event)
    threads: list[threading.Thread] = attrs.Factory(list)

    def begin(self) -> None:
        works: list[Callable[[], None]] = [
            *(partial(work, number) for number in range(QUEUES) for work in (self.publish, self.consume)),
            self.churn, self.probe,
        ]  # fmt: skip
        self.threads = [threading.Thread(target=self._run, args=(work,)) for work in works]
        for thread in self.threads:
            thread.start()

    def end(self) -> None:
        self.over.set()
        for thread in self.threads:
            thread.join()

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except pika.exceptions.AMQPError as error:
            say("failed", type(error).__name__, error)

    @contextmanager
    def _channel(self, queue: str) -> Iterator[BlockingChannel]:
        parameters = pika.ConnectionParameters("127.0.0.1", self.port)
        with pika.BlockingConnection(parameters) as connection, connection.channel() as channel:
            channel.queue_declare(queue, durable=True)
            channel.confirm_delivery()
            yield channel

    def publish(self, number: int) -> None:
        stream, count = f"amqp.work{number}", 0
        while not self.over.is_set() and not self.draining.is_set():
            with self._channel(f"work {number}") as channel:
                end = time.monotonic() + self.random.uniform(*CONSUME_S)
                while time.monotonic() < end and not self.over.wait(PUBLISH_EVERY_S) and not self.draining.is_set():
                    channel.basic_publish("", f"work {number}", body_of(stream, count), PERSISTENT)
                    count += 1
                    say("confirmed", stream, count)

    def consume(self, number: int) -> None:
        while not self.over.is_set():
            with self._channel(f"work {number}") as channel:
                end = time.monotonic() + self.random.uniform(*CONSUME_S)
                channel.basic_qos(prefetch_count=100)
                for method, _, body in channel.consume(f"work {number}", inactivity_timeout=0.2):
                    if method is not None and body is not None:
                        say_got([body])
                        channel.basic_ack(method.delivery_tag)
                    if self.over.is_set() or (time.monotonic() > end and not self.draining.is_set()):
                        break
                channel.cancel()
            away_until = time.monotonic() + self.random.uniform(*AWAY_S)
            while not self.draining.is_set() and time.monotonic() < away_until and not self.over.wait(0.5):
                pass

    def churn(self) -> None:
        """Connections that are opened, declare what goes with them, and are gone."""
        while not self.over.wait(CHURN_EVERY_S):
            with self._channel("churn") as channel:
                own = channel.queue_declare("", exclusive=True).method.queue
                channel.queue_bind(own, "amq.topic", "churn.#")
                channel.basic_publish("amq.topic", "churn.one", b"gone with its queue")

    def probe(self) -> None:
        with self._channel("probe") as channel:
            while not self.over.wait(PROBE_EVERY_S):
                begun = time.monotonic()
                channel.basic_publish("", "probe", b"probe", PERSISTENT)
                confirmed = time.monotonic()
                method = None
                while method is None:
                    method, _, _ = channel.basic_get("probe", auto_ack=True)
                say("waited", "amqp", f"{confirmed - begun:.6f}", f"{time.monotonic() - begun:.6f}")


def main(port: str) -> None:
    clients = Clients(int(port), random.Random(port))
    clients.begin()
    say("ready")
    for line in sys.stdin:
        match line.split():
            case ["drain"]:
                clients.draining.set()
            case ["end"]:
                break
    clients.end()
    say("ended")


if __name__ == "__main__":
    main(*sys.argv[1:])
