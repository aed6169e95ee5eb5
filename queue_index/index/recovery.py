"""Bringing an index back from its files after a crash.

After a clean stop the journal is replayed (:mod:`warren.queue_index.index.journal_replay`). Else every segment is
scanned, in numbered steps:

1. Read the journal; drop a torn end (including a message invalidated by a page of zeros, and a record whose head was in
   a lost sector), and what its segments say already (after a crash in a flush).
2. Scan the segments that the journal mentions, from the highest down to the first that still has messages (now
   ``next_seq_id`` is known). Flush: from here on the journal is new.
3. Scan the others from the lowest on, one per call of :meth:`DirtyRecovery.step`, while the queue is already in use.
4. Flush: segments without unacked messages are deleted. A short journal that is sufficient by itself stays as it is.

Scanning a segment counts the unacked messages, and acks (in memory) those that do not survive: transient messages, and
messages whose body is missing in the persistent store. Dropped messages that are not transient, and ends of files that
are not records, are reported (:class:`~warren.queue_index.index.scan_losses.Losses`). Memory is one segment at a time,
whatever the backlog.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Final

import attrs
import numpy as np

from warren.queue_index.index import directory as names
from warren.queue_index.index.entries import SegmentEntries, journal_entries, no_entries
from warren.queue_index.index.facts import ACKED, DELIVERED, IMPOSSIBLE, MINUS, PUBLISHED
from warren.queue_index.index.journal_holes import without_holes
from warren.queue_index.index.queue_index import QueueIndex
from warren.queue_index.index.record_format import (
    ACK,
    BODY_SIZE,
    DELIVER,
    JOURNAL,
    MAX_MESSAGE_BYTES,
    SEGMENT,
    Bools,
    Columns,
    Ints,
    Octets,
    journal_shorts,
    parse,
)
from warren.queue_index.index.scan_losses import Losses
from warren.queue_index.index.segment_file import SegmentFile, published, read_segment
from warren.queue_index.index.segment_journal import SegmentJournal
from warren.storage.errors import DataError, DiskFullError
from warren.storage.filesystem import FileSystem, write_file

_SHORT_JOURNAL_BYTES: Final = 64 << 10
"""Up to this size a journal is not moved into segments: it is continued, as it would have been without the crash."""

HasBody = Callable[[bytes], bool]
"""Whether the persistent store has a body of that msg_id."""


@attrs.define(eq=False, repr=False)
class _Journal:
    data: bytes
    columns: Columns
    segments: dict[int, SegmentEntries]


def _read_journal(files: FileSystem, index: QueueIndex, file_names: Sequence[str]) -> _Journal:
    path = f"{index.path}/{names.JOURNAL_NAME}"
    data = files.read(path) if names.JOURNAL_NAME in file_names else b""
    columns = without_holes(data, parse(JOURNAL, data))
    segments, findings = journal_entries(columns, index.segment_entry_count)
    for finding in findings:
        if finding.kind != "torn record":
            raise DataError(path, finding.offset, f"{finding.kind}: {finding.detail}")
    return _Journal(data, columns, segments)


def _hold(segment: SegmentJournal, journal: _Journal, entries: SegmentEntries) -> None:
    """Add to a segment's journal the publish records of the positions that are published in ``segment.facts``."""
    places = np.flatnonzero(segment.facts & PUBLISHED)
    if not len(places):
        return
    data = journal.data
    starts = entries.body_at[places] - JOURNAL.head_size
    ends = entries.body_at[places] + BODY_SIZE + entries.embedded[places]
    records = [data[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
    kinds = np.frombuffer(data, np.uint8)[starts] >> 6
    cuts = np.flatnonzero((np.diff(places) != 1) | (np.diff(kinds) != 0)) + 1
    for first, end in pairwise([0, *cuts.tolist(), len(records)]):
        segment.hold(int(places[first]), records[first:end])


def _have_equal_length(left: SegmentEntries, right: SegmentEntries) -> None:
    """Extend the shorter one, so that their columns can be combined."""
    left.reach(len(right))
    right.reach(len(left))


class DirtyRecovery:
    """Recovery by scanning; ``step`` until it returns False."""

    def __init__(
        self,
        files: FileSystem,
        index: QueueIndex,
        has_body: HasBody,
        on_references: Callable[[list[bytes]], None] | None = None,
        losses: Losses | None = None,
    ) -> None:
        self._losses = Losses() if losses is None else losses
        self._found_messages = 0
        self._found_bytes = 0
        self._files = files
        self._index = index
        self._has_body = has_body
        self._on_references = on_references
        self._repeated: list[bytes] = []
        """Records that the journal's file is to have before anything is flushed."""
        self.needs_flush = index.syncs
        """Whether the journal must be replaced: it is long, or contradicts what is known."""
        file_names = files.list(index.path)
        self._journal = _read_journal(files, index, file_names)
        if self._journal.columns.end < len(self._journal.data):  # should the flush find no room, it is appended to
            index.journal.continue_at(self._journal.columns.end)
            cut_bytes = len(self._journal.data) - self._journal.columns.end
            self._losses.cut(f"{index.path}/{names.JOURNAL_NAME}", self._journal.columns.end, cut_bytes)
        self._with_file = {number for name in file_names if (number := names.segment_number(name)) is not None}
        self.needs_flush |= bool(self._with_file) or len(self._journal.data) > _SHORT_JOURNAL_BYTES
        self._unscanned = sorted(self._with_file | set(self._journal.segments))
        for number in sorted(self._journal.segments):
            self._scan(number)
        while self._unscanned and not self._has_messages_above(self._unscanned[-1]):
            self._scan(self._unscanned[-1])
        if self._repeated:
            index.journal.continue_at(self._journal.columns.end, b"".join(self._repeated))
        if (
            self._unscanned
        ):  # what the queue writes meanwhile must meet no leftovers, in the journal or in dead segments
            index.flush_if_room(even_if_clean=True)
        self._release_journal()

    def take_found(self) -> tuple[int, int]:
        """Return the number of messages found since the last call, and their bytes; all are persistent."""
        counts = self._found_messages, self._found_bytes
        self._found_messages = self._found_bytes = 0
        return counts

    @property
    def finished(self) -> bool:
        return not self._unscanned

    @property
    def scanned_to(self) -> int:
        """Everything below this seq_id is known."""
        if self._unscanned:
            return self._unscanned[0] * self._index.segment_entry_count
        return self._index.bounds()[1]

    @property
    def bounds(self) -> tuple[int, int]:
        """The first position of the lowest segment that may have a message; the one after the highest that has one."""
        size = self._index.segment_entry_count
        alive = [number for number, segment in self._index.segments.items() if segment.unacked]
        if not alive:
            return self._index.uncut_end, self._index.uncut_end
        return min(alive + self._unscanned) * size, max((max(alive) + 1) * size, self._index.uncut_end)

    def _has_messages_above(self, number: int) -> bool:
        return any(other > number and segment.unacked for other, segment in self._index.segments.items())

    def step(self) -> bool:
        """Scan the lowest segment that was not yet; returns whether there are more."""
        if self._unscanned:
            self._scan(self._unscanned[0])
        return bool(self._unscanned)

    def _release_journal(self) -> None:
        self._journal = _Journal(b"", self._journal.columns, {})

    def _scan(self, number: int) -> None:
        index, size = self._index, self._index.segment_entry_count
        self._unscanned.remove(number)
        path = f"{index.path}/{names.segment_name(number)}"
        entries = self._journal.segments.get(number)
        has_file = number in self._with_file
        file = self._read_settled(path, entries) if has_file else SegmentFile(b"", no_entries(0), 0)
        segment = SegmentJournal(number, size)
        if entries is not None:
            _have_equal_length(entries, file.entries)
            segment.set_facts(self._less_known(path, entries.facts, file.entries.facts))
            _hold(segment, self._journal, entries)
        index.segments[number] = segment
        facts = index.segment_files.together(segment, file)
        unacked = (facts & (PUBLISHED | ACKED)) == PUBLISHED
        survives = self._surviving(file, segment, unacked)
        segment.unacked = int(unacked.sum())
        index.dirty_count += int((segment.facts > 0).sum()) if not segment.empty else 0
        lost = unacked & ~survives
        late = survives & (facts & DELIVERED == 0) if index.settings.deliver_with_publish else np.zeros_like(lost)
        if entries is not None and index.settings.deliver_with_publish:
            _have_equal_length(entries, file.entries)
            self._repeat(number, entries.facts, (entries.facts > 0) & (file.entries.facts > 0), lost, late)
        self._ack_lost(number, np.flatnonzero(lost), facts)
        self._mark_delivered(number, np.flatnonzero(late))
        self._found_messages += segment.unacked
        self.needs_flush |= bool(lost.any() or late.any()) or not segment.unacked

    def _less_known(self, path: str, in_journal: Octets, in_file: Octets) -> Octets:
        remaining: Octets = MINUS[in_journal, in_file]
        if (remaining == IMPOSSIBLE).any():
            rel_seq = int(np.argmax(remaining == IMPOSSIBLE))
            raise DataError(path, None, f"rel_seq {rel_seq}: journal {in_journal[rel_seq]}, file {in_file[rel_seq]}")
        return remaining

    def _read_settled(self, path: str, in_journal: SegmentEntries | None) -> SegmentFile:
        """Return a segment, cut to the reliable part and synced, because the journal with the same records is cut soon.

        A torn end goes, or what is appended next could not be read. So does everything from the first record on that
        differs from the journal: a flush was under way when the power failed. A file to which such a flush has appended
        is rewritten: if the flush ended in a failed fsync, no later one brings what it wrote to the disk.
        """
        size = self._index.segment_entry_count
        file = read_segment(self._files, path, size)
        if not file.data:
            return file
        if file.good_bytes < len(file.data):
            self._losses.cut(path, file.good_bytes, len(file.data) - file.good_bytes)
        if in_journal is not None:
            _have_equal_length(in_journal, file.entries)
        good_bytes = file.good_bytes if in_journal is None else self._first_difference(file, in_journal)
        if good_bytes < len(file.data) or (in_journal is not None and (in_journal.facts & file.entries.facts).any()):
            try:
                write_file(self._files, path, file.data[:good_bytes], sync=self._index.syncs)
            except DiskFullError:  # the next best: it needs no room
                self._settle_in_place(path, good_bytes)
        elif self._index.syncs:
            self._settle_in_place(path, len(file.data))
        return file if good_bytes == file.good_bytes else read_segment(self._files, path, size)

    def _settle_in_place(self, path: str, size: int) -> None:
        handle = self._files.open_append(path)
        try:
            if size < handle.size():
                handle.truncate(size)
            if self._index.syncs:
                handle.sync()
        finally:
            handle.close()

    def _first_difference(self, file: SegmentFile, in_journal: SegmentEntries) -> int:
        """Return the offset of the first publish that differs from the journal's, else the end of the good part."""
        end = file.good_bytes
        for rel_seq in np.flatnonzero(in_journal.facts & file.entries.facts & PUBLISHED).tolist():
            journal_at, file_at = int(in_journal.body_at[rel_seq]), int(file.entries.body_at[rel_seq])
            size = BODY_SIZE + int(in_journal.embedded[rel_seq])
            if self._journal.data[journal_at : journal_at + size] != file.data[file_at : file_at + size]:
                end = min(end, file_at - SEGMENT.head_size)
        return end

    def _surviving(self, file: SegmentFile, segment: SegmentJournal, unacked: Bools) -> Bools:
        """Return which unacked messages survive the restart; count their bytes, and report the needed bodies."""
        survives = np.zeros(len(unacked), np.bool_)
        in_file = published(file.entries)
        references: list[bytes] = []

        def keep(rel_seqs: Ints, ids: bytes | bytearray, sizes: int | list[int]) -> None:
            """Keep store-bound messages, if the store has them."""
            for place, rel_seq in enumerate(rel_seqs.tolist()):
                msg_id = bytes(ids[place * 16 : place * 16 + 16])
                if self._has_body(msg_id):
                    references.append(msg_id)
                    survives[rel_seq] = True
                    size = sizes if isinstance(sizes, int) else sizes[place]
                    if size <= MAX_MESSAGE_BYTES:  # else the store is asked when it is loaded
                        self._found_bytes += size
                else:
                    self._losses.messages += 1

        candidates = unacked & in_file & file.entries.persistent
        embedded = np.flatnonzero(candidates & (file.entries.embedded > 0))
        if len(embedded):
            survives[embedded] = True
            self._found_bytes += file.total_size(embedded)
        bound = np.flatnonzero(candidates & (file.entries.embedded == 0))
        if len(bound):
            batch = file.columns(bound)
            keep(bound, batch.ids, batch.sizes)
        for written in segment.written:
            for run in written.runs(0, (segment.facts * (unacked & ~in_file)).tobytes()):
                if not run.persistent:
                    continue
                rel_seqs = np.arange(run.start, run.end)
                if run.embedded:
                    survives[rel_seqs] = True
                    self._found_bytes += run.bytes
                else:
                    keep(rel_seqs, run.batch.ids, run.batch.sizes)
        if references and self._on_references is not None:
            self._on_references(references)
        return survives

    def _repeat(self, number: int, in_journal: Octets, in_both: Bools, lost: Bools, late: Bools) -> None:
        """Repeat in the journal's file what the next flush writes for positions in both the segment and the journal.

        If that flush is interrupted, the journal must not have fewer records of them than the segment: RabbitMQ 3.10
        cannot combine these.
        """
        first = number * self._index.segment_entry_count
        delivers = in_both & (lost | late) & (in_journal & DELIVERED == 0)
        for kind, chosen in ((DELIVER, delivers), (ACK, in_both & lost)):
            if chosen.any():
                self._repeated.append(journal_shorts(kind, first + np.flatnonzero(chosen)))

    def _mark_delivered(self, number: int, rel_seqs: Ints) -> None:
        """Give positions their deliver record, in memory only: a RabbitMQ 3.10 acks none that has not."""
        for rel_seq in rel_seqs.tolist():
            self._index.segments[number].add(DELIVERED, rel_seq, rel_seq + 1)
        self._index.dirty_count += len(rel_seqs)

    def _ack_lost(self, number: int, rel_seqs: Ints, facts: Octets) -> None:
        """Ack, in memory only, what does not come back."""
        segment = self._index.segments[number]
        for rel_seq in rel_seqs.tolist():
            if not facts[rel_seq] & DELIVERED:
                segment.add(DELIVERED, rel_seq, rel_seq + 1)
                self._index.dirty_count += 1
            segment.add(ACKED, rel_seq, rel_seq + 1)
            self._index.dirty_count += 1
