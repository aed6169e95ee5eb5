"""The message container: what a broker keeps of a message from 3.13 on, whatever protocol it came by.

::

    {mc, Protocol, Data, Annotations}          3.13 where the feature flag message_containers is on, and every 4.x
        mc_amqpl    {content, 60, …}           AMQP 0-9-1: as in a basic_message, properties encoded or decoded
        mc_amqp     {v1, MessageAnnotations, Bare, PropertiesAt, ApplicationPropertiesAt, BodyAt, BodyCode}
                                               AMQP 1.0, 4.x: annotations decoded, the bare message and the footer as
                                               they came, and where in them its sections begin ([]: no such section)
                    {msg, Header, DeliveryAnnotations, MessageAnnotations, Properties, ApplicationProperties, Body,
                     Footer}                   AMQP 1.0, 3.13: all of it decoded
        mc_mqtt     {mqtt_msg, Retain, QoS, Topic, Dup, PacketId, Payload, Properties, Timestamp}
    Annotations = #{x => Exchange, rk => [RoutingKey], id => MsgId, d => false, p => Priority, ts => Milliseconds,
                    rts => …, ttl => Milliseconds, deaths => …, <<"x-…">> => …}

A container is read as the message that a broker would deliver over AMQP 0-9-1: of AMQP 1.0 see
:mod:`warren.queue_index.message.amqp10_messages`; and whatever the protocol, the annotations are added:

* ``deaths`` becomes the header x-death (a list, the last death first; in 3.13 also ``{deaths, First, Last, #{{Queue,
  Reason} => Death}}``); binaries under ``x-…`` that are an integer, a binary or a boolean become headers, so do
  ``x-first-death-…`` and ``x-last-death-…``; ``timestamp_in_ms`` too. They come before headers of the same names.
  If there are headers at all, they are then in the order of their names.
* ``ts`` is the timestamp; without it there is no timestamp. ``ttl`` is the expiration; if it is ``undefined``, the
  broker took the expiration away.
* priority and delivery_mode are ``p`` and ``d``, if the message itself does not say them.

No vhost is in it; ``id`` is missing where no classic queue wrote it; ``d`` is false only in a transient message.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import attrs

from warren.queue_index.message import amqp10
from warren.queue_index.message.amqp10_messages import (
    MOST_SHORT_BYTES,
    Amqp10Message,
    Death,
    Header,
    body_of,
    converted,
    death_table,
    is_short_text,
    of_sections,
    seconds,
)
from warren.queue_index.message.amqp_tables import long_string, text
from warren.queue_index.message.message_sizes import container_sizes
from warren.queue_index.properties import Properties, decode_properties, properties_from_term
from warren.storage.erlang_terms import Term
from warren.storage.errors import MessageError

MSG_ID_BYTES: Final = 16

_MAX_IODATA_DEPTH: Final = 64


@attrs.frozen
class Container:
    """A container's message, without the vhost, which a container does not have."""

    msg_id: bytes
    """16 bytes; empty if it has no id."""
    exchange: bytes
    routing_keys: tuple[bytes, ...]
    properties: Properties
    body: bytes
    persistent: bool
    payload_bytes: int
    """The body's size according to the broker, in an index too: with AMQP 1.0 not the body's length."""
    encoded_properties: bytes | None
    """As they stand in it, if the annotations do not change them."""


@attrs.frozen
class _Content:
    """What a protocol makes of its data."""

    properties: Properties
    """Without headers."""
    headers: list[Header] | None
    """Of equal names the first one counts; ``None``: not set."""
    body: bytes
    encoded: bytes | None = None
    """The encoded properties with the headers, if they stand there like this."""
    published: Properties | None = None
    """What :attr:`encoded` says."""


def read_container(protocol: str, data: Term, annotations: Mapping[Term, Term]) -> Container:
    """The message in ``{mc, Protocol, Data, Annotations}``; raises :class:`MessageError`."""
    match protocol:
        case "mc_amqpl":
            content = _amqpl(data)
        case "mc_amqp":
            content = _amqp(data)
        case "mc_mqtt":
            content = _mqtt(data)
        case _:
            raise MessageError(f"a message of the protocol {protocol!r:.100}, which is not known")
    exchange, keys = annotations.get("x", b""), annotations.get("rk", [b""])
    msg_id, persistent = annotations.get("id", b""), annotations.get("d", True)
    if msg_id == "undefined":
        msg_id = b""
    if not (isinstance(exchange, bytes) and isinstance(msg_id, bytes) and isinstance(persistent, bool)):
        raise MessageError("a container whose annotations are not of their types")
    if len(msg_id) not in (0, MSG_ID_BYTES):
        raise MessageError(f"a container's id of {len(msg_id)} bytes")
    routing_keys = _binaries(keys, "routing keys")
    if not routing_keys:
        raise MessageError("a container without a routing key")
    properties = _annotated(content, annotations, persistent=persistent)
    _, payload_bytes = container_sizes(protocol, data)
    return Container(
        msg_id=msg_id,
        exchange=exchange,
        routing_keys=routing_keys,
        properties=properties,
        body=content.body,
        persistent=persistent,
        payload_bytes=payload_bytes,
        encoded_properties=content.encoded if properties == content.published else None,
    )


