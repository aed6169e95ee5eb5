"""What a simulated queue exchanges with its publishers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Final, Protocol

import attrs

from warren.queue_index.message.message_format import Envelope
from warren.queue_index.properties import Properties, encode_properties

NO_TIME: Final = b"\xff" * 8
"""After the counter in a message's id, where others have zeros: it was there before the simulation began."""


class Behind(Protocol):
    """A publisher that may not publish what it has, as its queue knows it."""

    @property
    def waiting_messages(self) -> int:
        """The messages whose moment is past."""


Token = Callable[[bool], object]
"""Called once for a publish: with ``True`` when its messages are safe, with ``False`` when the queue has refused them.

Each publish has a token of its own.
"""


@attrs.frozen
class Publication:
    """Messages on their way into a queue. ``ids``: 16 bytes each."""

    envelope: Envelope
    ids: bytes
    bodies: list[bytes]
    expiration_ms: int | None = None
    priority: int = 0
    token: Token | None = None


@attrs.define(eq=False)
class Counters:
    """What has happened to a queue, in messages; ``turns``: how often it had work to do."""

    published: int = 0
    """Messages handed over, including those that it then refused."""
    delivered: int = 0
    acked: int = 0
    """Including messages delivered to a consumer that acks nothing."""
    requeued: int = 0
    refused: int = 0
    dead_lettered: int = 0
    turns: int = 0
    held_ns: int = 0
    """How long its publishers, all together, could not publish."""


@functools.cache
def envelope(queue: str, *, persistent: bool) -> Envelope:
    """Return the envelope of a message that the default exchange routes to ``queue``."""
    properties = encode_properties(Properties(delivery_mode=2 if persistent else 1))
    return Envelope(b"/", b"", (queue.encode(),), properties, persistent)
