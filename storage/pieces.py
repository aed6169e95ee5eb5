"""Bytes in pieces: what is written one behind the other, and was not copied together for it.

A large body is copied where it is joined to what stands around it. Who hands its *pieces* on instead lets a gathered
write (:meth:`warren.storage.filesystem.File.appendv`) take it from where it lies. Every piece is the bytes of somebody
who does not change them any more: of type ``bytes``, or a view on such.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

LARGE_PIECE_BYTES: Final = 4096
"""From here on bytes cost less to be written by themselves than to be copied to others."""

WORTH_A_WRITE_BYTES: Final = 256 << 10
"""So many bytes cost little more to be written by themselves than with others, and are still in the cache then."""

Piece = bytes | memoryview
"""A view's items are single bytes."""


class Pieces:
    """Bytes in pieces. ``len()`` of it, and ``bytes()`` of it, are those of the whole."""

    __slots__ = ("pieces", "size")

    def __init__(self, pieces: Sequence[Piece], size: int) -> None:
        self.pieces = pieces
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __bytes__(self) -> bytes:
        return b"".join(self.pieces)

    def __repr__(self) -> str:
        return f"Pieces({[len(piece) for piece in self.pieces]} bytes)"


Whole = bytes | Pieces
"""Bytes, in pieces or not: ``bytes()`` of it joins the ones, and returns the others as they are."""


def sizes_of(data: Iterable[Whole]) -> list[int]:
    """How many bytes each has."""
    return [len(one) if isinstance(one, bytes) else one.size for one in data]


def whole(pieces: Sequence[Piece]) -> Whole:
    """The pieces, joined unless they are large together."""
    size = sum(map(len, pieces))
    return b"".join(pieces) if size < LARGE_PIECE_BYTES else Pieces(pieces, size)


def gathered(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """The bytes of the pieces, in pieces of which each is worth a write of its own.

    Each is to be used before the next one is asked for, and so are the views that are given: one buffer may serve for
    all of them.
    """
    small = bytearray()
    for piece in pieces:
        if small and len(small) + len(piece) >= WORTH_A_WRITE_BYTES:
            yield memoryview(small)
            small = bytearray()
        if len(piece) >= WORTH_A_WRITE_BYTES:
            yield piece
        else:
            small += piece
    if small:
        yield memoryview(small)
