"""The pipeline's benchmarks run at tiny size and say what they are to say; how fast anything is, is not asked here."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchmarks.figures import Bar, Figure, Memory, Results, Spread
from benchmarks.plot import draw_spark
from benchmarks.spark_cases import CASES
from benchmarks.spark_nodes import fleet_of, queue_nodes, size_of, topic_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MIB = 1 << 20


@pytest.mark.slow
@pytest.mark.spark
def test_every_case_times_its_contestants_on_the_same_rows(spark: SparkSession, tmp_path: Path) -> None:
    store = topic_store(str(tmp_path), log_bytes=MIB, file_bytes=2 * MIB, size=300, keyed=True)
    nodes = queue_nodes(str(tmp_path), nodes=2, queues=2, bytes_each=8 * MIB, size=8192)
    said = {
        case: sorted(CASES[case](spark, 1, str(tmp_path / case), arguments))
        for case, arguments in (
            ("scan", ["records", store]),
            ("binary", ["store", *nodes]),
            ("export", nodes),
            ("rebuild", [store]),
            ("only", ["records", *fleet_of(store, str(tmp_path), 2)]),
        )
    }
    assert said == {
        "scan": ["parquet", "warren"],
        "binary": ["udf", "warren"],
        "export": ["single", "warren"],
        "rebuild": ["single", "warren"],
        "only": ["warren"],
    }
    assert size_of(nodes) > 16 * MIB


def test_the_picture_is_drawn(tmp_path: Path) -> None:
    figure = Figure(
        group="spark",
        title="spark, scan of records",
        unit="MB/s",
        ours=Spread(300, 280, 310),
        counterpart=Spread(600, 500, 700),
        counterpart_name="Parquet",
        ratio=Spread(0.5, 0.4, 0.6),
        bar=Bar("at least", 0.25),
    )
    target = tmp_path / "picture.png"
    results = Results(date="2026-01-01", quick=True, machine={}, figures=[figure], memory=Memory())
    draw_spark(results, target)
    assert target.read_bytes().startswith(b"\x89PNG")
