"""The works: what is done, how often, what is measured, and what is to be reached. One entry a work.

Numbers of messages are chosen so that all works with all peers, five times each, take about half an hour on a quiet
machine with two cores.
"""

from __future__ import annotations

from functools import partial
from typing import Final, Literal

import attrs

from benchmarks.bodies import mixed_sizes
from benchmarks.figures import Bar, Unit
from benchmarks.peers import lifecycle, procedures
from benchmarks.peers.peer import Can, Promise
from benchmarks.peers.procedures import Procedure

_MIXED: Final = mixed_sizes(100_000)
_RATE: Final[Unit] = "messages/s"


@attrs.frozen
class Goal:
    """A value to reach: a multiple of another peer's value (or of another value of its own), or a number."""

    value: str
    sense: Literal["at least", "at most"]
    limit: float
    beside: str = ""
    """The peer whose value it is measured against; if empty, the limit is of the value itself."""
    other: str = ""
    """The name of that peer's value, if it has another name."""
    of: str = "warren"
    """Whose value it is."""

    @property
    def bar(self) -> Bar:
        return Bar(self.sense, self.limit, "ratio" if self.beside else "value")


def at_least(limit: float, beside: str, value: str, *, other: str = "", of: str = "warren") -> Goal:
    """At least ``limit`` times the rate of a peer."""
    return Goal(value, "at least", limit, beside, other, of)


@attrs.frozen(kw_only=True)
class Work:
    """One row."""

    name: str
    title: str
    values: dict[str, Unit]
    """What it measures, in the order of the table."""
    messages: int
    do: Procedure
    promise: Promise = Promise.WRITTEN
    needs: frozenset[Can] = frozenset()
    peers: tuple[str, ...] = ()
    """Only these; none: all that can."""
    bare: bool = False
    """Whether the plain object does it too, and the bare counterpart of that. (Elsewhere ``peers`` may name them.)"""
    goals: tuple[Goal, ...] = ()
    prepare: Procedure | None = None
    """What a process does that is killed then; every run gets a copy of what it left."""
    repeats: int = 5
    least: int = 1
    """Messages in the smallest run that makes sense."""


