"""A consumer of a queue, for threads and coroutines.

Messages come in batches from the queue, which keeps a consumer supplied up to its prefetch. They are handed out one by
one; with ``auto_ack`` each is acked as it is handed out, so a crash loses only messages that were handed out. Unsettled
messages go back to their old place in the queue when the consumer is closed.
"""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable, Iterable, Iterator
from itertools import count, repeat
from typing import TypedDict, TypeVar

import attrs

from warren.actors import messages as m
from warren.actors.engines.queue.consumers import Consumer as ConsumerDeclaration
from warren.actors.engines.queue.effects import Delivered
from warren.actors.queue.deliveries import Deliveries
from warren.actors.queue.intake import PublishKey
from warren.actors.runtime.future import Future
from warren.handles.channel import Channel, DeliveredMessage, SettlingChannel
from warren.storage.errors import WarrenError
from warren.values.messages import milliseconds
from warren.verbs.instrumentation import HOOK, HandedOut
from warren.verbs.steps import Steps, Within, ask, call

D = TypeVar("D", bound=DeliveredMessage)
NewDelivery = Callable[[SettlingChannel, Delivered, int, bytes | None], D]


class ConsumeArguments(TypedDict, total=False):
    """The options of a consumer."""

    timeout: float | None
    """Seconds without a message after which the iteration ends; ``None``: never."""
    auto_ack: bool
    """Each message is acked as it is handed out."""
    ack_timeout: float | None
    """Seconds that a message may stay unacked before it goes back to the queue; ``None``: the queue's setting."""
    exclusive: bool
    """Allow no other consumer meanwhile."""
    priority: int
    """Consumers with a lower priority get only what those with a higher one have no room for."""
    tag: str | None


def ack_timeout_ms(arguments: ConsumeArguments, otherwise: int | None = None) -> int | None:
    """Return the ack timeout of a consumer; ``otherwise``: that of its queue. Raises
    :class:`MessageError`."""
    seconds = arguments.get("ack_timeout")
    return otherwise if seconds is None else max(milliseconds("an ack timeout", seconds), 1)


