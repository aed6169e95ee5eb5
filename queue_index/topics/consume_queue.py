"""A ConsumeQueue: where the messages of one queue of a topic lie in the CommitLog, 20 bytes each, in order.

It owns the mapped files of ``consumequeue/<topic>/<queue id>/`` and three numbers that are not stored in any file:

- ``end_byte``, the logical byte after the last entry, found by :meth:`ConsumeQueue.recover`. Bytes after it may be
  old entries: cutting moves the end and wipes nothing.
- ``max_physical_offset``, the byte of the CommitLog after the last message that has an entry (-1 without any). What
  lies below it is never put again, so a dispatch may begin too early and puts nothing twice.
- the queue's first offset, ``min_offset``: the first file's first entry of a message that the CommitLog still has.

Invariants: entries are put in the order of the CommitLog; between the first file's base and the end there is no gap.

What a crash leaves: entries that were not flushed are missing, torn or zeros, while later ones may be present; the
newest file may be all zeros. ``recover`` ends at the first zeros, as RocketMQ's does. It cannot detect a torn entry
that looks good, or an old entry after the end that the end later moves over. :meth:`settle` removes these: called with
a physical offset up to which everything is flushed, it keeps only entries that can be trusted.

Methods that follow RocketMQ's behaviour say so; odd behaviour is kept. One thread writes, any may read.
"""

from __future__ import annotations

import posixpath
from bisect import bisect_left

import attrs
import numpy as np

from warren.queue_index.topics.consume_queue_format import (
    ENTRY_BYTES,
    FILLER,
    MAX_QUEUE_OFFSET,
    Entries,
    decode,
    decode_entry,
    encode,
    is_filler,
    physical_stops,
)
from warren.queue_index.topics.consume_queue_recovery import (
    End,
    cut,
    entries_behind,
    entry_blocks,
    lengthen_files,
    read,
    recovered_end,
)
from warren.queue_index.topics.offset_by_time import StoreTimestampOf, nearest
from warren.storage.columns import Ints, Longs
from warren.storage.errors import DataError
from warren.storage.filesystem import FileSystem
from warren.storage.mapped_files import MappedFiles


