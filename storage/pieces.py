"""Bytes in pieces: consecutive bytes of a file that are written without being joined first.

Joining a large body with the bytes around it copies it. Passing on its *pieces* lets a gathered write
(:meth:`warren.storage.filesystem.File.appendv`) take it from its place. Every piece is immutable: of type ``bytes``, or
a view on such.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

LARGE_PIECE_BYTES: Final = 4096
"""From this size on it is cheaper to write bytes separately than to copy them together."""

WORTH_A_WRITE_BYTES: Final = 256 << 10
"""Writing this many bytes separately costs little more than together with others, and they still fit the cache then."""

Piece = bytes | memoryview
"""A view's items are single bytes."""


class Pieces:
    """Bytes in pieces. ``len()`` and ``bytes()`` return those of the whole."""

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
"""Bytes, in pieces or not: ``bytes()`` joins pieces and returns bytes unchanged."""


def sizes_of(data: Iterable[Whole]) -> list[int]:
    """How many bytes each has."""
    return [len(piece) if isinstance(piece, bytes) else piece.size for piece in data]


def whole(pieces: Sequence[Piece]) -> Whole:
    """The pieces, joined unless they are large together."""
    size = sum(map(len, pieces))
    return b"".join(pieces) if size < LARGE_PIECE_BYTES else Pieces(pieces, size)


def gathered(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """Yield the bytes of the pieces in larger pieces, each worth a write of its own.

    Use each one, and each input view, before requesting the next: one buffer may serve for all of them.
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
