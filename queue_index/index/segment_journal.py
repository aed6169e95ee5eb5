"""What the journal holds for one segment, in memory, until the next flush writes it out.

For every position: which facts the journal has added (:data:`warren.queue_index.index.facts.ADD`), and for those
published here the finished journal records, in the batches in which they came. A flush turns them into segment records,
in descending order of rel_seq, of each message publish, deliver, ack.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import attrs

from warren.queue_index.index.facts import ACKED, ADD, DELIVERED, IMPOSSIBLE, NOTHING, PLUS, PUBLISHED
from warren.queue_index.index.record_format import (
    BODY,
    SEGMENT,
    SEGMENT_SHORT,
    TRANSIENT_PUBLISH,
    Octets,
    journal_publish_head,
)
from warren.queue_index.index.record_matrix import ColumnRecords, RecordMatrix
from warren.queue_index.message.message_format import payload_bytes
from warren.queue_index.queue.run import DELIVERED as RUN_DELIVERED
from warren.queue_index.queue.run import EMBEDDED, IN_RAM, IN_STORE, INDEXED, PERSISTENT, Batch, Run
from warren.storage.pieces import Piece

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_JOURNAL_HEAD: Final = 8
_BODY_END: Final = _JOURNAL_HEAD + BODY.size
_WORTH_A_TABLE: Final = 16
"""Fewer records are joined one by one."""
_ADDING: Final = {
    action: ADD.by_left(action).ljust(256, bytes([IMPOSSIBLE])) for action in (PUBLISHED, DELIVERED, ACKED)
}
"""For each action, a translation table of facts: a thousand messages take one step."""
_FIRST_FACTS: Final = 256
"""The initial number of positions with facts, because with ten thousand queues most are short."""
_IF_UNACKED: Final = bytes(fact if fact & (PUBLISHED | ACKED) == PUBLISHED else NOTHING for fact in range(256))
_IF_NOT_PUBLISHED: Final = bytes(NOTHING if fact & PUBLISHED else fact for fact in range(256))
_ALONE: Final = bytes(fact for fact in range(256) if PLUS.of(NOTHING, fact) != IMPOSSIBLE)
"""What the journal can hold about a position that the segment's file lacks."""


Records = ColumnRecords | list[bytes]
"""Publish records: finished, or what they are made of."""


def journal_records(run: Run) -> Records:
    """The journal records of a run's publishes."""
    columns = ColumnRecords.of(run)
    return _records_of(run) if columns is None else columns


def _records_of(run: Run) -> list[bytes]:
    batch = run.batch
    persistent, ids, low = run.persistent, batch.ids, run.low
    terms = run.terms() if run.embedded else [b""] * run.count
    return [
        b"".join(
            (
                journal_publish_head(run.start + index, persistent=persistent),
                BODY.pack(
                    ids[(low + index) * 16 : (low + index + 1) * 16],
                    batch.expiry(low + index),
                    batch.size(low + index),
                    len(term),
                ),
                term,
            )
        )
        for index, term in enumerate(terms)
    ]


@attrs.define(eq=False, repr=False)
class Written:
    """Publish records of consecutive positions that were written to the journal together."""

    rel_seq: int
    records: Records

    @property
    def end(self) -> int:
        return self.rel_seq + len(self.records)

    def segment_bytes(self, low: int, high: int, shorts: int, matrix: RecordMatrix) -> Piece:
        """Return segment records of positions ``low … high-1``, highest first, each followed by ``shorts`` shorts."""
        first, count = low - self.rel_seq, high - low
        records = self.records
        if isinstance(records, list):
            return _segment_bytes(records[first : first + count], low, shorts)
        return matrix.segment_bytes(records, first, count, low, shorts)

    def runs(self, first_seq_id: int, facts: bytes) -> list[Run]:
        """Return as runs the positions for which ``facts``, by rel_seq, has facts."""
        facts = facts[self.rel_seq : self.end]
        runs: list[Run] = []
        for low, high in _stretches(facts):
            runs += self._runs_of(first_seq_id, low, high, RUN_DELIVERED if facts[low] & DELIVERED else 0)
        return runs

    def _runs_of(self, first_seq_id: int, low: int, high: int, delivered: int) -> list[Run]:
        """Positions ``low … high-1`` of this write, cut where records stop being embedded or start to be."""
        records = self.records
        if not isinstance(records, list):
            flags = INDEXED | delivered | (PERSISTENT if records.persistent else 0)
            return [records.run(low, high - low, flags)]
        runs: list[Run] = []
        start = low
        bodies = [BODY.unpack_from(records[index], _JOURNAL_HEAD) for index in range(low, high)]
        while start < high:
            embedded = bodies[start - low][3] > 0
            end = start + 1
            while end < high and (bodies[end - low][3] > 0) == embedded:
                end += 1
            chosen = bodies[start - low : end - low]
            flags = INDEXED | delivered | (EMBEDDED | IN_RAM if embedded else IN_STORE)
            if records[start][0] >> 6 != TRANSIENT_PUBLISH:
                flags |= PERSISTENT
            batch = Batch(
                count=end - start,
                ids=b"".join(body[0] for body in chosen),
                sizes=[
                    body[2] if body[2] <= body[3] or not embedded else _payload_bytes(records[index])
                    for index, body in enumerate(chosen, start)
                ],
                expiries=[body[1] for body in chosen],
                terms=[records[index][_BODY_END:] for index in range(start, end)] if embedded else None,
            )
            runs.append(Run(first_seq_id + self.rel_seq + start, batch, 0, end - start, flags))
            start = end
        return runs


