"""``inspect``: the queues of all nodes in one table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame

from warren.pipeline.jobs.running import load, running
from warren.salvage.names import Json


def queues(queues: DataFrame) -> DataFrame:
    """The rows of the table ``queues`` in order."""
    return queues.orderBy("node", "vhost", "queue", "priority")


def run(paths: list[str], master: str | None, settings: Mapping[str, str]) -> dict[str, Json]:
    """The whole of the JSON."""
    with running("Inspecting", master, paths) as (spark, nodes):
        rows: list[Any] = queues(load(spark, "queues", nodes, settings)).collect()
        return {"queues": [row.asDict() for row in rows]}
