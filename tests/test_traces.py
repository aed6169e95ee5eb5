"""What a real broker's queue answered, operation by operation, is what this one answers.

The traces drive RabbitMQ 3.10.8's own queue; how they were made, and how they can be made again:
``tests/support/recorder``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from warren.traces.queue_state import state_of
from warren.traces.replay import Replay, replay

TRACES = Path(__file__).parent / "golden" / "traces"
ELSEWHERE = Path(__file__).parents[1] / "../shared/golden/rabbitmq-3.10.8/traces"
"""A fuller set, if it is present."""

PATHS = sorted({path.name: path for place in (ELSEWHERE, TRACES) for path in place.glob("*.json")}.items())


def load(path: Path) -> dict[str, Any]:
    """Load a trace; move the clock's readings from the answers, which recorded them, to the operations."""
    trace: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    for step in trace["steps"]:
        if "measured_elapsed_us" in (step.get("result") or {}):
            step["op"]["measured_elapsed_us"] = step["result"]["measured_elapsed_us"]
    return trace


def differences(found: dict[str, Any] | None, recorded: dict[str, Any] | None) -> dict[str, tuple[Any, Any]]:
    """What was recorded and is not so: name, (found, recorded)."""
    found = found or {}
    return {name: (found.get(name), value) for name, value in (recorded or {}).items() if found.get(name) != value}


@pytest.mark.slow
@pytest.mark.parametrize("path", [pytest.param(path, id=name.removesuffix(".json")) for name, path in PATHS])
def test_state_and_results_are_the_brokers_after_every_operation(path: Path) -> None:
    trace = load(path)
    running = Replay(trace)
    assert differences(state_of(running.queue), trace["initial"]) == {}
    for number, step in enumerate(trace["steps"]):
        where = f"step {number}, {step['op']}"
        assert differences(running.run(step["op"]), step.get("result")) == {}, where
        assert differences(state_of(running.queue), step["state"]) == {}, where
        running.queue.check_invariants()


@pytest.mark.slow
@pytest.mark.parametrize("path", [pytest.param(path, id=name.removesuffix(".json")) for name, path in PATHS])
def test_a_trace_without_its_answers_replays_the_same(path: Path) -> None:
    trace = load(path)
    steps, trace["steps"] = trace["steps"], [{"op": step["op"]} for step in trace["steps"]]
    trace.pop("initial")
    for number, (shown, step) in enumerate(zip(replay(trace), steps, strict=True)):
        assert differences(shown["state"], step["state"]) == {}, number
        assert differences(shown["result"], step.get("result")) == {}, number


def test_the_traces_are_there() -> None:
    assert len(list(TRACES.glob("*.json"))) == 26
