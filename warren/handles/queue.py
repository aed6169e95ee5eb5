"""Queue: a thread's handle on one queue of a node. Safe to share between threads; hold on to it as long as you like.

The verbs are those of :mod:`warren.verbs.queue_verbs`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Unpack

from warren.actors.runtime.future import Confirm
from warren.handles.consumer import Consumer, Delivery
from warren.handles.delivery_batch import DeliveryBatch, settle_many
from warren.storage.call_arguments import check_flag, check_timeout, check_wait, checked
from warren.values.messages import OF_FEW, QueuePublishArguments, as_body, delayed_messages
from warren.verbs.consumer_verbs import ConsumeArguments, spread
from warren.verbs.instrumentation import HOOK, called
from warren.verbs.mending_verbs import MendingVerbs
from warren.verbs.queue_host import Got, Join
from warren.verbs.queue_verbs import QueueHandle, QueueVerbs
from warren.verbs.selecting import PAGE, BrowsedDelivery, Where
from warren.verbs.steps import blocking, run


def _deliveries(result: Got) -> DeliveryBatch[Delivery]:
    return DeliveryBatch(Delivery, result)


def delivery_of(result: Got) -> Delivery | None:
    """Return the message of a get, if there was one."""
    channel, batches = result
    return next(spread(Delivery, channel, batches[0]), None) if batches else None


class Queue(QueueHandle):
    """One queue. Made by :meth:`warren.Vhost.queue`."""

    def __init__(self, verbs: QueueVerbs) -> None:
        super().__init__(verbs)
        self._gate = verbs.host.host.gate
        self._last: Join | None = None
        """The intake of the last publish: it is tried first, while its actor runs."""

    # ── publishing ──────────────────────────────────────────────────────────────────────────────────────────────

    def publish(
        self,
        body: bytes,
        *,
        block: bool = True,
        timeout: float | None = None,
        **properties: Unpack[QueuePublishArguments],
    ) -> Confirm:
        """Hand over a message and return its confirm, whose ``.wait()`` waits until the message is safe.

        ``delay`` (seconds) or ``at`` (a moment): it is due then, and waits on disk until then; the confirm has a
        ``message_id`` with which :meth:`cancel_delayed` cancels it.

        ``unique``: a key; while a message with it is in the queue, or for ``unique_for`` seconds, no other one is
        stored. ``.duplicate`` of the confirm: whether this message was dropped for that reason.

        Blocks while the queue or the disk lags, or an alarm is set; with ``block=False``, or after ``timeout``
        seconds, raises :class:`BlockedError`, and the message was not taken.
        """
        verbs, host, intake = self._verbs, self._verbs.host, self._last
        key = host.keys.plain
        if timeout is not None or block is not True:
            check_wait(block, timeout)
        if HOOK.instrumentation is not None:
            return run(called(verbs.publish, body, block=block, timeout=timeout, **properties))
        if type(body) is not bytes:
            body = as_body(body)
        if properties:
            if not OF_FEW.isdisjoint(properties):
                return run(verbs.publish(body, block=block, timeout=timeout, **properties))
            key, body = host.keys.keyed(body, properties)
        if intake is None or intake.inbox.weight >= self._gate.limit:
            self._last = host.intake
        elif (confirm := intake.join(key, body)) is not None:
            return confirm
        return host.publishing(key, body, block, timeout).get()

    publish_many = blocking(QueueVerbs.publish_many)

    # ── getting ─────────────────────────────────────────────────────────────────────────────────────────────────

    def get(self, *, auto_ack: bool = False, timeout: float | None = 0.0) -> Delivery | None:
        """Return the message at the head, or ``None`` if none arrives within ``timeout`` seconds (``None``: wait).

        This is for single messages; to get many, use :meth:`consume`.
        """
        if timeout is not None and timeout != 0.0:
            check_timeout(timeout)
        if auto_ack is not False:
            check_flag(auto_ack, "auto_ack")
        if (instrumentation := HOOK.instrumentation) is not None:
            arguments = {"auto_ack": auto_ack, "timeout": timeout}
            observed: Delivery | None = run(instrumentation.call(self._verbs.get, (), arguments, delivery_of))
            return observed
        early = None if auto_ack else self._verbs.host.get_early()
        if early is None:
            return delivery_of(run(self._verbs.get(auto_ack=auto_ack, timeout=timeout)))
        channel, delivered = early
        return Delivery(channel, delivered, 0, delivered.fetched.readable_bodies()[0])

    get_many = blocking(QueueVerbs.get_many, _deliveries)

    def ack(self, deliveries: Iterable[Delivery]) -> None:
        """Ack many deliveries in one go."""
        settle_many(deliveries, "ack")

    @checked
    def nack(self, deliveries: Iterable[Delivery], *, requeue: bool = True) -> None:
        """Give many deliveries back, or (without ``requeue``) reject them."""
        settle_many(deliveries, "requeue" if requeue else "reject")

    ack_up_to = blocking(QueueVerbs.ack_up_to)
    release = blocking(QueueVerbs.release)

    @checked
    def consume(self, prefetch: int = 500, **arguments: Unpack[ConsumeArguments]) -> Consumer:
        """Return a consumer, which gets messages as they come. ``prefetch``: how many may be unacked; 0: any number.

        ``auto_ack``: each message is acked as it is handed out. Raises :class:`AccessRefusedError` if another
        consumer is exclusive, or if this one is to be exclusive and there are others.
        """
        return Consumer(self._verbs.consumer(prefetch, **arguments))

    @checked
    def browse(self, limit: int | None = None, where: Where | None = None) -> Iterator[BrowsedDelivery]:
        """Look at messages, including those that consumers have, in order, taking none. The queue may change meanwhile.

        ``where``: only at those for which a condition (``"priority > 3"``), or a function of a message, is true.
        """
        after: tuple[int, int] | None = None
        while limit is None or limit > 0:
            count = PAGE if limit is None or where is not None else min(limit, PAGE)
            page, after = run(self._verbs.browse_page(where, count, after))
            yield from page[:limit]
            if after is None:
                return
            limit = None if limit is None else limit - len(page)

    take = blocking(QueueVerbs.take, delivery_of)
    move = blocking(MendingVerbs.move, of=MendingVerbs)
    remove = blocking(MendingVerbs.remove, of=MendingVerbs)
    requeue_dead_letters = blocking(MendingVerbs.requeue_dead_letters, of=MendingVerbs)

    @checked
    def tail(self, last: int = 10, *, timeout: float | None = 0.0) -> Iterator[BrowsedDelivery]:
        """Look at the last messages, then at new ones, until none comes for ``timeout`` seconds (``None``:
        for ever), taking none. A message that is gone before it is looked at is skipped."""
        tail = self._verbs.tail()
        try:
            run(tail.begin(last))
            while page := run(tail.next_page(timeout)):
                yield from map(BrowsedDelivery, page)
        finally:
            run(tail.close())

    # ── delayed messages ────────────────────────────────────────────────────────────────────────────────────────

    delayed = blocking(QueueVerbs.delayed, delayed_messages)
    cancel_delayed = blocking(QueueVerbs.cancel_delayed)
    purge_delayed = blocking(QueueVerbs.purge_delayed)

    # ── the whole queue ─────────────────────────────────────────────────────────────────────────────────────────

    def __len__(self) -> int:
        """Return the number of ready messages, without those that consumers have. After a crash, wait for the count."""
        return run(self._verbs.length())

    def __bool__(self) -> bool:
        return True

    stats = blocking(QueueVerbs.stats)
    purge = blocking(QueueVerbs.purge)
    sync = blocking(QueueVerbs.sync)
    set_mode = blocking(QueueVerbs.set_mode)
    delete = blocking(QueueVerbs.delete)
