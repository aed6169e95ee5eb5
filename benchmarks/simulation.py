"""``python -m benchmarks.simulation``: how fast the simulation is, beside the real engine, and what memory it takes.

Every case runs in a fresh process (:mod:`benchmarks.simulation_cases`), and those that are compared take turns. The
page docs/simulation-model.md says what is compared with what.

``--quick``: a hundredth of the messages, one turn each, nothing written but to the terminal.
"""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from benchmarks.figures import Bar, Figure, Results, Spread, Unit
from benchmarks.measure import Tick, answer_of
from benchmarks.report import keep, show, wide_console

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
    answer: dict[str, float] = answer_of("benchmarks.simulation_cases", name, *numbers)
    return answer


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
        Figure.of_pairs(
            ours,
            theirs,
            "publish_many(1000) of the real engine",
            group="simulation",
            title=f"simulated: {what}",
            unit="messages/s",
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
    return Figure.of_pairs(
        ours,
        theirs,
        "one process",
        group="simulation",
        title=f"sweep of {count:,} small scenarios, two processes",
        unit="scenarios/s",
        bar=Bar("at least", 1.6),
        note="15,000 messages of 5 kB each; starting the processes is in the figure",
    )


def measure(console: Console, *, quick: bool) -> None:
    """Measure everything and say it; unless ``quick``, keep it: the JSON, and the page in docs/."""
    with console.status("the simulation"):
        figures = simulating(scale=0.01 if quick else 1.0, repeats=1 if quick else 3, tick=lambda: None)
    results = Results.of(figures, quick=quick)
    show(console, results)
    keep(results, "simulation", "simulation-model.md")


def main(
    *, quick: Annotated[bool, typer.Option("--quick", help="A hundredth of everything; writes nothing.")] = False
) -> None:
    """Measure the simulation beside the real engine."""
    measure(wide_console(), quick=quick)


if __name__ == "__main__":
    typer.run(main)
