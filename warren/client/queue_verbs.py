"""The verbs of a queue that another process hosts, with the interface of :mod:`warren.verbs.queue_verbs`."""

from __future__ import annotations

import contextlib
import itertools
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar, Unpack

import attrs
from pamqp import commands as c

from warren.actors.engines.declared.arguments import QueueDeclaration
from warren.actors.engines.errors import NotFoundError
from warren.actors.engines.queue.consumers import Consumer as ConsumerDeclaration
from warren.actors.engines.queue.effects import Delivered
from warren.actors.node.node_errors import ClosedError
from warren.actors.queue.deliveries import Deliveries
from warren.actors.queue.inspecting import chosen_ids
from warren.actors.queue.intake import PublishKey, QueueGoneError
from warren.actors.queue.queue_entry import QueueEntry
from warren.actors.runtime.future import Confirm, CountDown, Future
from warren.actors.runtime.leader_follower import Later
from warren.amqp.connection import Connection
from warren.amqp.methods import method_of
from warren.amqp.own_methods import CREDIT, DUE, MESSAGE_BYTES, Call, Credit
from warren.client.calls import call, packed
from warren.client.channels import DeliveryChannel, DeliverySlot
from warren.client.errors import LinkLostError
from warren.client.link import Link
from warren.client.received import RemoteDelivered, got_of
from warren.client.remote import Publishing, RemoteVhost
from warren.handles.channel import DeliveredMessage
from warren.queue_index.message.amqp_tables import LongInteger
from warren.storage.errors import WarrenError
from warren.values.messages import (
    KEY_ARGUMENTS,
    LATER,
    QueuePublishArguments,
    QueuePublishManyArguments,
    as_bodies,
    as_body,
    columns_of,
)
from warren.verbs.consumer_verbs import ConsumeArguments, ConsumerVerbs, D, NewDelivery, ack_timeout_ms, spread
from warren.verbs.operation import DEFINITIONS, Operation
from warren.verbs.publishing import AsTheyWere, settled_confirm
from warren.verbs.queue_verbs import GetResult, QueueVerbs
from warren.verbs.selecting import Place, Selected, Where
from warren.verbs.steps import Steps

if TYPE_CHECKING:
    from warren.values.scheduling import Scheduled
    from warren.verbs.selecting import Done, Target
    from warren.verbs.tail_verbs import TailVerbs

T = TypeVar("T")

GETS_AT_ONCE: Final = 10_000
"""More messages than this are got in several calls; large messages in even more."""
MAX_PREFETCH: Final = 65_535
CREDIT_BYTES: Final = 1 << 20
"""About this many bytes wait here for a consumer that does not take its messages."""
_numbers = itertools.count(1)


def with_due(properties: Mapping[str, Any], due_ms: int) -> dict[str, Any]:
    """Return the properties of a message that the host delays."""
    return {**properties, "headers": {**(properties.get("headers") or {}), DUE: LongInteger(due_ms)}}


class _RemoteIntake:
    """What a handle's publish tries first: joining the run that waits to be sent."""

    __slots__ = ("_vhost", "inbox", "weight")

    def __init__(self, vhost: RemoteVhost) -> None:
        self._vhost = vhost
        self.weight = 0
        self.inbox = self

    def join(self, key: PublishKey, body: bytes) -> Confirm | None:
        channel = self._vhost.publisher_now()
        return None if channel is None else channel.join(key, body)


