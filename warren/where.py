"""Conditions on messages: ``routing_key LIKE 'order.%' AND headers['retries'] >= 3``.

The language is SQL's WHERE without arithmetic and functions::

    condition    condition OR condition | condition AND condition | NOT condition | (condition) | test
    test         value (= | == | <> | != | < | <= | > | >=) value
                 value [NOT] LIKE 'pattern' [ESCAPE 'c']   (% any text, _ any character; ILIKE: in any case)
                 value [NOT] IN (value, …)
                 value [NOT] BETWEEN value AND value
                 value IS [NOT] NULL
                 value                                         (a field that is true or false)
    value        field | field['name'] | field[0] | 'text' | 12 | 1.5 | TRUE | FALSE | NULL

A *field* is a name, in upper or lower case. A table from names to functions of a message defines the fields
(:data:`MESSAGE_FIELDS`, :data:`RECORD_FIELDS`); callers with another kind of message extend or replace it.
Brackets access a field that is a table or a list, such as the headers, at any depth.

A missing value is NULL. As in SQL, a test of NULL is neither true nor false, and a message is taken only if the
condition is true. Text and a number are compared as numbers if the text is one; a time is compared with a date in
ISO 8601 (UTC without a zone) and with seconds since 1970; other values of different kinds compare like NULL.

A condition is parsed once (:func:`compile_where`), into functions that call each other; an error in it raises
:class:`WhereError`, which gives the position.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Generic, NoReturn, Protocol, TypeVar

import attrs

from warren.queue_index.properties import NAMES, Properties
from warren.storage.errors import InvalidValueError
from warren.values.where_values import NUMBER, Moment, as_text, compared, inside, moment_of, negated, number_of

__all__ = [
    "MAX_CHARACTERS",
    "MAX_DEPTH",
    "MAX_FIELDS",
    "MESSAGE_FIELDS",
    "RECORD_FIELDS",
    "TIME_FIELDS",
    "Getter",
    "Moment",
    "QueueMessage",
    "TopicRecord",
    "Where",
    "WhereError",
    "compile_where",
]

M = TypeVar("M")
M_contra = TypeVar("M_contra", contravariant=True)
Getter = Callable[[M], Any]
Test = Callable[[M], bool | None]
"""``None``: neither true nor false."""

TIME_FIELDS: Final = frozenset({"timestamp", "expiry", "stored_at", "born_at"})
"""Fields that are a :class:`Moment`; text that they are compared with is a date."""

MAX_CHARACTERS: Final = 10_000
"""Of a condition's text. Parsing that many takes up to a seventh of a second."""

MAX_FIELDS: Final = 100
"""Uses of fields in a condition. Each may convert a whole body to text, for every message."""

MAX_DEPTH: Final = 64
"""Levels of brackets and NOT; each is a Python call or two deep."""

_MAX_LIKE_STATES: Final = 2_000
"""About as many characters in a condition's patterns of LIKE, or 280 times ``_``. Each may be compared with each byte
of a text."""


class WhereError(InvalidValueError):
    """A condition that cannot be understood."""


class QueueMessage(Protocol):
    """What :data:`MESSAGE_FIELDS` ask of a queue's message."""

    @property
    def body(self) -> bytes | memoryview: ...
    @property
    def properties(self) -> Properties: ...
    @property
    def exchange(self) -> str: ...
    @property
    def routing_key(self) -> str: ...
    @property
    def persistent(self) -> bool: ...


class TopicRecord(Protocol):
    """What :data:`RECORD_FIELDS` ask of a topic's message."""

    @property
    def body(self) -> bytes: ...
    @property
    def properties(self) -> Mapping[str, str]: ...
    @property
    def topic(self) -> str: ...
    @property
    def queue_id(self) -> int: ...
    @property
    def queue_offset(self) -> int: ...
    @property
    def stored_at(self) -> float: ...
    @property
    def born_at(self) -> float: ...


def _body(message: QueueMessage | TopicRecord) -> str | None:
    """Return the body as text; ``None`` if it is not UTF-8."""
    try:
        return str(message.body, "utf-8")
    except UnicodeDecodeError:
        return None


def _property(name: str) -> Getter[QueueMessage]:
    return lambda message: getattr(message.properties, name)


