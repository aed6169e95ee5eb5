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
from warren.handles.channel import DeliveredMessage, SettlingChannel
from warren.storage.call_arguments import check_flag, checked
from warren.values.messages import milliseconds
from warren.verbs.consumer_verbs import ConsumerVerbs
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
        if multiple is not False:
            check_flag(multiple, "multiple")
        await self._settle("ack", multiple)

    @checked
    async def nack(self, *, requeue: bool = True, multiple: bool = False) -> None:
        """Return it to its place in the queue, or (without ``requeue``) to the dead letters."""
        await self._settle("requeue" if requeue else "reject", multiple)

    @checked
    async def retry(self, delay: float | None = None) -> None:
        """Return it as failed to its place in the queue, to come again after ``delay`` seconds.

        ``None``: as the queue's retry arguments say; without any after 1 second, the next time after 2, then 4, up to
        5 minutes.
        """
        wait_ms = None if delay is None else milliseconds("a retry's delay", delay)
        if not self.mark_settled():
            return
        if wait_ms is None:
            self._channel.settle("retry", self.delivery_tag)
        else:
            await run(self._channel.retry_in(self.delivery_tag, wait_ms))

    @checked
    async def extend(self, seconds: float) -> None:
        """Keep it for ``seconds`` from now on, if an ack timeout would end before.

        Raises :class:`UnknownTagError` if it is settled, or has gone back to its queue already.
        """
        await run(self._channel.extend(self.delivery_tag, milliseconds("a time", seconds)))

    @checked
    async def reject(self, *, requeue: bool = False) -> None:
        """AMQP's basic.reject: to the dead letters, or (with ``requeue``) back to its place in the queue as failed."""
        await self._settle("failed" if requeue else "reject", multiple=False)

    async def _settle(self, outcome: str, multiple: bool) -> None:
        if self.mark_settled():
            if multiple:
                await run(self._channel.settle_up_to(outcome, self.delivery_tag))
            else:
                self._channel.settle(outcome, self.delivery_tag)

    async def __aenter__(self) -> Delivery:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            await self.ack()
        elif isinstance(error, Exception):
            await self.retry()
        else:  # interrupted: nothing is wrong with the message
            await self.nack()


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

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
