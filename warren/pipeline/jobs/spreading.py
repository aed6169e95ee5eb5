"""Work that is found out by looking, and then done in tasks: both on the cluster.

The driver knows the nodes alone. What there is to do in them is planned by tasks and stays where it is until the tasks
that do it take it over; it can be more than the driver has room for. Work is dealt out in turn: a task for each where
it is large, and several to a task where it is small.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Protocol

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

_WORK: Final = "work binary, weight long"
_TASKS_A_CORE: Final = 3

Batches = Iterator[pa.RecordBatch]


class Work(Protocol):
    """Something to do that can be pickled."""

    @property
    def weight(self) -> int:
        """Bytes of files to be read, about."""


@contextmanager
def planned(
    spark: SparkSession, items: Sequence[Any], plan: Callable[[Any], Iterable[Work]], partition_bytes: int
) -> Iterator[DataFrame]:
    """What ``plan`` says of each item (all can be pickled), in partitions of about so many bytes; for :func:`done`."""

    def planning(item: Any) -> Batches:
        for work in plan(item):
            yield _work_row(work, work.weight)

    cores = spark.sparkContext.defaultParallelism
    given = spark.createDataFrame(pa.Table.from_batches([_work_row(item, 0) for item in items]))
    with kept(done(_dealt(given, min(len(items), _TASKS_A_CORE * cores)), planning, _WORK)) as works:
        found = works.agg(F.count("*").alias("count"), F.sum("weight").alias("weight")).first()
        count, weight = (0, 0) if found is None else (found["count"], found["weight"] or 0)
        yield _dealt(works, max(1, min(count, max(_TASKS_A_CORE * cores, -(-weight // partition_bytes)))))


def done(works: DataFrame, do: Callable[[Any], Batches], schema: str) -> DataFrame:
    """The rows that ``do`` makes of each work."""

    def doing(batches: Batches) -> Batches:
        for batch in batches:
            for work in batch.column(0).to_pylist():
                yield from do(pickle.loads(work))

    return works.mapInArrow(doing, schema)


@contextmanager
def kept(frame: DataFrame) -> Iterator[DataFrame]:
    """The frame on the executors' disks, so that what asks for it again does not read the files again."""
    frame = frame.persist(StorageLevel.DISK_ONLY)
    try:
        yield frame
    finally:
        frame.unpersist()


def _dealt(frame: DataFrame, count: int) -> DataFrame:
    """The rows in so many partitions: those of one partition are dealt out in turn."""
    return frame.coalesce(1).repartition(count)


def _work_row(work: Any, weight: int) -> pa.RecordBatch:
    row = {"work": pa.array([pickle.dumps(work)], pa.binary()), "weight": pa.array([weight], pa.int64())}
    return pa.RecordBatch.from_pydict(row)


def parallel_rows(spark: SparkSession, items: Sequence[Any], do: Callable[[Any], Batches], schema: str) -> DataFrame:
    """The rows that ``do`` makes of each item; each item is a parallel task."""
    given = spark.createDataFrame(pa.Table.from_batches([_work_row(item, 0) for item in items]))
    return done(_dealt(given, len(items)), do, schema)
