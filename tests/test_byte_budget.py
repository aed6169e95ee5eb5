"""The byte budget as a plain object: which requests are admitted, in which order, and when memory is read again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warren.actors.engines.byte_budget import LEAST_BYTES, ByteBudget, Waiting

MIB = 1 << 20


def budget(limit_bytes: int = 320 * MIB) -> ByteBudget:
    """20 MiB of them may be on their way."""
    return ByteBudget(limit_bytes)


def test_as_much_is_let_in_as_may_be_on_its_way_and_no_more() -> None:
    bytes_of = budget()
    assert [bytes_of.admit(6 * MIB) for _ in range(4)] == [6 * MIB, 6 * MIB, 6 * MIB, 0]
    bytes_of.leave(6 * MIB)
    assert bytes_of.admit(8 * MIB) == 8 * MIB


def test_a_batch_larger_than_the_budget_gets_through_alone() -> None:
    bytes_of = budget()
    assert bytes_of.admit(1)
    assert not bytes_of.admit(1000 * MIB)
    bytes_of.leave(1)
    assert bytes_of.admit(1000 * MIB)
    assert not bytes_of.admit(1), "and while it is on its way nobody else does"


def test_nobody_passes_who_waits_however_little_he_brings() -> None:
    bytes_of = budget()
    bytes_of.admit(15 * MIB)
    large, small = bytes_of.wait(10 * MIB), bytes_of.wait(1)
    assert bytes_of.next_admitted() is None
    assert not bytes_of.admit(1)
    bytes_of.leave(15 * MIB)
    assert [bytes_of.next_admitted(), bytes_of.next_admitted(), bytes_of.next_admitted()] == [large, small, None]
    assert bytes_of.on_the_way_bytes == 10 * MIB + 1


def test_who_withdraws_leaves_the_line_or_gives_back_what_he_was_granted() -> None:
    bytes_of = budget()
    bytes_of.admit(20 * MIB)
    first, second = bytes_of.wait(5), bytes_of.wait(7)
    bytes_of.withdraw(first)
    bytes_of.leave(20 * MIB)
    assert bytes_of.next_admitted() is second
    bytes_of.withdraw(second)
    assert bytes_of.on_the_way_bytes == 0
    assert bytes_of.line == ()


def test_what_the_node_hands_on_itself_is_never_held_and_holds_publishers() -> None:
    bytes_of = budget()
    for _ in range(10):
        bytes_of.enter(10 * MIB)
    assert bytes_of.on_the_way_bytes == 100 * MIB
    assert not bytes_of.admit(1)


def test_while_it_is_shut_nobody_is_let_in_even_alone() -> None:
    bytes_of = budget()
    bytes_of.shut = True
    assert not bytes_of.admit(1)
    waiting = bytes_of.wait(1)
    assert bytes_of.next_admitted() is None
    bytes_of.shut = False
    assert bytes_of.next_admitted() is waiting


def test_a_reading_is_wanted_once_a_part_of_the_limit_was_granted_since_the_last() -> None:
    bytes_of = budget()
    bytes_of.note_reading(50 * MIB)
    bytes_of.leave(bytes_of.admit(9 * MIB))
    assert not bytes_of.wants_reading(MIB)
    bytes_of.leave(bytes_of.admit(MIB))
    assert bytes_of.wants_reading(MIB)
    bytes_of.note_reading(60 * MIB)
    assert not bytes_of.wants_reading(MIB)


def test_near_the_limit_messages_go_one_at_a_time_and_each_small_part_is_read_anew() -> None:
    bytes_of = budget()
    bytes_of.note_reading(319 * MIB)
    assert bytes_of.admit(2 * MIB), "alone"
    assert not bytes_of.admit(2 * MIB)
    assert bytes_of.wants_reading(2 * MIB)
    bytes_of.note_reading(300 * MIB)
    assert bytes_of.admit(2 * MIB), "the reading has it otherwise"


def test_more_is_granted_ahead_while_there_is_plenty_and_what_never_came_is_not_counted_as_granted() -> None:
    bytes_of = budget()
    granted = bytes_of.admit(100, ahead=True)
    assert 10_000 < granted <= 100 + 64 * 1024
    bytes_of.leave(granted, unused_bytes=granted - 100)
    assert (bytes_of.on_the_way_bytes, bytes_of.granted_bytes) == (0, 100)
    bytes_of.enter(20 * MIB - 150)
    assert bytes_of.admit(100, ahead=True) == 100


def test_a_node_that_may_use_nothing_still_lets_some_messages_in_together() -> None:
    bytes_of = ByteBudget(0)
    assert bytes_of.most_bytes == LEAST_BYTES
    assert bytes_of.admit(100)


@given(
    limit_bytes=st.integers(0, 100 * MIB),
    steps=st.lists(
        st.tuples(
            st.sampled_from(["admit", "ahead", "wait", "withdraw", "leave", "enter", "read", "shut", "open"]),
            st.integers(1, 8 * MIB),
        ),
        max_size=60,
    ),
)
def test_whatever_happens_publishers_stay_within_the_budget_and_nobody_waits_for_ever(
    limit_bytes: int, steps: list[tuple[str, int]]
) -> None:
    bytes_of = ByteBudget(limit_bytes)
    inside: list[int] = []
    waiting: list[Waiting] = []
    alone_bytes = own_bytes = 0

    def let_in() -> None:
        nonlocal alone_bytes
        while True:
            before_bytes = bytes_of.on_the_way_bytes
            found = bytes_of.next_admitted()
            if found is None:
                return
            assert found is waiting.pop(0), "in the order in which they came"
            inside.append(found.size_bytes)
            if not before_bytes:
                alone_bytes = max(alone_bytes, found.size_bytes)

    for step, number in steps:
        match step:
            case "admit" | "ahead":
                before_bytes, line = bytes_of.on_the_way_bytes, bytes_of.line
                granted = bytes_of.admit(number, ahead=step == "ahead")
                assert not granted or granted >= number
                assert not (granted and (line or bytes_of.shut))
                if granted:
                    inside.append(granted)
                    if not before_bytes:
                        alone_bytes = max(alone_bytes, granted)
            case "wait":
                waiting.append(bytes_of.wait(number))
            case "withdraw" if waiting:
                bytes_of.withdraw(waiting.pop(number % len(waiting)))
            case "leave" if inside:
                bytes_of.leave(inside.pop(number % len(inside)))
            case "enter":
                bytes_of.enter(number)
                inside.append(number)
                own_bytes += number
            case "read":
                bytes_of.note_reading(number)
            case "shut" | "open":
                bytes_of.shut = step == "shut"
            case _:
                continue
        let_in()
        bytes_of.check_invariants()
        assert bytes_of.on_the_way_bytes == sum(inside) <= max(bytes_of.most_bytes, alone_bytes) + own_bytes
    bytes_of.shut = False
    while waiting:
        if inside:
            bytes_of.leave(inside.pop())
        let_in()
        assert inside or not waiting, "reservations wait although no bytes are on the way"


@pytest.mark.parametrize("size_bytes", [1, 5 * MIB, 500 * MIB])
def test_all_in_line_get_in_as_what_is_before_them_leaves(size_bytes: int) -> None:
    bytes_of = budget()
    bytes_of.admit(MIB)
    line = [bytes_of.wait(size_bytes) for _ in range(5)]
    inside = [MIB]
    while inside:
        bytes_of.leave(inside.pop(0))
        while (found := bytes_of.next_admitted()) is not None:
            inside.append(found.size_bytes)
    assert all(waiting.granted for waiting in line)
