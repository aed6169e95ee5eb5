"""What goes around a message that is published with properties as they stand, and the keys that it is routed by."""

from __future__ import annotations

import re
from typing import Any, Final

import attrs

from warren.actors.engines.errors import ArgumentsError
from warren.actors.engines.queue_arguments import MAX_PERIOD_MS
from warren.actors.engines.routing import carbon_copies
from warren.actors.handing_over import PublishKey
from warren.queue_index.message_format import Envelope
from warren.queue_index.properties import Properties, encode_properties
from warren.storage.erlang_text import quoted

_INTEGER: Final = re.compile(r"[+-]?[0-9]+")

Address = tuple[PublishKey, tuple[str, ...], dict[str, Any] | None]
"""What goes around a message; its routing keys, those of its copies too; its headers, as they are routed by."""


def address(
    vhost: str, exchange: str, routing_key: str, properties: Properties, encoded: bytes | None = None
) -> Address:
    """``encoded``: the properties as bytes, where they are known. Raises :class:`ArgumentsError`."""
    expiration_ms = None if properties.expiration is None else milliseconds(properties.expiration)
    headers = None if properties.headers is None else dict(properties.headers)
    keys = (routing_key, *carbon_copies(headers)) if headers else (routing_key,)
    if headers and "BCC" in headers:  # a blind copy is blind: the header goes
        shown = {name: value for name, value in headers.items() if name != "BCC"}
        encoded = encode_properties(attrs.evolve(properties, headers=shown))
    envelope = Envelope(
        _bytes(vhost),
        _bytes(exchange),
        tuple(map(_bytes, keys)),
        encode_properties(properties) if encoded is None else encoded,
        properties.delivery_mode == 2,
    )
    return PublishKey(envelope, expiration_ms, properties.priority or 0), keys, headers


def milliseconds(expiration: str | bytes) -> int:
    """Raises :class:`ArgumentsError` for what is no number of milliseconds."""
    text = text_of(expiration)
    number = _INTEGER.match(text)
    if number is None or number.end() < len(text):
        left = quoted(text[number.end() :], '"') if number is not None else ""
        reason = "no_integer" if number is None else f"{{leftover_string,{left}}}"
        raise ArgumentsError(f"invalid expiration '{text}': {reason}")
    value = int(number[0])
    if value < 0:
        raise ArgumentsError(f"invalid expiration '{text}': {{value_negative,{value}}}")
    if value > MAX_PERIOD_MS:
        raise ArgumentsError(f"invalid expiration '{text}': {{value_too_large,{value}}}")
    return value


def text_of(value: str | bytes) -> str:
    """A short string as text."""
    return value if isinstance(value, str) else value.decode(errors="surrogateescape")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
