"""PendingConfirms: the tokens of publishes that wait until their messages are safe.

A publisher's *token* stands for one call. A level reports publishes as safe in the order in which they arrived
(:meth:`~warren.queue_index.queue.variable_queue.VariableQueue.drain_confirmed`), so each level has one line of tokens.
"""

from __future__ import annotations

from collections import deque

from warren.actors.engines.queue.backing import Backing


class PendingConfirms:
    """Tokens that wait for confirms, by level. Truth value: whether there are any."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: dict[int, deque[object]] = {}

    def __bool__(self) -> bool:
        return any(self._waiting.values())

    def add(self, level: int, token: object) -> None:
        """Add the token of the last publish to that level."""
        waiting = self._waiting.get(level)
        if waiting is None:
            waiting = self._waiting[level] = deque()
        waiting.append(token)

    def take_safe(self, backing: Backing) -> list[object]:
        """Take the tokens of publishes that have become safe since the last call."""
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
