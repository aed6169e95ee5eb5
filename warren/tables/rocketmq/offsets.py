"""The table ``offsets``: a row for each queue that a consumer group has read, as ``warren inspect`` has it.

One task a node. If ``consumerOffset.json`` and its backup are both damaged, there are no rows; with
``mode=failfast`` that is an error.

Pushed down: ``group``, ``topic`` and ``queue_id`` leave out rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import attrs

from warren.actors.engines.topics.store_files import CONFIG
from warren.arrow.arrays import Rows
from warren.queue_index.topics.consumer_offsets import FILE_NAME, ConsumerOffsets
from warren.salvage.names import as_text
from warren.salvage.queue_directory import SizedFile, sized
from warren.storage.errors import DataError
from warren.tables.filters import Pushdown
from warren.tables.places import Kind, NodeContents
from warren.tables.read_options import ReadOptions
from warren.tables.schemas import OFFSETS
from warren.tables.survey import survey_of
from warren.tables.table import Table, Task, of_rows


def plan(contents: NodeContents, options: ReadOptions, pushdown: Pushdown) -> Iterator[Task]:
    """A task for each node."""
    node = contents.node
    yield Task(node, survey_of(node, options) if options.survey else None)


def read(task: Task, options: ReadOptions, pushdown: Pushdown) -> Iterator[Rows]:
    """All of a node's groups."""
    survey = survey_of(task.node, options) if task.work is None else task.work
    ends = {(queue.topic, queue.queue_id): queue.max_offset for queue in survey.queues}
    try:
        offsets = ConsumerOffsets.load(task.node.place().files, f"{survey.directory}/{CONFIG}")
    except DataError:
        if options.mode == "failfast":
            raise
        return
    rows = []
    for position in sorted(offsets.positions(), key=attrs.astuple):
        group, topic, queue_id = as_text(position.group), as_text(position.topic), position.queue_id
        columns = {"group": group, "topic": topic, "queue_id": queue_id}
        if all(pushdown.allows(column, value) for column, value in columns.items()):
            end = ends.get((position.topic, queue_id), 0)
            rows.append((task.node.name, *columns.values(), position.offset, end, end - position.offset))
    yield of_rows(rows, OFFSETS)


def files(task: Task, pushdown: Pushdown) -> Iterable[SizedFile]:
    """The file with the offsets."""
    place = task.node.place()
    return sized(place.files, [f"{place.store()}/{CONFIG}/{FILE_NAME}"])


TABLE = Table(name="offsets", kinds=Kind.TOPICS, schema=OFFSETS, plan=plan, read=read, files=files)
