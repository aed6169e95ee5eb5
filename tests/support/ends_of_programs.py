"""Programs with one thread of their own that end: by their last line, by an error, hard; and what lets go of a node."""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import gc
import os
import signal
import sys
import weakref
from typing import Any, NoReturn

import warren
from tests.support.early_handlers import EARLY
from tests.support.ends import QUEUE, Kept, Program, end
from warren.durable_queue import DurableQueue

ERROR = r"Traceback .*\n{}(: .*)?\n"
NORMAL: dict[str, Any] = {"quick": True}
HARD: dict[str, Any] = {"kept": Kept.CONFIRMED, "leaves_lock": True, "quick": True}


@end("the program's last line", **NORMAL)
def the_last_line(p: Program) -> None:
    p.publish(p.open().queue("q"))


@end("the last line, a thousand messages behind", **NORMAL)
def a_thousand_messages(p: Program) -> None:
    queue = p.open().queue("q")
    for number in range(1000):
        p.publish(queue, number)


@end("the last line, acks and appends behind", **NORMAL)
def acks_and_appends(p: Program) -> None:
    node = p.open()
    queue = node.queue("q")
    p.publish_many(queue, 0, 2).wait()
    for delivery in queue.get_many(2):
        p.ack(delivery)
    p.append(node.topic("t"))


@end("the last line, with messages that consumers have")
def unacked_messages(p: Program) -> None:
    queue = p.open().queue("q")
    p.publish_many(queue, 0, 99)
    consumer = queue.consume(prefetch=50)
    p.ack(next(consumer))
    queue.get_many(10)


@end("the last line, with messages that come later")
def delayed_messages(p: Program) -> None:
    queue = p.open().queue("q")
    for number in range(20):
        p.publish(queue, number, delay=3600)


@end("the last line, while messages wait to be tried again")
def retries(p: Program) -> None:
    queue = p.open().queue("q")
    p.publish_many(queue, 0, 9)
    for delivery in queue.get_many(5):
        delivery.retry(3600)


@end("`sys.exit(3)`", code=3, **NORMAL)
def sys_exit(p: Program) -> NoReturn:
    p.publish(p.open().queue("q"))
    sys.exit(3)


@end('`sys.exit("text")`', code=1, says="no such job\n")
def sys_exit_with_a_text(p: Program) -> NoReturn:
    p.publish(p.open().queue("q"))
    sys.exit("no such job")


@end("`sys.exit` within `with warren.open(…)`", code=1)
def sys_exit_in_a_with(p: Program) -> None:
    with p.open() as node:
        p.publish(node.queue("q"))
        sys.exit(1)


@end("an error that is not caught", code=1, says=ERROR.format("ZeroDivisionError"), **NORMAL)
def an_error(p: Program) -> None:
    p.publish(p.open().queue("q"))
    raise ZeroDivisionError


@end("an error that leaves `with warren.open(…)`", code=1, says=ERROR.format("ZeroDivisionError"))
def an_error_in_a_with(p: Program) -> None:
    with p.open() as node:
        p.publish(node.queue("q"))
        raise ZeroDivisionError


@end("an error that leaves a loop over messages", code=1, says=ERROR.format("ZeroDivisionError"))
def an_error_at_a_message(p: Program) -> None:
    queue = p.open().queue("q")
    p.publish_many(queue, 0, 9)
    for delivery in queue.consume(prefetch=5):
        with delivery:
            raise ZeroDivisionError


@end("`close()` two times, and the last line")
def closed_twice(p: Program) -> None:
    node = p.open()
    p.publish(node.queue("q"))
    node.close()
    node.close()


# ── hard ends ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _work(p: Program) -> None:
    queue = p.open().queue("q")
    p.publish_safe(queue, 0)
    p.publish(queue, 1)


@end("`os._exit(5)`", code=5, **HARD)
def os_exit(p: Program) -> None:
    _work(p)
    os._exit(5)


@end("`os.abort()`", code=-signal.SIGABRT, **HARD)
def os_abort(p: Program) -> None:
    _work(p)
    os.abort()


@end("a crash of the interpreter, or of a module written in C", code=-signal.SIGSEGV, **HARD)
def a_crash(p: Program) -> None:
    _work(p)
    faulthandler._sigsegv()  # type: ignore[attr-defined]


@end("SIGKILL", code=-signal.SIGKILL, **HARD)
def a_kill(p: Program) -> None:
    _work(p)
    os.kill(os.getpid(), signal.SIGKILL)


# ── what is let go of ───────────────────────────────────────────────────────────────────────────────────────────────


