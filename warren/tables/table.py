"""What a table is: a schema, how its reading is cut into tasks, and how a task reads its part; and the tables by name.

A task's rows come as Arrow batches, column by column; only the columns that are asked for are made. A task holds one
batch at a time, whatever the files are.

A table's columns are known before; the module that reads it is imported when it is asked for.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import attrs
import pyarrow as pa

from warren.actors.log_events import log_event, logger
from warren.arrow.arrays import Columns, Rows
from warren.salvage.queue_directory import Finding
from warren.storage.errors import DataError
from warren.tables import schemas
from warren.tables.filters import Pushdown
from warren.tables.pipeline_errors import PipelineError
from warren.tables.places import Kind, Node, NodeContents
from warren.tables.read_options import ReadOptions

_LOG = logger("tables")


@attrs.frozen
class Task:
    """A part of a table that is read by one task: small, and can be pickled."""

    node: Node
    work: Any
    """Which part: a value of the table's own type."""


def of_rows(rows: Sequence[tuple[Any, ...]], schema: pa.Schema) -> Columns:
    """Rows of Python's values, in the order of a schema's columns."""
    return Columns(len(rows), dict(zip(schema.names, zip(*rows, strict=True), strict=True)) if rows else {})


@attrs.frozen(kw_only=True)
class Table:
    """A table of ``format("warren")``."""

    name: str
    kinds: Kind
    """The kinds of directories that have it."""
    schema: pa.Schema
    plan: Callable[[NodeContents, ReadOptions, Pushdown], Iterable[Task]]
    """The tasks that read what is wanted of a node, in the order of its rows. It runs where Spark plans: it looks at
    names and sizes of files, and reads those that say what there is (names, settings, what a topic store's recovery
    reads), but no message and no queue's index."""
    read: Callable[[Task, ReadOptions, Pushdown], Iterator[Rows]]
    """A task's rows; columns of bodies are null where ``bodies`` is false."""


def plan(table: Table, nodes: Iterable[Node], options: ReadOptions, pushdown: Pushdown) -> Iterator[Task]:
    """The nodes' tasks; raises :class:`PipelineError` if one is of a kind that has no such table.

    With ``skip_others`` such a node, or a directory that no broker wrote, is logged, and a row of the table findings.
    """
    for node in nodes:
        try:
            contents = _contents(table, node)
        except (DataError, PipelineError) as error:
            if not options.skip_others:
                raise
            _LOG.warning("skipped: %s", error, extra=log_event("directory_skipped", error))
            if table.name == "findings":
                yield Task(node, Finding("skipped directory", "unread", node.name, None, str(error)))
            continue
        if pushdown.allows("node", node.name):
            yield from table.plan(contents, options, pushdown)


def _contents(table: Table, node: Node) -> NodeContents:
    contents = node.contents()
    if not contents.kinds & table.kinds:
        kind = "a topic store" if table.kinds.name == "QUEUES" else "a directory of queues"
        raise PipelineError(f"{node.name}: is {kind}, which has no table {table.name}")
    return contents


# ── the tables by their names ────────────────────────────────────────────────────────────────────────────────────────

SCHEMAS: Final[Mapping[str, pa.Schema]] = {
    "queues": schemas.QUEUES,
    "index": schemas.INDEX,
    "store": schemas.STORE,
    "messages": schemas.MESSAGES,
    "findings": schemas.FINDINGS,
    "records": schemas.RECORDS,
    "entries": schemas.ENTRIES,
    "index_items": schemas.INDEX_ITEMS,
    "offsets": schemas.OFFSETS,
}
_ROCKETMQ: Final = frozenset({"records", "entries", "index_items", "offsets"})


def table_named(name: str) -> Table:
    """Return one of :data:`SCHEMAS`' tables. Each is in a module of its name."""
    package = "warren.tables.rocketmq" if name in _ROCKETMQ else "warren.tables"
    table: Table = importlib.import_module(f"{package}.{name}").TABLE
    return table
