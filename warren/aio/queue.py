"""Queue: the handle of :mod:`warren.queue`, for coroutines. Any number of event loops may share it.

``publish`` waits until the message is safe, ``publish_nowait`` gives a confirm to be awaited later. Whatever is asked
of the queue is done by the pool's threads. An await that is cancelled stops waiting; what it asked for is done, except
that messages which a cancelled get would have brought go back to their places.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Iterable
from typing import Any, Literal, Unpack

import attrs

from actors import future
from actors import messages as m
from actors.engines.effects import Delivered
from actors.looking import BrowsedMessage
from actors.queue_actor import QueueActor
from actors.running_vhost import QueueCell
from warren import queue
from warren.aio.bridge import answer, ask, change
from warren.aio.consumer import Channel, Consumer, Delivery, numbers, spread
from warren.aio.publishing import Confirm, admitted, admitted_now, has_room, safe
from warren.messages import PublishArguments, as_bodies, as_body
from warren.node import Node
from warren.queue import BrowsedDelivery, ConsumeArguments

_BROWSE_PAGE = 256


class Queue:
    """One queue."""

    def __init__(self, node: Node, cell: QueueCell) -> None:
        self._node = node
        self._channel: Channel | None = None
        self.plain = queue.Queue(node, cell)
        """The same queue, for threads."""

    @property
    def name(self) -> str:
        return self.plain.name

    @property
    def vhost(self) -> str:
        return self.plain.vhost

    @property
    def arguments(self) -> dict[str, Any]:
        """Its ``x-`` arguments."""
        return self.plain.arguments

    @property
    def durable(self) -> bool:
        return self.plain.durable

    def __repr__(self) -> str:
        return f"<warren.aio.Queue {self.name!r}>"

    def _actors(self) -> list[QueueActor]:
        return [self.plain.actor]

    async def _ask(self, message: object) -> Any:
        return await answer(ask(self.plain.actor, message))

    # ── publishing ──────────────────────────────────────────────────────────────────────────────────────────────

    async def publish(
        self, body: bytes, *, timeout: float | None = None, **properties: Unpack[PublishArguments]
    ) -> None:
        """Publish a message, and come back when it is safe.

        While the queue or the disk is behind, or an alarm is set, it waits before that: for ``timeout`` seconds, then
        it raises :class:`BlockedError`, and the message was not taken. Raises :class:`PublishRefusedError` from a queue
        that is full and told to refuse.
        """
        key, body = self.plain.key(properties), as_body(body)
        [actor], reserved_bytes = await admitted(self._actors, lambda _: key.size_bytes([body]), timeout)
        await safe(actor.publish(key, body, reserved_bytes, here=False))

    def publish_nowait(self, body: bytes, **properties: Unpack[PublishArguments]) -> Confirm:
        """Hand over a message; await what comes back to know it safe. Never waits: raises :class:`BlockedError`."""
        key, body = self.plain.key(properties), as_body(body)
        actor = self.plain.actor
        give = functools.partial(actor.publish, key, body, here=False)
        return Confirm(admitted_now([actor], key.size_bytes([body]), give))

    async def publish_many(
        self, bodies: Iterable[bytes], *, timeout: float | None = None, **properties: Unpack[PublishArguments]
    ) -> None:
        """Publish messages in one go, and come back when all are safe. Otherwise as :meth:`publish`."""
        key, found = self.plain.key(properties), as_bodies(bodies)
        if found:
            [actor], reserved_bytes = await admitted(self._actors, lambda _: key.size_bytes(found), timeout)
            await safe(actor.publish_many(key, found, reserved_bytes, here=False))

    async def room(self, timeout: float | None = None) -> None:
        """Wait until :meth:`publish_nowait` may go on; after ``timeout`` seconds raises :class:`BlockedError`."""
        await has_room(self._actors, timeout)

    # ── getting ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def get(self, *, auto_ack: bool = False) -> Delivery | None:
        """The message at the head, or ``None`` from an empty queue. To wait for one, use :meth:`consume`."""
        return next(iter(await self.get_many(1, auto_ack=auto_ack)), None)

    async def get_many(self, count: int, *, auto_ack: bool = False) -> list[Delivery]:
        """At most ``count`` messages from the head; fewer from a shorter queue. ``auto_ack``: they are done with.

        Cancelled, it takes none: those that were on their way go back.
        """
        channel = self._own_channel()
        got: future.Future = channel.ask(m.GetMany(channel.name, count, ack_required=True))
        try:
            batches: list[Delivered] = await answer(got)
        except asyncio.CancelledError:
            got.on_done(channel.give_back)
            raise
        if auto_ack:
            for delivered in batches:
                channel.settle_all("ack", delivered.tags)
            batches = [attrs.evolve(delivered, first_tag=0) for delivered in batches]
        return [delivery for delivered in batches for delivery in spread(channel, delivered)]

    def _own_channel(self) -> Channel:
        actor = self.plain.actor
        channel = self._channel
        if channel is None or not channel.alive:
            channel = self._channel = Channel(actor, f"aio-get-{next(numbers)}")
        return channel

    async def ack(self, deliveries: Iterable[Delivery]) -> None:
        """Ack many deliveries in one go."""
        queue.settle(deliveries, "ack")

    async def nack(self, deliveries: Iterable[Delivery], *, requeue: bool = True) -> None:
        """Give many deliveries back, or (without ``requeue``) reject them."""
        queue.settle(deliveries, "requeue" if requeue else "reject")

    async def ack_up_to(self, delivery_tag: int) -> None:
        """Ack everything that :meth:`get` and :meth:`get_many` delivered, up to and including this tag."""
        channel = self._own_channel()
        await answer(channel.ask(m.Settle(channel.name, "ack", (), delivery_tag)))

    async def release(self) -> int:
        """Give back everything that :meth:`get` delivered and nobody settled; returns how many messages that were."""
        channel, self._channel = self._channel, None
        return 0 if channel is None else await channel.shut()

    def consume(self, prefetch: int = 500, **arguments: Unpack[ConsumeArguments]) -> Consumer:
        """A consumer, which gets messages as they come. ``prefetch``: how many may be unacked with it; 0: any number.

        ``auto_ack``: messages are acked one by one, as they are handed out. What :meth:`Consumer.begin` raises comes
        when it is entered or first asked.
        """
        return Consumer(self.plain, prefetch, arguments)

    async def browse(self, limit: int | None = None) -> AsyncIterator[BrowsedDelivery]:
        """Look at messages, those that consumers have too, in order, taking none. The queue may change meanwhile."""
        after: tuple[int, int] | None = None
        while limit is None or limit > 0:
            count = _BROWSE_PAGE if limit is None else min(limit, _BROWSE_PAGE)
            page: list[BrowsedMessage] = await self._ask(m.Browse(count, after))
            for message in page:
                yield BrowsedDelivery(message)
            if len(page) < count:
                return
            after = page[-1].level, page[-1].browsed.seq_id
            limit = None if limit is None else limit - count

    # ── the whole queue ─────────────────────────────────────────────────────────────────────────────────────────

    async def length(self) -> int:
        """Ready messages, without those that consumers have."""
        return int((await self.stats())["messages_ready"])

    async def stats(self) -> dict[str, Any]:
        """All of RabbitMQ's counts and its backing_queue_status, under RabbitMQ's names."""
        found: dict[str, Any] = await self._ask(m.GetStats())
        return found

    async def purge(self) -> int:
        """Do away with all ready messages; returns how many."""
        purged: int = await self._ask(m.Purge())
        return purged

    async def sync(self) -> None:
        """Wait until everything that was published before is safe, and everything that was acked surely gone."""
        await self._ask(m.Sync())

    async def set_mode(self, mode: Literal["default", "lazy"]) -> None:
        """``lazy``: messages go to disk as they come, whatever the memory; until the queue is opened anew."""
        await self._ask(m.SetMode(mode))

    async def delete(self, *, if_empty: bool = False, if_unused: bool = False) -> int:
        """Delete the queue with its messages and bindings; returns how many were ready."""
        vhost, name = self.vhost, self.name
        return await change(
            self._node, lambda actor: actor.delete_queue(vhost, name, if_empty=if_empty, if_unused=if_unused)
        )
