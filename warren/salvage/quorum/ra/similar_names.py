"""Finds the name that has become another one by a few damaged bytes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

MAX_CHANGED: Final = 3
"""Bytes in which a damaged name may differ from the one that it was."""
_OTHER_LENGTH: Final = 1 << 30


def changes_of(value: bytes, expected: bytes) -> tuple[int, int]:
    """The bytes and the bits in which ``value`` differs from ``expected``; very many if the lengths differ."""
    if len(value) != len(expected):
        return _OTHER_LENGTH, _OTHER_LENGTH
    changed = [
        byte ^ expected_byte for byte, expected_byte in zip(value, expected, strict=True) if byte != expected_byte
    ]
    return len(changed), sum(map(int.bit_count, changed))


def nearest(value: bytes, names: Iterable[bytes], most: int = MAX_CHANGED) -> bytes | None:
    """Return the name that differs in the fewest bytes; ``None`` if there are several, or all differ in too many."""
    changes = sorted((changes_of(value, candidate)[0], candidate) for candidate in names)
    if not changes or changes[0][0] > most or (len(changes) > 1 and changes[1][0] == changes[0][0]):
        return None
    return changes[0][1]
