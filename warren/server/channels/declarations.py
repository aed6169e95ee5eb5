"""Topology: what clients declare, bind and delete."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Final

import attrs
from pamqp import commands as c
from pamqp.base import Frame as Method

from warren.actors.engines.declared.arguments import QueueDeclaration, locked
from warren.actors.engines.declared.exchanges import (
    ALTERNATE_EXCHANGE,
    EXCHANGE_TYPES,
    RESERVED_PREFIX,
    Binding,
    ExchangeDeclaration,
)
from warren.actors.engines.declared.queue_arguments import QUORUM
from warren.actors.engines.declared.stream_arguments import STREAM, check_filter_size
from warren.actors.node.node_registry import NodeRegistry
from warren.actors.queue.queue_entry import QueueEntry
from warren.actors.runtime.future import Future
from warren.aio import bridge
from warren.amqp.methods import method_of
from warren.server.channels.channel_link import ChannelLink
from warren.server.channels.direct_reply import check_declared
from warren.server.channels.streams import find_stream, refuse_stream
from warren.server.replies import (
    ACCESS_REFUSED,
    COMMAND_INVALID,
    NOT_IMPLEMENTED,
    PRECONDITION_FAILED,
    RESOURCE_LOCKED,
    Refusal,
)
from warren.server.server_context import is_reply_queue
from warren.verbs.steps import call

if TYPE_CHECKING:
    from warren.actors.topics.streams import Stream


def find_queue(channel: ChannelLink, name: str) -> QueueEntry:
    """Return a queue that this connection may use. Raises :class:`NotFoundError`, :class:`ResourceLockedError`."""
    return channel.node.registry.find_queue(channel.vhost, name, channel.connection)


def _declared_name(name: str) -> str:
    """Return the name without line breaks, as RabbitMQ does."""
    return name.replace("\r", "").replace("\n", "")


# ── exchanges ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def declare_exchange(channel: ChannelLink, method: c.Exchange.Declare) -> Method:
    name = _declared_name(method.exchange)
    definitions = channel.node.vhost(channel.vhost).definitions
    if method.passive:
        _refuse_default(name)
        definitions.exchange(name)
        return c.Exchange.DeclareOk()
    if method.exchange_type not in EXCHANGE_TYPES:
        reason = "unknown" if method.exchange_type else "invalid"  # Erlang has an atom for the empty name
        raise Refusal(COMMAND_INVALID, f"{reason} exchange type '{method.exchange_type}'")
    _refuse_default(name)
    channel.check("exchange", name, "configure")
    arguments = method.arguments or {}
    fields: dict[str, Any] = {
        "type": method.exchange_type,
        "durable": method.durable,
        "auto_delete": method.auto_delete,
        "internal": method.internal,
    }
    if definitions.has("exchange", name):
        if (difference := definitions.exchange(name).differs(arguments=arguments, **fields)) is not None:
            raise Refusal(PRECONDITION_FAILED, difference)
    elif isinstance(alternate := arguments.get(ALTERNATE_EXCHANGE), str):
        channel.check("exchange", name, "read")
        channel.check("exchange", alternate, "write")
    declaration = ExchangeDeclaration(vhost=channel.vhost, name=name, arguments=arguments, **fields)
    await channel.change(lambda registry: registry.declare_exchange(declaration))
    return c.Exchange.DeclareOk()


def _refuse_default(name: str) -> None:
    if not name:
        raise Refusal(ACCESS_REFUSED, "operation not permitted on the default exchange")


async def delete_exchange(channel: ChannelLink, method: c.Exchange.Delete) -> Method:
    name = _declared_name(method.exchange)
    _refuse_default(name)
    channel.node.vhost(channel.vhost).definitions.check_deletable(name)
    channel.check("exchange", name, "configure")
    await channel.change(lambda registry: registry.delete_exchange(channel.vhost, name, if_unused=method.if_unused))
    return c.Exchange.DeleteOk()


# ── queues ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def declare_queue(channel: ChannelLink, method: c.Queue.Declare) -> Method:
    name = _declared_name(method.queue)
    if is_reply_queue(name):
        check_declared(channel, name)
        return method_of(c.Queue.DeclareOk, queue=name, message_count=0, consumer_count=1)
    if method.passive:
        entry = find_stream(channel, name) or find_queue(channel, name)
    else:
        entry = await _declare(channel, name, method)
    name = channel.last_queue = entry.declaration.name
    ready, consumers = await _counts(channel, entry)
    return method_of(c.Queue.DeclareOk, queue=name, message_count=ready, consumer_count=consumers)


async def _declare(channel: ChannelLink, name: str, method: c.Queue.Declare) -> QueueEntry | Stream:
    arguments = dict(method.arguments or {})
    kind: Any = arguments.get("x-queue-type")
    is_stream = kind == STREAM
    if not name and kind in (QUORUM, STREAM):
        raise Refusal(PRECONDITION_FAILED, f"Cannot declare a server-named queue for type rabbit_{kind}_queue")
    if not name:
        name = channel.node.new_queue_name()
    elif name.startswith(RESERVED_PREFIX):
        raise Refusal(ACCESS_REFUSED, f"queue name '{name}' contains reserved prefix 'amq.*'")
    channel.check("queue", name, "configure")
    if (existing := _existing(channel, name)) is not None:
        _check_equivalent(existing, method, arguments)
        declaration = attrs.evolve(existing, topic="")  # arguments that are not compared may be anything
    else:
        if not is_stream:
            _check_new_queue(channel, name, arguments)
        declaration = QueueDeclaration(
            vhost=channel.vhost,
            name=name,
            durable=method.durable and not method.exclusive,
            exclusive=method.exclusive,
            auto_delete=method.auto_delete,
            arguments=arguments,
        )
        if is_stream and channel.server.settings.announces_stream_filters:
            declaration.check_new()
            check_filter_size(declaration, arguments)

    def declare(registry: NodeRegistry) -> QueueEntry | Stream:
        if is_stream:
            return registry.declare_stream(declaration)
        return registry.declare_queue(declaration, channel.connection)

    entry: QueueEntry | Stream = await channel.change(declare)
    return entry


def _check_new_queue(channel: ChannelLink, name: str, arguments: Mapping[str, Any]) -> None:
    channel.node.registry.check_queue_limit(channel.vhost, name)
    if isinstance(exchange := arguments.get("x-dead-letter-exchange"), str):
        channel.check("queue", name, "read")
        channel.check("exchange", exchange, "write")


def _existing(channel: ChannelLink, name: str) -> QueueDeclaration | None:
    """Return the queue or stream of this name. Raises :class:`ResourceLockedError`."""
    if (stream := find_stream(channel, name)) is not None:
        return stream.declaration
    exists = name in channel.node.vhost(channel.vhost).queues
    return find_queue(channel, name).declaration if exists else None


def _check_equivalent(existing: QueueDeclaration, method: c.Queue.Declare, arguments: Mapping[str, Any]) -> None:
    """Reject a redeclaration whose properties differ, before validating it."""
    if existing.exclusive != method.exclusive:
        raise Refusal(RESOURCE_LOCKED, locked(existing))
    durable = method.durable and not method.exclusive
    difference = existing.differs(durable=durable, auto_delete=method.auto_delete, arguments=arguments)
    if difference is not None:
        raise Refusal(PRECONDITION_FAILED, difference)


async def _counts(channel: ChannelLink, entry: QueueEntry | Stream) -> tuple[int, int]:
    """Return the numbers of ready messages and of consumers."""
    if not isinstance(entry, QueueEntry):  # RabbitMQ reports no consumers of a stream
        await bridge.run(channel.node.caught_up())
        return len(await bridge.in_thread(entry.bounds)), 0
    actor = entry.actor

    ready, consumers = await bridge.answer(call(actor, actor.lengths))
    if isinstance(ready, Future):  # a crash has left many: RabbitMQ counts them before it accepts clients
        ready = await bridge.answer(ready)
    return ready, consumers


async def delete_queue(channel: ChannelLink, method: c.Queue.Delete) -> Method:
    name = channel.queue_name(_declared_name(method.queue))
    channel.check("queue", name, "configure")
    _check_deletion(channel, name, method)
    deleted: int = await channel.change(
        lambda registry: registry.delete_queue(
            channel.vhost, name, owner=channel.connection, if_empty=method.if_empty, if_unused=method.if_unused
        )
    )
    return method_of(c.Queue.DeleteOk, message_count=deleted)


def _check_deletion(channel: ChannelLink, name: str, method: c.Queue.Delete) -> None:
    entry = channel.node.vhost(channel.vhost).queues.get(name)
    if entry is None or not entry.declaration.is_quorum:
        return
    for asked, flag in ((method.if_unused, "if-unused"), (method.if_empty, "if-empty")):
        if asked:
            raise Refusal(
                NOT_IMPLEMENTED,
                f"cannot delete {entry.declaration}. queue.delete operations with {flag} flag set are not supported "
                "by quorum queues",
            )


async def purge_queue(channel: ChannelLink, method: c.Queue.Purge) -> Method:
    name = channel.queue_name(method.queue)
    channel.check("queue", name, "read")
    refuse_stream(channel, name, "queue.purge")
    actor = find_queue(channel, name).actor
    purged: int = await bridge.answer(call(actor, actor.purge))
    return method_of(c.Queue.PurgeOk, message_count=purged)


# ── bindings ─────────────────────────────────────────────────────────────────────────────────────────────────────────

_BINDING_CHANGES: Final[dict[type[Method], tuple[Callable[[NodeRegistry, Binding, object], None], Method]]] = {
    c.Exchange.Bind: (NodeRegistry.bind, c.Exchange.BindOk()),
    c.Exchange.Unbind: (NodeRegistry.unbind, c.Exchange.UnbindOk()),
    c.Queue.Bind: (NodeRegistry.bind, c.Queue.BindOk()),
    c.Queue.Unbind: (NodeRegistry.unbind, c.Queue.UnbindOk()),
}
"""By method, the change and its answer."""


async def change_exchange_binding(channel: ChannelLink, method: c.Exchange.Bind | c.Exchange.Unbind) -> Method:
    destination = _declared_name(method.destination)
    channel.check("exchange", destination, "write")
    _refuse_default(destination)
    binding = Binding(
        vhost=channel.vhost,
        source=_declared_name(method.source),
        destination=destination,
        destination_type="exchange",
        routing_key=method.routing_key,
        arguments=method.arguments or {},
    )
    return await _change_binding(channel, method, binding)


async def change_queue_binding(channel: ChannelLink, method: c.Queue.Bind | c.Queue.Unbind) -> Method:
    queue = _declared_name(method.queue)
    name = channel.queue_name(queue)
    channel.check("queue", name, "write")
    binding = Binding(
        vhost=channel.vhost,
        source=_declared_name(method.exchange),
        destination=name,
        routing_key=method.routing_key if queue or method.routing_key else name,
        arguments=method.arguments or {},
    )
    return await _change_binding(channel, method, binding)


async def _change_binding(channel: ChannelLink, method: Method, binding: Binding) -> Method:
    source = binding.source
    _refuse_default(source)
    channel.check("exchange", source, "read")
    if channel.node.vhost(channel.vhost).definitions.has("exchange", source):
        channel.check_topic(source, binding.routing_key, "read")
    change, answer = _BINDING_CHANGES[type(method)]
    await channel.change(lambda registry: change(registry, binding, channel.connection))
    return answer


METHODS: Final[dict[type[Method], Callable[[ChannelLink, Any], Coroutine[Any, Any, Method]]]] = {
    c.Exchange.Declare: declare_exchange,
    c.Exchange.Delete: delete_exchange,
    c.Exchange.Bind: change_exchange_binding,
    c.Exchange.Unbind: change_exchange_binding,
    c.Queue.Declare: declare_queue,
    c.Queue.Delete: delete_queue,
    c.Queue.Purge: purge_queue,
    c.Queue.Bind: change_queue_binding,
    c.Queue.Unbind: change_queue_binding,
}
"""By method, what it changes; the answer is returned."""


async def perform(channel: ChannelLink, method: Any) -> None:
    """Make the change that one of :data:`METHODS` asks for, and answer, unless the client waits for no answer."""
    answer = await METHODS[type(method)](channel, method)
    if not getattr(method, "nowait", False):  # queue.unbind has no such bit
        channel.send(answer)