@end("the node's last handle is dropped", **NORMAL)
def a_node_that_nobody_holds(p: Program) -> None:
    node = p.open()
    p.publish(node.queue("q"))
    del node
    gc.collect()


@end("node, queue and consumer are dropped in a reference cycle")
def a_cycle(p: Program) -> None:
    node = p.open()
    queue = node.queue("q")
    p.publish_many(queue, 0, 99)
    cycle: list[object] = [node, queue, queue.consume(prefetch=5), node.topic("t").reader("g")]
    cycle.append(cycle)
    del cycle, node
    gc.collect()
    p.publish(queue, 100)


class _Owner:
    """Something of the program's that has a node, and lets go of it as it goes."""

    def __init__(self, p: Program) -> None:
        self.p = p
        self.node = p.open()

    def __del__(self) -> None:
        p, queue = self.p, self.node.queue("q")
        p.publish(queue, 1)
        del self.node


@end("`__del__` publishes, and drops the node")
def del_in_del(p: Program) -> None:
    owner = _Owner(p)
    p.publish(owner.node.queue("q"), 0)
    cycle: list[object] = [owner]
    cycle.append(cycle)
    del owner, cycle
    gc.collect()


class _Late:
    """A global of the program's, which goes when the interpreter does."""

    def __init__(self, queue: warren.Queue) -> None:
        self.queue = queue

    def __del__(self) -> None:
        with contextlib.suppress(warren.errors.ClosedError):
            self.queue.publish(b"late")
            os.write(2, b"a node that was closed took a message\n")


@end("`__del__` of a global publishes, as the interpreter goes: it gets `ClosedError`")
def del_of_a_global(p: Program) -> None:
    queue = p.open().queue("q")
    p.publish(queue)
    sys.late = _Late(queue)  # type: ignore[attr-defined]


# ── at exit ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@end("a handler of `atexit` publishes", **NORMAL)
def atexit_publishes(p: Program) -> None:
    queue = p.open().queue("q")
    p.publish(queue, 0)
    atexit.register(p.publish, queue, 1)


@end("a handler of `atexit` closes the node")
def atexit_closes(p: Program) -> None:
    node = p.open()
    p.publish(node.queue("q"))
    atexit.register(node.close)


@end("a handler of `atexit` opens the node, and publishes")
def atexit_opens(p: Program) -> None:
    atexit.register(lambda: p.publish(p.open().queue("q")))


@end("a handler of `atexit` that was registered before warren was imported: it gets `ClosedError`")
def atexit_of_before(p: Program) -> None:
    queue = p.open().queue("q")
    p.publish(queue)

    def late() -> None:
        with contextlib.suppress(warren.errors.ClosedError):
            queue.publish(b"late")
            os.write(2, b"a node that was closed took a message\n")

    EARLY.append(late)


@end("a finalizer of `weakref.finalize` publishes")
def a_finalizer(p: Program) -> None:
    queue = p.open().queue("q")
    p.publish(queue, 0)
    weakref.finalize(p, Program(p.path, 0).publish, queue, 1)
    sys.kept = p  # type: ignore[attr-defined]


@end("an error in a handler of `atexit`", says=r"(Exception ignored|Error) in atexit.*ZeroDivisionError.*\n")
def atexit_fails(p: Program) -> None:
    p.publish(p.open().queue("q"))
    atexit.register(lambda: 1 // 0)


# ── other ways in ───────────────────────────────────────────────────────────────────────────────────────────────────


@end("a `DurableQueue` that is not closed")
def a_durable_queue(p: Program) -> None:
    queue = DurableQueue(p.path, "q", confirm=False)
    for number in range(50):
        p.tell("b", QUEUE, "s", number, number)
        queue.put(f"s:{number}:".encode())
        p.tell("p", QUEUE, "s", number, number)


@end("a Kombu connection that is not closed")
def kombu(p: Program) -> None:
    from kombu import Connection

    import warren.kombu  # noqa: F401 - for this program alone

    connection = Connection(f"warren://{p.path}")
    producer = connection.Producer()
    declared = connection.SimpleQueue("q")
    for number in range(50):
        p.tell("b", QUEUE, "s", number, number)
        producer.publish(f"s:{number}:", routing_key="q", content_type="text/plain", content_encoding="utf-8")
        p.tell("p", QUEUE, "s", number, number)
    sys.kept = declared  # type: ignore[attr-defined]


@end("a node that serves AMQP")
def a_server(p: Program) -> None:
    node = p.open()
    node.serve(port=0)
    p.publish(node.queue("q"))
