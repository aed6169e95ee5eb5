"""The messages that ConsumeQueue entries point at, as rows of the table ``records``.

Neighbours in the CommitLog are read together, and what lies between them as well, if that is little; the rest is the
work of what decodes the table ``records``. An entry that leads to no good record is no row.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from typing import Final

import numpy as np

from warren.arrow.arrays import Rows
from warren.msg_store.commit_log.commit_log import CommitLog
from warren.msg_store.commit_log.record_check import Failure
from warren.msg_store.commit_log.record_search import RecordSearch
from warren.salvage.names import as_text
from warren.storage.columns import Longs
from warren.storage.errors import DataError
from warren.tables.places import Node
from warren.tables.read_options import ReadOptions
from warren.tables.rocketmq.record_rows import Whence, rows_read

_GAP_BYTES: Final = 64 << 10
"""A gap up to this size is read too, because a second read would take longer."""


def read_rows(
    node: Node, log: CommitLog, positions: Longs, sizes: Longs, options: ReadOptions, *, may_expire: bool
) -> Iterator[Rows]:
    """The messages at these physical offsets, which ascend.

    ``may_expire``: those in a file that is not there any more are passed over. Raises :class:`StorageError` where they
    may not, and :class:`DataError` for damage if that is asked for.
    """
    file_bytes = log.mapped.file_size
    stops = positions + sizes
    far = (positions[1:] - stops[:-1] > _GAP_BYTES) | (positions[1:] // file_bytes != positions[:-1] // file_bytes)
    bounds = [0, *(np.flatnonzero(far) + 1).tolist(), len(positions)]
    for first, stop in pairwise(bounds):
        if first < stop:
            base = log.mapped.holding(int(positions[first]))
            if may_expire and (base is None or not log.mapped.files.exists(log.mapped.path(base))):
                continue
            yield from _neighbours(node, log, positions[first:stop], int(stops[stop - 1]), options)


def _neighbours(node: Node, log: CommitLog, positions: Longs, end: int, options: ReadOptions) -> Iterator[Rows]:
    """Read messages that lie near each other in one file; the last one ends at ``end``."""
    start = int(positions[0])
    base = log.mapped.holding(start)
    if base is None:
        raise DataError(log.mapped.directory, None, f"no file holds physical offset {start}")
    path, row_count = log.mapped.path(base), 0
    whence = Whence(node.name, as_text(path), base)
    with closing(log.mapped.files.open_read(path)) as handle:
        search = RecordSearch(
            read=lambda at, size: handle.pread(size, at - base),
            begin=start,
            end=end,
            file_end=base + log.mapped.file_size,
            lookback_bytes=0,
            window_bytes=options.batch_bytes,
        )
        for columns in search.records(start, end):
            if isinstance(columns, Failure):
                continue
            record_positions = columns.positions
            expected = positions[slice(*positions.searchsorted((record_positions[0], record_positions[-1] + 1)))]
            rows = np.flatnonzero(np.isin(record_positions, expected, assume_unique=True))
            row_count += len(rows)
            if len(rows):
                records = columns if len(rows) == len(record_positions) else columns.take(rows)
                yield from rows_read(records, whence, path, options, with_bodies=options.bodies)
    if row_count < len(positions) and options.mode == "failfast":
        raise DataError(path, None, f"{len(positions) - row_count} entries lead to no record, from {start - base} on")
