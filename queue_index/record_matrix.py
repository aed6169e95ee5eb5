"""Many messages of one length as finished journal records, made in one matrix.

Such records differ in seq_id, msg_id (twice: in the record's body and in the message), expiry and body; every other
column is constant. A :class:`RecordMatrix` holds the constant columns, and stays from batch to batch, warm in the
cache, as long as a publisher's envelope and length stay the same; a batch fills in the rest and takes a copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from queue_index.message_format import MSG_ID_BYTES, Envelope, encode_message
from queue_index.record_format import BODY, BODY_SIZE, Octets, journal_publish_head
from queue_index.run import PackedTerms

_HEAD_SIZE: Final = 8
_EXPIRY_AT: Final = _HEAD_SIZE + MSG_ID_BYTES
_TERM_AT: Final = _HEAD_SIZE + BODY_SIZE
_KEPT_BYTES: Final = 1 << 20
"""A matrix above this is not kept: it would not stay in the cache, and cost memory."""


class RecordMatrix:
    """Rows of journal records for messages with one envelope and one body size."""

    def __init__(self, envelope: Envelope, size: int, *, persistent: bool) -> None:
        sample = encode_message(envelope, bytes(MSG_ID_BYTES), bytes(size))
        template = envelope.template
        id_at = _TERM_AT + len(sample) - len(template.end) - MSG_ID_BYTES
        body_at = id_at - len(template.tail) - size
        head = journal_publish_head(0, persistent=persistent)
        self.record = head + BODY.pack(b"", 0, size, len(sample)) + sample
        self._made_for = envelope, size, persistent
        self._kind = np.uint64(int.from_bytes(head, "big"))
        self._id_columns = slice(_HEAD_SIZE, _EXPIRY_AT), slice(id_at, id_at + MSG_ID_BYTES)
        self._body_columns = slice(body_at, body_at + size)
        self._rows = np.empty((0, len(self.record)), np.uint8)
        self._expiring = False

    def fits(self, envelope: Envelope, size: int, *, persistent: bool) -> bool:
        return self._made_for == (envelope, size, persistent)

    def fill(self, start: int, ids: bytes, bodies: Sequence[bytes], expiries: int | list[int]) -> PackedTerms:
        """The records of ``start … start+len(bodies)-1``, as the terms in them. Expiries: µs since the epoch, or 0."""
        count, record_size = len(bodies), len(self.record)
        rows = self._rows_for(count)
        seq_ids = np.arange(start, start + count, dtype=np.uint64) | self._kind
        rows[:, :_HEAD_SIZE] = _octets(seq_ids.astype(">u8").data, count)
        id_column = _octets(ids, count)
        for columns in self._id_columns:
            rows[:, columns] = id_column
        rows[:, self._body_columns] = _octets(b"".join(bodies), count)
        if expiries or self._expiring:
            times = np.broadcast_to(np.asarray(expiries, ">u8"), (count,))
            rows[:, _EXPIRY_AT:][:, :8] = _octets(np.ascontiguousarray(times).data, count)
            self._expiring = bool(expiries)
        length = record_size - _TERM_AT
        return PackedTerms(rows.tobytes(), range(_TERM_AT, count * record_size, record_size), length)

    def _rows_for(self, count: int) -> Octets:
        if count <= len(self._rows):
            return self._rows[:count]
        rows = np.empty((count, len(self.record)), np.uint8)
        rows[:] = np.frombuffer(self.record, np.uint8)
        if rows.nbytes <= _KEPT_BYTES:
            self._rows = rows
        return rows


def _octets(data: bytes | memoryview, count: int) -> Octets:
    return np.frombuffer(data, np.uint8).reshape(count, -1)
