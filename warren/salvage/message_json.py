"""What JSON says of an encoded message, but for its body, without decoding it where that can be spared.

The messages of one publisher have one *shape*: the same bytes around properties, body and id::

    prefix (vhost, exchange, routing key) · u32 size · properties · middle · u32 size · body · tail · msg_id · end

and a msg_id of 16 bytes, or of none.

A shape is learned from a message that was decoded. The next one that fits it, byte for byte, is cut up by it; and what
was said in JSON of the shape, and of equal properties, is said again. Whatever fits none of the last shapes is decoded.
"""

from __future__ import annotations

import struct
from binascii import b2a_base64
from collections.abc import Iterable
from functools import lru_cache
from hashlib import sha256
from itertools import chain
from json.encoder import encode_basestring
from typing import Final, NamedTuple

from queue_index.message_format import Message, decode_message, locate_parts
from queue_index.properties import NAMES, Properties, decode_properties
from queue_index.properties import to_json as properties_to_json
from storage.errors import MessageError
from warren.salvage.names import to_json, to_text

MAX_SHAPES: Final = 8
"""Shapes that are tried one after the other."""

MAX_PROPERTIES: Final = 4096
"""Different properties whose JSON is remembered."""

PIECE_BYTES: Final = 3 << 18
"""A larger body is turned into base64 in pieces of this size, a multiple of 3."""

COPIED_BYTES: Final = 1 << 18
"""A larger body is not copied out of its message."""

WORDS = (b"false", b"true")
FLAGS = {
    (persistent, redelivered): b'", "persistent": %b, "redelivered": %b, "expiry_us": '
    % (WORDS[persistent], WORDS[redelivered])
    for persistent in (False, True)
    for redelivered in (False, True)
}
"""What stands between the msg_id and the expiry."""
FLAGS_WITHOUT_ID = {flags: between.removeprefix(b'"') for flags, between in FLAGS.items()}
"""The same behind ``null``."""

_U32 = struct.Struct(">I")


class _Shape(NamedTuple):
    prefix: bytes
    middle: bytes
    tail: bytes
    msg_id_bytes: int
    """16, or 0 in a quorum queue."""
    end: bytes
    address: bytes
    """JSON of exchange and routing key."""


class MessageJson:
    """Cuts encoded messages into what JSON says of them and their bodies; remembers what they have in common."""

    def __init__(self) -> None:
        self._shapes: list[_Shape] = []
        self._properties: dict[bytes, bytes] = {}

    def split(self, encoded: bytes) -> tuple[bytes, bytes | memoryview]:
        """JSON members from ``"exchange"`` to ``"headers"``, each with a comma behind it, and the body.

        Raises :class:`storage.errors.MessageError` where ``encoded`` is no message.
        """
        for position, shape in enumerate(self._shapes):
            cut = _cut(shape, encoded)
            if cut is not None:
                if position:
                    self._shapes.insert(0, self._shapes.pop(position))
                properties_at, properties_end, body_at, body_end = cut
                envelope = shape.address + self._properties_json(encoded[properties_at:properties_end])
                if body_end - body_at > COPIED_BYTES:
                    return envelope, memoryview(encoded)[body_at:body_end]
                return envelope, encoded[body_at:body_end]
        message = decode_message(encoded)
        self._learn(message, encoded)
        return _address(message) + _properties_json(message.properties), message.body

    def line(self, start: tuple[bytes, ...], encoded: bytes, end: bytes) -> tuple[int, Iterable[bytes]]:
        """A message as a line of JSON, in pieces, between ``start`` and ``end``; and the size of its body.

        Raises :class:`storage.errors.MessageError` where ``encoded`` is no message.
        """
        envelope, body = self.split(encoded)
        size = len(body)
        start = (*start, b', "size": %d, ' % size, envelope, b'"body": "')
        end = b"".join((b'", "body_sha256": "', sha256(body).hexdigest().encode(), end))
        if size <= PIECE_BYTES:
            return size, (b"".join((*start, b2a_base64(body, newline=False), end)),)
        middle = (b2a_base64(body[at : at + PIECE_BYTES], newline=False) for at in range(0, size, PIECE_BYTES))
        return size, chain(start, middle, (end,))

    def _learn(self, message: Message, encoded: bytes) -> None:
        """Remember the shape of a message, if it has one and a body to show where the body stands."""
        located = locate_parts(encoded)
        if located is None or not located.body_bytes:
            return
        properties_at, properties_bytes, body_at, body_bytes, msg_id_at, msg_id_bytes = located
        shape = _Shape(
            prefix=encoded[: properties_at - 4],
            middle=encoded[properties_at + properties_bytes : body_at - 4],
            tail=encoded[body_at + body_bytes : msg_id_at],
            msg_id_bytes=msg_id_bytes,
            end=encoded[msg_id_at + msg_id_bytes :],
            address=_address(message),
        )
        self._shapes = [shape, *self._shapes[: MAX_SHAPES - 1]]

    def _properties_json(self, encoded: bytes) -> bytes:
        known = self._properties.get(encoded)
        if known is None:
            known = _plain_json(encoded) or _properties_json(decode_properties(encoded))
            if len(self._properties) >= MAX_PROPERTIES:
                self._properties.clear()
            self._properties[encoded] = known
        return known


