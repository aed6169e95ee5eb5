"""The runtime: what actors, credit and confirms cost on top of the engine. Real files, real threads, ``warren.open``.

Here the counterpart is another way to do the same in the same run: ``publish_many`` beside ``publish``, the standard
library's ``queue.Queue`` beside a hand-off, one queue beside a thousand. Measured in turn, pair by pair.
"""

from __future__ import annotations

import os
import queue
import shutil
import statistics
import threading
import time
from collections.abc import Callable

import warren
from benchmarks.figures import Bar, Figure, Spread, ratios
from benchmarks.measure import Tick, seconds_of

BODY = bytes(128)
HAND_OFFS = 3000
QUEUES = 1000
ROUNDS = 200


def runtime(directory: str, *, scale: float, repeats: int, tick: Tick) -> list[Figure]:
    """All figures of the runtime; ``directory`` is where the queues lie meanwhile."""
    figures: list[Figure] = []
    for sync in ("os", "group"):
        path = os.path.join(directory, f"runtime-{sync}")
        with warren.open(path, sync=sync) as node:
            figures += _publishing(node, sync, max(2000, int(200_000 * scale)), repeats, tick)
            figures.append(_many_queues(node, sync, scale, repeats, tick))
            if sync == "os":
                figures += _hand_off(node, max(100, int(HAND_OFFS * scale)), repeats, tick)
        shutil.rmtree(path)
    return figures


def _publishing(node: warren.Node, sync: str, count: int, repeats: int, tick: Tick) -> list[Figure]:
    one_by_one, batches, consumed = [], [], []
    bodies = [BODY] * 1000
    target = node.queue("publishing")

    def publish() -> None:
        for _ in range(count):
            confirm = target.publish(BODY)
        confirm.wait()

    def publish_many() -> None:
        for _ in range(count // 1000):
            confirm = target.publish_many(bodies)
        confirm.wait()

    def consume() -> None:
        left = count
        for delivery in target.consume(prefetch=1000):
            delivery.ack()
            left -= 1
            if not left:
                break

    publish_many()
    target.purge()
    for _ in range(repeats):
        one_by_one.append(count / seconds_of(publish))
        target.purge()
        batches.append(count // 1000 * 1000 / seconds_of(publish_many))
        target.purge()
        target.publish_many([BODY] * count).wait()
        consumed.append(count / seconds_of(consume))
        tick()
    node.delete_queue("publishing")
    said = f'sync="{sync}"'
    # To reach: 300,000/s one by one where batches make 1,000,000/s.
    return [
        Figure(
            group="runtime",
            title=f"runtime, publish one at a time, {said}",
            unit="messages/s",
            ours=Spread.of(one_by_one),
            counterpart=Spread.of(batches),
            counterpart_name="publish_many(1000) beside it",
            ratio=ratios(one_by_one, batches),
            bar=Bar("at least", 0.3),
            note="128 B, confirmed at the end",
        ),
        Figure(
            group="runtime",
            title=f"runtime, consume and ack one at a time, {said}",
            unit="messages/s",
            ours=Spread.of(consumed),
            note="prefetch 1000",
        ),
    ]


def _hand_off(node: warren.Node, count: int, repeats: int, tick: Tick) -> list[Figure]:
    """Seconds from a put to the other thread's having it, the median of many, with the giver waiting for each."""
    ours, confirmed, standard = [], [], []
    target = node.queue("hand-off")
    plain: queue.Queue[bytes] = queue.Queue()
    for _ in range(repeats):
        with target.consume(prefetch=10, auto_ack=True) as consumer:
            ours.append(_latency(count, target.publish, lambda: consumer.receive().body))  # type: ignore[union-attr]
        with target.consume(prefetch=10) as acking:

            def receive() -> bytes:
                delivery = acking.receive()
                delivery.ack()  # type: ignore[union-attr]
                return delivery.body  # type: ignore[union-attr]

            confirmed.append(_latency(count // 10, target.publish, receive))
        standard.append(_latency(count, plain.put, plain.get))
        tick()
    node.delete_queue("hand-off")
    micro = [[1e6 * one for one in many] for many in (ours, confirmed, standard)]
    beside = {"counterpart": Spread.of(micro[2]), "counterpart_name": "queue.Queue"}
    return [
        Figure(
            group="runtime",
            title="runtime, hand-off between two threads, p50",
            unit="µs",
            ours=Spread.of(micro[0]),
            ratio=ratios(micro[0], micro[2]),
            bar=Bar("at most", 4.0),
            note="auto_ack, as a get of queue.Queue's is",
            **beside,
        ),
        Figure(
            group="runtime",
            title="runtime, hand-off of a persistent message that is acked, p50",
            unit="µs",
            ours=Spread.of(micro[1]),
            ratio=ratios(micro[1], micro[2]),
            note="written before it is handed off",
            **beside,
        ),
    ]


def _latency(count: int, give: Callable[[bytes], object], take: Callable[[], bytes]) -> float:
    """The median of ``count`` hand-offs (seconds)."""
    arrivals: queue.SimpleQueue[float] = queue.SimpleQueue()

    def work() -> None:
        while take() != b"end":
            arrivals.put(time.perf_counter())

    thread = threading.Thread(target=work)
    thread.start()
    times = []
    for _ in range(count):
        start = time.perf_counter()
        give(b"message")
        times.append(arrivals.get() - start)
    give(b"end")
    thread.join()
    return statistics.median(times)


def _many_queues(node: warren.Node, sync: str, scale: float, repeats: int, tick: Tick) -> Figure:
    """Many queues in turn, one message each time, beside as many messages to one queue."""
    count, rounds = max(20, int(QUEUES * scale)), max(1, int(ROUNDS * scale))
    many, one = [], []
    queues = [node.queue(f"one of many, {number}") for number in range(count)]
    single = node.queue("one")
    for target in (*queues, single):  # their directories are made
        target.publish(BODY).wait()

    def interleaved() -> None:
        for _ in range(rounds):
            for target in queues:
                target.publish(BODY)
        for target in queues:
            target.sync()

    def straight() -> None:
        for _ in range(rounds * count):
            confirm = single.publish(BODY)
        confirm.wait()

    for _ in range(repeats):
        one.append(rounds * count / seconds_of(straight))
        many.append(rounds * count / seconds_of(interleaved))
        tick()
    for target in (*queues, single):
        target.delete()
    return Figure(
        group="runtime",
        title=f'runtime, {count:,} queues × {rounds} interleaved, sync="{sync}"',
        unit="messages/s",
        ours=Spread.of(many),
        counterpart=Spread.of(one),
        counterpart_name="one queue",
        ratio=ratios(many, one),
        bar=Bar("at least", 0.3),
    )
