"""All loads of a process that is killed (:mod:`tests.support.killing`).

:class:`DelayLoad`, :class:`RetryLoad` and :class:`UniqueLoad`: messages that come later, that are tried again, and that
have keys. :class:`TopicLoad`: a topic, appended to by key, in batches and one by one, and read by two groups.
:class:`QueueLoad`: publishers of bodies of all sizes, to one queue and to two at once, and consumers of all kinds.
"""

from __future__ import annotations

import functools
import random
import threading
from collections import deque
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

import warren
from tests.support.killing import Load
from warren.actors.runtime.future import Confirm, CountDown, Future

BACKLOG = 200
LIMIT: Final = 3
"""So often a message that is tried again comes back."""
LATER, RETRIED, DEAD, JOBS = "later", "retried", "dead", "jobs"


class DelayLoad(Load):
    """Messages with delays; some are cancelled."""

    kind = "delays"

    def works(self) -> list[tuple[Any, ...]]:
        return [(self.work, self.node.queue(LATER))]

    def work(self, rng: random.Random, queue: warren.Queue) -> None:
        number = self.started[LATER]
        while True:
            numbers = range(number, number + rng.randrange(1, 30))
            number = numbers.stop
            self.tell("p", LATER, number - 1)
            delays: list[float | timedelta | None] = [rng.random() / 5 for _ in numbers]
            queue.publish_many([b"%d" % one for one in numbers], delay=delays).wait()
            self.tell("c", LATER, numbers.start, number - 1)
            if rng.random() < 0.3:
                self.node.exchange("").publish(b"far", LATER, delay=3600, message_id="far").wait()
                self.node.cancel_delayed("far")
            taken = queue.get_many(BACKLOG if rng.random() < 0.3 else 3)
            if taken:
                self.tell("a", LATER, *(f"{LATER}:{int(one.body)}" for one in taken))
                queue.ack(taken)


class RetryLoad(Load):
    """Messages that fail, come back after a while, and die when they have done so too often."""

    kind = "retries"

    def works(self) -> list[tuple[Any, ...]]:
        retry = warren.Retry(limit=LIMIT, delay=0.005, dead_letters=DEAD)
        dead = self.node.queue(DEAD)
        return [(self.work, self.node.queue(RETRIED, retry=retry), dead)]

    def work(self, rng: random.Random, queue: warren.Queue, dead: warren.Queue) -> None:
        number = self.started[RETRIED]
        while True:
            numbers = range(number, number + rng.randrange(1, 15))
            number = numbers.stop
            self.tell("p", RETRIED, number - 1)
            queue.publish_many([b"%d" % one for one in numbers]).wait()
            self.tell("c", RETRIED, numbers.start, number - 1)
            for _ in range(rng.randrange(25)):
                job = queue.get()
                if job is None:
                    break
                if job.delivery_count > LIMIT:
                    raise RuntimeError(f"{job.body!r} comes back for the {job.delivery_count}th time")
                if rng.random() < 0.5:
                    self.tell("a", RETRIED, f"{RETRIED}:{int(job.body)}")
                    job.ack()
                else:
                    job.retry(0.001 if rng.random() < 0.2 else None)
            if rng.random() < 0.2 and (letters := dead.get_many(BACKLOG)):
                self.tell("a", RETRIED, *(f"{RETRIED}:{int(one.body)}" for one in letters))
                dead.ack(letters)


class UniqueLoad(Load):
    """Messages with keys: ``w…`` while they wait, ``t…`` for an hour. Which of them are published overlaps."""

    kind = "unique"

    def works(self) -> list[tuple[Any, ...]]:
        return [(self.work, self.node.queue(JOBS))]

    def work(self, rng: random.Random, queue: warren.Queue) -> None:
        number = self.started[JOBS]
        while True:
            numbers = {max(number + rng.randrange(-30, 5), 0) for _ in range(rng.randrange(1, 20))}
            number += 3
            self.tell("p", JOBS, number - 1)
            for letter, period in (("w", None), ("t", 3600)):
                keys = [f"{letter}{one}" for one in sorted(numbers) if one % 2 == (letter == "t")]
                if keys:
                    queue.publish_many([key.encode() for key in keys], unique=keys, unique_for=period).wait()
                    self.tell("k", *keys)
            taken = queue.get_many(rng.randrange(12))
            done = [one for one in taken if rng.random() < 0.7]
            if done:
                self.tell("a", JOBS, *(one.body.decode() for one in done))
                queue.ack(done)
            queue.nack([one for one in taken if not one.settled])


