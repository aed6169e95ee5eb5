"""A quorum queue's machine: what each command does, in named situations."""

from __future__ import annotations

import pytest

from tests.support.quorum_state import (
    AT_LEAST_ONCE,
    NODE,
    OTHER_NODE,
    Driven,
    again,
    body,
    consumer,
    got,
    pid,
    settings,
    state_term,
    subscribed,
)
from warren.salvage.quorum.fifo.commands import (
    Cancel,
    Checkout,
    ConsumerTimeout,
    Credit,
    DeadLetterCheckout,
    DeadLetterSettle,
    Discard,
    Down,
    Enqueue,
    MachineVersion,
    Modify,
    NewCluster,
    NodeUp,
    Nothing,
    PurgeNodes,
    RegisterEnqueuer,
    Requeue,
    Return,
    Settle,
    Unknown,
    UpdateConfig,
)
from warren.salvage.quorum.fifo.machine import QuorumMachine
from warren.storage.erlang_terms import Atom, ImproperList, Term
from warren.storage.errors import TermError

A, B, C = consumer("a", 100), consumer("b", 101), consumer("c", 102)
TICK = Nothing("timeout", True)


# Publishing.


def test_registering_again_keeps_the_number() -> None:
    queue = Driven()
    queue.apply(RegisterEnqueuer(pid(1)), Enqueue(pid(1), 1, body()), RegisterEnqueuer(pid(1)))
    queue.apply(Enqueue(pid(1), 1, body()), Enqueue(pid(1), 2, body()))
    assert queue.ready() == [2, 5]


def test_a_message_without_a_publisher_is_always_taken() -> None:
    queue = Driven()
    queue.apply(Enqueue(None, None, body()), Enqueue(None, None, body()))
    assert queue.ready() == [1, 2]


def test_after_a_hole_a_number_may_jump_forward_once() -> None:
    queue = Driven()
    queue.apply(Enqueue(pid(1), 1, body()))
    queue.machine.publishers.after_hole()
    queue.apply(*(Enqueue(pid(1), seq, body()) for seq in (1, 5, 7, 6)))  # 5 was next after the hole, 7 came too early
    assert queue.ready() == [1, 3, 5]
    queue.apply(Enqueue(pid(2), 9, body()))  # began in the hole
    assert queue.ready() == [1, 3, 5, 6]


def test_one_that_registers_behind_a_hole_begins_at_1() -> None:
    queue = Driven()
    queue.machine.publishers.after_hole()
    queue.apply(RegisterEnqueuer(pid(1)), Enqueue(pid(1), 2, body()), Enqueue(pid(1), 1, body()))
    assert queue.ready() == [3]
    queue.machine.publishers.after_hole()
    queue.apply(Enqueue(pid(1), 8, body()))
    assert queue.ready() == [3, 4]


# Deliveries.


def test_basic_get_takes_the_head_and_keeps_its_consumer_until_it_is_settled() -> None:
    queue = Driven()
    one, two, three = queue.publish(3)
    queue.apply(got(consumer("1")), got(consumer("2"), settled=True), got(consumer("1")))
    assert queue.out() == {consumer("1"): {0: one}}
    assert queue.ready() == [three]
    queue.settle(consumer("1"), 0)
    assert queue.machine.messages.out_count == 0
    queue.apply(got(consumer("1")))
    assert queue.out() == {consumer("1"): {0: three}}
    assert two not in queue.ready()


def test_credited_consumers_get_credit_only_by_the_command() -> None:
    queue = Driven()
    one, two, three, four = queue.publish(4)
    queue.apply(subscribed(A, 0, mode="credited"))
    assert queue.ready() == [one, two, three, four]
    queue.apply(Credit(A, 2, 0, False))
    queue.settle(A, 0, 1)
    assert queue.ready() == [three, four]
    queue.apply(Credit(A, 2, 1, False))  # seen by the consumer after one delivery; the second was on its way
    assert queue.out() == {A: {2: three}}


def test_less_credit_than_what_was_on_its_way_is_none() -> None:
    queue = Driven()
    queue.publish(5)
    queue.apply(subscribed(A, 0, mode="credited"), Credit(A, 3, 0, False), Credit(A, 1, 0, False))
    assert queue.machine.messages.out_count == 3
    queue.apply(Credit(A, 1, 3, False))
    assert queue.machine.messages.out_count == 4


