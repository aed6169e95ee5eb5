"""The time that a disk takes. It does one operation at a time, in the order in which they were asked for."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import simpy

from warren.simulation.scenarios.node_spec import Disk
from warren.simulation.scenarios.units import NS, ns
from warren.storage.counted import DiskAccount
from warren.storage.errors import NoRoomError


class DiskTime:
    """The disk of one node."""

    def __init__(self, env: simpy.Environment, disk: Disk) -> None:
        self._env = env
        self._disk = disk
        self._latency_ns, self._fsync_ns = ns(disk.latency), ns(disk.fsync)
        self._free_at_ns = 0
        self._given_ns = 0
        """All work that it was given, including what is still to be done."""

    @property
    def busy_ns(self) -> int:
        """The time for which the disk has worked until now."""
        return self._given_ns - max(self._free_at_ns - int(self._env.now), 0)

    def cost_ns(self, work: DiskAccount) -> int:
        """Return the time that the disk needs for ``work``."""
        size = work.read_bytes + work.written_bytes
        transfer_ns = size * NS // self._disk.bandwidth
        return transfer_ns + work.reads * self._latency_ns + work.syncs * self._fsync_ns

    def use(self, cost_ns: int) -> Generator[Any, Any, None]:
        """Wait until the disk is free and has then worked for ``cost_ns``."""
        now = int(self._env.now)
        self._free_at_ns = max(now, self._free_at_ns) + cost_ns
        self._given_ns += cost_ns
        yield self._env.timeout(self._free_at_ns - now)


class DiskUser:
    """Something that makes the disk work, and waits for it."""

    def __init__(self, disk: DiskTime) -> None:
        self.account = DiskAccount()
        self._disk = disk
        self._waited_for = DiskAccount()

    def wait(self) -> Generator[Any, Any, None]:
        """Wait as long as the disk needs for what has been done since the last wait."""
        cost_ns = self._disk.cost_ns(self.account.since(self._waited_for))
        if cost_ns:
            self._waited_for = self.account.copy()
            yield from self._disk.use(cost_ns)


class NeverFull:
    """The part of a turn's host that hears of a full disk. A simulated disk is never full."""

    is_short_of_disk = False

    def disk_is_full(self, error: NoRoomError, *, since_now: bool) -> None:
        raise RuntimeError("a simulated disk is never full") from error

    def disk_has_room(self) -> None:
        raise RuntimeError("a simulated disk is never full")

    def not_safe(self, waiting: Any, error: NoRoomError) -> None:
        raise RuntimeError("a simulated disk is never full") from error

    store_full = not_safe
