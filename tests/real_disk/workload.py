"""The processes that work on the recorded disk, and tell with each line how many records its log has by then.

Run as a program this is a nursery (:mod:`tests.support.killing`), whose requests have ``workload``, one of
:data:`WORKLOADS`, and ``counter``, the path of the log's counter. A line is ``RECORDS WORDS…``. The number is read
before the line is written: before what is announced begins, and after what is reported was done. So a disk that has
lost its power at record n must have what was reported with a number up to n, and has nothing but what was announced
with one.

``queues`` is the load of :mod:`tests.support.kill_loads`, ``topics`` that of :mod:`tests.support.kill_loads`,
``changes`` reports what :class:`Changes` does, and ``shared`` the same from two processes, whose host is killed.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import random
import re
import signal
import socket
import threading
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import warren
from tests.real_disk.kernel import end_with_parent
from tests.real_disk.write_log import Counter
from tests.support import killing
from tests.support.kill_loads import QueueLoad, TopicLoad
from warren.actors.runtime.future import Confirm
from warren.errors import NotFoundError, PreconditionFailedError, TransactionError
from warren.handles.topic import Transaction

QUEUE, UNIQUE, DONE, TOPIC = "jobs", "unique", "done", "orders"
OTHERS = 100_000
"""So far from those of the first process the numbers of a second one begin."""

SETTINGS: dict[str, Any] = {
    **killing.SETTINGS,
    "vm_memory_high_watermark": 1.0,
    "segment_entry_count": 64,
    "msg_store_file_size_limit": 20_000,
}


class Stamped:
    """Before the words of a line: how many records there are."""

    counter: Counter
    _report: int

    def tell(self, *words: object) -> None:
        os.write(self._report, (" ".join(map(str, (self.counter.value, *words))) + "\n").encode())


class StampedQueueLoad(Stamped, QueueLoad):
    """Queues with small and large messages, of one queue and of two."""


class StampedTopicLoad(Stamped, TopicLoad):
    """A topic, its keys and the offsets of its groups."""


class Changes(Stamped):
    """What is declared, delayed, unique and prepared; the node is closed and opened again and again.

    =========================  ======================================================================================
    ``make`` ``made NAME``     a queue, an exchange, their binding, a policy and a user of this name
    ``drop`` ``dropped NAME``  all of them are deleted
    ``delay`` ``delayed M N``  messages with the numbers M to N, with delays
    ``key`` ``keyed KEY …``    messages with these keys, unique while they wait
    ``prepare`` ``prepared N`` a half message of a topic
    ``commit`` ``committed N`` it becomes visible
    ``roll`` ``rolled N``      it is discarded
    ``e TEXT``                 an error; it must not occur
    =========================  ======================================================================================
    """

    def __init__(self, report: int, request: dict[str, Any], counter: Counter) -> None:
        self._report = report
        self._request = request
        self.counter = counter
        self._rng = random.Random(request["seed"])
        self._next: dict[str, int] = request["next"]
        self._stop = threading.Event()

    def run(self) -> None:
        try:
            while True:
                self._work(share=False)
        except BaseException:
            self._tell_error()

    def _work(self, *, share: bool) -> None:
        """Work with an open node for a while."""
        self._stop.clear()
        node = warren.open(self._request["directory"], sync=self._request["sync"], share=share, **SETTINGS)
        self.tell("ready")
        works: list[Callable[[random.Random, warren.Node], None]] = [self.declare, self.delay, self.key, self.prepare]
        threads = [
            threading.Thread(target=self._repeat, args=(work, random.Random(self._rng.random()), node))
            for work in works
        ]
        for thread in threads:
            thread.start()
        self._stop.wait(self._rng.uniform(0.1, 0.6))
        self._stop.set()
        for thread in threads:
            thread.join()
        node.close()

    def _repeat(self, work: Callable[[random.Random, warren.Node], None], rng: random.Random, node: Any) -> None:
        try:
            while not self._stop.is_set():
                work(rng, node)
        except BaseException:
            self._tell_error()

    def _tell_error(self) -> None:
        self.tell("e", traceback.format_exc().replace("\n", " | "))

    def _number(self, what: str, count: int = 1) -> range:
        first = self._next[what]
        self._next[what] = first + count
        return range(first, first + count)

    def declare(self, rng: random.Random, node: warren.Node) -> None:
        name = f"n{self._number('names')[0]}"
        self.tell("make", name)
        node.queue(name)
        node.exchange(name, rng.choice(["direct", "topic", "fanout"]))
        node.bind(name, name, name)
        node.set_policy(name, f"^{name}$", {"max-length": 10})
        node.add_user(name, name)
        self.tell("made", name)
        if rng.random() < 0.7:
            self.tell("drop", name)
            node.delete_queue(name)
            node.delete_exchange(name)
            node.clear_policy(name)
            node.delete_user(name)
            self.tell("dropped", name)

    def delay(self, rng: random.Random, node: warren.Node) -> None:
        numbers = self._number("delayed", rng.randrange(1, 30))
        self.tell("delay", numbers[0], numbers[-1])
        delays: list[float | timedelta | None] = [rng.choice([rng.random() / 5, 3600.0]) for _ in numbers]
        node.queue(QUEUE).publish_many([b"delayed %d" % number for number in numbers], delay=delays).wait()
        self.tell("delayed", numbers[0], numbers[-1])

    def key(self, rng: random.Random, node: warren.Node) -> None:
        highest = self._number("keys", 3)[-1]
        keys = sorted({str(max(highest + rng.randrange(-30, 5), 0)) for _ in range(rng.randrange(1, 20))})
        queue, done = node.queue(UNIQUE), node.queue(DONE)
        self.tell("key", *keys)
        queue.publish_many([b"%s;" % key.encode() * rng.choice([1, 3000]) for key in keys], unique=keys).wait()
        self.tell("keyed", *keys)
        for job in queue.get_many(rng.randrange(6)):
            if rng.random() < 0.5:
                done.publish(job.body).wait()
                job.ack()
            else:
                job.nack()

    def prepare(self, rng: random.Random, node: warren.Node) -> None:
        number = self._number("halves")[0]
        self.tell("prepare", number)
        body = str(number).encode()
        transaction = node.topic(TOPIC, queues=2).prepare(body, key=f"order-{number}", group="shop")
        self.tell("prepared", number)
        if (fate := rng.random()) < 0.5:
            self.tell("commit", number)
            if self._is_made(transaction, transaction.commit(), body):
                self.tell("committed", number)
        elif fate < 0.8:
            self.tell("roll", number)
            if self._is_made(transaction, transaction.rollback(), body):
                self.tell("rolled", number)

    def _is_made(self, transaction: Transaction, decision: Confirm, body: bytes) -> bool:
        """Whether a decision is confirmed; else an error says that it was made before."""
        decision.wait()
        return True


class Shared(Changes):
    """A guest, and a host beside it that is killed soon: the guest is the host then."""

    _opening: int | None = None
    """The host's end of a pipe: it has opened the node."""

    def declare(self, rng: random.Random, node: warren.Node) -> None:
        """A guest's question is asked again when the host dies, and that one may have done it (docs/sharing.md): then
        nothing is confirmed."""
        try:
            super().declare(rng, node)
        except (PreconditionFailedError, NotFoundError) as error:
            if not re.fullmatch(r"user 'n\d+' exists already|no user 'n\d+'|Parameter does not exist", str(error)):
                raise

    def _is_made(self, transaction: Transaction, decision: Confirm, body: bytes) -> bool:
        """A guest's is sent again, too. The half message must be there all the same."""
        try:
            return super()._is_made(transaction, decision, body)
        except TransactionError:
            if transaction.message.body != body:
                raise
            return False

    def run(self) -> None:
        opened, opening = os.pipe()
        if os.fork() == 0:
            end_with_parent()
            self._opening = opening
            self._next = {what: number + OTHERS for what, number in self._next.items()}
        else:
            os.close(opening)
            os.read(opened, 1)
        try:
            while True:
                self._work(share=True)
        except BaseException:
            self._tell_error()

    def tell(self, *words: object) -> None:
        super().tell(*words)
        if self._opening is not None and words == ("ready",):
            os.write(self._opening, b".")
            os.close(self._opening)
            self._opening = None
            timer = threading.Timer(self._rng.uniform(0.1, 0.5), os.kill, (os.getpid(), signal.SIGKILL))
            timer.daemon = True
            timer.start()


