"""What came over a socket, as a queue of this process would have handed it over."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import attrs
from pamqp import commands as c

from warren.actors.engines.queue.effects import Delivered
from warren.amqp.methods import text_of
from warren.amqp.received import Messages
from warren.client.calls import result_of, unpacked
from warren.queue_index.message.message_format import MSG_ID_BYTES, Envelope
from warren.queue_index.properties import decode_properties
from warren.queue_index.queue.fetching import Fetched
from warren.queue_index.queue.run import IN_RAM, Batch, Run, UnencodedTerms

_PERSISTENT = 2


@attrs.frozen
class RemoteDelivered(Delivered):
    """Messages with the channel that settles them: a consumer has another one after its socket was lost."""

    through: Any = None
    size: int = 0
    """Bytes of the bodies."""


def got_of(through: Any, vhost: str, answer: Any) -> list[RemoteDelivered]:
    """What answers a ``basic.get``, or a call of ``queue.get``. Raises what the call raised."""
    if isinstance(answer, Messages):
        return list(delivered_of(through, vhost, answer))
    if isinstance(answer, c.Basic.GetEmpty):
        return []
    batches = []
    for tag, redelivered, exchange, routing_key, properties, together in result_of(answer):
        envelope = _envelope(vhost, text_of(exchange), text_of(routing_key), properties)
        fetched = _fetched(envelope, redelivered, unpacked(together))
        batches.append(RemoteDelivered(None, through.name, tag, fetched, through))
    return batches


def _fetched(envelope: Envelope, redelivered: bool, bodies: list[bytes]) -> Fetched:
    """Messages as they are taken from a queue. The ids are unknown: zeros."""
    count = len(bodies)
    ids, sizes = bytes(MSG_ID_BYTES * count), list(map(len, bodies))
    batch = Batch(count, ids, sizes, 0, UnencodedTerms(envelope, ids, bodies))
    return Fetched(range(count), redelivered, Run(0, batch, 0, count, IN_RAM), None)


def delivered_of(through: Any, vhost: str, event: Messages) -> Iterator[RemoteDelivered]:
    """Messages that came together, with consecutive tags each."""
    for alike in event.alike():
        method = alike.method
        if not isinstance(method, c.Basic.Deliver | c.Basic.GetOk):
            raise TypeError(f"{method.name} delivers nothing")
        envelope = _envelope(vhost, method.exchange, method.routing_key, alike.properties[0])
        fetched = _fetched(envelope, method.redelivered, alike.bodies)
        consumer = getattr(method, "consumer_tag", None)
        for offset, count in _stretches(alike.tags):
            part = fetched if count == fetched.count else fetched.part(offset, count)
            size = sum(map(len, alike.bodies[offset : offset + count]))
            yield RemoteDelivered(consumer, through.name, alike.tags[offset], part, through, size)


def _stretches(tags: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Where consecutive numbers begin, and how many they are."""
    first = 0
    while first < len(tags):
        if tags[-1] - tags[first] == len(tags) - 1 - first:
            count = len(tags) - first
        else:
            count = 1
            while first + count < len(tags) and tags[first + count] == tags[first] + count:
                count += 1
        yield first, count
        first += count


@functools.lru_cache(maxsize=256)
def _envelope(vhost: str, exchange: str, routing_key: str, properties: bytes) -> Envelope:
    return Envelope(
        vhost.encode(errors="surrogateescape"),
        exchange.encode(errors="surrogateescape"),
        (routing_key.encode(errors="surrogateescape"),),
        properties,
        decode_properties(properties).delivery_mode == _PERSISTENT,
    )
