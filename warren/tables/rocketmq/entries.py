"""The table ``entries``: a row for each entry of a ConsumeQueue, with the values of ``warren topic entries``.

Files are packed to ``partition_bytes``. Entries that are on no disk, because a recovery adds them, come from one more
task of the node, which runs the recovery.

Pushed down: ``topic``, ``queue_id`` and ``queue_offset`` leave out queues, files and entries; ``physical_offset``
leaves out rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import attrs
import numpy as np

from warren.arrow.arrays import Columns, Rows, chosen
from warren.queue_index.topics.consume_queue_format import ENTRY_BYTES, Entries, decode
from warren.salvage.names import as_text
from warren.storage.columns import Longs
from warren.storage.errors import DataError
from warren.storage.filesystem import FileSystem
from warren.tables.filters import Pushdown
from warren.tables.packing import counts, files_of_parts, store_groups, store_tasks
from warren.tables.places import Kind, Node, NodeContents
from warren.tables.read_options import ReadOptions
from warren.tables.schemas import ENTRIES
from warren.tables.survey import QueueExtent, survey_of
from warren.tables.table import Table, Task


@attrs.frozen(kw_only=True)
class EntryPart:
    """Entries in a row of one file."""

    topic: str
    queue_id: int
    path: str
    base: int
    """The logical byte at which the file begins."""
    start: int
    """The queue offset of the first."""
    stop: int
    """The queue offset after the last."""
    is_recovered: bool

    def between(self, start: int, stop: int) -> EntryPart:
        """The entries with these queue offsets."""
        return attrs.evolve(self, start=start, stop=stop)


def plan(contents: NodeContents, options: ReadOptions, pushdown: Pushdown) -> Iterator[Task]:
    """Tasks for the queues that recovery does not change, in order; then one for all others."""
    node = contents.node
    survey = survey_of(node, options)
    file_bytes = survey.settings.mapped_file_size_consume_queue
    queues = [
        queue
        for queue in survey.queues
        if pushdown.allows("topic", as_text(queue.topic)) and pushdown.allows("queue_id", queue.queue_id)
    ]
    if options.mode == "failfast":
        for queue in queues:
            for start, _ in queue.gaps(file_bytes):
                first = start // ENTRY_BYTES
                reason = f"the file with the entries from queue offset {first} on is missing"
                raise DataError(queue.directory, None, reason)
    parts = (part for queue in queues for part in _parts(queue, file_bytes, pushdown))
    return store_tasks(node, parts, ENTRY_BYTES, options)


def read(task: Task, options: ReadOptions, pushdown: Pushdown) -> Iterator[Rows]:
    """The entries of a task's parts."""
    below = task.node.place().files
    for group, opened in store_groups(task, ENTRY_BYTES, options):
        shown = [part.path if opened is None or below.exists(part.path) else None for part in group]
        files = below if opened is None else opened.files
        yield _rows(task.node, group, shown, decode(b"".join(_bytes_of(files, part) for part in group)), pushdown)


def _parts(queue: QueueExtent, file_bytes: int, pushdown: Pushdown) -> Iterator[EntryPart]:
    """What is wanted of a queue, file by file."""
    for base in queue.bases:
        first = max(base // ENTRY_BYTES, queue.min_offset)
        last = min((base + file_bytes) // ENTRY_BYTES, queue.max_offset)
        start, stop = pushdown.of_column("queue_offset").narrowed(first, last)
        if start < stop:
            yield EntryPart(
                topic=queue.topic,
                queue_id=queue.queue_id,
                path=queue.path(base),
                base=base,
                start=start,
                stop=stop,
                is_recovered=queue.is_changed,
            )


def _bytes_of(files: FileSystem, part: EntryPart) -> bytes:
    handle = files.open_read(part.path)
    try:
        size, file_offset = (part.stop - part.start) * ENTRY_BYTES, part.start * ENTRY_BYTES - part.base
        data = handle.pread(size, file_offset)
    finally:
        handle.close()
    if len(data) < size:
        raise DataError(part.path, file_offset + len(data), "ends too early")
    return data


def _rows(
    node: Node, parts: list[EntryPart], shown: Sequence[str | None], entries: Entries, pushdown: Pushdown
) -> Columns:
    mask = pushdown.of_column("physical_offset").within(entries["physical_offset"])
    rows = np.flatnonzero(mask)
    part_of: Longs = np.repeat(np.arange(len(parts)), counts(parts))[rows]
    offsets: Longs = np.concatenate([np.arange(part.start, part.stop) for part in parts])[rows]
    bases = np.array([part.base for part in parts])
    return Columns(
        len(rows),
        {
            "node": node.name,
            "topic": lambda: chosen([as_text(part.topic) for part in parts], part_of),
            "queue_id": lambda: np.array([part.queue_id for part in parts])[part_of],
            "queue_offset": offsets,
            "physical_offset": lambda: entries["physical_offset"][rows],
            "size": lambda: entries["size"][rows],
            "tags_code": lambda: entries["tags_code"][rows],
            "file": lambda: chosen([as_text(path) for path in shown], part_of),
            "file_offset": lambda: offsets * ENTRY_BYTES - bases[part_of],
        },
    )


TABLE = Table(
    name="entries",
    kinds=Kind.TOPICS,
    schema=ENTRIES,
    plan=plan,
    read=read,
    files=partial(files_of_parts, item_bytes=ENTRY_BYTES),
)
