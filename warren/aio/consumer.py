"""Consumers as async iterators, and their deliveries; on top of :mod:`warren.verbs.consumer_verbs`.

Between the last wait and the hand-over there is no point where a coroutine can be cancelled, so a cancelled
:meth:`Consumer.receive` has taken nothing: the next call gets the message.

Unsettled messages go back to their place in the queue when the consumer is closed, or when the last reference to the
consumer and its deliveries is gone (:class:`~warren.handles.channel.Channel`). So a task that is cancelled in the
middle of an ``async for`` keeps no messages from others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import TracebackType
from typing import Final

from warren.aio.bridge import awaited, run
from warren.handles.channel import DeliveredMessage, DeliveryVerbs, SettlingChannel
from warren.storage.call_arguments import check_flag, checked
from warren.verbs.consumer_verbs import ConsumerVerbs
from warren.verbs.instrumentation import HOOK, called
from warren.verbs.steps import Handle

FAIR_SHARE: Final = 64
"""Messages that a consumer hands out without letting other coroutines run; more would starve them."""


class Delivery(DeliveredMessage):
    """A message that was delivered, to be settled once: acked, given back or rejected.

    ``async with delivery:`` acks at the end. If an error ends the block, the message comes again later (:meth:`retry`);
    if a cancellation does, it goes back at once.
    """

    __slots__ = ()

    async def ack(self, *, multiple: bool = False) -> None:
        """Ack the message: it is deleted. ``multiple``: and all that this channel delivered before it."""
        if multiple is not False or HOOK.instrumentation is not None:
            check_flag(multiple, "multiple")
            await run(called(self._verbs.ack, multiple=multiple))
        elif self.mark_settled():
            self._channel.settle("ack", self.delivery_tag)

    nack = awaited(DeliveryVerbs.nack)
    retry = awaited(DeliveryVerbs.retry)
    extend = awaited(DeliveryVerbs.extend)
    reject = awaited(DeliveryVerbs.reject)

    async def __aenter__(self) -> Delivery:
        if HOOK.instrumentation is not None:
            HOOK.instrumentation.enter(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        instrumentation = HOOK.instrumentation
        try:
            if error is None:
                await self.ack()
            elif isinstance(error, Exception):
                await self.retry()
            else:  # interrupted: nothing is wrong with the message
                await self.nack()
        finally:
            if instrumentation is not None:
                instrumentation.leave(self, error)


class Consumer(Handle[ConsumerVerbs]):
    """An async iterator over deliveries; ``async with`` closes it. It begins when it is entered or first used.

    Ends after ``timeout`` seconds without a message (``None``: never), and when it is cancelled or closed. Raises the
    error that its queue failed with. Several tasks of one event loop may share it; each message goes to one of them.
    """

    made_by = "queue.consume()"

    def __init__(self, verbs: ConsumerVerbs) -> None:
        super().__init__(verbs)
        self._batch: Iterator[Delivery] = iter(())
        self._handed_out = 0

    @property
    def tag(self) -> str:
        return self._verbs.declaration.tag

    @property
    def channel(self) -> SettlingChannel:
        return self._verbs.channel

    begin = awaited(ConsumerVerbs.begin)

    def __aiter__(self) -> Consumer:
        return self

    async def __anext__(self) -> Delivery:
        delivery = await self.receive(self._verbs.timeout)
        if delivery is None:
            await self.close()
            raise StopAsyncIteration
        return delivery

    @checked
    async def receive(self, timeout: float | None = None) -> Delivery | None:
        """Return the next message, or ``None`` after ``timeout`` seconds (``None``: wait) or when no more will come."""
        verbs = self._verbs
        if self._handed_out >= FAIR_SHARE:
            self._handed_out = 0
            await asyncio.sleep(0)
        delivery = None if verbs.closed else next(self._batch, None)
        if delivery is None:
            delivery = await self._wait(timeout)
        if delivery is not None:
            self._handed_out += 1
        return delivery

    async def _wait(self, timeout: float | None) -> Delivery | None:
        loop, verbs = asyncio.get_running_loop(), self._verbs
        deadline = None if timeout is None else loop.time() + timeout
        if not verbs.closed:
            await run(verbs.begin())
        while not verbs.closed:
            delivery = next(self._batch, None)  # another task may have fetched some
            if delivery is not None:
                return delivery
            ended, left = verbs.deliveries.ended, None if deadline is None else max(0.0, deadline - loop.time())
            delivered = await run(verbs.next_batch(left))
            if delivered is not None:
                self._batch = verbs.spread(Delivery, delivered)
            elif ended or left == 0:
                return None
        return None

    set_prefetch = awaited(ConsumerVerbs.set_prefetch)
    cancel = awaited(ConsumerVerbs.cancel)

    async def close(self) -> None:
        """Cancel, and give back what was not settled."""
        batch, self._batch = self._batch, iter(())
        await run(self._verbs.close(batch))

    async def aclose(self) -> None:
        """:meth:`close`, as :func:`contextlib.aclosing` calls it."""
        await self.close()

    async def __aenter__(self) -> Consumer:
        await self.begin()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
