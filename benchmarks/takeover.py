"""``python -m benchmarks.takeover``: how long a shared directory is without a host when that is killed.

Several processes have the directory open. The host gets a SIGKILL; each of the others publishes a message at that
moment and waits for its confirm. Measured is the time from the signal to the first confirm, and to the last; again and
again, with a new process in the place of each that was killed. ``--quick``: three kills, a twentieth of the backlog.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Annotated, Final, Self

import attrs
import typer
from rich.table import Table

import warren
from benchmarks.report import wide_console
from warren.storage.lock_file import LOCK_FILE, lock_holder

KILLS: Final = 20
MEMBERS: Final = 3
BACKLOG: Final = 1_000_000
BODY: Final = bytes(128)
BATCH: Final = 1000


class Member:
    """A process that has the directory open, and publishes on command."""

    def __init__(self, directory: str, messages: int = 0) -> None:
        """``messages``: how many it publishes first."""
        command = [sys.executable, "-m", "benchmarks.takeover", "member", directory, str(messages)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        self.pid = self._process.pid
        self.hear()

    def tell(self) -> None:
        """Let it publish."""
        assert self._process.stdin is not None
        self._process.stdin.write("publish\n")

    def hear(self) -> float:
        """What it says: when it was ready, or its message was confirmed (seconds of the monotonic clock)."""
        assert self._process.stdout is not None
        return float(self._process.stdout.readline())

    def kill(self) -> float:
        """When it was killed."""
        killed_s = time.monotonic()
        self._process.kill()
        return killed_s

    def end(self) -> None:
        self._process.communicate()


@attrs.define
class Takeovers:
    """Seconds from the signal, kill by kill."""

    first: list[float] = attrs.Factory(list)
    """To the first confirm."""
    last: list[float] = attrs.Factory(list)
    """To the last."""

    @classmethod
    def measure(cls, directory: str, kills: int, messages: int) -> Self:
        found = cls()
        members = [Member(directory, messages)]
        members += [Member(directory) for _ in range(MEMBERS - 1)]
        for _ in range(kills):
            holder = lock_holder(os.path.join(directory, LOCK_FILE)) or ""
            host = next(one for one in members if holder.startswith(f"process {one.pid},"))
            members.remove(host)
            killed_s = host.kill()
            for member in members:
                member.tell()
            confirmed_s = [member.hear() - killed_s for member in members]
            host.end()
            found.first.append(min(confirmed_s))
            found.last.append(max(confirmed_s))
            members.append(Member(directory))
        for member in members:
            member.end()
        return found


def _be_member(directory: str, messages: int) -> None:
    with warren.open(directory, share=True, sync="os") as node:
        queue = node.queue("bench")
        for confirm in [queue.publish_many([BODY] * BATCH) for _ in range(messages // BATCH)]:
            confirm.wait()
        print(time.monotonic(), flush=True)
        for _ in sys.stdin:
            queue.publish(BODY).wait()
            print(time.monotonic(), flush=True)


def main(
    *, quick: Annotated[bool, typer.Option("--quick", help="Three kills; a twentieth of the backlog.")] = False
) -> None:
    """Measure how long a takeover takes."""
    console = wide_console()
    shown = Table("waiting", "kills", "first confirm: median s", "worst s", "all confirms: median s", "worst s")
    for messages in (0, BACKLOG // 20 if quick else BACKLOG):
        with tempfile.TemporaryDirectory(prefix="warren-bench-") as directory:
            found = Takeovers.measure(os.path.join(directory, "data"), 3 if quick else KILLS, messages)
        times = [f"{of(part):.3f}" for part in (found.first, found.last) for of in (statistics.median, max)]
        shown.add_row(f"{messages:,}", str(len(found.first)), *times)
    console.print(shown)


if __name__ == "__main__":
    if sys.argv[1:2] == ["member"]:
        _be_member(sys.argv[2], int(sys.argv[3]))
    else:
        typer.run(main)
