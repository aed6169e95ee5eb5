"""What RabbitMQ's API lacks: looking at the messages of a queue, and mending (:mod:`warren.verbs.mending_verbs`)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from warren.actors.engines.errors import ArgumentsError, NotFoundError
from warren.actors.queue.queue_entry import QueueEntry
from warren.aio import bridge
from warren.management.call import Call
from warren.management.handlers.messages import payload_json, properties_json
from warren.management.handlers.queues import find, find_classic
from warren.management.http import ANSWER_BYTES, bad_request, integer, not_found, required, with_rests
from warren.queue_index.properties import Properties, decode_properties
from warren.storage.errors import InvalidValueError, MessageError
from warren.values.messages import ReceivedMessage
from warren.verbs.mending_verbs import MendingVerbs
from warren.verbs.queue_host import LocalQueue
from warren.verbs.queue_verbs import QueueVerbs
from warren.verbs.selecting import PAGE, BrowsedDelivery, NotMovedError, Place, Walk
from warren.where import WhereError

if TYPE_CHECKING:
    from warren.actors.topics.streams import Stream

BROWSE_AT_MOST: Final = 500
LOOK_AT_MOST: Final = 20_000
"""The most messages that are looked at for one answer, if a condition is true of few."""
_BROWSED_BYTES: Final = 16_384
_NO_LIMIT: Final = 1 << 62


# ── looking ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def browse(call: Call) -> Any:
    """``/api/queues/:vhost/:queue/browse``: messages as they stand, none taken; those of consumers are ``unacked``.

    ``count``: how many, up to the size of an answer; ``where``: a condition; ``after``: only messages after this place
    (``next`` of the answer before); ``truncate``: bytes of a body.
    """
    queue = find(call)
    call.check(queue.declaration.vhost, "queue", queue.declaration.name, "read")
    count = max(1, min(BROWSE_AT_MOST, integer(call.query.get("count", 50))))
    limit = max(0, integer(call.query.get("truncate", _BROWSED_BYTES)))
    if not isinstance(queue, QueueEntry):
        return await _browse_stream(call, queue, count, limit)
    verbs, where = QueueVerbs(LocalQueue(call.node, find_classic(call, "browsing"))), call.query.get("where") or None
    after, messages, scanned = _place(call.query.get("after")), list[dict[str, Any]](), 0
    left_bytes = ANSWER_BYTES
    try:
        while len(messages) < count and scanned < LOOK_AT_MOST and left_bytes > 0:
            page_size = count - len(messages) if where is None else PAGE
            page, after = await call.managed.run(verbs.browse_page(where, page_size, after))
            fitting = list[BrowsedDelivery]()
            for message in page:
                if len(messages) + len(fitting) >= count or left_bytes <= 0:
                    after = fitting[-1].level, fitting[-1].seq_id
                    break
                fitting.append(message)
                left_bytes -= message.shown_bytes(limit)
            messages += await bridge.in_thread(functools.partial(_all_shown, fitting, limit))
            scanned += page_size
            if after is None:
                break
    except WhereError as error:
        raise bad_request(str(error)) from error
    return {"messages": messages, "next": None if after is None else f"{after[0]}.{after[1]}"}


def _all_shown(messages: list[BrowsedDelivery], limit: int) -> list[dict[str, Any]]:
    return [_shown(message, limit) for message in with_rests(messages)]


def _shown(message: BrowsedDelivery, limit: int) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "id": message.id,
        "seq_id": message.seq_id,
        "level": message.level,
        "unacked": message.unacked,
    }
    try:
        return shown | _message(message, limit)
    except MessageError as error:
        return shown | {"error": str(error)}


def _message(message: ReceivedMessage, limit: int) -> dict[str, Any]:
    content = _content(message.properties, message.body, limit)
    return {"exchange": message.exchange, "routing_key": message.routing_key, **content}


def _content(properties: Properties, body: bytes, limit: int) -> dict[str, Any]:
    return {
        "properties": properties_json(properties),
        "payload_bytes": len(body),
        **payload_json(body, "auto", limit),
    }


async def _browse_stream(call: Call, stream: Stream, count: int, limit: int) -> Any:
    """The same of a stream, whose places are offsets."""
    start = integer(call.query.get("after") or -1) + 1
    await call.managed.run(call.node.caught_up())
    page = await bridge.in_thread(lambda: stream.read(max(start, stream.bounds().start), count))
    messages = [
        {
            "offset": message.offset,
            "exchange": message.exchange,
            "routing_key": message.routing_key,
            **_content(decode_properties(message.properties), message.body, limit),
        }
        for message in page
    ]
    return {"messages": messages, "next": str(page[-1].offset) if page else None}


def _place(text: str | None) -> Place | None:
    if not text:
        return None
    level, _, seq_id = text.partition(".")
    return integer(level), integer(seq_id)


# ── mending ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def take(call: Call) -> Any:
    """``/api/queues/:vhost/:queue/take``: take one message out of the queue, by its ``id``."""
    verbs = _readable(call, "taking")
    (id,) = required(await call.body(), "id")
    try:
        channel, batches = await call.managed.run(verbs.take(str(id)))
    except ArgumentsError as error:
        raise bad_request(str(error)) from error
    if not batches:
        raise not_found(f"no message {id}, or a consumer has it")
    (delivered,) = batches
    try:
        return {"id": id} | _message(ReceivedMessage(delivered.fetched), _NO_LIMIT)
    except MessageError as error:
        return {"id": id, "error": str(error)}
    finally:
        channel.settle_all("ack", delivered.tags)


async def move(call: Call) -> Any:
    """``/api/queues/:vhost/:queue/move``: move messages to another queue of the vhost, or to an exchange.

    ``to``, or ``exchange`` and ``routing_key``; ``where`` or ``ids``; ``count``: the maximum. A message is deleted here
    once it is safe there, so no message is lost; a crash in between leaves it in both.
    """
    verbs, body = _readable(call, "moving"), await call.body()
    vhost = verbs.entry.declaration.vhost
    if "exchange" in body:
        exchange, routing_key = (_text(field) for field in required(body, "exchange", "routing_key"))
    else:
        (to,) = required(body, "to")
        exchange, routing_key = "", str(to)
    call.check(vhost, "exchange", exchange, "write")
    call.check_topic(vhost, exchange, routing_key, "write")
    walk = await _walked(call, lambda: MendingVerbs(verbs).moving((exchange, routing_key), *_which(body)))
    if walk.done:
        call.managed.clients.traffic.publish(vhost, exchange, walk.done, 1)
    return {"moved": walk.done}


async def remove(call: Call) -> Any:
    """``/api/queues/:vhost/:queue/remove``: delete messages, wherever they stand.

    ``where`` or ``ids``; ``count``: the maximum.
    """
    verbs, body = _readable(call, "removing"), await call.body()
    where, ids, count = _which(body)
    if where is None and ids is None:
        raise bad_request("which messages: where or ids; DELETE …/contents deletes all")
    walk = await _walked(call, lambda: MendingVerbs(verbs).removing(where, ids, count))
    return {"removed": walk.done}


async def requeue(call: Call) -> Any:
    """``/api/queues/:vhost/:queue/requeue``: return dead letters to the queues that they died in.

    ``where`` or ``ids``; ``count``: the maximum.
    """
    verbs, body = _readable(call, "requeueing"), await call.body()
    call.check(verbs.entry.declaration.vhost, "exchange", "", "write")
    walk = await _walked(call, lambda: MendingVerbs(verbs).requeueing(*_which(body)))
    return {"requeued": walk.done, "stayed": walk.chosen - walk.done}


def _readable(call: Call, action: str) -> QueueVerbs:
    """The verbs of the queue of the path, whose messages the user may read."""
    entry = find_classic(call, action)
    call.check(entry.declaration.vhost, "queue", entry.declaration.name, "read")
    return QueueVerbs(LocalQueue(call.node, entry))


def _which(body: Mapping[str, Any]) -> tuple[str | None, list[str] | None, int | None]:
    """Which messages a request means. Raises :class:`HttpError`."""
    where, ids, count = body.get("where"), body.get("ids"), body.get("count")
    if ids is not None and not (isinstance(ids, list) and all(isinstance(message_id, str) for message_id in ids)):
        raise bad_request("ids are a list of strings")
    return None if where is None else _text(where), ids, None if count is None else max(0, integer(count))


def _text(text: Any) -> str:
    if not isinstance(text, str):
        raise bad_request(["not_string", text])
    return text


async def _walked(call: Call, begin: Callable[[], Walk]) -> Walk:
    """Run a walk to its end and return it. Raises :class:`HttpError`."""
    try:
        walk = await bridge.in_thread(begin)  # it parses a condition
        await call.managed.run(walk.steps())
    except NotFoundError as error:
        raise not_found(str(error)) from error
    except (NotMovedError, InvalidValueError) as error:
        raise bad_request(str(error)) from error
    return walk
