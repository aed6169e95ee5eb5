"""ChannelConsumers: the consumers of a channel.

A consumer is given what its queue has for it, as far as the client takes it: while the socket is full nothing more is
taken from the queue. Even without a prefetch, the number of messages that wait here is limited.
"""

from __future__ import annotations

import enum
import functools
import operator
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Final

import attrs
from pamqp import commands as c

from warren.actors import messages as m
from warren.actors.engines.declared.arguments import QueueDeclaration
from warren.actors.engines.declared.queue_arguments import MAX_PERIOD_MS
from warren.actors.engines.errors import AccessRefusedError
from warren.actors.engines.queue.consumers import Consumer
from warren.actors.engines.queue.queue_turn import LOST
from warren.actors.queue.deliveries import Deliveries, TurnTaker
from warren.actors.queue.intake import QueueGoneError
from warren.actors.queue.queue_entry import QueueEntry
from warren.actors.runtime.future import Future
from warren.aio import bridge
from warren.amqp.errors import ProtocolError
from warren.amqp.methods import method_of, text_of
from warren.amqp.own_methods import CREDIT, MESSAGE_BYTES, Credit
from warren.client.calls import refused
from warren.handles.channel import Channel
from warren.queue_index.message.amqp_tables import is_integer, type_name
from warren.queue_index.message.contents import Content, pieces
from warren.server.channels.channel_link import ChannelLink, Work
from warren.server.channels.declarations import find_queue
from warren.server.channels.direct_reply import ReplyConsumer
from warren.server.channels.gets import contents_for
from warren.server.channels.settlements import CONSUMED, UNLESS_GONE, ChannelSettlements
from warren.server.channels.streams import check_consume, find_stream
from warren.server.replies import ACCESS_REFUSED, NOT_ALLOWED, NOT_IMPLEMENTED, PRECONDITION_FAILED, Refusal
from warren.server.server_context import REPLY_TO
from warren.storage.errors import MessageError, WarrenError
from warren.verbs.steps import ask, call

if TYPE_CHECKING:
    from warren.actors.topics.streams import Stream
    from warren.server.channels.stream_consumer import StreamConsumer


class _Sent(enum.Enum):
    """Marks the end of a batch; ``None`` is a message that cannot be read."""

    SENT = enum.auto()


_SENT: Final = _Sent.SENT
_PIECES_AT_A_TIME: Final = 16
"""The most pieces that go to one consumer before others get their turn."""


_MOST_IN_LINE: Final = 100
"""Consumers of one queue on one channel whose messages are sent in order. Each batch costs a look at all of them."""


class _Deliveries(Deliveries):
    """Deliveries whose messages count under a shared prefetch until they go back to their queue."""

    def __init__(self, channel: str, helper: TurnTaker, on_lapse: Callable[[range], None]) -> None:
        super().__init__(channel, helper)
        self._on_lapse = on_lapse

    def lapse(self, tags: range) -> None:
        super().lapse(tags)
        self._on_lapse(tags)


class _Line:
    """The consumers of one queue on one channel, which are sent its messages in the order of their tags."""

    __slots__ = ("consumers", "current")

    def __init__(self) -> None:
        self.consumers: dict[ServerConsumer, None] = {}
        self.current: ServerConsumer | None = None
        """The consumer whose batch is being sent, or was sent last."""

    def prepare(self, deliveries: Deliveries) -> None:
        """Prepare for another consumer, before it is registered with its queue."""
        first = next(iter(self.consumers), None)
        if first is not None:
            first.deliveries.in_order = deliveries.in_order = True
            self.current = self.current or first

    def remove(self, consumer: ServerConsumer) -> None:
        """Remove a consumer; the rest of its batch is not sent."""
        del self.consumers[consumer]
        if self.current is consumer:
            self.current = None

    def advance(self, arrived: ServerConsumer) -> ServerConsumer | None:
        """Return the consumer whose batch is sent next. Raises the error that ended the deliveries.

        With more than :data:`_MOST_IN_LINE` consumers this is ``arrived``: the order is not kept.
        """
        if len(self.consumers) > _MOST_IN_LINE:
            self.current = arrived
            return arrived
        for _ in range(2):  # the second pass sees everything that came before the batch that the first one found
            heads = [
                (tag, consumer) for consumer in self.consumers if (tag := consumer.deliveries.peek_tag()) is not None
            ]
            self.current = min(heads, key=operator.itemgetter(0))[1] if heads else None
        return self.current


