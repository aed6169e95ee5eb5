"""``warren shovel`` run in this process, or killed at a step of it; directories to copy from, and what arrived.

The messages have everything that properties, bodies and names can have.
"""

from __future__ import annotations

import hashlib
import json
import random
import signal
import struct
import subprocess
import sys
from collections import deque
from pathlib import Path
from typing import Any

import attrs

from tests.support.cli_tools import warren
from tests.support.rabbitmq_golden import PROJECT
from warren import engine
from warren.queue_index.properties import Properties, encode_values
from warren.shovel.letter import Letter, from_term
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


def string(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


def field(name: bytes, value: bytes) -> bytes:
    return bytes([len(name)]) + name + value


EVERY_TYPE = [
    field(b"t", b"t\1"),
    field(b"t2", b"t\2"),
    field(b"b", b"b\xff"),
    field(b"B", b"B\xff"),
    field(b"s", b"s\xff\xfe"),
    field(b"u", b"u\xff\xfe"),
    field(b"I", b"I\xff\xff\xff\xfe"),
    field(b"i", b"i\xff\xff\xff\xfe"),
    field(b"l", b"l" + struct.pack(">q", 5)),
    field(b"big", b"l" + struct.pack(">q", -(1 << 62))),
    field(b"f", b"f" + struct.pack(">f", 0.1)),
    field(b"d", b"d" + struct.pack(">d", 0.1)),
    field(b"nan", b"d" + struct.pack(">d", float("nan"))),
    field(b"D", b"D\2" + struct.pack(">i", -1234)),
    field(b"T", b"T" + struct.pack(">Q", (1 << 64) - 1)),
    field(b"S", b"S" + string("сто ☃".encode())),
    field(b"not UTF-8", b"S" + string(b"\xff\x00")),
    field(b"x", b"x" + string(b"\xff\x00")),
    field(b"x of text", b"x" + string(b"text")),
    field(b"V", b"V"),
    field(b"F", b"F" + string(field(b"in", b"A" + string(b"I\0\0\0\1" + b"V" + b"F" + string(b""))))),
    field(b"A", b"A" + string(b"")),
    field(b"\xff", b"V"),
    field(b"like base64", b"F" + string(field(b"base64", b"S" + string(b"/w==")))),
    field(b"", b"S" + string(b"")),
]
"""Every type that a header can have, and what JSON cannot tell from something else."""


def with_headers(*fields: bytes) -> bytes:
    return b"\x20\x00" + string(b"".join(fields))


RESERVED_BITS = b"\x00\x03"
"""Bits without a meaning."""
PROPERTIES = [
    b"\x00\x00",
    RESERVED_BITS,
    b"\x10\x00\x02",
    *(with_headers(each) for each in EVERY_TYPE),
    with_headers(*EVERY_TYPE),
    with_headers(field(b"twice", b"V"), field(b"twice", b"t\0")),
    with_headers(),
    encode_values(
        {
            "content_type": "text/ж",
            "content_encoding": "gzip",
            "headers": {"a": "b"},
            "delivery_mode": 2,
            "priority": 7,
            "correlation_id": b"\xff",
            "reply_to": "",
            "expiration": "86400000",
            "message_id": "x\n\",'\r\n",
            "timestamp": (1 << 64) - 1,
            "type": "t",
            "user_id": "guest",
            "app_id": "a" * 255,
            "cluster_id": "c",
        }
    ),
]
FOR_BROKERS = [each for each in PROPERTIES if each != RESERVED_BITS and b"nan" not in each]
FOR_BROKERS.append(with_headers(*(each for each in EVERY_TYPE if b"nan" not in each)))
"""Properties that a RabbitMQ reads: no header holds a NaN."""
TEXTS = [b"", b"text", "snow ☃\r\nman\n".encode(), b'"quoted", \\ and \x00', b" ", b"a,b\r"]
BODIES = [*TEXTS, b"\xff\x00", bytes(range(256))]
NAMES = [b"q", b"", b"key.with,comma", b'quo"te', b"\xff\xfe", "ключ".encode()]


def found_in(directory: Path, queue: bytes = b"q", vhost: str = "/") -> list[Letter]:
    """The messages of a queue as they stand there."""
    with engine.open_vhost(directory, vhost, sync=False) as opened:
        while opened.recover_step():
            continue
        return [from_term(browsed.term, 0, (0, 0)) for browsed in opened.queue(queue).browse()]
