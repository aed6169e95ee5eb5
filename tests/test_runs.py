"""Runs, the queues of them that Q1 … Q4 are, and the pending acks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.support.effort import times
from tests.support.index_tools import SIZE, msg_id, number_of, run_of, term
from warren.queue_index.queue.acking import tag_ranges
from warren.queue_index.queue.pending_acks import PendingAcks
from warren.queue_index.queue.run import DELIVERED, IN_RAM, IN_STORE, PackedTerms, Run, UnencodedTerms, open_batch
from warren.queue_index.queue.run_queue import RunQueue

SEGMENT = 100


def seq_ids(run: Run) -> list[int]:
    """The messages of a run; each has the id and the payload that its number says."""
    numbers = list(run.seq_ids)
    assert [number_of(one) for one in run.msg_ids()] == numbers
    if run.in_ram:
        assert run.terms() == [term(n) for n in numbers]
    assert run.bytes == SIZE * run.count
    return numbers


def all_of(runs: RunQueue | PendingAcks | list[Run]) -> list[int]:
    return [n for run in runs for n in seq_ids(run)]


# Runs


@pytest.mark.parametrize("unencoded", [False, True], ids=["a list of terms", "not encoded yet"])
def test_cutting_a_run_is_two_windows_on_the_same_columns(unencoded: bool) -> None:
    run = run_of(10, 30, unencoded=unencoded)
    batch, left, right = run.batch, run.take_left(4), run.take_right(6)
    assert left.batch is right.batch is run.batch is batch
    assert [(r.start, r.end) for r in (left, run, right)] == [(10, 14), (14, 34), (34, 40)]
    assert all_of([left, run, right]) == list(range(10, 40))


def test_a_window_of_a_run_is_a_run_of_its_own() -> None:
    run = run_of(10, 30)
    window = run.window(5, 3)
    window.flags |= DELIVERED
    window.take_left(1)
    assert (seq_ids(window), run.flags & DELIVERED, run.count) == ([16, 17], 0, 30)


@pytest.mark.parametrize("unencoded", [False, True], ids=["a list of terms", "not encoded yet"])
def test_a_small_remainder_is_copied_out_of_a_large_batch(unencoded: bool) -> None:
    run = run_of(0, 100, unencoded=unencoded, expiry_us=list(range(100)))
    batch = run.batch
    run.take_left(50)
    assert run.settle().batch is batch
    run.take_left(1)
    assert run.settle().batch is not batch
    assert (run.batch.count, run.low) == (49, 0)
    assert seq_ids(run) == list(range(51, 100))
    assert [run.batch.expiry(index) for index in range(49)] == list(range(51, 100))
    assert isinstance(run.batch.terms, UnencodedTerms) is unencoded


def test_a_small_batch_is_not_worth_copying_out_of() -> None:
    run = run_of(0, 64)
    batch = run.batch
    run.take_left(63)
    assert run.settle().batch is batch


def test_a_paged_run_has_no_payloads_and_gets_them_back() -> None:
    run = run_of(0, 5, embedded=False)
    run.flags |= IN_STORE
    paged = run.window(1, 3).paged(run.flags)
    assert (paged.in_ram, paged.batch.terms, seq_ids(paged)) == (False, None, [1, 2, 3])
    with pytest.raises(RuntimeError, match="paged"):
        paged.terms()
    with pytest.raises(RuntimeError, match="paged"):
        paged.batch.term(0)
    assert seq_ids(paged.with_terms([term(n) for n in (1, 2, 3)])) == [1, 2, 3]
    assert run.in_ram


def test_terms_of_different_lengths_lie_in_one_buffer() -> None:
    packed = PackedTerms(b"-onethree-", [1, 4], [3, 5])
    assert (len(packed), packed.term(1), packed.many(0, 2)) == (2, b"three", [b"one", b"three"])


@pytest.mark.parametrize(
    ("offsets", "lengths"),
    [
        ([1, 4, 10], [3, 5, 2]),
        ([10, 4, 1], [2, 5, 3]),
        (range(1, 13, 4), 3),
        (range(9, 0, -4), 3),
        ([1, 60, 94], [3, 3, 2]),
    ],
    ids=["ascending", "descending", "of one length", "of one length, descending", "far apart"],
)
def test_a_part_of_a_buffer_holds_little_else(offsets: Sequence[int], lengths: int | list[int]) -> None:
    packed = PackedTerms(bytes(range(100)), offsets, lengths)
    for low, high in ((0, 3), (1, 3), (0, 2), (2, 3)):
        part = packed.part(low, high)
        assert (len(part), part.many(0, high - low)) == (high - low, packed.many(low, high))
        assert [part.term(index) for index in range(high - low)] == packed.many(low, high)
        assert len(part.blob) <= 2 * sum(map(len, packed.many(low, high)))


def test_single_messages_join_the_open_batch() -> None:
    batch = open_batch(msg_id(0), SIZE, 0, term(0))
    run = Run(0, batch, 0, 1, IN_RAM)
    batch.join(open_batch(msg_id(1), SIZE + 5, 77, term(1)))
    run.count += 1
    assert run.msg_ids() == [msg_id(0), msg_id(1)]
    assert (run.terms(), run.bytes) == ([term(0), term(1)], 2 * SIZE + 5)
    assert [batch.expiry(0), batch.expiry(1)] == [0, 77]


def test_a_sealed_batch_is_not_joined() -> None:
    with pytest.raises(RuntimeError, match="sealed"):
        run_of(0, 3).batch.join(open_batch(msg_id(3), SIZE, 0, term(3)))


def test_a_run_goes_on_only_in_its_own_batch_as_the_same_kind() -> None:
    run = run_of(0, 10)
    left = run.take_left(4)
    assert left.continues(run)
    assert not run.continues(left)
    assert not left.continues(run.window(1, 3))
    assert not left.continues(run_of(4, 6))
    run.flags |= DELIVERED
    assert not left.continues(run)


# Queues of runs


def test_cut_runs_that_go_on_are_joined_again() -> None:
    run = run_of(0, 30)
    parts = [run.take_left(10), run.take_left(10), run]
    queue = RunQueue([parts[1]])
    queue.append(parts[2])
    queue.prepend(parts[0])
    assert [seq_ids(one) for one in queue] == [list(range(30))]


def test_a_queue_gives_at_most_one_run_at_a_time() -> None:
    queue = RunQueue([run_of(0, 3), run_of(5, 3)])
    assert seq_ids(queue.take_left(5)) == [0, 1, 2]
    assert seq_ids(queue.take_right(2)) == [6, 7]
    assert (len(queue), queue.first_seq_id, queue.last_seq_id) == (1, 5, 5)


def test_a_single_message_grows_the_tail() -> None:
    queue = RunQueue([Run(0, open_batch(msg_id(0), SIZE, 0, term(0)), 0, 1, IN_RAM)])
    queue.tail.batch.join(open_batch(msg_id(1), SIZE, 0, term(1)))
    queue.grow_tail()
    assert (len(queue), all_of(queue)) == (2, [0, 1])


@pytest.mark.parametrize(
    ("runs", "complaint"),
    [
        ([run_of(3, 2), run_of(4, 1)], "out of order"),
        ([run_of(3, 2), run_of(1, 1)], "out of order"),
        ([run_of(3, 0)], "empty"),
        ([Run(0, run_of(0, 3).batch, 1, 3, 0)], "outside its batch"),
        ([run_of(99, 2)], "crosses a segment boundary"),
    ],
    ids=["overlap", "order", "empty", "outside", "boundary"],
)
def test_a_contradictory_queue_is_found_out(runs: list[Run], complaint: str) -> None:
    with pytest.raises(RuntimeError, match=complaint):
        RunQueue(runs).check_invariants(SEGMENT)


def test_a_wrong_count_is_found_out() -> None:
    queue = RunQueue([run_of(0, 3)])
    queue.head.count -= 1
    with pytest.raises(RuntimeError, match="3 messages counted, 2 there"):
        queue.check_invariants(SEGMENT)


counts = st.integers(min_value=1, max_value=90)


class QueueMachine(RuleBasedStateMachine):
    """A queue of runs against a list of seq_ids, which lie between 0 and 20 segments."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = RunQueue()
        self.model: list[int] = []
        self.out: list[int] = []
        """Taken out, in between or at the ends."""
        self.low = self.high = 10 * SEGMENT

    @rule(gap=st.sampled_from([0, 0, 0, 3]), count=counts, unencoded=st.booleans())
    def append(self, gap: int, count: int, unencoded: bool) -> None:
        start = self.high + gap
        count = min(count, SEGMENT - start % SEGMENT)
        self.queue.append(run_of(start, count, unencoded=unencoded))
        self.model += range(start, start + count)
        self.high = start + count

    @precondition(lambda self: self.low > 200)
    @rule(gap=st.sampled_from([0, 0, 3]), count=counts)
    def prepend(self, gap: int, count: int) -> None:
        end = self.low - gap
        start = max(end - count, (end - 1) // SEGMENT * SEGMENT)
        self.queue.prepend(run_of(start, end - start))
        self.model[:0] = range(start, end)
        self.low = start

    @precondition(lambda self: self.model)
    @rule(count=counts)
    def take_left(self, count: int) -> None:
        taken = seq_ids(self.queue.take_left(count))
        assert 0 < len(taken) <= count
        assert taken == self.model[: len(taken)]
        del self.model[: len(taken)]
        self.out += taken

    @precondition(lambda self: self.model)
    @rule(count=counts)
    def take_right(self, count: int) -> None:
        taken = seq_ids(self.queue.take_right(count))
        assert 0 < len(taken) <= count
        assert taken == self.model[-len(taken) :]
        del self.model[-len(taken) :]
        self.out += taken

    @precondition(lambda self: self.model)
    @rule(
        chosen=st.lists(st.tuples(st.integers(0, 300), st.integers(1, 60)), min_size=1, max_size=6),
        sparse=st.booleans(),
    )
    def remove(self, chosen: list[tuple[int, int]], sparse: bool) -> None:
        """What is held of some stretches, or of every second message of them, from wherever it stands."""
        wanted = {self.model[0] - 5 + low + n * (1 + sparse) for low, count in chosen for n in range(count)}
        ranges = tag_ranges(sorted(wanted))
        found = all_of(self.queue.within(ranges))
        assert found == [n for n in self.model if n in wanted]
        self.queue.remove(ranges)
        self.model = [n for n in self.model if n not in wanted]
        self.out += found

    @precondition(lambda self: self.out)
    @rule(data=st.data())
    def merge(self, data: st.DataObject) -> None:
        """Some of what was taken out comes back, each in its place."""
        back = sorted(data.draw(st.sets(st.sampled_from(self.out), max_size=20)))
        self.queue.merge([run_of(n) for n in back])
        self.model = sorted(self.model + back)
        self.out = [n for n in self.out if n not in back]

    @rule(count=counts)
    def extend(self, count: int) -> None:
        count = min(count, SEGMENT - self.high % SEGMENT)
        self.queue.extend(RunQueue([run_of(self.high, count)]))
        self.model += range(self.high, self.high + count)
        self.high += count

    @invariant()
    def it_holds_what_the_list_holds(self) -> None:
        assert all_of(self.queue) == self.model
        assert len(self.queue) == len(self.model)
        assert bool(self.queue) == bool(self.model)
        if self.model:
            assert (self.queue.first_seq_id, self.queue.last_seq_id) == (self.model[0], self.model[-1])
        self.queue.check_invariants(SEGMENT)


def test_what_is_cut_out_of_the_middle_leaves_windows_and_few_of_them_keep_a_large_batch() -> None:
    queue = RunQueue([run_of(0, 100), run_of(100, 10)])
    queue.remove([range(20, 25), range(99, 101)])
    assert [(run.start, run.end) for run in queue] == [(0, 20), (25, 99), (101, 110)]
    assert [run.batch.count for run in queue] == [20, 100, 10], "copied out, a window on most, and a small one"


# Pending acks


def test_a_thousand_acks_are_one_cut() -> None:
    pending = PendingAcks()
    pending.add(run_of(0, 2000))
    assert [seq_ids(run) for run in pending.remove(500, 1500)] == [list(range(500, 1500))]
    assert [(run.start, run.end) for run in pending] == [(0, 500), (1500, 2000)]
    assert [run.batch.count for run in pending] == [500, 500]


def test_runs_of_one_batch_that_go_on_are_held_as_one() -> None:
    run, pending = run_of(0, 10), PendingAcks()
    pending.add(run.take_left(4))
    pending.add(run)
    assert [(run.start, run.end) for run in pending] == [(0, 10)]


@pytest.mark.parametrize("unencoded", [False, True])
def test_runs_with_holes_let_go_of_payloads_and_keep_what_is_pending(unencoded: bool) -> None:
    pending, run = PendingAcks(), run_of(0, 1000, unencoded=unencoded)
    pending.add(run)
    for first in (0, 2, 3):
        [piece] = pending.remove(first, 1000, 4)
        assert seq_ids(piece) == list(range(first, 1000, 4))
    assert [seq_id for one in pending for seq_id in seq_ids(one)] == list(range(1, 1000, 4))
    held = next(iter(pending)).batch
    assert held is not run.batch
    assert isinstance(held.terms, UnencodedTerms) == unencoded
    bodies: Any = held.terms.given if isinstance(held.terms, UnencodedTerms) else held.terms
    assert [bool(one) for one in bodies or ()] == [row % 4 == 1 for row in range(1000)]
    pending.add(run_of(2, 1))
    pending.add(run_of(998, 8))
    assert all_of(pending) == sorted([*range(1, 1000, 4), 2, *range(998, 1006)])
    assert all_of(pending.remove(0, 2000)) == sorted([*range(1, 1000, 4), 2, *range(998, 1006)])
    assert len(pending) == 0


def test_a_message_that_was_requeued_comes_to_where_a_run_with_holes_begins() -> None:
    pending = PendingAcks()
    pending.add(run_of(10, 10))
    pending.remove(10, 20, 3)
    pending.add(run_of(10, 1))
    assert all_of(pending) == [10, 11, 12, 14, 15, 17, 18]
    assert all_of(pending.remove(10, 15)) == [10, 11, 12, 14]
    assert all_of(pending) == [15, 17, 18]


def test_an_ack_of_what_is_not_pending_removes_nothing() -> None:
    pending = PendingAcks()
    assert pending.remove(0, 1000) == []
    pending.add(run_of(5, 3))
    assert pending.remove(0, 5) == pending.remove(8, 9) == pending.remove(6, 6) == []
    assert pending.find(4) is pending.find(8) is None
    assert pending.within(0, 5) == pending.within(8, 9) == []
    assert all_of(pending) == [5, 6, 7]


class PendingMachine(RuleBasedStateMachine):
    """Pending acks against a set."""

    def __init__(self) -> None:
        super().__init__()
        self.pending = PendingAcks()
        self.model: set[int] = set()

    @rule(start=st.integers(0, 300), count=counts, cut=counts)
    def add(self, start: int, count: int, cut: int) -> None:
        """Whatever is free from ``start`` on, in one run or two."""
        end = min((n for n in self.model if n >= start), default=start + count)
        count = min(count, end - start)
        if count > 0:
            run = run_of(start, count)
            if cut < count:
                self.pending.add(run.take_left(cut))
            self.pending.add(run)
            self.model |= set(range(start, start + count))

    @rule(start=st.integers(0, 400), count=st.integers(0, 100))
    def remove(self, start: int, count: int) -> None:
        wanted = {n for n in self.model if start <= n < start + count}
        assert all_of(self.pending.within(start, start + count)) == sorted(wanted)
        assert all_of(self.pending.remove(start, start + count)) == sorted(wanted)
        self.model -= wanted

    @rule(start=st.integers(0, 400), count=st.integers(0, 100), step=st.integers(2, 5))
    def remove_every_nth(self, start: int, count: int, step: int) -> None:
        wanted = self.model.intersection(range(start, start + count, step))
        removed = self.pending.remove(start, start + count, step)
        assert [seq_id for run in removed for seq_id in seq_ids(run)] == sorted(wanted)
        self.model -= wanted

    @precondition(lambda self: self.model)
    @rule(count=counts)
    def pop_largest(self, count: int) -> None:
        taken = seq_ids(self.pending.pop_largest(count))
        assert 0 < len(taken) <= count
        assert taken == sorted(self.model)[-len(taken) :]
        self.model -= set(taken)

    @rule(seq_id=st.integers(0, 400))
    def find(self, seq_id: int) -> None:
        found = self.pending.find(seq_id)
        assert (found is not None) == (seq_id in self.model)
        assert found is None or seq_ids(found) == [seq_id]

    @rule()
    def clear(self) -> None:
        assert all_of(self.pending.clear()) == sorted(self.model)
        self.model.clear()

    @invariant()
    def it_holds_what_the_set_holds(self) -> None:
        assert all_of(self.pending) == sorted(self.model)
        assert len(self.pending) == len(self.model)


TestQueueAgainstAList = QueueMachine.TestCase
TestQueueAgainstAList.settings = settings(max_examples=times(60), stateful_step_count=30)
TestPendingAcksAgainstASet = PendingMachine.TestCase
TestPendingAcksAgainstASet.settings = settings(max_examples=times(60), stateful_step_count=30)
