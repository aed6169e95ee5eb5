"""The encoded message: what RabbitMQ keeps of a message, in the index's records and in the store's files.

It is one Erlang term (:mod:`warren.storage.erlang_terms`)::

    {basic_message, Exchange, [RoutingKey], Content, MsgId, IsPersistent}
        Exchange = {resource, VHost, exchange, Name}
        Content  = {content, 60, none, Properties, rabbit_framing_amqp_0_9_1, [Fragment]}      as it was published
                 | {content, 60, {'P_basic', …}, none, none, [Fragment]}                       changed by the broker

and nearly every one has the *plain shape*: properties as bytes, one routing key, at most one fragment. Everything but
the body and its id is the same for all messages of one publisher, so it is cut once into a *template*::

    131 {basic_message, {resource, <vhost>, exchange, <exchange>}, [<routing key>],     ┐
        {content, 60, none, <properties>, rabbit_framing_amqp_0_9_1,                    ┘ head
            [ u32 1 · <body: u32 size · bytes> ]      or [] where the body is empty
        }, <msg_id: 16 bytes>, true | false }

In a quorum queue a message has no id: its msg_id is an empty binary.

Messages that have their own properties each are passed as *contents*: the properties and the body, as they stand in the
message, in one piece (:func:`content_of`).

Writing fills a template in; reading walks a plain one by its lengths, and leaves every other shape to the general
decoder. A body longer than a frame carries comes in *fragments*, the last one first.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import attrs

from warren.queue_index.properties import Properties, decode_properties, encode_properties, properties_from_term
from warren.storage.erlang_terms import Atom, Term, decode, encode
from warren.storage.errors import MessageError, TermError
from warren.storage.pieces import Piece, Whole, whole

if TYPE_CHECKING:
    from warren.queue_index.message.message_containers import Container

T = TypeVar("T")

MSG_ID_BYTES: Final = 16

MAX_FRAGMENT_BYTES: Final = 131_064
"""A frame of 131,072 bytes less its own 8: the broker's default, and so the longest fragment that clients send it."""

_MAX_DEPTH = 160
"""Each level of a header's table takes two levels of the term; AMQP's tables are read to 64."""

_U32 = struct.Struct(">I")
_BINARY, _LIST, _NIL = b"m", b"l", b"j"


def _atom(name: str) -> bytes:
    return encode(Atom(name))[1:]


# The constants of the plain shape, in their order; in between stand a length and as many bytes each.
_TO_VHOST = b"\x83h\x06" + _atom("basic_message") + b"h\x04" + _atom("resource") + _BINARY
_TO_EXCHANGE = _atom("exchange") + _BINARY
_ONE_ELEMENT = _LIST + _U32.pack(1) + _BINARY
_TO_PROPERTIES = _NIL + b"h\x06" + _atom("content") + b"a\x3c" + _atom("none") + _BINARY
_TO_FRAGMENTS = _atom("rabbit_framing_amqp_0_9_1")
TO_BODY: Final = _TO_FRAGMENTS + _ONE_ELEMENT
"""The bytes between the properties and the length of a body that is one fragment."""
_TAIL = _NIL + _BINARY + _U32.pack(MSG_ID_BYTES)
_TAIL_WITHOUT_ID = _NIL + _BINARY + _U32.pack(0)
_PERSISTENT, _TRANSIENT = _atom("true"), _atom("false")

LENGTH_BYTES: Final = 4
"""The size of a length, which precedes the bytes that it counts."""

# From the start of a constant to the start of the bytes whose length follows it.
_ELEMENT_START = len(_ONE_ELEMENT) + 4


