"""NamePattern: the regular expressions that names are looked for with, in permissions and policies.

They are RabbitMQ's: those of PCRE, over the bytes of UTF-8, of which each is a character of Latin-1: a dot is one byte,
and ``\\w`` the first half of an ``é``. Python's :mod:`re` does the looking; what PCRE writes otherwise, or means
otherwise, is put in its words first.

Some expressions take for ever: the time of ``(a+)+$`` doubles with every letter that does not help. RabbitMQ gives up
after ten million steps, and takes it for no match. Here an expression that could take more than a few million steps for
the longest name is not given to ``re``: all ways through it are gone at once, letter by letter, which takes longer for
most names and the same for all of them. One that cannot be gone through so, for a back reference, is refused.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from re import _constants as c  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any, Final

_NAME_BYTES: Final = 255
_MAX_EXPONENT: Final = 1.6
"""A search in n bytes may take n to the power of one more than this."""
_MAX_STATES: Final = 5_000

_LOWER: Final = "a-z\\xaa\\xb5\\xba\\xdf-\\xf6\\xf8-\\xff"
_UPPER: Final = "A-Z\\xc0-\\xd6\\xd8-\\xde"
_WORD: Final = f"0-9_{_LOWER}{_UPPER}"
_NO_WORD: Final = "\\x00-/:-@\\[-^`{-\\xa9\\xab-\\xb4\\xb6-\\xb9\\xbb-\\xbf\\xd7\\xf7"
_PUNCTUATION: Final = "!-/:-@\\[-`{-~\\xa0-\\xa9\\xab-\\xb4\\xb6-\\xb9\\xbb-\\xbf\\xd7\\xf7"
_POSIX: Final = {
    "alnum": f"0-9{_LOWER}{_UPPER}",
    "alpha": f"{_LOWER}{_UPPER}",
    "blank": "\\t ",
    "cntrl": "\\x00-\\x1f\\x7f-\\x9f",
    "digit": "0-9",
    "graph": "!-~\\xa0-\\xff",
    "lower": _LOWER,
    "print": " -~\\xa0-\\xff",
    "punct": _PUNCTUATION,
    "space": "\\t-\\r ",
    "upper": _UPPER,
    "word": _WORD,
    "xdigit": "0-9a-fA-F",
}
_TOKEN: Final = re.compile(
    r"\\Q(?P<quoted>.*?)(?:\\E|\Z)|\\(?P<escaped>.)|\[:(?P<posix>\^?[a-z]+):\]|(?P<named>\(\?<)(?![=!])|(?P<other>.)",
    re.DOTALL,
)
_SETS: Final = {"w": _WORD, "W": _NO_WORD, "h": "\\t \\xa0", "v": "\\n-\\r\\x85"}
_INSIDE: Final = _SETS | {"e": "\\x1b"}
_OUTSIDE: Final = {letter: f"[{those}]" for letter, those in _SETS.items()} | {
    "e": "\\x1b",
    "N": "[^\\n]",
    "R": "(?:\\r\\n|[\\n-\\r\\x85])",
    "z": "\\Z",
    "Z": "(?=\\n?\\Z)",
}


class NamePattern:
    """One expression. Raises :class:`re.error` for what is none."""

    __slots__ = ("_found", "_ways")

    def __init__(self, pattern: str) -> None:
        try:
            words = in_pythons_words(pattern).encode("utf-8", "surrogateescape")
            self._found = re.compile(words).search
            tree = parser.parse(words)
        except (RecursionError, OverflowError, UnicodeEncodeError) as error:
            raise re.error(str(error)) from None
        self._ways = None if _exponent(tree) <= _MAX_EXPONENT else _Ways(tree)

    def matches(self, name: str) -> bool:
        """Whether it is found in a name."""
        data = name.encode("utf-8", "surrogateescape")
        return self._found(data) is not None if self._ways is None else self._ways.lead_through(data)


def in_pythons_words(pattern: str) -> str:
    """An expression of PCRE's as :mod:`re` has it."""
    said: list[str] = []
    opened = -1
    """Where the set began that we are in."""
    for token in _TOKEN.finditer(pattern):
        text = token[0]
        if token["quoted"] is not None:
            text = re.escape(token["quoted"])
        elif token["escaped"] is not None:
            text = (_OUTSIDE if opened < 0 else _INSIDE).get(token["escaped"], text)
        elif token["posix"] is not None and opened >= 0:
            if token["posix"] not in _POSIX:
                raise re.error(f"unknown class name {text}", pattern, token.start())
            text = _POSIX[token["posix"]]
        elif token["named"] is not None:
            text = "(?P<" if opened < 0 else text
        elif opened < 0:
            if text.startswith("["):
                opened, text = len(said), text.replace("[", "[\\[", 1) if len(text) > 1 else text
            elif text == "{" and pattern.startswith(",", token.end()):
                text = "\\{"
        elif text == "]" and "".join(said[opened:]) not in ("[", "[^"):
            opened = -1
        elif text == "[":
            text = "\\["
        said.append(text)
    return "".join(said)


