"""The table ``index``: a row for each position of each queue, as the queue's journal and segments say it together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import pyarrow as pa

from queue_index.entries import DELIVERED, NOTHING, PUBLISHED
from queue_index.record_format import Ints
from warren.pipeline.arrays import chosen, hexadecimal, repeated
from warren.pipeline.filters import Wanted
from warren.pipeline.options import ReadOptions
from warren.pipeline.places import Kind, Node
from warren.pipeline.schemas import INDEX
from warren.pipeline.table import Columns, Rows, Table, Task
from warren.pipeline.tables.damage import Damage
from warren.pipeline.tables.queue_parts import QueuePart, plan_queues
from warren.salvage.positions import Positions

ROW_BYTES: Final = 128
"""Of a row, about, as columns."""


def plan(node: Node, options: ReadOptions, wanted: Wanted) -> Iterator[Task]:
    """Segments together, up to ``partition_bytes``."""
    return plan_queues(node, options, wanted)


def read(task: Task, options: ReadOptions, wanted: Wanted) -> Iterator[Rows]:
    """The positions of a task's parts, segment by segment."""
    files, damage = task.node.place().files, Damage(task.node, options)
    rows = max(options.batch_bytes // ROW_BYTES, 1)
    for part in task.work:
        if part.unreadable is not None:
            damage.found(part.path, None, f"unreadable queue: {part.unreadable}")
            continue
        directory = part.classic(files, task.node)
        with directory.journal() as journal:
            damage.journal(journal.file)
            for positions in directory.segments(journal, part.segments):
                damage.segment(positions)
                known = np.flatnonzero((positions.facts & PUBLISHED != 0) | positions.published_in_journal)
                for start in range(0, len(known), rows):
                    yield _columns(task.node, part, positions, known[start : start + rows])


def _columns(node: Node, part: QueuePart, positions: Positions, rel_seqs: Ints) -> Columns:
    count = len(rel_seqs)
    bodies = positions.bodies(rel_seqs)
    expiries_us = bodies["expiry_us"].astype(np.uint64).view(np.int64)
    facts = positions.facts[rel_seqs]
    from_file = positions.from_file[rel_seqs]
    body_at = np.where(from_file, positions.in_file.body_at[rel_seqs], positions.in_journal.body_at[rel_seqs])
    heads = np.where(from_file, positions.file.layout.head_size, positions.journal.layout.head_size)
    gone = facts == NOTHING  # published, delivered and acked within the journal
    return Columns(
        count,
        {
            **queue_columns(node, part, count),
            "seq_id": lambda: pa.array(positions.first_seq_id + rel_seqs),
            "msg_id": lambda: hexadecimal(np.ascontiguousarray(bodies["msg_id"]).view(np.uint8).reshape(count, -1)),
            "persistent": lambda: pa.array(positions.persistent[rel_seqs]),
            "delivered": lambda: pa.array((facts & DELIVERED != 0) | gone),
            "acked": lambda: pa.array(positions.acked[rel_seqs]),
            "expiry_us": lambda: pa.array(expiries_us, mask=expiries_us == 0),
            "size": lambda: pa.array(bodies["size"].astype(np.int64)),
            "embedded": lambda: pa.array(positions.embedded_sizes[rel_seqs] > 0),
            "in_journal": lambda: pa.array(~from_file),
            "file": lambda: chosen((positions.file.path, positions.journal.path), (~from_file).astype(np.int8)),
            "file_offset": lambda: pa.array(body_at - heads),
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
