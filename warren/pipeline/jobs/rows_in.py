"""Exported messages on their way back: read from Parquet, lines of JSON or nodes, as rows of the same columns.

What JSON has no word for is not said in an export, and so does not come back: a decimal among the headers is text then,
a timestamp a number; numbers have the width that they need. All else of a message is as it was.
"""

from __future__ import annotations

import base64
import binascii
import functools
import glob
import json
import os
import pickle
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

import attrs
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from warren.arrow.arrays import schema_of
from warren.pipeline.errors import PipelineError
from warren.queue_index.amqp_tables import Value
from warren.queue_index.properties import Properties, encode_properties
from warren.salvage.names import as_text, from_text, to_json
from warren.shovel.letter import Letter
from warren.storage.errors import MessageError

_ARROW: Final = schema_of(
    "node string, vhost string, queue string, priority int, position long, expiry_us long, exchange string, "
    "routing_keys array<string>, properties string, headers string, body binary"
)
_Answer = TypeVar("_Answer")
_ESCAPED = re.compile(r"\\udc([89a-f][0-9a-f])")


def exported_rows(spark: SparkSession, paths: Sequence[str], input_format: str) -> DataFrame:
    """The rows of exports; raises :class:`PipelineError` where they are none."""
    if input_format == "jsonl":
        lines = spark.read.text(list(paths), lineSep="\n")
        return lines.mapInArrow(_parsed, from_arrow_schema(_ARROW))
    return of_table(spark.read.parquet(*paths), ", ".join(paths))


def of_table(table: DataFrame, what: str) -> DataFrame:
    """The columns that matter, of an export's Parquet or of the table ``messages``."""
    if "priority" not in table.columns:  # an export does not say of which level a message was
        table = table.selectExpr("*", "cast(null as int) as priority")
    for name in _ARROW.names:
        if name not in table.columns:
            raise PipelineError(f"{what}: no export of queues, it has no column {name}")
    return table.select(*_ARROW.names)


def format_of(paths: Iterable[str]) -> str | None:
    """What the files' names say; ``None``: nothing. Raises :class:`PipelineError` where both are there."""
    found = {one for path in paths for one in _formats(path)}
    if len(found) > 1:
        raise PipelineError("both Parquet and lines of JSON: say which with --format")
    return found.pop() if found else None


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
        said = json.loads(line)
        if "topic" in said:
            raise PipelineError(f"{said['node']}: messages of topics, which go into no queue")
        expiry_us = said["expiry_us"]
        return {
            "node": as_text(said["node"]),
            "vhost": as_text(said["vhost"]),
            "queue": as_text(said["queue"]),
            "priority": None,
            "position": said["position"],
            "expiry_us": expiry_us if expiry_us is None or expiry_us < 1 << 63 else expiry_us - (1 << 64),
            "exchange": as_text(said["exchange"]),
            "routing_keys": [as_text(key) for key in said["routing_keys"]],
            "properties": to_json(said["properties"]).decode(),
            "headers": None if said["headers"] is None else to_json(said["headers"]).decode(),
            "body": base64.b64decode(said["body"], validate=True),
        }
    except (ValueError, TypeError, LookupError) as error:
        said_of_it = f"{type(error).__name__}: {error}"
        raise PipelineError(f"no line of warren spark export ({said_of_it}): {line[:80]!r}") from error


Rows = Iterator[Mapping[str, Any]]


def rows_of(batches: Iterable[pa.RecordBatch]) -> Rows:
    """One by one, a few at a time: as Python's objects they are large."""
    for batch in batches:
        for at in range(0, len(batch), 256):
            yield from batch.slice(at, 256).to_pylist()


def answers(frame: DataFrame, work: Callable[[Rows], Iterable[_Answer]]) -> list[_Answer]:
    """What tasks say of the rows of their partitions; it can be pickled."""

    def working(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for answer in work(rows_of(batches)):
            yield pa.RecordBatch.from_pydict({"answer": [pickle.dumps(answer)]})

    return [pickle.loads(row[0]) for row in frame.mapInArrow(working, "answer binary").collect()]


# ── one row ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@attrs.frozen
class QueueName:
    """Which queue a message is of."""

    vhost: bytes
    queue: bytes
    priority: int | None
    """A level of a priority queue, where that is known."""


def queue_of(row: Mapping[str, Any]) -> QueueName:
    """Raises :class:`PipelineError` for a row that is none of a queue."""
    if row["vhost"] is None or row["queue"] is None:
        raise PipelineError(f"{row['node']}: messages of topics, which go into no queue")
    return QueueName(name_of(row["vhost"]), name_of(row["queue"]), row["priority"])


def letter_of(row: Mapping[str, Any]) -> Letter:
    """The message; raises :class:`PipelineError` where the row's values make none."""
    if row["body"] is None:
        raise PipelineError(f"{row['node']}, {row['queue']}, position {row['position']}: the row has no body")
    return Letter(
        exchange=name_of(row["exchange"]),
        routing_keys=tuple(name_of(key) for key in row["routing_keys"]),
        properties=_encoded(row["properties"], row["headers"]),
        body=row["body"],
        expiry_us=(row["expiry_us"] or 0) & 0xFFFF_FFFF_FFFF_FFFF,
        position=(0, row["position"]),
    )


def name_of(text: str) -> bytes:
    """The name that a column says: the other way round of :func:`warren.arrow.arrays.as_text`."""
    if "\\udc" in text:
        text = _ESCAPED.sub(lambda found: chr(0xDC00 + int(found[1], 16)), text)
    return from_text(text)


@functools.lru_cache(maxsize=4096)
def _encoded(properties: str, headers: str | None) -> bytes:
    try:
        values: dict[str, Any] = {name: _value(value) for name, value in json.loads(properties).items()}
        if headers is not None:
            values["headers"] = _value(json.loads(headers), is_table=True)
        return encode_properties(Properties(**values))
    except (MessageError, ValueError, TypeError, AttributeError) as error:
        raise PipelineError(f"no properties of a message ({error}): {properties[:80]!r}") from error


def _value(said: Any, *, is_table: bool = False) -> Value:
    """What JSON says, as a value of a table: the other way round of
    :func:`warren.queue_index.amqp_tables.value_to_json`."""
    if isinstance(said, dict):
        data = None if is_table else _base64(said)
        return {name: _value(value) for name, value in said.items()} if data is None else data
    if isinstance(said, list):
        return [_value(one) for one in said]
    value: Value = said
    return value


def _base64(said: Mapping[str, Any]) -> bytes | None:
    """The bytes that ``{"base64": …}`` stands for; of text the export would have written the text."""
    if said.keys() != {"base64"} or not isinstance(said["base64"], str):
        return None
    try:
        data = base64.b64decode(said["base64"], validate=True)
        data.decode()
    except binascii.Error:
        return None
    except UnicodeDecodeError:
        return data
    return None
