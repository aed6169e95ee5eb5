"""Processes of a shared directory, which one hosts it, and a guest's connection.

A process, run as ``python -m tests.support.sharing_tools``, does what its second argument says, and tells it in lines:

``publish STREAM FIRST``: publishes ``STREAM:NUMBER`` to the queue ``work``, a few at a time, and says ``confirmed
NUMBER SECONDS`` (of the monotonic clock) for the last of each few; until its input ends, then it closes the node.
``append STREAM FIRST``: the same with the topic ``work``, where a stream is a key.
``mixed STREAM FIRST``: the same with both, the queue ``later`` after a delay, and the queue ``keyed`` with keys.
``consume``: gets from ``work``, acks, and says ``got BODY REDELIVERED``. ``hold``: says ``ready`` and does nothing.
"""

from __future__ import annotations

import functools
import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from types import TracebackType
from typing import Any, ClassVar, Self, TextIO

import warren
from tests.support.waiting import wait_until
from warren.actors.runtime.future import Confirm
from warren.client.link import Link
from warren.handles.node import Node
from warren.storage.lock_file import LOCK_FILE, lock_holder
from warren.verbs.topics.topic_append import AppendManyConfirm

PATIENCE_S = 60.0


class ForkedProcess:
    """What a test needs of a ``Popen``, of a fork: there within milliseconds, with all modules that the test has."""

    _ours: ClassVar[list[TextIO]] = []
    """The test's ends of all pipes: a child that had them would keep others from seeing their ends."""

    def __init__(self, arguments: list[str]) -> None:
        import warren.client.shared_directory  # once: each child would
        import warren.server  # noqa: F401

        child_reads, self_writes = os.pipe()
        self_reads, child_writes = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            code = 1
            try:
                os.dup2(child_reads, 0)
                os.dup2(child_writes, 1)
                for end in (child_reads, child_writes, self_reads, self_writes):
                    os.close(end)
                for pipe in self._ours:  # no others: a write to an old number would go into our files
                    if not pipe.closed:
                        os.close(pipe.fileno())
                sys.stdin = os.fdopen(0)
                main(*arguments)
                code = 0
            except BaseException:
                os.write(2, traceback.format_exc().encode())
            finally:
                os._exit(code)
        os.close(child_reads)
        os.close(child_writes)
        self.stdin, self.stdout = os.fdopen(self_writes, "w"), os.fdopen(self_reads)
        self._ours[:] = [*(pipe for pipe in self._ours if not pipe.closed), self.stdin, self.stdout]
        self._code: int | None = None

    def send_signal(self, number: int) -> None:
        if self._code is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        if self._code is None:
            done = os.pidfd_open(self.pid)
            try:
                if not select.select([done], [], [], timeout)[0]:
                    raise TimeoutError(f"process {self.pid} does not end")
            finally:
                os.close(done)
            self._code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self._code


class Member:
    """A process that has a directory open (:func:`main`)."""

    def __init__(self, directory: Path, role: str, *arguments: object, forked: bool = False) -> None:
        """``forked``: from the test's process, which has no node open then; else a Python of its own."""
        self.lines: list[str] = []
        """The lines of its output that were read until now."""
        self._heard: Queue[str | None] = Queue()
        said = [str(directory), role, *map(str, arguments)]
        self.process: subprocess.Popen[str] | ForkedProcess
        if forked:
            self.process = ForkedProcess(said)
        else:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.sharing_tools", *said],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()

    def _read(self) -> None:
        for line in self.process.stdout or ():
            self._heard.put(line.strip())
        self._heard.put(None)

    def hear(self, what: str = "") -> str:
        """The next line that begins so."""
        while True:
            try:
                line = self._heard.get(timeout=PATIENCE_S)
            except Empty:
                raise AssertionError(f"process {self.process.pid} says nothing") from None
            assert line is not None, f"process {self.process.pid} has ended"
            self.lines.append(line)
            if line.startswith(what):
                return line

    def kill(self) -> None:
        """Kill it; what it had said before is heard."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self._hear_rest()

    def end(self) -> None:
        """Let it end by itself."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        assert self.process.wait(PATIENCE_S) == 0
        self._hear_rest()

    def _hear_rest(self) -> None:
        self._reader.join()
        while (line := self._heard.get()) is not None:
            self.lines.append(line)

    def confirmed(self) -> int | None:
        """The last number that it reported as confirmed."""
        found = [line.split() for line in self.lines if line.startswith("confirmed")]
        return int(found[-1][1]) if found else None


