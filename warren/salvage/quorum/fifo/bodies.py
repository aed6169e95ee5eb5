"""What a quorum queue reads of a message: its size, its time to live, its priority.

A message has one of two forms, which differ in the tuple's first element (their contents are described in
:mod:`warren.queue_index.message.message_format`)::

    {basic_message, Exchange, RoutingKeys, Content, MsgId, IsPersistent}
    {mc, Protocol, Data, Annotations}                                       from 3.13 on: a container

and the contents of a container depend on the protocol by which the message was published.
"""

from __future__ import annotations

from collections.abc import Mapping

from warren.queue_index.message.message_sizes import container_sizes, content_sizes
from warren.salvage.quorum.fifo.commands import Body
from warren.storage.erlang_terms import Atom, Term
from warren.storage.errors import TermError


def measure(message: Term, start: int, end: int) -> Body:
    """The message that lies in ``start`` … ``end`` of its entry.

    Raises :class:`TermError` if it is not a message, or one of an unknown protocol.
    """
    match message:
        case ("basic_message", _, _, ("content", _, properties, *_) as content, _, _):
            metadata_size, size = content_sizes(content)
            return Body(start, end, size, _expiration(properties), _priority(properties), metadata_size=metadata_size)
        case ("mc", Atom() as protocol, data, dict(annotations)):
            metadata_size, size = container_sizes(protocol, data)
            return Body(
                start,
                end,
                size,
                _natural(annotations, "ttl"),
                _natural(annotations, "p"),
                _natural(annotations, "delivery_count") or 0,
                metadata_size,
            )
        case bytes():
            return Body(start, end, len(message), None, None)
        case _:
            raise TermError("no message")


def _expiration(properties: Term) -> int | None:
    """A message's own time to live, if its properties are decoded; ``None`` also for a text that is not a number, which
    brokers reject."""
    match properties:
        case ("P_basic", _, _, _, _, _, _, _, bytes(digits), *_) if digits.isdigit() and len(digits) <= MAX_DIGITS:
            return int(digits)
    return None


MAX_DIGITS = 19
"""Of an expiration; a broker accepts ten."""


def _priority(properties: Term) -> int | None:
    match properties:
        case ("P_basic", _, _, _, _, priority, *_) if type(priority) is int and priority >= 0:
            return priority
    return None


def _natural(annotations: Mapping[Term, Term], name: str) -> int | None:
    value = annotations.get(Atom(name))
    return value if type(value) is int and value >= 0 else None
