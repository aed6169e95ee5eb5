"""What queueing theory says of a queue with one consumer, the simulation shows: M/M/1 and M/D/1, and each single wait.

Messages come as a Poisson process (rate λ) and are handled one at a time (prefetch 1; mean 1/μ, exponential or always
the same); ρ = λ/μ. With Pollaczek and Khinchine, where c² is 1 for exponential and 0 for constant times::

    mean number ready      Lq = ρ²/(1 - ρ) · (1 + c²)/2
    mean number in system  L  = Lq + ρ              (ready, and with the consumer)
    mean wait              Wq = Lq/λ                (from the publish until the consumer takes the message up)

*How long a run has to be.* For M/M/1 the mean number in system over a run of N messages has the relative variance
2(1 + ρ)/((1 - ρ)²·N), and the mean wait (2 + 5ρ - 4ρ² + ρ³)/(ρ(1 - ρ)²·N): at ρ = 0.5 these are 12/N and 29/N. So
100,000 messages give standard deviations of 1.1 % and 1.7 %; what is drawn is fixed by the seed, and within 2 %. Higher
loads need much longer runs (ρ = 0.8: 90/N). Constant service times take half of the randomness away, hence M/D/1 is
content with 60,000.

Against chance stands the other test: with the very arrivals and services that were drawn, each wait has to be the one
of Lindley's recursion, W' = max(0, W + S - A), to the nanosecond.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.support.effort import times
from warren.simulation import ConsumerSpec, NodeSpec, PublisherSpec, QueueSpec, Scenario, Simulation
from warren.simulation.node.workload import SimulatedConsumer
from warren.simulation.scenarios.node_spec import INSTANT_DISK
from warren.simulation.scenarios.scenario import Service
from warren.simulation.scenarios.units import NS

MU = 1000.0


def one_consumer(rho: float, messages: int, service: Service, seed: int = 1) -> Scenario:
    """A queue and a consumer that is busy the share ``rho`` of the time; every message an event of its own."""
    length = messages / (rho * MU)
    return Scenario(
        length=length,
        step=length,
        granularity=0,
        seed=seed,
        node=NodeSpec(disk=INSTANT_DISK),
        queues=[QueueSpec(name="q", durable=False)],
        publishers=[PublisherSpec(queue="q", rate=rho * MU, body=10, persistent=0.0)],
        consumers=[ConsumerSpec(queue="q", rate=MU, prefetch=1, service=service)],
    )


@pytest.mark.slow
@pytest.mark.parametrize(("service", "c2", "messages"), [("exponential", 1.0, 100_000), ("constant", 0.0, 60_000)])
def test_mean_number_and_mean_wait_are_within_2_percent_of_the_formula(
    service: Service, c2: float, messages: int
) -> None:
    """A quick run has a quarter of the messages, and so twice the deviation."""
    rho = 0.5
    run = times(messages, quick=messages // 4)
    near = 0.02 * max(1.0, math.sqrt(messages / run))
    shown: dict[str, Any] = Simulation(one_consumer(rho, run, service)).run().summary["queues"]["q"]
    ready = rho**2 / (1 - rho) * (1 + c2) / 2
    assert shown["mean_ready"] + shown["mean_unacked"] == pytest.approx(ready + rho, rel=near)
    assert shown["mean_ready"] == pytest.approx(ready, rel=near)
    assert shown["latency_mean_s"] == pytest.approx(ready / (rho * MU), rel=near)


@pytest.mark.slow
@pytest.mark.parametrize("service", ["exponential", "constant"])
@pytest.mark.parametrize("rho", [0.3, 0.9])
def test_each_wait_is_lindleys(rho: float, service: Service) -> None:
    simulation = Simulation(one_consumer(rho, 1500, service, seed=3))
    [consumer] = simulation.consumers["q"]
    assert isinstance(consumer, SimulatedConsumer)
    came: list[int] = []
    taken: list[int] = []

    def note(ids: bytes, taken_ns: npt.NDArray[np.int64]) -> None:
        came.extend(np.frombuffer(ids, ">i8")[::2].tolist())
        taken.extend(taken_ns.tolist())

    services: list[int] = []
    draw = consumer._service_ends

    def drawn() -> npt.NDArray[np.int64]:
        services.append(int(draw()[-1]))
        return np.asarray(services[-1:], np.int64)

    consumer._latencies, consumer._service_ends = note, drawn  # type: ignore[method-assign]
    simulation.run()
    assert len(came) > 1300
    wait = 0
    for number, (at, begun) in enumerate(zip(came, taken, strict=True)):
        if number:
            wait = max(0, wait + services[number - 1] - (at - came[number - 1]))
        assert begun - at == wait
    assert max(np.subtract(taken, came)) > NS / MU, "somebody waited"
