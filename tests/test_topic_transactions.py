"""Half messages, what becomes of them, and what is pending after a start."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.support.effort import times
from tests.support.rocketmq_golden import SCENARIOS, records
from tests.support.topic_tools import HERE, THERE, Log, batch
from warren.actors.engines.topics.errors import TopicNameError, TransactionError
from warren.actors.engines.topics.names import HALF_TOPIC, OP_TOPIC
from warren.actors.engines.topics.record_copies import with_properties
from warren.actors.engines.topics.transactions import Half, PendingTransactions, committed, decision, named_by, prepare
from warren.msg_store.commit_log.commit_log_format import (
    COMMIT,
    PREPARED,
    TRANSACTION_MASK,
    Record,
    RecordError,
    decode_properties,
)

HALVES, OPS = (HALF_TOPIC, 0), (OP_TOPIC, 0)


def half_of(log: Log, body: bytes = b"body", group: str = "shop") -> Record:
    (half,) = log.append(prepare(batch("orders", body, properties=b"KEYS\x01k"), group))
    return half


# ── what is stored ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_half_message_says_where_it_belongs_and_is_no_prepared_record() -> None:
    # 4.9.3's broker takes the flag off, so that the half topic has ConsumeQueue entries like any other
    half = prepare(batch("orders", properties=b"KEYS\x01k", queue_id=3, sys_flag=PREPARED | 1), "shop")
    assert (half.topic, half.queue_id, half.sys_flag) == (HALF_TOPIC, 0, 1)
    assert (
        half.properties == b"KEYS\x01k\x02TRAN_MSG\x01true\x02PGROUP\x01shop\x02REAL_TOPIC\x01orders\x02REAL_QID\x013"
    )


def test_a_committed_message_names_its_half_message() -> None:
    log = Log()
    half_of(log)
    half = half_of(log, b"second")
    (message,) = log.append(committed(half, "shop"))
    assert (message.topic, message.queue_id, message.body) == ("orders", 2, b"second")
    assert message.prepared_transaction_offset == half.physical_offset > 0
    assert message.sys_flag & TRANSACTION_MASK == COMMIT
    assert message.properties == half.properties  # 4.9.3 leaves all of them
    assert (message.born_timestamp, message.born_host, message.queue_offset) == (1_000, THERE, 0)


def test_commits_look_like_those_that_rocketmq_stored() -> None:
    everything = [found for scenario in SCENARIOS for found in records(scenario) if "topic" in found]
    commits = [found for found in everything if found["sysFlag"] & TRANSACTION_MASK == COMMIT]
    assert commits
    for found in commits:
        half = attrs.evolve(half_of(Log()), physical_offset=found["preparedTransactionOffset"])
        message = committed(half)
        assert message.sys_flag == found["sysFlag"]
        assert message.prepared_transaction_offset == found["preparedTransactionOffset"]


def test_an_op_message_names_the_half_message_in_its_queue() -> None:
    log = Log()
    half_of(log)
    half = half_of(log)
    (op,) = log.append(decision(half, 5_000, HERE, "shop"))
    assert (op.topic, op.queue_id, op.body, op.properties) == (OP_TOPIC, 0, b"1", b"WAIT\x01true\x02TAGS\x01d")
    assert (op.born_timestamp, op.born_host, op.store_host, op.sys_flag) == (5_000, HERE, HERE, 0)
    assert named_by(op) == 1


def test_several_messages_are_several_half_messages() -> None:
    several = attrs.evolve(batch("orders", b"1", b"2"), properties=[b"", b"KEYS\x01k"])
    halves = Log().append(prepare(several, "shop"))
    assert [decode_properties(half.properties)["REAL_TOPIC"] for half in halves] == ["orders", "orders"]
    assert [half.queue_offset for half in halves] == [0, 1]


def test_another_group_and_another_record_cannot_be_decided() -> None:
    log = Log()
    half = half_of(log)
    (plain,) = log.append(batch())
    for wrong, group in ((half, "other"), (plain, None)):
        with pytest.raises(TransactionError):
            committed(wrong, group)
        with pytest.raises(TransactionError):
            decision(wrong, 1, HERE, group)
    with pytest.raises(TopicNameError):
        prepare(batch(), "no group")


def test_a_half_message_that_belongs_nowhere_is_said_to() -> None:
    (half,) = Log().append(batch(HALF_TOPIC, queue_id=0))
    with pytest.raises(RecordError, match="does not say where it belongs"):
        committed(half)
    with pytest.raises(RecordError):
        Half.of(half)


def test_a_transaction_and_a_delay_do_not_go_together() -> None:
    with pytest.raises(TransactionError, match="delay"):
        prepare(batch(properties=b"DELAY\x013"), "shop")
    assert prepare(batch(properties=b"DELAY\x010"), "shop").topic == HALF_TOPIC


@pytest.mark.parametrize("body", [b"", b"-1", b"x", b"1,2", b"\xff", b"9" * 20])
def test_op_messages_that_mean_nothing(body: bytes) -> None:
    (op,) = Log().append(batch(OP_TOPIC, body, properties=b"TAGS\x01d"))
    assert named_by(op) is None
    (untagged,) = Log().append(batch(OP_TOPIC, b"1", properties=b"TAGS\x01c"))
    assert named_by(untagged) is None


# ── what is pending ─────────────────────────────────────────────────────────────────────────────────────────────────


def loaded(log: Log, half_offset: int = 0, op_offset: int = 0) -> PendingTransactions:
    """What a start finds that reads from these places on."""
    pending = PendingTransactions(half_offset, op_offset)
    for half in log.queues.get(HALVES, [])[half_offset:]:
        pending.prepared(Half.of(half))
        pending.check_invariants()
    for op in log.queues.get(OPS, [])[op_offset:]:
        pending.decided(op.queue_offset, named_by(op))
        pending.check_invariants()
    return pending


def offsets(pending: PendingTransactions) -> list[int]:
    return [half.queue_offset for half in pending.pending()]


def renewed(log: Log, half: Record, origin: int | None = None) -> Record:
    """The half message once more, as RocketMQ's broker writes it back while it asks the producer."""
    said = {"TRAN_PREPARED_QUEUE_OFFSET": str(half.queue_offset if origin is None else origin)}
    again = batch(HALF_TOPIC, half.body, queue_id=0, properties=with_properties(half.properties, said))
    (record,) = log.append(again)
    return record


