"""SharedPrefetch: how many messages several consumers, of any queues, may have unacked together.

What ``basic.qos`` with ``global`` says for a channel. Queues give messages in threads of their own, so each first takes
its part of what is left. Who found nothing left is told when there is something again.

It counts as RabbitMQ does: what the consumers are given while there is a limit; when it comes, everything that is
unacked on the channel. What ``basic.get`` takes is not given to a consumer, and makes no room when it is settled.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from warren.actors.engines.queue.consumers import UNLIMITED_ROOM


class SharedPrefetch:
    """One channel's."""

    __slots__ = ("_lock", "_taken", "limit", "queues")

    def __init__(self) -> None:
        self.limit = 0
        """0: there is none."""
        self.queues: dict[object, Callable[[], object]] = {}
        """By queue: what is called, in any thread, when there is room again."""
        self._taken = 0
        self._lock = threading.Lock()

    def set_limit(self, limit: int, unacked: int) -> bool:
        """Another limit; ``unacked``: on the channel. Returns whether it was another one."""
        with self._lock:
            if limit == self.limit:
                return False
            if not limit or not self.limit:
                self._taken = unacked if limit else 0
            self.limit = limit
            return True

    @property
    def room(self) -> int:
        """How many messages more there is room for, at the moment."""
        return max(self.limit - self._taken, 0) if self.limit else UNLIMITED_ROOM

    def take(self, count: int) -> int:
        """Take room for so many messages; for how many there was."""
        with self._lock:
            if self.limit:
                count = min(count, max(self.limit - self._taken, 0))
                self._taken += count
            return count

    def give_back(self, count: int) -> None:
        """So many messages are no longer unacked."""
        with self._lock:
            was_full = self.limit and self._taken >= self.limit
            self._taken = max(self._taken - count, 0)
            wakes = was_full and self._taken < self.limit
            waiting = list(self.queues.items()) if wakes else []
            if waiting:  # the others come first next time
                first, wake = waiting[0]
                del self.queues[first]
                self.queues[first] = wake
        for _, wake in waiting:
            wake()
