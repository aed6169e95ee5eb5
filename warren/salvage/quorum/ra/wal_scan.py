"""One pass over a node's write-ahead logs, record by record, into the columns of the queues.

How a file ends. At its end; at a record that is not whole, or the last one, whose checksum is wrong (a *torn* record,
which a crash leaves and the broker drops); or at zeros. A damaged record before that is passed over: to the next one
by its length if a sound record follows there, else to the next sound record that there is. Such a record must fit: an
id that the file knows, the checksum right, and an index that the queue can have reached meanwhile. So a message that
holds records, such as a backup of such a file, is not taken for them.

The checksum does not cover a record's id and length. Where only these are damaged, the next sound record gives the
length, the queues' directories give the ids, and the checksum proves what comes of it.

The cost is bounded by the file's size: checksums that do not match are charged to a budget.
"""

from __future__ import annotations

import re
from typing import Final

from zlib_ng import zlib_ng

from warren.salvage.queue_directory import UNREADABLE_FILE, Finding
from warren.salvage.quorum.ra.entry_runs import CHECKSUM, WINDOW_BYTES, BadEntry, adler32_of
from warren.salvage.quorum.ra.similar_names import nearest
from warren.salvage.quorum.ra.wal_columns import QueueColumns
from warren.salvage.quorum.ra.wal_format import (
    END_MARK_BYTES,
    ENTRY_HEADER,
    ID_MASK,
    INDEX_AND_TERM,
    KNOWN_RECORD,
    MAX_HEAD_BYTES,
    UID_AT,
    UID_LENGTH,
    WAL_HEADER,
    WAL_MAGIC,
    WalRecord,
    parse_head,
)
from warren.salvage.quorum.ra.wal_scan_state import MAX_DOUBTFUL, MAX_PROBLEMS, EntryPosition, Lost, ScanState
from warren.storage.errors import StorageError
from warren.storage.filesystem import File, data_windows

MAX_CHANGED_OF_ID: Final = 2
"""Bytes in which a queue's id may differ from its directory's name."""

UNREADABLE_RECORD: Final = "unreadable record"
TORN_RECORD: Final = "torn record"
EMPTY_WAL: Final = "empty write-ahead log"
UNKNOWN_ID: Final = "unknown id"

_CANDIDATE = re.compile(rb"(?=[\x40\xc0]..|[\x00\x80]..\x00[\x01-\x80][0-9A-Za-z_-])", re.DOTALL)
"""Where a record may begin (ids up to 65535): searched for only after a damaged one."""
_UID = re.compile(rb"[0-9A-Za-z_=-]+")
_MAX_INDEX, _MAX_TERM = 1 << 56, 1 << 40
_FIRST_WINDOW_BYTES = 64 << 10
_CANDIDATE_COST = 256
"""Of the budget: a place without a record costs at least as much time as checksumming this many bytes."""
_HEAD_PEEK_BYTES = 512
"""Enough for a record's head, but for one with a very long id."""