class RemoteQueueVerbs(QueueVerbs):
    """The verbs of one queue."""

    def __init__(self, vhost: RemoteVhost, declaration: QueueDeclaration, parents: QueueVerbs | None = None) -> None:
        """``parents``: in a forked child, the verbs that worked on the parent's node."""
        self.remote = vhost
        super().__init__(vhost, QueueEntry(declaration))  # type: ignore[arg-type]
        if parents is not None:
            self._channel = parents._channel  # it says that its deliveries are the parent's
        self._method = method_of(c.Basic.Publish, routing_key=declaration.name, mandatory=True)
        self._get = method_of(c.Basic.Get, queue=declaration.name)
        self._intake = _RemoteIntake(vhost)

    @property
    def name(self) -> str:
        return self.entry.declaration.name

    @property
    def intake(self) -> Any:
        return self._intake

    # ── publishing ──────────────────────────────────────────────────────────────────────────────────────────────

    def publish(
        self,
        body: bytes,
        *,
        block: bool = True,
        timeout: float | None = None,
        **properties: Unpack[QueuePublishArguments],
    ) -> Steps[Confirm]:
        if not KEY_ARGUMENTS.isdisjoint(properties):
            return self.publish_unique([as_body(body)], properties, block, timeout, several=False)
        if not LATER.isdisjoint(properties):
            return self._publish_later([as_body(body)], properties, block, timeout)
        return self._publish(self.key(properties), [as_body(body)], block, timeout)

    def publish_unique(
        self,
        bodies: list[bytes],
        properties: Mapping[str, Any],
        block: bool = True,
        timeout: float | None = None,
        *,
        several: bool,
        passes_alarms: bool = False,
    ) -> Steps[Confirm]:
        from warren.client.unique_calls import publish_unique
        from warren.verbs.unique_publishing import keys_of

        keys, rest = keys_of(properties, bodies, several=several)  # errors in them are raised here
        if not any(keys):
            if several:
                return self.publish_many(bodies, block=block, timeout=timeout, **rest)
            return self.publish(bodies[0], block=block, timeout=timeout, **rest)
        self.key({name: value for name, value in rest.items() if not isinstance(value, list)})
        columns_of(rest, len(bodies))
        return publish_unique(self.remote, self.name, bodies, properties, several=several, block=block, timeout=timeout)

    def publishing(self, key: PublishKey, given: bytes, block: bool, timeout: float | None) -> Any:
        return Publishing(self._publish(key, [given], block, timeout))

    def keyed(self, body: bytes, properties: Mapping[str, Any]) -> tuple[PublishKey, bytes]:
        return self.key(properties), body

    def publish_many(
        self,
        bodies: Iterable[bytes],
        *,
        block: bool = True,
        timeout: float | None = None,
        **properties: Unpack[QueuePublishManyArguments],
    ) -> Steps[Confirm]:
        checked_bodies = as_bodies(bodies)
        if not KEY_ARGUMENTS.isdisjoint(properties):
            return (yield from self.publish_unique(checked_bodies, properties, block, timeout, several=True))
        if not LATER.isdisjoint(properties):
            return (yield from self._publish_later(checked_bodies, properties, block, timeout))
        columns = columns_of(properties, len(checked_bodies))
        if not columns:
            key = self.key(properties)
            return (
                (yield from self._publish(key, checked_bodies, block, timeout)) if checked_bodies else settled_confirm()
            )
        confirms: list[Confirm] = []
        for body, *own in zip(checked_bodies, *columns.values(), strict=True):
            key = self.key({**properties, **dict(zip(columns, own, strict=True))})
            confirms.append((yield from self._publish(key, [body], block, timeout)))
        return CountDown([*confirms]) if confirms else settled_confirm()

    def _publish_later(
        self, bodies: list[bytes], properties: Mapping[str, Any], block: bool, timeout: float | None
    ) -> Steps[Scheduled]:
        from warren.values.scheduling import Scheduled, schedule

        scheduled = schedule(properties, len(bodies), self.remote.now_ms(), self.remote.new_message_id)
        columns = columns_of(scheduled.properties, len(bodies))
        confirms: list[Confirm] = []
        for at, body in enumerate(bodies):
            own = {name: column[at] for name, column in columns.items()}
            key = self._new_key(with_due({**scheduled.properties, **own}, scheduled.due_ms[at]))
            confirms.append((yield from self._publish(key, [body], block, timeout, is_delayed=True)))
        return Scheduled(confirms, scheduled)

    def publish_as_they_were(self, groups: Sequence[AsTheyWere]) -> Steps[list[str | None]]:
        plain_groups = [{**group._asdict(), "bodies": packed(group.bodies)} for group in groups]
        verb = "queue.publish_as_they_were"
        outcomes: list[str | None] = yield from self.while_there(
            call(self.remote, verb, name=self.name, groups=plain_groups)
        )
        return outcomes

    def _publish(
        self, key: PublishKey, bodies: list[bytes], block: bool, timeout: float | None, *, is_delayed: bool = False
    ) -> Steps[Confirm]:
        return self.remote.publish(
            key, self._method, bodies, self._deleted_error, block=block, timeout=timeout, is_delayed=is_delayed
        )

    def _deleted_error(self) -> WarrenError:
        return QueueGoneError(f"{self.entry.declaration} was deleted")

    def while_there(self, steps: Steps[T]) -> Steps[T]:
        """Run ``steps``; raise :class:`QueueGoneError` if the host no longer has the queue."""
        try:
            return (yield from steps)
        except NotFoundError:
            raise self._deleted_error() from None

    def perform(self, operation: Operation[T]) -> Steps[T]:
        return self.while_there(self.remote.perform(operation, self.name))

    def room(self, timeout: float | None = None) -> Steps[None]:
        yield from self.remote.room(timeout)

    # ── getting ─────────────────────────────────────────────────────────────────────────────────────────────────

    def get_early(self) -> None:
        """Return ``None``: messages are in the host."""

    def get(self, *, auto_ack: bool = False, timeout: float | None = 0.0) -> Steps[GetResult]:
        return self.remote.within(timeout or None, super().get(auto_ack=auto_ack, timeout=timeout))

    def get_many(self, count: int, *, auto_ack: bool = False) -> Steps[GetResult]:
        return self.while_there(self._get_many(count, auto_ack))

    def _get_many(self, count: int, auto_ack: bool) -> Steps[GetResult]:
        delivered: list[Delivered] = []
        left = count
        while left > 0:
            channel = yield from self._open_own_channel()
            asked = channel.slot.ask(
                self._get if left == 1 else Call("queue.get", {"name": self.name, "count": min(left, GETS_AT_ONCE)})
            )
            try:
                batches = got_of(channel, self.remote.name, (yield asked))
            except LinkLostError:  # what came goes back with the connection
                delivered, left = [], count
                continue
            except BaseException:
                asked.on_done(channel.give_back)
                with contextlib.suppress(ClosedError):  # they have gone back
                    for batch in delivered:
                        channel.settle_all("requeue", batch.tags)
                raise
            delivered += batches
            left -= sum(batch.count for batch in batches)
            if not batches:
                break
        channel = yield from self._open_own_channel()
        if auto_ack:
            for batch in delivered:
                channel.settle_all("ack", batch.tags)
            delivered = [attrs.evolve(batch, first_tag=0) for batch in delivered]
        return channel, delivered  # type: ignore[return-value]

    def take(self, id: str) -> Steps[GetResult]:
        chosen_ids([id])
        return self.while_there(self._take(id))

    def _take(self, id: str) -> Steps[GetResult]:
        while True:
            channel = yield from self._open_own_channel()
            asked = channel.slot.ask(Call("queue.take", {"name": self.name, "id": id}))
            try:
                batches = got_of(channel, self.remote.name, (yield asked))
            except LinkLostError:  # what came goes back with the connection
                continue
            except BaseException:
                asked.on_done(channel.give_back)
                raise
            return channel, list[Delivered](batches)  # type: ignore[return-value]

    def own_channel(self) -> Any:
        channel = self._channel
        if channel is None or not channel.alive:
            channel = self._channel = DeliveryChannel(  # type: ignore[assignment]
                DeliverySlot(self.remote.link, self.remote.name, self.name), f"get-{next(_numbers)}"
            )
        return channel

    def _open_own_channel(self) -> Steps[DeliveryChannel]:
        while True:
            channel: DeliveryChannel = self.own_channel()
            slot = channel.slot
            try:
                if slot.opened is None:
                    yield self.remote.link.ready()
                yield slot.opened or slot.open()
            except LinkLostError as error:
                channel.error = error
                continue
            if channel.alive:
                return channel

    def ack_up_to(self, delivery_tag: int) -> Steps[None]:
        if self._channel is None:
            yield from self._open_own_channel()
        yield from super().ack_up_to(delivery_tag)

    def consumer(self, prefetch: int = 500, **arguments: Unpack[ConsumeArguments]) -> ConsumerVerbs:
        number = next(_numbers)
        declaration = ConsumerDeclaration(
            channel=f"channel-{number}",
            tag=arguments.get("tag") or f"consumer-{number}",
            prefetch=prefetch,
            acks_unseen=arguments.get("auto_ack", False),
            exclusive=arguments.get("exclusive", False),
            priority=arguments.get("priority", 0),
            ack_timeout_ms=ack_timeout_ms(arguments),
        )
        return RemoteConsumerVerbs(self, declaration, arguments.get("timeout"))

    def tail(self) -> TailVerbs:
        from warren.client.tail_verbs import RemoteTailVerbs

        return RemoteTailVerbs(self.remote, self.name)

    def select(self, where: Where | None, after: Place | None, ends: dict[int, int]) -> Steps[Selected]:
        if callable(where):  # it is called here, on pages of the host's
            return self._select(where, after, ends)
        return super().select(where, after, ends)

    def move_ids(self, ids: list[str], to: Target) -> Steps[Done]:
        yield from self.remote.flush()
        moved, why = yield from call(self.remote, "queue.move", name=self.name, ids=ids, to=to)
        return moved, why

    # ── the whole queue ─────────────────────────────────────────────────────────────────────────────────────────

    def delayed(self, limit: int = 100) -> Steps[list[tuple[int, bytes]]]:
        return self._flushed("vhost.delayed", limit=limit, queue=self.name)

    def cancel_delayed(self, message_id: str) -> Steps[int]:
        return self._flushed("vhost.cancel_delayed", message_id=message_id, queue=self.name)

    def purge_delayed(self) -> Steps[int]:
        return self._flushed("vhost.purge_delayed", queue=self.name)

    def _flushed(self, operation: str, **arguments: Any) -> Steps[Any]:
        """Perform an operation on the vhost, after flushing what was published here."""
        yield from self.remote.flush()
        return (yield from self._of_vhost(operation, **arguments))

    def _of_vhost(self, operation: str, **arguments: Any) -> Steps[Any]:
        return self.remote.perform(Operation(DEFINITIONS[operation], arguments), self.entry.declaration.vhost)

    def delete(self, *, if_empty: bool = False, if_unused: bool = False) -> Steps[int]:
        return self._of_vhost("vhost.delete_queue", name=self.name, if_empty=if_empty, if_unused=if_unused)


