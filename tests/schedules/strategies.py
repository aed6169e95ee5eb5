"""Strategies: at which steps another thread goes on, and which.

A *step* is a place at which a thread may be left: a line of the code that is looked at, a lock, a wait. They are
counted.
A *choice* is a step, and the number of the thread that goes on there.

:class:`Uniform` leaves a thread after a random number of steps. :class:`Priorities` lets the thread go on that has the
highest of random priorities, and lowers that of the running one at a few random steps: Burckhardt and others, "A
Randomized Scheduler with Probabilistic Guarantees of Finding Bugs" (ASPLOS 2010). :class:`Chosen` repeats choices.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

NEVER: Final = 1 << 62

Choices = dict[int, int]
"""Step → number of the thread that goes on there."""


class Strategy(Protocol):
    """Decides which thread goes on."""

    def next_step(self, step: int) -> int:
        """The next step, after ``step``, at which to leave the running thread if another can go on."""

    def choose(self, step: int, current: int | None, others: Sequence[int]) -> int:
        """Choose the thread that goes on: one of ``others``, which can, or the running one (``None``: it waits)."""


class Uniform:
    """A thread goes on for a mean number of steps; then any other one does."""

    def __init__(self, rng: random.Random, mean_steps: float) -> None:
        self._rng, self._mean_steps = rng, mean_steps

    def next_step(self, step: int) -> int:
        return step + 1 + int(self._rng.expovariate(1 / self._mean_steps))

    def choose(self, step: int, current: int | None, others: Sequence[int]) -> int:
        return self._rng.choice(others)


class Priorities:
    """The thread of the highest priority goes on; ``depth`` times the running one gets the lowest."""

    def __init__(self, rng: random.Random, depth: int, steps: int) -> None:
        """``steps``: the priorities change within this many, from the first step that this decides."""
        self._rng = rng
        self._changes = sorted(rng.randrange(steps) for _ in range(depth))
        self._first: int | None = None
        self._priorities: dict[int, float] = {}
        self._lowest = 0.0

    def next_step(self, step: int) -> int:
        if self._first is None:
            self._first = step
        while self._changes and self._changes[0] + self._first <= step:
            self._changes.pop(0)
        return self._changes[0] + self._first if self._changes else NEVER

    def choose(self, step: int, current: int | None, others: Sequence[int]) -> int:
        if current is not None:
            self._lowest -= 1.0
            self._priorities[current] = self._lowest
        return max(others, key=self._priority)

    def _priority(self, number: int) -> float:
        return self._priorities.setdefault(number, self._rng.random())


class Chosen:
    """Repeats choices. Without one, a thread goes on until it waits, and then the one with the next number."""

    def __init__(self, choices: Mapping[int, int]) -> None:
        self._choices = dict(choices)
        self._steps = sorted(choices)

    def next_step(self, step: int) -> int:
        while self._steps and self._steps[0] <= step:
            self._steps.pop(0)
        return self._steps[0] if self._steps else NEVER

    def choose(self, step: int, current: int | None, others: Sequence[int]) -> int:
        chosen = self._choices.get(step)
        if chosen is not None and chosen in others:
            return chosen
        return min(others) if current is None else current


def drawn(rng: random.Random) -> Strategy:
    """One or the other."""
    if rng.random() < 0.5:
        return Priorities(rng, rng.randint(2, 8), rng.choice([200, 1000, 4000]))
    return Uniform(rng, rng.choice([3.0, 10.0, 40.0, 150.0]))
