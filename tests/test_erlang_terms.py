"""Erlang terms: what OTP 25 writes is read and written byte for byte; what is no term is refused, and refused soon."""

from __future__ import annotations

import struct
import zlib
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warren.storage.erlang_terms import (
    Atom,
    ImproperList,
    Opaque,
    Term,
    decode,
    decode_opaque,
    encode,
    node_of_pid,
    pid_key,
)
from warren.storage.errors import TermError

# term_to_binary of OTP 25
GOLDEN: list[tuple[Term, str]] = [
    (Atom("foo"), "83640003666F6F"),
    (Atom("é"), "83640001E9"),
    (Atom("日本"), "837706E697A5E69CAC"),
    (Atom("日" * 200), "83760258" + "E697A5" * 200),
    (0, "836100"),
    (255, "8361FF"),
    (256, "836200000100"),
    (-1, "8362FFFFFFFF"),
    (2147483647, "83627FFFFFFF"),
    (2147483648, "836E040000000080"),
    (-2147483648, "836280000000"),
    (-2147483649, "836E040101000080"),
    (1 << 64, "836E0900000000000000000001"),
    (-(1 << 64), "836E0901000000000000000001"),
    ((1 << 2040) - 1, "836EFF00" + "FF" * 255),
    (1.5, "83463FF8000000000000"),
    ((), "836800"),
    ((Atom("a"),), "83680164000161"),
    ([], "836A"),
    (list(b"abc"), "836B0003616263"),
    ([1, 256], "836C00000002610162000001006A"),
    ([97] * 65535, "836BFFFF" + "61" * 65535),
    ([97] * 65536, "836C00010000" + "6161" * 65536 + "6A"),
    (b"bin", "836D0000000362696E"),
    ((1,) * 256, "836900000100" + "6101" * 256),
    ([[]], "836C000000016A6A"),
    ({Atom("a"): 2, Atom("b"): 1}, "837400000002640001616102640001626101"),
    (ImproperList((1,), 2), "836C0000000161016102"),
    (ImproperList((7, 256), Atom("a")), "836C00000002610762000001006400" + "0161"),
    ([True, False, Atom("undefined")], "836C000000036400047472756564000566616C7365640009756E646566696E65646A"),
]
PID = "5864000D6E6F6E6F6465406E6F686F7374000000090000000000000000"


@pytest.mark.parametrize(("term", "encoded"), GOLDEN, ids=[encoded[:24] for _, encoded in GOLDEN])
def test_what_otp_25_writes_is_read_and_written_byte_for_byte(term: Term, encoded: str) -> None:
    data = bytes.fromhex(encoded)
    assert encode(term) == data
    assert decode(memoryview(data)) == term
    assert type(decode(data)) is type(term)


@pytest.mark.parametrize("data", [b"d\0\2ok", b"s\2ok", b"v\0\2ok", b"w\2ok"])
def test_an_atom_is_read_under_each_of_its_four_tags(data: bytes) -> None:
    assert decode(b"\x83" + data) == Atom("ok")


def test_booleans_are_bool_and_undefined_stays_an_atom() -> None:
    assert decode(b"\x83s\4true") is True
    undefined = decode(b"\x83s\x09undefined")
    assert isinstance(undefined, Atom)
    assert undefined == "undefined"


def test_a_pid_is_opaque_and_can_be_a_key_in_a_tuple() -> None:
    pid = decode(bytes.fromhex("83" + PID))
    assert isinstance(pid, Opaque)
    assert decode(encode(pid)) == pid
    assert decode(bytes.fromhex("83740000000168026D000000016B" + PID + "6101")) == {(b"k", pid): 1}


@pytest.mark.parametrize(
    ("key", "term"),
    [
        (b"l\0\0\0\1m\0\0\0\1xj", [b"x"]),
        (b"n\x08\0\1\1\1\1\1\1\1\1", 0x0101010101010101),
        (b"h\1a\1", (1,)),
        (b"h\1t\0\0\0\1ja\1", ({Opaque(b"j"): 1},)),
    ],
)
def test_a_maps_key_whose_hash_can_be_chosen_is_opaque_and_can_be_read(key: bytes, term: Term) -> None:
    data = b"\x83t\0\0\0\1" + key + b"a\1"
    mapping = decode(data)
    assert mapping == {Opaque(key): 1}
    assert encode(mapping) == data
    assert [decode_opaque(key) for key in cast("dict[Term, Term]", mapping)] == [term]


