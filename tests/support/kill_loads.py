"""All loads of a process that is killed, and three small ones: messages that come later, that are tried again, and that
have keys (:mod:`tests.support.kill_child`)."""

from __future__ import annotations

import random
from typing import Any, Final

import warren
from tests.support.kill_child import Load
from tests.support.queue_load import QueueLoad
from tests.support.topic_load import TopicLoad

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
            delays = [rng.random() / 5 for _ in numbers]
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


LOADS: Final[tuple[type[Load], ...]] = (DelayLoad, RetryLoad, UniqueLoad, TopicLoad, QueueLoad)
