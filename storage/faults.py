"""Faults on purpose: which ones are fair, when they strike, and what a store must still hold.

:mod:`warren.storage.memory` holds the disk; every choice about it is made here, from the random generator that was
passed in: the same seed, the same calls, the same faults. A :class:`FaultPlan` belongs to one file system. It counts
the *operations* (everything that changes the disk; :data:`OPERATIONS`) and decides for each whether it is *struck*: by
a crash, after which this process does nothing more, or by a failure, after which it goes on. A strike is *torn* if a
prefix of the data gets through. :func:`surviving_writes` and :func:`surviving_changes` say what a power loss leaves.

A fault is *fair* if a store without mistakes can keep its promise under it. :class:`FaultRules` says which are fair in
a test; asking for another is an :class:`UnfairFaultError`, so that no test blames a store for the impossible.

===================================  ===================  ==========================================================
fault                                fair                 what a store must still guarantee
===================================  ===================  ==========================================================
the process dies between two         always               all that was issued is there; open and go on
operations (``crash_at``)
it dies within a write               ``torn_writes``      the same, but for the end of that write: a torn record is
(``crash_at(torn=True)``)                                 dropped, none before it
power loss: unsynced bytes of a      always               all that was synced, and so all that was confirmed, in
file are cut (``after_power_loss``)                       order; of the rest a prefix
power loss: an unsynced write is     ``reordered``        what was synced; zeros are seen to be no record, and what
lost, a later one there; zeros                            stands after them may be dropped
power loss: a file created, renamed  ``lost_names``       what was synced in a file whose directory, and those above
or deleted is not, as yet                                 it, were synced too; a replaced file is the old or the new
an operation or a read fails         always               the error comes out; nothing is confirmed on its account;
(``fail``, ``fail_at``)                                   a torn end is cut before the next append
``sync`` fails                       always               the file's unsynced writes are never confirmed: they are
                                                          lost at power loss, whatever a later ``sync`` says
the disk is full                     always               ``DiskFullError``; what was there is; goes on once there is
(``capacity_bytes``)                                      room
a bit flips, synced bytes are cut    only if asked for    *detection*, not survival: a ``DataError`` where the format
off (``flip_bit``, ``cut``)          with ``damage``      can tell, never a hang or a traceback from the depths
synced names are lost                never                nothing could; there is no way to ask for it
===================================  ===================  ==========================================================

A truncation and what follows it in its file stay in order, and so do changes to the same name: no file system of today
breaks these. A rename is one change: done or not, never both names or neither.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Protocol

import attrs

from warren.storage.errors import StorageError

FILE_OPERATIONS = frozenset({"append", "pwrite", "truncate", "sync"})
NAME_OPERATIONS = frozenset({"create", "rename", "delete", "delete_tree", "make_directory", "sync_directory", "lock"})
OPERATIONS = FILE_OPERATIONS | NAME_OPERATIONS
"""Kinds that change the disk: counted, logged, and what ``crash_at`` counts down on."""

READS = frozenset({"pread", "read"})
"""Kinds that do not, and can only fail."""

Write = tuple[int, bytes | None]
"""A write to a file (its offset and bytes), or a truncation (the size and ``None``)."""


class SimulatedCrash(BaseException):
    """The process is dead, and so is each of its handles. No ``Exception``: code under test must not survive it."""


class UnfairFaultError(RuntimeError):
    """A test asked for a fault that its rules do not allow."""


@attrs.frozen(kw_only=True)
class FaultRules:
    """Which faults are fair; the module's table says what a store must guarantee under each."""

    torn_writes: bool = True
    """A write that is cut short leaves a prefix of itself."""

    reordered: bool = True
    """Unsynced writes of a file, and unsynced names, survive a power loss in any combination, not only as a prefix."""

    lost_names: bool = True
    """Names whose directory was not synced may be undone by a power loss."""

    damage: bool = False
    """Synced bytes may change or vanish: a test of detection, not of survival."""

    def demand(self, fair: bool, fault: str) -> None:
        """Raise :class:`UnfairFaultError` unless ``fair``."""
        if not fair:
            raise UnfairFaultError(f"{fault} is not fair under {self}")


@attrs.frozen
class Strike:
    """What befalls one operation: the error it raises, and whether a prefix of its data gets through first."""

    error: BaseException
    torn: bool


@attrs.define(kw_only=True)
class Failure:
    """An order to fail: the next ``times`` operations of this kind on such a path, after ``skip`` that pass."""

    kind: str
    path_pattern: str
    error: type[StorageError]
    skip: int
    times: int

    def takes(self, kind: str, path: str) -> bool:
        """Whether this operation is to fail; counts it."""
        if kind != self.kind or not self.times or not fnmatchcase(path, self.path_pattern):
            return False
        if self.skip:
            self.skip -= 1
            return False
        self.times -= 1
        return True