def test_drained_credit_is_used_up() -> None:
    queue = Driven()
    queue.apply(subscribed(A, 0, mode="credited"), Credit(A, 5, 0, True))
    queue.publish(1)
    assert queue.machine.messages.out_count == 0
    queue.apply(Credit(A, 1, 5, False))
    assert queue.machine.messages.out_count == 1


def test_from_version_3_on_credit_stays_below_the_prefetch() -> None:
    queue = Driven(3)
    queue.publish(6)
    queue.apply(subscribed(A, 3), subscribed(A, 1))
    queue.settle(A, 0)
    assert list(queue.out()[A]) == [1, 2, 3]
    queue.settle(A, 1, 2)
    assert list(queue.out()[A]) == [3, 4], "two settled, credit for one"


# Returns.


def test_a_return_gives_credit_for_one_in_every_version() -> None:
    for version in range(2, 8):
        queue = Driven(version)
        queue.publish(9)
        queue.apply(subscribed(A, 3), Return(A, [1]))
        assert list(queue.out()[A]) == [0, 2, 3], version


def test_a_requeued_message_comes_last_under_its_new_index() -> None:
    queue = Driven()
    one, two = queue.publish(2)
    queue.apply(got(A), Requeue(A, 0, one, 10, body()))
    assert queue.counts() == [(two, 0), (queue.index, 1)]
    queue.apply(Requeue(A, 0, one, 10, body()))
    assert len(queue.ready()) == 2


# Nodes.


def test_nodes_that_left_take_their_processes_with_them() -> None:
    queue = Driven()
    away = consumer("a", 100, OTHER_NODE)
    one, two = queue.publish(2)
    queue.apply(got(away), subscribed(B, 0), Enqueue(pid(5, OTHER_NODE), 1, body()))
    queue.apply(PurgeNodes((OTHER_NODE,)), Enqueue(pid(5, OTHER_NODE), 1, body()))
    assert queue.counts() == [(one, 1), (two, 0), (5, 0), (7, 0)]


# Limits and time.


def test_over_the_bytes_the_head_goes() -> None:
    queue = Driven(of=settings(max_bytes=25))
    queue.publish(2)
    (big,) = queue.publish(size=20)
    assert queue.ready() == [big]
    queue.publish(size=26)
    assert not queue.ready()


def test_a_queue_that_rejects_publishes_drops_nothing() -> None:
    queue = Driven(of=settings(max_length=1, overflow_strategy=Atom("reject_publish")))
    assert queue.publish(3) == queue.ready()


def test_settings_change_at_once() -> None:
    queue = Driven()
    indexes = queue.publish(4)
    queue.apply(UpdateConfig(settings(max_length=1)))
    assert queue.ready() == indexes[3:]
    queue.apply(UpdateConfig({Atom("max_length"): 0}))
    assert queue.ready() == indexes[3:], "without a dead_letter_handler version 2 does not know the command"


def test_an_expired_message_goes_when_it_is_the_head() -> None:
    queue = Driven(of=settings(msg_ttl=100))
    queue.publish()
    queue.now_ms = 1050
    (later,) = queue.publish()
    (soon,) = queue.publish(ttl_ms=10)
    queue.now_ms = 1099
    queue.apply(TICK)
    assert queue.machine.ready_count == 3, "one millisecond early, and behind it nothing is looked at"
    queue.now_ms = 1100
    queue.apply(Nothing("garbage_collection", True))
    assert queue.machine.ready_count == 3, "without a checkout"
    queue.apply(TICK)
    assert queue.ready() == [later, soon]
    queue.now_ms = 1150
    queue.apply(TICK)
    assert not queue.ready()


def test_basic_get_of_messages_that_all_expired_gets_none() -> None:
    queue = Driven()
    queue.publish(2, ttl_ms=50)
    queue.now_ms = 2000
    queue.apply(got(A))
    assert (queue.machine.ready_count, queue.machine.messages.out_count) == (0, 0)
    queue.publish()
    assert queue.machine.messages.out_count == 0


# Dead letters that are sent on at least once.


