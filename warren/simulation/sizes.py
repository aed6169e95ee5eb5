"""Sizes of bodies: one for all, lognormal, or as they were counted; and the bodies themselves, which are zeros.

Bodies of one size are one object, whatever a backlog of them counts. Of sizes above :data:`EXACT_BELOW` the first three
digits are kept, so that there are few.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Final

import attrs
import numpy as np
import numpy.typing as npt

from warren.simulation.units import ScenarioError

Sizes = npt.NDArray[np.int64]
EXACT_BELOW: Final = 1000
LARGEST: Final = 128 << 20


def checked_size(key: str, size: int) -> int:
    """Bytes of a body."""
    if not 0 <= size <= LARGEST:
        raise ScenarioError(f"{key} must be 0 … {LARGEST} bytes, not {size}")
    return size


@functools.lru_cache(maxsize=1 << 16)
def body(size: int) -> bytes:
    """A body of ``size`` bytes."""
    return bytes(size)


def _rounded(sizes: npt.NDArray[np.float64]) -> Sizes:
    sizes = np.clip(np.rint(sizes), 0, LARGEST)
    digits = 10.0 ** np.floor(np.log10(np.maximum(sizes, EXACT_BELOW)) - 2)
    return np.where(sizes < EXACT_BELOW, sizes, np.rint(sizes / digits) * digits).astype(np.int64)


@attrs.frozen
class ConstantSize:
    """All alike."""

    size: int

    def draw(self, count: int, rng: np.random.Generator) -> Sizes:
        """Sizes (bytes) of ``count`` bodies."""
        return np.full(count, self.size, np.int64)

    @property
    def mean(self) -> float:
        return float(self.size)


@attrs.frozen
class LognormalSize:
    """Half of them smaller than ``median`` bytes; ``sigma``: how widely they spread (1.0: a few are ten times it)."""

    median: int
    sigma: float

    def __attrs_post_init__(self) -> None:
        if self.median < 1 or not 0.0 <= self.sigma <= 5.0:
            raise ScenarioError(f"lognormal sizes need a median from 1 byte on and a sigma of 0.0 … 5.0, not {self}")

    def draw(self, count: int, rng: np.random.Generator) -> Sizes:
        return _rounded(rng.lognormal(math.log(self.median), self.sigma, count))

    @property
    def mean(self) -> float:
        return self.median * math.exp(self.sigma**2 / 2)


@attrs.frozen
class EmpiricalSize:
    """Sizes as they were counted: each with its weight."""

    sizes: tuple[int, ...]
    weights: tuple[float, ...]

    def __attrs_post_init__(self) -> None:
        if not self.sizes or len(self.sizes) != len(self.weights):
            raise ScenarioError("empirical sizes need at least one size, and a weight for each")
        if min(self.weights) < 0 or not 0.0 < sum(self.weights) < math.inf:
            raise ScenarioError("empirical sizes need weights that are not negative, and not all 0")

    def draw(self, count: int, rng: np.random.Generator) -> Sizes:
        weights = np.asarray(self.weights) / sum(self.weights)
        return rng.choice(np.asarray(self.sizes, np.int64), count, p=weights)

    @property
    def mean(self) -> float:
        return sum(s * w for s, w in zip(self.sizes, self.weights, strict=True)) / sum(self.weights)


Size = ConstantSize | LognormalSize | EmpiricalSize


def bodies(sizes: Sequence[int] | Sizes) -> list[bytes]:
    """Bodies of those sizes."""
    if len(sizes) and (sizes == sizes[0]).all() if isinstance(sizes, np.ndarray) else False:
        return [body(int(sizes[0]))] * len(sizes)
    return [body(int(size)) for size in sizes]
