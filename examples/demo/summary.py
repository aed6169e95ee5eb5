"""What came of a run: numbers, and checks that held or did not; for people and as JSON."""

from __future__ import annotations

from typing import Any

import attrs
from rich.console import Group, RenderableType
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from examples.demo.checking import Check
from examples.demo.dead_rocketmq import Salvaged
from examples.demo.fleet import FleetPlayed
from examples.demo.queue_types import TypesPlayed
from examples.demo.topics import TopicPlayed


@attrs.define(kw_only=True)
class Summary:
    """One run. Times in seconds, rates in messages a second, sizes in bytes."""

    directory: str
    taken_over: int
    published: int
    payload_bytes: int
    confirmed_before_kill: int
    survivors: int
    """Messages whose confirm the kill had cut off and that were there all the same; they came twice."""
    publish_rate: float
    publish_rate_after_recovery: float
    first_message_s: float
    recovery_s: float
    recovered: int
    fetched: int
    drain_rate: float
    """With everything checked meanwhile."""
    memory_target: int
    most_in_memory: int
    """Messages in memory at most, from the moment on that the limit was reached."""
    most_on_disk_only: int
    publisher_peak_bytes: int
    publisher_start_bytes: int
    peak_bytes: int
    """The peak of the process that recovers, drains and draws, until the queues are empty."""
    types: TypesPlayed
    rocketmq: Salvaged
    topic: TopicPlayed
    fleet: FleetPlayed | None
    """``None``: Spark is not installed."""
    elapsed_s: float
    checks: list[Check]

    @property
    def held(self) -> bool:
        """Whether every check held."""
        return all(check.held for check in self.checks)

    def to_json(self) -> dict[str, Any]:
        return {
            "held": self.held,
            **attrs.asdict(self, recurse=False),
            "types": self.types.to_json(),
            "rocketmq": self.rocketmq.to_json(),
            "topic": self.topic.to_json(),
            "fleet": None if self.fleet is None else self.fleet.to_json(),
            "checks": [attrs.asdict(check) for check in self.checks],
        }

    def tables(self) -> RenderableType:
        """For people."""
        numbers = Table.grid(padding=(0, 3))
        numbers.add_column(style="dim")
        numbers.add_column()
        for name, value in self._rows():
            numbers.add_row(name, value)
        checks = Table.grid(padding=(0, 2))
        checks.add_column(width=6)
        checks.add_column()
        for check in self.checks:
            mark = Text("ok", "green") if check.held else Text("FAILED", "bold red")
            checks.add_row(mark, Text(check.name))
            if check.detail:
                checks.add_row("", Text(check.detail, "red"))
        return Group(numbers, "", checks)

    def _rows(self) -> list[tuple[str, str]]:
        growth = self.publisher_peak_bytes - self.publisher_start_bytes
        return [
            ("taken over", f"{self.taken_over:,} messages of RabbitMQ's"),
            (
                "published",
                f"{self.published:,} messages, {decimal(self.payload_bytes)}; "
                f"{self.publish_rate:,.0f} a second, each confirmed when synced to disk",
            ),
            ("killed", f"after {self.confirmed_before_kill:,} confirmed messages"),
            (
                "recovered",
                f"{self.recovered:,} messages in {self.recovery_s:.2f} s; the first after {self.first_message_s:.2f} s",
            ),
            ("fetched", f"{self.fetched:,} messages, every one checked; {self.drain_rate:,.0f} a second"),
            *(
                [("of them", f"{self.survivors:,} twice: the kill cut their confirm off, so they were published again")]
                if self.survivors
                else []
            ),
            (
                "in memory",
                f"at most {self.most_in_memory:,} messages, once the limit of {self.memory_target:,} was reached; "
                f"up to {self.most_on_disk_only:,} were on disk only",
            ),
            (
                "memory",
                f"{decimal(self.publisher_peak_bytes)} at the peak of the publisher's process, "
                f"{decimal(growth)} more than before its first message; {decimal(self.peak_bytes)} of the other's",
            ),
            *self.types.rows(),
            *self.rocketmq.rows(),
            *self.topic.rows(),
            *([] if self.fleet is None else self.fleet.rows()),
            ("took", f"{self.elapsed_s:.1f} s"),
        ]
