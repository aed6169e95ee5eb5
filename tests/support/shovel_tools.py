"""``warren shovel`` run in this process, or killed at a step of it; directories to copy from, and what arrived."""

from __future__ import annotations

import hashlib
import json
import random
import signal
import subprocess
import sys
from collections import deque
from pathlib import Path
from typing import Any

import attrs

from tests.support.cli_tools import warren
from tests.support.rabbitmq_golden import PROJECT
from warren import engine
from warren.queue_index.properties import Properties
from warren.shovel.letter import Letter
from warren.shovel.places import Outcome
from warren.shovel.pump import WINDOW_BYTES

Json = dict[str, Any]


def shovel(*arguments: str | Path, exit_code: int = 0) -> Json:
    """Run it; returns its summary."""
    result = warren("shovel", *arguments, "--json")
    assert result.exit_code == exit_code, result.output
    summary: Json = json.loads(result.stdout)
    return summary


def complaint(*arguments: str | Path) -> str:
    result = warren("shovel", *arguments)
    assert result.exit_code == 2, result.output
    line = result.stderr.strip()
    assert line.startswith("warren: ")
    assert "\n" not in line
    return line


def exported(place: Path, *options: str, exit_code: int = 0) -> list[Json]:
    """Of each message what must not change on the way."""
    result = warren("export", place, *options)
    assert result.exit_code == exit_code, result.stderr
    kept = ("vhost", "queue", "exchange", "routing_keys", "properties", "headers", "body_sha256", "expiry_us")
    lines = [json.loads(line) for line in result.stdout_bytes.decode().splitlines()]
    return [{name: line[name] for name in kept} for line in lines]


def fill(directory: Path, count: int, queue: bytes = b"q", *, size: int = 20, **properties: Any) -> None:
    """A data directory with a queue of ``count`` numbered messages."""
    with engine.open_vhost(directory, sync=False) as vhost:
        envelope = vhost.envelope(queue, Properties(**properties) if properties else None)
        vhost.queue(queue).publish_many(
            envelope, vhost.msg_ids.many(count), [b"%0*d" % (size, n) for n in range(count)]
        )


def numbers(directory: Path, queue: bytes = b"q") -> list[int]:
    with engine.open_vhost(directory, sync=False) as vhost:
        while vhost.recover_step():
            continue
        return [int(browsed.message.body) for browsed in vhost.queue(queue).browse()]


def digest(directory: Path) -> dict[str, str]:
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in directory.rglob("*") if path.is_file()}


@attrs.define
class RandomIntake:
    """Confirms and refuses as a seed says, late and in batches; holds the pump to its window."""

    random: random.Random
    refuse: float
    window: int
    taken: list[bytes] = attrs.field(factory=list)
    safe: set[int] = attrs.field(factory=set)
    waiting: deque[tuple[int, bytes]] = attrs.field(factory=deque)
    numbered: int = 0
    closed: int = 0
    renamed_exchanges: int = 0

    def put(self, letter: Letter) -> int:
        assert len(self.waiting) < self.window
        assert sum(len(body) for _, body in self.waiting) < WINDOW_BYTES
        self.numbered += 1
        self.waiting.append((self.numbered, letter.body))
        return self.numbered

    def work(self, *, wait: bool) -> list[Outcome]:
        assert not wait or self.waiting
        outcomes = []
        for _ in range(self.random.randint(int(wait), 1 + len(self.waiting) // 2)):
            if not self.waiting:
                break
            number, body = self.waiting.popleft()
            refused = self.random.random() < self.refuse
            if not refused:
                self.taken.append(body)
                self.safe.add(number)
            outcomes.append(Outcome(number, "no" if refused else None))
        return outcomes

    def close(self) -> None:
        self.closed += 1


KILLED_AT = """
import os, signal, sys
import {module} as module

calls = 0
def killing(owner, *args, _do=module.{owner}.{method}, **kwargs):
    global calls
    calls += 1
    if calls == {call} and {before}:
        os.kill(os.getpid(), signal.SIGKILL)
    answer = _do(owner, *args, **kwargs)
    if calls == {call}:
        os.kill(os.getpid(), signal.SIGKILL)
    return answer

module.{owner}.{method} = killing
sys.argv = ["warren", "shovel", *sys.argv[1:]]
from warren.cli import main
main()
"""


def shovel_and_die(step: str, call: int, before: bool, *arguments: str | Path) -> None:
    """Run it in a process of its own that ends by SIGKILL at a step of it (``module:Owner.method``)."""
    module, _, name = step.partition(":")
    owner, method = name.split(".")
    script = KILLED_AT.format(module=module, owner=owner, method=method, call=call, before=before)
    command = [sys.executable, "-c", script, *map(str, arguments)]
    ended = subprocess.run(command, cwd=PROJECT, capture_output=True, check=False, timeout=60)
    assert ended.returncode == -signal.SIGKILL, ended


SAVE, ACK, SYNC = (
    "warren.shovel.progress:Progress.save",
    "warren.shovel.writing:_EmptiedQueue.settle",
    "warren.actors.vhost:Vhost.sync",
)
