"""One queue's index: where each message stands, on disk.

The index owns a directory with a journal and segment files (:mod:`warren.queue_index.index.record_format`). What
happens (publish, deliver, ack) is appended to the journal; a *flush* moves what the journal holds into the segments and
empties it; a *sync* makes the journal safe.

* Writes to the journal wait in memory until a sync, a ``write_out``, or a stop; a flush drops what waits, because the
  segments then say it. The file lags, never leads. What waits is the data that records are made from, so dropped
  records are never made.
* Memory holds, for every known segment, how many of its messages are unacked, and what the journal says about it.
* A *batch* of publishes is written as all publishes, then all delivers: when as many wait as a segment holds, and at
  the batch's end.
* A flush deletes a segment file without unacked messages and appends to the others; then the journal is cut to 0.

A full disk. What cannot be written waits in memory (``no_room``), and everything goes on: messages are delivered, acks
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
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import attrs

from warren.queue_index.index import directory as names
from warren.queue_index.index.facts import ACKED, DELIVERED, PUBLISHED
from warren.queue_index.index.record_format import (
    ACK,
    BODY,
    DELIVER,
    Ints,
    Octets,
    journal_publish_head,
    journal_short,
    journal_shorts,
)
from warren.queue_index.index.record_matrix import ColumnRecords, RecordMatrix
from warren.queue_index.index.segment_journal import Records, SegmentJournal
from warren.queue_index.queue.run import DELIVERED as RUN_DELIVERED
from warren.queue_index.queue.run import Run
from warren.storage.errors import DataError, DiskFullError, NoRoomError, StorageError
from warren.storage.filesystem import File, FileSystem, append_whole, write_file
from warren.storage.pieces import Piece, gathered
from warren.storage.settings import Settings

if TYPE_CHECKING:
    from warren.queue_index.index.segment_file import SegmentFile

UNBOUNDED: Final = None
_Part = bytes | ColumnRecords | tuple[int, range]
"""A part of the journal that waits to be written: records, or what they are made from; for short records, their kind
and their seq_ids."""
_SMALL_PART: Final = 2  # a part smaller than 1/_SMALL_PART of its segment is read by itself


@attrs.define(eq=False, repr=False)
class _Waiting:
    """A batch of publishes that waits to be written: its records, and the ranges to be marked delivered."""

    count: int = 0
    records: list[_Part] = attrs.Factory(list)
    delivers: list[range] = attrs.Factory(list)


class QueueIndex:
    """The journal and the segments of one queue. Not thread-safe; files are handed in."""

    __slots__ = (
        "_ahead",
        "_buffered",
        "_failure",
        "_files",
        "_flush_again_at",
        "_journal",
        "_last_read",
        "_matrix",
        "_named",
        "_owner",
        "_uncut_end",
        "_waiting",
        "dirty_count",
        "no_room",
        "path",
        "published_ticket",
        "safe_ticket",
        "segment_entry_count",
        "segments",
        "settings",
        "syncs",
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
    ) -> None:
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
        self._files = files
        self._owner = vhost, queue
        self._named = False
        """Whether the journal and its directory are known to be synced."""
        self.syncs = sync
        self._journal: File | None = None
        self._buffered: list[_Part] = []
        self._waiting: _Waiting | None = None
        self._ahead: list[bytes] = []
        """Records of publishes that were written before they were noted."""
        self._last_read: tuple[int, SegmentFile] | None = None
        self._failure: StorageError | None = None
        self.no_room: NoRoomError | None = None
        """Set while something waits because the disk was full when it was to be written."""
        self._flush_again_at = 0
        """A flush that found no room is not tried again until this many actions wait."""
        self._uncut_end = 0
        self._matrix = RecordMatrix()

    # ── what happens ────────────────────────────────────────────────────────────────────────────────────────────

    def publish(self, run: Run, target_ram_count: int | None) -> None:
        """Write positions alone: a publish, then a deliver record if the message has been delivered."""
        self._append(self._add_publishes(run))
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
        with _Writing(self):
            journal = self._open_journal()
            self._write_journal(journal, records)
            if self.syncs:
                journal.sync()
        self._ahead += records
        self.safe_ticket = self.written_ticket

    def enter_written(self, run: Run, target_ram_count: int | None) -> None:
        """Publish a run that :meth:`write_ahead` has written."""
        records, self._ahead = self._ahead, []
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
            self._append(waiting.records)
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
            self._append((journal_short(kind, seq_ids.start) if len(seq_ids) == 1 else (kind, seq_ids),))
        else:
            import numpy as np

            self._append((journal_shorts(kind, np.concatenate(list(map(_column, ranges)))),))
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
            self._segment(number).add(fact, rel_seq, rel_seq + end - low, step)
            low = end if step == 1 else end + (low - end) % step

    def _add_publishes(self, run: Run) -> Sequence[_Part]:
        """Note positions as published; returns what the journal gets."""
        if self._ahead:
            raise RuntimeError(f"{self.path}: a publish came between one that is written and its place")
        records = journal_records(run)
        self._note_published(run, records)
        return records if isinstance(records, list) else (records,)

    def _note_published(self, run: Run, records: Records) -> None:
        number, rel_seq = divmod(run.start, self.segment_entry_count)
        self._add(PUBLISHED, run.start, run.end)
        self._segment(number).hold(rel_seq, records)

    def _segment(self, number: int) -> SegmentJournal:
        segment = self.segments.get(number)
        if segment is None:
            segment = self.segments[number] = SegmentJournal(number, self.segment_entry_count)
        return segment

    # ── the journal's file ──────────────────────────────────────────────────────────────────────────────────────

    def _append(self, parts: Iterable[_Part]) -> None:
        if self._journal is None:
            with contextlib.suppress(NoRoomError):  # what waits to be written waits on
                self._open_journal()
        self._buffered += parts

    def _write_journal(self, journal: File, behind: Sequence[bytes] = ()) -> None:
        """Write what waits, then the records in ``behind``."""
        parts: list[Any] = [*self._buffered, *behind]
        if set(map(type, parts)) == {bytes}:
            append_whole(journal, (parts,))
        else:
            append_whole(journal, ((piece,) for piece in gathered(map(self._made, parts))))
        self._buffered.clear()
        self.no_room = None

    def _made(self, part: _Part) -> Piece:
        """The records of a part; to be used before the next call."""
        if isinstance(part, bytes):
            return part
        if isinstance(part, ColumnRecords):
            return self._matrix.journal_bytes(part)
        return journal_shorts(part[0], _column(part[1]))

    def _open_journal(self) -> File:
        if self._journal is None:
            try:
                self._journal = self._opened_journal()
            except DiskFullError as error:
                self.no_room = NoRoomError(str(error))
                raise self.no_room from error
        return self._journal

    def _opened_journal(self) -> File:
        files = self._files
        if not self._named:
            self._name_directory()
        journal = files.open_append(f"{self.path}/{names.JOURNAL_NAME}")
        try:
            if self.syncs and not self._named:
                files.sync_directory(self.path)
                files.sync_directory(self.path.rpartition("/")[0])
        except BaseException:
            journal.close()
            raise
        self._named = True
        return journal

    def _name_directory(self) -> None:
        """Make sure that the directory exists and names its owner before any of the queue's files is in it."""
        name_path = f"{self.path}/{names.QUEUE_NAME_FILE}"
        if not self._files.exists(name_path):
            self._files.make_directories(self.path)
            write_file(self._files, name_path, names.queue_name_file(*self._owner), sync=self.syncs)
        elif self.syncs and not self._files.exists(f"{self.path}/{names.JOURNAL_NAME}"):
            self._files.sync_directory(self.path)  # a process that died may have named it, and not come to that

    def go_on_at(self, size: int, records: bytes = b"") -> None:
        """Continue the journal that a stop left, after its first ``size`` bytes; the rest are not records.

        ``records`` are written at once; the index knows their contents, or will.
        """
        journal = self._open_journal()
        if size < journal.size():
            journal.truncate(size)
        if records:
            self._buffered.append(records)
            with contextlib.suppress(NoRoomError), _Writing(self):
                self._write_waiting()

    def write_out(self) -> None:
        """Write the waiting records: they then survive the process. On a full disk, flush instead.

        Raises :class:`NoRoomError` if that finds no room either: everything keeps waiting, and the index goes on.
        """
        try:
            with _Writing(self):
                self._write_waiting()
        except NoRoomError:
            self.flush(even_if_clean=True)
        if not self.syncs:
            self.safe_ticket = self.written_ticket

    def _write_waiting(self) -> None:
        if self._buffered:
            self._write_journal(self._open_journal())

    def sync(self) -> None:
        """Write the waiting records, and sync the journal if this index is configured to."""
        self.write_out()
        with _Writing(self):
            if self.syncs and self.safe_ticket < self.written_ticket:
                self._open_journal().sync()  # what was written out before a ``release`` too
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
            with _Writing(self):
                self._flush()
        except NoRoomError:
            self._flush_again_at = self.dirty_count + self.segment_entry_count
            raise
        self._uncut_end = self._flush_again_at = 0
        self.no_room = None

    def flush_if_room(self, *, even_if_clean: bool = False) -> None:
        """Flush if there is room; on a full disk only set ``no_room``."""
        if self.dirty_count < self._flush_again_at and not even_if_clean:
            return
        with contextlib.suppress(NoRoomError):
            self.flush(even_if_clean=even_if_clean)

    def _flush(self) -> None:
        if self._acks_late_delivers:  # a crash must not leave a deliver in the journal whose ack is in the segment
            with contextlib.suppress(NoRoomError):
                self._write_waiting()
        self._delete_acked_segments()  # first of all: it makes room for the others
        if self._acks_late_delivers:
            self._write_waiting()
        journal = self._open_journal()  # before any segment: it sees that the directory says whose it is
        self._append_to_segments()
        if self._ahead:
            raise RuntimeError(f"{self.path}: flushed before what was written ahead had its place")
        if self.syncs:
            self._files.sync_directory(self.path)
        self._buffered.clear()
        journal.truncate(0)
        if self.syncs:
            journal.sync()
        self._matrix.release()  # up to 1 MB: where memory is short many queues flush, and hand in no batch then
        self.dirty_count = 0
        self.safe_ticket = self.written_ticket

    @property
    def _acks_late_delivers(self) -> bool:
        return self.settings.deliver_with_publish and any(
            segment.acks_late_delivers for segment in self.segments.values()
        )

    def _delete_acked_segments(self) -> None:
        for number in sorted(self.segments):
            if not self.segments[number].unacked:
                path = self._segment_path(number)
                if self._files.exists(path):
                    self._files.delete(path)
                if self._last_read is not None and self._last_read[0] == number:
                    self._last_read = None
                del self.segments[number]
                self._uncut_end = max(self._uncut_end, (number + 1) * self.segment_entry_count)

    def _append_to_segments(self) -> None:
        """Append to each segment what the journal holds of it; on a full disk, to none.

        The journal goes on then. If a segment kept a publish that the journal has too, the journal's deliver and ack
        would leave nothing of it there, and the segment would bring the message back.
        """
        changed = [segment for _, segment in sorted(self.segments.items()) if not segment.empty]
        sizes: dict[str, int] = {}
        try:
            for segment in changed:
                self._append_to_segment(segment, sizes)
        except NoRoomError:
            self._take_back(sizes)
            raise
        for segment in changed:
            self._note_flushed(segment)
        for segment in self.segments.values():
            segment.forget()

    def _note_flushed(self, segment: SegmentJournal) -> None:
        """Update the cached segment for appended records; a new publish invalidates it, as its offset is unknown."""
        if self._last_read is not None and self._last_read[0] == segment.number:
            file = self._last_read[1]
            if segment.written:
                self._last_read = None
            else:
                file.entries.facts = self.together(segment, file)

    def _append_to_segment(self, segment: SegmentJournal, sizes: dict[str, int]) -> None:
        """Append what the journal holds of a segment, after noting the size of its file in ``sizes``."""
        path = self._segment_path(segment.number)
        try:
            handle = self._files.open_append(path)
        except DiskFullError as error:
            raise NoRoomError(str(error)) from error
        try:
            sizes[path] = handle.size()
            append_whole(handle, ((piece,) for piece in gathered(segment.segment_pieces(self._matrix))))
            if self.syncs:
                handle.sync()
        finally:
            handle.close()

    def _take_back(self, sizes: dict[str, int]) -> None:
        """Cut segment files to their earlier sizes, and delete new ones, before anything else is written."""
        for path, size in sizes.items():
            if not size:
                self._files.delete(path)
                continue
            handle = self._files.open_append(path)
            try:
                handle.truncate(size)
                if self.syncs:
                    handle.sync()
            finally:
                handle.close()
        if self.syncs and 0 in sizes.values():
            self._files.sync_directory(self.path)

    def _segment_path(self, number: int) -> str:
        return f"{self.path}/{names.segment_name(number)}"

    # ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────

    def next_segment_boundary(self, seq_id: int) -> int:
        """The first seq_id of the segment after the one of ``seq_id``."""
        return (seq_id // self.segment_entry_count + 1) * self.segment_entry_count

    def bounds(self) -> tuple[int, int]:
        """The first position of the lowest known segment, and the one after the highest's last; (0, 0) if empty."""
        if not self.segments:
            return self._uncut_end, self._uncut_end
        end = (max(self.segments) + 1) * self.segment_entry_count
        return min(self.segments) * self.segment_entry_count, max(end, self._uncut_end)

    @property
    def uncut_end(self) -> int:
        """The position after deleted segments that the journal still speaks of, as it could not be cut; or 0."""
        return self._uncut_end

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
            runs += self._read_segment(number, low, high, high - low)[0]
        return runs

    def read_some(self, start: int, end: int, limit: int, *, embedded: bool = False) -> tuple[list[Run], int]:
        """Return the first unacked messages of ``start … end-1``, a part of one segment, at most ``limit``.

        Also returns the seq_id before which there are no others. ``embedded``: only messages with payloads count.
        """
        number, low = divmod(start, self.segment_entry_count)
        runs, high = self._read_segment(number, low, end - start + low, limit, embedded=embedded)
        return runs, high - low + start

    def _read_segment(
        self, number: int, low: int, high: int, limit: int, *, embedded: bool = False
    ) -> tuple[list[Run], int]:
        """Return at most ``limit`` unacked messages of the positions ``low … high-1``, and where they end."""
        import numpy as np

        from warren.queue_index.index.segment_file import published, read_segment, scan_segment

        size = self.segment_entry_count
        segment = self._segment(number)
        path = self._segment_path(number)
        if self._last_read is not None and self._last_read[0] == number:
            file = self._last_read[1]
        elif min(limit, high - low) * _SMALL_PART < size:
            file = scan_segment(self._files, path, size)
        else:
            file = read_segment(self._files, path, size)
        facts = self.together(segment, file)
        selected = (facts & (PUBLISHED | ACKED)) == PUBLISHED
        selected[:low] = False
        selected[high:] = False
        in_file = published(file.entries)
        if limit < high - low:
            counted = selected & ~(in_file & (file.entries.embedded == 0)) if embedded else selected
            if len(beyond := np.flatnonzero(counted)[limit:]):
                high = int(beyond[0])
                selected[high:] = False
        self._last_read = (number, file) if high < size else None
        whole = file if file.is_whole else file.part(self._files, path, selected & in_file)
        runs = whole.runs(number * size, selected & in_file, facts)
        for written in segment.written:
            if written.rel_seq < high and written.end > low:
                runs += written.runs(number * size, selected & ~in_file, facts & DELIVERED > 0)
        runs.sort(key=lambda run: run.start)
        return runs, high

    def together(self, segment: SegmentJournal, file: SegmentFile) -> Octets:
        """What the file and the journal know of a segment's positions together."""
        import numpy as np

        from warren.queue_index.index.entries import both

        if segment.empty:
            return file.entries.facts.copy()
        segment.reach(len(file.entries))
        file.entries.reach(len(segment.facts))
        facts = both(file.entries.facts, segment.facts)
        if (facts > PUBLISHED | DELIVERED | ACKED).any():
            rel_seq = int(np.argmax(facts > PUBLISHED | DELIVERED | ACKED))
            raise DataError(
                self._segment_path(segment.number),
                None,
                f"rel_seq {rel_seq}: the file says {file.entries.facts[rel_seq]}, the journal {segment.facts[rel_seq]}",
            )
        return facts

    # ── ends ────────────────────────────────────────────────────────────────────────────────────────────────────

    def close(self) -> tuple[tuple[int, int], ...]:
        """Stop cleanly: write the journal out, give the files up. Returns (segment, unacked) for the recovery terms.

        Raises :class:`NoRoomError` if the disk is full.
        """
        self.sync()
        if self._uncut_end:  # acks in the journal without their segment are a crash's, and damage after a clean stop
            self.flush()
        self.release()
        counts = tuple((number, segment.unacked) for number, segment in sorted(self.segments.items()))
        self.segments = {}
        return counts

    def release(self) -> None:
        """Give up file handles, and memory that only saves time; they come back when needed."""
        self._matrix.release()
        self._last_read = None
        if self._journal is not None and not self._buffered:
            self._journal.close()
            self._journal = None

    def reset(self) -> None:
        """Forget everything and delete the directory: nothing of the queue is left.

        The segments go first, because without the journal they would bring back messages that it says are acked. The
        journal is next; the file with the queue's name goes last, because without it the owner would be unknown.
        """
        self.abandon()
        files = self._files
        if files.is_directory(self.path):
            file_names = files.list(self.path)
            segments = [name for name in file_names if names.segment_number(name) is not None]
            for part in (segments, [names.JOURNAL_NAME] if names.JOURNAL_NAME in file_names else []):
                for name in part:
                    files.delete(f"{self.path}/{name}")
                if part and self.syncs:
                    files.sync_directory(self.path)
            files.delete_tree(self.path)  # should it come back, it is an empty queue's
        self.segments = {}
        self.dirty_count = 0
        self.safe_ticket = self.written_ticket

    def abandon(self) -> None:
        """Give up file handles and what waits to be written, as a crash of the process would."""
        self._buffered.clear()
        self._ahead.clear()
        self._waiting = None
        self._named = False
        self._last_read = None
        if self._journal is not None:
            self._journal.close()
            self._journal = None

    def refuse(self, error: StorageError) -> None:
        """Refuse all further writes: the files belong to another owner."""
        self._failure = error

    def check_invariants(self) -> None:
        """Raise ``RuntimeError`` if counts contradict what the journal holds."""
        for number, segment in self.segments.items():
            if segment.number != number or not 0 <= segment.unacked <= self.segment_entry_count:
                raise RuntimeError(f"segment {number}: {segment.unacked} unacked")
        if self.safe_ticket > self.written_ticket or self.dirty_count < 0:
            raise RuntimeError("more is safe than was written")


class _Writing:
    """Refuse further use after a failed write or sync: it is unknown how much of it is on the disk.

    Appending after a torn record would make all later records unreadable, and a later successful fsync proves nothing
    about the failed one. The files are consistent: recover from them.
    """

    __slots__ = ("_index",)

    def __init__(self, index: QueueIndex) -> None:
        self._index = index

    def __enter__(self) -> None:
        failure = self._index._failure
        if failure is not None:
            raise StorageError(f"{self._index.path}: unusable since: {failure}") from failure

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if isinstance(error, NoRoomError):
            self._index.no_room = error
        elif isinstance(error, StorageError):
            self._index._failure = error


def _column(seq_ids: range) -> Ints:
    import numpy as np

    return np.arange(seq_ids.start, seq_ids.stop, seq_ids.step, dtype=np.int64)


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
