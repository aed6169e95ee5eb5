"""Calls: the verbs of a node that a process of a shared directory calls here (:mod:`warren.client.calls`).

Arguments are checked by the verbs' annotations before an actor gets them: the process may run another version, or be no
warren at all.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import attrs
import numpy as np
from pamqp.base import Frame as Method

from warren.actors.engines.errors import NotFoundError
from warren.actors.engines.topics.errors import QueueRangeError
from warren.actors.engines.topics.names import check_topic_name
from warren.actors.engines.topics.topic_table import MOST_QUEUES
from warren.actors.queue.queue_entry import QueueEntry
from warren.actors.runtime.future import Future
from warren.aio import bridge
from warren.amqp.own_methods import Call, CallOk
from warren.client.calls import plain, refusal_of, restored, unpacked
from warren.client.topic_batches import batch_of
from warren.msg_store.commit_log.commit_log import Appended
from warren.msg_store.commit_log.commit_log_format import encode
from warren.queue_index.message.amqp_tables import write_value
from warren.server.readers import ChannelReader
from warren.server.replies import Refusal
from warren.server.tails import ChannelTail
from warren.server.topology import find_queue
from warren.storage.call_arguments import checked, signature
from warren.storage.errors import WarrenError
from warren.values.messages import as_body, milliseconds
from warren.verbs.operation import DEFINITIONS, Definition, Performer, Target
from warren.verbs.publishing import AsTheyWere
from warren.verbs.queue_verbs import QueueVerbs
from warren.verbs.reader_verbs import ReaderVerbs
from warren.verbs.topic_verbs import TopicVerbs, hand_over
from warren.verbs.transaction_verbs import TransactionVerbs
from warren.verbs.vhost_verbs import NodeVerbs, VhostVerbs, declare_queue, queue_properties

if TYPE_CHECKING:
    from warren.server.channel import ServerChannel, Work

_ANSWERED: Final = (WarrenError, ValueError, TypeError, LookupError)
"""The errors that a verb may raise; any other is a bug."""
Verb = Callable[..., Any]
"""Called with the channel and the arguments; returns the answer, steps or a coroutine that lead to it, or that it comes
:class:`Later`."""


@attrs.frozen
class Later:
    """An answer that comes with ``confirm``; meanwhile the channel continues."""

    confirm: Future
    answer: Callable[[Any], Any]
    """Makes the answer from the confirm's result."""


class OwnCalls:
    """The state of a channel between its calls: answers in their order, and its reader or tail."""

    def __init__(self, channel: ServerChannel) -> None:
        self._channel = channel
        self._line: deque[Method | Later] = deque()
        self._waiters: list[asyncio.Future[None]] = []
        self.reader: ChannelReader | ChannelTail | None = None

    def answer(self, reply: Method | Later) -> None:
        """Answer a call, once those before it are answered."""
        self._line.append(reply)
        if isinstance(reply, Later) and not reply.confirm.done:
            reply.confirm.on_done(lambda _: self._channel.connection.server.post(self._tell))
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
            self._channel.send(first)
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter.set_result(None)

    async def all_told(self) -> None:
        """Wait until all calls are answered."""
        if self._line:
            waiter = self._channel.connection.server.loop.create_future()
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


def call_verb(channel: ServerChannel, method: Call) -> Work:
    """Call a verb and answer. An error that it raises is an answer, too: the channel stays open."""
    calls = channel.own_calls()
    try:
        arguments = restored(dict(method.arguments))
        if (definition := DEFINITIONS.get(method.verb)) is not None:
            signature(_performed, 2).check((), arguments)
            return _answer_when(calls, _performed(channel, definition, **arguments))
        verb = VERBS.get(method.verb)
        if verb is None:
            raise NotFoundError(f"no verb '{method.verb}'")
        signature(verb, 1).check((), arguments)
        result = verb(channel, **arguments)
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
    channel: ServerChannel, definition: Definition, of: str, arguments: list[Any], keywords: dict[str, Any]
) -> CallOk:
    """Perform an operation on what has the name ``of``."""
    signature(definition.body, 1).check(tuple(arguments), keywords)
    performer = _PERFORMERS[definition.target](channel, of)
    answer = await bridge.run(definition.body(performer, *arguments, **keywords))
    if definition.target in ("node", "vhost"):
        return await bridge.in_thread(lambda: _written(definition.encode(answer)))
    return CallOk({"result": plain(definition.encode(answer))})


