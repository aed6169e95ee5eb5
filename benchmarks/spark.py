"""``python -m benchmarks.spark``: what the pipeline reaches on Spark, each figure beside its counterpart in one run.

Every case runs in a process of its own (:mod:`benchmarks.spark_cases`) that starts a session, gets warm, and lets the
contestants take turns. The page docs/spark.md says what is compared with what.

``--quick``: a sixteenth of the bytes, one turn each, nothing written but to the terminal.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

import attrs
import psutil
import typer
from rich.progress import Progress

from benchmarks.figures import Bar, Figure, Results
from benchmarks.plot import draw_spark
from benchmarks.report import DOCS, keep, show, wide_console
from benchmarks.spark_nodes import fleet_of, queue_nodes, size_of, skewed_node, topic_store

GIB = 1 << 30
_SAMPLE_S = 0.2
_CASE = "import sys; from benchmarks.spark_cases import main; main(*sys.argv[1:])"
"""Not as a program of its own: its functions would then be sent to Spark's workers piece by piece."""


@attrs.frozen
class Ran:
    """What a case printed, and how much memory its Python workers took at most."""

    times: dict[str, list[float]]
    worker_mb: float


def run(master: str, case: str, repeats: int, *arguments: str) -> Ran:
    """One case in a fresh process, its workers' memory sampled."""
    with tempfile.TemporaryDirectory(prefix="warren-bench-") as scratch:
        return _run([master, case, str(repeats), scratch, *arguments])


def _run(arguments: list[str]) -> Ran:
    command, peak = [sys.executable, "-c", _CASE, *arguments], 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        watched = psutil.Process(process.pid)
        while process.poll() is None:
            peak = max(peak, _largest_worker(watched))
            time.sleep(_SAMPLE_S)
        printed, errors = process.communicate()
    if process.returncode:
        raise RuntimeError(f"{arguments}: {errors[-2000:]}")
    return Ran(json.loads(printed.strip().splitlines()[-1]), peak / 1e6)


def _largest_worker(process: psutil.Process) -> int:
    """Resident bytes of the largest of Spark's Python workers."""
    sizes = [0]
    try:
        for child in process.children(recursive=True):
            if child.name().startswith("python") and any("daemon" in part for part in child.cmdline()):
                sizes.append(child.memory_info().rss)
    except psutil.Error:
        pass
    return max(sizes)


@attrs.define
class Bench:
    """A run's directory, sizes, and figures so far."""

    directory: str
    scale: float
    repeats: int
    tick: Progress
    figures: list[Figure] = attrs.Factory(list)

    def say(self, figure: Figure) -> None:
        """Keep a figure, and show it at once: all of them take a while."""
        self.figures.append(figure)
        ratio = "" if figure.ratio is None else f" ({figure.ratio.median:.2f} × {figure.counterpart_name})"
        self.tick.console.print(f"{figure.title}: {figure.ours.median:,.1f} {figure.unit}{ratio}")

    def bytes_of(self, gib: float) -> int:
        """The number of bytes at this scale."""
        return max(32 << 20, int(gib * GIB * self.scale))

    def place(self, name: str) -> str:
        path = Path(self.directory, name)
        path.mkdir()
        return str(path)

    def beside(
        self, title: str, ran: Ran, ours: str, other: str, name: str, *, size: int, bar: Bar, note: str = ""
    ) -> None:
        """A figure in MB/s of files, with its counterpart's."""
        mine = [size / 1e6 / seconds for seconds in ran.times[ours]]
        theirs = [size / 1e6 / seconds for seconds in ran.times[other]]
        self.say(
            Figure.of_pairs(mine, theirs, name, group="spark", title=f"spark, {title}", unit="MB/s", bar=bar, note=note)
        )


def scans(bench: Bench) -> None:
    """``records`` and ``store`` with their bodies."""
    log = bench.bytes_of(1)
    store = topic_store(bench.place("log"), log_bytes=log, file_bytes=max(log, 64 << 20), size=1024, keyed=True)
    small = topic_store(bench.place("logs"), log_bytes=bench.bytes_of(0.25), file_bytes=64 << 20, size=1024, keyed=True)
    nodes = queue_nodes(bench.place("stores"), nodes=2, queues=2, bytes_each=bench.bytes_of(0.5), size=4200)
    few = queue_nodes(bench.place("fewer"), nodes=1, queues=2, bytes_each=bench.bytes_of(0.25), size=4200)
    for name, whole, part, note in (
        ("records", [store], [small], "1 KiB bodies, a key each, every column"),
        ("store", nodes, few, "bodies of 4,200 B, every column"),
    ):
        ran = run("local[2]", "scan", bench.repeats, name, *whole)
        bar = Bar("at least", 0.25)
        size = log if name == "records" else size_of(whole)
        bench.beside(
            f"scan of {name}", ran, "warren", "parquet", "the same rows in Parquet", size=size, bar=bar, note=note
        )
        ran = run("local[2]", "binary", bench.repeats, name, *part)
        bar = Bar("at least", 4.0)
        size = bench.bytes_of(0.25) if name == "records" else size_of(part)
        told = "binaryFile, plain Python"
        bench.beside(
            f"scan of {name}, beside a decoder in a UDF", ran, "warren", "udf", told, size=size, bar=bar, note=note
        )
    two, one = (run(f"local[{cores}]", "only", bench.repeats, "records", store) for cores in (2, 1))
    both = Ran({"two": two.times["warren"], "one": one.times["warren"]}, 0.0)
    bench.beside("scan of records, two cores", both, "two", "one", "one core", size=log, bar=Bar("at least", 1.7))
    memory(bench, store, log)


