"""The verbs of a queue. Every verb goes to the queue's current actor: after a failure
the node starts a new one from the queue's files, and the handle finds it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, Unpack

import attrs

from warren.actors.engines.errors import ArgumentsError
from warren.actors.engines.queue.consumers import Consumer as ConsumerDeclaration
from warren.actors.engines.queue.effects import Delivered
from warren.actors.node.admission import Admission
from warren.actors.queue.deliveries import Deliveries
from warren.actors.queue.inspecting import chosen_ids
from warren.actors.queue.intake import PublishKey
from warren.actors.queue.queue_entry import QueueEntry
from warren.actors.queue.queue_intake import QueueIntake
from warren.actors.runtime.future import Confirm, CountDown
from warren.handles.channel import Channel
from warren.hosting.running_node import RunningNode
from warren.queue_index.message.message_format import MAX_FRAGMENT_BYTES, content_of
from warren.queue_index.properties import encode_values
from warren.storage.errors import WarrenError
from warren.values.messages import (
    KEY_ARGUMENTS,
    LATER,
    NOTHING_SHARED,
    SHARED,
    QueuePublishArguments,
    QueuePublishManyArguments,
    Shared,
    as_bodies,
    as_body,
    columns_of,
    content_key,
    publish_key,
    publish_values,
)
from warren.verbs.consumer_verbs import ConsumeArguments, ConsumerVerbs, ack_timeout_ms
from warren.verbs.mending_verbs import MendingVerbs
from warren.verbs.operation import operation
from warren.verbs.publishing import PATIENCE_S, AsTheyWere, Receiver, publish_groups, publishing, room, settled_confirm
from warren.verbs.steps import NamedHandle, Steps, asked, call

if TYPE_CHECKING:
    from warren.values.scheduling import Schedule, Scheduled
    from warren.verbs.tail_verbs import TailVerbs

_CACHED_KEYS: Final = 16
_OWN: Final = frozenset({"headers", "message_id", "correlation_id", "timestamp"})
_numbers = itertools.count(1)

GetResult = tuple[Channel, list[Delivered]]
"""Messages that were fetched, and the channel that settles them."""


class QueueVerbs(MendingVerbs):
    """The verbs of one queue."""

    def __init__(self, node: RunningNode, entry: QueueEntry) -> None:
        super().__init__(node, entry)
        self._coalesces = entry.declaration.overflow == "drop-head"
        self.plain = self._new_key({})
        """The publish key of a body without properties."""
        self._keys: dict[tuple[tuple[str, object], ...], PublishKey] = {}
        self._content_keys: dict[Shared, PublishKey] = {}
        self._channel: Channel | None = None

    @property
    def intake(self) -> QueueIntake:
        """The intake of the queue's current actor; raises the reason if the queue has no actor."""
        return self.actor.intake

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
            return (yield from self.publish_unique([as_body(body)], properties, block, timeout, several=False))
        if not LATER.isdisjoint(properties):
            return (yield from self._publish_later([as_body(body)], properties, block, timeout))
        key, given = self.keyed(as_body(body), properties)
        confirm: Confirm = yield self.publishing(key, given, block, timeout)
        return confirm

    def publishing(self, key: PublishKey, given: bytes, block: bool, timeout: float | None) -> Admission:
        """Return what :meth:`publish` waits for, given the result of :meth:`keyed`; the answer is the confirm."""
        ahead = self._coalesces  # others may have the same key
        return publishing(self.node, lambda: (self.intake,), key, [given], block=block, timeout=timeout, ahead=ahead)

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
        parts = list(self._parts(checked_bodies, properties))
        confirms: list[Confirm] = []
        for key, given in parts:
            confirm: Confirm = yield publishing(
                self.node, lambda: (self.intake,), key, given, block=block, timeout=timeout
            )
            confirms.append(confirm)
        return confirms[0] if len(confirms) == 1 else CountDown([*confirms]) if confirms else settled_confirm()

    def _publish_later(
        self, bodies: list[bytes], properties: Mapping[str, Any], block: bool, timeout: float | None
    ) -> Steps[Scheduled]:
        """Hand over messages that wait until they are due. A message without an id gets one."""
        from warren.values.scheduling import Scheduled, schedule

        node, declaration = self.node, self.entry.declaration
        scheduled = schedule(properties, len(bodies), node.now_ms(), node.new_message_id)
        if len(bodies) == 1:
            key, given = self.keyed(bodies[0], scheduled.properties)
            parts = [(key, [given])]
        else:
            parts = list(self._parts(bodies, scheduled.properties))
        confirms: list[Confirm] = []
        low = 0
        for key, several in parts:
            part = scheduled.part(low, low + len(several))
            low += len(several)

            def find(part: Schedule = part) -> list[Receiver]:
                _ = self.actor  # raises if the queue is gone
                delays = node.vhost(declaration.vhost).delayed()
                return [delays.receiver(declaration.name, "", part.due_ms, part.encoded_ids)]

            confirm: Confirm = yield publishing(node, find, key, several, block=block, timeout=timeout)
            confirms.append(confirm)
        return Scheduled(confirms, scheduled)

    def publish_as_they_were(self, groups: Sequence[AsTheyWere]) -> Steps[list[str | None]]:
        """Publish messages with the exchange, keys and properties that they had, and wait until they are
        safe. Return for each group why it was refused, or ``None``."""

        def publish(group: AsTheyWere) -> Steps[Confirm | WarrenError]:
            key = group.key(self.entry.declaration.vhost)
            confirm: Confirm = yield publishing(
                self.node, lambda: (self.intake,), key, group.bodies, timeout=PATIENCE_S
            )
            return confirm

        return publish_groups(groups, publish)

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
        from warren.verbs.unique_publishing import keys_of, of_parts, publishing_unique

        keys, rest = keys_of(properties, bodies, several=several)
        if not any(keys):
            return (
                yield from self.publish_many(bodies, block=block, timeout=timeout, **rest)
                if several
                else self.publish(bodies[0], block=block, timeout=timeout, **rest)
            )
        parts = (
            list(self._parts(bodies, rest))
            if several
            else [(pair[0], [pair[1]]) for pair in (self.keyed(bodies[0], rest),)]
        )
        confirms: list[Confirm] = []
        for key, given in parts:
            own, keys = keys[: len(given)], keys[len(given) :]
            confirm: Confirm = yield publishing_unique(
                lambda: self.intake, key, given, own, block, timeout, passes_alarms=passes_alarms
            )
            confirms.append(confirm)
        return of_parts(confirms, [len(given) for _, given in parts])

    def _parts(self, bodies: list[bytes], properties: Mapping[str, Any]) -> Iterator[tuple[PublishKey, list[bytes]]]:
        """Split messages into parts that can be handed over together: a key, and bodies or contents."""
        columns = columns_of(properties, len(bodies))
        if not columns:
            key = self.key(properties)
            if bodies:
                yield key, bodies
            return
        from warren.queue_index.message.content_columns import contents_of_columns

        values, shared = publish_values({name: value for name, value in properties.items() if name not in columns})
        low = 0
        large = [index for index, size in enumerate(map(len, bodies)) if size > MAX_FRAGMENT_BYTES]
        for high in (*large, len(bodies)):
            if low < high:
                part = {name: column[low:high] for name, column in columns.items()}
                yield self._content_key(shared), contents_of_columns(values, part, bodies[low:high])
            if high < len(bodies):  # a large body is handed over separately
                own = {name: column[high] for name, column in columns.items()}
                yield self.key({**properties, **own}), [bodies[high]]
            low = high + 1

    def room(self, timeout: float | None = None) -> Steps[None]:
        """Wait until a publish that does not wait may go on. Raises :class:`BlockedError` after ``timeout`` seconds."""
        yield room(lambda: [self.intake], timeout)

    def keyed(self, body: bytes, properties: Mapping[str, Any]) -> tuple[PublishKey, bytes]:
        """Return the publish key of a message and what to hand over: its body, or its content if it has properties that
        usually differ from message to message."""
        if _OWN.isdisjoint(properties) or len(body) > MAX_FRAGMENT_BYTES:
            return self.key(properties), body
        if SHARED.isdisjoint(properties):
            return self._content_key(NOTHING_SHARED), content_of(
                encode_values({**properties, "delivery_mode": 2}), body
            )
        values, shared = publish_values(properties)
        return self._content_key(shared), content_of(encode_values(values), body)

    def _content_key(self, shared: Shared) -> PublishKey:
        key = self._content_keys.get(shared)
        if key is None:
            declaration = self.entry.declaration
            if len(self._content_keys) >= _CACHED_KEYS:
                self._content_keys = {}
            key = self._content_keys[shared] = content_key(declaration.vhost, "", declaration.name, shared)
        return key

    def key(self, properties: Mapping[str, Any]) -> PublishKey:
        """Return the publish key of the bodies; the last few are cached, as most publishers reuse theirs."""
        if not properties:
            return self.plain
        given = tuple(properties.items())
        try:
            key = self._keys.get(given)
        except TypeError:  # headers
            return self._new_key(properties)
        if key is None:
            key = self._new_key(properties)
            if len(self._keys) >= _CACHED_KEYS:
                self._keys = {}
            self._keys[given] = key
        return key

    def _new_key(self, properties: Mapping[str, Any]) -> PublishKey:
        declaration = self.entry.declaration
        return publish_key(declaration.vhost, "", (declaration.name,), properties)

    # ── getting ─────────────────────────────────────────────────────────────────────────────────────────────────

    def get(self, *, auto_ack: bool = False, timeout: float | None = 0.0) -> Steps[GetResult]:
        """Return the message at the head, or ``None`` if none arrives within ``timeout`` seconds (``None``: wait).

        This is for single messages; to get many, use :meth:`consume`.
        """
        result = yield from self.get_many(1, auto_ack=auto_ack)
        if result[1] or timeout == 0:
            return result
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

    def get_some(self, count: int, limit_bytes: int) -> Steps[GetResult]:
        """Get at most ``count`` messages, but no more once they reach ``limit_bytes``."""
        channel = self.own_channel()
        return channel, (yield from self._fetch(channel, count, limit_bytes))

    def _fetch(self, channel: Channel, count: int, limit_bytes: int | None = None) -> Steps[list[Delivered]]:
        """Get messages; if interrupted or cancelled, none: those on their way go back."""
        actor = channel.actor

        def take() -> list[Delivered]:
            return actor.queue_turn.get_many(channel.name, count, ack_required=True, limit_bytes=limit_bytes)

        fetch = asked(actor, take)
        try:
            batches: list[Delivered] = yield fetch
        except BaseException:
            fetch.on_done(channel.give_back)
            raise
        return batches

    def get_many(self, count: int, *, auto_ack: bool = False) -> Steps[GetResult]:
        """Return at most ``count`` messages from the head; fewer from a shorter queue. ``auto_ack``: ack them.

        Interrupted or cancelled, it takes none: those that were on their way go back.
        """
        channel, batches = self.own_channel(), list[Delivered]()
        if type(count) is int and count > 0 and (early := channel.get_early(count)) is not None:
            batches = [early]
        else:
            batches = yield from self._fetch(channel, count)
        if auto_ack:
            for delivered in batches:
                channel.settle_all("ack", delivered.tags)
            batches = [attrs.evolve(delivered, first_tag=0) for delivered in batches]
        return channel, batches

    def take(self, id: str) -> Steps[GetResult]:
        """Take the message with this ``id`` (see :meth:`browse`) from wherever it stands; ``None`` if it is gone or a
        consumer has it. It is settled like one from :meth:`get`."""
        from warren.verbs.moving import take

        channel = self.own_channel()
        return channel, (yield from take(channel, chosen_ids([id])))

    def get_early(self) -> tuple[Channel, Delivered] | None:
        """Return the result of :meth:`get` if it is available without a turn of the queue."""
        channel = self._channel
        if channel is None or not channel.alive:
            return None
        delivered = channel.get_early()
        return None if delivered is None else (channel, delivered)

    def own_channel(self) -> Channel:
        """The channel of this handle's gets."""
        actor = self.actor
        channel = self._channel
        if channel is None or not channel.alive:
            channel = self._channel = Channel(actor, f"get-{next(_numbers)}")
        return channel

    def ack_up_to(self, delivery_tag: int) -> Steps[None]:
        """Ack everything that :meth:`get` and :meth:`get_many` delivered, up to and including this tag.

        Raises :class:`UnknownTagError` if this handle got no message with this tag.
        """
        channel = self.own_channel() if self._channel is None else self._channel
        yield from channel.ack_up_to(delivery_tag)

    def release(self) -> Steps[int]:
        """Give back the unsettled messages that :meth:`get` delivered; return how many."""
        channel, self._channel = self._channel, None
        return 0 if channel is None else (yield from channel.shut())

    def consumer(self, prefetch: int = 500, **arguments: Unpack[ConsumeArguments]) -> ConsumerVerbs:
        """Return a consumer that has not begun."""
        actor, number = self.actor, next(_numbers)
        channel = Channel(actor, f"channel-{number}")
        auto_ack = arguments.get("auto_ack", False)
        declaration = ConsumerDeclaration(
            channel=channel.name,
            tag=arguments.get("tag") or f"consumer-{number}",
            prefetch=prefetch,
            acks_unseen=auto_ack,
            exclusive=arguments.get("exclusive", False),
            priority=arguments.get("priority", 0),
            ack_timeout_ms=ack_timeout_ms(arguments, actor.consumer_timeout_ms),
        )
        return ConsumerVerbs(channel, declaration, Deliveries(channel.name, actor.intake), arguments.get("timeout"))

    def tail(self) -> TailVerbs:
        """Return the verbs of a tail, which has not begun."""
        from warren.verbs.tail_verbs import TailVerbs

        return TailVerbs(self.actor)

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
        if self.node.vhost(declaration.vhost).delays is not None:
            from warren.verbs.delayed_verbs import count

            stats["messages_delayed"] = yield from count(self.node, declaration.vhost, declaration.name)
        return stats

    # ── delayed messages ────────────────────────────────────────────────────────────────────────────────────────

    def delayed(self, limit: int = 100) -> Steps[list[tuple[int, bytes]]]:
        """Return up to ``limit`` messages that wait for this queue (``delay``, ``at``), as
        :class:`warren.DelayedMessage`, the next due first."""
        from warren.verbs.delayed_verbs import waiting

        return waiting(self.node, self.entry.declaration.vhost, limit, self.entry.declaration.name)

    def cancel_delayed(self, message_id: str) -> Steps[int]:
        """Cancel the messages that wait for this queue under an id; return how many."""
        from warren.verbs.delayed_verbs import cancel

        return cancel(self.node, self.entry.declaration.vhost, message_id, self.entry.declaration.name)

    def purge_delayed(self) -> Steps[int]:
        """Cancel all messages that wait for this queue; return how many."""
        from warren.verbs.delayed_verbs import purge

        return purge(self.node, self.entry.declaration.vhost, self.entry.declaration.name)

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
        yield call(actor, lambda: actor.set_mode(mode))

    def delete(self, *, if_empty: bool = False, if_unused: bool = False) -> Steps[int]:
        """Delete the queue with its messages and bindings; return how many were ready."""
        vhost, name = self.entry.declaration.vhost, self.entry.declaration.name
        return (
            yield from self.node.change(
                lambda registry: registry.delete_queue(vhost, name, if_empty=if_empty, if_unused=if_unused)
            )
        )


class QueueHandle(NamedHandle[QueueVerbs]):
    """The properties of a queue that need no request."""

    made_by = "node.queue(name)"

    def _identity(self) -> tuple[object, str, str]:
        return self._verbs.node.identity, self.vhost, self.name

    @property
    def name(self) -> str:
        return self._verbs.entry.declaration.name

    @property
    def vhost(self) -> str:
        return self._verbs.entry.declaration.vhost

    @property
    def arguments(self) -> dict[str, Any]:
        """Its ``x-`` arguments."""
        return dict(self._verbs.entry.declaration.arguments)

    @property
    def durable(self) -> bool:
        return self._verbs.entry.declaration.durable
