"""Messages as quorum queues keep them: their msg_id is empty, and in an export null."""

from __future__ import annotations

import base64
import json

import pytest

from tests.support.quorum_commands import basic_message, p_basic
from warren.queue_index.message.message_format import (
    Envelope,
    decode_message,
    encode_message,
    locate_body,
    locate_parts,
)
from warren.queue_index.properties import Properties, encode_properties
from warren.salvage.envelopes import Envelopes
from warren.salvage.export import Exporter
from warren.salvage.json_lines import JsonLines
from warren.salvage.queue_directory import Finding, StoredMessage
from warren.storage.erlang_terms import Term, encode
from warren.storage.errors import MessageError

MSG_ID = bytes(range(16))
PROPERTIES = encode_properties(Properties(delivery_mode=2))
ENVELOPE = Envelope(b"/", b"", (b"orders",), PROPERTIES, persistent=True)


def without_id(body: bytes, key: bytes = b"orders") -> bytes:
    return encode(basic_message([body] if body else [], encoded=PROPERTIES, key=key))


@pytest.mark.parametrize("body", [b"", b"abc", bytes(1000)], ids=["empty", "short", "long"])
def test_a_message_without_an_id_is_the_same_as_with_one(body: bytes) -> None:
    with_id = decode_message(encode_message(ENVELOPE, MSG_ID, body))
    found = decode_message(without_id(body))
    assert found.msg_id == b""
    assert (found.body, found.properties, found.routing_keys) == (
        with_id.body,
        with_id.properties,
        with_id.routing_keys,
    )
    assert found.persistent


def test_a_message_without_an_id_whose_properties_stand_decoded() -> None:
    found = decode_message(encode(basic_message([b"abc"], p_basic(expiration=b"60000"))))
    assert (found.msg_id, found.body) == (b"", b"abc")


def test_an_id_is_16_bytes_or_none() -> None:
    term = encode_message(ENVELOPE, MSG_ID, b"abc")
    shorter = term.replace(b"m\0\0\0\x10" + MSG_ID, b"m\0\0\0\x0f" + MSG_ID[:15])
    assert shorter != term
    with pytest.raises(MessageError):
        decode_message(shorter)


def test_the_place_of_a_body_is_told_with_and_without_an_id() -> None:
    term = without_id(b"abc")
    at = term.index(b"abc")
    assert locate_parts(term) == (at - 41, 3, at, 3, at + 9, 0)
    assert locate_body(term) is None, "whoever asks for it wants the id, too"
    term = encode_message(ENVELOPE, MSG_ID, b"abc")
    assert locate_parts(term) == (at - 41, 3, at, 3, at + 9, 16)
    assert locate_body(term) == (at, 3, at + 9)


def test_a_body_that_looks_like_the_end_of_a_message_misleads_nobody() -> None:
    end = without_id(b"x")[-20:]
    for term in (without_id(end), encode_message(ENVELOPE, MSG_ID, end)):
        assert decode_message(term).body == end
        assert Envelopes().split(term)[1] == end


def test_templates_with_and_without_an_id_are_not_taken_for_each_other() -> None:
    envelopes = Envelopes()
    for number in range(1, 30):
        body = b"j" + b"m\0\0\0\x10" * number
        for term in (without_id(body), encode_message(ENVELOPE, MSG_ID, body), without_id(body, b"k")):
            envelope, found = envelopes.split(term)
            assert bytes(found) == body
            assert envelope == Envelopes().split(term)[0]
    assert len(envelopes._templates) == 3


def test_an_export_says_null_in_place_of_an_id() -> None:
    lines: list[bytes | bytearray] = []
    findings: list[Finding] = []
    exporter = Exporter(JsonLines(lines.append), findings.append)
    messages = [
        StoredMessage(1, b"", True, True, False, 0, without_id(b"abc"), "log", 0, 2),
        StoredMessage(2, MSG_ID, True, False, True, 5, encode_message(ENVELOPE, MSG_ID, b"abc"), "log", 0, None),
    ]
    exporter.messages(b"/", b"orders", messages)
    one, two = [json.loads(line) for line in b"".join(lines).splitlines()]
    assert not findings
    assert (one["msg_id"], one["delivery_count"], one["expiry_us"], one["redelivered"]) == (None, 2, None, True)
    assert (two["msg_id"], two["expiry_us"], two["acked"]) == (MSG_ID.hex(), 5, True)
    assert base64.b64decode(one["body"]) == base64.b64decode(two["body"]) == b"abc"


def test_a_term_that_is_no_message_stays_none() -> None:
    term: Term = [b""]
    with pytest.raises(MessageError):
        decode_message(encode(term))
