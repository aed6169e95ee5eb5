"""PendingConfirms: publishers that wait to hear that their messages are safe.

A publisher's *token* stands for one call. A level tells that publishes are safe in the order in which they came
(:meth:`~warren.queue_index.queue.variable_queue.VariableQueue.drain_confirmed`), so tokens wait in one line for each
level.
"""

from __future__ import annotations

from collections import deque

from warren.actors.engines.queue.backing import Backing


class PendingConfirms:
    """Tokens that wait for confirms, by level. Truth value: whether any does."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: dict[int, deque[object]] = {}

    def __bool__(self) -> bool:
        return any(self._waiting.values())

    def add(self, level: int, token: object) -> None:
        """The last publish into that level asked for a confirm."""
        waiting = self._waiting.get(level)
        if waiting is None:
            waiting = self._waiting[level] = deque()
        waiting.append(token)

    def take_safe(self, backing: Backing) -> list[object]:
        """Take the tokens of what has become safe since the last time."""
        tokens: list[object] = []
        for level, waiting in self._waiting.items():
            if waiting:
                tokens += [waiting.popleft() for _ in backing.level(level).drain_confirmed()]
        return tokens

    def all(self) -> list[object]:
        """Take every token, of each level in order."""
        tokens = [token for waiting in self._waiting.values() for token in waiting]
        self._waiting = {}
        return tokens
