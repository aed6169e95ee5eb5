"""Programs with several threads that end, and programs that have children: forked, of multiprocessing and of
concurrent.futures.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import warren
from tests.support.ends import End, Kept, Program, add, end, report_of
from tests.support.ends_of_programs import ERROR, NORMAL


def _exec() -> NoReturn:
    os.execv("/bin/true", ["true"])


def _beside_a_child(p: Program, ends: Callable[[], object]) -> bool:
    """Fork a child that ends while its parent's node is open; whether this is the parent."""
    node = p.open()
    queue, topic = node.queue("q"), node.topic("t")
    p.publish(queue, 0)
    p.append(topic, 0)
    child = os.fork()
    if not child:
        ends()
        return False
    os.waitpid(child, 0)
    p.publish(queue, 1)
    p.append(topic, 1)
    return True


@end("a forked child comes to its last line", quick=True)
def a_child_that_returns(p: Program) -> None:
    _beside_a_child(p, lambda: None)


@end("a forked child calls `sys.exit`")
def a_child_that_exits(p: Program) -> None:
    _beside_a_child(p, lambda: sys.exit(3))


@end("a forked child calls `os._exit`", quick=True)
def a_child_that_exits_at_once(p: Program) -> None:
    _beside_a_child(p, lambda: os._exit(3))


@end("a forked child becomes another program (`os.execv`)")
def a_child_that_becomes_another(p: Program) -> None:
    _beside_a_child(p, _exec)


@end("a forked child goes on when its parent has ended, and opens the directory")
def a_child_that_goes_on(p: Program) -> None:
    reads, writes = os.pipe()
    node = p.open()
    p.publish(node.queue("q"), 0)
    if os.fork():
        os.close(reads)
        node.close()
        os.close(writes)
        return
    os.close(writes)
    os.read(reads, 1)
    p.publish(p.open().queue("q"), 1)


@end("forked children of a shared directory publish, and come to their last lines")
def children_that_share(p: Program) -> None:
    node = p.open(share=True)
    queue = node.queue("q")
    children = []
    for number in range(3):
        child = os.fork()
        if not child:
            for message in range(20):
                p.publish(queue, message, f"c{number}")
            return
        children.append(child)
    for child in children:
        os.waitpid(child, 0)
    p.publish(queue)


def work(path: Path, stream: str) -> None:
    """What a process of a pool does."""
    p = Program(path, 0, shares=True)
    queue = p.open().queue("q")
    for number in range(20):
        p.publish(queue, number, stream)


def _process(p: Program, method: str) -> None:
    context: Any = multiprocessing.get_context(method)
    child = context.Process(target=work, args=(p.path, "s"))
    child.start()
    child.join()


@end("a process of `multiprocessing`, by `fork`, ends with its function", quick=True)
def multiprocessing_fork(p: Program) -> None:
    _process(p, "fork")


@end("the same by `spawn`")
def multiprocessing_spawn(p: Program) -> None:
    _process(p, "spawn")


@end("the same by `forkserver`")
def multiprocessing_forkserver(p: Program) -> None:
    _process(p, "forkserver")


@end("a process of `multiprocessing` is terminated", kept=Kept.CONFIRMED, leaves_lock=None)
def multiprocessing_terminate(p: Program) -> None:
    child = multiprocessing.get_context("fork").Process(target=_wait_for_ever, args=(p,))
    child.start()
    while not _has_confirmed(p, "s"):
        pass
    child.terminate()
    child.join()


def _has_confirmed(p: Program, stream: str) -> bool:
    report = report_of(p.path)
    return report.exists() and f"c q {stream} " in report.read_text()


def _wait_for_ever(p: Program) -> None:
    queue = p.open().queue("q")
    p.publish_safe(queue, 0)
    p.publish(queue, 1)
    multiprocessing.Event().wait()


@end("a pool of `multiprocessing` is left (its workers are terminated)", kept=Kept.CONFIRMED, leaves_lock=None)
def multiprocessing_pool(p: Program) -> None:
    with multiprocessing.get_context("fork").Pool(2) as pool:
        pool.starmap(work, [(p.path, f"s{number}") for number in range(4)])


def _executor(p: Program, method: str) -> None:
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context(method)) as pool:
        for number in range(6):
            pool.submit(work, p.path, f"s{number}")


@end("workers of a `ProcessPoolExecutor`, by `fork`, share a directory")
def executor_fork(p: Program) -> None:
    _executor(p, "fork")


@end("the same by `spawn`")
def executor_spawn(p: Program) -> None:
    _executor(p, "spawn")


# ── hosts ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _publish_until_gone(p: Program, host: int) -> None:
    """A guest's part: publish, and wait, until the host is gone; then some more."""
    queue = p.open(share=True).queue("q")
    left, number = 20, 0
    while left:
        p.publish_safe(queue, number, "guest")
        number += 1
        left -= os.getppid() != host


def _host_that_ends(p: Program, ends: Callable[[], object]) -> None:
    """Host a shared directory, and end, while a guest publishes on."""
    host = os.getpid()
    queue = p.open(share=True).queue("q")
    p.publish_safe(queue, 0)
    if not os.fork():
        _publish_until_gone(p, host)
        return
    while not _has_confirmed(p, "guest"):
        pass
    p.publish(queue, 1)
    ends()


