"""What a client may do to a server to take more than its share: attacks, each a function of the server.

An attack does its worst for a bounded time, and returns the sockets that it has left open; it never reads what it is
answered unless it says so. The server is ``warren serve``, a process of its own, so that its memory, its descriptors
and its answers can be measured.
"""

from __future__ import annotations

import json
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import attrs
import psutil
from pamqp import commands as c

from tests.support import effort
from tests.support.amqp_link import Link
from tests.support.waiting import wait_until
from warren.amqp.connection import PROTOCOL_HEADER
from warren.amqp.framing import BODY, HEADER, PUBLISH, contents, frame
from warren.amqp.methods import encode_arguments, encode_method, method_of
from warren.queue_index.properties import Properties, encode_properties

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


SEND_S: Final = effort.times(1, quick=1, nightly=5)
"""How long an attack sends at most; it stops when the server takes nothing for a second."""
MANY: Final = effort.times(1, quick=1, nightly=10)
PERSISTENT: Final = b"\x10\0\2"
NOTHING: Final = b"\0\0"
MEGABYTE: Final = 1 << 20

Left = list[socket.socket]


@attrs.frozen
class Attack:
    """One, and what it may cost."""

    run: Callable[[ServedProgram], Left]
    memory_bytes: int = 48 << 20
    """How much more the server may take while it lasts."""
    sets_alarm: bool = False
    """Whether it goes on until the memory alarm holds publishers back: others are answered, and may not publish."""


def method(number: int, kind: type, **arguments: object) -> bytes:
    return encode_method(number, method_of(kind, **arguments))


def publishes(
    key: str, bodies: list[bytes], exchange: str = "", properties: bytes = NOTHING, *, mandatory: bool = False
) -> bytes:
    fields = method_of(c.Basic.Publish, exchange=exchange, routing_key=key, mandatory=mandatory)
    return contents(1, PUBLISH, (encode_arguments(fields), b""), properties, bodies, frame_max=131_072)


def begun(channel: int, size: int) -> bytes:
    """A message whose body has to come."""
    header = struct.pack(">HHQ", 60, 0, size) + NOTHING
    return method(channel, c.Basic.Publish, routing_key="nowhere") + frame(HEADER, channel, header)


def pour(link: socket.socket, data: bytes, times: int = 1 << 30) -> bool:
    """Send ``data`` again and again, until it is not taken or time is up. Return whether all was taken."""
    link.settimeout(1.0)
    end_s = time.monotonic() + SEND_S
    try:
        while times and time.monotonic() < end_s:
            link.sendall(data)
            times -= 1
    except OSError:
        return False
    return True


def linked(program: ServedProgram, *first: bytes) -> Link:
    link = Link(program.port)
    link.open_channel(1)
    for data in first:
        link.write(data)
    return link


def answered(link: Link) -> None:
    """Come back when everything is done that was asked for."""
    link.probe(link.channels[1])
    while link.channels[1].flows and link.is_open:
        link.read()


# ── handshakes and connections ──────────────────────────────────────────────────────────────────────────────────────


def handshakes_byte_by_byte(program: ServedProgram) -> Left:
    left = [socket.create_connection(("127.0.0.1", program.port), 10) for _ in range(100 * MANY)]
    for byte in PROTOCOL_HEADER[:-1]:
        for one in left:
            one.sendall(bytes([byte]))
    return left


def channels_by_the_thousand(program: ServedProgram) -> Left:
    opened = b"".join(method(number, c.Channel.Open) for number in range(1, 2048))
    left = []
    for _ in range(8):
        link = Link(program.port)
        link.write(opened)
        left.append(link.socket)
    return left


def channels_come_and_go(program: ServedProgram) -> Left:
    pair = method(2, c.Channel.Open) + method(2, c.Channel.Close, reply_code=200, reply_text="bye")
    link = linked(program)
    pour(link.socket, pair * 1000)
    return [link.socket]


def clients_vanish(program: ServedProgram) -> Left:
    """In the middle of a message, with a reset."""
    for _ in range(50 * MANY):
        link = linked(program, method(1, c.Queue.Declare, queue="mine", exclusive=False), begun(1, 1000))
        link.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        link.close()
    return []


