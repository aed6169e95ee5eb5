"""Runs statements, and says in one line what DuckDB says of one that it refuses.

Of several statements all are run, and the last one is answered: views and macros come first, then what is asked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import attrs
import duckdb
import pyarrow as pa

from warren.sql import SqlError
from warren.sql.dataset import connect
from warren.sql.directories import Directories

_FETCH_ROWS: Final = 2048
"""Rows that are fetched at a time, as many as DuckDB makes."""

_WHERE: Final = re.compile(r"\n\nLINE (\d+): (.*)\n( *)\^", re.DOTALL)
_CUT: Final = "..."
"""How DuckDB begins a line that it does not show whole."""


@attrs.frozen
class Column:
    """A column of an answer."""

    name: str
    kind: str
    """Its type, as DuckDB writes it."""


@attrs.frozen
class Answer:
    """What the last statement is answered with: columns, and rows that are made as they are taken."""

    columns: tuple[Column, ...]
    connection: duckdb.DuckDBPyConnection
    """The connection that ran the statement."""
    relation: Any = None
    """Runs the statement instead if batches are asked for."""

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return [column.name for column in self.columns]

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Yield the rows as Python's values, once."""
        while rows := self.connection.fetchmany(_FETCH_ROWS):
            yield from rows

    def batches(self) -> pa.RecordBatchReader:
        """Return the rows as Arrow's batches."""
        return self.relation.to_arrow_reader(_FETCH_ROWS)


class Statements:
    """A connection that runs statements over the tables of some directories."""

    def __init__(self, directories: Directories) -> None:
        self.directories = directories
        self._connection = connect(directories)

    def close(self) -> None:
        """Close the connection; archives that were unpacked for it are deleted."""
        self._connection.close()
        self.directories.archives.close()

    def run(self, text: str, *, in_batches: bool = False) -> Answer | None:
        """Run them; ``None``: the last one is of a kind that is not answered. Raises :class:`SqlError`.

        ``in_batches``: the answer is wanted as Arrow's batches, and not as rows. DuckDB would hold a result, as it is
        for rows, in memory as a whole to make batches of it.
        """
        with self.errors():
            statements = self._connection.extract_statements(text)
            if not statements:
                raise SqlError("no statement")
            *others, last = statements
            for statement in others:
                self._connection.execute(statement)
            if duckdb.ExpectedResultType.NOTHING in last.expected_result_type:
                self._connection.execute(last)
                return None
            if in_batches:
                relation = self._connection.sql(last)
                return Answer(
                    tuple(map(Column, relation.columns, map(str, relation.types))), self._connection, relation
                )
            self._connection.execute(last)
            description = self._connection.description or ()
            return Answer(tuple(Column(name, str(kind)) for name, kind, *_ in description), self._connection)

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Turn DuckDB's errors into the error that stopped the reading of a table, or into :class:`SqlError`."""
        scanning = self.directories.scanning
        scanning.failed = None
        try:
            yield
        except duckdb.Error as error:
            if scanning.failed is not None:
                raise scanning.failed from error
            raise SqlError(said_by(error)) from error


def said_by(error: duckdb.Error) -> str:
    """An error of DuckDB's in one line, with the place that its arrow points at."""
    text = str(error).strip()
    match = _WHERE.search(text)
    if match is None:
        return " ".join(text.split())
    number, line_text, blanks = match.groups()
    position = f"line {number}"
    if not line_text.startswith(_CUT):
        position += f", column {len(blanks) - len(f'LINE {number}: ') + 1}"
    return f"{' '.join(text[: match.start()].split())} ({position})"
