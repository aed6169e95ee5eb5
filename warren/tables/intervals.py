"""Whole numbers that follow one another, as the first and the last of them."""

from __future__ import annotations

from collections.abc import Iterable


def merged(intervals: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same numbers in ascending order; intervals that overlap or touch become one."""
    disjoint: list[tuple[int, int]] = []
    for first, last in sorted(intervals):
        if disjoint and first <= disjoint[-1][1] + 1:
            disjoint[-1] = disjoint[-1][0], max(disjoint[-1][1], last)
        else:
            disjoint.append((first, last))
    return disjoint


def runs(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Single numbers as intervals."""
    return merged((number, number) for number in numbers)
