"""The table ``index``: a row for each message that a queue's own files speak of: of a classic queue as journal and
segments say it together, of a quorum queue as its log does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa

from warren.arrow.arrays import chosen, hexadecimal, known
from warren.arrow.columns import Columns, Rows
from warren.salvage.queue_directory import Finding, IndexColumns
from warren.tables.damage import Damage
from warren.tables.filters import Wanted
from warren.tables.options import ReadOptions
from warren.tables.places import Kind, Node
from warren.tables.queue_parts import QueueOpener, QueuePart, plan_queues
from warren.tables.schemas import INDEX
from warren.tables.table import Table, Task

ROW_BYTES: Final = 128
"""Of a row, about, as columns."""


def read(task: Task, options: ReadOptions, wanted: Wanted) -> Iterator[Rows]:
    """The positions of a task's parts, segment by segment."""
    opener, damage = QueueOpener(task.node), Damage(task.node, options)
    rows = max(options.batch_bytes // ROW_BYTES, 1)
    for part in task.work:
        for found in opener.open_part(part).index_columns(part.segments):
            if isinstance(found, Finding):
                damage.finding(found)
                continue
            for start in range(0, len(found), rows):
                yield _columns(task.node, part, found.rows(slice(start, start + rows)))


def _columns(node: Node, part: QueuePart, found: IndexColumns) -> Columns:
    expiries_us = found.expiries_us.view(np.int64)
    return Columns(
        len(found),
        {
            **queue_columns(node, part),
            "seq_id": found.seq_ids,
            "msg_id": lambda: known(hexadecimal(found.msg_ids), found.has_msg_id),
            "persistent": found.persistent,
            "delivered": found.delivered,
            "acked": found.acked,
            "expiry_us": lambda: pa.array(expiries_us, mask=expiries_us == 0),
            "size": found.sizes,
            "embedded": found.embedded,
            "in_journal": found.in_journal,
            "file": lambda: chosen(found.paths, found.path_of),
            "file_offset": found.offsets,
        },
    )


def queue_columns(node: Node, part: QueuePart) -> dict[str, Any]:
    """The columns that say which queue it is."""
    return {"node": node.name, "vhost": part.vhost_text, "queue": part.queue_text, "priority": part.priority}


TABLE: Final = Table(name="index", kinds=Kind.QUEUES, schema=INDEX, plan=plan_queues, read=read)
