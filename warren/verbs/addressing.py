"""The envelope of a message that is published with given properties, and the keys that it is routed by."""

from __future__ import annotations

import re
from typing import Any, Final

import attrs

from warren.actors.engines.declared.exchanges import DELAYED, ExchangeDeclaration
from warren.actors.engines.declared.queue_arguments import MAX_PERIOD_MS
from warren.actors.engines.declared.routing import carbon_copies
from warren.actors.engines.errors import ArgumentsError
from warren.actors.queue.intake import PublishKey
from warren.amqp.own_methods import DUE
from warren.hosting.running_node import RunningNode
from warren.queue_index.message.message_format import Envelope
from warren.queue_index.properties import Properties, encode_properties
from warren.storage.erlang_text import quoted
from warren.values.messages import MAX_DUE_MS
from warren.verbs.publishing import Receiver

_INTEGER: Final = re.compile(r"[+-]?[0-9]+")

Address = tuple[PublishKey, tuple[str, ...], dict[str, Any] | None]
"""The envelope of a message; its routing keys, with those of its copies; its headers, for routing."""


def address(
    vhost: str, exchange: str, routing_key: str, properties: Properties, encoded: bytes | None = None
) -> Address:
    """Return the address of a message. ``encoded``: the properties as bytes, if known.

    Raises :class:`ArgumentsError`.
    """
    expiration_ms = None if properties.expiration is None else milliseconds(properties.expiration)
    headers = None if properties.headers is None else dict(properties.headers)
    keys = (routing_key, *carbon_copies(headers)) if headers else (routing_key,)
    if headers and "BCC" in headers:  # blind copies: the header is removed
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


@attrs.frozen
class Delay:
    """When a published message is due."""

    due_ms: int | None
    """Unix time in milliseconds; ``None``: ``delay_ms`` after the publish."""
    delay_ms: int
    ids: tuple[bytes, ...]
    """Its ``message_id``, if it has one."""

    def receiver(self, node: RunningNode, vhost: str, queue: str | None, exchange: str) -> Receiver:
        """Return what keeps it until then. ``queue``: the target, if published to the default exchange."""
        due_ms = node.now_ms() + self.delay_ms if self.due_ms is None else max(self.due_ms, 0)
        return node.vhost(vhost).delayed().receiver(queue, exchange, min(due_ms, MAX_DUE_MS), self.ids)


def delay_in(
    declaration: ExchangeDeclaration, properties: Properties, *, from_owner: bool = False
) -> tuple[Properties, Delay | None]:
    """Return the properties that the message has once it is due, and its delay; ``None``: it is due now.

    ``from_owner``: the client is a handle of the same directory.
    """
    headers = properties.headers
    if not headers:
        return properties, None
    due_ms: int | None = None
    delay_ms, changed = 0, dict(headers)
    if from_owner and isinstance(due := headers.get(DUE), int):
        due_ms = due
        del changed[DUE]
    elif declaration.type == DELAYED:
        from warren.actors.engines.declared.exchanges import delay_of, has_waited

        delay_ms = delay_of(headers)
        changed = dict(has_waited(headers))
    if due_ms is None and not delay_ms:
        return properties, None
    message_id = properties.message_id
    encoded = message_id.encode("utf-8", "surrogateescape") if isinstance(message_id, str) else message_id
    return attrs.evolve(properties, headers=changed or None), Delay(due_ms, delay_ms, (encoded,) if encoded else ())


def milliseconds(expiration: str | bytes) -> int:
    """Raise :class:`ArgumentsError` for an invalid number of milliseconds."""
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