class ConsumerVerbs(abc.ABC):
    """The verbs of one consumer."""

    def __init__(
        self, channel: SettlingChannel, declaration: ConsumerDeclaration, deliveries: Deliveries, timeout: float | None
    ) -> None:
        self.channel = channel
        self.declaration = declaration
        self.deliveries = deliveries
        self.timeout = timeout
        self.closed = False

    def __str__(self) -> str:
        return f"{self.declaration.tag!r} of {self.channel.queue[1]!r}{' (closed)' if self.closed else ''}"

    @abc.abstractmethod
    def begin(self) -> Steps[None]:
        """Start consuming, once. Raises :class:`AccessRefusedError` if the queue does not allow the consumer."""

    @abc.abstractmethod
    def set_prefetch(self, prefetch: int) -> Steps[None]:
        """Set how many messages may be unacked from now on; 0: any number."""

    @abc.abstractmethod
    def cancel(self) -> Steps[None]:
        """Ask for no more messages. What was delivered can still be taken and settled."""

    def next_batch(self, timeout: float | None) -> Steps[Delivered | None]:
        """Return messages, or ``None`` after ``timeout`` seconds or when no more will come."""
        ended = self.deliveries.ended  # before the last look
        delivered = self.deliveries.take_now()
        if delivered is not None or ended:
            return delivered
        arrival = self.deliveries.arrival()
        try:
            yield Within(arrival, timeout)
        finally:
            if not arrival.done:
                self.deliveries.forget(arrival)
        return self.deliveries.take_now()

    def acked(self, delivered: Delivered) -> Delivered:
        """Ack a batch that is handed out in one go."""
        if delivered.first_tag:
            self.channel.settle_all("ack", delivered.tags)
        return attrs.evolve(delivered, first_tag=0)

    def spread(self, new: NewDelivery[D], delivered: Delivered) -> Iterator[D]:
        """The messages of a batch, one by one."""
        deliveries = self._spread(new, delivered)
        return deliveries if HOOK.instrumentation is None else HandedOut(deliveries)

    def _spread(self, new: NewDelivery[D], delivered: Delivered) -> Iterator[D]:
        if self.declaration.acks_unseen and delivered.first_tag:
            return self._spread_acked(new, delivered)
        deliveries = spread(new, self.channel, delivered)
        return deliveries if self.declaration.ack_timeout_ms is None else self._without_lapsed(deliveries)

    def _without_lapsed(self, deliveries: Iterator[D]) -> Iterator[D]:
        """The deliveries whose ack timeout has not expired while they waited here."""
        for delivery in deliveries:
            lapsed = self.deliveries.lapsed
            if lapsed is None or delivery.delivery_tag not in lapsed:
                yield delivery

    def _spread_acked(self, new: NewDelivery[D], delivered: Delivered) -> Iterator[D]:
        settled = attrs.evolve(delivered, first_tag=0)
        for tag, delivery in zip(delivered.tags, spread(new, self.channel, settled), strict=True):
            self.channel.settle("ack", tag)
            yield delivery

    @abc.abstractmethod
    def close(self, unseen: Iterable[DeliveredMessage] = ()) -> Steps[None]:
        """Cancel, and give back what was not settled. ``unseen``: the rest of a batch that was being handed out."""

    def _close(self, unseen: Iterable[DeliveredMessage]) -> Steps[list[Delivered]]:
        """Do it; return what had come and was not handed out."""
        if self.closed:
            return []
        self.closed = True
        drained = self.deliveries.drain()
        seen_up_to = self._seen_up_to(unseen, drained)
        self.deliveries.end()
        yield from self.channel.shut(seen_up_to)
        return drained + self.deliveries.drain()

    def _seen_up_to(self, unseen: Iterable[DeliveredMessage], drained: list[Delivered]) -> int | None:
        """The last delivery tag that was handed out, as far as there are others."""
        if self.declaration.acks_unseen:  # acked as they are handed out, so no message here was
            return 0
        first = next(iter(unseen.rest if isinstance(unseen, HandedOut) else unseen), None)
        tags = [drained[0].first_tag if drained else 0, 0 if first is None else first.delivery_tag]
        return min((tag - 1 for tag in tags if tag), default=None)


class LocalConsumerVerbs(ConsumerVerbs):
    """The verbs of a consumer in the process that hosts the node."""

    def __init__(
        self, channel: Channel, declaration: ConsumerDeclaration, deliveries: Deliveries, timeout: float | None
    ) -> None:
        super().__init__(channel, declaration, deliveries, timeout)
        self._channel = channel
        self._begun: Future | None = None

    def begin(self) -> Steps[None]:
        if self._begun is None:
            self._begun = ask(self._channel.actor, m.Subscribe(self.declaration, self.deliveries))
        yield self._begun

    def set_prefetch(self, prefetch: int) -> Steps[None]:
        yield from self.begin()
        if self._channel.alive:
            actor = self._channel.actor
            actor.call_soon(lambda: actor.consumers.set_prefetch(self.declaration.tag, prefetch))

    def cancel(self) -> Steps[None]:
        if self._channel.alive:
            actor = self._channel.actor
            yield call(actor, lambda: actor.consumers.cancel(self.declaration.tag))

    def close(self, unseen: Iterable[DeliveredMessage] = ()) -> Steps[None]:
        drained = yield from self._close(unseen)
        for delivered in drained if self.declaration.acks_unseen else ():
            terms = delivered.fetched.unencoded
            if not delivered.first_tag and terms is not None:  # it bypassed the queue, and has no place to go back to
                with contextlib.suppress(WarrenError):  # the queue is gone, with all that it had
                    self._channel.actor.intake.publish_many(PublishKey(terms.envelope), terms.given)


def spread(new: NewDelivery[D], channel: SettlingChannel, delivered: Delivered) -> Iterator[D]:
    """Yield the messages of a batch; one that cannot be read raises the error when its body is accessed."""
    return map(new, repeat(channel), repeat(delivered), count(), delivered.fetched.readable_bodies())
