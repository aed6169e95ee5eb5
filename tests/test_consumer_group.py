"""Groups of readers: which reader owns which queue, what is handed out, what is committed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.support.effort import times
from warren.actors.engines.topics.consumer_group import Bounds, ConsumerGroup, StartOffset, Taken, divide, lag_of
from warren.actors.engines.topics.errors import MemberError, QueueLostError, QueueRangeError


def bounds(*of_queues: tuple[int, int]) -> Bounds:
    return lambda queue_id: of_queues[queue_id]


def full(queues: int, maximum: int = 100) -> Bounds:
    return bounds(*[(0, maximum)] * queues)


def group(queues: int = 4, committed: dict[int, int] | None = None) -> ConsumerGroup:
    return ConsumerGroup("orders", "billing", queues, committed or {})


def places(taken: list[Taken]) -> list[tuple[int, int, int]]:
    return [(one.queue_id, one.queue_offset, one.count) for one in taken]


# ── dividing ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("queues", "members", "expected"),
    [
        (4, 1, [[0, 1, 2, 3]]),
        (4, 2, [[0, 1], [2, 3]]),
        (8, 3, [[0, 1, 2], [3, 4, 5], [6, 7]]),
        (10, 4, [[0, 1, 2], [3, 4, 5], [6, 7], [8, 9]]),
        (2, 4, [[0], [1], [], []]),
    ],
)
def test_queues_are_divided_as_rocketmq_does_it(queues: int, members: int, expected: list[list[int]]) -> None:
    assert [list(share) for share in divide(queues, members)] == expected


@given(st.integers(1, 40), st.integers(1, 40))
def test_shares_cover_every_queue_once_and_differ_by_one(queues: int, members: int) -> None:
    shares = divide(queues, members)
    assert len(shares) == members
    assert [queue_id for share in shares for queue_id in share] == list(range(queues))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    assert list(map(len, shares)) == sorted(map(len, shares), reverse=True)


def test_members_share_in_the_order_in_which_they_came() -> None:
    readers = group(4)
    readers.join("zoe", full(4))
    assert readers.assignment("zoe") == range(4)
    readers.join("adam", full(4))
    assert (readers.assignment("zoe"), readers.assignment("adam")) == (range(2), range(2, 4))
    assert [readers.owner(queue_id) for queue_id in range(4)] == ["zoe", "zoe", "adam", "adam"]
    assert readers.generation == 2
    readers.leave("zoe")
    assert readers.members == ("adam",)
    assert readers.assignment("adam") == range(4)
    readers.check_invariants()


def test_names_of_members_are_unique_and_known() -> None:
    readers = group()
    readers.join("a", full(4))
    with pytest.raises(MemberError):
        readers.join("a", full(4))
    for call in (readers.leave, readers.assignment):
        with pytest.raises(MemberError):
            call("b")
    with pytest.raises(MemberError):
        readers.take("b", 1, full(4))
    with pytest.raises(QueueRangeError):
        group(0)


# ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_queues_take_turns_so_that_none_waits_for_ever() -> None:
    readers = group(3)
    readers.join("a", full(3))
    assert places(readers.take("a", 60, full(3))) == [(0, 0, 60)]
    assert places(readers.take("a", 120, full(3))) == [(1, 0, 100), (2, 0, 20)]
    assert places(readers.take("a", 500, full(3))) == [(0, 60, 40), (2, 20, 80)]
    assert readers.take("a", 500, full(3)) == []
    assert readers.take("a", 0, full(3, 200)) == []


def test_a_commit_for_a_queue_that_went_away_is_refused() -> None:
    readers = group(2)
    readers.join("a", full(2))
    first, second = readers.take("a", 200, full(2))
    readers.join("b", full(2))
    with pytest.raises(QueueLostError, match="'a' does not have it, but 'b'"):
        readers.commit("a", 1, second.end, second.claim)
    assert readers.commit("a", 0, first.end, first.claim) is True
    assert readers.committed == {0: 100, 1: 0}


def test_a_queue_that_came_back_does_not_take_the_commit_of_the_first_holding() -> None:
    readers = group(1)
    readers.join("b", full(1))
    (before,) = readers.take("b", 50, full(1))
    readers.leave("b")
    readers.join("b", full(1))
    readers.take("b", 100, full(1))
    with pytest.raises(QueueLostError, match="given away"):
        readers.commit("b", 0, before.end, before.claim)
    assert readers.commit("b", 0, before.end) is True  # without a claim the commit counts all the same


def test_a_commit_goes_forward_and_not_beyond_what_was_handed_out() -> None:
    readers = group(1)
    readers.join("a", full(1))
    readers.take("a", 30, full(1))
    assert readers.commit("a", 0, 20) is True
    assert readers.commit("a", 0, 20) is False
    assert readers.commit("a", 0, 5) is False
    for wrong in (31, -1):
        with pytest.raises(QueueRangeError):
            readers.commit("a", 0, wrong)
    with pytest.raises(QueueLostError):
        readers.commit("a", 1, 0)
    assert readers.committed == {0: 20}


def test_what_is_handed_back_comes_with_the_next_take() -> None:
    readers = group(1)
    readers.join("a", full(1))
    (taken,) = readers.take("a", 30, full(1))
    readers.commit("a", 0, 12, taken.claim)
    readers.hand_back(taken, "a", 15)
    assert places(readers.take("a", 5, full(1))) == [(0, 15, 5)]
    readers.hand_back(taken, "a")  # committed up to 12, so no further back
    assert places(readers.take("a", 5, full(1))) == [(0, 12, 5)]
    with pytest.raises(QueueRangeError):
        readers.hand_back(taken, "a", 31)
    readers.seek("first", full(1))
    with pytest.raises(QueueLostError):
        readers.hand_back(taken, "a")


def test_messages_that_expired_unread_are_counted_once() -> None:
    readers = group(2, {0: 10, 1: 0})
    readers.join("a", full(2))
    later = bounds((40, 100), (7, 7))
    assert readers.take("a", 5, later) == [Taken(0, 40, 5, 30, claim=1)]
    assert readers.take("a", 500, later) == [Taken(1, 7, 0, 7, claim=2), Taken(0, 45, 55, 0, claim=1)]
    assert readers.take("a", 500, later) == []


# ── where to begin ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("consume_from", "expected"),
    [("first", {0: 3, 1: 0}), ("last", {0: 9, 1: 0}), (5, {0: 5, 1: 0}), ({0: 4}, {0: 4, 1: 0})],
)
def test_a_new_group_begins_where_it_is_told(
    consume_from: StartOffset | dict[int, int], expected: dict[int, int]
) -> None:
    readers = group(2)
    readers.join("a", bounds((3, 9), (0, 0)), consume_from)
    assert readers.committed == expected
    readers.check_invariants()


def test_a_known_group_begins_where_it_was_whatever_it_is_told() -> None:
    readers = group(2, {0: 6})
    readers.join("a", bounds((3, 9), (0, 8)), "last")
    assert readers.committed == {0: 6, 1: 8}


def test_messages_between_the_first_start_and_the_next_are_not_lost_to_a_group_from_last() -> None:
    readers = group(1)
    readers.join("a", full(1, 5), "last")
    again = group(1, readers.committed)
    again.join("a", full(1, 8), "last")
    assert places(again.take("a", 10, full(1, 8))) == [(0, 5, 3)]


def test_a_group_ahead_of_a_store_that_lost_its_tail_goes_back_to_the_end() -> None:
    readers = group(1, {0: 90})
    readers.join("a", full(1, 50))
    assert readers.committed == {0: 50}
    readers.leave("a")
    readers.join("a", full(1, 60))
    assert places(readers.take("a", 100, full(1, 60))) == [(0, 50, 10)]


def test_a_maximum_that_lags_while_the_group_reads_changes_nothing() -> None:
    readers = group(1)
    readers.join("a", full(1))
    readers.take("a", 100, full(1))
    readers.commit("a", 0, 100)
    assert readers.take("a", 10, full(1, 60)) == []
    readers.join("b", full(1, 60))
    assert readers.committed == {0: 100}


def test_a_refused_start_changes_nothing() -> None:
    readers = group(2)
    with pytest.raises(QueueRangeError):
        readers.join("a", full(2), -3)
    assert readers.members == ()
    assert readers.committed == {}


def test_new_queues_are_read_from_their_first_message() -> None:
    readers = group(1)
    readers.join("a", full(1), "last")
    readers.join("b", full(1))
    readers.set_queues(3, bounds((0, 100), (0, 10), (4, 5)))
    assert (readers.assignment("a"), readers.assignment("b")) == (range(2), range(2, 3))
    assert readers.committed == {0: 100, 1: 0, 2: 4}
    readers.check_invariants()
    with pytest.raises(QueueRangeError):
        readers.set_queues(2, full(3))


# ── seek and lag ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_seek_moves_the_group_and_refuses_what_was_taken_before() -> None:
    readers = group(2)
    readers.join("a", full(2))
    (taken,) = readers.take("a", 30, full(2))
    assert readers.seek({0: 10, 1: "last"}, full(2)) == {0: 10, 1: 100}
    with pytest.raises(QueueLostError):
        readers.commit("a", 0, taken.end, taken.claim)
    assert places(readers.take("a", 500, full(2))) == [(0, 10, 90)]
    assert readers.seek("first", full(2)) == {0: 0, 1: 0}
    assert readers.position(1) == 0


def test_a_seek_to_nowhere_changes_nothing() -> None:
    readers = group(2, {0: 1, 1: 1})
    readers.join("a", full(2))
    for wrong in ({0: 5, 1: 101}, {0: 5, 2: 0}, {0: 5, -1: 0}, {0: 5, 1: -1}, *OF_OTHER_TYPES):
        with pytest.raises(QueueRangeError):
            readers.seek(wrong, full(2))
    assert readers.committed == {0: 1, 1: 1}


OF_OTHER_TYPES: list[Any] = [{0: 5, 1.0: 5}, {0: 5, 1: 5.0}, {0: 5, "1": 5}, {0: 5, 1: "5"}, {0: 5, 1: None}, 5.0, [5]]
"""Places as a guest of another version could send them."""


@pytest.mark.parametrize("wrong", [{0: 5, 2: 0}, {0: 5, 1: -1}, {0: 5, 1: "first"}, *OF_OTHER_TYPES[:5]], ids=str)
def test_a_reader_with_invalid_positions_does_not_join(wrong: Any) -> None:
    readers = group(2, {0: 1, 1: 1})
    with pytest.raises(QueueRangeError):
        readers.join("a", full(2), positions=wrong)
    assert (readers.members, readers.committed) == ((), {0: 1, 1: 1})
    with pytest.raises(QueueRangeError):
        group(2).join("a", full(2), {99: 0})


def test_positions_replace_what_is_committed_up_to_the_end() -> None:
    readers = group(3, {0: 1, 1: 1, 2: 1})
    readers.join("a", full(3), "last", {0: 5, 1: 101})
    assert readers.committed == {0: 5, 1: 100, 2: 1}
    readers.check_invariants()


@pytest.mark.parametrize(("queue_id", "queue_offset"), [(0.0, 5), (0, 5.0), (0, "5"), ("0", 5), (0, None), ([0], 5)])
def test_a_commit_of_other_types_changes_nothing(queue_id: Any, queue_offset: Any) -> None:
    readers = group(1)
    readers.join("a", full(1))
    readers.take("a", 30, full(1))
    with pytest.raises((QueueRangeError, QueueLostError)):
        readers.commit("a", queue_id, queue_offset)
    assert readers.committed == {0: 0}


def test_a_group_without_members_can_be_sought() -> None:
    readers = group(1)
    readers.seek(7, full(1))
    readers.check_invariants()
    readers.join("a", full(1), "last")
    assert readers.position(0) == 7


def test_lag_counts_what_is_there_and_not_committed() -> None:
    readers = group(3, {0: 10, 1: 10})
    assert readers.lag(bounds((0, 25), (20, 25), (5, 25))) == {0: 15, 1: 5, 2: 20}
    assert lag_of(30, 0, 25) == 0


# ── a group in any order of things ──────────────────────────────────────────────────────────────────────────────────

NAMES = st.sampled_from("abcde")


class GroupMachine(RuleBasedStateMachine):
    """A group whose members come, read, commit, hand back and go while the queues grow and expire."""

    def __init__(self) -> None:
        super().__init__()
        self.readers = group(3)
        self.minima, self.maxima = [0] * 3, [0] * 3
        self.in_hand: dict[str, list[Taken]] = {}
        self.expected: dict[int, int] = {}
        """By claim: where the next take must begin."""
        self.accounted: list[set[int]] = [set(), set(), set()]
        """By queue: handed out, expired, or left out by a seek."""

    def bounds(self, queue_id: int) -> tuple[int, int]:
        return self.minima[queue_id], self.maxima[queue_id]

    @rule(queue_id=st.integers(0, 5), count=st.integers(1, 20))
    def messages_come(self, queue_id: int, count: int) -> None:
        self.maxima[queue_id % len(self.maxima)] += count

    @rule(queue_id=st.integers(0, 5), count=st.integers(1, 20))
    def messages_expire(self, queue_id: int, count: int) -> None:
        queue_id %= len(self.minima)
        before = self.minima[queue_id]
        self.minima[queue_id] = min(before + count, self.maxima[queue_id])
        self.accounted[queue_id] |= set(range(before, self.minima[queue_id]))

    @rule(member=NAMES)
    def somebody_comes(self, member: str) -> None:
        if member in self.readers.members:
            with pytest.raises(MemberError):
                self.readers.join(member, self.bounds)
            return
        self.readers.join(member, self.bounds)
        self.in_hand[member] = []

    @rule(member=NAMES)
    def somebody_goes(self, member: str) -> None:
        if member in self.readers.members:
            self.readers.leave(member)
            del self.in_hand[member]

    @rule(member=NAMES, most=st.integers(0, 30))
    def somebody_takes(self, member: str, most: int) -> None:
        if member not in self.readers.members:
            return
        taken = self.readers.take(member, most, self.bounds)
        assert sum(one.count for one in taken) <= most
        for one in taken:
            assert one.queue_id in self.readers.assignment(member)
            assert self.minima[one.queue_id] <= one.queue_offset
            assert one.end <= self.maxima[one.queue_id]
            begin = one.queue_offset - one.skipped
            assert begin == self.expected.get(one.claim, self.readers.committed[one.queue_id])
            self.expected[one.claim] = one.end
            self.accounted[one.queue_id] |= set(range(one.queue_offset, one.end))
        self.in_hand[member] += taken

    @rule(member=NAMES, data=st.data())
    def somebody_commits(self, member: str, data: st.DataObject) -> None:
        if not self.in_hand.get(member):
            return
        one = data.draw(st.sampled_from(self.in_hand[member]))
        place = data.draw(st.integers(one.queue_offset, one.end))
        held = self.is_held(member, one)
        before = self.readers.committed[one.queue_id]
        if not held:
            with pytest.raises(QueueLostError):
                self.readers.commit(member, one.queue_id, place, one.claim)
        elif place > self.expected[one.claim]:  # it was handed back meanwhile
            with pytest.raises(QueueRangeError):
                self.readers.commit(member, one.queue_id, place, one.claim)
        else:
            assert self.readers.commit(member, one.queue_id, place, one.claim) == (place > before)
        assert self.readers.committed[one.queue_id] == (
            max(before, place) if self.was_good(held, one, place) else before
        )

    def was_good(self, held: bool, one: Taken, place: int) -> bool:
        return held and place <= self.expected[one.claim]

    def is_held(self, member: str, one: Taken) -> bool:
        return one.queue_id in self.readers.assignment(member) and one.claim in self.live_claims()

    def live_claims(self) -> set[int]:
        return set(self.readers._claims.values())

    @rule(member=NAMES, data=st.data())
    def somebody_hands_back(self, member: str, data: st.DataObject) -> None:
        if not self.in_hand.get(member):
            return
        one = data.draw(st.sampled_from(self.in_hand[member]))
        if not self.is_held(member, one):
            with pytest.raises(QueueLostError):
                self.readers.hand_back(one, member)
            return
        self.readers.hand_back(one, member)
        place = max(min(self.expected[one.claim], one.queue_offset), self.readers.committed[one.queue_id])
        self.expected[one.claim] = place

    @rule(data=st.data(), queue_id=st.integers(0, 5))
    def somebody_seeks(self, data: st.DataObject, queue_id: int) -> None:
        queue_id %= len(self.maxima)
        place = data.draw(st.integers(self.minima[queue_id], self.maxima[queue_id]))
        self.readers.seek({queue_id: place}, self.bounds)
        self.accounted[queue_id] |= set(range(place))

    @precondition(lambda self: len(self.maxima) < 6)
    @rule()
    def the_topic_grows(self) -> None:
        for column in (self.minima, self.maxima):
            column.append(0)
        self.accounted.append(set())
        self.readers.set_queues(len(self.maxima), self.bounds)

    @invariant()
    def it_holds_together(self) -> None:
        self.readers.check_invariants()

    @invariant()
    def nothing_that_is_committed_was_lost(self) -> None:
        for queue_id, place in self.readers.committed.items():
            assert set(range(place)) <= self.accounted[queue_id]

    def teardown(self) -> None:
        for member in self.readers.members:
            self.readers.leave(member)
        self.readers.join("last one", self.bounds)
        while taken := self.readers.take("last one", 1_000, self.bounds):
            for one in taken:
                self.accounted[one.queue_id] |= set(range(one.queue_offset, one.end))
                self.readers.commit("last one", one.queue_id, one.end, one.claim)
        assert not any(self.readers.lag(self.bounds).values())
        assert [sorted(seen) for seen in self.accounted] == [list(range(maximum)) for maximum in self.maxima]


TestGroupMachine = GroupMachine.TestCase
TestGroupMachine.settings = settings(max_examples=times(60), stateful_step_count=40)
