"""AMQP's tables: the headers of a message, as Python values, as bytes, as Erlang keeps them, as JSON.

The bytes (everything big-endian)::

    table    u32 bytes · (name: u8 length · bytes, value)*
    array    u32 bytes · value*
    value    one byte that says what it is · it

Decoded, the broker keeps a table as a list of ``{Name, Type, Value}`` and an array as a list of ``{Type, Value}``.

Decimals and dates go through pamqp, which is imported when the first one comes. Not tables and arrays, which recurse
there without a bound and copy the rest of the data for each value; not timestamps, which become dates and take numbers
above 2**32 for milliseconds; not the choice of a number's width when writing (a ``float`` would lose half its digits).

A number's width is the one thing that does not always survive reading and writing again: 64 bits stay 64 bits, a
narrower integer is written as a signed 32-bit integer if it fits, as pika and the broker's own clients do. Of equal
names in a table the last one counts.
"""

from __future__ import annotations

import base64
import binascii
import functools
import math
import struct
from collections.abc import Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any, Final, TypeAlias

from warren.storage.erlang_terms import Term
from warren.storage.errors import MessageError

MAX_DEPTH: Final = 64
"""Levels of tables and arrays in a message's headers."""

Value: TypeAlias = (
    "bool | int | float | Decimal | str | bytes | datetime | Sequence[Value] | Mapping[str, Value] | None"
)
Table: TypeAlias = Mapping[str, Value]


class Timestamp(int):
    """A header's timestamp: whole seconds since the Unix epoch, 0 … 2**64 - 1."""


class LongInteger(int):
    """A header's number that is written in 64 bits, whatever its size."""


class UnsignedInteger(int):
    """A header's number that is written in 32 bits without a sign."""


class SingleFloat(float):
    """A header's number that is written as a float of 32 bits."""


class LongString(bytes):
    """A header's string that is not UTF-8 (``bytes`` alone are AMQP's binary)."""


class Written(bytes):
    """A table's value with its type byte, both encoded."""


_U32, _U64, _I32, _F32 = map(struct.Struct, (">I", ">Q", ">i", ">f"))
_LONG_STRING, _SIGNED_INTEGER = b"SI"
_STRING, _SIGNED, _LONG_SIGNED, _DOUBLE = map(struct.Struct, (">cI", ">ci", ">cq", ">cd"))
"""The tag of a value, and its length or the value."""

# ── bytes → table ─────────────────────────────────────────────────────────────────────────────────────────────────────


def read_table(data: bytes, position: int, limit: int, depth_left: int = MAX_DEPTH) -> tuple[dict[str, Value], int]:
    """Return the table at ``position`` and the offset after it; raise :class:`MessageError` if it exceeds ``limit``."""
    start, end = _read_length(data, position, limit)
    table: dict[str, Value] = {}
    position = start
    if position < end:
        _check_depth(depth_left)
    while position < end:
        start = position + 1
        tag_at = start + data[position]
        if tag_at >= end:
            within(tag_at + 1, end)
        name, tag, start = _read_name(data[start:tag_at]), data[tag_at], tag_at + 5
        if tag == _LONG_STRING and start <= end:  # most are strings,
            position = start + _U32.unpack_from(data, tag_at + 1)[0]
            if position > end:
                within(position, end)
            octets = data[start:position]
            try:
                table[name] = octets.decode()
            except UnicodeDecodeError:
                table[name] = LongString(octets)
        elif tag == _SIGNED_INTEGER and start <= end:  # or small numbers
            table[name], position = _I32.unpack_from(data, tag_at + 1)[0], start
        else:
            table[name], position = _read_value(data, tag_at, end, depth_left)
    return table, end


