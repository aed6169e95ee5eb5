"""Messages that were looked at and left where they are, and which of them somebody means."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeAlias

from warren.actors.looking import BrowsedMessage
from warren.messages import ReceivedMessage
from warren.storage.errors import MessageError


class BrowsedDelivery(ReceivedMessage):
    """A message that was looked at and left where it is."""

    __slots__ = ("_browsed",)

    def __init__(self, browsed: BrowsedMessage) -> None:
        super().__init__((browsed.browsed.term,))
        self._browsed = browsed

    @property
    def id(self) -> str:
        """What ``take``, ``move`` and ``remove`` know it by, until it is gone: text, of its level in a priority queue,
        its ``seq_id``, and 32 digits that no other message ever has."""
        return self._browsed.id

    @property
    def seq_id(self) -> int:
        """Its number in the queue; in a priority queue, in its level."""
        return self._browsed.browsed.seq_id

    @property
    def unacked(self) -> bool:
        """Whether a consumer has it."""
        return self._browsed.browsed.unacked

    @property
    def expires_at(self) -> float | None:
        """When it expires, in seconds since the Unix epoch; ``None``: never."""
        return self._browsed.browsed.properties.expiry_us / 1e6 or None


Where: TypeAlias = str | Callable[[BrowsedDelivery], bool]
"""Which messages: a condition (:mod:`warren.where`), or a function of a message."""


@functools.lru_cache(maxsize=16)
def _condition(text: str) -> Callable[[BrowsedDelivery], bool]:
    from warren.where import MESSAGE_FIELDS, Moment, compile_where  # noqa: PLC0415 - few look by conditions

    fields: dict[str, Callable[[BrowsedDelivery], Any]] = {
        **MESSAGE_FIELDS,
        "id": lambda message: message.id,
        "seq_id": lambda message: message.seq_id,
        "unacked": lambda message: message.unacked,
        "expiry": lambda message: None if message.expires_at is None else Moment(message.expires_at),
    }
    return compile_where(text, fields)


def test_of(where: Where | None) -> Callable[[BrowsedDelivery], bool]:
    """Whether a message is meant. One that cannot be read is not, where anything is said. Raises
    :class:`~warren.where.WhereError`."""
    if where is None:
        return lambda _: True
    if isinstance(where, str):
        where = _condition(where)
    elif not callable(where):
        raise TypeError(f"where is a condition or a function of a message, not {where!r:.100}")
    return functools.partial(_test, where)


def _test(where: Callable[[BrowsedDelivery], bool], message: BrowsedDelivery) -> bool:
    try:
        return bool(where(message))
    except MessageError:
        return False
