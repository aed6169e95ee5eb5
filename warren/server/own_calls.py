"""Calls: the verbs of a node that a process of a shared directory calls here (:mod:`warren.client.calls`)."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Final

import attrs
import numpy as np
from pamqp.base import Frame as Method

from warren.actors.engines.errors import NotFoundError
from warren.actors.queue.queue_entry import QueueEntry
from warren.actors.runtime.future import Future
from warren.aio import bridge
from warren.amqp.own_methods import Call, CallOk
from warren.client.calls import plain, refusal_of, restored, unpacked
from warren.client.topic_batches import batch_of
from warren.msg_store.commit_log.commit_log import Appended
from warren.msg_store.commit_log.commit_log_format import encode
from warren.queue_index.message.amqp_tables import write_value
from warren.server.channel_link import ChannelLink, Work
from warren.server.consuming import ChannelConsumers
from warren.server.readers import ChannelReader
from warren.server.replies import Refusal
from warren.server.tails import ChannelTail
from warren.server.topology import find_queue
from warren.storage.errors import WarrenError
from warren.verbs.operation import DEFINITIONS, Definition, Performer, Target
from warren.verbs.publishing import AsTheyWere
from warren.verbs.queue_verbs import QueueVerbs
from warren.verbs.topic_verbs import TopicVerbs, hand_over
from warren.verbs.transaction_verbs import TransactionVerbs
from warren.verbs.vhost_verbs import NodeVerbs, VhostVerbs, declare_queue

_ANSWERED: Final = (WarrenError, ValueError, TypeError, LookupError)
"""The errors that a verb may raise; any other is a bug."""
Verb = Callable[..., Any]
"""Called with the calls of a channel and the arguments; returns the answer, or what leads to it: steps, a coroutine or
:class:`Later`."""


@attrs.frozen
class Later:
    """An answer that comes with ``confirm``; meanwhile the channel continues."""

    confirm: Future
    answer: Callable[[Any], Any]
    """Makes the answer from the confirm's result."""


class OwnCalls:
    """The state of a channel between its calls: answers in their order, and its reader or tail."""

    def __init__(self, channel: ChannelLink, consumers: ChannelConsumers) -> None:
        self.channel = channel
        self.node = channel.node
        self.consumers = consumers
        self._line: deque[Method | Later] = deque()
        self._waiters: list[asyncio.Future[None]] = []
        self.reader: ChannelReader | ChannelTail | None = None

    def answer(self, reply: Method | Later) -> None:
        """Answer a call, once those before it are answered."""
        self._line.append(reply)
        if isinstance(reply, Later) and not reply.confirm.done:
            reply.confirm.on_done(lambda _: self.channel.server.rounds.post(self._tell))
            reply.confirm.hurry()
        self._tell()

    def _tell(self) -> None:
        while self._line:
            first = self._line[0]
            if isinstance(first, Later):
                if not first.confirm.done:
                    return
                first = _answer_of(first)
            self._line.popleft()
            self.channel.send(first)
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter.set_result(None)

    async def all_told(self) -> None:
        """Wait until all calls are answered."""
        if self._line:
            waiter = self.channel.server.loop.create_future()
            self._waiters.append(waiter)
            await waiter

    async def release(self) -> None:
        """The channel is over."""
        reader, self.reader = self.reader, None
        if reader is not None:
            await bridge.run(reader.leave())


def _answer_of(later: Later) -> Method:
    error = later.confirm.error
    if error is None:
        return CallOk({"result": plain(later.answer(later.confirm.get()))})
    return refusal_of(error if isinstance(error, Exception) else WarrenError(str(error)))


def call_verb(calls: OwnCalls, method: Call) -> Work:
    """Call a verb and answer. An error that it raises is an answer, too: the channel stays open."""
    try:
        arguments = restored(dict(method.arguments))
        if (definition := DEFINITIONS.get(method.verb)) is not None:
            return _answer_when(calls, _performed(calls, definition, **arguments))
        verb = VERBS.get(method.verb)
        if verb is None:
            raise NotFoundError(f"no verb '{method.verb}'")
        result = verb(calls, **arguments)
        if isinstance(result, (Generator, Coroutine)):
            return _answer_when(calls, result)
        calls.answer(_answer(result))
    except Refusal:
        raise
    except _ANSWERED as error:
        calls.answer(refusal_of(error))
    return None


