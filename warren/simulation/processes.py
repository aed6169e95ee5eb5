"""Run the points of a sweep in processes on this machine's cores.

The processes are started afresh, not forked, because a fork has no copy of the other threads. They import only the
simulation, and not the program that was started, so that program needs no guard (``if __name__ == "__main__"``). There
are never more points in work than processes. If a process dies, for example because memory runs out, one of the points
in work is the cause. Each is tried once more, alone. The point with which a process dies again has failed.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import types
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from typing import Any, Final

from warren.simulation.grid import Done, Outcome, Point, run_point
from warren.simulation.scenarios.units import ScenarioError

MOST_PROCESSES: Final = 1024
_LOOK_FOR_PARENT_S: Final = 2.0


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def on_processes(points: Sequence[Point], progress: Done, *, processes: int | None = None) -> list[Outcome]:
    """Return the outcomes of points, in their order. ``processes``: the most at a time; ``None``: one for each core.

    With one process, all points run in this one.
    """
    if processes is not None and not 1 <= processes <= MOST_PROCESSES:
        raise ScenarioError(f"processes must be 1 … {MOST_PROCESSES}, not {processes}")
    count = min(cores() if processes is None else processes, len(points))
    outcomes: dict[int, Outcome] = {}

    def finished(outcome: Outcome) -> None:
        outcomes[outcome.number] = outcome
        progress(len(outcomes))

    if count == 1:
        for point in points:
            finished(run_point(point))
    else:
        _run_all(points, count, finished)
    return [outcomes[point.number] for point in points]


def _run_all(points: Sequence[Point], count: int, finished: Callable[[Outcome], None]) -> None:
    waiting = deque(points)
    while waiting:
        for suspect in _run(waiting, count, finished):
            if _run(deque([suspect]), 1, finished):
                finished(Outcome(suspect.number, None, "its process died; perhaps there was too little memory"))


def _run(waiting: deque[Point], count: int, finished: Callable[[Outcome], None]) -> list[Point]:
    """Run the points that wait until a process dies. Returns the points that were running then, or an empty list."""
    on_their_way: dict[Future[Outcome], Point] = {}
    with _pool(count) as pool:
        try:
            while waiting or on_their_way:
                while waiting and len(on_their_way) < count:
                    with _starting():  # a process, if one is missing
                        on_their_way[pool.submit(run_point, waiting[0])] = waiting[0]
                    waiting.popleft()
                for future in wait(on_their_way, return_when=FIRST_COMPLETED).done:
                    finished(future.result())
                    del on_their_way[future]
        except BrokenProcessPool:
            return list(on_their_way.values())
    return []


@contextmanager
def _pool(count: int) -> Iterator[ProcessPoolExecutor]:
    """Return processes that end with the block, at once if it is left by an error or an interrupt."""
    existing_children = set(multiprocessing.active_children())
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(count, mp_context=context, initializer=_begin, initargs=(os.getpid(),))
    try:
        yield pool
    except BaseException:
        for child in set(multiprocessing.active_children()) - existing_children:
            child.kill()
        # The pool's thread ends now: an interpreter that ends beside it may write to a pipe that it has just closed.
        pool.shutdown(cancel_futures=True)
        raise
    pool.shutdown()


@contextmanager
def _starting() -> Iterator[None]:
    """Start a process that does not import this program, and let interrupts wait until it has started.

    A process that is interrupted while it starts prints a stack. The new process does not hear interrupts.
    """
    main, interrupts = sys.modules["__main__"], list[int]()
    sys.modules["__main__"] = types.ModuleType("__main__")
    previous_handler: Any = None
    with suppress(ValueError):  # not in the main thread, where interrupts do not come
        previous_handler = signal.signal(signal.SIGINT, lambda number, _: interrupts.append(number))
    previous_mask = (
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT]) if hasattr(signal, "pthread_sigmask") else None
    )
    try:
        yield
    finally:
        sys.modules["__main__"] = main
        if previous_mask is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)
        if previous_handler is not None:
            signal.signal(signal.SIGINT, previous_handler)
        if interrupts:
            signal.raise_signal(signal.SIGINT)


def _begin(parent: int) -> None:
    """Prepare a new process: it ignores interrupts, and ends if the process ``parent`` has ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if not hasattr(signal, "setitimer"):
        return

    def look(*_: object) -> None:
        if os.getppid() != parent:
            os._exit(1)

    signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, _LOOK_FOR_PARENT_S, _LOOK_FOR_PARENT_S)
