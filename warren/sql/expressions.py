"""What a filter that DuckDB hands down says of single columns.

It comes as an expression of Arrow's, whose parts Python cannot ask for. But it can be pickled: its parts are then in
the metadata of a schema, in Polish notation, and its literals in a batch that follows. ::

    call: 'and_kleene'
    call: 'equal'                 (queue = 'orders') and (seq_id >= 5)
    field_ref: 'queue'
    literal: '0'
    end: 'equal'
    …

What is not understood bounds nothing. Bounds only spare reading: the whole expression is applied to every batch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import attrs
import pyarrow as pa
import pyarrow.compute as pc

from warren.tables.filters import Bounds

_LINE: Final = re.compile(r"^(call|end|field_ref|literal|options|nested_field_ref): '(.*)'$", re.MULTILINE)


@attrs.frozen
class Field:
    """A column."""

    name: str


@attrs.frozen
class Literal:
    """A value."""

    value: Any


@attrs.frozen
class Call:
    """A function with other parts as arguments."""

    function: str
    arguments: tuple[Field | Literal | Call, ...]
    options: Any
    """Return the function's options by name; ``None`` for a function without options."""


Part = Field | Literal | Call


def bounds_of(expression: pc.Expression) -> Iterator[tuple[str, Bounds]]:
    """Bounds of single columns that hold wherever the expression is true."""
    root = taken_apart(expression)
    return iter(()) if root is None else _bounds(root)


def columns_of(expression: pc.Expression) -> frozenset[str] | None:
    """Return the columns that an expression uses; ``None``: they are not known."""
    root = taken_apart(expression)
    return None if root is None else frozenset(_fields(root))


def taken_apart(expression: pc.Expression) -> Part | None:
    """The parts of an expression; ``None`` if they cannot be found."""
    try:
        _, (pickled, *_) = expression.__reduce__()
        with pa.ipc.open_file(pickled) as opened:
            values = [column[0].as_py() for column in opened.get_batch(0).columns]
            schema_text = opened.schema.to_string(truncate_metadata=False, show_field_metadata=False)
        lines: Iterator[tuple[str, str]] = iter(_LINE.findall(schema_text.partition("-- schema metadata --\n")[2]))
        kind, text = next(lines)
        root = _part(kind, text, lines, values)
        return root if next(lines, None) is None else None
    except (pa.ArrowException, LookupError, ValueError, TypeError, StopIteration, RecursionError):
        return None


def _part(kind: str, text: str, lines: Iterator[tuple[str, str]], values: list[Any]) -> Part:
    if kind == "field_ref":
        return Field(text)
    if kind == "literal":
        return Literal(values[int(text)])
    if kind != "call":
        raise ValueError(kind)
    arguments: list[Part] = []
    options = None
    for inner_kind, inner_text in lines:
        if inner_kind == "end":
            return Call(text, tuple(arguments), options)
        if inner_kind == "options":
            options = values[int(inner_text)]
        else:
            arguments.append(_part(inner_kind, inner_text, lines, values))
    raise ValueError("no end")


def _fields(part: Part) -> Iterator[str]:
    match part:
        case Field(name):
            yield name
        case Call(arguments=arguments):
            for argument in arguments:
                yield from _fields(argument)
        case Literal():
            pass


def _bounds(part: Part) -> Iterator[tuple[str, Bounds]]:
    match part:
        case Call("and" | "and_kleene", (left, right)):
            yield from _bounds(left)
            yield from _bounds(right)
        case Call("or" | "or_kleene", (left, right)):
            yield from _either(dict(_bounds(left)), dict(_bounds(right)))
        case Call("if_else", (_, where_true, Literal(None))):
            yield from _bounds(where_true)
        case Call("is_in", (Field(name),), {"value_set": list(values)}) if None not in values:
            yield name, Bounds(choice=frozenset(values))
        case Call(function, (Field(name), Literal(value))) if value is not None:
            if (bounds := _compared(function, value)) is not None:
                yield name, bounds
        case _:
            pass


def _compared(function: str, value: Any) -> Bounds | None:
    match function:
        case "equal":
            return Bounds(choice=frozenset((value,)))
        case "greater" | "greater_equal":
            return Bounds(low=value)
        case "less" | "less_equal":
            return Bounds(high=value)
        case _:
            return None


def _either(left: dict[str, Bounds], right: dict[str, Bounds]) -> Iterator[tuple[str, Bounds]]:
    """Yield the bounds that hold if either side is true, for columns that both sides limit to a choice."""
    for name, left_bounds in left.items():
        right_bounds = right.get(name)
        if right_bounds is not None and left_bounds.choice is not None and right_bounds.choice is not None:
            yield name, Bounds(choice=left_bounds.choice | right_bounds.choice)
