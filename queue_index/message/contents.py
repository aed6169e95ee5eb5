"""Contents: fetched messages as AMQP carries them, as columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import attrs

from warren.queue_index.message.amqp_tables import LongInteger
from warren.queue_index.message.message_format import decode_message, locate_addresses
from warren.queue_index.properties import decode_properties, encode_properties
from warren.queue_index.queue.fetching import DELIVERY_COUNT, Fetched, FetchedAgain
from warren.storage.errors import MessageError

PIECE_BYTES: Final = 1 << 18


@attrs.define
class Content:
    """Consecutive messages of one exchange and routing key."""

    exchange: bytes
    routing_key: bytes
    properties: Sequence[bytes]
    """Flags and list of each, as in a content header."""
    bodies: Sequence[bytes]

    @property
    def bytes(self) -> int:
        """The size of the messages' bodies and properties."""
        return sum(map(len, self.bodies)) + sum(map(len, self.properties))

    def part(self, low: int, high: int) -> Content:
        """Return the messages ``low … high-1``."""
        return Content(self.exchange, self.routing_key, self.properties[low:high], self.bodies[low:high])

    def alike(self) -> Iterator[Content]:
        """Yield stretches of messages with the same properties."""
        properties, low = self.properties, 0
        while low < len(properties):
            encoded, high = properties[low], low + 1
            while high < len(properties) and properties[high] == encoded:
                high += 1
            yield self.part(low, high)
            low = high


def contents_of(fetched: Fetched) -> Iterator[Content | None]:
    """Yield the messages in order; ``None`` for one whose bytes on disk are invalid."""
    if (unencoded := fetched.unencoded) is not None:
        envelope, count = unencoded.envelope, len(unencoded)
        columns = unencoded.many_properties(0, count), unencoded.bodies(0, count)
        yield Content(envelope.exchange, envelope.routing_keys[0], *columns)
        return
    content: Content | None = None
    properties: list[bytes] = []
    bodies: list[bytes] = []
    head, head_bytes, term_bytes, body_end = b"", 0, -1, 0
    for term in fetched.terms:
        if len(term) == term_bytes and term.startswith(head):
            bodies.append(term[head_bytes:body_end])
            continue
        properties += properties[-1:] * (len(bodies) - len(properties))  # those that begin with the same head
        located = locate_addresses(term)
        if located is None:
            if content is not None:
                yield content
            content, term_bytes = None, -1
            try:
                yield _decoded(term)
            except MessageError:
                yield None
            continue
        if content is None or content.exchange != located.exchange or content.routing_key != located.routing_key:
            if content is not None:
                yield content
            properties, bodies = [], []
            content = Content(located.exchange, located.routing_key, properties, bodies)
        head_bytes, body_end, term_bytes = located.body_at, located.body_end, len(term)
        head = term[:head_bytes]
        properties.append(located.properties)
        bodies.append(term[head_bytes:body_end])
    if content is not None:
        properties += properties[-1:] * (len(bodies) - len(properties))
        yield content


def counted_contents_of(fetched: FetchedAgain) -> Iterator[Content | None]:
    """The same, each with a header that says how often it came back."""
    for index, count in enumerate(fetched.delivery_counts):
        for content in contents_of(fetched.part(index, 1)):
            yield content if content is None or not count else with_count(content, count)


def with_count(content: Content, count: int) -> Content:
    """Return a single message with a header that says how often it came back."""
    properties = decode_properties(content.properties[0])
    headers = {**(properties.headers or {}), DELIVERY_COUNT: LongInteger(count)}
    return attrs.evolve(content, properties=[encode_properties(attrs.evolve(properties, headers=headers))])


def pieces(contents: Iterable[Content | None], at_most_bytes: int = PIECE_BYTES) -> Iterator[Content | None]:
    """Split contents, so that none is much larger than ``at_most_bytes``."""
    for content in contents:
        if content is None or len(content.bodies) == 1:
            yield content
            continue
        step = max(1, at_most_bytes * len(content.bodies) // (content.bytes + 1))
        for low in range(0, len(content.bodies), step):
            yield content.part(low, low + step)


def _decoded(term: bytes) -> Content:
    message = decode_message(term)
    properties = message.encoded_properties or encode_properties(message.properties)
    return Content(message.exchange, message.routing_keys[0], [properties], [message.body])
