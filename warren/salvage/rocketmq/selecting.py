"""Selects records of a CommitLog by a condition (:mod:`warren.where`) and a limit."""

from __future__ import annotations

from functools import cached_property

import attrs

from warren.msg_store.commit_log.commit_log_format import Record, decode_properties
from warren.where import RECORD_FIELDS, Where, compile_where


class SavedRecord:
    """A record, as a condition sees it."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.body = record.body
        self.topic = record.topic
        self.queue_id = record.queue_id
        self.queue_offset = record.queue_offset

    @cached_property
    def properties(self) -> dict[str, str]:
        return decode_properties(self.record.properties)

    @property
    def stored_at(self) -> float:
        return self.record.store_timestamp / 1000

    @property
    def born_at(self) -> float:
        return self.record.born_timestamp / 1000


@attrs.define
class RecordSelection:
    """Selects records, and counts them."""

    where: Where[SavedRecord] | None
    limit: int | None
    records: int = 0
    payload_bytes: int = 0

    @classmethod
    def of(cls, where: str | None, limit: int | None) -> RecordSelection:
        """Raises :class:`warren.where.WhereError`."""
        return cls(None if where is None else compile_where(where, RECORD_FIELDS), limit)

    @property
    def is_done(self) -> bool:
        """Whether no more are wanted."""
        return self.limit is not None and self.records >= self.limit

    def takes(self, record: Record) -> bool:
        """Whether to take this record; if so, it is counted."""
        if self.is_done or (self.where is not None and not self.where(SavedRecord(record))):
            return False
        self.records += 1
        self.payload_bytes += len(record.body)
        return True
