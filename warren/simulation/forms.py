"""Forms of values: convert what a person writes in a scenario to what the simulation works with.

The message of a form's error begins with a blank (" must be …"), the number of an item ("[2] …") or the name of an
inner key, and does not say in which field the value is. :func:`named` adds the field's name, level by level, until the
message reads ``publishers[0].rate must be …``.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, TypeVar, cast, get_args

import attrs
import numpy as np

from warren.simulation.units import ScenarioError, seconds, shown, size_bytes

T = TypeVar("T")
MOST: Final = 1 << 53
"""Whole numbers beyond this one are not exact as numbers of a table's columns."""


# ── names before what is wrong ──────────────────────────────────────────────────────────────────────────────────────


def under(key: str, said: object) -> str:
    """What was said of a value, with ``key`` before it."""
    text = str(said)
    return key + ("" if text.startswith((" ", "[", ":")) or not key else ".") + text


def named(_: type, fields: list[attrs.Attribute[Any]]) -> list[attrs.Attribute[Any]]:
    """For a class of a scenario: let what a converter says of a wrong value begin with its field's name."""

    def naming(convert: Callable[[Any], Any]) -> Any:
        def converted(value: Any, field: attrs.Attribute[Any]) -> Any:
            try:
                return convert(value.item() if isinstance(value, np.generic) else value)
            except ScenarioError as error:
                raise ScenarioError(under(field.name, error)) from None

        return attrs.Converter(converted, takes_field=True)

    return [
        field if field.converter is None else field.evolve(converter=naming(field.converter))  # type: ignore[arg-type]
        for field in fields
    ]


def nearest(word: str, words: Collection[str]) -> str:
    """The one of ``words`` that looks most like ``word``."""
    return difflib.get_close_matches(word, words, n=1, cutoff=0.0)[0]


def check_keys(table: Mapping[Any, Any], known: Collection[str], required: Collection[str] = ()) -> None:
    """Raise ScenarioError where a key is none of those known (and name the nearest), or one that must be is not."""
    for key in table:
        if not isinstance(key, str):
            raise ScenarioError(f": a key must be a text, not {shown(key)}")
        if key not in known:
            raise ScenarioError(f"{key:.100}: there is no such key; the nearest is {nearest(key, known)}")
    for key in required:
        if key not in table:
            raise ScenarioError(f"{key} is missing")


def only_key(table: Mapping[Any, Any], known: Collection[str], beside: Collection[str] = ()) -> str:
    """The one key of a table that holds one of those known, and perhaps some that stand ``beside`` it."""
    check_keys(table, [*known, *beside])
    keys = [key for key in table if key in known]
    if len(keys) != 1:
        raise ScenarioError(f" must hold one of {', '.join(known)}, not {' and '.join(keys) or 'none of them'}")
    return str(keys[0])


def part(kind: type[T], value: Any) -> T:
    """A part of a scenario, as it is or as the table that it stands for."""
    if isinstance(value, Mapping):
        fields = {field.name: field for field in attrs.fields(cast("type[attrs.AttrsInstance]", kind))}
        check_keys(value, fields, [name for name, field in fields.items() if field.default is attrs.NOTHING])
        return kind(**value)
    if not isinstance(value, kind):
        raise ScenarioError(f" must be a {kind.__name__}, or a table, not {shown(value)}")
    return value


def parts(kind: type[T], values: Any) -> tuple[T, ...]:
    """A list of them."""
    if not isinstance(values, Sequence) or isinstance(values, str | bytes):
        raise ScenarioError(f" must be a list of tables, not {shown(values)}")
    made = []
    for number, value in enumerate(values):
        try:
            made.append(part(kind, value))
        except ScenarioError as error:
            raise ScenarioError(under(f"[{number}]", error)) from None
    return tuple(made)


def items(values: Any, of: str) -> list[Any]:
    """A list that is not empty."""
    if not isinstance(values, Sequence) or isinstance(values, str | bytes) or not values:
        raise ScenarioError(f" must be a list of {of}, not {shown(values)}")
    return list(values)


def pairs(values: Any, first: str, second: str) -> tuple[list[Any], list[Any]]:
    """A list of pairs, as two lists."""
    lists: tuple[list[Any], list[Any]] = [], []
    for index, value in enumerate(items(values, f"[{first}, {second}]")):
        if not isinstance(value, Sequence) or isinstance(value, str | bytes) or len(value) != 2:
            raise ScenarioError(f"[{index}] must be [{first}, {second}], not {shown(value)}")
        lists[0].append(value[0])
        lists[1].append(value[1])
    return lists


def each(values: Any, form: Callable[[Any], T]) -> tuple[T, ...]:
    """``form`` of every item of a list."""
    made = []
    for index, value in enumerate(values if isinstance(values, tuple) else items(values, "values")):
        try:
            made.append(form(value.item() if isinstance(value, np.generic) else value))
        except ScenarioError as error:
            raise ScenarioError(under(f"[{index}]", error)) from None
    return tuple(made)


# ── single values ───────────────────────────────────────────────────────────────────────────────────────────────────


def period(value: Any) -> float:
    """Seconds."""
    return seconds("", value)


def amount(value: Any) -> int:
    """Bytes."""
    return size_bytes("", value)


def number(value: Any, least: float, most: float) -> float:
    """A finite number of that range."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise ScenarioError(f" must be a number, {least:g} … {most:g}, not {shown(value)}")
    return float(value)


def whole(value: Any, least: int, most: int = MOST) -> int:
    """A whole number of that range."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ScenarioError(f" must be a whole number, {least} … {most}, not {shown(value)}")
    return int(value)


def share(value: Any) -> float:
    """0.0 … 1.0."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 <= value <= 1.0:
        raise ScenarioError(f" must be 0.0 … 1.0, not {shown(value)}")
    return float(value)


def one_of(value: Any, choices: Any) -> Any:
    """One of the texts of a Literal."""
    texts: tuple[str, ...] = get_args(choices)
    if not isinstance(value, str) or value not in texts:
        raise ScenarioError(f" must be one of {', '.join(map(repr, texts))}, not {shown(value)}")
    return value


def truth(value: Any) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise ScenarioError(f" must be true or false, not {shown(value)}")
    return value


def line(value: Any) -> str:
    """A text that is not empty and can be printed: names."""
    if not isinstance(value, str) or not value or not value.isprintable():
        raise ScenarioError(f" must be a text of characters that can be printed, not {shown(value)}")
    return value


def text(value: Any) -> str:
    """Any text that can be written to a file."""
    if not isinstance(value, str):
        raise ScenarioError(f" must be a text, not {shown(value)}")
    return value.encode(errors="replace").decode()


def file_path(value: Any) -> str:
    """A path of a file, if there is one; not of a device, which can be read without end."""
    path = line(value)
    if os.path.exists(path) and not os.path.isfile(path):
        raise ScenarioError(f": {path}: is no file")
    return path


def table(value: Any) -> dict[str, Any]:
    """A table with any keys."""
    if not isinstance(value, Mapping):
        raise ScenarioError(f" must be a table, not {shown(value)}")
    for key in value:
        if not isinstance(key, str) or not key.isprintable():
            raise ScenarioError(f": a key must be a text of characters that can be printed, not {shown(key)}")
    return dict(value)
