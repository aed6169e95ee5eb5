"""The table ``index_items``: a row for each item of the index files, which find messages by their keys.

Files are packed to ``partition_bytes``, large ones are cut. Items that are on no disk, because a recovery adds them,
come from one more task of the node, which runs the recovery. Index files that it deletes have no rows.

Pushed down: ``physical_offset`` leaves out the files whose headers say that they begin after it or end before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from functools import partial

import attrs
import numpy as np
import pyarrow as pa

from warren.arrow.arrays import Columns, Rows, chosen
from warren.queue_index.topics.index_file import IndexFile
from warren.queue_index.topics.index_file_format import ITEM_BYTES, Items, Layout
from warren.salvage.names import as_text
from warren.storage.filesystem import FileSystem
from warren.tables.filters import Pushdown
from warren.tables.packing import counts, files_of_parts, store_groups, store_tasks
from warren.tables.places import Kind, Node, NodeContents
from warren.tables.read_options import ReadOptions
from warren.tables.schemas import INDEX_ITEMS
from warren.tables.survey import Survey, survey_of
from warren.tables.table import Table, Task


@attrs.frozen(kw_only=True)
class ItemPart:
    """Items in a row of one file."""

    path: str | None
    """``None``: only a recovery makes the file."""
    number: int
    """Of the file, among those that recovery leaves."""
    layout: Layout
    begin_timestamp: int
    start: int
    """The number of the first item."""
    stop: int
    """The number after the last."""
    is_recovered: bool

    def between(self, start: int, stop: int) -> ItemPart:
        """The items with these numbers."""
        return attrs.evolve(self, start=start, stop=stop)


def plan(contents: NodeContents, options: ReadOptions, pushdown: Pushdown) -> Iterator[Task]:
    """Tasks for the files that recovery does not change, oldest first; then one for all others."""
    parts = _parts(survey_of(contents.node, options), pushdown)
    return store_tasks(contents.node, parts, ITEM_BYTES, options)


def read(task: Task, options: ReadOptions, pushdown: Pushdown) -> Iterator[Rows]:
    """The items of a task's parts."""
    below = task.node.place().files
    for group, opened in store_groups(task, ITEM_BYTES, options):
        files = [] if opened is None else opened.store.index.index_files
        items = [
            files[part.number].items(part.start, part.stop) if part.is_recovered else _items_of(below, part)
            for part in group
        ]
        yield _rows(task.node, group, np.concatenate(items), pushdown)


def _parts(survey: Survey, pushdown: Pushdown) -> Iterator[ItemPart]:
    layout = Layout(survey.settings.max_hash_slot_num, survey.settings.max_index_num)
    for number, file in enumerate(survey.index_files):
        stop = min(file.index_count, survey.settings.max_index_num)
        matches = pushdown.overlaps("physical_offset", file.begin_physical_offset, file.end_physical_offset)
        if stop > 1 and matches:
            yield ItemPart(
                path=file.path,
                number=number,
                layout=layout,
                begin_timestamp=file.begin_timestamp,
                start=1,
                stop=stop,
                is_recovered=file.is_changed,
            )


def _items_of(files: FileSystem, part: ItemPart) -> Items:
    if part.path is None:
        raise RuntimeError(f"index file {part.number} is on no disk")
    with closing(IndexFile.load(files, part.path, part.layout, writable=False)) as file:
        return file.items(part.start, part.stop)


def _rows(node: Node, parts: list[ItemPart], joined: Items, pushdown: Pushdown) -> Columns:
    layout = parts[0].layout
    rows = np.flatnonzero(pushdown.of_column("physical_offset").within(joined["physical_offset"]))
    part_of = np.repeat(np.arange(len(parts)), counts(parts))[rows]
    numbers = np.concatenate([np.arange(part.start, part.stop) for part in parts])[rows]
    begins = np.array([part.begin_timestamp for part in parts], np.int64)
    hashes = joined["key_hash"][rows].astype(np.int32)
    seconds = joined["time_difference_s"][rows].astype(np.int32)
    return Columns(
        len(rows),
        {
            "node": node.name,
            "slot": lambda: pa.array(hashes % np.int32(layout.slot_count), mask=hashes < 0),
            "position": numbers,
            "key_hash": hashes,
            "physical_offset": lambda: joined["physical_offset"][rows],
            "time_diff": seconds,
            "timestamp": lambda: begins[part_of] + seconds.astype(np.int64) * 1000,
            "previous": lambda: joined["previous"][rows],
            "file": lambda: chosen([as_text(part.path) for part in parts], part_of),
            "file_offset": layout.item_offset(0) + numbers * ITEM_BYTES,
        },
    )


TABLE = Table(
    name="index_items",
    kinds=Kind.TOPICS,
    schema=INDEX_ITEMS,
    plan=plan,
    read=read,
    files=partial(files_of_parts, item_bytes=ITEM_BYTES),
)
