"""Messages that wait for a time before they become ready (4.3's delayed retry, and an AMQP 1.0 annotation).

They become ready in the order of their times, then of the log; but of several with the lowest time, the one that was
delayed first becomes ready first. A consumer may have put one aside under a token of its own, from version 9 on several
under one token, and ask for them by that token before their time.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import attrs

from warren.salvage.quorum.fifo.ready_queues import QueuedMessage

RetryKind = Literal["all", "failed", "returned"]


class DelayedRetry(NamedTuple):
    """Which returns wait, and how long: ``min_ms`` times the delivery count, ``max_ms`` at most."""

    kind: RetryKind
    min_ms: int
    max_ms: int

    def ready_ms(self, ts_ms: int, delivery_count: int, *, failed: bool) -> int | None:
        """When a message that returns at ``ts_ms`` comes back; ``None``: at once."""
        if self.kind == ("returned" if failed else "failed"):
            return None
        return ts_ms + min(self.min_ms * max(1, delivery_count), self.max_ms)


class _Waiting(NamedTuple):
    ready_ms: int
    message: QueuedMessage


def _by_time(waiting: _Waiting) -> tuple[int, int]:
    return waiting.ready_ms, waiting.message.index


@attrs.define(eq=False, repr=False)
class Delayed:
    """Delayed messages, in the order in which they become ready."""

    _messages: list[_Waiting] = attrs.Factory(list)
    _tokens: dict[bytes, list[_Waiting]] = attrs.Factory(dict)
    """Each token's messages, in the order in which they were put aside."""

    @classmethod
    def of(
        cls,
        messages: Iterable[tuple[int, QueuedMessage]],
        first: int | None,
        tokens: Mapping[bytes, Sequence[int]],
    ) -> Delayed:
        """Of a snapshot: the messages with their times, and the index of the one that becomes ready first.

        ``tokens``: the indexes of each token's messages, in the order in which they were put aside.
        """
        waiting = sorted((_Waiting(*pair) for pair in messages), key=_by_time)
        waiting.sort(key=lambda entry: entry.message.index != first)
        by_index = {entry.message.index: entry for entry in waiting}
        named = {
            token: [by_index[index] for index in indexes if index in by_index] for token, indexes in tokens.items()
        }
        return cls(waiting, {token: entries for token, entries in named.items() if entries})

    def __len__(self) -> int:
        return len(self._messages)

    def __iter__(self) -> Iterator[QueuedMessage]:
        return (waiting.message for waiting in self._messages)

    def add(self, ready_ms: int, message: QueuedMessage, token: bytes | None = None, *, shared: bool = False) -> None:
        """Delay a message; a token that is not ``shared`` no longer stands for other messages."""
        messages, waiting = self._messages, _Waiting(ready_ms, message)
        if token is not None:
            self._tokens[token] = [*(self._tokens.get(token, ()) if shared else ()), waiting]
        if messages and ready_ms < messages[0].ready_ms:
            messages[0], waiting = waiting, messages[0]
        insort(messages, waiting, lo=min(len(messages), 1), key=_by_time)

    def take_due(self, ts_ms: int) -> list[QueuedMessage]:
        """Remove and return the messages whose time has come."""
        count = next(
            (position for position, waiting in enumerate(self._messages) if waiting.ready_ms > ts_ms),
            len(self._messages),
        )
        return self._take(count)

    def take_first(self, limit: int | None) -> list[QueuedMessage]:
        """Remove and return the first ``limit`` messages by time and index, or (``None``) all."""
        if limit == 0:
            return []
        self._messages.sort(key=_by_time)
        return self._take(limit)

    def _take(self, count: int | None) -> list[QueuedMessage]:
        taken = self._messages[:count]
        if not taken:
            return []
        self._messages = sorted(self._messages[len(taken) :], key=_by_time)
        if self._tokens:
            indexes = {waiting.message.index for waiting in taken}
            rest = (
                (token, [waiting for waiting in named if waiting.message.index not in indexes])
                for token, named in self._tokens.items()
            )
            self._tokens = {token: named for token, named in rest if named}
        return [waiting.message for waiting in taken]

    def count_named(self, tokens: Sequence[bytes]) -> int:
        """How many messages the tokens stand for."""
        return sum(len(self._tokens.get(token, ())) for token in dict.fromkeys(tokens))

    def take_tokens(self, tokens: Sequence[bytes]) -> list[QueuedMessage]:
        """Remove and return the messages with these tokens, in the order of the tokens."""
        taken = [waiting for token in dict.fromkeys(tokens) for waiting in self._tokens.pop(token, ())]
        for waiting in taken:
            self._messages.remove(waiting)
        if taken:
            self._messages.sort(key=_by_time)
        return [waiting.message for waiting in taken]

    def check_invariants(self) -> None:
        """Raises :class:`RuntimeError` if an invariant does not hold."""
        first, later = self._messages[:1], self._messages[1:]
        if later != sorted(later, key=_by_time) or any(later[0].ready_ms < entry.ready_ms for entry in first if later):
            raise RuntimeError("delayed messages are out of order")
        if not all(named and all(waiting in self._messages for waiting in named) for named in self._tokens.values()):
            raise RuntimeError("a token stands for no message, or for one that does not wait")
