"""The table ``records``: a row for each message in a CommitLog, with the values of ``warren topic scan``.

A record that is a batch has a row for each of its messages, with ``raw_bodies`` one.

Files are cut into ranges of ``partition_bytes``, small ones share a task; a range has the records that begin in it,
wherever the cuts are (:mod:`warren.msg_store.commit_log.record_search`). After damage it goes on at the next record,
within the same file too. What lies after the end that recovery finds is no row, and neither is the filler at a file's
end.

Pushed down: ``physical_offset`` leaves out files and ranges (a record that says it lies elsewhere is looked for where
it says); ``store_timestamp`` leaves out files whose messages were all stored earlier or later; those and ``topic``,
``queue_id`` and ``queue_offset`` leave out rows before their columns are made.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from functools import partial
from itertools import pairwise
from typing import Final

import numpy as np

from warren.arrow.arrays import Rows
from warren.msg_store.commit_log.record_check import Failure
from warren.msg_store.commit_log.record_columns import RecordColumns
from warren.msg_store.commit_log.record_search import RecordSearch, lookback_bytes
from warren.salvage.names import as_text
from warren.storage.errors import DataError
from warren.storage.filesystem import FileSystem
from warren.storage.mapped_files import missing_file
from warren.tables.filters import Pushdown
from warren.tables.packing import files_of_parts, packed
from warren.tables.places import Kind, Node, NodeContents
from warren.tables.read_options import ReadOptions
from warren.tables.rocketmq.log_ranges import LogLayout, Range, ranges
from warren.tables.rocketmq.record_rows import Whence, are_batches, rows_read
from warren.tables.schemas import RECORDS
from warren.tables.survey import survey_of
from warren.tables.table import Table, Task

_CLOCK_SLACK_MS: Final = 3_600_000
"""A broker's clock may be set back: a file is left out only where its neighbours' times say so by more than this."""

_FIRST_BYTES: Final = 4096
"""Read to learn when a file's first record was stored."""


def plan(contents: NodeContents, options: ReadOptions, pushdown: Pushdown) -> Iterator[Task]:
    """A task for each ``partition_bytes``; small files share one."""
    node = contents.node
    survey = survey_of(node, options)
    log, file_bytes = survey.log, survey.settings.mapped_file_size_commit_log
    if options.mode == "failfast":
        for start, stop in log.gaps(file_bytes):
            raise DataError(log.directory, None, missing_file(start, stop))
    layout = LogLayout(
        node=node,
        directory=survey.directory,
        settings=survey.settings,
        bases=log.bases,
        end=log.end,
        was_clean=survey.was_clean,
    )
    files = ranges(layout, file_bytes)
    if "store_timestamp" in pushdown.bounds:
        stored_spans = _stored(node, files)
        files = [file for file in files if pushdown.overlaps("store_timestamp", *stored_spans[file.base])]
    offsets = pushdown.of_column("physical_offset")
    parts = [file.between(*offsets.narrowed(file.start, file.stop)) for file in files]
    for group in packed(parts, 1, options.partition_bytes):
        yield Task(node, tuple(group))


def read(task: Task, options: ReadOptions, pushdown: Pushdown) -> Iterator[Rows]:
    """The records of some ranges, a window at a time."""
    files = task.node.place().files
    with_bodies = options.bodies and pushdown.asks("body")
    for part in task.work:
        whence = Whence(task.node.name, as_text(part.path), part.base)
        for item in search(part, files, options.batch_bytes):
            if isinstance(item, RecordColumns):
                if (rows := _only(item, pushdown, options)) is not None:
                    yield from rows_read(rows, whence, part.path, options, with_bodies=with_bodies)
            elif options.mode == "failfast":
                raise DataError(part.path, item.physical_offset - part.base, item.reason)


def search(part: Range, files: FileSystem, window_bytes: int) -> Iterator[RecordColumns | Failure]:
    """What lies in a range, wherever its first record begins."""
    with closing(files.open_read(part.path)) as handle:
        search = RecordSearch(
            read=lambda at, size: handle.pread(size, at - part.base),
            begin=part.base,
            end=part.file_stop,
            file_end=part.file_end,
            lookback_bytes=lookback_bytes(part.layout.settings.max_message_size),
            window_bytes=window_bytes,
        )
        yield from search.records(part.start, part.stop)


# ── what is wanted ───────────────────────────────────────────────────────────────────────────────────────────────────


def _stored(node: Node, log_files: list[Range]) -> dict[int, tuple[int | None, int | None]]:
    """Between which times the messages of each file were stored: those of its first record and of the next file's.

    No times are given if files do not follow each other, or their times do not ascend.
    """
    files, first_times = node.place().files, {}
    for file in log_files:
        item = next(search(file.between(file.base, file.base + 1), files, _FIRST_BYTES), None)
        first_times[file.base] = int(item.store_timestamps[0]) if isinstance(item, RecordColumns) else None
    times = [time for time in first_times.values() if time is not None]
    are_known = all(before <= after for before, after in pairwise(times))
    spans: dict[int, tuple[int | None, int | None]] = {}
    for file in log_files:
        begun, following = first_times[file.base], first_times.get(file.file_end)
        spans[file.base] = (
            begun - _CLOCK_SLACK_MS if are_known and begun is not None else None,
            following + _CLOCK_SLACK_MS if are_known and following is not None else None,
        )
    return spans


def _only(columns: RecordColumns, pushdown: Pushdown, options: ReadOptions) -> RecordColumns | None:
    """The records that may be wanted; ``None``: none of them."""
    topics = pushdown.of_column("topic")
    mask = np.ones(len(columns), np.bool_)
    if not all(allowed := [topics.allows(topic) for topic in columns.topics]):
        mask &= np.array(allowed)[columns.topic_of]
    for name in ("queue_id", "queue_offset", "physical_offset", "store_timestamp"):
        if name in pushdown.bounds:
            allowed_rows = pushdown.of_column(name).within(getattr(columns, f"{name}s"))
            if name == "queue_offset" and not options.raw_bodies:
                allowed_rows |= are_batches(columns)  # whose other messages have later numbers
            mask &= allowed_rows
    if mask.all():
        return columns
    return columns.take(np.flatnonzero(mask)) if mask.any() else None


TABLE = Table(
    name="records",
    kinds=Kind.TOPICS,
    schema=RECORDS,
    plan=plan,
    read=read,
    files=partial(files_of_parts, item_bytes=1),
)
