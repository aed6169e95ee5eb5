"""Calls: the verbs of a node that a process of a shared directory calls here (:mod:`warren.client.calls`)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Final

from warren.actors.engines.arguments import QueueDeclaration
from warren.actors.engines.errors import NotFoundError
from warren.aio import bridge
from warren.amqp.own_methods import Call, CallError, CallOk
from warren.client.calls import plain
from warren.queue_verbs import QueueVerbs
from warren.server.topology import find_queue
from warren.storage.errors import WarrenError
from warren.vhost_verbs import NodeVerbs, VhostVerbs

if TYPE_CHECKING:
    from warren.server.channel import ServerChannel

Verb = Callable[..., Any]
"""Called with the channel and the arguments; returns the answer, or steps to it."""


async def call_verb(channel: ServerChannel, method: Call) -> None:
    """Call a verb and answer. What it raises is the answer, too: the channel goes on."""
    try:
        verb = VERBS.get(method.verb)
        if verb is None:
            raise NotFoundError(f"no verb '{method.verb}'")
        found = verb(channel, **method.arguments)
        if isinstance(found, Generator):
            found = await bridge.run(found)
        answer: CallOk | CallError = CallOk({"result": plain(found)})
    except (WarrenError, ValueError, TypeError, KeyError) as error:
        answer = CallError(type(error).__name__, str(error))
    channel.send(answer)


def _any(channel: ServerChannel, vhost: str, verb: str, arguments: list[Any], keywords: dict[str, Any]) -> Any:
    """A verb of a node, or of a vhost, whose arguments and answer are plain values."""
    of = NodeVerbs(channel.node) if hasattr(NodeVerbs, verb) and vhost == "/" else VhostVerbs(channel.node, vhost)
    found = None if verb.startswith("_") else getattr(type(of), verb, None)
    if not inspect.isfunction(found):
        raise NotFoundError(f"no verb '{verb}'")
    return found(of, *arguments, **keywords)


def _queue(channel: ServerChannel, name: str) -> QueueVerbs:
    return QueueVerbs(channel.node, find_queue(channel, name))


def _declaration(channel: ServerChannel, name: str) -> dict[str, Any]:
    declaration: QueueDeclaration = find_queue(channel, name).declaration
    return {
        "name": declaration.name,
        "durable": declaration.durable,
        "exclusive": declaration.exclusive,
        "auto_delete": declaration.auto_delete,
        "arguments": dict(declaration.arguments),
    }


def _exchange(channel: ServerChannel, vhost: str, name: str) -> dict[str, Any]:
    declaration = channel.node.vhost(vhost).definitions.exchange(name)
    return {
        "name": declaration.name,
        "type": declaration.type,
        "durable": declaration.durable,
        "auto_delete": declaration.auto_delete,
        "internal": declaration.internal,
        "arguments": dict(declaration.arguments),
    }


def _browse(channel: ServerChannel, name: str, count: int, after: list[int] | None) -> Any:
    page = yield from _queue(channel, name).page(count, None if after is None else (after[0], after[1]))
    return [
        {
            "level": one.level,
            "seq_id": one.browsed.seq_id,
            "msg_id": one.browsed.msg_id,
            "unacked": one.browsed.unacked,
            "expiry_us": one.browsed.properties.expiry_us,
            "size": one.browsed.properties.size,
            "term": one.browsed.term,
        }
        for one in page
    ]


VERBS: Final[dict[str, Verb]] = {
    "queue.declaration": lambda channel, vhost, name: _declaration(channel, name),
    "queue.declarations": lambda channel, vhost, names: [_declaration(channel, name) for name in names],
    "queue.stats": lambda channel, name: _queue(channel, name).stats(),
    "queue.sync": lambda channel, name: _queue(channel, name).sync(),
    "queue.set_mode": lambda channel, name, mode: _queue(channel, name).set_mode(mode),
    "queue.browse": _browse,
    "exchange.declaration": _exchange,
    "vhost.queues": lambda channel, vhost: [
        _declaration(channel, name)
        for name, entry in list(channel.node.vhost(vhost).queues.items())
        if entry.owner in (None, channel.connection)
    ],
    "vhost.delete_queue": lambda channel, vhost, name, **how: VhostVerbs(channel.node, vhost).delete_queue(name, **how),
    "node.declare_vhost": lambda channel, name: channel.node.change(lambda actor: actor.declare_vhost(name)),
    "node.import_definitions": lambda channel, document, vhost: NodeVerbs(channel.node).import_definitions(
        document, vhost
    ),
    "any": _any,
}
"""By name."""
