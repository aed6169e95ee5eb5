"""Sweeps on Spark: each point of a simulation's grid is a task.

    from warren import pipeline
    from warren.pipeline.grid import on_spark
    from warren.simulation.sweep import sweep

    spark = pipeline.session("spark://host:7077")
    frame = sweep(scenario, {"node.paging_ratio": [0.3, 0.5, 0.7]}, run=on_spark)

Points are made here, traces and all, so executors need none of the files; what they send back is each point's summary.
A point has the same numbers wherever it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from warren.pipeline.jobs.parallel import map_parallel
from warren.pipeline.jobs.running import running
from warren.simulation.grid import Outcome, Point, run_point


def on_spark(points: Sequence[Point], progress: Callable[[int], None], *, master: str | None = None) -> list[Outcome]:
    """Return the outcome of each point, in order: on the active session, or on one that is started for it.

    ``master``: of one that is started (default: ``local[*]``). A point that cannot be simulated is an outcome, too.
    Raises :class:`warren.pipeline.PipelineError` if Spark does not start, or gives a task up.
    """
    with running("Simulating", master) as (spark, _):
        outcomes = map_parallel(spark, points, run_point)
    progress(len(outcomes))
    return outcomes
