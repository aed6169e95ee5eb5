"""What comes back to a queue: counted, made to wait, dead after too often; and what was held for too long."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.process_tools import RETURNED, START_US, Bench
from warren.actors.engines.declared.queue_arguments import EffectiveArguments
from warren.actors.engines.declared.retry_policy import RetryPolicy
from warren.actors.engines.errors import ArgumentsError, UnknownTagError
from warren.actors.engines.queue.consumers import Consumer
from warren.actors.engines.queue.effects import Delivered
from warren.actors.engines.queue.retries import COUNT, MIN_LOG_BYTES, RECORD
from warren.queue_index.queue.fetching import FetchedAgain
from warren.storage.record_log import RecordLog
from warren.values.retry import Retry


def taken(bench: Bench, count: int = 1000) -> list[tuple[bytes, int]]:
    """Bodies of what is got now and stays unacked, and how often each came back."""
    found = [one for part in bench.queue.deliveries.get_many("c", count, ack_required=True) for one in counted(part)]
    bench.queue.check_invariants()
    return found


def counted(delivered: Delivered) -> list[tuple[bytes, int]]:
    fetched = delivered.fetched
    if isinstance(fetched, FetchedAgain):
        return list(zip(fetched.bodies(), fetched.delivery_counts, strict=True))
    return [(body, 0) for body in fetched.bodies()]


def back(bench: Bench, *tags: int) -> None:
    bench.queue.settlements.nack("c", [range(tag, tag + 1) for tag in tags], requeue=True)


# ── counts ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("asleep", [False, True])
def test_counts_survive_a_clean_stop(asleep: bool) -> None:
    bench = Bench({"x-max-priority": 1})
    bench.publish(b"low", b"other")
    bench.publish(b"high", priority=1)
    taken(bench)
    back(bench, 1, 2)
    taken(bench, 1)
    back(bench, 4)
    bench.stop_and_start(asleep=asleep)
    assert taken(bench) == [(b"high", 2), (b"low", 1), (b"other", 1)], "the oldest that was out came back as well"


def test_counts_survive_a_crash_and_the_oldest_that_was_out_is_blamed() -> None:
    bench = Bench()
    bench.publish(b"a", b"b", b"c", b"d")
    taken(bench, 3)
    back(bench, 1, 2)
    assert taken(bench, 1) == [(b"a", 1)]
    bench.crash()
    assert taken(bench) == [(b"a", 2), (b"b", 1), (b"c", 0), (b"d", 0)]
    bench.crash()
    assert taken(bench) == [(b"a", 3), (b"b", 1), (b"c", 0), (b"d", 0)], "those behind it have nothing to do with it"


def test_after_a_crash_the_index_says_at_once_what_is_out_and_no_log_begins() -> None:
    bench = Bench()
    bench.publish(b"kills", b"b")
    bench.crash()
    assert taken(bench, 1) == [(b"kills", 0)]
    assert not bench.files.exists(RETURNED)
    bench.crash(sync=False)
    assert taken(bench) == [(b"kills", 1), (b"b", 0)]


def test_what_was_settled_is_not_blamed_for_a_crash() -> None:
    bench = Bench()
    bench.publish(b"a", b"kills", b"c")
    taken(bench)
    bench.queue.settlements.ack("c", [range(1, 2)])
    for crashes in (1, 2, 3):
        bench.crash()
        assert taken(bench) == [(b"kills", crashes), (b"c", 0)]


def test_of_a_channel_that_was_lost_the_oldest_counts() -> None:
    bench = Bench()
    bench.publish(b"a", b"b", b"c")
    taken(bench)
    bench.queue.settlements.ack("c", [range(1, 2)])
    assert bench.queue.settlements.close_channel("c", bench.queue.consumers.oldest_tag("c")) == 2
    assert taken(bench) == [(b"b", 1), (b"c", 0)]


def test_a_message_that_is_out_again_is_written_down_before_anybody_has_it() -> None:
    """Else one that kills its process would never be known for it."""
    bench = Bench()
    bench.publish(b"kills")
    bench.sync()
    seen = []
    for _ in range(4):
        seen += taken(bench)
        bench.crash(sync=False)
    assert seen == [(b"kills", count) for count in (0, 0, 1, 2)], "but for the first time, which the index would tell"


def test_counts_of_messages_that_are_gone_are_forgotten() -> None:
    bench = Bench()
    bench.publish(*[b"%d" % n for n in range(10)])
    taken(bench)
    back(bench, *range(1, 11))
    taken(bench)
    bench.queue.settlements.ack("c", [range(11, 21)])
    assert bench.queue.settlements.retries is not None
    assert not bench.queue.settlements.retries.counts
    assert bench.sleep()
    assert bench.queue.settlements.retries is None
    assert not bench.files.exists(RETURNED)


def test_a_queue_that_begins_anew_does_not_count_for_other_messages() -> None:
    bench = Bench()
    bench.publish(b"old")
    taken(bench)
    back(bench, 1)
    bench.sync()
    bench.queue.purge()
    bench.sleep()
    bench.publish(b"new")
    bench.crash()
    assert taken(bench) == [(b"new", 0)]


@pytest.mark.slow
def test_a_log_does_not_outgrow_what_it_says() -> None:
    bench = Bench()
    bench.publish(b"a")
    for _ in range(5000):
        tag = bench.queue.deliveries.get_many("c", 1, ack_required=True)[0].first_tag
        back(bench, tag)
        bench.sync()
    assert bench.files.size(RETURNED) <= MIN_LOG_BYTES + 100
    bench.crash()
    assert taken(bench) == [(b"a", 5000)]


def test_a_damaged_log_costs_the_counts_and_no_message(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    bench.publish(b"a")
    taken(bench)
    back(bench, 1)
    bench.sync()
    log = bench.files.open_append(RETURNED)
    log.truncate(0)
    log.append(b"something else entirely")
    bench.crash()
    assert taken(bench) == [(b"a", 1)], "the index says that it was out"
    assert "delivery counts cannot be read: /side/returned.log, offset 0" in caplog.text


def test_a_record_that_is_none_costs_the_counts_and_no_message(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    bench.publish(b"a")
    bench.sync()
    log = RecordLog(bench.files, RETURNED, "returned")
    log.append(RECORD.pack(COUNT, 0, 0, 1, 7) + b"?")
    log.write()
    bench.crash()
    assert taken(bench) == [(b"a", 0)]
    assert "delivery counts cannot be read" in caplog.text


def test_what_a_log_says_of_messages_that_were_never_there_means_nothing() -> None:
    bench = Bench()
    bench.publish(b"a")
    bench.sync()
    log = RecordLog(bench.files, RETURNED, "returned")
    log.append(RECORD.pack(COUNT, 0, 1, 9, 7))
    log.write()
    bench.crash()
    bench.publish(b"b", b"c")
    taken(bench)
    back(bench, 1, 2, 3)
    assert taken(bench) == [(b"a", 1), (b"b", 1), (b"c", 1)]


# ── waits ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_failed_waits_and_comes_to_its_old_place() -> None:
    bench = Bench()
    bench.publish(b"fails", b"next")
    taken(bench, 1)
    bench.queue.settlements.retry("c", [range(1, 2)])
    stats = bench.queue.stats()
    assert (len(bench.queue.backing), stats["messages_retrying"], stats["messages_unacknowledged"]) == (1, 1, 0)
    assert stats["messages"] == 2
    assert stats["messages_dead_lettering"] == 0
    assert bench.queue.next_deadline_us() == START_US + 1_000_000
    bench.later(999)
    bench.queue.settlements.tick()
    assert len(bench.queue.backing) == 1
    bench.later(1)
    bench.queue.settlements.tick()
    assert taken(bench) == [(b"fails", 1), (b"next", 0)]


def test_a_failure_waits_twice_as_long_each_time_and_five_minutes_at_most() -> None:
    bench = Bench()
    bench.publish(b"fails")
    waits = []
    for _ in range(12):
        tag = bench.queue.deliveries.get_many("c", 1, ack_required=True)[0].first_tag
        bench.queue.settlements.retry("c", [range(tag, tag + 1)])
        due_us = bench.queue.next_deadline_us()
        assert due_us is not None
        waits.append((due_us - bench.now_us) // 1_000_000)
        bench.now_us = due_us
        bench.queue.settlements.tick()
    assert waits == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]


def test_a_queue_with_messages_that_wait_does_not_sleep_and_a_deleted_one_leaves_nothing() -> None:
    bench = Bench()
    bench.publish(b"a")
    taken(bench)
    bench.queue.settlements.retry("c", [range(1, 2)])
    bench.sync()
    assert not bench.sleep()
    assert bench.files.exists(RETURNED)
    bench.queue.delete()
    assert not bench.files.exists(RETURNED)


@given(
    st.builds(
        RetryPolicy,
        st.integers(1, 10_000),
        st.none() | st.integers(1, 100_000),
        st.none() | st.integers(1, 10),
        st.integers(0, 100),
    ),
    st.integers(1, 10_000),
    st.integers(0, 1 << 60),
)
def test_waits_are_within_their_bounds(policy: RetryPolicy, count: int, seq_id: int) -> None:
    wait_us = policy.wait_us(count, seq_id)
    bare_us = RetryPolicy(policy.min_ms, policy.max_ms, policy.multiplier).wait_us(count, seq_id)
    assert bare_us * (100 - policy.jitter_percent) // 100 <= wait_us <= bare_us
    assert policy.max_ms is None or wait_us <= policy.max_ms * 1000
    assert wait_us == policy.wait_us(count, seq_id)
    assert RetryPolicy(policy.min_ms, policy.max_ms, policy.multiplier).wait_us(count + 1, seq_id) >= bare_us


def test_with_jitter_what_failed_together_does_not_come_together() -> None:
    bench = Bench({"x-delayed-retry-min": 1000, "x-delayed-retry-jitter": 50})
    bench.publish(*[b"%d" % n for n in range(100)])
    taken(bench)
    bench.queue.settlements.close_channel("c")
    due = set()
    while (next_us := bench.queue.next_deadline_us()) is not None:
        due.add(next_us - START_US)
        bench.now_us = next_us
        bench.queue.settlements.tick()
    assert len(due) > 90
    assert 500_000 <= min(due) < 600_000
    assert 900_000 < max(due) <= 1_000_000


# ── the limit ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_came_back_more_often_than_the_limit_dies_and_says_why() -> None:
    bench = Bench({"x-delivery-limit": 2, "x-dead-letter-exchange": "dlx"})
    bench.publish(b"a", b"b")
    for tags in ((1, 2), (3, 4)):
        taken(bench)
        back(bench, *tags)
        assert bench.dead() == []
    assert taken(bench) == [(b"a", 2), (b"b", 2)]
    back(bench, 5)
    assert bench.dead() == [("delivery_limit", b"a")]
    bench.queue.settlements.retry("c", [range(6, 7)])
    assert bench.dead() == [("delivery_limit", b"b")]
    assert bench.queue.backing.depth == 0


def test_without_a_dead_letter_exchange_it_is_gone_and_said_so(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench({"x-delivery-limit": 0})
    bench.publish(b"a")
    taken(bench)
    back(bench, 1)
    assert bench.queue.backing.depth == 0
    assert "1 messages were returned more than 0 times: they are gone" in caplog.text


def test_what_killed_its_process_too_often_dies_in_place_of_being_delivered() -> None:
    bench = Bench({"x-delivery-limit": 2, "x-dead-letter-exchange": "dlx"})
    bench.publish(b"kills", b"good")
    for crashes in range(3):
        assert taken(bench, 1) == [(b"kills", crashes)]
        bench.crash()
    assert taken(bench) == [(b"good", 0)]
    assert bench.dead() == [("delivery_limit", b"kills")]


def test_a_policy_may_set_the_limit() -> None:
    bench = Bench()
    assert bench.queue.context.arguments.delivery_limit is None
    assert not bench.queue.context.arguments.tells_delivery_count
    found = EffectiveArguments("q", {"x-delivery-limit": 3})
    assert found.delivery_limit == 3
    assert found.tells_delivery_count


def test_several_consumers_are_told_the_counts() -> None:
    bench = Bench()
    for tag in ("one", "two"):
        bench.queue.consumers.add(Consumer(tag, tag, prefetch=10))
    bench.publish(b"a", b"b", b"c", b"d")
    assert len(bench.delivered()) == 4
    bench.queue.settlements.close_channel("two")
    bench.queue.deliveries.deliver()
    assert [one for part in bench.queue.context.drain_effects().deliveries for one in counted(part)] == [
        (b"b", 1),
        (b"d", 1),
    ]


# ── held for too long ─────────────────────────────────────────────────────────────────────────────────────────────────


def timed(timeout_ms: int = 1600, prefetch: int = 0) -> Bench:
    bench = Bench()
    bench.queue.consumers.add(Consumer("c", "t", prefetch=prefetch, ack_timeout_ms=timeout_ms))
    return bench


def test_what_is_not_acked_in_time_comes_back_and_counts(caplog: pytest.LogCaptureFixture) -> None:
    bench = timed(prefetch=2)
    bench.publish(b"a", b"b", b"c")
    assert bench.delivered() == [("t", 1, b"a"), ("t", 2, b"b")]
    bench.queue.settlements.ack("c", [range(1, 2)])
    bench.delivered()
    assert bench.queue.next_deadline_us() == START_US + 1_700_000, "a sixteenth later at most"
    bench.later(1700)
    bench.queue.settlements.tick()
    effects = bench.queue.context.drain_effects()
    assert effects.lapsed == [("t", range(2, 4))]
    assert bench.queue.stats()["messages_unacknowledged"] == 0
    bench.queue.deliveries.deliver()
    [again] = bench.queue.context.drain_effects().deliveries
    assert counted(again) == [(b"b", 1), (b"c", 1)]
    assert "2 messages were not acked in time and are requeued" in caplog.text


def test_to_settle_what_has_lapsed_means_nothing() -> None:
    bench = timed(prefetch=3)
    bench.publish(b"a", b"b", b"c")
    bench.delivered()
    bench.later(2000)
    bench.queue.settlements.tick()
    bench.queue.settlements.ack("c", [range(1, 2)])
    assert len(bench.delivered()) == 3, "they are out anew, under other tags"
    bench.queue.settlements.ack("c", [range(2, 6)])
    bench.queue.settlements.ack("c", [range(2, 3)])
    bench.queue.check_invariants()
    assert bench.queue.backing.depth == 1


def test_to_ack_up_to_what_has_lapsed_acks_what_has_not() -> None:
    bench = timed(prefetch=3)
    bench.publish(b"a")
    bench.delivered()
    bench.later(1650)
    bench.publish(b"b")
    bench.delivered()
    bench.later(50)
    bench.queue.settlements.tick()
    assert bench.queue.context.drain_effects().lapsed == [("t", range(1, 2))]
    bench.queue.settlements.ack_up_to("c", 1)
    assert bench.queue.backing.depth == 2
    assert len(bench.delivered()) == 1
    bench.queue.settlements.ack_up_to("c", 3)
    assert bench.queue.backing.depth == 0


def test_its_holder_may_extend_the_time() -> None:
    bench = timed()
    bench.publish(b"a", b"b", b"c")
    bench.delivered()
    bench.later(1000)
    bench.queue.settlements.extend("c", 2, 5000)
    bench.later(1000)
    bench.queue.settlements.tick()
    bench.queue.check_invariants()
    assert bench.queue.context.drain_effects().lapsed == [("t", range(1, 2)), ("t", range(3, 4))]
    with pytest.raises(UnknownTagError):
        bench.queue.settlements.extend("c", 1, 5000)
    bench.later(3999)
    bench.queue.settlements.tick()
    assert bench.queue.context.drain_effects().lapsed == []
    bench.later(1)
    bench.queue.settlements.tick()
    assert bench.queue.context.drain_effects().lapsed == [("t", range(2, 3))]


def test_a_channel_that_is_gone_has_no_deadlines() -> None:
    bench = timed()
    bench.publish(b"a")
    bench.delivered()
    bench.queue.settlements.close_channel("c")
    assert bench.queue.next_deadline_us() is None
    assert taken(bench) == [(b"a", 1)]


@pytest.mark.slow
def test_deliveries_of_one_time_are_one_mark() -> None:
    bench = timed(60_000)
    for number in range(1000):
        bench.publish(b"%d" % number)
        bench.delivered()
        bench.later(1)
    deadlines = bench.queue.settlements._deadlines
    assert deadlines is not None
    assert len(deadlines._due) == 1


# ── which messages wait ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("kind", "waits"),
    [
        (None, {"nack", "reject", "timeout", "channel", "retry"}),
        ("all", {"nack", "reject", "timeout", "channel", "retry"}),
        ("failed", {"reject", "channel", "retry"}),
        ("returned", {"nack", "timeout", "retry"}),
        ("disabled", {"retry"}),
    ],
)
@pytest.mark.parametrize("how", ["nack", "reject", "timeout", "channel", "retry"])
def test_what_waits_goes_by_the_type_and_by_how_it_came_back(how: str, kind: str | None, waits: set[str]) -> None:
    arguments = {"x-delayed-retry-min": 100_000, "x-consumer-timeout": 1000}
    bench = Bench(arguments if kind is None else {**arguments, "x-delayed-retry-type": kind})
    bench.publish(b"a")
    taken(bench)
    if how == "channel":
        bench.queue.settlements.close_channel("c")
    elif how == "timeout":
        bench.now_us += 2_000_000
        bench.queue.settlements.tick()
    elif how == "retry":
        bench.queue.settlements.retry("c", [range(1, 2)])
    else:
        bench.queue.settlements.nack("c", [range(1, 2)], requeue=True, failed=how == "reject")
    assert taken(bench) == ([] if how in waits else [(b"a", 1)])


# ── Retry ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_retry_is_said_in_arguments() -> None:
    retry = Retry(limit=3, delay=0.5, multiplier=2, max_delay=60, jitter=0.25, dead_letters="dead")
    assert retry.arguments == {
        "x-delivery-limit": 3,
        "x-delayed-retry-min": 500,
        "x-delayed-retry-multiplier": 2,
        "x-delayed-retry-max": 60_000,
        "x-delayed-retry-jitter": 25,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "dead",
    }
    assert Retry().arguments == {}


@pytest.mark.parametrize(
    "arguments",
    [
        {"x-delivery-limit": -1},
        {"x-delivery-limit": "3"},
        {"x-delayed-retry-min": 0},
        {"x-delayed-retry-max": 0},
        {"x-delayed-retry-multiplier": 0},
        {"x-delayed-retry-jitter": 101},
        {"x-delayed-retry-type": "nonsense"},
        {"x-delayed-retry-type": 1},
        {"x-consumer-timeout": 0},
    ],
)
def test_arguments_that_cannot_be(arguments: dict[str, object]) -> None:
    with pytest.raises(ArgumentsError, match=f"invalid arg '{next(iter(arguments))}' for queue 'q'"):
        Bench(arguments)


def test_nothing_is_logged_for_what_comes_back_in_time(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    bench.publish(b"a")
    with caplog.at_level(logging.DEBUG):
        taken(bench)
        back(bench, 1)
    assert caplog.text == ""
