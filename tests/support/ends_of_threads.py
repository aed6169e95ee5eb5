"""Programs with several threads that end."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import warren
from tests.support.ends import Program, end
from tests.support.ends_of_programs import ERROR, NORMAL

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
        start(lambda stream=stream: work(stream), daemon=True)  # type: ignore[misc]
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
        start(lambda wait=wait: work(wait), daemon=True)  # type: ignore[misc]
    waiting.wait()
    p.publish(queue)


@end("a daemon thread waits for room, under an alarm")
def a_daemon_under_an_alarm(p: Program) -> None:
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
        start(lambda stream=stream: work(stream))  # type: ignore[misc]
    for event in begun.values():
        event.wait()
    for _ in range(4):
        start(node.close)


@end("jobs of a `ThreadPoolExecutor` that nobody waits for")
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
