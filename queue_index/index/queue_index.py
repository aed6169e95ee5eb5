"""One queue's index: where each message stands, on disk.

The index owns a directory with a journal and segment files (:mod:`warren.queue_index.index.record_format`). What
happens (publish, deliver, ack) is appended to the journal; a *flush* moves what the journal holds into the segments and
empties it; a *sync* makes the journal safe.

* Writes to the journal wait in memory until a sync, a ``write_out``, or a stop; a flush drops what waits, because the
  segments then say it. The file lags, never leads.
* Memory holds, for every known segment, how many of its messages are unacked, and what the journal says about it.
* A *batch* of publishes is written as all publishes, then all delivers: when as many wait as a segment holds, and at
  the batch's end.
* A flush deletes a segment file without unacked messages and appends to the others; then the journal is cut to 0.

A full disk. What cannot be written waits in memory, and everything goes on: messages are delivered, acks
are noted, and a segment's file is deleted with its last ack. A crash then loses what waits: acked messages come back.
A write that finds no room becomes a flush: acked messages need no room in the segments, so the journal of a queue that
was consumed is cut to 0. A flush without room for all that is unacked takes back what it appended.

A crash leaves: a journal that ends in the middle of a record (dropped); or, from a flush, segments that say what the
journal says too (:data:`warren.queue_index.index.facts.MINUS`), the last of them perhaps torn. With ``sync`` the
segments are synced before the journal is cut and the cut before anything is appended, so that no mixture of old and new
journal can appear.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Final

import attrs

from warren.queue_index.index import directory as names
from warren.queue_index.index.facts import ACKED, DELIVERED, PUBLISHED
from warren.queue_index.index.journal_file import JournalFile, Part, Writing
from warren.queue_index.index.record_format import (
    ACK,
    BODY,
    DELIVER,
    journal_publish_head,
    journal_short,
    journal_shorts_of,
)
from warren.queue_index.index.record_matrix import RecordMatrix
from warren.queue_index.index.segment_files import SegmentFiles
from warren.queue_index.index.segment_journal import Records, SegmentJournal, journal_records
from warren.queue_index.queue.run import DELIVERED as RUN_DELIVERED
from warren.queue_index.queue.run import Run
from warren.storage.errors import NoRoomError
from warren.storage.filesystem import FileSystem
from warren.storage.settings import Settings

UNBOUNDED: Final = None


@attrs.define(eq=False, repr=False)
class _Waiting:
    """A batch of publishes that waits to be written: its records, and the ranges to be marked delivered."""

    count: int = 0
    records: list[Part] = attrs.Factory(list)
    delivers: list[range] = attrs.Factory(list)


class QueueIndex:
    """The journal and the segments of one queue. Not thread-safe; files are handed in."""

    __slots__ = (
        "_ahead",
        "_files",
        "_flush_again_at",
        "_matrix",
        "_waiting",
        "dirty_count",
        "journal",
        "path",
        "published_ticket",
        "safe_ticket",
        "segment_entry_count",
        "segment_files",
        "segments",
        "settings",
        "syncs",
        "uncut_end",
        "written_ticket",
    )

    def __init__(
        self,
        files: FileSystem,
        path: str,
        settings: Settings,
        *,
        vhost: bytes,
        queue: bytes,
        sync: bool = True,
        synced: dict[str, bool] | None = None,
    ) -> None:
        """``synced``: a vhost's, for :class:`~warren.queue_index.index.journal_file.JournalFile`."""
        self.path = path
        self.settings = settings
        self.segment_entry_count = settings.segment_entry_count
        self.segments: dict[int, SegmentJournal] = {}
        self.dirty_count = 0
        """Actions since the last flush."""
        self.written_ticket = 0
        """Rises with every record; records up to ``safe_ticket`` survive what ``sync`` promises."""
        self.safe_ticket = 0
        self.published_ticket = 0
        """The ticket of the last publish; deliver records that came after it are not what a publisher waits for."""
        self.syncs = sync
        self._files = files
        self._matrix = RecordMatrix()
        synced = {} if synced is None else synced
        self.journal = JournalFile(files, path, (vhost, queue), self._matrix, sync=sync, synced=synced)
        self.segment_files = SegmentFiles(files, path, self.segment_entry_count, self._matrix, sync=sync)
        self._waiting: _Waiting | None = None
        self._ahead: list[bytes] | None = None
        """Records of publishes that were written before they were noted."""
        self._flush_again_at = 0
        """A flush that found no room is not tried again until this many actions wait."""
        self.uncut_end = 0
        """The position after deleted segments that the journal still speaks of, as it could not be cut; or 0."""

    # ── what happens ────────────────────────────────────────────────────────────────────────────────────────────

    def publish(self, run: Run, target_ram_count: int | None) -> None:
        """Write positions alone: a publish, then a deliver record if the message has been delivered."""
        self.journal.append(self._add_publishes(run))
        self._published(run, target_ram_count)

    def _published(self, run: Run, target_ram_count: int | None) -> None:
        self._flush_if_above(target_ram_count)
        if self._marks_delivered(run):
            self.deliver([range(run.start, run.end)])

    def write_ahead(self, first: int, msg_ids: bytes, sizes: Sequence[int], terms: Sequence[bytes]) -> None:
        """Write publishes of persistent messages that are embedded and never expire, from position ``first`` on, and
        everything that waits, and make it as safe as this index is configured to.

        :meth:`enter_written` notes them. Raises :class:`NoRoomError` if the disk is full; nothing is written then.
        """
        records, at = [], 0
        for size, term in zip(sizes, terms, strict=True):
            head = journal_publish_head(first, persistent=True)
            records.append(b"".join((head, BODY.pack(msg_ids[at : at + 16], 0, size, len(term)), term)))
            first, at = first + 1, at + 16
        with Writing(self.journal):
            self.journal.write(records)
            self.journal.sync()
        if self._ahead is None:
            self._ahead = records
        else:
            self._ahead += records
        self.safe_ticket = self.written_ticket

    def enter_written(self, run: Run, target_ram_count: int | None) -> None:
        """Publish a run that :meth:`write_ahead` has written."""
        records, self._ahead = self._ahead or [], None
        self._note_published(run, records)
        self._published(run, target_ram_count)

    def pre_publish(self, run: Run, target_ram_count: int | None, *, descending: bool = False) -> None:
        """Add positions to the waiting batch; ``descending``: taken from the highest on."""
        rest = Run(run.start, run.batch, run.low, run.count, run.flags)
        while rest.count:
            waiting = self._waiting
            if waiting is None:
                waiting = self._waiting = _Waiting()
            take = min(self.segment_entry_count - waiting.count, rest.count)
            part = rest.take_right(take) if descending else rest.take_left(take)
            waiting.records += self._add_publishes(part)
            waiting.count += take
            if self._marks_delivered(part):
                waiting.delivers.append(range(part.start, part.end))
            if waiting.count >= self.segment_entry_count:
                self.end_batch(target_ram_count)

    def end_batch(self, target_ram_count: int | None) -> None:
        """Write the batch that waits, even an empty one; flush where too much is unflushed."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            self.journal.append(waiting.records)
            if waiting.delivers:
                self.deliver(waiting.delivers)
        self._flush_if_above(target_ram_count)

    @property
    def batch_waits(self) -> bool:
        """Whether a batch has begun."""
        return self._waiting is not None

    def deliver(self, ranges: Sequence[range]) -> None:
        """Mark positions as delivered."""
        self._mark(DELIVER, DELIVERED, ranges)

    def ack(self, ranges: Sequence[range]) -> None:
        """Ack positions; the records are written in the order of the ranges."""
        self._mark(ACK, ACKED, ranges)

    def _mark(self, kind: int, fact: int, ranges: Sequence[range]) -> None:
        if not ranges:
            return
        if len(ranges) == 1:
            seq_ids = ranges[0]
            self.journal.append((journal_short(kind, seq_ids.start) if len(seq_ids) == 1 else (kind, seq_ids),))
        else:
            self.journal.append((journal_shorts_of(kind, ranges),))
        for part in ranges:
            low, high = (part.start, part.stop) if part.step > 0 else (part[-1], part.start + 1)
            self._add(fact, low, high, abs(part.step))
        self._flush_if_above(UNBOUNDED)

    def _marks_delivered(self, run: Run) -> bool:
        return self.settings.deliver_with_publish or bool(run.flags & RUN_DELIVERED)

    def _add(self, fact: int, low: int, high: int, step: int = 1) -> None:
        """Record one action on ``low … high-1``, or on every ``step``-th position, segment by segment."""
        size = self.segment_entry_count
        count = high - low if step == 1 else len(range(low, high, step))
        self.dirty_count += count
        self.written_ticket += count
        if fact == PUBLISHED:
            self.published_ticket = self.written_ticket
        while low < high:
            number, rel_seq = divmod(low, size)
            end = min(high, (number + 1) * size)
            self.segment(number).add(fact, rel_seq, rel_seq + end - low, step)
            low = end if step == 1 else end + (low - end) % step

    def _add_publishes(self, run: Run) -> Sequence[Part]:
        """Note positions as published; returns what the journal gets."""
        if self._ahead:
            raise RuntimeError(f"{self.path}: a publish came between one that is written and its place")
        records = journal_records(run)
        self._note_published(run, records)
        return records if isinstance(records, list) else (records,)

    def _note_published(self, run: Run, records: Records) -> None:
        number, rel_seq = divmod(run.start, self.segment_entry_count)
        self._add(PUBLISHED, run.start, run.end)
        self.segment(number).hold(rel_seq, records)

    def segment(self, number: int) -> SegmentJournal:
        """What the journal says about a segment."""
        segment = self.segments.get(number)
        if segment is None:
            segment = self.segments[number] = SegmentJournal(number, self.segment_entry_count)
        return segment

    # ── to disk ─────────────────────────────────────────────────────────────────────────────────────────────────

    def write_out(self) -> None:
        """Write the waiting records: they then survive the process. On a full disk, flush instead.

        Raises :class:`NoRoomError` if that finds no room either: everything keeps waiting, and the index goes on.
        """
        try:
            with Writing(self.journal):
                self.journal.write()
        except NoRoomError:
            self.flush(even_if_clean=True)
        if not self.syncs:
            self.safe_ticket = self.written_ticket

    def sync(self) -> None:
        """Write the waiting records, and sync the journal if this index is configured to."""
        self.write_out()
        with Writing(self.journal):
            if self.safe_ticket < self.written_ticket:
                self.journal.sync()
        self.safe_ticket = self.written_ticket

    @property
    def flushes_soon(self) -> bool:
        """Whether the journal is nearly as long as it may become."""
        return self.dirty_count > self.settings.queue_index_max_journal_entries - 1024

    def _flush_if_above(self, target_ram_count: int | None) -> None:
        dirty = self.dirty_count
        if dirty > self.settings.queue_index_max_journal_entries or (
            target_ram_count is not None and dirty > target_ram_count
        ):
            self.flush_if_room()

    def flush(self, *, even_if_clean: bool = False) -> None:
        """Move what the journal holds into the segments; do nothing if everything is flushed.

        Raises :class:`NoRoomError` if the disk is full: the journal holds on to what could not be moved, and the
        index goes on.
        """
        if not self.dirty_count and not even_if_clean:
            return
        try:
            with Writing(self.journal):
                self._flush()
        except NoRoomError:
            self._flush_again_at = self.dirty_count + self.segment_entry_count
            raise
        self.uncut_end = self._flush_again_at = 0

    def flush_if_room(self, *, even_if_clean: bool = False) -> None:
        """Flush if there is room; on a full disk do nothing."""
        if self.dirty_count < self._flush_again_at and not even_if_clean:
            return
        with contextlib.suppress(NoRoomError):
            self.flush(even_if_clean=even_if_clean)

    def _flush(self) -> None:
        journal = self.journal
        if self._acks_late_delivers:  # a crash must not leave a deliver in the journal whose ack is in the segment
            with contextlib.suppress(NoRoomError):
                journal.write()
        has_deleted = self._delete_acked_segments()  # first of all: it makes room for the others
        if self._acks_late_delivers:
            journal.write()
        journal.open()  # before any segment: it sees that the directory says whose it is
        has_created = self.segment_files.append([segment for _, segment in sorted(self.segments.items())])
        if self._ahead:
            raise RuntimeError(f"{self.path}: flushed before what was written ahead had its place")
        if self.syncs and (has_created or has_deleted):
            self._files.sync_directory(self.path)
        journal.empty()
        self._matrix.release()  # up to 1 MB: where memory is short many queues flush, and hand in no batch then
        self.dirty_count = 0
        self.safe_ticket = self.written_ticket

    @property
    def _acks_late_delivers(self) -> bool:
        return self.settings.deliver_with_publish and any(
            segment.acks_late_delivers for segment in self.segments.values()
        )

    def _delete_acked_segments(self) -> bool:
        """Return whether a file was deleted."""
        has_deleted = False
        for number in sorted(self.segments):
            if not self.segments[number].unacked:
                has_deleted |= self.segment_files.delete(number)
                del self.segments[number]
                self.uncut_end = max(self.uncut_end, (number + 1) * self.segment_entry_count)
        return has_deleted

    # ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────

    def next_segment_boundary(self, seq_id: int) -> int:
        """The first seq_id of the segment after the one of ``seq_id``."""
        return (seq_id // self.segment_entry_count + 1) * self.segment_entry_count

    def bounds(self) -> tuple[int, int]:
        """The first position of the lowest known segment, and the one after the highest's last; (0, 0) if empty."""
        if not self.segments:
            return self.uncut_end, self.uncut_end
        end = (max(self.segments) + 1) * self.segment_entry_count
        return min(self.segments) * self.segment_entry_count, max(end, self.uncut_end)

    def next_known(self, seq_id: int, end: int) -> int:
        """Return the first position, from ``seq_id`` on, of a known segment; ``end`` if none begins below it."""
        size = self.segment_entry_count
        firsts = (number * size for number in self.segments if seq_id <= number * size < end)
        return min(firsts, default=end)

    def read(self, start: int, end: int) -> list[Run]:
        """The unacked messages of ``start … end-1``, as runs in order."""
        size = self.segment_entry_count
        runs: list[Run] = []
        for number in range(start // size, (end - 1) // size + 1) if start < end else ():
            low, high = max(start - number * size, 0), min(end - number * size, size)
            runs += self.segment_files.read(self.segment(number), low, high, high - low)[0]
        return runs

    def read_some(self, start: int, end: int, limit: int, *, embedded: bool = False) -> tuple[list[Run], int]:
        """Return the first unacked messages of ``start … end-1``, a part of one segment, at most ``limit``.

        Also returns the seq_id before which there are no others. ``embedded``: only messages with payloads count.
        """
        number, low = divmod(start, self.segment_entry_count)
        segment = self.segment(number)
        runs, high = self.segment_files.read(segment, low, end - start + low, limit, embedded=embedded)
        return runs, high - low + start

    # ── ends ────────────────────────────────────────────────────────────────────────────────────────────────────

    def close(self) -> tuple[tuple[int, int], ...]:
        """Stop cleanly: write the journal out, give the files up. Returns (segment, unacked) for the recovery terms.

        Raises :class:`NoRoomError` if the disk is full.
        """
        self.sync()
        if self.uncut_end:  # acks in the journal without their segment are a crash's, and damage after a clean stop
            self.flush()
        self.release()
        counts = tuple((number, segment.unacked) for number, segment in sorted(self.segments.items()))
        self.segments = {}
        return counts

    def release(self) -> None:
        """Give up file handles, and memory that only saves time; they come back when needed."""
        self._matrix.release()
        self.segment_files.release()
        self.journal.release()

    def reset(self) -> None:
        """Forget everything and delete the directory: nothing of the queue is left.

        The segments go first, because without the journal they would bring back messages that it says are acked. The
        journal is next; the file with the queue's name goes last, because without it the owner would be unknown.
        """
        self.abandon()
        files = self._files
        file_names = files.list(self.path)
        segments = [name for name in file_names if names.segment_number(name) is not None]
        for part in (segments, [names.JOURNAL_NAME] if names.JOURNAL_NAME in file_names else []):
            for name in part:
                files.delete(f"{self.path}/{name}")
            if part and self.syncs:
                files.sync_directory(self.path)
        if file_names:
            files.delete_tree(self.path)  # should it come back, it is an empty queue's
        self.segments = {}
        self.dirty_count = 0
        self.safe_ticket = self.written_ticket

    def abandon(self) -> None:
        """Give up file handles and what waits to be written, as a crash of the process would."""
        self._ahead = None
        self._waiting = None
        self.segment_files.release()
        self.journal.abandon()

    def check_invariants(self) -> None:
        """Raise ``RuntimeError`` if counts contradict what the journal holds."""
        for number, segment in self.segments.items():
            if segment.number != number or not 0 <= segment.unacked <= self.segment_entry_count:
                raise RuntimeError(f"segment {number}: {segment.unacked} unacked")
        if self.safe_ticket > self.written_ticket or self.dirty_count < 0:
            raise RuntimeError("more is safe than was written")
