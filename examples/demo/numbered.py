"""The messages that the demo publishes: number n always has the same body, so that a reader can check it.

A body begins with the number in ten digits; the rest is its SHA-256, over and over. One message in 50 is too long for
the index and goes to the message store. All of one publisher's share their properties, which say whose they are.
"""

from __future__ import annotations

import hashlib
from typing import Final

from warren.queue_index.message.message_format import Envelope
from warren.queue_index.properties import Properties, encode_properties

SMALL_BYTES: Final = 128
LARGE_BYTES: Final = 6_000
"""Above what the index embeds (4,096 bytes with the properties)."""

_LARGE_EVERY: Final = 50
_DIGITS: Final = 10
EXCHANGE: Final = b"demo"


def body_of(number: int) -> bytes:
    """The body of message ``number``."""
    size = LARGE_BYTES if number % _LARGE_EVERY == _LARGE_EVERY - 1 else SMALL_BYTES
    digits = b"%0*d" % (_DIGITS, number)
    digest = hashlib.sha256(digits).digest()
    return (digits + digest * (size // len(digest) + 1))[:size]


def payload_bytes(count: int) -> int:
    """The bodies of messages 0 … count-1, together."""
    large = count // _LARGE_EVERY
    return large * LARGE_BYTES + (count - large) * SMALL_BYTES


def number_of(body: bytes) -> int | None:
    """Return the number in a body; ``None`` if it is not one of ours."""
    digits = body[:_DIGITS]
    return int(digits) if len(digits) == _DIGITS and digits.isdigit() else None


def app_id(publisher: int) -> str:
    """The property that says which publisher a message is of."""
    return f"warren-demo-publisher-{publisher}"


def envelope_of(vhost: bytes, queue: bytes, publisher: int) -> Envelope:
    """What all messages of the publisher have in common."""
    properties = Properties(
        content_type="application/octet-stream",
        headers={"publisher": publisher, "demo": "warren"},
        delivery_mode=2,
        app_id=app_id(publisher),
    )
    return Envelope(vhost, EXCHANGE, (queue,), encode_properties(properties), persistent=True)
