"""Bytes in pieces: how they are gathered for writes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from warren.storage.pieces import WORTH_A_WRITE_BYTES, Piece, gathered

LARGE = WORTH_A_WRITE_BYTES


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([], []),
        ([1], [1]),
        ([1, 2, 3], [6]),
        ([LARGE], [LARGE]),
        ([1, LARGE, 2], [1, LARGE, 2]),
        ([LARGE // 2, LARGE // 2 - 1, 1], [LARGE - 1, 1]),
        ([LARGE // 2] * 5, [LARGE // 2] * 5),
    ],
)
def test_small_pieces_are_joined_until_they_are_worth_a_write(given: list[int], expected: list[int]) -> None:
    octets = iter(range(10))
    pieces: list[Piece] = [bytes([next(octets)]) * size for size in given]
    found = [bytes(piece) for piece in gathered(pieces)]
    assert [len(piece) for piece in found] == expected
    assert b"".join(found) == b"".join(pieces)


def test_one_buffer_may_serve_for_all_pieces() -> None:
    buffer = bytearray(LARGE)

    def pieces() -> Iterator[memoryview]:
        for number, size in enumerate((10, LARGE, 20, 30)):
            buffer[:size] = bytes([number]) * size
            yield memoryview(buffer)[:size]

    assert [bytes(piece[-1:]) for piece in gathered(pieces())] == [b"\0", b"\1", b"\3"]
