"""Shrinking: of the choices of an order that fails, few that fail in the same way (Zeller and Hildebrandt's ddmin)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tests.schedules.strategies import Choices

MOST_RUNS: Final = 150


def shrunk(choices: Choices, fails: Callable[[Choices], bool], most_runs: int = MOST_RUNS) -> Choices:
    """A minimal part of ``choices`` that still ``fails``, or the best one after ``most_runs`` runs.

    The steps after a removed choice have other numbers, so the result may fail for another reason: ``fails`` decides
    what counts.
    """
    kept, parts = dict(choices), 2
    while kept and most_runs:
        steps = sorted(kept)
        size = -(-len(steps) // parts)
        for low in range(0, len(steps), size):
            left_out = set(steps[low : low + size])
            without = {step: number for step, number in kept.items() if step not in left_out}
            most_runs -= 1
            if fails(without):
                kept, parts = without, max(parts - 1, 2)
                break
            if not most_runs:
                break
        else:
            if size == 1:
                break
            parts = min(parts * 2, len(steps))
    return kept
