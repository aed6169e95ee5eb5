"""All of a message but its body, cut out of the encoded message without decoding it if possible.

The messages of one publisher have one *template*: the same bytes around properties, body and id::

    prefix (vhost, exchange, routing key) · u32 size · properties · middle · u32 size · body · tail · msg_id · end

and a msg_id of 16 bytes, or of 0.

A template is learned from a message that was decoded. The next message that fits it, byte for byte, is cut up by it.
Messages with the same template and the same properties share one :class:`Envelope`. A message that fits none of the
last templates is decoded.
"""

from __future__ import annotations

import base64
import struct
from contextlib import suppress
from functools import lru_cache
from json.encoder import encode_basestring
from typing import Final, NamedTuple

import attrs

from warren.queue_index.message.message_format import Message, decode_message, encoded_properties_of, locate_parts
from warren.queue_index.properties import NAMES, Properties, decode_properties
from warren.queue_index.properties import from_json as properties_from_json
from warren.queue_index.properties import to_json as properties_to_json
from warren.salvage.names import as_text, to_json, to_text
from warren.storage.errors import MessageError

MAX_TEMPLATES: Final = 8
"""The number of templates that are tried."""

MAX_ENVELOPES: Final = 4096
"""Envelopes that are cached for a template: properties that hold an id or a time differ in nearly every message."""

COPIED_BYTES: Final = 1 << 18
"""A larger body is not copied out of its message."""

_U32 = struct.Struct(">I")


class Envelope(NamedTuple):
    """All of a message but its body and its id. Texts are such as columns can hold (:func:`as_text`)."""

    exchange: str
    routing_keys: list[str]
    properties: bytes
    """JSON, in UTF-8: those that are set, without the headers."""
    headers: bytes | None
    """JSON; ``None`` if it has no headers."""
    json: bytes
    """These four as the members of a JSON object, each followed by a comma; and what JSON leaves unsaid."""
    encoded: bytes | None
    """The properties with the headers as AMQP encodes them; ``None`` if it cannot."""
    unsaid: bytes | None
    """The same if JSON does not express all of it (a header's type, say), so that it cannot be restored from JSON;
    ``None`` if it can."""


class _Address(NamedTuple):
    exchange: str
    routing_keys: list[str]
    json: bytes
    """Both as members of a JSON object."""


@attrs.frozen
class _Template:
    prefix: bytes
    middle: bytes
    tail: bytes
    msg_id_bytes: int
    """16, or 0 in a quorum queue."""
    end: bytes
    address: _Address
    envelopes: dict[bytes, Envelope] = attrs.field(factory=dict)
    """By encoded properties."""

    def cut(self, encoded: bytes) -> tuple[int, int, int, int] | None:
        """Where properties and body begin and end in a message of this template; ``None`` if it has another one."""
        prefix, middle, tail, end = self.prefix, self.middle, self.tail, self.end
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
            and len(encoded) == body_end + len(tail) + self.msg_id_bytes + len(end)
        )
        return (properties_at, properties_end, body_at, body_end) if fits else None

    def envelope(self, properties: bytes) -> Envelope:
        """The envelope of a message with these encoded properties."""
        envelope = self.envelopes.get(properties)
        if envelope is None:
            plain = _plain_json(properties)
            if plain is None:
                envelope = _decoded_envelope(self.address, decode_properties(properties), properties)
            else:
                envelope = _envelope(self.address, plain, None, properties, None)
            if len(self.envelopes) >= MAX_ENVELOPES:
                self.envelopes.clear()
            self.envelopes[properties] = envelope
        return envelope


class Envelopes:
    """Cuts encoded messages into envelope and body; remembers what they have in common."""

    def __init__(self) -> None:
        self._templates: list[_Template] = []

    def split(self, encoded: bytes) -> tuple[Envelope, bytes | memoryview]:
        """Raises :class:`warren.storage.errors.MessageError` if ``encoded`` is not a message."""
        for position, template in enumerate(self._templates):
            cut = template.cut(encoded)
            if cut is not None:
                if position:
                    self._templates.insert(0, self._templates.pop(position))
                properties_at, properties_end, body_at, body_end = cut
                envelope = template.envelope(encoded[properties_at:properties_end])
                if body_end - body_at > COPIED_BYTES:
                    return envelope, memoryview(encoded)[body_at:body_end]
                return envelope, encoded[body_at:body_end]
        message = decode_message(encoded)
        address = _address(message)
        self._learn(address, encoded)
        properties = None
        with suppress(MessageError):
            properties = encoded_properties_of(encoded, message)
        return _decoded_envelope(address, message.properties, properties), message.body

    def _learn(self, address: _Address, encoded: bytes) -> None:
        """Remember the template of a message, if it has one and a body that shows where the body is."""
        located = locate_parts(encoded)
        if located is None or not located.body_bytes:
            return
        properties_at, properties_bytes, body_at, body_bytes, msg_id_at, msg_id_bytes = located
        template = _Template(
            prefix=encoded[: properties_at - 4],
            middle=encoded[properties_at + properties_bytes : body_at - 4],
            tail=encoded[body_at + body_bytes : msg_id_at],
            msg_id_bytes=msg_id_bytes,
            end=encoded[msg_id_at + msg_id_bytes :],
            address=address,
        )
        self._templates = [template, *self._templates[: MAX_TEMPLATES - 1]]


def _plain_json(encoded: bytes) -> bytes | None:
    """Convert the bytes directly if only strings and numbers are set; ``None``: they must be decoded in full.

    Speed matters: properties that hold an id or a time are converted for nearly every message.
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
    return b"{%b}" % ", ".join(members).encode() if at == size else None


@lru_cache(maxsize=256)
def _members(flags: bytes) -> list[tuple[str, int]]:
    """The start of the JSON of each property that is set, and its width; 0 for a string, which has its own length.

    Raises :class:`warren.storage.errors.MessageError` for flags that are cut short or that set the headers.
    """
    names = [name for bit, name in enumerate(NAMES) if int.from_bytes(flags) & 0x8000 >> bit]
    if len(flags) < 2 or flags[1] & 3 or "headers" in names:  # the last two bits have no form in JSON
        raise MessageError("not plain")
    widths = {"delivery_mode": 1, "priority": 1, "timestamp": 8}
    return [(f'"{name}": ', widths.get(name, 0)) for name in names]


def _decoded_envelope(address: _Address, properties: Properties, encoded: bytes | None) -> Envelope:
    plain, headers = properties_to_json(properties)
    unsaid = encoded
    with suppress(MessageError):
        if encoded == properties_from_json(plain, headers):
            unsaid = None
    return _envelope(address, to_json(plain), None if headers is None else to_json(headers), encoded, unsaid)


def _address(message: Message) -> _Address:
    exchange, keys = to_text(message.exchange), [to_text(key) for key in message.routing_keys]
    json = b'"exchange": %b, "routing_keys": %b, ' % (to_json(exchange), to_json(keys))
    return _Address(as_text(exchange), [as_text(key) for key in keys], json)


def _envelope(
    address: _Address, properties: bytes, headers: bytes | None, encoded: bytes | None, unsaid: bytes | None
) -> Envelope:
    exchange, routing_keys, json = address
    json = b'%b"properties": %b, "headers": %b, ' % (json, properties, headers or b"null")
    if unsaid is not None:
        json += b'"encoded_properties": "%b", ' % base64.b64encode(unsaid)
    return Envelope(exchange, routing_keys, properties, headers, json, encoded, unsaid)
