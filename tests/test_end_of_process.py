"""Programs that end without closing their node: what is there afterwards, by the way they end."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import warren

# Each leaves messages that are not synced (within ten seconds) in the node of the directory `path`.
OPEN = "import os, sys, threading, warren; path = sys.argv[1]; node = warren.open(path, sync_interval_ms=10_000)\n"
ENDS = {
    "the last line": "queue = node.queue('q'); queue.publish(b'x')",
    "a thousand messages": "queue = node.queue('q')\nfor i in range(1000): queue.publish(b'x')",
    "a node that nobody holds": "node.queue('q').publish(b'x'); del node",
    "acks and a topic": (
        "queue = node.queue('q'); queue.publish_many([b'x', b'y']).wait(); queue.get().ack()\n"
        "node.topic('t').append(b'1')"
    ),
    "sys.exit": "node.queue('q').publish(b'x'); sys.exit(3)",
    "an error": "node.queue('q').publish(b'x'); raise ZeroDivisionError",
    "a thread that goes on": (
        "def work():\n    threading.main_thread().join()\n    node.queue('q').publish(b'x')\n"
        "threading.Thread(target=work).start()"
    ),
    "a daemon that goes on": (
        "queue = node.queue('q'); queue.publish(b'x'); begun = threading.Event()\n"
        "def work():\n    while True:\n        node.topics(); begun.set()\n"
        "threading.Thread(target=work, daemon=True).start(); begun.wait()"
    ),
    "a thread that just closes it": (
        "node.queue('q').publish_many([b'x' * 5000] * 500)\nthreading.Thread(target=node.close, daemon=True).start()"
    ),
    "a forked child that ends first": (
        "queue = node.queue('q')\nif not os.fork(): sys.exit(0)\nassert os.wait()[1] == 0; queue.publish(b'x')"
    ),
    "a process of multiprocessing": (
        "node.close(); import multiprocessing\n"
        "def work(): warren.open(path, sync_interval_ms=10_000).queue('q').publish(b'x')\n"
        "child = multiprocessing.get_context('fork').Process(target=work); child.start(); child.join()\n"
        "assert not os.path.exists(path + '/warren.lock')"
    ),
    "an event loop": (
        "node.close(); import asyncio, warren.aio\n"
        "async def main():\n"
        "    node = await warren.aio.open(path, sync_interval_ms=10_000)\n"
        "    await (await node.queue('q')).publish(b'x')\n"
        "asyncio.run(main())"
    ),
}
HARD_ENDS = {
    "os._exit": "queue = node.queue('q'); queue.publish(b'safe').wait(); queue.publish(b'x'); os._exit(5)",
    "SIGTERM": (
        "queue = node.queue('q'); queue.publish(b'safe').wait(); queue.publish(b'x')\n"
        "import signal; signal.raise_signal(signal.SIGTERM)"
    ),
}
CODES = {"sys.exit": 3, "an error": 1}
COUNTS = {"a thousand messages": 1000, "a thread that just closes it": 500}


NURSERY = """
import asyncio, json, multiprocessing, os, sys, threading, warren, warren.aio
base, programs, children = sys.argv[1], json.load(sys.stdin), {}
for name, program in programs.items():
    if not (child := os.fork()):
        sys.argv = ["-c", f"{base}/{name}"]
        os.dup2(os.open(f"{base}/{name}.stderr", os.O_WRONLY | os.O_CREAT), 2)
        exec(program)
        break  # to the last line
    children[name] = child
else:
    print(json.dumps({name: os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for name, child in children.items()}))
"""
"""Has everything imported, and becomes each of the programs."""


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, int, str]]:
    """Every program's directory, its exit code and what it said on stderr."""
    base = tmp_path_factory.mktemp("ended")
    programs = {end: OPEN + program for end, program in (ENDS | HARD_ENDS).items()}
    quiet = ["-W", "ignore::DeprecationWarning"]  # from 3.12 on Python warns of every fork beside threads
    order = [sys.executable, *quiet, "-c", NURSERY, str(base)]
    done = subprocess.run(order, input=json.dumps(programs), stdout=subprocess.PIPE, text=True, check=True)
    codes: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return {end: (base / end, code, (base / f"{end}.stderr").read_text()) for end, code in codes.items()}


@pytest.mark.parametrize("end", ENDS)
def test_a_program_that_ends_normally_loses_nothing(ended: dict[str, tuple[Path, int, str]], end: str) -> None:
    path, code, said = ended[end]
    assert code == CODES.get(end, 0), said
    assert (not said) or code == 1 or end.startswith("a daemon"), said
    assert "could not be closed" not in said
    assert not (path / "warren.lock").exists()
    with warren.open(path) as node:
        assert len(node.queue("q", passive=True)) == COUNTS.get(end, 1)
        if "topic" in end:
            assert next(iter(node.topic("t").reader("g"))).body == b"1"


@pytest.mark.parametrize("end", HARD_ENDS)
def test_a_hard_exit_costs_what_was_not_confirmed_and_no_more(
    ended: dict[str, tuple[Path, int, str]], end: str
) -> None:
    path, code, said = ended[end]
    assert code == {"os._exit": 5, "SIGTERM": -signal.SIGTERM}[end], said
    assert (path / "warren.lock").exists()  # nobody closed it
    with warren.open(path) as node:
        bodies = [message.body for message in node.queue("q", passive=True).browse()]
        assert bodies[0] == b"safe"
        assert set(bodies[1:]) <= {b"x"}
