"""SQL over brokers' directories, by DuckDB in this process: the tables that Spark has, without a cluster. ::

    import warren.sql

    with warren.sql.connect("/disks/broker-1") as connection:
        connection.sql("select queue, count(*), sum(size) from messages group by queue").show()

DuckDB comes with ``pip install "warrenmq[sql]"``; without it everything else of warren works.

=========================================  ==============================================================
:mod:`~warren.sql.directories`             what the tables are read from
:mod:`~warren.sql.dataset`                 a table as DuckDB scans it, batch by batch
:mod:`~warren.sql.expressions`             what a filter that DuckDB hands down says of single columns
:mod:`~warren.sql.answers`                 rows of an answer as text: CSV, JSON lines, Markdown, a table; or Parquet
=========================================  ==============================================================
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from warren.storage.call_arguments import checked
from warren.storage.errors import WarrenError

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

__all__ = ["MissingDuckDBError", "SqlError", "check_duckdb", "connect"]

_NEEDED: Final = ("duckdb", "pyarrow")


class SqlError(WarrenError):
    """A statement that DuckDB refuses, or an answer that cannot be written as it was asked for."""


class MissingDuckDBError(SqlError):
    """DuckDB, or what it needs, is not installed."""

    def __init__(self, module: str) -> None:
        super().__init__(f'{module} is not installed: pip install "warrenmq[sql]"')


def check_duckdb() -> None:
    """Raises :class:`MissingDuckDBError` where DuckDB or pyarrow is not installed."""
    import importlib.util

    for module in _NEEDED:
        if importlib.util.find_spec(module) is None:
            raise MissingDuckDBError(module)


@checked
def connect(
    *paths: str | os.PathLike[str],
    failfast: bool = False,
    raw_bodies: bool = False,
    settings: Mapping[str, str] | None = None,
) -> DuckDBPyConnection:
    """A connection of DuckDB, in memory, with the directories' tables: ``messages``, ``queues``, ``index``, …

    A path is a broker's directory or a part of it, a ``.tar.gz`` of one, a glob, or a URI of an object store. Files are
    opened when a query reads them, and never written. A query reads only the columns and the files that it needs.

    ``failfast``: damage ends a query, with file, offset and reason; else rows go on after it, and the table
    ``findings`` says what is lost. ``raw_bodies``: bodies of topics as they are stored, perhaps compressed.
    ``settings``: of a RocketMQ's store, what its files do not tell, as ``--set`` has
    them.

    Raises :class:`MissingDuckDBError` if DuckDB is not installed, :class:`~warren.storage.errors.StorageError` if a
    path names nothing, and :class:`~warren.storage.errors.DirectoryLockedError` if a node runs on a directory.
    """
    check_duckdb()
    from warren.sql import dataset
    from warren.sql.directories import Directories

    return dataset.connect(Directories.at(*paths, failfast=failfast, raw_bodies=raw_bodies, settings=settings))
