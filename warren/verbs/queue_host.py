"""Hosts of queues: what carries a queue's messages and performs its operations.

:class:`LocalQueue` is a queue of this process. In a guest of a shared directory it is a
:class:`warren.client.link_queue.LinkQueue`, which passes everything on to the process that hosts the directory.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from warren.actors.engines.queue.consumers import Consumer
from warren.actors.engines.queue.effects import Delivered
from warren.actors.node.admission import Admission
from warren.actors.queue.deliveries import Deliveries
from warren.actors.queue.inspecting import chosen_ids
from warren.actors.queue.intake import PublishKey
from warren.actors.queue.queue_actor import QueueActor
from warren.actors.queue.queue_entry import QueueEntry
from warren.actors.queue.queue_intake import QueueIntake
from warren.actors.runtime.future import Confirm
from warren.handles.channel import Channel, SettlingChannel
from warren.hosting.running_node import RunningNode
from warren.verbs.consumer_verbs import ConsumerVerbs, LocalConsumerVerbs
from warren.verbs.operation import Host, Operation
from warren.verbs.publishing import PATIENCE_S, AsTheyWere, Receiver, publish_groups, publishing, room
from warren.verbs.queue_keys import QueueKeys
from warren.verbs.selecting import Done, Target
from warren.verbs.steps import Steps, answered, asked

if TYPE_CHECKING:
    from warren.values.scheduling import Schedule
    from warren.verbs.tail_verbs import LocalTail, TailVerbs
    from warren.verbs.unique_publishing import UniqueMessages

T = TypeVar("T")

Got = tuple[SettlingChannel, list[Delivered]]
"""Messages that were fetched, and the channel that settles them."""
_numbers: Final = itertools.count(1)


class Join(Protocol):
    """The part of an intake that a handle's publish tries first."""

    @property
    def inbox(self) -> Any:
        """Its ``weight`` is what waits in it."""

    def join(self, key: PublishKey, body: bytes) -> Confirm | None:
        """Let a message join those that wait. ``None``: none waits that it could join."""


class Publishing(Protocol):
    """A publish that has not begun."""

    def get(self) -> Confirm:
        """Publish in this thread."""


class QueueHost(Protocol):
    """What carries a queue's messages and performs its operations."""

    entry: QueueEntry
    keys: QueueKeys

    @property
    def host(self) -> Host:
        """What hosts the vhost."""

    @property
    def intake(self) -> Join:
        """The queue's intake. Raises the reason if it takes no messages."""

    @property
    def consumer_timeout_ms(self) -> int | None:
        """The ack timeout of consumers that set none; ``None``: the process that hosts the node knows it."""

    def perform(self, verbs: Any, operation: Operation[T]) -> Steps[T]:
        """Perform an operation; return its answer."""

    def publishing(self, key: PublishKey, given: bytes, block: bool, timeout: float | None) -> Publishing:
        """A publish of one message, for a thread."""

    def publish(self, key: PublishKey, given: list[bytes], block: bool, timeout: float | None) -> Steps[Confirm]:
        """Hand over messages."""

    def scheduled_properties(self, schedule: Schedule) -> dict[str, Any]:
        """Return the properties with which delayed messages are handed over."""

    def publish_later(
        self, key: PublishKey, given: list[bytes], schedule: Schedule, block: bool, timeout: float | None
    ) -> Steps[Confirm]:
        """Hand over messages that wait until they are due."""

    def publish_unique(
        self, messages: UniqueMessages, block: bool, timeout: float | None, *, passes_alarms: bool = False
    ) -> Steps[Confirm]:
        """Hand over messages with keys."""

    def room(self, timeout: float | None) -> Steps[None]:
        """Wait until a publish need not wait."""

    def get_early(self) -> tuple[SettlingChannel, Delivered] | None:
        """Return the message at the head, if it is available without a turn of the queue."""

    def channel_of_gets(self) -> Steps[SettlingChannel]:
        """Return the channel of the gets, opening it if it is missing."""

    def take_channel(self) -> SettlingChannel | None:
        """Return the channel of the gets, if there is one; the next get opens another."""

    def get_many(self, count: int) -> Steps[Got]:
        """Return messages from the head; if interrupted or cancelled, take none."""

    def take(self, id: str) -> Steps[Got]:
        """Return the message with an id, from wherever it stands."""

    def consumer(self, declaration: Consumer, timeout: float | None) -> ConsumerVerbs:
        """Return a consumer that has not begun."""

    def tail(self) -> TailVerbs:
        """Return a tail that has not begun."""

    def publish_as_they_were(self, groups: Sequence[AsTheyWere]) -> Steps[list[str | None]]:
        """Publish messages with the properties that they had; return for each group why it was refused, or ``None``."""

    def move(self, ids: list[str], to: Target) -> Steps[Done]:
        """Move messages that are ready, or as many of them as go."""

    def delayed(self, limit: int) -> Steps[list[tuple[int, bytes]]]:
        """Return the next messages that are due, and when."""

    def cancel_delayed(self, message_id: str) -> Steps[int]:
        """Cancel the delayed messages with an id; return how many."""

    def purge_delayed(self) -> Steps[int]:
        """Cancel all delayed messages; return how many."""

    def delete(self, *, if_empty: bool, if_unused: bool) -> Steps[int]:
        """Delete the queue; return how many messages were ready."""


