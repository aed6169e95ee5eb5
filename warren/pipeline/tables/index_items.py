"""The table ``index_items``: a row for each item of the index files, which find messages by their keys.

Files are packed to ``partition_bytes``, large ones are cut. Items that are on no disk, because a recovery adds them,
come from one more task of the node, which runs the recovery. Index files that it deletes have no rows.

Pushed down: ``physical_offset`` leaves out the files whose headers say that they begin behind it or end ahead of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import attrs
import numpy as np
import pyarrow as pa

from warren.pipeline.arrays import repeated
from warren.pipeline.filters import Wanted
from warren.pipeline.options import ReadOptions
from warren.pipeline.packing import counts, packed
from warren.pipeline.places import Kind, Node, NodeContents
from warren.pipeline.row_filters import within
from warren.pipeline.schemas import INDEX_ITEMS
from warren.pipeline.survey import Survey, recovered
from warren.pipeline.survey_memory import survey_of
from warren.pipeline.table import Columns, Rows, Table, Task
from warren.queue_index.index_file import IndexFile
from warren.queue_index.index_file_format import ITEM_BYTES, Items, Layout
from warren.salvage.names import as_text
from warren.storage.filesystem import FileSystem
from warren.storage.topic_settings import TopicSettings


@attrs.frozen(kw_only=True)
class ItemPart:
    """Items in a row of one file."""

    path: str | None
    """``None``: only a recovery makes the file."""
    number: int
    """Of the file, among those that recovery leaves."""
    begin_timestamp: int
    start: int
    """The number of the first item."""
    stop: int
    """The number behind the last."""

    def between(self, start: int, stop: int) -> ItemPart:
        """Those with these numbers."""
        return attrs.evolve(self, start=start, stop=stop)


@attrs.frozen
class ItemWork:
    """What a task reads."""

    parts: tuple[ItemPart, ...]
    layout: Layout
    is_recovered: bool
    """The files are those that a recovery makes."""


def plan(contents: NodeContents, options: ReadOptions, wanted: Wanted) -> Iterator[Task]:
    """Tasks of files that lie on the disk as they are, oldest first; then one of all others."""
    node = contents.node
    found = survey_of(node, options)
    layout = _layout(found.settings)
    for group in packed(_parts(found, wanted, is_changed=False), ITEM_BYTES, options.partition_bytes):
        yield Task(node, ItemWork(tuple(group), layout, is_recovered=False))
    changed = tuple(_parts(found, wanted, is_changed=True))
    if changed:
        yield Task(node, ItemWork(changed, layout, is_recovered=True))


def read(task: Task, options: ReadOptions, wanted: Wanted) -> Iterator[Rows]:
    """The items of a task's parts."""
    work: ItemWork = task.work
    groups = packed(work.parts, ITEM_BYTES, options.batch_bytes)
    below = task.node.place().files
    if not work.is_recovered:
        for group in groups:
            items = _Items(work.layout, [_items_of(below, part, work.layout) for part in group])
            yield _rows(task.node, group, items, wanted)
        return
    with recovered(task.node, options.settings) as opened:
        files = opened.store.index.index_files
        for group in groups:
            items = _Items(work.layout, [files[part.number].items(part.start, part.stop) for part in group])
            yield _rows(task.node, group, items, wanted)


@attrs.frozen(eq=False)
class _Items:
    """Those of some parts, a part each."""

    layout: Layout
    items: list[Items]


def _layout(settings: TopicSettings) -> Layout:
    return Layout(settings.max_hash_slot_num, settings.max_index_num)


def _parts(found: Survey, wanted: Wanted, *, is_changed: bool) -> Iterator[ItemPart]:
    for number, file in enumerate(found.index_files):
        stop = min(file.index_count, found.settings.max_index_num)
        matches = wanted.overlaps("physical_offset", file.begin_physical_offset, file.end_physical_offset)
        if file.is_changed == is_changed and stop > 1 and matches:
            yield ItemPart(path=file.path, number=number, begin_timestamp=file.begin_timestamp, start=1, stop=stop)


def _items_of(files: FileSystem, part: ItemPart, layout: Layout) -> Items:
    if part.path is None:
        raise RuntimeError(f"index file {part.number} is on no disk")
    with closing(IndexFile.load(files, part.path, layout, writable=False)) as file:
        return file.items(part.start, part.stop)


def _rows(node: Node, parts: list[ItemPart], items: _Items, wanted: Wanted) -> Columns:
    layout, joined = items.layout, np.concatenate(items.items)
    rows = np.flatnonzero(within(wanted.of_column("physical_offset"), joined["physical_offset"]))
    which = np.repeat(np.arange(len(parts)), counts(parts))[rows]
    numbers = np.concatenate([np.arange(part.start, part.stop) for part in parts])[rows]
    begins = np.array([part.begin_timestamp for part in parts], np.int64)
    hashes = joined["key_hash"][rows].astype(np.int32)
    seconds = joined["time_difference_s"][rows].astype(np.int32)
    return Columns(
        len(rows),
        {
            "node": lambda: repeated(node.name, len(rows), pa.string()),
            "slot": lambda: pa.array(hashes % np.int32(layout.slot_count), mask=hashes < 0),
            "position": lambda: pa.array(numbers.astype(np.int32)),
            "key_hash": lambda: pa.array(hashes),
            "physical_offset": lambda: pa.array(joined["physical_offset"][rows].astype(np.int64)),
            "time_diff": lambda: pa.array(seconds),
            "timestamp": lambda: pa.array(begins[which] + seconds.astype(np.int64) * 1000),
            "previous": lambda: pa.array(joined["previous"][rows].astype(np.int32)),
            "file": lambda: pa.array([as_text(part.path) for part in parts], pa.string()).take(pa.array(which)),
            "file_offset": lambda: pa.array(layout.item_offset(0) + numbers * ITEM_BYTES),
        },
    )


TABLE = Table(name="index_items", kinds=Kind.TOPICS, schema=INDEX_ITEMS, plan=plan, read=read)
