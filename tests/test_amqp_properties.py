"""AMQP's properties and headers: as bytes, as the broker keeps them decoded, as JSON; invalid ones are refused."""

from __future__ import annotations

import json
import struct
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warren.queue_index.message.amqp_tables import LongInteger, LongString, SingleFloat, Timestamp, UnsignedInteger
from warren.queue_index.properties import (
    Properties,
    decode_properties,
    encode_properties,
    properties_from_term,
    to_json,
)
from warren.storage.erlang_terms import Atom, Term
from warren.storage.errors import MessageError

UNDEFINED = Atom("undefined")


def with_header(value: bytes) -> bytes:
    """Properties with one header ``k``, whose value has this encoding."""
    return b"\x20\0" + struct.pack(">I", 2 + len(value)) + b"\1k" + value


VALUES = {
    "t": (b"t\2", True),
    "b": (b"b\xff", -1),
    "B": (b"B\xff", 255),
    "s": (b"s\xff\xff", -1),
    "u": (b"u\xff\xff", 65535),
    "I": (b"I\xff\xff\xff\xff", -1),
    "i": (b"i\xff\xff\xff\xff", UnsignedInteger(4294967295)),
    "l": (b"l" + b"\xff" * 8, LongInteger(-1)),
    "L": (b"L" + b"\xff" * 8, LongInteger(-1)),
    "f": (b"f\x3f\xc0\0\0", SingleFloat(1.5)),
    "d": (b"d\x3f\xb9\x99\x99\x99\x99\x99\x9a", 0.1),
    "D": (b"D\2\xff\xff\xff\xfb", Decimal("-0.05")),
    "D, the largest scale": (b"D\xff\0\0\0\5", Decimal("5E-255")),
    "S": (b"S\0\0\0\2\xc3\xa9", "é"),
    "S, not UTF-8": (b"S\0\0\0\1\xff", LongString(b"\xff")),
    "x": (b"x\0\0\0\1a", b"a"),
    "T": (b"T" + b"\xff" * 8, Timestamp((1 << 64) - 1)),
    "V": (b"V", None),
    "A": (b"A\0\0\0\3Vt\0", [None, False]),
    "F": (b"F\0\0\0\4\1at\1", {"a": True}),
}


@pytest.mark.parametrize(("encoded", "value"), VALUES.values(), ids=VALUES)
def test_every_type_of_header_is_read_as_its_own_python_type(encoded: bytes, value: Any) -> None:
    properties = decode_properties(with_header(encoded))
    assert properties.headers == {"k": value}
    assert type(properties.headers["k"]) is type(value)
    again = decode_properties(encode_properties(properties))
    assert again == properties
    assert again.headers is not None
    assert type(again.headers["k"]) is type(value)


KINDS: list[tuple[str, Term, Any]] = [
    ("longstr", b"text", "text"),
    ("longstr", b"\xff", {"base64": "/w=="}),
    ("binary", b"\xff", {"base64": "/w=="}),
    ("signedint", -1, -1),
    ("unsignedint", 1 << 31, 1 << 31),
    ("short", -1, -1),
    ("unsignedshort", 65535, 65535),
    ("byte", -1, -1),
    ("unsignedbyte", 255, 255),
    ("long", 1 << 40, 1 << 40),
    ("bool", False, False),
    ("timestamp", 1 << 40, 1 << 40),
    ("float", 1.5, 1.5),
    ("double", 0.1, 0.1),
    ("decimal", (2, 1234), "12.34"),
    ("decimal", (2, (1 << 32) - 5), "-0.05"),
    ("array", [(Atom("long"), 1), (Atom("void"), UNDEFINED)], [1, None]),
    ("table", [(b"a", Atom("table"), [])], {"a": {}}),
    ("void", UNDEFINED, None),
]


def p_basic(headers: Term = UNDEFINED, timestamp: Term = UNDEFINED, content_type: Term = UNDEFINED) -> Term:
    unset = (UNDEFINED,)
    return (Atom("P_basic"), content_type, UNDEFINED, headers, 2, *unset * 5, timestamp, *unset * 4)


@pytest.mark.parametrize(("kind", "value", "said"), KINDS, ids=[f"{kind}-{value!r}" for kind, value, _ in KINDS])
def test_every_type_of_decoded_header_is_read(kind: str, value: Term, said: Any) -> None:
    properties = properties_from_term(p_basic([(b"k", Atom(kind), value)]))
    assert to_json(properties) == ({"delivery_mode": 2}, {"k": said})


@pytest.mark.parametrize(
    "term",
    [
        p_basic(b"headers"),
        p_basic([(b"k", Atom("longstr"))]),
        p_basic([(b"k", Atom("longstr"), 1)]),
        p_basic([(b"k", Atom("long"), True)]),
        p_basic([(b"k", Atom("long"), 1 << 63)]),
        p_basic([(b"k", Atom("decimal"), (256, 1))]),
        p_basic([(b"k", Atom("timestamp"), -1)]),
        p_basic([(b"k", Atom("quaternion"), 1)]),
        p_basic([(b"k", Atom("array"), [b"x"])]),
        p_basic(timestamp=1.5),
        p_basic(content_type=Atom("text")),
        (Atom("P_basic"),),
        b"",
    ],
    ids=str,
)
def test_a_decoded_property_of_a_wrong_type_is_refused(term: Term) -> None:
    with pytest.raises(MessageError):
        properties_from_term(term)