def test_undecided_half_messages_survive_a_restart() -> None:
    log = Log()
    first, second, third = half_of(log), half_of(log), half_of(log)
    log.append(committed(second))
    log.append(decision(second, 1, HERE))
    pending = loaded(log)
    assert offsets(pending) == [0, 2]
    assert pending.get(2) == Half(
        queue_offset=2,
        physical_offset=third.physical_offset,
        size=third.size,
        topic="orders",
        queue_id=2,
        producer_group="shop",
        born_timestamp=1_000,
        origin=None,
    )
    assert (pending.half_offset, pending.op_offset) == (0, 0)
    with pytest.raises(TransactionError, match="already decided"):
        pending.get(1)
    log.append(decision(first, 1, HERE))
    pending.decided(1, 0)
    assert (pending.half_offset, pending.op_offset) == (2, 2)
    assert offsets(loaded(log, 2, 2)) == [2]


def test_a_crash_between_a_commit_and_its_op_message_leaves_it_pending() -> None:
    log = Log()
    half = half_of(log)
    log.append(committed(half))
    assert offsets(loaded(log)) == [0]


def test_a_decision_that_is_read_before_its_half_message_counts() -> None:
    pending, log = PendingTransactions(), Log()
    pending.decided(0, 0)
    pending.check_invariants()
    pending.prepared(Half.of(half_of(log)))
    assert len(pending) == 0
    assert (pending.half_offset, pending.op_offset) == (1, 1)
    pending.check_invariants()


def test_what_was_read_already_changes_nothing() -> None:
    log = Log()
    half, _ = half_of(log), half_of(log)
    log.append(decision(half, 1, HERE))
    pending = loaded(log)
    pending.prepared(Half.of(half))
    pending.decided(0, 1)
    assert offsets(pending) == [1]
    pending.check_invariants()


