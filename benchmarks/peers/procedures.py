"""How works are done: the same steps for every peer, with what is timed inside ``watch.timing``.

What comes out is compared with what went in: count, order, bodies; headers and ids if there are any.
"""

from __future__ import annotations

import gc
import threading
import time
from _queue import SimpleQueue
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice

import attrs

from benchmarks.bodies import NumberedBodies
from benchmarks.peers.peer import Letter, Load, Peer, Place, Queue, Topic
from benchmarks.peers.watch import Watch

BATCH = 1000
SIZES = (128,)
_SAMPLE_EVERY = 10
"""Batches between two looks at the memory."""


class WrongError(RuntimeError):
    """A peer did not give back what it was given."""


@attrs.frozen
class Run:
    """One peer at one work."""

    peer: type[Peer]
    place: Place
    messages: int
    watch: Watch

    def open(self, **known: int) -> Peer:
        """The store; ``known``: of its :class:`Load`."""
        return self.peer(self.place, Load(messages=self.messages, **known))

    @contextmanager
    def opened(self, **known: int) -> Iterator[Peer]:
        """The store, closed at the end. What was there before it is no matter of the garbage collector's meanwhile."""
        peer = self.open(**known)
        gc.collect()
        gc.freeze()
        yield peer
        gc.unfreeze()
        peer.close()

    def warm_up(self) -> None:
        """Go once through everything elsewhere, so that imports do not count."""
        place = attrs.evolve(self.place, directory=self.place.directory.with_name(f"{self.place.directory.name}-warm"))
        with attrs.evolve(self, place=place).queue():
            pass

    @contextmanager
    def queue(self) -> Iterator[Queue]:
        """Its only queue, which one message has gone through."""
        with self.opened() as peer:
            queue = peer.queue("bench")
            queue.put(b"warm")
            queue.settle()
            _check(_drained(queue, 1, 1), [b"warm"])
            yield queue


Procedure = Callable[[Run], None]


def _check(found: Sequence[object], expected: Sequence[object]) -> None:
    if list(found) != list(expected):
        first = next(
            (number for number, pair in enumerate(zip(found, expected, strict=False)) if pair[0] != pair[1]), "the end"
        )
        raise WrongError(f"{len(expected)} went in, {len(found)} came out; they differ at {first}")


def _drained(queue: Queue, expected: int, batch: int = BATCH) -> list[bytes]:
    """Take and ack everything in ``queue``; it must hold no more than ``expected``."""
    found: list[bytes] = []
    while len(found) < expected:
        tokens, bodies = queue.take_many(min(batch, expected - len(found)))
        if not bodies:
            break
        queue.ack_many(tokens)
        found += bodies
    return found


# ── publish, get, ack ────────────────────────────────────────────────────────────────────────────────────────────────


def publish_singly(run: Run) -> None:
    """One at a time; at the end wait for all."""
    bodies = NumberedBodies(SIZES).range(0, run.messages)
    with run.queue() as queue:
        with run.watch.timing("publish", len(bodies)):
            for body in bodies:
                queue.put(body)
            queue.settle()
        _check(_drained(queue, len(bodies)), bodies)


def fill_and_drain(
    run: Run, *, sizes: Sequence[int] = SIZES, batch: int = BATCH, megabytes: bool = False, by_consume: bool = False
) -> None:
    """Publish in batches, take and ack in batches; with ``by_consume`` the second half in a loop with an ack each."""
    bodies, total, watch = NumberedBodies(sizes), run.messages, run.watch

    def amount(some: Sequence[bytes]) -> float:
        return sum(map(len, some)) / 1e6 if megabytes else len(some)

    with run.queue() as queue:
        watch.begin_memory()
        for number, first in enumerate(range(0, total, batch)):
            some = bodies.range(first, min(batch, total - first))
            with watch.timing("publish", amount(some)):
                queue.put_many(some)
            if number % _SAMPLE_EVERY == 0:
                watch.sample()
        with watch.timing("publish"):
            queue.settle()
        done, number = 0, 0
        loops = by_consume and type(queue).consume is not Queue.consume
        until = total // 2 if loops else total
        while done < until:
            wanted, number = min(batch, until - done), number + 1
            expected = bodies.range(done, wanted)
            with watch.timing("drain") as stretch:
                tokens, found = queue.take_many(wanted)
                if found:
                    queue.ack_many(tokens)
                stretch.amount = amount(found)
            _check(found, expected[: len(found) or 1])
            done += len(found)
            if number % _SAMPLE_EVERY == 0:
                watch.sample()
        if loops:
            rest = queue.consume(total - done)
            while done < total:
                wanted, number = min(batch, total - done), number + 1
                with watch.timing("consume", wanted):
                    found = list(islice(rest, wanted))
                _check(found, bodies.range(done, wanted))
                done += wanted
                if number % _SAMPLE_EVERY == 0:
                    watch.sample()
            with watch.timing("consume"):
                _check(list(rest), [])
        watch.values["memory"] = watch.grown_mb


