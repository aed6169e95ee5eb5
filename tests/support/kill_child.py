"""What is killed: processes that publish and consume at full speed in one data directory, and tell what they do.

Run as a program this is a nursery: it has everything imported and no threads, and forks a process for every request
that comes through the socket on its standard input (:class:`Nursery` is the other end). The process reports through
the pipe that came with the request, a line at a time, from several threads, until somebody kills it:

====================  ================================================================================================
``open`` ``ready``    the node is about to be opened; it is open
``p STREAM N``        messages of this stream up to number N are about to be published
``c STREAM M N``      those from M to N are confirmed
``d QUEUE S:N=F …``   a consumer has this message of stream S; F: 1 where it said redelivered
``a QUEUE S:N …``     these are about to be acked
``s QUEUE``           all acks that were told before for this queue are safe
``x QUEUE``           from now on messages that nobody took from its consumer may go back to the queue
``e TEXT``            an error: there must be none
====================  ================================================================================================

A line is written before what it announces is done and after what it reports was done; a kill leaves whole lines.
"""

from __future__ import annotations

import functools
import json
import os
import random
import socket
import subprocess
import sys
import threading
import traceback
from collections import deque
from pathlib import Path
from typing import Any

import warren
from warren.actors.future import Confirm, CountDown, Future

STREAMS: dict[str, tuple[tuple[str, ...], int]] = {
    "small": (("small",), 0),
    "large": (("large",), 5000),
    "thin": (("left", "right"), 0),
    "thick": (("left", "right"), 6000),
}
"""Who publishes: to which queues, and bodies of at least how many bytes. More than 4096 go into the store."""

QUEUES = ("small", "large", "left", "right")
BACKLOG = 150
"""Publishers pause where a queue has more."""

AHEAD = 4
"""So many batches of a publisher are not confirmed yet."""

SETTINGS: dict[str, Any] = {
    "queue_index_max_journal_entries": 700,
    "msg_store_file_size_limit": 150_000,
    "disk_free_limit": 1 << 20,
    "attach": False,
}
"""Small, so that journals are flushed and files of bodies compacted many times a second; a small disk will do."""


def body_of(stream: str, number: int) -> bytes:
    """The one body that this message has."""
    head = b"%s:%d;" % (stream.encode(), number)
    size = STREAMS[stream][1]
    return head if not size else (head * (size // len(head) + 1))


def name_of(body: bytes) -> str:
    """``stream:number``; raises where the body is not whole."""
    name = body.partition(b";")[0].decode()
    stream, _, number = name.partition(":")
    if body != body_of(stream, int(number)):
        raise ValueError(f"a body of {len(body)} bytes that begins with {body[:40]!r} was never published")
    return name


class Child:
    """A process that is to be killed."""

    def __init__(self, report: int, request: dict[str, Any]) -> None:
        self._report = report
        self._directory: str = request["directory"]
        self._sync: str = request["sync"]
        self._next: dict[str, int] = request["next"]
        self._rng = random.Random(request["seed"])
        self._room = threading.Event()
        """Something was acked: a publisher that pauses looks again."""

    def tell(self, *words: object) -> None:
        os.write(self._report, (" ".join(map(str, words)) + "\n").encode())

    def run(self) -> None:
        self.tell("open")
        node = warren.open(self._directory, sync=self._sync, **SETTINGS)
        queues = {name: node.queue(name) for name in QUEUES}
        self.tell("ready")
        works = [(self.publish, node, queues, stream) for stream in STREAMS]
        works += [(self.consume, node, queues, name) for name in ("small", "left")]
        works += [(self.get, node, queues, name) for name in ("large", "right")]
        for work, *arguments in works:
            threading.Thread(target=self.guard, args=(work, random.Random(self._rng.random()), *arguments)).start()

    def guard(self, work: Any, *arguments: Any) -> None:
        try:
            work(*arguments)
        except BaseException:
            self.tell("e", traceback.format_exc().replace("\n", " | "))

    # ── publishers ──────────────────────────────────────────────────────────────────────────────────────────────

    def publish(self, rng: random.Random, node: warren.Node, queues: dict[str, warren.Queue], stream: str) -> None:
        names, size = STREAMS[stream]
        number, waiting = self._next[stream], deque[Confirm]()
        while True:
            while any(len(queues[name]) > BACKLOG for name in names):
                self._room.clear()
                self._room.wait(0.05)
            first, count = number, rng.choice([1, 3, 20, 20 if size else 60])
            number += count
            self.tell("p", stream, number - 1)
            bodies = [body_of(stream, n) for n in range(first, number)]
            if len(names) > 1:
                confirm: Confirm = CountDown([node.publish_to(names, body) for body in bodies])
            elif rng.random() < 0.5:
                confirm = queues[names[0]].publish_many(bodies)
            else:
                confirm = CountDown(
                    self.publish_singly(queues[names[0]], bodies, waiting if rng.random() < 0.5 else None)
                )
            confirm.on_done(functools.partial(self.confirmed, stream, first, number - 1))
            waiting.append(confirm)
            while len(waiting) > AHEAD or (waiting and any(len(queues[name]) > BACKLOG for name in names)):
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

    def consume(self, rng: random.Random, node: warren.Node, queues: dict[str, warren.Queue], name: str) -> None:
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

    def get(self, rng: random.Random, node: warren.Node, queues: dict[str, warren.Queue], name: str) -> None:
        queue = queues[name]
        while True:
            taken = queue.get_many(rng.choice([1, 10, 100]))
            if taken:
                self.settle(rng, queue, taken)
            elif rng.random() < 0.2:
                self._room.wait(0.01)

    def tell_taken(self, queue: warren.Queue, taken: list[warren.Delivery]) -> None:
        for start in range(0, len(taken), 100):
            flags = [f"{name_of(one.body)}={one.redelivered:d}" for one in taken[start : start + 100]]
            self.tell("d", queue.name, *flags)

    def settle(self, rng: random.Random, queue: warren.Queue, taken: list[warren.Delivery]) -> None:
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


def serve(requests: socket.socket, kind: Any = Child) -> None:
    """Fork a process for every request; the answer is its number, and, when it is asked for, how it ended."""
    for name in warren.__all__:  # imported when it is first used: once, and not in every process anew
        getattr(warren, name)
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, 65536, 1)
        if not message:
            return
        child = os.fork()
        if not child:
            requests.close()
            kind(descriptors[0], json.loads(message)).run()
            return
        os.close(descriptors[0])
        requests.send(str(child).encode())
        requests.send(str(os.waitpid(child, 0)[1]).encode())


class Nursery:
    """Starts such processes; ``program``: another one of the kind."""

    def __init__(self, program: str = __file__) -> None:
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        root = str(Path(__file__).parents[2])
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))}
        self._process = subprocess.Popen([sys.executable, program], stdin=theirs, env=environment)
        theirs.close()

    def start(self, **request: Any) -> tuple[int, int]:
        """A process's number, and the descriptor to read its reports from."""
        reading, writing = os.pipe()
        socket.send_fds(self._requests, [json.dumps(request).encode()], [writing])
        os.close(writing)
        return int(self._requests.recv(64)), reading

    def ended(self) -> int:
        """Wait for the end of the last one; its status."""
        return int(self._requests.recv(64))

    def close(self) -> None:
        self._requests.close()
        self._process.wait()


if __name__ == "__main__":
    serve(socket.socket(fileno=0))
