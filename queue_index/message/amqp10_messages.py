"""An AMQP 1.0 message as AMQP 0-9-1 has it: what a broker hands to a 0-9-1 client who consumes such a message.

====================================  =================================================================================
the header                            delivery_mode, priority, expiration; if it is missing, the values of the
                                      annotations ``x-basic-…``
properties                            message_id, correlation_id (a uuid as ``urn:uuid:…``, a number as text; what is no
                                      short string becomes a header ``x-message-id``, ``x-correlation-id``), user_id,
                                      reply_to (``/queues/<name>``: the name), content_type, content_encoding;
                                      creation-time is timestamp, group-id is app_id; the rest is dropped
application properties                headers
annotations ``x-…``                   headers; ``x-cc`` is CC, ``x-opt-rabbitmq-received-time`` timestamp_in_ms,
                                      ``x-opt-deaths`` x-death; those that a broker makes itself are dropped
delivery annotations, footer          dropped
the body: data                        as it is; several sections are joined
the body: a value, sequences          encoded, as they stand in the message; the type is then ``amqp-1.0``
====================================  =================================================================================

Headers that are neither: a decimal, a number that is not finite and a described value are left out; a uuid is its
``urn:uuid:…``, a character a text of one (brokers fail at these two). Values: as in
:mod:`warren.queue_index.message.amqp10`.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeGuard
from urllib.parse import unquote_to_bytes

import attrs

from warren.queue_index.message import amqp10
from warren.queue_index.message.amqp_tables import Timestamp, Value, long_string, text
from warren.queue_index.properties import Properties
from warren.storage.erlang_terms import Term
from warren.storage.errors import MessageError

ENCODED_TYPE: Final = "amqp-1.0"
"""The type of a message whose body is not data."""

MOST_SHORT_BYTES: Final = 255
_MAX_DEPTH: Final = 64
_QUEUE_ADDRESS: Final = b"/queues/"

FIELDS: Final = (
    "message-id", "user-id", "to", "subject", "reply-to", "correlation-id", "content-type", "content-encoding",
    "absolute-expiry-time", "creation-time", "group-id", "group-sequence", "reply-to-group-id",
)  # fmt: skip
"""The names of the fields in the section with the properties, in order."""

_INTERNAL: Final = frozenset({b"x-routing-key", b"x-exchange", b"x-death"})
"""Annotations in which a broker repeats other parts of the message; so are those that begin with x-basic-."""

Pairs = Sequence[tuple[Term, Term]]
Header = tuple[bytes, Value]
"""A header's name and value."""


@attrs.frozen(kw_only=True)
class Amqp10Message:
    """The needed sections of a message."""

    header: Sequence[Term] = ()
    """durable, priority, ttl, …; the last ones may be missing."""
    annotations: Pairs = ()
    properties: Sequence[Term] = ()
    """:data:`FIELDS`; the last ones may be missing."""
    application_properties: Pairs = ()
    body: bytes = b""
    is_data: bool = True
    """Else the body is encoded."""


def of_sections(sections: Sequence[amqp10.Section], encoded_body: bytes | None = None) -> Amqp10Message:
    """Return the message made of ``sections``; ``encoded_body``: its body, if it is not data and not among them.

    Raises :class:`MessageError` for a section that is not what it should be.
    """
    arguments: dict[str, Any] = {} if encoded_body is None else {"body": encoded_body, "is_data": False}
    bodies = []
    for code, content in sections:
        match code, content:
            case amqp10.HEADER, ("list", list(fields)):
                arguments["header"] = fields
            case amqp10.MESSAGE_ANNOTATIONS, ("map", list(pairs)):
                arguments["annotations"] = pairs
            case amqp10.PROPERTIES, ("list", list(fields)):
                arguments["properties"] = fields
            case amqp10.APPLICATION_PROPERTIES, ("map", list(pairs)):
                arguments["application_properties"] = pairs
            case ((amqp10.DATA | amqp10.SEQUENCE | amqp10.VALUE), _):
                bodies.append(amqp10.Section(code, content))
            case ((amqp10.DELIVERY_ANNOTATIONS | amqp10.FOOTER), ("map", _)):
                pass
            case _:
                raise MessageError(f"{content!r:.100} as a section {code:#x}")
    if bodies:
        arguments["body"], arguments["is_data"] = body_of(bodies)
    return Amqp10Message(**arguments)


def body_of(sections: Sequence[amqp10.Section]) -> tuple[bytes, bool]:
    """The body that these sections are, and whether it is data; raises :class:`MessageError`."""
    if any(code != amqp10.DATA for code, _ in sections):
        return b"".join([amqp10.encode_section(*section) for section in sections]), False
    return b"".join([_data(content) for _, content in sections]), True


def _data(content: Term) -> bytes:
    match content:
        case ("binary", bytes(data)):
            return data
        case _:
            raise MessageError(f"{content!r:.100} as data")