def test_dead_letters_stay_until_they_have_arrived() -> None:
    queue = Driven(of=AT_LEAST_ONCE)
    one, two, three = queue.publish(3)
    queue.apply(DeadLetterCheckout(pid(50), 1))
    queue.apply(subscribed(A, 3), Discard(A, [2, 0]))
    assert [letter.message.index for letter in queue.machine.messages.dead_letters] == [three, one]
    assert queue.machine.payload_bytes == 10
    queue.apply(DeadLetterSettle([0]))
    assert [letter.message.index for letter in queue.machine.messages.dead_letters] == [one]
    queue.apply(DeadLetterSettle([0]), DeadLetterSettle([1]))
    assert len(queue.machine.messages.dead_letters) == 0
    assert queue.out() == {A: {1: two}}


def test_a_new_worker_gets_what_the_old_one_held_first() -> None:
    queue = Driven(of=AT_LEAST_ONCE)
    indexes = queue.publish(3)
    queue.apply(DeadLetterCheckout(pid(50), 2), subscribed(A, 3), Discard(A, [0, 1, 2]))
    queue.apply(DeadLetterCheckout(pid(51), 2), DeadLetterSettle([0]))
    assert [letter.message.index for letter in queue.machine.messages.dead_letters] == indexes[1:]
    assert {letter.reason for letter in queue.machine.messages.dead_letters} == {"rejected"}


def test_expired_and_often_returned_messages_become_dead_letters_too() -> None:
    queue = Driven(of=AT_LEAST_ONCE | {Atom("delivery_limit"): 0})
    queue.publish(ttl_ms=10)
    queue.apply(got(A), Return(A, [0]))
    queue.publish(ttl_ms=10)
    queue.now_ms = 2000
    queue.apply(TICK)
    assert [letter.reason for letter in queue.machine.messages.dead_letters] == ["delivery_limit", "expired"]


def test_a_queue_that_no_longer_sends_on_at_least_once_forgets_its_dead_letters() -> None:
    queue = Driven(of=AT_LEAST_ONCE)
    queue.publish(1)
    queue.apply(subscribed(A, 3), Discard(A, [0]), UpdateConfig(AT_LEAST_ONCE))
    assert len(queue.machine.messages.dead_letters) == 1
    queue.apply(UpdateConfig(settings()))
    assert len(queue.machine.messages.dead_letters) == 0


# A single active consumer.


def test_only_the_active_consumer_gets_messages_and_the_next_one_takes_over() -> None:
    queue = Driven(of=settings(single_active_consumer_on=True))
    queue.apply(subscribed(B, 1), subscribed(A, 1), subscribed(C, 1))
    one, two, three = queue.publish(3)
    assert queue.out() == {B: {0: one}}
    queue.cancel(B)
    assert queue.out() == {A: {0: two}, B: {0: one}}
    queue.apply(Down(A[1], "normal"))
    assert queue.out() == {B: {0: one}, C: {0: two}}
    assert queue.ready() == [three]


def test_a_waiting_consumer_that_is_down_or_cancelled_does_not_take_over() -> None:
    queue = Driven(of=settings(single_active_consumer_on=True))
    queue.apply(subscribed(A, 1), subscribed(B, 1), subscribed(C, 1), Down(B[1], "normal"), Cancel(C), Cancel(A))
    queue.publish(1)
    assert queue.machine.messages.out_count == 0


def test_basic_get_is_refused_with_a_single_active_consumer() -> None:
    queue = Driven(of=settings(single_active_consumer_on=True))
    queue.publish(1)
    queue.apply(got(A))
    assert queue.machine.messages.out_count == 0


def test_priorities_of_those_that_wait_count_from_4_0_on() -> None:
    for version, following in ((2, B), (3, B), (4, C)):
        queue = Driven(version, settings(single_active_consumer_on=True))
        queue.apply(subscribed(A, 1, priority=9), subscribed(B, 1), subscribed(C, 1, priority=5), Cancel(A))
        (one,) = queue.publish(1)
        assert queue.out() == {following: {0: one}}, version


def test_of_the_same_priority_who_has_more_credit_is_next_then_who_is_older() -> None:
    queue = Driven(4, settings(single_active_consumer_on=True))
    queue.apply(*(subscribed(one, credit, keyed=True) for one, credit in ((A, 1), (B, 1), (C, 2))))
    queue.apply(subscribed(consumer("d", 103), 2, keyed=True), Cancel(A))
    (one,) = queue.publish(1)
    assert queue.out() == {3: {0: one}}


def test_priorities_count_after_a_change_to_4_0() -> None:
    queue = Driven(3, settings(single_active_consumer_on=True))
    queue.apply(subscribed(A, 1), MachineVersion(4), subscribed(B, 1, priority=1))
    (one,) = queue.publish(1)
    assert queue.out() == {B: {0: one}}