# ── how long it may take ─────────────────────────────────────────────────────────────────────────────────────────────


def _exponent(tree: Iterable[tuple[Any, Any]]) -> float:
    """To which power of a name's length the ways grow that there may be through an expression."""
    return sum(_exponent_of(kind, about) for kind, about in tree)


def _choices(count: int) -> float:
    return math.log(max(count, 1), _NAME_BYTES)


def _exponent_of(kind: Any, about: Any) -> float:
    if kind is c.BRANCH:
        return max(map(_exponent, about[1])) + _choices(len(about[1]))
    if kind is c.SUBPATTERN:
        return _exponent(about[3])
    if kind in (c.ASSERT, c.ASSERT_NOT):
        return _exponent(about[1])
    if kind is c.ATOMIC_GROUP:
        return _exponent(about)
    if kind is c.GROUPREF_EXISTS:
        return max(_exponent(about[1]), _exponent(about[2] or ()))
    if kind in (c.MAX_REPEAT, c.MIN_REPEAT, c.POSSESSIVE_REPEAT):
        least, most, body = about
        inner = _exponent(body)
        if most is c.MAXREPEAT or most > _NAME_BYTES:
            return math.inf if inner else 1.0
        return int(most) * inner + _choices(int(most) - int(least) + 1)
    return 0.0


# ── all ways at once ─────────────────────────────────────────────────────────────────────────────────────────────────

_CATEGORIES: Final = {
    c.CATEGORY_DIGIT: rb"\d",
    c.CATEGORY_NOT_DIGIT: rb"\D",
    c.CATEGORY_SPACE: rb"\s",
    c.CATEGORY_NOT_SPACE: rb"\S",
    c.CATEGORY_WORD: rb"\w",
    c.CATEGORY_NOT_WORD: rb"\W",
}
_EVERY: Final = frozenset(range(256))
_END: Final = 0


