"""One pass over a node's write-ahead logs, record by record, into the columns of the queues.

How a file ends. At its end; at a record that is not whole, or the last one, whose checksum is wrong (a *torn* record,
which a crash leaves and the broker drops); or at zeros. A damaged record before that is passed over: to the next one
by its length where a sound record follows there, else to the next sound record that there is. Such a one must fit: an
id that the file knows, the checksum right, and an index that the queue can have reached meanwhile. So a message that
holds records, somebody's backup of such a file, is not taken for them.

What it costs is bounded by the file's size: what is checksummed in vain comes off a budget.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Final

from zlib_ng import zlib_ng

from queue_index.quorum.log_entries import BadEntry
from queue_index.quorum.problems import Problem
from queue_index.quorum.stretches import CHECKSUM, WINDOW_BYTES, adler32_of
from queue_index.quorum.wal_columns import Place, QueueColumns
from queue_index.quorum.wal_format import (
    END_MARK_BYTES,
    ENTRY_HEADER,
    INDEX_AND_TERM,
    KNOWN_RECORD,
    MAX_HEAD_BYTES,
    WAL_HEADER,
    WAL_MAGIC,
    WalRecord,
    parse_head,
)
from storage.errors import StorageError
from storage.filesystem import File, FileSystem, data_windows

MAX_PROBLEMS: Final = 1000
"""That are told of one file."""
MAX_DOUBTFUL: Final = 4096
"""Entries before a risen term that lost records make doubtful, at most."""

UNREADABLE_FILE: Final = "unreadable file"
UNREADABLE_RECORD: Final = "unreadable record"
TORN_RECORD: Final = "torn record"
UNKNOWN_ID: Final = "unknown id"

_CANDIDATE = re.compile(rb"(?=[\x40\xc0]..|[\x00\x80]..\x00[\x01-\x80][0-9A-Za-z_-])", re.DOTALL)
"""Where a record may begin (ids up to 65535): looked for behind a damaged one only."""
_UID = re.compile(rb"[0-9A-Za-z_=-]+")
_MAX_INDEX, _MAX_TERM = 1 << 56, 1 << 40
_FIRST_WINDOW_BYTES = 64 << 10
_CANDIDATE_COST = 256
"""Of the budget: looking at a place where no record is takes as long as checksumming this many bytes, or longer."""
_HEAD_PEEK_BYTES = 512
"""Enough for a record's head, but for one with a very long id."""


class ScanState:
    """What the passes over all files have in common."""

    def __init__(self, files: FileSystem, problems: list[Problem]) -> None:
        self._files = files
        self._problems = problems
        self._told: Counter[str] = Counter()
        self._order: dict[str, int] = {}
        self._lost: list[tuple[int, int, int]] = []
        """Damaged places: the file's place in the order, the offset, and how many records there may have been."""
        self.columns: dict[bytes, QueueColumns] = {}

    def begin(self, path: str) -> None:
        self._order[path] = len(self._order)

    def queue(self, uid: bytes) -> QueueColumns:
        """The columns of a queue."""
        found = self.columns.get(uid)
        if found is None:
            found = self.columns[uid] = QueueColumns(uid, self.report, self.are_same, self.lose, self.lost_since)
        return found

    def report(self, problem: Problem) -> None:
        self._told[problem.path] += 1
        told = self._told[problem.path]
        if told <= MAX_PROBLEMS:
            self._problems.append(problem)
        elif told == MAX_PROBLEMS + 1:
            detail = f"more than {MAX_PROBLEMS} problems; the others are not told"
            self._problems.append(Problem(problem.kind, "damage", problem.path, problem.offset, detail))

    def lose(self, path: str, offset: int, records: int) -> None:
        """Note that up to so many records cannot be read from ``offset`` on."""
        self._lost.append((self._order[path], offset, records))

    def lost_since(self, path: str, offset: int) -> int:
        """How many records may be lost behind that place (no path: anywhere)."""
        place = (self._order.get(path, -1), offset)
        return min(MAX_DOUBTFUL, sum(count for order, at, count in self._lost if (order, at) > place))

    def are_same(self, before: Place, after: Place) -> bool:
        """Whether two records of one index and term have the same entry: its length and checksum say it."""
        handle = self._files.open_read(before.path)
        try:
            header = handle.pread(ENTRY_HEADER.size, before.offset - ENTRY_HEADER.size)
        finally:
            handle.close()
        if len(header) < ENTRY_HEADER.size or before.length != after.length:
            return False
        return bool(ENTRY_HEADER.unpack(header)[0] == after.checksum)


