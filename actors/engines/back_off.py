"""BackOff: how long to wait before what failed is tried again, each time twice as long up to a bound."""

from __future__ import annotations


class BackOff:
    """Waits of one thing that fails again and again."""

    __slots__ = ("_first_ns", "_most_ns", "_wait_ns")

    def __init__(self, first_ns: int, most_ns: int) -> None:
        self._first_ns = first_ns
        self._most_ns = most_ns
        self._wait_ns = 0

    def next_wait_ns(self) -> int:
        """How long to wait before the next try."""
        self._wait_ns = min(2 * self._wait_ns, self._most_ns) or self._first_ns
        return self._wait_ns
