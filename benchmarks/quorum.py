"""Export of a quorum queue whose log was never cut: the log is read to the end, and few messages come out.

It happens in a process of its own, whose memory is measured; beside it a bare read of the same files. ``python -m
benchmarks.quorum --mib 2048`` measures a log of that size, ``--profile`` shows where the time goes.
"""

from __future__ import annotations

import cProfile
import json
import os
import pstats
import shutil
import tempfile
import time
from typing import Annotated

import typer
from rich.console import Console

from benchmarks.exporting import export
from benchmarks.figures import Bar, Figure, Spread
from benchmarks.killed import files_below, read_bare
from benchmarks.measure import Tick, answer_of, peak_bytes, seconds_of
from benchmarks.quorum_log import BODY_BYTES, Written, write_quorum_log

LOG_BYTES = 256 << 20
RATE_BAR = Bar("at least", 50.0, of="value")
MEMORY_BAR = Bar("at most", 256.0, of="value")


def quorum_log(directory: str, *, log_bytes: int, repeats: int, tick: Tick) -> list[Figure]:
    """Speed and memory of an export of a log of about ``log_bytes``."""
    node = os.path.join(directory, "quorum-log")
    written = write_quorum_log(node, log_bytes)
    try:
        return _figures(node, written, repeats, tick)
    finally:
        shutil.rmtree(node)


def _figures(node: str, written: Written, repeats: int, tick: Tick) -> list[Figure]:
    size = sum(os.path.getsize(path) for path in files_below(node)) / 1e6
    ours: list[float] = []
    bare: list[float] = []
    memory: list[float] = []
    read_bare(node)
    for _ in range(repeats):
        said = answer_of("benchmarks.quorum", "--export", node)
        if said["messages"] != written.left:
            raise RuntimeError(f"export gave {said['messages']} messages, not {written.left}")
        ours.append(size / said["seconds"])
        memory.append(said["peak_mb"])
        bare.append(size / seconds_of(lambda: read_bare(node)))
        tick()
    title = f"a quorum queue's log of {size:,.0f} MB, nearly all acked"
    note = f"{written.published:,} × {BODY_BYTES} B, each acked but for {written.left:,}; {written.entries:,} entries"
    return [
        Figure.of_pairs(
            ours,
            bare,
            "bare read",
            group="quorum",
            title=f"export to nowhere: {title}",
            unit="MB/s",
            bar=RATE_BAR,
            note=f"{note}, in the page cache",
        ),
        Figure(
            group="quorum",
            title=f"memory of the process that exports {title}",
            unit="MB",
            ours=Spread.of(memory),
            bar=MEMORY_BAR,
            note="resident, at its most, the interpreter with it",
        ),
    ]


# ── the process that exports ─────────────────────────────────────────────────────────────────────────────────────────


def _export(node: str) -> None:
    start = time.perf_counter()
    messages = export(node)
    seconds = time.perf_counter() - start
    print(json.dumps({"messages": messages, "seconds": seconds, "peak_mb": peak_bytes() / 1e6}))


def main(
    *,
    mib: Annotated[int, typer.Option(min=1, help="Of the log.")] = LOG_BYTES >> 20,
    repeats: Annotated[int, typer.Option(min=1)] = 3,
    profile: Annotated[bool, typer.Option("--profile", help="Where the time goes, in place of figures.")] = False,
    export_of: Annotated[str | None, typer.Option("--export", hidden=True)] = None,
) -> None:
    """Measure the export of a quorum queue's log beside the bare reading of it."""
    if export_of is not None:
        _export(export_of)
        return
    with tempfile.TemporaryDirectory(prefix="warren-bench-") as directory:
        if profile:
            write_quorum_log(os.path.join(directory, "node"), mib << 20)
            profiler = cProfile.Profile()
            profiler.runcall(export, os.path.join(directory, "node"))
            pstats.Stats(profiler).sort_stats("tottime").print_stats(15)
            return
        for figure in quorum_log(directory, log_bytes=mib << 20, repeats=repeats, tick=lambda: None):
            Console().print(f"{figure.title}: {figure.ours} {figure.unit}, beside {figure.counterpart}, {figure.note}")


if __name__ == "__main__":
    typer.run(main)