class LocalQueue:
    """A queue of a node in this process.

    Everything goes to its current actor: after a failure the node starts a new one from the queue's files.
    """

    def __init__(self, node: RunningNode, entry: QueueEntry) -> None:
        self.node = self.host = node
        self.entry = entry
        self.keys = QueueKeys(entry.declaration, contents=True)
        self._channel: Channel | None = None
        self._coalesces = entry.declaration.overflow == "drop-head"

    @property
    def actor(self) -> QueueActor:
        self.node.check_process()
        return self.entry.actor

    @property
    def intake(self) -> QueueIntake:
        return self.actor.intake

    @property
    def consumer_timeout_ms(self) -> int | None:
        return self.actor.arguments.consumer_timeout_ms

    def perform(self, verbs: Any, operation: Operation[T]) -> Steps[T]:
        return operation.performed_by(verbs)

    # ── publishing ──────────────────────────────────────────────────────────────────────────────────────────────

    def publishing(self, key: PublishKey, given: bytes, block: bool, timeout: float | None) -> Admission:
        ahead = self._coalesces  # others may have the same key
        return publishing(self.node, lambda: (self.intake,), key, [given], block=block, timeout=timeout, ahead=ahead)

    def publish(self, key: PublishKey, given: list[bytes], block: bool, timeout: float | None) -> Steps[Confirm]:
        ahead = self._coalesces and len(given) == 1
        confirm: Confirm = yield publishing(
            self.node, lambda: (self.intake,), key, given, block=block, timeout=timeout, ahead=ahead
        )
        return confirm

    def scheduled_properties(self, schedule: Schedule) -> dict[str, Any]:
        return schedule.properties

    def publish_later(
        self, key: PublishKey, given: list[bytes], schedule: Schedule, block: bool, timeout: float | None
    ) -> Steps[Confirm]:
        declaration = self.entry.declaration

        def find() -> list[Receiver]:
            _ = self.actor  # raises if the queue is gone
            delays = self.node.vhost(declaration.vhost).delayed()
            return [delays.receiver(declaration.name, "", schedule.due_ms, schedule.encoded_ids)]

        confirm: Confirm = yield publishing(self.node, find, key, given, block=block, timeout=timeout)
        return confirm

    def publish_unique(
        self, messages: UniqueMessages, block: bool, timeout: float | None, *, passes_alarms: bool = False
    ) -> Steps[Confirm]:
        from warren.verbs.unique_publishing import of_parts, publishing_unique

        confirms: list[Confirm] = []
        sizes: list[int] = []
        for key, given in list(self.keys.parts(messages.bodies, messages.rest)):
            keys = messages.keys[sum(sizes) : sum(sizes) + len(given)]
            confirm: Confirm = yield publishing_unique(
                lambda: self.intake, key, given, keys, block=block, timeout=timeout, passes_alarms=passes_alarms
            )
            confirms.append(confirm)
            sizes.append(len(given))
        return of_parts(confirms, sizes)

    def publish_as_they_were(self, groups: Sequence[AsTheyWere]) -> Steps[list[str | None]]:
        vhost = self.entry.declaration.vhost
        return publish_groups(groups, lambda group: self.publish(group.key(vhost), group.bodies, True, PATIENCE_S))

    def room(self, timeout: float | None) -> Steps[None]:
        yield room(lambda: [self.intake], timeout)

    # ── getting ─────────────────────────────────────────────────────────────────────────────────────────────────

    def get_early(self) -> tuple[SettlingChannel, Delivered] | None:
        channel = self._channel
        if channel is None or not channel.alive:
            return None
        delivered = channel.get_early()
        return None if delivered is None else (channel, delivered)

    def own_channel(self) -> Channel:
        """The channel of the gets."""
        actor = self.actor
        channel = self._channel
        if channel is None or not channel.alive:
            channel = self._channel = Channel(actor, f"get-{next(_numbers)}")
        return channel

    def channel_of_gets(self) -> Steps[SettlingChannel]:
        return answered(self._channel or self.own_channel())

    def take_channel(self) -> SettlingChannel | None:
        channel, self._channel = self._channel, None
        return channel

    def get_many(self, count: int) -> Steps[Got]:
        channel = self.own_channel()
        if type(count) is int and count > 0 and (early := channel.get_early(count)) is not None:
            return channel, [early]
        return channel, (yield from self._fetch(channel, count))

    def get_some(self, count: int, limit_bytes: int) -> Steps[Got]:
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

    def take(self, id: str) -> Steps[Got]:
        from warren.verbs.moving import take

        channel = self.own_channel()
        return channel, (yield from take(channel, chosen_ids([id])))

    def consumer(self, declaration: Consumer, timeout: float | None) -> ConsumerVerbs:
        actor = self.actor
        channel = Channel(actor, declaration.channel)
        return LocalConsumerVerbs(channel, declaration, Deliveries(channel.name, actor.intake), timeout)

    def tail(self) -> LocalTail:
        from warren.verbs.tail_verbs import LocalTail

        return LocalTail(self.actor)

    # ── what the vhost does for it ──────────────────────────────────────────────────────────────────────────────

    def move(self, ids: list[str], to: Target) -> Steps[Done]:
        from warren.verbs.moving import Move

        self.node.check_process()
        return (yield from Move(self.node, self.entry, to).move(ids))

    def delayed(self, limit: int) -> Steps[list[tuple[int, bytes]]]:
        from warren.verbs.delayed_verbs import waiting

        return waiting(self.node, self.entry.declaration.vhost, limit, self.entry.declaration.name)

    def cancel_delayed(self, message_id: str) -> Steps[int]:
        from warren.verbs.delayed_verbs import cancel

        return cancel(self.node, self.entry.declaration.vhost, message_id, self.entry.declaration.name)

    def purge_delayed(self) -> Steps[int]:
        from warren.verbs.delayed_verbs import purge

        return purge(self.node, self.entry.declaration.vhost, self.entry.declaration.name)

    def delete(self, *, if_empty: bool, if_unused: bool) -> Steps[int]:
        vhost, name = self.entry.declaration.vhost, self.entry.declaration.name
        return (
            yield from self.node.change(
                lambda registry: registry.delete_queue(vhost, name, if_empty=if_empty, if_unused=if_unused)
            )
        )
