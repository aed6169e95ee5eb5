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
"""

from __future__ import annotations

import functools
import json
import os
import random
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import warren

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

    def __init__(self, module: str = "tests.support.kill_child") -> None:
        """``module``: the program that serves."""
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        root = str(Path(__file__).parents[2])
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))}
        command = [sys.executable, "-m", module]
        self._process = subprocess.Popen(command, stdin=theirs, env=environment)
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