@attrs.define(eq=False, repr=False, kw_only=True)
class ConsumeQueue:
    """One queue's entries; made by :meth:`load`."""

    mapped: MappedFiles
    topic: str
    queue_id: int
    end_byte: int
    max_physical_offset: int = -1
    _min_byte: int = 0
    _flushed_byte: int = 0
    _is_unbegun: bool = False
    """The first file was made, but nothing could be written into it yet."""
    _are_directories_new: bool = False
    """The topic's directory and the queue's may be lost at power loss, with all in them."""

    @classmethod
    def load(
        cls,
        files: FileSystem,
        directory: str,
        *,
        topic: str,
        queue_id: int,
        file_size: int,
        writable: bool = True,
        lengthen: bool = False,
    ) -> ConsumeQueue:
        """The queue in ``directory``, taken for full until :meth:`recover`.

        Raises :class:`DataError` if a file is not ``file_size`` bytes long. ``lengthen``: instead extend shorter files,
        which a crash may leave, with zeros.
        """
        if file_size <= 0 or file_size % ENTRY_BYTES:
            raise RuntimeError(f"a file of {file_size} bytes does not hold a whole number of entries")
        if lengthen:
            lengthen_files(files, directory, file_size)
        mapped = MappedFiles.load(files, directory, file_size, writable=writable)
        for base in mapped.bases:
            if base % ENTRY_BYTES:
                raise DataError(mapped.path(base), None, "its name is not a multiple of an entry's size")
        end = mapped.file_end
        return cls(mapped=mapped, topic=topic, queue_id=queue_id, end_byte=end, flushed_byte=end)

    @property
    def min_offset(self) -> int:
        """The queue offset of the first existing message."""
        return min(self._min_byte, self.end_byte) // ENTRY_BYTES

    @property
    def max_offset(self) -> int:
        """The queue offset of the next message."""
        return self.end_byte // ENTRY_BYTES

    # Recovery

    def recover(self) -> None:
        """Find the end as RocketMQ does: the first invalid entry in the last three files.

        Files that begin after it are deleted.
        """
        if not self.mapped.bases:
            return
        self._take(recovered_end(self.mapped))
        for base in self.mapped.bases:
            if base > self.end_byte:
                self.mapped.delete(base)

    def entries_behind(self) -> int:
        """Return how many entries stand close after the end that :meth:`recover` found; a clean stop leaves 0."""
        return entries_behind(self.mapped, self.end_byte)

    def truncate(self, physical_end: int) -> None:
        """Cut off, as RocketMQ does, the entries of messages at or after ``physical_end``, the CommitLog's end.

        The first entry of the file that then holds the end stays whatever it is.
        """
        self._take(cut(self.mapped, physical_end, keep_first=True) or End(0, physical_end))

    def settle(self, physical_end: int) -> None:
        """warren's own: keep the entries of messages below ``physical_end``, delete empty files, zero what follows.

        Call it after :meth:`recover`, before dispatching the messages from ``physical_end`` on again.
        """
        end = cut(self.mapped, physical_end, keep_first=False, stop_byte=self.end_byte)
        if end is None or is_filler(*self._entry_at(end.byte // ENTRY_BYTES - 1)):
            self.delete_all()
        else:
            self._take(end)
            self.mapped.clear_from(self.end_byte)
        if self.mapped.files.is_directory(self.mapped.directory):
            self.mapped.files.sync_directory(self.mapped.directory)  # a deleted file that came back would count again
            self._are_directories_new = True
        self.flush()

    def correct_min_offset(self, commit_log_min: int) -> None:
        """Make the first entry of the first file whose message is at or after ``commit_log_min`` the queue's first.

        As in RocketMQ, the first offset stays unchanged if that file has no such entry.
        """
        if not self.mapped.bases:
            return
        at = self.mapped.bases[0]
        for entries in entry_blocks(self.mapped, at, min(at + self.mapped.file_size, self.end_byte)):
            rows = np.flatnonzero(entries["physical_offset"] >= commit_log_min)
            if len(rows):
                self._min_byte = at + int(rows[0]) * ENTRY_BYTES
                return
            at += len(entries) * ENTRY_BYTES

    def delete_all(self) -> None:
        """Delete every file, as if the queue never had a message. RocketMQ does so without a CommitLog."""
        for base in self.mapped.bases:
            self.mapped.delete(base)
        self._take(End(0, -1))
        self._min_byte = 0

    def _take(self, end: End) -> None:
        self.end_byte, self.max_physical_offset = end.byte, end.physical_offset
        self._flushed_byte = end.byte
        self._is_unbegun = False

    # Putting

    def put_many(self, queue_offsets: Longs, physical_offsets: Longs, sizes: Ints, tags_codes: Longs) -> None:
        """Put the entries of messages, in dispatch order.

        As RocketMQ: what ends at or below ``max_physical_offset`` was put before and is left out, and so is a message
        (but that with queue offset 0) whose place is below the end; one whose place is above it comes to the end all
        the same. In a queue without files the first message says where it begins; filler stands ahead of it.

        After an error a first part of them may have been put; it is safe to put all of them again.
        """
        stops, makes_file = physical_stops(physical_offsets, sizes), False
        if not self._continue(queue_offsets, stops):
            chosen, makes_file = self._new(queue_offsets, stops)
            if not len(chosen):
                if makes_file:
                    self._add_at_end()
                return
            queue_offsets, stops = queue_offsets[chosen], stops[chosen]
            physical_offsets, sizes, tags_codes = physical_offsets[chosen], sizes[chosen], tags_codes[chosen]
        data = encode(physical_offsets, sizes, tags_codes)
        if self._has_begun:
            self._append(self.end_byte, data, stops)
        else:
            self._begin(int(queue_offsets[0]) * ENTRY_BYTES, data, stops)
        if makes_file:
            self._add_at_end()

    def _add_at_end(self) -> None:
        """Make the file after a full last one, for a message that then is left out, as RocketMQ does."""
        if self.mapped.holding(self.end_byte) is None:
            self.mapped.add(self.end_byte)

    @property
    def _has_begun(self) -> bool:
        return bool(self.mapped.bases) and not self._is_unbegun

    def _continue(self, queue_offsets: Longs, stops: Longs) -> bool:
        """Whether the messages follow the present ones, and each other; this is nearly always so."""
        count = len(stops)
        return (
            count > 0
            and self._has_begun
            and int(queue_offsets[0]) == self.max_offset
            and int(stops[0]) > self.max_physical_offset
            and (count == 1 or bool((np.diff(queue_offsets) == 1).all() and (np.diff(stops) > 0).all()))
        )

    def _new(self, queue_offsets: Longs, stops: Longs) -> tuple[Longs, bool]:
        """Return the positions of the messages to put, and whether a skipped message found the last file full and
        no later message starts the next file."""
        ahead = np.flatnonzero(stops > self.max_physical_offset)
        queue_offsets, stops = queue_offsets[ahead], stops[ahead]
        if self._continue(queue_offsets, stops):
            return ahead, False
        new_positions: list[int] = []
        makes_file = False
        top, end = self.max_physical_offset, self.end_byte if self._has_begun else None
        places = queue_offsets * ENTRY_BYTES  # 64 bits wrap around, as Java's do
        columns = zip(queue_offsets.tolist(), places.tolist(), stops.tolist(), strict=True)
        for position, (queue_offset, place, stop) in enumerate(columns):
            if stop <= top:
                continue
            if end is None:
                if not 0 <= queue_offset <= MAX_QUEUE_OFFSET:
                    continue
                end = place
            elif queue_offset != 0 and place < end:
                makes_file = end % self.mapped.file_size == 0
                continue
            new_positions.append(position)
            top, end, makes_file = stop, end + ENTRY_BYTES, False
        return ahead[new_positions], makes_file

    def _begin(self, byte: int, data: bytes, stops: Longs) -> None:
        """Make the first file and put the entries at the logical ``byte``, filler ahead of them."""
        for base in self.mapped.bases:
            self.mapped.delete(base)
        ahead = byte % self.mapped.file_size
        self.end_byte, self._flushed_byte, self._is_unbegun = 0, byte, True
        self._are_directories_new |= not self.mapped.files.is_directory(self.mapped.directory)
        self.mapped.add(byte - ahead)
        if byte:
            self._min_byte = byte  # ahead of the end: a reader shall not see the filler
        self._append(byte - ahead, FILLER * (ahead // ENTRY_BYTES) + data, stops)

    def _append(self, byte: int, data: bytes, stops: Longs) -> None:
        """Write entries from the logical ``byte`` on, making files as they fill; ``stops`` belong to the last ones."""
        file_size = self.mapped.file_size
        left = memoryview(data)
        while left:
            base = self.mapped.holding(byte)
            if base is None:
                base = byte
                self.mapped.add(base)
            part = left[: base + file_size - byte]
            self.mapped.write(byte, part)
            byte, left = byte + len(part), left[len(part) :]
            self.max_physical_offset = int(stops[len(stops) - len(left) // ENTRY_BYTES - 1])
            self.end_byte, self._is_unbegun = byte, False

    # Reading

    def entries(self, queue_offset: int, count: int) -> Entries:
        """Return up to ``count`` entries from ``queue_offset`` on; fewer only at the end of the queue.

        Returns no entries if no file holds the offset: below the first file.
        """
        at = queue_offset * ENTRY_BYTES
        stop = min(at + count * ENTRY_BYTES, self.end_byte)
        parts = []
        while at < stop and (base := self.mapped.holding(at)) is not None:
            parts.append(read(self.mapped, at, min(stop, base + self.mapped.file_size) - at))
            at += len(parts[-1])
        return decode(parts[0] if len(parts) == 1 else b"".join(parts))

    def offset_by_time(self, timestamp_ms: int, store_timestamp_of: StoreTimestampOf, commit_log_min: int) -> int:
        """The queue offset of the message stored nearest to a time, as RocketMQ finds it: in one file only.

        That is the first file last written at that time or later, or else the last. 0 without files, or if a message
        cannot be read; the number before the file's first (at least 0) if all of its messages are gone.
        """
        bases, modified_ms = self.mapped.bases, self.mapped.files.modified_ms
        base = next((base for base in bases if modified_ms(self.mapped.path(base)) >= timestamp_ms), None)
        if base is None:
            if not bases:
                return 0
            base = bases[-1]
        first = base // ENTRY_BYTES
        stop = min(base + self.mapped.file_size, self.end_byte) // ENTRY_BYTES
        if stop <= first:
            return 0
        low = max(first, self.min_offset)
        nearest_offset = nearest(
            self._entry_at, range(low, stop), timestamp_ms, commit_log_min, store_timestamp_of=store_timestamp_of
        )
        if nearest_offset is None:
            return 0
        return max(first - 1, 0) if nearest_offset < 0 else nearest_offset

    def first_offset_at(self, timestamp_ms: int, store_timestamp_of: StoreTimestampOf, commit_log_min: int) -> int:
        """The queue offset of the first message stored at a time or later, ``max_offset`` without any; all files.

        Times ascend in a queue, unless a clock was set back: then the result is one of the places that pass the time.
        Raises :class:`DataError` if an entry points at a message that cannot be read.
        """

        def stored_ms_of(queue_offset: int) -> int:
            stored_ms = store_timestamp_of(*self._entry_at(queue_offset))
            if stored_ms is None:
                base = self._base_of(queue_offset)
                reason = f"entry {queue_offset} points at a message that cannot be read"
                raise DataError(self.mapped.path(base), queue_offset * ENTRY_BYTES - base, reason)
            return stored_ms

        offsets = range(self.first_offset(commit_log_min), self.max_offset)
        return offsets.start + bisect_left(offsets, timestamp_ms, key=stored_ms_of)

    def first_offset(self, commit_log_min: int) -> int:
        """The first queue offset whose message the CommitLog has, ``max_offset`` without any.

        warren's own: ``min_offset`` may be lower. RocketMQ does not move it when a queue's last message expires, and
        takes filler for a message if the CommitLog begins with byte 0.
        """

        def place_of(queue_offset: int) -> int:
            physical_offset, size = self._entry_at(queue_offset)
            return -1 if is_filler(physical_offset, size) else physical_offset

        low = max(self.min_offset, self.mapped.min_offset // ENTRY_BYTES)
        return low + bisect_left(range(low, max(low, self.max_offset)), commit_log_min, key=place_of)

    def _entry_at(self, queue_offset: int) -> tuple[int, int]:
        """Physical offset and size of the message at an existing queue offset."""
        self._base_of(queue_offset)
        physical_offset, size, _ = decode_entry(read(self.mapped, queue_offset * ENTRY_BYTES, ENTRY_BYTES))
        return physical_offset, size

    def _base_of(self, queue_offset: int) -> int:
        base = self.mapped.holding(queue_offset * ENTRY_BYTES)
        if base is None:
            raise DataError(self.mapped.directory, None, f"the file with entry {queue_offset} is missing")
        return base

    # Keeping

    @property
    def unflushed_bytes(self) -> int:
        """Bytes of entries that a power loss may take."""
        return self.end_byte - min(self._flushed_byte, self.end_byte)

    @property
    def has_unflushed(self) -> bool:
        return self.mapped.has_unsynced

    def flush(self) -> None:
        """Make every entry survive a power loss."""
        end = self.end_byte
        self.mapped.sync()
        if self._are_directories_new:
            queues = posixpath.dirname(self.mapped.directory)
            self.mapped.files.sync_directory(queues)
            self.mapped.files.sync_directory(posixpath.dirname(queues))
            self._are_directories_new = False
        self._flushed_byte = end

    def expire(self, commit_log_min: int) -> list[str]:
        """Delete, as RocketMQ does, the first files while their last messages lie below ``commit_log_min``.

        The last file stays. Returns the paths of the deleted files; the queue's first offset moves along.
        """
        deleted_paths = []
        for base in self.mapped.bases[:-1]:
            physical_offset, _ = self._entry_at((base + self.mapped.file_size) // ENTRY_BYTES - 1)
            if physical_offset >= commit_log_min:
                break
            deleted_paths.append(self.mapped.path(base))
            self.mapped.delete(base)
        self.correct_min_offset(commit_log_min)
        return deleted_paths

    def close(self) -> None:
        """Close the files; nothing is flushed."""
        self.mapped.close()

    def check_invariants(self) -> None:
        """Raise ``RuntimeError`` if the queue contradicts itself."""
        bases = self.mapped.bases
        if self.end_byte % ENTRY_BYTES or self._min_byte % ENTRY_BYTES or self._min_byte < 0:
            raise RuntimeError(f"{self.mapped.directory}: {self._min_byte} or {self.end_byte} is not an entry's place")
        if not self._has_begun:
            if self.end_byte:
                raise RuntimeError(f"{self.mapped.directory}: the end {self.end_byte} is in no file")
            return
        if not bases[-1] <= self.end_byte <= self.mapped.file_end:
            raise RuntimeError(f"{self.mapped.directory}: the end {self.end_byte} is not in the last file")
        last = self.entries(self.max_offset - 1, 1)
        stops = physical_stops(last["physical_offset"], last["size"]).tolist()
        if self.max_physical_offset != -1 and stops and stops[0] != self.max_physical_offset:
            raise RuntimeError(
                f"{self.mapped.directory}: the last message ends at {stops[0]}, not at {self.max_physical_offset}"
            )
