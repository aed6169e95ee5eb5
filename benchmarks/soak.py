"""``python -m benchmarks.soak``: ten minutes at full speed, with a memory limit far below the backlog.

One process publishes as fast as it is let, another thread consumes more slowly, so that a backlog grows to many times
the memory that is allowed; then publishing stops and the backlog is drained. What is to be seen: the resident memory
stays flat, while the backlog does what it wants. Drawn in docs/soak.png; the series: benchmarks/results/soak.json.
"""

from __future__ import annotations

import json
import tempfile
import threading
import time
from pathlib import Path
from typing import Annotated, Any

import psutil
import typer
from rich.console import Console
from rich.progress import Progress

import warren
from benchmarks.plot import draw_soak

PROJECT = Path(__file__).parent.parent
QUEUES = 4
BODY = bytes(512)
BATCH = 200
MEMORY_ABOVE_BASE_MB = 128


def soak(directory: str, seconds: float, progress: Progress) -> dict[str, Any]:
    """Publish for two thirds of the time, drain in the rest; a sample each second."""
    process = psutil.Process()
    base = process.memory_info().rss
    limit = base + MEMORY_ABOVE_BASE_MB * 1_000_000
    publishing = threading.Event()
    publishing.set()
    running = threading.Event()
    running.set()
    published, consumed = [0], [0] * QUEUES  # each counted by one thread
    samples: list[dict[str, float]] = []
    with warren.open(directory, vm_memory_high_watermark=limit) as node:
        queues = [node.queue(f"soak {number}") for number in range(QUEUES)]

        def publish() -> None:
            while publishing.is_set():
                for queue in queues:
                    try:
                        queue.publish_many([BODY] * BATCH, timeout=1)
                    except warren.errors.BlockedError:
                        continue
                    published[0] += BATCH

        def consume(number: int) -> None:
            queue = queues[number]
            while running.is_set():
                found = queue.get_many(BATCH)
                queue.ack(found)
                consumed[number] += len(found)
                time.sleep(0.02 if publishing.is_set() else (0.0 if found else 0.01))

        threads = [threading.Thread(target=publish)]
        threads += [threading.Thread(target=consume, args=(number,)) for number in range(QUEUES)]
        for thread in threads:
            thread.start()
        start = time.monotonic()
        task = progress.add_task("soak", total=seconds)
        while (passed := time.monotonic() - start) < seconds:
            if passed > seconds * 2 / 3:
                publishing.clear()
            memory = node.memory()
            samples.append(
                {
                    "seconds": round(passed, 2),
                    "rss_mb": process.memory_info().rss / 1e6,
                    "backlog_mb": sum(queue.stats()["message_bytes"] for queue in queues) / 1e6,
                    "blocked": float("memory" in memory["alarms"]),
                    "published": published[0],
                    "consumed": sum(consumed),
                }
            )
            progress.update(task, completed=passed)
            time.sleep(1.0)
        publishing.clear()
        running.clear()
        for thread in threads:
            thread.join()
    return {"base_mb": base / 1e6, "limit_mb": limit / 1e6, "queues": QUEUES, "body": len(BODY), "samples": samples}


def main(*, minutes: Annotated[float, typer.Option(help="How long.")] = 10.0) -> None:
    """Run the soak and draw it."""
    console = Console()
    with tempfile.TemporaryDirectory(prefix="warren-soak-") as directory, Progress(console=console) as progress:
        series = soak(directory, minutes * 60, progress)
    results = PROJECT / "benchmarks" / "results" / "soak.json"
    results.write_text(json.dumps(series) + "\n", encoding="utf-8")
    draw_soak(series, PROJECT / "docs" / "soak.png")
    rss = [sample["rss_mb"] for sample in series["samples"]]
    most = max(sample["backlog_mb"] for sample in series["samples"])
    console.print(
        f"published {series['samples'][-1]['published']:,}, backlog up to {most:,.0f} MB of bodies; memory "
        f"{series['base_mb']:.0f} MB before, {max(rss):.0f} MB at most, limit {series['limit_mb']:.0f} MB"
    )


if __name__ == "__main__":
    typer.run(main)
