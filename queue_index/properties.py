"""AMQP's basic properties of a message: as a publisher sets them, as bytes, as Erlang keeps them, as JSON.

The bytes (everything big-endian)::

    flags u16            bit 15: content_type … bit 2: cluster_id; bits 1 and 0 mean nothing
    each one that is set, in the order of the flags:
        headers                     a table (:mod:`warren.queue_index.message.amqp_tables`)
        delivery_mode, priority     u8
        timestamp                   u64, seconds
        the others                  u8 length · bytes

If a broker has to change a message, it decodes the properties, and from then on keeps the tuple ``'P_basic'``: their
values in the same order, ``undefined`` for what is not set.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import attrs

from warren.queue_index.message.amqp_tables import (
    Table,
    Written,
    checked_integer,
    read_table,
    read_written,
    skip_table,
    table_from_term,
    table_to_json,
    text,
    value_from_json,
    value_to_json,
    within,
    write_short_string,
    write_table,
)
from warren.storage.erlang_terms import Atom, Term
from warren.storage.errors import MessageError, did_you_mean, shortly, shown


@attrs.frozen(kw_only=True, slots=False)  # without slots one is made in a third of the time
class Properties:
    """A message's properties under AMQP's names; ``None``: not set. Strings that are not UTF-8 are ``bytes``."""

    content_type: str | bytes | None = None
    content_encoding: str | bytes | None = None
    headers: Table | None = None
    delivery_mode: int | None = None
    """1: transient, 2: persistent."""
    priority: int | None = None
    correlation_id: str | bytes | None = None
    reply_to: str | bytes | None = None
    expiration: str | bytes | None = None
    """Milliseconds, as text."""
    message_id: str | bytes | None = None
    timestamp: int | None = None
    """Seconds since the Unix epoch."""
    type: str | bytes | None = None
    user_id: str | bytes | None = None
    app_id: str | bytes | None = None
    cluster_id: str | bytes | None = None


PERSISTENT: Final = 2
"""The ``delivery_mode`` of persistent messages."""
NAMES: Final = tuple(field.name for field in attrs.fields(Properties))
"""In AMQP's order, which is that of the flags, of the bytes and of ``'P_basic'``."""

HEADERS: Final = "headers"
for _name in NAMES:  # here it stands for all that have no such property, which then need not
    setattr(Properties, _name, None)
_U16, _U64 = struct.Struct(">H"), struct.Struct(">Q")
_HEADERS_BIT = 0x20  # of the first byte
OCTETS: Final = frozenset({"delivery_mode", "priority"})
SHORT_STRINGS: Final = frozenset(NAMES) - OCTETS - {HEADERS, "timestamp"}
_CACHED_BYTES = 32
"""Properties up to this size, and without headers, are cached, because most messages of a queue have the same few."""


def decode_properties(data: bytes) -> Properties:
    """Return the properties that ``data`` holds as a whole; raise :class:`MessageError` otherwise."""
    if len(data) < 2:
        raise MessageError("properties that are cut short")
    if len(data) <= _CACHED_BYTES and not data[0] & _HEADERS_BIT:
        return _decode_cached(data)
    return _decode(data)


def _decode(data: bytes) -> Properties:
    position, size = 2, len(data)
    properties = Properties.__new__(Properties)
    values = properties.__dict__
    for name, reader in _readers(data[:2]):
        if reader is not None:
            values[name], position = reader(data, position)
            continue
        start = position + 1  # a short string, as most are
        position = within(start + data[position] if start <= size else start, size)
        octets = data[start:position]
        try:
            values[name] = octets.decode()
        except UnicodeDecodeError:
            values[name] = octets
    if position != size:
        raise MessageError(f"{size - position} bytes after the properties")
    return properties


_decode_cached = functools.lru_cache(maxsize=1024)(_decode)


@functools.lru_cache(maxsize=256)
def _readers(flags: bytes) -> list[tuple[str, Callable[[bytes, int], tuple[Any, int]] | None]]:
    """The properties that are set, each with what reads it; ``None``: it is a short string."""
    special = {HEADERS: _read_headers, "timestamp": _read_timestamp} | dict.fromkeys(OCTETS, _read_octet)
    return [(name, special.get(name)) for name in names_in(flags)]


def names_in(flags: bytes) -> list[str]:
    """The properties that are set, in their order."""
    bits = int.from_bytes(flags)
    return [name for bit, name in enumerate(NAMES) if bits & 0x8000 >> bit]


def _read_octet(data: bytes, position: int) -> tuple[int, int]:
    end = within(position + 1, len(data))
    return data[position], end


def _read_timestamp(data: bytes, position: int) -> tuple[int, int]:
    end = within(position + 8, len(data))
    return _U64.unpack_from(data, position)[0], end


def _read_headers(data: bytes, position: int) -> tuple[Table, int]:
    return read_table(data, position, len(data))


class Outline(NamedTuple):
    """The properties that decide what becomes of a message, as they stand in the encoded ones."""

    headers: bytes = b""
    """The whole table."""
    delivery_mode: int | None = None
    priority: int | None = None
    reply_to: bytes | None = None
    expiration: bytes | None = None
    user_id: bytes | None = None


