"""Topology: what clients declare, bind and delete. Each is a coroutine of its channel."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Final

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
from warren.actors.engines.declared.stream_arguments import STREAM
from warren.actors.node.node_registry import NodeRegistry
from warren.actors.queue.queue_entry import QueueEntry
from warren.actors.runtime.future import Future
from warren.aio import bridge
from warren.amqp.methods import method_of
from warren.server.channels import streams
from warren.server.channels.channel_link import ChannelLink
from warren.server.channels.direct_reply import check_declared
from warren.server.replies import ACCESS_REFUSED, COMMAND_INVALID, PRECONDITION_FAILED, RESOURCE_LOCKED, Refusal
from warren.server.reply_addresses import is_reply_queue
from warren.verbs.steps import call

if TYPE_CHECKING:
    from warren.actors.topics.streams import Stream

Change = Callable[[NodeRegistry, Binding, object], None]


def find_queue(channel: ChannelLink, name: str) -> QueueEntry:
    """Return a queue that this connection may use. Raises :class:`NotFoundError`, :class:`ResourceLockedError`."""
    return channel.node.registry.find_queue(channel.vhost, name, channel.connection)


def _declared_name(name: str) -> str:
    """Return the name without line breaks, as RabbitMQ does."""
    return name.replace("\r", "").replace("\n", "")


# ── exchanges ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def declare_exchange(channel: ChannelLink, method: c.Exchange.Declare) -> None:
    name = _declared_name(method.exchange)
    definitions = channel.node.vhost(channel.vhost).definitions
    if method.passive:
        _refuse_default(name)
        definitions.exchange(name)
    else:
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
    if not method.nowait:
        channel.send(c.Exchange.DeclareOk())


def _refuse_default(name: str) -> None:
    if not name:
        raise Refusal(ACCESS_REFUSED, "operation not permitted on the default exchange")


async def delete_exchange(channel: ChannelLink, method: c.Exchange.Delete) -> None:
    name = _declared_name(method.exchange)
    _refuse_default(name)
    channel.node.vhost(channel.vhost).definitions.check_deletable(name)
    channel.check("exchange", name, "configure")
    await channel.change(lambda registry: registry.delete_exchange(channel.vhost, name, if_unused=method.if_unused))
    if not method.nowait:
        channel.send(c.Exchange.DeleteOk())


async def bind_exchange(channel: ChannelLink, method: c.Exchange.Bind) -> None:
    await _bind_exchange(channel, method, NodeRegistry.bind)
    if not method.nowait:
        channel.send(c.Exchange.BindOk())


async def unbind_exchange(channel: ChannelLink, method: c.Exchange.Unbind) -> None:
    await _bind_exchange(channel, method, NodeRegistry.unbind)
    if not method.nowait:
        channel.send(c.Exchange.UnbindOk())


async def _bind_exchange(channel: ChannelLink, method: c.Exchange.Bind | c.Exchange.Unbind, change: Change) -> None:
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
    await _change_binding(channel, binding, change)


async def _change_binding(channel: ChannelLink, binding: Binding, change: Change) -> None:
    source = binding.source
    _refuse_default(source)
    channel.check("exchange", source, "read")
    if channel.node.vhost(channel.vhost).definitions.has("exchange", source):
        channel.check_topic(source, binding.routing_key, "read")
    await channel.change(lambda registry: change(registry, binding, channel.connection))


# ── queues ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def declare_queue(channel: ChannelLink, method: c.Queue.Declare) -> None:
    name = _declared_name(method.queue)
    if is_reply_queue(name):
        check_declared(channel, name)
        if not method.nowait:
            channel.send(method_of(c.Queue.DeclareOk, queue=name, message_count=0, consumer_count=1))
        return
    if method.passive:
        entry = streams.find_stream(channel, name) or find_queue(channel, name)
    else:
        entry = await _declare(channel, name, method)
    name = channel.last_queue = entry.declaration.name
    ready, consumers = await _counts(channel, entry)
    if not method.nowait:
        channel.send(method_of(c.Queue.DeclareOk, queue=name, message_count=ready, consumer_count=consumers))


async def _declare(channel: ChannelLink, name: str, method: c.Queue.Declare) -> QueueEntry | Stream:
    wants_stream = (method.arguments or {}).get("x-queue-type") == STREAM
    if not name and wants_stream:
        streams.refuse_server_name()
    if not name:
        name = channel.node.new_queue_name()
    elif name.startswith(RESERVED_PREFIX):
        raise Refusal(ACCESS_REFUSED, f"queue name '{name}' contains reserved prefix 'amq.*'")
    channel.check("queue", name, "configure")
    existing = streams.find_stream(channel, name)
    if existing is not None or (wants_stream and _exists(channel, name)):
        _check_equivalent((existing or find_queue(channel, name)).declaration, method, method.arguments or {})
    return await (streams.declare if wants_stream else _declare_queue)(channel, name, method)


def _exists(channel: ChannelLink, name: str) -> bool:
    return name in channel.node.vhost(channel.vhost).queues


async def _counts(channel: ChannelLink, entry: QueueEntry | Stream) -> tuple[int, int]:
    """Return the numbers of ready messages and of consumers."""
    if not isinstance(entry, QueueEntry):
        return await streams.count(channel, entry), 0  # RabbitMQ reports no consumers of a stream
    actor = entry.actor

    ready, consumers = await bridge.answer(call(actor, actor.lengths))
    if isinstance(ready, Future):  # a crash has left many: RabbitMQ counts them before it accepts clients
        ready = await bridge.answer(ready)
    return ready, consumers


async def _declare_queue(channel: ChannelLink, name: str, method: c.Queue.Declare) -> QueueEntry:
    arguments = dict(method.arguments or {})
    kind = arguments.get("x-queue-type")
    if kind == "quorum" and channel.server.settings.default_queue_type_for_quorum == "classic":
        arguments["x-queue-type"], method.durable = "classic", True
    elif kind == "quorum":
        raise Refusal(
            PRECONDITION_FAILED, f"queue '{name}' in vhost '{channel.vhost}': there are no {kind} queues here"
        )
    if _exists(channel, name):
        _check_equivalent(find_queue(channel, name).declaration, method, arguments)
    else:
        channel.node.registry.check_queue_limit(channel.vhost, name)
        if isinstance(exchange := arguments.get("x-dead-letter-exchange"), str):
            channel.check("queue", name, "read")
            channel.check("exchange", exchange, "write")
    declaration = QueueDeclaration(
        vhost=channel.vhost,
        name=name,
        durable=method.durable and not method.exclusive,
        exclusive=method.exclusive,
        auto_delete=method.auto_delete,
        arguments=arguments,
    )
    entry: QueueEntry = await channel.change(lambda registry: registry.declare_queue(declaration, channel.connection))
    return entry


def _check_equivalent(existing: QueueDeclaration, method: c.Queue.Declare, arguments: Mapping[str, Any]) -> None:
    """Reject a redeclaration whose properties differ, before validating it."""
    if existing.exclusive != method.exclusive:
        raise Refusal(RESOURCE_LOCKED, locked(existing))
    durable = method.durable and not method.exclusive
    difference = existing.differs(durable=durable, auto_delete=method.auto_delete, arguments=arguments)
    if difference is not None:
        raise Refusal(PRECONDITION_FAILED, difference)


async def delete_queue(channel: ChannelLink, method: c.Queue.Delete) -> None:
    name = channel.queue_name(_declared_name(method.queue))
    channel.check("queue", name, "configure")
    deleted: int = await channel.change(
        lambda registry: registry.delete_queue(
            channel.vhost, name, owner=channel.connection, if_empty=method.if_empty, if_unused=method.if_unused
        )
    )
    if not method.nowait:
        channel.send(method_of(c.Queue.DeleteOk, message_count=deleted))


async def purge_queue(channel: ChannelLink, method: c.Queue.Purge) -> None:
    name = channel.queue_name(method.queue)
    channel.check("queue", name, "read")
    streams.refuse_purge(channel, name)
    actor = find_queue(channel, name).actor
    purged: int = await bridge.answer(call(actor, actor.purge))
    if not method.nowait:
        channel.send(method_of(c.Queue.PurgeOk, message_count=purged))


async def bind_queue(channel: ChannelLink, method: c.Queue.Bind) -> None:
    await _bind_queue(channel, method, NodeRegistry.bind)
    if not method.nowait:
        channel.send(c.Queue.BindOk())


async def unbind_queue(channel: ChannelLink, method: c.Queue.Unbind) -> None:
    await _bind_queue(channel, method, NodeRegistry.unbind)
    channel.send(c.Queue.UnbindOk())


async def _bind_queue(channel: ChannelLink, method: c.Queue.Bind | c.Queue.Unbind, change: Change) -> None:
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
    await _change_binding(channel, binding, change)


METHODS: Final[dict[type[Method], Callable[[ChannelLink, Any], Coroutine[Any, Any, None]]]] = {
    c.Exchange.Declare: declare_exchange,
    c.Exchange.Delete: delete_exchange,
    c.Exchange.Bind: bind_exchange,
    c.Exchange.Unbind: unbind_exchange,
    c.Queue.Declare: declare_queue,
    c.Queue.Delete: delete_queue,
    c.Queue.Purge: purge_queue,
    c.Queue.Bind: bind_queue,
    c.Queue.Unbind: unbind_queue,
}