def test_a_higher_priority_takes_over_when_the_active_consumer_has_finished() -> None:
    queue = Driven(4, settings(single_active_consumer_on=True))
    one, two = queue.publish(2)
    queue.apply(subscribed(A, 1), subscribed(B, 5, priority=1))
    assert queue.out() == {A: {0: one}}
    queue.settle(A, 0)
    assert queue.out() == {B: {0: two}}


def test_a_higher_priority_takes_over_at_once_where_nothing_is_out() -> None:
    queue = Driven(4, settings(single_active_consumer_on=True))
    queue.apply(subscribed(A, 1), subscribed(B, 1, priority=1))
    (one,) = queue.publish(1)
    assert queue.out() == {B: {0: one}}
    queue.cancel(B)
    queue.settle(B, 0)
    (two,) = queue.publish(1)
    assert queue.out() == {A: {0: two}}


def test_the_active_consumer_of_a_lost_node_waits_and_the_next_one_takes_over() -> None:
    queue = Driven(of=settings(single_active_consumer_on=True))
    away = consumer("a", 100, OTHER_NODE)
    queue.apply(subscribed(away, 1), subscribed(B, 1))
    (one,) = queue.publish(1)
    queue.apply(Down(pid(7, OTHER_NODE), "noconnection"))
    assert queue.out() == {B: {0: one}}
    queue.apply(NodeUp(OTHER_NODE))
    queue.settle(B, 0)
    queue.cancel(B)
    (two,) = queue.publish(1)
    assert queue.out() == {away: {1: two}}


# Later versions.


def test_from_4_0_on_a_consumer_is_named_by_the_index_of_its_checkout() -> None:
    queue = Driven(4)
    queue.apply(Nothing("undefined", False), subscribed(A, 1, keyed=True))
    one, two = queue.publish(2)
    assert queue.out() == {2: {0: one}}
    queue.settle(A, 0)
    assert queue.out() == {2: {1: two}}, "its tag and pid still find it"
    queue.apply(Return(2, [1]), Settle(2, [2]))
    assert queue.machine.messages.out_count == 0
    queue.apply(subscribed(A, 1, keyed=True))
    queue.publish(1)
    assert list(queue.out()) == [2], "attached again it keeps its number"


def test_4_0_discards_only_by_the_consumers_number() -> None:
    for version, out in ((4, 1), (5, 0)):
        queue = Driven(version)
        queue.publish(1)
        queue.apply(subscribed(A, 1, keyed=True), Discard(A, [0]))
        assert queue.machine.messages.out_count == out, version


def test_from_4_0_on_a_return_is_no_failed_delivery_but_counts_for_the_limit() -> None:
    queue = Driven(4, settings(delivery_limit=2))
    queue.publish(1)
    queue.apply(got(A), Return(A, [0]))
    queue.apply(got(A), Modify(A, [0], True, False, {}))
    assert [(m.delivery_count, m.acquired_count) for m in queue.machine.ready()] == [(1, 2)]
    queue.apply(got(A), Down(A[1], "normal"))
    assert not queue.ready()


def test_a_modify_may_be_a_discard() -> None:
    queue = Driven(4, AT_LEAST_ONCE)
    queue.publish(1)
    queue.apply(got(A), Modify(A, [0], True, True, {}))
    assert len(queue.machine.messages.dead_letters) == 1


def test_commands_of_later_versions_change_nothing_before() -> None:
    queue = Driven(3)
    queue.publish(1)
    queue.apply(got(A), Modify(A, [0], True, False, {}), ConsumerTimeout(None))
    assert queue.machine.messages.out_count == 1


def test_a_limit_below_0_is_none_from_4_0_on() -> None:
    for version, left in ((3, 0), (4, 1)):
        queue = Driven(version, settings(delivery_limit=-1))
        queue.publish(1)
        queue.apply(got(A), Return(A, [0]))
        assert queue.machine.ready_count == left, version


def test_removed_consumers_give_back() -> None:
    queue = Driven(4)
    (one,) = queue.publish(1)
    queue.apply(subscribed(A, 1), Cancel(A, removes=True))
    assert queue.counts() == [(one, 0)]


