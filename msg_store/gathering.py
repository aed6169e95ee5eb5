"""Small pieces of a buffer, from any positions, as one array: the hand that reads columns out of records of any size.

A view of the buffer in which an item begins at *every* byte turns "8 bytes at each of these positions" into one
indexing operation, which copies an item in about 10 ns.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


def gather(data: bytes, positions: Longs, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """An item of ``dtype`` from each of the positions; raises ``IndexError`` where one does not fit."""
    width = dtype.itemsize
    everywhere: npt.NDArray[np.void] = np.ndarray(
        (max(len(data) - width + 1, 0),), np.dtype((np.void, width)), data, strides=(1,)
    )
    return everywhere[positions].view(dtype)


def gather_rows(data: bytes, positions: Longs, width: int) -> Bytes:
    """``width`` ≥ 1 bytes from each of the positions, as the rows of a matrix."""
    rows: Bytes = gather(data, positions, np.dtype((np.void, width))).view(np.uint8).reshape(len(positions), width)
    return rows


def by_value(column: Longs | Ints) -> list[tuple[int, Longs]]:
    """Each value of a column, and where it stands, ascending."""
    if not len(column):
        return []
    if (column == column[0]).all():
        return [(int(column[0]), np.arange(len(column)))]
    narrow = column.astype(np.int16) if column.max() < 1 << 15 and column.min() >= 0 else column
    order = np.argsort(narrow, kind="stable")  # the stable sort of 16-bit numbers is a radix sort
    ordered = column[order]
    cuts = np.flatnonzero(ordered[1:] != ordered[:-1]) + 1
    return [(int(column[where[0]]), where) for where in np.split(order, cuts)]
