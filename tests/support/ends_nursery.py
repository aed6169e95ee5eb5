"""Imports everything once, and forks each of the programs of :data:`~tests.support.ends.ENDS` that it is asked for.

Run as a program: ``BASE SEED``, and the ends' ids as JSON on its standard input. Two run at a time, each in
``BASE/NUMBER``; one that takes too long reports its place, and is killed. The output is an :class:`Ended` for each.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import attrs

import tests.support.early_handlers  # noqa: F401 - before all that imports warren

AT_A_TIME = 2


@attrs.frozen
class Ended:
    """What became of a program."""

    path: Path
    code: int
    seconds: float
    out: str
    err: str


def end_all(base: Path, ids: Iterable[str], seed: int) -> list[tuple[str, Ended]]:
    """Run programs to their ends."""
    ids = list(ids)
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-m", __name__, str(base), str(seed)]
    done = subprocess.run(command, input=json.dumps(ids), stdout=subprocess.PIPE, text=True, check=True)
    found = []
    for number, (id_, (code, seconds)) in enumerate(zip(ids, json.loads(done.stdout), strict=True)):
        path = base / str(number)
        found.append((id_, Ended(path, code, seconds, _said(path, "out"), _said(path, "err"))))
    return found


def _said(path: Path, which: str) -> str:
    return path.with_name(f"{path.name}.{which}").read_text(encoding="utf-8", errors="replace")


class _Running:
    """A program that was begun."""

    def __init__(self, child: int, alive: int) -> None:
        self.child = child
        self.alive = alive
        """Ends with the last process of the program."""
        self.began_s = time.monotonic()
        self.ended: tuple[int, float] | None = None

    def look(self, limit_s: float) -> None:
        """See whether it has ended."""
        if self.ended is not None:
            return
        child, status = os.waitpid(self.child, os.WNOHANG)
        seconds = time.monotonic() - self.began_s
        if not child:
            if seconds < limit_s:
                return
            os.kill(self.child, signal.SIGUSR1)
            time.sleep(0.5)  # it says where its threads are
            os.kill(self.child, signal.SIGKILL)
            status = os.waitpid(self.child, 0)[1]
        poll = select.poll()
        poll.register(self.alive)
        poll.poll(limit_s * 1000)
        os.close(self.alive)
        self.ended = os.waitstatus_to_exitcode(status), seconds


def _main(base: Path, seed: int) -> None:
    ids: list[str] = json.loads(sys.stdin.read())
    running: list[_Running] = []
    for number, id_ in enumerate(ids):
        _wait(running, AT_A_TIME - 1)
        alive, theirs = os.pipe()
        child = os.fork()
        if not child:
            os.close(alive)
            for one in running:
                if one.ended is None:
                    os.close(one.alive)
            path = base / str(number)
            for descriptor, which in ((1, "out"), (2, "err")):
                file = os.open(f"{path}.{which}", os.O_WRONLY | os.O_CREAT)
                os.dup2(file, descriptor)
                os.close(file)
            end = ENDS[id_]
            if end.shares:
                _begin_host(path)
            end.run(Program(path, seed + number, shares=end.shares))
            return
        os.close(theirs)
        running.append(_Running(child, alive))
    _wait(running, 0)
    print(json.dumps([one.ended for one in running]))


def _begin_host(path: Path) -> None:
    """Start a process that hosts a directory for as long as this one, or a child of it, lives."""
    ready, is_ready = os.pipe()
    gone, alive = os.pipe()
    if not os.fork():
        os.close(alive)
        with warren.open(path, share=True, sync_interval_ms=10_000):
            os.write(is_ready, b"!")
            os.read(gone, 1)
        os._exit(0)
    os.read(ready, 1)
    for end in (ready, is_ready, gone):
        os.close(end)


def _wait(running: list[_Running], most: int) -> None:
    while sum(one.ended is None for one in running) > most:
        for one in running:
            one.look(LIMIT_S)
        time.sleep(0.001)


if __name__ == "__main__":
    import asyncio
    import concurrent.futures
    import faulthandler
    import multiprocessing  # noqa: F401 - once, for all of them
    import signal

    import warren
    import warren.aio
    import warren.client.shared_directory
    import warren.server
    from tests.support.ends import LIMIT_S, Program, all_ends

    for module in (warren, warren.aio, asyncio, concurrent.futures):
        for name in module.__all__:
            getattr(module, name)
    faulthandler.register(signal.SIGUSR1)
    ENDS = all_ends()
    _main(Path(sys.argv[1]), int(sys.argv[2]))