class _Constants(NamedTuple):
    """Those that hold atoms, as one generation of Erlang writes them."""

    to_vhost: bytes
    vhost_start: int
    """From the start of the constant to the start of the bytes whose length follows it."""
    to_exchange: bytes
    exchange_start: int
    to_properties: bytes
    properties_start: int
    to_fragments: bytes
    fragments_start: int
    ends: dict[bytes, bool]
    """What follows the msg_id, and whether the message is persistent then."""
    ends_without_id: dict[bytes, bool]
    """The same with the empty id that messages of quorum queues have."""

    @classmethod
    def of(cls, rewritten: Callable[[bytes], bytes]) -> _Constants:
        ends = {rewritten(_PERSISTENT): True, rewritten(_TRANSIENT): False}
        without_id = {_BINARY + _U32.pack(0) + end: persistent for end, persistent in ends.items()}
        to_vhost, to_exchange, to_properties, to_fragments = map(
            rewritten, (_TO_VHOST, _TO_EXCHANGE, _TO_PROPERTIES, _TO_FRAGMENTS)
        )
        return cls(
            to_vhost, len(to_vhost) + 4, to_exchange, len(to_exchange) + 4, to_properties, len(to_properties) + 4,
            to_fragments, len(to_fragments), ends, without_id,
        )  # fmt: skip


_ATOMS_IN_IT = (
    "basic_message",
    "resource",
    "exchange",
    "content",
    "none",
    "rabbit_framing_amqp_0_9_1",
    "true",
    "false",
)


def _in_utf8(constant: bytes) -> bytes:
    """With atoms as OTP 26 and later write them: tag 119 and one byte of length."""
    for name in _ATOMS_IN_IT:
        constant = constant.replace(_atom(name), b"w" + bytes([len(name)]) + name.encode())
    return constant


_BY_ATOM_TAG: Final = {b"d": _Constants.of(bytes), b"w": _Constants.of(_in_utf8)}
_ATOM_TAG: Final = slice(3, 4)
"""The tag of a term's first atom: after the version and the tuple's head."""


@attrs.frozen
class Template:
    """An encoded message without its body and its id.

    With a body of one fragment it is ``head + u32 size + body + tail + msg_id + end``, without one
    ``empty_head + tail + msg_id + end``; of an envelope of contents ``head + content + tail + msg_id + end``.
    """

    empty_head: bytes
    head: bytes
    tail: bytes
    end: bytes


@attrs.frozen(slots=False, cache_hash=True)  # slots would leave no room for the cached template
class Envelope:
    """All of a message except its body and its id; hashable, so that many messages can share one."""

    vhost: bytes
    exchange: bytes
    routing_keys: tuple[bytes, ...]
    """The message's own key first, then the keys of its headers CC and BCC; at least one."""
    properties: bytes
    """AMQP's basic properties, encoded (:func:`warren.queue_index.properties.encode_properties`)."""
    persistent: bool
    of_contents: bool = False
    """Whether each message has its own properties: contents are passed then instead of bodies."""

    @functools.cached_property
    def template(self) -> Template:
        """What its encoded messages have in common; raises :class:`MessageError` without a routing key."""
        if not self.routing_keys:
            raise MessageError("a message without a routing key")
        parts = [_TO_VHOST, _counted(self.vhost), _TO_EXCHANGE, _counted(self.exchange)]
        parts += [_list_of(self.routing_keys), _TO_PROPERTIES]
        end = _PERSISTENT if self.persistent else _TRANSIENT
        if self.of_contents:
            head = b"".join(parts)
            return Template(empty_head=head, head=head, tail=_TAIL, end=end)
        empty_head = b"".join([*parts, _counted(self.properties), _TO_FRAGMENTS])
        return Template(empty_head=empty_head, head=empty_head + _ONE_ELEMENT, tail=_TAIL, end=end)

    @functools.cached_property
    def made_persistent(self) -> Envelope:
        """The envelope of the same messages, stored as persistent ones whatever their properties say."""
        return self if self.persistent else attrs.evolve(self, persistent=True)

    def with_content(self, content: bytes) -> tuple[Envelope, bytes]:
        """The envelope and the body of a message by itself, of an envelope of contents."""
        envelope = Envelope(self.vhost, self.exchange, self.routing_keys, properties_in(content), self.persistent)
        return envelope, content[body_at_in(content) :]

    def bodies_bytes(self, given: Sequence[bytes]) -> int:
        """Return the total size of the bodies; ``given``: the bodies that go with the envelope, or contents."""
        if self.of_contents:
            return sum(max(len(content) - body_at_in(content), 0) for content in given)
        return sum(map(len, given))


