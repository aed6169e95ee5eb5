"""The table ``entries``: a row for each entry of a ConsumeQueue, with the values of ``warren topic entries``.

Files are packed to ``partition_bytes``. Entries that are on no disk, because a recovery adds them, come from one more
task of the node, which runs the recovery.

Pushed down: ``topic``, ``queue_id`` and ``queue_offset`` leave out queues, files and entries; ``physical_offset``
leaves out rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

import attrs
import numpy as np
import pyarrow as pa

from warren.pipeline.arrays import chosen, repeated
from warren.pipeline.filters import Wanted
from warren.pipeline.options import ReadOptions
from warren.pipeline.packing import counts, packed
from warren.pipeline.places import Kind, Node, NodeContents
from warren.pipeline.row_filters import narrowed, within
from warren.pipeline.schemas import ENTRIES
from warren.pipeline.survey import QueueExtent, Survey, recovered
from warren.pipeline.survey_memory import survey_of
from warren.pipeline.table import Columns, Rows, Table, Task
from warren.queue_index.consume_queue_format import ENTRY_BYTES, Entries, Longs, decode
from warren.salvage.names import as_text
from warren.storage.errors import DataError
from warren.storage.filesystem import FileSystem

_FIELDS: Final = {"physical_offset": np.int64, "size": np.int32, "tags_code": np.int64}


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
    """The queue offset behind the last."""

    def between(self, start: int, stop: int) -> EntryPart:
        """Those with these queue offsets."""
        return attrs.evolve(self, start=start, stop=stop)


@attrs.frozen
class EntryWork:
    """What a task reads."""

    parts: tuple[EntryPart, ...]
    is_recovered: bool
    """The files are those that a recovery makes."""


def plan(contents: NodeContents, options: ReadOptions, wanted: Wanted) -> Iterator[Task]:
    """Tasks of queues that lie on the disk as they are, in order; then one of all others."""
    node = contents.node
    found = survey_of(node, options)
    queues = [
        queue
        for queue in found.queues
        if wanted.allows("topic", as_text(queue.topic)) and wanted.allows("queue_id", queue.queue_id)
    ]
    if options.mode == "failfast":
        for queue in queues:
            _check_gaps(queue, found)
    parts = (part for queue in queues if not queue.is_changed for part in _parts(queue, found, wanted))
    for group in packed(parts, ENTRY_BYTES, options.partition_bytes):
        yield Task(node, EntryWork(tuple(group), is_recovered=False))
    changed = tuple(part for queue in queues if queue.is_changed for part in _parts(queue, found, wanted))
    if changed:
        yield Task(node, EntryWork(changed, is_recovered=True))


def read(task: Task, options: ReadOptions, wanted: Wanted) -> Iterator[Rows]:
    """The entries of a task's parts."""
    work: EntryWork = task.work
    groups = packed(work.parts, ENTRY_BYTES, options.batch_bytes)
    below = task.node.place().files
    if not work.is_recovered:
        for group in groups:
            yield _rows(task.node, group, [part.path for part in group], _entries(below, group), wanted)
        return
    with recovered(task.node, options.settings) as opened:
        for group in groups:
            shown = [part.path if below.exists(part.path) else None for part in group]
            yield _rows(task.node, group, shown, _entries(opened.files, group), wanted)


def _check_gaps(queue: QueueExtent, found: Survey) -> None:
    file_bytes = found.settings.mapped_file_size_consume_queue
    for before, after in pairwise(queue.bases):
        if after > before + file_bytes:
            reason = f"the file with the entries from queue offset {(before + file_bytes) // ENTRY_BYTES} on is missing"
            raise DataError(queue.directory, None, reason)


def _parts(queue: QueueExtent, found: Survey, wanted: Wanted) -> Iterator[EntryPart]:
    """What is wanted of a queue, file by file."""
    file_bytes = found.settings.mapped_file_size_consume_queue
    for base in queue.bases:
        first = max(base // ENTRY_BYTES, queue.min_offset)
        last = min((base + file_bytes) // ENTRY_BYTES, queue.max_offset)
        start, stop = narrowed(wanted.of_column("queue_offset"), first, last)
        if start < stop:
            yield EntryPart(
                topic=queue.topic, queue_id=queue.queue_id, path=queue.path(base), base=base, start=start, stop=stop
            )


def _entries(files: FileSystem, parts: list[EntryPart]) -> Entries:
    return decode(b"".join(_bytes_of(files, part) for part in parts))


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


def _rows(node: Node, parts: list[EntryPart], shown: Sequence[str | None], entries: Entries, wanted: Wanted) -> Columns:
    mask = within(wanted.of_column("physical_offset"), entries["physical_offset"])
    rows = np.flatnonzero(mask)
    which: Longs = np.repeat(np.arange(len(parts)), counts(parts))[rows]
    offsets: Longs = np.concatenate([np.arange(part.start, part.stop) for part in parts])[rows]
    bases = np.array([part.base for part in parts])
    return Columns(
        len(rows),
        {
            "node": lambda: repeated(node.name, len(rows), pa.string()),
            "topic": lambda: chosen([as_text(part.topic) for part in parts], which),
            "queue_id": lambda: pa.array(np.array([part.queue_id for part in parts], np.int32)[which]),
            "queue_offset": lambda: pa.array(offsets),
            **{name: _field(entries, name, rows) for name in _FIELDS},
            "file": lambda: pa.array(map(as_text, shown), pa.string()).take(pa.array(which)),
            "file_offset": lambda: pa.array(offsets * ENTRY_BYTES - bases[which]),
        },
    )


def _field(entries: Entries, name: str, rows: Longs) -> pa.Array:
    return pa.array(entries[name][rows].astype(_FIELDS[name]))


TABLE = Table(name="entries", kinds=Kind.TOPICS, schema=ENTRIES, plan=plan, read=read)
