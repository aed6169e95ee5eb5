"""BackOff: how long to wait before what failed is tried again, each time twice as long up to a bound."""

from __future__ import annotations

from typing import Final

import attrs

FIRST_WAIT_NS: Final = 1_000_000_000
MAX_WAIT_NS: Final = 16_000_000_000


@attrs.define(eq=False, repr=False)
class BackOff:
    """Waits of one thing that fails again and again."""

    _first_ns: int
    _most_ns: int
    _wait_ns: int = 0

    def next_wait_ns(self) -> int:
        """How long to wait before the next try."""
        self._wait_ns = min(2 * self._wait_ns, self._most_ns) or self._first_ns
        return self._wait_ns


class FullDisk(BackOff):
    """Waits for room on a full disk, from the first write that found none to one that found some."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(FIRST_WAIT_NS, MAX_WAIT_NS)