@attrs.frozen
class Message:
    """A decoded message."""

    msg_id: bytes
    """16 bytes, or none."""
    vhost: bytes
    exchange: bytes
    routing_keys: tuple[bytes, ...]
    properties: Properties
    body: bytes
    persistent: bool
    """As the publisher set it, whatever the queue."""
    counted_bytes: int | None = None
    """The size of the body according to the broker, if that is not its length: with AMQP 1.0."""
    encoded_properties: bytes | None = attrs.field(default=None, eq=False)
    """The properties as they stand in the decoded term, if it has them as bytes; in a container, if nothing else in it
    changes them."""


# ── writing ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def encode_message(envelope: Envelope, msg_id: bytes, body: bytes) -> bytes:
    """One encoded message; raises :class:`MessageError` for a ``msg_id`` that is not 16 bytes long."""
    return _encoded(envelope, msg_id, (body,), b"".join)[0]


def encode_many(envelope: Envelope, msg_ids: bytes, bodies: Sequence[bytes]) -> list[bytes]:
    """The encoded messages of ``bodies``, whose ids (16 bytes each) follow one another in ``msg_ids``.

    Raises :class:`MessageError` unless there are as many ids as bodies.
    """
    return _encoded(envelope, msg_ids, bodies, b"".join)


def encode_without_id(envelope: Envelope, body: bytes) -> bytes:
    """A message without an id, as quorum queues have them; raises :class:`MessageError` without a routing key."""
    template = envelope.template
    if 0 < len(body) <= MAX_FRAGMENT_BYTES:
        return b"".join((template.head, _counted(body), _TAIL_WITHOUT_ID, template.end))
    return b"".join((template.empty_head, *_fragments(body), _TAIL_WITHOUT_ID, template.end))


def encode_in_pieces(envelope: Envelope, msg_ids: bytes, bodies: Sequence[bytes]) -> list[Whole]:
    """:func:`encode_many`; a large message is not copied together, but left in pieces."""
    return _encoded(envelope, msg_ids, bodies, whole)


def _encoded(
    envelope: Envelope, msg_ids: bytes, bodies: Sequence[bytes], joined: Callable[[Sequence[Piece]], T]
) -> list[T]:
    """``joined``: what becomes of a message's pieces; the first and the last are small."""
    if len(msg_ids) != MSG_ID_BYTES * len(bodies):
        raise MessageError(f"{len(msg_ids)} bytes of ids for {len(bodies)} bodies")
    template = envelope.template
    head, tail, end = template.head, template.tail, template.end
    pack = _U32.pack
    terms = []
    position = 0
    for body in bodies:
        next_position = position + MSG_ID_BYTES
        behind = tail + msg_ids[position:next_position] + end
        position = next_position
        if envelope.of_contents:
            terms.append(joined((head, body, behind)))
        elif 0 < len(body) <= MAX_FRAGMENT_BYTES:
            terms.append(joined((head + pack(len(body)), body, behind)))
        else:
            terms.append(joined((template.empty_head, *_fragments(body), behind)))
    return terms


CONTENT_OVERHEAD_BYTES: Final = 4 + len(TO_BODY) + 4
"""The size of a content without its properties and its body."""


def content_of(properties: bytes, body: bytes) -> bytes:
    """A message's encoded properties and its body as one piece; the body is at most ``MAX_FRAGMENT_BYTES`` long."""
    if not body:
        return b"".join((_U32.pack(len(properties)), properties, _TO_FRAGMENTS))
    return b"".join((_U32.pack(len(properties)), properties, TO_BODY, _U32.pack(len(body)), body))


def properties_in(content: bytes) -> bytes:
    """The properties of a content."""
    return content[4 : 4 + _U32.unpack_from(content)[0]]


def properties_sizes(contents: Sequence[bytes]) -> list[int]:
    """Bytes of the properties of each content."""
    return [size for (size,) in map(_U32.unpack_from, contents)]


