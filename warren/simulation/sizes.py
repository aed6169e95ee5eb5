"""Sizes of bodies: one size for all, lognormal, or from a histogram; and the bodies, which consist of zeros.

All bodies of one size are the same object, so a backlog takes no memory for them. Sizes above :data:`EXACT_BELOW` are
rounded to three digits, so that there are few different ones.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs
import numpy as np
import numpy.typing as npt

from warren.simulation.forms import check_keys, each, named, number, only_key, pairs, under
from warren.simulation.units import ScenarioError, shown, size_bytes

Sizes = npt.NDArray[np.int64]
EXACT_BELOW: Final = 1000
LARGEST: Final = 128 << 20


def body_bytes(value: Any) -> int:
    """Bytes of a body, from what a person wrote."""
    size = size_bytes("", value)
    if size > LARGEST:
        raise ScenarioError(f" must be 0 … {LARGEST} bytes, not {shown(value)}")
    return size


def _sigma(value: Any) -> float:
    return number(value, 0.0, 5.0)


def _sizes(values: Any) -> tuple[int, ...]:
    return each(values, body_bytes)


def _weights(values: Any) -> tuple[float, ...]:
    return each(values, lambda value: number(value, 0.0, 1e12))


@functools.lru_cache(maxsize=1 << 16)
def body(size: int) -> bytes:
    """A body of ``size`` bytes."""
    return bytes(size)


def _rounded(sizes: npt.NDArray[np.float64]) -> Sizes:
    sizes = np.clip(np.rint(sizes), 0, LARGEST)
    digits = 10.0 ** np.floor(np.log10(np.maximum(sizes, EXACT_BELOW)) - 2)
    return np.where(sizes < EXACT_BELOW, sizes, np.rint(sizes / digits) * digits).astype(np.int64)


@attrs.frozen(field_transformer=named)
class ConstantSize:
    """All bodies have the same size."""

    size: int = attrs.field(converter=body_bytes)

    def draw(self, count: int, rng: np.random.Generator) -> Sizes:
        """Sizes (bytes) of ``count`` bodies."""
        return np.full(count, self.size, np.int64)

    @property
    def mean(self) -> float:
        return float(self.size)


@attrs.frozen(field_transformer=named)
class LognormalSize:
    """Half of them smaller than ``median`` bytes; ``sigma``: how widely they spread (1.0: a few are ten times it)."""

    median: int = attrs.field(converter=body_bytes)
    sigma: float = attrs.field(converter=_sigma)

    def __attrs_post_init__(self) -> None:
        if not self.median:
            raise ScenarioError("median must be at least 1 byte")

    def draw(self, count: int, rng: np.random.Generator) -> Sizes:
        return _rounded(rng.lognormal(math.log(self.median), self.sigma, count))

    @property
    def mean(self) -> float:
        return self.median * math.exp(self.sigma**2 / 2)


@attrs.frozen(field_transformer=named)
class EmpiricalSize:
    """Sizes as they were counted: each with its weight."""

    sizes: tuple[int, ...] = attrs.field(converter=_sizes)
    weights: tuple[float, ...] = attrs.field(converter=_weights)

    def __attrs_post_init__(self) -> None:
        if not self.sizes or len(self.sizes) != len(self.weights):
            raise ScenarioError("sizes: at least one size is needed, and a weight for each")
        if not sum(self.weights):
            raise ScenarioError("weights: not all of them can be 0")

    def draw(self, count: int, rng: np.random.Generator) -> Sizes:
        weights = np.asarray(self.weights) / sum(self.weights)
        return rng.choice(np.asarray(self.sizes, np.int64), count, p=weights)

    @property
    def mean(self) -> float:
        return sum(s * w for s, w in zip(self.sizes, self.weights, strict=True)) / sum(self.weights)


Size = ConstantSize | LognormalSize | EmpiricalSize


def size_of(value: Any) -> Size:
    """Sizes as a scenario says them: a size, ``{lognormal = {…}}`` or ``{empirical = [[size, weight], …]}``."""
    if isinstance(value, ConstantSize | LognormalSize | EmpiricalSize):
        return value
    if not isinstance(value, Mapping):
        return ConstantSize(body_bytes(value))
    key = only_key(value, ("lognormal", "empirical"))
    inner = value[key]
    try:
        return _lognormal(inner) if key == "lognormal" else _empirical(inner)
    except ScenarioError as error:
        raise ScenarioError(under(key, error)) from None


def _lognormal(table: Any) -> LognormalSize:
    if not isinstance(table, Mapping):
        raise ScenarioError(f" must be a table with median and sigma, not {shown(table)}")
    check_keys(table, ("median", "sigma"), required=("median", "sigma"))
    return LognormalSize(table["median"], table["sigma"])


def _empirical(value: Any) -> EmpiricalSize:
    sizes, weights = pairs(value, "size", "weight")
    return EmpiricalSize(sizes, weights)


def bodies(sizes: Sequence[int] | Sizes) -> list[bytes]:
    """Bodies of those sizes."""
    if len(sizes) and (sizes == sizes[0]).all() if isinstance(sizes, np.ndarray) else False:
        return [body(int(sizes[0]))] * len(sizes)
    return [body(int(size)) for size in sizes]