# ── what is declared ────────────────────────────────────────────────────────────────────────────────────────────────


def queues_by_the_thousand(program: ServedProgram) -> Left:
    link = linked(program)
    for number in range(500 * MANY):
        link.write(method(1, c.Queue.Declare, queue=f"mine {number}", exclusive=True, nowait=True))
    answered(link)
    return [link.socket]


def bindings_that_match_in_many_ways(program: ServedProgram) -> Left:
    """Nightly, 100,000."""
    link = linked(program, method(1, c.Queue.Declare, queue="bound", exclusive=True))
    for number in range(effort.times(2000, nightly=100_000)):
        key = f"a.*.#.*.#.{number}"
        link.write(method(1, c.Queue.Bind, queue="bound", exchange="amq.topic", routing_key=key, nowait=True))
    answered(link)
    link.write(publishes("a." * 127, [b""], "amq.topic"))
    answered(link)
    return [link.socket]


def headers_that_nearly_match(program: ServedProgram) -> Left:
    alike = {f"key {number}": "value" for number in range(50)}
    link = linked(program, method(1, c.Queue.Declare, queue="matched", exclusive=True))
    for number in range(300 * MANY):
        link.write(
            method(
                1, c.Queue.Bind, queue="matched", exchange="amq.headers", routing_key=str(number), nowait=True,
                arguments={"x-match": "all", **alike, "last": number},
            )
        )  # fmt: skip
    for number in range(30):
        properties = encode_properties(Properties(headers=alike | {"number": number}))
        link.write(publishes("", [b""], "amq.headers", properties))
    answered(link)
    return [link.socket]


def consumers_by_the_thousand(program: ServedProgram) -> Left:
    link = linked(program, method(1, c.Queue.Declare, queue="consumed", exclusive=True))
    for number in range(1500 * MANY):
        link.write(method(1, c.Basic.Consume, queue="consumed", consumer_tag=str(number), nowait=True))
    answered(link)
    return [link.socket]


# ── unread answers ──────────────────────────────────────────────────────────────────────────────────────────────────


def small_methods(program: ServedProgram) -> Left:
    link = linked(program)
    pour(link.socket, method(1, c.Basic.Qos, prefetch_count=1) * 10_000)
    return [link.socket]


def passive_declares(program: ServedProgram) -> Left:
    link = linked(program)
    pour(link.socket, method(1, c.Queue.Declare, queue="bystander", passive=True) * 2000)
    return [link.socket]


def returned_messages(program: ServedProgram) -> Left:
    link = linked(program)
    pour(link.socket, publishes("nowhere", [bytes(100_000)] * 10, mandatory=True))
    return [link.socket]


def gets_of_large_messages(program: ServedProgram) -> Left:
    """The messages take 100 MB, on the disk."""
    link = linked(
        program, method(1, c.Queue.Declare, queue="large", arguments={"x-queue-mode": "lazy"}, exclusive=True)
    )
    for _ in range(100):
        link.write(publishes("large", [bytes(MEGABYTE)], properties=PERSISTENT))
    answered(link)
    pour(link.socket, method(1, c.Basic.Get, queue="large") * 100, times=1)
    time.sleep(0.5)
    return [link.socket]


# ── bodies ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def bodies_without_an_end(program: ServedProgram) -> Left:
    """On many channels, until the memory alarm is set and beyond."""
    link = Link(program.port)
    for number in range(1, 200):
        link.open_channel(number)
        if not pour(link.socket, begun(number, 100 * MEGABYTE) + frame(BODY, number, bytes(131_064)) * 24, times=1):
            break
    return [link.socket]


def bodies_in_empty_pieces(program: ServedProgram) -> Left:
    link = linked(program, begun(1, 1000))
    pour(link.socket, frame(BODY, 1, b"") * 10_000)
    return [link.socket]


def bodies_in_tiny_pieces(program: ServedProgram) -> Left:
    link = linked(program, begun(1, 100 * MEGABYTE))
    pour(link.socket, frame(BODY, 1, b"ab") * 10_000)
    return [link.socket]