def test_of_three_deliveries_the_third_is_the_older_of_high_and_normal() -> None:
    queue = Driven(4)
    normal = queue.publish(4)
    high = queue.publish(4, priority=9)
    expected = [high[0], high[1], normal[0], high[2], high[3], normal[1], normal[2], normal[3]]
    assert queue.ready() == expected
    queue.apply(subscribed(A, 8))
    assert list(queue.out()[A].values()) == expected


def test_high_messages_that_are_older_go_in_any_turn() -> None:
    queue = Driven(4)
    high = queue.publish(4, priority=5)
    normal = queue.publish(1, priority=4)
    assert queue.ready() == [*high, *normal]


def test_before_4_0_there_are_no_priorities() -> None:
    queue = Driven(3)
    assert queue.publish(1) + queue.publish(1, priority=9) == queue.ready()


def test_a_leader_of_a_newer_version_changes_the_rules() -> None:
    queue = Driven(2)
    one, two, three = queue.publish(3)
    queue.apply(got(A), Return(A, [0]), MachineVersion(2), MachineVersion(4))
    assert queue.machine.machine_version == 4
    (high,) = queue.publish(1, priority=9)
    assert queue.ready() == [one, high, two, three]
    assert next(queue.machine.ready()).acquired_count == 1
    queue.apply(MachineVersion(3))
    assert queue.machine.machine_version == 4


def test_credit_of_4_0_counts_modulo_2_to_32() -> None:
    queue = Driven(4)
    begin = (1 << 32) - 1
    queue.apply(Checkout(A, "auto", False, 0, "credited", 0, True, begin), Credit(1, 2, begin, False))
    queue.publish(3)
    assert len(queue.out()[1]) == 2
    queue.apply(Credit(1, 1, 1, True))
    assert len(queue.out()[1]) == 3


# The restart, and the whole.


def test_restart_returns_process_by_process_what_was_out() -> None:
    queue = Driven()
    one, two, three, four = queue.publish(4)
    queue.apply(got(consumer("x", 9)), got(consumer("a", 8)), got(consumer("b", 8)))
    queue.machine.restart()
    queue.machine.check_invariants()
    assert queue.counts() == [(two, 1), (three, 1), (one, 1), (four, 0)]
    assert queue.machine.messages.out_count == 0


def test_restart_hands_out_to_those_that_are_still_to_be_found_gone() -> None:
    queue = Driven()
    one, two = queue.publish(2)
    queue.apply(got(consumer("a", 8)), got(consumer("b", 9)), subscribed(consumer("c", 10), 5))
    queue.machine.restart()
    assert queue.counts() == [(one, 2), (two, 2)]


def test_restart_keeps_and_tells_what_passes_the_limit_in_its_place() -> None:
    queue = Driven(of=settings(delivery_limit=1))
    one, two, three, four = queue.publish(4)
    queue.apply(got(A), got(B), Return(B, [0]), got(B), got(C))
    queue.machine.restart()
    queue.machine.check_invariants()
    assert queue.counts() == [(one, 1), (two, 2), (three, 1), (four, 0)]
    assert queue.machine.messages.past_limit == {two: 2}
    assert queue.machine.payload_bytes == 40


def test_restart_keeps_what_passes_the_limit_and_was_the_first_to_return() -> None:
    queue = Driven(of=settings(delivery_limit=0))
    one, two = queue.publish(2)
    queue.apply(got(A))
    queue.machine.restart()
    queue.machine.check_invariants()
    assert queue.counts() == [(one, 1), (two, 0)]
    assert queue.machine.messages.past_limit == {one: 1}


def test_restart_keeps_and_tells_what_makes_the_queue_too_long() -> None:
    queue = Driven(of=settings(max_length=2))
    one, two = queue.publish(2)
    queue.apply(got(A))
    (three,) = queue.publish(1)
    queue.machine.restart()
    queue.machine.check_invariants()
    assert queue.counts() == [(one, 1), (two, 0), (three, 0)]
    assert queue.machine.messages.past_length == {one}


def test_restart_drops_nothing_that_has_expired() -> None:
    queue = Driven()
    (one,) = queue.publish(1, ttl_ms=10)
    queue.apply(got(A))
    queue.now_ms = 5000
    queue.apply(TICK)
    queue.machine.restart()
    assert queue.counts() == [(one, 1)]


