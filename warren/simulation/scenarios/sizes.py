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

from warren.simulation.scenarios.forms import by, each, formed, inside, named, number, only_key, pairs, table_with
from warren.simulation.scenarios.units import ScenarioError, amount
from warren.storage.errors import shown

Sizes = npt.NDArray[np.int64]
EXACT_BELOW: Final = 1000
LARGEST: Final = 128 << 20


def body_bytes(value: Any) -> int:
    """Return the bytes of a body from a scenario's value."""
    size = amount(value)
    if size > LARGEST:
        raise ScenarioError(f" must be 0 … {LARGEST} bytes, not {shown(value)}")
    return size


def _weight(value: Any) -> float:
    return number(value, 0.0, 1e12)


@functools.lru_cache(maxsize=1 << 16)
def body(size: int) -> bytes:
    """Return a body of ``size`` bytes."""
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
        """Return the sizes (bytes) of ``count`` bodies."""
        return np.full(count, self.size, np.int64)


@attrs.frozen(field_transformer=named)
class LognormalSize:
    """Half of them smaller than ``median`` bytes; ``sigma``: how widely they spread (1.0: a few are ten times it)."""

    median: int = attrs.field(converter=body_bytes)
    sigma: float = attrs.field(converter=formed, metadata=by(number, 0.0, 5.0))

    def __attrs_post_init__(self) -> None:
        if not self.median:
            raise ScenarioError("median must be at least 1 byte")

    def draw(self, count: int, rng: np.random.Generator) -> Sizes:
        return _rounded(rng.lognormal(math.log(self.median), self.sigma, count))


@attrs.frozen(field_transformer=named)
class EmpiricalSize:
    """Sizes as they were counted: each with its weight."""

    sizes: tuple[int, ...] = attrs.field(converter=formed, metadata=by(each, body_bytes))
    weights: tuple[float, ...] = attrs.field(converter=formed, metadata=by(each, _weight))

    def __attrs_post_init__(self) -> None:
        if not self.sizes or len(self.sizes) != len(self.weights):
            raise ScenarioError("sizes: at least one size is needed, and a weight for each")
        if not sum(self.weights):
            raise ScenarioError("weights: not all of them can be 0")

    def draw(self, count: int, rng: np.random.Generator) -> Sizes:
        weights = np.asarray(self.weights) / sum(self.weights)
        return rng.choice(np.asarray(self.sizes, np.int64), count, p=weights)


Size = ConstantSize | LognormalSize | EmpiricalSize


def size_of(value: Any) -> Size:
    """Return the sizes for a value: a size, ``{lognormal = {…}}`` or ``{empirical = [[size, weight], …]}``."""
    if isinstance(value, ConstantSize | LognormalSize | EmpiricalSize):
        return value
    if not isinstance(value, Mapping):
        return ConstantSize(body_bytes(value))
    key = only_key(value, ("lognormal", "empirical"))
    with inside(key):
        if key == "empirical":
            return EmpiricalSize(*pairs(value[key], "size", "weight"))
        return LognormalSize(**table_with(value[key], ("median", "sigma")))


def bodies(sizes: Sequence[int] | Sizes) -> list[bytes]:
    """Return bodies of the given sizes."""
    if len(sizes) and (sizes == sizes[0]).all() if isinstance(sizes, np.ndarray) else False:
        return [body(int(sizes[0]))] * len(sizes)
    return [body(int(size)) for size in sizes]
