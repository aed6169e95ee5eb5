"""``python -m benchmarks``: measure everything, say it, and bring docs/ up to date.

The simulation comes last (:mod:`benchmarks.simulation`), with a page of its own. ``--quick``: a twentieth of the
messages, one pair each, nothing written but to the terminal.
"""

from __future__ import annotations

import tempfile
from typing import Annotated

import typer
from rich.progress import Progress

from benchmarks.backlog import fill_and_drain
from benchmarks.exporting import exporting, v2_backlog
from benchmarks.figures import Figure, Results
from benchmarks.killed import killed_backlog
from benchmarks.many_queues import many_queues
from benchmarks.plot import draw, draw_topics
from benchmarks.quorum import LOG_BYTES, quorum_log
from benchmarks.report import DOCS, keep, show, wide_console
from benchmarks.scenarios import PLANS, publish_and_fetch
from benchmarks.simulation import measure as measure_simulation
from benchmarks.topic_index import topic_index
from benchmarks.topics import PLANS as TOPIC_PLANS
from benchmarks.topics import append_and_read

MESSAGES = 1_000_000


def measure(directory: str, *, messages: int, scale: float, repeats: int, progress: Progress) -> Results:
    """All figures; ``directory`` is where the queues lie meanwhile."""
    task = progress.add_task("publish and fetch", total=None)

    def step(name: str, total: int | None) -> None:
        progress.reset(task, description=name, total=total)

    def tick() -> None:
        progress.advance(task)

    figures: list[Figure] = []
    step("publish and fetch", len(PLANS) * (1 + 2 * repeats))
    figures += publish_and_fetch(directory, scale=scale, repeats=repeats, tick=tick)
    step("fill and drain", None)
    backlog, memory = fill_and_drain(directory, messages=messages, tick=tick)
    figures += backlog
    step("a backlog to be killed", None)
    killed = killed_backlog(directory, messages)
    step("export", repeats)
    figures += exporting(killed, v2_backlog(directory, messages), messages=messages, repeats=repeats, tick=tick)
    step("a quorum queue's log", repeats)
    figures += quorum_log(directory, log_bytes=round(LOG_BYTES * scale), repeats=repeats, tick=tick)
    step("topics", len(TOPIC_PLANS) * (1 + 2 * repeats))
    figures += append_and_read(directory, scale=scale, repeats=repeats, tick=tick)
    step("topics: keys", repeats)
    figures += topic_index(directory, scale=scale, repeats=repeats, tick=tick)
    step("ten thousand queues", 2)
    figures += many_queues(directory, queues=max(100, int(10_000 * scale)), tick=tick)
    progress.remove_task(task)
    return Results.of(figures, quick=messages < MESSAGES, memory=memory)


def main(
    *, quick: Annotated[bool, typer.Option("--quick", help="A twentieth of everything; writes nothing.")] = False
) -> None:
    """Measure warren beside the bare writing and reading of the same bytes."""
    console = wide_console()
    with tempfile.TemporaryDirectory(prefix="warren-bench-") as directory, Progress(console=console) as progress:
        results = measure(
            directory,
            messages=MESSAGES // 20 if quick else MESSAGES,
            scale=0.05 if quick else 1.0,
            repeats=1 if quick else 5,
            progress=progress,
        )
    show(console, results)
    keep(results, "latest")
    if not quick:
        draw(results, DOCS / "benchmarks.png")
        draw_topics(results, DOCS / "benchmarks-topics.png")
    measure_simulation(console, quick=quick)


if __name__ == "__main__":
    typer.run(main)
