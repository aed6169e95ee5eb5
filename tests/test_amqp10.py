"""AMQP 1.0's values: written and read again; what is cut off or changed is refused, and never with another error.

The bytes in the first part stand in the protocol's specification (part 1) or are made by hand after it.
"""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warren.queue_index.message import amqp10
from warren.queue_index.message.amqp10 import (
    MAX_DEPTH,
    MOST_EMPTY_ELEMENTS,
    NULL,
    Section,
    encode_section,
    encode_value,
    read_sections,
    read_value,
)
from warren.storage.erlang_terms import Atom
from warren.storage.errors import MessageError

Value = Any

BY_HAND: list[tuple[str, Value]] = [
    ("40", NULL),
    ("41", True),
    ("42", False),
    ("5601", True),
    ("5600", False),
    ("43", ("uint", 0)),
    ("52ff", ("uint", 255)),
    ("7000000100", ("uint", 256)),
    ("44", ("ulong", 0)),
    ("5301", ("ulong", 1)),
    ("80ffffffffffffffff", ("ulong", 2**64 - 1)),
    ("50ff", ("ubyte", 255)),
    ("51ff", ("byte", -1)),
    ("600102", ("ushort", 258)),
    ("61fffe", ("short", -2)),
    ("5480", ("int", -128)),
    ("717fffffff", ("int", 2**31 - 1)),
    ("55ff", ("long", -1)),
    ("818000000000000000", ("long", -(2**63))),
    ("723fc00000", ("float", 1.5)),
    ("823ff8000000000000", ("double", 1.5)),
    ("7300000041", ("char", 65)),
    ("830000000000000005", ("timestamp", 5)),
    ("98" + "00" * 15 + "01", ("uuid", bytes(15) + b"\x01")),
    ("a0026162", ("binary", b"ab")),
    ("b0000000026162", ("binary", b"ab")),
    ("a1026162", ("utf8", b"ab")),
    ("b1000000026162", ("utf8", b"ab")),
    ("a3026162", ("symbol", b"ab")),
    ("b3000000026162", ("symbol", b"ab")),
    ("45", ("list", [])),
    ("c0020141", ("list", [True])),
    ("d0000000050000000141", ("list", [True])),
    ("c1050241a10161", ("map", [(True, ("utf8", b"a"))])),
    ("d1000000080000000241a10161", ("map", [(True, ("utf8", b"a"))])),
    ("e00402500102", ("array", "ubyte", [("ubyte", 1), ("ubyte", 2)])),
    ("f00000000700000002500102", ("array", "ubyte", [("ubyte", 1), ("ubyte", 2)])),
    ("e0020341", ("array", "boolean", [True, True, True])),
    ("7400000000", ("as_is", 0x74, bytes(4))),
    ("727f800000", ("as_is", 0x72, b"\x7f\x80\0\0")),
    ("827ff8000000000000", ("as_is", 0x82, b"\x7f\xf8" + bytes(6))),
    ("00a3016141", ("described", ("symbol", b"a"), True)),
    ("005370c0020141", ("described", ("ulong", 0x70), ("list", [True]))),
]


@pytest.mark.parametrize(("data", "value"), BY_HAND)
def test_what_the_specification_writes_is_read(data: str, value: Value) -> None:
    assert read_value(bytes.fromhex(data)) == value


def test_an_array_of_described_values_says_once_what_they_are() -> None:
    data = bytes.fromhex("e0070200a3016150") + b"\x07\x08"
    data = bytes([data[0], len(data) - 2]) + data[2:]
    kind = ("described", ("symbol", b"a"), "ubyte")
    elements = [("described", ("symbol", b"a"), ("ubyte", number)) for number in (7, 8)]
    assert read_value(data) == ("array", kind, elements)


