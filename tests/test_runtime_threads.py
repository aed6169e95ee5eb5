"""A node on real threads and real files: nothing is lost, whatever publishes, consumes, fails or closes."""

from __future__ import annotations

import subprocess
import sys
import threading
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest

import warren
from tests.support.waiting import together
from warren.errors import QueueDownError
from warren.storage.errors import WarrenError

BIG = b"B" * 5000


pytestmark = pytest.mark.usefixtures("quiet")


def body(sender: int, number: int) -> bytes:
    return b"%d %d " % (sender, number) + (BIG if number % 50 == 0 else b"")


def parsed(found: bytes) -> tuple[int, int]:
    sender, number, *_ = found.split(b" ")
    return int(sender), int(number)


@pytest.mark.parametrize("threads", [1, 4])
def test_many_publishers_and_one_consumer_lose_nothing_and_keep_each_ones_order(tmp_path: Path, threads: int) -> None:
    senders, each = 4, 400
    got: list[tuple[int, int]] = []
    with warren.open(tmp_path, threads=threads, sync="os") as node:
        queue = node.queue("q")

        def publish(sender: int) -> None:
            for number in range(each):
                confirm = queue.publish(body(sender, number))
                if number % 97 == 0:
                    confirm.wait(60)

        def consume() -> None:
            with queue.consume(prefetch=50, timeout=60) as consumer:
                for delivery in consumer:
                    got.append(parsed(delivery.body))
                    delivery.ack()
                    if len(got) == senders * each:
                        return

        together(consume, *[lambda sender=sender: publish(sender) for sender in range(senders)])
        queue.sync()
        assert len(queue) == 0
    for sender in range(senders):
        assert [number for who, number in got if who == sender] == list(range(each))


def test_several_consumers_on_several_queues_get_every_message_once(tmp_path: Path) -> None:
    count = 300
    got: dict[str, list[bytes]] = {f"q{number}": [] for number in range(4)}
    with warren.open(tmp_path, threads=3, sync="os") as node:
        exchange = node.exchange("all", "fanout")
        queues = {name: node.queue(name) for name in got}
        for name in got:
            node.bind(name, "all")

        def publish(first: int) -> None:
            for number in range(first, count, 2):
                exchange.publish(b"%d" % number)

        def consume(name: str) -> None:
            with queues[name].consume(prefetch=7, timeout=60) as consumer:
                for delivery in consumer:
                    with delivery:
                        got[name].append(delivery.body)
                    if len(got[name]) == count:
                        return

        works = [lambda name=name: consume(name) for name in got]
        together(lambda: publish(0), lambda: publish(1), *works)
    for found in got.values():
        assert sorted(map(int, found)) == list(range(count))


@pytest.mark.parametrize("how", ["close", "fail"])
def test_what_was_confirmed_is_there_though_the_node_closes_or_its_queue_fails_meanwhile(
    tmp_path: Path, how: str
) -> None:
    senders, enough = 3, threading.Semaphore(0)
    confirmed: list[list[tuple[int, int]]] = [[] for _ in range(senders)]
    stop = threading.Event()
    node = warren.open(tmp_path, threads=2, sync="os")
    queue = node.queue("q")

    def publish(sender: int) -> None:
        number = 0
        while not stop.is_set():
            waiting = []
            try:
                for _ in range(10):
                    waiting.append((number, queue.publish(body(sender, number))))
                    number += 1
            except WarrenError:
                if how == "close":
                    stop.set()
            for published, confirm in waiting:
                try:
                    confirm.wait(60)
                except WarrenError:
                    continue
                except RuntimeError:  # it was this thread that found out
                    continue
                confirmed[sender].append((sender, published))
            enough.release()

    def disturb() -> None:
        for _ in range(4):
            for _ in range(15):
                assert enough.acquire(timeout=60)
            if how == "close":
                node.close()
                break
            try:
                actor = queue._verbs.entry.actor
                actor.actor_ref.tell(object())  # nothing that a queue can handle: a bug, so its end
            except WarrenError:
                pass
        stop.set()

    together(disturb, *[lambda sender=sender: publish(sender) for sender in range(senders)])
    with suppress(QueueDownError) if how == "fail" else nullcontext():  # the last failure may come as the node closes
        node.close()
    assert any(confirmed)
    with warren.open(tmp_path) as again:
        found = [parsed(message.body) for message in again.queue("q").browse()]
    assert {one for part in confirmed for one in part} <= set(found)
    for sender in range(senders):
        numbers = [number for who, number in found if who == sender]
        assert numbers == sorted(set(numbers)), "nothing twice, and in order"


@pytest.mark.slow
def test_memory_that_a_backlog_took_goes_back_to_the_system(tmp_path: Path) -> None:
    """In a process of its own: what other tests have left in the heap would count too."""
    program = f"""
import ctypes, psutil, threading, time, warren
process = psutil.Process()
before = process.memory_info().rss
with warren.open({str(tmp_path / "data")!r}, sync="os", vm_memory_high_watermark=before + 100_000_000) as node:
    queues = [node.queue(f"q{{number}}") for number in range(4)]

    def fill_and_drain(queue):
        for _ in range(400):
            try:
                queue.publish_many([bytes(600)] * 200, timeout=0.5)
            except warren.errors.BlockedError:
                break
        while found := queue.get_many(1000):
            queue.ack(found)

    threads = [threading.Thread(target=fill_and_drain, args=(queue,)) for queue in queues]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    deadline = time.monotonic() + 20
    while (grown := process.memory_info().rss - before) > 45_000_000:
        assert time.monotonic() < deadline, f"{{grown / 1e6:.0f}} MB more than before"
        time.sleep(0.1)
ctypes.CDLL(None).malloc_stats()
"""
    done = subprocess.run([sys.executable, "-c", program], check=True, timeout=120, stderr=subprocess.PIPE, text=True)
    assert done.stderr.count("Arena ") == 1, "a heap of its own for each thread, of which the free end never goes back"
