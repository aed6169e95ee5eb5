"""The values that conditions (:mod:`warren.where`) compare: numbers, text and times, from fields of any kind.

Text and a number are compared as numbers if the text is one, a time with a date in ISO 8601 form (UTC if it
has no zone) and with seconds since 1970; other values of different kinds cannot be compared, nor can missing ones.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final

from warren.queue_index.message.amqp_tables import Timestamp

NUMBER: Final = re.compile(r"[+-]?(?:[0-9]{1,40}(?:\.[0-9]{0,40})?|\.[0-9]{1,40})(?:[eE][+-]?[0-9]{1,3})?")


class Moment(float):
    """A time: seconds since 1970."""


def _plain(value: Any) -> Any:
    """Convert a value for comparison to a number, text or :class:`Moment`; ``None`` if it cannot be compared."""
    if value is None or isinstance(value, str | Moment):
        return value
    if isinstance(value, Timestamp):
        return Moment(value)
    if isinstance(value, bool | int | float | Decimal):
        return value
    if isinstance(value, datetime):
        return Moment((value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp())
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode("utf-8", "surrogateescape")
    return None


def as_text(value: Any) -> str | None:
    """Return the text for LIKE: text, or a number as it is written."""
    value = _plain(value)
    if isinstance(value, bool) or value is None or isinstance(value, Moment):
        return None
    return value if isinstance(value, str) else str(value)


@lru_cache(maxsize=256)
def moment_of(text: str) -> Moment | None:
    """Parse a time in ISO 8601 form, or a number of seconds."""
    try:
        parsed = datetime.fromisoformat(text.strip())
        return Moment((parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp())
    except (ValueError, OverflowError):
        number = number_of(text)
        return None if number is None else Moment(number)


def number_of(text: str) -> int | float | None:
    if NUMBER.fullmatch(text) is None:
        return None
    return float(text) if any(character in text for character in ".eE") else int(text)


def _pair(left: Any, right: Any) -> tuple[Any, Any] | None:
    """Return two values in comparable form; ``None`` if they cannot be compared."""
    left, right = _plain(left), _plain(right)
    if left is None or right is None:
        return None
    if isinstance(left, str) != isinstance(right, str):
        if isinstance(left, str):
            left = _like(left, right)
        else:
            right = _like(right, left)
        if left is None or right is None:
            return None
    elif isinstance(left, bool) != isinstance(right, bool):
        return None
    return left, right


def _like(text: str, other: Any) -> Any:
    """Convert the text to the other value's kind; ``None`` if impossible."""
    if isinstance(other, bool):
        return None
    return moment_of(text) if isinstance(other, Moment) else number_of(text)


def compared(compare: Callable[[Any, Any], bool], left: Any, right: Any) -> bool | None:
    pair = _pair(left, right)
    return None if pair is None else bool(compare(*pair))


def inside(value: Any, key: str | int) -> Any:
    """Return the value under a name in a table, or at a place in a list."""
    if isinstance(value, Mapping) and isinstance(key, str):
        return value.get(key)
    is_list = isinstance(value, Sequence) and not isinstance(value, str | bytes)
    return value[key] if is_list and isinstance(key, int) and 0 <= key < len(value) else None


def negated(truth: bool | None) -> bool | None:
    return None if truth is None else not truth