def memory(bench: Bench, store: str, log: int) -> None:
    """The workers' memory on one store, and on sixteen."""
    fleet = fleet_of(store, bench.place("fleet"), 16)
    alone, many = (run("local[2]", "only", 1, "records", *paths) for paths in ([store], fleet))
    bench.say(
        Figure.of_pairs(
            [many.worker_mb],
            [alone.worker_mb],
            f"{log / GIB:.3g} GiB",
            group="spark",
            title=f"spark, memory of a Python worker, {16 * log / GIB:.3g} GiB of input",
            unit="MB",
            bar=Bar("at most", 1.1),
            note="the largest resident memory of any worker",
        )
    )


def reads(bench: Bench) -> None:
    """What is read for each byte of files with 1, 2 and 4 tasks, and an export's time beside the single command's."""
    size = bench.bytes_of(1)
    stores = {
        "bodies of 4,200 B in the store": queue_nodes(
            bench.place("large"), nodes=1, queues=4, bytes_each=size, size=4200
        )[0],
        "1 KiB bodies in the index": queue_nodes(
            bench.place("embedded"), nodes=1, queues=4, bytes_each=size, size=1024
        )[0],
        "one large queue among 40 small ones": skewed_node(
            bench.place("skewed"), queues=41, bytes_each=size, size=4200
        ),
        "a topic": topic_store(bench.place("log-of-1k"), log_bytes=size, file_bytes=size, size=1024, keyed=True),
    }
    for title, path in stores.items():
        megabytes = size_of([path]) / 1e6
        for tasks in (1, 2, 4):
            for job in ("export", "records" if title == "a topic" else "messages"):
                ran = run(f"local[{tasks}]", "reads", 1, job, path)
                bench.say(
                    Figure.of_pairs(
                        ran.times["megabytes"],
                        [megabytes],
                        "bytes of the files",
                        group="spark",
                        title=f"spark, read by {job}, {title}, {tasks} at a time",
                        unit="MB",
                        bar=Bar("at most", 1.2),
                    )
                )
            if title != "a topic":
                ran = run(f"local[{tasks}]", "export", bench.repeats, path)
                bar = Bar("at least", 1.6 if tasks > 1 else 0.8)
                name = f"export, {title}, {tasks} at a time"
                bench.beside(name, ran, "warren", "single", "warren export", size=size_of([path]), bar=bar)


def jobs(bench: Bench) -> None:
    """Export and rebuild, beside the single-machine commands."""
    nodes = queue_nodes(bench.place("nodes"), nodes=8, queues=4, bytes_each=bench.bytes_of(2) // 8, size=1024)
    ran = run("local[2]", "export", bench.repeats, *nodes)
    size, bar = size_of(nodes), Bar("at least", 1.6)
    bench.beside(
        "export to JSON lines",
        ran,
        "warren",
        "single",
        "warren export",
        size=size,
        bar=bar,
        note="8 nodes, 1 KiB bodies",
    )
    two, one = ran, run("local[1]", "export", bench.repeats, *nodes)
    both = Ran({"two": two.times["warren"], "one": one.times["warren"]}, 0.0)
    bench.beside("export, two cores", both, "two", "one", "one core", size=size, bar=Bar("at least", 1.7))
    log = bench.bytes_of(1)
    store = topic_store(bench.place("keyed"), log_bytes=log, file_bytes=max(log, 64 << 20), size=128, keyed=True)
    ran = run("local[2]", "rebuild", bench.repeats, store)
    note, single = "128 B bodies, a key each", "warren topic rebuild"
    bench.beside(
        "rebuild of ConsumeQueues and index",
        ran,
        "warren",
        "single",
        single,
        size=log,
        bar=Bar("at least", 1.5),
        note=note,
    )


def main(
    *, quick: Annotated[bool, typer.Option("--quick", help="A sixteenth of everything; writes nothing.")] = False
) -> None:
    """Measure the pipeline."""
    console = wide_console()
    with tempfile.TemporaryDirectory(prefix="warren-bench-") as directory, Progress(console=console) as progress:
        bench = Bench(directory, 1 / 16 if quick else 1.0, 1 if quick else 3, progress)
        for part in (scans, jobs, reads):
            task = progress.add_task(part.__name__, total=None)
            part(bench)
            progress.remove_task(task)
    results = Results.of(bench.figures, quick=quick)
    show(console, results)
    keep(results, "spark", "spark.md")
    if not quick:
        draw_spark(results, DOCS / "benchmarks-spark.png")


if __name__ == "__main__":
    typer.run(main)