REFUSED = {
    "nothing": b"",
    "an unknown constructor": b"\x46",
    "a boolean of 2": b"\x56\x02",
    "a string that is cut short": b"\xa1\x05ab",
    "a list without its count": b"\xc0\x00",
    "a list with an element across its end": b"\xc0\x02\x01\xa1\x01a",
    "a map with half a pair": b"\xc1\x02\x01\x41",
    "an array of more than there is": b"\xe0\x03\xff\x50\x01",
    "an array with something behind its elements": b"\xe0\x04\x01\x50\x01\x02",
    "an array without a constructor": b"\xe0\x01\x00",
    "an array with bytes behind elements that have none": b"\xe0\x03\x01\x41\x41",
    "bytes behind the value": b"\x40\x40",
    "a descriptor alone": b"\x00\x53\x70",
    "a u32 size that nothing follows": b"\xd0\xff\xff\xff\xff",
}


@pytest.mark.parametrize("data", REFUSED.values(), ids=REFUSED.keys())
def test_what_is_no_value_is_refused(data: bytes) -> None:
    with pytest.raises(MessageError):
        read_value(data)


def test_elements_without_bytes_are_bounded() -> None:
    def array(count: int) -> bytes:
        return b"\xf0" + struct.pack(">II", 5, count) + b"\x40"

    assert len(read_value(array(MOST_EMPTY_ELEMENTS))[2]) == MOST_EMPTY_ELEMENTS  # type: ignore[index,arg-type]
    with pytest.raises(MessageError):
        read_value(array(MOST_EMPTY_ELEMENTS + 1))
    many = array(MOST_EMPTY_ELEMENTS // 2)[1:] * 3
    with pytest.raises(MessageError):  # in all, not each
        read_value(b"\xf0" + struct.pack(">II", 5 + len(many), 3) + b"\xf0" + many)


@pytest.mark.parametrize("opened", [b"\x00", b"\x00\x40"], ids=["descriptors", "described"])
def test_values_may_not_be_nested_without_end(opened: bytes) -> None:
    with pytest.raises(MessageError, match="nested"):
        read_value(opened * 5000 + b"\x40" * 5001)


def test_lists_may_not_be_nested_without_end() -> None:
    def nested(levels: int) -> tuple[bytes, Value]:
        data: bytes = b"\x45"
        value: Value = ("list", [])
        for _ in range(levels - 1):
            data = b"\xd0" + struct.pack(">II", 4 + len(data), 1) + data
            value = ("list", [value])
        return data, value

    data, value = nested(MAX_DEPTH)
    assert read_value(data) == value
    assert read_value(encode_value(value)) == value
    data, value = nested(MAX_DEPTH + 1)
    with pytest.raises(MessageError, match="nested"):
        read_value(data)
    with pytest.raises(MessageError, match="nested"):
        encode_value(value)
    content = struct.pack(">II", 5, 0) + b"\x40"
    for _ in range(3000):
        content = struct.pack(">II", 5 + len(content), 1) + b"\xf0" + content
    with pytest.raises(MessageError, match="nested"):
        read_value(b"\xf0" + content)


# ── whatever there is ────────────────────────────────────────────────────────────────────────────────────────────────


def number(kind: str, low: int, high: int) -> st.SearchStrategy[Value]:
    edges = st.sampled_from([low, high - 1, 0, 127, 128 % high, 255 % high])
    return st.tuples(st.just(Atom(kind)), st.integers(low, high - 1) | edges)


BYTES = st.binary(max_size=12) | st.integers(250, 260).map(bytes)
SIGNED = {"byte": 7, "short": 15, "int": 31, "long": 63, "timestamp": 63}
UNSIGNED = {"ubyte": 8, "ushort": 16, "uint": 32, "ulong": 64, "char": 32}
LEAVES: dict[str, st.SearchStrategy[Value]] = {
    "null": st.just(NULL),
    "boolean": st.booleans(),
    "float": st.tuples(st.just(Atom("float")), st.floats(width=32, allow_nan=False, allow_infinity=False)),
    "double": st.tuples(st.just(Atom("double")), st.floats(allow_nan=False, allow_infinity=False)),
    "uuid": st.tuples(st.just(Atom("uuid")), st.binary(min_size=16, max_size=16)),
    **{kind: number(kind, -(1 << bits), 1 << bits) for kind, bits in SIGNED.items()},
    **{kind: number(kind, 0, 1 << bits) for kind, bits in UNSIGNED.items()},
    **{kind: st.tuples(st.just(Atom(kind)), BYTES) for kind in ("binary", "utf8", "symbol")},
}
AS_IS = st.sampled_from([(0x74, 4), (0x84, 8), (0x94, 16)]).flatmap(
    lambda one: st.tuples(st.just(Atom("as_is")), st.just(one[0]), st.binary(min_size=one[1], max_size=one[1]))
)
LEAF = st.one_of(*LEAVES.values(), AS_IS)
ARRAYS = st.sampled_from(sorted(LEAVES)).flatmap(
    lambda kind: st.tuples(st.just(Atom("array")), st.just(Atom(kind)), st.lists(LEAVES[kind], max_size=6))
)


def containers(values: st.SearchStrategy[Value]) -> st.SearchStrategy[Value]:
    return st.one_of(
        st.tuples(st.just(Atom("list")), st.lists(values, max_size=4)),
        st.tuples(st.just(Atom("map")), st.lists(st.tuples(values, values), max_size=3)),
        st.tuples(st.just(Atom("described")), LEAF, values),
        st.lists(st.tuples(st.just(Atom("list")), st.lists(values, max_size=2)), max_size=2).map(
            lambda lists: (Atom("array"), Atom("list"), lists)
        ),
    )


VALUES = st.recursive(LEAF | ARRAYS, containers, max_leaves=12)


@given(VALUES)
def test_what_is_written_is_read_again(value: Value) -> None:
    data = encode_value(value)
    assert read_value(data) == value
    assert encode_value(read_value(data)) == data


@given(VALUES, st.data())
def test_what_is_cut_off_is_refused(value: Value, data: st.DataObject) -> None:
    encoded = encode_value(value)
    with pytest.raises(MessageError):
        read_value(encoded[: data.draw(st.integers(0, len(encoded) - 1))])


@given(VALUES, st.data())
def test_what_has_changed_is_read_or_refused(value: Value, data: st.DataObject) -> None:
    encoded = bytearray(encode_value(value))
    for _ in range(data.draw(st.integers(1, 3))):
        encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = read_value(bytes(encoded))
    except MessageError:
        return
    encode_value(found)


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for read in (read_value, read_sections):
        try:
            read(data)
        except MessageError:
            continue


NO_VALUES: list[Value] = [
    ("uint", 1 << 32), ("byte", 128), ("uuid", b"short"), ("utf8", "text"), ("map", [1]), ("list", 5),
    ("array", "x", []), ("array", "uint", [("int", 1)]), ("array", ("described", NULL, "uint"), [1]),
    ("as_is", 0x74, b"abc"), ("as_is", 0x99, b""), ("strange", 1), ("double", b"x"), ("uint", 1.5),
    ("described",), ("boolean", 1), (), b"", 5, None,
]  # fmt: skip


@pytest.mark.parametrize("value", NO_VALUES, ids=repr)
def test_what_is_no_value_is_not_written(value: Value) -> None:
    with pytest.raises(MessageError):
        encode_value(value)


# ── sections ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_sections_are_known_by_number_and_by_name() -> None:
    said = ("list", [True])
    by_number = encode_section(amqp10.HEADER, said)
    wide = b"\x00\x80" + (0x70).to_bytes(8, "big") + encode_value(said)
    by_name = encode_value((Atom("described"), ("symbol", b"amqp:header:list"), said))
    assert by_number[:3] == b"\x00\x53\x70"
    assert read_sections(by_number + wide + by_name) == [Section(amqp10.HEADER, said)] * 3


@pytest.mark.parametrize(
    "data", [b"\x40", b"\x00\x53\x79\x40", b"\x00\x53\x6f\x40", b"\x00\xa3\x01a\x40", b"\x00\x40\x40"], ids=bytes.hex
)
def test_what_is_no_section_is_refused(data: bytes) -> None:
    with pytest.raises(MessageError):
        read_sections(data)
