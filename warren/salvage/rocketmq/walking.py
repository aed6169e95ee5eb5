"""Reads the CommitLog from one end to the other, past damage: after bad bytes it continues where dispatch would."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import TypeVar

from warren.msg_store.commit_log.commit_log import CommitLog
from warren.msg_store.commit_log.commit_log_format import Blank, Record
from warren.msg_store.commit_log.record_check import Failure
from warren.msg_store.commit_log.record_columns import RecordColumns
from warren.salvage.queue_directory import Finding
from warren.salvage.rocketmq.verify_files import MISSING_FILE
from warren.storage.mapped_files import missing_file

_T = TypeVar("_T")


def walk_records(log: CommitLog) -> Iterator[Record | Blank | Finding]:
    """Every record, one by one."""
    return _walk(log, log.items)


def walk_columns(
    log: CommitLog, *, with_keys: bool = True, delay_levels_ms: tuple[int, ...] = ()
) -> Iterator[RecordColumns | Blank | Finding]:
    """Every record, many at a time."""
    return _walk(log, functools.partial(log.columns, with_keys=with_keys, delay_levels_ms=delay_levels_ms))


def _walk(log: CommitLog, items: Callable[[int, int], Iterator[_T | Failure]]) -> Iterator[_T | Finding]:
    for start, stop in gapless_ranges(log):
        for item in items(start, stop):
            yield bad_record(log, item) if isinstance(item, Failure) else item
        if stop < log.end:
            yield gap(log, stop)


def gapless_ranges(log: CommitLog) -> Iterator[tuple[int, int]]:
    """Physical offsets between which no file is missing."""
    start = log.min_offset
    for before, after in pairwise(log.mapped.bases):
        end = before + log.mapped.file_size
        if after > end and end < log.end:
            yield start, end
            start = after
    if start < log.end:
        yield start, log.end


def gap(log: CommitLog, physical_offset: int) -> Finding:
    """The finding about a file that is missing there, before another one."""
    following = log.mapped.after(physical_offset)
    if following is None:
        raise RuntimeError(f"no file follows physical offset {physical_offset}")
    detail = missing_file(physical_offset, following)
    return Finding(MISSING_FILE, "damage", log.mapped.path(following), None, detail)


def bad_record(log: CommitLog, failure: Failure) -> Finding:
    """The finding for a failure."""
    base = log.mapped.holding(failure.physical_offset)
    if base is None:
        raise RuntimeError(f"a failure at {failure.physical_offset}, where no file is")
    at = failure.physical_offset - base
    return Finding(failure.kind, "damage", log.mapped.path(base), at, failure.reason)
