"""Selecting messages of a queue: by a condition, by a function of a message, or by their ids.

A *walk* goes through a queue page by page, chooses messages, and processes those chosen in a page before it goes on, so
it takes the memory of one page. It ignores messages that arrive after it began: a message that died again could go
round for ever. It also leaves messages that consumers have.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import attrs

from warren.actors.queue.inspecting import BrowsedMessage, chosen_ids
from warren.queue_index.queue.fetching import MessageProperties
from warren.storage.errors import DiskFullError, InvalidValueError, MessageError, WarrenError
from warren.values.messages import ReceivedMessage
from warren.verbs.steps import Reading, Steps

Place: TypeAlias = tuple[int, int]
"""Where a message stands: its level, its seq_id."""
Ids: TypeAlias = str | Iterable[str]
Target: TypeAlias = tuple[str, str] | None
"""Where messages go: an exchange and a routing key (for the exchange "", a queue's name); ``None``: home."""
Done: TypeAlias = tuple[int, str]
"""How many messages were processed, and what ended it early; "": nothing."""
Act: TypeAlias = Callable[[list[str]], Steps[Done]]

PAGE: Final = 256
"""The number of messages that are looked at in one turn of a queue."""

IDS: Final = 32
"""At most this many messages that were given by id are processed at a time: their sizes are unknown."""


class Selected(NamedTuple):
    """The selected messages of a page of a queue."""

    ids: list[str]
    looked: int
    """How many messages the page had."""
    after: Place | None
    """The next page begins after this place; ``None``: this was the last page."""


class BrowsedDelivery(ReceivedMessage):
    """A message that was looked at but not taken."""

    __slots__ = ("_browsed", "expiry_us", "level", "msg_id", "seq_id", "unacked")

    def __init__(self, browsed: BrowsedMessage) -> None:
        super().__init__((browsed.browsed.term,))
        self._browsed = browsed
        self.msg_id = browsed.browsed.msg_id
        """16 bytes."""
        self.expiry_us = browsed.browsed.properties.expiry_us
        """When it expires, in microseconds since the Unix epoch; 0: never."""
        self.level = browsed.level
        """Of a priority queue; 0 in others."""
        self.seq_id = browsed.browsed.seq_id
        """Its number in the queue; in a priority queue, in its level."""
        self.unacked = browsed.browsed.unacked
        """Whether a consumer has it."""

    @property
    def id(self) -> str:
        """Its id for ``take``, ``move`` and ``remove``: text, made of its level in a priority queue,
        its ``seq_id``, and 32 digits that are unique."""
        return self._browsed.id

    @property
    def encoded(self) -> bytes:
        """The message as it is stored."""
        return self._browsed.browsed.term

    def shown_bytes(self, limit: int) -> int:
        """Its size, with at most ``limit`` bytes of the body."""
        return len(self.encoded) - max(self._browsed.browsed.properties.size - limit, 0)


Where: TypeAlias = str | Callable[[BrowsedDelivery], bool]
"""Which messages: a condition (:mod:`warren.where`), or a function of a message."""


@functools.lru_cache(maxsize=16)
def _condition(text: str) -> Callable[[BrowsedDelivery], bool]:
    from warren.where import MESSAGE_FIELDS, Moment, compile_where

    fields: dict[str, Callable[[BrowsedDelivery], Any]] = {
        **MESSAGE_FIELDS,
        "id": lambda message: message.id,
        "seq_id": lambda message: message.seq_id,
        "unacked": lambda message: message.unacked,
        "expiry": lambda message: Moment(message.expiry_us / 1e6) if message.expiry_us else None,
    }
    return compile_where(text, fields)


def test_of(where: Where | None) -> Callable[[BrowsedDelivery], bool]:
    """Return the test that selects messages. With ``where``, it rejects messages that cannot be read. Raises
    :class:`~warren.where.WhereError`."""
    if where is None:
        return lambda _: True
    if isinstance(where, str):
        where = _condition(where)
    elif not callable(where):
        raise InvalidValueError(f"where is a condition or a function of a message, not {where!r:.100}")
    return functools.partial(_test, where)


def matching(where: Where | None, messages: list[BrowsedDelivery]) -> Steps[list[BrowsedDelivery]]:
    """Return the messages that are selected. Raises :class:`~warren.where.WhereError`.

    A condition may take long, and event loops leave it to another thread. A function is called in the caller's.
    """

    def select() -> list[BrowsedDelivery]:
        test = test_of(where)
        return [message for message in messages if test(message)]

    if not isinstance(where, str):
        return select()
    selected: list[BrowsedDelivery] = yield Reading(select)
    return selected


def _test(where: Callable[[BrowsedDelivery], bool], message: BrowsedDelivery) -> bool:
    try:
        return bool(where(message))
    except MessageError:
        return False


def dead_letters_only(where: Where | None) -> Where:
    """Restrict a selection to dead letters."""
    test = test_of(where)
    if where is None or isinstance(where, str):
        died = "headers['x-death'] IS NOT NULL"
        return died if where is None else f"{died} AND ({where})"
    return lambda message: "x-death" in message.headers and test(message)


# ── for guests ──────────────────────────────────────────────────────────────────────────────────────────────────────


def browsed_to_plain(page: list[BrowsedMessage]) -> list[dict[str, Any]]:
    """Encode browsed messages for a guest."""
    return [
        {
            "level": message.level,
            "seq_id": message.browsed.seq_id,
            "msg_id": message.browsed.msg_id,
            "unacked": message.browsed.unacked,
            "expiry_us": message.browsed.properties.expiry_us,
            "size": message.browsed.properties.size,
            "term": message.browsed.term,
        }
        for message in page
    ]


def browsed_of(messages: list[dict[str, Any]]) -> list[BrowsedMessage]:
    """Undo :func:`browsed_to_plain`."""
    from warren.queue_index.queue.browsing import Browsed

    return [
        BrowsedMessage(
            message.pop("level"),
            Browsed(properties=MessageProperties(message.pop("expiry_us"), message.pop("size")), **message),
        )
        for message in messages
    ]


def selected_of(answer: tuple[list[str], int, Sequence[int] | None]) -> Selected:
    """Decode a selection that was sent."""
    ids, looked, place = answer
    return Selected(ids, looked, None if place is None else (place[0], place[1]))


# ── the walk ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class NotMovedError(WarrenError):
    """Messages could not be moved because the target did not take them. They stay in their queue."""


def target_of(to: object) -> Target:
    """Return the target of a queue, of its name, or of an exchange and a routing key."""
    if isinstance(to, tuple) and len(to) == 2 and all(isinstance(part, str) for part in to):
        return to
    name = getattr(to, "name", to)
    if not isinstance(name, str):
        raise InvalidValueError(f"messages go to a queue, or to an (exchange, routing key), not to {to!r:.100}")
    return "", name


class Walked(Protocol):
    """A queue to walk through."""

    def ends(self) -> Steps[dict[int, int]]: ...

    def select(self, where: Where | None, after: Place | None, ends: dict[int, int]) -> Steps[Selected]: ...

    def selecting(self, where: Where | None, after: Place | None, ends: dict[int, int]) -> Steps[Selected]: ...

    def sync(self) -> Steps[None]: ...


@attrs.define(eq=False, repr=False)
class Walk:
    """One walk through a queue; :meth:`steps` goes to its end, :meth:`step` through one page."""

    _queue: Walked
    _act: Act
    _where: Where | None = None
    _ids: list[str] | None = None
    """Look only at these messages, in this order."""
    _limit: int | None = None
    """The walk ends when it has processed this many messages."""
    looked: int = 0
    chosen: int = 0
    done: int = 0
    _after: Place | None = None
    _ends: dict[int, int] | None = None
    _begun: bool = False

    def __attrs_post_init__(self) -> None:
        if self._where is not None and self._ids is not None:
            raise InvalidValueError("either where or ids")
        test_of(self._where)
        chosen_ids(self._ids or ())

    def steps(self) -> Steps[int]:
        """Walk to the end; return how many messages were safely processed."""
        while (yield from self.step()):
            pass
        yield from self.sync()
        return self.done

    def sync(self) -> Steps[None]:
        """Wait until what was done is safe. Raises :class:`DiskFullError` if there is no room for that."""
        try:
            yield from self._queue.sync()
        except DiskFullError as error:
            left = "1 message has left" if self.done == 1 else f"{self.done} messages have left"
            raise DiskFullError(
                f"{left} the queue, but a crash before there is room on the disk would bring back what left it: {error}"
            ) from error

    def step(self) -> Steps[bool]:
        """Walk through one page; return whether there may be more. Raises :class:`NotMovedError`."""
        if not self._begun:
            self._begun = True
            yield from self._act([])  # raises an error even if there are no messages
        left = None if self._limit is None else self._limit - self.done
        if left is not None and left <= 0:
            return False
        if self._ids is not None:
            count = IDS if left is None else min(IDS, left)
            chosen, self._ids = self._ids[:count], self._ids[count:]
            self.looked += len(chosen)
            more = bool(self._ids)
        else:
            chosen = yield from self._chosen(left)
            more = self._after is not None
        if chosen:
            self.chosen += len(chosen)
            done, why = yield from self._act(chosen)
            self.done += done
            if why:
                were = "message was" if self.done == 1 else "messages were"
                raise NotMovedError(f"{why}; {self.done} {were} moved before that; the others were not moved")
        return more

    def _chosen(self, left: int | None) -> Steps[list[str]]:
        if self._ends is None:
            self._ends = yield from self._queue.ends()
        select = self._queue.selecting if callable(self._where) else self._queue.select
        selected = yield from select(self._where, self._after, self._ends)
        self.looked += selected.looked
        self._after, ids = selected.after, selected.ids
        if left is not None and len(ids) > left:
            ids = ids[:left]
            level, seq_id, _ = ids[-1].split(":")
            self._after = int(level), int(seq_id)
        return ids