class _Ways:
    """The states of an expression, and where each leads. Raises :class:`re.error` for what has no states."""

    def __init__(self, tree: Any) -> None:
        self._states: list[tuple[str, Any, Any]] = [("end", None, None)]
        """What is asked, of what, and the states behind it."""
        self._flags = tree.state.flags
        self._first = self._sequence(tree, _END)

    # ── making ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _add(self, asked: str, of: Any, behind: Any) -> int:
        if len(self._states) >= _MAX_STATES:
            raise re.error("regular expression is too large")
        self._states.append((asked, of, behind))
        return len(self._states) - 1

    def _sequence(self, tree: Iterable[tuple[Any, Any]], behind: int) -> int:
        for kind, about in reversed(list(tree)):
            behind = self._one(kind, about, behind)
        return behind

    def _one(self, kind: Any, about: Any, behind: int) -> int:
        if kind in (c.LITERAL, c.NOT_LITERAL, c.ANY, c.IN):
            return self._add("byte", self._bytes(kind, about), behind)
        if kind is c.BRANCH:
            return self._add("one of", None, [self._sequence(one, behind) for one in about[1]])
        if kind is c.SUBPATTERN:
            _, added, dropped, body = about
            before, self._flags = self._flags, (self._flags | added) & ~dropped
            first = self._sequence(body, behind)
            self._flags = before
            return first
        if kind in (c.MAX_REPEAT, c.MIN_REPEAT):
            least, most, body = about
            return self._repeat(least, most, body, behind)
        if kind is c.AT:
            return self._add("at", (about, bool(self._flags & re.MULTILINE)), behind)
        if kind in (c.ASSERT, c.ASSERT_NOT):
            direction, body = about
            back = body.getwidth()[0] if direction < 0 else 0
            return self._add("holds", (self._sequence(body, _END), back, kind is c.ASSERT), behind)
        raise re.error("it could take for ever, with its back reference or possessive repetition")

    def _repeat(self, least: Any, most: Any, body: Any, behind: int) -> int:
        if most is c.MAXREPEAT:
            again = [behind]
            after = first = self._add("one of", None, again)
            again.append(self._sequence(body, after))
        else:
            first = behind
            for _ in range(int(most) - int(least)):
                first = self._add("one of", None, [behind, self._sequence(body, first)])
        for _ in range(int(least)):
            first = self._sequence(body, first)
        return first

    def _bytes(self, kind: Any, about: Any) -> frozenset[int]:
        if kind is c.ANY:
            return _EVERY if self._flags & re.DOTALL else _EVERY - {ord("\n")}
        items = about if kind is c.IN else [(c.LITERAL, about)]
        found: set[int] = set()
        for item, value in items:
            if item is c.LITERAL:
                found.add(value)
            elif item is c.RANGE:
                found |= set(range(value[0], value[1] + 1))
            elif item is c.CATEGORY:
                found |= {byte for byte in _EVERY if re.match(_CATEGORIES[value], bytes([byte]))}
        if self._flags & re.IGNORECASE:
            found |= {ord(other) for byte in found if byte < 128 for other in (chr(byte).lower(), chr(byte).upper())}
        negated = kind is c.NOT_LITERAL or items[0][0] is c.NEGATE
        return _EVERY - found if negated else frozenset(found)

    # ── going ───────────────────────────────────────────────────────────────────────────────────────────────────

    def lead_through(self, data: bytes) -> bool:
        """Whether any way leads through, from anywhere in ``data``."""
        return self._lead(data, self._first, range(len(data) + 1), {})

    def _lead(self, data: bytes, first: int, starts: range, held: dict[tuple[int, int], bool]) -> bool:
        now: set[int] = set()
        for at in range(starts.start, len(data) + 1):
            if at in starts:
                now.add(first)
            if not now:
                return False
            reached = self._reached(data, at, now, held)
            if _END in reached:
                return True
            byte = data[at] if at < len(data) else -1
            now = {
                behind for state in reached for asked, of, behind in [self._states[state]]
                if asked == "byte" and byte in of
            }  # fmt: skip
        return False

    def _reached(self, data: bytes, at: int, now: Iterable[int], held: dict[tuple[int, int], bool]) -> set[int]:
        """Those that are reached without another byte."""
        reached, todo = set(now), list(now)
        while todo:
            asked, of, behind = self._states[state := todo.pop()]
            if asked == "one of":
                new = set(behind) - reached
            elif asked == "at":
                place, by_lines = of
                new = {behind} - reached if _is_at(place, by_lines, data, at) else set()
            elif asked == "holds":
                if (state, at) not in held:
                    body, back, wanted = of
                    found = at >= back and self._lead(data, body, range(at - back, at - back + 1), held)
                    held[state, at] = found == wanted
                new = {behind} - reached if held[state, at] else set()
            else:
                continue
            reached |= new
            todo += new
        return reached


def _is_at(place: Any, by_lines: bool, data: bytes, at: int) -> bool:
    size = len(data)
    if place is c.AT_BEGINNING_STRING or place is c.AT_BEGINNING:
        return at == 0 or (by_lines and place is c.AT_BEGINNING and data[at - 1 : at] == b"\n")
    if place is c.AT_END_STRING or place is c.AT_END:
        line_ends = place is c.AT_END and data[at : at + 1] == b"\n"
        return at == size or (line_ends and (by_lines or at == size - 1))
    before, behind = (re.match(rb"\w", data[one : one + 1]) is not None for one in (max(at - 1, 0), at))
    return ((before and at > 0) != behind) == (place is c.AT_BOUNDARY)
