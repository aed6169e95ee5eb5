"""Alarms: what blocks a node's publishers, and how the free disk space is watched.

Two resources can give an alarm: ``memory`` (more is used than the high watermark allows) and ``disk`` (less is free
than disk_free_limit). While either is set, publishers are blocked; consumers go on, since consuming is what frees both.
An alarm that is set again, or cleared when it was not set, is no event.

The disk is looked at more often the less is left. The next look comes after twice the time in which a disk that takes
250 MB/s would be filled down to the limit, but 100 ms at least and 10 s at most; under the alarm, when nothing is
published, always 10 s. These are RabbitMQ 3.10's numbers.

Invariant: publishers are blocked exactly while an alarm is set. Nothing is on disk; after a restart the first readings
set what has to be set.
"""

from __future__ import annotations

from typing import Final, Literal

import attrs

from warren.storage.errors import SettingsError

Resource = Literal["memory", "disk"]

MIN_CHECK_INTERVAL_MS: Final = 100
MAX_CHECK_INTERVAL_MS: Final = 10_000
_FAST_RATE_BYTES_PER_MS: Final = 250_000
_HIGHEST_FACTOR: Final = 1_000_000.0


@attrs.frozen
class AlarmEvent:
    """An alarm changed; ``publishers_blocked`` is how things stand afterwards."""

    resource: Resource
    change: Literal["set", "cleared"]
    publishers_blocked: bool


@attrs.define(eq=False, repr=False)
class Alarms:
    """Which alarms are set. Every update answers with the event that it was, or with None."""

    _active: set[Resource] = attrs.field(factory=set, init=False)

    def update(self, resource: Resource, *, alarmed: bool) -> AlarmEvent | None:
        """How a resource stands now."""
        if alarmed == (resource in self._active):
            return None
        if alarmed:
            self._active.add(resource)
        else:
            self._active.discard(resource)
        return AlarmEvent(resource, "set" if alarmed else "cleared", self.publishers_blocked)

    @property
    def active(self) -> frozenset[Resource]:
        return frozenset(self._active)

    @property
    def publishers_blocked(self) -> bool:
        return bool(self._active)


@attrs.frozen
class MemRelative:
    """A disk_free_limit that is a multiple of the total memory, so that what is in RAM can be paged out."""

    factor: float

    def __attrs_post_init__(self) -> None:
        if not 0.0 <= self.factor <= _HIGHEST_FACTOR:
            raise SettingsError(f"disk_free_limit must be 0.0 … {_HIGHEST_FACTOR} times the memory, not {self.factor}")

    def __str__(self) -> str:
        return f"{self.factor} times the total memory"


def disk_limit_bytes(disk_free_limit: int | MemRelative, total_memory_bytes: int) -> int:
    """Bytes that must stay free. Of a multiple the nearest whole byte, a half rounded up as RabbitMQ does."""
    if isinstance(disk_free_limit, int):
        return disk_free_limit
    return int(disk_free_limit.factor * total_memory_bytes + 0.5)


@attrs.define(eq=False, repr=False)
class DiskMonitor:
    """The disk alarm's rule. ``limit_bytes`` may be changed at any time and applies from the next check."""

    limit_bytes: int
    alarmed: bool = attrs.field(default=False, init=False)
    free_bytes: int | None = attrs.field(default=None, init=False)
    """As last read; None before the first check."""

    def check(self, free_bytes: int) -> bool:
        """Take in a reading of the free space; whether the alarm is to be set."""
        self.free_bytes = free_bytes
        self.alarmed = free_bytes < self.limit_bytes
        return self.alarmed

    @property
    def next_check_ms(self) -> int:
        """Milliseconds until the next reading is due; 0 before the first."""
        if self.free_bytes is None:
            return 0
        if self.alarmed:
            return MAX_CHECK_INTERVAL_MS
        fill_ms = 2 * (self.free_bytes - self.limit_bytes) // _FAST_RATE_BYTES_PER_MS
        return max(MIN_CHECK_INTERVAL_MS, min(MAX_CHECK_INTERVAL_MS, fill_ms))
