"""Texts: which strings are valid names, routing keys and arguments of declarations.

To AMQP a text is bytes, nearly always UTF-8. Bytes that are not UTF-8 are represented in a string as by Python's
``surrogateescape`` (U+DC80 to U+DCFF). Any other half of a surrogate pair stands for no bytes at all: it could be
written to a file of definitions, but never be stored, sent or read again. The same holds for such halves whose bytes
are UTF-8: they would be read as another text. A vhost's name, if a client chooses it, must be UTF-8.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from warren.actors.engines.errors import ArgumentsError
from warren.queue_index.message.amqp_tables import type_name
from warren.storage.errors import shown

MAX_SHORT_STRING_BYTES: Final = 255
"""The longest name or routing key: AMQP has one byte for the length."""


MAX_LEVELS: Final = 64
"""How deep tables and lists may be nested, as in :data:`warren.queue_index.message.amqp_tables.MAX_DEPTH`."""


def check_short_string(what: str, value: Any) -> None:
    """Raise :class:`ArgumentsError` unless it is a string that is short enough for AMQP."""
    if not isinstance(value, str):
        raise ArgumentsError(f"{what} cannot be {shown(value)}: a string is expected")
    try:
        size = len(value) if value.isascii() else len(value.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError as error:
        raise ArgumentsError(f"{what} cannot be {shown(value)}: {error.reason}") from error
    check_texts(what, value)
    if size > MAX_SHORT_STRING_BYTES:
        raise ArgumentsError(f"{what} cannot be {shown(value)}: more than {MAX_SHORT_STRING_BYTES} bytes")


def check_texts(what: str, value: Any) -> None:
    """Raise :class:`ArgumentsError` if a string in ``value``, table keys included, is not a valid text."""
    if not is_text(value):
        raise ArgumentsError(f"{what} cannot be {shown(value)}: half of a surrogate pair is no text")


def check_names(what: str, value: Any) -> None:
    """Raise :class:`ArgumentsError` if a key of a table in ``value`` is not a string, or too long for AMQP."""
    for node in _nodes(value):
        for name in node if isinstance(node, Mapping) else ():
            check_short_string(what, name)


def check_depth(what: str, value: Any, levels: int = MAX_LEVELS) -> None:
    """Raise :class:`ArgumentsError` if tables and lists are nested deeper than ``levels``, because copying and reading
    them recurses as deep."""
    level = [value]
    for _ in range(levels):
        inner: list[Any] = []
        for node in level:
            if isinstance(node, Mapping):
                inner += node.values()
            elif isinstance(node, list | tuple):
                inner += node
        if not inner:
            return
        level = list({id(node): node for node in inner if isinstance(node, Mapping | list | tuple)}.values())
    if level:
        raise ArgumentsError(f"{what} cannot be nested deeper than {levels} levels")


def check_utf8(what: str, value: str) -> None:
    """Raise :class:`ArgumentsError` if the text stands for bytes that are not UTF-8."""
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ArgumentsError(f"{what} cannot be {shown(value)}: {error.reason}") from error


VOID: Final = object()
"""An argument that exists and has no value."""


def argument(arguments: Mapping[str, Any], name: str) -> Any:
    """An argument's value for comparisons; ``None`` if it is missing."""
    value = arguments.get(name)
    return VOID if value is None and name in arguments else value


def inequivalent(name: str, what: Any, received: Any, current: Any) -> str:
    """The error text for a redeclaration of ``what`` with another argument or property; ``None``: a missing one."""
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
    """Whether every string in ``value`` stands for bytes. Other values are ignored."""
    return all(node.isascii() or _has_bytes(node) for node in _nodes(value) if isinstance(node, str))


def _nodes(value: Any) -> Iterator[Any]:
    """Yield ``value`` and, of tables and lists, all keys and elements."""
    waiting, seen = [value], set[int]()
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, Mapping | list | tuple) and id(node) not in seen:
            seen.add(id(node))
            waiting += node
            if isinstance(node, Mapping):
                waiting += node.values()


def _has_bytes(text: str) -> bool:
    try:
        return text.encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape") == text
    except UnicodeEncodeError:
        return False
