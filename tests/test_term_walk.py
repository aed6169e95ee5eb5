"""Where the parts of an encoded term lie: as the decoder reads them, and never beyond the bytes."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.quorum_commands import pid
from warren.storage.erlang_terms import Atom, ImproperList, Opaque, Term, decode, encode
from warren.storage.errors import TermError
from warren.storage.term_walk import parts, term_end

REFERENCE = Opaque(b"Z\0\2s\1n" + bytes(12))
LEAVES = (
    st.sampled_from([Atom("a"), Atom("日"), True, pid(1, node=b"s\3n@h"), REFERENCE, 1.5])
    | st.integers(-(1 << 80), 1 << 80)
    | st.binary(max_size=20)
)
TERMS = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.binary(max_size=3), inner, max_size=3)
        | st.builds(ImproperList, st.lists(inner, min_size=1, max_size=2).map(tuple), LEAVES)
    ),
    max_leaves=12,
)


@given(TERMS, st.binary(max_size=5))
def test_a_term_ends_where_it_ends_whatever_is_behind_it(term: Term, behind: bytes) -> None:
    data = encode(term)
    assert term_end(data + behind, 1) == len(data)


@given(TERMS, st.data())
def test_a_term_that_is_cut_short_has_no_end(term: Term, data: st.DataObject) -> None:
    encoded = encode(term)
    with pytest.raises(TermError):
        term_end(encoded[: data.draw(st.integers(0, len(encoded) - 1))], 1)


@given(st.lists(TERMS, max_size=5), st.booleans())
def test_the_parts_of_a_tuple_or_a_map_are_its_elements(elements: list[Term], is_map: bool) -> None:
    term: Term = dict(enumerate(elements)) if is_map else tuple(elements)
    data = encode(term)
    offsets = parts(data, 1)
    decoded = [decode(b"\x83" + data[start:end]) for start, end in pairwise(offsets)]
    assert decoded == ([one for pair in enumerate(elements) for one in pair] if is_map else elements)
    assert offsets[-1] == len(data)


def test_the_last_part_of_a_list_is_its_tail() -> None:
    data = encode(ImproperList((1, 2), b"tail"))
    assert parts(data, 1) == [6, 8, 10]
    assert decode(b"\x83" + data[10:]) == b"tail"


@pytest.mark.parametrize(
    "data",
    [b"\x83", b"\x83h", b"\x83l\0\0", b"\x83m\xff\xff\xff\xffx", b"\x83i\xff\xff\xff\xffj", b"\x83\xff", b"\x83Xa\1"],
)
def test_no_length_is_trusted_beyond_the_bytes(data: bytes) -> None:
    with pytest.raises(TermError):
        term_end(data, 1)


@pytest.mark.parametrize("data", [b"\x83", b"\x83l\0", b"\x83a\1", b"\x83h\2j", b"\x83t\0\0\0\1jx"])
def test_what_has_no_parts_or_not_all_of_them_is_refused(data: bytes) -> None:
    with pytest.raises(TermError):
        parts(data, 1)


def test_a_million_levels_take_no_recursion() -> None:
    data = b"\x83" + b"h\1" * 1_000_000 + b"j"
    assert term_end(data, 1) == len(data)
