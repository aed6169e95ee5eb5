"""The table ``queues``: a row for each queue's directory, with the numbers of ``warren inspect``."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from warren.arrow.arrays import Rows
from warren.salvage.names import to_json
from warren.tables.damage import Damage
from warren.tables.filters import Pushdown
from warren.tables.places import Kind
from warren.tables.queue_parts import QueueOpener, files_of_queues, plan_queues
from warren.tables.read_options import ReadOptions
from warren.tables.schemas import QUEUES
from warren.tables.table import Table, Task, of_rows

_BATCH: Final = 1024
"""Rows."""


def read(task: Task, options: ReadOptions, pushdown: Pushdown) -> Iterator[Rows]:
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
            yield of_rows(rows, QUEUES)
            rows = []
    yield of_rows(rows, QUEUES)


TABLE: Final = Table(
    name="queues",
    kinds=Kind.QUEUES,
    schema=QUEUES,
    plan=partial(plan_queues, as_stored=True),
    read=read,
    files=partial(files_of_queues, with_store=True),
)
