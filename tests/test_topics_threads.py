"""Topics with real threads and real files: nothing is lost, and where no queue changes hands nothing comes twice."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import warren
from tests.support.waiting import PATIENCE_S, together
from warren.storage.errors import WarrenError

SMALL: dict[str, Any] = {
    "mapped_file_size_commit_log": 1 << 20,
    "mapped_file_size_consume_queue": 20 * 1000,
    "max_hash_slot_num": 500,
    "max_index_num": 2000,
    "attach": False,
}


def body(sender: int, number: int) -> bytes:
    return b"%d %d" % (sender, number)


def parsed(record: warren.TopicRecord) -> tuple[int, int]:
    sender, number = record.body.split(b" ")
    return int(sender), int(number)


class Seen:
    """What readers got, by queue."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.by_queue: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
        self.count = 0

    def add(self, records: Sequence[warren.TopicRecord]) -> None:
        with self._lock:
            self.count += len(records)
            for record in records:
                self.by_queue[record.queue_id].append((record.queue_offset, *parsed(record)))


def append_all(topic: warren.Topic, sender: int, count: int) -> None:
    """One by one and in batches, by key and to a queue."""
    number = 0
    while number < count:
        if number % 3:
            topic.append(body(sender, number), key=f"{sender}-{number}", queue=sender % topic.queues)
            number += 1
            continue
        numbers = range(number, min(number + 40, count))
        bodies = [body(sender, one) for one in numbers]
        confirm = topic.append_many(bodies, keys=[f"{sender}-{n}" for n in numbers], queue=sender % topic.queues)
        if number % 2:
            confirm.wait(PATIENCE_S)
        number += len(numbers)
    topic.sync()


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 4])
def test_members_that_stay_get_every_message_once_and_each_queues_in_order(tmp_path: Path, threads: int) -> None:
    senders, each = 4, 1500
    seen, broadcast = Seen(), Seen()
    with warren.open(tmp_path, threads=threads, sync="os", **SMALL) as node:
        topic = node.topic("t", queues=3)
        readers = [topic.reader("g") for _ in range(2)]

        def read(reader: warren.Reader, into: Seen) -> None:
            deadline = time.monotonic() + PATIENCE_S
            while into.count < senders * each and time.monotonic() < deadline:
                into.add(reader.read(100, timeout=0.2))

        works: list[Callable[[], None]] = [lambda n=n: append_all(topic, n, each) for n in range(senders)]  # type: ignore[misc]
        works += [lambda reader=reader: read(reader, seen) for reader in readers]  # type: ignore[misc]
        works.append(lambda: read(topic.reader("b", broadcast=True), broadcast))
        together(*works)
        for reader in readers:
            reader.close()
        assert topic.lag("g") == dict.fromkeys(range(3), 0)
        for found in (seen, broadcast):
            assert found.count == senders * each
            for places in found.by_queue.values():
                assert [place for place, _, _ in places] == list(range(len(places)))
                for sender in range(senders):
                    numbers = [number for _, who, number in places if who == sender]
                    assert numbers in ([], list(range(each)))
        for key in ("0-0", "3-1499", "2-777"):
            assert [parsed(one) for one in topic.find(key)] == [tuple(map(int, key.split("-")))]


def test_members_that_come_and_go_lose_nothing(tmp_path: Path) -> None:
    senders, each = 3, 1500
    done: set[tuple[int, int]] = set()
    lock = threading.Lock()
    with warren.open(tmp_path, threads=2, sync="os", **SMALL) as node:
        topic = node.topic("t", queues=4)

        def read() -> None:
            deadline = time.monotonic() + PATIENCE_S
            while len(done) < senders * each and time.monotonic() < deadline:
                for record in topic.read("g", max_records=70, timeout=0.05):
                    with lock:
                        done.add(parsed(record))

        together(*[lambda n=n: append_all(topic, n, each) for n in range(senders)], read, read, read)
        assert done == {(sender, number) for sender in range(senders) for number in range(each)}
        assert topic.groups()["g"]["members"] == {}


