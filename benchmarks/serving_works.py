"""What is measured of a server: works of a client, each of which returns its figures by name.

Messages that differ, as applications send them, come first; then those that are all alike.
"""

from __future__ import annotations

import os
import selectors
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import cycle, islice
from statistics import median
from threading import Thread
from typing import Final, Protocol

import psutil
from pamqp import commands as c

from benchmarks.amqp_client import PERSISTENT, Client
from benchmarks.tasks import ROUTING_KEYS, body_sizes, task_messages
from warren.amqp.methods import method_of
from warren.amqp.received import Messages

WINDOW: Final = 1000
ACKED_TOGETHER: Final = 100
BACKLOG_BODY: Final = 128
KILLS: Final = 3
_WINDOWS: Final = 10
"""Windows of different messages, which are sent in turn."""
_EXCHANGE: Final = "bench"
_QUEUE: Final = "bench"


class Contestant(Protocol):
    """A server that can be started, and killed."""

    name: str

    @property
    def port(self) -> int: ...

    @property
    def pid(self) -> int: ...

    def kill_and_start(self) -> float:
        """Seconds from the new start until a connection is answered."""


Work = Callable[[Contestant], dict[str, float]]

# ── messages that differ ────────────────────────────────────────────────────────────────────────────────────────────


def tasks(*, transient: float = 0.0) -> list[bytes]:
    """Windows of messages like Celery's. ``transient``: the share that is."""
    return [
        b"".join(
            Client.publish_of("", _QUEUE, message.properties, [message.body])
            for message in task_messages(WINDOW, seed, transient=transient)
        )
        for seed in range(1, _WINDOWS + 1)
    ]


def _tasks_by_key() -> list[bytes]:
    """The same with ten routing keys."""
    return [
        b"".join(
            Client.publish_of(_EXCHANGE, f"key-{message.number}", message.properties, [message.body])
            for message in task_messages(WINDOW, seed)
        )
        for seed in range(1, _WINDOWS + 1)
    ]


def different_lengths() -> list[bytes]:
    """Windows of messages without properties of their own, with bodies of different lengths."""
    return [
        Client.publish_of("", _QUEUE, PERSISTENT, [os.urandom(size) for size in body_sizes(WINDOW, seed)])
        for seed in range(1, _WINDOWS + 1)
    ]


def _declare(publisher: Client, queues: Sequence[str] = (_QUEUE,)) -> None:
    for queue in queues:
        publisher.call(method_of(c.Queue.Delete, queue=queue), c.Queue.DeleteOk)
        publisher.call(method_of(c.Queue.Declare, queue=queue, durable=True), c.Queue.DeclareOk)


def _publish(publisher: Client, windows: Sequence[bytes], count: int, *, confirms: bool) -> float:
    """Return the seconds that a number of windows take."""
    if confirms:
        publisher.call(c.Confirm.Select(), c.Confirm.SelectOk)
    begun = time.perf_counter()
    for number, window in enumerate(islice(cycle(windows), count), 1):
        publisher.send(window)
        if confirms:
            publisher.wait_for_confirms(number * WINDOW)
    if not confirms:  # the answer comes after all messages are taken in
        publisher.call(c.Basic.Qos(0, 0, False), c.Basic.QosOk)
    return time.perf_counter() - begun


def one_connection(windows: Callable[[], list[bytes]], messages: int) -> Work:
    """Published, with confirms and without, and consumed with an ack each: messages a second."""
    count = messages // WINDOW

    def work(server: Contestant) -> dict[str, float]:
        figures: dict[str, float] = {}
        prepared = windows()
        for confirms in (False, True):
            with Client(server.port) as publisher:
                _declare(publisher)
                seconds = _publish(publisher, prepared, count, confirms=confirms)
                figures["confirmed" if confirms else "published"] = count * WINDOW / seconds
        with Client(server.port) as consumer:
            begun = time.perf_counter()
            _consume_singly(consumer, count * WINDOW)
            figures["consumed"] = count * WINDOW / (time.perf_counter() - begun)
        return figures

    return work


