"""Publisher confirms: which publishes have become safe.

A persistent message is confirmed when its position and, if that is in a store, its payload are safe. Index and store
number what they are handed (*tickets*) and say up to which ticket all is safe; so a publish waits for two numbers.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple, cast

from warren.queue_index.queue.state import QueueState


class _Publish(NamedTuple):
    seq_ids: range
    index_ticket: int
    store_ticket: int


_NOBODY: Final = cast(deque[_Publish], ())
"""In place of an empty deque, which takes 600 bytes; to be looked at only."""


class Confirms:
    """Publishes that wait to be confirmed, in order."""

    __slots__ = ("_state", "_waiting")

    def __init__(self, state: QueueState) -> None:
        self._state = state
        self._waiting = _NOBODY

    def expect(self, seq_ids: range) -> None:
        """Watch messages that have just been published; an empty range: all that was published until now."""
        s = self._state
        store = s.persistent_store
        if self._waiting is _NOBODY:
            self._waiting = deque()
        self._waiting.append(
            _Publish(seq_ids, s.index.published_ticket, 0 if store is None else store.store.written_ticket)
        )

    def drain(self) -> list[range]:
        """The seq_ids that have become safe since the last call, in order."""
        confirmed = []
        while self._waiting and self._is_safe(self._waiting[0]):
            confirmed.append(self._waiting.popleft().seq_ids)
        return confirmed

    def release(self) -> None:
        """Give up memory that holds nothing."""
        if not self._waiting:
            self._waiting = _NOBODY

    def any_unsafe(self) -> bool:
        """Whether a publish is still to become safe (tickets rise, so the last one is the last to)."""
        return bool(self._waiting) and not self._is_safe(self._waiting[-1])

    def _is_safe(self, publish: _Publish) -> bool:
        store = self._state.persistent_store
        return publish.index_ticket <= self._state.index.safe_ticket and (
            store is None or publish.store_ticket <= store.store.synced_ticket
        )
