"""ChannelConsumers: a channel's consumers, gets and settlements.

Each delivery tag of the channel stands for a tag of a queue (:class:`~warren.handles.channel.Channel`). They are kept
as runs, so an ack of many is a few ranges for each queue.

A consumer is given what its queue has for it, as far as the client takes it: while the socket is full nothing more is
taken from the queue. Even without a prefetch, the number of messages that wait here is limited.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import attrs
from pamqp import commands as c

from warren.actors import messages as m
from warren.actors.engines.declared.arguments import QueueDeclaration
from warren.actors.engines.declared.queue_arguments import MAX_PERIOD_MS
from warren.actors.engines.errors import AccessRefusedError, UnknownTagError
from warren.actors.engines.queue.consumers import Consumer
from warren.actors.engines.queue.delivery_tags import DeliveryTags, TagRun
from warren.actors.engines.queue.effects import Delivered
from warren.actors.engines.queue.queue_turn import BUFFER, BUFFER_BYTES, LOST
from warren.actors.queue.deliveries import Deliveries, TurnTaker
from warren.actors.queue.inspecting import chosen_ids
from warren.actors.queue.intake import QueueGoneError
from warren.actors.queue.queue_actor import QueueActor
from warren.actors.queue.queue_consumers import SharedPrefetch
from warren.actors.runtime.future import Future
from warren.aio import bridge
from warren.amqp.errors import ProtocolError
from warren.amqp.methods import method_of, text_of
from warren.amqp.own_methods import CREDIT, MESSAGE_BYTES, Credit, Settle
from warren.client.calls import packed, refused
from warren.handles.channel import Channel
from warren.queue_index.message.amqp_tables import is_integer, type_name
from warren.queue_index.message.contents import Content, contents_of, counted_contents_of, pieces
from warren.queue_index.queue.acking import tag_ranges
from warren.queue_index.queue.fetching import Fetched, FetchedAgain
from warren.server.channel_link import ChannelLink, Work
from warren.server.direct_reply import ReplyConsumer
from warren.server.replies import ACCESS_REFUSED, NOT_ALLOWED, NOT_IMPLEMENTED, PRECONDITION_FAILED, Refusal
from warren.server.reply_addresses import REPLY_TO
from warren.server.streams import check_consume, find_stream, refuse_get
from warren.server.topology import find_queue
from warren.storage.errors import MessageError, WarrenError
from warren.verbs.steps import Steps, ask, asked, call

if TYPE_CHECKING:
    from warren.actors.topics.streams import Stream
    from warren.server.stream_consumer import StreamConsumer

_UNLESS_GONE: Final = contextlib.suppress(WarrenError)
"""A queue may end at any time, in its own thread; it then has all its deliveries back."""


class _Sent(enum.Enum):
    """Marks the end of a batch; ``None`` is a message that cannot be read."""

    SENT = enum.auto()


_SENT: Final = _Sent.SENT
_PIECES_AT_A_TIME: Final = 16
"""The most pieces that go to one consumer before others get their turn."""


_MOST_IN_LINE: Final = 100
"""Consumers of one queue on one channel whose messages are sent in order. Each batch costs a look at all of them."""

_OUTCOMES: Final = frozenset(("ack", "requeue", "failed", "reject", "retry"))

_CONSUMED: Final = 0
_OF_GET: Final = 1
"""Levels of a channel's delivery tags: deliveries to consumers, and messages of ``basic.get``."""

Settler: TypeAlias = "Channel | StreamConsumer"
"""The object through which deliveries of a queue, or of a stream, came and are settled."""
Unacked: TypeAlias = TagRun[Settler]


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

    def info(self) -> dict[str, Any]:
        """Return what RabbitMQ's management shows of a consumer."""
        return {
            "consumer_tag": self.tag,
            "queue": self.queue,
            "ack_required": not self.no_ack,
            "exclusive": self.exclusive,
            "prefetch_count": self.prefetch,
            "arguments": self.arguments,
            "active": True,
            "activity_status": "up",
        }