def read_written(data: bytes, position: int) -> dict[str, Written]:
    """The values of the table at ``position`` as they stand there, so that numbers keep their widths.

    But as in RabbitMQ a number of the type ``L`` is written as ``l``, which is the same to it.
    """
    position, end = _read_length(data, position, len(data))
    written = bytearray(data)
    table: dict[str, Written] = {}
    while position < end:
        start = position + 1 + data[position]
        name = _read_name(data[position + 1 : start])
        position = _write_longs(data, start, end, written)
        table[name] = Written(written[start:position])
    return table


def _write_longs(data: bytes, position: int, limit: int, written: bytearray) -> int:
    """Set the type of each number of the type ``L`` in the value at ``position``; return the offset after it."""
    tag = data[position]
    if tag not in _NESTED:
        if tag == _OTHER_LONG:
            written[position] = _LONG_INTEGER
        return _read_value(data, position, limit, MAX_DEPTH)[1]
    position, end = _read_length(data, position + 1, limit)
    while position < end:
        position = _write_longs(data, position + 1 + data[position] if tag == _TABLE else position, end, written)
    return end


@functools.lru_cache(maxsize=1024)
def _read_name(data: bytes) -> str:
    """A header's name: they are few, and come again and again."""
    return data.decode("utf-8", "surrogateescape")


def skip_table(data: bytes, position: int, limit: int) -> int:
    """Return the offset after the table at ``position``, without reading most of its values; raise what
    :func:`read_table` raises."""
    position, end = _read_length(data, position, limit)
    while position < end:
        tag_at = position + 1 + data[position]
        if tag_at >= end:
            within(tag_at + 1, end)
        tag, start = data[tag_at], tag_at + 5
        if tag == _LONG_STRING and start <= end:
            position = start + _U32.unpack_from(data, tag_at + 1)[0]
        elif (size := _VALUE_BYTES.get(tag)) is not None:
            position = tag_at + 1 + size
        else:
            position = _read_value(data, tag_at, end, MAX_DEPTH)[1]
        if position > end:
            within(position, end)
    return end


def _check_depth(depth_left: int) -> None:
    if not depth_left:
        raise MessageError(f"headers nested deeper than {MAX_DEPTH} levels")


def _read_array(data: bytes, position: int, limit: int, depth_left: int) -> tuple[list[Value], int]:
    start, end = _read_length(data, position, limit)
    array: list[Value] = []
    position = start
    while position < end:
        value, position = _read_value(data, position, end, depth_left)
        array.append(value)
    return array, end


_LEAVES: Final = {
    ord(tag): struct.Struct(">" + code)
    for tag, code in {"t": "?", "b": "b", "B": "B", "s": "h", "u": "H", "I": "i", "i": "I"}.items()
    | {"l": "q", "L": "q", "f": "f", "d": "d"}.items()
}
"""Numbers by their tag; the rest is in :func:`_read_value`."""
_VALUE_BYTES: Final = {tag: leaf.size for tag, leaf in _LEAVES.items()} | {ord("V"): 0, ord("T"): 8}
"""The sizes of the values whose size their tag says."""
_LONG_INTEGER, _OTHER_LONG, _UNSIGNED_INTEGER, _SINGLE_FLOAT = b"lLif"
_TABLE, _ARRAY = _NESTED = b"FA"


def _read_value(data: bytes, position: int, limit: int, depth_left: int) -> tuple[Value, int]:
    _check_depth(depth_left)
    start = within(position + 1, limit)
    tag = data[position]
    if tag in _LEAVES:
        leaf = _LEAVES[tag]
        end = within(start + leaf.size, limit)
        return _marked(tag, leaf.unpack_from(data, start)[0]), end
    match chr(tag):
        case "S":
            content, end = _read_length(data, start, limit)
            return long_string(data[content:end]), end
        case "x":
            content, end = _read_length(data, start, limit)
            return data[content:end], end
        case "V":
            return None, start
        case "D":
            from pamqp import decode

            end = within(start + 5, limit)
            return decode.decimal(data[start:end])[1], end
        case "T":
            end = within(start + 8, limit)
            return Timestamp(_U64.unpack_from(data, start)[0]), end
        case "F":
            return read_table(data, start, limit, depth_left - 1)
        case "A":
            return _read_array(data, start, limit, depth_left - 1)
        case unknown:
            raise MessageError(f"a header's value of the unknown type {unknown!r}")


