"""Records of many messages, made as columns.

The messages of one publisher differ in their seq_ids, ids, expiries and bodies, and perhaps in their sizes and
properties. :class:`ColumnRecords` keeps these columns, which cost next to nothing while the messages are in RAM anyway,
until the records are needed: when the journal is written, and when the segment is. A :class:`RecordMatrix` makes them.

If all records have one length, they are the rows of one matrix (:class:`_PublishMatrix`); otherwise rows and bodies
are joined alternately (:class:`_FrameMatrix`). The constant columns of a matrix are kept from batch to batch, warm in
the cache, and the others are filled in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import attrs

from warren.queue_index.index.record_format import (
    BODY,
    BODY_SIZE,
    JOURNAL,
    SEGMENT,
    SEGMENT_SHORT,
    Layout,
    journal_publish_head,
    segment_publish_head,
)
from warren.queue_index.message.message_format import MAX_FRAGMENT_BYTES, MSG_ID_BYTES, Envelope, encode_message
from warren.queue_index.queue.run import EMBEDDED, IN_RAM, IN_STORE, Batch, Run, UnencodedTerms
from warren.storage.pieces import Piece

if TYPE_CHECKING:
    import numpy.typing as npt

_SMALL_STRETCH: Final = 8
"""Fewer messages than this are not worth a matrix."""
_KEPT_BYTES: Final = 512 << 10
"""A matrix above this is not kept: it would not stay in the cache, and cost memory."""
_SIZE_AT: Final = BODY_SIZE - 8
"""The offset in a publish's body of the message's size, which the size of the embedded part follows."""
Column: TypeAlias = "npt.NDArray[Any]"


@attrs.frozen(eq=False, repr=False)
class ColumnRecords:
    """Publish records of consecutive seq_ids, as what they are made of."""

    start: int
    count: int
    persistent: bool
    ids: bytes
    """16 bytes each."""
    sizes: int | Sequence[int]
    """Bytes of the bodies: one for all, or one each."""
    expiries: int | Sequence[int]
    terms: UnencodedTerms | None
    """The messages if they are embedded; ``None``: they are in a store."""

    @classmethod
    def of(cls, run: Run) -> ColumnRecords | None:
        """Return the records of a run; ``None`` if they cannot be made as columns, or are few."""
        if run.count < _SMALL_STRETCH:
            return None
        batch, low, high = run.batch, run.low, run.high
        terms, sizes, part = batch.terms, batch.sizes, None
        if run.embedded:
            if not isinstance(terms, UnencodedTerms):
                return None
            smallest, largest = (sizes, sizes) if isinstance(sizes, int) else (min(sizes), max(sizes))
            if not 0 < smallest <= largest <= MAX_FRAGMENT_BYTES:
                return None
            part = terms.part(low, high)
        return cls(
            start=run.start,
            count=run.count,
            persistent=run.persistent,
            ids=bytes(batch.ids[low * MSG_ID_BYTES : high * MSG_ID_BYTES]) if part is None else part.ids,
            sizes=sizes if isinstance(sizes, int) else sizes[low:high],
            expiries=batch.expiries if isinstance(batch.expiries, int) else batch.expiries[low:high],
            terms=part,
        )

    def __len__(self) -> int:
        return self.count

    def part(self, offset: int, count: int) -> ColumnRecords:
        """``count`` of them, from the ``offset``-th on."""
        if count == self.count:
            return self
        end, sizes, expiries = offset + count, self.sizes, self.expiries
        terms = None if self.terms is None else self.terms.part(offset, end)
        return ColumnRecords(
            start=self.start + offset,
            count=count,
            persistent=self.persistent,
            ids=self.ids[offset * MSG_ID_BYTES : end * MSG_ID_BYTES],
            sizes=sizes if isinstance(sizes, int) else sizes[offset:end],
            expiries=expiries if isinstance(expiries, int) else expiries[offset:end],
            terms=terms,
        )

    def run(self, offset: int, count: int, flags: int) -> Run:
        """Messages from the ``offset``-th on, as a run; ``flags`` do not include where their payload is."""
        part = self.part(offset, count)
        sizes, expiries = part.sizes, part.expiries
        batch = Batch(
            count,
            part.ids,
            sizes if isinstance(sizes, int) else list(sizes),
            expiries if isinstance(expiries, int) else list(expiries),
            part.terms,
        )
        return Run(part.start, batch, 0, count, flags | (IN_STORE if self.terms is None else EMBEDDED | IN_RAM))


class RecordMatrix:
    """Makes the records of both files. Not thread-safe.

    Keeps its rows if the same shape recurs; with one batch each for ten thousand queues it does not.
    """

    __slots__ = ("_matrices", "_shapes")

    def __init__(self) -> None:
        self._matrices: dict[str, _PublishMatrix | _FrameMatrix] = {}
        """By layout."""
        self._shapes: dict[str, MatrixShape] = {}
        """Those of the last call, by layout."""

    def journal_bytes(self, records: ColumnRecords) -> Piece:
        """The records as the journal has them. To be used before the next call."""
        import numpy as np

        head = int.from_bytes(journal_publish_head(records.start, persistent=records.persistent), "big")
        heads = np.arange(head, head + records.count, dtype=np.uint64)
        return self._records(records, JOURNAL, heads, 0)

    def segment_bytes(self, records: ColumnRecords, offset: int, count: int, rel_seq: int, shorts: int) -> Piece:
        """``count`` records from the ``offset``-th on, which is at ``rel_seq``, as a segment has them.

        Highest first, each followed by ``shorts`` short records. To be used before the next call.
        """
        import numpy as np

        rel_seqs = np.arange(rel_seq + count - 1, rel_seq - 1, -1, dtype=np.uint16)
        head = int.from_bytes(segment_publish_head(0, persistent=records.persistent), "big")
        return self._records(records.part(offset, count), SEGMENT, rel_seqs | np.uint16(head), shorts, rel_seqs)

    def _records(
        self, records: ColumnRecords, layout: Layout, heads: Column, shorts: int, rel_seqs: Column | None = None
    ) -> Piece:
        """Make the records; ``rel_seqs``: only in a segment, where the records stand highest first."""
        import numpy as np

        terms, name = records.terms, layout.name
        size = records.sizes if isinstance(records.sizes, int) else None
        if terms is None:
            shape: MatrixShape = (None, None, name, shorts)
        else:
            shape = (terms.envelope, None if terms.envelope.of_contents else size, name, shorts)
        rows = self._matrices.get(name)
        if rows is None or rows.shape != shape or not rows.has_room(records.count):
            joined = terms is not None and shape[1] is None
            rows = (_FrameMatrix if joined else _PublishMatrix)(shape, layout, records.count)
        if rows.worth_keeping and self._shapes.get(name) == shape:
            self._matrices[name] = rows
        else:
            self._matrices.pop(name, None)
        self._shapes[name] = shape
        short_heads = None if rel_seqs is None else rel_seqs | np.uint16(SEGMENT_SHORT << SEGMENT.number_bits)
        return rows.records(records, heads, short_heads)

    def release(self) -> None:
        """Give up the memory; it comes back when needed."""
        self._matrices.clear()
        self._shapes.clear()


MatrixShape = tuple[Envelope | None, int | None, str, int]
"""Envelope (``None``: nothing is embedded), body size (``None``: not of one size), layout, shorts after each."""


class _Matrix:
    """Rows of bytes, with columns by offset and type."""

    __slots__ = ("_rows", "shape")

    def __init__(self, shape: MatrixShape, row: bytes, room: int) -> None:
        import numpy as np

        self.shape = shape
        self._rows = np.empty((room, len(row)), np.uint8)
        self._rows[:] = np.frombuffer(row, np.uint8)

    @property
    def worth_keeping(self) -> bool:
        return self._rows.nbytes <= _KEPT_BYTES

    def column(self, at: int, dtype: str) -> Column:
        import numpy as np

        width = np.dtype(dtype).itemsize
        return self._rows[:, at : at + width].view(dtype)[:, 0]


class _PublishMatrix(_Matrix):
    """Records of one length: each is a row."""

    __slots__ = ("_bodies", "_expiries", "_heads", "_ids", "_shorts", "_sizes")

    def __init__(self, shape: MatrixShape, layout: Layout, room: int) -> None:
        envelope, size, _, shorts = shape
        sample = b"" if envelope is None else encode_message(envelope, bytes(MSG_ID_BYTES), bytes(size or 0))
        body = BODY.pack(b"", 0, size or 0, len(sample)) + sample
        super().__init__(shape, bytes(layout.head_size) + body + bytes(layout.head_size * shorts), room)
        head_size = layout.head_size
        self._heads = self.column(0, layout.head)
        self._shorts = [self.column(head_size + len(body) + head_size * index, layout.head) for index in range(shorts)]
        self._ids = [self.column(head_size, f"V{MSG_ID_BYTES}")]
        self._expiries = self.column(head_size + MSG_ID_BYTES, ">u8")
        self._sizes = self.column(head_size + _SIZE_AT, ">u4") if size is None else None
        self._bodies: Column | None = None
        if envelope is not None:
            id_at = head_size + BODY_SIZE + len(sample) - len(envelope.template.end) - MSG_ID_BYTES
            self._ids.append(self.column(id_at, f"V{MSG_ID_BYTES}"))
            self._bodies = self.column(id_at - len(envelope.template.tail) - (size or 0), f"V{size}")

    def has_room(self, count: int) -> bool:
        return count <= len(self._rows)

    def records(self, records: ColumnRecords, heads: Column, short_heads: Column | None) -> memoryview:
        """Fill in all columns, in the first rows; ``short_heads``: of records that stand in descending order."""
        import numpy as np

        count, step = records.count, 1 if short_heads is None else -1
        self._heads[:count] = heads
        for column in self._shorts:
            column[:count] = short_heads
        ids = np.frombuffer(records.ids, f"V{MSG_ID_BYTES}")[::step]
        for column in self._ids:
            column[:count] = ids
        expiries, sizes = records.expiries, records.sizes
        self._expiries[:count] = expiries if isinstance(expiries, int) else expiries[::step]
        if self._sizes is not None:
            self._sizes[:count] = sizes if isinstance(sizes, int) else sizes[::step]
        if self._bodies is not None and records.terms is not None:
            self._bodies[:count] = np.frombuffer(b"".join(records.terms.given), self._bodies.dtype)[::step]
        return self._rows[:count].reshape(-1).data


class _FrameMatrix(_Matrix):
    """The bytes around bodies (or contents) of different lengths.

    A row is the bytes between two of them: the end of one record, and the beginning of the next.
    """

    __slots__ = (
        "_begin_at",
        "_body_sizes",
        "_embedded",
        "_embedded_around",
        "_expiries",
        "_heads",
        "_ids_before",
        "_ids_behind",
        "_shorts",
        "_sizes",
    )

    def __init__(self, shape: MatrixShape, layout: Layout, room: int) -> None:
        envelope, _, _, shorts = shape
        if envelope is None:
            raise RuntimeError("records without messages have one length")
        template, head_size = envelope.template, layout.head_size
        end = template.tail + bytes(MSG_ID_BYTES) + template.end
        begin = template.head + (b"" if envelope.of_contents else bytes(4))
        at = self._begin_at = len(end) + head_size * shorts
        row = end + bytes(head_size * shorts) + bytes(head_size) + bytes(BODY_SIZE) + begin
        super().__init__(shape, row, room + 1)
        self._embedded_around = len(begin) + len(end)
        self._ids_behind = self.column(len(template.tail), f"V{MSG_ID_BYTES}")[1:]
        self._shorts = [self.column(len(end) + head_size * index, layout.head)[1:] for index in range(shorts)]
        self._heads = self.column(at, layout.head)
        self._ids_before = self.column(at + head_size, f"V{MSG_ID_BYTES}")
        self._expiries = self.column(at + head_size + MSG_ID_BYTES, ">u8")
        self._sizes = self.column(at + head_size + _SIZE_AT, ">u4")
        self._embedded = self.column(at + head_size + _SIZE_AT + 4, ">u4")
        self._body_sizes = None if envelope.of_contents else self.column(len(row) - 4, ">u4")

    def has_room(self, count: int) -> bool:
        return count < len(self._rows)

    def records(self, records: ColumnRecords, heads: Column, short_heads: Column | None) -> bytes:
        """Fill in all columns and join; ``short_heads``: for records in descending order."""
        import numpy as np

        if records.terms is None:
            raise RuntimeError("records without messages have one length")
        count, step = records.count, 1 if short_heads is None else -1
        given = records.terms.given[::step]
        self._heads[:count] = heads
        for column in self._shorts:
            column[:count] = short_heads
        self._ids_before[:count] = self._ids_behind[:count] = np.frombuffer(records.ids, f"V{MSG_ID_BYTES}")[::step]
        expiries, sizes = records.expiries, records.sizes
        self._expiries[:count] = expiries if isinstance(expiries, int) else expiries[::step]
        self._sizes[:count] = sizes if isinstance(sizes, int) else sizes[::step]
        if self._body_sizes is None:
            self._embedded[:count] = np.fromiter(map(len, given), np.int64, count) + self._embedded_around
        else:
            self._body_sizes[:count] = self._sizes[:count]
            self._embedded[:count] = self._sizes[:count] + np.uint32(self._embedded_around)
        frames = self._rows[: count + 1].view(f"V{self._rows.shape[1]}")[:, 0].tolist()
        frames[0] = frames[0][self._begin_at :]
        frames[-1] = frames[-1][: self._begin_at]
        pieces: list[bytes] = [b""] * (2 * count + 1)
        pieces[::2] = frames
        pieces[1::2] = given
        return b"".join(pieces)
