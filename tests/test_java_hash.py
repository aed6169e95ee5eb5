"""Java's strings: how bytes become characters, and characters a hash."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import rocketmq_golden as golden
from warren.storage.java_hash import (
    hash_many,
    hash_rows,
    index_hash,
    java_hash,
    java_text,
    to_index_hashes,
    to_tags_codes,
)


@pytest.mark.parametrize("scenario", golden.SCENARIOS)
def test_hashes_are_those_of_the_real_one(scenario: str) -> None:
    for case in golden.manifest(scenario)["hashes"]:
        text = case["string"]
        assert java_hash(text) == case["javaHashCode"]
        assert index_hash(text) == case["indexKeyHashMethod"]
        assert int(to_tags_codes(hash_many([text.encode("utf-8")]))[0]) == case["tagsCode"]


def test_the_hash_without_an_absolute_value_counts_as_zero() -> None:
    text = "polygenelubricants"
    assert java_hash(text) == -(1 << 31)
    assert index_hash(text) == 0
    assert to_index_hashes(hash_many([text.encode()])).tolist() == [0]


def naive(text: str) -> int:
    units = text.encode("utf-16-le", "surrogatepass")
    result = 0
    for at in range(0, len(units), 2):
        result = (result * 31 + int.from_bytes(units[at : at + 2], "little")) & 0xFFFFFFFF
    return result


@given(st.lists(st.text(max_size=80), max_size=8), st.text(max_size=5))
def test_columns_hash_as_the_definition_says(texts: list[str], prefix: str) -> None:
    texts = [text.encode("utf-8", "replace").decode() for text in texts]
    prefix = prefix.encode("utf-8", "replace").decode()
    expected = [naive(prefix + text) for text in texts]
    assert hash_many([text.encode() for text in texts], prefix).tolist() == expected
    assert [java_hash(prefix + text) & 0xFFFFFFFF for text in texts] == expected


@given(st.integers(1, 5), st.integers(0, 40))
def test_rows_hash_as_strings_do(count: int, width: int) -> None:
    rows = np.random.default_rng(count * 41 + width).integers(32, 127, (count, width), dtype=np.uint8)
    assert hash_rows(rows, "T#").tolist() == hash_many([row.tobytes() for row in rows], "T#").tolist()


@pytest.mark.parametrize("length", [0, 1, 63, 64, 511, 512, 513])
def test_strings_around_the_longest_that_is_read_as_digits_hash_alike(length: int) -> None:
    text = "".join(chr(unit * 37 % 128) for unit in range(length))
    assert java_hash(text) & 0xFFFFFFFF == naive(text)


def test_a_string_longer_than_any_property_is_hashed_too() -> None:
    assert java_hash("x" * 100_000) & 0xFFFFFFFF == naive("x" * 100_000)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"ok \xc3\xa9", "ok é"),
        (b"\xed\xa0\x80", "\ufffd"),  # half a surrogate pair: one character to Java, three to Python
        (b"\xed\xa0\x80\xed\xb0\x80", "\ufffd\ufffd"),
        (b"\xed\xbfA", "\ufffdA"),
        (b"a\xffb\xc3", "a\ufffdb\ufffd"),
        (b"\xed\x9f\xbf", "\ud7ff"),
    ],
)
def test_bytes_that_are_no_text_are_read_as_java_reads_them(data: bytes, text: str) -> None:
    assert java_text(data) == text
