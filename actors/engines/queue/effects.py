"""What a queue answers with: the values that leave a :class:`~warren.actors.engines.queue.queue_process.QueueProcess`.

A queue makes no outgoing calls. Its output collects in one :class:`Effects`, which the host takes
(:meth:`~warren.actors.engines.queue.queue_process.QueueProcess.drain_effects`) and passes on.
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
    """``None``: they were asked for by a get."""
    channel: str
    first_tag: int
    """The messages have the tags ``first_tag … first_tag + count - 1``; 0 where no ack is expected."""
    fetched: Fetched

    @property
    def count(self) -> int:
        return self.fetched.count

    @property
    def tags(self) -> range:
        """Their delivery tags; empty where no ack is expected."""
        return range(self.first_tag, self.first_tag + self.fetched.count) if self.first_tag else range(0)


@attrs.frozen
class DeliveredEarly:
    """Messages that went out before the queue took them in: to one channel, under consecutive tags."""

    channel: str
    consumer: str | None
    """``None``: they were asked for by a get."""
    first_tag: int
    bodies: Sequence[bytes | None]
    """``None``: acked already."""
    gone_bytes: int
    """The bytes of the bodies of those."""


@attrs.frozen
class DeadLetter:
    """A message that died, as it has to be published now."""

    envelope: Envelope
    """With the dead-letter exchange, the routing keys and the headers that tell its story."""
    routing_keys: tuple[str, ...]
    """By which it is to be routed: its own one, then CC's and BCC's."""
    headers: dict[str, Any]
    """Those of the envelope, decoded: :func:`warren.actors.engines.queue.dead_letters.is_cycle` asks them."""
    body: bytes
    priority: int = 0
    expiration_ms: None = None
    """Never: a message does not expire where it went because it had expired."""


@attrs.frozen
class DeadLetterBatch:
    """Messages that died together. The queue keeps them until it is told that they are safe elsewhere."""

    number: int
    """By which :meth:`~warren.actors.engines.queue.queue_process.QueueProcess.dead_letters_safe` knows them."""
    exchange: str
    publications: list[DeadLetter]


@attrs.define
class Effects:
    """What a queue has for others, in the order in which it came."""

    deliveries: list[Delivered] = attrs.Factory(list)
    dead_letters: list[DeadLetterBatch] = attrs.Factory(list)
    confirmed: list[object] = attrs.Factory(list)
    """Tokens of publishes that are safe now."""
    refused: list[object] = attrs.Factory(list)
    """Tokens of publishes of which a message was not taken."""
    cancelled: list[str] = attrs.Factory(list)
    """Tags of consumers that are gone because the queue is."""
    activated: list[str] = attrs.Factory(list)
    """Tags of consumers that have become the single active one."""
    lapsed: list[tuple[str, range]] = attrs.Factory(list)
    """Consumers that held messages for too long, by tag, and the delivery tags that these had."""