for _name, _what, _ends, _promise in (
    ("returns", "comes to its last line", lambda: None, {}),
    ("exits", "calls `os._exit`", lambda: os._exit(5), {"code": 5, "kept": Kept.CONFIRMED}),
    ("aborts", "calls `os.abort`", os.abort, {"code": -6, "kept": Kept.CONFIRMED}),
):
    add(
        End(
            f"a host that {_name}",
            f"the host of a shared directory {_what}, while a guest publishes: the guest hosts, and goes on",
            lambda p, ends=_ends: _host_that_ends(p, ends),  # type: ignore[misc]
            twice=True,
            **_promise,  # type: ignore[arg-type]
        )
    )


THREAD_ERROR = r"Exception in thread .*{}(: .*)?\n"


def start(work: Callable[[], object], *, daemon: bool = False) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=daemon)
    thread.start()
    return thread


@end("a thread goes on when the main one has ended", **NORMAL)
def a_thread_that_goes_on(p: Program) -> None:
    queue = p.open().queue("q")

    def work() -> None:
        threading.main_thread().join()
        for number in range(20):
            p.publish(queue, number)

    start(work)


@end("a thread opens the node, and goes on when the main one has ended")
def a_thread_that_opens(p: Program) -> None:
    def work() -> None:
        threading.main_thread().join()
        p.publish(p.open().queue("q"))

    start(work)


@end("`sys.exit(3)` in a thread: it ends the thread")
def sys_exit_in_a_thread(p: Program) -> None:
    queue = p.open().queue("q")

    def work() -> None:
        p.publish(queue, 0)
        raise SystemExit(3)

    start(work).join()
    p.publish(queue, 1)


@end("an error in a thread", says=THREAD_ERROR.format("ZeroDivisionError"))
def an_error_in_a_thread(p: Program) -> None:
    queue = p.open().queue("q")

    def work() -> None:
        p.publish(queue, 0)
        raise ZeroDivisionError

    start(work)


def _publish_on(p: Program, queue: warren.Queue, begun: threading.Event, stream: str) -> None:
    number = 0
    while True:
        p.publish(queue, number, stream)
        number += 1
        if number == 20:
            begun.set()


@end("daemon threads go on publishing: they get `ClosedError`", **NORMAL)
def daemons_that_publish(p: Program) -> None:
    queue = p.open().queue("q")

    def work(stream: str) -> None:
        with contextlib.suppress(warren.errors.ClosedError):
            _publish_on(p, queue, begun[stream], stream)

    begun = {stream: threading.Event() for stream in "ab"}
    for stream in begun:
        start(partial(work, stream), daemon=True)
    for event in begun.values():
        event.wait()


@end("a daemon thread does not catch `ClosedError`", says=f"({THREAD_ERROR.format('.*ClosedError')})?")
def a_daemon_with_an_error(p: Program) -> None:
    queue = p.open().queue("q")
    begun = threading.Event()
    start(lambda: _publish_on(p, queue, begun, "a"), daemon=True)
    begun.wait()


@end("daemon threads wait for messages", **NORMAL)
def daemons_that_wait(p: Program) -> None:
    node = p.open()
    queue, empty, topic = node.queue("q"), node.queue("empty"), node.topic("t")
    waiting = threading.Barrier(4)

    def work(wait: Callable[[], object]) -> None:
        waiting.wait()
        with contextlib.suppress(warren.errors.ClosedError):
            wait()

    for wait in (
        lambda: next(empty.consume(), None),
        lambda: empty.get(timeout=None),
        lambda: topic.reader("g").read(timeout=None),
    ):
        start(partial(work, wait), daemon=True)
    waiting.wait()
    p.publish(queue)


@end("a daemon thread waits for room, under an alarm")
def a_daemon_under_an_alarm(p: Program) -> None:
    with p.open() as node:
        p.publish(node.queue("q"))
    node = p.open(vm_memory_high_watermark=0.000001)
    queue = node.queue("q")
    while not node.memory()["alarms"]:
        pass
    begun = threading.Event()

    def work() -> None:
        begun.set()
        with contextlib.suppress(warren.errors.ClosedError):
            queue.publish(b"none:0:")

    start(work, daemon=True)
    begun.wait()


@end("a daemon thread just closes the node", **NORMAL)
def a_thread_that_closes(p: Program) -> None:
    node = p.open()
    p.publish_many(node.queue("q"), 0, 499, size=5000)
    start(node.close, daemon=True)


@end("four threads close the node at once, while two publish")
def closed_by_many(p: Program) -> None:
    node = p.open()
    queue = node.queue("q")
    begun = {stream: threading.Event() for stream in "ab"}

    def work(stream: str) -> None:
        with contextlib.suppress(warren.errors.ClosedError):
            _publish_on(p, queue, begun[stream], stream)

    for stream in begun:
        start(partial(work, stream))
    for event in begun.values():
        event.wait()
    for _ in range(4):
        start(node.close)


@end("jobs of a `ThreadPoolExecutor` that are not waited for")
def a_thread_pool(p: Program) -> None:
    queue = p.open().queue("q")
    pool = ThreadPoolExecutor(3)
    for number in range(60):
        pool.submit(p.publish, queue, number, f"s{number}")


@end("an error in the main thread, while others publish", code=1, says=ERROR.format("ZeroDivisionError"))
def an_error_beside_threads(p: Program) -> None:
    queue = p.open().queue("q")
    for stream in "ab":
        start(lambda stream=stream: [p.publish(queue, number, stream) for number in range(50)])  # type: ignore[misc]
    raise ZeroDivisionError
