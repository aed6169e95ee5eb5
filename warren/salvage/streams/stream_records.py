"""A stream's record as a consumer over AMQP 0-9-1 gets it from RabbitMQ 3.9 to 3.12.

A record is a message in AMQP 1.0 (:mod:`warren.queue_index.message.amqp10`). One that was published over AMQP 0-9-1 has
message annotations, properties, application properties (each only if it has any) and one section of data:

====================================  =================================================================================
annotations ``x-exchange``,           exchange and routing key; without them, ``""`` and the stream's name
``x-routing-key``
``x-basic-priority``,                 the properties with these names; all other annotations are dropped
``x-basic-delivery-mode``,
``x-basic-expiration``
properties                            message_id, correlation_id, user_id, reply_to, content_type, content_encoding;
                                      creation-time is timestamp. An id that is no text comes as one, with a header
                                      ``x-message-id-type`` or ``x-correlation-id-type``. The rest is dropped
application properties                headers of the same types; ``x-basic-type``, ``x-basic-app-id``: type, app_id
====================================  =================================================================================

Arrays, tables and decimals are lost when a broker writes a message into a stream. Headers come in the order of their
names. A broker adds ``x-stream-offset``, which is left out here; so a message without headers has an empty table.

These brokers' consumers fail at other messages, and get only the last one of several sections of data. Brokers from
3.13 on write a header section, too, and read all of AMQP 1.0: then the message is what they make of it
(:mod:`warren.queue_index.message.amqp10_messages`). Sections of data are always joined, as they do. A record that is no
AMQP 1.0 at all, which a client of the stream protocol may write, is a body without properties.
"""

from __future__ import annotations

import base64
import struct
import uuid
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from warren.queue_index.message import amqp10
from warren.queue_index.message.amqp10_messages import (
    FIELDS,
    MOST_SHORT_BYTES,
    Amqp10Message,
    Pairs,
    converted,
    of_sections,
    seconds,
)
from warren.queue_index.message.amqp_tables import Value, Written, text
from warren.queue_index.message.message_format import Envelope
from warren.queue_index.properties import HEADERS, NAMES, encode_values
from warren.storage.erlang_terms import Term
from warren.storage.errors import MessageError

_OFFSET_HEADER: Final = b"x-stream-offset"
_PERSISTENT: Final = 2
_NO_PROPERTIES: Final = encode_values({HEADERS: {}})
_CACHED: Final = 4096

_DATA: Final = {b"\0Su\xa0": 1, b"\0Su\xb0": 4}
"""The start of a section of data, and the width of its length."""
_SIZE_WIDTHS: Final = {0xC0: 1, 0xC1: 1, 0xD0: 4, 0xD1: 4}
"""Of lists and maps, by constructor."""
_EMPTY_LIST: Final = 0x45
_BEFORE_DATA: Final = frozenset({amqp10.MESSAGE_ANNOTATIONS, amqp10.PROPERTIES, amqp10.APPLICATION_PROPERTIES})
_KNOWN: Final = _BEFORE_DATA | {amqp10.DATA}
"""The sections that these brokers read."""

_NUMBERS: Final = {
    kind: (tag.encode(), struct.Struct(">" + code))
    for kind, tag, code in (
        ("long", "l", "q"), ("byte", "b", "b"), ("ubyte", "B", "B"), ("short", "s", "h"), ("ushort", "u", "H"),
        ("uint", "i", "I"), ("int", "I", "i"), ("double", "d", "d"), ("float", "f", "f"),
    )
}  # fmt: skip
"""A header's types, each with its tag."""
_SIZE: Final = struct.Struct(">I")
_TIME: Final = struct.Struct(">Q")


class _UnknownError(MessageError):
    """These brokers cannot deliver the message."""


def read_record(data: bytes, stream: bytes) -> tuple[Envelope, bytes]:
    """The message in a record of ``stream``: its envelope and its body."""
    try:
        return _read(data, stream)
    except MessageError:
        return Envelope(b"", b"", (stream,), _NO_PROPERTIES, persistent=False), data


