"""What came over a socket, as a queue of this process would have handed it over."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import attrs
from pamqp import commands as c

from warren.actors.engines.effects import Delivered
from warren.amqp.received import Messages
from warren.client.calls import result_of, unpacked
from warren.queue_index.fetching import Fetched
from warren.queue_index.message_format import MSG_ID_BYTES, Envelope
from warren.queue_index.properties import decode_properties
from warren.queue_index.run import IN_RAM, Batch, Run, UnencodedTerms

_PERSISTENT = 2


@attrs.frozen
class RemoteDelivered(Delivered):
    """Messages with the channel that settles them: a consumer has another one after its socket was lost."""

    through: Any = None
    size: int = 0
    """Bytes of the bodies."""


def fetched_of(vhost: str, event: Messages) -> Fetched:
    """Messages as they are taken from a queue. The ids are unknown: zeros."""
    method = event.method
    if not isinstance(method, c.Basic.Deliver | c.Basic.GetOk):
        raise TypeError(f"{method.name} delivers nothing")
    envelope = _envelope(vhost, method.exchange, method.routing_key, event.properties)
    count = len(event.bodies)
    ids = bytes(MSG_ID_BYTES * count)
    batch = Batch(count, ids, list(map(len, event.bodies)), 0, UnencodedTerms(envelope, ids, event.bodies))
    return Fetched(range(count), method.redelivered, Run(0, batch, 0, count, IN_RAM), None)


def got_of(answer: Any) -> list[Messages]:
    """The messages that answer a ``basic.get``, or a call of ``queue.get``. Raises what the call raised."""
    if isinstance(answer, Messages):
        return [answer]
    if isinstance(answer, c.Basic.GetEmpty):
        return []
    found = []
    for tag, redelivered, exchange, routing_key, properties, together in result_of(answer):
        bodies = unpacked(together)
        method = c.Basic.GetOk(tag, redelivered, _text(exchange), _text(routing_key), 0)
        found.append(Messages(0, method, list(range(tag, tag + len(bodies))), properties, bodies))
    return found


def _text(name: bytes) -> str:
    return name.decode(errors="surrogateescape")


def delivered_of(through: Any, vhost: str, event: Messages) -> Iterator[RemoteDelivered]:
    """Messages that came together, with consecutive tags each."""
    fetched = fetched_of(vhost, event)
    consumer = getattr(event.method, "consumer_tag", None)
    for offset, count in _stretches(event.tags):
        part = fetched if count == fetched.count else fetched.part(offset, count)
        size = sum(map(len, event.bodies[offset : offset + count]))
        yield RemoteDelivered(consumer, through.name, event.tags[offset], part, through, size)


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
