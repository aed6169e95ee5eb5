"""Processing: the span of what a program does with one message.

If no span is current in the thread or task, it is a child of the span that sent the message, so that both are in one
trace; otherwise it is a child of the current span. It is linked to the sender's span in both cases.
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
    """Return the context of the span that sent a message, for a program's own spans."""
    return extracted(message.properties if isinstance(message, ReadMessage) else headers_of(message))


@contextlib.contextmanager
def processing(
    message: DeliveredMessage | ReadMessage, tracer_provider: trace.TracerProvider | None = None
) -> Iterator[Span]:
    """Do something with one message, in a span that is current meanwhile.

    If warren is instrumented, ``with delivery:`` opens such a span by itself; this function is for programs without it,
    and for topics.
    """
    span = start_processing(message, tracer_of(tracer_provider))
    with ended(span), trace.use_span(span, end_on_exit=False, record_exception=False, set_status_on_exception=False):
        yield span


def start_processing(message: DeliveredMessage | ReadMessage, tracer: Tracer) -> Span:
    """Begin the span of one message."""
    if isinstance(message, ReadMessage):
        carrier: dict[str, Any] = dict(message.properties)
        system, destination, attributes = ROCKETMQ, message.topic, of_record(message, group_of(message))
    else:
        carrier = dict(headers_of(message))
        system = RABBITMQ
        destination, attributes = of_message(message, message.channel.queue, message.delivery_tag)
    is_root = not trace.get_current_span().get_span_context().is_valid
    return Operation(
        type="process",
        name="process",
        system=system,
        destination=destination,
        attributes=attributes,
        links=links_of([carrier]),
        parent=_with_sender(carrier) if is_root else None,
    ).start(tracer)


def _with_sender(carrier: Mapping[str, Any]) -> Context:
    """The current context, with the sender's span and baggage in it."""
    context = contexts.get_current()
    for key, value in extracted(carrier).items():
        context = contexts.set_value(key, value, context)
    return context


def group_of(record: ReadMessage) -> str | None:
    """Return the consumer group that read the message."""
    return None if record._claim is None else record._claim.reader.member.group
