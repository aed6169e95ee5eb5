"""Intake: what users' threads hand to a queue, in particular single messages and acks.

Single ones gather in the queue's inbox while it is busy (:class:`~warren.actors.runtime.inbox.PendingBatch`): those of
one :class:`PublishKey` become one batch with one confirm, those of one :class:`SettleKey` one call.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from warren.actors.engines.byte_budget import MESSAGE_BYTES
from warren.actors.runtime.pooled_actor import ActorStoppedError
from warren.queue_index.message.message_format import Envelope
from warren.storage.errors import WarrenError


class PublishRefusedError(WarrenError):
    """A full queue with an x-overflow that rejects has refused the messages; nothing was stored."""


class QueueDownError(ActorStoppedError):
    """The queue has stopped by an error, or its files cannot be opened; the reason is in the text."""


class QueueGoneError(QueueDownError):
    """The queue was deleted."""


@attrs.frozen(eq=False, repr=False)
class PublishKey:
    """What single publishes of one batch have in common. Compared by identity: a handle keeps its own."""

    envelope: Envelope
    expiration_ms: int | None = None
    priority: int = 0
    overhead_bytes: int = attrs.field(init=False)
    """The bytes that each message takes on its way in addition to its body."""

    @overhead_bytes.default
    def _size_overhead(self) -> int:
        return MESSAGE_BYTES + len(self.envelope.properties)

    def size_bytes(self, bodies: Sequence[bytes]) -> int:
        """Return the bytes that messages with these bodies take on their way."""
        return sum(map(len, bodies)) + len(bodies) * self.overhead_bytes


@attrs.frozen
class SettleKey:
    """What single settlements of one batch have in common."""

    channel: str
    outcome: str
