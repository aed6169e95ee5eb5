"""Topics: appending to the CommitLog and reading it from end to end, beside the bare writing and reading of the bytes.

Bodies differ, hosts and properties are shared, as one producer's are. What is appended has been handed to the
operating system when the call returns. Reading goes through the log as dispatch and rebuild do it (by columns, with
keys and tags), and by entries as a queue's readers do; the bare counterpart reads the same bytes in the same windows.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import attrs
import numpy as np

from benchmarks.bodies import bodies_of_sizes, mixed_sizes
from benchmarks.figures import Bar, Figure
from benchmarks.measure import Phase, Tick, in_turn
from benchmarks.scenarios import BATCH
from warren.actors.engines.topics.reading import read_packed
from warren.msg_store.commit_log.commit_log import Appended, Batch, CommitLog
from warren.msg_store.commit_log.commit_log_format import Host
from warren.msg_store.commit_log.record_columns import RecordColumns
from warren.queue_index.topics.consume_queue_format import ENTRY
from warren.storage.filesystem import FileSystem
from warren.storage.topic_settings import TopicSettings

APPEND = "append"
COLUMNS = "read by columns"
MESSAGES = "read the messages"
PROPERTIES = b"KEYS\x01order-1001\x02TAGS\x01created"

Shared = bytes | Callable[[int], bytes]
"""Properties: of every message, or made of its number."""


@attrs.define
class AppendAndRead:
    """Append every batch, then read all of it twice."""

    bodies: list[bytes]
    properties: Shared = PROPERTIES
    settings: TopicSettings = attrs.field(factory=TopicSettings)
    batches: list[Batch] = attrs.field(init=False)
    log: CommitLog = attrs.field(init=False)
    appended: list[Appended] = attrs.field(factory=list, init=False)

    def __attrs_post_init__(self) -> None:
        self.batches = [self._batch(low) for low in range(0, len(self.bodies), BATCH)]

    def _batch(self, low: int) -> Batch:
        bodies, made = self.bodies[low : low + BATCH], self.properties
        return Batch(
            topic="bench",
            queue_id=0,
            bodies=bodies,
            properties=made if isinstance(made, bytes) else [made(low + number) for number in range(len(bodies))],
            born_timestamp=1_700_000_000_000 + low,
            born_host=Host.parse("10.0.0.1:50123"),
            store_host=Host.parse("10.0.0.2:10911"),
            as_one=False,
        )

    def open(self, files: FileSystem, path: str) -> None:
        self.log = CommitLog.load(files, os.path.join(path, "commitlog"), self.settings)

    def phases(self) -> Sequence[tuple[str, Phase]]:
        return (APPEND, self._append), (COLUMNS, self._read_columns), (MESSAGES, self._read_messages)

    def close(self) -> None:
        self.log.close()

    def _append(self) -> int:
        self.appended, done = [], 0
        for batch in self.batches:
            self.appended.append(self.log.append(batch, done, batch.born_timestamp))
            done += len(batch.bodies)
        self._must_be_all(done)
        return done

    def _read_columns(self) -> int:
        done = sum(len(found) for found in self.log.columns(0) if isinstance(found, RecordColumns))
        self._must_be_all(done)
        return done

    def _read_messages(self) -> int:
        """Every body as an object of its own, and checked."""
        done = 0
        for batch in self.appended:
            entries = np.zeros(len(batch.sizes), ENTRY)
            entries["physical_offset"], entries["size"] = batch.physical_offsets, batch.sizes
            done += sum(map(len, read_packed(self.log, entries)))
        self._must_be_all(done)
        return done

    def _must_be_all(self, done: int) -> None:
        if done != len(self.bodies):
            raise RuntimeError(f"{len(self.bodies)} messages, {done} found")


@attrs.frozen
class Plan:
    """A scenario under its name, and its bars."""

    group: str
    title: str
    make: Callable[[int], AppendAndRead]
    messages: int
    append_bar: Bar | None = None
    read_bar: Bar | None = None


PLANS = (
    Plan(
        "128 B",
        "128 B, batches of 1000",
        lambda n: AppendAndRead(bodies_of_sizes([128] * n)),
        200_000,
        append_bar=Bar("at least", 0.4),
        read_bar=Bar("at least", 0.3),
    ),
    Plan(
        "128 B, a key each",
        "128 B, a key each, batches of 1000",
        lambda n: AppendAndRead(bodies_of_sizes([128] * n), lambda number: b"KEYS\x01order-%09d" % number),
        200_000,
    ),
    Plan(
        "16 … 3500 B",
        "16 … 3500 B (mixed), batches of 1000",
        lambda n: AppendAndRead(bodies_of_sizes(mixed_sizes(n))),
        100_000,
    ),
    Plan("5 KB", "5 KB, batches of 1000", lambda n: AppendAndRead(bodies_of_sizes([5000] * n)), 20_000),
)


def append_and_read(directory: str, *, scale: float, repeats: int, tick: Tick) -> list[Figure]:
    """The figures of every plan, with ``scale`` times its messages, in whole batches."""
    figures = []
    for plan in PLANS:
        messages = max(2 * BATCH, round(plan.messages * scale / BATCH) * BATCH)
        timed = in_turn(plan.make(messages), directory, repeats, tick)
        figures += [
            timed[phase].figure(f"topic: {plan.group}", f"topic, {phase}: {plan.title}", bare_name, bar)
            for phase, bare_name, bar in (
                (APPEND, "bare write", plan.append_bar),
                (COLUMNS, "bare read", None),
                (MESSAGES, "bare read", plan.read_bar),
            )
        ]
    return figures
