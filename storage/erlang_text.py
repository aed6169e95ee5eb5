"""Erlang terms as text, as the shell prints them (``~p``) and ``file:consult`` reads them: a reader,
and what the shell prints of a binary and of JSON's values.

Terms are those of :mod:`warren.storage.erlang_terms`, in the same Python types: a string is a list of its characters,
an adjacent string continues the one before, ``true`` and ``false`` are ``bool``.

*Characters.* A file is Latin-1: one byte, one character. A binary is printed as ``<<"…">>`` if all its bytes are
printable Latin-1, else as numbers; the characters between the quotes are read as bytes, so that bytes of UTF-8 survive
in either form. A character above 255 exists only as an escape, ``\\x{6CE8}``, in atoms and strings.

Refused: pids, references, ports and funs (they have no text that can be read back), bit strings, improper lists,
variables, what map keys may not be (as in :mod:`warren.storage.erlang_terms`), and whatever is too deep or too long.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Final

from warren.storage.erlang_terms import MAX_DEPTH, Atom, Term
from warren.storage.errors import TermError

MAX_CHARACTERS: Final = 1 << 20
"""The longest text that is read; a queue's config has about 2,500 characters."""

_MAX_DIGITS = 600
"""The most digits of an integer: 2040 bits have 615."""
_KEY_INTEGER_LIMIT = 1 << 56
"""Python's hash of an integer below this is the integer; larger ones can be chosen to collide."""

