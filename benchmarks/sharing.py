"""``python -m benchmarks.sharing``: what it costs to use a node that another process hosts.

The same work with a handle of the hosting process and with one of a guest, in turn, in one run; what goes one at a time
beside a bare echo over a Unix socket between two Python processes. ``--quick``: a twentieth, once, nothing written.
"""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Annotated, Final, Literal

import typer
from rich.progress import track

import warren
from benchmarks.figures import Bar, Figure, Results
from benchmarks.measure import seconds_of
from benchmarks.report import DOCS, markdown, table, wide_console, write_into

BODY: Final = bytes(128)
ONE_BY_ONE: Final = 2000
TOGETHER: Final = 100_000
BATCH: Final = 1000
ACKED_TOGETHER: Final = 100
REPEATS: Final = 5
_TIME: Final = struct.Struct("d")

Counterpart = Literal["an echo", "the host's own"]
TITLES: Final[dict[str, tuple[str, Counterpart]]] = {
    "publish": ("publish and its confirm, one after the other", "an echo"),
    "get": ("`get` and its ack, one after the other", "an echo"),
    "across": ("from a publish in one guest to a consumer in another", "an echo"),
    "publish many": (f"`publish_many`, {BATCH} at a time", "the host's own"),
    "publish in a loop": ("`publish` in a loop, confirms at the end", "the host's own"),
    "get many": (f"`get_many`, bodies and `ack`, {BATCH} at a time", "the host's own"),
    "consume": ("`consume`, acks in hundreds", "the host's own"),
}
LIMITS: Final[dict[Counterpart, float]] = {"an echo": 3.0, "the host's own": 2.0}
"""In times of the counterpart's."""


def open_node(directory: str) -> warren.Node:
    return warren.open(directory, share=True, sync="os")


@contextmanager
def another(role: Literal["host", "consumer"], directory: str) -> Iterator[subprocess.Popen[str]]:
    """A process that has the directory open, until the end of this."""
    command = [sys.executable, "-m", "benchmarks.sharing", role, directory]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.communicate()


def echo(count: int) -> float:
    """µs there and back."""
    here, there = socket.socketpair()
    if not os.fork():
        here.close()
        while data := there.recv(1024):
            there.sendall(data)
        os._exit(0)
    there.close()

    def asked() -> None:
        for _ in range(count):
            here.sendall(BODY)
            here.recv(1024)

    took = seconds_of(asked) / count * 1e6
    here.close()
    os.wait()
    return took


def across(directory: str, count: int) -> float:
    """µs from a publish to the delivery, median; one message at a time."""
    with open_node(directory) as node, another("consumer", directory) as consumer:
        there, back = node.queue("there"), node.queue("back").consume(auto_ack=True)
        for _ in range(count):
            there.publish(_TIME.pack(time.monotonic()) + BODY[_TIME.size :])
            next(back)
        consumer.terminate()
        took = sorted(_TIME.unpack(body)[0] for body in node.queue("took").get_many(count, auto_ack=True).bodies)
    return float(took[len(took) // 2])


def _consume_and_answer(directory: str) -> None:
    with open_node(directory) as node:
        back, took, there = node.queue("back"), node.queue("took"), node.queue("there")
        print("ready", flush=True)
        for delivery in there.consume(prefetch=10):
            seconds = time.monotonic() - _TIME.unpack_from(delivery.body)[0]
            delivery.ack()
            took.publish(_TIME.pack(seconds * 1e6)).wait()
            back.publish(b"").wait()


def work(node: warren.Node, one_by_one: int, together: int) -> dict[str, float]:
    """µs a message."""
    queue = node.queue("bench")

    def publish() -> None:
        for _ in range(one_by_one):
            queue.publish(BODY).wait()

    def get() -> None:
        for _ in range(one_by_one):
            delivery = queue.get()
            assert delivery is not None
            delivery.ack()

    def publish_many() -> None:
        for confirm in [queue.publish_many([BODY] * BATCH) for _ in range(together // BATCH)]:
            confirm.wait()

    def get_many() -> None:
        for _ in range(together // BATCH):
            got = queue.get_many(BATCH)
            assert len(got.bodies) == BATCH
            queue.ack(got)

    def publish_in_a_loop() -> None:
        for confirm in [queue.publish(BODY) for _ in range(together)]:
            confirm.wait()

    def consume() -> None:
        with queue.consume(prefetch=10 * ACKED_TOGETHER) as consumer:
            for _ in range(together // ACKED_TOGETHER):
                queue.ack(list(islice(consumer, ACKED_TOGETHER)))

    return {
        "publish": seconds_of(publish) / one_by_one * 1e6,
        "get": seconds_of(get) / one_by_one * 1e6,
        "publish many": seconds_of(publish_many) / together * 1e6,
        "get many": seconds_of(get_many) / together * 1e6,
        "publish in a loop": seconds_of(publish_in_a_loop) / together * 1e6,
        "consume": seconds_of(consume) / together * 1e6,
    }


def measure(scale: float, repeats: int) -> Results:
    """All figures."""
    one_by_one, together = max(round(ONE_BY_ONE * scale), 100), max(round(TOGETHER * scale), BATCH)
    ours, beside = defaultdict[str, list[float]](list), defaultdict[str, list[float]](list)
    with tempfile.TemporaryDirectory(prefix="warren-bench-") as scratch:
        for number in track(range(repeats), "in turn"):
            echoed = echo(one_by_one)
            with open_node(os.path.join(scratch, f"host-{number}")) as node:
                hosts = work(node, one_by_one, together)
            directory = os.path.join(scratch, f"guest-{number}")
            with another("host", directory):
                with open_node(directory) as node:
                    guests = work(node, one_by_one, together)
                guests["across"] = across(directory, one_by_one)
            for name, (_, counterpart) in TITLES.items():
                ours[name].append(guests[name])
                beside[name].append(echoed if counterpart == "an echo" else hosts[name])
    figures = [
        Figure.of_pairs(
            ours[name],
            beside[name],
            counterpart,
            group="sharing",
            title=title,
            unit="µs",
            bar=Bar("at most", LIMITS[counterpart]),
        )
        for name, (title, counterpart) in TITLES.items()
    ]
    return Results.of(figures, quick=scale < 1)


def main(
    *, quick: Annotated[bool, typer.Option("--quick", help="A twentieth of everything, once; writes nothing.")] = False
) -> None:
    """Measure a guest beside the host's own handles."""
    results = measure(0.05 if quick else 1.0, 1 if quick else REPEATS)
    wide_console().print(table(results.figures))
    if not quick:
        write_into(DOCS / "sharing.md", markdown(results))


if __name__ == "__main__":
    if sys.argv[1:2] == ["host"]:
        with open_node(sys.argv[2]):
            print("ready", flush=True)
            sys.stdin.read()
    elif sys.argv[1:2] == ["consumer"]:
        _consume_and_answer(sys.argv[2])
    else:
        typer.run(main)
