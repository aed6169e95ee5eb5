"""The table ``index``: a row for each message that a queue's own files speak of: of a classic queue as journal and
segments say it together, of a quorum queue as its log does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import pyarrow as pa

from warren.pipeline.arrays import chosen, hexadecimal, known, repeated
from warren.pipeline.filters import Wanted
from warren.pipeline.options import ReadOptions
from warren.pipeline.places import Kind, Node, NodeContents
from warren.pipeline.schemas import INDEX
from warren.pipeline.table import Columns, Rows, Table, Task
from warren.pipeline.tables.damage import Damage
from warren.pipeline.tables.queue_parts import QueueOpener, QueuePart, plan_queues
from warren.salvage.queue_directory import Finding, IndexColumns

ROW_BYTES: Final = 128
"""Of a row, about, as columns."""


def plan(contents: NodeContents, options: ReadOptions, wanted: Wanted) -> Iterator[Task]:
    """Segments together, up to ``partition_bytes``."""
    return plan_queues(contents, options, wanted)


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
    count = len(found)
    expiries_us = found.expiries_us.view(np.int64)
    return Columns(
        count,
        {
            **queue_columns(node, part, count),
            "seq_id": lambda: pa.array(found.seq_ids, pa.int64()),
            "msg_id": lambda: known(hexadecimal(found.msg_ids), found.has_msg_id),
            "persistent": lambda: pa.array(found.persistent),
            "delivered": lambda: pa.nulls(count, pa.bool_()) if found.delivered is None else pa.array(found.delivered),
            "acked": lambda: pa.array(found.acked),
            "expiry_us": lambda: pa.array(expiries_us, mask=expiries_us == 0),
            "size": lambda: pa.array(found.sizes, pa.int64()),
            "embedded": lambda: pa.array(found.embedded),
            "in_journal": lambda: pa.array(found.in_journal),
            "file": lambda: chosen(found.paths, found.path_of),
            "file_offset": lambda: pa.array(found.offsets, pa.int64()),
        },
    )


def queue_columns(node: Node, part: QueuePart, count: int) -> dict[str, pa.Array]:
    """The columns that say which queue it is."""
    return {
        "node": repeated(node.name, count, pa.string()),
        "vhost": repeated(part.vhost_text, count, pa.string()),
        "queue": repeated(part.queue_text, count, pa.string()),
        "priority": repeated(part.priority, count, pa.int32()),
    }


TABLE: Final = Table(name="index", kinds=Kind.QUEUES, schema=INDEX, plan=plan, read=read)
