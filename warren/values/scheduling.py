"""Scheduled messages: the arguments ``delay`` and ``at`` of a publish, and the result of such a publish."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from warren.actors.runtime.future import Confirm, CountDown
from warren.storage.call_arguments import seconds_of
from warren.storage.errors import MessageError, shown
from warren.values.messages import MAX_DUE_MS


class Schedule(NamedTuple):
    """When messages are due, and by which ids they can be called back."""

    properties: dict[str, Any]
    """The properties of the publish, with the ids and without ``delay`` and ``at``."""
    due_ms: list[int]
    """Of each: milliseconds since 1970."""
    ids: list[str]

    def part(self, low: int, high: int) -> Schedule:
        """Of some of the messages."""
        return Schedule(self.properties, self.due_ms[low:high], self.ids[low:high])

    @property
    def encoded_ids(self) -> list[bytes]:
        return [message_id.encode("utf-8", "surrogateescape") for message_id in self.ids]


class Scheduled(CountDown):
    """The confirm of messages that come later: answered once they are as safe as the node's ``sync`` promises."""

    __slots__ = ("due_ms", "message_ids")

    def __init__(self, parts: Sequence[Confirm], schedule: Schedule) -> None:
        super().__init__([*parts])
        self.message_ids = schedule.ids
        """Of each, in the order of the bodies: by it :meth:`Queue.cancel_delayed` calls it back."""
        self.due_ms = schedule.due_ms
        """When each is due: milliseconds since 1970."""

    @property
    def message_id(self) -> str:
        """Of the only one, or the first."""
        return self.message_ids[0]


def schedule(
    properties: Mapping[str, Any], count: int, now_ms: int, new_id: Callable[[], str], *, share_id: bool = False
) -> Schedule:
    """Return the schedule for the arguments of a publish of ``count`` messages. Raises :class:`MessageError`.

    ``share_id``: messages without an id get one for all of them.
    """
    rest = dict(properties)
    delay, at = rest.pop("delay", None), rest.pop("at", None)
    if delay is not None and at is not None:
        raise MessageError("a message comes after a delay or at a time, not both")
    requested, due_of = (delay, _after) if at is None else (at, _at)
    per_message = requested if isinstance(requested, list) else [requested]
    if len(per_message) != count and isinstance(requested, list):
        raise MessageError(f"{'delay' if at is None else 'at'} of {len(per_message)} messages, and {count} bodies")
    due_ms = [now_ms if moment is None else due_of(moment, now_ms) for moment in per_message]
    if not isinstance(requested, list):
        due_ms *= count
    message_id = rest.get("message_id")
    if message_id is None:
        ids = [new_id()] * count if share_id else [new_id() for _ in range(count)]
    elif isinstance(message_id, list):
        ids = [new_id() if entry is None else entry for entry in message_id]
    else:
        ids = [message_id] * count
    if not all(isinstance(text, str) and text for text in ids):
        raise MessageError("a message_id is a text")
    if share_id or count == 1:
        rest["message_id"] = ids[0] if ids else None
    elif message_id is None or isinstance(message_id, list):
        rest["message_id"] = ids
    return Schedule(rest, due_ms, ids)


def _after(delay: object, now_ms: int) -> int:
    seconds = seconds_of(delay.total_seconds() if isinstance(delay, timedelta) else delay)
    if seconds is None or isinstance(delay, datetime):
        raise MessageError(f"a delay is a number of seconds or a timedelta, not {shown(delay)}")
    return _checked(now_ms + _milliseconds(seconds))


def _at(moment: object, _: int) -> int:
    seconds = seconds_of(moment)
    if seconds is None:
        raise MessageError(f"at is a datetime or seconds since 1970, not {shown(moment)}")
    return _checked(_milliseconds(seconds))


def _milliseconds(seconds: float) -> int:
    return max(math.ceil(round(seconds * 1000, 3)), 0)


def _checked(due_ms: int) -> int:
    if due_ms > MAX_DUE_MS:
        raise MessageError(f"a message cannot wait until {due_ms} ms after 1970: the last year is 9999")
    return due_ms
