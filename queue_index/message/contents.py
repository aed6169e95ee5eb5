"""Contents: fetched messages as AMQP carries them, in runs that differ in nothing but their bodies."""

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
    """Consecutive messages of one exchange, routing key and properties."""

    exchange: bytes
    routing_key: bytes
    properties: bytes
    """Flags and list, as in a content header."""
    bodies: Sequence[bytes]

    @property
    def bytes(self) -> int:
        return sum(map(len, self.bodies))


def contents_of(fetched: Fetched) -> Iterator[Content | None]:
    """Yield the messages in order; ``None`` for one whose bytes on disk are invalid."""
    if (unencoded := fetched.unencoded) is not None:
        envelope = unencoded.envelope
        exchange, routing_key = envelope.exchange, envelope.routing_keys[0]
        handed = unencoded.bodies(0, len(unencoded))
        if not envelope.of_contents:
            yield Content(exchange, routing_key, envelope.properties, handed)
            return
        for index, body in enumerate(handed):
            yield Content(exchange, routing_key, unencoded.properties(index), (body,))
        return
    content: Content | None = None
    bodies: list[bytes] = []
    head, head_bytes, term_bytes, body_end = b"", 0, -1, 0
    for term in fetched.terms:
        if content is not None and len(term) == term_bytes and term.startswith(head):
            bodies.append(term[head_bytes:body_end])
            continue
        if content is not None:
            yield content
        content, bodies, term_bytes = None, [], -1
        located = locate_addresses(term)
        if located is not None:
            body_end = located.body_end
            head_bytes, term_bytes = located.body_at, len(term)
            head = term[:head_bytes]
            bodies.append(term[head_bytes:body_end])
            content = Content(located.exchange, located.routing_key, located.properties, bodies)
        else:
            try:
                content = _decoded(term)
            except MessageError:
                yield None
    if content is not None:
        yield content


def counted_contents_of(fetched: FetchedAgain) -> Iterator[Content | None]:
    """The same, each with a header that says how often it came back."""
    for index, count in enumerate(fetched.delivery_counts):
        for content in contents_of(fetched.part(index, 1)):
            yield content if content is None or not count else _with_count(content, count)


def _with_count(content: Content, count: int) -> Content:
    properties = decode_properties(content.properties)
    headers = {**(properties.headers or {}), DELIVERY_COUNT: LongInteger(count)}
    return attrs.evolve(content, properties=encode_properties(attrs.evolve(properties, headers=headers)))


def pieces(contents: Iterable[Content | None], at_most_bytes: int = PIECE_BYTES) -> Iterator[Content | None]:
    """Split contents, so that none is much larger than ``at_most_bytes``."""
    for content in contents:
        if content is None or len(content.bodies) == 1:
            yield content
            continue
        step = max(1, at_most_bytes * len(content.bodies) // (content.bytes + 1))
        for low in range(0, len(content.bodies), step):
            yield attrs.evolve(content, bodies=content.bodies[low : low + step])


def _decoded(term: bytes) -> Content:
    message = decode_message(term)
    properties = message.encoded_properties or encode_properties(message.properties)
    return Content(message.exchange, message.routing_keys[0], properties, [message.body])