class Subscription(DeliverySlot):
    """A consumer's channel, which is reopened on the next socket."""

    def __init__(self, verbs: RemoteConsumerVerbs, queue: str) -> None:
        super().__init__(verbs.vhost.link, verbs.vhost.name, queue)
        self.verbs = weakref.ref(verbs)
        self.declaration = verbs.declaration
        self.prefetch = min(verbs.declaration.prefetch, MAX_PREFETCH)
        self.is_begun = False
        self.taken_bytes = 0
        """Bytes that were taken and not yet reported to the host."""
        self.deliveries = weakref.ref(verbs.deliveries)

    def qos(self) -> c.Basic.Qos:
        return c.Basic.Qos(0, self.prefetch, True)  # the channel's, for that may be changed later

    def consume(self) -> c.Basic.Consume:
        declaration = self.declaration
        arguments: dict[str, Any] = {CREDIT: CREDIT_BYTES}
        if declaration.priority:
            arguments["x-priority"] = declaration.priority
        if declaration.ack_timeout_ms is not None:
            arguments["x-consumer-timeout"] = declaration.ack_timeout_ms
        return method_of(
            c.Basic.Consume,
            queue=self.queue,
            consumer_tag=declaration.tag,
            exclusive=declaration.exclusive,
            arguments=arguments,
        )

    def receive(self, event: Any, later: Later) -> None:
        if isinstance(getattr(event, "method", None), c.Basic.Cancel):
            reason, self.refusal = self.refusal, None
            if not isinstance(reason, WarrenError):
                reason = QueueGoneError(f"queue '{self.queue}' in vhost '{self.vhost}' was deleted")
            self._end_deliveries(reason, later)
        else:
            super().receive(event, later)

    def _end_deliveries(self, error: WarrenError | None, later: Later) -> None:
        deliveries = None if self.deliveries is None else self.deliveries()
        if deliveries is not None:
            later.append((deliveries.end, (error,)))

    def closed(self, error: WarrenError, later: Later) -> None:
        super().closed(error, later)
        if self.is_begun:
            self._end_deliveries(error, later)

    def failed(self, error: WarrenError, later: Later) -> None:
        super().failed(error, later)
        if self.is_begun:
            self._end_deliveries(error, later)

    def lost(self, error: WarrenError, later: Later) -> bool:
        verbs = self.verbs()
        if verbs is None or not self.is_begun or self.error is not None:
            super().lost(error, later)
            return False
        later.append((verbs.deliveries.drain, ()))
        super().end(error, later)
        self.error = None
        return True

    def rejoin(self, engine: Connection) -> None:
        verbs = self.verbs()
        if verbs is None:
            return
        verbs.channel = DeliveryChannel(self, verbs.channel.name)  # type: ignore[assignment]
        self.taken_bytes = 0
        begun = Future()
        begun.on_done(self._begun_again)
        self.asked += (Future(), begun)
        engine.send(self.number, self.qos())
        engine.send(self.number, self.consume())

    def _begun_again(self, begun: Future) -> None:
        deliveries = None if self.deliveries is None else self.deliveries()
        error = begun.error
        if error is not None and not isinstance(error, LinkLostError) and deliveries is not None:
            deliveries.end(QueueGoneError(str(error)) if isinstance(error, NotFoundError) else error)