def _payload_bytes(record: bytes) -> int:
    """What a publish record's message holds."""
    return payload_bytes(record[_BODY_END:])


def _segment_bytes(records: list[bytes], low: int, shorts: int) -> bytes:
    """:meth:`Written.segment_bytes` of journal records, those of one size together."""
    import numpy as np

    persistent = records[0][0] >> 6 != TRANSIENT_PUBLISH
    kind = 0x8000 | (persistent << 14)
    sizes = np.fromiter(map(len, records), np.int64, len(records))
    cuts = [0, *(np.flatnonzero(np.diff(sizes)) + 1).tolist(), len(records)]
    parts: list[Piece] = []
    for start, end in reversed(list(pairwise(cuts))):
        if end - start >= _WORTH_A_TABLE:
            parts.append(_table_of(records[start:end], low + start, kind, shorts))
            continue
        for index in range(end - 1, start - 1, -1):
            rel_seq = low + index
            short = (SEGMENT_SHORT << 14 | rel_seq).to_bytes(2, "big") * shorts
            parts += ((kind | rel_seq).to_bytes(2, "big"), memoryview(records[index])[_JOURNAL_HEAD:], short)
    return b"".join(parts)


def _table_of(records: list[bytes], low: int, kind: int, shorts: int) -> bytes:
    """The same for records of one size."""
    import numpy as np

    count, size = len(records), len(records[0])
    journal = np.frombuffer(b"".join(records), np.uint8).reshape(count, size)
    table = np.empty((count, 2 + size - _JOURNAL_HEAD + 2 * shorts), np.uint8)
    rel_seqs = np.arange(low + count - 1, low - 1, -1)
    table[:, :2] = _octets(rel_seqs | kind)
    table[:, 2 : 2 + size - _JOURNAL_HEAD] = journal[::-1, _JOURNAL_HEAD:]
    for at in range(2 + size - _JOURNAL_HEAD, table.shape[1], 2):
        table[:, at : at + 2] = _octets(rel_seqs | SEGMENT_SHORT << 14)
    return table.tobytes()


def _octets(numbers: npt.NDArray[np.int64]) -> Octets:
    """Two bytes of each."""
    import numpy as np

    return numbers.astype(">u2").view(np.uint8).reshape(-1, 2)


