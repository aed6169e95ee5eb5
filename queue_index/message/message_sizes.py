"""What a broker counts for a message: an estimate of its metadata, and the bytes of its payload.

=================  ====================================================  ============================================
message            metadata                                              payload
=================  ====================================================  ============================================
AMQP 0-9-1         the encoded properties, or 100 for each header of     the body
                   decoded ones
AMQP 1.0, 4.x      100 if it has annotations                             the bare message with its footer
AMQP 1.0, 3.13     nothing                                               the bytes of its data
MQTT               the topic, and the properties that can be long        the payload
=================  ====================================================  ============================================

:mod:`warren.queue_index.message.message_containers` describes the forms. A payload is an *iolist*: a binary, or a list
of binaries and such lists.
"""

from __future__ import annotations

from typing import Final

from warren.storage.erlang_terms import ImproperList, Term
from warren.storage.errors import TermError

HEADER_ESTIMATE_BYTES: Final = 100
ANNOTATIONS_ESTIMATE_BYTES: Final = 100


def properties_bytes(decoded: Term, encoded: Term) -> int:
    """What AMQP 0-9-1's properties count."""
    if isinstance(encoded, bytes):
        return len(encoded)
    match decoded:
        case ("P_basic", _, _, list(headers), *_):
            return HEADER_ESTIMATE_BYTES * len(headers)
        case _:
            return 0


def content_sizes(content: Term) -> tuple[int, int]:
    """Of AMQP 0-9-1's content: metadata and payload. Raises :class:`TermError` for something else."""
    match content:
        case ("content", _, decoded, encoded, _, payload):
            return properties_bytes(decoded, encoded), iolist_size(payload)
        case _:
            raise TermError("a message without content")


def container_sizes(protocol: str, data: Term) -> tuple[int, int]:
    """Of what a container of that protocol holds: metadata and payload. Raises :class:`TermError`."""
    match protocol, data:
        case "mc_amqpl", ("content", *_):
            return content_sizes(data)
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
    """Return the bytes of the properties that can be long."""
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
    """Return the bytes of an iolist; raise :class:`TermError` for anything else."""
    size = 0
    rest: list[Term] = [payload]
    while rest:
        element = rest.pop()
        if isinstance(element, bytes):
            size += len(element)
        elif isinstance(element, list):
            rest += element
        elif isinstance(element, ImproperList):
            rest += (*element.elements, element.tail)
        elif type(element) is int and 0 <= element < 256:
            size += 1
        else:
            raise TermError("a payload that is not made of bytes")
    return size
