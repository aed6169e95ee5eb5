"""Every crash point of recorded runs, as :mod:`tests.crash_points` makes them; and that it finds what it looks for.

Another seed, or one state again: ``python -m tests.crash_points``, docs/how-it-is-tested.md.
"""

from __future__ import annotations

import random
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.crash_points import recording
from tests.crash_points.losses import KEPT, LOST, ChosenSurvivors, CrashPoint, cuts, power_losses
from tests.crash_points.recording import RecordedFile, RecordingFileSystem, Replay
from tests.crash_points.search import BrokenPromiseError, Search, check_state, hash_of, moments_of, point_of
from tests.crash_points.workloads import WORKLOADS
from tests.support.effort import EFFORT, new_seed, times
from tests.support.tried import Count, Tried
from warren.actors.engines.declared.definitions_file import DefinitionsFile
from warren.actors.engines.unique_keys import UniqueKeys
from warren.storage.memory import MemoryFileSystem
from warren.storage.memory_tree import Directory

STATES = {
    # in a full run, and in a nightly one
    "queues": (500, 10_000),
    "queues-recovery": (500, 6_000),
    "backlog": (300, 6_000),
    "stores": (400, 8_000),
    "stores-recovery": (300, 8_000),
    "roll-over": (50, 50),
    "empty-a-file": (60, 60),
    "compact-all": (300, 1_000),
    "stop": (30, 30),
    "compact-all-recovery": (500, 4_000),
    "topics": (400, 6_000),
    "topics-recovery": (300, 6_000),
    "nodes": (600, 8_000),
    "unique": (300, 4_000),
    "unique-acks": (250, 5_000),
    "unique-acks-recovery": (200, 4_000),
    "delays": (1000, 8_000),
    "delays-recovery": (400, 8_000),
    "definitions": (300, 15_000),
    "definitions-recovery": (200, 15_000),
    "records": (300, 12_000),
    "records-recovery": (300, 12_000),
}


@pytest.mark.parametrize("name", list(WORKLOADS))
def test_no_crash_breaks_a_promise(name: str, tried: Count) -> None:
    full, nightly = STATES[name]
    seed = new_seed() if EFFORT == "nightly" else 1
    search = Search(WORKLOADS[name])
    tried(Tried.CRASH_STATES, search.states(times(full, quick=15, nightly=nightly), seed))


# ── it finds what it looks for ───────────────────────────────────────────────────────────────────────────────────────


def _does_nothing(*_: object) -> None:
    pass


def _a_sync_that_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RecordedFile, "sync", _does_nothing)


def _a_directory_that_is_never_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RecordingFileSystem, "_sync_names", _does_nothing)


def _writes_that_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if confirms came ahead of writes: the record lacks every ninth."""
    add, count = recording.Record.add, iter(range(1 << 30))

    def now_and_then(self: recording.Record, operation: recording.Operation) -> None:
        if not isinstance(operation, recording.Written) or next(count) % 9:
            add(self, operation)

    monkeypatch.setattr(recording.Record, "add", now_and_then)


def _definitions_behind_what_was_not_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DefinitionsFile, "_make_safe", _does_nothing)


BREAKS: list[tuple[str, Callable[[pytest.MonkeyPatch], None]]] = [
    *((name, _a_sync_that_does_nothing) for name in ("records", "delays", "definitions", "stores", "queues", "topics")),
    *((name, _a_directory_that_is_never_synced) for name in ("records", "delays", "definitions", "stores", "queues")),
    *((name, _writes_that_are_dropped) for name in ("records", "delays")),
    ("unique-acks", _a_sync_that_does_nothing),
    ("nodes", _a_sync_that_does_nothing),
    ("definitions-recovery", _definitions_behind_what_was_not_synced),
]


@pytest.mark.parametrize(("name", "break_it"), BREAKS)
@pytest.mark.slow
def test_a_promise_that_is_broken_is_found_and_can_be_seen_again(
    name: str, break_it: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    break_it(monkeypatch)
    with pytest.raises(BrokenPromiseError) as found:
        Search(WORKLOADS[name]).states(20_000, 1)
    if break_it is _writes_that_are_dropped:
        return  # it depends on what was run before
    [(seed, point)] = re.findall(rf"python -m tests.crash_points {name} --seed (\d+) --point '(.*)'", str(found.value))
    workload, at = WORKLOADS[name], CrashPoint.parse(point)
    assert str(at) == point
    with pytest.raises(BrokenPromiseError):
        check_state(workload, *point_of(workload, int(seed), at), at, int(seed), deep=True)


@pytest.mark.slow
def test_a_message_that_comes_back_without_its_key_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mistake that it found, in one of the runs that show it."""
    monkeypatch.setattr(UniqueKeys, "_note_earlier", _does_nothing)
    seed = 3903345311
    with pytest.raises(BrokenPromiseError, match="k0: free"):
        Search(WORKLOADS["unique-acks"]).one_run(seed, 100, random.Random(seed))


