"""Consumers as async iterators, and what they get.

Messages come in batches from the queue, which keeps a consumer supplied up to its prefetch, and are handed out one by
one. Between the last wait and the hand-over there is no point where a coroutine can be cancelled, so a cancelled
:meth:`Consumer.receive` has taken nothing: the message is the next one's.

What is not settled goes back to its place in the queue when the consumer is closed, or when nobody has it any more: a
:class:`Channel` that is forgotten, with its consumer and all that it delivered, lets go by itself. So a task that is
cancelled in the middle of an ``async for`` keeps no messages from others.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Iterator
from types import TracebackType
from typing import Final

from actors import messages as m
from actors.deliveries import Deliveries
from actors.engines.consumers import Consumer as ConsumerDeclaration
from actors.engines.effects import Delivered
from actors.future import Future
from storage.errors import WarrenError
from warren import consumer
from warren.aio.bridge import answer, ask, settled
from warren.queue import ConsumeArguments, Queue

FAIR_SHARE: Final = 64
"""Messages that a consumer hands out without letting other coroutines run; more would starve them."""

numbers: Final = itertools.count(1)


class Channel(consumer.Channel):
    """Through which messages were delivered."""

    __slots__ = ()

    def ask(self, message: object) -> Future:
        """Ask the queue; raises why it is no more."""
        return ask(self.actor, message)

    async def shut(self) -> int:
        """Give back what is unsettled; returns how many messages that were."""
        if not self._open or not self.alive:
            return 0
        self._open = False
        requeued: int = await answer(self.ask(m.CloseChannel(self.name)))
        return requeued

    def give_back(self, got: Future) -> None:
        """Requeue what a get has brought that nobody waits for any more. For any thread."""
        with contextlib.suppress(WarrenError):  # the queue is gone, and has its messages back
            for delivered in () if got.error is not None else got.get():
                self.settle_all("requeue", delivered.tags)


class Delivery(consumer.DeliveredMessage):
    """A message that was delivered, to be settled once: acked, given back or rejected.

    ``async with delivery:`` acks at the end, and gives the message back if an error or a cancellation ends the block.
    """

    __slots__ = ()

    async def ack(self, *, multiple: bool = False) -> None:
        """Done: the message goes away. ``multiple``: and all that this channel delivered before it."""
        await self._settle("ack", multiple)

    async def nack(self, *, requeue: bool = True, multiple: bool = False) -> None:
        """Not done: back to its place in the queue, or (without ``requeue``) to the dead letters."""
        await self._settle("requeue" if requeue else "reject", multiple)

    async def reject(self, *, requeue: bool = False) -> None:
        """AMQP's basic.reject."""
        await self._settle("requeue" if requeue else "reject", multiple=False)

    async def _settle(self, outcome: str, multiple: bool) -> None:
        if not self.mark_settled():
            return
        channel = self.channel
        if multiple:
            await answer(ask(channel.actor, m.Settle(channel.name, outcome, (), self.delivery_tag)))
        else:
            channel.settle(outcome, self.delivery_tag, multiple=False)

    async def __aenter__(self) -> Delivery:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            await self.ack()
        else:
            await self.nack()


class Consumer:
    """An async iterator over deliveries; ``async with`` closes it. It begins when it is entered or first asked.

    Ends after ``timeout`` seconds without a message (``None``: never), and when it is cancelled or closed. Raises what
    its queue failed of. Several tasks of one event loop may share it; each message goes to one of them.
    """

    def __init__(self, queue: Queue, prefetch: int, arguments: ConsumeArguments) -> None:
        actor, number = queue.actor, next(numbers)
        self.tag = arguments.get("tag") or f"aio-consumer-{number}"
        self.channel = Channel(actor, f"aio-channel-{number}")
        self._deliveries = Deliveries(self.channel.name, actor)
        self._declaration = ConsumerDeclaration(
            channel=self.channel.name,
            tag=self.tag,
            prefetch=prefetch,
            exclusive=arguments.get("exclusive", False),
            priority=arguments.get("priority", 0),
        )
        self._auto_ack = arguments.get("auto_ack", False)
        self._timeout = arguments.get("timeout")
        self._begun: Future | None = None
        self._batch: Iterator[Delivery] = iter(())
        self._handed_out = 0
        self._closed = False

    async def begin(self) -> None:
        """Ask for messages, once. Raises :class:`AccessRefusedError` where the queue lets no such consumer in."""
        if self._begun is None:
            self._begun = self.channel.ask(m.Subscribe(self._declaration, self._deliveries))
        await answer(self._begun)

    def __aiter__(self) -> Consumer:
        return self

    async def __anext__(self) -> Delivery:
        delivery = await self.receive(self._timeout)
        if delivery is None:
            await self.close()
            raise StopAsyncIteration
        return delivery

    async def receive(self, timeout: float | None = None) -> Delivery | None:
        """The next message; ``None`` after ``timeout`` seconds (``None``: wait), or when no more will come."""
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        if not self._closed:
            await self.begin()
        if self._handed_out >= FAIR_SHARE:
            self._handed_out = 0
            await asyncio.sleep(0)
        while not self._closed:
            delivery = next(self._batch, None)
            if delivery is not None:
                return self._hand_out(delivery)
            ended = self._deliveries.ended  # before the last look
            delivered = self._deliveries.take_now()
            if delivered is not None:
                self._batch = spread(self.channel, delivered)
            elif ended or not await self._arrival(None if deadline is None else max(0.0, deadline - loop.time())):
                return None
        return None

    async def _arrival(self, timeout: float | None) -> bool:
        """Wait for something to take, or the end; whether it came in time."""
        arrival = self._deliveries.arrival()
        try:
            return await settled(arrival, timeout)
        finally:
            if not arrival.done:
                self._deliveries.forget(arrival)

    def _hand_out(self, delivery: Delivery) -> Delivery:
        self._handed_out += 1
        if self._auto_ack and delivery.mark_settled():
            self.channel.settle("ack", delivery.delivery_tag, multiple=False)
        return delivery

    async def set_prefetch(self, prefetch: int) -> None:
        """How many messages may be unacked with it from now on; 0: any number."""
        await self.begin()
        if self.channel.alive:
            self.channel.actor.actor_ref.tell(m.SetPrefetch(self.tag, prefetch))

    async def cancel(self) -> None:
        """Ask for no more messages. What was delivered can still be taken and settled."""
        if self.channel.alive:
            await answer(self.channel.ask(m.CancelConsumer(self.tag)))

    async def close(self) -> None:
        """Cancel, and give everything back that was not settled."""
        if not self._closed:
            self._closed = True
            self._batch = iter(())
            self._deliveries.end()
            await self.channel.shut()
            self._deliveries.drain()

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


def spread(channel: Channel, delivered: Delivered) -> Iterator[Delivery]:
    """The messages of a batch, one by one; one that cannot be read says so when it is asked for its body."""
    for index, body in enumerate(delivered.fetched.readable_bodies()):
        yield Delivery(channel, delivered, index, body)