class FileScan:
    """One pass over one file."""

    def __init__(self, shared: ScanState, columns: dict[bytes, QueueColumns], handle: File, path: str) -> None:
        self._shared = shared
        self._columns = columns
        self._handle = handle
        self._path = path
        self._size = handle.size()
        self._ids: dict[int, QueueColumns] = {}
        self._strangers: set[int] = set()
        self._records = 0
        self._damaged = False
        self._has_checksums = False
        """The broker writes a whole file with checksums or without."""
        self._budget = 4 * self._size + WINDOW_BYTES
        """Bytes that may still be checksummed without a match; see :meth:`_is_sound`."""

    def run(self) -> int:
        """Fill the columns; returns the number of sound records."""
        try:
            position: int | None = self._first()
            while position is not None:
                position = self._step(self._fast(position))
        except StorageError as error:
            self._report(UNREADABLE_FILE, None, str(error))
        return self._records

    def _report(self, kind: str, offset: int | None, detail: str, *, leftover: bool = False) -> None:
        self._shared.report(Finding(kind, "leftover" if leftover else "damage", self._path, offset, detail))

    def _first(self) -> int | None:
        header = self._handle.pread(len(WAL_HEADER), 0)
        if header == WAL_HEADER:
            return len(WAL_HEADER)
        short = len(header) < len(WAL_HEADER) and WAL_HEADER.startswith(header)
        if short or (not any(header) and self._zeros_from(0) >= self._size):
            # The broker writes and syncs the header before it gives the file its name.
            self._report(EMPTY_WAL, None, f"{self._size} bytes without a header; all of its entries are missing")
            return None
        self._damaged = True
        if header[:4] == WAL_MAGIC:
            self._report(UNREADABLE_FILE, 4, f"version {header[4]}, not {WAL_HEADER[4]}")
            return None
        self._report(UNREADABLE_FILE, 0, f"begins with {header!r} in place of {WAL_HEADER!r}")
        record = self._parse(len(WAL_HEADER))
        return None if record is None or not record.checksum or not self._is_sound(record) else record.offset

    def _fast(self, position: int) -> int:
        """Take records whose id is known, as long as they are sound; return where something else begins."""
        unpack, head_bytes, adler32 = KNOWN_RECORD.unpack_from, KNOWN_RECORD.size, zlib_ng.adler32
        ids, path = self._ids, self._path
        records, size = 0, _FIRST_WINDOW_BYTES
        while True:
            window = self._handle.pread(size, position)
            view, end, at = memoryview(window), len(window), 0
            while at + head_bytes <= end:
                upper, lower, checksum, length, index, term = unpack(window, at)
                entry = at + head_bytes
                stop = entry + length
                queue = ids.get((upper & 0x3F) << 16 | lower) if upper & 0x40 else None
                if queue is None or stop > end:
                    break
                if adler32(view[at + 11 : stop]) != checksum and (checksum or self._has_checksums):
                    break
                run = queue.hot
                if index == queue.hot_index and run is not None and term == run.term and path is run.path:
                    run.offsets.append(position + entry)
                    run.lengths.append(length)
                    queue.next_index = queue.hot_index = index + 1
                else:
                    queue.add(EntryPosition(path, index, term, position + entry, length, upper >= 0x80, checksum))
                records += 1
                at = stop
            position += at
            if not at or end < size:
                self._records += records
                return position
            size = min(2 * size, WINDOW_BYTES)

    def _step(self, position: int) -> int | None:
        """Process what is at ``position``, whatever it is; return where the next is, ``None`` at the end."""
        if self._size - position < END_MARK_BYTES or not any(self._handle.pread(END_MARK_BYTES, position)):
            return self._after_the_end(position)
        record = self._parse(position)
        if record is not None and self._is_sound(record):
            self._take(record)
            return record.end
        if record is not None and self._is_last(record):
            detail = (
                f"the last record's checksum is wrong, so it is dropped, as a broker does (entry {record.index}); "
                "if it was a settle, what it settled may be back"
            )
            self._report(TORN_RECORD, position, detail)
            return None
        self._damaged = True
        self._name_anyway(position)
        follower = None if record is None else self._parse(record.end)
        if record is not None and follower is not None and follower.checksum and self._is_sound(follower):
            self._pass_over(record)
            return record.end
        following = self._search(position + 1)
        if following is not None:
            repaired = self._repaired(position, following)
            if repaired is None:
                self._lose(position, following)
            else:
                self._report(UNREADABLE_RECORD, position, f"its head is damaged; it is entry {repaired.index}")
                self._take(repaired)
        elif record is None:
            self._report(TORN_RECORD, position, f"{self._size - position} bytes of a record", leftover=True)
        else:
            self._report(UNREADABLE_RECORD, position, f"{CHECKSUM}, and nothing after it can be read")
        return following

    def _parse(self, position: int) -> WalRecord | None:
        """The record at ``position``; ``None``: the file has not all of it."""
        record = parse_head(self._handle.pread(_HEAD_PEEK_BYTES, position), position)
        if record is None and self._size - position > _HEAD_PEEK_BYTES:
            record = parse_head(self._handle.pread(MAX_HEAD_BYTES, position), position)
        return None if record is None or record.end > self._size else record

    def _is_sound(self, record: WalRecord) -> bool:
        """Whether the checksum is right. Each mismatch is charged to a budget, which bounds the time."""
        if not record.checksum and not self._has_checksums:
            return record.uid is None or _UID.fullmatch(record.uid) is not None
        if self._budget < 0:
            return False
        value = zlib_ng.adler32(INDEX_AND_TERM.pack(record.index, record.term))
        if adler32_of(self._handle, record.entry_offset, record.length, value) == record.checksum:
            return True
        self._budget -= record.length + ENTRY_HEADER.size
        return False

    def _is_last(self, record: WalRecord) -> bool:
        """Whether only zeros, or fewer bytes than any record has, follow it."""
        return self._size - record.end < END_MARK_BYTES or self._zeros_from(record.end) >= self._size

    def _zeros_from(self, position: int) -> int:
        """Where the zeros end that begin at ``position``."""
        for at in data_windows(self._handle, position, self._size, WINDOW_BYTES):
            window = self._handle.pread(WINDOW_BYTES, at)
            rest = len(window.lstrip(b"\0"))
            if rest:
                return at + len(window) - rest
        return self._size

    def _after_the_end(self, position: int) -> int | None:
        end = self._zeros_from(position)
        if end >= self._size:
            return None
        if self._size - position < END_MARK_BYTES:
            self._report(TORN_RECORD, position, f"{self._size - position} bytes of a record", leftover=True)
            return None
        following = self._search(max(position + 1, end - KNOWN_RECORD.size))
        if following is None:
            self._report(TORN_RECORD, end, "bytes after the zeros that end the file", leftover=True)
        else:
            self._damaged = True
            self._lose(position, following)
        return following

    def _lose(self, position: int, following: int) -> None:
        size = following - position
        self._report(UNREADABLE_RECORD, position, f"{size} bytes that cannot be read")
        self._shared.lose(self._path, position, size // KNOWN_RECORD.size)
        if len(self._shared.lost) < MAX_PROBLEMS:
            self._shared.lost.append(Lost(self._path, position, following))

    def _take(self, record: WalRecord) -> None:
        """A sound record."""
        self._records += 1
        self._has_checksums |= bool(record.checksum)
        queue = self._ids.get(record.number) if record.uid is None else self._introduce(record, record.uid)
        if queue is not None:
            queue.add(_place(self._path, record))
            return
        self._shared.stray(None, _place(self._path, record))
        if record.number not in self._strangers:
            self._strangers.add(record.number)
            self._shared.lose(self._path, record.offset, MAX_DOUBTFUL)
            self._report(UNKNOWN_ID, record.offset, f"a record of queue {record.number}, which no record before names")

    def _introduce(self, record: WalRecord, uid: bytes) -> QueueColumns | None:
        """The queue of the first record that names it in this file; ``None`` if the record contradicts others."""
        number = record.number
        existing = self._ids.get(number)
        expected = max(self._ids, default=-1) + 1
        if existing is not None and existing.uid == uid:
            return existing
        if number != expected and not (self._damaged and number > expected):
            self._report(UNKNOWN_ID, record.offset, f"queue {uid!r} has number {number}, where {expected} is next")
            self._damaged = True
            if any(queue.uid == uid for queue in self._ids.values()):
                return None
            number = expected
        queue = self._ids[number] = self._queue(self._actual_uid(uid, record.offset))
        return queue

    def _queue(self, uid: bytes) -> QueueColumns:
        return self._columns.setdefault(uid, QueueColumns(uid, self._shared))

    def _actual_uid(self, uid: bytes, offset: int) -> bytes:
        """The actual id: if no directory has this one, the only directory with nearly this name, if any."""
        uids = self._shared.known_uids
        if uid in uids or not uids:
            return uid
        actual_uid = nearest(uid, uids - {queue.uid for queue in self._ids.values()}, MAX_CHANGED_OF_ID)
        if actual_uid is None:
            return uid
        self._damaged = True
        self._report(UNKNOWN_ID, offset, f"queue {uid!r}, which has no directory: taken for {actual_uid!r}")
        return actual_uid

    def _name_anyway(self, position: int) -> None:
        """A damaged record that names the next queue: all later records of it in this file depend on the name."""
        number = max(self._ids, default=-1) + 1
        uid = self._uid_at(position)
        if uid is not None:
            self._ids[number] = self._queue(uid)
            return
        head = parse_head(self._handle.pread(_HEAD_PEEK_BYTES, position), position)
        if head is not None and head.uid is not None and head.number == number:
            has_queue = any(queue.uid == head.uid for queue in self._ids.values())
            if _UID.fullmatch(head.uid) is not None and not has_queue:
                self._ids[number] = self._queue(self._actual_uid(head.uid, position))

    def _uid_at(self, position: int) -> bytes | None:
        """The id of a directory that stands where a record that begins here would name its queue."""
        named_uids = {queue.uid for queue in self._ids.values()}
        text = self._handle.pread(_HEAD_PEEK_BYTES, position + UID_AT)
        return next((uid for uid in self._shared.known_uids - named_uids if text.startswith(uid)), None)

    def _pass_over(self, record: WalRecord) -> None:
        """Pass over a damaged record that a sound one follows."""
        self._report(UNREADABLE_RECORD, record.offset, CHECKSUM)
        self._shared.lose(self._path, record.offset, 1)
        queue = self._ids.get(record.number)
        if queue is not None:
            queue.add_damaged(
                BadEntry(record.index, record.term, self._path, record.entry_offset, CHECKSUM, record.length)
            )

    def _repaired(self, position: int, following: int) -> WalRecord | None:
        """The record between, if nothing but its id or its length is damaged; the checksum proves it."""
        size = following - position
        if size > self._budget:
            return None
        head = self._handle.pread(_HEAD_PEEK_BYTES, position)
        queues = sorted(self._ids.items(), reverse=True)
        uid_sizes = {None: 0} | {queue.uid: UID_LENGTH.size + len(queue.uid) for _, queue in queues}
        for uid, uid_size in uid_sizes.items():
            entry_at = KNOWN_RECORD.size + uid_size
            if (uid is not None and not head.startswith(uid, UID_AT)) or size < entry_at or len(head) < entry_at:
                continue
            checksum, _, index, term = ENTRY_HEADER.unpack_from(head, entry_at - ENTRY_HEADER.size)
            number = next((number for number, queue in queues if queue.uid == uid), self._number_in(head, index, term))
            record = WalRecord(
                position, number, None, False, checksum, size - entry_at, index, term, position + entry_at
            )
            if checksum and self._is_sound(record):
                return record
        return None

    def _number_in(self, head: bytes, index: int, term: int) -> int:
        """The number that a record says, unless a single other queue waits for this entry."""
        number = int.from_bytes(head[:3], "big") & ID_MASK
        named_queue = self._ids.get(number)
        waiting = [
            candidate for candidate, queue in self._ids.items() if queue.next_index == index and queue.term == term
        ]
        if (named_queue is None or named_queue.next_index != index) and len(waiting) == 1:
            return waiting[0]
        return number

    def _search(self, start: int) -> int | None:
        """Where the next sound record begins that fits, from ``start`` on."""
        for position in data_windows(self._handle, start, self._size, WINDOW_BYTES, overlap=MAX_HEAD_BYTES):
            if self._budget <= 0:
                break
            window = self._handle.pread(WINDOW_BYTES + MAX_HEAD_BYTES, position)
            for match in _CANDIDATE.finditer(window, 0, len(window)):
                at = match.start()
                if at >= WINDOW_BYTES:
                    break
                record = parse_head(window[at : at + _HEAD_PEEK_BYTES], position + at)
                if record is not None and self._fits(record, start) and self._is_sound(record):
                    return record.offset
                self._budget -= _CANDIDATE_COST
                if self._budget <= 0:
                    return None
        return None

    def _fits(self, record: WalRecord, start: int) -> bool:
        """Whether the record can be one that follows damage which begins at ``start``."""
        if record.end > self._size or not record.checksum or record.index >= _MAX_INDEX or record.term >= _MAX_TERM:
            return False
        if record.uid is not None:
            if _UID.fullmatch(record.uid) is None or record.number <= max(self._ids, default=-1):
                return False
            queue = self._columns.get(record.uid)
        else:
            queue = self._ids.get(record.number)
            if queue is None:
                return False
        lost = (record.offset - start) // KNOWN_RECORD.size + 1
        if queue is None or queue.next_index < 0:
            return True
        if record.term > queue.term:
            return record.index <= queue.next_index + lost
        return record.term == queue.term and 0 <= record.index - queue.next_index <= lost


def _place(path: str, record: WalRecord) -> EntryPosition:
    return EntryPosition(
        path, record.index, record.term, record.entry_offset, record.length, record.truncates, record.checksum
    )
