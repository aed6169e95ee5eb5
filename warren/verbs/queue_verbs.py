"""The verbs of a queue."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, Unpack

import attrs

from warren.actors.engines.errors import ArgumentsError
from warren.actors.engines.queue.consumers import Consumer as ConsumerDeclaration
from warren.actors.queue.inspecting import BrowsedMessage, browsed_page, chosen_ids, ends_of, is_whole
from warren.actors.queue.queue_actor import QueueActor
from warren.actors.queue.queue_entry import QueueEntry
from warren.actors.runtime.future import Confirm, CountDown
from warren.queue_index.index.directory import MAX_SEQ_ID
from warren.values.messages import (
    KEY_ARGUMENTS,
    LATER,
    QueuePublishArguments,
    QueuePublishManyArguments,
    as_bodies,
    as_body,
)
from warren.verbs.consumer_verbs import ConsumeArguments, ConsumerVerbs, ack_timeout_ms
from warren.verbs.operation import Operation, Performer, local, operation
from warren.verbs.publishing import AsTheyWere, settled_confirm
from warren.verbs.queue_host import Got, LocalQueue, QueueHost
from warren.verbs.selecting import (
    PAGE,
    BrowsedDelivery,
    Done,
    Place,
    Selected,
    Where,
    browsed_of,
    browsed_to_plain,
    matching,
    selected_of,
)
from warren.verbs.steps import NamedHandle, Steps, call

if TYPE_CHECKING:
    from warren.values.scheduling import Scheduled
    from warren.verbs.tail_verbs import TailVerbs

T = TypeVar("T")
_numbers: Final = itertools.count(1)


class QueueVerbs(Performer):
    """The verbs of one queue. Those that walk through it are :class:`~warren.verbs.mending_verbs.MendingVerbs`."""

    def __init__(self, host: QueueHost) -> None:
        self.host = host

    def __str__(self) -> str:
        return repr(self.host.entry.declaration.name)

    def perform(self, operation: Operation[T]) -> Steps[T]:
        return self.host.perform(self, operation)

    @property
    def entry(self) -> QueueEntry:
        return self.host.entry

    @property
    def local(self) -> LocalQueue:
        """The queue in this process, which performs the operations."""
        return local(self.host, LocalQueue)

    @property
    def actor(self) -> QueueActor:
        """The queue's current actor; raises the reason if the queue has no actor."""
        return self.local.actor

    # ── publishing ──────────────────────────────────────────────────────────────────────────────────────────────

    def publish(
        self,
        body: bytes,
        *,
        block: bool = True,
        timeout: float | None = None,
        **properties: Unpack[QueuePublishArguments],
    ) -> Steps[Confirm]:
        """Hand over a message; the confirm says when it is safe."""
        if not KEY_ARGUMENTS.isdisjoint(properties):
            return self.publish_unique([as_body(body)], properties, block, timeout, several=False)
        if not LATER.isdisjoint(properties):
            return self._publish_later([as_body(body)], properties, block, timeout)
        key, given = self.host.keys.keyed(as_body(body), properties)
        return self.host.publish(key, [given], block, timeout)

    def publish_many(
        self,
        bodies: Iterable[bytes],
        *,
        block: bool = True,
        timeout: float | None = None,
        **properties: Unpack[QueuePublishManyArguments],
    ) -> Steps[Confirm]:
        """Hand over messages in one go, with one confirm for all. A property that is a list has one for each."""
        checked_bodies = as_bodies(bodies)
        if not KEY_ARGUMENTS.isdisjoint(properties):
            return (yield from self.publish_unique(checked_bodies, properties, block, timeout, several=True))
        if not LATER.isdisjoint(properties):
            return (yield from self._publish_later(checked_bodies, properties, block, timeout))
        confirms: list[Confirm] = []
        for key, given in list(self.host.keys.parts(checked_bodies, properties)):
            confirms.append((yield from self.host.publish(key, given, block, timeout)))
        return confirms[0] if len(confirms) == 1 else CountDown([*confirms]) if confirms else settled_confirm()

    def _publish_later(
        self, bodies: list[bytes], properties: Mapping[str, Any], block: bool, timeout: float | None
    ) -> Steps[Scheduled]:
        """Hand over messages that wait until they are due. A message without an id gets one."""
        from warren.values.scheduling import Scheduled, schedule

        host = self.host
        scheduled = schedule(properties, len(bodies), host.host.now_ms(), host.host.new_message_id)
        confirms: list[Confirm] = []
        low = 0
        for key, given in list(host.keys.parts(bodies, host.scheduled_properties(scheduled))):
            part = scheduled.part(low, low + len(given))
            low += len(given)
            confirms.append((yield from host.publish_later(key, given, part, block, timeout)))
        return Scheduled(confirms, scheduled)

    def publish_unique(
        self,
        bodies: list[bytes],
        properties: Mapping[str, Any],
        block: bool = True,
        timeout: float | None = None,
        *,
        several: bool,
        passes_alarms: bool = False,
    ) -> Steps[Confirm]:
        """:meth:`publish`, or (``several``) :meth:`publish_many`, of messages with keys."""
        from warren.verbs.unique_publishing import UniqueMessages

        messages = UniqueMessages.of(bodies, properties, several=several)
        if any(messages.keys):
            return self.host.publish_unique(messages, block, timeout, passes_alarms=passes_alarms)
        if several:
            return self.publish_many(bodies, block=block, timeout=timeout, **messages.rest)
        return self.publish(bodies[0], block=block, timeout=timeout, **messages.rest)

    def publish_as_they_were(self, groups: Sequence[AsTheyWere]) -> Steps[list[str | None]]:
        """Publish messages with the exchange, keys and properties that they had, and wait until they are
        safe. Return for each group why it was refused, or ``None``."""
        return self.host.publish_as_they_were(groups)

    def room(self, timeout: float | None = None) -> Steps[None]:
        """Wait until a publish that does not wait may go on. Raises :class:`BlockedError` after ``timeout`` seconds."""
        return self.host.room(timeout)

    # ── getting ─────────────────────────────────────────────────────────────────────────────────────────────────

    def get(self, *, auto_ack: bool = False, timeout: float | None = 0.0) -> Steps[Got]:
        """Return the message at the head, or ``None`` if none arrives within ``timeout`` seconds (``None``: wait).

        This is for single messages; to get many, use :meth:`consume`.
        """
        return self.host.host.within(timeout or None, self._get(auto_ack, timeout))

    def _get(self, auto_ack: bool, timeout: float | None) -> Steps[Got]:
        fetched = yield from self.host.get_many(1)
        if fetched[1] or timeout == 0:
            return _acked(fetched) if auto_ack else fetched
        consumer = self.consumer(1, auto_ack=auto_ack)
        delivered = None
        try:
            yield from consumer.begin()
            delivered = yield from consumer.next_batch(timeout)
        finally:
            if delivered is None:
                yield from consumer.close()  # what came in the last moment goes back
            else:
                yield from consumer.cancel()  # and the message stays with the channel until it is settled
        return consumer.channel, [] if delivered is None else [consumer.acked(delivered) if auto_ack else delivered]

    def get_many(self, count: int, *, auto_ack: bool = False) -> Steps[Got]:
        """Return at most ``count`` messages from the head; fewer from a shorter queue. ``auto_ack``: ack them.

        Interrupted or cancelled, it takes none: those that were on their way go back.
        """
        fetched = yield from self.host.get_many(count)
        return _acked(fetched) if auto_ack else fetched

    def take(self, id: str) -> Steps[Got]:
        """Take the message with this ``id`` (see :meth:`browse`) from wherever it stands; ``None`` if it is gone or a
        consumer has it. It is settled like one from :meth:`get`."""
        chosen_ids([id])
        return self.host.take(id)

    def ack_up_to(self, delivery_tag: int) -> Steps[None]:
        """Ack everything that :meth:`get` and :meth:`get_many` delivered, up to and including this tag.

        Raises :class:`UnknownTagError` if this handle got no message with this tag.
        """
        channel = yield from self.host.channel_of_gets()
        yield from channel.ack_up_to(delivery_tag)

    def release(self) -> Steps[int]:
        """Give back the unsettled messages that :meth:`get` delivered; return how many."""
        channel = self.host.take_channel()
        return 0 if channel is None else (yield from channel.shut())

    def consumer(self, prefetch: int = 500, **arguments: Unpack[ConsumeArguments]) -> ConsumerVerbs:
        """Return a consumer that has not begun."""
        number = next(_numbers)
        declaration = ConsumerDeclaration(
            channel=f"channel-{number}",
            tag=arguments.get("tag") or f"consumer-{number}",
            prefetch=prefetch,
            acks_unseen=arguments.get("auto_ack", False),
            exclusive=arguments.get("exclusive", False),
            priority=arguments.get("priority", 0),
            ack_timeout_ms=ack_timeout_ms(arguments, self.host.consumer_timeout_ms),
        )
        return self.host.consumer(declaration, arguments.get("timeout"))

    def tail(self) -> TailVerbs:
        """Return the verbs of a tail, which has not begun."""
        return self.host.tail()

    # ── looking ─────────────────────────────────────────────────────────────────────────────────────────────────

    @operation("queue", encode=browsed_to_plain, decode=browsed_of)
    def page(self, count: int, after: Place | None) -> Steps[list[BrowsedMessage]]:
        """Look at messages after a place."""
        actor = self.actor
        page: list[BrowsedMessage] = yield call(actor, lambda: browsed_page(actor.queue_turn, count, after))
        return page

    def browse_page(
        self, where: Where | None, count: int, after: Place | None
    ) -> Steps[tuple[list[BrowsedDelivery], Place | None]]:
        """Return the selected messages of a page, and the place after which the next page begins; ``None`` for the last
        page."""
        page = yield from self.page(count, after)
        selected = yield from matching(where, [*map(BrowsedDelivery, page)])
        return selected, (page[-1].level, page[-1].browsed.seq_id) if is_whole(page, count) else None

    @operation("queue")
    def ends(self) -> Steps[dict[int, int]]:
        """Return, by level, the end of the queue: the place after its last message."""
        actor = self.actor
        ends: dict[int, int] = yield call(actor, lambda: ends_of(actor.process))
        return ends

    @operation("queue", decode=selected_of)
    def select(self, where: Where | None, after: Place | None, ends: dict[int, int]) -> Steps[Selected]:
        """Return the selected messages of a page that are ready and before the ends."""
        return self.selecting(where, after, ends)

    def selecting(self, where: Where | None, after: Place | None, ends: dict[int, int]) -> Steps[Selected]:
        """Do it here: a function as ``where`` is called in this process, whichever hosts the node."""
        page = yield from self.page(PAGE, after)
        inside = [message for message in page if message.browsed.seq_id < ends.get(message.level, 0)]
        ready = [BrowsedDelivery(message) for message in inside if not message.browsed.unacked]
        ids = [message.id for message in (yield from matching(where, ready))]
        if not is_whole(page, PAGE):
            return Selected(ids, len(inside), None)
        level, seq_id = page[-1].level, page[-1].browsed.seq_id
        return Selected(ids, len(inside), (level, seq_id if seq_id < ends.get(level, 0) else MAX_SEQ_ID))

    @operation("queue", decode=tuple)
    def remove_ids(self, ids: list[str]) -> Steps[Done]:
        """Delete those that are ready."""
        actor, chosen = self.actor, chosen_ids(ids)
        removed: int = yield call(actor, lambda: actor.queue_turn.remove(chosen))
        return removed, ""

    @operation("queue", flushes=True)
    def sync(self) -> Steps[None]:
        """Wait until all earlier publishes and acks are safe."""
        actor = self.actor
        yield call(actor, actor.sync)

    # ── the whole queue ─────────────────────────────────────────────────────────────────────────────────────────

    @operation("queue")
    def length(self) -> Steps[int]:
        """Return the number of ready messages, without those that consumers have. After a crash, wait for the count."""
        actor = self.actor
        ready: int = yield call(actor, actor.length)
        return ready

    @operation("queue")
    def stats(self) -> Steps[dict[str, Any]]:
        """Return all of RabbitMQ's counts and its backing_queue_status, under RabbitMQ's names.

        ``recovering``: after a crash the messages are still being counted; the counts cover those found so far.
        """
        actor, declaration = self.actor, self.entry.declaration
        stats: dict[str, Any] = yield call(actor, actor.stats)
        stats["messages_delayed"] = 0
        if self.local.node.vhost(declaration.vhost).delays is not None:
            from warren.verbs.delayed_verbs import count

            stats["messages_delayed"] = yield from count(self.local.node, declaration.vhost, declaration.name)
        return stats

    # ── delayed messages ────────────────────────────────────────────────────────────────────────────────────────

    def delayed(self, limit: int = 100) -> Steps[list[tuple[int, bytes]]]:
        """Return up to ``limit`` messages that wait for this queue (``delay``, ``at``), as
        :class:`warren.DelayedMessage`, the next due first."""
        return self.host.delayed(limit)

    def cancel_delayed(self, message_id: str) -> Steps[int]:
        """Cancel the messages that wait for this queue under an id; return how many."""
        return self.host.cancel_delayed(message_id)

    def purge_delayed(self) -> Steps[int]:
        """Cancel all messages that wait for this queue; return how many."""
        return self.host.purge_delayed()

    @operation("queue")
    def purge(self) -> Steps[int]:
        """Drop all ready messages; return how many."""
        actor = self.actor
        purged: int = yield call(actor, actor.purge)
        return purged

    @operation("queue")
    def set_mode(self, mode: Literal["default", "lazy"]) -> Steps[None]:
        """Set the mode until the queue is reopened. ``lazy``: messages go to disk at once, whatever the memory."""
        if mode not in {"default", "lazy"}:
            raise ArgumentsError(f"a queue's mode is 'default' or 'lazy', not {mode!r}")
        actor = self.actor
        yield call(actor, lambda: actor.queue_turn.set_mode(mode))

    def delete(self, *, if_empty: bool = False, if_unused: bool = False) -> Steps[int]:
        """Delete the queue with its messages and bindings; return how many were ready."""
        return self.host.delete(if_empty=if_empty, if_unused=if_unused)


def _acked(fetched: Got) -> Got:
    """Ack messages as they are handed out."""
    channel, batches = fetched
    for delivered in batches:
        channel.settle_all("ack", delivered.tags)
    return channel, [attrs.evolve(delivered, first_tag=0) for delivered in batches]


class QueueHandle(NamedHandle[QueueVerbs]):
    """The properties of a queue that need no request."""

    made_by = "node.queue(name)"

    def _identity(self) -> tuple[object, str, str]:
        return self._verbs.host.host.identity, self.vhost, self.name

    @property
    def name(self) -> str:
        return self._verbs.host.entry.declaration.name

    @property
    def vhost(self) -> str:
        return self._verbs.host.entry.declaration.vhost

    @property
    def arguments(self) -> dict[str, Any]:
        """Its ``x-`` arguments."""
        return dict(self._verbs.host.entry.declaration.arguments)

    @property
    def durable(self) -> bool:
        return self._verbs.host.entry.declaration.durable
