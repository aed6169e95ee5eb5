"""A child process that is killed at a random moment, and what it reported until then."""

from __future__ import annotations

import os
import random
import select
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from tests.support.kill_child import Nursery

SILENCE_S = 60.0
"""A process that is silent for this long hangs."""
MOST = 5
"""At most this many times as many kills as requested."""


class Ledger(Protocol):
    """What the processes of a test have reported."""

    @property
    def started(self) -> dict[str, int]:
        """The first number of each stream that was not begun."""

    @property
    def confirmed_count(self) -> int: ...

    def begin(self) -> None: ...

    def read(self, line: str) -> None: ...


def each_kill(
    kills: int, ledger: Ledger, nursery: Nursery, place: Path, rng: random.Random, *, times: int = 1
) -> Iterator[Path]:
    """Kill ``kills`` processes that go on in one directory; yield a copy of what each leaves.

    Kill more of them if the machine is so busy that most die before they have begun to work.
    """
    directory, copy = place / "data", place / "copy"
    number = worked = 0
    while number < kills or (number < MOST * kills and (worked <= kills // 4 or ledger.confirmed_count <= 5 * kills)):
        ledger.begin()
        sync, seed = rng.choice(["os", "group"]), rng.getrandbits(32)
        child, reading = nursery.start(directory=str(directory), sync=sync, next=ledger.started, seed=seed)
        ready = False
        try:
            for line in lines_until_killed(child, reading, rng, times=times):
                ready |= line == "ready"
                if line not in ("open", "ready"):
                    ledger.read(line)
        finally:
            os.close(reading)
        assert os.WTERMSIG(nursery.ended()) == signal.SIGKILL
        print(f"kill {number}, sync={sync}: {ledger.confirmed_count} confirmed")
        number += 1
        worked += ready
        if directory.exists():
            shutil.copytree(directory, copy, symlinks=True)
            yield copy
            shutil.rmtree(copy)
    assert worked > kills // 4
    assert ledger.confirmed_count > 5 * kills


def lines_until_killed(child: int, reading: int, rng: random.Random, *, times: int = 1) -> Iterator[str]:
    """Yield what a process reports before it is killed: after a number of lines, or of seconds, from ``ready`` on; or,
    now and then, after a time since its start. ``times`` multiplies both."""
    from_ready = rng.random() < 0.8
    lines, seconds = (rng.randrange(10, 250), 0.25) if from_ready else (1 << 30, rng.uniform(0, 0.06))
    lines, seconds = lines * times, seconds * times
    deadline = time.monotonic() + (SILENCE_S if from_ready else seconds)
    rest, killed, count = b"", False, 0
    poll = select.poll()  # which knows descriptors of any size
    poll.register(reading)
    while True:
        if not killed and (count >= lines or time.monotonic() >= deadline):
            os.kill(child, signal.SIGKILL)  # and go on: it may have said more before it died
            killed = True
        wait_s = SILENCE_S if killed else max(0.0, deadline - time.monotonic())
        if not poll.poll(wait_s * 1000):
            assert not killed, "a process that was killed goes on"
            continue
        data = os.read(reading, 1 << 16)
        if not data:
            assert killed, "the process ended by itself"
            assert not rest, "half a line"
            return
        *whole, rest = (rest + data).split(b"\n")
        count += len(whole)
        if from_ready and b"ready" in whole:
            count, deadline = 0, time.monotonic() + seconds
        yield from (line.decode() for line in whole)
