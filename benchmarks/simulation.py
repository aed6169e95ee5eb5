"""``python -m benchmarks.simulation``: how fast the simulation is, beside the real engine, and what memory it takes.

Every case runs in a fresh process (:mod:`benchmarks.simulation_cases`), and those that are compared take turns. The
page docs/simulation-benchmarks.md says what is compared with what.

``--quick``: a hundredth of the messages, one turn each, nothing written but to the terminal.
"""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks.figures import Bar, Figure, Memory, Results, Spread, Unit, day_of, machine_facts, ratios
from benchmarks.measure import Tick
from benchmarks.report import markdown, table, write_into

PROJECT = Path(__file__).parent.parent
MESSAGES = 10_000_000
RATES = (20_000, 10_000, 2_000)
"""Messages a second; at the first two, the simulation is to take at most ten times as long as the engine."""
AT_MOST = 10
QUEUES = 10_000
POINTS = 100
STORED = (100_000, 50, 100_000)
"""Messages, messages a second, bytes of each."""


def case(name: str, *numbers: int) -> dict[str, float]:
    """What a case says, run in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.simulation_cases", name, *map(str, numbers)]
    ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    said: dict[str, float] = json.loads(ran.stdout.splitlines()[-1])
    return said


def simulating(*, scale: float, repeats: int, tick: Tick) -> list[Figure]:
    """All figures, with ``scale`` times the messages, queues and points."""
    figures: list[Figure] = []
    for rate in RATES:
        share = scale if rate > RATES[-1] else scale / 10
        figures += _backlog(max(20_000, int(MESSAGES * share)), rate, repeats, tick)
    figures.append(_stored(scale, tick))
    figures += _queues(max(100, int(QUEUES * scale)), tick)
    figures.append(_sweep(max(4, int(POINTS * scale)), repeats, tick))
    return figures


def _backlog(messages: int, rate: int, repeats: int, tick: Tick) -> list[Figure]:
    ours, theirs, grown = [], [], []
    for _ in range(repeats):
        real = case("real", messages)
        theirs.append(real["messages"] / real["seconds"])
        tick()
        said = case("backlog", messages, rate)
        ours.append(said["messages"] / said["seconds"])
        grown.append(said["grown_mb"])
        tick()
    what = f"{messages:,} messages through one queue, {rate:,} a second"
    in_time = rate > RATES[-1]
    return [
        Figure(
            group="simulation",
            title=f"simulated: {what}",
            unit="messages/s",
            ours=Spread.of(ours),
            counterpart=Spread.of(theirs),
            counterpart_name="publish_many(1000) of the real engine",
            ratio=ratios(ours, theirs),
            bar=Bar("at least", 1 / AT_MOST) if in_time else None,
            note="128 B; half of them are taken and acked, the rest is a backlog that is paged",
        ),
        Figure(
            group="simulation",
            title=f"memory grown by: {what}",
            unit="MB",
            ours=Spread.of(grown),
            bar=Bar("at most", 1000.0, of="value") if in_time else None,
        ),
    ]


def _stored(scale: float, tick: Tick) -> Figure:
    messages, rate, size = max(500, int(STORED[0] * scale)), STORED[1], STORED[2]
    said = case("stored", messages, rate, size)
    tick()
    return Figure(
        group="simulation",
        title=f"memory grown by: {messages:,} × {size // 1000} kB, one at a time, none taken",
        unit="MB",
        ours=Spread.of([said["grown_mb"]]),
        bar=Bar("at most", 1000.0, of="value"),
        note=f"{said['ready'] * size / 1e9:,.1f} GB of bodies",
    )


def _queues(count: int, tick: Tick) -> list[Figure]:
    said = case("queues", count, 60)
    tick()
    measured: list[tuple[str, Unit, str, Bar | None]] = [
        ("built", "s", "built_s", Bar("at most", 10.0, of="value")),
        ("a minute simulated", "s", "ran_s", Bar("at most", 10.0, of="value")),
        ("memory grown by", "MB", "grown_mb", None),
    ]
    return [
        Figure(
            group="simulation",
            title=f"{count:,} idle queues and a hot one: {what}",
            unit=unit,
            ours=Spread.of([said[name]]),
            bar=bar,
        )
        for what, unit, name, bar in measured
    ]


def _sweep(count: int, repeats: int, tick: Tick) -> Figure:
    ours, theirs = [], []
    for _ in range(repeats):
        theirs.append(count / case("points", count, 1)["seconds"])
        tick()
        ours.append(count / case("points", count, 2)["seconds"])
        tick()
    return Figure(
        group="simulation",
        title=f"sweep of {count:,} small scenarios, two processes",
        unit="scenarios/s",
        ours=Spread.of(ours),
        counterpart=Spread.of(theirs),
        counterpart_name="one process",
        ratio=ratios(ours, theirs),
        bar=Bar("at least", 1.6),
        note="15,000 messages of 5 kB each; starting the processes is in the figure",
    )


def measure(console: Console, *, quick: bool) -> Results:
    """Measure everything and say it; unless ``quick``, keep it: the JSON, and the page in docs/."""
    with console.status("the simulation"):
        figures = simulating(scale=0.01 if quick else 1.0, repeats=1 if quick else 3, tick=lambda: None)
    results = Results(
        date=day_of(datetime.now(UTC)), quick=quick, machine=machine_facts(), figures=figures, memory=Memory()
    )
    console.print(table(results.figures))
    if not quick:
        target = PROJECT / "benchmarks" / "results" / "simulation.json"
        plain = {name: value for name, value in results.to_json().items() if name != "memory"}
        target.write_text(json.dumps(plain, indent=1) + "\n", encoding="utf-8")
        write_into(PROJECT / "docs" / "simulation-benchmarks.md", markdown(results))
    for figure in results.missed:
        console.print(f"not reached: {figure.title}")
    return results


def main(
    *, quick: Annotated[bool, typer.Option("--quick", help="A hundredth of everything; writes nothing.")] = False
) -> None:
    """Measure the simulation beside the real engine."""
    measure(Console(width=None if Console().is_terminal else 160), quick=quick)


if __name__ == "__main__":
    typer.run(main)
