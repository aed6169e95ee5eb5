"""Bodies of messages: no two the same, the same ones in every run."""

from __future__ import annotations

import random
from collections.abc import Sequence

_POOL_BYTES = 1 << 21


def bodies_of_sizes(sizes: Sequence[int]) -> list[bytes]:
    """Random bodies."""
    octets = random.Random(1).randbytes(sum(sizes))
    ends = 0
    return [octets[(ends := ends + size) - size : ends] for size in sizes]


def mixed_sizes(count: int) -> list[int]:
    """Sizes as log lines or events have them: most of some hundred bytes, some of thousands, all embedded."""
    return log_normal_sizes(count, median_log=5.5, largest=3500, seed=2)


def log_normal_sizes(count: int, *, median_log: float, largest: int, seed: int) -> list[int]:
    """Sizes from a log-normal distribution, at least 16. ``median_log``: the natural logarithm of the median."""
    generator = random.Random(seed)
    return [min(largest, max(16, int(generator.lognormvariate(median_log, 0.9)))) for _ in range(count)]


class NumberedBodies:
    """Bodies by their numbers, made when they are asked for, so that a long work needs no memory for them.

    The first 16 bytes are the number, the others are from a random place. Sizes come in turn; below 16 bytes there is
    only the number's end, and bodies repeat.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self._sizes = sizes
        self._pool = random.Random(3).randbytes(_POOL_BYTES) if max(sizes) > 16 else b""

    def __getitem__(self, number: int) -> bytes:
        size = self._sizes[number % len(self._sizes)]
        start = number * 61 % (_POOL_BYTES - size) if size > 16 else 0
        return (
            b"%016d" % number + self._pool[start : start + size - 16] if size > 16 else (b"%016d" % number)[16 - size :]
        )

    def range(self, first: int, count: int) -> list[bytes]:
        """Return ``count`` bodies, from number ``first`` on."""
        return [self[number] for number in range(first, first + count)]
