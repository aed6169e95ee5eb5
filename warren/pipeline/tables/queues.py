"""The table ``queues``: a row for each queue's directory, with the numbers of ``warren inspect``."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from contextlib import closing

import pyarrow as pa

from warren.pipeline.arrays import as_text
from warren.pipeline.filters import Wanted
from warren.pipeline.options import ReadOptions
from warren.pipeline.places import Kind, Node
from warren.pipeline.schemas import QUEUES
from warren.pipeline.table import Columns, Rows, Table, Task
from warren.salvage.names import split_level, to_json, to_text


def plan(node: Node, options: ReadOptions, wanted: Wanted) -> Iterator[Task]:
    """A task for each node."""
    yield Task(node, None)


def read(task: Task, options: ReadOptions, wanted: Wanted) -> Iterator[Rows]:
    """All of a node's queues."""
    found: dict[str, list[object]] = {name: [] for name in QUEUES.names}
    with closing(task.node.place().queues()) as source:
        for vhost in source.vhosts:
            if not wanted.allows("vhost", as_text(to_text(vhost.name))):
                continue
            for queue in vhost.queues:
                name, priority = split_level(queue.name)
                if not wanted.allows("queue", as_text(to_text(name))):
                    continue
                summary = queue.summary()
                row = (
                    task.node.name,
                    as_text(to_text(vhost.name)),
                    as_text(to_text(name)),
                    priority,
                    posixpath.basename(queue.path),
                    queue.kind,
                    summary.ready,
                    summary.payload_bytes,
                    to_json(summary.details).decode(),
                )
                for column, value in zip(found.values(), row, strict=True):
                    column.append(value)
    kinds = {"priority": pa.int32(), "ready": pa.int64(), "bytes": pa.int64()}
    arrays = {name: pa.array(values, kinds.get(name, pa.string())) for name, values in found.items()}
    yield Columns(len(found["node"]), arrays)


TABLE = Table(name="queues", kinds=Kind.QUEUES, schema=QUEUES, plan=plan, read=read)
