"""The segment files of one queue: appended to by a flush, and read back together with what the journal says.

The segment that was read last stays in memory, because a queue reads a segment in parts.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import compress, islice
from typing import TYPE_CHECKING, Final

from warren.queue_index.index import directory as names
from warren.queue_index.index.facts import ACKED, DELIVERED, NOTHING, PUBLISHED
from warren.queue_index.index.record_format import Octets
from warren.queue_index.index.record_matrix import RecordMatrix
from warren.queue_index.index.segment_journal import SegmentJournal
from warren.queue_index.queue.run import Run
from warren.storage.errors import DataError, DiskFullError, NoRoomError
from warren.storage.filesystem import FileSystem, append_whole
from warren.storage.pieces import gathered

if TYPE_CHECKING:
    from warren.queue_index.index.segment_file import SegmentFile

_SMALL_PART: Final = 2  # a part smaller than 1/_SMALL_PART of its segment is read by itself


class SegmentFiles:
    """The segment files in the directory ``path``."""

    __slots__ = ("_files", "_last_read", "_matrix", "_path", "_segment_entry_count", "_syncs")

    def __init__(
        self, files: FileSystem, path: str, segment_entry_count: int, matrix: RecordMatrix, *, sync: bool
    ) -> None:
        self._files = files
        self._path = path
        self._segment_entry_count = segment_entry_count
        self._matrix = matrix
        self._syncs = sync
        self._last_read: tuple[int, SegmentFile | None] | None = None
        """A segment's number, and its file if there is one."""

    def path(self, number: int) -> str:
        return f"{self._path}/{names.segment_name(number)}"

    # ── writing ─────────────────────────────────────────────────────────────────────────────────────────────────

    def append(self, segments: Collection[SegmentJournal]) -> bool:
        """Append to each file what the journal holds of its segment; on a full disk, to none.

        Returns whether a file was created.

        The journal goes on then. If a segment kept a publish that the journal has too, the journal's deliver and ack
        would leave nothing of it there, and the segment would bring the message back.
        """
        changed = [segment for segment in segments if not segment.empty]
        sizes: dict[str, int] = {}
        try:
            for segment in changed:
                self._append_to(segment, sizes)
        except NoRoomError:
            self._take_back(sizes)
            raise
        for segment in changed:
            self._note_appended(segment)
        for segment in segments:
            segment.forget()
        return 0 in sizes.values()

    def _note_appended(self, segment: SegmentJournal) -> None:
        """Update the cached segment for appended records; a new publish invalidates it, as its offset is unknown."""
        if self._last_read is not None and self._last_read[0] == segment.number:
            file = self._last_read[1]
            if segment.written or file is None:
                self._last_read = None
            else:
                file.entries.facts = self.together(segment, file)

    def _append_to(self, segment: SegmentJournal, sizes: dict[str, int]) -> None:
        """Append what the journal holds of a segment, after noting the size of its file in ``sizes``."""
        path = self.path(segment.number)
        try:
            handle = self._files.open_append(path)
        except DiskFullError as error:
            raise NoRoomError(str(error)) from error
        try:
            sizes[path] = handle.end
            append_whole(handle, ((piece,) for piece in gathered(segment.segment_pieces(self._matrix))))
            if self._syncs:
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
                if self._syncs:
                    handle.sync()
            finally:
                handle.close()
        if self._syncs and 0 in sizes.values():
            self._files.sync_directory(self._path)

    def delete(self, number: int) -> bool:
        """Delete a segment's file; return whether it existed."""
        path = self.path(number)
        if exists := self._files.exists(path):
            self._files.delete(path)
        if self._last_read is not None and self._last_read[0] == number:
            self._last_read = None
        return exists

    # ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────

    def read(
        self, segment: SegmentJournal, low: int, high: int, limit: int, *, embedded: bool = False
    ) -> tuple[list[Run], int]:
        """Return at most ``limit`` unacked messages of the positions ``low … high-1``, and where they end.

        ``embedded``: only messages with payloads count.
        """
        number, size = segment.number, self._segment_entry_count
        if self._last_read is not None and self._last_read[0] == number:
            file = self._last_read[1]
        else:
            file = self._read_file(number, in_parts=min(limit, high - low) * _SMALL_PART < size)
        if file is None:
            runs, high = self._read_journal(segment, low, high, limit)
        else:
            runs, high = self._read_both(segment, file, low, high, limit, embedded=embedded)
        self._last_read = (number, file) if high < size else None
        runs.sort(key=lambda run: run.start)
        return runs, high

    def _read_file(self, number: int, *, in_parts: bool) -> SegmentFile | None:
        path = self.path(number)
        if not self._files.exists(path):
            return None
        from warren.queue_index.index.segment_file import read_segment, scan_segment

        return (scan_segment if in_parts else read_segment)(self._files, path, self._segment_entry_count)

    def _read_journal(self, segment: SegmentJournal, low: int, high: int, limit: int) -> tuple[list[Run], int]:
        """:meth:`read` if the segment has no file."""
        if (rel_seq := segment.first_beside_no_file()) >= 0:
            raise self._contradiction(segment, rel_seq, NOTHING)
        facts = segment.unacked_facts(low, high)
        high = next(islice(compress(range(len(facts)), facts), limit, None), high)
        return self._written_runs(segment, facts[:high]), high

    def _read_both(
        self, segment: SegmentJournal, file: SegmentFile, low: int, high: int, limit: int, *, embedded: bool
    ) -> tuple[list[Run], int]:
        """:meth:`read` of a segment with a file."""
        import numpy as np

        from warren.queue_index.index.segment_file import published

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
        whole = file if file.is_whole else file.part(self._files, self.path(segment.number), selected & in_file)
        runs = whole.runs(segment.number * self._segment_entry_count, selected & in_file, facts)
        return runs + self._written_runs(segment, (facts * (selected & ~in_file)).tobytes()), high

    def _written_runs(self, segment: SegmentJournal, facts: bytes) -> list[Run]:
        """The journal's messages at the positions for which ``facts`` has facts."""
        first_seq_id = segment.number * self._segment_entry_count
        return [run for written in segment.written for run in written.runs(first_seq_id, facts)]

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
            raise self._contradiction(segment, rel_seq, int(file.entries.facts[rel_seq]))
        return facts

    def _contradiction(self, segment: SegmentJournal, rel_seq: int, in_file: int) -> DataError:
        in_journal = int(segment.facts[rel_seq])
        return DataError(
            self.path(segment.number), None, f"rel_seq {rel_seq}: the file says {in_file}, the journal {in_journal}"
        )

    def release(self) -> None:
        """Forget the segment that was read last."""
        self._last_read = None
