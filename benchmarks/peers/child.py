"""The process of one peer at one work: ``python -m benchmarks.peers.child``, with a :class:`Task` as JSON on stdin.

It prints what it measured as JSON. Where it prepares a work it then waits to be killed.
"""

from __future__ import annotations

import json
import shutil
import signal
import sys
from pathlib import Path
from typing import Literal

import attrs

from benchmarks.peers.contestants import peer_class
from benchmarks.peers.growth import find_work
from benchmarks.peers.peer import Place, Promise
from benchmarks.peers.procedures import Run
from benchmarks.peers.watch import Watch
from benchmarks.peers.works import WORKS_BY_NAME


@attrs.frozen(kw_only=True)
class Task:
    """What a process is to do."""

    work: str
    peer: str
    act: Literal["do", "prepare"]
    promise: str
    messages: int
    directory: str
    server: str = ""


def perform(task: Task) -> dict[str, float]:
    """Do it in this process; the values by name."""
    kind = peer_class(task.peer)
    work = WORKS_BY_NAME.get(task.work) or find_work(task.work)
    directory = Path(task.directory)
    if task.peer == "bare":
        from benchmarks.peers.bare import RecordingWatch

        recorded = RecordingWatch()
        work.do(Run(kind, Place(directory, Promise(task.promise)), task.messages, recorded))
        shutil.rmtree(directory)
        recorded.play(directory)
        return recorded.results()
    watch = Watch(kind.pid(task.server))
    run = Run(kind, Place(directory, Promise(task.promise), task.server), task.messages, watch)
    if task.act == "prepare" and work.prepare is not None:
        work.prepare(run)
    else:
        work.do(run)
    return watch.results()


def main() -> None:
    task = Task(**json.loads(sys.stdin.readline()))
    print(json.dumps(perform(task)), flush=True)
    if task.act == "prepare":
        signal.pause()


if __name__ == "__main__":
    main()
