"""JSON values as Erlang's ``~p`` formats them in a broker's error texts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_ESCAPES: Final = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\0": "\\0"}


def erlang_text(value: Any) -> str:
    """``5``, ``true``, ``<<"text">>``, ``[1,2]``, ``#{<<"key">> => 1}``; on one line."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case float():
            return repr(value).replace("e+", "e")
        case str():
            return _binary(value)
        case Mapping():
            return "#{" + ",".join(f"{erlang_text(name)} => {erlang_text(value[name])}" for name in sorted(value)) + "}"
        case list() | tuple():
            if value and all(type(item) is int and 32 <= item < 127 for item in value):
                return f'"{_escaped("".join(map(chr, value)))}"'  # a text, for all that Erlang can tell
            return f"[{','.join(map(erlang_text, value))}]"
        case _:
            return str(value)


def erlang_pairs(table: Mapping[str, Any]) -> str:
    """A table as a list of pairs: ``[{<<"key">>,1}]``."""
    return f"[{','.join(f'{{{erlang_text(name)},{erlang_text(table[name])}}}' for name in sorted(table))}]"


def _binary(text: str) -> str:
    try:
        data = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # it has no bytes, but is shown all the same
        data = text.encode("utf-8", "surrogatepass")
    shown = data.decode("latin-1")
    if all(character.isprintable() or character in "\n\r\t" for character in shown):
        return f'<<"{_escaped(shown)}">>' if data else "<<>>"
    return f"<<{','.join(map(str, data))}>>"


def _escaped(text: str) -> str:
    return "".join(_ESCAPES.get(character, character) for character in text)
