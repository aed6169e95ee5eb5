"""Calls: the verbs of a node that a process of a shared directory calls here (:mod:`warren.client.calls`).

Arguments are checked by the verbs' annotations before an actor gets them: the process may run another version, or be no
warren at all.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Sequence
from typing import TYPE_CHECKING, Any, Final

import attrs
import numpy as np
from pamqp.base import Frame as Method

from warren.actors.engines.errors import NotFoundError
from warren.actors.engines.topics.errors import QueueRangeError
from warren.actors.engines.topics.names import check_topic_name
from warren.actors.engines.topics.topic_table import MOST_QUEUES
from warren.actors.log_events import log_event, logger
from warren.actors.runtime.future import Future
from warren.aio import bridge
from warren.amqp.own_methods import Call, CallOk
from warren.client.calls import plain, refusal_of, restored, unpacked
from warren.client.topic_batches import batch_of
from warren.msg_store.commit_log.commit_log import Appended
from warren.msg_store.commit_log.commit_log_format import encode
from warren.queue_index.message.amqp_tables import write_value
from warren.server.channels.channel_link import ChannelLink, Work
from warren.server.channels.consuming import ChannelConsumers
from warren.server.channels.declarations import find_queue
from warren.server.channels.gets import ChannelGets
from warren.server.channels.readers import ChannelReader, ChannelTail
from warren.server.channels.settlements import ChannelSettlements
from warren.server.replies import Refusal
from warren.storage.call_arguments import checked, signature
from warren.storage.errors import MessageError, WarrenError, shortly
from warren.values.messages import as_body, milliseconds
from warren.verbs.operation import DEFINITIONS, Definition, Performer, Target
from warren.verbs.publishing import AsTheyWere
from warren.verbs.queue_host import LocalQueue
from warren.verbs.queue_verbs import QueueVerbs
from warren.verbs.topics.member import Member
from warren.verbs.topics.topic_host import LocalTopic, hand_over
from warren.verbs.topics.topic_verbs import TopicVerbs
from warren.verbs.topics.transaction_verbs import HalfPlace, LocalTransaction, TransactionVerbs
from warren.verbs.user_verbs import UserVerbs
from warren.verbs.vhost_host import LocalVhost
from warren.verbs.vhost_verbs import NodeVerbs, VhostVerbs

if TYPE_CHECKING:
    from warren.top.snapshots import Snapshots

_LOG = logger("status")

MOST_AT_ONCE: Final = 64
"""Longer lists, and mappings of any size, are encoded in a thread, so that other clients need not wait."""
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


class GuestCalls:
    """The state of a channel between its calls: answers in their order, and its reader or tail."""

    def __init__(
        self,
        channel: ChannelLink,
        consumers: ChannelConsumers,
        gets: ChannelGets,
        settlements: ChannelSettlements,
    ) -> None:
        self.channel = channel
        self.node = channel.node
        self.consumers = consumers
        self.gets = gets
        self.settlements = settlements
        self._line: deque[Method | Later] = deque()
        self._waiters: list[asyncio.Future[None]] = []
        self.reader: ChannelReader | ChannelTail | None = None
        self._snapshots: Snapshots | None = None

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

    def ask(self, request: dict[str, Any]) -> Coroutine[Any, Any, CallOk]:
        """Answer a command that looks at the node or operates it (:meth:`warren.top.snapshots.Snapshots.answer`)."""
        return bridge.in_thread(lambda: self._asked(request))

    def _asked(self, request: dict[str, Any]) -> CallOk:
        from warren.top.snapshots import Snapshots

        if self._snapshots is None:
            self._snapshots = Snapshots(self.node)
        try:
            return _written(self._snapshots.answer(request))
        except WarrenError:
            raise
        except Exception as error:  # whatever it is, the connection stays open
            _LOG.exception("a request could not be answered", extra=log_event("status_failed", error))
            raise WarrenError(f"the request could not be answered: {shortly(error)}") from error

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


def call_verb(calls: GuestCalls, method: Call) -> Work:
    """Call a verb and answer. An error that it raises is an answer, too: the channel stays open."""
    try:
        arguments = restored(dict(method.arguments))
        if (definition := DEFINITIONS.get(method.verb)) is not None:
            signature(_performed, 2).check((), arguments)
            return _answer_when(calls, _performed(calls, definition, **arguments))
        verb = VERBS.get(method.verb)
        if verb is None:
            raise NotFoundError(f"no verb '{method.verb}'")
        signature(verb, 1).check((), arguments)
        result = verb(calls, **arguments)
        if isinstance(result, (Generator, Coroutine)):
            return _answer_when(calls, result)
        calls.answer(_answer(result))
    except Refusal:
        raise
    except _ANSWERED as error:
        calls.answer(refusal_of(error))
    return None


async def _answer_when(calls: GuestCalls, waits: Generator[Any, Any, Any] | Coroutine[Any, Any, Any]) -> None:
    try:
        calls.answer(_answer(await (bridge.run(waits) if isinstance(waits, Generator) else waits)))
    except Refusal:
        raise
    except _ANSWERED as error:
        calls.answer(refusal_of(error))


def _answer(result: Any) -> Method | Later:
    return result if isinstance(result, (Later, CallOk)) else CallOk({"result": plain(result)})


def _written(result: Any) -> CallOk:
    """Return the encoded answer."""
    try:
        return CallOk({"result": write_value(plain(result))})
    except (TypeError, ValueError) as error:
        raise MessageError(f"the answer cannot be sent to another process: {error}") from error


async def _performed(calls: GuestCalls, definition: Definition, of: str, arguments: dict[str, Any]) -> CallOk:
    """Perform an operation on what has the name ``of``."""
    signature(definition.body, 1).check((), arguments)
    performer = _PERFORMERS[definition.target](calls, of)
    answer = await bridge.run(definition.body(performer, **arguments))
    if isinstance(answer, dict) or (isinstance(answer, list) and len(answer) > MOST_AT_ONCE):
        return await bridge.in_thread(lambda: _written(definition.encode(answer)))
    return _written(definition.encode(answer))


def _queue(calls: GuestCalls, name: str) -> QueueVerbs:
    return QueueVerbs(LocalQueue(calls.node, find_queue(calls.channel, name)))


def _topic(calls: GuestCalls, name: str) -> TopicVerbs:
    check_topic_name(name, may_be_long=True)
    return TopicVerbs(LocalTopic(calls.node, name), calls.node.config.topics)


def _release(calls: GuestCalls, seen_up_to: int | None = None) -> Any:
    return calls.consumers.release(seen_up_to)


def _ack_up_to(calls: GuestCalls, tag: int) -> None:
    calls.settlements.ack_up_to(tag)


def _retry(calls: GuestCalls, tag: int, wait_ms: int) -> Any:
    return calls.settlements.retry_in(tag, _checked_period(wait_ms))


def _extend(calls: GuestCalls, tag: int, time_ms: int) -> Any:
    return calls.settlements.extend(tag, _checked_period(time_ms))


def _checked_period(period_ms: int) -> int:
    return milliseconds("a time", period_ms / 1000)


def _get(calls: GuestCalls, name: str, count: int) -> Any:
    return calls.gets.get_batch(name, count)


def _take(calls: GuestCalls, name: str, id: str) -> Any:
    return calls.gets.take_batch(name, id)


def _tail(calls: GuestCalls, name: str, last: int) -> Any:
    tail = ChannelTail(calls.channel, _queue(calls, name))
    calls.reader = tail
    return tail.join(last)


def _move(calls: GuestCalls, name: str, ids: Sequence[str], to: Sequence[str] | None) -> Any:
    return _queue(calls, name).host.move([*ids], None if to is None else (to[0], to[1]))


def _publish_as_they_were(calls: GuestCalls, name: str, groups: list[dict[str, Any]]) -> Any:
    return _queue(calls, name).publish_as_they_were([_as_they_were(**group) for group in groups])


@checked
def _as_they_were(exchange: bytes, routing_keys: list[bytes], properties: bytes, bodies: bytes) -> AsTheyWere:
    return AsTheyWere(exchange, tuple(map(as_body, routing_keys)), properties, unpacked(bodies))


def _publish_unique(calls: GuestCalls, name: str, bodies: bytes, properties: dict[str, Any], several: bool) -> Any:
    queue = _queue(calls, name)
    with calls.channel.connection.telling_of_alarms():
        confirm = yield from queue.publish_unique(unpacked(bodies), properties, several=several, passes_alarms=True)
    return Later(confirm, lambda _: confirm.duplicates)


# ── topics ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _append(calls: GuestCalls, batches: list[dict[str, Any]]) -> Any:
    decoded = [batch_of(encoded) for encoded in batches]
    running = yield from calls.node.topics()
    for batch in decoded:
        check_topic_name(batch.topic)
        if not 0 <= batch.queue_id < MOST_QUEUES:
            raise QueueRangeError(f"topic {batch.topic!r}: there is no queue {batch.queue_id}")
        running.store.check(batch)
    with calls.channel.connection.telling_of_alarms():
        confirm = yield from hand_over(calls.node, decoded, True, None, passes_alarms=True)
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


def _transaction(calls: GuestCalls, verb: str, *, topic: str, half_offset: int, physical_offset: int, size: int) -> Any:
    verbs = TransactionVerbs(LocalTransaction(calls.node, HalfPlace(topic, half_offset, physical_offset, size)))
    match verb:
        case "record":
            return encode((yield from verbs.record()))
        case "commit":
            return Later((yield from verbs.commit()), lambda _: None)
        case "rollback":
            return Later((yield from verbs.rollback()), lambda _: None)
    raise NotFoundError(f"no verb '{verb}'")


def _join(calls: GuestCalls, **arguments: Any) -> Any:
    signature(Member.__init__, 1).check((), arguments)
    check_topic_name(arguments["topic"], may_be_long=True)
    reader = ChannelReader(calls.channel, Member(**arguments))
    calls.reader = reader
    return reader.join()


def _call_reader(calls: GuestCalls, verb: str, **arguments: Any) -> Any:
    reader = calls.reader
    function = getattr(type(reader), verb, None) if verb in READER_VERBS else None
    if function is None:
        raise NotFoundError(f"no verb '{verb}' of a reader")
    signature(function, 1).check((), arguments)
    return function(reader, **arguments)


_PERFORMERS: Final[dict[Target, Callable[[GuestCalls, str], Performer]]] = {
    "node": lambda calls, _: NodeVerbs(LocalVhost(calls.node, "/", calls.channel.connection)),
    "users": lambda calls, _: UserVerbs(LocalVhost(calls.node)),
    "vhost": lambda calls, name: VhostVerbs(LocalVhost(calls.node, name, calls.channel.connection)),
    "queue": _queue,
    "topic": _topic,
}

VERBS: Final[dict[str, Verb]] = {
    "channel.release": _release,
    "channel.ack_up_to": _ack_up_to,
    "channel.retry": _retry,
    "channel.extend": _extend,
    "queue.move": _move,
    "queue.take": _take,
    "queue.publish_as_they_were": _publish_as_they_were,
    "queue.publish_unique": _publish_unique,
    "queue.get": _get,
    "node.ask": GuestCalls.ask,
    "topic.append": _append,
    "transaction": _transaction,
    "reader.join": _join,
    "reader": _call_reader,
    "tail.join": _tail,
}
"""What is no operation, by name: what has to do with the channel, and what is confirmed later."""

READER_VERBS: Final = frozenset(("take", "commit", "take_back", "send_back", "queues", "leave"))