WORKS: Final = (
    Work(
        name="W1",
        title="publish one at a time, wait for all at the end",
        values={"publish": _RATE},
        messages=100_000,
        do=procedures.publish_singly,
        goals=(at_least(1.0, "queuelib", "publish"),),
    ),
    Work(
        name="W2",
        title="batches of 1000",
        values={"publish": _RATE, "drain": _RATE},
        messages=500_000,
        do=procedures.fill_and_drain,
        bare=True,
        goals=(at_least(4.0, "sqlite", "publish"), at_least(0.5, "bare", "publish", of="plain")),
    ),
    Work(
        name="W2m",
        title="batches of 1000, sizes 16 … 3,500 B mixed",
        values={"publish": _RATE, "drain": _RATE},
        messages=100_000,
        do=partial(procedures.fill_and_drain, sizes=_MIXED),
        bare=True,
        goals=(
            at_least(3.0, "sqlite", "publish"),
            at_least(3.0, "sqlite", "drain"),
            at_least(0.25, "bare", "publish", of="plain"),
        ),
    ),
    Work(
        name="W2h",
        title="three headers and an id each",
        values={"publish": _RATE, "publish in batches": _RATE, "drain": _RATE},
        messages=40_000,
        do=procedures.letters,
        needs=frozenset({Can.LETTERS}),
        goals=tuple(at_least(3.0, "sqlite", value) for value in ("publish", "publish in batches", "drain")),
    ),
    Work(
        name="W3",
        title="publish, get, ack, one at a time, the queue near empty",
        values={"round trip": _RATE},
        messages=10_000,
        do=procedures.round_trips,
        goals=(at_least(3.0, "sqlite", "round trip"),),
    ),
    Work(
        name="W3w",
        title="the same, waiting for every publish",
        values={"round trip": _RATE},
        messages=10_000,
        do=partial(procedures.round_trips, waits=True),
        goals=(at_least(1.5, "sqlite", "round trip"),),
    ),
    Work(
        name="W3b",
        title="publish, get, ack, in hundreds",
        values={"round trip": _RATE},
        messages=100_000,
        do=partial(procedures.round_trips, batch=100),
        goals=(at_least(3.0, "sqlite", "round trip"),),
    ),
    Work(
        name="W4",
        title="fill 1,000,000; drain in batches, and in a loop with an ack each",
        values={"publish": _RATE, "drain": _RATE, "consume": _RATE, "memory": "MB"},
        messages=1_000_000,
        do=partial(procedures.fill_and_drain, by_consume=True),
        peers=("warren", "plain", "file", "sqlite", "redis", "queuelib"),
        goals=(
            at_least(4.0, "sqlite", "publish"),
            at_least(1.5, "sqlite", "drain"),
            at_least(1.0, "sqlite", "consume", other="drain"),
            Goal("memory", "at most", 32.0),
        ),
    ),
    Work(
        name="W4s",
        title="get and ack one at a time, from a backlog",
        values={"drain": _RATE},
        messages=20_000,
        do=procedures.drain_singly,
        goals=(at_least(1.0, "sqlite", "drain"),),
    ),
    *(
        Work(
            name=f"W5{letter}",
            title=f"{title} bodies, fill and drain",
            values={"publish": "MB/s", "drain": "MB/s"},
            messages=messages,
            do=partial(procedures.fill_and_drain, sizes=(size,), batch=batch, megabytes=True),
            peers=("warren", "plain", "file", "sqlite", "diskcache", "redis", "queuelib"),
            goals=(at_least(0.7, "file", "publish"), at_least(0.7, "file", "drain")),
        )
        for letter, title, size, messages, batch in (
            ("", "16 KiB", 16_384, 16_000, 100),
            ("l", "1 MiB", 1 << 20, 256, 8),
        )
    ),
    *(
        Work(
            name=name,
            title=f"open after a kill, {messages:,} waiting",
            values={"first message": "s", "all counted": "s"},
            messages=messages,
            prepare=lifecycle.fill,
            do=lifecycle.reopen,
            needs=frozenset({Can.REOPEN}),
            goals=goals,
            repeats=repeats,
        )
        for name, messages, repeats, goals in (
            ("W6", 1_000_000, 5, (Goal("first message", "at most", 0.1), Goal("all counted", "at most", 0.3))),
            ("W6l", 10_000_000, 3, (Goal("first message", "at most", 0.2),)),
        )
    ),
    Work(
        name="W7",
        title="1,000 queues × 200, interleaved",
        values={"publish": _RATE, "drain singly": _RATE, "drain": _RATE},
        messages=200_000,
        do=procedures.interleaved,
        needs=frozenset({Can.MANY_QUEUES}),
        goals=(at_least(3.0, "redis", "publish"), at_least(3.0, "redis", "drain singly")),
        least=8,
    ),
    Work(
        name="W7q",
        title="10,000 queues × 100: declared, filled; killed, recovered, drained",
        values={"declared": "s", "filled": "s", "recovered": "s", "drained": "s"},
        messages=1_000_000,
        prepare=lifecycle.fill_many,
        do=lifecycle.recover_many,
        needs=frozenset({Can.MANY_QUEUES, Can.REOPEN}),
        goals=tuple(
            Goal(value, "at most", limit)
            for value, limit in (("declared", 3.0), ("filled", 10.0), ("recovered", 10.0), ("drained", 15.0))
        ),
        repeats=1,
        least=200,
    ),
    Work(
        name="W8",
        title="fsynced, waiting for each",
        values={"publish": _RATE},
        messages=2_000,
        promise=Promise.FSYNCED,
        do=procedures.confirmed,
        goals=(at_least(1.0, "sqlite", "publish"),),
    ),
    Work(
        name="W8b",
        title="fsynced, waiting for each hundred",
        values={"publish": _RATE},
        messages=50_000,
        promise=Promise.FSYNCED,
        do=partial(procedures.confirmed, batch=100),
        goals=(at_least(1.0, "sqlite", "publish"),),
    ),
    Work(
        name="W8p",
        title="fsynced, 16 publishers, each waiting for each",
        values={"publish": _RATE, "one publisher": _RATE},
        messages=16_000,
        promise=Promise.FSYNCED,
        do=partial(procedures.confirmed, publishers=16),
        needs=frozenset({Can.THREADS}),
        goals=(at_least(1.0, "sqlite", "publish"), at_least(8.0, "warren", "publish", other="one publisher")),
        least=16,
    ),
    Work(
        name="W9",
        title="hand-off between two threads, nothing kept",
        values={"p50": "µs", "p99": "µs"},
        messages=5_000,
        promise=Promise.VOLATILE,
        do=partial(procedures.hand_off, ack=False),
        needs=frozenset({Can.HAND_OFF}),
        goals=(Goal("p50", "at most", 1.5, "queue.Queue"), Goal("p99", "at most", 10.0, "warren", "p50")),
    ),
    Work(
        name="W9p",
        title="hand-off between two threads, persistent and acked",
        values={"p50": "µs", "p99": "µs"},
        messages=5_000,
        do=partial(procedures.hand_off, ack=True),
        needs=frozenset({Can.HAND_OFF}),
        goals=(Goal("p50", "at most", 0.7, "sqlite"), Goal("p99", "at most", 10.0, "warren", "p50")),
    ),
    Work(
        name="W10",
        title="a topic: appended with a key each, read by a group, found by key",
        values={"append": _RATE, "append singly": _RATE, "read": _RATE, "find": "µs"},
        messages=200_000,
        do=procedures.topics,
        needs=frozenset({Can.TOPIC}),
        goals=(
            Goal("append singly", "at least", 200_000.0),
            at_least(1.0, "sqlite", "read"),
            Goal("find", "at most", 1.0, "sqlite"),
        ),
    ),
    Work(
        name="W10c",
        title="a topic's CommitLog, appended in batches of 1000",
        values={"append": _RATE},
        messages=200_000,
        do=procedures.append,
        bare=True,
        peers=("plain", "bare"),
        goals=(at_least(0.4, "bare", "append", of="plain"),),
    ),
    Work(
        name="W10r",
        title="a topic's entries and keys, rebuilt from its CommitLog",
        values={"rebuild": "MB/s", "bare read": "MB/s"},
        messages=1_000_000,
        prepare=lifecycle.fill_topic,
        do=lifecycle.rebuild,
        needs=frozenset({Can.EXPORT}),
        goals=(at_least(round(500 / 6000, 3), "warren", "rebuild", other="bare read"),),
    ),
    Work(
        name="W12",
        title="cold start",
        values={"import": "s", "inspect": "s", "open, publish, close": "s"},
        messages=100,
        prepare=lifecycle.fill_six,
        do=lifecycle.cold_start,
        needs=frozenset({Can.COLD_START}),
        goals=(
            Goal("import", "at most", 0.12),
            Goal("inspect", "at most", 0.25),
            Goal("open, publish, close", "at most", 0.05),
        ),
    ),
    Work(
        name="W13",
        title="a directory read out: exported, verified",
        values={"JSON lines": "MB/s", "Parquet": "MB/s", "verify": "MB/s", "bare read": "MB/s"},
        messages=1_000_000,
        prepare=lifecycle.fill,
        do=lifecycle.export,
        needs=frozenset({Can.EXPORT}),
        goals=tuple(
            at_least(round(limit / 6000, 3), "warren", value, other="bare read")
            for value, limit in (("JSON lines", 200), ("Parquet", 400), ("verify", 400))
        ),
    ),
)
"""W11, the pipeline on Spark, has a harness of its own (:mod:`benchmarks.spark`); its goals stand there."""
WORKS_BY_NAME: Final = {work.name: work for work in WORKS}
