"""How often something may be started anew, and when what the disk keeps down is tried again."""

from __future__ import annotations

from collections import deque
from typing import Final

from warren.actors.engines.back_off import BackOff
from warren.actors.engines.node_settings import RestartLimit

NS: Final = 1_000_000_000

RETRY_NS: Final = NS
MAX_RETRY_NS: Final = 64 * NS
"""Between two attempts to bring up what the disk keeps down."""


class Restarts:
    """When one thing failed, within the time that counts. Truth value: whether it did."""

    __slots__ = ("_at_ns",)

    def __init__(self) -> None:
        self._at_ns: deque[int] = deque()

    def __bool__(self) -> bool:
        return bool(self._at_ns)

    def too_often(self, now_ns: int, limit: RestartLimit) -> bool:
        """Note one more failure; whether there were too many of late."""
        at_ns = self._at_ns
        at_ns.append(now_ns)
        while at_ns[0] < now_ns - limit.within_s * NS:
            at_ns.popleft()
        return len(at_ns) > limit.max_restarts


class Retries:
    """How long what is down waits before it is tried again; from the beginning once it has been well for a while."""

    __slots__ = ("_waits",)

    def __init__(self) -> None:
        self._waits: dict[tuple[str, ...], tuple[BackOff, int]] = {}

    def next_wait_ns(self, what: tuple[str, ...], now_ns: int) -> int:
        """How long to wait this time."""
        back_off, last_ns = self._waits.get(what, (None, 0))
        if back_off is None or now_ns - last_ns > 2 * MAX_RETRY_NS:
            back_off = BackOff(RETRY_NS, MAX_RETRY_NS)
        self._waits[what] = back_off, now_ns
        return back_off.next_wait_ns()
