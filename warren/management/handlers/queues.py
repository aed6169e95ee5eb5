"""Queues: listed, declared, deleted, purged."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from warren.actors.engines.declared.arguments import QueueDeclaration
from warren.actors.queue.queue_entry import QueueEntry
from warren.hosting.queue_rows import each_queue, find_queue
from warren.management.call import Call
from warren.management.clients import consumers_of
from warren.management.handlers.overview import disable_stats
from warren.management.http import Long, arguments_of, bad_request, boolean, done, not_found, required, with_rests
from warren.management.lists import listed
from warren.management.samples import LENGTHS, Document, declared
from warren.storage.errors import WarrenError
from warren.verbs.queue_host import LocalQueue
from warren.verbs.queue_verbs import QueueVerbs

if TYPE_CHECKING:
    from warren.actors.topics.streams import Stream


def _short(call: Call, declaration: QueueDeclaration) -> Document:
    return declared(declaration, call.managed.node_name)


def find(call: Call) -> QueueEntry | Stream:
    """Return the queue of the path. Raises :class:`HttpError` if it does not exist."""
    if (queue := find_queue(call.node, call.vhost, call.parts["queue"])) is None:
        raise not_found()
    return queue


def find_classic(call: Call, what: str) -> QueueEntry:
    """The same, for ``what`` a stream cannot do. Raises :class:`HttpError` for a stream."""
    queue = find(call)
    if not isinstance(queue, QueueEntry):
        raise bad_request(f"{what} not supported by stream queues {queue.declaration}")
    queue.check_owner(None)
    return queue


async def queues(call: Call) -> Any:
    """``/api/queues``, ``/api/queues/:vhost``."""
    declarations = [queue.declaration for vhost in call.listed_vhosts for _, queue in each_queue(call.node, vhost)]
    past, without_stats = call.past, disable_stats(call)
    if without_stats and call.query.get("enable_queue_totals") != "true":
        return Long(
            lambda: listed(
                (_short(call, declaration) for declaration in with_rests(declarations)), call.query, pages=True
            )
        )
    sample = await call.sample()

    def documents() -> Iterator[Document]:
        for declaration in with_rests(declarations):
            if (queue_sample := sample.queues.get((declaration.vhost, declaration.name))) is None:
                continue
            if not without_stats:
                yield call.managed.samples.document(queue_sample, past)
            else:
                totals = {name: queue_sample.document.get(name, 0) for name in LENGTHS}
                yield _short(call, declaration) | {"state": queue_sample.document["state"]} | totals

    return Long(lambda: listed(documents(), call.query, pages=True))


async def queue(call: Call) -> Any:
    """``/api/queues/:vhost/:queue``."""
    queue = find(call)
    declaration = queue.declaration
    if disable_stats(call):
        return _short(call, declaration)
    if not isinstance(queue, QueueEntry):
        with contextlib.suppress(WarrenError):  # the topics are down: the sample says so
            await call.managed.run(call.node.caught_up())
    sample = await call.managed.sample_queue(declaration.vhost, declaration.name)
    if sample is None:
        raise not_found()
    consumers = [
        consumer
        for consumer in consumers_of(call.managed.clients)
        if consumer["queue"] == {"vhost": declaration.vhost, "name": declaration.name}
    ]
    document = call.managed.samples.document(sample, call.past)
    return {"consumer_details": consumers, "deliveries": [], "incoming": []} | document


async def put_queue(call: Call) -> Any:
    """Declare a queue."""
    vhost, name = call.vhost_to_change, call.parts["queue"]
    body = await call.body()
    arguments = arguments_of(body)
    if (node := body.get("node", call.managed.node_name)) != call.managed.node_name:
        raise bad_request(f"Node {node} could not be contacted")
    call.check(vhost, "queue", name, "configure")
    if isinstance(exchange := arguments.get("x-dead-letter-exchange"), str):
        call.check(vhost, "queue", name, "read")
        call.check(vhost, "exchange", exchange, "write")
    new = not call.node.vhost(vhost).definitions.has("queue", name)
    declaration = QueueDeclaration(
        vhost=vhost,
        name=name,
        durable=boolean(body.get("durable")),
        auto_delete=boolean(body.get("auto_delete")),
        arguments=arguments,
    )
    if declaration.is_stream:
        await call.managed.change(lambda registry: registry.declare_stream(declaration))
    else:
        await call.managed.change(lambda registry: registry.declare_queue(declaration, call))
    return done(new)


async def delete_queue(call: Call) -> Any:
    """Delete a queue, with ``if-empty`` and ``if-unused``."""
    declaration = find(call).declaration
    vhost, name = declaration.vhost, declaration.name
    call.check(vhost, "queue", name, "configure")
    if_empty, if_unused = (call.query.get(flag) == "true" for flag in ("if-empty", "if-unused"))
    await call.managed.change(
        lambda registry: registry.delete_queue(vhost, name, owner=call, if_empty=if_empty, if_unused=if_unused)
    )
    return done()


async def purge(call: Call) -> Any:
    """Delete all ready messages."""
    entry = find_classic(call, "queue.purge")
    call.check(entry.declaration.vhost, "queue", entry.declaration.name, "read")
    await call.managed.run(QueueVerbs(LocalQueue(call.node, entry)).purge())
    return done()


async def act(call: Call) -> Any:
    """``sync`` and ``cancel_sync``, of mirrors, which a queue does not have."""
    find(call)
    (action,) = required(await call.body(), "action")
    if action not in ("sync", "cancel_sync"):
        raise bad_request(["unknown", action])
    return done()
