"""The act with queues of all types: classic ones of version 1 and version 2, and quorum queues, of a stopped RabbitMQ.

A directory of a RabbitMQ 3.10.8 ships with the project that has some of each (two nodes' directories put into one). It
is inspected, verified and exported, as the commands with such names do it. The export is then compared with what the
broker itself delivered after it was started on copies: for each queue the number of messages, a digest of their bodies,
which of them it marked as redelivered, and how often each message of a quorum queue had come back.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.resources import as_file
from typing import Any

import attrs
from rich.filesize import decimal
from rich.table import Table

from examples.demo.acts import Stage
from examples.demo.checking import Check, Faults
from warren.commands.demo import ARCHIVE, EXPORTED, Lines, Oracle, load_oracle, read_lines
from warren.salvage.export import Selection, export_source
from warren.salvage.inspect import inspect_source
from warren.salvage.names import from_text, shown
from warren.salvage.queue_directory import Finding
from warren.salvage.source import Source, open_source
from warren.salvage.verify import verify_source


@attrs.define
class TypesPlayed:
    """What came of it."""

    oracle: Oracle
    queues: int = 0
    messages: int = 0
    elapsed_s: float = 0.0
    """To inspect, verify and export them."""
    damage: Faults = attrs.field(factory=Faults)
    differing: Faults = attrs.field(factory=Faults)
    """Where a queue's messages are not those that were delivered."""
    marks: Faults = attrs.field(factory=Faults)
    """Where a message is not marked or counted as the broker did it."""

    def checks(self) -> list[Check]:
        """Everything that had to hold."""
        messages = sum(said.messages for said in self.oracle.delivered.values())
        return [
            Check.of(
                f"what is exported of {self.oracle.broker}'s classic queues v1 and v2 and its quorum queues are the "
                f"{messages:,} messages that it delivered from copies, in order",
                self.differing,
            ),
            Check.of("those are marked as redelivered that it marked, and counted as it counted them", self.marks),
            Check.of("nothing in the directory is damaged", self.damage),
        ]

    def to_json(self) -> dict[str, Any]:
        return {"queues": self.queues, "messages": self.messages, "elapsed_s": self.elapsed_s}

    def rows(self) -> list[tuple[str, str]]:
        """As the summary shows it."""
        return [
            (
                "all types",
                f"{self.messages:,} messages of {self.queues:,} queues, classic v1, classic v2 and quorum, in "
                f"{self.elapsed_s:.2f} s",
            )
        ]


def play(stage: Stage) -> TypesPlayed:
    """Play the act."""
    played = TypesPlayed(load_oracle())
    stage.screen.heading(7, f"A stopped {played.oracle.broker} with queues of all types, opened read-only")
    began_at = time.monotonic()
    path = os.path.join(stage.directory, EXPORTED)
    with open_types() as source:
        report = inspect_source(source)
        for finding in verify_source(source):
            add_damage(finding, played)
        with open(path, "wb") as out:
            exported = export_source(source, Selection(), out.write, lambda finding: add_damage(finding, played))
    played.messages, played.elapsed_s = exported.messages, time.monotonic() - began_at
    queues = [queue for vhost in report["vhosts"] for queue in vhost["queues"]]
    played.queues = len(queues)
    found = read_lines(path)
    compare(played, found)
    stage.screen.put(_table(queues, found))
    stage.screen.say(
        f"{played.messages:,} messages of {played.queues} queues exported in {played.elapsed_s:.2f} s: {path}"
    )
    return played


@contextmanager
def open_types() -> Iterator[Source]:
    """The shipped directory, unpacked to a temporary one and opened read-only."""
    with as_file(ARCHIVE) as path, open_source(str(path)) as source:
        yield source


def _table(queues: Sequence[Mapping[str, Any]], found: Lines) -> Table:
    table = Stage.table("queue", "type", "messages", "payload", "redelivered", "came back at most")
    table.columns[1].justify = "left"
    for queue in queues:
        lines = found.get(queue["name"], [])
        counts = [line["delivery_count"] for line in lines if "delivery_count" in line]
        table.add_row(
            shown(from_text(queue["name"])),
            f"{queue['type']} v{queue['version']}" if "version" in queue else queue["type"],
            f"{len(lines):,}",
            decimal(sum(line["size"] for line in lines)),
            f"{sum(line['redelivered'] for line in lines):,}",
            f"{max(counts):,}" if counts else "–",
        )
    return table


def add_damage(finding: Finding, played: TypesPlayed) -> None:
    """Note a finding, if it is damage."""
    if finding.severity == "damage":
        played.damage.add(str(finding))


def compare(played: TypesPlayed, found: Lines) -> None:
    """Note where the exported queues are not what the broker delivered."""
    for faults, sentences in zip((played.differing, played.marks), played.oracle.compare(found), strict=True):
        for sentence in sentences:
            faults.add(sentence)