def _marked(tag: int, value: Any) -> Any:
    """A number that would be written with another tag, as one that is written with this."""
    if tag == _SINGLE_FLOAT:
        return SingleFloat(value)
    if tag == _UNSIGNED_INTEGER:
        return UnsignedInteger(value) if value >= 1 << 31 else value
    return LongInteger(value) if tag in (_LONG_INTEGER, _OTHER_LONG) and -(1 << 31) <= value < 1 << 31 else value


def _read_length(data: bytes, position: int, limit: int) -> tuple[int, int]:
    """Start and end of what a u32 at ``position`` counts the bytes of."""
    start = within(position + 4, limit)
    return start, within(start + _U32.unpack_from(data, position)[0], limit)


def within(end: int, limit: int) -> int:
    """Return ``end`` if it does not exceed ``limit``; else raise :class:`MessageError`."""
    if end > limit:
        raise MessageError("properties that are cut short")
    return end


def text(data: bytes) -> str | bytes:
    """Return ``data`` as text if it is UTF-8, else unchanged."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


def long_string(data: bytes) -> str | LongString:
    """Return a header's string."""
    string = text(data)
    return string if isinstance(string, str) else LongString(string)


def is_integer(value: Value) -> bool:
    """Whether the broker takes it for an integer, of any width."""
    return isinstance(value, int) and not isinstance(value, bool | Timestamp)


def type_name(value: Value) -> str:
    """What the broker calls the type of a value, as it would be written."""
    match value:
        case None:
            return "void"
        case bool():
            return "bool"
        case Timestamp() | datetime():
            return "timestamp"
        case UnsignedInteger():
            return "unsignedint"
        case int():
            return "long" if isinstance(value, LongInteger) or not -(1 << 31) <= value < 1 << 31 else "signedint"
        case float():
            return "float" if isinstance(value, SingleFloat) else "double"
        case Decimal():
            return "decimal"
        case str() | LongString():
            return "longstr"
        case bytes() | bytearray():
            return "binary"
        case Mapping():
            return "table"
        case _:
            return "array"


# ── table → bytes ─────────────────────────────────────────────────────────────────────────────────────────────────────


def write_table(table: Table, depth_left: int = MAX_DEPTH) -> bytes:
    """The table as bytes; raises :class:`MessageError`, ``ValueError`` or ``TypeError`` for what none can hold."""
    if not isinstance(table, Mapping):
        raise TypeError("not a table")
    if table:
        _check_depth(depth_left)
    parts: list[bytes] = []
    add = parts.append
    for name, value in table.items():
        add(_written_name(name))
        if type(value) is str:  # most are
            data = value.encode()
            add(_STRING.pack(b"S", len(data)))
            add(data)
        elif type(value) in _IN_PARTS:
            parts += _parts_of_value(value, depth_left)
        else:
            add(_write_value(value, depth_left))
    return _counted(b"".join(parts))


def write_value(value: Value) -> Written:
    """A value of a table, for a table that is written later; raises as :func:`write_table` does."""
    return Written(b"".join(_parts_of_value(value, MAX_DEPTH)))


def write_short_string(value: str | bytes) -> bytes:
    """Encode at most 255 bytes with their length first; raises as :func:`write_table` does."""
    if type(value) is str:
        encoded = value.encode("utf-8", "surrogateescape")
    elif isinstance(value, str | bytes):
        encoded = value if isinstance(value, bytes) else value.encode("utf-8", "surrogateescape")
    else:
        raise TypeError("not a string")
    return bytes((len(encoded),)) + encoded


_written_name = functools.lru_cache(maxsize=1024)(write_short_string)
"""Names are few, and come again and again."""


