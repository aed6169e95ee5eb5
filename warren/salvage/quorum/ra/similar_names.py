"""Finds the name that has become another one by a few damaged bytes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

MAX_CHANGED: Final = 3
"""Bytes in which a damaged name may differ from the one that it was."""
_OTHER_LENGTH: Final = 1 << 30


def changes_of(value: bytes, known: bytes) -> tuple[int, int]:
    """The bytes and the bits in which ``value`` differs from ``known``; very many if the lengths differ."""
    if len(value) != len(known):
        return _OTHER_LENGTH, _OTHER_LENGTH
    changed = [byte ^ known_byte for byte, known_byte in zip(value, known, strict=True) if byte != known_byte]
    return len(changed), sum(map(int.bit_count, changed))


def nearest(value: bytes, known: Iterable[bytes], most: int = MAX_CHANGED) -> bytes | None:
    """The known one that differs in the fewest bytes; ``None`` if there are several, or all differ in too many."""
    changes = sorted((changes_of(value, candidate)[0], candidate) for candidate in known)
    if not changes or changes[0][0] > most or (len(changes) > 1 and changes[1][0] == changes[0][0]):
        return None
    return changes[0][1]
