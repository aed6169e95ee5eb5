"""What is killed: processes that append to topics and read them at full speed, and tell what they do.

A nursery as :mod:`tests.support.kill_child` is one when it is run as a program; its processes report a line at a time:

====================  ================================================================================================
``ready``             the node is open
``p STREAM N``        messages of this stream up to number N are about to be appended
``c STREAM M N``      those from M to N are confirmed
``r GROUP QUEUE N``   a reader of this group was handed out the message with queue offset N of this queue
``e TEXT``            an error: there must be none
====================  ================================================================================================
"""

from __future__ import annotations

import os
import random
import socket
import threading
import traceback
from collections import deque
from typing import Any

import warren
from tests.support import kill_child

STREAMS = ("one", "many", "keyed")
GROUPS = ("g", "h")
QUEUES = 3
TOPIC = "t"
AHEAD = 4
"""So many confirms of a stream are waited for at a time."""

SETTINGS: dict[str, Any] = {
    "mapped_file_size_commit_log": 1 << 18,
    "mapped_file_size_consume_queue": 20 * 500,
    "max_hash_slot_num": 100,
    "max_index_num": 1000,
    "flush_interval_consume_queue": 20,
    "flush_consume_queue_thorough_interval": 40,
    "flush_consumer_offset_interval": 15,
    "disk_free_limit": 1 << 20,
    "attach": False,
}
"""Small, and flushed often: files roll over, and are synced, many times a second; a small disk will do."""


def body_of(stream: str, number: int) -> bytes:
    return f"{stream}:{number} ".encode() * (1 + number % 40)


def key_of(stream: str, number: int) -> str:
    return f"{stream}-{number}"


def name_of(body: bytes) -> tuple[str, int]:
    """Stream and number; raises ``ValueError`` for a body that nobody appended."""
    stream, _, number = body.split(b" ", 1)[0].decode().partition(":")
    if body != body_of(stream, int(number)):
        raise ValueError(f"a body of {len(body)} bytes that begins with {body[:40]!r} was never appended")
    return stream, int(number)


class Child:
    """A process that is to be killed."""

    def __init__(self, report: int, request: dict[str, Any]) -> None:
        self._report = report
        self._request = request
        self._rng = random.Random(request["seed"])

    def tell(self, *words: object) -> None:
        os.write(self._report, (" ".join(map(str, words)) + "\n").encode())

    def run(self) -> None:
        node = warren.open(self._request["directory"], sync=self._request["sync"], **SETTINGS)
        topic = node.topic(TOPIC, queues=QUEUES)
        self.tell("ready")
        works: list[tuple[Any, ...]] = [(self.read, topic, group) for group in GROUPS]
        works += [(self.append, topic, stream) for stream in STREAMS]  # last: they leave nobody much time
        for work, *arguments in works:
            rng = random.Random(self._rng.random())
            threading.Thread(target=self.guard, args=(work, rng, *arguments)).start()

    def guard(self, work: Any, *arguments: Any) -> None:
        try:
            work(*arguments)
        except BaseException:
            self.tell("e", traceback.format_exc().replace("\n", " | "))

    def append(self, rng: random.Random, topic: warren.Topic, stream: str) -> None:
        number: int = self._request["next"][stream]
        waiting: deque[tuple[int, int, Any]] = deque()
        while True:
            count = 1 if stream == "one" else rng.choice([2, 30, 100])
            numbers = range(number, number + count)
            number += count
            self.tell("p", stream, number - 1)
            if stream == "one":
                confirm: Any = topic.append(body_of(stream, numbers[0]), key=key_of(stream, numbers[0]), queue=0)
            else:
                # The order of a stream is that of its queue: one queue each, but keys choose among all.
                queue = {"queue": 1} if stream == "many" else {}
                confirm = topic.append_many(
                    [body_of(stream, n) for n in numbers], keys=[key_of(stream, n) for n in numbers], **queue
                )
            waiting.append((numbers[0], numbers[-1], confirm))
            while len(waiting) > AHEAD:
                first, last, oldest = waiting.popleft()
                oldest.wait()
                self.tell("c", stream, first, last)

    def read(self, rng: random.Random, topic: warren.Topic, group: str) -> None:
        while True:
            with topic.reader(group) as reader:
                for _ in range(rng.randrange(1, 20)):
                    records = reader.read(rng.choice([1, 20, 300]), timeout=0.05)
                    last: dict[int, int] = {}
                    for record in records:
                        name_of(record.body)
                        last[record.queue_id] = record.queue_offset
                    for queue_id, queue_offset in last.items():
                        self.tell("r", group, queue_id, queue_offset)


if __name__ == "__main__":
    kill_child.serve(socket.socket(fileno=0), Child)
