"""``format("warren")``: what Spark asks of a source, handed on to the tables.

Spark hands no columns down to a Python source. A schema that the user gives (``.schema("queue string, size int")``)
may leave columns out: they are not made then. ``.option("bodies", "false")`` leaves the bodies out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from warren.pipeline.errors import PipelineError
from warren.pipeline.filters import Wanted
from warren.pipeline.options import ReadOptions
from warren.pipeline.places import find_nodes
from warren.pipeline.table import Rows, Table, Task
from warren.pipeline.tables import TABLES


class WarrenSource(DataSource):
    """Broker's directories as tables."""

    @classmethod
    def name(cls) -> str:
        return "warren"

    def schema(self) -> StructType:
        return self._table().schema

    def reader(self, schema: StructType) -> DataSourceReader:
        return TableReader(self._table(), ReadOptions.of(self.options), schema)

    def _table(self) -> Table:
        options = ReadOptions.of(self.options)
        if options.table not in TABLES:
            said = f"there is no table {options.table!r}" if options.table else "which table: option table"
            raise PipelineError(f"{said}; there are {', '.join(sorted(TABLES))}")
        return TABLES[options.table]


class TableReader(DataSourceReader):
    """One reading of one table."""

    def __init__(self, table: Table, options: ReadOptions, schema: StructType) -> None:
        for field in schema.fields:
            if field.name not in table.schema.names:
                raise PipelineError(f"the table {table.name} has no column {field.name!r}")
            if table.schema[field.name].dataType != field.dataType:
                said = table.schema[field.name].dataType.simpleString()
                raise PipelineError(f"the column {field.name} of {table.name} is {said}")
        self._table, self._options, self._schema = table.name, options, schema
        self._wanted = Wanted()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        self._wanted = Wanted.of(filters)
        return filters

    def partitions(self) -> Sequence[InputPartition]:
        tasks = plan(TABLES[self._table], self._options, self._wanted)
        return [InputPartition(task) for task in tasks] or [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        task = partition.value
        if task is None:
            return
        arrow = to_arrow_schema(self._schema, timezone="UTC")
        for rows in TABLES[self._table].read(task, self._options, self._wanted):
            if len(rows):
                yield as_batch(rows, arrow)


def plan(table: Table, options: ReadOptions, wanted: Wanted) -> list[Task]:
    """The tasks of all nodes; raises :class:`PipelineError` where a node is of a kind that has no such table."""
    tasks: list[Task] = []
    for node in find_nodes(options.paths):
        kinds = node.kinds()
        if not kinds & table.kinds:
            what = "a topic store" if table.kinds.name == "QUEUES" else "a directory of queues"
            raise PipelineError(f"{node.name}: is {what}, which has no table {table.name}")
        if wanted.allows("node", node.name):
            tasks += table.plan(node, options, wanted)
    return tasks


def as_batch(rows: Rows, arrow: pa.Schema) -> pa.RecordBatch:
    """The columns of a schema."""
    return pa.RecordBatch.from_arrays([rows.column(name) for name in arrow.names], schema=arrow)