class CreditedDeliveries(Deliveries):
    """Deliveries that report each batch when it is taken."""

    def __init__(self, channel: str, link: Link, taken: Callable[[RemoteDelivered], None]) -> None:
        super().__init__(channel, link)
        self._link = link
        self._taken = weakref.WeakMethod(taken)

    def take(self, timeout: float | None) -> Delivered | None:
        batch = super().take(timeout)
        if batch is None:
            self._link.check_heard(timeout)
        return batch

    def take_now(self) -> Delivered | None:
        batch = super().take_now()
        if isinstance(batch, RemoteDelivered) and (taken := self._taken()) is not None:
            taken(batch)
        return batch


class RemoteConsumerVerbs(ConsumerVerbs):
    """The verbs of one consumer."""

    def __init__(self, queue: RemoteQueueVerbs, declaration: ConsumerDeclaration, timeout: float | None) -> None:
        self.vhost = queue.remote
        deliveries = CreditedDeliveries(declaration.channel, self.vhost.link, self._taken)
        super().__init__(None, declaration, deliveries, timeout)  # type: ignore[arg-type]
        self.slot = Subscription(self, queue.name)
        self.channel = DeliveryChannel(self.slot, declaration.channel)  # type: ignore[assignment]
        self._queue = queue

    def _taken(self, delivered: RemoteDelivered) -> None:
        """Note a taken batch; give the host new credit when half of it is used."""
        with self.vhost.link.locked():
            slot = self.slot
            if delivered.through is not self.channel or slot.error is not None or not self.vhost.link.can_send:
                return
            slot.taken_bytes += delivered.size + MESSAGE_BYTES * delivered.count
            if slot.taken_bytes >= CREDIT_BYTES // 2:
                self.vhost.link.send(slot.number, Credit(self.declaration.tag, slot.taken_bytes))
                slot.taken_bytes = 0

    def next_batch(self, timeout: float | None) -> Steps[Delivered | None]:
        delivered = yield from super().next_batch(timeout)
        if delivered is None:
            self.vhost.link.check_heard(timeout)
        return delivered

    def begin(self) -> Steps[None]:
        return self.vhost.within(self.timeout, self._queue.while_there(self._begin()))

    def _begin(self) -> Steps[None]:
        while not self.slot.is_begun and not self.closed:
            slot = self.slot
            try:
                yield self.vhost.link.ready()
                yield slot.opened or slot.open()
                slot.ask(slot.qos())
                begun = slot.ask(slot.consume())
                with self.vhost.link.locked():
                    slot.is_begun = slot.error is None
                try:
                    yield begun
                except LinkLostError:
                    if slot.is_begun and slot.error is None:  # it is there again by itself
                        return
                    raise
                except BaseException:
                    slot.is_begun = False
                    raise
            except LinkLostError as error:
                self.channel.error = error  # type: ignore[attr-defined]
                self.slot = Subscription(self, self._queue.name)
                self.channel = DeliveryChannel(self.slot, self.declaration.channel)  # type: ignore[assignment]

    def acked(self, delivered: Delivered) -> Delivered:
        if delivered.first_tag and isinstance(delivered, RemoteDelivered):
            delivered.through.settle_all("ack", delivered.tags)
        return attrs.evolve(delivered, first_tag=0)

    def spread(self, new: NewDelivery[D], delivered: Delivered) -> Iterator[D]:
        if not isinstance(delivered, RemoteDelivered):
            return
        channel = delivered.through
        acks = self.declaration.acks_unseen and delivered.first_tag
        handed = attrs.evolve(delivered, first_tag=0) if acks else delivered
        for tag, delivery in zip(delivered.tags, spread(new, channel, handed), strict=False):
            if not channel.alive:  # it comes again
                return
            if acks:
                channel.settle("ack", tag)
            yield delivery

    def set_prefetch(self, prefetch: int) -> Steps[None]:
        yield from self.begin()
        self.slot.prefetch = min(prefetch, MAX_PREFETCH)
        self.slot.ask(self.slot.qos())

    def cancel(self) -> Steps[None]:
        return self.vhost.within(0.0, self._cancel())

    def _cancel(self) -> Steps[None]:
        slot = self.slot
        if slot.is_begun and slot.error is None:
            slot.is_begun = False
            try:
                yield slot.ask(c.Basic.Cancel(self.declaration.tag))
            except LinkLostError:
                self.deliveries.drain()
            self.deliveries.end()

    def close(self, unseen: Iterable[DeliveredMessage] = ()) -> Steps[None]:
        self.slot.is_begun = self.slot.is_begun and self.closed
        yield from self.vhost.within(0.0, super().close(unseen))
