"""Headers and properties as the Erlang terms that RabbitMQ's ``x-consistent-hash`` exchanges hash."""

from __future__ import annotations

from typing import Final

from warren.queue_index.index.erlang_hash import Term
from warren.queue_index.properties import decode_properties, headers_as_written

UNDEFINED: Final = "undefined"
"""The term for what a message does not have."""
_INTEGERS: Final = {
    "b": ("byte", True), "s": ("short", True), "I": ("signedint", True), "l": ("long", True),
    "B": ("unsignedbyte", False), "u": ("unsignedshort", False), "i": ("unsignedint", False), "T": ("timestamp", False),
}  # fmt: skip
"""The name of each integer's type, and whether it has a sign, by the type's byte."""


def header_term(properties: bytes, name: str) -> Term:
    """A header's type and value; ``properties``: encoded.

    A value other than a text, bytes, an integer or a truth value has its bytes in place of the value.
    """
    written = headers_as_written(properties).get(name) if properties else None
    if written is None:
        return UNDEFINED
    kind, value = chr(written[0]), bytes(written[1:])
    if kind in _INTEGERS:
        type_name, signed = _INTEGERS[kind]
        return type_name, int.from_bytes(value, "big", signed=signed)
    if kind == "t":
        return "bool", "true" if any(value) else "false"
    if kind in "Sx":
        return "longstr" if kind == "S" else "binary", value[4:]
    return kind, value


def property_term(properties: bytes, name: str) -> Term:
    """A property's value, as a binary."""
    value = getattr(decode_properties(properties), name) if properties else None
    if value is None:
        return UNDEFINED
    return bytes(value) if isinstance(value, bytes) else str(value).encode("utf-8", "surrogateescape")
