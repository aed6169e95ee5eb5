"""What is done to sound bytes: bits flipped, numbers of any size in places of others, cuts, holes, copies, splices."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

from hypothesis import strategies as st

Edit = Callable[[bytearray], None]

NUMBERS: Final = (0, 1, 0x7F, 0x80, 0xFF, 1 << 15, (1 << 16) - 1, 1 << 31, (1 << 31) - 1, (1 << 32) - 1, 1 << 48)
NUMBERS_64: Final = (*NUMBERS, 1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
MAX_BYTES: Final = 1 << 18
_MAX_REPEATED_BYTES: Final = 4096

_places = st.one_of(st.integers(0, 64), st.integers(0, MAX_BYTES), st.integers(-64, -1))
"""Where: the beginning and the end hold what counts most."""
_lengths = st.one_of(st.integers(1, 16), st.integers(1, 4096))


def _flip(at: int, bit: int) -> Edit:
    def edit(data: bytearray) -> None:
        data[at % len(data)] ^= 1 << bit

    return edit


def _put(at: int, new: bytes) -> Edit:
    def edit(data: bytearray) -> None:
        start = at % len(data)
        data[start : start + len(new)] = new

    return edit


def _insert(at: int, new: bytes) -> Edit:
    def edit(data: bytearray) -> None:
        start = at % (len(data) + 1)
        data[start:start] = new

    return edit


def _delete(at: int, length: int) -> Edit:
    def edit(data: bytearray) -> None:
        start = at % len(data)
        del data[start : start + length]

    return edit


def _cut(at: int) -> Edit:
    def edit(data: bytearray) -> None:
        del data[at % len(data) :]

    return edit


def _repeat(at: int, length: int, times: int) -> Edit:
    def edit(data: bytearray) -> None:
        start = at % len(data)
        piece = data[start : start + min(length, _MAX_REPEATED_BYTES // times + 1)]
        data[start:start] = piece * times

    return edit


def _swap(at: int, other: int, length: int) -> Edit:
    def edit(data: bytearray) -> None:
        first, second = sorted((at % len(data), other % len(data)))
        length_here = min(length, second - first, len(data) - second)
        one, two = data[first : first + length_here], data[second : second + length_here]
        data[first : first + length_here], data[second : second + length_here] = two, one

    return edit


_TOKEN: Final = re.compile(rb'"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?|true|false|null|\[[^\[\]]*\]|\{[^{}]*\}')
"""A value in a text: of JSON, TOML, Erlang."""
_VALUES: Final = (
    *(
        b"null",
        b"true",
        b"0",
        b"-1",
        b"1.5",
        b"1e999",
        b"NaN",
        b"9223372036854775808",
        b"1" * 5000,
        b'""',
        b"[]",
        b"{}",
    ),
    *(b"[null]", b'{"a": null}', b"[[]]", b'"\\udc80"', b'"\\u001b[31m"', '"²"'.encode(), b'"a\\u0000"', b'"^(a+)+$"'),
    *(b"[" * 2000 + b"]" * 2000, b'"' + b"x" * 300 + b'"', b'"1e999"', b'"-5"', b"1979-05-27", b"''"),
)


def _value(number: int, new: bytes) -> Edit:
    def edit(data: bytearray) -> None:
        tokens = list(_TOKEN.finditer(data))
        if tokens:
            token = tokens[number % len(tokens)]
            data[token.start() : token.end()] = new

    return edit


def _numbers() -> st.SearchStrategy[bytes]:
    small = st.builds(
        lambda number, width, order: (number & ((1 << 8 * width) - 1)).to_bytes(width, order),
        st.one_of(st.sampled_from(NUMBERS_64), st.integers(0, 300)),
        st.sampled_from((1, 2, 4, 8)),
        st.sampled_from(("big", "little")),
    )
    return st.one_of(
        small, st.sampled_from((b"1" * 5000, b"1e999", b"[" * 3000, b'{"a":' * 2000, b"\xff\xfe", b"\x1b[31m"))
    )


def edits() -> st.SearchStrategy[Edit]:
    """One thing that may be done."""
    return st.one_of(
        st.builds(_flip, _places, st.integers(0, 7)),
        st.builds(_value, st.integers(0, 1000), st.sampled_from(_VALUES)),
        st.builds(_value, st.integers(0, 30), st.sampled_from(_VALUES)),
        st.builds(_put, _places, _numbers()),
        st.builds(_put, _places, st.binary(min_size=1, max_size=16)),
        st.builds(_put, _places, st.builds(bytes, _lengths)),
        st.builds(
            _insert, _places, st.one_of(_numbers(), st.binary(min_size=1, max_size=16), st.builds(bytes, _lengths))
        ),
        st.builds(_delete, _places, _lengths),
        st.builds(_cut, _places),
        st.builds(_repeat, _places, _lengths, st.integers(1, 200)),
        st.builds(_swap, _places, _places, _lengths),
    )


def damaged(seeds: Sequence[bytes]) -> st.SearchStrategy[bytes]:
    """One of ``seeds`` with some things done to it, or bytes that have nothing to do with them."""

    def apply(seed: bytes, done: Sequence[Edit]) -> bytes:
        data = bytearray(seed)
        for edit in done:
            if data:
                edit(data)
        return bytes(data[:MAX_BYTES])

    sound = st.sampled_from(tuple(seeds))
    return st.one_of(
        st.builds(apply, sound, st.lists(edits(), min_size=1, max_size=2)),
        st.builds(apply, sound, st.lists(edits(), min_size=1, max_size=12)),
        st.binary(max_size=256),
    )
