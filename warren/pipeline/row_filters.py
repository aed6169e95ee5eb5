"""Filters on columns of numbers: which rows, and which numbers in a row, may be wanted."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from warren.pipeline.filters import Bounds


def within(bounds: Bounds, column: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Which of these numbers may be wanted."""
    mask = np.ones(len(column), np.bool_)
    if bounds.low is not None:
        mask &= column >= bounds.low
    if bounds.high is not None:
        mask &= column <= bounds.high
    if bounds.choice is not None:
        mask &= np.isin(column.astype(np.int64), np.array(sorted(bounds.choice), np.int64))
    return mask


def narrowed(bounds: Bounds, start: int, stop: int) -> tuple[int, int]:
    """Of the numbers ``start`` … ``stop`` - 1 the first that may be wanted, and the one behind the last."""
    lows, highs = [start], [stop]
    if bounds.low is not None:
        lows.append(int(bounds.low))
    if bounds.high is not None:
        highs.append(int(bounds.high) + 1)
    if bounds.choice is not None:
        inside = [one for one in bounds.choice if start <= one < stop]
        lows.append(min(inside, default=stop))
        highs.append(max(inside, default=start) + 1)
    low, high = max(lows), min(highs)
    return low, max(low, high)
