"""NamePattern: the regular expressions that select names, in permissions, policies and lists.

They are written in RabbitMQ's language, PCRE, over the bytes of UTF-8 read as Latin-1: a dot is one byte, and ``\\w``
the first half of an ``é``. Anyone who may set a policy or ask for a list can write one, so matching must never
backtrack: its time is the length of the name times the size of the expression, which is limited (:data:`MAX_STATES`).

RE2 does the matching. What it lacks, mainly look-around such as ``^(?!amq\\.)``, is matched by :class:`_Automaton`, in
the same bounded time but slower. Back references, possessive and atomic groups need backtracking, and are refused.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from re import _constants as c  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any, Final

MAX_STATES: Final = 1_000
"""The largest expression. A state is passed at most once for each byte of a name."""
MAX_CHARACTERS: Final = 4 * MAX_STATES
"""The longest expression. A longer one is refused before it is parsed, which takes time, too."""

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
_SETS: Final = {
    "w": _WORD,
    "W": _NO_WORD,
    "s": "\\t-\\r ",
    "S": "\\x00-\\x08\\x0e-\\x1f!-\\xff",
    "h": "\\t \\xa0",
    "v": "\\n-\\r\\x85",
}
_INSIDE: Final = _SETS | {"e": "\\x1b"}
_OUTSIDE: Final = {letter: f"[{members}]" for letter, members in _SETS.items()} | {
    "e": "\\x1b",
    "N": "[^\\n]",
    "R": "(?:\\r\\n|[\\n-\\r\\x85])",
}
_PYTHONS_ENDS: Final = {"\\z": "\\Z", "\\Z": "(?=\\n?\\Z)"}
_RE2S_ENDS: Final = {"\\Z": "(?:\\n?\\z)", "$": "(?:\\n?$)"}
"""The end of a name, or the place before its last newline. RE2 cannot look ahead, and consumes that newline."""


class UnsupportedPatternError(re.error):
    """An expression that PCRE would accept."""


class NamePattern:
    """One expression. Raises :class:`re.error` if it is invalid.

    Raises :class:`UnsupportedPatternError` if it is too large, or cannot be matched without backtracking.

    ``any_case``: upper and lower case are the same. ``look_around``: accept what RE2 does not.
    """

    __slots__ = ("_automaton", "_search")

    def __init__(self, pattern: str, *, any_case: bool = False, look_around: bool = True) -> None:
        self._search = self._automaton = None
        if len(pattern) > MAX_CHARACTERS:
            raise _too_large()
        if pattern == ".*":  # what most users have; needs no library
            return
        import re2

        options = re2.Options()
        options.encoding = re2.Options.Encoding.LATIN1
        options.log_errors = False
        options.case_sensitive = not any_case
        try:
            compiled = re2.compile(_translated(pattern, _RE2S_ENDS), options)
        except re2.error:
            tree = _parsed(pattern)
            if not look_around:
                raise UnsupportedPatternError("look-around and back references are not supported here") from None
            self._automaton = _Automaton(tree)
        else:
            if compiled.programsize > MAX_STATES:
                raise _too_large()
            self._search = compiled.search

    def matches(self, name: str) -> bool:
        """Whether it matches anywhere in a name."""
        data = name.encode("utf-8", "surrogateescape")
        if self._automaton is not None:
            return self._automaton.search(data)
        return self._search is None or self._search(data) is not None


def _too_large() -> UnsupportedPatternError:
    return UnsupportedPatternError(f"regular expression is too large: more than {MAX_STATES} states")


def _parsed(pattern: str) -> Any:
    """Parse an expression with :mod:`re`, which supports more than RE2."""
    try:
        return parser.parse(_translated(pattern, _PYTHONS_ENDS))
    except (RecursionError, OverflowError) as error:
        raise re.error(str(error)) from None


def _translated(pattern: str, ends: dict[str, str]) -> bytes:
    """Translate a PCRE expression to Python's or RE2's syntax, which has these ``ends``."""
    parts: list[str] = []
    opened = -1
    """Where the current set began; negative outside of sets."""
    for token in _TOKEN.finditer(pattern):
        text = token[0]
        if token["quoted"] is not None:
            text = re.escape(token["quoted"])
        elif token["escaped"] is not None:
            text = ends.get(text) or _OUTSIDE.get(text[1], text) if opened < 0 else _INSIDE.get(text[1], text)
        elif token["posix"] is not None and opened >= 0:
            if token["posix"] not in _POSIX:
                raise re.error(f"unknown class name {text}", pattern, token.start())
            text = _POSIX[token["posix"]]
        elif token["named"] is not None:
            text = "(?P<" if opened < 0 else text
        elif opened < 0:
            if text.startswith("["):
                opened, text = len(parts), text.replace("[", "[\\[", 1) if len(text) > 1 else text
            is_literal = text == "{" and pattern.startswith(",", token.end())
            text = "\\{" if is_literal else ends.get(text, text)
        elif text == "]" and "".join(parts[opened:]) not in ("[", "[^"):
            opened = -1
        elif text == "[":
            text = "\\["
        parts.append(text)
    try:
        return "".join(parts).encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise re.error(str(error)) from None


# ── expressions with look-around ─────────────────────────────────────────────────────────────────────────────────────

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

Tables = Sequence[Sequence[bool]]
"""For each earlier look-around: at which positions of a name its expression matches."""


class _Part:
    """The states of the whole expression, or of one inside a look-around."""

    def __init__(self) -> None:
        self.first = _END
        self.bytes: list[tuple[int, frozenset[int], int]] = []
        """Transitions: a state, its bytes, and the next state."""
        self.conditions: dict[int, tuple[str, Any]] = {}
        """The condition at a position for leaving a state without a byte; by default none."""
        self.before: dict[int, list[int]] = defaultdict(list)
        """The states that lead to a state without a byte."""

    def places(self, data: bytes, tables: Tables) -> list[bool]:
        """At which positions of ``data`` the expression matches. Runs from right to left, in all states at once."""
        accepting = [False] * (len(data) + 1)
        reached: set[int] = set()
        for at in range(len(data), -1, -1):
            byte = data[at] if at < len(data) else -1
            reached = {_END, *(state for state, of, after in self.bytes if byte in of and after in reached)}
            todo = list(reached)
            while todo:
                for state in self.before[todo.pop()]:
                    if state not in reached and self._holds(state, data, at, tables):
                        reached.add(state)
                        todo.append(state)
            accepting[at] = self.first in reached
        return accepting

    def _holds(self, state: int, data: bytes, at: int, tables: Tables) -> bool:
        kind, about = self.conditions.get(state, ("none", None))
        if kind == "place":
            place, by_lines = about
            return _is_at(place, by_lines, data, at)
        if kind == "look":
            table, back, positive = about
            return positive is (at >= back and tables[table][at - back])
        return True


class _Automaton:
    """An expression as :mod:`re` parses it. Raises :class:`re.error` if that cannot be matched without backtracking."""

    def __init__(self, tree: Any) -> None:
        self._parts: list[_Part] = []
        """Each part follows the look-arounds that it uses; the whole expression is last."""
        self._count = _END
        self._sequences = 0
        self._flags = tree.state.flags
        self._add_part(tree)

    def search(self, data: bytes) -> bool:
        """Whether it matches anywhere in ``data``."""
        tables: list[list[bool]] = []
        for part in self._parts:
            tables.append(part.places(data, tables))
        return any(tables[-1])

    def _add_part(self, tree: Iterable[tuple[Any, Any]]) -> int:
        part = _Part()
        part.first = self._sequence(part, tree, _END)
        self._parts.append(part)
        return len(self._parts) - 1

    def _new(self) -> int:
        self._count += 1
        if self._count > MAX_STATES:
            raise _too_large()
        return self._count

    def _joined(self, part: _Part, afters: Iterable[int], condition: tuple[str, Any] | None = None) -> int:
        """Return a new state that leads to ``afters`` without a byte."""
        state = self._new()
        for after in afters:
            part.before[after].append(state)
        if condition is not None:
            part.conditions[state] = condition
        return state

    def _sequence(self, part: _Part, tree: Iterable[tuple[Any, Any]], after: int) -> int:
        self._sequences += 1
        if self._sequences > 2 * MAX_STATES:  # repeats of nothing need no state
            raise _too_large()
        for kind, about in reversed(list(tree)):
            after = self._item(part, kind, about, after)
        return after

    def _item(self, part: _Part, kind: Any, about: Any, after: int) -> int:
        if kind in (c.LITERAL, c.NOT_LITERAL, c.ANY, c.IN):
            state = self._new()
            part.bytes.append((state, self._bytes(kind, about), after))
            return state
        if kind is c.BRANCH:
            return self._joined(part, [self._sequence(part, branch, after) for branch in about[1]])
        if kind is c.SUBPATTERN:
            _, added, dropped, body = about
            before, self._flags = self._flags, (self._flags | added) & ~dropped
            first = self._sequence(part, body, after)
            self._flags = before
            return first
        if kind in (c.MAX_REPEAT, c.MIN_REPEAT):
            minimum, maximum, body = about
            return self._repeat(part, (minimum, maximum), body, after)
        if kind is c.AT:
            return self._joined(part, [after], ("place", (about, bool(self._flags & re.MULTILINE))))
        if kind in (c.ASSERT, c.ASSERT_NOT):
            direction, body = about
            back = body.getwidth()[0] if direction < 0 else 0
            return self._joined(part, [after], ("look", (self._add_part(body), back, kind is c.ASSERT)))
        raise UnsupportedPatternError("back references, possessive and atomic groups are not supported")

    def _repeat(self, part: _Part, times: tuple[Any, Any], body: Any, after: int) -> int:
        (minimum, maximum), first = times, after
        if maximum is c.MAXREPEAT:
            first = self._joined(part, [after])
            part.before[self._sequence(part, body, first)].append(first)
        else:
            for _ in range(int(maximum) - int(minimum)):
                first = self._joined(part, [after, self._sequence(part, body, first)])
        for _ in range(int(minimum)):
            first = self._sequence(part, body, first)
        return first

    def _bytes(self, kind: Any, about: Any) -> frozenset[int]:
        if kind is c.ANY:
            return _EVERY if self._flags & re.DOTALL else _EVERY - {ord("\n")}
        items = about if kind is c.IN else [(c.LITERAL, about)]
        members: set[int] = set()
        for item, value in items:
            if item is c.LITERAL:
                members.add(value)
            elif item is c.RANGE:
                members |= set(range(value[0], value[1] + 1))
            elif item is c.CATEGORY:
                members |= {byte for byte in _EVERY if re.match(_CATEGORIES[value], bytes([byte]))}
        if self._flags & re.IGNORECASE:
            members |= {ord(case) for byte in members if byte < 128 for case in (chr(byte).lower(), chr(byte).upper())}
        negated = kind is c.NOT_LITERAL or items[0][0] is c.NEGATE
        return _EVERY - members if negated else frozenset(members)


def _is_at(place: Any, by_lines: bool, data: bytes, at: int) -> bool:
    size = len(data)
    if place is c.AT_BEGINNING_STRING or place is c.AT_BEGINNING:
        return at == 0 or (by_lines and place is c.AT_BEGINNING and data[at - 1 : at] == b"\n")
    if place is c.AT_END_STRING or place is c.AT_END:
        line_ends = place is c.AT_END and data[at : at + 1] == b"\n"
        return at == size or (line_ends and (by_lines or at == size - 1))
    before, after = (re.match(rb"\w", data[position : position + 1]) is not None for position in (max(at - 1, 0), at))
    return ((before and at > 0) != after) == (place is c.AT_BOUNDARY)
