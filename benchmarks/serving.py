"""``python -m benchmarks.serving``: warren's server beside a real RabbitMQ, with the same client, in one run.

Both run in processes of their own and take turns, case by case. The client costs next to nothing
(:mod:`benchmarks.amqp_client`). ``--quick``: a twentieth of the messages, one pair each, nothing written.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Annotated, Final, Protocol

import attrs
import psutil
import typer
from pamqp import commands as c
from rich.progress import Progress

from benchmarks.amqp_client import Client, until_answered
from benchmarks.figures import Bar, Figure, Results, Unit
from benchmarks.report import PROJECT, keep, show, wide_console
from warren.amqp.methods import method_of

SIZES: Final = {12: 100_000, 1024: 60_000, 16_384: 10_000}
"""Bytes of a body, and how many messages."""
CONNECTIONS: Final = (1, 16)
WINDOW: Final = 1000
ACKED_TOGETHER: Final = 100
IDLE_CONNECTIONS: Final = 1000
BACKLOG: Final = 1_000_000
BACKLOG_BODY: Final = 128
KILLS: Final = 3


class Contestant(Protocol):
    """A server that can be started, and killed."""

    name: str

    @property
    def port(self) -> int: ...

    @property
    def pid(self) -> int: ...

    def kill_and_start(self) -> float:
        """Seconds from the new start until a connection is answered."""


class Warren:
    """``warren serve`` on a directory."""

    name = "warren"

    def __init__(self, path: Path) -> None:
        self._path = path
        self.port = 0
        self._start()

    def _start(self) -> None:
        command = [sys.executable, "-m", "warren", "serve", str(self._path), "--port", str(self.port)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline().rpartition(":")[2])

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill_and_start(self) -> float:
        self._process.kill()
        self._process.wait()
        begun = time.perf_counter()
        self._start()
        until_answered(self.port, 60.0)
        return time.perf_counter() - begun

    def close(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait()


class RabbitMQ:
    """A real broker on a directory."""

    name = "RabbitMQ"

    def __init__(self, path: Path) -> None:
        from tests.support.broker import Broker

        self._broker = Broker(path)
        self._broker.start()

    @property
    def port(self) -> int:
        return self._broker.amqp_port

    @property
    def pid(self) -> int:
        assert self._broker.pid is not None
        return self._broker.pid

    def kill_and_start(self) -> float:
        self._broker.kill()
        begun = time.perf_counter()
        self._broker.start()
        return time.perf_counter() - begun

    def close(self) -> None:
        self._broker.close()


# ── what is measured ─────────────────────────────────────────────────────────────────────────────────────────────────

Measured = Callable[[Contestant], dict[str, float]]


def throughput(size: int, messages: int, connections: int) -> Measured:
    """Published with confirms, consumed with acks, consumed without: messages a second."""

    def measured(server: Contestant) -> dict[str, float]:
        each = messages // connections // WINDOW or 1
        total = each * WINDOW * connections
        with ExitStack() as stack:
            publishers = [stack.enter_context(Client(server.port)) for _ in range(connections)]
            names = [f"bench-{size}-{connections}-{number}" for number in range(connections)]
            windows = []
            for publisher, name in zip(publishers, names, strict=True):
                publisher.call(method_of(c.Queue.Declare, queue=name, durable=True), c.Queue.DeclareOk)
                publisher.call(c.Confirm.Select(), c.Confirm.SelectOk)
                windows.append(Client.window(name, [os.urandom(size) for _ in range(WINDOW)]))
            found: dict[str, float] = {}
            for what in ("acks", "auto-ack"):
                offset = 0 if what == "acks" else each
                begun = time.perf_counter()
                for number in range(offset + 1, offset + each + 1):
                    for publisher, window in zip(publishers, windows, strict=True):
                        publisher.send(window)
                    for publisher in publishers:
                        publisher.wait_for_confirms(number * WINDOW)
                found.setdefault("publish", total / (time.perf_counter() - begun))
                begun = time.perf_counter()
                _consume(server.port, names, each * WINDOW, no_ack=what == "auto-ack")
                found[what] = total / (time.perf_counter() - begun)
            for publisher, name in zip(publishers, names, strict=True):
                publisher.call(method_of(c.Queue.Delete, queue=name), c.Queue.DeleteOk)
        return found

    return measured


def _consume(port: int, queues: list[str], each: int, *, no_ack: bool) -> None:
    with ExitStack() as stack:
        consumers = [stack.enter_context(Client(port)) for _ in queues]
        for consumer, queue in zip(consumers, queues, strict=True):
            consumer.consume(queue, no_ack=no_ack, prefetch=0 if no_ack else 10 * ACKED_TOGETHER)
        for consumer in consumers:
            got = acked = 0
            for run in consumer.deliveries():
                got += len(run.bodies)
                last = run.tags[-1]
                if not no_ack and (last - acked >= ACKED_TOGETHER or got == each):
                    consumer.ack_up_to(last)
                    acked = last
                if got == each:
                    break
            consumer.call(c.Basic.Qos(0, 0, False), c.Basic.QosOk)  # it has come to the acks


def latency(messages: int) -> Measured:
    """From a publish to its delivery, one after the other: µs."""

    def measured(server: Contestant) -> dict[str, float]:
        with Client(server.port) as publisher, Client(server.port) as consumer:
            publisher.call(method_of(c.Queue.Declare, queue="latency", durable=True), c.Queue.DeclareOk)
            publisher.call(c.Confirm.Select(), c.Confirm.SelectOk)
            consumer.consume("latency", prefetch=10)
            window, coming = Client.window("latency", [bytes(12)]), consumer.deliveries()
            took = []
            for number in range(1, messages + 1):
                begun = time.perf_counter()
                publisher.send(window)
                delivered = next(coming)
                took.append((time.perf_counter() - begun) * 1e6)
                consumer.ack_up_to(delivered.tags[-1])
                publisher.wait_for_confirms(number)
            took.sort()
            return {"p50": took[len(took) // 2], "p99": took[len(took) * 99 // 100]}

    return measured


def idle_connections(count: int) -> Measured:
    """Memory that connections with a channel take: KB each."""

    def measured(server: Contestant) -> dict[str, float]:
        before = _rss(server.pid)
        with ExitStack() as stack:
            for _ in range(count):
                stack.enter_context(Client(server.port))
            return {"connection": (_rss(server.pid) - before) / count / 1e3}

    return measured


def backlog(messages: int) -> Measured:
    """Memory grown by messages that wait, and the start after a kill: the median of several."""

    def measured(server: Contestant) -> dict[str, float]:
        with Client(server.port) as publisher:
            publisher.call(method_of(c.Queue.Declare, queue="backlog", durable=True), c.Queue.DeclareOk)
            publisher.call(c.Confirm.Select(), c.Confirm.SelectOk)
            before = _rss(server.pid)
            window = Client.window("backlog", [os.urandom(BACKLOG_BODY) for _ in range(WINDOW)])
            for number in range(1, messages // WINDOW + 1):
                publisher.send(window)
                publisher.wait_for_confirms(number * WINDOW)
            grown = (_rss(server.pid) - before) / 1e6
        started = median(server.kill_and_start() for _ in range(KILLS))
        with Client(server.port) as publisher:
            publisher.call(method_of(c.Queue.Delete, queue="backlog"), c.Queue.DeleteOk)
        return {"grown": grown, "started": started}

    return measured


def _rss(pid: int) -> int:
    return int(psutil.Process(pid).memory_info().rss)


# ── a run ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@attrs.frozen
class Case:
    """Something that is measured of both, and the figures that come of it: names, titles, units, bars."""

    group: str
    measured: Measured
    figures: dict[str, tuple[str, Unit, Bar | None]]
    repeats: int


def cases(scale: float, repeats: int) -> Iterator[Case]:
    yield Case(
        "idle",
        idle_connections(max(round(IDLE_CONNECTIONS * scale), 50)),
        {"connection": ("memory of an idle connection", "KB", Bar("at most", 0.5))},
        1,
    )
    for size, messages in SIZES.items():
        for connections in CONNECTIONS:
            of = f"{size} B, {connections} connection{'s' if connections > 1 else ''}"
            yield Case(
                of,
                throughput(size, max(round(messages * scale), WINDOW * connections), connections),
                {
                    "publish": (f"publish, confirms in windows of {WINDOW}: {of}", "messages/s", Bar("at least", 2.0)),
                    "acks": (f"consume, acks in hundreds: {of}", "messages/s", Bar("at least", 1.0)),
                    "auto-ack": (f"consume, auto-ack: {of}", "messages/s", Bar("at least", 1.0)),
                },
                repeats,
            )
    yield Case(
        "latency",
        latency(max(round(2000 * scale), 100)),
        {
            "p50": ("publish to consume, p50", "µs", Bar("at most", 1.0)),
            "p99": ("publish to consume, p99", "µs", Bar("at most", 1.0)),
        },
        repeats,
    )
    waiting = max(round(BACKLOG * scale), 10 * WINDOW)
    yield Case(
        "backlog",
        backlog(waiting),
        {
            "grown": (f"memory grown by {waiting:,} messages of {BACKLOG_BODY} B", "MB", Bar("at most", 64.0, "value")),
            "started": (
                "start after a kill, until the first connection is answered",
                "s",
                Bar("at most", 1.0, "value"),
            ),
        },
        1,
    )


def measure(scale: float, repeats: int, progress: Progress) -> Results:
    """All figures."""
    figures = []
    with servers() as (ours, theirs):
        found = list(cases(scale, repeats))
        task = progress.add_task("", total=sum(2 * case.repeats for case in found))
        for case in found:
            pairs: list[tuple[dict[str, float], dict[str, float]]] = []
            for _ in range(case.repeats):
                both = []
                for server in (ours, theirs):
                    progress.update(task, description=f"{case.group}: {server.name}")
                    both.append(case.measured(server))
                    progress.advance(task)
                pairs.append((both[0], both[1]))
            for name, (title, unit, bar) in case.figures.items():
                mine, other = [pair[0][name] for pair in pairs], [pair[1][name] for pair in pairs]
                figures.append(
                    Figure.of_pairs(mine, other, "RabbitMQ", group=case.group, title=title, unit=unit, bar=bar)
                )
        progress.remove_task(task)
    return Results.of(figures, quick=scale < 1)


@contextmanager
def servers() -> Iterator[tuple[Warren, RabbitMQ]]:
    """Both, each on a directory of its own."""
    with tempfile.TemporaryDirectory(prefix="warren-serving-") as scratch:
        ours = Warren(Path(scratch) / "warren")
        try:
            theirs = RabbitMQ(Path(scratch) / "rabbitmq")
            try:
                yield ours, theirs
            finally:
                theirs.close()
        finally:
            ours.close()


def main(
    *, quick: Annotated[bool, typer.Option("--quick", help="A twentieth of everything; writes nothing.")] = False
) -> None:
    """Measure warren's server beside a real RabbitMQ."""
    sys.path.insert(0, str(PROJECT))
    console = wide_console()
    with Progress(console=console) as progress:
        results = measure(0.05 if quick else 1.0, 1 if quick else 3, progress)
    show(console, results)
    keep(results, "serving", "serving-benchmarks.md")


if __name__ == "__main__":
    typer.run(main)
