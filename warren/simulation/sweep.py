"""Sweeps: run a scenario for each point of a grid of values, on all cores or with another executor.

    from warren.simulation.sweep import sweep

    frame = sweep(scenario, {"node.paging_ratio": [0.3, 0.5, 0.7], "publishers.rate": [500, 1000]})

Points do not depend on each other, and all have the scenario's seed. The rows are in the grid's order, and they are the
same wherever and in which order the points are run. A point that fails gives a row with its error.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final

import attrs

from warren.recording.parquet_log import arrow_types
from warren.simulation.grid import (
    ADDED_UP,
    OF_NODE,
    WORST,
    Axis,
    Done,
    Outcome,
    Point,
    axes_of,
    points_of,
    shown,
    shown_values,
)
from warren.simulation.result import write_json
from warren.simulation.scenarios.scenario import Scenario

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

TABLE_FILE: Final = "sweep.parquet"
JSON_FILE: Final = "sweep.json"
Runner = Callable[[Sequence[Point], Done], list[Outcome]]
"""Runs points, somewhere; the outcomes in the points' order."""


@attrs.frozen(slots=False, eq=False)
class Sweep:
    """The outcome of a grid."""

    name: str
    """The scenario's."""
    axes: tuple[Axis, ...]
    points: tuple[Point, ...] = attrs.field(repr=False)
    outcomes: tuple[Outcome, ...] = attrs.field(repr=False)

    @cached_property
    def frame(self) -> pd.DataFrame:
        """A row for each point: ``point``, a column for each key, the numbers (NaN: it did not happen), ``error``."""
        return self._table().to_pandas()

    @property
    def failed(self) -> list[str]:
        """The errors of the points that failed, each after the point's values."""
        pairs = zip(self.points, self.outcomes, strict=True)
        return [f"{shown_values(point.values)}: {outcome.error}" for point, outcome in pairs if outcome.error]

    def to_json(self) -> dict[str, Any]:
        """Return what sweep.json has: the axes, and each point with its values and its whole summary or its error."""
        points = []
        for point, outcome in zip(self.points, self.outcomes, strict=True):
            result = {"error": outcome.error} if outcome.summary is None else {"summary": outcome.summary}
            points.append({"point": point.number, "values": dict(point.values), **result})
        axes = [{"key": axis.key, "values": list(axis.values)} for axis in self.axes]
        return {"name": self.name, "axes": axes, "points": points}

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write sweep.parquet and sweep.json into ``folder``, which is made if it is missing."""
        import pyarrow.parquet as pq

        os.makedirs(folder, exist_ok=True)
        pq.write_table(self._table(), os.path.join(folder, TABLE_FILE))
        write_json(os.path.join(folder, JSON_FILE), self.to_json())

    def _table(self) -> pa.Table:
        import pyarrow as pa

        rows = [outcome.numbers() for outcome in self.outcomes]
        kinds = {**OF_NODE, **dict.fromkeys(ADDED_UP, "i8"), **WORST}
        types = arrow_types()
        columns = {"point": pa.array([point.number for point in self.points], pa.int64())}
        columns |= {axis.key: _column(axis, self.points) for axis in self.axes}
        columns |= {name: pa.array([row.get(name) for row in rows], types[kind]) for name, kind in kinds.items()}
        columns["error"] = pa.array([outcome.error for outcome in self.outcomes], pa.string())
        return pa.table(columns)


def _column(axis: Axis, points: Sequence[Point]) -> pa.Array:
    """Return an axis's values: numbers if all of them are, else as they are written."""
    import pyarrow as pa

    values = [point.values[axis.key] for point in points]
    kinds = {type(value) for value in axis.values}
    for kind, type_ in ((bool, pa.bool_()), (int, pa.int64())):
        if kinds == {kind}:
            return pa.array(values, type_)
    if kinds <= {int, float}:
        return pa.array([float(value) for value in values], pa.float64())
    return pa.array([shown(value) for value in values], pa.string())


def run_grid(
    scenario: Scenario | Mapping[str, Any],
    vary: Mapping[str, Sequence[Any]] | Sequence[Axis],
    *,
    path: str | None = None,
    processes: int | None = None,
    run: Runner | None = None,
    progress: Done | None = None,
) -> Sweep:
    """Do the same as :func:`sweep`, and return all that is known of each point."""
    axes = axes_of(vary)
    points = points_of(scenario, axes, path)
    if run is None:
        from warren.simulation.processes import on_processes

        run = partial(on_processes, processes=processes)
    outcomes = run(points, progress or (lambda _: None))
    if [outcome.number for outcome in outcomes] != [point.number for point in points]:
        raise RuntimeError("a sweep's outcomes are not those of its points, in their order")
    return Sweep(points[0].scenario.name, axes, points, tuple(outcomes))


def sweep(
    scenario: Scenario | Mapping[str, Any],
    vary: Mapping[str, Sequence[Any]] | Sequence[Axis],
    *,
    path: str | None = None,
    processes: int | None = None,
    run: Runner | None = None,
    progress: Done | None = None,
) -> pd.DataFrame:
    """Simulate a scenario for each combination of values. Returns :attr:`Sweep.frame`, with a row for each.

    ``scenario`` is a scenario, or the table of a scenario's file at ``path``. Its traces are looked for beside that
    file. ``vary`` has values by key, as ``{"node.paging_ratio": [0.3, 0.5]}``. The key ``publishers.rate`` means every
    publisher, ``publishers[0].rate`` the first one. ``processes``: the most at a time; ``None``: one for each core; 1:
    all in this process. ``run`` runs the points elsewhere (:mod:`warren.pipeline.grid`: on Spark). Raises
    :class:`ScenarioError`, before anything runs, if a key does not exist or a value is wrong.
    """
    return run_grid(scenario, vary, path=path, processes=processes, run=run, progress=progress).frame
