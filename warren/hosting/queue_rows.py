"""Queue rows: what is shown of a queue or a stream at one moment.

The HTTP API, Prometheus, ``warren ctl``, ``warren queues``, ``warren top`` and the page ask each queue here, and choose
from its row. Asking changes nothing, and wakes nothing. What asks again and again keeps the rows, and leaves out the
queues that have been at rest since (:meth:`QueueRow.is_current`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import attrs

from warren.actors.engines.declared.arguments import QueueDeclaration
from warren.actors.queue.inspecting import ask_politely, head_timestamp
from warren.actors.queue.queue_actor import QueueActor
from warren.actors.queue.queue_entry import QueueEntry
from warren.actors.runtime.inbox import Call
from warren.storage.errors import WarrenError

if TYPE_CHECKING:
    from warren.actors.topics.streams import Stream
    from warren.hosting.running_node import RunningNode

Key = tuple[str, str]
"""A queue's vhost and name."""


@attrs.frozen
class QueueRow:
    """One queue or stream."""

    declaration: QueueDeclaration
    state: str
    """``running``, ``hibernated``, ``down``, or ``busy``: it did not answer in time."""
    stats: Mapping[str, Any] | None = None
    """All its statistics, under RabbitMQ's names; ``None`` if it is down or busy."""
    counts: Mapping[str, int] = attrs.Factory(dict)
    """What it counts (:class:`~warren.actors.engines.queue.queue_context.Counts`); empty if it does not count."""
    actor: QueueActor | None = None
    """``None`` if it is down or a stream."""
    rest_number: int = 0
    """The actor's when it was asked; 0 if it was awake."""
    reason: str | None = None
    """Why it is down."""
    idle_s: float | None = None
    """How long it has had nothing to do; ``None`` unless it rests."""
    can_deliver: bool = False
    """Whether it has a consumer with room, so that the next message would be delivered at once."""
    head_timestamp: int | None = None
    """The timestamp of the message that is next, if that is in memory."""

    def is_current(self, queue: QueueEntry | Stream) -> bool:
        """Whether the queue has been at rest since it was asked, so that it would answer the same."""
        actor = queue.running if isinstance(queue, QueueEntry) else None
        if actor is None or actor is not self.actor or not 0 < self.rest_number == actor.rest_number:
            return False
        return self.counts == _counts(actor)  # messages may bypass a queue at rest


def queue_row(queue: QueueEntry | Stream, patience_s: float) -> QueueRow:
    """Return the row of a queue, which has ``patience_s`` seconds to answer."""
    declaration = queue.declaration
    if not isinstance(queue, QueueEntry):
        try:
            return QueueRow(declaration, "running", queue.stats())
        except WarrenError as error:  # the topics are down
            return QueueRow(declaration, "down", reason=str(error))
    if (actor := queue.running) is None:
        return QueueRow(declaration, "down", reason=queue.reason)

    def answer() -> QueueRow:
        process, stats = actor.process, actor.stats()
        return QueueRow(
            declaration,
            stats["state"],
            stats,
            _counts(actor),
            actor,
            actor.rest_number,
            idle_s=actor.queue_turn.memory.idle_s,
            can_deliver=process.consumers.room > 0,
            head_timestamp=head_timestamp(process),
        )

    row: QueueRow | None = ask_politely(actor.actor_ref, Call(answer), patience_s)
    return QueueRow(declaration, "busy", actor=actor) if row is None else row


def _counts(actor: QueueActor) -> dict[str, int]:
    counts = actor.process.context.counts
    return {} if counts is None else counts.to_json()


def find_queue(node: RunningNode, vhost: str, name: str) -> QueueEntry | Stream | None:
    """Return a queue or stream; ``None`` if it does not exist, or its vhost is down."""
    running = node.registry.vhosts.get(vhost)
    entry = None if running is None else running.queues.get(name)
    return entry or node.registry.streams.find(vhost, name)


def each_queue(node: RunningNode, vhost: str | None = None) -> Iterator[tuple[Key, QueueEntry | Stream]]:
    """Yield the queues and streams of a vhost, or of all. Skip vhosts that are down."""
    for name in list(node.registry.vhosts) if vhost is None else [vhost]:
        if (running := node.registry.vhosts.get(name)) is not None:
            queues: list[QueueEntry | Stream] = [*running.queues.values(), *node.registry.streams.of(name)]
            yield from (((name, queue.declaration.name), queue) for queue in queues)
