"""What the journal holds of one segment, in memory, until the next flush writes it out.

For every position: which facts the journal has added (:data:`queue_index.entries.ADD`), and for those published here
the finished journal records, in the batches in which they came. A flush turns them into segment records, in descending
order of rel_seq, of each message publish, deliver, ack.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Final

import attrs
import numpy as np

from queue_index.entries import ACKED, ADD, DELIVERED, IMPOSSIBLE, NOTHING, PUBLISHED
from queue_index.record_format import BODY, SEGMENT, SEGMENT_SHORT, TRANSIENT_PUBLISH, Bools, Octets
from queue_index.run import DELIVERED as RUN_DELIVERED
from queue_index.run import EMBEDDED, IN_RAM, IN_STORE, INDEXED, PERSISTENT, Batch, PackedTerms, Run

_JOURNAL_HEAD: Final = 8
_BODY_END: Final = _JOURNAL_HEAD + BODY.size
_WORTH_A_WRITE: Final = 256 << 10


@attrs.frozen
class PackedRecords:
    """Finished journal records of one length, one behind the other."""

    blob: bytes
    record_size: int

    def __len__(self) -> int:
        return len(self.blob) // self.record_size

    def matrix(self) -> Octets:
        return np.frombuffer(self.blob, np.uint8).reshape(len(self), self.record_size)


Records = PackedRecords | list[bytes]


@attrs.define
class Written:
    """Publish records of consecutive positions that were written to the journal together."""

    rel_seq: int
    records: Records

    @property
    def end(self) -> int:
        return self.rel_seq + len(self.records)

    def record(self, index: int) -> bytes:
        records = self.records
        if isinstance(records, list):
            return records[index]
        return records.blob[index * records.record_size : (index + 1) * records.record_size]

    def segment_bytes(self, low: int, high: int, shorts: int) -> bytes | memoryview:
        """Segment records of positions ``low … high-1``, highest first; behind each ``shorts`` short records."""
        first, count = low - self.rel_seq, high - low
        persistent = self.record(first)[0] >> 6 != TRANSIENT_PUBLISH
        kind = 0x8000 | (persistent << 14)
        if isinstance(self.records, list):
            parts: list[bytes | memoryview] = []
            for index in range(first + count - 1, first - 1, -1):
                rel_seq = self.rel_seq + index
                short = (SEGMENT_SHORT << 14 | rel_seq).to_bytes(2, "big") * shorts
                parts += ((kind | rel_seq).to_bytes(2, "big"), memoryview(self.records[index])[_JOURNAL_HEAD:], short)
            return b"".join(parts)
        records = self.records.matrix()[first : first + count][::-1]
        body = records.shape[1] - _JOURNAL_HEAD
        rel_seqs = np.arange(high - 1, low - 1, -1, dtype=np.uint16)
        out = np.empty((count, 2 + body + 2 * shorts), np.uint8)
        out[:, :2] = (rel_seqs | np.uint16(kind)).astype(">u2").view(np.uint8).reshape(count, 2)
        out[:, 2 : 2 + body] = records[:, _JOURNAL_HEAD:]
        if shorts:
            short_bytes = (rel_seqs | np.uint16(SEGMENT_SHORT << 14)).astype(">u2").view(np.uint8).reshape(count, 2)
            out[:, 2 + body :] = np.tile(short_bytes, shorts)
        return out.ravel().data

    def runs(self, first_seq_id: int, wanted: Bools, delivered: Bools) -> list[Run]:
        """The wanted positions as runs; both masks are by rel_seq."""
        runs: list[Run] = []
        places = np.flatnonzero(wanted[self.rel_seq : self.end])
        if not len(places):
            return runs
        for stretch in np.split(places, np.flatnonzero(np.diff(places) != 1) + 1):
            low, high = int(stretch[0]), int(stretch[-1]) + 1
            marks = delivered[self.rel_seq + low : self.rel_seq + high]
            for part in np.split(np.arange(low, high), np.flatnonzero(np.diff(marks)) + 1):
                flag = RUN_DELIVERED if delivered[self.rel_seq + int(part[0])] else 0
                runs += self._runs_of(first_seq_id, int(part[0]), int(part[-1]) + 1, flag)
        return runs

    def _runs_of(self, first_seq_id: int, low: int, high: int, delivered: int) -> list[Run]:
        """Positions ``low … high-1`` of this write, cut where records stop being embedded or start to be."""
        runs: list[Run] = []
        start = low
        bodies = [BODY.unpack_from(self.record(index), _JOURNAL_HEAD) for index in range(low, high)]
        while start < high:
            embedded = bodies[start - low][3] > 0
            end = start + 1
            while end < high and (bodies[end - low][3] > 0) == embedded:
                end += 1
            chosen = bodies[start - low : end - low]
            flags = INDEXED | delivered | (EMBEDDED | IN_RAM if embedded else IN_STORE)
            if self.record(start)[0] >> 6 != TRANSIENT_PUBLISH:
                flags |= PERSISTENT
            batch = Batch(
                count=end - start,
                ids=b"".join(body[0] for body in chosen),
                sizes=[body[2] for body in chosen],
                expiries=[body[1] for body in chosen],
                terms=[self.record(index)[_BODY_END:] for index in range(start, end)] if embedded else None,
            )
            runs.append(Run(first_seq_id + self.rel_seq + start, batch, 0, end - start, flags))
            start = end
        return runs


class SegmentJournal:
    """One segment as the index knows it between flushes: its unacked messages, and what the journal holds of it."""

    __slots__ = ("_facts", "_size", "_view", "number", "unacked", "written")

    def __init__(self, number: int, segment_entry_count: int, unacked: int = 0) -> None:
        self.number = number
        self.unacked = unacked
        self.written: list[Written] = []
        self._size = segment_entry_count
        self._facts: bytearray | None = None
        self._view: Octets | None = None

    @property
    def empty(self) -> bool:
        """Whether the journal holds nothing of this segment."""
        return self._view is None or not self._view.any()

    @property
    def facts(self) -> Octets:
        """What the journal knows, by rel_seq; to be read only."""
        return self._array()

    @property
    def highest(self) -> int:
        """The highest position that the journal holds something of, plus one."""
        if self._view is None:
            return 0
        places = np.flatnonzero(self._view)
        return int(places[-1]) + 1 if len(places) else 0

    def set_facts(self, facts: Octets) -> None:
        """Take over what a journal file was found to say."""
        self._array()[:] = facts

    def add(self, action: int, low: int, high: int) -> None:
        """One action on each of the positions ``low … high-1``."""
        if high == low + 1:
            if self._facts is None:
                self._array()
            facts = self._facts
            if facts is None:
                raise RuntimeError("a segment's facts were not made")
            known = int(ADD[facts[low], action])
            if known == IMPOSSIBLE:
                raise self._impossible(action, low)
            facts[low] = known
        else:
            view = self._array()
            known_all = ADD[view[low:high], action]
            if (known_all == IMPOSSIBLE).any():
                raise self._impossible(action, low + int(np.argmax(known_all == IMPOSSIBLE)))
            view[low:high] = known_all
        if action == PUBLISHED:
            self.unacked += high - low
        elif action == ACKED:
            self.unacked -= high - low

    def _impossible(self, action: int, rel_seq: int) -> RuntimeError:
        return RuntimeError(f"action {action} on position {rel_seq} of segment {self.number}: {self.facts[rel_seq]}")

    def hold(self, rel_seq: int, records: Records) -> None:
        """Keep publish records for the flush."""
        last = self.written[-1] if self.written else None
        if last is not None and last.end == rel_seq and isinstance(last.records, list) and isinstance(records, list):
            same_kind = last.records[0][0] >> 6 == records[0][0] >> 6
            if same_kind:
                last.records += records
                return
        self.written.append(Written(rel_seq, records))

    def segment_pieces(self) -> Iterator[bytes | memoryview]:
        """What a flush appends to the segment file: descending positions, of each publish, deliver, ack.

        In pieces of which each is worth a write of its own: a large one is then written while it is in the cache.
        """
        facts = self._array()
        pieces: list[tuple[int, int, int, Written | None]] = []
        for written in self.written:
            for low, high in _stretches(facts[written.rel_seq : written.end]):
                known = int(facts[written.rel_seq + low])
                if known & PUBLISHED:
                    shorts = 1 if known & DELIVERED else 0
                    pieces.append((written.rel_seq + low, written.rel_seq + high, shorts, written))
        others = np.where(facts & PUBLISHED, NOTHING, facts)
        for low, high in _stretches(others):
            pieces.append((low, high, 2 if int(others[low]) == DELIVERED | ACKED else 1, None))
        pieces.sort(key=lambda piece: -piece[0])
        small: list[bytes | memoryview] = []
        small_bytes = 0
        for low, high, shorts, published in pieces:
            data = _shorts(low, high, shorts) if published is None else published.segment_bytes(low, high, shorts)
            small.append(data)
            small_bytes += len(data)
            if small_bytes >= _WORTH_A_WRITE:
                yield small[0] if len(small) == 1 else b"".join(small)
                small, small_bytes = [], 0
        if small:
            yield b"".join(small)

    def forget(self) -> None:
        """The flush has written what the journal held."""
        self.written.clear()
        self._facts = self._view = None

    def _array(self) -> Octets:
        if self._view is None:
            self._facts = bytearray(self._size)
            self._view = np.frombuffer(self._facts, np.uint8)
        return self._view


def _shorts(low: int, high: int, times: int) -> bytes:
    """Short records of positions ``low … high-1``, highest first."""
    rel_seqs = np.arange(high - 1, low - 1, -1, dtype=np.uint16) | np.uint16(SEGMENT_SHORT << 14)
    return np.repeat(rel_seqs.astype(SEGMENT.head), times).tobytes()


def _stretches(facts: Octets) -> list[tuple[int, int]]:
    """``(low, high)`` of each stretch of equal facts that are not NOTHING."""
    cuts = np.flatnonzero(np.diff(facts)) + 1
    edges = [0, *cuts.tolist(), len(facts)]
    return [(low, high) for low, high in pairwise(edges) if high > low and facts[low]]


__all__ = ["PackedRecords", "PackedTerms", "Records", "SegmentJournal", "Written"]
