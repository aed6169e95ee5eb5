"""Queue: a user's handle on one queue of a node. Safe to share between threads; hold on to it as long as you like.

Every verb goes to the queue's actor, whichever that is at the moment: after a failure the node starts a new one from
the queue's files, and the handle finds it.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

from actors import messages as m
from actors.deliveries import Deliveries
from actors.engines.consumers import Consumer as ConsumerDeclaration
from actors.engines.effects import Delivered
from actors.engines.errors import ArgumentsError
from actors.future import Confirm
from actors.handing_over import PublishKey
from actors.looking import BrowsedMessage
from actors.queue_actor import QueueActor
from actors.running_vhost import QueueCell
from warren.consumer import Channel, Consumer, DeliveredMessage, Delivery, spread
from warren.messages import PublishArguments, ReceivedMessage, as_bodies, as_body, publish_key
from warren.process_bound import ProcessBound

if TYPE_CHECKING:
    from warren.node import Node

_BROWSE_PAGE = 256
_CACHED_KEYS = 16
_numbers = itertools.count(1)


class ConsumeArguments(TypedDict, total=False):
    """What a consumer can be told."""

    timeout: float | None
    """Seconds without a message after which the iteration ends; ``None``: it waits for ever."""
    auto_ack: bool
    """Messages are done with as they are taken, in batches of up to the prefetch."""
    exclusive: bool
    """The only consumer, while it is there."""
    priority: int
    """Consumers of lower priority get only what those of higher have no room for."""
    tag: str | None


class BrowsedDelivery(ReceivedMessage):
    """A message that was looked at and left where it is."""

    __slots__ = ("seq_id", "unacked")

    def __init__(self, browsed: BrowsedMessage) -> None:
        super().__init__((browsed.browsed.term,))
        self.seq_id = browsed.browsed.seq_id
        """Its number in the queue; in a priority queue, in its level."""
        self.unacked = browsed.browsed.unacked
        """Whether a consumer has it."""


class Queue(ProcessBound):
    """One queue."""

    def __init__(self, node: Node, cell: QueueCell) -> None:
        self._node = node
        self._cell = cell
        declaration = cell.declaration
        self._vhost = declaration.vhost.encode("utf-8", "surrogateescape")
        self._routing = (declaration.name.encode("utf-8", "surrogateescape"),)
        self._plain = publish_key(self._vhost, b"", self._routing, {})
        self._keys: dict[tuple[tuple[str, object], ...], PublishKey] = {}
        self._gate = node.gate
        self._channel: Channel | None = None
        self._last: QueueActor | None = None
        """The actor that the last publish went to: the short way to it while it lives."""

    @property
    def name(self) -> str:
        return self._cell.declaration.name

    @property
    def vhost(self) -> str:
        return self._cell.declaration.vhost

    @property
    def arguments(self) -> dict[str, Any]:
        """Its ``x-`` arguments."""
        return dict(self._cell.declaration.arguments)

    @property
    def durable(self) -> bool:
        return self._cell.declaration.durable

    def __repr__(self) -> str:
        return f"<warren.Queue {self.name!r}>"

    @property
    def actor(self) -> QueueActor:
        """The queue's actor of the moment; raises why there is none."""
        self._node.check_process()
        return self._cell.actor

    # ── publishing ──────────────────────────────────────────────────────────────────────────────────────────────

    def publish(
        self,
        body: bytes,
        *,
        block: bool = True,
        timeout: float | None = None,
        **properties: Unpack[PublishArguments],
    ) -> Confirm:
        """Hand over a message. ``.wait()`` on what comes back waits until it is safe.

        Blocks while the queue or the disk is behind, or an alarm is set; with ``block=False``, or after ``timeout``
        seconds, raises :class:`BlockedError`, and the message was not taken.
        """
        key = self._plain if not properties else self.key(properties)
        if type(body) is not bytes:
            body = as_body(body)
        size_bytes = len(body) + key.around_bytes
        actor = self._last
        if actor is None or actor.actor_inbox.weight >= self._gate.limit:
            actor = self._last = self.actor
        elif not actor.deliveries:
            if (batch := actor.actor_inbox.join(key, body, size_bytes)) is not None:
                return batch.confirm  # type: ignore[attr-defined,no-any-return]
        elif (confirm := actor.publish_to_consumer(key, body, size_bytes)) is not None:
            return confirm
        ahead = actor.coalesces and "headers" not in properties  # others will have the same key
        return actor.admit(
            size_bytes, functools.partial(actor.publish, key, body), ahead=ahead, block=block, timeout=timeout
        )

    def publish_many(
        self,
        bodies: Iterable[bytes],
        *,
        block: bool = True,
        timeout: float | None = None,
        **properties: Unpack[PublishArguments],
    ) -> Confirm:
        """Hand over messages in one go, with one confirm for all."""
        found = as_bodies(bodies)
        key = self._plain if not properties else self.key(properties)
        actor = self.actor
        if not found:
            confirm = Confirm()
            confirm.set()
            return confirm
        give = functools.partial(actor.publish_many, key, found)
        return actor.admit(key.size_bytes(found), give, block=block, timeout=timeout)

    def key(self, properties: PublishArguments) -> PublishKey:
        """What goes around the bodies; the last few are kept, as most publishers use one over and over."""
        given = tuple(properties.items())
        try:
            key = self._keys.get(given)
        except TypeError:  # headers
            return publish_key(self._vhost, b"", self._routing, properties)
        if key is None:
            key = publish_key(self._vhost, b"", self._routing, properties)
            if len(self._keys) >= _CACHED_KEYS:
                self._keys = {}
            self._keys[given] = key
        return key

    # ── getting ─────────────────────────────────────────────────────────────────────────────────────────────────

    def get(self, *, auto_ack: bool = False, timeout: float = 0.0) -> Delivery | None:
        """The message at the head, or ``None`` where there is none within ``timeout`` seconds.

        For one message now and then; who wants many uses :meth:`consume`.
        """
        delivery = next(iter(self.get_many(1, auto_ack=auto_ack)), None)
        if delivery is not None or not timeout:
            return delivery
        consumer = self.consume(1, auto_ack=auto_ack)
        try:
            delivery = consumer.receive(timeout)
        finally:
            if delivery is None:
                consumer.close()  # what came in the last moment goes back
            else:
                consumer.cancel()  # and the message stays with the channel until it is settled
        return delivery

    def get_many(self, count: int, *, auto_ack: bool = False) -> list[Delivery]:
        """At most ``count`` messages from the head; fewer from a shorter queue."""
        channel = self._own_channel()
        batches: list[Delivered] = channel.actor.actor_ref.ask(m.GetMany(channel.name, count, not auto_ack))  # type: ignore[assignment]
        return [delivery for delivered in batches for delivery in spread(channel, delivered)]

    def _own_channel(self) -> Channel:
        actor = self.actor
        channel = self._channel
        if channel is None or not channel.alive:
            channel = self._channel = Channel(actor, f"get-{next(_numbers)}")
        return channel

    def ack(self, deliveries: Iterable[Delivery]) -> None:
        """Ack many deliveries in one go."""
        settle(deliveries, "ack")

    def nack(self, deliveries: Iterable[Delivery], *, requeue: bool = True) -> None:
        """Give many deliveries back, or (without ``requeue``) reject them."""
        settle(deliveries, "requeue" if requeue else "reject")

    def ack_up_to(self, delivery_tag: int) -> None:
        """Ack everything that :meth:`get` and :meth:`get_many` delivered, up to and including this tag."""
        self._own_channel().settle("ack", delivery_tag, multiple=True)

    def release(self) -> int:
        """Give back everything that :meth:`get` delivered and nobody settled; returns how many messages that were."""
        channel, self._channel = self._channel, None
        return 0 if channel is None else channel.close()

    def consume(self, prefetch: int = 500, **arguments: Unpack[ConsumeArguments]) -> Consumer:
        """A consumer, which gets messages as they come. ``prefetch``: how many may be unacked with it; 0: any number.

        Raises :class:`AccessRefusedError` where another consumer is exclusive, or this one wants to be among others.
        """
        if unknown := arguments.keys() - ConsumeArguments.__annotations__.keys():
            raise TypeError(f"a consumer knows no {', '.join(sorted(unknown))}")
        actor = self.actor
        number, auto_ack = next(_numbers), arguments.get("auto_ack", False)
        tag = arguments.get("tag") or f"consumer-{number}"
        channel = Channel(actor, f"channel-{number}")
        deliveries = Deliveries(channel.name, actor)
        declaration = ConsumerDeclaration(
            channel=channel.name,
            tag=tag,
            prefetch=prefetch,
            acks_unseen=auto_ack,
            exclusive=arguments.get("exclusive", False),
            priority=arguments.get("priority", 0),
        )
        actor.actor_ref.ask(m.Subscribe(declaration, deliveries))
        return Consumer(channel, deliveries, tag, arguments.get("timeout"), auto_ack=auto_ack)

    def browse(self, limit: int | None = None) -> Iterator[BrowsedDelivery]:
        """Look at messages, those that consumers have too, in order, taking none. The queue may change meanwhile."""
        after: tuple[int, int] | None = None
        while limit is None or limit > 0:
            count = _BROWSE_PAGE if limit is None else min(limit, _BROWSE_PAGE)
            page: list[BrowsedMessage] = self.actor.actor_ref.ask(m.Browse(count, after))  # type: ignore[assignment]
            for message in page:
                yield BrowsedDelivery(message)
            if len(page) < count:
                return
            after = page[-1].level, page[-1].browsed.seq_id
            limit = None if limit is None else limit - count

    # ── the whole queue ─────────────────────────────────────────────────────────────────────────────────────────

    def __len__(self) -> int:
        """Ready messages, without those that consumers have."""
        return int(self.stats()["messages_ready"])

    def __bool__(self) -> bool:
        return True

    def stats(self) -> dict[str, Any]:
        """All of RabbitMQ's counts and its backing_queue_status, under RabbitMQ's names."""
        found: dict[str, Any] = self.actor.actor_ref.ask(m.GetStats())  # type: ignore[assignment]
        return found

    def purge(self) -> int:
        """Do away with all ready messages; returns how many."""
        purged: int = self.actor.actor_ref.ask(m.Purge())  # type: ignore[assignment]
        return purged

    def sync(self) -> None:
        """Wait until everything that was published before is safe, and everything that was acked surely gone."""
        self.actor.actor_ref.ask(m.Sync())

    def set_mode(self, mode: Literal["default", "lazy"]) -> None:
        """``lazy``: messages go to disk as they come, whatever the memory; until the queue is opened anew."""
        if mode not in {"default", "lazy"}:
            raise ArgumentsError(f"a queue's mode is 'default' or 'lazy', not {mode!r}")
        self.actor.actor_ref.ask(m.SetMode(mode))

    def delete(self, *, if_empty: bool = False, if_unused: bool = False) -> int:
        """Delete the queue with its messages and bindings; returns how many were ready."""
        vhost, name = self.vhost, self.name
        return self._node.change(lambda actor: actor.delete_queue(vhost, name, if_empty=if_empty, if_unused=if_unused))


def settle(deliveries: Iterable[DeliveredMessage], outcome: str) -> None:
    """Settle many deliveries, a message a channel."""
    tags: dict[Channel, list[int]] = {}
    for delivery in deliveries:
        if delivery.mark_settled():
            tags.setdefault(delivery.channel, []).append(delivery.delivery_tag)
    for channel, found in tags.items():
        channel.settle_many(outcome, found)
