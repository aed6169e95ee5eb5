"""A backlog: a queue filled with a million messages under a RAM target, and drained again, watched.

It happens in a process of its own, so that memory begins where a fresh interpreter with everything imported and a
queue that has been used stands. ``python -m benchmarks.backlog`` is that process: it prints a sample (JSON) every few
batches.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import Any

import psutil

from benchmarks.bodies import bodies_of_sizes
from benchmarks.figures import Bar, Figure, Memory, Spread
from benchmarks.measure import Tick
from benchmarks.scenarios import BATCH, PERSISTENT, open_vhost
from warren.actors.vhost import Vhost
from warren.queue_index.queue.variable_queue import VariableQueue
from warren.storage.filesystem import RealFileSystem

SIZE = 128
TARGET_RAM_COUNT = 10_000
SAMPLE_EVERY_BATCHES = 10


def fill(vhost: Vhost, queue: VariableQueue, messages: int, bodies: list[bytes]) -> None:
    """Publish ``messages`` in batches, each handed to the operating system before the next."""
    for _ in range(0, messages, BATCH):
        queue.publish_many(PERSISTENT, vhost.msg_ids.many(BATCH), bodies)
        vhost.sync()


def limit_ram(queue: VariableQueue, target_ram_count: int) -> None:
    """Give a queue a target as a memory monitor would: as a duration, at the queue's own rates."""
    rates = queue.state.rates
    if not rates.total:
        rates.ingress = 1.0
    queue.set_ram_duration_target(target_ram_count / rates.total)


class _Watch:
    """Prints what a queue and its process look like."""

    def __init__(self, queue: VariableQueue) -> None:
        self._queue = queue
        self._process = psutil.Process()
        self._start_s = time.perf_counter()
        self._start_rss = self._process.memory_info().rss

    def sample(self, event: str = "") -> None:
        state = self._queue.state
        lists = {"q1": len(state.q1), "q2": len(state.q2), "delta": state.delta.count}
        lists |= {"q3": len(state.q3), "q4": len(state.q4)}
        grown = (self._process.memory_info().rss - self._start_rss) / 1e6
        print(json.dumps({"s": time.perf_counter() - self._start_s, "mb": grown, "event": event} | lists), flush=True)


def main(path: str, messages: int) -> None:
    """The watched process."""
    bodies = bodies_of_sizes([SIZE] * BATCH)
    vhost = open_vhost(RealFileSystem(), path)
    queue = vhost.queue(b"bench")
    fill(vhost, queue, BATCH, bodies)  # once through everything, so that growth is the backlog's alone
    while fetched := queue.fetch_many(BATCH):
        queue.ack([part.seq_ids for part in fetched])
    limit_ram(queue, TARGET_RAM_COUNT)
    watch = _Watch(queue)
    watch.sample()
    step = BATCH * SAMPLE_EVERY_BATCHES
    for _ in range(0, messages, step):
        fill(vhost, queue, step, bodies)
        watch.sample()
    watch.sample("filled")
    left = messages
    while fetched := queue.fetch_many(BATCH):
        left -= sum(len(part.bodies()) for part in fetched)
        queue.ack([part.seq_ids for part in fetched])
        vhost.sync()
        if left % step == 0:
            watch.sample()
    watch.sample("drained")
    if left:
        raise RuntimeError(f"{left} messages less were fetched than published")
    vhost.abandon()


def fill_and_drain(directory: str, *, messages: int, tick: Tick) -> tuple[list[Figure], Memory]:
    """Memory and rates of a backlog of ``messages`` × 128 B."""
    step = BATCH * SAMPLE_EVERY_BATCHES
    messages = max(step, messages // step * step)
    command = [sys.executable, "-m", "benchmarks.backlog", os.path.join(directory, "backlog"), str(messages)]
    columns: dict[str, list[Any]] = {name: [] for name in ("s", "mb", "q1", "q2", "delta", "q3", "q4")}
    events: dict[str, float] = {}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        if process.stdout is None:
            raise RuntimeError("no pipe to the watched process")
        for line in process.stdout:
            sample: dict[str, Any] = json.loads(line)
            for name, column in columns.items():
                column.append(sample[name])
            events[sample["event"]] = sample["s"]
            tick()
    if process.returncode:
        raise RuntimeError(f"the watched process ended with {process.returncode}")
    seconds, growth = columns.pop("s"), columns.pop("mb")
    filled_at_s = events["filled"]
    memory = Memory(seconds, growth, **columns, filled_at_s=filled_at_s, target_ram_count=TARGET_RAM_COUNT)
    at_fill = max(mb for s, mb in zip(seconds, growth, strict=True) if s <= filled_at_s)
    peak = max(growth)
    title = f"{messages:,} × {SIZE} B, target_ram_count {TARGET_RAM_COUNT:,}"
    rates = {
        "filled": messages / filled_at_s,
        "drained, bodies taken, acked": messages / (events["drained"] - filled_at_s),
    }
    figures = [
        Figure(
            group="backlog",
            title=f"memory grown by: {title}",
            unit="MB",
            ours=Spread(at_fill, at_fill, peak),
            bar=Bar("at most", 64.0, of="value"),
            note="at its most while filled; the high end: while drained, too",
        )
    ]
    figures += [
        Figure(group="backlog", title=f"{what}: {title}", unit="messages/s", ours=Spread.of([rate]))
        for what, rate in rates.items()
    ]
    return figures, memory


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
