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
"""What is sent, and the arguments of the call without their context."""
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
        span, given, named = _begin(self, args, kwargs, describe, tracer)
        try:
            sent = original(self, *given, **named)
        except BaseException as error:
            _end(span, error)
            raise
        confirm = _confirm_of(sent)
        if confirm is None:
            span.end()
        else:
            confirm.on_done(functools.partial(_confirmed, span))
        return sent

    return send


def _awaited(original: Callable[..., Any], describe: Describe, tracer: Tracer) -> Callable[..., Any]:
    @functools.wraps(original)
    async def send(self: Any, *args: Any, **kwargs: Any) -> Any:
        if is_suppressed():
            return await original(self, *args, **kwargs)
        span, given, named = _begin(self, args, kwargs, describe, tracer)
        try:
            sent = await original(self, *given, **named)
        except BaseException as error:
            _end(span, error)
            raise
        span.end()
        return sent

    return send


def _begin(
    handle: Any, args: tuple[Any, ...], kwargs: dict[str, Any], describe: Describe, tracer: Tracer
) -> tuple[Span, list[Any], dict[str, Any]]:
    operation, given, named = describe(handle, list(args), dict(kwargs))
    name = "headers" if operation.system == RABBITMQ else "properties"
    carriers = named.get(name)
    own = links_of(carriers if isinstance(carriers, list) else [carriers or {}])
    if own:  # the caller has given the context in which they were created
        operation = attrs.evolve(operation, links=own, kind=SpanKind.CLIENT)
    span = operation.start(tracer)
    if isinstance(carriers, list):
        named[name] = [carrier if links_of([carrier or {}]) else injected(span, carrier) for carrier in carriers]
    elif not own and (carrier := injected(span, carriers)) is not None:
        named[name] = carrier
    return span, given, named


def _confirm_of(sent: Any) -> Future | None:
    """Return the future that is done when the message is safe."""
    if isinstance(sent, Future):
        return sent
    found = getattr(sent, "confirm", None) or getattr(sent, "_future", None)
    return found if isinstance(found, Future) else None


def _confirmed(span: Span, done: Future) -> None:
    """In the thread that made it safe, which what a program does with its spans must not stop."""
    try:
        _end(span, done.error)
    except Exception as error:
        _LOG.exception("a span could not be ended", extra=log_event("span_failed", error))


def _end(span: Span, error: BaseException | None) -> None:
    if error is not None:
        fail(span, error)
    span.end()


# ── what is sent ────────────────────────────────────────────────────────────────────────────────────────────────────


def _one(exchange_name: str, routing_key: str, vhost: str, body: Any, named: dict[str, Any]) -> Operation:
    return Operation(
        type="send",
        name="publish",
        system=RABBITMQ,
        destination=destination(exchange_name, routing_key),
        attributes={
            **vhost_attribute(vhost),
            "messaging.rabbitmq.destination.routing_key": routing_key or None,
            "messaging.message.id": named.get("message_id"),
            "messaging.message.conversation_id": named.get("correlation_id"),
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


def _by_queue(handle: Any, args: list[Any], named: dict[str, Any]) -> Described:
    return _one("", handle.name, handle.vhost, _first(args, named, "body"), named), args, named


def _many_by_queue(handle: Any, args: list[Any], named: dict[str, Any]) -> Described:
    bodies = _listed(args, named)
    return _many("", handle.name, handle.vhost, bodies), args, named


def _by_exchange(handle: Any, args: list[Any], named: dict[str, Any]) -> Described:
    where = handle.name, _key(args, named), handle._verbs.declaration.vhost
    return _one(*where, _first(args, named, "body"), named), args, named


def _many_by_exchange(handle: Any, args: list[Any], named: dict[str, Any]) -> Described:
    bodies = _listed(args, named)
    return _many(handle.name, _key(args, named), handle._verbs.declaration.vhost, bodies), args, named


def _to_queues(handle: Any, args: list[Any], named: dict[str, Any]) -> Described:
    """To several queues by their names: the default exchange has one key for each."""
    names = list(_first(args, named, "names") or ())
    if args:
        args[0] = names
    else:
        named["names"] = names
    body = args[1] if len(args) > 1 else named.get("body")
    return _one("", ",".join(names), handle._verbs.name, body, named), args, named


def _to_topic(name: str, handle: Any, args: list[Any], named: dict[str, Any]) -> Described:
    key = named.get("key")
    if key is not None and not isinstance(key, str):
        key = named["key"] = list(key)
    delayed = named.get("delay") is not None or bool(named.get("delay_level"))
    operation = Operation(
        type="send",
        name=name,
        system=ROCKETMQ,
        destination=handle.name,
        attributes={
            "messaging.message.body.size": _size(_first(args, named, "body")),
            "messaging.rocketmq.message.tag": named.get("tag"),
            "messaging.rocketmq.message.keys": (key,) if isinstance(key, str) else key,
            "messaging.rocketmq.message.delay_time_level": named.get("delay_level"),
            "messaging.rocketmq.message.type": "transaction" if name == "prepare" else "delay" if delayed else "normal",
        },
    )
    return operation, args, named


def _many_to_topic(handle: Any, args: list[Any], named: dict[str, Any]) -> Described:
    bodies = _listed(args, named)
    operation = Operation(
        type="send",
        name="send",
        system=ROCKETMQ,
        destination=handle.name,
        attributes={
            "messaging.rocketmq.message.tag": named.get("tag"),
            "messaging.batch.message_count": len(bodies),
        },
    )
    return operation, args, named


def _first(args: list[Any], named: dict[str, Any], name: str) -> Any:
    return args[0] if args else named.get(name)


def _key(args: list[Any], named: dict[str, Any]) -> str:
    return str(args[1] if len(args) > 1 else named.get("routing_key", ""))


def _size(body: Any) -> int | None:
    return len(body) if isinstance(body, (bytes, bytearray, memoryview)) else None


def _listed(args: list[Any], named: dict[str, Any]) -> Any:
    """Return the bodies as a list, and pass a generator on as one; the verb refuses what is not a list of bodies."""
    bodies = _first(args, named, "bodies")
    if isinstance(bodies, Iterable) and not isinstance(bodies, (bytes, bytearray, memoryview, str, list)):
        bodies = list(bodies)
        if args:
            args[0] = bodies
        else:
            named["bodies"] = bodies
    return bodies if isinstance(bodies, list) else []