# ── the annotations ──────────────────────────────────────────────────────────────────────────────────────────────────


def _annotated(content: _Content, annotations: Mapping[Term, Term], *, persistent: bool) -> Properties:
    """Add the annotations to the properties."""
    properties = content.properties
    header_list: list[Header] = [*_annotation_headers(annotations), *_without_death(content.headers or [], annotations)]
    headers: dict[str, Any] | None = None if content.headers is None else {}
    if header_list:
        by_name: dict[bytes, Any] = {}
        for name, value in header_list:
            by_name.setdefault(name, value)
        headers = {name.decode("utf-8", "surrogateescape"): by_name[name] for name in sorted(by_name)}
    time_ms, ttl_ms, priority = annotations.get("ts"), annotations.get("ttl", False), annotations.get("p")
    expiration = properties.expiration
    if ttl_ms == "undefined":
        expiration = None
    elif isinstance(ttl_ms, int) and not isinstance(ttl_ms, bool):
        expiration = str(ttl_ms)
    mode = properties.delivery_mode
    return attrs.evolve(
        properties,
        headers=headers,
        timestamp=seconds(time_ms) % (1 << 64) if isinstance(time_ms, int) else None,
        expiration=expiration,
        priority=priority if properties.priority is None and isinstance(priority, int) else properties.priority,
        delivery_mode=2 if mode is None and persistent else mode,
    )


def _annotation_headers(annotations: Mapping[Term, Term]) -> Iterator[Header]:
    for name, value in annotations.items():
        if not isinstance(name, bytes):
            continue
        if name.startswith(b"x-"):
            if isinstance(value, bytes):
                yield name, long_string(value)
            elif isinstance(value, int):
                yield name, value
        elif name == b"timestamp_in_ms" and isinstance(value, int) and not isinstance(value, bool):
            yield name, value
    deaths = annotations.get("deaths")
    if deaths is not None:
        yield b"x-death", [death_table(death) for death in _deaths(deaths)]


def _without_death(headers: list[Header], annotations: Mapping[Term, Term]) -> list[Header]:
    return [header for header in headers if header[0] != b"x-death"] if "deaths" in annotations else headers


def _deaths(term: Term) -> list[Death]:
    """The deaths, the last one first."""
    match term:
        case ("deaths", _, _, dict(records)):
            dated_deaths = [_death(key, death) for key, death in records.items()]
            dated_deaths.sort(
                key=lambda dated_death: (dated_death[0], dated_death[1].queue, dated_death[1].reason), reverse=True
            )
        case list(records) if all(isinstance(record, tuple) and len(record) == 2 for record in records):
            dated_deaths = [_death(key, death) for key, death in records]
        case _:
            raise MessageError(f"{term!r:.100} in place of deaths")
    return [death for _, death in dated_deaths]


def _death(key: Term, death: Term) -> tuple[int, Death]:
    """Return the time of the last such death, and the death."""
    match key, death:
        case (bytes(queue), str(reason)), ("death", bytes(exchange), list(keys), int(count), dict(times)):
            first_time, last_time, ttl = times.get("first_time"), times.get("last_time"), times.get("ttl")
        case _:
            raise MessageError(f"{death!r:.100} in place of a death")
    if not (isinstance(first_time, int) and isinstance(last_time, int) and isinstance(ttl, int | None)):
        raise MessageError("a death without its times")
    routing_keys = _binaries(keys, "a death's routing keys")
    return last_time, Death(queue, reason.encode(), exchange, routing_keys, count, first_time, ttl)


# ── AMQP 0-9-1 ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _amqpl(data: Term) -> _Content:
    match data:
        case ("content", 60, decoded, encoded, _, list(fragments)):
            body = b"".join(reversed(_binaries(fragments, "a body")))
        case _:
            raise MessageError("an mc_amqpl that is no content")
    as_sent = encoded if isinstance(encoded, bytes) else None
    published = properties_from_term(decoded) if as_sent is None else decode_properties(as_sent)
    headers = None
    if published.headers is not None:
        headers = [(name.encode("utf-8", "surrogateescape"), value) for name, value in published.headers.items()]
    without = attrs.evolve(published, headers=None)
    return _Content(without, headers, body, as_sent, published)


