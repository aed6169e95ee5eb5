"""Work that is cut into pieces: each piece is a parallel task, on whatever machine Spark chooses.

What a task returns is small; what is large it writes to a *task output*, a file or directory. Spark may run a task
twice (it repeats what failed, and may start a second one beside a slow one). So every run has an output of its own, and
the driver takes those whose names are in the answers that Spark took.

Where the driver knows only the nodes, tasks plan the work (:func:`planned`). It stays with them until the tasks that do
it take it over: it can be more than the driver has room for. Work is dealt out in turn: a task for each piece if pieces
are large, and several to a task if they are small.
"""

from __future__ import annotations

import os
import pickle  # nosec B403 # see below
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import attrs
import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from warren.arrow.arrays import schema_of
from warren.tables.pipeline_errors import PipelineError
from warren.tables.places import Node

_Piece = TypeVar("_Piece")
_Answer = TypeVar("_Answer")

ParallelMap = Callable[[Sequence[Any], Callable[[Any], Any]], list[Any]]
""":func:`map_parallel` on some session, or what stands in for it without Spark."""

_OUTPUTS: Final = "_task_outputs"
_TRIES: Final = 10
_WORK: Final = schema_of("work binary, weight long")
_TASKS_A_CORE: Final = 3
_OPENING_BYTES: Final = 64 << 10
"""What it takes to open a piece of work, as bytes that could be read meanwhile."""
_LEAST_TASK_BYTES: Final = 1 << 20
"""A task with less to read takes longer to start than to do."""
_SHUFFLED_BYTES: Final = 16 << 20
"""The bytes of files whose rows are one task's after a shuffle."""
_SHUFFLE_TASKS: Final = "spark.sql.shuffle.partitions"

Batches = Iterator[pa.RecordBatch]


def map_parallel(spark: SparkSession, pieces: Sequence[_Piece], work: Callable[[_Piece], _Answer]) -> list[_Answer]:
    """``work`` of each piece, in their order; each is a task of its own, which is sent that piece alone.

    ``work`` is a function of a module, or a partial one; pieces and answers can be pickled.
    """
    if not pieces:
        return []
    return spark.sparkContext.parallelize(pieces, len(pieces)).map(work).collect()


@contextmanager
def task_outputs(staging: str) -> Iterator[str]:
    """A directory below ``staging`` for task outputs. Those that were not moved out of it are deleted in the end."""
    outputs = os.path.join(staging, _OUTPUTS)
    os.mkdir(outputs)
    yield outputs
    for _ in range(_TRIES):  # a task whose answer was not taken may still write
        shutil.rmtree(outputs, ignore_errors=True)
        if not os.path.lexists(outputs):
            return
    raise PipelineError(f"{outputs}: cannot be deleted")


def task_output(outputs: str, name: str) -> str:
    """A path in the directory of task outputs that no other run of a task has.

    Raises :class:`PipelineError` if this machine does not see that directory.
    """
    if not os.path.isdir(outputs):
        directory = Path(outputs).parent
        raise PipelineError(
            f"{directory}: is not there on the machine of a task; --out wants a place that all of them share"
        )
    return os.path.join(outputs, f"{name}.{uuid.uuid4().hex}")


# ── work that tasks plan ─────────────────────────────────────────────────────────────────────────────────────────────


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
        few = min(most, (weight + count * _OPENING_BYTES) // _LEAST_TASK_BYTES)
        dealt = _dealt(works, max(1, min(count, max(few, -(-weight // partition_bytes)))))
        with _shuffled_into(spark, weight // _SHUFFLED_BYTES + 1), persisted(_done(dealt, do, schema)) as rows:
            yield rows


@contextmanager
def _shuffled_into(spark: SparkSession, most: int) -> Iterator[None]:
    """Let shuffles have ``most`` tasks, if the session's setting is higher: many empty tasks take minutes."""
    setting = spark.conf.get(_SHUFFLE_TASKS) or "200"
    spark.conf.set(_SHUFFLE_TASKS, str(min(most, int(setting))))
    try:
        yield
    finally:
        spark.conf.set(_SHUFFLE_TASKS, setting)


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