def converted(message: Amqp10Message) -> tuple[Properties, list[Header]]:
    """Return the properties without headers, and the headers. Of headers with equal names the first one counts.

    Raises :class:`MessageError` for an invalid value.
    """
    durable, priority, ttl = [*message.header[:3], *[amqp10.NULL] * 3][:3]
    fields = dict(zip(FIELDS, message.properties, strict=False))
    annotations = {name: value for key, value in message.annotations if (name := _symbol(key)) is not None}
    headers = [*_from_annotations(message.annotations), *_from_application_properties(message.application_properties)]
    message_id = _identity(fields.get("message-id"), b"x-message-id", headers)
    correlation_id = _identity(fields.get("correlation-id"), b"x-correlation-id", headers)
    mode = _truth(durable)
    expiration = _plain(ttl)
    user_id = _plain(fields.get("user-id"))
    properties = Properties(
        content_type=_string(_plain(fields.get("content-type"))),
        content_encoding=_string(_plain(fields.get("content-encoding"))),
        delivery_mode=_number(_plain(annotations.get(b"x-basic-delivery-mode"))) if mode is None else 1 + mode,
        priority=_number(_plain(annotations.get(b"x-basic-priority") if _is_null(priority) else priority)),
        correlation_id=correlation_id,
        reply_to=_reply_to(_short(fields.get("reply-to"))),
        expiration=_string(_plain(annotations.get(b"x-basic-expiration"))) if expiration is None else str(expiration),
        message_id=message_id,
        timestamp=_number(_plain(fields.get("creation-time"))),
        type=_string(_plain(annotations.get(b"x-basic-type"))) if message.is_data else ENCODED_TYPE,
        user_id=text(user_id) if is_short_text(user_id) else None,
        app_id=_string(_short(fields.get("group-id"))),
    )
    return properties, headers


def _from_annotations(pairs: Pairs) -> Iterator[Header]:
    for key, value in pairs:
        name = _symbol(key)
        match name, value:
            case None, _:
                continue
            case b"x-cc", _:
                yield from _header(b"CC", value)
            case b"x-opt-rabbitmq-received-time", ("timestamp", int(time_ms)):
                yield b"timestamp_in_ms", _signed(time_ms)
            case b"x-opt-deaths", ("array", "map", list(deaths)):
                yield b"x-death", [death_table(_death(death)) for death in deaths]
            case bytes(), _ if name not in _INTERNAL and name[:2] == b"x-" and not name.startswith(b"x-basic-"):
                if name != b"x-opt-deaths":
                    yield from _header(name, value)


def _from_application_properties(pairs: Pairs) -> Iterator[Header]:
    for key, value in pairs:
        match key:
            case ("utf8", bytes(name)):
                yield from _header(name, value)


def _header(name: bytes, value: Term) -> Iterator[Header]:
    if len(name) <= MOST_SHORT_BYTES:
        for header_value in header_values(value):
            yield name, header_value


def header_values(value: Term, depth_left: int = _MAX_DEPTH) -> Iterator[Value]:
    """Yield the value as a header's value, or nothing if it is left out. Raises :class:`MessageError`."""
    if not depth_left:
        raise MessageError(f"values nested deeper than {_MAX_DEPTH} levels")
    match value:
        case ("list", list(elements)) | ("array", _, list(elements)):
            yield [header_value for element in elements for header_value in header_values(element, depth_left - 1)]
        case ("map", list(pairs)):
            yield _table(pairs, depth_left)
        case ("as_is", _, _) | ("described", _, _):
            return
        case _:
            yield _header_value(value)


def _header_value(value: Term) -> Value:
    match value:
        case "null" | "undefined":
            return None
        case bool(plain) | ("boolean", bool(plain)):
            return plain
        case ("utf8" | "symbol" | "binary", bytes(data)):
            return long_string(data)
        case ("timestamp", int(time_ms)):
            return Timestamp(seconds(time_ms) % (1 << 64))
        case ("float" | "double", (float() | int()) as number):
            return float(number)
        case ("uuid", bytes(data)) if len(data) == 16:
            return uuid.UUID(bytes=data).urn
        case ("char", (int() | bytes()) as character):
            return _character(character)
        case (("ubyte" | "byte" | "ushort" | "short" | "uint" | "int" | "ulong" | "long"), int(number)):
            return _signed(number)
        case _:
            raise MessageError(f"{value!r:.100} in place of an AMQP 1.0 value")


def _table(pairs: list[Term], depth_left: int) -> dict[str, Value]:
    table: dict[str, Value] = {}
    for pair in pairs:
        match pair:
            case ((str(), bytes(name)), value):
                for header_value in header_values(value, depth_left - 1):
                    table[name.decode("utf-8", "surrogateescape")] = header_value
            case (_, _):
                continue
            case _:
                raise MessageError(f"{pair!r:.100} in a map")
    return table


# ── deaths ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@attrs.frozen
class Death:
    """How often a queue dead-lettered a message for one reason."""

    queue: bytes
    reason: bytes
    exchange: bytes
    routing_keys: tuple[bytes, ...]
    count: int
    first_time_ms: int
    ttl_ms: int | None


