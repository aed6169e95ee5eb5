"""``erlang:phash2/1``, and the consistent hash that RabbitMQ's exchanges build on it.

The hash is part of files on disk, and of the choice of a queue: it is the same on every machine and in every release
since R8. Its mixing step is Bob Jenkins' for three 32-bit words ("A Hash Function for Hash Table Lookup", Dr. Dobb's,
1997). Only a broker's own kinds of keys are served: strings, which are lists of bytes, and what
:func:`phash2` takes.

:func:`jump_consistent_hash` is by Lamping and Veach ("A Fast, Minimal Memory, Consistent Hash Algorithm", 2014), with
Vigna's generator xorshift1024* ("An experimental exploration of Marsaglia's xorshift generators, scrambled", 2016),
seeded by xorshift64*.
"""

from __future__ import annotations

from typing import Final, TypeAlias

PHASH2_RANGE: Final = 1 << 27
"""Hashes lie below this."""

Term: TypeAlias = "str | bytes | int | list[Term] | tuple[Term, ...]"
"""A term of Erlang's that :func:`phash2` takes: an atom, a binary, an integer, a list, a tuple."""

_WORD = 0xFFFFFFFF
_LONG_WORD = 0xFFFFFFFFFFFFFFFF
_GOLDEN = 0x9E3779B9
_OF_INTEGER, _OF_LIST_END, _OF_ATOM, _OF_CHARACTERS, _OF_TUPLE, _OF_NEGATIVE, _OF_LARGE, _OF_BINARY = (
    kind * _GOLDEN & _WORD for kind in (1, 2, 3, 4, 9, 10, 11, 13)
)
"""The initial values for mixing the kinds of terms; another number gives another hash."""
_NIL = 2
_EMPTY = 3468870702
"""The hash of ``[]``, before it is cut to its range."""
_SMALL = 1 << 27
"""Integers from here on are mixed as large ones."""
_MULTIPLIER = 1181783497276652981
_SEEDS = 16
_SEED_BITS = (1 << 21) - 1


def phash2_characters(characters: bytes) -> int:
    """Return ``erlang:phash2`` of a list of bytes, a string in Erlang: 0 ≤ hash < 2**27."""
    mixed = 0
    for start in range(0, len(characters), 4):
        mixed = _mix(int.from_bytes(characters[start : start + 4], "big"), 0, _OF_CHARACTERS, mixed)
    return _end_of_list(mixed) % PHASH2_RANGE


def phash2(term: Term) -> int:
    """Return ``erlang:phash2`` of a term; lists must not hold integers."""
    return _hashed(term, 0) % PHASH2_RANGE


def jump_consistent_hash(key: int, buckets: int) -> int:
    """Return the bucket of a key, 0 ≤ bucket < ``buckets``. With one bucket more, few keys change theirs."""
    state, at = _seeded(key), 0
    bucket, following = -1, 0
    while following < buckets:
        bucket = following
        at, previous = (at + 1) % _SEEDS, state[at]
        shifted = state[at] ^ state[at] << 31 & _LONG_WORD
        state[at] = shifted ^ previous ^ shifted >> 11 ^ previous >> 30
        number = (state[at] * _MULTIPLIER & _LONG_WORD) >> 11  # 53 bits: a float from 0 to 1
        following = int((bucket + 1) / (number * 2.0**-53)) if number else buckets
    return bucket


def _hashed(term: Term, mixed: int) -> int:
    match term:
        case str():
            name = _atom_hash(term.encode())
            return _mix(name, 0, _OF_ATOM, mixed) if mixed else name
        case bytes():
            initial = _OF_BINARY + mixed & _WORD
            return _block_hash(term, initial) if term else initial
        case int() if -_SMALL <= term < _SMALL:
            if term < 0:
                mixed = _mix(-term, 0, _OF_INTEGER, mixed)
            return _mix(term & _WORD, 0, _OF_INTEGER, mixed)
        case int():
            size = abs(term)
            while True:
                mixed = _mix(size & _WORD, size >> 32 & _WORD, _OF_NEGATIVE if term < 0 else _OF_LARGE, mixed)
                size >>= 64
                if not size:
                    return mixed
        case tuple():
            mixed = _mix(len(term), 0, _OF_TUPLE, mixed)
            for element in term:
                mixed = _hashed(element, mixed)
            return mixed
        case list():
            for element in term:
                mixed = _hashed(element, mixed)
            return _end_of_list(mixed)


def _end_of_list(mixed: int) -> int:
    return _mix(_NIL, 0, _OF_LIST_END, mixed) if mixed else _EMPTY


def _atom_hash(name: bytes) -> int:
    mixed = 0
    for byte in name:
        mixed = (mixed << 4) + byte
        high = mixed & 0xF0000000
        mixed ^= high >> 24 ^ high
    return mixed


def _block_hash(data: bytes, initial: int) -> int:
    a = b = _GOLDEN
    c = initial
    whole = len(data) // 12 * 12
    for start in range(0, whole, 12):
        a, b, c = _mixed(
            *(word + int.from_bytes(data[at : at + 4], "little") & _WORD
              for word, at in ((a, start), (b, start + 4), (c, start + 8)))
        )  # fmt: skip
    rest = data[whole:]
    a += int.from_bytes(rest[:4], "little")
    b += int.from_bytes(rest[4:8], "little")
    c += len(data) + (int.from_bytes(rest[8:], "little") << 8)
    return _mixed(a & _WORD, b & _WORD, c & _WORD)[2]


def _mix(first: int, second: int, kind: int, mixed: int) -> int:
    """Mix two words of a kind into the hash of the preceding ones."""
    return _mixed(kind + first & _WORD, kind + second & _WORD, mixed)[2]


def _mixed(a: int, b: int, c: int) -> tuple[int, int, int]:
    for right, left, right_again in ((13, 8, 13), (12, 16, 5), (3, 10, 15)):
        a = (a - b - c & _WORD) ^ c >> right
        b = (b - c - a & _WORD) ^ a << left & _WORD
        c = (c - a - b & _WORD) ^ b >> right_again
    return a, b, c


def _seeded(key: int) -> list[int]:
    """The generator's state that Erlang seeds with the key, three times."""
    words: list[int] = []
    first, second, third = ((key + 1) * prime & _SEED_BITS for prime in (2097131, 2097133, 2097143))
    word = first << 43 | second << 22 | third << 1 | 1
    for _ in range(_SEEDS):
        word ^= word >> 12
        word ^= word << 25 & _LONG_WORD
        word ^= word >> 27
        words.append(word * 2685821657736338717 & _LONG_WORD)
    return words[::-1]
