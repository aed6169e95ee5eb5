"""A topic as a load of a process that is killed: appended to by key, in batches and one by one, and read by two groups
(:mod:`tests.support.kill_child`)."""

from __future__ import annotations

import random
from collections import deque
from typing import Any

import warren
from tests.support.kill_child import Load

STREAMS = ("one", "many", "keyed")
GROUPS = ("g", "h")
QUEUES = 3
TOPIC = "t"
AHEAD = 4
"""How many confirms of a stream are awaited at a time."""


def body_of(stream: str, number: int) -> bytes:
    return f"{stream}:{number} ".encode() * (1 + number % 40)


def key_of(stream: str, number: int) -> str:
    return f"{stream}-{number}"


def name_of(body: bytes) -> tuple[str, int]:
    """Return stream and number. Raise ``ValueError`` for a body that was never appended."""
    stream, _, number = body.split(b" ", 1)[0].decode().partition(":")
    if body != body_of(stream, int(number)):
        raise ValueError(f"a body of {len(body)} bytes that begins with {body[:40]!r} was never appended")
    return stream, int(number)


class TopicLoad(Load):
    """See the module's prose."""

    kind = "topics"

    def works(self) -> list[tuple[Any, ...]]:
        topic = self.node.topic(TOPIC, queues=QUEUES)
        works: list[tuple[Any, ...]] = [(self.read, topic, group) for group in GROUPS]
        return works + [(self.append, topic, stream) for stream in STREAMS]

    def append(self, rng: random.Random, topic: warren.Topic, stream: str) -> None:
        number = self.started[stream]
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