def death_table(death: Death) -> dict[str, Value]:
    """An entry of the header x-death."""
    table: dict[str, Value] = {} if death.ttl_ms is None else {"original-expiration": str(death.ttl_ms)}
    return table | {
        "count": _signed(death.count),
        "reason": long_string(death.reason),
        "queue": long_string(death.queue),
        "time": Timestamp(seconds(death.first_time_ms) % (1 << 64)),
        "exchange": long_string(death.exchange),
        "routing-keys": [long_string(key) for key in death.routing_keys],
    }


def _death(value: Term) -> Death:
    """An entry of the annotation ``x-opt-deaths``."""
    match value:
        case ("map", list(pairs)):
            fields = {name: content for key, content in pairs if (name := _symbol(key)) is not None}
        case _:
            raise MessageError(f"{value!r:.100} among deaths")
    match [_plain(fields.get(name)) for name in (b"queue", b"reason", b"exchange", b"count", b"first-time", b"ttl")]:
        case [bytes(queue), bytes(reason), bytes(exchange), int(count), _, (int() | None) as ttl_ms]:
            pass
        case _:
            raise MessageError(f"{value!r:.100} among deaths")
    match fields.get(b"first-time"), fields.get(b"routing-keys"):
        case ("timestamp", int(first_time_ms)), ("array", "utf8", list(keys)):
            routing_keys = tuple(key[1] for key in keys)
        case _:
            raise MessageError(f"{value!r:.100} among deaths")
    return Death(queue, reason, exchange, routing_keys, count, first_time_ms, ttl_ms)


# ── values ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def seconds(time_ms: int) -> int:
    """Whole seconds; towards 0, as Erlang divides."""
    return time_ms // 1000 if time_ms >= 0 else -(-time_ms // 1000)


def _signed(number: int) -> int:
    """As 64 bits hold it: larger numbers come out negative, as on the wire."""
    wrapped = number % (1 << 64)
    return wrapped - (1 << 64) if wrapped >> 63 else wrapped


def _character(code: int | bytes) -> str:
    try:
        return chr(code if isinstance(code, int) else int.from_bytes(code, "big"))
    except (ValueError, OverflowError) as error:
        raise MessageError(f"{code!r:.100} as a character") from error


def _is_null(value: Term | None) -> bool:
    return value is None or (isinstance(value, str) and value in ("null", "undefined"))


def _plain(value: Term | None) -> Term | None:
    """The value without its type, a time as seconds; ``None`` if the value is missing or null."""
    if value is None or _is_null(value):
        return None
    match value:
        case bool():
            return value
        case ("timestamp", int(time_ms)):
            return seconds(time_ms) % (1 << 64)
        case (str(), plain):
            return plain
        case _:
            raise MessageError(f"{value!r:.100} in place of an AMQP 1.0 value")


def _symbol(key: Term) -> bytes | None:
    match key:
        case ("symbol", bytes(name)):
            return name
        case _:
            return None


def _truth(value: Term | None) -> bool | None:
    plain = _plain(value)
    return plain if isinstance(plain, bool) else None


def _number(plain: Term | None) -> int | None:
    return plain if isinstance(plain, int) and not isinstance(plain, bool) else None


def _string(plain: Term | None) -> str | bytes | None:
    return text(plain) if isinstance(plain, bytes) else None


def _short(value: Term | None) -> bytes | None:
    """A string that fits into AMQP 0-9-1's short ones."""
    match value:
        case ("utf8", bytes(data)) if len(data) <= MOST_SHORT_BYTES:
            return data
        case _:
            return None


def is_short_text(plain: Term | None) -> TypeGuard[bytes]:
    """Whether AMQP 0-9-1 takes it for a short string."""
    if not isinstance(plain, bytes) or len(plain) > MOST_SHORT_BYTES or b"\0" in plain:
        return False
    return isinstance(text(plain), str)


def _reply_to(address: bytes | None) -> str | bytes | None:
    if address is not None and address.startswith(_QUEUE_ADDRESS):
        return text(unquote_to_bytes(address.removeprefix(_QUEUE_ADDRESS)))
    return None if address is None else text(address)


def _identity(value: Term | None, header: bytes, headers: list[Header]) -> str | bytes | None:
    """A message's id as a property; if it does not fit, ``None``, with one more header put first."""
    match value:
        case ("uuid", bytes(data)) if len(data) == 16:
            return uuid.UUID(bytes=data).urn
        case ("ulong", int(number)):
            return str(number)
        case ("utf8", bytes(data)) if len(data) <= MOST_SHORT_BYTES:
            return text(data)
        case ("utf8", bytes(data)):
            headers.insert(0, (header, long_string(data)))
        case ("binary", bytes(data)):
            headers.insert(0, (header, data))
        case _ if not _is_null(value):
            raise MessageError(f"{value!r:.100} as a message's id")
    return None
