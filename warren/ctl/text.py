"""How rabbitmqctl writes what it lists: values in a table, and arguments with their AMQP types."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any

from warren.salvage.names import printable

Typed = list[list[Any]]
"""A table's names, types and values: ``[["x-max-length", "signedint", 5]]``."""


def typed_table(table: Mapping[str, Any]) -> Typed:
    """A table as rabbitmqctl has it in JSON."""
    return [[name, *_typed(value)] for name, value in table.items()]


def _typed(value: Any) -> tuple[str, Any]:
    match value:
        case bool():
            return "bool", value
        case int():
            return ("signedint" if -(1 << 31) <= value < 1 << 31 else "long"), value
        case str():
            return "longstr", value
        case bytes() | bytearray():
            return "longstr", bytes(value).decode("utf-8", "surrogateescape")
        case float():
            return "double", value
        case None:
            return "void", None
        case datetime():
            return "timestamp", round(value.timestamp())
        case Decimal():
            return "decimal", float(value)
        case Mapping():
            return "table", typed_table(value)
        case list() | tuple():
            return "array", [list(_typed(element)) for element in value]
    return "longstr", str(value)


def shown(column: str, value: Any) -> str:
    """A value in a table of text; control characters are escaped."""
    if column in ("arguments", "client_properties") and isinstance(value, list):
        return printable(_erlang("table", value))
    return printable(plain(value))


def plain(value: Any) -> str:
    """A value that is no AMQP table."""
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case list() | tuple():
            return f"[{', '.join(plain(element) for element in value)}]"
        case dict():
            return f"[{','.join(f'{{{_quoted(name)},{_quoted(field)}}}' for name, field in value.items())}]"
    return str(value)


def _quoted(value: Any) -> str:
    if not isinstance(value, str):
        return plain(value)
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _erlang(kind: str, value: Any) -> str:
    if kind == "table":
        return f"[{','.join(f'{{{_quoted(name)},{_erlang(type_, field)}}}' for name, type_, field in value)}]"
    if kind == "array":
        return f"[{','.join(_erlang(type_, element) for type_, element in value)}]"
    return "undefined" if value is None else _quoted(value)
