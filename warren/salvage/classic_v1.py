"""A classic queue's directory, version 1: journal and segments, read as a restarting broker reads them.

What a position is comes from two places. The segment file says what was flushed, the journal what happened since; after
a crash in a flush it repeats what the segment says (:mod:`queue_index.entries`). Positions are taken up segment by
segment, so memory is that of one segment and the journal's numbers. Of what cannot come about, every fact that stands
anywhere is believed: an acked message does not come back because of a damaged record.

A restarted broker delivers a queue's persistent, unacked messages in the order of their seq_ids, below ``next_seq_id``
where a clean stop left terms. It has delivered before what lies below ``next_deliver_seq_id``, and all of it where there
are no terms.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import numpy as np

from queue_index import directory as disk
from queue_index.entries import (
    ACKED,
    DELIVERED,
    IMPOSSIBLE,
    MINUS,
    NOTHING,
    PLUS,
    PUBLISHED,
    SegmentEntries,
    journal_entries,
    no_entries,
    segment_entries,
)
from queue_index.record_format import JOURNAL, SEGMENT, Bools, Columns, Ints, Layout, Octets
from queue_index.recovery_terms import RecoveryTerms
from storage.errors import DataError, StorageError, UnknownMessageError
from warren.salvage.index_file import Bodies, IndexFile
from warren.salvage.queue_directory import (
    MSG_IDS,
    BodySource,
    Finding,
    MsgIds,
    StoredMessage,
    Summary,
)
from warren.salvage.read_only import ReadOnlyFileSystem, below


@attrs.frozen(eq=False)
class Segment:
    """All that is known of a segment's positions; columns by rel_seq."""

    number: int
    first_seq_id: int
    file: IndexFile
    columns: Columns
    in_file: SegmentEntries
    journal: IndexFile
    in_journal: SegmentEntries
    """Less what was published, delivered and acked within the journal."""
    published_in_journal: Bools
    """With what was."""
    facts: Octets
    """File and journal together."""

    @property
    def unacked(self) -> Bools:
        return (self.facts & (PUBLISHED | ACKED)) == PUBLISHED

    @property
    def acked(self) -> Bools:
        """What is acked and not gone yet."""
        together = (self.facts & (PUBLISHED | ACKED)) == (PUBLISHED | ACKED)
        return together | (self.published_in_journal & (self.facts == NOTHING))

    @property
    def from_file(self) -> Bools:
        """Where the publish record is the file's; else it is the journal's."""
        return (self.in_file.facts & PUBLISHED) != 0

    @property
    def persistent(self) -> Bools:
        return np.where(self.from_file, self.in_file.persistent, self.in_journal.persistent)

    @property
    def embedded(self) -> Ints:
        return np.where(self.from_file, self.in_file.embedded, self.in_journal.embedded)

    def bodies(self, rel_seqs: Ints) -> Bodies:
        """The publish records' bodies at these positions."""
        found = np.empty(len(rel_seqs), Bodies)
        from_file = self.from_file[rel_seqs]
        found[from_file] = self.file.bodies(self.in_file.body_at[rel_seqs[from_file]])
        found[~from_file] = self.journal.bodies(self.in_journal.body_at[rel_seqs[~from_file]])
        return found
