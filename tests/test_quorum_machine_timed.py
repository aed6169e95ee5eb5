"""A quorum queue's machine from 4.3 on: messages are held for a time, returns may wait, 32 priorities."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from tests.support.effort import times
from tests.support.quorum_state import (
    AT_LEAST_ONCE,
    NODE,
    OTHER_NODE,
    Driven,
    body,
    consumer,
    encoded_pid,
    got,
    pid,
    settings,
    state_term,
    subscribed,
)
from warren.salvage.quorum.fifo.commands import (
    AssignDeferred,
    Cancel,
    Checkout,
    Command,
    ConsumerTimeout,
    Credit,
    DeadLetterCheckout,
    DeadLetterSettle,
    Discard,
    Down,
    Enqueue,
    MachineVersion,
    Modify,
    NodeUp,
    Nothing,
    Purge,
    PurgeNodes,
    Requeue,
    RetryDelayed,
    Return,
    Settle,
)
from warren.salvage.quorum.fifo.machine import QuorumMachine
from warren.storage.erlang_terms import Atom, ImproperList, Term
from warren.storage.errors import TermError

A, B = consumer("a", 100), consumer("b", 101)
AWAY = consumer("a", 100, OTHER_NODE)
TICK = Nothing("timeout", True)
LATE = ConsumerTimeout(None)
SINGLE = settings(single_active_consumer_on=True)


def retry(kind: str) -> dict[Term, Term]:
    return settings(delayed_retry=(Atom(kind), 100, 250))


def hurried(consumer_id: tuple[bytes, bytes], credit: int = 1, priority: int = 0) -> Checkout:
    """It may hold a message for 50 ms."""
    return Checkout(consumer_id, "auto", False, credit, "simple_prefetch", priority, timeout_ms=50)


def test_the_highest_priority_goes_first() -> None:
    queue = Driven(8)
    one, two, three, four = (queue.publish(priority=priority)[0] for priority in (None, 5, 99, 4))
    assert queue.ready() == [three, two, one, four]
    queue.apply(got(A))
    assert queue.out() == {A: {0: three}}


def test_a_messages_size_is_with_its_metadata() -> None:
    queue = Driven(8)
    queue.apply(Enqueue(None, None, body(10)._replace(metadata_size=7)))
    assert queue.machine.payload_bytes == 17


def test_the_limit_counts_failed_deliveries_only() -> None:
    queue = Driven(8, settings(delivery_limit=1))
    queue.publish(1)
    for _ in range(3):
        queue.apply(got(A), Return(A, [0]))
    queue.apply(got(A), Modify(A, [0], True, False, {}))
    assert [(m.delivery_count, m.acquired_count) for m in queue.machine.ready()] == [(1, 4)]
    queue.apply(got(A), Modify(A, [0], True, False, {}))
    assert not queue.ready()


def test_with_the_head_the_heads_of_all_priorities_expire() -> None:
    queue = Driven(8)
    (high,) = queue.publish(priority=9, ttl_ms=50)
    queue.publish(priority=1, ttl_ms=20)
    (normal,) = queue.publish()
    queue.publish(ttl_ms=10)
    queue.now_ms = 1030
    queue.apply(Enqueue(None, None, body()))
    assert queue.machine.ready_count == 5, "the head has not expired"
    queue.apply(TICK)
    assert queue.machine.ready_count == 4, "a timer looks behind the head"
    assert queue.ready()[:2] == [high, normal]


def test_a_message_that_is_held_too_long_returns_and_its_consumer_must_answer_for_it() -> None:
    queue = Driven(8)
    one, two, three = queue.publish(3)
    queue.apply(hurried(A, 2))
    queue.now_ms = 1049
    queue.apply(LATE)
    assert queue.machine.messages.out_count == 2
    queue.now_ms = 1050
    queue.apply(LATE)
    assert queue.counts() == [(one, 0), (two, 0), (three, 0)]
    queue.settle(A, 0)
    assert queue.machine.messages.out_count == 0, "one of two answered for"
    queue.settle(A, 1)
    assert queue.out() == {A: {2: one, 3: two}}


def test_a_return_answers_too_but_gives_no_turn() -> None:
    queue = Driven(8)
    (one,) = queue.publish(1)
    queue.apply(hurried(A))
    queue.now_ms = 2000
    queue.apply(LATE, Return(A, [0]))
    assert queue.machine.messages.out_count == 0
    queue.apply(Settle(A, []))
    assert queue.out() == {A: {1: one}}


def test_a_node_that_is_there_again_is_no_answer() -> None:
    queue = Driven(8)
    queue.publish(1)
    queue.apply(hurried(AWAY))
    queue.now_ms = 2000
    queue.apply(LATE, NodeUp(OTHER_NODE), Down(AWAY[1], "noconnection"), NodeUp(OTHER_NODE))
    assert queue.machine.messages.out_count == 0
    queue.settle(AWAY, 0)
    assert queue.machine.messages.out_count == 1


def test_one_that_waits_answers_by_its_number_too() -> None:
    queue = Driven(8, SINGLE)
    queue.publish(1)
    queue.apply(hurried(A)._replace(keyed=True))
    queue.now_ms = 2000
    queue.apply(LATE)
    assert queue.machine.messages.out_count == 0
    queue.apply(Settle(2, [0]))
    assert list(queue.out()) == [2]


def test_a_single_active_consumer_that_timed_out_waits_until_it_has_answered() -> None:
    queue = Driven(8, SINGLE)
    one, two = queue.publish(2)
    queue.apply(hurried(A), subscribed(B, 1))
    queue.now_ms = 2000
    queue.apply(LATE)
    assert queue.out() == {B: {0: one}}
    queue.apply(Cancel(B))
    assert queue.out() == {B: {0: one}}
    queue.apply(Settle(A, [0]))
    assert queue.out() == {A: {1: two}, B: {0: one}}


def test_a_process_that_is_away_keeps_what_it_holds_for_a_time() -> None:
    queue = Driven(8)
    one, two = queue.publish(2)
    queue.apply(subscribed(AWAY, 1), Down(AWAY[1], "noconnection"))
    assert queue.out() == {AWAY: {0: one}}
    queue.apply(Settle(AWAY, [0]))
    assert queue.machine.messages.out_count == 0, "it gets nothing while it is away"
    queue.apply(NodeUp(OTHER_NODE))
    assert queue.out() == {AWAY: {1: two}}
    queue.apply(ConsumerTimeout(AWAY))
    assert queue.out() == {AWAY: {1: two}}, "it is there again"
    queue.apply(Down(AWAY[1], "noconnection"), ConsumerTimeout(AWAY))
    assert queue.counts() == [(two, 0)]


def test_another_process_of_a_lost_node_is_not_meant() -> None:
    queue = Driven(8)
    queue.apply(subscribed(AWAY, 1), Down(pid(7, OTHER_NODE), "noconnection"))
    queue.publish(1)
    assert queue.machine.messages.out_count == 1


def test_a_single_active_consumer_that_is_away_stays_the_active_one_until_its_time_is_over() -> None:
    queue = Driven(8, SINGLE)
    one, two = queue.publish(2)
    queue.apply(subscribed(AWAY, 1), subscribed(B, 1), Down(AWAY[1], "noconnection"))
    queue.apply(subscribed(consumer("c", 102), 1))
    assert queue.out() == {AWAY: {0: one}}
    queue.apply(ConsumerTimeout(AWAY))
    assert queue.out() == {B: {0: one}}
    queue.settle(B, 0)
    assert queue.out() == {B: {1: two}}


@pytest.mark.parametrize(("kind", "failed", "waits"), [("all", False, True), ("failed", False, False)])
def test_returns_wait_as_the_settings_say(kind: str, failed: bool, waits: bool) -> None:
    queue = Driven(8, retry(kind))
    one, two = queue.publish(2)
    queue.apply(got(A), Modify(A, [0], failed, False, {}))
    assert queue.ready() == ([two, one] if waits else [one, two])
    queue.apply(got(B))
    assert queue.out() == {B: {0: two if waits else one}}


def test_failed_deliveries_wait_longer_each_time_up_to_a_limit() -> None:
    queue = Driven(8, retry("failed"))
    queue.publish(1)
    for wait in (100, 200, 250):
        queue.apply(got(A), Modify(A, [0], True, False, {}))
        queue.now_ms += wait - 1
        queue.apply(TICK, got(B))
        assert queue.machine.messages.out_count == 0, "a millisecond early"
        queue.now_ms += 1
        queue.apply(TICK)
    queue.apply(got(A))
    assert queue.machine.messages.out_count == 1


def test_a_consumer_may_say_when_a_message_comes_back() -> None:
    queue = Driven(8)
    one, two = queue.publish(2)
    queue.apply(got(A), Modify(A, [0], False, False, {b"x-opt-delivery-time": 5000}), got(B), got(consumer("c")))
    assert queue.out() == {B: {0: two}}
    assert queue.ready() == [one], "it counts among those that are ready"
    queue.apply(RetryDelayed(0), got(A))
    assert queue.machine.messages.out_count == 1
    queue.apply(RetryDelayed(None), got(A))
    assert queue.out() == {A: {0: one}, B: {0: two}}


def test_a_time_that_is_over_is_no_delay() -> None:
    queue = Driven(8)
    one, two = queue.publish(2)
    queue.apply(got(A), Modify(A, [0], False, False, {b"x-opt-delivery-time": 1000}))
    assert queue.ready() == [one, two]


def test_a_consumer_gets_what_it_put_aside_under_a_token() -> None:
    queue = Driven(8)
    queue.apply(subscribed(A, 2))
    one, two = queue.publish(2)
    for msg_id, token in ((0, b"x"), (1, b"y")):
        annotations: dict[Term, Term] = {b"x-opt-delivery-time": 5000, b"x-opt-deferral-token": token}
        queue.apply(Modify(A, [msg_id], False, False, annotations))
    queue.apply(AssignDeferred(B, [b"x"]), AssignDeferred(A, [b"y", b"z"]))
    assert queue.out() == {A: {2: two}}
    queue.publish(1)
    queue.apply(AssignDeferred(A, [b"x"]))
    assert one not in queue.out()[A].values(), "no credit is left"
    queue.settle(A, 2)
    queue.apply(AssignDeferred(A, [b"x"]))
    assert queue.out()[A][4] == one


def put_aside(queue: Driven, token: bytes, *msg_ids: int) -> None:
    annotations: dict[Term, Term] = {b"x-opt-delivery-time": 5000, b"x-opt-deferral-token": token}
    queue.apply(Modify(A, list(msg_ids), False, False, annotations))


def test_from_version_9_a_token_stands_for_all_that_was_put_aside_under_it() -> None:
    queue = Driven(9)
    queue.apply(subscribed(A, 3))
    one, two, three = queue.publish(3)
    put_aside(queue, b"x", 1, 0)
    put_aside(queue, b"x", 2)
    queue.apply(AssignDeferred(A, [b"x", b"x"]))
    assert list(queue.out()[A].values()) == [two, one, three]


def test_from_version_9_credit_must_be_enough_for_all_messages_of_a_token() -> None:
    queue = Driven(9)
    queue.apply(subscribed(A, 2))
    queue.publish(2)
    put_aside(queue, b"x", 0, 1)
    queue.publish(1)
    queue.apply(AssignDeferred(A, [b"x"]))
    assert len(queue.out()[A]) == 1


def test_up_to_version_8_a_token_stands_for_the_last_message_put_aside_under_it() -> None:
    queue = Driven(8)
    queue.apply(subscribed(A, 2))
    _, two = queue.publish(2)
    put_aside(queue, b"x", 0, 1)
    queue.apply(MachineVersion(9), AssignDeferred(A, [b"x"]))
    assert list(queue.out()[A].values()) == [two]


@pytest.mark.parametrize(("version", "has_token"), [(8, True), (9, False)])
def test_a_token_without_a_time_is_kept_up_to_version_8(version: int, has_token: bool) -> None:
    queue = Driven(version, retry("all"))
    queue.apply(subscribed(A, 1))
    queue.publish(1)
    queue.apply(Modify(A, [0], True, False, {b"x-opt-deferral-token": b"x"}), AssignDeferred(A, [b"x"]))
    assert bool(queue.out()) is has_token


@pytest.mark.parametrize(("version", "waits"), [(8, False), (9, True)])
def test_from_version_9_a_message_may_be_published_for_later(version: int, waits: bool) -> None:
    queue = Driven(version)
    queue.apply(subscribed(A, 5))
    later = body()._replace(delivery_time_ms=1001)
    queue.apply(Enqueue(pid(1), 1, later))
    assert bool(queue.machine.ready_count) is waits
    assert bool(queue.out()) is not waits
    queue.apply(Enqueue(None, None, later))
    assert len(queue.out()[A]) == 2 - waits, "a dead-lettered message does not wait"
    queue.now_ms = 1001
    queue.apply(TICK, Enqueue(pid(1), 2, later))
    assert len(queue.out()[A]) == 3, "its time has come"


def test_of_messages_with_one_time_the_first_delayed_is_ready_first_then_they_go_by_index() -> None:
    queue = Driven(8)
    queue.apply(subscribed(A, 4))
    one, two, three, four = queue.publish(4)
    for msg_id in (2, 3, 0, 1):
        put_aside(queue, b"x", msg_id)
    queue.apply(Cancel(A))
    queue.now_ms = 5000
    queue.apply(TICK)
    assert queue.ready() == [three, one, two, four]


def test_what_came_back_is_under_its_token_no_longer() -> None:
    queue = Driven(8)
    (one,) = queue.publish(1)
    annotations: dict[Term, Term] = {b"x-opt-delivery-time": 5000, b"x-opt-deferral-token": b"x"}
    queue.apply(got(A), Modify(A, [0], False, False, annotations), RetryDelayed(1))
    queue.apply(got(B), subscribed(A, 1), AssignDeferred(A, [b"x"]))
    assert queue.out() == {B: {0: one}}


def test_delayed_messages_count_for_the_length_and_go_with_a_purge() -> None:
    queue = Driven(8, retry("all") | {Atom("max_length"): 2})
    queue.publish(2)
    queue.apply(got(A), Return(A, [0]))
    two, three = queue.publish(2)
    assert queue.machine.ready_count == 2
    assert two not in queue.ready()
    queue.apply(Purge())
    assert (queue.machine.ready_count, queue.machine.payload_bytes) == (0, 0)
    assert three not in queue.ready()


def test_a_purge_takes_dead_letters_too() -> None:
    queue = Driven(8, AT_LEAST_ONCE)
    queue.publish(1)
    queue.apply(DeadLetterCheckout(pid(50), 1), got(A), Discard(A, [0]))
    assert len(queue.machine.messages.dead_letters) == 1
    queue.apply(Purge())
    assert len(queue.machine.messages.dead_letters) == 0


def test_an_older_queue_goes_on_as_4_3() -> None:
    queue = Driven(7)
    queue.apply(subscribed(A, 1, keyed=True))
    one, two = queue.publish(2)
    (high,) = queue.publish(1, priority=5)
    queue.apply(MachineVersion(8))
    (higher,) = queue.publish(1, priority=8)
    assert queue.ready() == [high, higher, two], "what was high counts as 9"
    queue.now_ms += 1_800_000
    queue.apply(LATE)
    assert queue.ready() == [one, high, higher, two]


def test_a_suspected_consumer_of_an_older_queue_may_come_back() -> None:
    queue = Driven(7)
    queue.apply(subscribed(AWAY, 1), Down(AWAY[1], "noconnection"), MachineVersion(8))
    queue.publish(1)
    assert queue.machine.messages.out_count == 0
    queue.apply(NodeUp(OTHER_NODE))
    assert queue.machine.messages.out_count == 1


def test_restart_leaves_nothing_out() -> None:
    queue = Driven(8, retry("all") | {Atom("single_active_consumer_on"): True})
    queue.publish(3)
    queue.apply(subscribed(A, 2), subscribed(B, 1, priority=1), Down(pid(100, OTHER_NODE), "noconnection"))
    queue.machine.restart()
    queue.machine.check_invariants()
    assert (queue.machine.messages.out_count, queue.machine.ready_count) == (0, 3)


def test_a_state_is_read() -> None:
    machine = QuorumMachine.from_snapshot(state_of_4_3(), {}, 8)
    machine.check_invariants()
    assert [tuple(message) for message in machine.ready()] == [
        (8, 4, None, 0, 1),
        (5, 100, None, 0, 0),
        (6, 40000, None, 0, 0),
        (4, 10, None, 0, 0),
        (9, 6, None, 1, 1),
    ]
    assert [(key, msg_id, message.index) for key, msg_id, message in machine.outstanding()] == [(2, 3, 7)]
    assert [(letter.reason, letter.message.index) for letter in machine.messages.dead_letters] == [("expired", 3)]
    machine.apply(20, 500, ConsumerTimeout(None))
    assert machine.messages.out_count == 1
    machine.apply(21, 501, ConsumerTimeout(None))
    assert machine.messages.out_count == 0
    machine.apply(22, 900, TICK)
    assert [message.index for message in machine.ready()][:3] == [8, 7, 9]
    with pytest.raises(ValueError, match="not written"):
        state_term(machine)


def test_a_state_of_4_3_that_is_none_is_refused() -> None:
    state = state_of_4_3()
    for at in (1, 2, 4, 6, 9, 10, 11, 14, 17):
        with pytest.raises(TermError):
            QuorumMachine.from_snapshot((*state[:at], Atom("nonsense"), *state[at + 1 :]), {}, 8)
    for version in (7, 9):
        with pytest.raises(TermError):
            QuorumMachine.from_snapshot(state, {}, version)


def test_a_state_of_version_9_is_read_with_all_messages_of_a_token() -> None:
    state = state_of_4_3()
    nil, later = Atom("nil"), ImproperList((900,), 10)
    tree = (ImproperList((900,), 9), ImproperList((9,), 6), nil, (later, ImproperList((10,), 7), nil, nil))
    tokens: dict[Term, Term] = {b"t": [ImproperList((900,), 9), later]}
    delayed = (Atom("delayed"), (2, tree), Atom("undefined"), tokens)
    machine = QuorumMachine.from_snapshot((*state[:17], delayed, {Atom(NODE): 1000}), {}, 9)
    machine.check_invariants()
    machine.apply(20, 500, Checkout(consumer("b"), "auto", False, 9, "simple_prefetch", 0, True, timeout_ms=50))
    machine.apply(21, 500, AssignDeferred(20, [b"t"]))
    assert [message.index for key, _, message in machine.outstanding() if key == 20][-2:] == [10, 9]


def state_of_4_3() -> tuple[Term, ...]:
    undefined, disabled = Atom("undefined"), Atom("disabled")
    packed = 5 + (100 << 44)
    buckets: dict[Term, Term] = {27: (1, [], [4 + (10 << 44)]), 22: (2, [ImproperList((6,), 40000)], [packed])}
    header: dict[Term, Term] = {Atom("size"): 6, Atom("acquired_count"): 1, Atom("delivery_count"): 1}
    node = (ImproperList((900,), 9), ImproperList((9,), header), Atom("nil"), Atom("nil"))
    cfg: Term = (Atom("consumer_cfg"), {}, encoded_pid(100), b"a", (Atom("simple_prefetch"), 2), Atom("auto"), 0, 50)
    held: dict[Term, Term] = {3: (501, ImproperList((7,), {Atom("size"): 5}))}
    status = (Atom("suspected_down"), Atom("up"))
    return (
        Atom("rabbit_fifo"),
        (
            *(Atom("cfg"), Atom("name"), undefined, [], Atom("at_least_once"), undefined, Atom("reject_publish")),
            *(undefined, undefined, Atom("competing"), undefined, undefined, undefined, 60_000, disabled),
        ),
        (Atom("pq"), buckets, 3, 0),
        6,
        (1, [], [ImproperList((8,), {Atom("size"): 4, Atom("acquired_count"): 1})]),
        0,
        {encoded_pid(1): (Atom("enqueuer"), 9, [], Atom("up"), undefined, [], [])},
        100,
        501,
        {2: (Atom("consumer"), cfg, status, 4, held, 1, 4, False, [])},
        (Atom("queue"), [], [], 0),
        (Atom("rabbit_fifo_dlx"), undefined, (1, [], [ImproperList((Atom("expired"),), 3 + (1 << 44))]), [], 1, 0),
        120,
        5,
        [],
        undefined,
        undefined,
        (Atom("delayed"), (1, node), undefined, {b"token": ImproperList((900,), 9)}),
    )


PIDS = st.sampled_from([pid(number, node) for number, node in ((1, NODE), (2, NODE), (3, OTHER_NODE))])
IDS = st.tuples(st.sampled_from([b"x", b"y"]), PIDS)
KEYS = IDS | st.integers(1, 6)
NUMBERS = st.lists(st.integers(0, 6), max_size=3)
FLAGS = st.booleans()
ANNOTATIONS = st.sampled_from([{}, {b"x-opt-delivery-time": 1030, b"x-opt-deferral-token": b"t"}])
COMMANDS: st.SearchStrategy[Command] = st.one_of(
    st.builds(
        lambda number, size, ttl, priority, time: Enqueue(
            number and pid(1), number, body(size, ttl, priority)._replace(delivery_time_ms=time)
        ),
        st.none() | st.integers(1, 60),
        st.integers(0, 3),
        st.none() | st.integers(0, 30),
        st.none() | st.integers(0, 40),
        st.integers(1000, 1100),
    ),
    st.builds(
        lambda consumer_id, life, credit, mode, priority: Checkout(
            consumer_id, life, False, credit, mode, priority, life == "auto", timeout_ms=20
        ),
        IDS,
        st.sampled_from(["auto", "auto", "once", "get"]),
        st.integers(0, 3),
        st.sampled_from(["simple_prefetch", "simple_prefetch", "credited"]),
        st.integers(0, 2),
    ),
    st.builds(Settle, KEYS, NUMBERS),
    st.builds(Discard, KEYS, NUMBERS),
    st.builds(Return, KEYS, NUMBERS),
    st.builds(Modify, KEYS, NUMBERS, FLAGS, FLAGS, ANNOTATIONS),
    st.builds(Requeue, KEYS, st.integers(0, 4), st.just(0), st.just(0), st.just(body())),
    st.builds(Credit, KEYS, st.integers(0, 3), st.integers(0, 3), FLAGS),
    st.builds(Cancel, IDS, FLAGS),
    st.builds(Down, PIDS, st.sampled_from(["noconnection", "normal"])),
    st.builds(NodeUp, st.sampled_from([NODE, OTHER_NODE])),
    st.builds(PurgeNodes, st.just((OTHER_NODE,))),
    st.builds(ConsumerTimeout, st.none() | KEYS),
    st.builds(RetryDelayed, st.none() | st.integers(0, 2)),
    st.builds(AssignDeferred, KEYS, st.just([b"t"])),
    st.builds(DeadLetterCheckout, PIDS, st.integers(1, 2)),
    st.builds(DeadLetterSettle, NUMBERS),
    st.just(Purge()),
    st.just(TICK),
)


@hypothesis_settings(max_examples=times(250))
@given(
    version=st.integers(2, 9),
    single=FLAGS,
    limit=st.none() | st.integers(0, 3),
    later=st.integers(2, 9),
    commands=st.lists(st.tuples(COMMANDS, st.integers(0, 9)), max_size=60),
)
def test_any_commands_in_any_version_leave_a_sound_queue(
    version: int, single: bool, limit: int | None, later: int, commands: list[tuple[Any, int]]
) -> None:
    of: dict[Term, Term] = {
        Atom("single_active_consumer_on"): single,
        Atom("delivery_limit"): Atom("undefined") if limit is None else limit,
        Atom("delayed_retry"): (Atom("failed"), 10, 20),
    }
    queue = Driven(version, AT_LEAST_ONCE | of)
    for at, (command, wait) in enumerate(commands):
        queue.now_ms += wait
        if at == len(commands) // 2:
            queue.apply(MachineVersion(later))
        queue.apply(command)
    there = sorted([*queue.ready(), *(message.index for _, _, message in queue.machine.outstanding())])
    queue.machine.restart()
    queue.machine.check_invariants()
    assert queue.machine.messages.out_count == 0
    assert sorted(queue.ready()) == there
