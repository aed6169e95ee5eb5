"""The encoded message: what a RabbitMQ 3.10.8 wrote is read, and written again byte for byte; the rest is refused.

``data/broker-messages.json`` holds terms out of a real broker's index, with what the broker itself then delivered.
"""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.effort import times
from warren.queue_index.message.message_format import (
    MAX_FRAGMENT_BYTES,
    Envelope,
    Message,
    content_of,
    decode_message,
    encode_in_pieces,
    encode_many,
    encode_message,
    locate_body,
    locate_parts,
)
from warren.queue_index.message.message_sizes import content_sizes
from warren.queue_index.properties import Properties, decode_properties, encode_properties, to_json
from warren.storage.erlang_terms import Atom, Term, decode, encode
from warren.storage.errors import MessageError
from warren.storage.pieces import LARGE_PIECE_BYTES, Pieces

GOLDEN: list[dict[str, Any]] = json.loads((Path(__file__).parent / "data" / "broker-messages.json").read_text("utf-8"))
MSG_ID = bytes(range(16))
PLAIN = Envelope(b"/", b"amq.direct", (b"orders",), encode_properties(Properties(delivery_mode=2)), persistent=True)
UNDEFINED = Atom("undefined")


def golden(what: str) -> bytes:
    return bytes.fromhex(next(message["term"] for message in GOLDEN if message["what"] == what))


def envelope_of(term: bytes) -> Envelope | None:
    """The envelope of a message whose properties stand encoded."""
    parts: Any = decode(term)
    _, (_, vhost, _, exchange), routing_keys, (*_, properties, _, _), _, persistent = parts
    if not isinstance(properties, bytes):
        return None
    return Envelope(vhost, exchange, tuple(routing_keys), properties, persistent)


# ── what a broker wrote ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("expected", GOLDEN, ids=[message["what"] for message in GOLDEN])
def test_a_brokers_message_is_read_as_the_broker_delivered_it(expected: dict[str, Any]) -> None:
    message = decode_message(bytes.fromhex(expected["term"]))
    assert message.vhost.decode() == expected["vhost"]
    assert message.exchange.decode() == expected["exchange"]
    assert [key.decode() for key in message.routing_keys] == expected["routing_keys"]
    assert message.persistent is expected["persistent"]
    assert hashlib.sha256(message.body).hexdigest() == expected["body_sha256"]
    assert len(message.body) == expected["body_size"]
    properties, headers = to_json(message.properties)
    assert headers == expected["properties"].get("headers")
    assert properties == {name: value for name, value in expected["properties"].items() if name != "headers"}
    json.dumps([properties, headers], allow_nan=False)


@pytest.mark.parametrize("expected", GOLDEN, ids=[message["what"] for message in GOLDEN])
def test_a_brokers_message_is_written_again_byte_for_byte(expected: dict[str, Any]) -> None:
    term = bytes.fromhex(expected["term"])
    message = decode_message(term)
    assert encode(decode(term)) == term
    envelope = envelope_of(term)
    if envelope is None:
        assert locate_body(term) is None
        return
    assert encode_message(envelope, message.msg_id, message.body) == term


@pytest.mark.parametrize("expected", GOLDEN, ids=[message["what"] for message in GOLDEN])
def test_a_brokers_properties_survive_writing_and_reading(expected: dict[str, Any]) -> None:
    properties = decode_message(bytes.fromhex(expected["term"])).properties
    assert decode_properties(encode_properties(properties)) == properties


def test_a_clients_properties_are_written_again_byte_for_byte() -> None:
    envelope = envelope_of(golden("published, every type of header"))
    assert envelope is not None
    assert encode_properties(decode_properties(envelope.properties)) == envelope.properties


def test_encoded_properties_count_by_their_bytes_and_decoded_ones_by_their_headers() -> None:
    def metadata_bytes(what: str) -> int:
        parts: Any = decode(golden(what))
        return content_sizes(parts[3])[0]

    assert metadata_bytes("published, one property") == 3
    with_cc = envelope_of(golden("published with CC"))
    assert with_cc is not None
    assert metadata_bytes("published with CC") == len(with_cc.properties)
    dead = decode_message(golden("dead twice")).properties.headers
    assert dead is not None
    assert metadata_bytes("dead twice") == 100 * len(dead)


