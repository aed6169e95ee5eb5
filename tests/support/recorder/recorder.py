"""The recorder, loaded into a running broker, and the first difference between a recorded trace and ours."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs

from tests.support.broker import SERVER_SCRIPT, Broker, BrokerError
from warren.traces.queue_state import state_of
from warren.traces.replay import Replay, with_measured_time

ENVIRONMENT = os.environ | {"ERL_LIBS": str(SERVER_SCRIPT.resolve().parent.parent / "plugins")}
"""In which Erlang finds the server's libraries."""


def load(broker: Broker, source: Path, directory: Path) -> str:
    """Load ``source``, compiled into ``directory``, which is there; returns the module's name."""
    compiled(source, directory)
    broker.eval(f'{{module, {source.stem}}} = code:load_abs("{directory / source.stem}")')
    return source.stem


def compiled(source: Path, directory: Path) -> None:
    """Compile ``source`` into ``directory``."""
    run(["erlc", "-o", str(directory), str(source)])


def run(command: list[str], directory: Path | None = None) -> None:
    """One of Erlang's programs. Raises :class:`BrokerError` with what it printed where it fails."""
    done = subprocess.run(command, cwd=directory, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BrokerError(done.stdout + done.stderr)


Trace = dict[str, Any]
_SOURCE = Path(__file__).with_name("trace_recorder.erl")
_MODULE = _SOURCE.stem


class Recorder:
    """The recorder's module, loaded into a running broker. ``directory``: for its files; there before."""

    def __init__(self, broker: Broker, directory: Path) -> None:
        self._broker = broker
        self._directory = directory
        load(broker, _SOURCE, directory)

    def record(self, traces: Sequence[Trace]) -> list[Trace]:
        """The traces with ``initial``, and every step's ``state`` and ``result``, from the broker.

        Where the broker's queue failed, there is a ``failure``, and the steps end before the one that brought it about.
        """
        paths = [self._directory / f"{number:05}.trace" for number in range(len(traces))]
        for path, trace in zip(paths, traces, strict=True):
            path.write_text(json.dumps(trace))
        self._broker.eval(f'{_MODULE}:record_all("{self._directory}")')
        recorded = [json.loads(path.with_suffix(".recorded").read_text()) for path in paths]
        for path in paths:
            path.unlink()
            path.with_suffix(".recorded").unlink()
        return recorded


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
    if what := _unlike(state_of(running.queue), recorded["initial"]):
        return Difference(name, -1, {}, what)
    for number, step in enumerate(recorded["steps"]):
        try:
            result = running.run(with_measured_time(step))
            running.queue.check_invariants()
        except Exception as error:
            return Difference(name, number, step["op"], {"failure": (repr(error), None)})
        what = _unlike(state_of(running.queue), step["state"]) | _unlike(result or {}, step.get("result", {}))
        if what:
            return Difference(name, number, step["op"], what)
    return None


def _unlike(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    return {
        name: (ours.get(name), theirs.get(name))
        for name in sorted({*ours, *theirs})
        if ours.get(name) != theirs.get(name)
    }
