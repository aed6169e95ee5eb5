"""Forms of values: convert what a person writes in a scenario to what the simulation works with.

The message of a form's error begins with a blank (" must be …"), the number of an item ("[2] …") or the name of an
inner key, and does not say in which field the value is. :func:`inside` adds the field's name, level by level, until the
message reads ``publishers[0].rate must be …``.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar, cast, get_args

import attrs
import numpy as np

from warren.simulation.scenarios.units import ScenarioError
from warren.storage.errors import shown

T = TypeVar("T")
MOST: Final = 1 << 53
"""Whole numbers beyond this one are not exact as numbers of a table's columns."""


# ── names before what is wrong ──────────────────────────────────────────────────────────────────────────────────────


def under(key: str, message: object) -> str:
    """Return a message about a value, with ``key`` before it. The key is a name, or words that end with a blank."""
    text = str(message)
    return key + ("" if text.startswith((" ", "[", ":")) or key.endswith(" ") or not key else ".") + text


@contextmanager
def inside(key: str) -> Iterator[None]:
    """Put ``key`` before what the block says of a wrong value."""
    try:
        yield
    except ScenarioError as error:
        raise ScenarioError(under(key, error)) from None


def by(form: Callable[..., Any], *arguments: Any) -> dict[str, Any]:
    """Return a field's metadata: its form, and the arguments of that besides the value."""
    return {"form": lambda value: form(value, *arguments)}


def formed(value: Any) -> Any:
    """Be the converter of a field whose form is in its metadata (:func:`by`)."""
    raise TypeError(f"the class of a field with {value!r} is not transformed by named()")


def named(_: type, fields: list[attrs.Attribute[Any]]) -> list[attrs.Attribute[Any]]:
    """Let a scenario's class convert its fields by their forms. Errors begin with the field's name.

    A field whose default is ``None`` can be ``None``.
    """

    def naming(convert: Callable[[Any], Any]) -> Any:
        def converted(value: Any, field: attrs.Attribute[Any]) -> Any:
            if value is None and field.default is None:
                return None
            with inside(field.name):
                return convert(value.item() if isinstance(value, np.generic) else value)

        return attrs.Converter(converted, takes_field=True)

    return [
        field
        if field.converter is None
        else field.evolve(converter=naming(field.metadata.get("form", field.converter)))
        for field in fields
    ]


def nearest(word: str, words: Collection[str]) -> str:
    """Return the word that looks most like ``word``."""
    return difflib.get_close_matches(word, words, n=1, cutoff=0.0)[0]


def check_keys(table: Mapping[Any, Any], valid_keys: Collection[str], required: Collection[str] = ()) -> None:
    """Raise ScenarioError if a key is not valid, with the nearest valid one, or if a required key is missing."""
    for key in table:
        if not isinstance(key, str):
            raise ScenarioError(f": a key must be a text, not {shown(key)}")
        if key not in valid_keys:
            raise ScenarioError(f"{key:.100}: there is no such key; the nearest is {nearest(key, valid_keys)}")
    for key in required:
        if key not in table:
            raise ScenarioError(f"{key} is missing")


def only_key(table: Mapping[Any, Any], valid_keys: Collection[str], beside: Collection[str] = ()) -> str:
    """Return the only key of a table that is one of ``valid_keys``; keys ``beside`` it may be there."""
    check_keys(table, [*valid_keys, *beside])
    keys = [key for key in table if key in valid_keys]
    if len(keys) != 1:
        raise ScenarioError(f" must hold one of {', '.join(valid_keys)}, not {' and '.join(keys) or 'none of them'}")
    return str(keys[0])


def table_with(value: Any, required: Sequence[str], others: Sequence[str] = ()) -> Mapping[str, Any]:
    """Return a table, checked: it has the keys ``required``, may have the ``others``, and has no more."""
    if not isinstance(value, Mapping):
        more = f" (and {' and '.join(others)})" if others else ""
        *first, last = required
        keys = ", ".join(required) if others else f"{', '.join(first)} and {last}"
        raise ScenarioError(f" must be a table with {keys}{more}, not {shown(value)}")
    check_keys(value, (*required, *others), required)
    return value


