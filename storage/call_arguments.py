"""Checks of the arguments of public callables, made before the call does anything.

What an argument may be is read from the callable's annotations, so it is stated once: ``str``, ``bool``, ``int``,
``float``, ``bytes``, iterables, mappings, paths, ``Literal``, and classes by their names. A whole number is at least 0
if its name is in :data:`COUNTS`; a ``float`` is a number of seconds. Whatever fails raises
:class:`~warren.storage.errors.InvalidValueError`: a wrong type, a value out of range, an unknown, missing or
superfluous argument. What only the callee can know (whether a name exists, whether a pattern compiles) is left to it.

Annotations are read when a callable is first called, and a value of the most usual type costs one look into a set.
"""

from __future__ import annotations

import datetime
import functools
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final, ParamSpec, TypeGuard, TypeVar

from warren.storage.errors import InvalidValueError, did_you_mean, shown

P = ParamSpec("P")
T = TypeVar("T")

MAX_SECONDS: Final = 315_360_000
"""Ten years: the longest time that a call can be given."""
MAX_INTEGER: Final = (1 << 63) - 1
"""What a field of a request to another process can hold."""
MAX_MOMENT: Final = MAX_INTEGER // 1000
"""The last second, since 1970, whose milliseconds fit."""
COUNTS: Final = frozenset({"count", "last", "limit", "max_records", "prefetch"})
"""Whole numbers that cannot be below 0. Of others the callee says what they may be."""
_ALIASES: Final[Mapping[str, str]] = {
    "ApplyTo": "Literal['queues', 'exchanges', 'all']",
    "Chooser": "Callable",
    "DestinationType": "Literal['queue', 'exchange']",
    "Event": "str",
    "Ids": "str | Iterable[str]",
    "Moment": "moment",
    "Place": "tuple[int, int]",
    "Serializer": "Literal['json', 'pickle'] | tuple",
    "StartOffset": "int | Literal['first', 'last']",
    "Where": "condition | Callable",
}
"""What names of type aliases stand for."""
_CHECKED_LATER: Final = ("PublishArguments", "PublishManyArguments", "SettingKeywords")
"""Keywords that have checks of their own: those of messages (but for headers) when they are encoded, and settings."""

_CHECKED_AS_BODIES: Final = frozenset({"bodies", "body"})
"""Checked when they are copied."""
_SECRET: Final = frozenset({"password"})
"""Arguments whose values do not stand in an error."""


# ── single values ────────────────────────────────────────────────────────────────────────────────────────────────────