def drain_singly(run: Run) -> None:
    """Get and ack one at a time from a backlog."""
    bodies = NumberedBodies(SIZES).range(0, run.messages)
    with run.queue() as queue:
        for first in range(0, len(bodies), BATCH):
            queue.put_many(bodies[first : first + BATCH])
        queue.settle()
        found = []
        with run.watch.timing("drain", len(bodies)):
            while (taken := queue.take()) is not None:
                queue.ack(taken[0])
                found.append(taken[1])
        _check(found, bodies)


def round_trips(run: Run, *, batch: int = 1, waits: bool = False) -> None:
    """Publish, get, ack, in a queue that is empty each time; ``waits``: until each is safe."""
    bodies = NumberedBodies(SIZES).range(0, run.messages)
    found: list[bytes] = []
    with run.queue() as queue:
        with run.watch.timing("round trip", len(bodies)):
            for first in range(0, len(bodies), batch):
                if batch > 1:
                    _batch_there_and_back(queue, bodies[first : first + batch], found)
                    continue
                queue.put(bodies[first])
                if waits:
                    queue.settle()
                taken = queue.take()
                if taken is None:
                    raise WrongError("a message that was published is not there")
                queue.ack(taken[0])
                found.append(taken[1])
            queue.settle()
        _check(found, bodies)


def _batch_there_and_back(queue: Queue, bodies: Sequence[bytes], found: list[bytes]) -> None:
    queue.put_many(bodies)
    left = len(bodies)
    while left:
        tokens, got = queue.take_many(left)
        if not got:
            raise WrongError("messages that were published are not there")
        queue.ack_many(tokens)
        found += got
        left -= len(got)


def letters(run: Run) -> None:
    """Three headers and an id each: one at a time, in batches; taken and acked in batches."""
    bodies = NumberedBodies(SIZES).range(0, run.messages)
    made = [
        Letter(body, {"tenant": f"t-{number % 50}", "trace": f"{number:032x}", "kind": "created"}, f"id-{number:09d}")
        for number, body in enumerate(bodies)
    ]
    half = len(made) // 2
    with run.queue() as queue:
        with run.watch.timing("publish", half):
            for letter in made[:half]:
                queue.send(letter)
            queue.settle()
        with run.watch.timing("publish in batches", len(made) - half):
            for first in range(half, len(made), BATCH):
                queue.send_many(made[first : first + BATCH])
            queue.settle()
        found: list[Letter] = []
        with run.watch.timing("drain", len(made)):
            while len(found) < len(made):
                tokens, got = queue.receive_many(BATCH)
                if not got:
                    break
                queue.ack_many(tokens)
                found += got
        _check(found, made)


# ── many queues, many publishers, two threads ────────────────────────────────────────────────────────────────────────


