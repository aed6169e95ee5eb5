"""The table ``queues``: a row for each queue's directory, with the numbers of ``warren inspect``."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa

from warren.pipeline.filters import Wanted
from warren.pipeline.options import ReadOptions
from warren.pipeline.places import Kind, NodeContents
from warren.pipeline.schemas import QUEUES
from warren.pipeline.table import Columns, Rows, Table, Task
from warren.pipeline.tables.damage import Damage
from warren.pipeline.tables.queue_parts import QueueOpener, plan_queues
from warren.salvage.names import to_json

_TYPES: Final = {"priority": pa.int32(), "version": pa.int32(), "ready": pa.int64(), "bytes": pa.int64()}
_BATCH: Final = 1024
"""Rows."""


def plan(contents: NodeContents, options: ReadOptions, wanted: Wanted) -> Iterator[Task]:
    """Whole queues, small ones together; in order of their names as they are stored."""
    return plan_queues(contents, options, wanted, as_stored=True)


def read(task: Task, options: ReadOptions, wanted: Wanted) -> Iterator[Rows]:
    """The queues of a task."""
    opener, damage = QueueOpener(task.node), Damage(task.node, options)
    rows: list[tuple[Any, ...]] = []
    for part in task.work:
        queue = opener.open_part(part)
        damage.look_at(queue, part.segments)
        summary = queue.summary()
        rows.append(
            (
                task.node.name,
                part.vhost_text,
                part.queue_text,
                part.priority,
                posixpath.basename(queue.path),
                queue.kind,
                summary.details["type"],
                summary.details.get("version"),
                summary.ready,
                summary.payload_bytes,
                to_json(summary.details).decode(),
            )
        )
        if len(rows) == _BATCH:
            yield _columns(rows)
            rows = []
    if rows:
        yield _columns(rows)


def _columns(rows: list[tuple[Any, ...]]) -> Columns:
    columns = zip(QUEUES.names, zip(*rows, strict=True), strict=True)
    return Columns(len(rows), {name: pa.array(values, _TYPES.get(name, pa.string())) for name, values in columns})


TABLE: Final = Table(name="queues", kinds=Kind.QUEUES, schema=QUEUES, plan=plan, read=read)