def outline_of(encoded: bytes) -> Outline:
    """Return the outline of encoded properties; raise :class:`MessageError` where :func:`decode_properties` does. Takes
    half its time."""
    position, size, values = 2, len(encoded), {}
    try:
        for name, reader in _readers(encoded[:2]):
            start = position
            if reader is None:
                start += 1
                position = start + encoded[position]
            elif name == HEADERS:
                position = skip_table(encoded, position, size)
            else:
                values[name], position = reader(encoded, position)
                continue
            if name in _OUTLINED:
                values[name] = encoded[start:position]
    except IndexError:
        position = -1
    if position != size:
        raise MessageError("properties that are cut short, or too long")
    values.pop("timestamp", None)
    return Outline(**values)


_OUTLINED: Final = frozenset(Outline._fields)


def headers_as_written(encoded: bytes) -> dict[str, Written]:
    """The headers' values as they stand in encoded properties, which can be read."""
    position = 2
    for name, reader in _readers(encoded[:2]):
        if name == HEADERS:
            return read_written(encoded, position)
        position = position + 1 + encoded[position] if reader is None else reader(encoded, position)[1]
    return {}


def encode_properties(properties: Properties) -> bytes:
    """The properties as bytes; raises :class:`MessageError` for a value that has no place in them."""
    return encode_values({name: getattr(properties, name) for name in NAMES})


def encode_values(values: Mapping[str, Any]) -> bytes:
    """:func:`encode_properties` of properties by their names, in any order; ``None``: not set."""
    if None in values.values():
        values = {name: value for name, value in values.items() if value is not None}
    flags, writers = writers_of(tuple(values))
    parts, name = [flags], ""
    try:
        for name, write in writers:
            parts.append(write(values[name]))
    except MessageError:
        raise
    except (TypeError, ValueError, struct.error) as error:
        raise MessageError(f"{name} cannot be {shown(values[name])}: {shortly(str(error))}") from error
    return b"".join(parts)


def _write_timestamp(value: Any) -> bytes:
    return _U64.pack(value)


def _write_octet(value: Any) -> bytes:
    if type(value) is int and 0 <= value < 256:
        return _ONE_BYTE[value]
    from pamqp import encode

    return bytes(encode.octet(value))


_ONE_BYTE: Final = [bytes((value,)) for value in range(256)]


@functools.lru_cache(maxsize=256)
def writers_of(names: tuple[str, ...]) -> tuple[bytes, list[tuple[str, Callable[[Any], bytes]]]]:
    """Return the bytes before the properties ``names``, and in their order the functions that write each.

    Raises :class:`MessageError` for an unknown name.
    """
    if unknown := set(names) - set(NAMES):
        raise MessageError(f"a publish knows no {', '.join(sorted(unknown))}{did_you_mean(min(unknown), NAMES)}")
    special: dict[str, Callable[[Any], bytes]] = {"headers": write_table, "timestamp": _write_timestamp}
    special |= dict.fromkeys(OCTETS, _write_octet)
    ordered = [name for name in NAMES if name in names]
    flags = sum(0x8000 >> NAMES.index(name) for name in ordered)
    return _U16.pack(flags), [(name, special.get(name, write_short_string)) for name in ordered]


def properties_from_term(term: Term) -> Properties:
    """The properties that stand decoded in a ``'P_basic'`` tuple; raises :class:`MessageError`."""
    if not isinstance(term, tuple) or len(term) != 1 + len(NAMES) or term[0] != Atom("P_basic"):
        raise MessageError("properties that are neither bytes nor a 'P_basic'")
    fields = zip(NAMES, term[1:], strict=True)
    return Properties(**{name: _property_from_term(name, value) for name, value in fields if _is_set(value)})


def _is_set(value: Term) -> bool:
    return not (isinstance(value, Atom) and value == "undefined")


def _property_from_term(name: str, value: Term) -> Any:
    if name == "headers":
        return table_from_term(value)
    if name == "timestamp":
        return checked_integer(value, 64)
    if name in OCTETS:
        return checked_integer(value, 8)
    if not isinstance(value, bytes):
        raise MessageError(f"{name} is {value!r:.100}")
    return text(value)


def to_json(properties: Properties) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Return the properties that are set, as JSON values, without headers; and the headers or ``None``.

    ``timestamp`` is a number of seconds; for other values see
    :func:`warren.queue_index.message.amqp_tables.value_to_json`.
    """
    plain = {name: getattr(properties, name) for name in NAMES if name != "headers"}
    headers = None if properties.headers is None else table_to_json(properties.headers)
    return {name: value_to_json(value) for name, value in plain.items() if value is not None}, headers


def from_json(plain: Mapping[str, Any], headers: Mapping[str, Any] | None) -> bytes:
    """Return encoded properties for the output of :func:`to_json`; raise :class:`MessageError` for anything else.

    They equal the original ones, unless JSON cannot express something in them, such as the type of a number.
    """
    values = {name: value_from_json(value) for name, value in plain.items()}
    if headers is not None:
        values[HEADERS] = {name: value_from_json(value) for name, value in headers.items()}
    return encode_values(values)