def _read(data: bytes, stream: bytes) -> tuple[Envelope, bytes]:
    """Raises :class:`MessageError` if it is no message of AMQP 1.0."""
    cut = _cut(data)
    if cut is not None and (envelope := _envelope_of(cut[0], stream)) is not None:
        return envelope, data[cut[1] :]
    sections = amqp10.read_sections(data)
    message = of_sections(sections)
    codes = {code for code, _ in sections}
    if cut is None and amqp10.DATA in codes and codes <= _KNOWN:
        envelope = _delivered_envelope(message, stream)
        if envelope is not None:
            return envelope, message.body
    properties, headers = converted(message)
    values = {name: getattr(properties, name) for name in NAMES}
    return _enveloped(message, stream, values, dict(reversed(headers))), message.body


def _cut(data: bytes) -> tuple[tuple[bytes, ...], int] | None:
    """The sections before the one of data that ``data`` ends with, and where its content begins; ``None``: it has
    another form."""
    position, size, sections = 0, len(data), list[bytes]()
    while position + 4 < size:
        width = _DATA.get(data[position : position + 4])
        if width is not None:
            start = position + 4 + width
            length = int.from_bytes(data[position + 4 : start])
            return (tuple(sections), start) if start + length == size else None
        if data[position : position + 2] != b"\0S" or data[position + 2] not in _BEFORE_DATA:
            return None
        constructor, end = data[position + 3], position + 4
        if constructor != _EMPTY_LIST:
            width = _SIZE_WIDTHS.get(constructor)
            if width is None:
                return None
            end += width + int.from_bytes(data[end : end + width])
        sections.append(data[position:end])
        position = end
    return None


@lru_cache(maxsize=_CACHED)
def _envelope_of(sections: tuple[bytes, ...], stream: bytes) -> Envelope | None:
    """What the sections before the data say; the messages of one publisher may have the same."""
    return _delivered_envelope(of_sections(list(map(_section, sections))), stream)


@lru_cache(maxsize=_CACHED)
def _section(data: bytes) -> amqp10.Section:
    """A section; the annotations of a publisher's messages are the same, even if their properties differ."""
    (section,) = amqp10.read_sections(data)
    return section


def _delivered_envelope(message: Amqp10Message, stream: bytes) -> Envelope | None:
    """``None`` if these brokers cannot deliver the message."""
    try:
        return _enveloped(message, stream, *_delivered(message))
    except MessageError:
        return None


def _enveloped(
    message: Amqp10Message, stream: bytes, properties: dict[str, Any], headers: Mapping[bytes, Value]
) -> Envelope:
    exchange, annotations = _taken(message.annotations, ("symbol", b"x-exchange"))
    routing_key, _ = _taken(annotations, ("symbol", b"x-routing-key"))
    table = {
        name.decode("utf-8", "surrogateescape"): headers[name] for name in sorted(headers) if name != _OFFSET_HEADER
    }
    return Envelope(
        vhost=b"",
        exchange=exchange if isinstance(exchange, bytes) else b"",
        routing_keys=(routing_key if isinstance(routing_key, bytes) else stream,),
        properties=encode_values(properties | {HEADERS: table}),
        persistent=properties["delivery_mode"] == _PERSISTENT,
    )


# ── what a consumer gets ─────────────────────────────────────────────────────────────────────────────────────────────


