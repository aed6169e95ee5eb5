"""Selects a broker's messages, or a topic store's records, by a condition (:mod:`warren.where`) on their fields.

The condition is evaluated once for a uniform batch if it uses no field that differs in it; else, and in a mixed batch,
for every message.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, Final

import attrs

from warren.msg_store.commit_log.commit_log_format import Record
from warren.msg_store.commit_log.commit_log_format import decode_properties as decode_record_properties
from warren.queue_index.properties import Properties, decode_properties
from warren.salvage.envelopes import Envelope
from warren.salvage.message_batches import MessageBatch, MessageRow, MixedBatch, UniformBatch
from warren.where import MESSAGE_FIELDS, RECORD_FIELDS, Getter, Moment, Where, compile_where


class SavedMessage:
    """A message of a directory, as a condition sees it. ``fields``: those that only some messages have, by name."""

    def __init__(self, envelope: Envelope, body: bytes | memoryview, fields: Mapping[str, Any]) -> None:
        self.envelope = envelope
        self.body = body
        self.fields = fields
        self.exchange = envelope.exchange
        self.routing_key = envelope.routing_keys[0]

    @property
    def persistent(self) -> bool:
        return bool(self.fields["persistent"])

    @cached_property
    def properties(self) -> Properties:
        encoded = self.envelope.encoded
        return Properties() if encoded is None else decode_properties(encoded)


def _field(name: str) -> Getter[SavedMessage]:
    return lambda message: message.fields.get(name)


def _expiry(message: SavedMessage) -> Moment | None:
    expiry_us = message.fields.get("expiry_us")
    return Moment(expiry_us / 1_000_000) if expiry_us else None


_NAMES: Final = (
    "vhost",
    "queue",
    "seq_id",
    "msg_id",
    "redelivered",
    "delivery_count",
    "stream_offset",
    "acked",
    "orphan",
)

SAVED_FIELDS: Final[Mapping[str, Getter[Any]]] = {
    **MESSAGE_FIELDS,
    **{name: _field(name) for name in _NAMES},
    "expiry": _expiry,
}
"""The fields of a message in a condition: AMQP's, and those of an exported line."""

_OWN: Final = frozenset({"body", "seq_id", "msg_id", "expiry"})
"""Fields in which the messages of a uniform batch differ."""


class Selector:
    """Selects messages; ``fields``: those that all of them share, by name."""

    def __init__(self, where: Where[SavedMessage], **fields: Any) -> None:
        self._where = where
        self._shared_fields = fields
        self._is_uniform = where.fields.isdisjoint(_OWN)
        """Whether all messages of a uniform batch are selected or none."""

    def chosen(self, batch: MessageBatch) -> MessageBatch | None:
        """The selected messages of a batch, or ``None``."""
        if isinstance(batch, UniformBatch) and self._is_uniform:
            return batch if self._wants_row(batch.first(1).mixed().rows[0]) else None
        rows = [row for row in batch.mixed().rows if self._wants_row(row)]
        return None if not rows else batch if len(rows) == len(batch) else MixedBatch(rows)

    def wants(self, envelope: Envelope, body: bytes | memoryview, fields: Mapping[str, Any]) -> bool:
        """Whether a message is selected; ``fields``: its other fields."""
        return self._where(SavedMessage(envelope, body, fields))

    def _wants_row(self, row: MessageRow) -> bool:
        fields = {
            **self._shared_fields,
            "seq_id": row.seq_id,
            "msg_id": row.msg_id.hex() or None,
            "persistent": row.persistent,
            "redelivered": row.redelivered,
            "acked": row.acked,
            "expiry_us": row.expiry_us,
            "delivery_count": row.delivery_count,
            "stream_offset": row.stream_offset,
            "orphan": False,
        }
        return self.wants(row.envelope, row.body, fields)


# ── records of topics ────────────────────────────────────────────────────────────────────────────────────────────────


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
        return decode_record_properties(self.record.properties)

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
