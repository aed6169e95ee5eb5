"""Publishing and fetching: rates beside the bare writing and reading of the same bytes.

Messages of a scenario differ in their bodies, ids and seq_ids, and share an envelope, as one publisher's do. Every
batch is *handed over*: what it wrote has been given to the operating system before the next one begins, so that it
survives the process. Where it says *fsync*, it has been made to survive the machine too.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

import attrs

from benchmarks.bodies import bodies_of_sizes
from benchmarks.figures import Bar, Figure
from benchmarks.measure import Phase, Tick, Timed, in_turn
from warren.actors.vhost import Vhost
from warren.queue_index.message.message_format import Envelope
from warren.queue_index.queue.variable_queue import VariableQueue
from warren.storage.filesystem import FileSystem
from warren.storage.settings import Settings

BATCH = 1000
PERSISTENT = Envelope(b"/", b"", (b"bench",), b"\x10\x00\x02", True)
TRANSIENT = Envelope(b"/", b"", (b"bench",), b"\x10\x00\x01", False)
PUBLISH = "publish"
FETCH = "fetch and ack"


def open_vhost(files: FileSystem, path: str, *, sync: bool = False) -> Vhost:
    return Vhost.open(
        files,
        path,
        b"/",
        settings=Settings(),
        clock=time.monotonic_ns,
        random=os.urandom,
        sync=sync,
        owner="benchmarks",
    )


@attrs.define
class PublishAndFetch:
    """Publish everything, then fetch and ack everything, bodies taken."""

    bodies: list[bytes]
    batch: int = BATCH
    envelope: Envelope = PERSISTENT
    target_ram_count: int | None = None
    sync: bool = False
    batches: list[list[bytes]] = attrs.field(init=False)
    """The bodies as their publisher hands them over."""
    vhost: Vhost = attrs.field(init=False)
    queue: VariableQueue = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.batches = [self.bodies[low : low + self.batch] for low in range(0, len(self.bodies), self.batch)]

    def open(self, files: FileSystem, path: str) -> None:
        self.vhost = open_vhost(files, path, sync=self.sync)
        self.queue = self.vhost.queue(b"bench")
        self.queue.state.target_ram_count = self.target_ram_count

    def phases(self) -> Sequence[tuple[str, Phase]]:
        if self.batch == 1:
            return (PUBLISH, self._publish_singly), (FETCH, self._fetch_singly)
        return (PUBLISH, self._publish), (FETCH, self._fetch)

    def close(self) -> None:
        self.vhost.abandon()

    def _publish(self) -> int:
        vhost, queue = self.vhost, self.queue
        for batch in self.batches:
            queue.publish_many(self.envelope, vhost.msg_ids.many(len(batch)), batch)
            vhost.sync()
        return len(self.bodies)

    def _publish_singly(self) -> int:
        vhost, queue = self.vhost, self.queue
        for body in self.bodies:
            queue.publish(self.envelope, vhost.msg_ids.one(), body)
            vhost.sync()
        return len(self.bodies)

    def _fetch(self) -> int:
        vhost, queue, count = self.vhost, self.queue, 0
        while fetched := queue.fetch_many(self.batch):
            for part in fetched:
                count += len(part.bodies())
            queue.ack([part.seq_ids for part in fetched])
            vhost.sync()
        self._must_be_all(count)
        return count

    def _fetch_singly(self) -> int:
        vhost, queue, count = self.vhost, self.queue, 0
        while (fetched := queue.fetch()) is not None:
            count += len(fetched.bodies())
            queue.ack([fetched.seq_ids])
            vhost.sync()
        self._must_be_all(count)
        return count

    def _must_be_all(self, count: int) -> None:
        if count != len(self.bodies):
            raise RuntimeError(f"{len(self.bodies)} messages published, {count} fetched")


@attrs.frozen
class Plan:
    """A scenario under its name, and the bars of its two phases."""

    group: str
    title: str
    make: Callable[[int], PublishAndFetch]
    messages: int
    publish_bar: Bar | None = None
    fetch_bar: Bar | None = None


PLANS = (
    Plan(
        "128 B, paged out",
        "128 B, batches of 1000, target_ram_count 10,000",
        lambda n: PublishAndFetch(bodies_of_sizes([128] * n), target_ram_count=10_000),
        200_000,
        publish_bar=Bar("at least", 0.5),
        fetch_bar=Bar("at least", 0.4),
    ),
    Plan(
        "128 B, one by one",
        "128 B, one by one",
        lambda n: PublishAndFetch(bodies_of_sizes([128] * n), batch=1),
        20_000,
    ),
    Plan(
        "5 KB, in the store",
        "5 KB, in the message store, batches of 1000",
        lambda n: PublishAndFetch(bodies_of_sizes([5000] * n)),
        20_000,
    ),
    Plan(
        "128 B, transient",
        "128 B, transient, batches of 1000",
        lambda n: PublishAndFetch(bodies_of_sizes([128] * n), envelope=TRANSIENT),
        200_000,
    ),
    Plan(
        "128 B, fsync",
        "128 B, batches of 1000, fsync after each",
        lambda n: PublishAndFetch(bodies_of_sizes([128] * n), sync=True),
        20_000,
    ),
)


def publish_and_fetch(directory: str, *, scale: float, repeats: int, tick: Tick) -> list[Figure]:
    """The figures of every plan, with ``scale`` times its messages, in whole batches."""
    figures = []
    for plan in PLANS:
        messages = max(2 * BATCH, round(plan.messages * scale / BATCH) * BATCH)
        timed = in_turn(plan.make(messages), directory, repeats, tick)
        figures += _figures(plan, timed[PUBLISH], timed[FETCH])
    return figures


def _figures(plan: Plan, publish: Timed, fetch: Timed) -> list[Figure]:
    return [
        publish.figure(plan.group, f"{PUBLISH}: {plan.title}", "bare write", plan.publish_bar),
        fetch.figure(
            plan.group,
            f"{FETCH}: {plan.title}",
            "bare read and write" if fetch.tape.bytes_read else "bare write",
            None,
        ),
        Figure.of_pairs(
            fetch.rates,
            publish.rates,
            "publish beside it",
            group=plan.group,
            title=f"{FETCH}, beside publish: {plan.title}",
            unit="messages/s",
            bar=plan.fetch_bar,
        ),
    ]