def _delivered(message: Amqp10Message) -> tuple[dict[str, Any], dict[bytes, Value]]:
    """The properties by their names, and the headers; raises :class:`_UnknownError`."""
    fields = dict(zip(FIELDS, message.properties, strict=False))
    kind, application = _taken(message.application_properties, ("utf8", b"x-basic-type"))
    app_id, application = _taken(application, ("utf8", b"x-basic-app-id"))
    priority, annotations = _taken(message.annotations, ("symbol", b"x-basic-priority"))
    mode, annotations = _taken(annotations, ("symbol", b"x-basic-delivery-mode"))
    expiration, _ = _taken(annotations, ("symbol", b"x-basic-expiration"))
    time_ms = _plain(fields.get("creation-time"))
    if not isinstance(time_ms, int | None):
        raise _UnknownError
    headers: dict[bytes, Value] = {_header_name(key): _header_value(value) for key, value in application}
    properties = {
        "content_type": _short(_plain(fields.get("content-type"))),
        "content_encoding": _short(_plain(fields.get("content-encoding"))),
        "delivery_mode": _octet(mode),
        "priority": _octet(priority),
        "correlation_id": _identity(fields.get("correlation-id"), b"x-correlation-id", headers),
        "reply_to": _short(_plain(fields.get("reply-to"))),
        "expiration": _short(expiration),
        "message_id": _identity(fields.get("message-id"), b"x-message-id", headers),
        "timestamp": None if time_ms is None else seconds(time_ms) % (1 << 64),
        "type": _short(kind),
        "user_id": _short(_plain(fields.get("user-id"))),
        "app_id": _short(app_id),
    }
    return properties, headers


def _taken(pairs: Pairs, key: Term) -> tuple[Term | None, Pairs]:
    """The plain value of the first pair with that key, or ``None``; and the other pairs."""
    for place, (name, value) in enumerate(pairs):
        if name == key:
            return _plain(value), [*pairs[:place], *pairs[place + 1 :]]
    return None, pairs


def _plain(value: Term | None) -> Term | None:
    """The value without its type; ``None`` if it is missing or null."""
    match value:
        case None | "null":
            return None
        case (str(), plain):
            return plain
        case _:
            raise _UnknownError


def _short(plain: Term | None) -> str | bytes | None:
    if plain is None:
        return None
    if not isinstance(plain, bytes) or len(plain) > MOST_SHORT_BYTES:
        raise _UnknownError
    return text(plain)


def _octet(plain: Term | None) -> int | None:
    if plain is None or (isinstance(plain, int) and 0 <= plain < 256):
        return plain
    raise _UnknownError


def _identity(value: Term | None, name: bytes, headers: dict[bytes, Value]) -> str | bytes | None:
    """An id as a property; if it was no text, with one more header."""
    match value:
        case ("uuid", bytes(data)) if len(data) == 16:
            kind, identity = b"uuid", str(uuid.UUID(bytes=data))
        case ("ulong", int(number)):
            kind, identity = b"ulong", str(number)
        case ("binary", bytes(data)):
            kind, identity = b"binary", base64.b64encode(data).decode()
        case _:
            plain = _plain(value)
            if isinstance(plain, bytes) and len(plain) > MOST_SHORT_BYTES:
                headers.setdefault(name, _string(b"S", plain))
                return None
            return _short(plain)
    if len(identity) > MOST_SHORT_BYTES:
        headers.setdefault(name, _string(b"S", data))
        return None
    headers.setdefault(name + b"-type", _string(b"S", kind))
    return identity


def _header_name(key: Term) -> bytes:
    match key:
        case (str(), bytes(name)) if len(name) <= MOST_SHORT_BYTES:
            return name
        case _:
            raise _UnknownError


def _header_value(value: Term) -> Written:
    match value:
        case "null":
            return Written(b"V")
        case bool(plain) | ("boolean", bool(plain)):
            return Written(b"t\1" if plain else b"t\0")
        case ("utf8", bytes(data)):
            return _string(b"S", data)
        case ("binary", bytes(data)):
            return _string(b"x", data)
        case ("timestamp", int(time_ms)):
            return Written(b"T" + _TIME.pack(seconds(time_ms) % (1 << 64)))
        case (str(kind), (int() | float()) as number) if kind in _NUMBERS:
            tag, number_format = _NUMBERS[kind]
            return Written(tag + number_format.pack(number))
        case _:
            raise _UnknownError


def _string(tag: bytes, data: bytes) -> Written:
    return Written(tag + _SIZE.pack(len(data)) + data)