def test_commands_that_are_not_known_are_refused() -> None:
    queue = Driven()
    with pytest.raises(ValueError, match="frobnicate"):
        queue.machine.apply(1, 0, Unknown("frobnicate"))
    with pytest.raises(ValueError, match="version 99"):
        queue.machine.apply(1, 0, MachineVersion(99))
    with pytest.raises(ValueError, match="version 1 "):
        QuorumMachine.new({}, 1)


def test_members_are_those_that_the_log_told_last() -> None:
    queue = Driven()
    queue.apply(NewCluster((("q", NODE),)), NewCluster((("q", NODE), ("q", OTHER_NODE))))
    assert queue.machine.members == (("q", NODE), ("q", OTHER_NODE))


@pytest.mark.parametrize("version", range(2, 8))
def test_a_snapshot_of_everything_is_the_same_queue(version: int) -> None:
    of = AT_LEAST_ONCE | {Atom("delivery_limit"): 5, Atom("msg_ttl"): 10**6, Atom("max_bytes"): 10**6}
    queue = Driven(version, of)
    queue.publish(3)
    queue.publish(2, priority=9, ttl_ms=500)
    queue.apply(DeadLetterCheckout(pid(50), 1), got(A), got(B), got(C), Return(B, [0]), Discard(C, [0]))
    queue.apply(subscribed(consumer("p", 60), 1, priority=3, keyed=version >= 4))
    queue.apply(Checkout(consumer("q", 61), "auto", False, 2, "credited", 0, version >= 4, 7, prefetch=0))
    copy = again(queue.machine)
    copy.check_invariants()
    assert state_term(copy) == state_term(queue.machine)
    assert list(copy.ready()) == list(queue.machine.ready())
    assert list(copy.outstanding()) == list(queue.machine.outstanding())
    assert list(copy.messages.dead_letters) == list(queue.machine.messages.dead_letters)


def test_a_states_queues_have_a_front_and_a_reversed_rear() -> None:
    state = state_term(Driven().machine)
    assert isinstance(state, tuple)
    one, two, three, four, five = (ImproperList((index,), 10) for index in range(1, 6))
    messages, returns = (3, [three, two], [one]), (2, ([five], [four]))
    machine = QuorumMachine.from_snapshot((*state[:2], messages, 5, returns, *state[5:]), {}, 2)
    machine.check_invariants()
    assert [message.index for message in machine.ready()] == [4, 5, 1, 2, 3]
    assert machine.payload_bytes == 50


def test_a_states_messages_have_headers_of_three_kinds() -> None:
    state = state_term(Driven().machine)
    assert isinstance(state, tuple)
    header: dict[Term, Term] = {Atom("size"): 3, Atom("delivery_count"): 2, Atom("expiry"): 77}
    front = [ImproperList((1,), 10), ImproperList((2, 20), 99), ImproperList((3,), header)]
    machine = QuorumMachine.from_snapshot((*state[:2], (3, [], front), 3, *state[4:]), {}, 2)
    assert [tuple(message)[:4] for message in machine.ready()] == [(1, 10, None, 0), (2, 20, 99, 0), (3, 3, 77, 2)]


def test_a_snapshot_with_waiting_consumers_is_the_same_queue() -> None:
    queue = Driven(of=settings(single_active_consumer_on=True))
    queue.apply(subscribed(A, 1), subscribed(B, 1), subscribed(C, 1))
    copy = again(queue.machine)
    for machine in (copy, queue.machine):
        machine.apply(10, 1, Cancel(A))
        machine.apply(11, 1, Enqueue(None, None, body()))
    assert list(copy.outstanding()) == list(queue.machine.outstanding())


def test_a_state_of_another_shape_is_refused() -> None:
    state = state_term(Driven().machine)
    assert isinstance(state, tuple)
    for at in (0, 1, 2, 4, 6, 9, 10, 11, 14):
        with pytest.raises(TermError):
            QuorumMachine.from_snapshot((*state[:at], Atom("nonsense"), *state[at + 1 :]), {}, 2)
    with pytest.raises(TermError):
        QuorumMachine.from_snapshot(state[:-1], {}, 2)
    with pytest.raises(ValueError, match="version 10 "):
        QuorumMachine.from_snapshot(state, {}, 10)


def test_a_state_with_a_message_in_two_places_is_refused() -> None:
    queue = Driven()
    queue.publish(1)
    state = state_term(queue.machine)
    assert isinstance(state, tuple)
    with pytest.raises(TermError, match="two places"):
        QuorumMachine.from_snapshot((*state[:4], state[2], *state[5:]), {}, 2)