# ── AMQP 1.0 ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _amqp(data: Term) -> _Content:
    match data:
        case ("v1", list(annotations), bytes(bare), _, _, int(body_at), int(code)) if 0 <= body_at <= len(bare):
            message = attrs.evolve(_bare(bare, body_at, code), annotations=_pairs(annotations))
        case ("msg", header, _, list(annotations), fields, list(application), body, list(_)):
            content, is_data = _decoded_body(body)
            message = Amqp10Message(
                header=_fields(header, "v1_0.header"),
                annotations=_pairs(annotations),
                properties=_fields(fields, "v1_0.properties"),
                application_properties=_pairs(application),
                body=content,
                is_data=is_data,
            )
        case _:
            raise MessageError("an mc_amqp of an unknown form")
    properties, headers = converted(message)
    return _Content(properties, headers or None, message.body)


def _bare(bare: bytes, body_at: int, code: int) -> Amqp10Message:
    """The bare message with its footer; a body that is not data is taken as it stands, the footer with it."""
    if code == amqp10.DATA:
        return of_sections(amqp10.read_sections(bare))
    return of_sections(amqp10.read_sections(bare[:body_at]), encoded_body=bare[body_at:])


def _decoded_body(body: Term) -> tuple[bytes, bool]:
    match body:
        case ("v1_0.amqp_value", value):
            return body_of([amqp10.Section(amqp10.VALUE, value)])
        case list(records):
            return body_of([_decoded_section(record) for record in records])
        case _:
            raise MessageError(f"{body!r:.100} in place of a body")


def _decoded_section(record: Term) -> amqp10.Section:
    match record:
        case ("v1_0.data", content):
            return amqp10.Section(amqp10.DATA, ("binary", _iodata(content)))
        case ("v1_0.amqp_sequence", list(elements)):
            return amqp10.Section(amqp10.SEQUENCE, ("list", elements))
        case _:
            raise MessageError(f"{record!r:.100} among a body's sections")


def _fields(record: Term, name: str) -> tuple[Term, ...]:
    """Return the fields of a record; empty if it is missing."""
    if record == "undefined":
        return ()
    if not isinstance(record, tuple) or not record or record[0] != name:
        raise MessageError(f"{record!r:.100} in place of a {name}")
    return record[1:]


def _pairs(terms: list[Term]) -> list[tuple[Term, Term]]:
    pairs = [(pair[0], pair[1]) for pair in terms if isinstance(pair, tuple) and len(pair) == 2]
    if len(pairs) != len(terms):
        raise MessageError(f"{terms!r:.100} in place of a map")
    return pairs


# ── MQTT ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _mqtt(data: Term) -> _Content:
    match data:
        case ("mqtt_msg", _, int(qos), _, _, _, payload, dict(props), _):
            body = _iodata(payload)
        case _:
            raise MessageError("an mc_mqtt that is no mqtt_msg")
    headers: list[Header] = []
    pairs = props.get("User-Property", [])
    for pair in pairs if isinstance(pairs, list) else []:
        match pair:
            case (bytes(name), bytes(value)) if len(name) <= MOST_SHORT_BYTES:
                headers.append((name, long_string(value)))
    correlation, content_type = props.get("Correlation-Data"), props.get("Content-Type")
    answer_to, lifetime_s = props.get("Response-Topic"), props.get("Message-Expiry-Interval")
    if isinstance(answer_to, bytes):
        headers.insert(0, (b"x-reply-to-topic", long_string(answer_to.replace(b"/", b".").replace(b"+", b"*"))))
    properties = Properties(
        content_type=_ascii(content_type),
        delivery_mode=2 if qos else 1,
        correlation_id=text(correlation) if is_short_text(correlation) else None,
        expiration=str(1000 * lifetime_s) if isinstance(lifetime_s, int) else None,
    )
    if isinstance(correlation, bytes) and properties.correlation_id is None:
        headers.insert(0, (b"x-correlation-id", long_string(correlation)))
    return _Content(properties, sorted(headers, key=lambda header: header[0]) or None, body)


def _ascii(term: Term | None) -> str | None:
    return term.decode() if isinstance(term, bytes) and len(term) <= MOST_SHORT_BYTES and term.isascii() else None


# ── terms ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _iodata(term: Term, depth_left: int = _MAX_IODATA_DEPTH) -> bytes:
    """A binary that may stand there in pieces."""
    match term:
        case bytes():
            return term
        case list() if depth_left:
            return b"".join([_iodata(part, depth_left - 1) for part in term])
        case int() if 0 <= term < 256:
            return bytes([term])
        case _:
            raise MessageError(f"{term!r:.100} in place of bytes")


def _binaries(term: Term, what: str) -> tuple[bytes, ...]:
    elements = term if isinstance(term, list) else [term]
    binaries = tuple([element for element in elements if isinstance(element, bytes)])
    if len(binaries) != len(elements):
        raise MessageError(f"{what} that are not binaries")
    return binaries