class SegmentJournal:
    """One segment between flushes: the number of its unacked messages, and its records in the journal."""

    __slots__ = ("_facts", "_size", "number", "unacked", "written")

    def __init__(self, number: int, segment_entry_count: int, unacked: int = 0) -> None:
        self.number = number
        self.unacked = unacked
        self.written: list[Written] = []
        self._size = segment_entry_count
        self._facts: bytearray | None = None

    @property
    def empty(self) -> bool:
        """Whether the journal holds nothing of this segment."""
        return self._facts is None or self._facts.count(NOTHING) == len(self._facts)

    @property
    def acks_late_delivers(self) -> bool:
        """Whether the journal holds both the deliver and the ack of a position that an earlier flush wrote."""
        return self._facts is not None and DELIVERED | ACKED in self._facts

    @property
    def facts(self) -> Octets:
        """The journal's facts by rel_seq, up to the last one; read-only."""
        import numpy as np

        return np.frombuffer(self._bytes(0), np.uint8)

    def unacked_facts(self, low: int, high: int) -> bytes:
        """The journal's facts by rel_seq, for positions in ``low … high-1`` that are not acked."""
        return bytes(low) + self._bytes(0)[low:high].translate(_IF_UNACKED)

    def first_beside_no_file(self) -> int:
        """Return the first position whose facts the journal cannot hold if the segment has no file, else -1."""
        facts = self._bytes(0)
        strange = facts.translate(None, _ALONE)
        return facts.index(strange[0]) if strange else -1

    def reach(self, count: int) -> None:
        """Have facts for the positions up to ``count``."""
        self._bytes(count)

    @property
    def highest(self) -> int:
        """The highest position that the journal holds something of, plus one."""
        return 0 if self._facts is None else len(self._facts.rstrip(b"\0"))

    def set_facts(self, facts: Octets) -> None:
        """Take over what a journal file was found to say."""
        self._bytes(len(facts))[: len(facts)] = facts.tobytes()

    def put(self, rel_seq: int, fact: int) -> None:
        """Take over what a journal file says of one position."""
        self._bytes(rel_seq + 1)[rel_seq] = fact
        if fact & PUBLISHED:
            self.unacked += 1
        elif fact & ACKED:
            self.unacked -= 1

    def add(self, action: int, low: int, high: int, step: int = 1) -> None:
        """Apply one action to each, or every ``step``-th, of the positions ``low … high-1``."""
        facts = self._bytes(high)
        new_facts = facts[low:high:step].translate(_ADDING[action])
        impossible = new_facts.find(IMPOSSIBLE)
        if impossible >= 0:
            raise self._impossible(action, low + impossible * step)
        facts[low:high:step] = new_facts
        if action == PUBLISHED:
            self.unacked += len(new_facts)
        elif action == ACKED:
            self.unacked -= len(new_facts)

    def _impossible(self, action: int, rel_seq: int) -> RuntimeError:
        return RuntimeError(
            f"action {action} on position {rel_seq} of segment {self.number}: {self._bytes(0)[rel_seq]}"
        )

    def hold(self, rel_seq: int, records: Records) -> None:
        """Keep publish records for the flush."""
        last = self.written[-1] if self.written else None
        if last is not None and last.end == rel_seq and isinstance(last.records, list) and isinstance(records, list):
            same_kind = last.records[0][0] >> 6 == records[0][0] >> 6
            if same_kind:
                last.records += records
                return
        self.written.append(Written(rel_seq, records))

    def segment_pieces(self, matrix: RecordMatrix) -> Iterator[Piece]:
        """Yield what a flush appends to the segment file: descending positions, of each publish, deliver, ack.

        Use each piece before requesting the next one.
        """
        facts = bytes(self._bytes(0))
        pieces: list[tuple[int, int, int, Written | None]] = []
        for written in self.written:
            for low, high in _stretches(facts[written.rel_seq : written.end]):
                fact = facts[written.rel_seq + low]
                if fact & PUBLISHED:
                    shorts = 1 if fact & DELIVERED else 0
                    pieces.append((written.rel_seq + low, written.rel_seq + high, shorts, written))
        others = facts.translate(_IF_NOT_PUBLISHED)
        for low, high in _stretches(others):
            pieces.append((low, high, 2 if others[low] == DELIVERED | ACKED else 1, None))
        pieces.sort(key=lambda piece: -piece[0])
        for low, high, shorts, published in pieces:
            if published is None:
                yield _shorts(low, high, shorts)
            else:
                yield published.segment_bytes(low, high, shorts, matrix)

    def forget(self) -> None:
        """The flush has written what the journal held."""
        self.written.clear()
        self._facts = None

    def _bytes(self, count: int) -> bytearray:
        """Return the facts of at least ``count`` positions."""
        facts = self._facts
        if facts is not None and len(facts) >= count:
            return facts
        previous = b"" if facts is None else facts
        size = min(self._size, max(count, 2 * len(previous), _FIRST_FACTS))
        self._facts = larger = bytearray(previous).ljust(size, b"\0")
        return larger


def _shorts(low: int, high: int, times: int) -> bytes:
    """Short records of positions ``low … high-1``, highest first."""
    import numpy as np

    rel_seqs = np.arange(high - 1, low - 1, -1, dtype=np.uint16) | np.uint16(SEGMENT_SHORT << 14)
    return np.repeat(rel_seqs.astype(SEGMENT.head), times).tobytes()


def _stretches(facts: bytes) -> list[tuple[int, int]]:
    """``(low, high)`` of each run of equal facts that are not NOTHING."""
    return [match.span() for match in re.finditer(rb"([^\0])\1*", facts, re.DOTALL)]
