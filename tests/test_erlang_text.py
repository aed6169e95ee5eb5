"""Erlang terms as text: what the shell prints is read back; whatever else is refused, with its place."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.quorum_tools import format_term
from warren.storage.erlang_terms import Atom
from warren.storage.erlang_text import TextError, parse
from warren.storage.errors import TermError

ATOMS = st.text(max_size=40).filter(lambda name: name not in ("true", "false")).map(Atom)
LEAVES = st.one_of(
    ATOMS,
    st.booleans(),
    st.integers(min_value=-(1 << 200), max_value=1 << 200),
    st.floats(allow_nan=False, allow_infinity=False),
    st.binary(max_size=40),
    st.text(alphabet=st.characters(max_codepoint=255), max_size=20).map(lambda text: [ord(c) for c in text]),
)
KEYS = st.one_of(ATOMS, st.binary(max_size=8), st.integers(min_value=-9, max_value=1 << 55))
TERMS: st.SearchStrategy[Any] = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=5),
        st.lists(inner, max_size=5).map(tuple),
        st.dictionaries(KEYS, inner, max_size=5),
    ),
    max_leaves=20,
)


@given(TERMS)
def test_what_is_written_is_read_back(term: Any) -> None:
    assert parse(format_term(term)) == term


@pytest.mark.parametrize(
    ("text", "term"),
    [
        (rb"'%2F_\x{6CE8}\x{6587}'.", "%2F_注文"),
        (rb"'it\'s \x41\101\n'.", "it's AA\n"),
        (b"rq4@localhost .", "rq4@localhost"),
        (b"\xe9t\xe9.", "été"),
        (b"[true,false,'true'].", [True, False, True]),
        (b'<<"a\xc3\xa9">>.', b"a\xc3\xa9"),
        (b"<<230,179,168>>.", b"\xe6\xb3\xa8"),
        (b'<<"long text"\n  " goes on",0>>.', b"long text goes on\0"),
        ('<<"é"/utf8>>.', "é".encode()),
        (b"<<>>.", b""),
        (b'"/tmp/one"\n   "/two".', [ord(character) for character in "/tmp/one/two"]),
        (b"#{a => #{},<<>> => [],1 => {}} .\n", {"a": {}, b"": [], 1: ()}),
        (rb"[$a,$\n,$ ,$\x{263A},$\^A].", [97, 10, 32, 0x263A, 1]),
        (b"[-1,+2,1_000,16#fF,-2#101].", [-1, 2, 1000, 255, -5]),
        (b"[1.5,-2.0e-3,1.0E10].", [1.5, -0.002, 1e10]),
        (b"% a comment\n{a, % another\n b}. % the end", ("a", "b")),
    ],
)
def test_what_the_shell_prints_is_read(text: bytes | str, term: Any) -> None:
    assert parse(text) == term


def test_an_atom_is_told_from_a_string() -> None:
    assert isinstance(parse(b"a."), Atom)
    assert parse(b'"a".') == [97]


@pytest.mark.parametrize(
    ("text", "offset", "reason"),
    [
        (b"", 0, "the text ends"),
        (b"{a,b}", 5, "full stop"),
        (b"{a,b", 4, "the end of the text"),
        (b"a. b.", 3, "after the full stop"),
        (b"a.b.", 1, "character '.'"),
        (b"{a b}.", 3, "'b' in place of"),
        (b"[a|b].", 2, "improper"),
        (b"Variable.", 0, "character 'V'"),
        (b"'atom.", 0, "quote that does not end"),
        (b'<<"text>>.', 2, "quote that does not end"),
        (b"<0.1.0>.", 0, "pid"),
        (b"#Ref<0.1.2.3>.", 0, "pid"),
        (b"#Fun<erl_eval.1>.", 0, "fun"),
        (b"<<256>>.", 2, "256 in a binary"),
        (b"<<1.5>>.", 2, "1.5 in a binary"),
        (rb'<<"\x{100}">>.', 2, "above 255"),
        (b"<<1:4>>.", 3, "':'"),
        (b"<<1/integer>>.", 3, "'/'"),
        (b'<<"a"/utf16>>.', 6, "utf16"),
        (b"#{[] => a}.", 2, "map's key"),
        (b"#{1.0 => a}.", 2, "map's key"),
        (b"#{72057594037927936 => a}.", 2, "map's key"),
        (b"#{a = b}.", 4, "character '='"),
        (b"1.0e999.", 0, "not finite"),
        (b"1#0.", 0, "not a number"),
        (b"2#12.", 0, "not a number"),
        (b"99#1.", 0, "not a number"),
        (b"-a.", 1, "not a number"),
        (b"9" * 5000 + b".", 0, "5000 digits"),
        (rb"'\x{110000}'.", 0, "not a character"),
        (rb"'\x{D800}'.", 0, "not a character"),
        (b"[" * 5000, 65, "deeper than 64"),
        (b"#{a => " * 5000, 450, "deeper than 64"),
        (b"[" * 64 + b"]" * 64, 128, "full stop"),
    ],
    ids=lambda value: repr(value)[:24],
)
def test_another_text_is_refused_with_its_place(text: bytes, offset: int, reason: str) -> None:
    with pytest.raises(TextError, match=reason) as caught:
        parse(text)
    assert caught.value.offset == offset
    assert isinstance(caught.value, TermError)


def test_a_long_text_is_refused_before_it_is_looked_at() -> None:
    with pytest.raises(TextError, match="more than 10"):
        parse(b'"' + b"a" * 100, max_characters=10)


def read_or_refused(data: bytes) -> None:
    with contextlib.suppress(TextError):
        parse(data)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    read_or_refused(data)


@given(st.text(alphabet="#{}[]<>\"'\\=,.|$x1aA -%\n/", max_size=60))
def test_any_marks_are_read_or_refused(text: str) -> None:
    read_or_refused(text.encode())


@given(TERMS, st.data())
def test_a_prefix_is_refused(term: Any, data: st.DataObject) -> None:
    text = format_term((term,))  # of 1.5 alone, "1." would be a term
    cut = data.draw(st.integers(0, len(text) - 1))
    with pytest.raises(TextError):
        parse(text[:cut])
