"""Consumers of queues that another process hosts: their channels, which are reopened on the next socket, and credit."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, TypeVar

import attrs
from pamqp import commands as c

from warren.actors.engines.declared.arguments import QueueDeclaration
from warren.actors.engines.errors import NotFoundError
from warren.actors.engines.queue.consumers import Consumer as ConsumerDeclaration
from warren.actors.engines.queue.effects import Delivered
from warren.actors.queue.deliveries import Deliveries
from warren.actors.queue.intake import QueueGoneError
from warren.actors.runtime.future import Future
from warren.actors.runtime.leader_follower import Later
from warren.amqp.connection import Connection
from warren.amqp.methods import method_of
from warren.amqp.own_methods import CREDIT, MESSAGE_BYTES, Credit
from warren.client.channels import DeliveryChannel, DeliverySlot
from warren.client.errors import LinkLostError
from warren.client.link import Link
from warren.client.received import RemoteDelivered
from warren.client.remote import RemoteVhost
from warren.handles.channel import DeliveredMessage
from warren.storage.errors import WarrenError
from warren.verbs.consumer_verbs import ConsumerVerbs, D, NewDelivery, spread
from warren.verbs.steps import Steps

T = TypeVar("T")

MAX_PREFETCH: Final = 65_535
CREDIT_BYTES: Final = 1 << 20
"""About this many bytes wait here for a consumer that does not take its messages."""


def while_there(queue: QueueDeclaration, steps: Steps[T]) -> Steps[T]:
    """Run ``steps``; raise :class:`QueueGoneError` if the host no longer has the queue."""
    try:
        return (yield from steps)
    except NotFoundError:
        raise QueueGoneError(f"{queue} was deleted") from None


class Subscription(DeliverySlot):
    """A consumer's channel, which is reopened on the next socket."""

    def __init__(self, verbs: LinkConsumerVerbs) -> None:
        super().__init__(verbs.vhost.link, verbs.vhost.name, verbs.queue.name)
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
        verbs.channel = DeliveryChannel(self, verbs.channel.name)
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


class LinkConsumerVerbs(ConsumerVerbs):
    """The verbs of one consumer."""

    channel: DeliveryChannel

    def __init__(
        self, vhost: RemoteVhost, queue: QueueDeclaration, declaration: ConsumerDeclaration, timeout: float | None
    ) -> None:
        self.vhost = vhost
        self.queue = queue
        self.declaration = declaration
        self.deliveries = CreditedDeliveries(declaration.channel, vhost.link, self._taken)
        super().__init__(self._new_channel(), declaration, self.deliveries, timeout)

    def _new_channel(self) -> DeliveryChannel:
        self.slot = Subscription(self)
        return DeliveryChannel(self.slot, self.declaration.channel)

    def _taken(self, delivered: RemoteDelivered) -> None:
        """Note a taken batch; give the host new credit when half of it is used."""
        with self.vhost.link.locked():
            slot = self.slot
            if delivered.through is not self.channel or slot.error is not None or not self.vhost.link.outbox.can_send:
                return
            slot.taken_bytes += delivered.size + MESSAGE_BYTES * delivered.count
            if slot.taken_bytes >= CREDIT_BYTES // 2:
                self.vhost.link.outbox.send(slot.number, Credit(self.declaration.tag, slot.taken_bytes))
                slot.taken_bytes = 0

    def next_batch(self, timeout: float | None) -> Steps[Delivered | None]:
        delivered = yield from super().next_batch(timeout)
        if delivered is None:
            self.vhost.link.check_heard(timeout)
        return delivered

    def begin(self) -> Steps[None]:
        return self.vhost.within(self.timeout, while_there(self.queue, self._begin()))

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
                self.channel.error = error
                self.channel = self._new_channel()

    def acked(self, delivered: Delivered) -> Delivered:
        if delivered.first_tag and isinstance(delivered, RemoteDelivered):
            delivered.through.settle_all("ack", delivered.tags)
        return attrs.evolve(delivered, first_tag=0)

    def _spread(self, new: NewDelivery[D], delivered: Delivered) -> Iterator[D]:
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
        yield from self.vhost.within(0.0, self._close(unseen))
