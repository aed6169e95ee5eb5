"""CRC-32 of many short bodies: the largest single cost of an append.

zlib-ng's is three times as fast as zlib's on bodies of a hundred bytes, seven times on those of a few thousand.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
from zlib_ng.zlib_ng import crc32

_MASK = np.uint32(0x7FFFFFFF)
_TOGETHER: Final = 256
"""Bodies taken out of a column at once: of many more the first are out of the cache before their sums are made."""


def body_crcs(bodies: Sequence[bytes] | Sequence[memoryview]) -> npt.NDArray[np.uint32]:
    """What a record keeps of each: 31 bits, 0 for no body."""
    return np.frombuffer(array("I", list(map(crc32, bodies))), np.uint32) & _MASK  # a third of what np.array() takes


def crcs_of_column(bodies: npt.NDArray[np.void]) -> npt.NDArray[np.uint32]:
    """The same of bodies of one size, each at least a byte long, that are a column."""
    crcs: list[int] = []
    for first in range(0, len(bodies), _TOGETHER):
        crcs += map(crc32, bodies[first : first + _TOGETHER].tolist())
    return np.frombuffer(array("I", crcs), np.uint32) & _MASK


def crcs_within(data: bytes, starts: Sequence[int], stops: Sequence[int]) -> npt.NDArray[np.uint32]:
    """The same of bodies that lie in ``data``, one cut out at a time: many at once cost more than their sums do."""
    crcs = [crc32(data[start:stop]) for start, stop in zip(starts, stops, strict=True)]
    return np.frombuffer(array("I", crcs), np.uint32) & _MASK
