"""A letter: one message on its way, as it stood in its queue.

Properties travel as the bytes that the publisher sent, so that nothing is lost: the width of a number, a double, a
string that is not UTF-8, a name that comes twice. They are encoded again only if the broker itself had decoded them
(dead-lettered messages, those with a header BCC).

A message can name further queues in its headers CC and BCC; the broker reads them at every publish. It removes BCC
before the message enters a queue and keeps CC.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from warren.queue_index.message.amqp_tables import Table
from warren.queue_index.message.message_format import decode_message, encoded_properties_of
from warren.queue_index.properties import decode_properties
from warren.storage.errors import MessageError

ORIGINAL_EXCHANGE: Final = "x-original-exchange"
"""The header with the original exchange of a message that arrives through another one."""

_U32 = struct.Struct(">I")
_CONTENT_TYPE, _CONTENT_ENCODING, _HEADERS, _PRIORITY, _EXPIRATION = 0x8000, 0x4000, 0x2000, 0x0800, 0x0100

Position = tuple[int, int]
"""Where a letter is at its source: the part of the queue, and its number in that. Only the source reads it."""


class Letter(NamedTuple):
    """A message on its way."""

    exchange: bytes
    routing_keys: tuple[bytes, ...]
    """The message's own key first, then those of CC and BCC."""
    properties: bytes
    """AMQP's basic properties, encoded."""
    body: bytes
    expiry_us: int
    """Microseconds since the epoch; 0: none."""
    position: Position

    def keys_at(self, source_name: bytes, name: bytes) -> tuple[bytes, ...]:
        """The routing keys in the queue ``name``; the default exchange's are names of queues, and follow a queue that
        is renamed."""
        if not self.exchange and self.routing_keys[0] == source_name:
            return (name, *self.routing_keys[1:])
        return self.routing_keys


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


def priority_of(properties: bytes) -> int:
    """The priority of a message; 0 if it is missing, or if the properties cannot be read."""
    if not _flags(properties) & _PRIORITY:
        return 0
    try:
        return decode_properties(properties).priority or 0
    except MessageError:
        return 0


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
    keys = [key for name in ("CC", "BCC") if isinstance(copies := headers.get(name), list) for key in copies]
    return tuple(
        key.encode("utf-8", "surrogateescape") if isinstance(key, str) else key
        for key in keys
        if isinstance(key, str | bytes)
    )


def with_original_exchange(properties: bytes, exchange: bytes) -> bytes:
    """Add :data:`ORIGINAL_EXCHANGE` to the headers unless it is present; nothing else changes."""
    if ORIGINAL_EXCHANGE in headers_of(properties):
        return properties
    name = ORIGINAL_EXCHANGE.encode()
    entry = bytes([len(name)]) + name + b"S" + _U32.pack(len(exchange)) + exchange
    flags, position = _flags(properties), 2
    for flag in (_CONTENT_TYPE, _CONTENT_ENCODING):
        if flags & flag:
            position += 1 + properties[position]
    if not flags & _HEADERS:
        head = struct.pack(">H", flags | _HEADERS) + properties[2:position]
        return head + _U32.pack(len(entry)) + entry + properties[position:]
    (size,) = _U32.unpack_from(properties, position)
    start, end = position + 4, position + 4 + size
    return properties[:position] + _U32.pack(size + len(entry)) + properties[start:end] + entry + properties[end:]


def _flags(properties: bytes) -> int:
    return int.from_bytes(properties[:2], "big")
