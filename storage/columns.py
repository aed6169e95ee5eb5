"""Columns: what numpy's own functions for arrays take longer for than need be."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

S = TypeVar("S", bound=np.generic)


def distinct(values: npt.NDArray[S]) -> npt.NDArray[S]:
    """Each value once, in order."""
    if not len(values) or (values == values[0]).all():
        return values[:1]
    unique: npt.NDArray[S] = np.unique(values, return_counts=True)[0]  # without counts numpy imports its masked arrays
    return unique


def joined(column: npt.NDArray[S], more: npt.NDArray[S]) -> npt.NDArray[S]:
    """Concatenate two columns; return the second one itself if the first is empty."""
    return np.concatenate((column, more)) if len(column) else more


def is_rising(values: npt.NDArray[Any]) -> bool:
    """Whether each value is greater than the one before it, so that there are no duplicates."""
    return bool((values[1:] > values[:-1]).all())
