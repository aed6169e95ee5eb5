"""The two hosts of a turn beside each other: both get the same work, and show the same states step by step.

What a queue and a store do in a turn stands once (``tests/test_queue_turn.py``, ``tests/test_store_actor.py``), and so
do the memory monitor's rules. What is left to hold is what each host adds: the order in which work and answers come,
credit and tickets between queues and stores, timers, dead letters, what the memory monitor hears and when, bytes
accounted, and what was done to the disk, operation by operation (:mod:`tests.support.simulated_and_real`). Each test
also says what has to have shown itself on the way, so that none passes because nothing happened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.effort import times
from tests.support.simulated_and_real import MB, Pair
from warren.simulation.scenarios.node_spec import Profile

SMALL, EMBEDDED, STORED = 100, 3000, 5000
PROFILES: tuple[Profile, ...] = ("default", "rabbitmq-3.10")


pytestmark = pytest.mark.usefixtures("quiet")


PairOf = Callable[..., Pair]


@pytest.fixture
def pair_of() -> Iterator[PairOf]:
    pairs: list[Pair] = []

    def new(*args: Any, **settings: Any) -> Pair:
        pairs.append(Pair(*args, **settings))
        return pairs[-1]

    yield new
    for pair in pairs:
        pair.close()


# ── memory ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("persistent", [True, False])
def test_a_backlog_that_is_paged_and_worked_off(pair_of: PairOf, profile: Profile, persistent: bool) -> None:
    pair = pair_of({"a": {}}, memory=800_000, profile=profile, queue_explicit_gc_run_operation_threshold=0)
    for _ in range(20):
        pair.publish("a", 20, STORED, persistent=persistent)
        pair.compare()
        pair.advance(0.4)
        pair.compare()
    while pair.get("a", 35):
        pair.compare()
        pair.settle_all()
        pair.advance(0.7)
        pair.compare()
    assert {"q4", "q3", "target", "delta count"} <= pair.seen.keys()


def test_the_memory_alarm_comes_and_goes_with_the_backlog(pair_of: PairOf) -> None:
    pair = pair_of({"a": {}}, memory=MB, segment_entry_count=16384)  # embedded bodies that stay in RAM
    for _ in range(8):
        pair.publish("a", 20, EMBEDDED)
        pair.advance(0.5)
        pair.compare()
    assert pair.seen["alarm"]
    while pair.get("a", 40):
        pair.settle_all()
        pair.advance(1.1)
        pair.compare()
    assert not pair.simulated.alarms.active


def test_several_queues_share_the_node_and_its_stores(pair_of: PairOf) -> None:
    pair = pair_of({"a": {}, "b": {}, "c": {}}, memory=2 * MB, transient=["c"])
    for step in range(25):
        pair.publish("a", 15, STORED)
        if step % 2:
            pair.publish("b", 9, STORED, persistent=False)
        if step % 3:
            pair.publish("c", 20, EMBEDDED)
        pair.advance(0.35)
        pair.compare()
        if step % 5 == 4:
            pair.get("abc"[step % 3], 25)
            pair.settle_all()
            pair.compare()
    assert {"target", "delta count"} <= pair.seen.keys()


def test_credit_that_is_used_up_ends_paging_and_what_comes_back_resumes_it(pair_of: PairOf) -> None:
    pair = pair_of({"a": {}}, memory=5 * MB, msg_store_credit_disc_bound=(4, 2))
    for _ in range(12):
        pair.publish("a", 50, STORED, persistent=False)
        pair.compare()
        pair.advance(0.9)
        pair.compare()
    pair.advance(5)
    states = pair.compare()
    assert states["a"]["levels"][0]["disk_write_count"] > 100
    assert pair.simulated.queues["a"].counters.turns > 100, "many grants, each a turn"


def test_a_store_that_is_full_of_garbage_is_compacted(pair_of: PairOf) -> None:
    pair = pair_of({"a": {}, "b": {}}, memory=100 * MB)
    for _ in range(6):
        for name in ("a", "b"):
            pair.publish(name, 20, STORED)
        pair.advance(0.1)
    written = pair.simulated.persistent.store.status().size_bytes
    while pair.get("a", 20):
        pair.settle_all()
        pair.advance(0.1)
        pair.compare()
    pair.advance(1)
    pair.compare()
    assert pair.simulated.persistent.store.status().size_bytes < written * 3 // 4


# ── rest ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("wanted", [True, False])
@pytest.mark.parametrize("persistent", [True, False])
def test_a_queue_that_rests_and_wakes(pair_of: PairOf, persistent: bool, wanted: bool) -> None:
    pair = pair_of({"a": {}, "b": {}}, memory=250_000 if wanted else 10 * MB)
    pair.publish("a", 10, STORED, persistent=persistent)
    pair.publish("b", 3, SMALL)
    for _ in range(12):
        pair.advance(0.25)
        pair.compare()
    assert pair.simulated.queues["a"].asleep is (persistent and wanted)
    assert pair.simulated.queues["b"].asleep is wanted
    pair.publish("a", 5, SMALL)
    pair.compare()
    assert pair.get("a", 15) == 15
    pair.compare()
    pair.settle_all()
    for _ in range(8):
        pair.advance(0.9)
        pair.compare()


def test_the_answer_to_a_report_that_comes_as_a_queue_falls_asleep(pair_of: PairOf) -> None:
    pair = pair_of({"a": {"x-message-ttl": 300}})
    for after in (0.0, 3.7):
        pair.advance(after)
        pair.publish("a", 1, SMALL)
        pair.compare()
    for _ in range(40):
        pair.advance(0.05)
        pair.compare()
    assert pair.simulated.allocated.read() == 4096


# ── consumers ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@pytest.mark.parametrize("prefetch", [0, 1, 7])
def test_consumers_with_and_without_a_prefetch(pair_of: PairOf, prefetch: int) -> None:
    pair = pair_of({"a": {}}, memory=MB)
    for _ in range(2):
        pair.subscribe("a", prefetch)
    for step in range(25):
        pair.publish("a", 15, STORED if step % 2 else SMALL)
        pair.compare()
        pair.take()
        pair.compare()
        for channel, tags in list(pair.unacked.items()):
            pair.settle_tags(channel, tags[::2], "requeue" if step % 4 == 3 else "ack")
            pair.compare()
        pair.advance(0.2)
        pair.compare()
    while pair.take():
        pair.settle_all()
        pair.compare()
    assert len(pair.simulated.queues["a"].process.backing) == 0


def test_more_than_a_buffer_for_a_consumer_without_a_prefetch(pair_of: PairOf) -> None:
    pair = pair_of({"a": {}})
    pair.publish("a", 2500, SMALL)
    pair.subscribe("a", 0)
    assert pair.take() == 1000
    pair.compare()
    assert pair.take() == 1000
    pair.settle_all()
    pair.advance(3)
    pair.compare()


def test_a_channel_that_closes_gives_back_what_it_has(pair_of: PairOf) -> None:
    pair = pair_of({"a": {}})
    pair.subscribe("a", 10)
    pair.subscribe("a", 10)
    pair.publish("a", 30, STORED)
    pair.take()
    pair.close_channel(next(iter(pair.channels)))
    pair.compare()
    pair.take()
    pair.settle_all()
    pair.compare()


def test_unseen_acks_of_gets_and_a_purge(pair_of: PairOf) -> None:
    pair = pair_of({"a": {}}, memory=MB)
    for _ in range(10):
        pair.publish("a", 25, STORED)
        pair.get("a", 5, ack_required=False)
        pair.advance(0.5)
        pair.compare()
    pair.purge("a")
    pair.compare()
    pair.advance(2)
    pair.compare()
    assert len(pair.simulated.queues["a"].process.backing) == 0


# ── death ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def dead(arguments: dict[str, Any], target: str = "target") -> dict[str, Any]:
    return {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": target} | arguments


@pytest.mark.parametrize("letters", [True, False])
@pytest.mark.parametrize("arguments", [{"x-message-ttl": 700}, {"x-max-length": 20}])
def test_messages_that_die_and_their_dead_letters(pair_of: PairOf, arguments: dict[str, Any], letters: bool) -> None:
    pair = pair_of({"a": dead(arguments) if letters else arguments, "target": {}})
    for step in range(15):
        pair.publish("a", 9, STORED if step % 2 else SMALL)
        pair.compare()
        pair.advance(0.21)
        pair.compare()
    for _ in range(10):
        pair.advance(0.5)
        pair.compare()
    assert bool(len(pair.simulated.queues["target"].process.backing)) is letters


def test_what_expires_does_so_while_its_queue_sleeps(pair_of: PairOf) -> None:
    pair = pair_of({"a": dead({"x-message-ttl": 6000}), "target": {}}, memory=62_500)
    pair.publish("a", 10, SMALL)
    pair.advance(4)
    pair.compare()
    assert pair.simulated.queues["a"].asleep
    pair.advance(4)
    pair.compare()
    assert len(pair.simulated.queues["target"].process.backing) == 10


@pytest.mark.parametrize("overflow", ["reject-publish", "reject-publish-dlx"])
def test_a_full_queue_refuses(pair_of: PairOf, overflow: str) -> None:
    pair = pair_of({"a": dead({"x-max-length": 10, "x-overflow": overflow}), "target": {}})
    for _ in range(4):
        pair.publish("a", 4, SMALL)
        pair.compare()
    pair.advance(1)
    pair.compare()
    assert pair.simulated.queues["a"].counters.refused == 6
    pair.get("a", 5)
    pair.publish("a", 5, STORED)
    pair.compare()


def test_two_queues_that_are_each_others_dead_letter_target(pair_of: PairOf) -> None:
    pair = pair_of({"a": dead({"x-message-ttl": 300}, "b"), "b": dead({"x-message-ttl": 500}, "a")})
    pair.publish("a", 5, SMALL)
    for _ in range(12):
        pair.advance(0.1)
        pair.compare()


# ── drawn workloads ─────────────────────────────────────────────────────────────────────────────────────────────────

KINDS: tuple[dict[str, Any], ...] = (
    {}, {}, {}, {"x-queue-mode": "lazy"}, {"x-max-priority": 2}, {"x-message-ttl": 900}, {"x-max-length": 30},
    dead({"x-max-length-bytes": 90_000}, "b"), dead({"x-message-ttl": 1500}, "b"),
)  # fmt: skip
# Expirations that end between the timers: at one and the same nanosecond either may come first.
STEPS = st.one_of(
    st.tuples(
        st.just("publish"), st.sampled_from("ab"), st.integers(1, 40), st.sampled_from([10, EMBEDDED, STORED]),
        st.booleans(), st.sampled_from([None, None, None, 97, 2987]), st.integers(0, 3),
    ),
    st.tuples(st.just("get"), st.sampled_from("ab"), st.integers(1, 50), st.booleans()),
    st.tuples(st.just("settle"), st.integers(0, 5), st.integers(1, 4), st.sampled_from(["ack", "ack", "requeue"])),
    st.tuples(st.just("advance"), st.sampled_from([0.001, 0.03, 0.4, 1.1, 2.5, 6.0])),
    st.tuples(st.just("subscribe"), st.sampled_from("ab"), st.sampled_from([0, 1, 10])),
    st.tuples(st.just("close"), st.integers(0, 5)),
    st.tuples(st.just("purge"), st.sampled_from("ab")),
)  # fmt: skip


def test_more_dead_letters_than_one_turn_takes() -> None:
    """The 65th comes in a turn of its own: what the first turn reports is 64 messages."""
    pair = Pair({"a": {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "b"}, "b": {}})
    pair.publish("a", 65, SMALL, persistent=False, expiration_ms=97)
    pair.advance(0.2)
    assert pair.compare()["b"]["len"] == 65
    pair.close()


def carry_out(pair: Pair, step: tuple[Any, ...]) -> None:
    match step:
        case ("publish", queue, count, size, persistent, expiration_ms, priority):
            pair.publish(queue, count, size, persistent=persistent, expiration_ms=expiration_ms, priority=priority)
        case ("get", queue, count, ack_required):
            pair.get(queue, count, ack_required=ack_required)
        case ("settle", which, every, outcome):
            pair.take()
            if held := [channel for channel, tags in pair.unacked.items() if tags]:
                channel = held[which % len(held)]
                pair.settle_tags(channel, pair.unacked[channel][::every], outcome)
        case ("advance", seconds):
            pair.advance(seconds)
        case ("subscribe", queue, prefetch):
            pair.subscribe(queue, prefetch)
        case ("close", which):
            if pair.channels:
                pair.close_channel(list(pair.channels)[which % len(pair.channels)])
        case ("purge", queue):
            pair.purge(queue)


@pytest.mark.slow
@given(
    kind=st.sampled_from(KINDS),
    profile=st.sampled_from(PROFILES),
    memory=st.sampled_from([200_000, 600_000, 2_000_000]),
    steps=st.lists(STEPS, max_size=40),
)
@settings(max_examples=times(60), suppress_health_check=list(HealthCheck))
def test_any_workload_leaves_both_alike_after_every_step(
    kind: dict[str, Any], profile: Profile, memory: int, steps: list[tuple[Any, ...]]
) -> None:
    pair = Pair({"a": kind, "b": {}}, memory=memory, profile=profile)
    try:
        for step in steps:
            carry_out(pair, step)
            pair.compare()
        pair.advance(3)
        pair.compare()
    finally:
        pair.close()
