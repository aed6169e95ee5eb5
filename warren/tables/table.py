"""What a table is: a schema, how its reading is cut into tasks, and how a task reads its part; and the tables by name.

A task's rows come as Arrow batches, column by column; only the columns that are asked for are made. A task holds one
batch at a time, whatever the files are.

A table's columns are known before; the module that reads it is imported when it is asked for.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import attrs
import pyarrow as pa

from warren.actors.log_events import log_event, logger
from warren.arrow.arrays import Columns, Rows
from warren.salvage.queue_directory import Finding, SizedFile
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
    files: Callable[[Task, Pushdown], Iterable[SizedFile]]
    """The files that a task may open, or the parts of them that it may read. Looks at names and sizes of files."""


def plan(table: Table, nodes: Iterable[Node], options: ReadOptions, pushdown: Pushdown) -> list[Task]:
    """The nodes' tasks; raises :class:`PipelineError` if one is of a kind that has no such table.

    With ``skip_others`` such a node, or a directory that no broker wrote, is logged, and a row of the table findings.
    The log says how many files and bytes the tasks may read, of all that they would read without filters: this is
    counted only if the logger is enabled for INFO.
    """
    tasks: list[Task] = []
    size, full_size, is_counted = ScanSize(), ScanSize(), _LOG.isEnabledFor(logging.INFO)
    for node in nodes:
        try:
            contents = _contents(table, node)
        except (DataError, PipelineError) as error:
            if not options.skip_others:
                raise
            _LOG.warning("skipped: %s", error, extra=log_event("directory_skipped", error))
            if table.name == "findings":
                tasks.append(Task(node, Finding("skipped directory", "unread", node.name, None, str(error))))
            continue
        is_allowed = pushdown.allows("node", node.name)
        node_tasks = list(table.plan(contents, options, pushdown)) if is_allowed else []
        tasks += node_tasks
        if is_counted:
            size.add(table, node_tasks, pushdown)
            unfiltered, permissive = Pushdown(columns=pushdown.columns), attrs.evolve(options, mode="permissive")
            full_size.add(table, table.plan(contents, permissive, unfiltered), unfiltered)
    if is_counted:
        _LOG.info(
            "scan of %s: %s of %s files, %s of %s bytes, tasks: %s",
            table.name,
            *(f"{number:,}" for number in (size.files, full_size.files, size.bytes, full_size.bytes, len(tasks))),
            extra=log_event(
                "scan_planned",
                table=table.name,
                files=size.files,
                all_files=full_size.files,
                bytes=size.bytes,
                all_bytes=full_size.bytes,
                tasks=len(tasks),
            ),
        )
    return tasks


@attrs.define
class ScanSize:
    """How much some tasks may read; a file that several read counts once."""

    files: int = 0
    bytes: int = 0

    def add(self, table: Table, tasks: Iterable[Task], pushdown: Pushdown) -> None:
        """Add all tasks of a node."""
        sizes = {(file.path, file.start): file.size_bytes for task in tasks for file in table.files(task, pushdown)}
        self.files += len({path for path, _ in sizes})
        self.bytes += sum(sizes.values())


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
