"""Spans of messaging: their names, kinds, attributes and links, as the semantic conventions have them.

*Operation types* are the conventions': ``send``, ``receive``, ``process``, ``settle``; operation *names* are those of
warren's verbs. A span that sends is the creation context of its messages, unless they bring one; all others are linked
to it.

The conventions' *destination* of a queue's message is its exchange, routing key and queue, as far as it has them,
joined by colons; if the routing key is the queue's name, that appears once. For several messages it is the queue.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import attrs
from opentelemetry import context as contexts
from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.propagators.textmap import Getter
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, Tracer

from warren.queue_index.properties import Properties
from warren.storage.errors import MessageError
from warren.values.messages import ReceivedMessage
from warren.values.topic_record import StoredMessage

RABBITMQ: Final = "rabbitmq"
ROCKETMQ: Final = "rocketmq"
_ANONYMOUS: Final = "amq.gen-"
_SUPPRESSED: Final = "suppress_instrumentation"
"""OpenTelemetry's instrumentations set it, so that nothing below them makes spans of its own."""

_KINDS: Final = {
    "send": SpanKind.PRODUCER,
    "receive": SpanKind.CLIENT,
    "process": SpanKind.CONSUMER,
    "settle": SpanKind.CLIENT,
}


@attrs.frozen(kw_only=True)
class Operation:
    """The operation of a span."""

    type: str
    name: str
    system: str
    destination: str
    links: Sequence[Link] = ()
    attributes: Mapping[str, Any] = attrs.Factory(dict)
    """Attributes besides those of all spans."""
    parent: Context | None = None
    """``None``: the current one."""
    kind: SpanKind | None = None
    """``None``: the type's."""

    @property
    def span_name(self) -> str:
        """A destination that has no lasting name does not show in it."""
        shown = "" if self.destination.rpartition(":")[2].startswith(_ANONYMOUS) else self.destination
        return f"{self.name} {shown}".rstrip()

    def start(self, tracer: Tracer, began_ns: int | None = None) -> Span:
        """Begin the span; ``began_ns``: it has begun then."""
        attributes = {
            "messaging.system": self.system,
            "messaging.operation.type": self.type,
            "messaging.operation.name": self.name,
            "messaging.destination.name": self.destination,
            **{name: value for name, value in self.attributes.items() if value is not None},
        }
        if self.destination.rpartition(":")[2].startswith(_ANONYMOUS):
            attributes["messaging.destination.anonymous"] = True
        return tracer.start_span(
            self.span_name,
            context=self.parent,
            kind=_KINDS[self.type] if self.kind is None else self.kind,
            attributes=attributes,
            links=self.links,
            start_time=began_ns,
        )


def is_suppressed() -> bool:
    """Whether spans are switched off here."""
    return bool(contexts.get_value(_SUPPRESSED))


def fail(span: Span, error: BaseException) -> None:
    """Note what went wrong."""
    span.record_exception(error)
    span.set_status(Status(StatusCode.ERROR, str(error)))
    span.set_attribute("error.type", type(error).__qualname__)


@contextlib.contextmanager
def ended(span: Span) -> Iterator[Span]:
    """End the span with the block; an exception in it is recorded."""
    try:
        yield span
    except BaseException as error:
        fail(span, error)
        raise
    finally:
        span.end()


# ── contexts in messages ────────────────────────────────────────────────────────────────────────────────────────────


class _Headers(Getter[Mapping[str, Any]]):
    """Reads headers for a propagator: AMQP's text may have come as bytes."""

    def get(self, carrier: Mapping[str, Any], key: str) -> list[str] | None:
        value = carrier.get(key)
        if isinstance(value, bytes):
            value = value.decode("utf-8", "replace")
        return [value] if isinstance(value, str) else None

    def keys(self, carrier: Mapping[str, Any]) -> list[str]:
        return list(carrier)


_HEADERS: Final = _Headers()


def extracted(carrier: Mapping[str, Any]) -> Context:
    """The context that a message brings."""
    return propagate.extract(carrier, context=Context(), getter=_HEADERS)


def links_of(carriers: Iterable[Mapping[str, Any]]) -> list[Link]:
    """A link to the creation context of each message that has one; each once."""
    links: dict[tuple[int, int], Link] = {}
    for carrier in carriers:
        if carrier:
            span_context = trace.get_current_span(extracted(carrier)).get_span_context()
            if span_context.is_valid:
                links.setdefault((span_context.trace_id, span_context.span_id), Link(span_context))
    return [*links.values()]


def injected(span: Span, carrier: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Headers, or properties, with the context of a span among them."""
    added: dict[str, Any] = dict(carrier or {})
    propagate.inject(added, context=trace.set_span_in_context(span))
    return added or None


# ── attributes of messages ──────────────────────────────────────────────────────────────────────────────────────────


def destination(exchange: str, routing_key: str, queue: str = "") -> str:
    """Return a destination as the conventions for RabbitMQ define it."""
    parts = [exchange, routing_key, "" if queue == routing_key else queue]
    return ":".join(filter(None, parts)) or "amq.default"


def vhost_attribute(vhost: str) -> dict[str, Any]:
    """Return the vhost if it is not ``/``; the conventions have no name for it."""
    return {} if vhost == "/" else {"warren.vhost": vhost}


def message_attributes(properties: Properties | None, size: int | None) -> dict[str, Any]:
    """Return the attributes of one message of a queue."""
    return {
        "messaging.message.id": None if properties is None else _text(properties.message_id),
        "messaging.message.conversation_id": None if properties is None else _text(properties.correlation_id),
        "messaging.message.body.size": size,
    }


def _text(value: Any) -> str | None:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else None if value is None else str(value)


def headers_of(message: ReceivedMessage) -> Mapping[str, Any]:
    """Return the headers of a queue's message, which contain its context; empty if they cannot be read."""
    try:
        return message.headers
    except MessageError:
        return {}


def of_message(message: ReceivedMessage, queue: tuple[str, str], tag: int) -> tuple[str, dict[str, Any]]:
    """The destination and the attributes of one message that was delivered. ``tag``: its delivery tag, or 0."""
    vhost, name = queue
    common = {**vhost_attribute(vhost), "messaging.rabbitmq.message.delivery_tag": tag or None}
    try:
        exchange, routing_key = message.exchange, message.routing_key
        described = message_attributes(message.properties, len(message.body))
    except MessageError:
        return destination("", "", name), common
    described["messaging.rabbitmq.destination.routing_key"] = routing_key or None
    return destination(exchange, routing_key, name), {**common, **described}


def of_record(record: StoredMessage, group: str | None) -> dict[str, Any]:
    """The attributes of one message of a topic."""
    return {
        "messaging.destination.partition.id": str(record.queue_id),
        "messaging.consumer.group.name": group,
        "messaging.message.id": record.message_id,
        "messaging.message.body.size": len(record.raw_body),
        "messaging.rocketmq.message.tag": record.tag or None,
        "messaging.rocketmq.message.keys": tuple(record.keys) or None,
    }
