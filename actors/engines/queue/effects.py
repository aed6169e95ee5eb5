"""Effects: the output of a :class:`~warren.actors.engines.queue.queue_process.QueueProcess`.

A queue makes no outgoing calls. Its output collects in one :class:`Effects`, which the host takes
(:meth:`~warren.actors.engines.queue.queue_context.QueueContext.drain_effects`) and passes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from warren.queue_index.message.message_format import Envelope
from warren.queue_index.queue.fetching import Fetched


@attrs.frozen
class Delivered:
    """Messages for one channel: consecutive ones of the queue, all redelivered or none."""

    consumer: str | None
    """``None``: they went to a get."""
    channel: str
    first_tag: int
    """The messages have the tags ``first_tag … first_tag + count - 1``; 0 if no ack is expected."""
    fetched: Fetched

    @property
    def count(self) -> int:
        return self.fetched.count

    @property
    def tags(self) -> range:
        """Their delivery tags; empty if no ack is expected."""
        return range(self.first_tag, self.first_tag + self.fetched.count) if self.first_tag else range(0)


@attrs.frozen
class DeliveredEarly:
    """Messages that were delivered before the queue took them in: to one channel, under consecutive tags."""

    channel: str
    consumer: str | None
    """``None``: they went to a get."""
    first_tag: int
    bodies: Sequence[bytes | None]
    """``None`` for a message that was acked already."""
    acked_bytes: int
    """The bytes of the bodies that were acked already."""


@attrs.frozen
class DeadLetter:
    """A message that died, in the form in which it is published again."""

    envelope: Envelope
    """With the dead-letter exchange, the routing keys and the ``x-death`` headers."""
    routing_keys: tuple[str, ...]
    """The keys to route it by: its own, then those of CC and BCC."""
    headers: dict[str, Any]
    """The envelope's headers, decoded, for :func:`warren.actors.engines.queue.dead_letters.is_cycle`."""
    body: bytes
    priority: int = 0
    expiration_ms: None = None
    """Never: a message that expired does not expire again as a dead letter."""


@attrs.frozen
class DeadLetterBatch:
    """Messages that died together. The queue keeps them until their targets confirm that they are safe."""

    number: int
    """For :meth:`warren.actors.engines.queue.expiry.Expiry.safe`."""
    exchange: str
    publications: list[DeadLetter]


@attrs.define
class Effects:
    """What the queue's host has to pass on, each list in order."""

    deliveries: list[Delivered] = attrs.Factory(list)
    dead_letters: list[DeadLetterBatch] = attrs.Factory(list)
    confirmed: list[object] = attrs.Factory(list)
    """Tokens of publishes that are safe now."""
    refused: list[object] = attrs.Factory(list)
    """Tokens of publishes with a refused message."""
    cancelled: list[str] = attrs.Factory(list)
    """Tags of consumers that were cancelled because the queue was deleted."""
    lapsed: list[tuple[str, range]] = attrs.Factory(list)
    """Tags of consumers that held messages for too long, with the messages' delivery tags."""
