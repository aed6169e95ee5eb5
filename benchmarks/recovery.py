"""Recovery: a process that filled a queue is killed, and a fresh one opens what it left.

Timed: from nothing open to the first message's body in hand, and to all messages counted, each beside a bare read of
the queue's files. Every time a copy of the killed process's directory is opened, by a process of its own (``python -m
benchmarks.recovery recover``), for opening changes it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time

from benchmarks.backlog import SIZE, TARGET_RAM_COUNT, fill, limit_ram
from benchmarks.bodies import bodies_of_sizes
from benchmarks.figures import Bar, Figure, Spread, ratios
from benchmarks.measure import Tick, seconds_of
from benchmarks.scenarios import BATCH, open_vhost
from warren.storage.filesystem import RealFileSystem

READ_BYTES = 1 << 20


def files_below(directory: str) -> list[str]:
    """Every file, front to back."""
    return sorted(os.path.join(base, name) for base, _, names in os.walk(directory) for name in names)


def read_bare(directory: str) -> int:
    """Read every file, do nothing with it; returns the bytes."""
    total = 0
    buffer = bytearray(READ_BYTES)
    for path in files_below(directory):
        with open(path, "rb", buffering=0) as file:
            while count := file.readinto(buffer):
                total += count
    return total


def _fill_and_wait(path: str, messages: int) -> None:
    """The process to be killed: fills a queue, says so, and holds everything open."""
    vhost = open_vhost(RealFileSystem(), path)
    queue = vhost.queue(b"bench")
    limit_ram(queue, TARGET_RAM_COUNT)
    fill(vhost, queue, messages, bodies_of_sizes([SIZE] * BATCH))
    print("filled", flush=True)
    sys.stdin.read()


def _recover(path: str, messages: int) -> None:
    """The process that opens it: prints how long each step took."""
    files = RealFileSystem()
    start = time.perf_counter()
    vhost = open_vhost(files, path)
    queue = vhost.queue(b"bench")
    fetched = queue.fetch()
    if fetched is None or len(fetched.bodies()[0]) != SIZE:
        raise RuntimeError("the first message did not come back")
    first = time.perf_counter() - start
    while vhost.recover_step():
        pass
    counted = time.perf_counter() - start
    if queue.depth != messages:
        raise RuntimeError(f"{queue.depth} of {messages} messages came back")
    print(json.dumps({"first": first, "all": counted}))
    vhost.abandon()


def killed_backlog(directory: str, messages: int) -> str:
    """A directory whose process was killed with ``messages`` waiting in it."""
    path = os.path.join(directory, "killed")
    command = [sys.executable, "-m", "benchmarks.recovery", "fill", path, str(messages)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        if process.stdout is None or process.stdout.readline() != "filled\n":
            raise RuntimeError("the process that fills a queue ended before it was killed")
        process.kill()
    return path


def recovery(killed: str, directory: str, *, messages: int, repeats: int, tick: Tick) -> list[Figure]:
    """Recovery of the directory ``killed``, ``repeats`` times, each beside a bare read."""
    first: list[float] = []
    counted: list[float] = []
    bare: list[float] = []
    read_bare(killed)
    for _ in range(repeats):
        copy = os.path.join(directory, "copy")
        shutil.copytree(killed, copy)
        command = [sys.executable, "-m", "benchmarks.recovery", "recover", copy, str(messages)]
        bare.append(seconds_of(lambda path=copy: read_bare(path)))  # type: ignore[misc]
        times = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        first.append(times["first"])
        counted.append(times["all"])
        shutil.rmtree(copy)
        tick()
    size = sum(os.path.getsize(path) for path in files_below(killed)) / 1e6
    title = f"after a kill with {messages:,} × {SIZE} B waiting"
    return [
        Figure(
            group="recovery",
            title=f"{what} {title}",
            unit="s",
            ours=Spread.of(times),
            counterpart=Spread.of(bare),
            counterpart_name="bare read",
            ratio=ratios(times, bare),
            bar=Bar("at most", limit),
            note=f"{size:,.0f} MB of files, in the page cache",
        )
        for what, times, limit in (("first message", first, 3.0), ("all counted", counted, 15.0))
    ]


if __name__ == "__main__":
    {"fill": _fill_and_wait, "recover": _recover}[sys.argv[1]](sys.argv[2], int(sys.argv[3]))
