"""Whole numbers that follow one another, as the first and the last of them."""

from __future__ import annotations

from collections.abc import Iterable


def merged(intervals: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same numbers in ascending order; intervals that overlap or touch become one."""
    found: list[tuple[int, int]] = []
    for first, last in sorted(intervals):
        if found and first <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(found[-1][1], last)
        else:
            found.append((first, last))
    return found


def runs(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Single numbers as intervals."""
    return merged((number, number) for number in numbers)
