"""The RabbitMQ directory that ships with the project, and what RabbitMQ itself made of a copy of it.

It was made by a RabbitMQ 3.10.8 node that was stopped. Messages that were rejected, that expired or that were one too
many lie in it, dead-lettered with the history that RabbitMQ wrote into their headers, and headers of every type. Beside
it stands how many messages of each queue that broker delivered after a restart, and a digest of their bodies.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeVar

import attrs

from warren.actors.vhost import Vhost
from warren.queue_index.message.message_format import Envelope, Message, decode_message
from warren.queue_index.properties import encode_properties
from warren.salvage.queue_directory import Finding, StoredMessage
from warren.salvage.source import Source, open_source
from warren.storage.errors import DataError

T = TypeVar("T")

DATA: Final = Path(__file__).parent / "data"
ARCHIVE: Final = DATA / "rabbitmq-3.10.8.tar.gz"
ORACLE: Final = DATA / "rabbitmq-3.10.8.json"
BUSY_QUEUE: Final = b"work"
"""The queue that the demo goes on publishing to, after the messages that RabbitMQ left in it."""


@attrs.frozen
class Delivered:
    """What RabbitMQ delivered of a queue."""

    messages: int
    sha256: str
    """The digest of the bodies' SHA-256 digests, joined in the order of delivery."""


@attrs.frozen
class Shipped:
    """The shipped directory, read."""

    broker: str
    vhost: bytes
    queues: Mapping[bytes, Sequence[StoredMessage]]
    """Each queue's messages, in order."""
    delivered: Mapping[bytes, Delivered]

    @property
    def count(self) -> int:
        """Messages in all queues."""
        return sum(map(len, self.queues.values()))

    def messages(self, queue: bytes) -> list[Message]:
        """A queue's messages, decoded."""
        return [decode_message(stored.encoded) for stored in self.queues[queue]]


@contextmanager
def open_shipped() -> Iterator[Source]:
    """The shipped directory, unpacked to a temporary one and opened read-only."""
    with open_source(str(ARCHIVE)) as source:
        yield source


def read_shipped(source: Source) -> Shipped:
    """All of its messages; raises :class:`DataError` for the first that cannot be had."""
    oracle = json.loads(ORACLE.read_text(encoding="utf-8"))
    (vhost,) = source.vhosts
    return Shipped(
        broker=oracle["broker"],
        vhost=vhost.name,
        queues={queue.name: [sound(message) for message in queue.messages()] for queue in vhost.queues},
        delivered={name.encode(): Delivered(**said) for name, said in oracle["delivered"].items()},
    )


def sound(item: T | Finding) -> T:
    """Return what was read; raise :class:`DataError` for a finding in its place."""
    if isinstance(item, Finding):
        raise DataError(item.path, item.offset, item.detail)
    return item


def take_over(shipped: Shipped, vhost: Vhost) -> None:
    """Publish every message into the queue of its name, under its own id, and make all of them safe."""
    for name, messages in shipped.queues.items():
        queue = vhost.queue(name)
        for stored, message in zip(messages, shipped.messages(name), strict=True):
            queue.publish(
                Envelope(
                    message.vhost,
                    message.exchange,
                    message.routing_keys,
                    encode_properties(message.properties),
                    message.persistent,
                ),
                message.msg_id,
                message.body,
                expiry_us=stored.expiry_us,
            )
    vhost.sync()


def digest_of(bodies: Sequence[bytes]) -> str:
    """As :attr:`Delivered.sha256`."""
    return hashlib.sha256(b"".join(hashlib.sha256(body).digest() for body in bodies)).hexdigest()