def test_a_reader_that_waits_for_ever_is_woken_by_a_message_and_by_the_end(tmp_path: Path) -> None:
    node = warren.open(tmp_path, sync="os", **SMALL)
    topic = node.topic("t", queues=2)
    got: list[bytes] = []
    there = threading.Semaphore(0)
    ended: list[WarrenError] = []

    def read() -> None:
        reader = topic.reader("g")
        there.release()
        try:
            while True:
                got.extend(record.body for record in reader.read(timeout=None))
                there.release()
        except WarrenError as error:
            ended.append(error)

    def stop() -> None:
        for number in range(5):
            assert there.acquire(timeout=PATIENCE_S)
            topic.append(b"%d" % number, queue=0).wait(PATIENCE_S)
        assert there.acquire(timeout=PATIENCE_S)
        node.close()

    together(read, stop)
    assert got == [b"%d" % number for number in range(5)]
    assert len(ended) == 1


def test_what_was_confirmed_is_there_though_the_node_closes_meanwhile(tmp_path: Path) -> None:
    node = warren.open(tmp_path, threads=2, sync="os", **SMALL)
    topic = node.topic("t", queues=2)
    confirmed: list[list[int]] = [[], [], []]
    begun = [threading.Event() for _ in confirmed]

    def append(sender: int) -> None:
        number = 0
        try:
            while True:
                waiting: list[Any] = [topic.append(body(sender, number + one), queue=0) for one in range(5)]
                waiting.append(topic.append_many([body(sender, number + one) for one in range(5, 20)], queue=0))
                for at, confirm in enumerate(waiting):
                    confirm.wait(PATIENCE_S)
                    confirmed[sender] += [number + at] if at < 5 else range(number + 5, number + 20)
                number += 20
                begun[sender].set()
        except WarrenError:
            return

    def close() -> None:
        for event in begun:
            assert event.wait(PATIENCE_S)
        node.close()

    together(close, *[lambda n=n: append(n) for n in range(3)])
    with warren.open(tmp_path, **SMALL) as again:
        found = [parsed(record) for record in again.topic("t").read("check")]
    for sender in range(3):
        numbers = [number for who, number in found if who == sender]
        assert numbers == sorted(set(numbers)), "nothing twice, and in order"
        assert set(confirmed[sender]) <= set(numbers)
        assert confirmed[sender]


def test_transactions_of_several_threads_are_each_decided_once(tmp_path: Path) -> None:
    with warren.open(tmp_path, threads=3, sync="os", **SMALL) as node:
        topic = node.topic("t", queues=2)
        kept: list[list[bytes]] = [[], [], []]

        def work(sender: int) -> None:
            for number in range(60):
                transaction = topic.prepare(body(sender, number))
                if number % 3 == 0:
                    transaction.rollback().wait(PATIENCE_S)
                elif number % 3 == 1:
                    transaction.commit().wait(PATIENCE_S)
                    kept[sender].append(body(sender, number))

        together(*[lambda n=n: work(n) for n in range(3)])
        assert len(node.pending_transactions()) == 60
        found = [record.body for record in topic.read("g")]
        assert sorted(found) == sorted(one for part in kept for one in part)


@pytest.mark.slow
def test_delayed_messages_come_by_themselves(tmp_path: Path) -> None:
    with warren.open(tmp_path, sync="os", message_delay_level="1s 2s", **SMALL) as node:
        topic = node.topic("t", queues=1)
        confirms = [topic.append(b"%d" % number, delay_level=1) for number in range(20)]
        for confirm in confirms:
            confirm.wait(PATIENCE_S)
        found = [record.body for record in topic.read("g", max_records=20, timeout=PATIENCE_S)]
        assert found == [b"%d" % number for number in range(20)]