def _consume_singly(consumer: Client, count: int) -> None:
    """Consume with an ack for each message."""
    consumer.consume(_QUEUE, prefetch=WINDOW)
    left = count
    for run in consumer.deliveries():
        consumer.ack_each(run.tags)
        left -= len(run.bodies)
        if not left:
            break
    consumer.call(c.Basic.Qos(0, 0, False), c.Basic.QosOk)  # it has come to the acks


def ten_queues(messages: int) -> Work:
    """Published with confirms through a topic exchange, to ten queues in turn: messages a second."""

    def work(server: Contestant) -> dict[str, float]:
        names = [f"{_QUEUE}-{number}" for number in range(ROUTING_KEYS)]
        with Client(server.port) as publisher:
            exchange = method_of(c.Exchange.Declare, exchange=_EXCHANGE, exchange_type="topic", durable=True)
            publisher.call(exchange, c.Exchange.DeclareOk)
            _declare(publisher, names)
            for number, name in enumerate(names):
                binding = method_of(c.Queue.Bind, queue=name, exchange=_EXCHANGE, routing_key=f"key-{number}")
                publisher.call(binding, c.Queue.BindOk)
            count = messages // WINDOW
            seconds = _publish(publisher, _tasks_by_key(), count, confirms=True)
        return {"confirmed": count * WINDOW / seconds}

    return work


