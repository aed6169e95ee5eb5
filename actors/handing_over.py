"""Handing over: what users' threads give to a queue, single messages and acks above all.

Single ones gather in the queue's inbox while it is busy (:class:`~actors.inbox.Gathering`): those of one
:class:`PublishKey` become one batch with one confirm, those of one :class:`SettleKey` one call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import attrs

from actors.engines.byte_budget import MESSAGE_BYTES
from actors.future import Confirm
from actors.inbox import Gathering
from actors.pool import ActorStoppedError
from queue_index.message_format import Envelope
from storage.errors import WarrenError

CLOSED_WEIGHT: Final = 1 << 60
"""No publisher is let in where so much waits; it then looks why."""


class PublishRefusedError(WarrenError):
    """A queue that is full and told to refuse (x-overflow) did so; nothing was stored."""


class QueueDownError(ActorStoppedError):
    """The queue has stopped by an error, or its files cannot be opened; the reason is in the text."""


class QueueGoneError(QueueDownError):
    """The queue was deleted."""


@attrs.frozen(eq=False)
class PublishKey:
    """What single publishes that gather have in common. Compared by identity: a handle keeps its own."""

    envelope: Envelope
    expiration_ms: int | None = None
    priority: int = 0
    around_bytes: int = attrs.field(init=False)
    """What each message takes on its way beside its body."""

    @around_bytes.default
    def _size_around(self) -> int:
        return MESSAGE_BYTES + len(self.envelope.properties)

    def size_bytes(self, bodies: Sequence[bytes]) -> int:
        """What messages with such bodies take on their way."""
        return sum(map(len, bodies)) + len(bodies) * self.around_bytes


class PublishBatch(Gathering):
    """Single publishes that wait together; ``items`` are bodies."""

    __slots__ = ("confirm",)

    def __init__(self, key: object, confirm: Confirm) -> None:
        super().__init__(key)
        self.confirm = confirm


@attrs.frozen
class SettleKey:
    """What single settlements that gather have in common."""

    channel: str
    outcome: str


def tag_ranges(tags: list[int]) -> list[range]:
    """Delivery tags that came one by one, as ranges."""
    ranges: list[range] = []
    start = end = tags[0]
    for tag in tags[1:]:
        if tag == end + 1:
            end = tag
        else:
            ranges.append(range(start, end + 1))
            start = end = tag
    ranges.append(range(start, end + 1))
    return ranges