def _write_value(value: Value, depth_left: int) -> bytes:
    _check_depth(depth_left)
    if type(value) is int and -(1 << 31) <= value < 1 << 31:
        return _SIGNED.pack(b"I", value)
    match value:
        case Written():
            return value
        case None:
            return b"V"
        case str():
            encoded = value.encode()
            return _STRING.pack(b"S", len(encoded)) + encoded
        case bytes() | bytearray() | list() | tuple():
            return b"".join(_parts_of_value(value, depth_left))
        case Mapping():
            return b"F" + write_table(value, depth_left - 1)
        case datetime():
            return b"T" + _written_datetime(value)
        case _:
            return _write_number(value)


def _parts_of_value(value: Value, depth_left: int) -> Sequence[bytes]:
    """Encode a value in parts; a large part stays separate and is not copied."""
    _check_depth(depth_left)
    match value:
        case bytes() | bytearray():
            return _STRING.pack(b"S" if isinstance(value, LongString) else b"x", len(value)), bytes(value)
        case list() | tuple():
            parts = [part for element in value for part in _parts_of_value(element, depth_left - 1)]
            return _STRING.pack(b"A", sum(map(len, parts))), *parts
        case _:
            return (_write_value(value, depth_left),)


_IN_PARTS: Final = frozenset({bytes, bytearray, LongString, list, tuple})


def _write_number(value: Value) -> bytes:
    match value:
        case bool():
            return b"t\1" if value else b"t\0"
        case Timestamp():
            return b"T" + _U64.pack(value)
        case UnsignedInteger():
            return b"i" + _U32.pack(value)
        case int() if -(1 << 31) <= value < 1 << 31 and not isinstance(value, LongInteger):
            return _SIGNED.pack(b"I", value)
        case int() if -(1 << 63) <= value < 1 << 63:
            return _LONG_SIGNED.pack(b"l", value)
        case int():
            raise TypeError(f"{value} does not fit a number of 64 bits")
        case SingleFloat():
            return b"f" + _F32.pack(value)
        case float():
            return _DOUBLE.pack(b"d", value)
        case Decimal():
            return b"D" + _write_decimal(value)
        case _:
            raise TypeError(f"a header cannot be a {type(value).__name__}")


def _write_decimal(value: Decimal) -> bytes:
    """Scale u8 · unscaled i32; checked first, because pamqp would count out any exponent and round any mantissa."""
    exponent = value.as_tuple().exponent
    if not isinstance(exponent, int) or not -255 <= exponent <= 10 or len(value.as_tuple().digits) > 10:
        raise ValueError(f"{value} does not fit a decimal of 32 bits")
    from pamqp import encode

    return bytes(encode.decimal(value))


def _written_datetime(value: datetime) -> bytes:
    from pamqp import encode

    return bytes(encode.timestamp(value))


def _counted(data: bytes) -> bytes:
    return _U32.pack(len(data)) + data


# ── term → table ──────────────────────────────────────────────────────────────────────────────────────────────────────


def table_from_term(term: Term, depth_left: int = MAX_DEPTH) -> dict[str, Value]:
    """The table that a decoded one holds; raises :class:`MessageError`."""
    table: dict[str, Value] = {}
    for entry in _list(term):
        match entry:
            case (bytes(name), str(kind), value):
                table[name.decode("utf-8", "surrogateescape")] = _value_from_term(kind, value, depth_left)
            case _:
                raise MessageError(f"{entry!r:.100} in a table")
    return table


def _array_from_term(term: Term, depth_left: int) -> list[Value]:
    array: list[Value] = []
    for entry in _list(term):
        match entry:
            case (str(kind), value):
                array.append(_value_from_term(kind, value, depth_left))
            case _:
                raise MessageError(f"{entry!r:.100} in an array")
    return array


_INTEGERS = frozenset({"signedint", "unsignedint", "short", "unsignedshort", "byte", "unsignedbyte", "long"})


