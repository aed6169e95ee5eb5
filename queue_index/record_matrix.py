"""Records of many messages of one length, made as one matrix.

Messages of one publisher and one length differ in their seq_ids, ids, expiries and bodies. :class:`UniformRecords`
keeps these columns, which cost next to nothing while the messages are in RAM anyway, until the records are wanted: at
once for the journal, and later for the segment. A :class:`RecordMatrix` makes them: its constant columns stay, warm in
the cache, from batch to batch, and the others are filled in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import attrs
import numpy as np
import numpy.typing as npt

from warren.queue_index.message_format import MAX_FRAGMENT_BYTES, MSG_ID_BYTES, Envelope, encode_message
from warren.queue_index.record_format import (
    BODY,
    BODY_SIZE,
    JOURNAL,
    SEGMENT,
    SEGMENT_SHORT,
    Layout,
    journal_publish_head,
    segment_publish_head,
)
from warren.queue_index.run import Batch, Run, UnencodedTerms

_SMALL_STRETCH: Final = 8
"""Fewer messages than this are not worth a matrix."""
_KEPT_BYTES: Final = 512 << 10
"""A matrix above this is not kept: it would not stay in the cache, and cost memory."""
Column = npt.NDArray[Any]


@attrs.frozen(eq=False)
class UniformRecords:
    """Journal records of consecutive seq_ids, as what they are made of; their messages are embedded."""

    start: int
    count: int
    persistent: bool
    size: int
    """Bytes of each body."""
    expiries: int | Sequence[int]
    terms: UnencodedTerms

    @classmethod
    def of(cls, run: Run) -> UniformRecords | None:
        """The records of a run; ``None`` where its messages are not alike, or few."""
        batch = run.batch
        terms, size = batch.terms, batch.sizes
        if not isinstance(terms, UnencodedTerms) or not isinstance(size, int) or not run.embedded:
            return None
        if run.count < _SMALL_STRETCH or not 0 < size <= MAX_FRAGMENT_BYTES:
            return None
        expiries = batch.expiries
        return cls(
            start=run.start,
            count=run.count,
            persistent=run.persistent,
            size=size,
            expiries=expiries if isinstance(expiries, int) else expiries[run.low : run.high],
            terms=terms.part(run.low, run.high),
        )

    def __len__(self) -> int:
        return self.count

    def run(self, offset: int, count: int, flags: int) -> Run:
        """Messages from the ``offset``-th on, as a run."""
        end, expiries = offset + count, self.expiries
        part = self.terms.part(offset, end)
        times = expiries if isinstance(expiries, int) else list(expiries[offset:end])
        return Run(self.start + offset, Batch(count, part.ids, self.size, times, part), 0, count, flags)


class RecordMatrix:
    """Makes the records of both files. Not thread-safe.

    Keeps its rows where the same shape comes again and again: for one batch each of ten thousand queues it does not.
    """

    __slots__ = ("_journal", "_journal_shape", "_segment", "_segment_shape")

    def __init__(self) -> None:
        self._journal: _PublishMatrix | None = None
        self._segment: _PublishMatrix | None = None
        self._journal_shape: MatrixKind | None = None
        self._segment_shape: MatrixKind | None = None

    def journal_bytes(self, records: UniformRecords) -> bytes:
        """The records as the journal has them."""
        rows = _PublishMatrix.to_hold(self._journal, records, JOURNAL, 0, records.count)
        head = int.from_bytes(journal_publish_head(records.start, persistent=records.persistent), "big")
        rows.heads[: records.count] = np.arange(head, head + records.count, dtype=np.uint64)
        rows.fill(records.terms.ids, records.terms.bodies, records.expiries)
        self._journal = rows if rows.worth_keeping and rows.shape == self._journal_shape else None
        self._journal_shape = rows.shape
        return bytes(rows.data(records.count))

    def segment_bytes(self, records: UniformRecords, offset: int, count: int, rel_seq: int, shorts: int) -> memoryview:
        """``count`` records from the ``offset``-th on, which is at ``rel_seq``, as a segment has them.

        Highest first, each with ``shorts`` short records behind it. To be used before the next call.
        """
        rows = _PublishMatrix.to_hold(self._segment, records, SEGMENT, shorts, count)
        rel_seqs = np.arange(rel_seq + count - 1, rel_seq - 1, -1, dtype=np.uint16)
        head = int.from_bytes(segment_publish_head(0, persistent=records.persistent), "big")
        rows.heads[:count] = rel_seqs | np.uint16(head)
        for column in rows.shorts:
            column[:count] = rel_seqs | np.uint16(SEGMENT_SHORT << SEGMENT.number_bits)
        part, expiries = records.terms.part(offset, offset + count), records.expiries
        times = expiries if isinstance(expiries, int) else expiries[offset : offset + count]
        rows.fill(part.ids, part.bodies, times, descending=True)
        self._segment = rows if rows.worth_keeping and rows.shape == self._segment_shape else None
        self._segment_shape = rows.shape
        return rows.data(count)

    def release(self) -> None:
        """Give up the memory; it comes back when needed."""
        self._journal = self._segment = self._journal_shape = self._segment_shape = None


MatrixKind = tuple[Envelope, int, str, int]
"""Envelope, body size, layout, short records behind each: what the records of a matrix have in common."""


class _PublishMatrix:
    """A matrix of records of one kind, and views on the columns in which they differ."""

    __slots__ = ("_bodies", "_expiries", "_ids", "_matrix", "heads", "shape", "shorts")

    def __init__(self, shape: MatrixKind, layout: Layout, room: int) -> None:
        self.shape = shape
        envelope, size, _, shorts = shape
        sample = encode_message(envelope, bytes(MSG_ID_BYTES), bytes(size))
        body = BODY.pack(b"", 0, size, len(sample)) + sample
        record = bytes(layout.head_size) + body + bytes(layout.head_size * shorts)
        self._matrix = np.empty((room, len(record)), np.uint8)
        self._matrix[:] = np.frombuffer(record, np.uint8)
        id_at = layout.head_size + BODY_SIZE + len(sample) - len(envelope.template.end) - MSG_ID_BYTES
        body_at = id_at - len(envelope.template.tail) - size
        self.heads = self._column(0, layout.head)
        self.shorts = [
            self._column(layout.head_size + len(body) + layout.head_size * index, layout.head)
            for index in range(shorts)
        ]
        self._ids = [self._column(at, f"V{MSG_ID_BYTES}") for at in (layout.head_size, id_at)]
        self._expiries = self._column(layout.head_size + MSG_ID_BYTES, ">u8")
        self._bodies = self._column(body_at, f"V{size}")

    @classmethod
    def to_hold(
        cls, kept: _PublishMatrix | None, records: UniformRecords, layout: Layout, shorts: int, count: int
    ) -> _PublishMatrix:
        """Those that were kept, if they are of the right shape and have room; else new ones."""
        shape = (records.terms.envelope, records.size, layout.name, shorts)
        if kept is not None and kept.shape == shape and count <= len(kept.heads):
            return kept
        return cls(shape, layout, count)

    @property
    def worth_keeping(self) -> bool:
        return self._matrix.nbytes <= _KEPT_BYTES

    def _column(self, at: int, dtype: str) -> Column:
        width = np.dtype(dtype).itemsize
        return self._matrix[:, at : at + width].view(dtype)[:, 0]

    def fill(
        self, ids: bytes, bodies: Sequence[bytes], expiries: int | Sequence[int], *, descending: bool = False
    ) -> None:
        """Fill in all columns but heads and shorts, in the first rows."""
        count, step = len(bodies), -1 if descending else 1
        id_column = np.frombuffer(ids, f"V{MSG_ID_BYTES}")[::step]
        for column in self._ids:
            column[:count] = id_column
        self._expiries[:count] = expiries if isinstance(expiries, int) else expiries[::step]
        self._bodies[:count] = np.frombuffer(b"".join(bodies), self._bodies.dtype)[::step]

    def data(self, count: int) -> memoryview:
        """The first rows' bytes."""
        return self._matrix[:count].reshape(-1).data