LOADS: dict[str, type[StampedQueueLoad | StampedTopicLoad]] = {"queues": StampedQueueLoad, "topics": StampedTopicLoad}
CHANGES: dict[str, type[Changes]] = {"changes": Changes, "shared": Shared}
WORKLOADS = (*LOADS, *CHANGES)


def run(report: int, request: dict[str, Any]) -> None:
    end_with_parent()
    counter, workload = Counter(Path(request["counter"])), request["workload"]
    if workload in CHANGES:
        CHANGES[workload](report, request, counter).run()
        return

    def load(node: warren.Node, started: dict[str, int]) -> killing.Load:
        made = LOADS[workload](report, node, started)
        made.counter = counter
        return made

    killing.work(request, [load], SETTINGS, lambda word: os.write(report, f"{counter.value} {word}\n".encode()))


IMPORTED_ONCE = (
    "warren.client.shared_directory",
    "warren.server",
    "warren.actors.delays.delay_actor",
    "warren.actors.queue.unique_publisher",
    "warren.actors.topics.running_topics",
    "warren.actors.engines.topics.topic_store",
)
"""What warren imports at its first use: otherwise each process would import it again."""

if __name__ == "__main__":
    end_with_parent()
    for module in IMPORTED_ONCE:
        importlib.import_module(module)
    with contextlib.suppress(KeyboardInterrupt):
        killing.serve(socket.socket(fileno=0), run)