def at_once(windows: Callable[[], list[bytes]], messages: int, pairs: int, *, confirms: bool, acks: bool) -> Work:
    """Published and consumed at the same time, by ``pairs`` connections each: messages a second, end to end."""
    count = max(messages // WINDOW // pairs, 1)

    def work(server: Contestant) -> dict[str, float]:
        total = count * pairs * WINDOW
        with ExitStack() as stack:
            publishers = [stack.enter_context(Client(server.port)) for _ in range(pairs)]
            consumers = [stack.enter_context(Client(server.port)) for _ in range(pairs)]
            _declare(publishers[0])
            for consumer in consumers:
                consumer.consume(_QUEUE, no_ack=not acks, prefetch=WINDOW if acks else 0)
            prepared = windows()
            threads = [
                Thread(target=_publish, args=(publisher, prepared, count), kwargs={"confirms": confirms})
                for publisher in publishers
            ]
            begun = time.perf_counter()
            for thread in threads:
                thread.start()
            _consume_all(consumers, total, acks=acks)
            seconds = time.perf_counter() - begun
            for thread in threads:
                thread.join()
        return {"rate": total / seconds}

    return work


def _consume_all(consumers: Sequence[Client], total: int, *, acks: bool) -> None:
    with selectors.DefaultSelector() as selector:
        for consumer in consumers:
            selector.register(consumer.socket, selectors.EVENT_READ, consumer)
        while total > 0:
            for key, _ in selector.select():
                for event in key.data.events():
                    if isinstance(event, Messages):
                        total -= len(event.bodies)
                        if acks:
                            key.data.ack_each(event.tags)


def latency(messages: int, connections: int) -> Work:
    """From a publish to its delivery, one after the other on each pair of connections, acked and not confirmed: µs."""

    def work(server: Contestant) -> dict[str, float]:
        with ExitStack() as stack, selectors.DefaultSelector() as selector:
            publishers = [stack.enter_context(Client(server.port)) for _ in range(connections)]
            sent = [cycle(_task_each(f"{_QUEUE}-{number}")) for number in range(connections)]
            begun = [0.0] * connections
            for number, publisher in enumerate(publishers):
                _declare(publisher, [f"{_QUEUE}-{number}"])
                consumer = stack.enter_context(Client(server.port))
                consumer.consume(f"{_QUEUE}-{number}", prefetch=10)
                selector.register(consumer.socket, selectors.EVENT_READ, (number, consumer))
            took: list[float] = []

            def publish(number: int) -> None:
                data = next(sent[number])
                begun[number] = time.perf_counter()
                publishers[number].send(data)

            for number in range(connections):
                publish(number)
            while len(took) < messages:
                for key, _ in selector.select():
                    number, consumer = key.data
                    for event in consumer.events():
                        if isinstance(event, Messages):
                            took.append((time.perf_counter() - begun[number]) * 1e6)
                            consumer.ack_each(event.tags)
                            publish(number)
            took.sort()
            return {"p50": took[len(took) // 2], "p99": took[len(took) * 99 // 100]}

    return work


def _task_each(queue: str) -> list[bytes]:
    return [Client.publish_of("", queue, message.properties, [message.body]) for message in task_messages(WINDOW)]


# ── messages that are alike ─────────────────────────────────────────────────────────────────────────────────────────


def alike(size: int) -> list[bytes]:
    """A window of messages that differ in nothing but random bodies of one size."""
    return [Client.publish_of("", _QUEUE, PERSISTENT, [os.urandom(size) for _ in range(WINDOW)])]


def throughput(size: int, messages: int, connections: int) -> Work:
    """Published with confirms, consumed with acks, consumed without: messages a second."""

    def work(server: Contestant) -> dict[str, float]:
        each = messages // connections // WINDOW or 1
        total = each * WINDOW * connections
        with ExitStack() as stack:
            publishers = [stack.enter_context(Client(server.port)) for _ in range(connections)]
            names = [f"bench-{size}-{connections}-{number}" for number in range(connections)]
            windows = []
            for publisher, name in zip(publishers, names, strict=True):
                publisher.call(method_of(c.Queue.Declare, queue=name, durable=True), c.Queue.DeclareOk)
                publisher.call(c.Confirm.Select(), c.Confirm.SelectOk)
                windows.append(Client.publish_of("", name, PERSISTENT, [os.urandom(size) for _ in range(WINDOW)]))
            figures: dict[str, float] = {}
            for what in ("acks", "auto-ack"):
                offset = 0 if what == "acks" else each
                begun = time.perf_counter()
                for number in range(offset + 1, offset + each + 1):
                    for publisher, window in zip(publishers, windows, strict=True):
                        publisher.send(window)
                    for publisher in publishers:
                        publisher.wait_for_confirms(number * WINDOW)
                figures.setdefault("publish", total / (time.perf_counter() - begun))
                begun = time.perf_counter()
                _consume(server.port, names, each * WINDOW, no_ack=what == "auto-ack")
                figures[what] = total / (time.perf_counter() - begun)
            for publisher, name in zip(publishers, names, strict=True):
                publisher.call(method_of(c.Queue.Delete, queue=name), c.Queue.DeleteOk)
        return figures

    return work


def _consume(port: int, queues: list[str], each: int, *, no_ack: bool) -> None:
    with ExitStack() as stack:
        consumers = [stack.enter_context(Client(port)) for _ in queues]
        for consumer, queue in zip(consumers, queues, strict=True):
            consumer.consume(queue, no_ack=no_ack, prefetch=0 if no_ack else 10 * ACKED_TOGETHER)
        for consumer in consumers:
            received = acked = 0
            for run in consumer.deliveries():
                received += len(run.bodies)
                last = run.tags[-1]
                if not no_ack and (last - acked >= ACKED_TOGETHER or received == each):
                    consumer.ack_up_to(last)
                    acked = last
                if received == each:
                    break
            consumer.call(c.Basic.Qos(0, 0, False), c.Basic.QosOk)  # it has come to the acks


def idle_connections(count: int) -> Work:
    """Memory that connections with a channel take: KB each."""

    def work(server: Contestant) -> dict[str, float]:
        before = _rss(server.pid)
        with ExitStack() as stack:
            for _ in range(count):
                stack.enter_context(Client(server.port))
            return {"connection": (_rss(server.pid) - before) / count / 1e3}

    return work


def backlog(messages: int, windows: Callable[[], list[bytes]]) -> Work:
    """Memory grown by messages that wait, and the start after a kill: the median of several."""

    def work(server: Contestant) -> dict[str, float]:
        with Client(server.port) as publisher:
            _declare(publisher)
            before = _rss(server.pid)
            _publish(publisher, windows(), messages // WINDOW, confirms=True)
            grown = (_rss(server.pid) - before) / 1e6
        started = median(server.kill_and_start() for _ in range(KILLS))
        with Client(server.port) as publisher:
            publisher.call(method_of(c.Queue.Delete, queue=_QUEUE), c.Queue.DeleteOk)
        return {"grown": grown, "started": started}

    return work


def _rss(pid: int) -> int:
    return int(psutil.Process(pid).memory_info().rss)
