"""What simulated queues exchange with publishers, consumers and stores.

A *token* stands for a publish whose publisher wants to know the outcome. It is returned once: when the messages are
safe, or refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

import attrs

from warren.queue_index.message_format import Envelope
from warren.simulation.units import ns

if TYPE_CHECKING:
    from warren.simulation.store import StoreLink

NO_TIME: Final = b"\xff" * 8
"""In the place of a message's time: it was there before the simulation began."""


class Behind(Protocol):
    """A publisher that may not publish what it has, as its queue knows it."""

    @property
    def waiting_messages(self) -> int:
        """Messages whose moment is past."""


class Token(Protocol):
    """A publisher's, for one publish; answered once."""

    def confirmed(self) -> None: ...

    def refused(self) -> None: ...


class Nobody:
    """The token of a publisher that asks for no confirms."""

    __slots__ = ()

    def confirmed(self) -> None: ...

    refused = confirmed


@attrs.define(eq=False)
class DeadLettersLeft:
    """A batch of dead letters on its way; its queue forgets the messages when the last is safe."""

    left: int
    _safe: Callable[[], None]

    def settle_one(self) -> None:
        """One of them has arrived, or was refused."""
        self.left -= 1
        if not self.left:
            self._safe()


@attrs.frozen(eq=False)
class DeadLetterToken:
    """The token of one dead letter."""

    batch: DeadLettersLeft

    def confirmed(self) -> None:
        self.batch.settle_one()

    refused = confirmed
    """By a full queue: lost, as in the runtime."""


@attrs.frozen
class Publication:
    """Messages on their way into a queue. ``ids``: 16 bytes each."""

    envelope: Envelope
    ids: bytes
    bodies: list[bytes]
    expiration_ms: int | None = None
    priority: int = 0
    token: Token | None = None


@attrs.frozen
class Progress:
    """How far a store is with what a queue handed over: tickets up to which it has taken bodies, and has them safe."""

    link: StoreLink
    taken: int
    safe: int


@attrs.define(eq=False)
class Counters:
    """What has happened to a queue, in messages; ``turns``: how often it had work to do."""

    published: int = 0
    """Handed over, those included that it then refused."""
    delivered: int = 0
    acked: int = 0
    """Or delivered to one who acks nothing."""
    requeued: int = 0
    refused: int = 0
    dead_lettered: int = 0
    turns: int = 0
    held_ns: int = 0
    """How long its publishers, all together, could not publish."""


def expiration_ms(expiration_s: float | None) -> int | None:
    """As a publish has it."""
    return None if expiration_s is None else ns(expiration_s) // 1_000_000
