"""A letter: one message on its way, as it stood in its queue.

Properties travel as the bytes that the publisher sent, so that nothing of them is lost on the way: the width of a
number, a double, a string that is not UTF-8, a name that comes twice. Only where the broker itself had decoded them
(what was dead-lettered, what had a header BCC) are they encoded again.

A message can name further queues in its headers CC and BCC; the broker looks at them whenever it is published. BCC is
gone by the time it stands in a queue, CC stays.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from warren.queue_index.message.amqp_tables import Table
from warren.queue_index.message.message_format import decode_message, encoded_properties_of
from warren.queue_index.properties import decode_properties
from warren.storage.errors import MessageError

ORIGINAL_EXCHANGE: Final = "x-original-exchange"
"""The header that says where a message was published first, where it arrives under another exchange's name."""

_U32 = struct.Struct(">I")
_CONTENT_TYPE, _CONTENT_ENCODING, _HEADERS, _EXPIRATION = 0x8000, 0x4000, 0x2000, 0x0100

Position = tuple[int, int]
"""Where a letter stands at its source: which part of the queue, and its number in it. Only the source reads it."""


class Letter(NamedTuple):
    """A message on its way."""

    exchange: bytes
    routing_keys: tuple[bytes, ...]
    """The message's own first, then those of CC and BCC."""
    properties: bytes
    """AMQP's basic properties, encoded."""
    body: bytes
    expiry_us: int
    """Microseconds since the epoch; 0: none."""
    position: Position


def from_term(term: bytes, expiry_us: int, position: Position) -> Letter:
    """The letter of an encoded message; raises :class:`MessageError` if it is invalid."""
    message = decode_message(term)
    properties = encoded_properties_of(term, message)
    return Letter(message.exchange, message.routing_keys, properties, message.body, expiry_us, position)


def headers_of(properties: bytes) -> Table:
    """The headers; none where the properties cannot be read, which a broker does not mind either."""
    if not _flags(properties) & _HEADERS:
        return {}
    try:
        return decode_properties(properties).headers or {}
    except MessageError:
        return {}


def expiration_ms(properties: bytes) -> int | None:
    """How long a message may live from its publish on; ``None``: as long as it likes."""
    if not _flags(properties) & _EXPIRATION:
        return None
    try:
        return int(decode_properties(properties).expiration or "")
    except (MessageError, ValueError):
        return None


def carbon_copies(properties: bytes) -> tuple[bytes, ...]:
    """The routing keys in the headers CC and BCC."""
    if b"\x02CC" not in properties and b"\x03BCC" not in properties:
        return ()
    headers = headers_of(properties)
    keys = [key for name in ("CC", "BCC") if isinstance(found := headers.get(name), list) for key in found]
    return tuple(
        key.encode("utf-8", "surrogateescape") if isinstance(key, str) else key
        for key in keys
        if isinstance(key, str | bytes)
    )


def with_original_exchange(properties: bytes, exchange: bytes) -> bytes:
    """The properties with :data:`ORIGINAL_EXCHANGE` among the headers, unless it is there; all else stays as it is."""
    if ORIGINAL_EXCHANGE in headers_of(properties):
        return properties
    name = ORIGINAL_EXCHANGE.encode()
    entry = bytes([len(name)]) + name + b"S" + _U32.pack(len(exchange)) + exchange
    flags, at = _flags(properties), 2
    for flag in (_CONTENT_TYPE, _CONTENT_ENCODING):
        if flags & flag:
            at += 1 + properties[at]
    if not flags & _HEADERS:
        head = struct.pack(">H", flags | _HEADERS) + properties[2:at]
        return head + _U32.pack(len(entry)) + entry + properties[at:]
    (size,) = _U32.unpack_from(properties, at)
    start, end = at + 4, at + 4 + size
    return properties[:at] + _U32.pack(size + len(entry)) + properties[start:end] + entry + properties[end:]


def _flags(properties: bytes) -> int:
    return int.from_bytes(properties[:2], "big")
