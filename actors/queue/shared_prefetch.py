"""SharedPrefetch: how many messages several consumers, of any queues, may have unacked together.

It implements ``basic.qos`` with ``global`` for a channel. Queues deliver in threads of their own, so each first takes
its share of what is left. A queue that found nothing left is woken when there is room again.

It counts as RabbitMQ does: messages given to the consumers while there is a limit; when the limit is set, everything
that is unacked on the channel. Messages taken by ``basic.get`` do not count, and make no room when they are settled.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from warren.actors.engines.queue.consumers import UNLIMITED_ROOM


class SharedPrefetch:
    """The shared prefetch of one channel."""

    __slots__ = ("_lock", "_taken", "limit", "queues")

    def __init__(self) -> None:
        self.limit = 0
        """0: no limit."""
        self.queues: dict[object, Callable[[], object]] = {}
        """By queue: the function to call, in any thread, when there is room again."""
        self._taken = 0
        self._lock = threading.Lock()

    def set_limit(self, limit: int, unacked: int) -> bool:
        """Set another limit; ``unacked``: the messages unacked on the channel. Return whether the limit has changed."""
        with self._lock:
            if limit == self.limit:
                return False
            if not limit or not self.limit:
                self._taken = unacked if limit else 0
            self.limit = limit
            return True

    @property
    def room(self) -> int:
        """The number of further messages that there is room for."""
        return max(self.limit - self._taken, 0) if self.limit else UNLIMITED_ROOM

    def take(self, count: int) -> int:
        """Take room for up to ``count`` messages; return for how many there was room."""
        with self._lock:
            if self.limit:
                count = min(count, max(self.limit - self._taken, 0))
                self._taken += count
            return count

    def give_back(self, count: int) -> None:
        """Note that ``count`` messages are no longer unacked."""
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
