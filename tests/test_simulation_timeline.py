"""The timeline: groups are the sums of their queues, idle queues cost nothing, latencies are what they were."""

from __future__ import annotations

import functools
import tracemalloc

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warren.simulation import ConsumerSpec, NodeSpec, PublisherSpec, QueueSpec, Result, Scenario, simulate, timeline
from warren.simulation.node.publication import NO_TIME
from warren.simulation.scenarios.units import NS
from warren.simulation.timeline import QUEUE_COLUMNS, Latencies

GROUP = Scenario(
    length=8,
    node=NodeSpec(memory="4MB", monitor_interval=0.5, report_interval=1),
    queues=[QueueSpec(name="alone"), QueueSpec(name="many", count=5), QueueSpec(name="idle", count=3)],
    publishers=[
        PublisherSpec(queue="alone", rate=100, body="2kB"),
        PublisherSpec(queue="many", rate=30, body="5kB", persistent=0.5),
    ],
    consumers=[
        ConsumerSpec(queue="alone", rate=90),
        ConsumerSpec(queue="many", rate=15, requeue=0.1, ack_delay=0.2),
    ],
)
LEAST = {"duration_s"}
SAME = {"time_s"}
OF_THE_GROUP = {"queue", "latency_p50_s", "latency_p99_s"}


@functools.cache
def grouped(how: str) -> Result:
    queues = [attrs.evolve(spec, timeline=how) for spec in GROUP.queues]
    return simulate(attrs.evolve(GROUP, queues=queues))


@pytest.mark.slow
def test_a_groups_row_is_its_queues_rows_added_up() -> None:
    each, whole = grouped("each"), grouped("sum")
    assert whole.names == ["alone", "many", "idle"]
    for name in whole.names:
        rows = each.timeline[each.timeline["queue"].str.startswith(name)].groupby("time_s", sort=True)
        group = whole.queue(name)
        for column in QUEUE_COLUMNS:
            if column in OF_THE_GROUP:
                continue
            expected = rows[column].min() if column in LEAST else rows[column].sum()
            if column in SAME:
                expected = rows[column].first()
            np.testing.assert_allclose(group[column], expected, rtol=1e-12, err_msg=f"{name} {column}")
    assert each.node.equals(whole.node)
    assert each.summary["node"]["first_paging_s"] is not None


@pytest.mark.slow
def test_what_was_counted_in_all_is_what_the_rows_say() -> None:
    result = grouped("each")
    for name, said in result.summary["queues"].items():
        rows = result.queue(name)
        for column in ("published", "delivered", "acked", "requeued", "turns"):
            assert rows[column].sum() == said[column], (name, column)
        assert rows["len"].iloc[-1] == said["ready"]
        assert rows["len"].max() == said["max_ready"]


def test_queues_that_nothing_happens_to_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looked, real = [], timeline._seen

    def counting(queue: object, ram_bytes: int) -> object:
        looked.append(queue)
        return real(queue, ram_bytes)  # type: ignore[arg-type]

    monkeypatch.setattr(timeline, "_seen", counting)
    scenario = Scenario(
        length=30,
        queues=[QueueSpec(name="hot"), QueueSpec(name="idle", count=300)],
        publishers=[PublisherSpec(queue="hot", rate=20)],
    )
    result = simulate(scenario)
    assert 301 <= len(looked) <= 301 + scenario.steps
    assert (result.node["queues_awake"] == 1).all()


@pytest.mark.slow
def test_large_bodies_that_come_one_at_a_time_share_their_memory() -> None:
    scenario = Scenario(
        length=30,
        node=NodeSpec(memory="8GB"),
        queues=[QueueSpec(name="large")],
        publishers=[PublisherSpec(queue="large", rate=10, arrivals="constant", body="1MB")],
    )
    tracemalloc.start()
    try:
        result = simulate(scenario)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert result.summary["queues"]["large"]["ready"] in (299, 300)  # the last one comes as it ends
    assert result.timeline["message_bytes_ram"].iloc[-1] >= 299_000_000
    assert peak_bytes < 120_000_000


def ids_of(published_ns: list[int | None]) -> bytes:
    return b"".join(bytes(8) + NO_TIME if at is None else at.to_bytes(8, "big") + bytes(8) for at in published_ns)


@given(st.lists(st.lists(st.integers(1, 10**14), min_size=1, max_size=20), min_size=1, max_size=6))
def test_latencies_are_summed_exactly_and_their_quantiles_are_close(steps: list[list[int]]) -> None:
    latencies = Latencies()
    for waits in steps:
        latencies.add(ids_of([1000] * len(waits)), np.asarray(waits, np.int64) + 1000)
        p50, p99 = latencies.end_step()
        assert (p50, p99) == pytest.approx(tuple(np.percentile(waits, (50, 99)) / NS))
    every = np.asarray([wait for waits in steps for wait in waits])
    assert (latencies.count, latencies.sum_ns, latencies.largest_ns) == (len(every), every.sum(), every.max())
    exact = np.percentile(every, 99, method="inverted_cdf") / NS
    if exact > 2e-6:
        assert latencies.quantile(0.99) == pytest.approx(exact, rel=0.012)


def test_what_was_there_before_the_start_has_no_latency() -> None:
    latencies = Latencies()
    assert np.isnan(latencies.end_step()).all()
    latencies.add(ids_of([None, 5, None]), np.asarray([10, 20, 30]))
    assert latencies.end_step() == (15 / NS, 15 / NS)
    latencies.add(ids_of([None]), np.asarray([10]))
    assert np.isnan(latencies.end_step()).all()
    assert (latencies.count, latencies.sum_ns) == (1, 15)


def test_no_share_of_the_messages_waited_longer_than_the_one_that_waited_longest() -> None:
    latencies = Latencies()
    waited_ns = 83_490_000_000
    latencies.add((0).to_bytes(8, "big") + bytes(8), np.array([waited_ns]))
    latencies.end_step()
    assert latencies.quantile(0.99) == latencies.largest_ns / 1e9 == 83.49
    assert latencies.quantile(0.5) <= 83.49
