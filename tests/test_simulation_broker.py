"""The simulation beside a real RabbitMQ 3.10.8: the same workload, when paging starts, and where the messages are.

Every run compares an old recording with the simulation (``data/simulation-broker``); the test with a broker makes a new
recording, with whatever this machine has of memory and time. How far apart the two may be follows from the broker's own
intervals and from how unevenly its memory grows, which is measured: see
:mod:`tests.support.recorder.paging_comparison`.
"""

from __future__ import annotations

from contextlib import nullcontext, suppress
from pathlib import Path

import attrs
import numpy as np
import pytest

from tests.support.broker import Broker, requires_broker
from tests.support.recorder.paging_comparison import (
    PLACES,
    Curves,
    difference,
    load,
    observed,
    save,
    shape_tolerance,
    simulated,
    start_tolerance_s,
)
from tests.support.recorder.paging_recorder import Looking, Recording, Workload, record, settings
from warren.simulation import MessageMemory, NodeSpec, PublisherSpec, QueueSpec, Scenario, Simulation

DATA = Path(__file__).parent / "data" / "simulation-broker"
RECORDED = ("embedded", "stored")
ATTEMPTS = 3
WORKLOAD = Workload(
    name="large",  # so that its bodies are more than the node's own ups and downs
    length_s=25.0,
    calibration_s=8.0,
    publish_rate=500,
    consume_rate=50,
    body_bytes=8000,
    persistent=False,
    room_bytes=35_000_000,
)


def check(recording: Recording) -> None:
    """The simulation of a recording starts to page when the broker did, and has its messages where it had them."""
    there, here = observed(recording), simulated(recording)
    apart_s = here.paging_starts_s - there.paging_starts_s
    off = difference(there, here)
    said = (
        f"paging starts at {there.paging_starts_s:.2f} s, in the simulation {apart_s:+.2f} s from it; "
        f"{off:.1%} of all messages are elsewhere; {recording.base_bytes=} {recording.message_bytes=} "
        f"{recording.noise_bytes=} {recording.limit_bytes=} {recording.first_round_s=}"
    )
    print(said)
    assert abs(apart_s) <= start_tolerance_s(recording), said
    assert off <= shape_tolerance(recording), said


@pytest.mark.slow
@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_broker_pages_as_the_simulation_does(name: str) -> None:
    check(load(DATA / f"{name}.json.gz"))


@requires_broker
def test_a_broker_pages_as_the_simulation_does(tmp_path: Path) -> None:
    """Where other work holds the broker up for seconds, that is in the recording, too: then another one is made."""
    for attempt in range(ATTEMPTS):
        place = tmp_path / str(attempt)
        place.mkdir()
        with Broker(place / "broker", settings()) as broker:
            broker.start()
            recording = record(Looking(broker, place), WORKLOAD)
        with nullcontext() if attempt == ATTEMPTS - 1 else suppress(AssertionError):
            assert observed(recording)["delta"].max() > 0, "it was to go on until messages are on disk alone"
            check(recording)
            return


# ── what was learnt from it ─────────────────────────────────────────────────────────────────────────────────────────


def running(persistent: float, **memory: int) -> Simulation:
    """Two seconds of 1000 messages a second that go to a store, handed over by the hundred."""
    simulation = Simulation(
        Scenario(
            length=10,
            granularity=0.1,
            node=NodeSpec(profile="rabbitmq-3.10", watermark=40_000_000, message_memory=MessageMemory(**memory)),
            queues=[QueueSpec(name="q")],
            publishers=[
                PublisherSpec(queue="q", rate=1000, arrivals="constant", body=5000, persistent=persistent, end=2)
            ],
        )
    )
    simulation.advance(2.0)
    return simulation


def test_messages_that_go_together_are_calls_of_their_own() -> None:
    simulation = running(1.0)
    [(_, level)] = simulation.node.queues["q"].process.backing.awake()
    assert level.state.next_seq_id == 2000
    assert level.state.calls_since_reduce == 901  # the 1001st came with the 1000th … 1099th, and restarted the count


def test_of_the_file_that_a_store_writes_a_part_stays_in_ram() -> None:
    node = running(0.0, open_file=3_000_000).node
    assert node.read_memory() == node.allocated.read(), "nothing is written yet"
    node.queues["q"].tell(node.queues["q"].told_duration, 0.0)
    node.time.env.run(node.time.env.now + 1_000_000_000)
    assert node.transient.store.growing_bytes > 3_000_000
    assert node.read_memory() == node.allocated.read() + 3_000_000


def test_persistent_bodies_in_ram_are_not_counted_again_as_the_stores() -> None:
    node = running(1.0, open_file=16_000_000).node
    assert node.persistent.store.growing_bytes > 9_000_000
    assert node.read_memory() - node.allocated.read() < 500_000  # what the records of the file have beside bodies


# ── the yardstick ───────────────────────────────────────────────────────────────────────────────────────────────────


def curves(*rows: tuple[float, int, int]) -> Curves:
    """Curves of a moment, messages in Q1 and messages in delta."""
    times, q1, delta = (np.asarray(column, np.float64) for column in zip(*rows, strict=True))
    columns = {place: np.zeros(len(rows)) for place in PLACES}
    return Curves(times, columns | {"q1": q1, "delta": delta, "len": q1 + delta})


def test_curves_differ_by_the_share_of_messages_that_are_elsewhere() -> None:
    one = curves((0.0, 100, 0), (10.0, 100, 0))
    assert difference(one, one) == 0.0
    assert difference(one, curves((0.0, 0, 100), (10.0, 0, 100))) == pytest.approx(1.0)
    assert difference(one, curves((0.0, 100, 0), (5.0, 50, 50), (10.0, 50, 50))) == pytest.approx(0.25, abs=0.01)


@pytest.mark.slow
def test_a_simulation_with_another_limit_does_not_pass() -> None:
    recording = load(DATA / "embedded.json.gz")
    with pytest.raises(AssertionError):
        check(attrs.evolve(recording, limit_bytes=recording.limit_bytes * 2))


def test_a_recording_is_read_as_it_was_written(tmp_path: Path) -> None:
    recording = load(DATA / "embedded.json.gz")
    save(recording, tmp_path / "again.json.gz")
    assert load(tmp_path / "again.json.gz") == recording