def _value_from_term(kind: str, value: Term, depth_left: int) -> Value:
    _check_depth(depth_left)
    match kind, value:
        case "longstr", bytes():
            return long_string(value)
        case ("bool", bool(plain)) | ("binary", bytes(plain)) | ("float" | "double", float(plain)):
            return plain
        case "void", _:
            return None
        case "timestamp", _:
            return Timestamp(checked_integer(value, 64))
        case "decimal", (scale, unscaled):
            return _decimal_from_term(checked_integer(scale, 8), unscaled)
        case "table", _:
            return table_from_term(value, depth_left - 1)
        case "array", _:
            return _array_from_term(value, depth_left - 1)
        case _, int() if kind in _INTEGERS and not isinstance(value, bool) and -(1 << 63) <= value < 1 << 63:
            return value
        case _:
            raise MessageError(f"a header of type {kind} is {value!r:.100}")


def _decimal_from_term(scale: int, unscaled: Term) -> Decimal:
    """The broker reads AMQP's signed number as an unsigned one, and writes the same bytes again."""
    value = checked_integer(unscaled, 32)
    signed = value - (1 << 32) if value >> 31 else value
    return Decimal((signed < 0, tuple(int(digit) for digit in str(abs(signed))), -scale))


def checked_integer(value: Term, bits: int) -> int:
    """Return ``value`` if it is an unsigned integer of at most ``bits`` bits; else raise :class:`MessageError`."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << bits:
        raise MessageError(f"{value!r:.100} in place of an integer of {bits} bits")
    return value


def _list(term: Term) -> list[Term]:
    if not isinstance(term, list):
        raise MessageError(f"{term!r:.100} in place of a list")
    return term


# ── table → JSON ──────────────────────────────────────────────────────────────────────────────────────────────────────


def table_to_json(table: Table) -> dict[str, Any]:
    """The table as JSON has it, by the rules of :func:`value_to_json`; names that are not UTF-8 with backslashes."""
    return {
        name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace"): value_to_json(value)
        for name, value in table.items()
    }


def value_to_json(value: Value) -> Any:
    """Timestamps are numbers of seconds, decimals (and floats that JSON has no number for) text, bytes that are not
    UTF-8 ``{"base64": …}``, voids ``null``; tables are objects, arrays lists.
    """
    match value:
        case None | bool() | str():
            return value
        case int():
            return int(value)
        case float():
            return float(value) if math.isfinite(value) else str(value)
        case Decimal():
            return str(value)
        case datetime():
            return _U64.unpack(_written_datetime(value))[0]
        case bytes() | bytearray():
            string = text(bytes(value))
            return string if isinstance(string, str) else {"base64": base64.b64encode(string).decode("ascii")}
        case Mapping():
            return table_to_json(value)
        case list() | tuple():
            return [value_to_json(element) for element in value]
        case _:
            raise MessageError(f"a {type(value).__name__} cannot be said in JSON")


def value_from_json(json_value: Any) -> Value:
    """Invert :func:`value_to_json`, as far as possible: a number gets the width that it needs, a timestamp is a number,
    a decimal text."""
    if isinstance(json_value, dict):
        data = _base64(json_value)
        return {name: value_from_json(value) for name, value in json_value.items()} if data is None else data
    if isinstance(json_value, list):
        return [value_from_json(element) for element in json_value]
    value: Value = json_value
    return value


def _base64(encoded: Mapping[str, Any]) -> bytes | None:
    """Return the bytes of ``{"base64": …}``; ``None`` for text, which :func:`value_to_json` does not encode so."""
    if encoded.keys() != {"base64"} or not isinstance(encoded["base64"], str):
        return None
    try:
        data = base64.b64decode(encoded["base64"], validate=True)
        data.decode()
    except binascii.Error:
        return None
    except UnicodeDecodeError:
        return data
    return None