def _timestamp(message: QueueMessage) -> Moment | None:
    seconds = message.properties.timestamp
    return None if seconds is None else Moment(seconds)


MESSAGE_FIELDS: Final[Mapping[str, Getter[Any]]] = {
    **{name: _property(name) for name in NAMES},
    "timestamp": _timestamp,
    "headers": lambda message: message.properties.headers,
    "properties": lambda message: vars(message.properties),
    "exchange": lambda message: message.exchange,
    "routing_key": lambda message: message.routing_key,
    "persistent": lambda message: message.persistent,
    "size": lambda message: len(message.body),
    "body": _body,
}
"""The fields of every message of a queue: AMQP's properties, and these. ``size``: the body's bytes."""

RECORD_FIELDS: Final[Mapping[str, Getter[Any]]] = {
    "topic": lambda record: record.topic,
    "queue_id": lambda record: record.queue_id,
    "queue_offset": lambda record: record.queue_offset,
    "key": lambda record: next(iter(record.properties.get("KEYS", "").split()), None),
    "keys": lambda record: record.properties.get("KEYS"),
    "tag": lambda record: record.properties.get("TAGS"),
    "properties": lambda record: record.properties,
    "stored_at": lambda record: Moment(record.stored_at),
    "born_at": lambda record: Moment(record.born_at),
    "size": lambda record: len(record.body),
    "body": _body,
}
"""The fields of a topic's message. ``keys``: all of them as they are stored, with spaces between."""


@attrs.frozen
class Where(Generic[M_contra]):
    """A condition that was compiled; call it with a message."""

    text: str
    fields: frozenset[str]
    """The fields that the condition uses."""
    _test: Callable[[M_contra], bool | None]

    def __call__(self, message: M_contra) -> bool:
        """Whether the condition is true."""
        return self._test(message) is True


def compile_where(text: str, fields: Mapping[str, Getter[Any]] = MESSAGE_FIELDS) -> Where[Any]:
    """The condition ``text`` on messages that have these fields; raises :class:`WhereError`."""
    if len(text) > MAX_CHARACTERS:
        raise WhereError(f"the condition has {len(text):,} characters; at most {MAX_CHARACTERS:,} are allowed")
    return _Parser(text, fields).where()


# ── words ────────────────────────────────────────────────────────────────────────────────────────────────────────────

_TOKEN: Final = re.compile(
    rf"""\s*(?: (?P<number>{NUMBER.pattern}(?![\w.])) | (?P<text>'(?:[^']|'')*') | (?P<name>[^\W\d]\w*)
        | (?P<quoted>"(?:[^"]|"")+") | (?P<sign><=|>=|<>|!=|==|[=<>()\[\],]) | (?P<end>\Z) )""",
    re.VERBOSE,
)
_COMPARISONS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    "==": operator.eq,
    "<>": operator.ne,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_CONSTANTS: Final = {"TRUE": True, "FALSE": False, "NULL": None}
_KEYWORDS: Final = frozenset({*_CONSTANTS, "AND", "OR", "NOT", "IN", "LIKE", "ILIKE", "ESCAPE", "BETWEEN", "IS"})


@attrs.frozen
class _Token:
    kind: str
    """number, text, name, sign, end; or word: a keyword, in upper case."""
    lexeme: str
    at: int


def _tokens(text: str) -> Iterator[_Token]:
    at = 0
    while True:
        match = _TOKEN.match(text, at)
        if match is None or match.lastgroup is None:
            at += len(text[at:]) - len(text[at:].lstrip())
            _refuse(text, at, "a quotation mark that is not closed" if text[at] in "'\"" else "what is this?")
        kind, lexeme, at = match.lastgroup, match[match.lastgroup], match.end()
        start = match.start(kind)
        if kind == "text":
            lexeme = lexeme[1:-1].replace("''", "'")
        elif kind == "quoted":
            kind, lexeme = "name", lexeme[1:-1].replace('""', '"')
        elif kind == "name" and lexeme.upper() in _KEYWORDS:
            kind, lexeme = "word", lexeme.upper()
        yield _Token(kind, lexeme, start)
        if kind == "end":
            return


def _refuse(text: str, at: int, reason: str) -> NoReturn:
    rest = text[at:]
    place = f"at {rest[:20] + ('…' if len(rest) > 20 else '')!r} (character {at + 1})" if rest else "at its end"
    raise WhereError(f"the condition, {place}: {reason}")


