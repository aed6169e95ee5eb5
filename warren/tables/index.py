"""The table ``index``: a row for each message that a queue's own files mention: of a classic queue its journal and
segments together, of a quorum queue its log."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa

from warren.arrow.arrays import Columns, Rows, chosen, hexadecimal, null_unless
from warren.salvage.queue_directory import Finding, IndexColumns
from warren.tables.damage import Damage
from warren.tables.filters import Pushdown
from warren.tables.places import Kind, Node
from warren.tables.queue_parts import QueueOpener, QueuePart, files_of_queues, plan_queues
from warren.tables.read_options import ReadOptions
from warren.tables.schemas import INDEX
from warren.tables.table import Table, Task

ROW_BYTES: Final = 128
"""Of a row, about, as columns."""


def read(task: Task, options: ReadOptions, pushdown: Pushdown) -> Iterator[Rows]:
    """The positions of a task's parts, segment by segment."""
    opener, damage = QueueOpener(task.node), Damage(task.node, options)
    rows = max(options.batch_bytes // ROW_BYTES, 1)
    for part in task.work:
        for columns in opener.open_part(part).index_columns(part.segments):
            if isinstance(columns, Finding):
                damage.finding(columns)
                continue
            for start in range(0, len(columns), rows):
                yield _columns(task.node, part, columns.rows(slice(start, start + rows)))


def _columns(node: Node, part: QueuePart, columns: IndexColumns) -> Columns:
    expiries_us = columns.expiries_us.view(np.int64)
    return Columns(
        len(columns),
        {
            **queue_columns(node, part),
            "seq_id": columns.seq_ids,
            "msg_id": lambda: null_unless(hexadecimal(columns.msg_ids), columns.has_msg_id),
            "persistent": columns.persistent,
            "delivered": columns.delivered,
            "acked": columns.acked,
            "expiry_us": lambda: pa.array(expiries_us, mask=expiries_us == 0),
            "size": columns.sizes,
            "embedded": columns.embedded,
            "in_journal": columns.in_journal,
            "file": lambda: chosen(columns.paths, columns.path_of),
            "file_offset": columns.offsets,
        },
    )


def queue_columns(node: Node, part: QueuePart) -> dict[str, Any]:
    """The columns that say which queue it is."""
    return {"node": node.name, "vhost": part.vhost_text, "queue": part.queue_text, "priority": part.priority}


TABLE: Final = Table(name="index", kinds=Kind.QUEUES, schema=INDEX, plan=plan_queues, read=read, files=files_of_queues)
