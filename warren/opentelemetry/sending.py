"""Sending: spans around the verbs that publish messages, and their contexts in the messages.

A span lasts until the message is safe or refused, whether or not the caller waits for that.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import attrs
from opentelemetry.trace import Span, SpanKind, Tracer

from warren.actors.log_events import log_event, logger
from warren.actors.runtime.future import Future
from warren.aio import exchange as aio_exchange
from warren.aio import node as aio_node
from warren.aio import queue as aio_queue
from warren.aio import topic as aio_topic
from warren.handles import exchange, node, queue, topic
from warren.opentelemetry.patches import Patches
from warren.opentelemetry.spans import (
    RABBITMQ,
    ROCKETMQ,
    Operation,
    destination,
    fail,
    injected,
    is_suppressed,
    links_of,
    vhost_attribute,
)

_LOG = logger("opentelemetry")

Described = tuple[Operation, list[Any], dict[str, Any]]
"""The operation, and the arguments of the call without the context."""
Describe = Callable[[Any, list[Any], dict[str, Any]], Described]
"""Takes a handle and the arguments of the call."""


def patch(patches: Patches, tracer: Tracer) -> None:
    """Put spans around all verbs that send."""
    kind: type
    for kind in (queue.Queue, aio_queue.Queue):
        _patch(patches, kind, "publish", _by_queue, tracer)
        _patch(patches, kind, "publish_many", _many_by_queue, tracer)
    for kind in (exchange.Exchange, aio_exchange.Exchange):
        _patch(patches, kind, "publish", _by_exchange, tracer)
        _patch(patches, kind, "publish_many", _many_by_exchange, tracer)
    _patch(patches, aio_queue.Queue, "publish_nowait", _by_queue, tracer)
    _patch(patches, aio_exchange.Exchange, "publish_nowait", _by_exchange, tracer)
    for kind in (node.Vhost, aio_node.Vhost):
        _patch(patches, kind, "publish_to", _to_queues, tracer)
    for kind in (topic.Topic, aio_topic.Topic):
        _patch(patches, kind, "append", functools.partial(_to_topic, "send"), tracer)
        _patch(patches, kind, "append_many", _many_to_topic, tracer)
        _patch(patches, kind, "prepare", functools.partial(_to_topic, "prepare"), tracer)
    _patch(patches, aio_topic.Topic, "append_nowait", functools.partial(_to_topic, "send"), tracer)


def _patch(patches: Patches, kind: type, name: str, describe: Describe, tracer: Tracer) -> None:
    awaited = kind.__module__.startswith("warren.aio.") and not name.endswith("_nowait")
    wrapper = _awaited if awaited else _blocking
    patches.replace(kind, name, lambda original: wrapper(original, describe, tracer))


def _blocking(original: Callable[..., Any], describe: Describe, tracer: Tracer) -> Callable[..., Any]:
    @functools.wraps(original)
    def send(self: Any, *args: Any, **kwargs: Any) -> Any:
        if is_suppressed():
            return original(self, *args, **kwargs)
        span, positional, keywords = _begin(self, args, kwargs, describe, tracer)
        try:
            result = original(self, *positional, **keywords)
        except BaseException as error:
            _end(span, error)
            raise
        confirm = _confirm_of(result)
        if confirm is None:
            span.end()
        else:
            confirm.on_done(functools.partial(_confirmed, span))
        return result

    return send


def _awaited(original: Callable[..., Any], describe: Describe, tracer: Tracer) -> Callable[..., Any]:
    @functools.wraps(original)
    async def send(self: Any, *args: Any, **kwargs: Any) -> Any:
        if is_suppressed():
            return await original(self, *args, **kwargs)
        span, positional, keywords = _begin(self, args, kwargs, describe, tracer)
        try:
            result = await original(self, *positional, **keywords)
        except BaseException as error:
            _end(span, error)
            raise
        span.end()
        return result

    return send


def _begin(
    handle: Any, args: tuple[Any, ...], kwargs: dict[str, Any], describe: Describe, tracer: Tracer
) -> tuple[Span, list[Any], dict[str, Any]]:
    operation, positional, keywords = describe(handle, list(args), dict(kwargs))
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


def _confirm_of(result: Any) -> Future | None:
    """Return the future that is done when the message is safe."""
    if isinstance(result, Future):
        return result
    future = getattr(result, "confirm", None) or getattr(result, "_future", None)
    return future if isinstance(future, Future) else None


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


def _by_queue(handle: Any, args: list[Any], keywords: dict[str, Any]) -> Described:
    return _one("", handle.name, handle.vhost, _first(args, keywords, "body"), keywords), args, keywords


def _many_by_queue(handle: Any, args: list[Any], keywords: dict[str, Any]) -> Described:
    bodies = _listed(args, keywords)
    return _many("", handle.name, handle.vhost, bodies), args, keywords


def _by_exchange(handle: Any, args: list[Any], keywords: dict[str, Any]) -> Described:
    address = handle.name, _key(args, keywords), handle._verbs.host.declaration.vhost
    return _one(*address, _first(args, keywords, "body"), keywords), args, keywords


def _many_by_exchange(handle: Any, args: list[Any], keywords: dict[str, Any]) -> Described:
    bodies = _listed(args, keywords)
    return _many(handle.name, _key(args, keywords), handle._verbs.host.declaration.vhost, bodies), args, keywords


def _to_queues(handle: Any, args: list[Any], keywords: dict[str, Any]) -> Described:
    """To several queues by their names: the default exchange has one key for each."""
    names = list(_first(args, keywords, "names") or ())
    if args:
        args[0] = names
    else:
        keywords["names"] = names
    body = args[1] if len(args) > 1 else keywords.get("body")
    return _one("", ",".join(names), handle._verbs.name, body, keywords), args, keywords


def _to_topic(name: str, handle: Any, args: list[Any], keywords: dict[str, Any]) -> Described:
    key = keywords.get("key")
    if key is not None and not isinstance(key, str):
        key = keywords["key"] = list(key)
    delayed = keywords.get("delay") is not None or bool(keywords.get("delay_level"))
    operation = Operation(
        type="send",
        name=name,
        system=ROCKETMQ,
        destination=handle.name,
        attributes={
            "messaging.message.body.size": _size(_first(args, keywords, "body")),
            "messaging.rocketmq.message.tag": keywords.get("tag"),
            "messaging.rocketmq.message.keys": (key,) if isinstance(key, str) else key,
            "messaging.rocketmq.message.delay_time_level": keywords.get("delay_level"),
            "messaging.rocketmq.message.type": "transaction" if name == "prepare" else "delay" if delayed else "normal",
        },
    )
    return operation, args, keywords


def _many_to_topic(handle: Any, args: list[Any], keywords: dict[str, Any]) -> Described:
    bodies = _listed(args, keywords)
    operation = Operation(
        type="send",
        name="send",
        system=ROCKETMQ,
        destination=handle.name,
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