# ── writing and locating ─────────────────────────────────────────────────────────────────────────────────────────────


def general(message: Message, properties: bytes, fragments: list[bytes]) -> bytes:
    """The encoded message by way of the general encoder."""
    content = (Atom("content"), 60, Atom("none"), properties, Atom("rabbit_framing_amqp_0_9_1"), fragments)
    resource = (Atom("resource"), message.vhost, Atom("exchange"), message.exchange)
    keys = list(message.routing_keys)
    return encode((Atom("basic_message"), resource, keys, content, message.msg_id, message.persistent))


@given(
    st.binary(max_size=9),
    st.binary(max_size=9),
    st.lists(st.binary(max_size=9), min_size=1, max_size=3),
    st.lists(st.binary(max_size=20), max_size=4),
    st.booleans(),
)
def test_a_template_writes_what_the_general_encoder_writes(
    vhost: bytes, exchange: bytes, keys: list[bytes], bodies: list[bytes], persistent: bool
) -> None:
    envelope = Envelope(vhost, exchange, tuple(keys), PLAIN.properties, persistent)
    msg_ids = hashlib.shake_128(b"ids").digest(16 * len(bodies))
    terms = encode_many(envelope, msg_ids, bodies)
    for n, (term, body) in enumerate(zip(terms, bodies, strict=True)):
        msg_id = msg_ids[16 * n : 16 * n + 16]
        message = Message(msg_id, vhost, exchange, tuple(keys), Properties(delivery_mode=2), body, persistent)
        assert decode_message(term) == message
        assert term == general(message, PLAIN.properties, [body] if body else [])
        place = locate_body(term)
        if len(keys) > 1:
            assert place is None
            continue
        assert place is not None
        offset, size, msg_id_offset = place
        assert term[offset : offset + size] == body
        assert term[msg_id_offset : msg_id_offset + 16] == msg_id


@pytest.mark.parametrize("size", [MAX_FRAGMENT_BYTES - 1, MAX_FRAGMENT_BYTES, MAX_FRAGMENT_BYTES + 1, 300_000])
def test_a_body_longer_than_a_frame_comes_in_fragments_the_last_one_first(size: int) -> None:
    body = hashlib.shake_128(b"body").digest(size)
    term = encode_message(PLAIN, MSG_ID, body)
    assert decode_message(term).body == body
    fragments = [body[start : start + MAX_FRAGMENT_BYTES] for start in range(0, size, MAX_FRAGMENT_BYTES)]
    assert term == general(decode_message(term), PLAIN.properties, fragments[::-1])
    assert (locate_body(term) is None) is (len(fragments) > 1)


def test_one_empty_fragment_is_an_empty_body() -> None:
    message = decode_message(encode_message(PLAIN, MSG_ID, b""))
    term = general(message, PLAIN.properties, [b""])
    assert decode_message(term) == message
    place = locate_body(term)
    assert place is not None
    assert place[1] == 0


def test_short_atoms_are_read_as_the_long_ones() -> None:
    term = golden("published, one property")
    short = term.replace(b"d\0\x0dbasic_message", b"s\x0dbasic_message").replace(b"d\0\4true", b"w\4true")
    assert len(short) == len(term) - 2
    assert locate_body(short) is None
    assert decode_message(short) == decode_message(term)


def test_ids_that_do_not_fit_the_bodies_are_refused() -> None:
    with pytest.raises(MessageError, match="31 bytes of ids for 2 bodies"):
        encode_many(PLAIN, bytes(31), [b"a", b"b"])


SIZES = st.sampled_from([0, 1, 4_000, 4_096, 20_000, MAX_FRAGMENT_BYTES, MAX_FRAGMENT_BYTES + 1, 400_000])