class FileScan:
    """One pass over one file."""

    def __init__(self, shared: ScanState, handle: File, path: str) -> None:
        self._shared = shared
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
        """Bytes that may be checksummed in vain; see :meth:`_is_sound`."""

    def run(self) -> int:
        """Fill the columns; returns the number of sound records."""
        try:
            position: int | None = self._first()
            while position is not None:
                position = self._step(self._fast(position))
        except StorageError as error:
            self._tell(UNREADABLE_FILE, None, str(error))
        return self._records

    def _tell(self, kind: str, offset: int | None, detail: str, *, leftover: bool = False) -> None:
        self._shared.report(Problem(kind, "leftover" if leftover else "damage", self._path, offset, detail))

    def _first(self) -> int | None:
        header = self._handle.pread(len(WAL_HEADER), 0)
        if header == WAL_HEADER:
            return len(WAL_HEADER)
        short = len(header) < len(WAL_HEADER) and WAL_HEADER.startswith(header)
        if short or (not any(header) and self._zeros_from(0) >= self._size):
            self._tell(TORN_RECORD, 0, f"{self._size} bytes, not even a header", leftover=True)
            return None
        self._damaged = True
        if header[:4] == WAL_MAGIC:
            self._tell(UNREADABLE_FILE, 4, f"version {header[4]}, not {WAL_HEADER[4]}")
            return None
        self._tell(UNREADABLE_FILE, 0, f"begins with {header!r} in place of {WAL_HEADER!r}")
        record = self._parse(len(WAL_HEADER))
        return None if record is None or not record.checksum or not self._is_sound(record) else record.offset

    def _fast(self, position: int) -> int:
        """Take records whose id is known, as long as each is sound and follows; returns where something else is."""
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
                    queue.add(Place(path, index, term, position + entry, length, upper >= 0x80, checksum))
                records += 1
                at = stop
            position += at
            if not at or end < size:
                self._records += records
                return position
            size = min(2 * size, WINDOW_BYTES)

    def _step(self, position: int) -> int | None:
        """Take the one thing at ``position``, whatever it is; returns where the next is, ``None`` at the end."""
        if self._size - position < END_MARK_BYTES or not any(self._handle.pread(END_MARK_BYTES, position)):
            return self._behind_the_end(position)
        record = self._parse(position)
        if record is not None and self._is_sound(record):
            self._take(record)
            return record.end
        if record is not None and self._is_last(record):
            self._tell(TORN_RECORD, position, "the last record's checksum is wrong", leftover=True)
            return None
        self._damaged = True
        self._name_anyway(position)
        follower = None if record is None else self._parse(record.end)
        if record is not None and follower is not None and follower.checksum and self._is_sound(follower):
            self._pass_over(record)
            return record.end
        following = self._search(position + 1)
        if following is not None:
            self._lose(position, following)
        elif record is None:
            self._tell(TORN_RECORD, position, f"{self._size - position} bytes of a record", leftover=True)
        else:
            self._tell(UNREADABLE_RECORD, position, f"{CHECKSUM}, and nothing behind it can be read")
        return following

    def _parse(self, position: int) -> WalRecord | None:
        """The record at ``position``; ``None``: the file has not all of it."""
        record = parse_head(self._handle.pread(_HEAD_PEEK_BYTES, position), position)
        if record is None and self._size - position > _HEAD_PEEK_BYTES:
            record = parse_head(self._handle.pread(MAX_HEAD_BYTES, position), position)
        return None if record is None or record.end > self._size else record

    def _is_sound(self, record: WalRecord) -> bool:
        """Whether the checksum is right. What is checked in vain comes off a budget, so that no file takes long."""
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
        """Whether nothing but zeros, or less than any record, lies behind it."""
        return self._size - record.end < END_MARK_BYTES or self._zeros_from(record.end) >= self._size

    def _zeros_from(self, position: int) -> int:
        """Where the zeros end that begin at ``position``."""
        for at in data_windows(self._handle, position, self._size, WINDOW_BYTES):
            window = self._handle.pread(WINDOW_BYTES, at)
            rest = len(window.lstrip(b"\0"))
            if rest:
                return at + len(window) - rest
        return self._size

    def _behind_the_end(self, position: int) -> int | None:
        end = self._zeros_from(position)
        if end >= self._size:
            return None
        if self._size - position < END_MARK_BYTES:
            self._tell(TORN_RECORD, position, f"{self._size - position} bytes of a record", leftover=True)
            return None
        following = self._search(max(position + 1, end - KNOWN_RECORD.size))
        if following is None:
            self._tell(TORN_RECORD, end, "bytes behind the zeros that end the file", leftover=True)
        else:
            self._damaged = True
            self._lose(position, following)
        return following

    def _lose(self, position: int, following: int) -> None:
        size = following - position
        self._tell(UNREADABLE_RECORD, position, f"{size} bytes that cannot be read")
        self._shared.lose(self._path, position, size // KNOWN_RECORD.size)

    def _take(self, record: WalRecord) -> None:
        """A sound record."""
        self._records += 1
        self._has_checksums |= bool(record.checksum)
        queue = self._ids.get(record.number) if record.uid is None else self._introduce(record, record.uid)
        if queue is not None:
            queue.add(_place(self._path, record))
        elif record.number not in self._strangers:
            self._strangers.add(record.number)
            self._shared.lose(self._path, record.offset, MAX_DOUBTFUL)
            self._tell(UNKNOWN_ID, record.offset, f"a record of queue {record.number}, which no record before names")

    def _introduce(self, record: WalRecord, uid: bytes) -> QueueColumns | None:
        """The queue of the first record that names it in this file; ``None`` where the record contradicts others."""
        number = record.number
        known = self._ids.get(number)
        expected = max(self._ids, default=-1) + 1
        if known is not None and known.uid == uid:
            return known
        if number != expected and not (self._damaged and number > expected):
            self._tell(UNKNOWN_ID, record.offset, f"queue {uid!r} has number {number}, where {expected} is next")
            self._damaged = True
            if any(queue.uid == uid for queue in self._ids.values()):
                return None
            number = expected
        queue = self._ids[number] = self._shared.queue(uid)
        return queue

    def _name_anyway(self, position: int) -> None:
        """A damaged record that names the next queue: all that follows of it in this file depends on the name."""
        head = parse_head(self._handle.pread(_HEAD_PEEK_BYTES, position), position)
        if head is not None and head.uid is not None and head.number == max(self._ids, default=-1) + 1:
            known = any(queue.uid == head.uid for queue in self._ids.values())
            if _UID.fullmatch(head.uid) is not None and not known:
                self._ids[head.number] = self._shared.queue(head.uid)

    def _pass_over(self, record: WalRecord) -> None:
        """A damaged record, with a sound one behind it. Where it says that it is its queue's next, it is believed."""
        self._tell(UNREADABLE_RECORD, record.offset, CHECKSUM)
        self._shared.lose(self._path, record.offset, 1)
        queue = self._ids.get(record.number)
        if queue is not None and record.index == queue.next_index and record.term == queue.term:
            queue.skip(BadEntry(record.index, record.term, self._path, record.entry_offset, CHECKSUM, record.length))

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
            queue = self._shared.columns.get(record.uid)
        else:
            queue = self._ids.get(record.number)
            if queue is None:
                return False
        lost = (record.offset - start) // KNOWN_RECORD.size + 1
        if queue is None or record.term > queue.term:
            return queue is None or record.index <= queue.next_index + lost
        return record.term == queue.term and 0 <= record.index - queue.next_index <= lost


def _place(path: str, record: WalRecord) -> Place:
    return Place(path, record.index, record.term, record.entry_offset, record.length, record.truncates, record.checksum)
