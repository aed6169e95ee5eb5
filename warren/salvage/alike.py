"""Where to cut a queue's messages into those that are worth a stretch and those that are better taken one by one."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from queue_index.record_format import Bools, Ints

STRETCH_MESSAGES: Final = 32
"""Fewer messages of one length are taken one by one."""

STRETCH_BYTES: Final = 1 << 20
"""So many bytes of encoded messages, about, make a stretch: it is held in memory a few times over."""


def cut_alike(
    sizes: Ints, single: Bools, far: Bools, columns: tuple[npt.NDArray[Any], ...]
) -> list[tuple[slice, bool]]:
    """Cut where the next message differs in its size or in one of the columns, or where there are enough.

    Each part, and whether it makes a stretch. Neighbours that are not worth one stay together. ``single``: those that
    are taken one by one whatever comes; ``far``: those that are so unless many of them make a stretch.
    """
    changes = np.zeros(max(len(sizes) - 1, 0), np.bool_)
    for column in (sizes, single, far, *columns):
        changes |= column[1:] != column[:-1]
    parts: list[tuple[slice, bool]] = []
    edges = [0, *(np.flatnonzero(changes) + 1).tolist(), len(sizes)]
    singles = 0  # where the neighbours begin that are not worth a stretch
    for low, high in pairwise(edges):
        rows = STRETCH_BYTES // max(int(sizes[low]), 1) if high > low else 0
        if high - low < STRETCH_MESSAGES or single[low] or (rows < STRETCH_MESSAGES and far[low]):
            continue
        if singles < low:
            parts.append((slice(singles, low), False))
        rows = max(STRETCH_MESSAGES, rows)
        parts += [(slice(start, min(start + rows, high)), True) for start in range(low, high, rows)]
        singles = high
    if singles < len(sizes):
        parts.append((slice(singles, len(sizes)), False))
    return parts