def part(value: Any, kind: type[T]) -> T:
    """Return a part of a scenario from a value: the part itself, or a table of its fields."""
    if isinstance(value, Mapping):
        fields = {field.name: field for field in attrs.fields(cast("type[attrs.AttrsInstance]", kind))}
        check_keys(value, fields, [name for name, field in fields.items() if field.default is attrs.NOTHING])
        return kind(**value)
    if not isinstance(value, kind):
        raise ScenarioError(f" must be a {kind.__name__}, or a table, not {shown(value)}")
    return value


def parts(values: Any, kind: type[T]) -> tuple[T, ...]:
    """Return the parts of a scenario from a list."""
    return each(items(values, "tables", least=0), lambda value: part(value, kind))


def items(values: Any, of: str, least: int = 1) -> tuple[Any, ...]:
    """Return the items of a list that has at least ``least``."""
    if not isinstance(values, Sequence) or isinstance(values, str | bytes) or len(values) < least:
        raise ScenarioError(f" must be a list of {of}, not {shown(values)}")
    return tuple(values)


def pairs(values: Any, first: str, second: str) -> tuple[list[Any], list[Any]]:
    """Return the first items and the second items of a list of pairs."""
    lists: tuple[list[Any], list[Any]] = [], []
    for index, value in enumerate(items(values, f"[{first}, {second}]")):
        if not isinstance(value, Sequence) or isinstance(value, str | bytes) or len(value) != 2:
            raise ScenarioError(f"[{index}] must be [{first}, {second}], not {shown(value)}")
        lists[0].append(value[0])
        lists[1].append(value[1])
    return lists


def each(values: Any, form: Callable[[Any], T]) -> tuple[T, ...]:
    """Return ``form`` of each item of a list."""
    results = []
    for index, value in enumerate(values if isinstance(values, tuple) else items(values, "values")):
        with inside(f"[{index}]"):
            results.append(form(value.item() if isinstance(value, np.generic) else value))
    return tuple(results)


# ── single values ───────────────────────────────────────────────────────────────────────────────────────────────────


def number(value: Any, least: float, most: float, words: str = "") -> float:
    """Return a finite number of that range. ``words``: what an error calls the range."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise ScenarioError(f" must be {words or f'a number, {least:g} … {most:g}'}, not {shown(value)}")
    return float(value)


def whole(value: Any, least: int, most: int = MOST) -> int:
    """Return a whole number of that range."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ScenarioError(f" must be a whole number, {least} … {most}, not {shown(value)}")
    return int(value)


def share(value: Any) -> float:
    """Return a number from 0.0 to 1.0."""
    return number(value, 0.0, 1.0, "0.0 … 1.0")


def one_of(value: Any, choices: Any) -> Any:
    """Return a text that is a choice of a Literal."""
    texts: tuple[str, ...] = get_args(choices)
    if not isinstance(value, str) or value not in texts:
        raise ScenarioError(f" must be one of {', '.join(map(repr, texts))}, not {shown(value)}")
    return value


def truth(value: Any) -> bool:
    """Return True or False."""
    if not isinstance(value, bool):
        raise ScenarioError(f" must be true or false, not {shown(value)}")
    return value


def line(value: Any) -> str:
    """Return a text that is not empty and can be printed, as names are."""
    if not isinstance(value, str) or not value or not value.isprintable():
        raise ScenarioError(f" must be a text of characters that can be printed, not {shown(value)}")
    return value


def text(value: Any) -> str:
    """Return a text in a form that can be written to a file."""
    if not isinstance(value, str):
        raise ScenarioError(f" must be a text, not {shown(value)}")
    return value.encode(errors="replace").decode()


def file_path(value: Any) -> str:
    """Return a path. A file must be a regular file if it exists: a device can be read without end."""
    path = line(value)
    if os.path.exists(path) and not os.path.isfile(path):
        raise ScenarioError(f": {path}: is not a file")
    return path


def record_file(value: Any) -> tuple[str, str]:
    """Return the path and the queue in ``{record = "file.parquet", queue = "orders"}``."""
    fields = table_with(value, ("record", "queue"))
    with inside("record"):
        path = file_path(fields["record"])
    with inside("queue"):
        return path, line(fields["queue"])


def table(value: Any) -> dict[str, Any]:
    """Return a table with any keys."""
    if not isinstance(value, Mapping):
        raise ScenarioError(f" must be a table, not {shown(value)}")
    for key in value:
        if not isinstance(key, str) or not key.isprintable():
            raise ScenarioError(f": a key must be a text of characters that can be printed, not {shown(key)}")
    return dict(value)