def body_at_in(content: bytes) -> int:
    """Return the offset at which the body begins in a content. It runs to the end, and may be empty."""
    return CONTENT_OVERHEAD_BYTES + int(_U32.unpack_from(content)[0])


def _fragments(body: bytes) -> list[Piece]:
    """A body's fragments as a list without its end, in pieces to be joined; none for an empty body."""
    starts = range(0, len(body), MAX_FRAGMENT_BYTES)
    pieces: list[Piece] = [_LIST + _U32.pack(len(starts))] if body else []
    view = memoryview(body)
    for start in reversed(starts):
        fragment = view[start : start + MAX_FRAGMENT_BYTES]
        pieces += (_BINARY + _U32.pack(len(fragment)), fragment)
    return pieces


def _list_of(binaries: Sequence[bytes]) -> bytes:
    """A list of binaries without its end; nothing for an empty one, which is only an end."""
    if not binaries:
        return b""
    return _LIST + _U32.pack(len(binaries)) + b"".join([_BINARY + _counted(binary) for binary in binaries])


def _counted(data: bytes) -> bytes:
    return _U32.pack(len(data)) + data


# ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class _Plain(NamedTuple):
    """Where the parts of a term in the plain shape begin and end: offsets in it."""

    vhost: int
    vhost_end: int
    exchange: int
    exchange_end: int
    routing_key: int
    routing_key_end: int
    properties: int
    properties_end: int
    body: int
    body_end: int
    msg_id: int
    end: int
    persistent: bool


def decode_message(term: bytes) -> Message:
    """Return the message that ``term`` holds; raise :class:`MessageError` if it is not a message."""
    plain = _locate(term)
    if plain is None:
        return _General.of(term).message()
    encoded = term[plain.properties : plain.properties_end]
    return Message(
        term[plain.msg_id : plain.end],
        term[plain.vhost : plain.vhost_end],
        term[plain.exchange : plain.exchange_end],
        (term[plain.routing_key : plain.routing_key_end],),
        decode_properties(encoded),
        term[plain.body : plain.body_end],
        plain.persistent,
        None,
        encoded,
    )


def given_in(term: bytes) -> tuple[Envelope, bytes]:
    """Return an envelope and a body or content that together make the same message, but for its id.

    Messages of the plain shape that differ in properties and bodies only have equal envelopes. Raises
    :class:`MessageError` if ``term`` is not a message.
    """
    plain = _locate(term)
    if plain is None:
        general = _General.of(term)
        message = general.message()
        encoded = general.encoded if isinstance(general.encoded, bytes) else encode_properties(message.properties)
        envelope = Envelope(message.vhost, message.exchange, message.routing_keys, encoded, message.persistent)
        return envelope, message.body
    envelope = Envelope(
        term[plain.vhost : plain.vhost_end],
        term[plain.exchange : plain.exchange_end],
        (term[plain.routing_key : plain.routing_key_end],),
        b"",
        plain.persistent,
        of_contents=True,
    )
    return envelope, term[plain.properties - LENGTH_BYTES : plain.body_end]


def locate_body(term: bytes) -> tuple[int, int, int] | None:
    """Return offset and length of the body, and the offset of the msg_id, in a term of the plain shape, or ``None``.

    Also ``None`` if there is no msg_id.
    """
    located = locate_parts(term)
    if located is None or not located.msg_id_bytes:
        return None
    return located.body_at, located.body_bytes, located.msg_id_at


def payload_bytes(term: bytes) -> int:
    """Return the payload's length in an encoded message, or the length of ``term`` if it is not a message."""
    if (located := locate_body(term)) is not None:
        return located[1]
    try:
        return len(decode_message(term).body)
    except MessageError:
        return len(term)


def addresses_of(term: bytes) -> bytes | None:
    """Return the beginning of a term of the plain shape, up to the length of its properties: its addresses. Terms with
    the same beginning have their properties at the same place (:func:`locate_content`). ``None``: another shape."""
    plain = _locate(term)
    return None if plain is None else term[: plain.properties - LENGTH_BYTES]