async def _answer_when(calls: OwnCalls, waits: Generator[Any, Any, Any] | Coroutine[Any, Any, Any]) -> None:
    try:
        calls.answer(_answer(await (bridge.run(waits) if isinstance(waits, Generator) else waits)))
    except Refusal:
        raise
    except _ANSWERED as error:
        calls.answer(refusal_of(error))


def _answer(result: Any) -> Method | Later:
    return result if isinstance(result, (Later, CallOk)) else CallOk({"result": plain(result)})


def _written(result: Any) -> CallOk:
    """Return the encoded answer; run in a thread, as it may be long."""
    return CallOk({"result": write_value(plain(result))})


async def _performed(
    calls: OwnCalls, definition: Definition, of: str, arguments: list[Any], keywords: dict[str, Any]
) -> CallOk:
    """Perform an operation on what has the name ``of``."""
    performer = _PERFORMERS[definition.target](calls, of)
    answer = await bridge.run(definition.body(performer, *arguments, **keywords))
    if definition.target in ("node", "vhost"):
        return await bridge.in_thread(lambda: _written(definition.encode(answer)))
    return CallOk({"result": plain(definition.encode(answer))})


def _queue(calls: OwnCalls, name: str) -> QueueVerbs:
    return QueueVerbs(calls.node, find_queue(calls.channel, name))


def _declaration(entry: QueueEntry) -> dict[str, Any]:
    return entry.declaration.to_json() | {"exclusive": entry.declaration.exclusive}


def _declare_queue(calls: OwnCalls, vhost: str, name: str, properties: dict[str, Any], passive: bool) -> Any:
    owner = calls.channel.connection
    return _declaration((yield from declare_queue(calls.node, vhost, name, properties, owner=owner, passive=passive)))


def _queues(calls: OwnCalls, vhost: str) -> Any:
    entries, owners = list(calls.node.vhost(vhost).queues.values()), (None, calls.channel.connection)
    return bridge.in_thread(lambda: _written([_declaration(entry) for entry in entries if entry.owner in owners]))


def _exchange(calls: OwnCalls, vhost: str, name: str) -> dict[str, Any]:
    return calls.node.vhost(vhost).definitions.exchange(name).to_json()


def _tail(calls: OwnCalls, name: str, last: int) -> Any:
    tail = ChannelTail(calls.channel, _queue(calls, name))
    calls.reader = tail
    return tail.join(last)


def _move(calls: OwnCalls, name: str, ids: list[str], to: list[str] | None) -> Any:
    return _queue(calls, name).move_ids(ids, None if to is None else (to[0], to[1]))


def _publish_as_they_were(calls: OwnCalls, name: str, groups: list[dict[str, Any]]) -> Any:
    messages = [
        AsTheyWere(group["exchange"], tuple(group["routing_keys"]), group["properties"], unpacked(group["bodies"]))
        for group in groups
    ]
    return _queue(calls, name).publish_as_they_were(messages)


def _publish_unique(calls: OwnCalls, name: str, bodies: bytes, properties: dict[str, Any], several: bool) -> Any:
    queue = _queue(calls, name)
    connection = calls.channel.connection
    connection.tell_blocked()
    try:
        confirm = yield from queue.publish_unique(unpacked(bodies), properties, several=several, passes_alarms=True)
    finally:
        connection.tell_unblocked()
    return Later(confirm, lambda _: confirm.duplicates)


# ── topics ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _declare_topic(calls: OwnCalls, name: str, queues: int | None) -> Any:
    topic = yield from NodeVerbs(calls.node).topic(name, queues=queues)
    return {"queues": topic.queues, "settings": attrs.asdict(calls.node.config.topics)}


