"""The positions of a classic queue's index, segment by segment: what the segment file and the journal say together.

After a crash in a flush the journal repeats facts of the segment; these are removed first
(:mod:`warren.queue_index.index.facts`). Damaged files may contradict each other. Then every fact in either of them
counts, so that an acked message does not come back because of a damaged record.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

from warren.queue_index.index.entries import Finding as IndexFinding
from warren.queue_index.index.entries import SegmentEntries, journal_entries, no_entries, segment_entries
from warren.queue_index.index.facts import ACKED, IMPOSSIBLE, MINUS, NOTHING, PLUS, PUBLISHED
from warren.queue_index.index.record_format import BODY_SIZE, Bools, Columns, Ints, Octets
from warren.salvage.classic.message_runs import rows_at
from warren.salvage.classic.queue_file import BODIES, Bodies, QueueIndexFile
from warren.salvage.queue_directory import Finding, SegmentColumns
from warren.storage.columns import distinct

_MAX_SEGMENT = np.iinfo(np.int64).max
"""A file can have a name with a higher number; a journal cannot refer to it."""


class JournalBySegment:
    """A journal's records, sorted by segment once, in each segment in the order of the file."""

    def __init__(self, file: QueueIndexFile, segment_entry_count: int) -> None:
        columns = file.columns
        publishes, delivers, acks = (
            np.argsort(numbers // segment_entry_count, kind="stable")
            for numbers in (columns.publish_numbers, columns.delivers, columns.acks)
        )
        self.file = file
        self._segment_entry_count = segment_entry_count
        # Bytes after the last record belong to no segment.
        self._columns = attrs.evolve(_chosen(columns, publishes, delivers, acks), reason="complete")
        sorted_numbers = (self._columns.publish_numbers, self._columns.delivers, self._columns.acks)
        self._segments = [numbers // segment_entry_count for numbers in sorted_numbers]

    @property
    def published(self) -> set[int]:
        """The segments that it publishes to."""
        return set(distinct(self._segments[0]).tolist())

    def begins(self, number: int) -> bool:
        """Whether it publishes the first message of a segment, so that none of it was written to a file before."""
        columns = self.of(number)
        return bool((columns.publish_numbers == number * self._segment_entry_count).any())

    def outside(self, visited: set[int]) -> tuple[Ints, Ints]:
        """Delivers and acks (seq_ids) of other segments than these."""
        numbers = np.array(sorted(number for number in visited if number <= _MAX_SEGMENT), np.int64)
        _, delivers, acks = self._segments
        return self._columns.delivers[~np.isin(delivers, numbers)], self._columns.acks[~np.isin(acks, numbers)]

    def of(self, number: int) -> Columns:
        """The records of one segment."""
        publishes, delivers, acks = (
            slice(np.searchsorted(segments, number), np.searchsorted(segments, number, "right"))
            for segments in self._segments
        )
        return _chosen(self._columns, publishes, delivers, acks)


def _chosen(columns: Columns, publishes: Ints | slice, delivers: Ints | slice, acks: Ints | slice) -> Columns:
    """The records at these places of their columns."""
    return attrs.evolve(
        columns,
        publish_numbers=columns.publish_numbers[publishes],
        publish_persistent=columns.publish_persistent[publishes],
        body_at=columns.body_at[publishes],
        embedded_sizes=columns.embedded_sizes[publishes],
        delivers=columns.delivers[delivers],
        acks=columns.acks[acks],
    )


@attrs.frozen(eq=False, repr=False)
class Positions:
    """One segment's positions; columns by rel_seq, up to the last one that is used."""

    number: int
    first_seq_id: int
    file: QueueIndexFile
    in_file: SegmentEntries
    journal: QueueIndexFile
    in_journal: SegmentEntries
    """Without the facts of what was published, delivered and acked within the journal."""
    published_in_journal: Bools
    """Including those."""
    facts: Octets
    """File and journal together."""
    file_findings: list[IndexFinding]
    journal_findings: list[IndexFinding]

    @classmethod
    def of(cls, number: int, file: QueueIndexFile, journal: JournalBySegment, segment_entry_count: int) -> Positions:
        """A segment, whose file (perhaps a missing one) is open."""
        columns = journal.of(number)
        in_journal_only = (columns.publish_numbers, columns.delivers, columns.acks)
        rel_seqs = [file.columns.publish_numbers, file.columns.delivers]
        rel_seqs += [seq_ids % segment_entry_count for seq_ids in in_journal_only]
        count = min(segment_entry_count, max(int(numbers.max(initial=-1)) for numbers in rel_seqs) + 1)
        in_file, file_findings = segment_entries(file.columns, count)
        entries, journal_findings = journal_entries(columns, segment_entry_count)
        in_journal = _first(entries[number], count) if number in entries else no_entries(count)
        published = np.zeros(count, np.bool_)
        published[columns.publish_numbers % segment_entry_count] = True
        return cls(
            number=number,
            first_seq_id=number * segment_entry_count,
            file=file,
            in_file=in_file,
            journal=journal.file,
            in_journal=in_journal,
            published_in_journal=published,
            facts=_together(in_file.facts, in_journal.facts),
            file_findings=file_findings,
            journal_findings=journal_findings,
        )

    @property
    def unacked(self) -> Bools:
        """Published and not acked."""
        return _are(self.facts & (PUBLISHED | ACKED), PUBLISHED)

    @property
    def acked(self) -> Bools:
        """Acked but still in the files."""
        acked = _are(self.facts & (PUBLISHED | ACKED), PUBLISHED | ACKED)
        return acked | (self.published_in_journal & _are(self.facts, NOTHING))

    @property
    def from_file(self) -> Bools:
        """Whether the publish record is in the file; else it is in the journal, if anywhere."""
        return _are(self.in_file.facts & PUBLISHED, PUBLISHED)

    @property
    def persistent(self) -> Bools:
        return np.where(self.from_file, self.in_file.persistent, self.in_journal.persistent)

    @property
    def embedded_sizes(self) -> Ints:
        """Bytes of the messages that are embedded in the index; 0: in the store."""
        return np.where(self.from_file, self.in_file.embedded, self.in_journal.embedded)

    def bodies(self, rel_seqs: Ints) -> Bodies:
        """The bodies of the publish records at these positions, of type
        :data:`warren.salvage.classic.queue_file.BODIES`."""
        bodies = np.empty(len(rel_seqs), BODIES)
        from_file = self.from_file[rel_seqs]
        bodies[from_file] = self.file.bodies(self.in_file.body_at[rel_seqs[from_file]])
        bodies[~from_file] = self.journal.bodies(self.in_journal.body_at[rel_seqs[~from_file]])
        return bodies

    def record_offsets(self, rel_seqs: Ints) -> Ints:
        """Where the publish records at these positions begin, each in its file."""
        from_file = self.from_file[rel_seqs]
        bodies = np.where(from_file, self.in_file.body_at[rel_seqs], self.in_journal.body_at[rel_seqs])
        return bodies - np.where(from_file, self.file.layout.head_size, self.journal.layout.head_size)

    def read_each(self, columns: SegmentColumns) -> Iterator[bytes | Finding]:
        files = self.file, self.journal
        rows = zip(columns.in_journal.tolist(), *map(np.ndarray.tolist, self._embedded(columns)), strict=True)
        for in_journal, at, size in rows:
            yield files[in_journal].read(size, at)

    def read_uniform(self, columns: SegmentColumns) -> Octets | None:
        at, sizes = self._embedded(columns)
        return rows_at(self.journal if columns.in_journal[0] else self.file, at, int(sizes[0]))

    def _embedded(self, columns: SegmentColumns) -> tuple[Ints, Ints]:
        """Where the messages in these rows begin in their files, and their sizes."""
        heads = np.where(columns.in_journal, self.journal.layout.head_size, self.file.layout.head_size)
        return columns.offsets + heads + BODY_SIZE, columns.encoded_sizes


def _are(facts: npt.NDArray[np.integer[Any]], bits: int) -> Bools:
    equal: Bools = facts == bits
    return equal


def _first(entries: SegmentEntries, count: int) -> SegmentEntries:
    entries.reach(count)
    return SegmentEntries(
        entries.facts[:count], entries.persistent[:count], entries.body_at[:count], entries.embedded[:count]
    )


def _together(in_file: Octets, in_journal: Octets) -> Octets:
    left = MINUS[in_journal, in_file]
    left = np.where(left == IMPOSSIBLE, in_journal & ~in_file, left)
    together = PLUS[in_file, left]
    facts: Octets = np.where(together == IMPOSSIBLE, in_file | left, together)
    return facts
