"""``python -m benchmarks.serving``: warren's server beside a real RabbitMQ, with the same client, in one run.

Both run in processes of their own and take turns, case by case. The client costs next to nothing
(:mod:`benchmarks.amqp_client`). ``--quick``: a twentieth of the messages, one pair each, nothing written.
"""

from __future__ import annotations

import functools
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final

import attrs
import typer
from rich.progress import Progress

from benchmarks import serving_works as works
from benchmarks.amqp_client import until_answered
from benchmarks.figures import Bar, Figure, Results, Unit
from benchmarks.report import PROJECT, keep, show, wide_console

TASKS: Final = 50_000
SIZES: Final = {12: 100_000, 1024: 60_000, 16_384: 10_000}
"""Bytes of a body, and how many messages."""
CONNECTIONS: Final = (1, 16)
END_TO_END: Final = {16: 100_000, 1024: 60_000}
SINGLE_MESSAGES: Final = 2000
IDLE_CONNECTIONS: Final = 1000
BACKLOG: Final = 1_000_000


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


# ── a run ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@attrs.frozen
class Case:
    """Something that is measured of both, and the figures that come of it: names, titles, units, bars."""

    group: str
    measured: works.Work
    figures: dict[str, tuple[str, Unit, Bar | None]]
    repeats: int


def cases(scale: float, repeats: int) -> Iterator[Case]:
    """All cases: messages that differ, messages that are alike, and what they take."""

    def count(messages: int, least: int = works.WINDOW) -> int:
        return max(round(messages * scale), least)

    def rate(title: str, times: float | None) -> tuple[str, Unit, Bar | None]:
        return title, "messages/s", None if times is None else Bar("at least", times)

    kinds: dict[str, tuple[Callable[[], list[bytes]], float]] = {
        "Celery's tasks": (works.tasks, 2.0),
        "Celery's tasks, one in ten transient": (functools.partial(works.tasks, transient=0.1), 2.0),
        "different lengths": (works.different_lengths, 6.0),
    }
    for kind, (windows, times) in kinds.items():
        figures = {
            "published": rate(f"publish: {kind}", times),
            "confirmed": rate(f"publish, confirms in windows of {works.WINDOW}: {kind}", times),
            "consumed": rate(f"consume, an ack each: {kind}", times),
        }
        yield Case(kind, works.one_connection(windows, count(TASKS)), figures, repeats)
    yield Case(
        "ten queues",
        works.ten_queues(count(TASKS)),
        {"confirmed": rate("publish, confirms: Celery's tasks, through a topic exchange to ten queues", 1.5)},
        repeats,
    )
    yield Case(
        "several at once",
        works.at_once(works.tasks, count(TASKS, 4 * works.WINDOW), 4, confirms=True, acks=True),
        {"rate": rate("four publishers with confirms and four consumers with acks at once: Celery's tasks", 2.0)},
        repeats,
    )
    for connections in (1, 8):
        of = f"{connections} connection{'s' if connections > 1 else ''}"
        yield Case(
            f"latency, {of}",
            works.latency(count(SINGLE_MESSAGES, 100) * connections, connections),
            {
                name: (f"publish to consume, {name}: Celery's tasks, {of}", "µs", Bar("at most", 1.0))
                for name in ("p50", "p99")
            },
            repeats,
        )
    for size, messages in END_TO_END.items():
        for checked in (False, True):
            how = "with confirms and acks" if checked else "without"
            windows = functools.partial(works.alike, size)
            yield Case(
                f"end to end, {size} B, {how}",
                works.at_once(windows, count(messages), 1, confirms=checked, acks=checked),
                {"rate": rate(f"identical: a publisher and a consumer at once, {how}: {size} B", None)},
                repeats,
            )
    for size, messages in SIZES.items():
        for connections in CONNECTIONS:
            of = f"{size} B, {connections} connection{'s' if connections > 1 else ''}"
            yield Case(
                of,
                works.throughput(size, count(messages, works.WINDOW * connections), connections),
                {
                    "publish": rate(f"identical: publish, confirms in windows of {works.WINDOW}: {of}", 2.0),
                    "acks": rate(f"identical: consume, acks in hundreds: {of}", 1.0),
                    "auto-ack": rate(f"identical: consume, auto-ack: {of}", 1.0),
                },
                repeats,
            )
    yield Case(
        "idle",
        works.idle_connections(count(IDLE_CONNECTIONS, 50)),
        {"connection": ("memory of an idle connection", "KB", Bar("at most", 0.5))},
        1,
    )
    waiting = count(BACKLOG, 10 * works.WINDOW)
    backlogs: dict[str, Callable[[], list[bytes]]] = {
        "Celery's tasks": works.tasks,
        f"identical messages of {works.BACKLOG_BODY} B": functools.partial(works.alike, works.BACKLOG_BODY),
    }
    for kind, windows in backlogs.items():
        yield Case(
            f"backlog: {kind}",
            works.backlog(waiting, windows),
            {
                "grown": (f"memory grown by {waiting:,} messages: {kind}", "MB", Bar("at most", 64.0, "value")),
                "started": (
                    f"start after a kill with them, until the first connection is answered: {kind}",
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
        all_cases = list(cases(scale, repeats))
        task = progress.add_task("", total=sum(2 * case.repeats for case in all_cases))
        for case in all_cases:
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
    keep(results, "serving")


if __name__ == "__main__":
    typer.run(main)
