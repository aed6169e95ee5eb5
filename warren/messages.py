"""What users hand over and get: the arguments of a publish as an envelope, and a message that was delivered.

Properties are AMQP's, under their names. Times are seconds here and whole milliseconds on disk.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypedDict

import attrs

from warren.actors.handing_over import PublishKey
from warren.queue_index.fetching import Fetched
from warren.queue_index.message_format import Envelope, Message, decode_message
from warren.queue_index.properties import Properties, encode_properties
from warren.storage.errors import MessageError

MAX_EXPIRATION_S = 315_360_000.0
"""Ten years: the longest time to live."""


class PublishArguments(TypedDict, total=False):
    """What a publish can be told beside its body."""

    headers: Mapping[str, Any] | None
    persistent: bool
    """Survives a stop, in a durable queue. The default."""
    expiration: float | None
    """Seconds after which a message that nobody took is dead."""
    priority: int | None
    content_type: str | None
    content_encoding: str | None
    correlation_id: str | None
    reply_to: str | None
    message_id: str | None
    timestamp: int | None
    """Seconds since the Unix epoch."""
    type: str | None
    user_id: str | None
    app_id: str | None


def publish_key(vhost: str, exchange: str, routing_keys: Iterable[str], arguments: PublishArguments) -> PublishKey:
    """What messages have around their bodies. Raises :class:`MessageError` for what cannot be."""
    given: dict[str, Any] = dict(arguments)
    persistent = bool(given.pop("persistent", True))
    expiration = given.pop("expiration", None)
    headers = given.pop("headers", None)
    unknown = given.keys() - {field.name for field in attrs.fields(Properties)}
    if unknown:
        raise MessageError(f"a publish knows no {', '.join(sorted(unknown))}")
    expiration_ms = None if expiration is None else _milliseconds(expiration)
    priority = given.get("priority")
    if priority is not None and (not isinstance(priority, int) or not 0 <= priority <= 255):
        raise MessageError(f"a priority is 0 … 255, not {priority!r}")
    properties = Properties(
        delivery_mode=2 if persistent else 1,
        headers=None if headers is None else dict(headers),
        expiration=None if expiration_ms is None else str(expiration_ms),
        **given,
    )
    keys = tuple(map(_bytes, routing_keys))
    envelope = Envelope(_bytes(vhost), _bytes(exchange), keys, encode_properties(properties), persistent)
    return PublishKey(envelope, expiration_ms, priority or 0)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _milliseconds(expiration: float) -> int:
    if not isinstance(expiration, (int, float)) or isinstance(expiration, bool):
        raise MessageError(f"an expiration is a number of seconds, not {expiration!r}")
    if not 0 <= expiration <= MAX_EXPIRATION_S:
        raise MessageError(f"an expiration is 0 … {MAX_EXPIRATION_S:.0f} seconds, not {expiration}")
    return round(expiration * 1000)


def as_body(body: object) -> bytes:
    """A body that nobody can change any more. Raises :class:`MessageError` for what is no bytes."""
    if type(body) is bytes:
        return body
    if isinstance(body, (bytes, bytearray, memoryview)):
        return bytes(body)
    raise MessageError(f"a body is bytes, not {type(body).__name__}: encode it first")


def as_bodies(bodies: Iterable[object]) -> list[bytes]:
    """:func:`as_body` for many."""
    if isinstance(bodies, (bytes, bytearray, memoryview, str)):
        raise MessageError("bodies are a list of bytes, not one")
    found = list(bodies)
    if set(map(type, found)) <= {bytes}:
        return found  # type: ignore[return-value]
    return [as_body(body) for body in found]


class ReceivedMessage:
    """A message as a queue has it. Decoded when somebody asks for more than its body."""

    __slots__ = ("_body", "_fetched", "_index", "_message")

    def __init__(self, fetched: Fetched | tuple[bytes], index: int = 0, body: bytes | None = None) -> None:
        self._fetched = fetched
        """The encoded message is the ``index``-th of these."""
        self._index = index
        self._body = body
        self._message: Message | None = None

    @property
    def message(self) -> Message:
        """All of it. Raises :class:`MessageError` where the bytes on disk are no message."""
        if self._message is None:
            fetched = self._fetched
            self._message = decode_message(
                fetched[self._index] if isinstance(fetched, tuple) else fetched.term(self._index)
            )
        return self._message

    @property
    def body(self) -> bytes:
        """The payload. Raises :class:`MessageError` where the bytes on disk are no message."""
        if self._body is None:
            self._body = self.message.body
        return self._body

    @property
    def properties(self) -> Properties:
        """AMQP's basic properties."""
        return self.message.properties

    @property
    def headers(self) -> Mapping[str, Any]:
        return self.properties.headers or {}

    @property
    def exchange(self) -> str:
        """The exchange that it was published to; "": the default one."""
        return self.message.exchange.decode("utf-8", "surrogateescape")

    @property
    def routing_key(self) -> str:
        return self.message.routing_keys[0].decode("utf-8", "surrogateescape")

    @property
    def persistent(self) -> bool:
        return self.message.persistent

    def __repr__(self) -> str:
        try:
            return f"<{type(self).__name__} {self.body[:40]!r}>"
        except MessageError:
            return f"<{type(self).__name__} that cannot be read>"