def _queue(channel: ServerChannel, name: str) -> QueueVerbs:
    return QueueVerbs(channel.node, find_queue(channel, name))


def _topic(channel: ServerChannel, name: str) -> TopicVerbs:
    check_topic_name(name, may_be_long=True)
    return TopicVerbs(channel.node, name)


def _release(channel: ServerChannel, seen_up_to: int | None = None) -> Any:
    return channel.consumers.release(seen_up_to)


def _ack_up_to(channel: ServerChannel, tag: int) -> None:
    channel.consumers.ack_up_to(tag)


def _retry(channel: ServerChannel, tag: int, wait_ms: int) -> Any:
    return channel.consumers.retry_in(tag, _checked_period(wait_ms))


def _extend(channel: ServerChannel, tag: int, time_ms: int) -> Any:
    return channel.consumers.extend(tag, _checked_period(time_ms))


def _checked_period(period_ms: int) -> int:
    return milliseconds("a time", period_ms / 1000)


def _get(channel: ServerChannel, name: str, count: int) -> Any:
    return channel.consumers.get_batch(name, count)


def _take(channel: ServerChannel, name: str, id: str) -> Any:
    return channel.consumers.take_batch(name, id)


def _declaration(entry: QueueEntry) -> dict[str, Any]:
    return entry.declaration.to_json() | {"exclusive": entry.declaration.exclusive}


def _declarations(channel: ServerChannel, vhost: str, names: Iterable[str]) -> list[dict[str, Any]]:
    return [_declaration(find_queue(channel, name)) for name in names]


def _declare_queue(channel: ServerChannel, vhost: str, name: str, properties: dict[str, Any], passive: bool) -> Any:
    owner = channel.connection
    properties = checked(queue_properties)(**properties)
    return _declaration((yield from declare_queue(channel.node, vhost, name, properties, owner=owner, passive=passive)))


def _queues(channel: ServerChannel, vhost: str) -> Any:
    entries, owners = list(channel.node.vhost(vhost).queues.values()), (None, channel.connection)
    return bridge.in_thread(lambda: _written([_declaration(entry) for entry in entries if entry.owner in owners]))


def _failed_queues(channel: ServerChannel, vhost: str) -> dict[str, str]:
    return VhostVerbs(channel.node, vhost).failed_queues()


def _delete_queue(
    channel: ServerChannel, vhost: str, name: str, *, if_empty: bool, if_unused: bool, force: bool
) -> Any:
    verbs = VhostVerbs(channel.node, vhost)
    return verbs.delete_queue(name, if_empty=if_empty, if_unused=if_unused, force=force)


def _declare_vhost(channel: ServerChannel, name: str) -> Any:
    return channel.node.change(lambda actor: actor.declare_vhost(name))


def _exchange(channel: ServerChannel, vhost: str, name: str) -> dict[str, Any]:
    return channel.node.vhost(vhost).definitions.exchange(name).to_json()


def _tail(channel: ServerChannel, name: str, last: int) -> Any:
    tail = ChannelTail(channel, _queue(channel, name))
    channel.own_calls().reader = tail
    return tail.join(last)


def _move(channel: ServerChannel, name: str, ids: Sequence[str], to: Sequence[str] | None) -> Any:
    return _queue(channel, name).move_ids([*ids], None if to is None else (to[0], to[1]))


def _publish_as_they_were(channel: ServerChannel, name: str, groups: list[dict[str, Any]]) -> Any:
    return _queue(channel, name).publish_as_they_were([_as_they_were(**group) for group in groups])


@checked
def _as_they_were(exchange: bytes, routing_keys: list[bytes], properties: bytes, bodies: bytes) -> AsTheyWere:
    return AsTheyWere(exchange, tuple(map(as_body, routing_keys)), properties, unpacked(bodies))


