"""Recorder: what the real broker's queue answers to the operations of a trace.

``trace_recorder.erl`` does the work, inside a node that a :class:`~tests.support.broker.Broker` runs. A trace goes
there and comes back as a JSON file; many of them go in one call, as a call into the node costs half a second.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.broker import Broker
from tests.support.recorder.loading import load

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
