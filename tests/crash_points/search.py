"""States of a disk after a crash, made from a record, each checked once."""

from __future__ import annotations

import hashlib
import random
import traceback
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol

import attrs

from tests.crash_points.losses import ChosenSurvivors, CrashPoint, chosen, power_losses, torn_sizes
from tests.crash_points.recording import Operation, Record, Replay, Written
from warren.storage.memory import MemoryFileSystem
from warren.storage.memory_tree import Directory

_MOST_BARREN_RUNS: Final = 50
"""This many runs without a new state are no coincidence."""


class Check(Protocol):
    def __call__(self, files: MemoryFileSystem, promises: Any, *, power: bool, deep: bool) -> None:
        """Open what a crash left, and raise where a promise is broken. ``deep``: and go on from there."""


@attrs.frozen
class Workload:
    """Something that is done to a disk, drawn from a seed, and what must hold whatever cuts it off."""

    name: str
    run: Callable[[int], Record]
    check: Check
    holes: bool = True
    """Whether the first sectors of a write may be missing alone: not where the format has no way to see that."""


class BrokenPromiseError(AssertionError):
    """What a crash left is not what was promised."""


@attrs.define
class Search:
    """A search of one workload; counts the distinct states that it has checked."""

    workload: Workload
    seen: set[bytes] = attrs.Factory(set)
    _checked: set[tuple[bytes, int, bool]] = attrs.Factory(set)

    def states(self, count: int, seed: int) -> int:
        """Check ``count`` distinct states more, drawn from a seed; how many they were."""
        target, rng, barren = len(self.seen) + count, random.Random(seed), 0
        while len(self.seen) < target:
            run_seed, before = rng.getrandbits(32), len(self.seen)
            self.one_run(run_seed, target - before, random.Random(run_seed))
            barren = 0 if len(self.seen) > before else barren + 1
            assert barren < _MOST_BARREN_RUNS, f"{self.workload.name}: there are no more states than {before}"
        return count

    def one_run(self, seed: int, count: int, rng: random.Random) -> None:
        """Up to ``count`` states of one run, spread over its operations."""
        record = self.workload.run(seed)
        self._checked.clear()
        moments = len(record.operations) + 1
        share = -(-count // moments)
        chosen_moments = set(rng.sample(range(moments), min(count, moments))) if share == 1 else set(range(moments))
        target = len(self.seen) + count
        for replay, operation, following in moments_of(record):
            if operation in chosen_moments:
                until = min(target, len(self.seen) + share)
                for point in self._points(replay, operation, following, rng):
                    if len(self.seen) >= until:
                        break
                    self._check(replay, following, point, record, seed)

    def _points(
        self, replay: Replay, operation: int, following: Operation | None, rng: random.Random
    ) -> Iterator[CrashPoint]:
        """The points of a moment, in any order; then power losses that are drawn."""
        asked = ChosenSurvivors(holes=self.workload.holes)
        replay.disk.after_power_loss(asked)
        losses, are_all = power_losses(operation, asked.made)
        points = [CrashPoint(operation, "kill"), *losses]
        if isinstance(following, Written) and following.write[1] is not None:
            sizes = torn_sizes(following.write[0], len(following.write[1]))
            points += [CrashPoint(operation, "torn", (size,)) for size in sizes]
        rng.shuffle(points)
        yield from points
        for _ in range(0 if are_all else 4 * len(asked.made)):
            drawn = ChosenSurvivors(rng=rng, share=rng.choice((0.1, 0.5, 0.9)), holes=self.workload.holes)
            replay.disk.after_power_loss(drawn)
            yield chosen(operation, drawn.made)

    def _check(self, replay: Replay, following: Operation | None, point: CrashPoint, record: Record, seed: int) -> None:
        files = state_at(replay, following, point, holes=self.workload.holes)
        promises, power = record.promises[point.operation], point.kind == "power"
        tree = hash_of(files)
        if (key := (tree, id(promises), power)) in self._checked:
            return
        self._checked.add(key)
        self.seen.add(tree)
        check_state(self.workload, files, promises, point, seed, deep=tree[0] % 4 == 0)


def check_state(
    workload: Workload, files: MemoryFileSystem, promises: Any, point: CrashPoint, seed: int, *, deep: bool
) -> None:
    """Check one state; where a promise is broken, say how to see it again."""
    try:
        workload.check(files, promises, power=point.kind == "power", deep=deep)
    except Exception as error:
        last = traceback.format_exception_only(error)[-1].strip()
        again = f"python -m tests.crash_points {workload.name} --seed {seed} --point '{point}'"
        raise BrokenPromiseError(f"{last}\nworkload {workload.name}, point {point}; again:\n    {again}") from error


def moments_of(record: Record) -> Iterator[tuple[Replay, int, Operation | None]]:
    """The disk after each number of operations, which number, and the operation that follows."""
    replay = Replay.of(record)
    for number, operation in enumerate(record.operations):
        yield replay, number, operation
        replay.apply(operation)
    yield replay, len(record.operations), None


def state_at(replay: Replay, following: Operation | None, point: CrashPoint, *, holes: bool) -> MemoryFileSystem:
    """The disk as the next process finds it."""
    match point.kind:
        case "kill":
            return replay.disk.after_process_crash()
        case "torn":
            assert isinstance(following, Written)
            offset, chunk = following.write
            assert chunk is not None
            torn = replay.copy()
            torn.apply(Written(following.file, (offset, chunk[: point.choices[0]])))
            return torn.disk
        case "power":
            return replay.disk.after_power_loss(ChosenSurvivors(point.choices, holes=holes))
        case kind:
            raise ValueError(f"no crash is called {kind!r}")


def hash_of(files: MemoryFileSystem) -> bytes:
    """A hash of all names and bytes, as readers see them."""
    digest = hashlib.blake2b(digest_size=16)

    def add(directory: Directory, path: str) -> None:
        for name, node in sorted(directory.issued.items()):
            place = f"{path}/{name}"
            if isinstance(node, Directory):
                digest.update(f"{place}/\0".encode())
                add(node, place)
            else:
                digest.update(f"{place}\0{len(node.issued)}\0".encode())
                digest.update(node.issued)

    add(files._root, "")
    return digest.digest()


def point_of(workload: Workload, seed: int, point: CrashPoint) -> tuple[MemoryFileSystem, Any]:
    """The state at a point of a run, and what had been promised."""
    record = workload.run(seed)
    for replay, operation, following in moments_of(record):
        if operation == point.operation:
            return state_at(replay, following, point, holes=workload.holes), record.promises[operation]
    raise ValueError(f"the run has {len(record.operations)} operations; there is no {point.operation}")
