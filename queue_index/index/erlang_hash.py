"""``erlang:phash2/1`` for lists of characters: the keys that a broker's own tables are hashed by.

The hash is part of files on disk: it is the same on every machine and in every release since R8. Its mixing step is
Bob Jenkins' for three 32-bit words ("A Hash Function for Hash Table Lookup", Dr. Dobb's, 1997). Of the many kinds of
terms only lists of bytes are served; whatever else a broker hashes, it does not keep by its hash.
"""

from __future__ import annotations

from typing import Final

PHASH2_RANGE: Final = 1 << 27
"""Hashes lie below this."""

_WORD = 0xFFFFFFFF
_GOLDEN = 0x9E3779B9
_LIST_WORD = 4 * _GOLDEN & _WORD
"""The initial value for mixing four characters; another number gives another hash."""
_END_OF_LIST = 2 * _GOLDEN & _WORD
_NIL = 2
_EMPTY = 3468870702
"""The hash of ``[]``, before it is cut to its range."""


def phash2_characters(characters: bytes) -> int:
    """Return ``erlang:phash2`` of a list of bytes, a string in Erlang: 0 ≤ hash < 2**27."""
    mixed = 0
    for start in range(0, len(characters), 4):
        mixed = _mix(_LIST_WORD + int.from_bytes(characters[start : start + 4], "big"), _LIST_WORD, mixed)
    mixed = _mix(_END_OF_LIST + _NIL, _END_OF_LIST, mixed) if mixed else _EMPTY
    return mixed % PHASH2_RANGE


def _mix(a: int, b: int, c: int) -> int:
    """Mix three words into one; ``c`` is the hash of the preceding words."""
    for right, left, right_again in ((13, 8, 13), (12, 16, 5), (3, 10, 15)):
        a = (a - b - c & _WORD) ^ c >> right
        b = (b - c - a & _WORD) ^ a << left & _WORD
        c = (c - a - b & _WORD) ^ b >> right_again
    return c
