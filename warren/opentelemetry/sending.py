"""Sending: the spans of the verbs that publish messages, whose contexts go into the messages.

A span lasts until the message is safe or refused, whether or not the caller waits for that.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, Final

import attrs
from opentelemetry.trace import Span, SpanKind, Tracer

from warren.actors.log_events import log_event, logger
from warren.actors.runtime.future import Future
from warren.opentelemetry.spans import (
    RABBITMQ,
    ROCKETMQ,
    Operation,
    destination,
    fail,
    injected,
    links_of,
    vhost_attribute,
)
from warren.verbs.exchange_verbs import ExchangeVerbs
from warren.verbs.queue_verbs import QueueVerbs
from warren.verbs.steps import Steps
from warren.verbs.topics.topic_verbs import TopicVerbs
from warren.verbs.vhost_verbs import VhostVerbs

_LOG = logger("opentelemetry")

Described = tuple[Operation, list[Any], dict[str, Any]]
"""The operation, and the arguments of the call without the context."""
Describe = Callable[[Any, list[Any], dict[str, Any]], Described]
"""Takes an object with verbs, and the arguments of the call."""


def sent(describe: Describe, tracer: Tracer, verb: Any, args: Any, kwargs: Any) -> Steps[Any]:
    """Call a verb that sends, in its span."""
    span, positional, keywords = _begin(verb.__self__, args, kwargs, describe, tracer)
    try:
        result = yield from verb(*positional, **keywords)
    except BaseException as error:
        _end(span, error)
        raise
    confirm = result if isinstance(result, Future) else getattr(result, "confirm", None)
    if confirm is None:
        span.end()
    else:
        confirm.on_done(functools.partial(_confirmed, span))
    return result


def _begin(verbs: Any, args: Any, kwargs: Any, describe: Describe, tracer: Tracer) -> tuple[Span, list[Any], Any]:
    operation, positional, keywords = describe(verbs, list(args), dict(kwargs))
    name = "headers" if operation.system == RABBITMQ else "properties"
    carriers = keywords.get(name)
    links = links_of(carriers if isinstance(carriers, list) else [carriers or {}])
    if links:  # the caller has given the context in which they were created
        operation = attrs.evolve(operation, links=links, kind=SpanKind.CLIENT)
    span = operation.start(tracer)
    if isinstance(carriers, list):
        keywords[name] = [carrier if links_of([carrier or {}]) else injected(span, carrier) for carrier in carriers]
    elif not links and (carrier := injected(span, carriers)) is not None:
        keywords[name] = carrier
    return span, positional, keywords


def _confirmed(span: Span, future: Future) -> None:
    """End the span. An error of the program's span processors must not stop the thread that made the message safe."""
    try:
        _end(span, future.error)
    except Exception as error:
        _LOG.exception("a span could not be ended", extra=log_event("span_failed", error))


def _end(span: Span, error: BaseException | None) -> None:
    if error is not None:
        fail(span, error)
    span.end()


# ── what is sent ────────────────────────────────────────────────────────────────────────────────────────────────────


def _one(exchange_name: str, routing_key: str, vhost: str, body: Any, keywords: dict[str, Any]) -> Operation:
    return Operation(
        type="send",
        name="publish",
        system=RABBITMQ,
        destination=destination(exchange_name, routing_key),
        attributes={
            **vhost_attribute(vhost),
            "messaging.rabbitmq.destination.routing_key": routing_key or None,
            "messaging.message.id": keywords.get("message_id"),
            "messaging.message.conversation_id": keywords.get("correlation_id"),
            "messaging.message.body.size": _size(body),
        },
    )


def _many(exchange_name: str, routing_key: str, vhost: str, bodies: Any) -> Operation:
    return Operation(
        type="send",
        name="publish",
        system=RABBITMQ,
        destination=destination(exchange_name, routing_key),
        attributes={
            **vhost_attribute(vhost),
            "messaging.rabbitmq.destination.routing_key": routing_key or None,
            "messaging.batch.message_count": len(bodies),
        },
    )


def _by_queue(verbs: Any, args: list[Any], keywords: dict[str, Any]) -> Described:
    queue = verbs.host.entry.declaration
    return _one("", queue.name, queue.vhost, _first(args, keywords, "body"), keywords), args, keywords


