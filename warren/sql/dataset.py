"""A table as DuckDB scans it: columns and filters are handed down, and batches come one at a time.

DuckDB knows a dataset of Arrow's. Of one it asks for a *scanner*, with the columns that a query needs and the filters
that it has, and takes the scanner's batches until it has enough: one ``LIMIT 10`` reads no file to its end. A filter
that was handed down is not looked at again by DuckDB: every batch is filtered here.

A query may scan a table several times at once, in threads of DuckDB's. Scans share nothing:
see :mod:`warren.tables.bodies`.
"""

from __future__ import annotations

import os
import tempfile
import uuid
from collections.abc import Iterator, Sequence

import attrs
import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset

from warren.arrow.arrays import as_batch
from warren.sql.directories import Directories
from warren.sql.expressions import bounds_of, columns_of
from warren.storage.own_files import private_folder
from warren.tables.bodies import alone
from warren.tables.filters import Pushdown
from warren.tables.table import SCHEMAS, Table, Task, plan, table_named


class TableDataset(pyarrow.dataset.Dataset):  # type: ignore[misc]
    """A table of some directories."""

    def __init__(self, name: str, directories: Directories) -> None:
        # Arrow's own initialiser is for Arrow's own kinds of datasets.
        self._name, self._directories = name, directories

    @property
    def schema(self) -> pa.Schema:
        """The table's columns."""
        return SCHEMAS[self._name]

    def scanner(
        self, columns: Sequence[str] | None = None, filter: pc.Expression | None = None, **_: object
    ) -> TableScanner:
        """Return a scanner of the columns, for rows that pass the filter. Its tasks are planned here."""
        names = tuple(self.schema.names if columns is None else columns)
        filter_columns = frozenset[str]() if filter is None else columns_of(filter)
        columns_read = frozenset(self.schema.names) if filter_columns is None else filter_columns.union(names)
        pushdown = Pushdown.of(() if filter is None else bounds_of(filter), columns_read)
        table = table_named(self._name)
        with self._directories.scanning.failures():
            self._directories.refuse_live_nodes()
            tasks = tuple(plan(table, self._directories.nodes, self._directories.options, pushdown))
        return TableScanner(table, self._directories, names, filter, pushdown, tasks)


@attrs.frozen(eq=False)
class TableScanner:
    """What DuckDB asks of a scanner."""

    table: Table
    directories: Directories
    columns: tuple[str, ...]
    condition: pc.Expression | None
    pushdown: Pushdown
    tasks: tuple[Task, ...]

    @property
    def projected_schema(self) -> pa.Schema:
        """The columns of the result."""
        return pa.schema([self.table.schema.field(name) for name in self.columns])

    def to_reader(self) -> pa.RecordBatchReader:
        """The batches, in the order of the table's rows; each is made when it is asked for."""
        return pa.RecordBatchReader.from_batches(self.projected_schema, alone(self._batches))

    def _batches(self) -> Iterator[pa.RecordBatch]:
        schema = pa.schema([field for field in self.table.schema if self.pushdown.asks(field.name)])
        scanning = self.directories.scanning
        scan = scanning.begun(self.table.name, len(self.tasks))
        with scanning.failures():
            for number, task in enumerate(self.tasks):
                for rows in self.table.read(task, self.directories.options, self.pushdown):
                    scanning.advanced(scan, number)
                    if len(rows):
                        batch = as_batch(rows, schema)
                        if self.condition is not None:
                            batch = batch.filter(self.condition)
                        yield batch.select(self.columns)
        scanning.advanced(scan, len(self.tasks))


def connect(directories: Directories) -> duckdb.DuckDBPyConnection:
    """Return a new connection, in memory, with all tables of some directories."""
    # DuckDB makes this folder when something does not fit into memory; else it would make one in the working directory.
    # All users may read DuckDB's files, and they hold bodies, so the folder is in one that no other user may enter.
    folder = private_folder("warren-sql") or tempfile.mkdtemp(prefix="warren-sql-")
    spilled = os.path.join(folder, uuid.uuid4().hex)
    connection = duckdb.connect(config={"temp_directory": spilled})
    for name in SCHEMAS:
        connection.register(name, TableDataset(name, directories))
    return connection
