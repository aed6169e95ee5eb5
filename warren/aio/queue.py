"""Queue: the handle of :mod:`warren.handles.queue`, for coroutines. Any number of event loops may share it.

``publish`` waits until the message is safe, ``publish_nowait`` gives a confirm to be awaited later. Whatever is asked
of the queue is done by the pool's threads. An await that is cancelled stops waiting; what it asked for is done, except
that messages which a cancelled get would have brought go back to their places.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from typing import Unpack

from warren.aio.bridge import awaited, awaited_safe, run, run_now
from warren.aio.confirm import Confirm
from warren.aio.consumer import Consumer, Delivery
from warren.handles import queue
from warren.handles.delivery_batch import DeliveryBatch, settle_many
from warren.storage.call_arguments import checked
from warren.values.messages import QueuePublishArguments, delayed_messages
from warren.verbs.consumer_verbs import ConsumeArguments, spread
from warren.verbs.instrumentation import called
from warren.verbs.mending_verbs import MendingVerbs
from warren.verbs.queue_host import Got
from warren.verbs.queue_verbs import QueueHandle, QueueVerbs
from warren.verbs.selecting import PAGE, BrowsedDelivery, Where


def _deliveries(result: Got) -> DeliveryBatch[Delivery]:
    return DeliveryBatch(Delivery, result)


def _delivery(result: Got) -> Delivery | None:
    channel, batches = result
    return next(spread(Delivery, channel, batches[0]), None) if batches else None


class Queue(QueueHandle):
    """One queue. ``publish`` and ``publish_many`` come back when the messages are safe."""

    @functools.cached_property
    def blocking(self) -> queue.Queue:
        """The same queue, for threads."""
        return queue.Queue(self._verbs)

    # ── publishing ──────────────────────────────────────────────────────────────────────────────────────────────

    publish = awaited_safe(QueueVerbs.publish)
    publish_many = awaited_safe(QueueVerbs.publish_many)

    @checked
    def publish_nowait(self, body: bytes, **properties: Unpack[QueuePublishArguments]) -> Confirm:
        """Hand over a message; await what comes back to know it safe. Never waits: raises :class:`BlockedError`."""
        return Confirm(run_now(called(self._verbs.publish, body, block=False, **properties)))

    @checked
    async def room(self, timeout: float | None = None) -> None:
        """Wait until :meth:`publish_nowait` may go on; after ``timeout`` seconds raises :class:`BlockedError`."""
        await run(self._verbs.room(timeout))

    # ── getting ─────────────────────────────────────────────────────────────────────────────────────────────────

    get = awaited(QueueVerbs.get, _delivery)
    get_many = awaited(QueueVerbs.get_many, _deliveries)

    async def ack(self, deliveries: Iterable[Delivery]) -> None:
        """Ack many deliveries in one go."""
        settle_many(deliveries, "ack")

    @checked
    async def nack(self, deliveries: Iterable[Delivery], *, requeue: bool = True) -> None:
        """Give many deliveries back, or (without ``requeue``) reject them."""
        settle_many(deliveries, "requeue" if requeue else "reject")

    ack_up_to = awaited(QueueVerbs.ack_up_to)
    release = awaited(QueueVerbs.release)

    @checked
    def consume(self, prefetch: int = 500, **arguments: Unpack[ConsumeArguments]) -> Consumer:
        """A consumer, which gets messages as they come. ``prefetch``: how many may be unacked with it; 0: any number.

        ``auto_ack``: each message is acked as it is handed out. What :meth:`Consumer.begin` raises comes when it is
        entered or first asked.
        """
        return Consumer(self._verbs.consumer(prefetch, **arguments))

    @checked
    async def browse(self, limit: int | None = None, where: Where | None = None) -> AsyncIterator[BrowsedDelivery]:
        """Look at messages, those that consumers have too, in order, taking none. The queue may change meanwhile.

        ``where``: at those that a condition is true of (``"priority > 3"``), or a function of a message.
        """
        after: tuple[int, int] | None = None
        while limit is None or limit > 0:
            count = PAGE if limit is None or where is not None else min(limit, PAGE)
            page, after = await run(self._verbs.browse_page(where, count, after))
            for message in page[:limit]:
                yield message
            if after is None:
                return
            limit = None if limit is None else limit - len(page)

    take = awaited(QueueVerbs.take, _delivery)
    move = awaited(MendingVerbs.move, of=MendingVerbs)
    remove = awaited(MendingVerbs.remove, of=MendingVerbs)
    requeue_dead_letters = awaited(MendingVerbs.requeue_dead_letters, of=MendingVerbs)

    @checked
    async def tail(self, last: int = 10, *, timeout: float | None = 0.0) -> AsyncGenerator[BrowsedDelivery, None]:
        """Look at the last messages, and then at those that come, until none comes for ``timeout`` seconds (``None``:
        for ever), taking none. A message that is gone before it is looked at is left out."""
        tail = self._verbs.tail()
        try:
            await run(tail.begin(last))
            while page := await run(tail.next_page(timeout)):
                for message in page:
                    yield BrowsedDelivery(message)
        finally:
            await run(tail.close())

    # ── delayed messages ────────────────────────────────────────────────────────────────────────────────────────

    delayed = awaited(QueueVerbs.delayed, delayed_messages)
    cancel_delayed = awaited(QueueVerbs.cancel_delayed)
    purge_delayed = awaited(QueueVerbs.purge_delayed)

    # ── the whole queue ─────────────────────────────────────────────────────────────────────────────────────────

    length = awaited(QueueVerbs.length)
    stats = awaited(QueueVerbs.stats)
    purge = awaited(QueueVerbs.purge)
    sync = awaited(QueueVerbs.sync)
    set_mode = awaited(QueueVerbs.set_mode)
    delete = awaited(QueueVerbs.delete)