def pid(number: int, serial: int, node: str, creation: int) -> bytes:
    name = node.encode("latin-1")
    return b"Xd" + struct.pack(">H", len(name)) + name + struct.pack(">III", number, serial, creation)


PIDS_IN_ORDER = [
    pid(611, 0, "a@localhost", 9),
    pid(612, 0, "a@localhos", 9),
    pid(612, 0, "a@localhost", 8),
    pid(612, 0, "a@localhost", 9),
    pid(612, 0, "a@localhost\0", 1),
    pid(612, 0, "b@localhost", 1),
    pid(612, 0, "é@localhost", 1),
    pid(70_000, 0, "a@localhost", 1),
    pid(3, 1, "a@localhost", 1),
]


def test_keys_of_pids_sort_as_erlang_sorts_pids() -> None:
    """As ``lists:sort/1`` of OTP 25 says: serial, number, node, creation."""
    keys = [pid_key(one) for one in PIDS_IN_ORDER]
    assert sorted(keys) == keys
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("name", [b"d\0\2\xe9h", b"s\2\xe9h", b"v\0\3\xc3\xa9h", b"w\3\xc3\xa9h"])
def test_a_pids_key_is_the_same_under_each_tag_of_its_nodes_name(name: bytes) -> None:
    key = pid_key(b"X" + name + bytes(11) + b"\2")
    assert key == pid_key(pid(0, 0, "éh", 2))
    assert key == pid_key(b"g" + name + bytes(8) + b"\2"), "the form before OTP 23"
    assert node_of_pid(key) == "éh"


@pytest.mark.parametrize(
    "data", [b"", b"X", b"Xa\1", b"Xd\0\1n" + bytes(11), b"Xd\0\1n" + bytes(13), b"a\1", b"Xw\1\xff"]
)
def test_what_is_no_pid_has_no_key(data: bytes) -> None:
    with pytest.raises(TermError):
        pid_key(data)


def test_a_pid_of_the_older_form_is_read() -> None:
    old = decode(b"\x83gs\1n" + bytes(9))
    assert isinstance(old, Opaque)
    assert pid_key(old.encoded) == pid_key(b"Xs\1n" + bytes(12))


def test_a_large_state_is_read_in_time_in_proportion_to_its_size() -> None:
    messages: list[Term] = [ImproperList((index,), 1000) for index in range(1, 50_001)]
    term: Term = (Atom("rabbit_fifo"), (len(messages), [], messages), dict.fromkeys(range(1000), b""))
    assert decode(encode(term)) == term


COMPRESSED = bytes.fromhex("835000000326789CCB61606048C90512CC8949C9A3F4283D4A63D25900CF769FD3")


def test_a_compressed_term_is_read_within_its_bound() -> None:
    assert decode(COMPRESSED) == [b"abc"] * 100
    with pytest.raises(TermError, match="more than 805"):
        decode(COMPRESSED, max_inflated_bytes=805)


def test_a_bomb_that_claims_to_be_small_is_not_inflated_beyond_its_claim() -> None:
    bomb = zlib.compress(b"m" + struct.pack(">I", 1 << 26) + bytes(1 << 26))
    with pytest.raises(TermError, match="the size it claims"):
        decode(b"\x83P" + struct.pack(">I", 1000) + bomb)