class Parts(NamedTuple):
    """Where what differs between the messages of one publisher stands in a term of the plain shape."""

    properties_at: int
    properties_bytes: int
    body_at: int
    body_bytes: int
    msg_id_at: int
    msg_id_bytes: int
    """16 or 0."""


def locate_parts(term: bytes) -> Parts | None:
    """``None``: the term is not of the plain shape."""
    plain = _locate(term)
    if plain is None:
        return None
    return Parts(
        plain.properties, plain.properties_end - plain.properties, plain.body, plain.body_end - plain.body,
        plain.msg_id, plain.end - plain.msg_id,
    )  # fmt: skip


class Addresses(NamedTuple):
    """The parts of a plain term, without its id: its addresses, its properties, and where its body is."""

    exchange: bytes
    routing_key: bytes
    properties: bytes
    body_at: int
    body_end: int


def locate_addresses(term: bytes) -> Addresses | None:
    """``None``: the term is not of the plain shape."""
    plain = _locate(term)
    if plain is None:
        return None
    return Addresses(
        term[plain.exchange : plain.exchange_end],
        term[plain.routing_key : plain.routing_key_end],
        term[plain.properties : plain.properties_end],
        plain.body,
        plain.body_end,
    )


def message_facts(term: bytes) -> tuple[bytes, bool]:
    """Return the msg_id (empty if missing) and whether the message is persistent; decode only if the end does not show.

    Raises :class:`MessageError` if ``term`` is not a message.
    """
    constants = _BY_ATOM_TAG.get(term[_ATOM_TAG])
    if constants is not None and term.startswith(constants.to_vhost):
        for end, is_persistent in constants.ends_without_id.items():
            if term.endswith(end):
                return b"", is_persistent
    message = decode_message(term)
    return message.msg_id, message.persistent


def _locate(term: bytes) -> _Plain | None:
    """The parts of ``term``, or ``None`` if it is not of the plain shape.

    Lengths are not checked against the data: a wrong one leads to a place without the expected constant.
    """
    constants = _BY_ATOM_TAG.get(term[_ATOM_TAG])
    if constants is None:
        return None
    to_vhost, vhost, to_exchange, exchange_start, to_properties, properties_start, *_ = constants
    u32_at, starts_with = _U32.unpack_from, term.startswith
    try:
        vhost_end = vhost + u32_at(term, vhost - 4)[0]
        exchange = vhost_end + exchange_start
        exchange_end = exchange + u32_at(term, exchange - 4)[0]
        routing_key = exchange_end + _ELEMENT_START
        routing_key_end = routing_key + u32_at(term, routing_key - 4)[0]
    except struct.error:
        return None
    properties = routing_key_end + properties_start
    if (
        starts_with(to_vhost)
        and starts_with(to_exchange, vhost_end)
        and starts_with(_ONE_ELEMENT, exchange_end)
        and starts_with(to_properties, routing_key_end)
        and (content := locate_content(term, properties)) is not None
    ):
        return _Plain(vhost, vhost_end, exchange, exchange_end, routing_key, routing_key_end, properties, *content)
    return None


class Content(NamedTuple):
    """Where the parts after a plain term's addresses begin and end; and whether the message is persistent."""

    properties_end: int
    body: int
    body_end: int
    msg_id: int
    end: int
    persistent: bool


def locate_content(term: bytes, properties: int) -> Content | None:
    """The parts of a plain term whose encoded properties begin at ``properties``; ``None``: its shape is another."""
    constants = _BY_ATOM_TAG.get(term[_ATOM_TAG])
    if constants is None:
        return None
    u32_at, starts_with = _U32.unpack_from, term.startswith
    try:
        properties_end = properties + u32_at(term, properties - 4)[0]
        body = body_end = properties_end + constants.fragments_start
        if starts_with(_ONE_ELEMENT, body):
            body += _ELEMENT_START
            body_end = body + u32_at(term, body - 4)[0]
    except struct.error:
        return None
    msg_id = end = body_end + len(_TAIL)
    if starts_with(_TAIL, body_end):
        end += MSG_ID_BYTES
    elif not starts_with(_TAIL_WITHOUT_ID, body_end):
        return None
    persistent = constants.ends.get(term[end:])
    if persistent is None or not starts_with(constants.to_fragments, properties_end):
        return None
    return Content(properties_end, body, body_end, msg_id, end, persistent)