def is_seconds(value: object) -> bool:
    """Whether a value is a time that a call can be given."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= MAX_SECONDS


def check_timeout(value: object, name: str = "timeout") -> None:
    """Raise :class:`InvalidValueError` unless ``value`` is a time in seconds or ``None``."""
    if value is not None and not is_seconds(value):
        raise InvalidValueError(
            f"{name} must be a number of seconds from 0 to {MAX_SECONDS} or None, not {shown(value)}"
        )


def check_flag(value: object, name: str) -> None:
    """Raise :class:`InvalidValueError` unless ``value`` is ``True`` or ``False``."""
    if not isinstance(value, bool):
        raise InvalidValueError(f"{name} must be True or False, not {shown(value)}")


def check_wait(block: object, timeout: object) -> None:
    """Check how a call waits for room."""
    check_flag(block, "block")
    check_timeout(timeout)


# ── annotations ──────────────────────────────────────────────────────────────────────────────────────────────────────


class _Kind:
    """One alternative of an annotation: a test, its wording, and types all of whose values pass."""

    __slots__ = ("exact", "passes", "wording")

    def __init__(self, wording: str, passes: Callable[[Any], bool], *exact: type) -> None:
        self.wording = wording
        self.passes = passes
        self.exact = exact


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= MAX_INTEGER


def _is_count(value: object) -> bool:
    return _is_whole(value) and value >= 0


def seconds_of(moment: object) -> float | None:
    """Return seconds since 1970 for a ``datetime`` or a number; ``None`` for anything else."""
    if isinstance(moment, datetime.datetime):
        try:
            return moment.timestamp()
        except (ValueError, OverflowError):  # the first and last days of all do not exist in every time zone
            return moment.replace(tzinfo=datetime.UTC).timestamp()
    if not isinstance(moment, (int, float)) or isinstance(moment, bool):
        return None
    return moment if abs(moment) <= MAX_MOMENT else None


def _is_path(value: object) -> bool:
    if not isinstance(value, (str, os.PathLike)):
        return False
    path = os.fspath(value)
    return isinstance(path, str) and bool(path) and "\0" not in path


def _are_elements(value: object) -> TypeGuard[Iterable[object]]:
    return isinstance(value, Iterable) and not isinstance(value, (str, bytes))


def _are_texts(value: object) -> bool:
    return _are_elements(value) and (not isinstance(value, Collection) or _are_strings(value))


def _are_strings(values: Iterable[object]) -> bool:
    return set(map(type, values)) <= {str} or all(isinstance(entry, str) for entry in values)


def as_texts(values: Iterable[str], name: str) -> list[str]:
    """Return the strings of an iterable. The check of the call covers all but an iterator's elements, which are checked
    here. Raises :class:`InvalidValueError` if an element is no string."""
    texts = list(values)
    if not isinstance(values, Collection) and not _are_strings(texts):
        wrong = next(text for text in texts if not isinstance(text, str))
        raise InvalidValueError(f"{name} must be {_GENERIC['Iterable[str]'].wording}, without {shown(wrong)}")
    return texts


def _are_places(value: object, *names: str) -> bool:
    """Whether a mapping has a whole number, or one of ``names``, for each of its keys, which are whole numbers."""
    return isinstance(value, Mapping) and all(
        _is_whole(key) and (_is_whole(place) or (isinstance(place, str) and place in names))
        for key, place in value.items()
    )


def _is_class(name: str) -> Callable[[object], bool]:
    return lambda value: any(
        kind.__name__ == name and kind.__module__.partition(".")[0] in _PACKAGES for kind in type(value).__mro__
    )


_PACKAGES: Final = frozenset({"warren", "datetime"})
"""Where the classes of arguments are defined."""


def _is_among(values: Collection[str]) -> Callable[[object], bool]:
    return lambda value: isinstance(value, str) and value in values


_PLAIN: Final = {
    "None": _Kind("None", lambda value: value is None, type(None)),
    "bool": _Kind("True or False", lambda value: isinstance(value, bool), bool),
    "bytes": _Kind("bytes", lambda value: isinstance(value, (bytes, bytearray, memoryview)), bytes),
    "float": _Kind(f"a number of seconds from 0 to {MAX_SECONDS}", is_seconds),
    "moment": _Kind("a datetime or seconds since 1970", lambda value: seconds_of(value) is not None),
    "condition": _Kind("a condition", lambda value: isinstance(value, str), str),
    "str": _Kind("a string", lambda value: isinstance(value, str), str),
    "count": _Kind("a whole number from 0", _is_count),
    "int": _Kind("a whole number", _is_whole),
    "path": _Kind("a path that is not empty", _is_path),
}
_GENERIC: Final = {
    "Callable": _Kind("a function", callable),
    "Iterable[str]": _Kind("a list or another iterable of strings", _are_texts),
    "Sequence[str]": _Kind("a list of strings", lambda value: _are_texts(value) and not isinstance(value, Mapping)),
    "Iterable": _Kind("an iterable", _are_elements),
    "Sequence": _Kind("a list", lambda value: _are_elements(value) and not isinstance(value, Mapping)),
    "Mapping": _Kind("a mapping", lambda value: isinstance(value, Mapping), dict),
    "Mapping[int, int]": _Kind("a mapping of whole numbers to whole numbers", _are_places),
    "Mapping[int, StartOffset]": _Kind(
        "a mapping of whole numbers to whole numbers, 'first' or 'last'",
        lambda value: _are_places(value, "first", "last"),
    ),
    "list": _Kind("a list", lambda value: isinstance(value, list), list),
    "tuple[int, int]": _Kind(
        "two whole numbers",
        lambda value: isinstance(value, (tuple, list)) and len(value) == 2 and all(map(_is_whole, value)),
    ),
}
_GENERIC["dict[int, int]"] = _GENERIC["Mapping[int, int]"]
_GENERIC["dict"] = _GENERIC["Mapping"]
_GENERIC["tuple"] = _Kind("a tuple", lambda value: isinstance(value, tuple), tuple)
_GENERIC["tuple[str, ...]"] = _Kind(
    "a tuple of strings", lambda value: isinstance(value, (tuple, list)) and _are_strings(value)
)


def _parts(annotation: str) -> list[str]:
    """The members of a union that is not inside brackets."""
    parts, depth = [""], 0
    for piece in re.split(r"([\[\]|])", annotation):
        depth += (piece == "[") - (piece == "]")
        if piece == "|" and not depth:
            parts.append("")
        else:
            parts[-1] += piece
    return [part.strip() for part in parts]


def _kinds(name: str, annotation: str) -> list[_Kind]:
    """What an annotation allows; empty: anything."""
    parts = _parts(annotation)
    if "Any" in parts or name in _CHECKED_AS_BODIES:
        return []
    if "os.PathLike[str]" in parts:
        parts = ["path", *(part for part in parts if part not in {"str", "os.PathLike[str]"})]
    kinds: list[_Kind] = []
    for part in parts:
        base = part.partition("[")[0]
        if part in _ALIASES:
            kinds += _kinds(name, _ALIASES[part])
        elif part == "int" and name in COUNTS:
            kinds.append(_PLAIN["count"])
        elif part in _PLAIN:
            kinds.append(_PLAIN[part])
        elif base == "Literal":
            values = tuple(re.findall(r"""["']([^"']*)["']""", part))
            kinds.append(_Kind(" or ".join(map(repr, values)), _is_among(values)))
        elif part in _GENERIC or base in _GENERIC:
            kinds.append(_GENERIC.get(part) or _GENERIC[base])
        else:
            name = base.rpartition(".")[2]
            shown_name = name.removesuffix("Handle")
            kinds.append(_Kind(f"{'an' if shown_name[0] in 'AEIOU' else 'a'} {shown_name}", _is_class(name)))
    return kinds


_NO_INTEGER: Final = MAX_INTEGER + 1


class _Parameter:
    """One argument of a callable."""

    __slots__ = ("exact", "kinds", "lowest", "name")

    def __init__(self, name: str, annotation: str) -> None:
        self.name = name
        self.kinds = _kinds(name, annotation)
        self.exact = frozenset(exact for kind in self.kinds for exact in kind.exact)
        """Types whose every value passes."""
        self.lowest = (
            0 if _PLAIN["count"] in self.kinds else -MAX_INTEGER if _PLAIN["int"] in self.kinds else _NO_INTEGER
        )
        """Whole numbers from this one on pass."""

    def check(self, value: object) -> None:
        for kind in self.kinds:
            if kind.passes(value):
                return
        if not self.kinds:
            return
        *others, last = dict.fromkeys(kind.wording for kind in self.kinds)
        wording = f"{', '.join(others)} or {last}" if others else last
        description = type(value).__name__ if self.name in _SECRET else shown(value)
        raise InvalidValueError(f"{self.name} must be {wording}, not {description}")


class Signature:
    """The parameters of a callable, without the first ``skip``, which its caller does not pass."""

    def __init__(self, function: Callable[..., Any], skip: int = 0) -> None:
        while hasattr(function, "__wrapped__"):  # as by what traces calls
            function = function.__wrapped__
        code = function.__code__
        self._name = function.__qualname__.removesuffix(".__init__").rpartition(".")[2]
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        annotations = {name: str(annotation) for name, annotation in function.__annotations__.items()}
        self._positional = names[skip : code.co_argcount]
        self._parameters = {name: _Parameter(name, annotations.get(name, "Any")) for name in names[skip:]}
        defaults = len(function.__defaults__ or ())
        keywords_only = function.__kwdefaults__ or {}
        self._required = self._positional[: len(self._positional) - defaults]
        self._required_keywords = [name for name in names[code.co_argcount :] if name not in keywords_only]
        star_names = list(code.co_varnames[code.co_argcount + code.co_kwonlyargcount :])
        self._more = None
        if code.co_flags & _VAR_POSITIONAL:
            name = star_names.pop(0)
            self._more = _Parameter(name, annotations.get(name, "Any"))
        self._takes_any_keyword = bool(code.co_flags & _VAR_KEYWORDS) and not self._add_keywords(
            function, annotations.get(star_names[0], "Any")
        )

    def _add_keywords(self, function: Callable[..., Any], annotation: str) -> bool:
        """Whether it is known which keywords there are."""
        if not annotation.startswith("Unpack["):
            return False
        type_name = annotation.removeprefix("Unpack[").removesuffix("]")
        typed_dict, all_known = function.__globals__.get(type_name), not type_name.endswith(_CHECKED_LATER)
        for name, field_type in () if typed_dict is None else typed_dict.__annotations__.items():
            if all_known or name == "headers":
                self._parameters[name] = _Parameter(name, getattr(field_type, "__forward_arg__", "Any"))
        return typed_dict is not None and all_known

    def check(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Raise :class:`InvalidValueError` if the call is invalid."""
        parameters, positional = self._parameters, self._positional
        for name, value in zip(positional, args):  # noqa: B905 - either may be longer
            parameter = parameters[name]
            kind = type(value)
            if kind not in parameter.exact and not (kind is int and parameter.lowest <= value <= MAX_INTEGER):
                parameter.check(value)
        if len(args) > len(positional):
            self._check_more(args[len(positional) :])
        for name, value in kwargs.items():
            keyword_parameter = parameters.get(name)
            if keyword_parameter is None:
                if not self._takes_any_keyword:
                    raise InvalidValueError(
                        f"{self._name}() has no argument {name!r}{did_you_mean(str(name), parameters)}"
                    )
            elif (kind := type(value)) not in keyword_parameter.exact and not (
                kind is int and keyword_parameter.lowest <= value <= MAX_INTEGER
            ):
                keyword_parameter.check(value)
        if kwargs:
            for name in positional[: len(args)]:
                if name in kwargs:
                    raise InvalidValueError(f"{self._name}() is given {name!r} twice")
        for name in (*self._required[len(args) :], *self._required_keywords):
            if name not in kwargs:
                raise InvalidValueError(f"{self._name}() needs an argument {name!r}")

    def _check_more(self, values: tuple[Any, ...]) -> None:
        if self._more is None:
            count = len([name for name in self._positional if name not in {"self", "cls"}])
            raise InvalidValueError(
                f"{self._name}() takes at most {count} positional argument{'s' * (count != 1)}; name the others"
            )
        for value in values:
            self._more.check(value)


_VAR_POSITIONAL: Final = 0x04
_VAR_KEYWORDS: Final = 0x08


@functools.cache
def signature(function: Callable[..., Any], skip: int = 0) -> Signature:
    """The :class:`Signature` of a function."""
    return Signature(function, skip)


def checked(function: Callable[P, T]) -> Callable[P, T]:
    """The same function, which checks its arguments when it is called."""

    @functools.wraps(function)
    def check_and_call(*args: P.args, **kwargs: P.kwargs) -> T:
        __tracebackhide__ = True  # pytest shows the caller's line
        signature(function).check(args, kwargs)
        return function(*args, **kwargs)

    return check_and_call


def checked_class(kind: type[T]) -> type[T]:
    """The same class, whose constructor checks its arguments. Fields with a converter are checked by that."""
    kind.__init__ = checked(kind.__init__)  # type: ignore[method-assign]
    return kind
