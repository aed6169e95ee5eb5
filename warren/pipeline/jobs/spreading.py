"""Work that tasks on the cluster first plan and then do.

The driver knows only the nodes. Tasks plan the work, and it stays with them until the tasks that do it take it over; it
can be more than the driver has room for. Work is dealt out in turn: a task for each piece if pieces are large, and
several to a task if they are small.
"""

from __future__ import annotations

import pickle  # nosec B403 # see below
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import attrs
import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from warren.arrow.arrays import schema_of
from warren.tables.places import Node

_WORK: Final = schema_of("work binary, weight long")
_TASKS_A_CORE: Final = 3

Batches = Iterator[pa.RecordBatch]


@attrs.frozen
class Numbered:
    """A node and its number among those that were loaded."""

    number: int
    node: Node


def numbered(nodes: Iterable[Node]) -> list[Numbered]:
    """Return the nodes with their numbers."""
    return [Numbered(number, node) for number, node in enumerate(nodes)]


@attrs.frozen
class Work:
    """Something to do in a node; small, and can be pickled."""

    node: Node
    place: int
    """The number that identifies this part of the node when rows are joined."""
    what: Any
    weight: int = 0
    """About the number of bytes to be read from files."""


@contextmanager
def planned(
    spark: SparkSession,
    nodes: Iterable[Node],
    plan: Callable[[Numbered], Iterable[Work]],
    do: Callable[[Work], Batches],
    schema: pa.Schema,
    *,
    partition_bytes: int,
) -> Iterator[DataFrame]:
    """Yield the rows that ``do`` makes of what ``plan`` returns for each node, on the executors' disks.

    Both functions can be pickled. Work comes in partitions of about ``partition_bytes``.
    """

    def planning(numbered_node: Numbered) -> Batches:
        for work in plan(numbered_node):
            yield _work_row(work, work.weight)

    most = _TASKS_A_CORE * spark.sparkContext.defaultParallelism
    with persisted(parallel_rows(spark, numbered(nodes), planning, _WORK, most)) as works:
        totals = works.agg(F.count("*").alias("count"), F.sum("weight").alias("weight")).first()
        count, weight = (0, 0) if totals is None else (totals["count"], totals["weight"] or 0)
        dealt = _dealt(works, max(1, min(count, max(most, -(-weight // partition_bytes)))))
        with persisted(_done(dealt, do, schema)) as rows:
            yield rows


def parallel_rows(
    spark: SparkSession, items: Sequence[Any], do: Callable[[Any], Batches], schema: pa.Schema, most: int | None = None
) -> DataFrame:
    """The rows that ``do`` makes of each item; each item is a parallel task, or there are ``most`` of them."""
    frame = spark.createDataFrame(pa.Table.from_batches([_work_row(item, 0) for item in items]))
    return _done(_dealt(frame, min(len(items), most or len(items))), do, schema)


def _done(works: DataFrame, do: Callable[[Any], Batches], schema: pa.Schema) -> DataFrame:
    """The rows that ``do`` makes of each work."""

    def doing(batches: Batches) -> Batches:
        for batch in batches:
            for work in batch.column(0).to_pylist():
                yield from do(pickle.loads(work))  # nosec B301 # what the driver has pickled for this very job

    return works.mapInArrow(doing, from_arrow_schema(schema))


@contextmanager
def persisted(frame: DataFrame) -> Iterator[DataFrame]:
    """Store the frame on the executors' disks, so that using it again does not read the files again."""
    frame = frame.persist(StorageLevel.DISK_ONLY)
    try:
        yield frame
    finally:
        frame.unpersist()


def _dealt(frame: DataFrame, count: int) -> DataFrame:
    """Put the rows into ``count`` partitions, in turn."""
    return frame.coalesce(1).repartition(count)


def _work_row(work: Any, weight: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"work": pickle.dumps(work), "weight": weight}], schema=_WORK)