# ── the grammar ──────────────────────────────────────────────────────────────────────────────────────────────────────


@attrs.frozen
class _Value:
    """One side of a test."""

    get: Getter[Any]
    token: _Token


@attrs.define
class _Parser:
    """Reads a condition from left to right; each method reads what it is named after, and returns a function for it."""

    _text: str
    _fields: Mapping[str, Getter[Any]]
    _left: list[_Token] = attrs.field(init=False)
    """The tokens that were not read yet, the next one last."""
    _used: set[str] = attrs.field(factory=set)
    _depth: int = 0
    _field_count: int = 0
    _like_states: int = 0

    def __attrs_post_init__(self) -> None:
        self._left = [*_tokens(self._text)][::-1]

    def where(self) -> Where[Any]:
        test = self._condition()
        if (token := self._left[-1]).kind != "end":
            self._refuse(token, "expected AND, OR or the end")
        return Where(self._text, frozenset(self._used), test)

    def _condition(self) -> Test[Any]:
        return self._joined("OR", lambda: self._joined("AND", self._negated))

    def _joined(self, word: str, part: Callable[[], Test[Any]]) -> Test[Any]:
        """Parse parts with ``word`` between them. The first that decides is the result; else NULL if a part is NULL."""
        tests = [part()]
        while self._take("word", word):
            tests.append(part())
        if len(tests) == 1:
            return tests[0]
        decides = word == "OR"

        def joined(message: Any) -> bool | None:
            truth: bool | None = not decides
            for test in tests:
                outcome = test(message)
                if outcome is decides:
                    return decides
                if outcome is None:
                    truth = None
            return truth

        return joined

    def _negated(self) -> Test[Any]:
        if (token := self._take("word", "NOT")) is None:
            return self._test()
        inner = self._deeper(token, self._negated)
        return lambda message: negated(inner(message))

    def _deeper(self, token: _Token, part: Callable[[], Test[Any]]) -> Test[Any]:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            self._refuse(token, f"more than {MAX_DEPTH} levels deep")
        inner = part()
        self._depth -= 1
        return inner

    def _test(self) -> Test[Any]:
        if (token := self._take("sign", "(")) is not None:
            inner = self._deeper(token, self._condition)
            self._expect("sign", ")")
            return inner
        value = self._value()
        if (sign := self._left[-1]).kind == "sign" and sign.lexeme in _COMPARISONS:
            self._left.pop()
            get, compare, get_right = value.get, _COMPARISONS[sign.lexeme], self._compared_with(value).get
            return lambda message: compared(compare, get(message), get_right(message))
        if self._take("word", "IS"):
            is_null, get = self._take("word", "NOT") is None, value.get
            self._expect("word", "NULL")
            return lambda message: (get(message) is None) is is_null
        is_negated = self._take("word", "NOT") is not None
        test = self._word_test(value)
        if test is None:
            if is_negated:
                self._refuse(self._left[-1], "expected LIKE, IN or BETWEEN")
            get = value.get
            return lambda message: flag if isinstance(flag := get(message), bool) else None
        return (lambda message: negated(test(message))) if is_negated else test

    def _word_test(self, value: _Value) -> Test[Any] | None:
        """Parse a test that is a word, after a value and perhaps NOT; ``None`` if there is no such test."""
        get = value.get
        if (like := self._take("word", "LIKE") or self._take("word", "ILIKE")) is not None:
            return self._matched(value, any_case=like.lexeme == "ILIKE")
        if self._take("word", "BETWEEN"):
            low = self._compared_with(value).get
            self._expect("word", "AND")
            high = self._compared_with(value).get

            def between(message: Any) -> bool | None:
                middle = get(message)
                outcomes = compared(operator.ge, middle, low(message)), compared(operator.le, middle, high(message))
                return False if False in outcomes else None if None in outcomes else True

            return between
        if self._take("word", "IN"):
            self._expect("sign", "(")
            choices = [self._compared_with(value)]
            while self._take("sign", ","):
                choices.append(self._compared_with(value))
            self._expect("sign", ")")

            def one_of(message: Any) -> bool | None:
                left = get(message)
                outcomes = [compared(operator.eq, left, choice.get(message)) for choice in choices]
                return True if True in outcomes else None if None in outcomes else False

            return one_of
        return None

    def _matched(self, value: _Value, any_case: bool) -> Test[Any]:
        pattern, escape = self._expect("text"), None
        if self._take("word", "ESCAPE"):
            escape = self._expect("text")
            if len(escape.lexeme) != 1:
                self._refuse(escape, "ESCAPE wants one character")
        compiled = _like(pattern.lexeme, escape.lexeme if escape else None, any_case)
        if compiled is not None:
            self._like_states += compiled.programsize
        if compiled is None or self._like_states > _MAX_LIKE_STATES:
            self._refuse(pattern, "the pattern is too large, or all patterns together")
        get = value.get

        def matched(message: Any) -> bool | None:
            text = as_text(get(message))
            return None if text is None else compiled.fullmatch(text.encode(errors="replace")) is not None

        return matched

    def _compared_with(self, left: _Value) -> _Value:
        """Parse the value that another one is compared with."""
        right = self._value()
        for field, constant in ((left, right), (right, left)):
            is_time = field.token.kind == "name" and field.token.lexeme.lower() in TIME_FIELDS
            if is_time and constant.token.kind == "text" and moment_of(constant.token.lexeme) is None:
                self._refuse(constant.token, "no time: a date as in '2026-01-31T12:00:00Z', or seconds since 1970")
        return right

    def _value(self) -> _Value:
        token = self._left.pop()
        if token.kind == "name":
            return _Value(self._field(token), token)
        constant: Any
        if token.kind == "number":
            constant = number_of(token.lexeme)
        elif token.kind == "text":
            constant = token.lexeme
        elif token.kind == "word" and token.lexeme in _CONSTANTS:
            constant = _CONSTANTS[token.lexeme]
        else:
            self._refuse(token, "expected a field or a value")
        return _Value(lambda message: constant, token)

    def _field(self, token: _Token) -> Getter[Any]:
        name = token.lexeme.lower()
        if name not in self._fields:
            self._refuse(token, f"no field {token.lexeme!r}; there are {', '.join(sorted(self._fields))}")
        self._used.add(name)
        self._field_count += 1
        if self._field_count > MAX_FIELDS:
            self._refuse(token, f"more than {MAX_FIELDS} fields; IN compares one with many values")
        get, depth = self._fields[name], 0
        while (bracket := self._take("sign", "[")) is not None:
            depth += 1
            if depth > MAX_DEPTH:
                self._refuse(bracket, f"more than {MAX_DEPTH} levels deep")
            key = self._left.pop()
            if key.kind == "text":
                get = _within(get, key.lexeme)
            elif key.kind == "number" and key.lexeme.isdecimal():
                get = _within(get, int(key.lexeme))
            else:
                self._refuse(key, "expected 'a name', or a number, in brackets")
            self._expect("sign", "]")
        return get

    def _take(self, kind: str, lexeme: str) -> _Token | None:
        """Take the next token if it is this one."""
        token = self._left[-1]
        return self._left.pop() if (token.kind, token.lexeme) == (kind, lexeme) else None

    def _expect(self, kind: str, lexeme: str | None = None) -> _Token:
        token = self._left[-1]
        if token.kind != kind or lexeme not in (None, token.lexeme):
            self._refuse(token, f"expected {lexeme or 'a text in quotation marks'}")
        return self._left.pop()

    def _refuse(self, token: _Token, reason: str) -> NoReturn:
        _refuse(self._text, token.at, reason)


def _within(get: Getter[Any], key: str | int) -> Getter[Any]:
    return lambda message: inside(get(message), key)


def _like(pattern: str, escape: str | None, any_case: bool) -> Any | None:
    """Return the regular expression for the texts that are like ``pattern``; ``None`` if the pattern is too large.

    Neither is trusted: RE2 matches without backtracking, and lets other threads run meanwhile.
    """
    import re2

    options = re2.Options()
    options.log_errors = False
    options.dot_nl = True
    options.never_capture = True
    options.case_sensitive = not any_case
    parts, characters = list[str](), iter(pattern)
    for character in characters:
        if character == escape:
            parts.append(re.escape(next(characters, escape)))
        else:
            parts.append({"%": "\\C*", "_": "."}.get(character) or re.escape(character))
    try:
        return re2.compile("".join(parts).encode(errors="replace"), options)
    except re2.error:
        return None
