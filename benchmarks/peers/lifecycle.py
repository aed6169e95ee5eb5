"""Works on whole directories: opened after a kill, with ten thousand queues, from a cold start, read out.

What they begin with is *prepared* by a process that is killed when it has said that it is ready; every run gets a copy.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.bodies import NumberedBodies
from benchmarks.peers.procedures import BATCH, SIZES, Run, WrongError, _check, _drained

_EACH = 100
"""Messages of each of many queues."""


def fill(run: Run) -> None:
    """To be killed: messages wait in one queue."""
    peer = run.open()
    queue, bodies = peer.queue("bench"), NumberedBodies(SIZES)
    for first in range(0, run.messages, BATCH):
        queue.put_many(bodies.range(first, min(BATCH, run.messages - first)))
    queue.settle()


def reopen(run: Run) -> None:
    """Until the first message is there, and until all are counted."""
    watch, bodies = run.watch, NumberedBodies(SIZES)
    run.warm_up()
    start = time.perf_counter()
    with run.opened() as peer:
        queue = peer.queue("bench")
        taken = queue.take()
        watch.values["first message"] = time.perf_counter() - start
        if taken is None:
            raise WrongError("nothing is there")
        queue.ack(taken[0])
        while (found := queue.count()) < run.messages - 1:
            time.sleep(0.001)
        watch.values["all counted"] = time.perf_counter() - start
        _check([taken[1]], [bodies[0]])
        if found > run.messages - 1:
            raise WrongError(f"{found} of {run.messages - 1} messages")
        some = min(found, 10 * BATCH)
        _check(_drained(queue, some), bodies.range(1, some))


# ── ten thousand queues ──────────────────────────────────────────────────────────────────────────────────────────────


def fill_many(run: Run) -> None:
    """To be killed: queues are declared, and each is filled with a hundred messages."""
    count, bodies = _queues(run), NumberedBodies(SIZES).range(0, _EACH)
    peer = run.open(queues=count)
    with run.watch.timing("declared"):
        queues = [peer.queue(f"queue-{number}") for number in range(count)]
    with run.watch.timing("filled"):
        for queue in queues:
            queue.put_many(bodies)
        for queue in queues:
            queue.settle()


def recover_many(run: Run) -> None:
    """Opened until all messages are counted; drained."""
    count, bodies = _queues(run), NumberedBodies(SIZES).range(0, _EACH)
    run.warm_up()
    start = time.perf_counter()
    with run.opened(queues=count) as peer:
        queues = [peer.queue(f"queue-{number}") for number in range(count)]
        for queue in queues:
            while queue.count() < _EACH:
                time.sleep(0.001)
        run.watch.values["recovered"] = time.perf_counter() - start
        with run.watch.timing("drained"):
            found = [_drained(queue, _EACH, _EACH) for queue in queues]
        for one in found:
            _check(one, bodies)


def _queues(run: Run) -> int:
    return max(2, run.messages // _EACH)


# ── from a cold start ────────────────────────────────────────────────────────────────────────────────────────────────


def fill_six(run: Run) -> None:
    """To be killed: six queues with some messages each."""
    peer = run.open(queues=6)
    for number in range(6):
        queue = peer.queue(f"queue-{number}")
        queue.put_many(NumberedBodies(SIZES).range(0, run.messages))
        queue.settle()


def cold_start(run: Run) -> None:
    """A program of one message: imported, opened, published, closed; and what it costs to look at six queues."""
    values = run.watch.values
    values["import"] = float(_python(f"import time; t = time.perf_counter(); {run.peer.imports}", _SAY_SECONDS))
    begin = f"{run.peer.imports}; import time; t = time.perf_counter()"
    fresh = str(run.place.directory) + "-fresh"
    values["open, publish, close"] = float(_python(begin, run.peer.one_message.format(path=fresh), _SAY_SECONDS))
    if run.peer.inspects:
        start = time.perf_counter()
        said = _python_module(*run.peer.inspects, str(run.place.directory))
        values["inspect"] = time.perf_counter() - start
        if not all(f"queue-{number}" in said for number in range(6)):
            raise WrongError("not all queues were said")


_SAY_SECONDS = "print(time.perf_counter() - t)"


def _python(*statements: str) -> str:
    return _python_module("-c", "\n".join(statements))


def _python_module(*arguments: str) -> str:
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=True)
    return done.stdout


# ── read out ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def export(run: Run) -> None:
    """The directory of a killed process: to JSON lines, to Parquet, verified; beside a bare read of its files. MB/s."""
    directory, watch = str(run.place.directory), run.watch
    from benchmarks.peers import reading_out

    for name, read in reading_out.WAYS.items():
        with watch.timing(name, _megabytes(directory)):
            messages = read(directory)
        if messages not in {None, run.messages}:
            raise WrongError(f"{name}: {messages} of {run.messages} messages")
    with watch.timing("bare read", _megabytes(directory)):
        reading_out.read_bare(directory)


def fill_topic(run: Run) -> None:
    """To be killed: a topic of keyed messages."""
    peer = run.open()
    topic, bodies = peer.topic("bench"), NumberedBodies(SIZES)
    for first in range(0, run.messages, BATCH):
        some = bodies.range(first, min(BATCH, run.messages - first))
        topic.append_many(some, [f"order-{number:09d}" for number in range(first, first + len(some))])
    topic.settle()
    topic.catch_up()


def rebuild(run: Run) -> None:
    """ConsumeQueues and key index of a topic, from its CommitLog alone; beside a bare read of that. MB/s."""
    from benchmarks.peers import reading_out

    log = os.path.join(run.place.directory, "topics", "commitlog")
    written = reading_out.commit_log_megabytes(str(run.place.directory))
    with run.watch.timing("rebuild", written):
        reading_out.rebuild(str(run.place.directory), str(run.place.directory) + "-rebuilt")
    with run.watch.timing("bare read", written):
        reading_out.read_bare(log, round(written * 1e6))


def _megabytes(directory: str) -> float:
    return sum(path.stat().st_size for path in Path(directory).rglob("*") if path.is_file()) / 1e6