def large_messages_to_many_queues(program: ServedProgram) -> Left:
    link = linked(program)
    for number in range(50):
        link.write(method(1, c.Queue.Declare, queue=f"many {number}", exclusive=True, nowait=True))
        link.write(method(1, c.Queue.Bind, queue=f"many {number}", exchange="amq.fanout", nowait=True))
    pour(link.socket, publishes("", [bytes(MEGABYTE)] * 4, "amq.fanout"))
    return [link.socket]


def transactions_without_an_end(program: ServedProgram) -> Left:
    link = linked(program, method(1, c.Queue.Declare, queue="never", exclusive=True), method(1, c.Tx.Select))
    pour(link.socket, publishes("never", [bytes(100_000)] * 10), times=1000)
    return [link.socket]


def transactions_of_many_messages(program: ServedProgram) -> Left:
    link = linked(program, method(1, c.Queue.Declare, queue="never", exclusive=True), method(1, c.Tx.Select))
    for number in range(5000):
        link.write(publishes("never", [b"%d" % number], properties=encode_properties(Properties(type=str(number)))))
    link.write(method(1, c.Tx.Commit))
    answered(link)
    return [link.socket]


# ── the management API ──────────────────────────────────────────────────────────────────────────────────────────────


def http(program: ServedProgram, data: bytes = b"") -> socket.socket:
    link = socket.create_connection(("127.0.0.1", program.management_port), 10)
    with suppress(OSError):
        link.sendall(data)
    return link


AUTHORISED: Final = b"host: x\r\nauthorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\n"


def http_heads_without_an_end(program: ServedProgram) -> Left:
    return [http(program, b"GET /api/whoami HTTP/1.1\r\nhost: x\r\n") for _ in range(100 * MANY)]


def http_second_heads_without_an_end(program: ServedProgram) -> Left:
    whole = b"GET /api/whoami HTTP/1.1\r\n" + AUTHORISED + b"\r\n"
    left = [http(program, whole) for _ in range(50)]
    for one in left:
        one.recv(1 << 16)
        one.sendall(b"GET /api/whoami HTTP/1.1\r\nhost: x\r\n")
    return left


def http_heads_of_a_megabyte(program: ServedProgram) -> Left:
    return [http(program, b"GET / HTTP/1.1\r\nhost: x\r\nx: " + bytes([65]) * MEGABYTE) for _ in range(20)]


def http_bodies_without_an_end(program: ServedProgram) -> Left:
    head = b"PUT /api/queues/%2F/q HTTP/1.1\r\n" + AUTHORISED + b"content-length: 9999999\r\n\r\n{"
    return [http(program, head + b" " * 100_000) for _ in range(50)]


def http_answers_that_nobody_reads(program: ServedProgram) -> Left:
    """Many requests at once; none waits for the answer before it."""
    left = [http(program) for _ in range(10)]
    for one in left:
        one.settimeout(0.1)
        with suppress(OSError):
            one.sendall((b"GET /api/overview HTTP/1.1\r\n" + AUTHORISED + b"\r\n") * 500)
    return left


ATTACKS: Final = {
    one.run.__name__: one
    for one in (
        Attack(handshakes_byte_by_byte),
        Attack(channels_by_the_thousand, 128 << 20),
        Attack(channels_come_and_go),
        Attack(clients_vanish),
        Attack(queues_by_the_thousand, (32 << 20) * MANY),
        Attack(bindings_that_match_in_many_ways, (32 << 20) * MANY * 2),
        Attack(headers_that_nearly_match, (32 << 20) * MANY),
        Attack(consumers_by_the_thousand, (48 << 20) * MANY),
        Attack(small_methods),
        Attack(passive_declares),
        Attack(returned_messages),
        Attack(gets_of_large_messages, 160 << 20),
        Attack(bodies_in_empty_pieces),
        Attack(bodies_in_tiny_pieces),
        Attack(transactions_of_many_messages),
        Attack(http_heads_without_an_end),
        Attack(http_second_heads_without_an_end),
        Attack(http_heads_of_a_megabyte),
        Attack(http_bodies_without_an_end),
        Attack(http_answers_that_nobody_reads),
        Attack(bodies_without_an_end, 600 << 20, sets_alarm=True),
        Attack(large_messages_to_many_queues, 600 << 20, sets_alarm=True),
        Attack(transactions_without_an_end, 600 << 20, sets_alarm=True),
    )
}
"""By name."""
