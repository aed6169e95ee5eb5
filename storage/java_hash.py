"""Java's ``String.hashCode``, one string at a time and by columns.

RocketMQ keeps two numbers of strings on disk that only this function gives: the tags code of a ConsumeQueue entry and
the key hash of an index item. A string is UTF-16 units to Java, so a character beyond the first 65,536 is two of them;
bytes that are no UTF-8 are read as Java reads them, as U+FFFD.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

codecs.lookup("utf-16-le")  # now: Python reads a file for that, and later there may be no descriptor left for one

_MULTIPLIER = 31
_MASK = 0xFFFFFFFF
_MOST_UNITS: Final = 0x8000
"""Units of the longest string that a record can hold (its properties have a 16-bit length)."""

Bytes = npt.NDArray[np.uint8]
Hashes = npt.NDArray[np.uint32]


def _powers() -> npt.NDArray[np.uint32]:
    """31 to the power of 0, 1, 2 …, modulo 2^32."""
    factors = np.full(_MOST_UNITS, _MULTIPLIER, dtype=np.uint32)
    factors[0] = 1
    return np.multiply.accumulate(factors, dtype=np.uint32)


_POWERS = _powers()


def _hash_of_units(units: npt.NDArray[np.uint16]) -> int:
    result = 0
    for start in range(0, len(units), _MOST_UNITS):
        part = units[start : start + _MOST_UNITS].astype(np.uint32)
        ahead = result * pow(_MULTIPLIER, len(part), 1 << 32)
        result = (ahead + int(np.dot(part, _POWERS[: len(part)][::-1]))) & _MASK
    return result


def java_hash(text: str) -> int:
    """``text.hashCode()``: −2³¹ … 2³¹ − 1."""
    if 0 < len(text) < _SHORT and text.isascii():
        units = text.encode("ascii")
        unsigned = int(units.translate(_LOW_DIGITS), 31) + int(units.translate(_HIGH_DIGITS), 31) * 31 & _MASK
    else:
        unsigned = _hash_of_units(np.frombuffer(text.encode("utf-16-le", "surrogatepass"), dtype="<u2"))
    return unsigned - (1 << 32) if unsigned >> 31 else unsigned


_SHORT: Final = 512
"""Below this :func:`int` is faster than a column; and it refuses text of many digits, never less than 640."""
_DIGITS: Final = b"0123456789abcdefghijklmnopqrstu"
_LOW_DIGITS: Final = bytes(_DIGITS[unit % 31] for unit in range(128)).ljust(256)
_HIGH_DIGITS: Final = bytes(_DIGITS[unit // 31] for unit in range(128)).ljust(256)
"""The hash is the value of the string's units as digits to the base of 31. A unit of ASCII is too large for one such
digit and small enough for two: so there are two numbers, that :func:`int` reads."""


def java_text(data: bytes) -> str:
    """``new String(data, UTF_8)``: as Python reads it with ``replace``, but an encoded surrogate is one U+FFFD."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return _SURROGATE.sub(b"\xff", data).decode("utf-8", "replace")


_SURROGATE = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")


def index_hash(text: str) -> int:
    """Return the key hash that an IndexFile keeps of ``topic#key``: the absolute hash, 0 for the smallest integer."""
    return abs(java_hash(text)) & 0x7FFFFFFF


def hash_rows(rows: Bytes, prefix: str = "") -> Hashes:
    """Hashes, as unsigned 32-bit numbers, of ``prefix`` + each row of a matrix of ASCII bytes."""
    width = rows.shape[1]
    ahead = np.uint32((java_hash(prefix) * pow(_MULTIPLIER, width, 1 << 32)) & _MASK)
    hashes: Hashes = rows.astype(np.uint32) @ _POWERS[:width][::-1] + ahead
    return hashes


def hash_many(strings: Sequence[bytes], prefix: str = "") -> Hashes:
    """Hashes, as unsigned 32-bit numbers, of ``prefix`` + each of ``strings`` (UTF-8)."""
    joined = b"".join(strings)
    if not joined.isascii():
        return np.array([java_hash(prefix + java_text(text)) & _MASK for text in strings], np.uint32)
    lengths = np.fromiter(map(len, strings), np.int64, len(strings))
    ahead = np.uint32(java_hash(prefix) & _MASK) * _POWERS[np.minimum(lengths, _MOST_UNITS - 1)]
    if not joined:
        return np.asarray(ahead, np.uint32)
    ends = np.cumsum(lengths)
    weights = _POWERS[np.repeat(ends, lengths) - 1 - np.arange(len(joined))]
    products = np.frombuffer(joined, np.uint8).astype(np.uint32) * weights
    sums = np.concatenate((np.zeros(1, np.uint32), np.cumsum(products, dtype=np.uint32)))
    hashes: Hashes = sums[ends] - sums[ends - lengths] + ahead
    return hashes


def to_index_hashes(hashes: Hashes) -> npt.NDArray[np.int32]:
    """Return the hashes as an IndexFile keeps them; see :func:`index_hash`."""
    return (np.abs(hashes.view(np.int32).astype(np.int64)) & 0x7FFFFFFF).astype(np.int32)


def to_tags_codes(hashes: Hashes) -> npt.NDArray[np.int64]:
    """Return the hashes as a ConsumeQueue entry keeps them: sign-extended."""
    return hashes.view(np.int32).astype(np.int64)