def _publish_unique(channel: ServerChannel, name: str, bodies: bytes, properties: dict[str, Any], several: bool) -> Any:
    queue = _queue(channel, name)
    connection = channel.connection
    connection.tell_blocked()
    try:
        confirm = yield from queue.publish_unique(unpacked(bodies), properties, several=several, passes_alarms=True)
    finally:
        connection.tell_unblocked()
    return Later(confirm, lambda _: confirm.duplicates)


# ── topics ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _declare_topic(channel: ServerChannel, name: str, queues: int | None) -> Any:
    topic = yield from NodeVerbs(channel.node).topic(name, queues=queues)
    return {"queues": topic.queues, "settings": attrs.asdict(channel.node.config.topics)}


def _append(channel: ServerChannel, batches: list[dict[str, Any]]) -> Any:
    decoded = [batch_of(encoded) for encoded in batches]
    running = yield from channel.node.topics()
    for batch in decoded:
        check_topic_name(batch.topic)
        if not 0 <= batch.queue_id < MOST_QUEUES:
            raise QueueRangeError(f"topic {batch.topic!r}: there is no queue {batch.queue_id}")
        running.store.check(batch)
    connection = channel.connection
    connection.tell_blocked()
    try:
        confirm = yield from hand_over(channel.node, decoded, True, None, passes_alarms=True)
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


def _transaction(
    channel: ServerChannel, verb: str, *, topic: str, half_offset: int, physical_offset: int, size: int
) -> Any:
    verbs = TransactionVerbs(channel.node, topic, half_offset, physical_offset, size)
    match verb:
        case "record":
            return encode((yield from verbs.record()))
        case "commit":
            return Later((yield from verbs.commit()), lambda _: None)
        case "rollback":
            return Later((yield from verbs.rollback()), lambda _: None)
    raise NotFoundError(f"no verb '{verb}'")


def _pending(channel: ServerChannel) -> Any:
    transactions = yield from NodeVerbs(channel.node).pending_transactions()
    return [transaction.place for transaction in transactions]


def _join(channel: ServerChannel, **arguments: Any) -> Any:
    signature(ReaderVerbs.__init__, 2).check((), arguments)
    check_topic_name(arguments["topic"], may_be_long=True)
    reader = ChannelReader(channel, arguments)
    channel.own_calls().reader = reader
    return reader.join()


def _call_reader(channel: ServerChannel, verb: str, **arguments: Any) -> Any:
    reader = channel.own_calls().reader
    function = getattr(type(reader), verb, None) if verb in READER_VERBS else None
    if function is None:
        raise NotFoundError(f"no verb '{verb}' of a reader")
    signature(function, 1).check((), arguments)
    return function(reader, **arguments)


_PERFORMERS: Final[dict[Target, Callable[[ServerChannel, str], Performer]]] = {
    "node": lambda channel, _: NodeVerbs(channel.node),
    "vhost": lambda channel, name: VhostVerbs(channel.node, name),
    "queue": _queue,
    "topic": _topic,
}

VERBS: Final[dict[str, Verb]] = {
    "channel.release": _release,
    "channel.ack_up_to": _ack_up_to,
    "channel.retry": _retry,
    "channel.extend": _extend,
    "queue.declarations": _declarations,
    "queue.move": _move,
    "queue.take": _take,
    "queue.publish_as_they_were": _publish_as_they_were,
    "queue.publish_unique": _publish_unique,
    "queue.get": _get,
    "exchange.declaration": _exchange,
    "vhost.queue": _declare_queue,
    "vhost.queues": _queues,
    "vhost.delete_queue": _delete_queue,
    "vhost.failed_queues": _failed_queues,
    "node.declare_vhost": _declare_vhost,
    "topic.declare": _declare_topic,
    "topic.append": _append,
    "transaction": _transaction,
    "node.pending_transactions": _pending,
    "reader.join": _join,
    "reader": _call_reader,
    "tail.join": _tail,
}
"""What is no operation, by name: what has to do with the channel, and what is confirmed later."""

READER_VERBS: Final = frozenset(("take", "commit", "take_back", "send_back", "queues", "leave"))
