"""What else stands in good records whose columns are known, gathered from their bytes when it is asked for.

Dispatch, recovery and rebuild need none of it, so :class:`msg_store.columns.RecordColumns` has not got it.
"""

from __future__ import annotations

from typing import Final

import attrs
import numpy as np
import numpy.typing as npt

from msg_store.body_crcs import crcs_within
from msg_store.columns import RecordColumns
from msg_store.commit_log_format import BORN_HOST_V6, HEAD_BYTES, IPV6_EXTRA_BYTES, STORE_HOST_V6, head_type
from msg_store.gathering import Bytes, Ints, Longs, Mask, by_value, gather, gather_rows

_HEAD: Final = np.dtype(head_type(0)[:5])
_TAIL_BYTES: Final = np.dtype(head_type(0)[-3:]).itemsize
_SHORT: Final = np.dtype(">i2")
_UNSIGNED_BYTE: Final = np.dtype(np.uint8)
_V4_BYTES: Final = 8

Hosts = list[tuple[Bytes, Longs]]
"""Hosts of one width as the rows of a matrix, and whose each is; a width each."""


@attrs.frozen(eq=False)
class RecordFields:
    """Some records of :class:`RecordColumns`, and the bytes that they lie in."""

    data: bytes
    base: int
    """The physical offset of the first byte of ``data``."""
    columns: RecordColumns
    rows: Longs | slice
    """Which of them."""
    starts: Longs = attrs.field(init=False)
    """In ``data``."""

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "starts", self.columns.positions[self.rows] - self.base)

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def sys_flags(self) -> Ints:
        return self.columns.sys_flags[self.rows]

    @property
    def physical_offsets(self) -> Longs:
        return self.columns.physical_offsets[self.rows]

    def flags(self) -> Ints:
        """The user's."""
        flags: Ints = gather(self.data, self.starts, _HEAD)["flag"].astype(np.int32)
        return flags

    def crcs(self) -> npt.NDArray[np.uint32]:
        """The bodies' sums, as the records say."""
        crcs: npt.NDArray[np.uint32] = gather(self.data, self.starts, _HEAD)["crc"].astype(np.uint32)
        return crcs

    def bodies(self) -> tuple[Longs, Longs]:
        """Where in ``data`` the bodies begin, and how long they are."""
        return self.columns.body_starts[self.rows] - self.base, self.columns.body_sizes[self.rows].astype(np.int64)

    def crcs_match(self) -> Mask:
        """Whether each body is what it was when it was stored; one of no bytes always is."""
        starts, sizes = self.bodies()
        found = crcs_within(self.data, starts.tolist(), (starts + sizes).tolist())
        matches: Mask = (found == self.crcs()) | (sizes == 0)
        return matches

    def properties(self) -> tuple[Longs, Longs]:
        """Where in ``data`` the properties begin, behind a length of two bytes, and how long they are."""
        starts, sizes = self.bodies()
        at = starts + sizes
        at += gather(self.data, at, _UNSIGNED_BYTE) + np.int64(1 + _SHORT.itemsize)
        lengths = gather(self.data, at - _SHORT.itemsize, _SHORT).astype(np.int64)
        return at, np.maximum(lengths, 0)

    def born_hosts(self) -> Hosts:
        """Where the messages came from."""
        return self._hosts(self.starts + HEAD_BYTES, BORN_HOST_V6)

    def store_hosts(self) -> Hosts:
        """Who stored them."""
        widths = _V4_BYTES + IPV6_EXTRA_BYTES * (self.sys_flags & STORE_HOST_V6 != 0)
        return self._hosts(self.bodies()[0] - _TAIL_BYTES - widths, STORE_HOST_V6)

    def _hosts(self, starts: Longs, flag: int) -> Hosts:
        return [
            (gather_rows(self.data, starts[where], _V4_BYTES + IPV6_EXTRA_BYTES * is_v6), where)
            for is_v6, where in by_value((self.sys_flags & flag != 0).astype(np.int32))
        ]