@pytest.mark.slow
def test_the_command_line_checks_states_and_one_point() -> None:
    def said(*arguments: str) -> str:
        command = [sys.executable, "-m", "tests.crash_points", "definitions", *arguments]
        here = Path(__file__).parent.parent
        return subprocess.run(command, cwd=here, capture_output=True, text=True, check=True, timeout=120).stdout

    assert re.match(r"40 states, \d+ a second of a core: every promise is kept", said("--states", "40"))
    assert said("--seed", "1", "--point", "3 power 1,0") == "every promise is kept\n"


# ── what is made of a record ─────────────────────────────────────────────────────────────────────────────────────────


def _drawn_changes(files: MemoryFileSystem, rng: random.Random) -> None:
    for _ in range(60):
        path = f"/d{rng.randrange(3)}/f{rng.randrange(4)}"
        directory = path.rpartition("/")[0]
        match rng.choice(("append", "append", "pwrite", "truncate", "rename", "delete", "sync", "names", "tree")):
            case "append":
                files.make_directories(directory)
                files.open_append(path).append(rng.randbytes(rng.randrange(1, 2000)))
            case "pwrite" if files.exists(path):
                files.open_append(path).pwrite(rng.randbytes(9), rng.randrange(1500))
            case "truncate" if files.exists(path):
                files.open_append(path).truncate(rng.randrange(1500))
            case "rename" if files.exists(path):
                files.rename(path, f"{directory}/f{rng.randrange(4)}")
            case "delete" if files.exists(path):
                files.delete(path)
            case "sync" if files.exists(path):
                files.open_append(path).sync()
            case "names" if files.is_directory(directory):
                files.sync_directory(directory)
            case "tree" if rng.random() < 0.2:
                files.delete_tree(directory)


def _disk(files: MemoryFileSystem) -> Any:
    """All that is issued, durable and pending."""

    def names(directory: Directory) -> Any:
        return [
            {name: names(node) if isinstance(node, Directory) else (node.issued, node.durable, node.pending)
             for name, node in sorted(some.items())}
            for some in (directory.issued, directory.durable)
        ]  # fmt: skip

    return names(files._root), len(files._changes)


@pytest.mark.parametrize("seed", range(times(30, quick=4)))
def test_a_record_makes_the_same_disk_again(seed: int) -> None:
    rng, base = random.Random(seed), MemoryFileSystem(seed)
    _drawn_changes(base, rng)
    files: MemoryFileSystem = recording.recording(base, lambda: None)
    record = files.record  # type: ignore[attr-defined]
    _drawn_changes(files, rng)
    files = files.after_process_crash()
    _drawn_changes(files, rng)
    record.end()
    replay = Replay.of(record)
    for operation in record.operations:
        replay.apply(operation)
    assert _disk(replay.disk) == _disk(files)
    replay.disk.check_invariants()
    assert len(record.promises) == len(record.operations) + 1


def test_losses_are_between_all_and_nothing() -> None:
    files = MemoryFileSystem()
    files.make_directories("/d")
    files.sync_all()
    handle = files.open_append("/d/f")
    handle.append(b"a" * 700)
    handle.append(b"b" * 30)
    kept = ChosenSurvivors()
    assert hash_of(files.after_power_loss(kept)) == hash_of(files.after_process_crash())
    assert kept.made == [(KEPT, 2), (KEPT, 5), (KEPT, 3)]
    assert not files.after_power_loss(ChosenSurvivors(rest=LOST)).exists("/d/f")
    points, are_all = power_losses(2, kept.made)
    assert (len(points), are_all) == (30, True)
    left = {files.after_power_loss(ChosenSurvivors(point.choices)).contents().get("/d/f") for point in points}
    firsts = [b"", b"a" * 700, bytes(700), b"a" * 512, bytes(512) + b"a" * 188]
    seconds = [b"", b"b" * 30, bytes(30)]
    assert left == {None} | {f.ljust(700 if s else 0, b"\0") + s for f in firsts for s in seconds}


def test_where_there_are_many_losses_each_single_one_is_tried() -> None:
    made = [(KEPT, 2)] * 10
    points, are_all = power_losses(5, made)
    assert not are_all
    assert {sum(point.choices) for point in points} == {0, 1, 9, 10}
    assert len({point.choices for point in points}) == 22
    assert [CrashPoint.parse(str(point)) for point in points] == points


def test_writes_are_torn_where_sectors_meet() -> None:
    assert cuts(0, 512) == []
    assert cuts(100, 500) == [412]
    assert cuts(0, 5120) == [512, 2560, 4608]
    assert cuts(7, 1) == []


def test_promises_are_those_of_the_moment_before_the_operation() -> None:
    number = 0
    files = recording.recording(MemoryFileSystem(), lambda: number)
    handle = files.open_append("/f")
    number = 1
    handle.append(b"x")
    number = 2
    files.record.end()
    assert files.record.promises == [0, 1, 2]
    assert [operation for _, operation, _ in moments_of(files.record)] == [0, 1, 2]
