"""Texts: what a name, a routing key or an argument may be, said once for all that is declared.

To AMQP a text is bytes, nearly always UTF-8; bytes that are not stand in a string as Python's ``surrogateescape`` has
them (U+DC80 to U+DCFF). Any other half of a surrogate pair stands for no bytes at all: it could be noted in a file of
definitions, and never be stored, sent or read again. The name of a vhost has to be UTF-8, where somebody chooses it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from warren.actors.engines.errors import ArgumentsError
from warren.queue_index.message.amqp_tables import type_name

MAX_SHORT_STRING_BYTES: Final = 255
"""Of a name or a routing key: AMQP has one byte for the length."""


MAX_LEVELS: Final = 64
"""Of tables and lists in each other, as in :data:`warren.queue_index.message.amqp_tables.MAX_DEPTH`."""


def check_short_string(what: str, value: Any) -> None:
    """Raise :class:`ArgumentsError` unless it is a string that AMQP has room for."""
    if not isinstance(value, str):
        raise ArgumentsError(f"{what} cannot be {value!r:.100}: a string is expected")
    try:
        size = len(value) if value.isascii() else len(value.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError as error:
        raise ArgumentsError(f"{what} cannot be {value!r:.100}: {error.reason}") from error
    if size > MAX_SHORT_STRING_BYTES:
        raise ArgumentsError(f"{what} cannot be {value!r:.100}: more than {MAX_SHORT_STRING_BYTES} bytes")


def check_texts(what: str, value: Any) -> None:
    """Raise :class:`ArgumentsError` where a string in ``value``, names of a table included, is no text."""
    if not is_text(value):
        raise ArgumentsError(f"{what} cannot be {value!r:.100}: half of a surrogate pair is no text")


def check_depth(what: str, value: Any, levels: int = MAX_LEVELS) -> None:
    """Raise :class:`ArgumentsError` if tables and lists are nested deeper than ``levels``, because copying and reading
    them recurses as deep."""
    level = [value]
    for _ in range(levels):
        inner: list[Any] = []
        for one in level:
            if isinstance(one, Mapping):
                inner += one.values()
            elif isinstance(one, list | tuple):
                inner += one
        if not inner:
            return
        level = list({id(one): one for one in inner if isinstance(one, Mapping | list | tuple)}.values())
    if level:
        raise ArgumentsError(f"{what} cannot be nested deeper than {levels} levels")


def check_utf8(what: str, value: str) -> None:
    """Raise :class:`ArgumentsError` where the text is of bytes that are no UTF-8."""
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ArgumentsError(f"{what} cannot be {value!r:.100}: {error.reason}") from error


VOID: Final = object()
"""An argument that is there, and has no value."""


def argument(arguments: Mapping[str, Any], name: str) -> Any:
    """What an argument is, to be compared; ``None``: it is not there."""
    value = arguments.get(name)
    return VOID if value is None and name in arguments else value


def inequivalent(name: str, what: Any, received: Any, current: Any) -> str:
    """Of an argument, or a property, that is declared otherwise than ``what`` is there with; ``None``: not at all."""
    tell = _typed if received is None or current is None else _quoted
    return f"inequivalent arg '{name}' for {what}: received {tell(received)} but current is {tell(current)}"


def _quoted(value: Any) -> str:
    if value is VOID:
        return "none"
    return f"'{str(value).lower() if isinstance(value, bool) else value}'"


def _typed(value: Any) -> str:
    if value is VOID:
        return "the value 'undefined' of type 'void'"
    return "none" if value is None else f"the value {_quoted(value)} of type '{type_name(value)}'"


def is_text(value: Any) -> bool:
    """Whether every string in ``value`` stands for bytes; what is no string counts for nothing."""
    waiting, seen = [value], set[int]()
    while waiting:
        one = waiting.pop()
        if isinstance(one, str):
            if not one.isascii() and not _has_bytes(one):
                return False
        elif isinstance(one, Mapping | list | tuple) and id(one) not in seen:
            seen.add(id(one))
            waiting += one
            if isinstance(one, Mapping):
                waiting += one.values()
    return True


def _has_bytes(text: str) -> bool:
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return True
