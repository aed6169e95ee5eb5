"""The table ``messages``: what a restarted broker would deliver, each position joined with its body.

Rows, values and order are those of ``warren export``; the code that finds and decodes them is the same.

``position`` counts through a queue, its levels included, from 0. A message whose body the store does not have is not
counted; one that is there and cannot be read leaves its number out, because only decoding all messages before a part
would find it. So the numbers are the same however the queue is cut into tasks.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

from warren.arrow.columns import Columns, Rows
from warren.arrow.message_arrays import message_arrays
from warren.salvage.message_batches import Batcher
from warren.salvage.queue_directory import Finding
from warren.tables.counting import count_before, remember
from warren.tables.damage import Damage
from warren.tables.filters import Pushdown
from warren.tables.index import queue_columns
from warren.tables.options import ReadOptions
from warren.tables.places import Kind
from warren.tables.queue_parts import QueueOpener, plan_queues
from warren.tables.schemas import MESSAGES
from warren.tables.table import Table, Task


def read(task: Task, options: ReadOptions, pushdown: Pushdown) -> Iterator[Rows]:
    """The messages of a task's parts, in order."""
    opener, damage = QueueOpener(task.node), Damage(task.node, options)
    bodies = options.bodies and (pushdown.asks("body") or pushdown.asks("body_sha256"))
    batcher = Batcher(options.batch_bytes, with_bodies=bodies)
    for part in task.work:
        if part.before is not None:
            batcher.position = count_before(opener, part.before) if pushdown.asks("position") else 0
        directory, first = opener.open_part(part), batcher.position
        for batch in batcher.batches(directory.message_runs(only=part.segments)):
            if isinstance(batch, Finding):
                damage.finding(batch)
            else:
                yield Columns(len(batch), {**queue_columns(task.node, part), **message_arrays(batch, bodies=bodies)})
        remember(opener, part, batcher.position - first)


TABLE: Final = Table(
    name="messages", kinds=Kind.QUEUES, schema=MESSAGES, plan=partial(plan_queues, messages=True), read=read
)
