"""What the works of :mod:`benchmarks.peers` cost warren, counted and not timed: the same numbers on every machine.

A node whose turns are run by hand does each work in one thread: once to be warm, once with Python's calls counted, once
with its memory traced, once on files that keep a tape. ``python -m tests.support.work_counts`` writes the table that
``tests/test_work_counts.py`` holds warren to; do so when a change makes something cheaper, or dearer for a reason.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import sys
import tempfile
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Final, Literal

import attrs

import warren
from benchmarks.bodies import mixed_sizes
from benchmarks.peers import procedures
from benchmarks.peers.peer import Place, Promise
from benchmarks.peers.procedures import Procedure, Run
from benchmarks.peers.warren_node import WarrenNode
from benchmarks.peers.watch import Stretch, Watch
from benchmarks.tape import RecordingFileSystem
from tests.support.runtime_tools import HandNode, hand_node
from tests.support.served_works import served_tasks
from warren.storage.filesystem import FileSystem, RealFileSystem

TABLE: Final = Path(__file__).parent.parent / "data" / "work_counts.json"
TABLE_PYTHON: Final = (3, 11)
"""The version of Python that counted."""


@attrs.frozen
class Counted:
    """A work with a number of messages that says enough, and small enough for a test."""

    do: Procedure
    messages: int
    promise: Promise = Promise.WRITTEN


COUNTED: Final = {
    "W1, publish one at a time": Counted(procedures.publish_singly, 200),
    "W2, batches of 1000": Counted(procedures.fill_and_drain, 2000),
    "W2m, batches of 1000, sizes mixed": Counted(partial(procedures.fill_and_drain, sizes=mixed_sizes(2000)), 2000),
    "W2h, three headers and an id each": Counted(procedures.letters, 200),
    "W3, publish, get, ack, one at a time": Counted(procedures.round_trips, 100),
    "W3w, the same, waiting for each": Counted(partial(procedures.round_trips, waits=True), 100),
    "W3b, in hundreds": Counted(partial(procedures.round_trips, batch=100), 1000),
    "W4, a loop with an ack each": Counted(partial(procedures.fill_and_drain, by_consume=True), 2000),
    "W4s, get and ack one at a time, from a backlog": Counted(procedures.drain_singly, 200),
    "W5, bodies of 16 KiB": Counted(partial(procedures.fill_and_drain, sizes=(16_384,), batch=100), 400),
    "W7, queues interleaved": Counted(partial(procedures.interleaved, queues=20), 400),
    "W8, fsynced, waiting for each": Counted(procedures.confirmed, 100, Promise.FSYNCED),
    "S1, served: messages like a task queue's": Counted(served_tasks, 1000),
    "W10, a topic": Counted(partial(procedures.topics, singles=100, finds=50), 1000),
}
"""By the name of a row."""


@attrs.frozen
class Cost:
    """What a stretch of a work costs, a message."""

    calls: float
    """Calls of Python functions."""
    peak_bytes: float
    """Memory at its most, above what there was when the stretch began."""
    blocks: float
    """Memory blocks that are not freed."""
    writes: float
    written_bytes: float
    syncs: float


def costs(counted: Counted, directory: Path) -> dict[str, Cost]:
    """The cost of each timed stretch of a work, by its name."""
    calls, memory, tape = _CallsWatch(), _MemoryWatch(), _TapeWatch()
    for number, watch in enumerate((Watch(), calls, memory, tape)):  # once for what only the first one pays
        place = Place(directory / str(number), counted.promise)
        gc.collect()
        gc.disable()
        try:
            counted.do(Run(_HandWarren, place, counted.messages, watch))
        finally:
            gc.enable()
    return {
        name: Cost(
            *(
                round(found / amount, 3)
                for found in (calls.found[name], memory.peaks[name], memory.blocks[name], *tape.found[name])
            )
        )
        for name, amount in calls.amounts.items()
        if amount
    }


def costs_alone(counted: Counted, directory: Path) -> dict[str, Cost]:
    """:func:`costs` in a process of its own, where no other thread's memory is counted with it."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        return process.submit(costs, counted, directory).result()


# ── a node by hand ───────────────────────────────────────────────────────────────────────────────────────────────────


class _HandWarren(WarrenNode):
    """A node on real files and a pool without threads."""

    recorder: RecordingFileSystem | None = None

    def open_node(self, sync: Literal["os", "group", "always"]) -> warren.Node:
        files: FileSystem = RealFileSystem()
        path = str(self.place.directory)
        if self.place.directory.name == _TapeWatch.directory:
            files = _HandWarren.recorder = RecordingFileSystem(path)
        self.hand: HandNode = hand_node(files, path=path, sync=sync, check_invariants=False)  # type: ignore[arg-type]
        return self.hand.node


