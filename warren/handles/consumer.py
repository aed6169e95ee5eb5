"""Consumers and their deliveries, for threads; on top of :mod:`warren.verbs.consumer_verbs`."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable, Iterator
from types import TracebackType

from warren.actors.engines.queue.effects import Delivered
from warren.actors.runtime.future import Future
from warren.actors.runtime.pooled_actor import WrongProcessError
from warren.handles.channel import DeliveredMessage, DeliveryVerbs, SettlingChannel
from warren.storage.call_arguments import check_flag, checked
from warren.verbs.consumer_verbs import ConsumerVerbs
from warren.verbs.instrumentation import HOOK, called
from warren.verbs.steps import Handle, blocking, run


class Delivery(DeliveredMessage):
    """A message that was delivered, to be settled once: acked, given back or rejected.

    As a context manager it acks at the end. If an error leaves the block, the message comes again later
    (:meth:`retry`); if an interrupt does, it goes back at once.
    """

    __slots__ = ()

    def ack(self, *, multiple: bool = False) -> None:
        """Ack the message: it is deleted. ``multiple``: and all that this channel delivered before it."""
        if multiple is not False or self._settled or HOOK.instrumentation is not None:
            check_flag(multiple, "multiple")
            run(called(self._verbs.ack, multiple=multiple))
        else:  # the most frequent case
            self._settled = True
            try:
                self._channel.settle("ack", self.delivery_tag)
            except WrongProcessError:
                self._settled = False
                raise

    nack = blocking(DeliveryVerbs.nack)
    retry = blocking(DeliveryVerbs.retry)
    extend = blocking(DeliveryVerbs.extend)
    reject = blocking(DeliveryVerbs.reject)

    def __enter__(self) -> Delivery:
        if HOOK.instrumentation is not None:
            HOOK.instrumentation.enter(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        instrumentation = HOOK.instrumentation
        try:
            if error is None:
                self.ack()
            elif isinstance(error, Exception):
                self.retry()
            else:  # interrupted: nothing is wrong with the message
                self.nack()
        finally:
            if instrumentation is not None:
                instrumentation.leave(self, error)


class Consumer(Handle[ConsumerVerbs]):
    """An iterator over deliveries; a context manager that closes it.

    Ends after ``timeout`` seconds without a message (``None``: never), and when it is cancelled or closed. Raises the
    error that its queue failed with.
    """

    made_by = "queue.consume()"

    def __init__(self, verbs: ConsumerVerbs) -> None:
        super().__init__(verbs)
        self._deliveries = verbs.deliveries
        self._timeout = verbs.timeout
        self._batch: Iterator[Delivery] = iter(())
        run(verbs.begin())
        _CONSUMERS.add(self)

    @property
    def tag(self) -> str:
        return self._verbs.declaration.tag

    @property
    def channel(self) -> SettlingChannel:
        return self._verbs.channel

    def __iter__(self) -> Iterator[Delivery]:
        """As repeated :meth:`__next__`, without a call for each."""
        delivery: Delivery | None
        while True:
            batch = self._batch
            for delivery in batch:
                yield delivery
                if self._batch is not batch:  # another batch was begun, or this one is not to be handed out any more
                    break
            else:
                delivery = self.receive(self._timeout)
                if delivery is None:
                    self.close()
                    return
                yield delivery

    def __next__(self) -> Delivery:
        delivery = next(self._batch, None)
        if delivery is None:
            delivery = self.receive(self._timeout)
            if delivery is None:
                self.close()
                raise StopIteration
        return delivery

    @checked
    def receive(self, timeout: float | None = None) -> Delivery | None:
        """Return the next message, or ``None`` after ``timeout`` seconds (``None``: wait) or when no more will come."""
        delivery = next(self._batch, None)
        deadline = None if timeout is None else time.monotonic() + timeout
        while delivery is None and not self._verbs.closed:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            delivered = self._deliveries.take(left)
            if delivered is None:
                return None
            delivery = self._begin(delivered)
        return delivery

    def take_now(self) -> Delivery | None:
        """Return the next message if it is here already, without requesting one."""
        delivery = next(self._batch, None)
        if delivery is None and not self._verbs.closed and (delivered := self._deliveries.take_now()) is not None:
            delivery = self._begin(delivered)
        return delivery

    def _begin(self, delivered: Delivered) -> Delivery | None:
        self._batch = self._verbs.spread(Delivery, delivered)
        return next(self._batch, None)

    @checked
    def on_ready(self, callback: Callable[[Future], None]) -> None:
        """Call ``callback`` once, in any thread, when a message can be taken or the consumer has ended."""
        self._deliveries.on_ready(callback)

    @property
    def buffered(self) -> int:
        """Messages that have come and were not taken yet, without the batch that is being handed out."""
        return self._deliveries.buffered

    @property
    def ended(self) -> bool:
        """Whether no more will come; what has come can still be taken."""
        return self._verbs.closed or self._deliveries.ended

    set_prefetch = blocking(ConsumerVerbs.set_prefetch)
    cancel = blocking(ConsumerVerbs.cancel)

    def close(self) -> None:
        """Cancel, and give back what was not settled."""
        batch, self._batch = self._batch, iter(())
        run(self._verbs.close(batch))

    def __enter__(self) -> Consumer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_CONSUMERS: weakref.WeakSet[Consumer] = weakref.WeakSet()


def _forget_all() -> None:
    """In a forked child: drop deliveries, which are the parent's."""
    for consumer in list(_CONSUMERS):
        consumer._batch = iter(())


os.register_at_fork(after_in_child=_forget_all)
