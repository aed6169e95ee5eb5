"""How cost grows: rates and memory against the backlog, queues, body size, unacked messages, consuming threads.

Every point is measured in a process of its own. Nothing is to grow worse than linearly; publish and fetch are to stay
flat.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

import attrs

from benchmarks.bodies import NumberedBodies
from benchmarks.figures import Unit
from benchmarks.peers.procedures import BATCH, SIZES, Run, WrongError, _check, _drained, interleaved
from benchmarks.peers.works import Work

_SOME: Final = 20_000
"""Messages that are timed at a point."""
_BYTES: Final = 64 << 20
"""At most, of bodies that are timed at a point."""


@attrs.frozen(kw_only=True)
class Growth:
    """Something that grows, and what is measured while it does."""

    name: str
    axis: str
    points: tuple[int, ...]
    do: Callable[[int, Run], None]
    values: dict[str, Unit]
    peers: tuple[str, ...] = ("warren", "sqlite")

    def works(self, most: int | None = None) -> Iterator[tuple[int, Work]]:
        """A work for each point, up to ``most``."""
        for point in self.points:
            if most is None or point <= most:
                yield point, self.work(point)

    def work(self, point: int) -> Work:
        return Work(
            name=f"{self.name} {point}",
            title=f"{point:,} {self.axis}",
            values=self.values,
            messages=_SOME,
            do=partial(self.do, point),
            peers=self.peers,
            repeats=3,
            least=100,
        )


def with_backlog(total: int, run: Run) -> None:
    """Fill; take and ack some from the head."""
    bodies, watch = NumberedBodies(SIZES), run.watch
    with run.queue() as queue:
        watch.begin_memory()
        for first in range(0, total, BATCH):
            some = bodies.range(first, min(BATCH, total - first))
            with watch.timing("publish", len(some)):
                queue.put_many(some)
            if first % (10 * BATCH) == 0:
                watch.sample()
        with watch.timing("publish"):
            queue.settle()
        count = min(total, run.messages)
        with watch.timing("fetch and ack", count):
            found = _drained(queue, count)
        watch.sample()
        _check(found, bodies.range(0, count))
        watch.values["memory"] = watch.grown_mb


def with_queues(queues: int, run: Run) -> None:
    """A message to each in turn."""
    run.watch.begin_memory()
    interleaved(attrs.evolve(run, messages=max(run.messages, 4 * queues)), queues=queues)
    run.watch.sample()
    run.watch.values["memory"] = run.watch.grown_mb


def with_size(size: int, run: Run) -> None:
    """Bodies of ``size`` bytes."""
    bodies, watch = NumberedBodies((size,)), run.watch
    count = max(8, min(run.messages, _BYTES // max(size, 1)))
    batch = min(BATCH, max(1, (4 << 20) // max(size, 1)))
    with run.queue() as queue:
        watch.begin_memory()
        for first in range(0, count, batch):
            some = bodies.range(first, min(batch, count - first))
            with watch.timing("publish", len(some)):
                queue.put_many(some)
        with watch.timing("publish"):
            queue.settle()
        with watch.timing("fetch and ack", count):
            found = _drained(queue, count, batch)
        watch.sample()
        _check(found, bodies.range(0, count))
        watch.values["memory"] = watch.grown_mb


def with_unacked(held: int, run: Run) -> None:
    """Publish and take batches while ``held`` messages are unacked."""
    bodies, watch = NumberedBodies(SIZES), run.watch
    with run.queue() as queue:
        watch.begin_memory()
        left = held
        kept = []
        while left:
            queue.put_many(bodies.range(0, min(BATCH, left)))
            tokens, found = queue.take_many(min(BATCH, left))
            kept.append(tokens)
            left -= len(found)
            watch.sample()
        for first in range(0, run.messages, 100):
            some = bodies.range(first, 100)
            with watch.timing("publish", len(some)):
                queue.put_many(some)
            with watch.timing("fetch and ack", len(some)):
                found = _drained(queue, len(some))
            _check(found, some)
        watch.sample()
        watch.values["memory"] = watch.grown_mb


def with_consumers(threads: int, run: Run) -> None:
    """``threads`` threads, each with a consumer, and an ack for each message."""
    each = max(64, run.messages * 3 // threads)
    total, bodies = threads * each, NumberedBodies(SIZES)
    with run.queue() as queue:
        for first in range(0, total, BATCH):
            queue.put_many(bodies.range(first, min(BATCH, total - first)))
        queue.settle()
        run.watch.begin_memory()
        found: list[list[bytes]] = [[] for _ in range(threads)]

        def consume(own: list[bytes]) -> None:
            own += queue.consume(each)

        started = [threading.Thread(target=consume, args=(own,)) for own in found]
        with run.watch.timing("fetch and ack", total):
            for thread in started:
                thread.start()
            for thread in started:
                thread.join()
        run.watch.sample()
        if sorted(body for own in found for body in own) != bodies.range(0, total):
            raise WrongError("what the consumers have got is not what was published")
        run.watch.values["memory"] = run.watch.grown_mb


_VALUES: Final[dict[str, Unit]] = {"publish": "messages/s", "fetch and ack": "messages/s", "memory": "MB"}

GROWTHS: Final = (
    Growth(
        name="backlog",
        axis="messages waiting",
        points=(1_000, 10_000, 100_000, 1_000_000, 10_000_000),
        do=with_backlog,
        values=_VALUES,
    ),
    Growth(
        name="queues",
        axis="queues",
        points=(2, 10, 100, 1_000, 10_000),
        do=with_queues,
        values={"publish": "messages/s", "drain": "messages/s", "memory": "MB"},
    ),
    Growth(
        name="body size",
        axis="bytes of a body",
        points=(0, 16, 128, 1_024, 4_096, 16_384, 65_536, 262_144, 1_048_576),
        do=with_size,
        values=_VALUES,
    ),
    Growth(
        name="unacked",
        axis="unacked messages",
        points=(0, 10, 100, 1_000, 10_000, 100_000, 1_000_000),
        do=with_unacked,
        values=_VALUES,
    ),
    Growth(
        name="consumers",
        axis="threads that consume",
        points=(1, 2, 4, 8, 16, 32, 64),
        do=with_consumers,
        values={"fetch and ack": "messages/s", "memory": "MB"},
        peers=("warren",),
    ),
)


def find_work(name: str) -> Work:
    """A growth's work by its name."""
    growth, _, point = name.rpartition(" ")
    return next(one.work(int(point)) for one in GROWTHS if one.name == growth)
