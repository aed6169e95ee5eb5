"""A stream's records as consumers over AMQP 0-9-1 get them: each case is what RabbitMQ 3.10.8 delivered of it."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.stream_tools import compound, data, record, section, symbol, text
from warren.queue_index.message.amqp_tables import Timestamp
from warren.queue_index.message.message_format import Envelope, decode_message, encode_without_id
from warren.queue_index.properties import Properties, decode_properties, headers_as_written
from warren.salvage.streams.stream_records import read_record

NULL = b"\x40"
UUID = bytes(range(16))


def binary(value: bytes) -> bytes:
    return b"\xa0" + bytes([len(value)]) + value


def timestamp(time_ms: int) -> bytes:
    return b"\x83" + struct.pack(">q", time_ms)


def properties_of(sections: bytes) -> Properties:
    envelope, body = read_record(sections + data(b"body"), b"s")
    assert (envelope.exchange, envelope.routing_keys, body) == (b"", (b"s",), b"body")
    return decode_properties(envelope.properties)


def header_of(value: bytes) -> bytes:
    """Type and value of a header, as they stand in the properties."""
    envelope, _ = read_record(section(0x74, text(b"h"), value) + data(b""), b"s")
    (written,) = headers_as_written(envelope.properties).values()
    return bytes(written)


def test_a_message_without_sections_has_an_empty_table_and_the_streams_name_as_its_key() -> None:
    assert properties_of(b"") == Properties(headers={})


def test_all_properties_of_a_message_that_was_published_over_amqp_0_9_1() -> None:
    annotations = (symbol(b"x-routing-key"), text("kéy".encode()), symbol(b"x-exchange"), text(b"x"))
    basic = (symbol(b"x-basic-priority"), b"\x50\x07", symbol(b"x-basic-delivery-mode"), b"\x50\x02")
    fields = (
        *(text(b"mid"), binary(b"guest"), NULL, NULL, text(b"reply"), text(b"corr"), symbol(b"text/plain")),
        *(symbol(b"gzip"), NULL, timestamp(1_600_000_000_000)),
    )
    application = (text(b"x-basic-type"), text(b"type"), text(b"x-basic-app-id"), text(b"app"), text(b"n"), b"\x55\x05")
    envelope, body = read_record(
        section(0x72, *annotations, *basic, symbol(b"x-basic-expiration"), text(b"60000"))
        + section(0x73, *fields)
        + section(0x74, *application)
        + data(b"full"),
        b"s",
    )
    assert (envelope.exchange, envelope.routing_keys, envelope.persistent, body) == (
        *(b"x", ("kéy".encode(),), True, b"full"),
    )
    assert decode_properties(envelope.properties) == Properties(
        content_type="text/plain",
        content_encoding="gzip",
        headers={"n": 5},
        delivery_mode=2,
        priority=7,
        correlation_id="corr",
        reply_to="reply",
        expiration="60000",
        message_id="mid",
        timestamp=1_600_000_000,
        type="type",
        user_id="guest",
        app_id="app",
    )


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (text(b"x"), b"S\0\0\0\1x"),
        (text(b"\xff\0"), b"S\0\0\0\2\xff\0"),
        (b"\x55\xfb", b"l" + struct.pack(">q", -5)),
        (b"\x81" + struct.pack(">q", 1 << 40), b"l" + struct.pack(">q", 1 << 40)),
        (b"\x50\xc8", b"B\xc8"),
        (b"\x51\xfd", b"b\xfd"),
        (b"\x61\xfe\xd4", b"s\xfe\xd4"),
        (b"\x60\xea\x60", b"u\xea\x60"),
        (b"\x43", b"i\0\0\0\0"),
        (b"\x52\x07", b"i\0\0\0\7"),
        (b"\x70\xff\0\0\0", b"i\xff\0\0\0"),
        (b"\x54\xfe", b"I\xff\xff\xff\xfe"),
        (b"\x82" + struct.pack(">d", 1.5), b"d" + struct.pack(">d", 1.5)),
        (b"\x72" + struct.pack(">f", 2.5), b"f" + struct.pack(">f", 2.5)),
        (b"\x56\x01", b"t\1"),
        (b"\x42", b"t\0"),
        (binary(b"\1\2"), b"x\0\0\0\2\1\2"),
        (timestamp(1_600_000_000_999), b"T" + struct.pack(">Q", 1_600_000_000)),
        (timestamp(-1500), b"T" + struct.pack(">q", -1)),
        (NULL, b"V"),
    ],
)
def test_a_header_keeps_its_type(value: bytes, expected: bytes) -> None:
    assert header_of(value) == expected


@pytest.mark.parametrize(
    ("identity", "expected", "kind"),
    [
        (b"\x98" + UUID, "00010203-0405-0607-0809-0a0b0c0d0e0f", "uuid"),
        (b"\x53\x07", "7", "ulong"),
        (b"\x44", "0", "ulong"),
        (binary(b"\1\2\3"), "AQID", "binary"),
        (symbol(b"symbol"), "symbol", None),
    ],
)
def test_an_id_that_is_no_text_comes_as_one_with_its_type_in_a_header(
    identity: bytes, expected: str, kind: str | None
) -> None:
    properties = properties_of(section(0x73, identity, NULL, NULL, NULL, NULL, identity))
    assert (properties.message_id, properties.correlation_id) == (expected, expected)
    types = {} if kind is None else {"x-correlation-id-type": kind, "x-message-id-type": kind}
    assert properties.headers == types


def test_an_id_that_no_property_can_hold_is_a_header() -> None:
    properties = properties_of(section(0x73, text(b"L" * 256)))
    assert (properties.message_id, properties.headers) == (None, {"x-message-id": "L" * 256})


def test_headers_come_by_name_and_without_the_offset_of_an_earlier_stream() -> None:
    headers = (text(b"z"), b"\x55\x01", text(b"x-stream-offset"), b"\x55\x4d", text(b"a"), text(b"first"), text(b"m"))
    found = properties_of(section(0x74, *headers, b"\x41", text(b"a"), text(b"last"))).headers
    assert found is not None
    assert list(found.items()) == [("a", "last"), ("m", True), ("z", 1)]


def test_annotations_that_no_property_comes_from_are_dropped() -> None:
    assert properties_of(section(0x72, symbol(b"x-other"), text(b"dropped"))) == Properties(headers={})


def test_sections_may_stand_after_the_body() -> None:
    envelope, body = read_record(data(b"body") + section(0x74, text(b"after"), text(b"x")), b"s")
    assert (decode_properties(envelope.properties).headers, body) == ({"after": "x"}, b"body")


@pytest.mark.parametrize(
    ("sections", "expected"),
    [
        (b"\0\x53\x70" + compound(0xD0, b"\x41", b"\x50\x04") + data(b"b"), Properties(delivery_mode=2, priority=4)),
        (section(0x71, symbol(b"a"), text(b"v")) + data(b"b"), Properties()),
        (data(b"b") + section(0x78, symbol(b"a"), text(b"v")), Properties()),
        (section(0x74, text(b"k"), b"\x53\x05") + data(b"b"), Properties(headers={"k": 5})),
        (section(0x74, text(b"k"), compound(0xD0, text(b"v"))) + data(b"b"), Properties(headers={"k": ["v"]})),
    ],
    ids=["header", "delivery annotations", "footer", "unsigned", "list"],
)
def test_what_consumers_of_3_10_fail_at_is_read_as_later_brokers_do(sections: bytes, expected: Properties) -> None:
    envelope, body = read_record(sections, b"s")
    properties = decode_properties(envelope.properties)
    assert (properties.delivery_mode, properties.priority, properties.headers, body) == (
        *(expected.delivery_mode, expected.priority, expected.headers or {}, b"b"),
    )


def test_a_body_that_is_a_value_is_left_as_it_is_encoded() -> None:
    envelope, body = read_record(b"\0Sw" + text(b"v"), b"s")
    assert (decode_properties(envelope.properties).type, body) == ("amqp-1.0", b"\0Sw\xa1\x01v")


def test_sections_of_data_are_joined() -> None:
    assert read_record(data(b"one") + data(b"two"), b"s")[1] == b"onetwo"


def test_a_record_that_is_no_message_is_a_body() -> None:
    envelope, body = read_record(b"hello", b"s")
    assert (envelope.routing_keys, decode_properties(envelope.properties), body) == (
        *((b"s",), Properties(headers={}), b"hello"),
    )


def test_a_time_before_1970_and_one_that_wraps() -> None:
    none = (NULL,) * 9
    assert properties_of(section(0x73, *none, timestamp(-1500))).timestamp == (1 << 64) - 1
    headers = properties_of(section(0x74, text(b"t"), timestamp(5999))).headers
    assert headers is not None
    assert isinstance(headers["t"], Timestamp)


@given(st.binary(max_size=300), st.binary(max_size=20), st.binary(max_size=20))
def test_what_a_broker_writes_comes_back(body: bytes, key: bytes, exchange: bytes) -> None:
    envelope, found = read_record(record(body, key, exchange), b"s")
    assert (envelope.exchange, envelope.routing_keys, found) == (exchange, (key,), body)
    message = decode_message(encode_without_id(envelope, found))
    assert (message.msg_id, message.exchange, message.routing_keys, message.body) == (b"", exchange, (key,), body)


@given(st.binary(max_size=60))
def test_no_bytes_are_lost(content: bytes) -> None:
    read_record(b"\0Sr" + content, b"s")
    envelope, body = read_record(content, b"s")
    assert isinstance(envelope, Envelope)
    assert body in content or envelope.properties


LEAVES: Any = st.one_of(
    st.integers(-(1 << 63), (1 << 63) - 1).map(lambda number: b"\x81" + struct.pack(">q", number)),
    st.floats(allow_nan=False, allow_infinity=False).map(lambda number: b"\x82" + struct.pack(">d", number)),
    st.binary(max_size=300).map(text),
    st.sampled_from([b"\x41", b"\x42", NULL, b"\x43", b"\x44"]),
)


@given(st.lists(st.tuples(st.binary(max_size=20), LEAVES), max_size=6))
def test_every_header_has_its_name(headers: list[tuple[bytes, bytes]]) -> None:
    parts = [part for name, value in headers for part in (text(name), value)]
    found = properties_of(section(0x74, *parts)).headers or {}
    special = {b"x-stream-offset", b"x-basic-type", b"x-basic-app-id"}
    assert {name.encode("utf-8", "surrogateescape") for name in found} == {name for name, _ in headers} - special