_TOKEN = re.compile(
    r"""(?P<blank>(?:[\x00-\x20\x7f-\xa0]|%[^\n]*)+)
    |(?P<float>[0-9]+\.[0-9]+(?:[eE][+-]?[0-9]+)?)
    |(?P<based>[0-9]{1,2}\#[0-9A-Za-z]+(?:_[0-9A-Za-z]+)*)
    |(?P<integer>[0-9]+(?:_[0-9]+)*)
    |(?P<atom>[a-zß-öø-ÿ][0-9A-Za-zÀ-ÖØ-öø-ÿ_@]*)
    |(?P<quoted>'[^'\\]*(?:\\(?:\^.|.)[^'\\]*)*')
    |(?P<string>"[^"\\]*(?:\\(?:\^.|.)[^"\\]*)*")
    |(?P<character>\$(?:\\(?:x\{[0-9A-Fa-f]+\}|x[0-9A-Fa-f]{2}|[0-7]{1,3}|\^.|.)|[^\\]))
    |(?P<opaque><[0-9]|\#[A-Z])
    |(?P<end>\.(?=[\x00-\x20\x7f-\xa0%]|\Z))
    |(?P<mark>\#\{|<<|>>|=>|[][{},|/:+-])""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(r"\\(?:x\{([0-9A-Fa-f]+)\}|x([0-9A-Fa-f]{2})|([0-7]{1,3})|\^(.)|(.))", re.DOTALL)
_NAMED = {"b": "\b", "d": "\x7f", "e": "\x1b", "f": "\f", "n": "\n", "r": "\r", "s": " ", "t": "\t", "v": "\v"}
_NAMES = {character: name for name, character in _NAMED.items() if name != "s"}


class TextError(TermError):
    """A text that is not a term, or a refused one, with the offset."""

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(f"{reason} (at character {offset})")
        self.offset = offset
        """Characters (of a Latin-1 file: bytes) before the place."""


def parse(text: bytes | str, *, max_depth: int = MAX_DEPTH, max_characters: int = MAX_CHARACTERS) -> Term:
    """Return the one term that ``text`` (bytes are Latin-1) holds, followed by a full stop.

    Raises :class:`TextError` for anything else, for more than ``max_characters`` and for terms nested deeper than
    ``max_depth``.
    """
    if len(text) > max_characters:
        raise TextError(max_characters, f"a text of {len(text)} characters, more than {max_characters}")
    reader = _Reader(text.decode("latin-1") if isinstance(text, bytes) else text, max_depth)
    term = reader.term(0)
    reader.expect("end", "a full stop")
    if reader.kind:
        raise reader.error("text after the full stop")
    return term


def binary_text(content: bytes) -> str:
    """``content`` as the shell prints it: ``<<"…">>`` if all its bytes are printable, else as numbers."""
    if content and all(map(is_printable, content)):
        return "<<" + quoted(content.decode("latin-1"), '"') + ">>"
    return f"<<{','.join(map(str, content))}>>"


def is_printable(code: int) -> bool:
    """Whether the shell takes a number in a list or a binary for a character of a string."""
    return 32 <= code < 127 or 160 <= code < 256 or 8 <= code <= 13 or code == 27


def quoted(text: str, quote: str) -> str:
    """``text`` in quotes, with an escape for each character that needs one."""
    return quote + "".join(_escaped(character, quote) for character in text) + quote


def _escaped(character: str, quote: str) -> str:
    if character in (quote, "\\"):
        return "\\" + character
    if character in _NAMES:
        return "\\" + _NAMES[character]
    code = ord(character)
    return character if 32 <= code < 127 or 160 <= code < 256 else f"\\x{{{code:X}}}"


def json_text(value: Any) -> str:
    """A value of JSON as a broker's error texts have it: ``5``, ``<<"text">>``, ``#{<<"key">> => 1}``; on one line."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case float():
            return repr(value).replace("e+", "e")
        case str():
            try:
                return binary_text(value.encode("utf-8", "surrogateescape"))
            except UnicodeEncodeError:  # it has no bytes, but is shown all the same
                return binary_text(value.encode("utf-8", "surrogatepass"))
        case Mapping():
            return "#{" + ",".join(f"{json_text(name)} => {json_text(value[name])}" for name in sorted(value)) + "}"
        case list() | tuple():
            if value and all(type(item) is int and 32 <= item < 127 for item in value):
                return quoted("".join(map(chr, value)), '"')  # a text, for all that Erlang can tell
            return f"[{','.join(map(json_text, value))}]"
        case _:
            return str(value)


def json_pairs(table: Mapping[str, Any]) -> str:
    """A table as a list of pairs: ``[{<<"key">>,1}]``."""
    return f"[{','.join(f'{{{json_text(name)},{json_text(table[name])}}}' for name in sorted(table))}]"


class _Reader:
    """The tokens of a text, one ahead, and the terms that they make."""

    __slots__ = ("_end", "_max_depth", "_text", "kind", "offset", "word")

    def __init__(self, text: str, max_depth: int) -> None:
        self._text = text
        self._max_depth = max_depth
        self._end = 0
        self._advance()

    def error(self, reason: str) -> TextError:
        return TextError(self.offset, reason)

    def _advance(self) -> None:
        """Move to the next token; its kind is empty after the last one."""
        while True:
            self.offset = self._end
            match = _TOKEN.match(self._text, self._end)
            if match is None:
                if self._end == len(self._text):
                    self.kind, self.word = "", ""
                    return
                raise self.error(self._unreadable())
            self._end = match.end()
            if match.lastgroup == "blank":
                continue
            self.kind, self.word = match.lastgroup or "", match.group()
            if self.kind == "opaque":
                raise self.error("a pid, reference, port or fun, which cannot be read back")
            return

    def _unreadable(self) -> str:
        character = self._text[self._end]
        return "a quote that does not end" if character in "'\"" else f"the character {character!r}"

    def expect(self, kind: str, what: str, token: str | None = None) -> None:
        if self.kind != kind or (token is not None and self.word != token):
            actual = repr(self.word[:40]) if self.kind else "the end of the text"
            raise self.error(f"{actual} in place of {what}")
        self._advance()

    def _mark(self, token: str) -> bool:
        """Whether ``token`` stands here; then it is passed."""
        if self.kind != "mark" or self.word != token:
            return False
        self._advance()
        return True

    def term(self, depth: int) -> Term:
        if depth > self._max_depth:
            raise self.error(f"nested deeper than {self._max_depth} levels")
        kind, token = self.kind, self.word
        if kind in ("integer", "based", "float", "character") or token in ("-", "+"):
            return self._number()
        if kind == "atom":
            self._advance()
            return {"true": True, "false": False}.get(token, Atom(token))
        if kind == "quoted":
            name = self._unquoted()
            self._advance()
            return {"true": True, "false": False}.get(name, Atom(name))
        if kind == "string":
            return [ord(character) for character in self._string()]
        if self._mark("{"):
            return tuple(self._elements("}", depth))
        if self._mark("["):
            return self._elements("]", depth)
        if self._mark("#{"):
            return self._map(depth)
        if self._mark("<<"):
            return self._binary()
        raise self.error(f"{token[:40]!r} in place of a term" if kind else "the text ends where a term is expected")

    def _elements(self, closing: str, depth: int) -> list[Term]:
        elements: list[Term] = []
        if self._mark(closing):
            return elements
        while True:
            elements.append(self.term(depth + 1))
            if self._mark(closing):
                return elements
            if closing == "]" and self.word == "|":
                raise self.error("an improper list")
            self.expect("mark", f"',' or '{closing}'", ",")

    def _map(self, depth: int) -> dict[Term, Term]:
        pairs: dict[Term, Term] = {}
        if self._mark("}"):
            return pairs
        while True:
            start = self.offset
            key = self.term(depth + 1)
            if not _fits_key(key):
                raise TextError(start, f"a map's key that is a {type(key).__name__}")
            self.expect("mark", "'=>'", "=>")
            pairs[key] = self.term(depth + 1)
            if self._mark("}"):
                return pairs
            self.expect("mark", "',' or '}'", ",")

    def _binary(self) -> bytes:
        parts = bytearray()
        if self._mark(">>"):
            return b""
        while True:
            start = self.offset
            if self.kind == "string":
                characters = self._string()
                encoding = self._encoding() if self._mark("/") else "latin-1"
                try:
                    parts += characters.encode(encoding)
                except UnicodeEncodeError as error:
                    raise TextError(start, "a character above 255 in a binary") from error
            else:
                value = self._number()
                if not isinstance(value, int) or not 0 <= value < 256:
                    raise TextError(start, f"{value} in a binary")
                parts.append(value)
            if self._mark(">>"):
                return bytes(parts)
            self.expect("mark", "',' or '>>'", ",")

    def _encoding(self) -> str:
        if self.word != "utf8":
            raise self.error(f"{self.word[:40]!r} in a binary")
        self._advance()
        return "utf-8"

    def _number(self) -> int | float:
        negative = self.word == "-"
        if negative or self.word == "+":
            self._advance()
        kind, token = self.kind, self.word
        if kind not in ("integer", "based", "float", "character"):
            raise self.error("not a number")
        value: int | float
        if kind == "character":
            value = ord(self._unescaped(token[1:]))
        elif len(token) > _MAX_DIGITS:
            raise self.error(f"a number of {len(token)} digits")
        elif kind == "float":
            value = float(token)
            if not math.isfinite(value):
                raise self.error("a float that is not finite")
        else:
            value = self._integer(token)
        self._advance()
        return -value if negative else value

    def _integer(self, token: str) -> int:
        base, _, digits = token.rpartition("#")
        if not base:
            return int(token.replace("_", ""))
        try:
            return int(digits.replace("_", ""), int(base) if int(base) >= 2 else 37)
        except ValueError as error:
            raise self.error(f"{token[:40]!r} is not a number") from error

    def _string(self) -> str:
        """Return the characters of this string and of the strings directly after it."""
        parts: list[str] = []
        while self.kind == "string":
            parts.append(self._unquoted())
            self._advance()
        return "".join(parts)

    def _unquoted(self) -> str:
        return self._unescaped(self.word[1:-1])

    def _unescaped(self, text: str) -> str:
        return _ESCAPE.sub(self._character, text) if "\\" in text else text

    def _character(self, match: re.Match[str]) -> str:
        braced, pair, octal, control, other = match.groups()
        if braced or pair:
            code = int((braced or pair)[-12:], 16)
            if code > 0x10FFFF or 0xD800 <= code < 0xE000 or len(braced or pair) > 12:
                raise self.error("an escape that is not a character")
            return chr(code)
        if octal:
            return chr(int(octal, 8))
        if control:
            return chr(ord(control) & 31)
        return _NAMED.get(other, other)


def _fits_key(term: Term) -> bool:
    if isinstance(term, int) and not isinstance(term, bool):
        return -_KEY_INTEGER_LIMIT < term < _KEY_INTEGER_LIMIT
    return _fits_in_key(term)


def _fits_in_key(term: Term) -> bool:
    if isinstance(term, tuple):
        return all(map(_fits_in_key, term))
    return isinstance(term, (Atom, bytes, bool))
