"""The ledger of the harnesses finds each promise that is broken."""

from __future__ import annotations

import pytest

from tests.support.promises import Fates, check_order


def at_work() -> Fates[int]:
    return Fates(begun={1, 2, 3, 4}, made={1, 2, 3}, ending={2, 3}, ended={3})


@pytest.mark.parametrize(
    ("found", "error"),
    [
        ([2, 4], "lost: 1"),
        ([1, 5], "never begun: 5"),
        ([1, 3], "gone and back: 3"),
        ([1, 2, 2], "there twice: 2"),
    ],
)
def test_a_broken_promise_is_found(found: list[int], error: str) -> None:
    for kept in ([1], [1, 2, 4]):
        at_work().check("numbers", kept)
    with pytest.raises(AssertionError, match=error):
        at_work().check("numbers", found)


def test_what_a_crash_left_must_be_there_again_and_the_rest_stays_away() -> None:
    fates = at_work()
    fates.survive([1, 2])
    with pytest.raises(AssertionError, match="lost: 2"):
        fates.check("numbers", [1])
    with pytest.raises(AssertionError, match="never begun: 4"):
        fates.check("numbers", [1, 2, 4])


def test_a_stream_out_of_order_is_found() -> None:
    check_order("messages", [("a", 1), ("b", 0), ("a", 2)])
    with pytest.raises(AssertionError, match="a:1 after 2"):
        check_order("messages", [("a", 2), ("b", 3), ("a", 1)])