def interleaved(run: Run, *, queues: int = 1000) -> None:
    """A message to each queue in turn, again and again; taken in the same way, some one by one, the rest by queue."""
    queues = max(2, min(queues, run.messages // 4))
    rounds = run.messages // queues
    bodies = NumberedBodies(SIZES).range(0, rounds)
    with run.opened(queues=queues) as peer:
        targets = [peer.queue(f"queue-{number}") for number in range(queues)]
        for target in targets:  # their files are made
            target.put(b"warm")
            target.settle()
            _check(_drained(target, 1, 1), [b"warm"])
        with run.watch.timing("publish", rounds * queues):
            for body in bodies:
                for target in targets:
                    target.put(body)
            for target in targets:
                target.settle()
        singles = max(1, rounds // 20)
        with run.watch.timing("drain singly", singles * queues):
            for body in bodies[:singles]:
                for target in targets:
                    taken = target.take()
                    if taken is None or taken[1] != body:
                        raise WrongError("a message is missing, or another's")
                    target.ack(taken[0])
        with run.watch.timing("drain", (rounds - singles) * queues):
            left = [_drained(target, rounds - singles) for target in targets]
        for found in left:
            _check(found, bodies[singles:])


def confirmed(run: Run, *, batch: int = 1, publishers: int = 1) -> None:
    """Publish and wait until it is safe, each batch; by one thread, then by ``publishers`` threads at once."""
    each = max(batch, run.messages // publishers // batch * batch)
    bodies = NumberedBodies(SIZES).range(0, each)
    with run.opened() as peer:
        queues = [peer.queue("bench") for _ in range(publishers)]
        _confirmed(run, "publish" if publishers == 1 else "one publisher", queues[:1], bodies, batch)
        _check(_drained(queues[0], each + 1), [b"warm", *bodies])
        if publishers > 1:
            _confirmed(run, "publish", queues, bodies, batch)
            found = _drained(queues[0], (each + 1) * publishers)
            _check(sorted(found), sorted([b"warm", *bodies] * publishers))


def _confirmed(run: Run, name: str, queues: Sequence[Queue], bodies: Sequence[bytes], batch: int) -> None:
    ready, errors = threading.Barrier(len(queues)), SimpleQueue[Exception]()

    def publish(queue: Queue) -> None:
        try:
            ready.wait()
            for first in range(0, len(bodies), batch):
                if batch > 1:
                    queue.put_many(bodies[first : first + batch])
                else:
                    queue.put(bodies[first])
                queue.settle()
        except Exception as error:
            errors.put(error)
            ready.abort()

    for queue in queues:
        queue.put_many([b"warm"])
        queue.settle()
    threads = [threading.Thread(target=publish, args=(queue,)) for queue in queues[1:]]
    for thread in threads:
        thread.start()
    with run.watch.timing(name, len(bodies) * len(queues)):
        publish(queues[0])  # some peers are for the thread that opened them
        for thread in threads:
            thread.join()
    if not errors.empty():
        raise errors.get()


def hand_off(run: Run, *, ack: bool) -> None:
    """From one thread to another, the giver waiting until each has arrived (and is acked): µs."""
    bodies = NumberedBodies(SIZES).range(0, run.messages)
    arrivals: SimpleQueue[tuple[float, bytes]] = SimpleQueue()
    warm = max(1, len(bodies) // 20)
    with run.opened() as peer:
        queue = peer.queue("bench")
        with queue.receiver(ack=ack) as receive:

            def work() -> None:
                for _ in bodies:
                    body = receive()
                    arrivals.put((time.perf_counter(), body))

            thread = threading.Thread(target=work)
            thread.start()
            took, found = [], []
            for body in bodies:
                start = time.perf_counter()
                queue.put(body)
                at, got = arrivals.get()
                took.append((at - start) * 1e6)
                found.append(got)
            thread.join()
    _check(found, bodies)
    took = sorted(took[warm:])
    run.watch.values |= {"p50": took[len(took) // 2], "p99": took[len(took) * 99 // 100]}


# ── topics ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def topics(run: Run, *, singles: int = 20_000, finds: int = 2000) -> None:
    """Appended in batches with a key each, and one at a time; read by a group; found by key."""
    bodies = NumberedBodies(SIZES)
    total = run.messages // BATCH * BATCH or run.messages
    singles, finds = min(singles, total), min(finds, total)
    with run.opened() as peer:
        topic = peer.topic("bench")
        _append(run, topic, bodies, total)
        with run.watch.timing("append singly", singles):
            for number in range(total, total + singles):
                topic.append(bodies[number], f"order-{number:09d}")
            topic.settle()
        topic.catch_up()
        done = 0
        while done < total + singles:
            with run.watch.timing("read", min(BATCH, total + singles - done)):
                found = topic.read(BATCH)
            _check(found, bodies.range(done, len(found)) if found else [b"more"])
            done += len(found)
        wanted = [number * 7919 % total for number in range(finds)]
        with run.watch.timing("find", finds):
            for number in wanted:
                got = topic.find(f"order-{number:09d}")
                if got != bodies[number]:
                    raise WrongError("another message than the one with that key")
        run.watch.values["find"] = run.watch.seconds.get("find", 0.0) / finds * 1e6


def append(run: Run) -> None:
    """Only appended, in batches."""
    with run.opened() as peer:
        _append(run, peer.topic("bench"), NumberedBodies(SIZES), run.messages)


def _append(run: Run, topic: Topic, bodies: NumberedBodies, total: int) -> None:
    for first in range(0, total, BATCH):
        some = bodies.range(first, min(BATCH, total - first))
        keys = [f"order-{number:09d}" for number in range(first, first + len(some))]
        with run.watch.timing("append", len(some)):
            topic.append_many(some, keys)
    with run.watch.timing("append"):
        topic.settle()
