"""Names of queues and vhosts as text, and as JSON.

On disk a name is bytes. Nearly all are UTF-8; a level of a priority queue of 128 and above is not, and clients may have
declared others. The text form is UTF-8 with ``surrogateescape``: a byte that is not UTF-8 becomes a code point of its
own, U+DC80 … U+DCFF. No two names have the same text, text becomes the name again, and it is the form in which Python
hands over such bytes from a command line. JSON writes those code points as ``\\udc80`` … ``\\udcff``.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Mapping, Sequence
from typing import TypeAlias, overload

Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"


def to_text(name: bytes) -> str:
    """The text form of a name."""
    return name.decode("utf-8", "surrogateescape")


def from_text(text: str) -> bytes:
    """The name whose text form ``text`` is."""
    return text.encode("utf-8", "surrogateescape")


@overload
def as_text(text: str) -> str: ...
@overload
def as_text(text: str | None) -> str | None: ...


def as_text(text: str | None) -> str | None:
    """The text form as columns can hold it, which is UTF-8: a byte that is not becomes ``\\udc80``, as in JSON."""
    return None if text is None else text.encode("utf-8", "backslashreplace").decode("utf-8")


def split_level(name: bytes) -> tuple[bytes, int | None]:
    """A queue's bare name and its level, if ``name`` is that of a priority queue's level (``name NUL level``).

    Nothing else tells a level from a plain queue whose name ends in a NUL and one more byte.
    """
    if len(name) >= 2 and name[-2] == 0:
        return name[:-2], name[-1]
    return name, None


def highest_level_first(name: bytes) -> tuple[bytes, int]:
    """The key by which queues are sorted: by bare name, then from the highest level down."""
    bare, level = split_level(name)
    return bare, 0 if level is None else -level


def shown(name: bytes) -> str:
    """A name for people: the level in words, unprintable characters escaped."""
    bare, level = split_level(name)
    text = printable(to_text(bare))
    return text if level is None else f"{text} (priority {level})"


_UNPRINTABLE = frozenset({"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"})
"""Categories of Unicode: controls, characters without a glyph, and those that end a line or a paragraph."""


def printable(text: str) -> str:
    """``text`` with escapes for what a terminal would obey, or could not show."""
    return "".join(_escaped(char) if unicodedata.category(char) in _UNPRINTABLE else char for char in text)


def _escaped(character: str) -> str:
    return ascii(character)[1:-1].replace("\\udc", "\\x")


_ENCODE = json.JSONEncoder(ensure_ascii=False).encode
_ENCODE_ASCII = json.JSONEncoder().encode


def to_json(value: Json) -> bytes:
    """``value`` as JSON, in UTF-8, on one line."""
    try:
        return _ENCODE(value).encode()
    except UnicodeEncodeError:  # surrogates, of bytes that are not UTF-8, have no other form
        return _ENCODE_ASCII(value).encode()
