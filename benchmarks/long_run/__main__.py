"""``python -m benchmarks.long_run``: an hour; kept in benchmarks/results/long-run.json, drawn in docs/long-run.png.

``--minutes`` makes it shorter; then nothing is kept without ``--keep``. The exit code is 1 if a confirmed message did
not come out, or a program failed.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress

from benchmarks.long_run.watching import LongRun
from benchmarks.plot import draw_long_run
from benchmarks.report import DOCS, RESULTS


def main(
    *,
    minutes: Annotated[float, typer.Option(help="How long.")] = 60.0,
    keep: Annotated[bool | None, typer.Option(help="Keep and draw the result.")] = None,
) -> None:
    console = Console()
    with (
        tempfile.TemporaryDirectory(prefix="warren-long-run-") as directory,
        Progress(console=console) as progress,
        LongRun(Path(directory), minutes * 60) as run,
    ):
        task = progress.add_task("mixed load", total=minutes * 60)
        run.run(lambda passed: progress.update(task, completed=passed))
        result = run.result()
    if keep if keep is not None else minutes >= 60:
        (RESULTS / "long-run.json").write_text(json.dumps(result) + "\n", encoding="utf-8")
        draw_long_run(result, DOCS / "long-run.png")
    console.print(
        f"{result['confirmed']:,} confirmed, {result['got']:,} came out, {result['got_again']:,} of them again; "
        f"{len(result['takeovers'])} takeovers; missing: {result['missing']}"
    )
    for who in ("steady", "server"):
        console.print(f"{who}: {', '.join(early_and_late(result['samples'], who))}")
    for failure in result["failures"]:
        console.print(failure, style="red", markup=False)
    if result["missing"] or result["failures"]:
        raise typer.Exit(1)


def early_and_late(samples: list[dict[str, Any]], who: str) -> list[str]:
    """Medians of the second sixth of the run and of its last."""
    sixth = max(1, len(samples) // 6)
    early, late = samples[sixth : 2 * sixth] or samples, samples[-sixth:]

    def median(part: list[dict[str, Any]], key: str) -> float:
        return float(statistics.median(sample[who][key] for sample in part))

    return [f"{key} {median(early, key):.0f} → {median(late, key):.0f}" for key in ("rss_mb", "descriptors", "threads")]


if __name__ == "__main__":
    typer.run(main)
