"""The reader of disk_log files: written by an independent writer, cut and damaged at every place."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.disk_log_tools import CLOSED, OPEN, item, log
from warren.salvage.metadata.disk_log_format import read_items
from warren.salvage.queue_directory import Finding
from warren.storage.erlang_terms import Atom, Term
from warren.storage.errors import DataError

LEAVES = (
    st.integers(-(1 << 40), 1 << 40) | st.binary(max_size=20) | st.text("abc_", min_size=1).map(Atom) | st.booleans()
)
TERMS = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=4) | st.lists(inner, max_size=4).map(tuple), max_leaves=8
)


def read(data: bytes) -> tuple[list[Term], list[Finding]]:
    findings: list[Finding] = []
    return [term for _, term in read_items(data, "LATEST.LOG", findings.append)], findings


@given(terms=st.lists(TERMS, max_size=6), head=st.sampled_from([OPEN, CLOSED]))
def test_what_was_written_is_read(terms: list[Term], head: bytes) -> None:
    assert read(log(terms, head)) == (terms, [])


@given(terms=st.lists(TERMS, min_size=1, max_size=4))
def test_a_log_cut_at_any_byte_has_the_items_before_and_one_finding(terms: list[Term]) -> None:
    data = log(terms)
    ends = [len(log(terms[:count])) for count in range(len(terms) + 1)]
    for cut in range(8, len(data)):
        whole = max(count for count, end in enumerate(ends) if end <= cut)
        got, findings = read(data[:cut])
        assert got == terms[:whole]
        torn = [] if cut in ends else [("torn log", ends[whole])]
        assert [(finding.kind, finding.offset) for finding in findings] == torn


def test_a_magic_in_a_torn_item_begins_no_other() -> None:
    got, findings = read(log([[b"bWLA", 0, 0]])[:-1])
    assert (got, [(finding.kind, finding.offset) for finding in findings]) == ([], [("torn log", 8)])


@given(
    before=st.lists(TERMS, max_size=3),
    after=st.lists(TERMS, min_size=1, max_size=3),
    junk=st.binary(min_size=1, max_size=60).filter(lambda junk: b"bWLA" not in junk),
)
def test_bytes_between_items_cost_no_item(before: list[Term], after: list[Term], junk: bytes) -> None:
    data = log(before) + junk + b"".join(map(item, after))
    got, findings = read(data)
    assert got == before + after
    assert [finding.offset for finding in findings] == [len(log(before))]
    assert f"{len(junk)} bytes" in findings[0].detail


@given(
    data=st.binary(max_size=200), terms=st.lists(TERMS, max_size=3), at=st.integers(0, 400), byte=st.integers(0, 255)
)
def test_any_bytes_end_with_items_and_findings(data: bytes, terms: list[Term], at: int, byte: int) -> None:
    read(OPEN + data)
    flipped = bytearray(log(terms) + data)
    if at < len(flipped) - 8:
        flipped[8 + at] = byte
    got, findings = read(bytes(flipped))
    assert findings or len(got) >= len(terms)


@pytest.mark.parametrize("size", [65520, 65521, 65522, 65523, 65600, 200_000])
def test_long_items_have_a_digest_of_their_size(size: int) -> None:
    terms: list[Term] = [b"x" * size, Atom("after")]
    assert read(log(terms)) == (terms, [])
    damaged = bytearray(log(terms))
    damaged[20] ^= 1
    if size >= 65523:
        got, findings = read(bytes(damaged))
        assert got == [Atom("after")]
        assert [finding.kind for finding in findings] == ["damaged log"]


def test_an_item_that_is_no_term_is_named_with_its_offset() -> None:
    data = log([1]) + struct.pack(">I", 2) + b"bWLA\x83\xff" + item(2)
    got, findings = read(data)
    assert got == [1, 2]
    assert [(finding.kind, finding.offset) for finding in findings] == [("unreadable log item", len(log([1])))]


@pytest.mark.parametrize("data", [b"", CLOSED[:7], bytes(8), b"\1\2\3\4\0\0\0\0"])
def test_other_files_are_refused(data: bytes) -> None:
    with pytest.raises(DataError, match="no disk_log file"):
        read(data)
