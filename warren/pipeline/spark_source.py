"""``format("warren")``: what Spark asks of a source, handed on to the tables.

Spark hands no columns down to a Python source. A schema that the user gives (``.schema("queue string, size int")``)
may leave columns out: they are not made then. ``.option("bodies", "false")`` leaves the bodies out.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import attrs
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from warren.actors.log_events import logger
from warren.arrow.arrays import as_batch
from warren.pipeline.shown_columns import ShownTable
from warren.pipeline.stream_options import STREAM_OPTIONS, StreamOptions
from warren.pipeline.stream_reader import TopicStreamReader
from warren.pipeline.topic_writer import TopicStreamWriter, TopicWriter, WriteOptions
from warren.tables.filters import Bounds
from warren.tables.pipeline_errors import PipelineError
from warren.tables.places import check_paths, find_nodes
from warren.tables.read_options import READ_OPTIONS, OptionTexts, ReadOptions
from warren.tables.table import SCHEMAS, plan, table_named

WORKER_LOGS: Final = "PYSPARK_SPARK_SESSION_UUID"
"""In the environment of Spark's Python processes if Spark collects their logs: its setting
``spark.sql.pyspark.worker.logging.enabled``. Nothing else can choose the level in a process that plans."""


class WarrenSource(DataSource):
    """Brokers' directories as tables."""

    @classmethod
    def name(cls) -> str:
        return "warren"

    def schema(self) -> StructType:
        if "table" not in self.options:  # a stream, or the option is missing, which the reader reports
            return self._records().schema
        if self.options["table"] == "records":  # perhaps a stream, too
            texts = OptionTexts.of(self.options)
            texts.check_known((*READ_OPTIONS, *STREAM_OPTIONS))
            check_paths(ReadOptions.paths_of(texts))
            return self._records().schema
        return self._shown().schema

    def reader(self, schema: StructType) -> DataSourceReader:
        return TableReader(self._shown(), ReadOptions.of(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        records = self._records()
        check_columns(records, schema)
        return TopicStreamReader(StreamOptions.of(self.options), schema, records)

    def writer(self, schema: StructType, overwrite: bool) -> TopicWriter:
        return TopicWriter(WriteOptions.of(self.options, is_stream=False), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> TopicStreamWriter:
        return TopicStreamWriter(WriteOptions.of(self.options, is_stream=True), schema, overwrite=overwrite)

    def _records(self) -> ShownTable:
        """The table ``records``, which streams have, too."""
        return ShownTable.of("records", self.options)

    def _shown(self) -> ShownTable:
        options = ReadOptions.of(self.options)
        if options.table not in SCHEMAS:
            problem = f"there is no table {options.table!r}" if options.table else "which table: option table"
            raise PipelineError(f"{problem}; there are {', '.join(sorted(SCHEMAS))}")
        check_paths(options.paths)
        return ShownTable.of(options.table, self.options)


class TableReader(DataSourceReader):
    """One reading of one table."""

    def __init__(self, table: ShownTable, options: ReadOptions, schema: StructType) -> None:
        check_columns(table, schema)
        self._table, self._options, self._schema = table, options, schema
        self._pushdown = table.pushdown((), schema.names)

    def __getstate__(self) -> dict[str, Any]:
        # What is pickled goes to every task; what only planning needs may be long.
        return {**self.__dict__, "_options": attrs.evolve(self._options, survey="")}

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        self._pushdown = self._table.pushdown(bounds_of(filters), self._schema.names)
        return filters

    def partitions(self) -> Sequence[InputPartition]:
        if WORKER_LOGS in os.environ:
            logger("tables").setLevel(logging.INFO)
        tasks = plan(table_named(self._table.name), find_nodes(self._options.paths), self._options, self._pushdown)
        return [InputPartition(task) for task in tasks] or [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        task = partition.value
        if task is None:
            return
        arrow, files = to_arrow_schema(self._schema, timezone="UTC"), task.node.place().files
        for rows in table_named(self._table.name).read(task, self._options, self._pushdown):
            if len(rows):
                yield as_batch(self._table.shown(rows, files), arrow)


def check_columns(table: ShownTable, requested: StructType) -> None:
    """Raise :class:`PipelineError` if the table does not have a requested column, or has it with another type."""
    columns, name = table.schema, table.name
    for field in requested.fields:
        if field.name not in columns.names:
            raise PipelineError(f"the table {name} has no column {field.name!r}")
        if columns[field.name].dataType != field.dataType:
            type_name = columns[field.name].dataType.simpleString()
            raise PipelineError(f"the column {field.name} of {name} is {type_name}")


def bounds_of(filters: Iterable[Filter]) -> Iterator[tuple[tuple[str, ...], Bounds]]:
    """Yield the bounds of single columns, by their paths, that follow from filters which must all hold."""
    for predicate in filters:
        path: tuple[str, ...] = getattr(predicate, "attribute", ())
        bounds = _bounds(predicate)
        if path and bounds is not None:
            yield path, bounds


def _bounds(predicate: Filter) -> Bounds | None:
    match predicate:
        case EqualTo(value=value) | EqualNullSafe(value=value) if value is not None:
            return Bounds(choice=frozenset((value,)))
        case In(value=values):
            return Bounds(choice=frozenset(value for value in values if value is not None))
        case GreaterThan(value=value) | GreaterThanOrEqual(value=value):
            return Bounds(low=value)
        case LessThan(value=value) | LessThanOrEqual(value=value):
            return Bounds(high=value)
        case _:
            return None