# ── what is counted ──────────────────────────────────────────────────────────────────────────────────────────────────


class _CountingWatch(Watch):
    """Counts between the beginning and the end of a stretch."""

    def begin(self, name: str) -> None:
        raise NotImplementedError

    def end(self, name: str) -> None:
        raise NotImplementedError

    @contextmanager
    def timing(self, name: str, amount: float = 0) -> Iterator[Stretch]:
        stretch = Stretch(amount)
        self.begin(name)
        try:
            yield stretch
        finally:
            self.end(name)
        self.amounts[name] = self.amounts.get(name, 0.0) + stretch.amount

    def sample(self) -> None:
        """Memory is not what is looked at."""


class _CallsWatch(_CountingWatch):
    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, int] = {}
        self._calls = 0

    def begin(self, name: str) -> None:
        self._calls = 0

        def on_event(frame: FrameType, event: str, argument: Any) -> None:
            if event == "call":
                self._calls += 1

        sys.setprofile(on_event)

    def end(self, name: str) -> None:
        sys.setprofile(None)
        self.found[name] = self.found.get(name, 0) + self._calls


class _MemoryWatch(_CountingWatch):
    def __init__(self) -> None:
        super().__init__()
        self.peaks: dict[str, int] = {}
        self.blocks: dict[str, int] = {}
        self._bytes = self._blocks = 0

    def begin(self, name: str) -> None:
        tracemalloc.start()
        self._bytes, _ = tracemalloc.get_traced_memory()
        self._blocks = sys.getallocatedblocks()

    def end(self, name: str) -> None:
        blocks = sys.getallocatedblocks() - self._blocks
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        self.peaks[name] = self.peaks.get(name, 0) + peak - self._bytes
        self.blocks[name] = self.blocks.get(name, 0) + max(0, blocks)


class _TapeWatch(_CountingWatch):
    directory: Final = "3"

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, tuple[int, int, int]] = {}

    def begin(self, name: str) -> None:
        assert _HandWarren.recorder is not None
        _HandWarren.recorder.take()

    def end(self, name: str) -> None:
        assert _HandWarren.recorder is not None
        tape = _HandWarren.recorder.take()
        writes, written, syncs = self.found.get(name, (0, 0, 0))
        synced = sum(operation.kind == "sync" for operation in tape.operations)
        self.found[name] = writes + tape.writes, written + tape.bytes_written, syncs + synced


# ── the table ────────────────────────────────────────────────────────────────────────────────────────────────────────


def kept() -> dict[str, dict[str, Cost]]:
    """The table: what each row cost when it was written."""
    plain = json.loads(TABLE.read_text(encoding="utf-8"))
    return {row: {name: Cost(**cost) for name, cost in found.items()} for row, found in plain.items()}


MORE: Final = Cost(calls=1.03, peak_bytes=1.15, blocks=1.25, writes=1.02, written_bytes=1.01, syncs=1.02)
"""By what factor a message may come to cost more than the table says."""
AND_SO_MUCH: Final = Cost(calls=0.05, peak_bytes=32, blocks=0.5, writes=0.005, written_bytes=1, syncs=0.005)
"""And by how much, if the cost is small."""
CHEAPER: Final = 0.75
"""If calls fall below this share of the table's, the table is out of date: it would let too much through."""


def complaints(
    row: str, table: dict[str, Cost], found: dict[str, Cost], *, python: tuple[int, int] = TABLE_PYTHON
) -> list[str]:
    """What a row costs more than its table says, a sentence each; and what it has come to cost far less.

    ``python``: the version that counted; later ones inline comprehensions, so fewer calls are no reason to complain.
    """
    said = []
    for name, cost in found.items():
        was = table[name]
        for field in attrs.fields(Cost):
            now, then = getattr(cost, field.name), getattr(was, field.name)
            most = then * getattr(MORE, field.name) + getattr(AND_SO_MUCH, field.name)
            if now > most:
                said.append(f"{row}: {name}: {field.name} {now} a message, at most {most:.3f} ({then} in the table)")
        if python == TABLE_PYTHON and cost.calls < was.calls * CHEAPER - AND_SO_MUCH.calls:
            said.append(f"{row}: {name}: only {cost.calls} calls, {was.calls} in the table: write it anew")
    return said


def main(say: Callable[[str], None] = print) -> None:
    """Count everything and write the table."""
    table: dict[str, dict[str, Any]] = {}
    for row, counted in COUNTED.items():
        with tempfile.TemporaryDirectory(prefix="warren-counts-") as directory:
            found = costs(counted, Path(directory))
        table[row] = {name: attrs.asdict(cost) for name, cost in found.items()}
        for name, cost in found.items():
            say(f"{row}: {name}: {cost}")
    TABLE.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