@attrs.frozen
class _General:
    """The parts of a message in any shape."""

    vhost: bytes
    exchange: bytes
    routing_keys: tuple[bytes, ...]
    decoded: Term
    encoded: Term
    fragments: list[bytes]
    msg_id: bytes
    persistent: bool
    container: Container | None = None
    """The container that the message was read from, if any."""

    @classmethod
    def of(cls, term: bytes) -> _General:
        """Raises :class:`MessageError` if ``term`` has not the shape of a message."""
        try:
            decoded = decode(term, max_depth=_MAX_DEPTH)
        except TermError as error:
            raise MessageError(f"no message: {error}") from error
        match decoded:
            case (
                "basic_message",
                ("resource", bytes(vhost), "exchange", bytes(exchange)),
                list(keys),
                ("content", 60, properties, encoded, _, list(fragments)),
                bytes(msg_id),
                bool(persistent),
            ) if keys and len(msg_id) in (0, MSG_ID_BYTES):
                routing_keys = tuple(_binaries(keys, "routing keys"))
                return cls(
                    vhost, exchange, routing_keys, properties, encoded, _binaries(fragments, "body"), msg_id, persistent
                )
            case ("mc", str(protocol), data, dict(annotations)):
                from warren.queue_index.message.message_containers import read_container

                container = read_container(protocol, data, annotations)
                parts = (b"", container.exchange, container.routing_keys, b"", b"", [container.body], container.msg_id)
                return cls(*parts, container.persistent, container)
            case _:
                raise MessageError("a term that is no message")

    def message(self) -> Message:
        """Raises :class:`MessageError` if the properties, however they stand there, cannot be read."""
        encoded, counted_bytes, encoded_properties = self.encoded, None, None
        if self.container is not None:
            properties, counted_bytes = self.container.properties, self.container.payload_bytes
            encoded_properties = self.container.encoded_properties
        elif isinstance(encoded, bytes):
            properties, encoded_properties = decode_properties(encoded), encoded
        else:
            properties = properties_from_term(self.decoded)
        body = b"".join(reversed(self.fragments))
        if counted_bytes == len(body):
            counted_bytes = None
        return Message(
            self.msg_id, self.vhost, self.exchange, self.routing_keys, properties, body, self.persistent, counted_bytes,
            encoded_properties,
        )  # fmt: skip


def _binaries(elements: list[Term], what: str) -> list[bytes]:
    binaries = [element for element in elements if isinstance(element, bytes)]
    if len(binaries) != len(elements):
        raise MessageError(f"{what} that are not binaries")
    return binaries


def encoded_properties_of(encoded: bytes, message: Message) -> bytes:
    """Return the properties as they stand in an encoded message, which is ``message`` decoded: the very bytes, so that
    nothing is lost (the width of a number, a name that comes twice). If a broker had decoded them, they are encoded
    again; raises :class:`MessageError` if that is impossible."""
    before, behind = _around_properties(message.vhost, message.exchange, message.routing_keys, message.persistent)
    if encoded.startswith(before):
        start = len(before) + 4
        end = start + int.from_bytes(encoded[start - 4 : start])
        if encoded.startswith(behind, end):
            return encoded[start:end]
    return message.encoded_properties or encode_properties(message.properties)


@functools.lru_cache(maxsize=1024)
def _around_properties(
    vhost: bytes, exchange: bytes, routing_keys: tuple[bytes, ...], persistent: bool
) -> tuple[bytes, bytes]:
    """Return what precedes the properties' length, and what follows the properties, in such an encoded message."""
    empty_head = Envelope(vhost, exchange, routing_keys, b"", persistent).template.empty_head
    before, _, behind = empty_head.rpartition(bytes(4))
    return before, behind
