"""``python -m benchmarks.memory_limit``: how far a node goes beyond its memory limit while publishers press on.

Each case runs in a process of its own: a node with a limit of 200 MiB, publishers that never pause, and no consumer.
The result is the process's highest resident memory, all of it: the interpreter, the node, the publishers' own bodies.
The table goes into docs/memory.md.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

import attrs
from rich.console import Console

from benchmarks.figures import day_of, machine_facts
from benchmarks.measure import answer_of, peak_bytes
from benchmarks.report import DOCS, markdown_table, write_into

BEGIN, END = "<!-- limit -->\n", "<!-- /limit -->"
LIMIT_MIB: Final = 200
MOST: Final = 1.25
"""Times the limit: what no case may exceed."""
SECONDS: Final = 20.0


@attrs.frozen(kw_only=True)
class Case:
    """One way to press on. A batch of 1 is published singly."""

    title: str
    queues: int
    body_bytes: int
    batch: int = 1
    header_bytes: int = 0
    publishers: int = 4
    persistent: bool = True
    topic: bool = False
    shared: bool = False
    """Whether all publish one and the same body; else each makes its own, which is its memory until it is taken."""

    @property
    def message_bytes(self) -> int:
        return self.body_bytes + self.header_bytes


CASES: Final = {
    "batches": Case(
        title="20 queues, batches of 20 × 1 MB, one publisher", queues=20, body_bytes=1_000_000, batch=20, publishers=1
    ),
    "batches-20": Case(
        title="20 queues, batches of 20 × 1 MB, 20 publishers of one body",
        queues=20, body_bytes=1_000_000, batch=20, publishers=20, shared=True,
    ),
    "large": Case(title="20 queues, bodies of 1 MB", queues=20, body_bytes=1_000_000),
    "large-20": Case(
        title="20 queues, bodies of 1 MB, 20 publishers of one body",
        queues=20, body_bytes=1_000_000, publishers=20, shared=True,
    ),
    "large-transient": Case(
        title="20 queues, transient bodies of 1 MB", queues=20, body_bytes=1_000_000, persistent=False
    ),
    "middle": Case(title="100 queues, bodies of 50 kB", queues=100, body_bytes=50_000),
    "middle-transient": Case(
        title="100 queues, transient bodies of 50 kB", queues=100, body_bytes=50_000, persistent=False
    ),
    "small": Case(title="200 queues, bodies of 100 B", queues=200, body_bytes=100),
    "small-batches": Case(title="200 queues, batches of 1,000 × 100 B", queues=200, body_bytes=100, batch=1000),
    "headers": Case(
        title="20 queues, bodies of 100 B with headers of 20 kB", queues=20, body_bytes=100, header_bytes=20_000
    ),
    "topic": Case(title="a topic, bodies of 1 MB", queues=4, body_bytes=1_000_000, topic=True),
}  # fmt: skip


@attrs.frozen
class Outcome:
    """What a case came to."""

    peak_mib: float
    published_mb: float
    longest_hold_s: float
    alarms: int
    """How often the memory alarm was found set, looking once a second."""

    @property
    def times_limit(self) -> float:
        return self.peak_mib / LIMIT_MIB


def run(name: str, directory: str, seconds: float) -> Outcome:
    """One case, in a process of its own."""
    return Outcome(**answer_of("benchmarks.memory_limit", name, directory, seconds))


def press_on(case: Case, directory: str, seconds: float) -> Outcome:
    """The case itself; the memory is this process's."""
    import warren

    with warren.open(directory, vm_memory_high_watermark=f"{LIMIT_MIB}MiB", disk_free_limit=0) as node:
        publish = _publisher(node, case)
        end_s = time.monotonic() + seconds
        counts, holds = [0] * case.publishers, [0.0] * case.publishers

        def work(own: int) -> None:
            turn = own
            while (now_s := time.monotonic()) < end_s:
                try:
                    publish(turn, max(0.001, end_s - now_s))
                except warren.errors.BlockedError:
                    break
                finally:
                    holds[own] = max(holds[own], time.monotonic() - now_s)
                counts[own] += case.batch
                turn += case.publishers

        threads = [threading.Thread(target=work, args=(number,)) for number in range(case.publishers)]
        for thread in threads:
            thread.start()
        alarms = 0
        while any(thread.is_alive() for thread in threads):
            time.sleep(min(1.0, seconds / 10))
            alarms += bool(node.memory()["alarms"])
        outcome = Outcome(peak_bytes() / (1 << 20), sum(counts) * case.message_bytes / 1e6, max(holds), alarms)
        print(json.dumps(attrs.asdict(outcome)), flush=True)
        os._exit(0)  # what was not made safe meanwhile is of no interest


def _publisher(node: Any, case: Case) -> Callable[[int, float], object]:
    """Return a function that publishes once, to the ``turn``-th queue, within the given seconds."""
    one = os.urandom(case.body_bytes)
    properties: dict[str, Any] = {} if case.persistent else {"persistent": False}
    if case.header_bytes:
        properties["headers"] = {"much": "x" * case.header_bytes}

    def bodies() -> list[bytes]:
        return [one if case.shared else os.urandom(16) + one[16:] for _ in range(case.batch)]

    if case.topic:
        topic = node.topic("topic", queues=case.queues)
        return lambda _, timeout: topic.append_many(bodies(), timeout=timeout)
    queues = [node.queue(f"queue {number}") for number in range(case.queues)]
    if case.batch == 1:
        return lambda turn, timeout: queues[turn % case.queues].publish(*bodies(), timeout=timeout, **properties)
    return lambda turn, timeout: queues[turn % case.queues].publish_many(bodies(), timeout=timeout, **properties)


def markdown(outcomes: dict[str, Outcome], seconds: float) -> str:
    """For the page."""
    machine = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in machine_facts().items())
    first = f"Run of {day_of(datetime.now(UTC))}; {machine}. Limit {LIMIT_MIB} MiB, {seconds:g} seconds each."
    headings = "what is published", "highest resident memory", "of the limit", "published meanwhile", "longest hold"
    rows = [
        (
            CASES[name].title,
            f"{outcome.peak_mib:.0f} MiB",
            f"{outcome.times_limit:.2f} ×",
            f"{outcome.published_mb:,.0f} MB",
            f"{outcome.longest_hold_s:.1f} s",
        )
        for name, outcome in outcomes.items()
    ]
    return "\n".join([first, "", *markdown_table(headings, rows), ""])


def main() -> None:
    """All cases, one after another, and the table into the page."""
    console = Console()
    outcomes: dict[str, Outcome] = {}
    for name, case in CASES.items():
        with tempfile.TemporaryDirectory(prefix="warren-limit-") as directory:
            outcome = outcomes[name] = run(name, os.path.join(directory, "node"), SECONDS)
        judged = "" if outcome.times_limit <= MOST else f", more than {MOST} ×"
        console.print(f"{case.title}: {outcome.peak_mib:.0f} MiB, {outcome.times_limit:.2f} ×{judged}")
    write_into(DOCS / "memory.md", markdown(outcomes, SECONDS), begin=BEGIN, end=END)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        press_on(CASES[sys.argv[1]], sys.argv[2], float(sys.argv[3]))
    else:
        main()
