"""Ours against the broker's: the first difference of a recorded trace, and the smallest trace that still shows one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs

from tests.support.recorder.recorder import Recorder, Trace
from warren.traces.replay import Replay, with_measured_time

_CANDIDATES_AT_A_TIME = 60


@attrs.frozen
class Difference:
    """Where a trace first differs: ``what`` maps a field of the state, or ``result``, to (ours, the broker's)."""

    trace: str
    step: int
    op: dict[str, Any]
    what: dict[str, Any]

    def __str__(self) -> str:
        lines = [f"{self.trace}, step {self.step}: {self.op}"]
        return "\n".join([*lines, *(f"    {name}: {ours} | {theirs}" for name, (ours, theirs) in self.what.items())])


def first_difference(recorded: Trace) -> Difference | None:
    """Replay a recorded trace as far as the broker went; where ours first answered otherwise."""
    name = str(recorded.get("trace"))
    running = Replay(recorded)
    if what := _unlike(running.state(), recorded["initial"]):
        return Difference(name, -1, {}, what)
    for number, step in enumerate(recorded["steps"]):
        try:
            result = running.run(with_measured_time(step))
            running.queue.check_invariants()
        except Exception as error:
            return Difference(name, number, step["op"], {"failure": (repr(error), None)})
        what = _unlike(running.state(), step["state"]) | _unlike(result or {}, step.get("result", {}))
        if what:
            return Difference(name, number, step["op"], what)
    return None


def _unlike(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    return {
        name: (ours.get(name), theirs.get(name))
        for name in sorted({*ours, *theirs})
        if ours.get(name) != theirs.get(name)
    }


def minimise(recorder: Recorder, recorded: Trace) -> Trace:
    """The smallest trace found that still differs, as recorded: fewer steps, then fewer messages."""
    while True:
        difference = first_difference(recorded)
        if difference is None:
            raise ValueError("there is no difference to keep")
        recorded = {**recorded, "steps": recorded["steps"][: difference.step + 1]}
        candidates = list(_smaller(recorded))
        for low in range(0, len(candidates), _CANDIDATES_AT_A_TIME):
            answers = recorder.record(candidates[low : low + _CANDIDATES_AT_A_TIME])
            differing = [answer for answer in answers if _differs_alike(answer, difference)]
            if differing:
                recorded = min(differing, key=_weight)
                break
        else:
            return recorded


def _differs_alike(recorded: Trace, wanted: Difference) -> bool:
    found = first_difference(recorded)
    return found is not None and bool(found.what.keys() & wanted.what.keys())


def _weight(recorded: Trace) -> tuple[int, int]:
    steps = recorded["steps"]
    return len(steps), sum(step["op"].get("n", 0) for step in steps)


def _smaller(recorded: Trace) -> Iterator[Trace]:
    """What is left without some of the steps, or with fewer messages in one of them."""
    ops = [step["op"] for step in recorded["steps"]]
    width = len(ops) // 2
    while width:
        for low in range(0, len(ops), width):
            yield from _runnable(recorded, ops[:low] + ops[low + width :])
        width //= 2
    for index, op in enumerate(ops):
        n = op.get("n", 0)
        for fewer in sorted({n // 2, n - 1} - {n, -1, 0}):
            yield from _runnable(recorded, [*ops[:index], {**op, "n": fewer}, *ops[index + 1 :]])


def _runnable(recorded: Trace, ops: list[dict[str, Any]]) -> Iterator[Trace]:
    """A trace of ``ops``, unless the broker could never produce it."""
    trace = {name: recorded[name] for name in ("trace", "vhost", "params")} | {"steps": [{"op": op} for op in ops]}
    running = Replay(trace)
    for op in ops:
        if op["op"] == "publish_delivered" and running.state()["len"]:
            return
        try:
            running.run(op)
        except Exception:
            break
    yield trace