@settings(max_examples=times(40))
@given(st.lists(SIZES, max_size=5), st.booleans())
def test_messages_in_pieces_are_the_messages(sizes: list[int], of_contents: bool) -> None:
    envelope = attrs.evolve(PLAIN, of_contents=of_contents)
    bodies = [bytes((number,)) * size for number, size in enumerate(sizes)]
    if of_contents:
        bodies = [content_of(PLAIN.properties, body[:MAX_FRAGMENT_BYTES]) for body in bodies]
    ids = bytes(range(16)) * len(bodies)
    given = encode_in_pieces(envelope, ids, bodies)
    assert [bytes(message) for message in given] == encode_many(envelope, ids, bodies)
    assert [len(message) for message in given] == [len(bytes(message)) for message in given]
    for body, message in zip(bodies, given, strict=True):
        assert isinstance(message, Pieces) == (len(message) >= LARGE_PIECE_BYTES)
        if isinstance(message, Pieces) and len(body) <= MAX_FRAGMENT_BYTES:
            assert any(piece is body for piece in message.pieces), "the body was copied"


def test_a_message_without_a_routing_key_is_neither_written_nor_read() -> None:
    with pytest.raises(MessageError):
        encode_message(attrs.evolve(PLAIN, routing_keys=()), MSG_ID, b"")
    message = attrs.evolve(decode_message(encode_message(PLAIN, MSG_ID, b"")), routing_keys=())
    with pytest.raises(MessageError):
        decode_message(general(message, PLAIN.properties, []))


# ── what is no message ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("what", [message["what"] for message in GOLDEN])
def test_a_message_that_is_cut_short_is_refused(what: str) -> None:
    term = golden(what)
    for size in range(len(term)):
        with pytest.raises(MessageError):
            decode_message(term[:size])


@pytest.mark.parametrize(
    ("part", "wrong"),
    [
        (0, Atom("delivery")),
        (1, Atom("exchange")),
        (2, b"orders"),
        (2, [b"orders", 7]),
        (3, Atom("none")),
        (4, b"fifteen bytes .."[:15]),
        (5, Atom("undefined")),
    ],
)
def test_a_term_with_one_wrong_part_is_no_message(part: int, wrong: Term) -> None:
    parts: Any = list(decode(encode_message(PLAIN, MSG_ID, b"body")))  # type: ignore[arg-type]
    parts[part] = wrong
    with pytest.raises(MessageError):
        decode_message(encode(tuple(parts)))


def test_headers_as_deep_as_may_be_are_read_from_a_message() -> None:
    headers: list[Term] = []
    for _ in range(64):
        headers = [(b"k", Atom("table"), headers)]
    parts: Any = decode(golden("dead twice"))
    content = (*parts[3][:2], (Atom("P_basic"), *(UNDEFINED,) * 2, headers, *(UNDEFINED,) * 11), *parts[3][3:])
    message = decode_message(encode_deep((*parts[:3], content, *parts[4:])))
    assert message.properties.headers is not None


def encode_deep(term: Any) -> bytes:
    """The general encoder stops at 64 levels; tests want more."""
    if isinstance(term, tuple):
        return b"\x83h" + bytes([len(term)]) + b"".join(encode_deep(element)[1:] for element in term)
    if isinstance(term, list) and term:
        return b"\x83l" + struct.pack(">I", len(term)) + b"".join(encode_deep(element)[1:] for element in term) + b"j"
    return encode(term)


@settings(max_examples=times(300))
@given(st.sampled_from([message["term"] for message in GOLDEN]), st.data())
def test_a_message_with_changed_bytes_is_read_or_refused(term: str, data: st.DataObject) -> None:
    changed = bytearray.fromhex(term)
    for _ in range(data.draw(st.integers(1, 3))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    try:
        message = decode_message(bytes(changed))
    except MessageError:
        return
    assert len(message.msg_id) == 16
    json.dumps(to_json(message.properties), allow_nan=False)
    parts = locate_parts(bytes(changed))
    assert parts is None or parts.properties_bytes >= 2
