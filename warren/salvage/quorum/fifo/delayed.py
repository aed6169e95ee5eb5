"""Messages that wait for a time before they become ready (4.3's delayed retry, and an AMQP 1.0 annotation).

They become ready in the order of their times, then of the log. A consumer may have put one aside under a token of its
own, from version 9 on several under one token, and ask for them by that token before their time.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator, Sequence
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


@attrs.define(eq=False, repr=False)
class Delayed:
    """Delayed messages, in the order in which they become ready."""

    _messages: list[_Waiting] = attrs.Factory(list)
    _tokens: dict[bytes, list[_Waiting]] = attrs.Factory(dict)
    """Each token's messages, in the order in which they were put aside."""

    def __len__(self) -> int:
        return len(self._messages)

    def __iter__(self) -> Iterator[QueuedMessage]:
        return (waiting.message for waiting in self._messages)

    def add(self, ready_ms: int, message: QueuedMessage, token: bytes | None = None, *, shared: bool = False) -> None:
        """Delay a message; a token that is not ``shared`` no longer stands for other messages."""
        waiting = _Waiting(ready_ms, message)
        insort(self._messages, waiting, key=lambda entry: (entry.ready_ms, entry.message.index))
        if token is not None:
            self._tokens[token] = [*(self._tokens.get(token, ()) if shared else ()), waiting]

    def set_token(self, token: bytes, indexes: Sequence[int]) -> None:
        """Let ``token`` stand for the messages with these indexes, as far as they are delayed."""
        by_index = {waiting.message.index: waiting for waiting in self._messages}
        if named := [by_index[index] for index in indexes if index in by_index]:
            self._tokens[token] = named

    def take_due(self, ts_ms: int) -> list[QueuedMessage]:
        """Remove and return the messages whose time has come."""
        count = next(
            (position for position, waiting in enumerate(self._messages) if waiting.ready_ms > ts_ms),
            len(self._messages),
        )
        return self.take_first(count)

    def take_first(self, limit: int | None) -> list[QueuedMessage]:
        """Remove and return the first ``limit`` messages, or (``None``) all."""
        taken = self._messages[:limit]
        del self._messages[:limit]
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
        return [waiting.message for waiting in taken]

    def check_invariants(self) -> None:
        """Raises :class:`RuntimeError` if an invariant does not hold."""
        if self._messages != sorted(self._messages, key=lambda waiting: (waiting.ready_ms, waiting.message.index)):
            raise RuntimeError("delayed messages are out of order")
        if not all(named and all(waiting in self._messages for waiting in named) for named in self._tokens.values()):
            raise RuntimeError("a token stands for no message, or for one that does not wait")
