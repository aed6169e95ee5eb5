"""The CommitLog from one end to the other, over damage: after bad bytes it goes on where dispatch would."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from msg_store.commit_log import CommitLog
from msg_store.commit_log_format import Blank, Record
from msg_store.record_columns import Failure, RecordColumns
from warren.salvage.queue_directory import Finding

_Item = TypeVar("_Item", Record, RecordColumns)


def walk_records(log: CommitLog) -> Iterator[Record | Blank | Failure]:
    """Every record, one by one."""
    return _walk(log, log.items, lambda record: 0)


def walk_columns(log: CommitLog, *, with_keys: bool = True, delay_levels_ms: tuple[int, ...] = ()) -> Iterator[
    RecordColumns | Blank | Failure
]:
    """Every record, many at a time."""

    def columns(start: int, stop: int) -> Iterator[RecordColumns | Blank | Failure]:
        return log.columns(start, stop, with_keys=with_keys, delay_levels_ms=delay_levels_ms)

    return _walk(log, columns, lambda records: records.stop)
