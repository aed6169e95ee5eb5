"""Ten thousand queues in one process: what they take while they rest.

Each act runs in a process of its own, which says how long it took, its resident memory, its threads and its open files.
The idle cost of a queue is the memory that the hibernated ones take above a node without queues.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from typing import Any

import psutil

from benchmarks.figures import Bar, Figure, Spread
from benchmarks.measure import Tick, answer_of

MESSAGES_EACH = 100
BODY = bytes(100)


def many_queues(directory: str, *, queues: int, tick: Tick) -> list[Figure]:
    """The figures; ``directory`` is where the queues lie meanwhile."""
    path = os.path.join(directory, "many-queues")
    filled = _act("fill", path, queues)
    tick()
    idle = _act("idle", path, queues)
    tick()
    for left in (path, f"{path}-warm-up"):
        shutil.rmtree(left)
    note = f"{queues:,} durable queues × {MESSAGES_EACH} messages of {len(BODY)} B"

    def figure(title: str, unit: Any, value: float, bar: Bar | None = None) -> Figure:
        return Figure(group="queues", title=title, unit=unit, ours=Spread.of([value]), bar=bar, note=note)

    return [
        figure(f"{queues:,} queues: opened after a clean stop", "s", idle["opened_s"]),
        figure("resident memory of an idle queue", "KB", idle["idle_bytes"] / 1000, Bar("at most", 10, of="value")),
        figure(f"resident memory with {queues:,} queues: idle", "MB", idle["rss"] / 1e6),
        figure(f"resident memory with {queues:,} queues: filled, hibernated", "MB", filled["rss"] / 1e6),
        figure(f"threads of the process with {queues:,} queues", "threads", filled["threads"]),
        figure(f"open files of the process with {queues:,} hibernated queues", "files", filled["files"]),
    ]


def _act(name: str, path: str, queues: int) -> dict[str, float]:
    """Run one act in a process of its own, which stops cleanly."""
    figures: dict[str, float] = answer_of("benchmarks.many_queues", name, path, queues)
    return figures


def _rest(node: Any) -> None:
    """Wait until every queue hibernates."""
    while any(queue.stats()["state"] != "hibernated" for queue in node.queues()):
        time.sleep(0.2)


def _main(name: str, path: str, queues: int) -> None:
    import warren

    process = psutil.Process()
    with warren.open(f"{path}-warm-up") as node:
        node.queue("warm-up").publish_many([BODY] * 10).wait()
    base = process.memory_info().rss
    start = time.perf_counter()
    with warren.open(path) as node:
        figures: dict[str, float] = {}
        if name == "fill":
            handles = [node.queue(f"queue {number}") for number in range(queues)]
            confirms = [handle.publish_many([BODY] * MESSAGES_EACH) for handle in handles]
            for confirm in confirms:
                confirm.wait()
            confirms.clear()
            handles.clear()
            _rest(node)
        else:
            waiting = [queue for queue in node.queues() if len(queue) != MESSAGES_EACH]
            if waiting:
                raise RuntimeError(f"{waiting[0]} holds {len(waiting[0])} messages")
            figures["opened_s"] = time.perf_counter() - start
            _rest(node)
            figures["idle_bytes"] = (process.memory_info().rss - base) / queues
        figures |= {
            "rss": process.memory_info().rss,
            "threads": process.num_threads(),
            "files": process.num_fds(),
        }
        print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    _main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
