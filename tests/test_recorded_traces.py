"""Our queue answers as RabbitMQ's does, step by step: to traces that showed a difference once, and to random ones.

The real queue is driven by :mod:`tests.support.recorder`; the traces in ``data/traces`` hold its answers and need no
broker.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.broker import Broker, requires_broker
from tests.support.recorder.recorder import Recorder, first_difference
from tests.support.recorder.trace_generator import generate

TRACES = sorted((Path(__file__).parent / "data" / "traces").glob("*.json"), key=lambda path: path.name)
SEEDS = range(20)


def read(path: Path) -> dict[str, Any]:
    trace: dict[str, Any] = json.loads(path.read_text())
    return trace


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.stem)
def test_recorded_answers_are_ours_too(path: Path) -> None:
    assert first_difference(read(path)) is None


@pytest.mark.parametrize("field", ["index_dirty_count", "delta", "len"])
def test_another_answer_is_noticed_at_its_step(field: str) -> None:
    trace = copy.deepcopy(read(TRACES[0]))
    trace["steps"][2]["state"][field] = "something else"
    difference = first_difference(trace)
    assert difference is not None
    assert (difference.step, list(difference.what)) == (2, [field])


def test_a_seed_makes_the_same_trace_again() -> None:
    assert generate(7) == generate(7)
    assert generate(7) != generate(8)


@requires_broker
def test_random_traces_are_answered_as_by_the_broker(broker: Broker, tmp_path: Path) -> None:
    broker.start()
    recorded = Recorder(broker, tmp_path).record([generate(seed) for seed in SEEDS])
    differences = [difference for trace in recorded if (difference := first_difference(trace)) is not None]
    assert not differences, "\n".join(map(str, differences))
    assert sum("failure" in trace for trace in recorded) <= len(SEEDS) // 10
    assert sum(len(trace["steps"]) for trace in recorded) > 20 * len(SEEDS)
