"""The simulation as a whole: what goes in comes out, and the same seed gives the same bytes."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest

from warren.simulation import ConsumerSpec, NodeSpec, PublisherSpec, QueueSpec, Result, Scenario, simulate

BACKLOG = Scenario(
    name="backlog",
    length=30,
    granularity=0.1,
    node=NodeSpec(memory="50MB", monitor_interval=0.5, report_interval=1),
    queues=[QueueSpec(name="orders")],
    publishers=[PublisherSpec(queue="orders", rate=500, body="5kB")],
    consumers=[ConsumerSpec(queue="orders", rate=100)],
)


@pytest.fixture(scope="module")
def result() -> Result:
    return simulate(BACKLOG, check_invariants=True)


@pytest.mark.slow
def test_what_was_published_is_ready_unacked_or_acked(result: Result) -> None:
    orders = result.summary["queues"]["orders"]
    assert orders["published"] == orders["ready"] + orders["unacked"] + orders["acked"]
    assert 14_000 < orders["published"] < 16_000
    assert 2_800 <= orders["acked"] <= 3_000


@pytest.mark.slow
def test_a_backlog_is_paged_and_memory_stays_below_the_watermark(result: Result) -> None:
    node = result.summary["node"]
    assert node["first_paging_s"] is not None
    assert node["first_alarm_s"] is None
    timeline = result.queue("orders")
    assert timeline["ram_msg_count"].iloc[-1] < timeline["len"].iloc[-1]
    assert (timeline[["q1", "q2", "delta", "q3", "q4"]].sum(axis=1) == timeline["len"]).all()


@pytest.mark.slow
def test_the_same_seed_gives_the_same_bytes_and_another_one_others(result: Result, tmp_path: Path) -> None:
    result.save(tmp_path / "a")
    simulate(BACKLOG).save(tmp_path / "b")
    simulate(attrs.evolve(BACKLOG, seed=2)).save(tmp_path / "c")
    for name in ("timeline.parquet", "node.parquet", "summary.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
        assert (tmp_path / "a" / name).read_bytes() != (tmp_path / "c" / name).read_bytes()


def test_what_is_saved_is_loaded_again(result: Result, tmp_path: Path) -> None:
    result.save(tmp_path)
    loaded = Result.load(tmp_path)
    assert loaded.summary == result.summary
    assert loaded.marks == result.marks
    assert loaded.timeline.equals(result.timeline)
    assert loaded.node.equals(result.node)