TOPIC_STREAMS = ("one", "many", "keyed")
GROUPS = ("g", "h")
TOPIC_QUEUES = 3
TOPIC = "t"
TOPIC_AHEAD = 4
"""How many confirms of a stream are awaited at a time."""


def record_body_of(stream: str, number: int) -> bytes:
    return f"{stream}:{number} ".encode() * (1 + number % 40)


def key_of(stream: str, number: int) -> str:
    return f"{stream}-{number}"


def record_name_of(body: bytes) -> tuple[str, int]:
    """Return stream and number. Raise ``ValueError`` for a body that was never appended."""
    stream, _, number = body.split(b" ", 1)[0].decode().partition(":")
    if body != record_body_of(stream, int(number)):
        raise ValueError(f"a body of {len(body)} bytes that begins with {body[:40]!r} was never appended")
    return stream, int(number)


class TopicLoad(Load):
    """See the module's prose."""

    kind = "topics"

    def works(self) -> list[tuple[Any, ...]]:
        topic = self.node.topic(TOPIC, queues=TOPIC_QUEUES)
        works: list[tuple[Any, ...]] = [(self.read, topic, group) for group in GROUPS]
        return works + [(self.append, topic, stream) for stream in TOPIC_STREAMS]

    def append(self, rng: random.Random, topic: warren.Topic, stream: str) -> None:
        number = self.started[stream]
        waiting: deque[tuple[int, int, Any]] = deque()
        while True:
            count = 1 if stream == "one" else rng.choice([2, 30, 100])
            numbers = range(number, number + count)
            number += count
            self.tell("p", stream, number - 1)
            if stream == "one":
                confirm: Any = topic.append(record_body_of(stream, numbers[0]), key=key_of(stream, numbers[0]), queue=0)
            else:
                # The order of a stream is that of its queue: one queue each, but keys choose among all.
                queue: dict[str, Any] = {"queue": 1} if stream == "many" else {}
                confirm = topic.append_many(
                    [record_body_of(stream, n) for n in numbers], keys=[key_of(stream, n) for n in numbers], **queue
                )
            waiting.append((numbers[0], numbers[-1], confirm))
            while len(waiting) > TOPIC_AHEAD:
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
                        record_name_of(record.body)
                        last[record.queue_id] = record.queue_offset
                    for queue_id, queue_offset in last.items():
                        self.tell("r", group, queue_id, queue_offset)


QUEUE_STREAMS: dict[str, tuple[tuple[str, ...], int]] = {
    "small": (("small",), 0),
    "large": (("large",), 5000),
    "thin": (("left", "right"), 0),
    "thick": (("left", "right"), 6000),
}
"""By publisher: its queues, and the least number of bytes of a body. Bodies over 4096 go into the store."""

QUEUES = ("small", "large", "left", "right")
QUEUE_BACKLOG = 150
"""Publishers pause where a queue has more."""

BATCHES_AHEAD = 4
"""How many batches of a publisher are unconfirmed at most."""


def body_of(stream: str, number: int) -> bytes:
    """The one body that this message has."""
    head = b"%s:%d;" % (stream.encode(), number)
    size = QUEUE_STREAMS[stream][1]
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
        return works + [(self.publish, queues, stream) for stream in QUEUE_STREAMS]

    # ── publishers ──────────────────────────────────────────────────────────────────────────────────────────────

    def publish(self, rng: random.Random, queues: dict[str, warren.Queue], stream: str) -> None:
        names, size = QUEUE_STREAMS[stream]
        number, waiting = self.started[stream], deque[Confirm]()
        while True:
            while any(len(queues[name]) > QUEUE_BACKLOG for name in names):
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
            while len(waiting) > BATCHES_AHEAD or (
                waiting and any(len(queues[name]) > QUEUE_BACKLOG for name in names)
            ):
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

    def tell_taken(self, queue: warren.Queue, taken: Sequence[warren.Delivery]) -> None:
        for start in range(0, len(taken), 100):
            flags = [f"{name_of(one.body)}={one.redelivered:d}" for one in taken[start : start + 100]]
            self.tell("d", queue.name, *flags)

    def settle(self, rng: random.Random, queue: warren.Queue, taken: Sequence[warren.Delivery]) -> None:
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


LOADS: Final[tuple[type[Load], ...]] = (DelayLoad, RetryLoad, UniqueLoad, TopicLoad, QueueLoad)