class ChannelConsumers:
    """The consumer's half of a channel."""

    def __init__(self, channel: ChannelLink) -> None:
        self._channel = channel
        self.by_tag: dict[str, ServerConsumer | StreamConsumer] = {}
        self.unacked: DeliveryTags[Settler] = DeliveryTags()
        self.replies = ReplyConsumer(channel, self.unacked)
        self.uncommitted: list[tuple[str, list[Unacked]]] = []
        """The settlements that a transaction holds back: outcomes, and their deliveries."""
        self.prefetch = 0
        self.together = SharedPrefetch()
        self._lapsed: dict[Channel, set[int]] = {}
        """The queue's tags of messages that exceeded their ack timeout and that the client has not settled."""
        self._through: dict[QueueActor, Channel] = {}
        self._lines: dict[Channel, _Line] = {}

    # ── getting ─────────────────────────────────────────────────────────────────────────────────────────────────

    def get(self, method: c.Basic.Get) -> Work:
        channel = self._channel
        name = channel.queue_name(method.queue)
        channel.check("queue", name, "read")
        refuse_get(channel, name)
        actor = find_queue(channel, name).actor
        through, required = self._through_for(actor), not method.no_ack
        future = asked(
            actor, lambda: (actor.queue_turn.get_many(through.name, 1, ack_required=required), len(actor.process))
        )
        future.send()
        if not future.done:
            return self._answer_get(method, through, future)
        self._send_get_answer(method, through, *future.get())
        return None

    async def _answer_get(self, method: c.Basic.Get, through: Channel, future: Future) -> None:
        self._send_get_answer(method, through, *await bridge.answer(future))

    def _send_get_answer(self, method: c.Basic.Get, through: Channel, batches: list[Delivered], ready: int) -> None:
        channel, required = self._channel, not method.no_ack
        for delivered in batches:
            tag = self.unacked.give(_OF_GET, delivered.tags, through) if required else self.pass_by(delivered.count)
            if channel.traffic is not None:
                channel.traffic.get(no_ack=method.no_ack, redelivered=delivered.fetched.redelivered)
            for content in self._contents_of(delivered.fetched):
                if content is not None and channel.may_send:
                    answer = method_of(
                        c.Basic.GetOk,
                        delivery_tag=tag,
                        redelivered=delivered.fetched.redelivered,
                        exchange=text_of(content.exchange),
                        routing_key=text_of(content.routing_key),
                        message_count=ready,
                    )
                    channel.send_message(answer, content.properties, content.bodies[0])
                    return
        if channel.traffic is not None:
            channel.traffic.empty_gets += 1
        channel.send(c.Basic.GetEmpty())

    def get_batch(self, name: str, count: int) -> Any:
        """Get at most ``count`` messages, and few once they have a mebibyte, for :func:`warren.client.received.got_of`:
        similar ones together, with the first one's tag. Returns a coroutine if the queue is busy."""
        refuse_get(self._channel, name)
        actor = find_queue(self._channel, name).actor
        through = self._through_for(actor)

        def take() -> list[Delivered]:
            limit = min(count, BUFFER)
            return actor.queue_turn.get_many(through.name, limit, ack_required=True, limit_bytes=BUFFER_BYTES)

        future = asked(actor, take)
        future.send()
        return self._batch_of(through, future.get()) if future.done else self._batch_when(through, future)

    async def take_batch(self, name: str, id: str) -> list[tuple[Any, ...]]:
        """Take one message by its id, from wherever it stands, in the form of :meth:`get_batch`."""
        from warren.verbs.moving import take

        refuse_get(self._channel, name)
        through = self._through_for(find_queue(self._channel, name).actor)
        return self._batch_of(through, await bridge.run(take(through, chosen_ids([id]))))

    async def _batch_when(self, through: Channel, future: Future) -> list[tuple[Any, ...]]:
        return self._batch_of(through, await bridge.answer(future))

    def _batch_of(self, through: Channel, batches: list[Delivered]) -> list[tuple[Any, ...]]:
        runs: list[tuple[tuple[Any, ...], int, list[bytes]]] = []
        for delivered in batches:
            tag, redelivered = self.unacked.give(_OF_GET, delivered.tags, through), delivered.fetched.redelivered
            for content in self._contents_of(delivered.fetched):
                if content is not None:
                    alike = redelivered, content.exchange, content.routing_key, content.properties
                    if runs and runs[-1][0] == alike and runs[-1][1] + len(runs[-1][2]) == tag:
                        runs[-1][2].extend(content.bodies)
                    else:
                        runs.append((alike, tag, list(content.bodies)))
                tag += 1 if content is None else len(content.bodies)
        return [(tag, *alike, packed(bodies)) for alike, tag, bodies in runs]

    def _through_for(self, actor: QueueActor) -> Channel:
        """Return the channel for this channel's deliveries of a queue."""
        through = self._through.get(actor)
        if through is None or not through.alive:
            name = f"{self._channel.connection.name} ({self._channel.number})"
            through = self._through[actor] = Channel(actor, name)
        return through

    def pass_by(self, count: int) -> int:
        """Number deliveries that need no ack; return the first one's tag."""
        return self.unacked.pass_by(count)

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
        entry = find_queue(channel, name)
        actor = entry.actor
        through = self._through_for(actor)
        credit: Any = arguments.pop(CREDIT, None) if channel.connection.is_owner else None
        consumer_name = f"{channel.connection.name}.{channel.number}.{tag}"
        declaration = Consumer(
            channel=through.name,
            tag=consumer_name,
            **self._limits(self.prefetch, method.no_ack),
            acks_unseen=method.no_ack,
            exclusive=method.exclusive,
            priority=_priority(entry.declaration, arguments),
            arguments=arguments,
            ack_timeout_ms=_ack_timeout_ms(entry.declaration, arguments),
        )
        deliveries = _Deliveries(through.name, actor.intake, functools.partial(self._post_lapsed, through))
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
        channel, prefetch = self._channel, self.prefetch
        check_consume(stream, arguments, prefetch=prefetch, global_prefetch=self.together.limit, no_ack=method.no_ack)
        from warren.server.stream_consumer import StreamConsumer

        consumer = StreamConsumer(
            channel,
            stream,
            self.unacked,
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
        shared_limit = self.together.limit
        limit = 0 if no_ack else min(prefetch or shared_limit, shared_limit or prefetch)
        return {"prefetch": limit, "shared": self.together if shared_limit else None}

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
            contents = self._contents_of(delivered.fetched)
            current.sending = contents if delivered.count == 1 else pieces(contents)
        else:
            connection.server.rounds.post(functools.partial(self._pump, consumer))
            return
        arrival = consumer.deliveries.arrival()
        consumer.arrival = arrival
        arrival.on_done(functools.partial(self._arrived, consumer))

    def _contents_of(self, fetched: Fetched) -> Iterator[Content | None]:
        """Return messages in the form that is sent: those that came back with their counts, if enabled."""
        if isinstance(fetched, FetchedAgain) and (fetched.tells_count or self._channel.connection.is_owner):
            return counted_contents_of(fetched)
        return contents_of(fetched)

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
            tag = self.pass_by(count)
        else:
            sent, consumer.unsent = consumer.unsent[:count], consumer.unsent[count:]
            tag = self.unacked.give(_CONSUMED, sent, consumer.through)
        if piece is None:
            return
        if channel.traffic is not None:
            channel.traffic.deliver(count, no_ack=consumer.no_ack, redelivered=consumer.redelivered)
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
            with _UNLESS_GONE:
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
            with _UNLESS_GONE:
                consumer.through.settle_ranges("requeue", tags)

    def _not_sent(self, consumer: ServerConsumer) -> list[range]:
        """Return the queue's tags of messages that wait here for a consumer that is gone."""
        line = consumer.line
        line.remove(consumer)
        if not line.consumers:
            self._lines.pop(consumer.through, None)
        tags = [consumer.unsent, *(delivered.tags for delivered in consumer.deliveries.drain())]
        if not consumer.no_ack:
            self.together.give_back(sum(map(len, tags)))
        return [run for run in tags if run]

    def set_qos(self, method: c.Basic.Qos) -> Work:
        if method.prefetch_size:
            raise ProtocolError(NOT_IMPLEMENTED, f"prefetch_size!=0 ({method.prefetch_size})", method.index)
        if not method.global_:
            self.prefetch = method.prefetch_count
        # setting a prefetch per consumer ends the shared one, as in RabbitMQ
        if self.together.set_limit(method.prefetch_count if method.global_ else 0, len(self.unacked)):
            for consumer in self.by_tag.values():
                if isinstance(consumer, ServerConsumer):
                    limits = self._limits(consumer.prefetch, consumer.no_ack)
                    with _UNLESS_GONE:
                        actor = consumer.through.actor
                        actor.call_soon(functools.partial(actor.consumers.set_prefetch, consumer.name, **limits))
        self._channel.send(c.Basic.QosOk())
        return None

    # ── settling ────────────────────────────────────────────────────────────────────────────────────────────────

    def settle(self, outcome: str, tags: Sequence[int], *, multiple: bool) -> None:
        """Settle deliveries by their tags. Raises :class:`Refusal` for an unknown tag.

        Guests may settle a delivery twice, as the host may; the second time has no effect.
        """
        if multiple:
            for tag in tags:
                self._settle(outcome, self._take_up_to(tag))
        elif len(tags) == 1:
            self._settle(outcome, self._take_one(tags[0]))
        else:
            try:
                self._settle(outcome, self._take(tag_ranges(list(tags))))
            except UnknownTagError:
                for tag in tags:  # those before the wrong one count
                    self._settle(outcome, self._take_one(tag))

    def settle_stretch(self, method: Settle) -> None:
        """Settle consecutive deliveries of a guest, as :meth:`settle`."""
        if method.outcome not in _OUTCOMES:
            raise Refusal(PRECONDITION_FAILED, f"unknown outcome '{method.outcome}'")
        try:
            runs = self._take([range(method.first, method.last + 1)])
        except UnknownTagError as error:
            raise Refusal(PRECONDITION_FAILED, str(error)) from None
        self._settle(method.outcome, runs)

    def retry_in(self, tag: int, wait_ms: int) -> Steps[None]:
        """Return one delivery as failed; it comes again after ``wait_ms``."""
        for run in self._take_one(tag):
            if isinstance(run.owner, Channel):
                yield from run.owner.retry_in(run.seq_id, wait_ms)
                if self.together.limit and run.level == _CONSUMED:
                    self.together.give_back(self._still_counted(run))

    def extend(self, tag: int, time_ms: int) -> Steps[None]:
        """Set the ack timeout of one delivery to ``time_ms`` from now. Raises :class:`UnknownTagError`."""
        self.unacked.check_present(tag)
        for run in self.unacked.runs:
            if run.first <= tag < run.end and isinstance(run.owner, Channel):
                yield from run.owner.extend(run.part(tag, tag + 1).seq_id, time_ms)

    def ack_up_to(self, tag: int) -> None:
        """Ack everything of a guest up to a tag; 0: everything. Raises :class:`UnknownTagError` if the tag was never
        given, or the reason if its queue has stopped."""
        runs = self.unacked.take_present_up_to(tag)
        self._settle("ack", runs)
        for run in runs:
            if isinstance(run.owner, Channel):
                _ = run.owner.actor  # raises if the queue has stopped

    def _take(self, tags: Sequence[range]) -> list[Unacked]:
        is_guests = self._channel.connection.is_owner
        return self.unacked.take_present(tags) if is_guests else self.unacked.take(tags)

    def _take_one(self, tag: int) -> list[Unacked]:
        try:
            return self._take([range(tag, tag + 1)])
        except UnknownTagError:
            raise Refusal(PRECONDITION_FAILED, f"unknown delivery tag {tag}") from None

    def _take_up_to(self, tag: int) -> list[Unacked]:
        is_guests = self._channel.connection.is_owner
        try:
            return self.unacked.take_present_up_to(tag) if is_guests else self.unacked.take_up_to(tag)
        except UnknownTagError:
            raise Refusal(PRECONDITION_FAILED, f"unknown delivery tag {tag}") from None

    def _settle(self, outcome: str, runs: list[Unacked]) -> None:
        if self._channel.transactional:
            self.uncommitted.append((outcome, runs))
        else:
            self._settle_runs(outcome, runs)

    def commit(self) -> None:
        """Apply the transaction's settlements."""
        settlements, self.uncommitted = self.uncommitted, []
        for outcome, runs in settlements:
            self._settle_runs(outcome, runs)

    def _settle_runs(self, outcome: str, runs: Sequence[Unacked]) -> None:
        """Settle the deliveries of each queue in one message; a queue that is gone has them already."""
        traffic = self._channel.traffic
        parts: dict[Settler, list[range]] = {}
        for run in runs:
            parts.setdefault(run.owner, []).append(run.seq_ids)
            if traffic is not None and outcome == "ack":
                traffic.acked += len(run.seq_ids)
        # First, or a queue that gets its message back would always be served before the others.
        if self.together.limit:
            self.together.give_back(sum(self._still_counted(run) for run in runs if run.level == _CONSUMED))
        for through, ranges in parts.items():
            if not isinstance(through, Channel):
                through.settle_ranges(outcome, ranges)
                continue
            with _UNLESS_GONE:
                through.settle_ranges(outcome, ranges)

    def _post_lapsed(self, through: Channel, tags: range) -> None:
        """Called in the queue's thread."""
        self._channel.server.rounds.post(functools.partial(self._note_lapsed, through, tags))

    def _note_lapsed(self, through: Channel, tags: range) -> None:
        """Make room under the shared prefetch: these messages exceeded their ack timeout and were requeued."""
        if self.together.limit:
            self._lapsed.setdefault(through, set()).update(tags)
            self.together.give_back(len(tags))

    def _still_counted(self, run: Unacked) -> int:
        """Return how many messages of a run still counted under the shared prefetch."""
        lapsed = self._lapsed.get(run.owner) if isinstance(run.owner, Channel) else None
        if not lapsed:
            return run.count
        requeued = lapsed.intersection(run.seq_ids)
        lapsed -= requeued
        return run.count - len(requeued)

    def roll_back(self) -> None:
        """Drop the transaction's settlements: the deliveries are unacked again."""
        settlements, self.uncommitted = self.uncommitted, []
        self.unacked.put_back([run for _, runs in settlements for run in runs])

    def recover(self, method: c.Basic.Recover | c.Basic.RecoverAsync, *, answer: bool) -> Work:
        if not method.requeue:
            raise ProtocolError(NOT_IMPLEMENTED, "requeue=false", method.index)
        self._settle_runs("requeue", self.unacked.take_all())
        if answer:
            self._channel.send(c.Basic.RecoverOk())
        return None

    async def release(self, seen_up_to: int | None = LOST) -> int:
        """Return everything to its queue, as the channel is over; return how many messages that were.

        ``seen_up_to``: messages with a higher delivery tag were not seen, as the client says; ``None``: all were seen.
        """
        if seen_up_to == LOST:  # of other clients, all count, as with a quorum queue
            seen_up_to = self.unacked.oldest if self._channel.connection.is_owner else None
        unseen: dict[Channel, int] = {}
        for run in (
            self.unacked.take_present([range(seen_up_to + 1, self.unacked.next_tag)]) if seen_up_to is not None else ()
        ):
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
        channels, self._through = self._through, {}
        requeued = 0
        for channel in channels.values():
            first = unseen.get(channel)
            with _UNLESS_GONE:
                requeued += await bridge.run(channel.shut(None if first is None else first - 1))
        return requeued


def _priority(queue: QueueDeclaration, arguments: dict[str, Any]) -> int:
    """Return the consumer's priority. Raises :class:`Refusal` for arguments invalid with a classic queue."""
    if "x-stream-offset" in arguments:
        raise Refusal(
            PRECONDITION_FAILED, f"invalid arg 'x-stream-offset' for {queue} of queue type rabbit_classic_queue"
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
