"""Cuts a queue's messages into runs of equal length, and parts that are better read one by one."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from warren.queue_index.index.record_format import Bools, Ints, Octets
from warren.storage.columns import gather_rows

RUN_MESSAGES: Final = 32
"""Fewer messages of one length are taken one by one."""

_JUMPS: Final = 4
"""Maximum number of places where a run goes on elsewhere in its file."""

RUN_BYTES: Final = 1 << 20
"""Size of a run, about, in bytes of encoded messages: it is held in memory a few times over."""


def cut_runs(sizes: Ints, single: Bools, far: Bools, columns: tuple[npt.NDArray[Any], ...]) -> list[tuple[slice, bool]]:
    """Cut where the next message differs in its size or in one of the columns, and where a run is long enough.

    Return each part, and whether it makes a run. Neighbours that are too few for a run stay together. ``single``:
    messages that are always read one by one; ``far``: those that are read so unless many of them make a run.
    """
    changes = np.zeros(max(len(sizes) - 1, 0), np.bool_)
    for column in (sizes, single, far, *columns):
        changes |= column[1:] != column[:-1]
    parts: list[tuple[slice, bool]] = []
    edges = [0, *(np.flatnonzero(changes) + 1).tolist(), len(sizes)]
    singles = 0  # where the rows begin that are too few for a run
    for low, high in pairwise(edges):
        rows = RUN_BYTES // max(int(sizes[low]), 1) if high > low else 0
        if high - low < RUN_MESSAGES or single[low] or (rows < RUN_MESSAGES and far[low]):
            continue
        if singles < low:
            parts.append((slice(singles, low), False))
        rows = max(RUN_MESSAGES, rows)
        parts += [(slice(start, min(start + rows, high)), True) for start in range(low, high, rows)]
        singles = high
    if singles < len(sizes):
        parts.append((slice(singles, len(sizes)), False))
    return parts


class Readable(Protocol):
    """A file, as far as runs are read from it."""

    def read(self, size: int, offset: int) -> bytes:
        """Up to ``size`` bytes from ``offset``."""


def rows_at(file: Readable, at: Ints, size: int) -> Octets | None:
    """``size`` bytes from each of the offsets; ``None`` if they are too far apart for a few reads, or not all there."""
    low, high = int(at.min()), int(at.max()) + size
    if high - low > 4 * RUN_BYTES:
        jumps = np.flatnonzero(np.abs(np.diff(at)) > RUN_BYTES) + 1  # where the output of one flush ends
        if not 0 < len(jumps) <= _JUMPS:
            return None
        parts = [rows for part in np.split(at, jumps) if (rows := rows_at(file, part, size)) is not None]
        return np.concatenate(parts) if len(parts) > len(jumps) else None
    window = file.read(high - low, low)
    if len(window) < high - low:
        return None
    stride = int(at[1] - at[0]) if len(at) > 1 else size
    if stride >= size and (at[1:] - at[:-1] == stride).all():
        return np.ndarray((len(at), size), np.uint8, window, int(at[0]) - low, (stride, 1))
    return gather_rows(window, at - low, size)
