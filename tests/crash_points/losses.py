"""What a crash may leave of the operations before it: the points, and the losses that are legal at each.

A *point* is how many operations were issued, and what happened then:

- ``kill``: the process died; everything issued is there.
- ``torn``: it died within the next write; this many bytes of it are there.
- ``power``: the machine stopped. What was synced is there; for the rest a list of *choices* says what is, one after the
  other: for each change of names, and then for each write of each file (by path), 0: it is there; 1: it is not; for a
  write also 2: the file has grown, the bytes never came (zeros); then, for each place at which it may be cut, that the
  bytes before it are there, and, where two sectors meet, that only those after it are there.

A write is cut where sectors of 512 bytes meet: each sector is there or not. A truncation and what follows it in its
file, and changes of one name, stay in order: after one that is missing, all are missing. Choices beyond the end of the
list are 0; surplus ones mean nothing.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Hashable, Iterator, Sequence
from typing import Final

import attrs

from warren.storage.faults import Write

SECTOR_BYTES: Final = 512
_MOST_CUTS: Final = 3

KEPT, LOST, ZEROS, FIRST_CUT = range(4)


@attrs.frozen
class CrashPoint:
    """Where a record is cut, and what is left."""

    operation: int
    """How many operations were issued."""
    kind: str
    choices: tuple[int, ...] = ()
    """The choices of a power loss; for a torn write, the number of bytes that are there."""

    def __str__(self) -> str:
        return " ".join((str(self.operation), self.kind, ",".join(map(str, self.choices)) or "-"))

    @classmethod
    def parse(cls, text: str) -> CrashPoint:
        operation, kind, choices = text.split()
        return cls(int(operation), kind, tuple(map(int, choices.replace("-", "").split(","))) if choices != "-" else ())


@attrs.define
class ChosenSurvivors:
    """Given choices (``choices``, then ``rest``), or drawn ones if there is a generator."""

    choices: Sequence[int] = ()
    rest: int = KEPT
    rng: random.Random | None = None
    share: float = 0.5
    """The part of drawn losses that is kept."""
    holes: bool = True
    """Whether the bytes before a cut may be missing alone."""
    made: list[tuple[int, int]] = attrs.Factory(list)
    """Each choice that was made, and of how many."""

    def choose(self, options: int) -> int:
        at = len(self.made)
        if self.rng is not None:
            choice = KEPT if self.rng.random() < self.share else self.rng.randrange(1, options)
        else:
            choice = min(self.choices[at] if at < len(self.choices) else self.rest, options - 1)
        self.made.append((choice, options))
        return choice

    def changes(self, changes: Sequence[Collection[Hashable]]) -> Iterator[int]:
        undone: set[Hashable] = set()
        for number, names in enumerate(changes):
            if undone.isdisjoint(names) and self.choose(2) == KEPT:
                yield number
            else:
                undone.update(names)

    def writes(self, writes: Sequence[Write]) -> Iterator[Write]:
        for offset, chunk in writes:
            if chunk is None:
                if self.choose(2) == LOST:
                    return
                yield offset, None
                continue
            places = cuts(offset, len(chunk))
            aligned = [place for place in places if self.holes and (offset + place) % SECTOR_BYTES == 0]
            match self.choose(FIRST_CUT + len(places) + len(aligned)):
                case 0:
                    yield offset, chunk
                case 1:
                    pass
                case 2:
                    yield offset + len(chunk), b""
                case choice if choice < FIRST_CUT + len(places):
                    yield offset, chunk[: places[choice - FIRST_CUT]]
                case choice:
                    place = aligned[choice - FIRST_CUT - len(places)]
                    yield offset + place, chunk[place:]


def cuts(offset: int, size: int) -> list[int]:
    """Where a write may be torn: how many bytes are before each place."""
    first = SECTOR_BYTES - offset % SECTOR_BYTES
    bounds = list(range(first, size, SECTOR_BYTES))
    if len(bounds) <= _MOST_CUTS:
        return bounds
    return [bounds[0], bounds[len(bounds) // 2], bounds[-1]]


def torn_sizes(offset: int, size: int) -> list[int]:
    """How many bytes of a write a killed process may leave: some of the possible ones."""
    return sorted({1, size // 2, size - 1, *cuts(offset, size)} - {0, size})


def chosen(operation: int, made: Sequence[tuple[int, int]]) -> CrashPoint:
    """The point with the choices that were made."""
    return CrashPoint(operation, "power", tuple(choice for choice, _ in made))


EXHAUSTIVE: Final = 64
"""The largest number of combinations of choices that are all tried."""


def power_losses(operation: int, made: Sequence[tuple[int, int]]) -> tuple[list[CrashPoint], bool]:
    """Return all combinations of choices, if they are few, and whether they are all; else each single thing lost, and
    each single thing kept.

    ``made``: the available choices, as recorded by a survivor that keeps everything.
    """
    options = [count for _, count in made]
    combinations = 1
    for count in options:
        combinations *= count
        if combinations > EXHAUSTIVE:
            return [CrashPoint(operation, "power", script) for script in _singles(options)], False
    scripts: list[tuple[int, ...]] = [()]
    for count in options:
        scripts = [(*script, choice) for script in scripts for choice in range(count)]
    return [CrashPoint(operation, "power", script) for script in scripts], True


def _singles(options: Sequence[int]) -> Iterator[tuple[int, ...]]:
    for rest in (KEPT, LOST):
        script = [rest] * len(options)
        yield tuple(script)
        for at, count in enumerate(options):
            for choice in range(count):
                if choice != rest:
                    yield (*script[:at], choice, *script[at + 1 :])