def _append(calls: OwnCalls, batches: list[dict[str, Any]]) -> Any:
    decoded = [batch_of(encoded) for encoded in batches]
    running = yield from calls.node.topics()
    for batch in decoded:
        running.store.check(batch)
    connection = calls.channel.connection
    connection.tell_blocked()
    try:
        confirm = yield from hand_over(calls.node, decoded, True, None, passes_alarms=True)
    finally:
        connection.tell_unblocked()
    queues = running.table.queues

    def answer(appended: list[Appended]) -> list[dict[str, Any]]:
        return [
            {
                "queue_offset": result.queue_offset,
                "physical_offsets": result.physical_offsets.astype(np.int64).tobytes(),
                "sizes": result.sizes.astype(np.int32).tobytes(),
                "queues": queues(batch.topic) or 1,
            }
            for result, batch in zip(appended, decoded, strict=True)
        ]

    return Later(confirm, answer)


def _transaction(calls: OwnCalls, verb: str, **of: Any) -> Any:
    verbs = TransactionVerbs(calls.node, **of)
    match verb:
        case "record":
            return encode((yield from verbs.record()))
        case "commit":
            return Later((yield from verbs.commit()), lambda _: None)
        case "rollback":
            return Later((yield from verbs.rollback()), lambda _: None)
    raise NotFoundError(f"no verb '{verb}'")


def _pending(calls: OwnCalls) -> Any:
    transactions = yield from NodeVerbs(calls.node).pending_transactions()
    return [transaction.place for transaction in transactions]


def _join(calls: OwnCalls, **arguments: Any) -> Any:
    reader = ChannelReader(calls.channel, arguments)
    calls.reader = reader
    return reader.join()


def _reader(calls: OwnCalls, verb: str, **arguments: Any) -> Any:
    reader = calls.reader
    function = getattr(reader, verb, None) if verb in READER_VERBS else None
    if function is None:
        raise NotFoundError(f"no verb '{verb}' of a reader")
    return function(**arguments)


_PERFORMERS: Final[dict[Target, Callable[[OwnCalls, str], Performer]]] = {
    "node": lambda calls, _: NodeVerbs(calls.node),
    "vhost": lambda calls, name: VhostVerbs(calls.node, name),
    "queue": _queue,
    "topic": lambda calls, name: TopicVerbs(calls.node, name),
}

VERBS: Final[dict[str, Verb]] = {
    "channel.release": lambda calls, seen_up_to=None: calls.consumers.release(seen_up_to),
    "channel.ack_up_to": lambda calls, tag: calls.consumers.ack_up_to(tag),
    "channel.retry": lambda calls, tag, wait_ms: calls.consumers.retry_in(tag, wait_ms),
    "channel.extend": lambda calls, tag, time_ms: calls.consumers.extend(tag, time_ms),
    "queue.declarations": lambda calls, vhost, names: [_declaration(find_queue(calls.channel, name)) for name in names],
    "queue.move": _move,
    "queue.take": lambda calls, name, id: calls.consumers.take_batch(name, id),
    "queue.publish_as_they_were": _publish_as_they_were,
    "queue.publish_unique": _publish_unique,
    "queue.get": lambda calls, name, count: calls.consumers.get_batch(name, count),
    "exchange.declaration": _exchange,
    "vhost.queue": _declare_queue,
    "vhost.queues": _queues,
    "vhost.delete_queue": lambda calls, vhost, name, **how: VhostVerbs(calls.node, vhost).delete_queue(name, **how),
    "node.declare_vhost": lambda calls, name: calls.node.change(lambda actor: actor.declare_vhost(name)),
    "vhost.failed_queues": lambda calls, vhost: VhostVerbs(calls.node, vhost).failed_queues(),
    "topic.declare": _declare_topic,
    "topic.append": _append,
    "transaction": _transaction,
    "node.pending_transactions": _pending,
    "reader.join": _join,
    "reader": _reader,
    "tail.join": _tail,
}
"""What is no operation, by name: what has to do with the channel, and what is confirmed later."""

READER_VERBS: Final = frozenset(("take", "commit", "take_back", "send_back", "queues", "leave"))