@attrs.define(eq=False)
class ServerConsumer:
    """A consumer of a client."""

    active: ClassVar[bool] = True
    tag: str
    queue: str
    no_ack: bool
    exclusive: bool
    prefetch: int
    arguments: dict[str, Any]
    through: Channel
    """The channel through which the queue delivers to it."""
    name: str
    """Its name in the queue."""
    deliveries: Deliveries
    line: _Line
    arrival: Future | None = None
    sending: Iterator[Content | None] = attrs.field(factory=lambda: iter(()))
    """The rest of the batch that is being sent."""
    unsent: range = range(0)
    """The queue's tags of that rest."""
    redelivered: bool = False
    credit: int | None = None
    """How many bytes the client takes; ``None``: any number."""
    held: bool = False
    """Whether it waits for more credit."""
    ended: bool = False
    begins: Callable[[], None] | None = None
    """Answers the ``basic.consume``; ``None`` afterwards."""
    _last: tuple[bool, bytes, bytes] | None = None
    _method: c.Basic.Deliver = attrs.field(factory=c.Basic.Deliver)

    def method_for(self, piece: Content) -> c.Basic.Deliver:
        """Return the method that delivers messages, without the delivery tags."""
        address = self.redelivered, piece.exchange, piece.routing_key
        if address != self._last:
            self._last = address
            self._method = method_of(
                c.Basic.Deliver,
                consumer_tag=self.tag,
                redelivered=self.redelivered,
                exchange=text_of(piece.exchange),
                routing_key=text_of(piece.routing_key),
            )
        return self._method


