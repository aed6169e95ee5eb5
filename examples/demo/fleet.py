"""The act with Spark: both dead brokers in one load, and every message set against what the brokers themselves read.

It needs the extra ``spark``; without it the act is left out, and the run says so.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs

from examples.demo.acts import Stage
from examples.demo.checking import Check, Faults
from examples.demo.shipped import ARCHIVE as RABBITMQ
from examples.demo.shipped import Delivered, Shipped
from examples.demo.shipped_store import ARCHIVE as ROCKETMQ
from examples.demo.shipped_store import Oracle, TopicRead
from warren import pipeline
from warren.salvage.archives.archive import unpack
from warren.salvage.names import printable

DIRECTORIES: Final = "brokers"
"""Where the two brokers' directories are unpacked, below the demo's directory."""


@attrs.define
class FleetPlayed:
    """What came of it."""

    queues: Mapping[bytes, Delivered]
    topics: Mapping[str, TopicRead]
    messages: int = 0
    elapsed_s: float = 0.0
    """From a session that is there to the last row."""
    damage: int = 0
    differing: Faults = attrs.field(factory=Faults)
    """Where a queue or a topic is not what its broker read."""

    def checks(self) -> list[Check]:
        """Everything that had to hold."""
        return [
            Check.of(
                "what Spark reads of both brokers in one load is what each of them delivered or read", self.differing
            ),
            Check.that("nothing of it is damaged", not self.damage, f"{self.damage:,} findings"),
        ]

    def to_json(self) -> dict[str, Any]:
        return {"messages": self.messages, "elapsed_s": self.elapsed_s}

    def rows(self) -> list[tuple[str, str]]:
        """As the summary shows it."""
        return [
            ("by Spark", f"{self.messages:,} messages of both brokers in {self.elapsed_s:.1f} s, every one checked")
        ]


def play(stage: Stage, shipped: Shipped, oracle: Oracle) -> FleetPlayed | None:
    """Play the act; ``None`` where Spark is not installed."""
    stage.screen.heading(10, "Both dead brokers in one load, read by Spark")
    if importlib.util.find_spec("pyspark") is None:
        stage.screen.say('Left out: Spark is not installed (pip install "warrenmq[spark]").', "dim")
        return None
    paths = _unpacked(stage.directory)
    began_at = time.monotonic()
    sessions = pipeline.part("sessions")
    is_ours = sessions.active_session() is None
    spark = sessions.session(quiet=True)
    started_s = time.monotonic() - began_at
    stage.screen.say(f"Spark {spark.version} has started, in {started_s:.1f} s.", "dim")
    try:
        return _read(stage, spark, paths, FleetPlayed(shipped.delivered, oracle.topics))
    finally:
        if is_ours:
            spark.stop()


def _unpacked(directory: str) -> list[str]:
    """The directories of both brokers."""
    paths = []
    for archive in (RABBITMQ, ROCKETMQ):
        path = os.path.join(directory, DIRECTORIES, archive.name.removesuffix(".tar.gz"))
        os.makedirs(path)
        unpack(str(archive), path)
        paths.append(path)
    return paths


def _read(stage: Stage, spark: Any, paths: list[str], played: FleetPlayed) -> FleetPlayed:
    began_at = time.monotonic()
    queues = _bodies(spark, "messages", paths[0], "queue", "position")
    topics = _bodies(spark, "records", paths[1], "topic", "queue_id", "queue_offset")
    found = queues | topics
    compared(played, found)
    table = stage.table("queue or topic", "messages")
    for name, bodies in sorted(found.items()):
        table.add_row(printable(name), f"{len(bodies):,}")
    findings = spark.read.format("warren").option("table", "findings").load(paths)
    played.damage = findings.filter("severity = 'damage'").count()
    played.messages, played.elapsed_s = sum(map(len, found.values())), time.monotonic() - began_at
    stage.screen.put(table)
    stage.screen.say(f"{played.messages:,} messages of two brokers, as tables, in {played.elapsed_s:.1f} s.")
    return played


def compared(played: FleetPlayed, found: Mapping[str, Sequence[bytes]]) -> FleetPlayed:
    """Note where queues and topics are not what the brokers read; ``found``: digests of the bodies, in order."""
    expected = {name.decode(): one for name, one in played.queues.items()} | dict(played.topics)
    for name in sorted({*found, *expected}):
        bodies, said = found.get(name, []), expected.get(name)
        digest = hashlib.sha256(b"".join(bodies)).hexdigest()
        if said is None or (len(bodies), digest) != (said.messages, said.sha256):
            played.differing.add(f"{printable(name)}: {len(bodies):,} messages, or not in order, or not the same")
    return played


def _bodies(spark: Any, table: str, path: str, name: str, *order: str) -> dict[str, list[bytes]]:
    """The digests of the bodies of each queue or topic, in order."""
    frame = spark.read.format("warren").option("table", table).load(path)
    found: dict[str, list[bytes]] = {}
    for row in frame.selectExpr(name, *order, "unhex(sha2(body, 256)) as digest").orderBy(name, *order).collect():
        found.setdefault(row[name], []).append(bytes(row.digest))
    return found