def test_records_that_are_no_half_messages_do_not_hold_the_offsets_back() -> None:
    pending = PendingTransactions()
    pending.passed_over(0)
    pending.decided(0, None)
    assert (pending.half_offset, pending.op_offset) == (1, 1)


@pytest.mark.parametrize("named", [0, 1])
def test_a_renewed_half_message_takes_the_place_of_the_first_one(named: int) -> None:
    log = Log()
    first = half_of(log)
    renewed(log, first)
    assert offsets(loaded(log)) == [1]
    pending = loaded(log)
    pending.decided(0, named)
    assert len(pending) == 0
    assert pending.half_offset == 2
    pending.check_invariants()


def test_a_half_message_may_be_renewed_more_than_once() -> None:
    log = Log()
    first = half_of(log)
    other = half_of(log, b"other")
    last = renewed(log, renewed(log, first), 0)
    assert offsets(loaded(log)) == [other.queue_offset, last.queue_offset]
    log.append(decision(first, 1, HERE))
    assert offsets(loaded(log)) == [other.queue_offset]


def test_a_renewed_half_message_whose_first_one_is_not_read_any_more_is_pending() -> None:
    log = Log()
    renewed(log, half_of(log))
    assert offsets(loaded(log, 1)) == [1]


def test_a_half_message_that_names_a_wrong_first_one_pushes_nobody_out() -> None:
    log = Log()
    half_of(log, group="somebody-else")
    half = half_of(log)
    renewed(log, half, 0)  # another group's
    renewed(log, half, 3)  # itself
    assert offsets(loaded(log)) == [0, 1, 2, 3]


def test_half_messages_that_expired_are_not_pending_any_more() -> None:
    log = Log()
    halves = [half_of(log) for _ in range(4)]
    log.append(decision(halves[2], 1, HERE))
    pending = loaded(log)
    assert [half.queue_offset for half in pending.expired(2, 0)] == [0, 1]
    assert offsets(pending) == [3]
    assert (pending.half_offset, pending.op_offset) == (3, 1)
    pending.check_invariants()
    assert [half.queue_offset for half in pending.expired(9, 5)] == [3]
    assert (pending.half_offset, pending.op_offset) == (9, 5)
    pending.check_invariants()


class TransactionMachine(RuleBasedStateMachine):
    """Transactions against a set of undecided ones, with restarts from any offsets that were once right."""

    def __init__(self) -> None:
        super().__init__()
        self.log = Log()
        self.pending = PendingTransactions()
        self.open: dict[int, Record] = {}
        self.saved = [(0, 0)]

    @rule()
    def prepare(self) -> None:
        half = half_of(self.log)
        self.pending.prepared(Half.of(half))
        self.open[half.queue_offset] = half

    @precondition(lambda self: self.open)
    @rule(data=st.data(), commits=st.booleans(), crashes=st.booleans())
    def decide(self, data: st.DataObject, commits: bool, crashes: bool) -> None:
        half = self.open[data.draw(st.sampled_from(sorted(self.open)))]
        if commits:
            self.log.append(committed(half))
        if not crashes:
            (op,) = self.log.append(decision(half, 1, HERE))
            self.pending.decided(op.queue_offset, named_by(op))
            del self.open[half.queue_offset]

    @rule()
    def save(self) -> None:
        self.saved.append((self.pending.half_offset, self.pending.op_offset))

    @rule(data=st.data())
    def restart(self, data: st.DataObject) -> None:
        before = self.pending
        self.pending = loaded(self.log, *data.draw(st.sampled_from(self.saved)))
        assert (self.pending.half_offset, self.pending.op_offset) == (before.half_offset, before.op_offset)

    @invariant()
    def just_the_undecided_are_pending(self) -> None:
        self.pending.check_invariants()
        assert offsets(self.pending) == sorted(self.open)
        assert self.pending.half_offset == min(self.open, default=len(self.log.queues.get(HALVES, [])))


TestTransactionMachine = TransactionMachine.TestCase
TestTransactionMachine.settings = settings(max_examples=times(50), stateful_step_count=30)