class ChannelConsumers:
    """The consumers of one channel."""

    def __init__(self, channel: ChannelLink, settlements: ChannelSettlements) -> None:
        self._channel = channel
        self._settlements = settlements
        self.by_tag: dict[str, ServerConsumer | StreamConsumer] = {}
        self.replies = ReplyConsumer(channel, settlements.unacked)
        self.prefetch = 0
        self._lines: dict[Channel, _Line] = {}

    # ── consuming ───────────────────────────────────────────────────────────────────────────────────────────────

    async def consume(self, method: c.Basic.Consume) -> None:
        channel = self._channel
        name = channel.queue_name(method.queue)
        tag = method.consumer_tag or channel.node.new_queue_name().replace("amq.gen", "amq.ctag", 1)
        if tag in self.by_tag:
            raise ProtocolError(NOT_ALLOWED, f"attempt to reuse consumer tag '{tag}'", method.index)
        if name == REPLY_TO:
            self.replies.begin(method, tag)
            if not method.nowait:
                channel.send(c.Basic.ConsumeOk(tag))
            return
        channel.check("queue", name, "read")
        arguments = dict(method.arguments or {})
        if (stream := find_stream(channel, name)) is not None:
            await self._consume_stream(stream, tag, method, arguments)
            return
        await self._consume_queue(find_queue(channel, name), tag, method, arguments)

    async def _consume_queue(
        self, entry: QueueEntry, tag: str, method: c.Basic.Consume, arguments: dict[str, Any]
    ) -> None:
        channel, actor, is_quorum = self._channel, entry.actor, entry.declaration.is_quorum
        if is_quorum and self._settlements.together.limit:
            raise Refusal(NOT_IMPLEMENTED, f"{entry.declaration} does not support global qos")
        through = self._settlements.through_for(actor)
        credit: Any = arguments.pop(CREDIT, None) if channel.connection.is_owner else None
        consumer_name = f"{channel.connection.name}.{channel.number}.{tag}"
        declaration = Consumer(
            channel=through.name,
            tag=consumer_name,
            **self._limits(self.prefetch, method.no_ack),
            acks_unseen=method.no_ack,
            exclusive=method.exclusive and not is_quorum,  # RabbitMQ's quorum queues ignore it
            priority=_priority(entry.declaration, arguments),
            arguments=arguments,
            ack_timeout_ms=_ack_timeout_ms(entry.declaration, arguments),
        )
        deliveries = _Deliveries(through.name, actor.intake, functools.partial(self._settlements.post_lapsed, through))
        if credit is None and through in self._lines:
            self._lines[through].prepare(deliveries)
        try:
            await bridge.answer(ask(actor, m.Subscribe(declaration, deliveries)))
        except AccessRefusedError as error:
            raise Refusal(ACCESS_REFUSED, f"{entry.declaration} in exclusive use") from error
        consumer = ServerConsumer(
            tag=tag,
            queue=entry.declaration.name,
            no_ack=method.no_ack,
            exclusive=method.exclusive,
            prefetch=self.prefetch,
            arguments=arguments,
            through=through,
            name=consumer_name,
            deliveries=deliveries,
            line=_Line() if credit is not None else self._lines.setdefault(through, _Line()),
            credit=credit,
        )
        consumer.line.consumers[consumer] = None
        self.by_tag[tag] = consumer
        consumer.begins = functools.partial(self._begin, consumer, answer=not method.nowait)
        if channel.connection.is_owner:  # which expects its answers in order
            consumer.begins()
        else:
            channel.in_line(consumer.begins)

    def _begin(self, consumer: ServerConsumer, *, answer: bool) -> None:
        """Answer, and send what is there. In RabbitMQ a queue answers: so this comes after everything that the client
        has sent together with its ``basic.consume``."""
        if consumer.begins is not None:
            consumer.begins = None
            if answer:
                self._channel.send(c.Basic.ConsumeOk(consumer.tag))
            self._pump(consumer)

    async def _consume_stream(
        self, stream: Stream, tag: str, method: c.Basic.Consume, arguments: dict[str, Any]
    ) -> None:
        channel, prefetch, shared_limit = self._channel, self.prefetch, self._settlements.together.limit
        check_consume(stream, arguments, prefetch=prefetch, global_prefetch=shared_limit, no_ack=method.no_ack)
        from warren.server.channels.stream_consumer import StreamConsumer

        consumer = StreamConsumer(
            channel,
            stream,
            self._settlements.unacked,
            self.lost,
            tag=tag,
            exclusive=method.exclusive,
            prefetch=prefetch,
            arguments=arguments,
        )
        await consumer.find_start()
        self.by_tag[tag] = consumer
        if not method.nowait:
            channel.send(c.Basic.ConsumeOk(tag))
        consumer.begin()

    def _limits(self, prefetch: int, no_ack: bool) -> dict[str, Any]:
        """Return the limits of a consumer with a prefetch of its own."""
        shared_limit = self._settlements.together.limit
        limit = 0 if no_ack else min(prefetch or shared_limit, shared_limit or prefetch)
        return {"prefetch": limit, "shared": self._settlements.together if shared_limit else None}

    def _pump(self, consumer: ServerConsumer) -> None:
        """Send a consumer's messages, as far as the client takes them; earlier ones of other consumers go first."""
        connection, line = self._channel.connection, consumer.line
        consumer.arrival = None
        for _ in range(_PIECES_AT_A_TIME):
            if consumer.ended or not self._channel.may_send:
                return
            if not connection.writable:
                connection.when_writable(functools.partial(self._pump, consumer))
                return
            if consumer.credit is not None and consumer.credit <= 0:
                consumer.held = True
                return
            current = line.current or consumer
            piece = next(current.sending, _SENT)
            if not isinstance(piece, _Sent):
                try:
                    self._deliver(current, piece)
                except MessageError as error:  # it does not fit into a frame
                    self._channel.refuse(error)
                    return
                connection.flush()
                continue
            try:
                next_consumer = line.advance(consumer) if consumer.deliveries.in_order else consumer
                delivered = None if next_consumer is None else next_consumer.deliveries.take_now()
            except WarrenError as error:
                consumer.ended = True
                self.lost(consumer, error)
                return
            if next_consumer is None or delivered is None:
                break
            current = next_consumer
            if current.no_ack and delivered.first_tag:
                current.through.settle_all("ack", delivered.tags)
            current.unsent = range(0) if current.no_ack else delivered.tags
            current.redelivered = delivered.fetched.redelivered
            contents = contents_for(self._channel, delivered.fetched)
            current.sending = contents if delivered.count == 1 else pieces(contents)
        else:
            connection.server.rounds.post(functools.partial(self._pump, consumer))
            return
        arrival = consumer.deliveries.arrival()
        consumer.arrival = arrival
        arrival.on_done(functools.partial(self._arrived, consumer))

    def add_credit(self, method: Credit) -> None:
        """Let a consumer be sent more."""
        consumer = self.by_tag.get(method.consumer_tag)
        if isinstance(consumer, ServerConsumer) and consumer.credit is not None:
            consumer.credit += method.size
            if consumer.held:
                consumer.held = False
                self._pump(consumer)

    def _arrived(self, consumer: ServerConsumer, _: Future) -> None:
        """In any thread."""
        self._channel.server.rounds.post(functools.partial(self._pump, consumer))

    def _deliver(self, consumer: ServerConsumer, piece: Content | None) -> None:
        """Send messages; ``None``: one that cannot be read, which stays unacked with the channel."""
        channel = self._channel
        count = 1 if piece is None else len(piece.bodies)
        if consumer.no_ack:
            tag = self._settlements.unacked.pass_by(count)
        else:
            sent, consumer.unsent = consumer.unsent[:count], consumer.unsent[count:]
            tag = self._settlements.unacked.give(CONSUMED, sent, consumer.through)
        if piece is None:
            return
        if channel.traffic is not None:
            channel.traffic.deliver(count, no_ack=consumer.no_ack, redelivered=consumer.redelivered)
        if channel.trace is not None:
            channel.trace.delivered(consumer.queue, piece, redelivered=consumer.redelivered)
        if consumer.credit is not None:
            consumer.credit -= sum(map(len, piece.bodies)) + MESSAGE_BYTES * count
        method, tags = consumer.method_for(piece), range(tag, tag + count)
        channel.connection.engine.deliver(channel.number, method, tags, piece.properties, piece.bodies)

    def lost(self, consumer: ServerConsumer | StreamConsumer, error: WarrenError) -> None:
        """Cancel all consumers of a queue that is gone or has failed, in the order of their tags. The client
        that deleted it gets its answer first. A guest of the directory also gets the error of a queue that failed."""
        ended = {tag: member for tag, member in self.by_tag.items() if member.queue == consumer.queue}
        for member in ended.values():
            member.ended = True
            if isinstance(member, ServerConsumer) and member.begins is not None:
                member.begins()
        for tag, member in sorted(ended.items()):
            if self.by_tag.get(tag) is member:
                if isinstance(member, ServerConsumer):
                    self._not_sent(member)
                del self.by_tag[tag]
                if self._channel.connection.is_owner and not isinstance(error, QueueGoneError):
                    self._channel.afterwards(functools.partial(self._channel.send, refused(error)))
                if self._channel.connection.capabilities.get("consumer_cancel_notify") is True:
                    self._channel.afterwards(functools.partial(self._channel.send, c.Basic.Cancel(tag, True)))

    async def cancel(self, method: c.Basic.Cancel) -> None:
        consumer = self.by_tag.pop(method.consumer_tag or "", None)
        if isinstance(consumer, ServerConsumer):
            consumer.ended = True
            if consumer.begins is not None:
                consumer.begins()
            with UNLESS_GONE:
                actor, name = consumer.through.actor, consumer.name
                await bridge.answer(call(actor, lambda: actor.consumers.cancel(name)))
            self._give_back(consumer)
        elif consumer is not None:
            consumer.stop()
        else:
            self.replies.end(method.consumer_tag)
        if not method.nowait:
            self._channel.send(c.Basic.CancelOk(method.consumer_tag))

    def _give_back(self, consumer: ServerConsumer) -> None:
        """Return messages that waited here for a consumer that is gone to its queue."""
        if tags := self._not_sent(consumer):
            with UNLESS_GONE:
                consumer.through.settle_ranges("requeue", tags)

    def _not_sent(self, consumer: ServerConsumer) -> list[range]:
        """Return the queue's tags of messages that wait here for a consumer that is gone."""
        line = consumer.line
        line.remove(consumer)
        if not line.consumers:
            self._lines.pop(consumer.through, None)
        tags = [consumer.unsent, *(delivered.tags for delivered in consumer.deliveries.drain())]
        if not consumer.no_ack:
            self._settlements.together.give_back(sum(map(len, tags)))
        return [run for run in tags if run]

    def set_qos(self, method: c.Basic.Qos) -> Work:
        if method.prefetch_size:
            raise ProtocolError(NOT_IMPLEMENTED, f"prefetch_size!=0 ({method.prefetch_size})", method.index)
        if not method.global_:
            self.prefetch = method.prefetch_count
        # setting a prefetch per consumer ends the shared one, as in RabbitMQ
        shared_limit = method.prefetch_count if method.global_ else 0
        if self._settlements.together.set_limit(shared_limit, len(self._settlements.unacked)):
            for consumer in self.by_tag.values():
                if isinstance(consumer, ServerConsumer):
                    limits = self._limits(consumer.prefetch, consumer.no_ack)
                    with UNLESS_GONE:
                        actor = consumer.through.actor
                        actor.call_soon(functools.partial(actor.consumers.set_prefetch, consumer.name, **limits))
        self._channel.send(c.Basic.QosOk())
        return None

    async def release(self, seen_up_to: int | None = LOST) -> int:
        """Return everything to its queue, as the channel is over; return how many messages that were.

        ``seen_up_to``: messages with a higher delivery tag were not seen, as the client says; ``None``: all were seen.
        """
        unacked = self._settlements.unacked
        if seen_up_to == LOST:  # of other clients, all count, as with a quorum queue
            seen_up_to = unacked.oldest if self._channel.connection.is_owner else None
        unseen: dict[Channel, int] = {}
        for run in () if seen_up_to is None else unacked.take_present([range(seen_up_to + 1, unacked.next_tag)]):
            if isinstance(run.owner, Channel):
                unseen[run.owner] = min(run.seq_id, unseen.get(run.owner, run.seq_id))
        of_streams: list[StreamConsumer] = []
        for consumer in self.by_tag.values():
            if isinstance(consumer, ServerConsumer):
                consumer.ended = True
                if tags := [tag.start for tag in self._not_sent(consumer)]:
                    through = consumer.through
                    unseen[through] = min(*tags, unseen.get(through, tags[0]))
            else:
                of_streams.append(consumer)
        self.by_tag.clear()
        self.replies.end()
        for reader in of_streams:
            await reader.end()
        channels, self._settlements.through = self._settlements.through, {}
        requeued = 0
        for channel in channels.values():
            first = unseen.get(channel)
            with UNLESS_GONE:
                requeued += await bridge.run(channel.shut(None if first is None else first - 1))
        return requeued


