"""What a quorum queue looks at in a message: its size, its time to live, its priority.

Two forms, told by the tuple's first element (inside they are :mod:`warren.queue_index.message_format`'s business)::

    {basic_message, Exchange, RoutingKeys, Content, MsgId, IsPersistent}
    {mc, Protocol, Data, Annotations}                                       from 3.13 on: a container

and what a container holds depends on the protocol that the message came in by. A payload is an *iolist*: a binary, a
list of them, or of lists of them.
"""

from __future__ import annotations

from collections.abc import Mapping

from warren.queue_index.message_format import HEADER_ESTIMATE_BYTES
from warren.queue_index.quorum.commands import Body
from warren.storage.erlang_terms import Atom, ImproperList, Term
from warren.storage.errors import TermError

ANNOTATIONS_ESTIMATE_BYTES = 100
"""What 4.x counts for the annotations of an AMQP 1.0 message, if there are any."""


def measure(message: Term, start: int, end: int) -> Body:
    """The message that lies in ``start`` … ``end`` of its entry.

    Raises :class:`TermError` for what is no message, or one of a protocol that is not known.
    """
    match message:
        case ("basic_message", _, _, ("content", _, properties, *_) as content, _, _):
            metadata_size, size = _content_sizes(content)
            return Body(start, end, size, _expiration(properties), _priority(properties), metadata_size=metadata_size)
        case ("mc", Atom() as protocol, data, dict(annotations)):
            metadata_size, size = _container_sizes(protocol, data)
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


def _content_sizes(content: Term) -> tuple[int, int]:
    """Of AMQP 0.9.1's content: what is counted for its properties, and its payload."""
    match content:
        case ("content", _, properties, encoded, _, payload):
            if isinstance(encoded, bytes):
                return len(encoded), iolist_size(payload)
            match properties:
                case ("P_basic", _, _, list(headers), *_):
                    return HEADER_ESTIMATE_BYTES * len(headers), iolist_size(payload)
            return 0, iolist_size(payload)
        case _:
            raise TermError("a message without content")


def _container_sizes(protocol: str, data: Term) -> tuple[int, int]:
    match protocol, data:
        case "mc_amqpl", ("content", *_):
            return _content_sizes(data)
        case "mc_amqp", ("v1", annotations, bytes(bare), *_):
            return ANNOTATIONS_ESTIMATE_BYTES if annotations else 0, len(bare)
        case "mc_amqp", ("msg", _, _, _, _, _, body, _):
            sections = body if isinstance(body, list) else []
            payloads = [section[1] for section in sections if _is_data(section)]
            return 0, sum(map(iolist_size, payloads))
        case "mc_mqtt", ("mqtt_msg", _, _, topic, _, _, payload, properties, *_):
            topic_size = len(topic) if isinstance(topic, bytes) else 0
            return topic_size + _mqtt_properties_size(properties), iolist_size(payload)
        case _:
            raise TermError(f"a message of a form of {protocol} that is not known")


def _is_data(section: Term) -> bool:
    return isinstance(section, tuple) and len(section) == 2 and section[0] == "v1_0.data"


def _mqtt_properties_size(properties: Term) -> int:
    """The bytes of those properties that can be long."""
    size = 0
    for name, value in properties.items() if isinstance(properties, dict) else ():
        match name, value:
            case (("Content-Type" | "Response-Topic" | "Correlation-Data"), bytes()):
                size += len(value)
            case "User-Property", list():
                for pair in value:
                    match pair:
                        case (bytes(key), bytes(word)):
                            size += len(key) + len(word)
    return size


def iolist_size(payload: Term) -> int:
    """Bytes of an iolist; raises :class:`TermError` for what is none."""
    size = 0
    rest: list[Term] = [payload]
    while rest:
        one = rest.pop()
        if isinstance(one, bytes):
            size += len(one)
        elif isinstance(one, list):
            rest += one
        elif isinstance(one, ImproperList):
            rest += (*one.elements, one.tail)
        elif type(one) is int and 0 <= one < 256:
            size += 1
        else:
            raise TermError("a payload that is not made of bytes")
    return size


def _expiration(properties: Term) -> int | None:
    """A message's own time to live, where it stands decoded; ``None`` too for what is no number, which no broker lets
    pass."""
    match properties:
        case ("P_basic", _, _, _, _, _, _, _, bytes(digits), *_) if digits.isdigit() and len(digits) <= MAX_DIGITS:
            return int(digits)
    return None


MAX_DIGITS = 19
"""Of an expiration; a broker takes ten."""


def _priority(properties: Term) -> int | None:
    match properties:
        case ("P_basic", _, _, _, _, priority, *_) if type(priority) is int and priority >= 0:
            return priority
    return None


def _natural(annotations: Mapping[Term, Term], name: str) -> int | None:
    value = annotations.get(Atom(name))
    return value if type(value) is int and value >= 0 else None
