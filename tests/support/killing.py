"""What is killed: processes that publish and consume at full speed in one data directory, and tell what they do.

Run as a program this is a nursery: it has everything imported and no threads, and forks a process for every request
that comes through the socket on its standard input (:class:`Nursery` is the other end). The process has a load of each
kind (:data:`LOADS`), all in one node whose memory is short. It reports through the pipe that came with the request, a
line at a time, from several threads, until it is killed. Its first words are ``open`` and ``ready``: the node is
about to be opened; it is open. Every other line begins with the kind of load:

====================  ================================================================================================
``p STREAM N``        messages of this stream up to number N are about to be published
``c STREAM M N``      those from M to N are confirmed
``d QUEUE S:N=F …``   a consumer has this message of stream S; F: 1 if it says redelivered
``a QUEUE S:N …``     these are about to be acked
``s QUEUE``           all acks that were reported before for this queue are safe
``x QUEUE``           from now on messages left in its consumer may go back to the queue
``r GROUP QUEUE N``   a reader of this group was handed out the message with queue offset N of this queue
``k KEY …``           the messages with these keys are confirmed, each of them or another one with its key
``e TEXT``            an error; it must not occur
====================  ================================================================================================

A line is written before what it announces is done and after what it reports was done; a kill leaves whole lines.

:func:`each_kill` kills such processes at random moments, and gives what they reported until then.
"""

from __future__ import annotations

import functools
import json
import os
import random
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import warren

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


SETTINGS: Final[dict[str, Any]] = {
    "queue_index_max_journal_entries": 700,
    "msg_store_file_size_limit": 150_000,
    "memory_monitor_interval": 10,
    "queue_ram_report_interval_ms": 10,
    "vm_memory_calculation_strategy": "allocated",
    "vm_memory_high_watermark": 3_000_000,
    "vm_memory_high_watermark_paging_ratio": 0.01,
    "mapped_file_size_commit_log": 1 << 18,
    "mapped_file_size_consume_queue": 20 * 500,
    "max_hash_slot_num": 100,
    "max_index_num": 1000,
    "flush_interval_consume_queue": 20,
    "flush_consume_queue_thorough_interval": 40,
    "flush_consumer_offset_interval": 15,
    "disk_free_limit": 1 << 20,
    "attach": False,
}
"""Small, so that journals are flushed, files of bodies compacted, topics' files rolled over and messages paged out many
times a second; a small disk will do."""


class Load:
    """One kind of work in the node of a process that is to be killed."""

    kind: str

    def __init__(self, report: int, node: warren.Node, started: dict[str, int]) -> None:
        """``started``: the first number of each stream that was not begun."""
        self._report = report
        self.node = node
        self.started = started

    def tell(self, *words: object) -> None:
        os.write(self._report, (" ".join(map(str, (self.kind, *words))) + "\n").encode())

    def works(self) -> list[tuple[Any, ...]]:
        """What its threads do, and their arguments after the random numbers; consumers first."""
        raise NotImplementedError

    def guard(self, work: Any, *arguments: Any) -> None:
        try:
            work(*arguments)
        except BaseException:
            self.tell("e", traceback.format_exc().replace("\n", " | "))


def run(report: int, request: dict[str, Any]) -> None:
    """A process that is to be killed."""
    from tests.support.kill_loads import LOADS

    loads = [functools.partial(load, report) for load in LOADS]
    work(request, loads, SETTINGS, lambda word: os.write(report, word.encode() + b"\n"))


def work(
    request: dict[str, Any],
    loads: Sequence[Callable[[warren.Node, dict[str, int]], Load]],
    settings: dict[str, Any],
    say: Callable[[str], object],
) -> None:
    """Open the node, and let threads of each load work until the end of the process."""
    say("open")
    rng = random.Random(request["seed"])
    node = warren.open(request["directory"], sync=request["sync"], **settings)
    works = []
    for load in [one(node, request["next"]) for one in loads]:
        works += [(load.guard, work, random.Random(rng.random()), *given) for work, *given in load.works()]
    say("ready")
    for begin, *given in works:
        threading.Thread(target=begin, args=given).start()


def serve(requests: socket.socket, run: Callable[[int, dict[str, Any]], None] = run) -> None:
    """Fork a process for every request; the answer is its number, and, when it is asked for, how it ended."""
    import tests.support.kill_loads  # noqa: F401 - as above: once, and not in every process anew

    for name in warren.__all__:  # imported when it is first used: the same
        getattr(warren, name)
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, 65536, 1)
        if not message:
            return
        child = os.fork()
        if not child:
            requests.close()
            run(descriptors[0], json.loads(message))
            return
        os.close(descriptors[0])
        requests.send(str(child).encode())
        requests.send(str(os.waitpid(child, 0)[1]).encode())


class Nursery:
    """Starts such processes."""

    def __init__(self, module: str = "tests.support.killing") -> None:
        """``module``: the program that serves."""
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        root = str(Path(__file__).parents[2])
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))}
        command = [sys.executable, "-m", module]
        self._process = subprocess.Popen(command, stdin=theirs.fileno(), env=environment)
        theirs.close()

    def start(self, **request: Any) -> tuple[int, int]:
        """A process's number, and the descriptor to read its reports from."""
        reading, writing = os.pipe()
        socket.send_fds(self._requests, [json.dumps(request).encode()], [writing])
        os.close(writing)
        return int(self._requests.recv(64)), reading

    def ended(self) -> int:
        """Wait for the end of the last one; its status."""
        return int(self._requests.recv(64))

    def close(self) -> None:
        self._requests.close()
        self._process.wait()


if __name__ == "__main__":
    serve(socket.socket(fileno=0))
