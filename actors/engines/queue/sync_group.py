"""SyncGroup: how long a commit without a waiting caller may wait to share a sync with others."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

MAX_DELAY_MS: Final = 200
"""The longest delay of RabbitMQ's queue index."""
_MS_NS: Final = 1_000_000


class SyncGroup:
    """The queues of one node that wait for a sync. Each adds and discards only itself."""

    __slots__ = ("_interval_ms", "_queues")

    def __init__(self, interval_ms: int) -> None:
        self._interval_ms = interval_ms
        self._queues: set[Hashable] = set()

    def delay_ns(self) -> int:
        """The sync interval; longer with many queues, because their syncs would follow one another without end."""
        return max(self._interval_ms, min(len(self._queues), MAX_DELAY_MS)) * _MS_NS

    def add(self, queue: Hashable) -> None:
        """A queue has set its timer."""
        self._queues.add(queue)

    def discard(self, queue: Hashable) -> None:
        """A queue is synced, or has ended."""
        self._queues.discard(queue)