def _priority(queue: QueueDeclaration, arguments: dict[str, Any]) -> int:
    """Return the consumer's priority. Raises :class:`Refusal` for arguments invalid with this type of queue."""
    for foreign in ("x-stream-offset", "x-cancel-on-ha-failover") if queue.is_quorum else ("x-stream-offset",):
        if foreign in arguments:
            raise Refusal(
                PRECONDITION_FAILED,
                f"invalid arg '{foreign}' for {queue} of queue type rabbit_{queue.queue_type}_queue",
            )
    problem = ""
    priority: int = arguments.get("x-priority", 0)
    name, cancels = "x-priority", arguments.get("x-cancel-on-ha-failover", False)
    if not is_integer(priority):
        problem = f'"expected integer, got {type_name(priority)}"'
    elif not isinstance(cancels, bool):
        name, problem = "x-cancel-on-ha-failover", f"{{unacceptable_type,{type_name(cancels)}}}"
    if problem:
        raise Refusal(PRECONDITION_FAILED, f"invalid arg '{name}' for {queue}: {problem}")
    return priority


def _ack_timeout_ms(queue: QueueDeclaration, arguments: dict[str, Any]) -> int | None:
    """Return the consumer's ack timeout, from the argument of later RabbitMQ versions. Raises :class:`Refusal`."""
    timeout_ms = arguments.get("x-consumer-timeout")
    if timeout_ms is None:
        return None
    if not is_integer(timeout_ms) or not 0 < timeout_ms <= MAX_PERIOD_MS:
        problem = f"invalid arg 'x-consumer-timeout' for {queue}: {timeout_ms!r}"
        raise Refusal(PRECONDITION_FAILED, problem)
    return int(timeout_ms)