def _many_by_queue(verbs: Any, args: list[Any], keywords: dict[str, Any]) -> Described:
    queue, bodies = verbs.host.entry.declaration, _listed(args, keywords)
    return _many("", queue.name, queue.vhost, bodies), args, keywords


def _by_exchange(verbs: Any, args: list[Any], keywords: dict[str, Any]) -> Described:
    exchange = verbs.host.declaration
    address = exchange.name, _key(args, keywords), exchange.vhost
    return _one(*address, _first(args, keywords, "body"), keywords), args, keywords


def _many_by_exchange(verbs: Any, args: list[Any], keywords: dict[str, Any]) -> Described:
    exchange, bodies = verbs.host.declaration, _listed(args, keywords)
    return _many(exchange.name, _key(args, keywords), exchange.vhost, bodies), args, keywords


def _to_queues(verbs: Any, args: list[Any], keywords: dict[str, Any]) -> Described:
    """To several queues by their names: the default exchange has one key for each."""
    names = list(_first(args, keywords, "names") or ())
    if args:
        args[0] = names
    else:
        keywords["names"] = names
    body = args[1] if len(args) > 1 else keywords.get("body")
    return _one("", ",".join(names), verbs.name, body, keywords), args, keywords


def _to_topic(name: str, verbs: Any, args: list[Any], keywords: dict[str, Any]) -> Described:
    key = keywords.get("key")
    if key is not None and not isinstance(key, str):
        key = keywords["key"] = list(key)
    delayed = keywords.get("delay") is not None or bool(keywords.get("delay_level"))
    operation = Operation(
        type="send",
        name=name,
        system=ROCKETMQ,
        destination=verbs.name,
        attributes={
            "messaging.message.body.size": _size(_first(args, keywords, "body")),
            "messaging.rocketmq.message.tag": keywords.get("tag"),
            "messaging.rocketmq.message.keys": (key,) if isinstance(key, str) else key,
            "messaging.rocketmq.message.delay_time_level": keywords.get("delay_level"),
            "messaging.rocketmq.message.type": "transaction" if name == "prepare" else "delay" if delayed else "normal",
        },
    )
    return operation, args, keywords


def _many_to_topic(verbs: Any, args: list[Any], keywords: dict[str, Any]) -> Described:
    bodies = _listed(args, keywords)
    operation = Operation(
        type="send",
        name="send",
        system=ROCKETMQ,
        destination=verbs.name,
        attributes={
            "messaging.rocketmq.message.tag": keywords.get("tag"),
            "messaging.batch.message_count": len(bodies),
        },
    )
    return operation, args, keywords


def _first(args: list[Any], keywords: dict[str, Any], name: str) -> Any:
    return args[0] if args else keywords.get(name)


def _key(args: list[Any], keywords: dict[str, Any]) -> str:
    return str(args[1] if len(args) > 1 else keywords.get("routing_key", ""))


def _size(body: Any) -> int | None:
    return len(body) if isinstance(body, (bytes, bytearray, memoryview)) else None


def _listed(args: list[Any], keywords: dict[str, Any]) -> Any:
    """Return the bodies as a list, and pass a generator on as one; the verb refuses what is not a list of bodies."""
    bodies = _first(args, keywords, "bodies")
    if isinstance(bodies, Iterable) and not isinstance(bodies, (bytes, bytearray, memoryview, str, list)):
        bodies = list(bodies)
        if args:
            args[0] = bodies
        else:
            keywords["bodies"] = bodies
    return bodies if isinstance(bodies, list) else []


SENDING: Final[dict[Callable[..., Any], Describe]] = {
    QueueVerbs.publish: _by_queue,
    QueueVerbs.publish_many: _many_by_queue,
    ExchangeVerbs.publish: _by_exchange,
    ExchangeVerbs.publish_many: _many_by_exchange,
    VhostVerbs.publish_to: _to_queues,
    TopicVerbs.append: functools.partial(_to_topic, "send"),
    TopicVerbs.append_many: _many_to_topic,
    TopicVerbs.prepare: functools.partial(_to_topic, "prepare"),
}
"""The verbs that send."""
