"""`warren serve` as a process of its own, so that its memory, its descriptors and its answers can be measured."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs
import psutil
from pamqp import commands as c

from tests.support.amqp_link import Link
from tests.support.waiting import wait_until
from warren.amqp.framing import PUBLISH, contents
from warren.amqp.methods import encode_arguments, encode_method, method_of

END_S = 60.0
LOG = "stderr"


@attrs.frozen
class ServedProgram:
    """A running server: where it listens, and what it takes of the machine."""

    process: psutil.Process
    port: int
    management_port: int
    log: Path
    """What it says on stderr."""

    @property
    def rss_bytes(self) -> int:
        return int(self.process.memory_info().rss)

    @property
    def descriptors(self) -> int:
        return int(self.process.num_fds())

    def has_at_most(self, descriptors: int) -> bool:
        return self.descriptors <= descriptors


@contextmanager
def served_program(
    place: Path, *options: str, config: str = "", descriptors: int | None = None
) -> Iterator[ServedProgram]:
    """Serve ``place/node`` with those options and settings; ``descriptors``: how many the process may have.

    Raises :class:`AssertionError` where it ends by itself, not in time, or with an error.
    """
    (place / "config.toml").write_text(config, encoding="utf-8")
    command = [sys.executable, "-m", "warren", "serve", str(place / "node"), "--json"]
    command += ["--port", "0", "--management-port", "0", "--config", str(place / "config.toml"), *options]
    if descriptors is not None:
        command = ["prlimit", f"--nofile={descriptors}:{descriptors}", *command]
    with (
        open(place / LOG, "wb") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log) as process,
    ):
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, (place / LOG).read_text(encoding="utf-8")
            found = json.loads(line)
            management = int(found["management"].rstrip("/").rpartition(":")[2])
            yield ServedProgram(psutil.Process(process.pid), found["addresses"][0][1], management, place / LOG)
            assert process.poll() is None, "it ended by itself"
            process.terminate()
            assert process.wait(END_S) == 0
        finally:
            process.kill()


@attrs.define
class Bystander:
    """A client that does nothing wrong, and says how long it has to wait."""

    program: ServedProgram
    link: Link
    slowest_s: float = 0.0
    count: int = 0

    @classmethod
    def of(cls, program: ServedProgram) -> Bystander:
        link = Link(program.port)
        link.open_channel(1)
        link.write(encode_method(1, method_of(c.Queue.Declare, queue="bystander", durable=True)))
        return cls(program, link)

    def is_served(self) -> float:
        """Publish a message and get it back; how many seconds that took. Raises :class:`AssertionError`."""
        self.count += 1
        body = b"%d" % self.count
        channel, begun = self.link.channels[1], time.monotonic()
        publish = encode_arguments(method_of(c.Basic.Publish, exchange="", routing_key="bystander"))
        self.link.write(contents(1, PUBLISH, (publish, b""), b"\x10\0\2", [body], frame_max=4096))
        self.link.write(encode_method(1, method_of(c.Basic.Get, queue="bystander", no_ack=True)))
        channel.gets.append(True)
        while self.link.is_open and not any(name == "basic.get_ok" for name, _ in channel.came):
            self.link.read()
        assert [one["body"] for name, one in channel.came if name == "basic.get_ok"] == [body]
        channel.came.clear()
        took_s = time.monotonic() - begun
        self.slowest_s = max(self.slowest_s, took_s)
        return took_s

    def is_answered(self) -> float:
        """Ask something that no alarm holds up; how many seconds the answer took."""
        channel, begun = self.link.channels[1], time.monotonic()
        self.link.probe(channel)
        while channel.flows:
            assert self.link.is_open
            self.link.read()
        took_s = time.monotonic() - begun
        self.slowest_s = max(self.slowest_s, took_s)
        return took_s


def wait_until_free(program: ServedProgram, descriptors: int, patience_s: float = 120.0) -> None:
    """Until the server has given everything free that its clients had."""
    wait_until(lambda: program.has_at_most(descriptors), "descriptors are given free", patience_s=patience_s)
