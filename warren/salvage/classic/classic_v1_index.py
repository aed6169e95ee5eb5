"""The index of a classic queue's directory, version 1: journal and segments put together, position by position.

Positions are read segment by segment: memory is that of one segment and the journal's numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import attrs
import numpy as np

from warren.queue_index.index import directory as disk
from warren.queue_index.index.facts import DELIVERED, NOTHING, PUBLISHED
from warren.queue_index.index.record_format import JOURNAL, SEGMENT
from warren.queue_index.message.message_format import MSG_ID_BYTES
from warren.salvage.classic.classic_directory import ClassicIndex
from warren.salvage.classic.positions import JournalBySegment, Positions
from warren.salvage.classic.queue_file import QueueIndexFile
from warren.salvage.queue_directory import SegmentColumns
from warren.salvage.read_only import below


@attrs.frozen(eq=False, repr=False, kw_only=True)
class ClassicV1Index(ClassicIndex[Positions]):
    """Reads the index; see :class:`~warren.salvage.classic.classic_v1.ClassicV1Directory`."""

    segment_entry_count: int

    @contextmanager
    def journal(self) -> Iterator[JournalBySegment]:
        """The journal, open."""
        file = QueueIndexFile.parsed(self.files, below(self.path, disk.JOURNAL_NAME), JOURNAL)
        try:
            yield JournalBySegment(file, self.segment_entry_count)
        finally:
            file.close()

    def segments(
        self, journal: JournalBySegment, only: range | None = None, *, only_heads: bool = False
    ) -> Iterator[Positions]:
        """The segments that have a file or that the journal publishes to, in order; each is open until the next.

        ``only``: those with these numbers. ``only_heads``: their messages will hardly be read.
        """
        numbers = self.segment_files() | journal.published
        for number in sorted(numbers if only is None else filter(only.__contains__, numbers)):
            path = below(self.path, disk.segment_name(number))
            file = QueueIndexFile.parsed(self.files, path, SEGMENT, only_heads=only_heads)
            try:
                yield Positions.of(number, file, journal, self.segment_entry_count)
            finally:
                file.close()

    def segment_files(self) -> set[int]:
        """The numbers of the existing segment files."""
        numbers = ((name, disk.segment_number(name)) for name in self.files.list(self.path))
        return {number for name, number in numbers if number is not None and disk.segment_name(number) == name}

    def segment_columns(self, only: range | None = None, *, stored: bool = False) -> Iterator[SegmentColumns]:
        with self.journal() as journal:
            for positions in self.segments(journal, only, only_heads=True):
                yield self.columns_of(positions, stored=stored)

    def columns_of(self, segment: Positions, *, stored: bool = False) -> SegmentColumns:
        """A row for each position that has a publish."""
        positions = segment
        has_publish = (positions.facts & PUBLISHED != 0) | positions.published_in_journal
        rel_seqs = np.flatnonzero(has_publish & (positions.embedded_sizes == 0) if stored else has_publish)
        bodies, facts = positions.bodies(rel_seqs), positions.facts[rel_seqs]
        from_file, offsets = positions.from_file[rel_seqs], positions.record_offsets(rel_seqs)
        seq_ids, persistent = positions.first_seq_id + rel_seqs, positions.persistent[rel_seqs]
        encoded_sizes = positions.embedded_sizes[rel_seqs]
        embedded = encoded_sizes > 0
        return SegmentColumns(
            seq_ids=seq_ids,
            msg_ids=np.ascontiguousarray(bodies["msg_id"]).view(np.uint8).reshape(len(rel_seqs), MSG_ID_BYTES),
            has_msg_id=np.ones(len(rel_seqs), np.bool_),
            persistent=persistent,
            delivered=(facts & DELIVERED != 0) | (facts == NOTHING),  # else acked within the journal
            acked=positions.acked[rel_seqs],
            expiries_us=bodies["expiry_us"].astype(np.uint64),
            sizes=bodies["size"].astype(np.int64),
            embedded=embedded,
            in_journal=~from_file,
            paths=(positions.file.path, positions.journal.path),
            path_of=(~from_file).astype(np.int8),
            offsets=offsets,
            live=positions.unacked[rel_seqs],
            restored=persistent & self.seen(seq_ids),
            redelivered=self.redelivered(seq_ids),
            stored=~embedded,
            inside=embedded,
            encoded_sizes=encoded_sizes,
            segment=positions,
        )
