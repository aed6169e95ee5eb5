"""Erlang terms written as text, as the shell prints them (``~p``): what ``warren.storage.erlang_text`` reads."""

from __future__ import annotations

import math
import re

from warren.storage.erlang_terms import Atom, Term
from warren.storage.erlang_text import binary_text, is_printable, quoted

_PLAIN_ATOM = re.compile(r"[a-zß-öø-ÿ][0-9A-Za-zÀ-ÖØ-öø-ÿ_@]*")
_RESERVED = re.compile(
    "after|and|andalso|band|begin|bnot|bor|bsl|bsr|bxor|case|catch|cond|div|else|end|fun|if|let|maybe|not|of|or|orelse"
    "|receive|rem|try|when|xor"
)


def format_term(term: Term) -> bytes:
    """Return ``term`` as Latin-1 text on one line, followed by a full stop.

    Lists of printable characters become strings, binaries of printable bytes ``<<"…">>``, as the shell prints them.
    """
    parts: list[str] = []
    _write(term, parts)
    return ("".join(parts) + ".").encode("latin-1")


def _write(term: Term, parts: list[str]) -> None:
    match term:
        case tuple():
            _write_all(list(term), "{", "}", parts)
        case list():
            if term and all(type(element) is int and is_printable(element) for element in term):
                parts.append(quoted("".join(map(chr, term)), '"'))
            else:
                _write_all(term, "[", "]", parts)
        case dict():
            parts.append("#{")
            for position, (key, value) in enumerate(term.items()):
                parts.append("," if position else "")
                _write(key, parts)
                parts.append(" => ")
                _write(value, parts)
            parts.append("}")
        case _:
            parts.append(_leaf(term))


def _write_all(elements: list[Term], opening: str, closing: str, parts: list[str]) -> None:
    parts.append(opening)
    for position, element in enumerate(elements):
        parts.append("," if position else "")
        _write(element, parts)
    parts.append(closing)


def _leaf(term: Term) -> str:
    match term:
        case bool():
            return "true" if term else "false"
        case int():
            return str(term)
        case float() if math.isfinite(term):
            text = repr(term)
            mantissa, exponent_mark, exponent = text.partition("e")
            return text if "." in mantissa else f"{mantissa}.0{exponent_mark}{exponent}"
        case Atom():
            plain = _PLAIN_ATOM.fullmatch(term) and not _RESERVED.fullmatch(term)
            return str(term) if plain else quoted(term, "'")
        case bytes():
            return binary_text(term)
        case _:
            raise ValueError(f"{term!r} has no text")