def test_all_properties_survive_and_empty_ones_are_set() -> None:
    properties = Properties(
        content_type="text/plain", content_encoding="", headers={}, delivery_mode=2, priority=255, correlation_id="c",
        reply_to="r", expiration="60000", message_id=b"\xff", timestamp=(1 << 33) + 1, type="t", user_id="guest",
        app_id="ж", cluster_id="x" * 255,
    )  # fmt: skip
    assert decode_properties(encode_properties(properties)) == properties
    said, headers = to_json(properties)
    assert said["timestamp"] == 8589934593
    assert said["message_id"] == {"base64": "/w=="}
    assert said["content_encoding"] == ""
    assert "headers" not in said
    assert headers == {}


def test_the_two_flags_without_a_meaning_are_ignored_as_the_broker_does() -> None:
    assert decode_properties(b"\x10\x03\x02") == Properties(delivery_mode=2)


def test_a_date_is_written_as_a_timestamp() -> None:
    properties = Properties(headers={"when": datetime(2024, 2, 29, 12, tzinfo=UTC)})
    assert decode_properties(encode_properties(properties)).headers == {"when": 1709208000}
    assert to_json(properties)[1] == {"when": 1709208000}


def test_names_and_numbers_that_json_lacks_are_said_as_text() -> None:
    properties = decode_properties(b"\x20\0\0\0\0\x0b\1\xffd\x7f\xf0\0\0\0\0\0\0")
    assert to_json(properties)[1] == {"\\xff": "inf"}
    assert encode_properties(properties) == b"\x20\0\0\0\0\x0b\1\xffd\x7f\xf0\0\0\0\0\0\0"


BAD_PROPERTIES = {
    "nothing": b"",
    "half a flag word": b"\0",
    "bytes behind them": b"\0\0x",
    "an octet that is missing": b"\x10\0",
    "a string that is missing": b"\x80\0",
    "a string longer than the data": b"\x80\0\5abc",
    "a timestamp cut short": b"\0\x40" + bytes(7),
    "a table longer than the data": b"\x20\0\xff\xff\xff\xff",
    "a name that runs out of its table": b"\x20\0\0\0\0\2\5aV",
    "a name without a value": b"\x20\0\0\0\0\2\1a",
    "a value that runs out of its table, not of the data": b"\x30\0\0\0\0\3\1aB\2\2",
    "an unknown type": with_header(b"?"),
    "an integer cut short": with_header(b"l\0"),
    "a string in a header, longer than the data": with_header(b"S\xff\xff\xff\xffx"),
    "an array longer than its table": with_header(b"A\0\0\0\2V"),
    "tables nested without end": b"\x20\0" + b"\0\x0f\xff\xff\1kF" * 100_000,
    "arrays nested without end": with_header(b"A\0\x0f\xff\xff" * 100_000 + bytes(1 << 20)),
}


@pytest.mark.parametrize("data", BAD_PROPERTIES.values(), ids=BAD_PROPERTIES)
def test_bytes_that_are_no_properties_are_refused(data: bytes) -> None:
    with pytest.raises(MessageError):
        decode_properties(data)


def test_tables_are_read_as_deep_as_they_are_written() -> None:
    def nested(levels: int) -> Properties:
        headers: dict[str, Any] = {}
        for _ in range(levels):
            headers = {"k": headers}
        return Properties(headers=headers)

    deep = nested(64)
    assert decode_properties(encode_properties(deep)) == deep
    with pytest.raises(MessageError, match="deeper than 64"):
        encode_properties(nested(65))


@pytest.mark.parametrize(
    "properties",
    [
        Properties(content_type="x" * 256),
        Properties(content_type="\ud800"),
        Properties(message_id=5),  # type: ignore[arg-type]
        Properties(delivery_mode=256),
        Properties(priority="high"),  # type: ignore[arg-type]
        Properties(timestamp=-1),
        Properties(timestamp=1.5),  # type: ignore[arg-type]
        Properties(headers=[]),  # type: ignore[arg-type]
        Properties(headers={"k" * 256: None}),
        Properties(headers={7: None}),  # type: ignore[dict-item]
        Properties(headers={"k": 1 << 63}),
        Properties(headers={"k": {1}}),  # type: ignore[dict-item]
        Properties(headers={"k": Decimal("NaN")}),
        Properties(headers={"k": Decimal("1E+999999")}),
        Properties(headers={"k": Decimal("1E-999999")}),
        Properties(headers={"k": Decimal("12345678901234567890")}),
        Properties(headers={"k": Timestamp(-1)}),
    ],
    ids=lambda properties: repr(to_short(properties)),
)
def test_a_value_that_has_no_place_in_the_properties_is_refused(properties: Properties) -> None:
    with pytest.raises(MessageError):
        encode_properties(properties)


def to_short(properties: Properties) -> str:
    return ", ".join(
        f"{name}={value!r:.30}" for name, value in attrs.asdict(properties, recurse=False).items() if value is not None
    )


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)
HEADER_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.floats(allow_nan=False)
    | TEXT
    | st.binary(max_size=10)
    | st.integers(0, (1 << 64) - 1).map(Timestamp)
    | st.builds(
        lambda unscaled, scale: Decimal(unscaled).scaleb(-scale),
        st.integers(-(1 << 31), (1 << 31) - 1),
        st.integers(0, 9),
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(TEXT, HEADER_VALUES, max_size=4), st.integers(0, (1 << 64) - 1), TEXT)
def test_properties_survive_writing_and_reading(headers: dict[str, Any], timestamp: int, text: str) -> None:
    properties = Properties(headers=headers, timestamp=timestamp, message_id=text)
    again = decode_properties(encode_properties(properties))
    assert again == properties
    json.dumps(to_json(again), allow_nan=False)


@given(st.binary(max_size=60), st.booleans())
def test_random_bytes_are_read_as_properties_or_refused(data: bytes, as_header: bool) -> None:
    try:
        properties = decode_properties(with_header(data) if as_header else data)
    except MessageError:
        return
    encode_properties(properties)
    json.dumps(to_json(properties), allow_nan=False)
