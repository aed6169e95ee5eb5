"""Read exported messages back: from Parquet, lines of JSON or nodes, as rows of the same columns.

:mod:`warren.shovel.exported_rows` describes what a row contains and how it becomes a message again.
"""

from __future__ import annotations

import glob
import json
import os
import pickle  # nosec B403 # see below
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

import attrs
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from warren.arrow.arrays import schema_of
from warren.salvage.names import as_text
from warren.shovel.exported_rows import check_types, name_of, row_of_fields
from warren.shovel.exported_rows import letter_of as letter_of_row
from warren.shovel.letter import Letter
from warren.storage.errors import MessageError
from warren.tables.pipeline_errors import PipelineError

_ARROW: Final = schema_of(
    "node string, vhost string, queue string, priority int, position long, expiry_us long, exchange string, "
    "routing_keys array<string>, properties string, headers string, encoded_properties binary, body binary"
)
_Answer = TypeVar("_Answer")


def exported_rows(spark: SparkSession, paths: Sequence[str], input_format: str) -> DataFrame:
    """Return the rows of exports. Raises :class:`PipelineError` if the files are not exports."""
    if input_format == "jsonl":
        lines = spark.read.text(list(paths), lineSep="\n")
        return lines.mapInArrow(_parsed, from_arrow_schema(_ARROW))
    return of_table(spark.read.parquet(*paths), ", ".join(paths))


def of_table(table: DataFrame, what: str) -> DataFrame:
    """Return the columns that are used, from an export's Parquet or the table ``messages``."""
    if "priority" not in table.columns:  # an export does not contain the level of a message
        table = table.selectExpr("*", "cast(null as int) as priority")
    if "encoded_properties" not in table.columns:  # of an earlier version
        table = table.selectExpr("*", "cast(null as binary) as encoded_properties")
    for name in _ARROW.names:
        if name not in table.columns:
            raise PipelineError(f"{what}: no export of queues, it has no column {name}")
    return table.select(*_ARROW.names)


def format_of(paths: Iterable[str]) -> str | None:
    """Return the format in the names of the files; ``None`` if unknown. Raises :class:`PipelineError` if both occur."""
    formats = {format_name for path in paths for format_name in _formats(path)}
    if len(formats) > 1:
        raise PipelineError("both Parquet and lines of JSON: say which with --format")
    return formats.pop() if formats else None


def _formats(path: str) -> Iterator[str]:
    for place in glob.glob(path) or [path]:
        for name in glob.glob(os.path.join(place, "*")) if os.path.isdir(place) else [place]:
            if name.endswith((".jsonl", ".json", ".jsonl.gz")):
                yield "jsonl"
            elif name.endswith(".parquet"):
                yield "parquet"


def _parsed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        rows = [_row(line) for line in batch.column(0).to_pylist() if line]
        yield pa.RecordBatch.from_pylist(rows, schema=_ARROW)


def _row(line: str) -> dict[str, Any]:
    try:
        fields = json.loads(line)
        if "topic" in fields:
            raise PipelineError(f"{fields['node']}: messages of topics, which go into no queue")
        row = row_of_fields(fields)
        expiry_us = row["expiry_us"]
        return {
            **row,
            "node": as_text(fields["node"]),
            "priority": None,
            "position": fields["position"],
            "expiry_us": expiry_us if expiry_us is None or expiry_us < 1 << 63 else expiry_us - (1 << 64),
        }
    except (MessageError, ValueError, TypeError, LookupError, AttributeError) as error:
        problem = f"{type(error).__name__}: {error}"
        raise PipelineError(f"no line of warren spark export ({problem}): {line[:80]!r}") from error


Rows = Iterator[Mapping[str, Any]]


def rows_of(batches: Iterable[pa.RecordBatch]) -> Rows:
    """Yield the rows one by one, converted a few at a time: as Python's objects they are large."""
    for batch in batches:
        for at in range(0, len(batch), 256):
            yield from batch.slice(at, 256).to_pylist()


def answers(frame: DataFrame, work: Callable[[Rows], Iterable[_Answer]]) -> list[_Answer]:
    """Return what ``work`` yields for the rows of each partition; it can be pickled."""

    def working(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for answer in work(rows_of(batches)):
            yield pa.RecordBatch.from_pydict({"answer": [pickle.dumps(answer)]})

    pickled = frame.mapInArrow(working, "answer binary").collect()
    return [pickle.loads(row[0]) for row in pickled]  # nosec B301 # what our own tasks, above, have just pickled


# ── one row ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@attrs.frozen
class QueueName:
    """The queue of a message."""

    vhost: bytes
    queue: bytes
    priority: int | None
    """The level of a priority queue, if known."""


def queue_of(row: Mapping[str, Any]) -> QueueName:
    """Return the queue of a row. Raises :class:`PipelineError` if the row is not a queue's."""
    if row["vhost"] is None or row["queue"] is None:
        raise PipelineError(f"{row['node']}: messages of topics, which go into no queue")
    try:
        return QueueName(name_of(row["vhost"]), name_of(row["queue"]), row["priority"])
    except MessageError as error:
        raise PipelineError(f"{row['node']}: {error}") from error


def letter_of(row: Mapping[str, Any]) -> Letter:
    """Return the message of a row. Raises :class:`PipelineError` if the row's values are invalid."""
    try:
        check_types(row)
        return letter_of_row(row, (0, row["position"]))
    except MessageError as error:
        raise PipelineError(f"{row['node']}, {row['queue']}, position {row['position']}: {error}") from error
