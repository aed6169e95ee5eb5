"""Messages between Kombu and warren, both ways. Kombu's properties are AMQP's, which are warren's."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, cast

import attrs
from kombu.transport import base

from warren.handles.consumer import Delivery
from warren.queue_index.properties import NAMES
from warren.storage.errors import MessageError
from warren.values.messages import PublishArguments

_APART = frozenset({"headers", "content_type", "content_encoding"})
"""Properties that Kombu keeps beside the others."""

_NUMBERS = frozenset({"delivery_mode", "priority", "timestamp"})
_PROPERTIES = tuple(name for name in NAMES if name not in _APART)
_PERSISTENT = 2


@attrs.frozen
class Outgoing:
    """A message that can be published."""

    body: bytes
    arguments: PublishArguments


def outgoing(
    body: Any,
    priority: int | None,
    content_type: str | None,
    content_encoding: str | None,
    headers: Mapping[str, Any] | None,
    properties: Mapping[str, Any] | None,
) -> Outgoing:
    """Return the message that Kombu publishes. Properties unknown to AMQP are left out."""
    kombu_properties = dict(properties or {})
    arguments: dict[str, Any] = {
        name: value if name in _NUMBERS else _text(value)
        for name in _PROPERTIES
        if name not in ("delivery_mode", "expiration") and (value := kombu_properties.get(name)) is not None
    }
    if priority:
        arguments["priority"] = priority
    if isinstance(timestamp := arguments.get("timestamp"), datetime):
        arguments["timestamp"] = int(timestamp.timestamp())
    arguments["persistent"] = kombu_properties.get("delivery_mode") in (_PERSISTENT, "persistent")
    if (expiration := kombu_properties.get("expiration")) is not None:
        arguments["expiration"] = int(expiration) / 1000  # milliseconds as text, as on the wire
    if headers:
        arguments["headers"] = {name: _plain(value) for name, value in headers.items()}
    if content_type is not None:
        arguments["content_type"] = content_type
    if content_encoding is not None:
        arguments["content_encoding"] = content_encoding
    return Outgoing(_bytes(body, content_encoding), cast(PublishArguments, arguments))


def eta_of(arguments: PublishArguments) -> datetime | None:
    """Return the ETA of a Celery task, if it is in the future."""
    text = (arguments.get("headers") or {}).get("eta")
    try:
        eta = datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        return None
    if eta is None:
        return None
    if eta.tzinfo is None:  # Celery's ETA is in UTC
        eta = eta.replace(tzinfo=UTC)
    return eta if eta > datetime.now(UTC) else None


def _bytes(body: Any, content_encoding: str | None) -> bytes:
    if isinstance(body, str):
        encoding = content_encoding if content_encoding and content_encoding != "binary" else "utf-8"
        return body.encode(encoding)
    if body is None:
        return b""
    if isinstance(body, (bytes, bytearray, memoryview)):
        return bytes(body)
    raise MessageError(f"a body is text or bytes, not {type(body).__name__}")


def _text(value: Any) -> str | bytes:
    return value if isinstance(value, (str, bytes)) else str(value)


def _plain(value: Any) -> Any:
    """Convert Python collections to the lists of AMQP's tables."""
    if isinstance(value, dict):
        return {str(name): _plain(field) for name, field in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(entry) for entry in value]
    return value


class Message(base.Message):
    """A message that was delivered to a channel."""

    def __init__(
        self, delivery: Delivery, *, channel: base.StdChannel, tag: int, consumer_tag: str | None = None
    ) -> None:
        properties = delivery.properties
        info: dict[str, Any] = {
            "delivery_tag": tag,
            "redelivered": delivery.redelivered,
            "exchange": delivery.exchange,
            "routing_key": delivery.routing_key,
        }
        if consumer_tag is not None:
            info["consumer_tag"] = consumer_tag
        super().__init__(  # type: ignore[no-untyped-call]
            body=delivery.body,
            channel=channel,
            delivery_tag=tag,
            content_type=properties.content_type,
            content_encoding=properties.content_encoding,
            delivery_info=info,
            properties={name: value for name in _PROPERTIES if (value := getattr(properties, name)) is not None},
            headers=dict(delivery.headers),
        )
