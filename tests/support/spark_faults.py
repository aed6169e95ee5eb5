"""A driver whose tasks fail in named ways; says in a file of JSON what came of it.

Run by spark-submit as ``spark_faults.py DIRECTORY PATH...``. Each fault happens once, which a marker file in DIRECTORY
sees to. ``spark_faults.py slow DIRECTORY PATH...`` is a job on this machine that takes a minute.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from warren.pipeline.jobs.running import running, staged
from warren.pipeline.sessions import session
from warren.pipeline.spark_errors import spark_errors
from warren.pipeline.spark_source import WarrenSource
from warren.storage.errors import DataError, WarrenError

_WAIT_S = 60


class FaultySource(WarrenSource):
    """``format("faulty")``: warren's tables, read by tasks that fail as the environment's FAULT says."""

    @classmethod
    def name(cls) -> str:
        return "faulty"

    def schema(self) -> StructType:
        return WarrenSource(_without_fault(self.options)).schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        inner = WarrenSource(_without_fault(self.options)).reader(schema)
        return FaultyReader(inner, self.options["fault"], Path(self.options["markers"]))


class FaultyReader(DataSourceReader):
    def __init__(self, inner: DataSourceReader, fault: str, markers: Path) -> None:
        self._inner, self._fault, self._markers = inner, fault, markers

    def partitions(self) -> Any:
        return self._inner.partitions()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(self._inner.read(partition)):
            yield batch
            if number == 0:
                getattr(self, f"_{self._fault}")()

    def _none(self) -> None:
        pass

    def _killed_once(self) -> None:
        if self._first("killed"):
            os.kill(os.getpid(), signal.SIGKILL)

    def _fails_once(self) -> None:
        if self._first("failed"):
            raise DataError("/a/file", 12, "is damaged, once")

    def _fails_always(self) -> None:
        raise DataError("/a/file", 12, "is damaged")

    def _slow_once(self) -> None:
        """The first task that comes here waits until another has come, which is its duplicate or the next one."""
        if self._first("slow"):
            end = time.monotonic() + _WAIT_S
            while time.monotonic() < end and not (self._markers / "duplicated").exists():
                time.sleep(0.05)
        elif (self._markers / "slow").exists():
            (self._markers / "duplicated").touch()

    def _first(self, what: str) -> bool:
        try:
            (self._markers / what).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


def _without_fault(options: Any) -> dict[str, str]:
    return {name: value for name, value in options.items() if name not in ("fault", "markers")}


def main(directory: str, *paths: str) -> None:
    """Submitted to a cluster."""
    config = {
        "spark.task.maxFailures": "2",
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.multiplier": "1.01",
        "spark.speculation.quantile": "0.1",
        "spark.speculation.minTaskRuntime": "1ms",
    }
    spark = session(app_name="faults", config=config)
    spark.dataSource.register(FaultySource)
    context = spark.sparkContext
    seen = context.parallelize(range(4), 4).mapPartitions(_where).collect()
    said: dict[str, Any] = {"master": context.master, "seen": seen}

    def read(fault: str) -> Any:
        reader = spark.read.format("faulty").option("table", "queues").option("fault", fault)
        return reader.option("markers", directory).load(list(paths))

    said["none"] = [row.asDict() for row in read("none").collect()]
    for fault in ("killed_once", "fails_once", "slow_once"):
        out = f"{directory}/out-{fault}"
        with spark_errors(), staged(out) as staging:
            read(fault).write.parquet(f"{staging}/rows")
        said[fault] = rows_of(spark, f"{out}/rows")
    try:
        with spark_errors(), staged(f"{directory}/out-fails_always/below") as staging:
            read("fails_always").write.parquet(f"{staging}/rows")
    except WarrenError as error:
        said["fails_always"] = [type(error).__name__, str(error)]
    spark.stop()
    Path(directory, "said.json").write_text(json.dumps(said), encoding="utf-8")


def _where(numbers: Iterable[int]) -> list[tuple[str, str]]:
    list(numbers)
    return [(os.getcwd(), str(importlib.import_module("warren").__file__))]


def rows_of(spark: SparkSession, path: str) -> list[dict[str, Any]]:
    return [row.asDict() for row in spark.read.parquet(path).collect()]


def slow(directory: str, path: str) -> None:
    """What an interrupt ends: tasks that write, for a minute."""

    def nap(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for _ in range(_WAIT_S):
                Path(directory, "writing").touch()
                time.sleep(1)
                yield batch

    with running("Sleeping", "local[2]", [path]) as (spark, _), staged(f"{directory}/out") as staging:
        spark.range(8, numPartitions=4).mapInArrow(nap, "id long").write.parquet(f"{staging}/rows")


if __name__ == "__main__":
    if sys.argv[1] == "slow":
        import typer

        from warren.commands.running import guarded, run_app

        del sys.argv[1]
        app = typer.Typer()
        app.command()(guarded(slow))
        run_app(app)
    main(*sys.argv[1:])
