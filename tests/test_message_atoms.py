"""Messages as later Erlangs write them: atoms in UTF-8, with a length of one byte."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.quorum_commands import basic_message
from warren.queue_index.message.message_format import (
    Envelope,
    decode_message,
    encode_message,
    locate_body,
    locate_parts,
    message_facts,
)
from warren.queue_index.properties import Properties, encode_properties
from warren.salvage.envelopes import Envelopes
from warren.storage.erlang_terms import decode, encode
from warren.storage.errors import MessageError

MSG_ID = bytes(range(16))
PROPERTIES = encode_properties(Properties(delivery_mode=2, headers={"n": 1}))
_ATOM = re.compile(rb"d\0([\4-\x20])(?=[a-z_0-9]+)")


def with_later_atoms(term: bytes) -> bytes:
    """Return ``term`` as OTP 26 writes it; it decodes to the same."""
    later = _ATOM.sub(lambda found: b"w" + found[1], term)
    assert later != term
    assert decode(later) == decode(term)
    return later


def encoded(body: bytes, *, persistent: bool = True) -> bytes:
    return encode_message(Envelope(b"/", b"logs", (b"orders",), PROPERTIES, persistent), MSG_ID, body)


@pytest.mark.parametrize("persistent", [True, False], ids=["persistent", "transient"])
@pytest.mark.parametrize("body", [b"", b"abc", bytes(70_000)], ids=["empty", "short", "long"])
def test_a_message_of_a_later_erlang_is_read_without_decoding_it_in_full(body: bytes, persistent: bool) -> None:
    term = encoded(body, persistent=persistent)
    later = with_later_atoms(term)
    assert decode_message(later) == decode_message(term)
    assert message_facts(later) == (MSG_ID, persistent)
    place = locate_body(later)
    assert place is not None
    at, size, id_at = place
    assert (later[at : at + size], later[id_at : id_at + 16]) == (body, MSG_ID)


@pytest.mark.parametrize("persistent", [True, False], ids=["persistent", "transient"])
def test_a_message_of_a_later_quorum_queue_is_read_by_its_end(persistent: bool) -> None:
    term = encode(basic_message([b"abc"], encoded=PROPERTIES, persistent=persistent))
    later = with_later_atoms(term)
    assert message_facts(later) == message_facts(term) == (b"", persistent)
    assert locate_parts(later) is not None


def test_messages_of_both_erlangs_in_one_queue_are_not_mixed_up() -> None:
    """A broker that was upgraded leaves such a queue."""
    envelopes = Envelopes()
    for number in range(6):
        body = b"body %d" % number
        for term in (encoded(body), with_later_atoms(encoded(body))):
            envelope, found = envelopes.split(term)
            assert bytes(found) == body
            assert envelope == Envelopes().split(term)[0]


@given(st.binary(max_size=40), st.data())
def test_a_damaged_message_of_a_later_erlang_is_refused_or_has_a_body(body: bytes, data: st.DataObject) -> None:
    term = bytearray(with_later_atoms(encoded(body)))
    term[data.draw(st.integers(0, len(term) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = decode_message(bytes(term))
    except MessageError:
        return
    assert len(found.body) <= len(term)
