"""Receiving and settling: the spans of the verbs that hand messages to a program, and of the verbs that settle them.

A receiving span is made when a message is handed to the program, not when it reaches the process, which prefetches. A
request that returns no message makes no span.

If no span is current in the thread or task, the span of processing a message is a child of the span that sent the
message, so that both are in one trace; otherwise it is a child of the current span. It is linked to the sender's span
in both cases.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, Tracer

from warren.handles.channel import DeliveredMessage, DeliveryVerbs
from warren.handles.delivery_batch import DeliveryBatch
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
    vhost_attribute,
)
from warren.values.messages import ReceivedMessage
from warren.values.read_message import ReadMessage, RecordVerbs
from warren.verbs.queue_verbs import QueueVerbs
from warren.verbs.steps import Steps
from warren.verbs.topics.reader_verbs import ReaderVerbs

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


# ── receiving ───────────────────────────────────────────────────────────────────────────────────────────────────────

Describe = Callable[[Any, Any], Operation]
"""Takes an object with verbs, and what one of them returned."""


def received(describe: Describe, tracer: Tracer, verb: Any, args: Any, kwargs: Any, *, becomes: Any) -> Steps[Any]:
    """Call a verb that receives, and make the span of what it returned."""
    began_ns = time.time_ns()
    result = yield from verb(*args, **kwargs)
    messages = result if becomes is None else becomes(result)
    if messages:
        describe(verb.__self__, messages).start(tracer, began_ns).end()
    return messages


def of_handed_out(message: DeliveredMessage | ReadMessage) -> Operation:
    """Return the operation that one message is received with."""
    if isinstance(message, ReadMessage):
        links, attributes = links_of([message.properties]), of_record(message, group_of(message))
        return _receive(ROCKETMQ, message.topic, links, attributes)
    destination, attributes = of_message(message, message.channel.queue, message.delivery_tag)
    return _receive(RABBITMQ, destination, links_of([headers_of(message)]), attributes)


def _of_one(_: Any, delivery: DeliveredMessage) -> Operation:
    return of_handed_out(delivery)


def _of_many(verbs: QueueVerbs, deliveries: DeliveryBatch[Any]) -> Operation:
    queue = verbs.host.entry.declaration
    attributes = {**vhost_attribute(queue.vhost), "messaging.batch.message_count": len(deliveries)}
    return _receive(RABBITMQ, queue.name, links_of(map(headers_of, deliveries)), attributes)


def _of_records(verbs: ReaderVerbs, records: Sequence[ReadMessage]) -> Operation:
    attributes = {"messaging.consumer.group.name": verbs.member.group, "messaging.batch.message_count": len(records)}
    return _receive(ROCKETMQ, verbs.member.topic, links_of(record.properties for record in records), attributes)


def _receive(system: str, destination: str, links: Any, attributes: Any) -> Operation:
    return Operation(
        type="receive", name="receive", system=system, destination=destination, links=links, attributes=attributes
    )


RECEIVING: Final[dict[Callable[..., Any], Describe]] = {
    QueueVerbs.get: _of_one,
    QueueVerbs.take: _of_one,
    QueueVerbs.get_many: _of_many,
    ReaderVerbs.read: _of_records,
}
"""The verbs that receive."""

# ── settling ────────────────────────────────────────────────────────────────────────────────────────────────────────

_OUTCOMES: Final = {"ack": "ack", "requeue": "nack", "reject": "reject", "failed": "reject"}
Start = Callable[[Tracer, Any, Any], Span | None]
"""Takes an object with verbs, and the arguments of the call; returns the span, or ``None`` for no span."""


def settled(start: Start, tracer: Tracer, verb: Any, args: Any, kwargs: Any) -> Steps[Any]:
    """Call a verb that settles, in its span."""
    span = start(tracer, verb.__self__, kwargs)
    if span is None:
        return (yield from verb(*args, **kwargs))
    with ended(span):
        return (yield from verb(*args, **kwargs))


def settling_many(tracer: Tracer, deliveries: Sequence[DeliveredMessage], outcome: str) -> Span:
    """Begin a span that settles messages of queues together, most often of one."""
    vhost, name = deliveries[0].channel.queue
    attributes = {**vhost_attribute(vhost), "messaging.batch.message_count": len(deliveries)}
    return _settle(RABBITMQ, _OUTCOMES[outcome], name, links_of(map(headers_of, deliveries)), attributes).start(tracer)


def _one(name: str, tracer: Tracer, verbs: DeliveryVerbs, keywords: Any) -> Span | None:
    delivery = verbs.message
    if delivery.settled:
        return None
    if name == "nack" and not keywords.get("requeue", True):
        name = "reject"  # AMQP's name
    destination, attributes = of_message(delivery, delivery.channel.queue, delivery.delivery_tag)
    return _settle(RABBITMQ, name, destination, links_of([headers_of(delivery)]), attributes).start(tracer)


def _record(tracer: Tracer, verbs: RecordVerbs, _: Any) -> Span:
    record, group = verbs.message, verbs.claim.reader.member.group
    links = links_of([record.properties])
    return _settle(ROCKETMQ, "commit", record.topic, links, of_record(record, group)).start(tracer)


def _all(tracer: Tracer, verbs: ReaderVerbs, _: Any) -> Span:
    attributes = {"messaging.consumer.group.name": verbs.member.group}
    return _settle(ROCKETMQ, "commit", verbs.member.topic, [], attributes).start(tracer)


def _settle(system: str, name: str, destination: str, links: Any, attributes: Any) -> Operation:
    return Operation(
        type="settle", name=name, system=system, destination=destination, links=links, attributes=attributes
    )


SETTLING: Final[dict[Callable[..., Any], Start]] = {
    DeliveryVerbs.ack: functools.partial(_one, "ack"),
    DeliveryVerbs.nack: functools.partial(_one, "nack"),
    DeliveryVerbs.reject: functools.partial(_one, "reject"),
    DeliveryVerbs.retry: functools.partial(_one, "retry"),
    RecordVerbs.commit: _record,
    ReaderVerbs.commit: _all,
}
"""The verbs that settle."""
