"""What the simulation's benchmarks run, each in a process of its own, which prints what it measured (JSON).

``python -m benchmarks.simulation_cases CASE NUMBER…``. Importing is not timed. Memory is what a process grew by at most
while it simulated.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import psutil

from benchmarks.backlog import fill
from benchmarks.bodies import bodies_of_sizes
from benchmarks.measure import peak_bytes, seconds_of
from benchmarks.scenarios import BATCH, open_vhost
from warren.simulation import ConsumerSpec, NodeSpec, PublisherSpec, QueueSpec, Scenario, Simulation, simulate
from warren.simulation.sweep import sweep
from warren.storage.filesystem import RealFileSystem

SIZE = 128
Said = dict[str, float]


def real(messages: int) -> Said:
    """The real engine: publish ``messages`` into a queue on real files, in batches, each handed to the system."""
    bodies = bodies_of_sizes([SIZE] * BATCH)
    with tempfile.TemporaryDirectory(prefix="warren-bench-") as directory:
        vhost = open_vhost(RealFileSystem(), str(Path(directory, "real")))
        queue = vhost.queue(b"bench")
        seconds = seconds_of(lambda: fill(vhost, queue, messages, bodies))
        done = len(queue)
        vhost.abandon()
    return {"messages": done, "seconds": seconds}


def backlog(messages: int, rate: int) -> Said:
    """A queue whose publisher is twice as fast as its consumer; it pages, and goes on."""
    return _simulated(
        Scenario(
            length=messages / rate,
            node=NodeSpec(memory="2GB"),
            queues=[QueueSpec(name="backlog")],
            publishers=[PublisherSpec(queue="backlog", rate=rate, arrivals="constant", body=SIZE)],
            consumers=[ConsumerSpec(queue="backlog", rate=rate / 2)],
        )
    )


def stored(messages: int, rate: int, size: int) -> Said:
    """Large bodies, published one at a time without a consumer: all of them stay, in RAM or in the message store."""
    return _simulated(
        Scenario(
            length=messages / rate,
            node=NodeSpec(memory="64GB"),
            queues=[QueueSpec(name="stored")],
            publishers=[PublisherSpec(queue="stored", rate=rate, arrivals="constant", body=size)],
        )
    )


def _simulated(scenario: Scenario) -> Said:
    before = psutil.Process().memory_info().rss
    summaries: list[Said] = []
    seconds = seconds_of(lambda: summaries.extend(simulate(scenario).summary["queues"].values()))
    said = {name: summaries[0][name] for name in ("published", "ready")}
    return {"messages": said["published"], "ready": said["ready"], "seconds": seconds, "grown_mb": _peak_mb(before)}


def queues(count: int, length_s: int) -> Said:
    """Idle queues, and a hot one beside them."""
    before = psutil.Process().memory_info().rss
    made: list[Simulation] = []

    def build() -> None:
        scenario = Scenario(
            length=length_s,
            queues=[QueueSpec(name="hot"), QueueSpec(name="idle", count=count)],
            publishers=[PublisherSpec(queue="hot", rate=1000)],
            consumers=[ConsumerSpec(queue="hot", rate=800)],
        )
        made.append(Simulation(scenario))

    built = seconds_of(build)
    return {"built_s": built, "ran_s": seconds_of(made[0].run), "grown_mb": _peak_mb(before)}


def points(count: int, processes: int) -> Said:
    """A sweep of small scenarios: half a minute each, of a queue whose consumer is too slow."""
    scenario = Scenario(
        length=30,
        node=NodeSpec(memory="50MB"),
        queues=[QueueSpec(name="small")],
        publishers=[PublisherSpec(queue="small", rate=500, body=5000)],
        consumers=[ConsumerSpec(queue="small", rate=400)],
    )
    ratios = [round(0.1 + 0.8 * number / count, 4) for number in range(count)]
    failed: list[bool] = []

    def run() -> None:
        frame = sweep(scenario, {"node.paging_ratio": ratios}, processes=processes)
        failed.extend(frame["error"].notna())

    seconds = seconds_of(run)
    if len(failed) != count or any(failed):
        raise RuntimeError(f"{sum(failed)} of {len(failed)} points failed")
    return {"seconds": seconds}


def _peak_mb(before: int) -> float:
    return max(peak_bytes() - before, 0) / 1e6


CASES: dict[str, Callable[..., Said]] = {
    "real": real,
    "backlog": backlog,
    "stored": stored,
    "queues": queues,
    "points": points,
}

if __name__ == "__main__":
    print(json.dumps(CASES[sys.argv[1]](*map(int, sys.argv[2:]))))
