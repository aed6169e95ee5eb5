"""``python -m benchmarks.peers``: all works with all peers. The outcome goes into docs/performance.md and README.md.

``--quick``: a fiftieth of the messages, once each. With that, ``--only`` or ``--peer`` nothing is written.
"""

from __future__ import annotations

import json
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.figures import day_of, machine_facts
from benchmarks.peers import page, pictures
from benchmarks.peers.contestants import PEERS
from benchmarks.peers.growth import GROWTHS
from benchmarks.peers.outcome import OUT, Outcome, Points, WorkResult
from benchmarks.peers.running import Runner
from benchmarks.peers.works import WORKS
from benchmarks.report import wide_console

QUICK = 0.02
QUICK_POINT = 10_000
MOST_POINT = 1_000_000
LARGEST_POINT = 10_000_000


def measure(runner: Runner, works: list[str], peers: list[str], growths: list[str], most: int) -> Outcome:
    """Run the works and growths with the given names."""
    results = [runner.run(work, peers) for work in WORKS if work.name in works]
    growth: dict[str, dict[str, Points]] = {}
    for one in GROWTHS:
        if one.name in growths:
            found: dict[int, WorkResult] = {point: runner.run(work, peers) for point, work in one.works(most)}
            growth[one.name] = Outcome.points(found)
    return Outcome(date=day_of(datetime.now(UTC)), machine=machine_facts(), works=results, growth=growth)


def main(
    *,
    quick: Annotated[bool, typer.Option("--quick", help="A fiftieth of the messages, once each.")] = False,
    only: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help='Only this work (W3), or growth ("backlog").')
    ] = None,
    peer: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Only this peer (sqlite).")] = None,
    repeats: Annotated[int | None, typer.Option(help="In place of the five that most works have.")] = None,
    ten_million: Annotated[bool, typer.Option("--ten-million", help="Backlogs grow to 10,000,000.")] = False,
    directory: Annotated[Path | None, typer.Option(help="Where stores lie meanwhile; else a temporary one.")] = None,
    draw: Annotated[
        bool, typer.Option("--draw", help="Measure nothing: pages and pictures from what is kept.")
    ] = False,
) -> None:
    """Measure warren and its peers on the same work."""
    console = wide_console()
    if draw:
        page.write(Outcome.kept())
        pictures.write(Outcome.kept())
        return
    works, growths = [work.name for work in WORKS], [one.name for one in GROWTHS]
    if unknown := [name for name in only or () if name not in works + growths]:
        raise typer.BadParameter(f"no work {unknown[0]}: there are {', '.join(works + growths)}")
    if unknown := [name for name in peer or () if name not in PEERS]:
        raise typer.BadParameter(f"no peer {unknown[0]}: there are {', '.join(PEERS)}")
    works, growths = (
        [name for name in works if name in (only or works)],
        [name for name in growths if name in (only or growths)],
    )
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with (
        tempfile.TemporaryDirectory(prefix="warren-peers-", dir=directory) as scratch,
        Progress(*columns, console=console) as progress,
    ):
        task = progress.add_task("", total=None)

        def tick(what: str) -> None:
            progress.update(task, description=what, advance=1)

        runner = Runner(
            directory=Path(scratch),
            scale=QUICK if quick else 1.0,
            repeats=1 if quick and repeats is None else repeats,
            say=lambda text: progress.console.print(text, style="yellow"),
            tick=tick,
        )
        most = QUICK_POINT if quick else LARGEST_POINT if ten_million else MOST_POINT
        try:
            chosen = [work for work in WORKS if work.name in works]
            chosen += [work for one in GROWTHS if one.name in growths for _, work in one.works(most)]
            progress.update(task, total=sum(runner.processes(work, peer or ()) for work in chosen))
            outcome = measure(runner, works, peer or [], growths, most)
        finally:
            runner.close()
    page.show(console, outcome)
    if not (quick or only or peer or repeats):
        OUT.write_text(json.dumps(outcome.to_json(), indent=1) + "\n", encoding="utf-8")
        page.write(outcome)
        pictures.write(outcome)


if __name__ == "__main__":
    typer.run(main)
