"""Columns: small items of a buffer as one array, from any positions, and what numpy does slower than necessary.

:func:`gather` indexes a view of the buffer in which an item begins at *every* byte. So "8 bytes at each of several
positions" is one indexing operation, which copies an item in about 10 ns. :func:`every` needs no copy: it is a view of
items at equal distances.
"""

from __future__ import annotations

import sys
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

S = TypeVar("S", bound=np.generic)

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


def gather(data: bytes, positions: Longs, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return an item of ``dtype`` from each position; raise ``IndexError`` if one does not fit."""
    width = dtype.itemsize
    everywhere: npt.NDArray[np.void] = np.ndarray(
        (max(len(data) - width + 1, 0),), np.dtype((np.void, width)), data, strides=(1,)
    )
    return everywhere[positions].view(dtype)


def every(data: bytes, start: int, stride: int, count: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """A view of ``count`` items of ``dtype`` at ``start``, ``start + stride`` and so on; they lie in the buffer."""
    items: npt.NDArray[Any] = np.ndarray((count,), dtype, data, start, (stride,))
    return items


def gather_rows(data: bytes, positions: Longs, width: int) -> Bytes:
    """``width`` ≥ 1 bytes from each of the positions, as the rows of a matrix."""
    rows: Bytes = gather(data, positions, np.dtype((np.void, width))).view(np.uint8).reshape(len(positions), width)
    return rows


def stable_order(column: Longs | Ints) -> Longs:
    """Where the numbers ≥ 0 of a column stand, smallest first, equal ones in their order."""
    if not len(column) or column.max() >= 1 << 15:
        return np.argsort(column, kind="stable")
    return np.argsort(column.astype(np.int16), kind="stable")  # a radix sort, ten times as fast


def by_value(column: Longs | Ints) -> list[tuple[int, Longs]]:
    """Return each value ≥ 0 of a column with its rows, ascending."""
    if not len(column):
        return []
    if (column == column[0]).all():
        return [(int(column[0]), np.arange(len(column)))]
    order = stable_order(column)
    ordered = column[order]
    cuts = np.flatnonzero(ordered[1:] != ordered[:-1]) + 1
    return [(int(column[rows[0]]), rows) for rows in np.split(order, cuts)]


def equal_run(data: bytes, at: int, size: int, limit: int) -> int:
    """Return how many records of ``size`` bytes, from ``at`` on and up to ``limit``, begin with the same 8 bytes as the
    one right before them: their size, or their size and the bytes after it."""
    max_count = (limit - at) // size
    begins: Longs = every(data, at, size, max_count, np.dtype(np.int64)) if max_count else np.empty(0, np.int64)
    like = int.from_bytes(data[at - size : at - size + 8], sys.byteorder, signed=True)
    checked, step = 0, 64
    while checked < max_count:
        alike = begins[checked : checked + step] == like
        if not alike.all():
            return checked + int(alike.argmin())
        checked += len(alike)
        step *= 8
    return max_count


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
