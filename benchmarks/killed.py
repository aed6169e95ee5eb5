"""A backlog whose process was killed, and the bare reading of its files."""

from __future__ import annotations

import os
import subprocess
import sys

from benchmarks.backlog import SIZE, TARGET_RAM_COUNT, fill, limit_ram
from benchmarks.bodies import bodies_of_sizes
from benchmarks.scenarios import BATCH, open_vhost
from warren.storage.filesystem import RealFileSystem

READ_BYTES = 1 << 20


def files_below(directory: str) -> list[str]:
    """Every file, front to back."""
    return sorted(os.path.join(base, name) for base, _, names in os.walk(directory) for name in names)


def read_bare(directory: str, most: int = 1 << 62) -> int:
    """Read every file, or ``most`` bytes of them, without using the content. Return the number of bytes."""
    total = 0
    buffer = bytearray(READ_BYTES)
    for path in files_below(directory):
        with open(path, "rb", buffering=0) as file:
            while total < most and (count := file.readinto(buffer)):
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


def killed_backlog(directory: str, messages: int) -> str:
    """A directory whose process was killed with ``messages`` waiting in it."""
    path = os.path.join(directory, "killed")
    command = [sys.executable, "-m", "benchmarks.killed", path, str(messages)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        if process.stdout is None or process.stdout.readline() != "filled\n":
            raise RuntimeError("the process that fills a queue ended before it was killed")
        process.kill()
    return path


if __name__ == "__main__":
    _fill_and_wait(sys.argv[1], int(sys.argv[2]))
