"""Processing: the span of what a program does with one message.

Where nothing else is going on in the thread or task, it is a child of the span that sent the message, so that the two
are one trace; in the scope of another span it is that one's child. It is linked to the sender's either way.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, Tracer

from warren.handles.channel import DeliveredMessage
from warren.opentelemetry.spans import (
    RABBITMQ,
    ROCKETMQ,
    Operation,
    ended,
    extracted,
    headers_of,
    links_of,
    of_message,
    of_record,
)
from warren.values.messages import ReceivedMessage
from warren.values.read_message import ReadMessage

_SCOPE = "warren"


def tracer_of(provider: trace.TracerProvider | None) -> Tracer:
    """The tracer of everything here."""
    return trace.get_tracer(_SCOPE, tracer_provider=provider, schema_url="https://opentelemetry.io/schemas/1.37.0")


def context_of(message: ReceivedMessage | ReadMessage) -> Context:
    """The context that a message brings: of the span that sent it. For spans of one's own."""
    return extracted(message.properties if isinstance(message, ReadMessage) else headers_of(message))


@contextlib.contextmanager
def processing(
    message: DeliveredMessage | ReadMessage, tracer_provider: trace.TracerProvider | None = None
) -> Iterator[Span]:
    """Do something with one message, in a span that is current meanwhile.

    ``with delivery:`` is in such a span by itself where warren is instrumented; this is for those who do without, and
    for topics.
    """
    span = start_processing(message, tracer_of(tracer_provider))
    with ended(span), trace.use_span(span, end_on_exit=False, record_exception=False, set_status_on_exception=False):
        yield span


def start_processing(message: DeliveredMessage | ReadMessage, tracer: Tracer) -> Span:
    """Begin the span of one message."""
    if isinstance(message, ReadMessage):
        carrier: dict[str, Any] = dict(message.properties)
        system, where, attributes = ROCKETMQ, message.topic, of_record(message, group_of(message))
    else:
        carrier = dict(headers_of(message))
        system = RABBITMQ
        where, attributes = of_message(message, message.channel.queue, message.delivery_tag)
    alone = not trace.get_current_span().get_span_context().is_valid
    return Operation(
        type="process",
        name="process",
        system=system,
        destination=where,
        attributes=attributes,
        links=links_of([carrier]),
        parent=_with_sender(carrier) if alone else None,
    ).start(tracer)


def _with_sender(carrier: Mapping[str, Any]) -> Context:
    """The current context, with the sender's span and baggage in it."""
    found = contexts.get_current()
    for key, value in extracted(carrier).items():
        found = contexts.set_value(key, value, found)
    return found


def group_of(record: ReadMessage) -> str | None:
    """For whom it was read."""
    return None if record._claim is None else record._claim.reader.group