@attrs.define(eq=False, repr=False)
class FaultPlan:
    """Counts operations and decides which of them are struck."""

    rules: FaultRules
    rng: random.Random
    log: deque[tuple[str, str]] = attrs.field(factory=lambda: deque(maxlen=10_000))
    operations: int = 0
    dead: bool = False
    failures: list[Failure] = attrs.field(factory=list)
    _crash_operation: int | None = None
    _crash_torn: bool = False
    _failing_operation: tuple[int, type[StorageError]] | None = None

    def crash_at(self, operation: int, *, torn: bool) -> None:
        """Crash at the ``operation``-th operation from now (1: the next), before it takes effect or within it."""
        if operation < 1:
            raise ValueError(f"the next operation is number 1; there is no {operation}")
        self.rules.demand(self.rules.torn_writes or not torn, "a torn write")
        self._crash_operation = self.operations + operation
        self._crash_torn = torn

    def fail_at(self, operation: int, *, error: type[StorageError]) -> None:
        """Let the ``operation``-th operation from now (1: the next) fail, whatever it is."""
        if operation < 1:
            raise ValueError(f"the next operation is number 1; there is no {operation}")
        self._failing_operation = self.operations + operation, error

    def fail(self, kind: str, path_pattern: str, *, error: type[StorageError], skip: int, times: int) -> None:
        """Order a failure; see :class:`Failure`."""
        if kind not in OPERATIONS | READS:
            raise ValueError(f"no operation is called {kind!r}; there are {sorted(OPERATIONS | READS)}")
        self.failures.append(Failure(kind=kind, path_pattern=path_pattern, error=error, skip=skip, times=times))

    def live(self, path: str) -> None:
        """Raise :class:`SimulatedCrash` if this process is dead."""
        if self.dead:
            raise SimulatedCrash(f"{path}: used after the crash")

    def begin(self, kind: str, path: str) -> Strike | None:
        """Count an operation; return its strike, or ``None`` if it succeeds."""
        if self.dead:
            self.live(path)
        self.operations += 1
        self.log.append((kind, path))
        if self._crash_operation == self.operations:
            self.dead = True
            return Strike(SimulatedCrash(f"at operation {self.operations}: {kind} {path}"), self._crash_torn)
        if self._failing_operation is not None and self._failing_operation[0] == self.operations:
            error = self._failing_operation[1](f"{path}: {kind} failed on purpose")
            return Strike(error, self.rules.torn_writes)
        return self._failure(kind, path) if self.failures else None

    def begin_whole(self, kind: str, path: str) -> None:
        """Count an operation that happens or does not; raises what strikes it."""
        if (strike := self.begin(kind, path)) is not None:
            raise strike.error

    def begin_read(self, kind: str, path: str) -> None:
        """Raise where this read is to fail."""
        if self.dead:
            self.live(path)
        if self.failures and (strike := self._failure(kind, path)) is not None:
            raise strike.error

    def surviving_bytes(self, strike: Strike, size: int) -> int:
        """How many of the ``size`` bytes of a struck write get through."""
        return self.rng.randint(0, size) if strike.torn else 0

    def _failure(self, kind: str, path: str) -> Strike | None:
        for failure in self.failures:
            if failure.takes(kind, path):
                return Strike(failure.error(f"{path}: {kind} failed on purpose"), self.rules.torn_writes)
        return None


class Survivors(Protocol):
    """Decides which unsynced writes and changes a power loss leaves."""

    def changes(self, changes: Sequence[Collection[Hashable]]) -> Iterable[int]:
        """The numbers of the changes of names, in order; see :func:`surviving_changes`."""

    def writes(self, writes: Sequence[Write]) -> Iterable[Write]:
        """The writes of a file that survive, in order; called once for each file that is left, by path."""


@attrs.frozen
class DrawnSurvivors:
    """What a generator leaves, within the rules."""

    rng: random.Random
    rules: FaultRules

    def changes(self, changes: Sequence[Collection[Hashable]]) -> list[int]:
        return surviving_changes(changes, self.rng, self.rules)

    def writes(self, writes: Sequence[Write]) -> Iterator[Write]:
        return surviving_writes(writes, self.rng, self.rules)


class NoSurvivors:
    """Nothing is left."""

    def changes(self, changes: Sequence[Collection[Hashable]]) -> list[int]:
        return []

    def writes(self, writes: Sequence[Write]) -> list[Write]:
        return []


def surviving_writes(writes: Sequence[Write], rng: random.Random, rules: FaultRules) -> Iterator[Write]:
    """Of a file's unsynced writes, what a power loss leaves: a prefix, or any of them; the rest torn, zeros or lost."""
    in_any_order = rules.reordered and rng.random() < 0.5
    torn = "torn" if rules.torn_writes else "lost"
    last = rng.randint(0, len(writes))
    for number, (offset, chunk) in enumerate(writes):
        fate = rng.choice(("kept", torn, "zeros", "lost")) if in_any_order else "kept" if number < last else torn
        if fate == "kept":
            yield offset, chunk
        elif chunk is None:
            return  # a truncation did not happen, so nothing issued after it did
        elif fate == "torn":
            yield offset, chunk[: rng.randint(0, len(chunk))]
        elif fate == "zeros":
            yield offset + len(chunk), b""  # the file grew, the bytes never came
        if not in_any_order and fate != "kept":
            return


def surviving_changes(changes: Sequence[Collection[Hashable]], rng: random.Random, rules: FaultRules) -> list[int]:
    """Which unsynced changes, each given as the names that it touches, a power loss leaves: their numbers, in order.

    All, a prefix, or any that keep the changes of each name in order.
    """
    if not rules.lost_names:
        return list(range(len(changes)))
    if not rules.reordered or rng.random() < 0.5:
        return list(range(rng.randint(0, len(changes))))
    undone: set[Hashable] = set()
    survivors: list[int] = []
    for number, names in enumerate(changes):
        if undone.isdisjoint(names) and rng.random() < 0.5:
            survivors.append(number)
        else:
            undone.update(names)
    return survivors