def _cut(shape: _Shape, encoded: bytes) -> tuple[int, int, int, int] | None:
    """Where properties and body begin and end in a message of this shape; ``None``: it has another one."""
    prefix, middle, tail, msg_id_bytes, end, _ = shape
    if not encoded.startswith(prefix):
        return None
    try:
        properties_at = len(prefix) + 4
        properties_end = properties_at + _U32.unpack_from(encoded, len(prefix))[0]
        body_at = properties_end + len(middle) + 4
        body_end = body_at + _U32.unpack_from(encoded, body_at - 4)[0]
    except struct.error:
        return None
    fits = (
        encoded.startswith(middle, properties_end)
        and encoded.startswith(tail, body_end)
        and encoded.endswith(end)
        and len(encoded) == body_end + len(tail) + msg_id_bytes + len(end)
    )
    return (properties_at, properties_end, body_at, body_end) if fits else None


def _address(message: Message) -> bytes:
    routing_keys = [to_text(key) for key in message.routing_keys]
    return b'"exchange": %b, "routing_keys": %b, ' % (to_json(to_text(message.exchange)), to_json(routing_keys))


def _plain_json(encoded: bytes) -> bytes | None:
    """Straight from the bytes where all that is set are strings and numbers; ``None``: to be decoded in full.

    Properties that hold an id or a time are made anew for nearly every message.
    """
    members, at, size = [], 2, len(encoded)
    try:
        for start, width in _members(encoded[:2]):
            if width:
                members.append(f"{start}{int.from_bytes(encoded[at : at + width])}")
                at += width
            else:
                end = at + 1 + encoded[at]
                members.append(start + encode_basestring(encoded[at + 1 : end].decode()))
                at = end
    except (IndexError, UnicodeDecodeError, MessageError):
        return None
    return b'"properties": {%b}, "headers": null, ' % ", ".join(members).encode() if at == size else None


@lru_cache(maxsize=256)
def _members(flags: bytes) -> list[tuple[str, int]]:
    """What begins the JSON of each property that is set, and its bytes; 0 for a string, which says its own.

    Raises :class:`storage.errors.MessageError` for flags that are cut short or that set the headers.
    """
    names = [name for bit, name in enumerate(NAMES) if int.from_bytes(flags) & 0x8000 >> bit]
    if len(flags) < 2 or "headers" in names:
        raise MessageError("not plain")
    widths = {"delivery_mode": 1, "priority": 1, "timestamp": 8}
    return [(f'"{name}": ', widths.get(name, 0)) for name in names]


def _properties_json(properties: Properties) -> bytes:
    plain, headers = properties_to_json(properties)
    return b'"properties": %b, "headers": %b, ' % (to_json(plain), to_json(headers))