HOSTILE = {
    "nothing": b"",
    "only a version": b"\x83",
    "another version": b"\x82a\1",
    "an unknown tag": b"\x83\xff",
    "a fun": b"\x83p\0\0\0\4",
    "bytes behind the term": b"\x83a\1\0",
    "a binary longer than the data": b"\x83m\xff\xff\xff\xffx",
    "a string longer than the data": b"\x83k\0\2x",
    "a length cut short": b"\x83m\0\0",
    "an integer cut short": b"\x83b\0\0\0",
    "a tuple of more elements than bytes": b"\x83i\xff\xff\xff\xffj",
    "a list of more elements than bytes": b"\x83l\xff\xff\xff\xffj",
    "a map of more pairs than bytes": b"\x83t\0\0\0\2a\1a\1",
    "a tail without elements": b"\x83l\0\0\0\0a\2",
    "a tail that is cut short": b"\x83l\0\0\0\1a\1m\0\0\0\2x",
    "a list that goes on in a string": b"\x83l\0\0\0\1a\1k\0\1x",
    "a list without an end": b"\x83l\0\0\0\1a\1",
    "a list that goes on in its tail": b"\x83l\0\0\0\1a\1l\0\0\0\1a\2j",
    "an atom that is not UTF-8": b"\x83w\1\xff",
    "a large bignum": b"\x83o\0\0\0\1\0\1",
    "a bignum cut short": b"\x83n\4\0\1\2",
    "a bignum with an unknown sign": b"\x83n\1\2\1",
    "a float that is not a number": b"\x83F\x7f\xf8\0\0\0\0\0\0",
    "a map with an invalid key": b"\x83t\0\0\0\1h\1\xffa\1",
    "a map with a key that is cut short": b"\x83t\0\0\0\1l\0\0\0\1m\0\0\0\2x",
    "a pid on a node without a name": b"\x83Xa\1" + bytes(12),
    "a reference of no words": b"\x83Z\0\0d\0\1n\0\0\0\0",
    "compressed, cut short": b"\x83P\0\0",
    "compressed, no zlib stream": b"\x83P\0\0\0\4abcd",
    "compressed, larger than it claims": b"\x83P\0\0\0\1" + zlib.compress(b"a\1"),
    "compressed, smaller than it claims": b"\x83P\0\0\0\3" + zlib.compress(b"a\1"),
    "compressed, bytes behind it": b"\x83P\0\0\0\2" + zlib.compress(b"a\1") + b"x",
    "compressed in compressed": b"\x83P\0\0\0\x0f" + zlib.compress(b"P\0\0\0\2" + zlib.compress(b"a\1")),
    "a million tuples, each in the one before": b"\x83" + b"h\1" * 1_000_000 + b"j",
    "a million lists, each in the one before": b"\x83" + b"l\0\0\0\1" * 1_000_000 + b"j" * 1_000_001,
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
def test_bytes_that_are_no_term_are_refused(data: bytes) -> None:
    with pytest.raises(TermError):
        decode(data)


def test_a_tail_counts_as_a_level() -> None:
    with pytest.raises(TermError, match="deeper than 3"):
        decode(b"\x83" + b"l\0\0\0\1a\1" + b"h\1" * 3 + b"j", max_depth=3)


def test_nesting_is_allowed_to_its_bound_and_no_further() -> None:
    def nested(levels: int) -> bytes:
        return b"\x83" + b"h\1" * levels + b"j"

    decode(nested(64))
    with pytest.raises(TermError, match="deeper than 64"):
        decode(nested(65))
    with pytest.raises(TermError, match="deeper than 3"):
        decode(nested(4), max_depth=3)


@pytest.mark.parametrize(
    "term",
    [
        None,
        "text",
        {1, 2},
        float("nan"),
        float("inf"),
        1 << 2040,
        Atom("a" * 256),
        ImproperList((), 1),
        ImproperList((1,), []),
    ],
)
def test_what_has_no_encoding_is_refused(term: Any) -> None:
    with pytest.raises(TermError):
        encode(term)


def test_a_list_that_holds_itself_is_refused() -> None:
    endless: list[Term] = []
    endless.append(endless)
    with pytest.raises(TermError, match="deeper"):
        encode(endless)


NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
ATOMS = NAMES.filter(lambda name: name not in ("true", "false")).map(Atom)
LEAVES = (
    ATOMS
    | st.booleans()
    | st.integers(-(1 << 80), 1 << 80)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.binary(max_size=20)
)
TERMS = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(ATOMS | st.binary(max_size=4), inner, max_size=3)
        | st.builds(ImproperList, st.lists(inner, min_size=1, max_size=2).map(tuple), LEAVES)
    ),
    max_leaves=12,
)


@given(TERMS)
def test_a_term_survives_writing_and_reading(term: Term) -> None:
    assert decode(encode(term)) == term


@given(st.binary(max_size=64))
def test_random_bytes_are_read_or_refused(data: bytes) -> None:
    read_or_refuse(b"\x83" + data)


@given(TERMS, st.data())
def test_a_term_with_a_changed_byte_is_read_or_refused(term: Term, data: st.DataObject) -> None:
    encoded = bytearray(encode(term))
    for _ in range(data.draw(st.integers(1, 3))):
        encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    read_or_refuse(bytes(encoded))


@given(TERMS, st.data())
def test_a_term_that_is_cut_short_is_refused(term: Term, data: st.DataObject) -> None:
    encoded = encode(term)
    with pytest.raises(TermError):
        decode(encoded[: data.draw(st.integers(0, len(encoded) - 1))])


def read_or_refuse(data: bytes) -> None:
    try:
        term = decode(data)
    except TermError:
        return
    assert decode(encode(term)) == term