def host_of(directory: Path) -> int:
    """The process that hosts the node."""
    host = _host_now(directory)
    assert host is not None, "nobody hosts the node"
    return host


def next_host(directory: Path, last: int) -> int:
    """The process that hosts the node after ``last``, as soon as it has the lock."""
    found: list[int] = []

    def is_there() -> bool:
        host = _host_now(directory)
        if host is not None and host != last:
            found.append(host)
        return bool(found)

    wait_until(is_there, "nobody takes over", interval_s=0.001)
    return found[0]


def _host_now(directory: Path) -> int | None:
    holder = lock_holder(str(directory / LOCK_FILE))
    found = re.match(r"process (\d+), .*, shared$", holder or "")
    return None if found is None else int(found[1])


def link_of(node: Node) -> Link:
    """A guest's."""
    opened = node._opened
    assert not hasattr(opened, "actor")
    return opened.node.link


def hang_up(node: Node) -> None:
    """The host drops a guest's connection."""
    connection = link_of(node).connection
    assert connection is not None
    connection.shutdown(socket.SHUT_RDWR)


WINDOW = 20
SETTINGS: dict[str, Any] = {
    "sync": "os",
    "queue_index_max_journal_entries": 700,
    "msg_store_file_size_limit": 150_000,
    "memory_monitor_interval": 10,
    "queue_ram_report_interval_ms": 10,
    "vm_memory_calculation_strategy": "allocated",
    "vm_memory_high_watermark": 30_000_000,
    "vm_memory_high_watermark_paging_ratio": 0.001,
}
"""Memory is short: messages are paged out; and files are small."""


def say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())  # whole, or not at all


def publish_all_ways(node: warren.Node, stream: str, number: int, over: threading.Event) -> None:
    """As the role ``mixed``."""
    work, later, keyed, topic = node.queue("work"), node.queue("later"), node.queue("keyed"), node.topic("work")
    while not over.is_set():
        bodies = [f"{stream}:{one}".encode() for one in range(number, number + WINDOW)]
        confirms: list[Confirm | AppendManyConfirm] = [work.publish(body) for body in bodies[: WINDOW // 2]]
        confirms += [work.publish_many(bodies[WINDOW // 2 :]), topic.append_many(bodies, keys=[stream] * WINDOW)]
        confirms += [later.publish_many(bodies, delay=[0.1 * (one % 3) for one in range(WINDOW)])]
        confirms += [keyed.publish_many(bodies, unique=True)]
        for confirm in confirms:
            confirm.wait()
        number += WINDOW
        say("confirmed", number - 1, time.monotonic())


def main(directory: str, role: str, *arguments: str) -> None:
    over = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
    with warren.open(directory, share=True, **SETTINGS) as node:
        queue = node.queue("work")
        say("ready")
        match role:
            case "publish" | "append":
                stream, number = arguments[0], int(arguments[1])
                send: Callable[[bytes], Confirm | warren.AppendConfirm] = queue.publish
                if role == "append":
                    send = functools.partial(node.topic("work").append, key=stream)
                while not over.is_set():
                    confirms = [send(f"{stream}:{number + index}".encode()) for index in range(WINDOW)]
                    for confirm in confirms:
                        confirm.wait()
                    number += WINDOW
                    say("confirmed", number - 1, time.monotonic())
            case "mixed":
                publish_all_ways(node, arguments[0], int(arguments[1]), over)
            case "consume":
                with queue.consume(prefetch=50, timeout=0.05) as consumer:
                    while not over.is_set():
                        delivery = consumer.receive(0.05)
                        if delivery is not None:
                            say("got", delivery.body.decode(), delivery.redelivered)
                            delivery.ack()
            case "hold":
                over.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
