"""The index against the CommitLog: every key of a message has its item, and every item is of a message with that key.

Both are read once, because items come in the order of the CommitLog. *Pending* items were read before their messages:
enough are read ahead that a few with damaged offsets do no harm.

Left over is what RocketMQ's recovery makes: it deletes files, and begins a new one with the messages that it reads, so
keys between the last file that stayed and the new one are *lost*; and it puts the keys of a message twice. A key that
is missing in the middle of a file is damage.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import attrs
import numpy as np

from warren.msg_store.commit_log.record_columns import RecordColumns
from warren.msg_store.commit_log.record_scan import read_columns
from warren.salvage.queue_directory import Finding, Severity
from warren.salvage.rocketmq.verify_commit_log import VerifiedCommitLog
from warren.salvage.rocketmq.verify_files import StoreFiles
from warren.salvage.rocketmq.verify_index_file import NUMBERED_ITEM, Items, VerifiedIndexFile
from warren.storage.columns import Longs

_AHEAD_ITEMS: Final = 1 << 12
"""The last items read, this many of them, must all belong to later messages; a damaged page holds a twentieth."""
_MOST_PENDING: Final = 1 << 21
_MOST_SECONDS: Final = 0x7FFFFFFF


@attrs.define(eq=False, repr=False)
class _Gap:
    """Consecutive keys without an item."""

    first: int
    """The physical offset of the first one's message."""
    last: int
    count: int
    is_at_border: bool
    """It begins where a file ends."""


@attrs.define(eq=False, repr=False)
class IndexKeys:
    """The items of all files, oldest first, beside the keys of the messages."""

    store_files: StoreFiles
    log: VerifiedCommitLog
    files: list[VerifiedIndexFile]
    _items: Iterator[Finding | Items] = attrs.field(factory=lambda: iter(()))
    _pending: Items = attrs.field(factory=lambda: np.zeros(0, NUMBERED_ITEM))
    _is_read: bool = False
    _gap: _Gap | None = None
    _last: tuple[int, int] | None = None
    """File and number of the item that was matched last."""
    _after_gap: tuple[int, int] | None = None
    """File and number of the first item after the last gap."""

    @classmethod
    def of(cls, store_files: StoreFiles, log: VerifiedCommitLog, files: list[VerifiedIndexFile]) -> IndexKeys:
        ordered = sorted(files, key=lambda file: file.header.begin_physical_offset)
        keys = cls(store_files, log, ordered)
        keys._items = keys._read()
        return keys

    def _read(self) -> Iterator[Finding | Items]:
        for number, file in enumerate(self.files):
            for item in file.items():
                if not isinstance(item, Finding):
                    item["file"] = number
                yield item

    # ── items ahead ─────────────────────────────────────────────────────────────────────────────────────────────

    def _fill(self, stop: int) -> Iterator[Finding]:
        """Read items until those of messages before ``stop`` are certainly pending."""
        parts = [self._pending]
        count = len(self._pending)
        tail = self._pending["offset"][-_AHEAD_ITEMS:]
        while not self._is_read and count < _MOST_PENDING and not (len(tail) >= _AHEAD_ITEMS and (tail >= stop).all()):
            item = next(self._items, None)
            if item is None:
                self._is_read = True
            elif isinstance(item, Finding):
                yield item
            else:
                parts.append(item)
                count += len(item)
                tail = np.concatenate((tail, item["offset"]))[-_AHEAD_ITEMS:]
        if len(parts) > 1:
            self._pending = np.concatenate(parts)

    # ── messages ────────────────────────────────────────────────────────────────────────────────────────────────

    def take(self, columns: RecordColumns) -> Iterator[Finding]:
        """Compare the keys of the next messages with their items."""
        yield from self._fill(columns.stop)
        counts = columns.key_counts
        offsets, hashes = np.repeat(columns.positions, counts), columns.key_hashes.astype(np.int64)
        times = np.repeat(columns.store_timestamps, counts)
        pending, count = self._pending, len(offsets)
        is_next = pending["offset"] < columns.stop
        taken = int(np.count_nonzero(is_next))
        if taken == count and is_next[:taken].all():
            items = pending[:count]
            if np.array_equal(items["offset"], offsets) and np.array_equal(items["key_hash"], hashes):
                self._pending = pending[count:]
                if count:
                    yield from self._close_gap(items[0])
                    yield from self._matched(items, times)
                return
        self._pending = pending[~is_next]
        yield from self._compare(columns, pending[is_next], offsets, hashes, times)

    def _compare(
        self, columns: RecordColumns, items: Items, offsets: Longs, hashes: Longs, times: Longs
    ) -> Iterator[Finding]:
        start = columns.start
        is_here = items["offset"] >= start
        yield from self._strays(items[~is_here])
        items = items[is_here]
        places = items["offset"].astype(np.int64)
        for row in np.flatnonzero(~np.isin(columns.physical_offsets, columns.positions)).tolist():
            places[places == columns.physical_offsets[row]] = columns.positions[row]
        item_keys, message_keys = _ranked(places - start, items["key_hash"]), _ranked(offsets - start, hashes)
        rows_by_key = {key: index for index, key in enumerate(item_keys)}
        matches = np.array([rows_by_key.pop(key, -1) for key in message_keys], np.int64)
        rest = np.sort(np.fromiter(rows_by_key.values(), np.int64, len(rows_by_key)))
        is_repeated = np.isin(_joined(places[rest] - start, items["key_hash"][rest]), _joined(offsets - start, hashes))
        yield from self._repeated(items[rest[is_repeated]])
        yield from self._strays(items[rest[~is_repeated]])
        for run in np.split(np.arange(len(matches)), np.flatnonzero(np.diff(matches >= 0)) + 1):
            if not len(run):
                continue
            if matches[run[0]] < 0:
                self._open_gap(int(offsets[run[0]]), int(offsets[run[-1]]), len(run))
            else:
                matched = items[matches[run]]
                yield from self._close_gap(matched[0])
                yield from self._matched(matched, times[run])

    def _matched(self, items: Items, times: Longs) -> Iterator[Finding]:
        """Items with the store times of their messages."""
        numbers = items["file"]
        for file_number in np.unique(numbers).tolist():
            file, is_in_file = self.files[file_number], numbers == file_number
            yield from self._times(file, items[is_in_file], times[is_in_file])
        self._last = (int(numbers[-1]), int(items["number"][-1]))

    def _times(self, file: VerifiedIndexFile, items: Items, times: Longs) -> Iterator[Finding]:
        header, numbers = file.header, items["number"]
        bases = np.full(len(items), header.begin_timestamp)
        is_first = numbers == 1
        if file.before is None:
            bases[is_first] = 0
        else:
            bases[is_first] = file.before.header.end_timestamp
        seconds = np.where(bases > 0, np.clip((times - bases) // 1000, 0, _MOST_SECONDS), 0)
        is_wrong = seconds != items["seconds"]
        if file.before is None or self._after_gap == (self.files.index(file), 1):
            is_wrong &= ~is_first | (items["seconds"] < 0)  # what came before it is unknown
        for index in np.flatnonzero(is_wrong).tolist():
            detail = f"it says {items['seconds'][index]} seconds, the message's time gives {seconds[index]}"
            yield from file.item("wrong time", int(numbers[index]), detail)
        yield from self._header(file, items, times)

    def _header(self, file: VerifiedIndexFile, items: Items, times: Longs) -> Iterator[Finding]:
        """The header against the first and the last item, as far as they are among these."""
        header = file.header
        begin, end = header.begin_physical_offset, header.end_physical_offset
        for number, stored_ms, offset, verb in (
            (1, header.begin_timestamp, begin, "begins"),
            (header.index_count - 1, header.end_timestamp, end, "ends"),
        ):
            for index in np.flatnonzero(items["number"] == number).tolist():
                place = (int(items["offset"][index]), int(times[index]))
                if place != (offset, stored_ms):
                    detail = (
                        f"it {verb} at {offset}, time {stored_ms}; its item {number} is at {place[0]}, time {place[1]}"
                    )
                    yield file.finding("wrong index header", 0, detail)

    # ── what does not fit ───────────────────────────────────────────────────────────────────────────────────────

    def _repeated(self, items: Items) -> Iterator[Finding]:
        for item in items:
            detail = f"the key of the message at {item['offset']} has an item already, as after a recovery"
            yield from self.files[int(item["file"])].item(
                "leftover repeated item", int(item["number"]), detail, "leftover"
            )

    def _strays(self, items: Items, end: int | None = None) -> Iterator[Finding]:
        """Items that belong to no message so far."""
        for item in items:
            offset, number, file = int(item["offset"]), int(item["number"]), self.files[int(item["file"])]
            if 0 <= offset < self.log.min_offset:
                detail = "its message is no longer in the CommitLog"
                yield from file.item("expired item", number, detail, "leftover")
            elif end is not None and offset >= end:
                detail = f"it points at {offset}, after the CommitLog's end at {end}"
                severity: Severity = "leftover" if self.store_files.is_crashed else file.severity
                yield from file.item("item that points nowhere", number, detail, severity)
            else:
                yield from self._stray(file, number, offset, int(item["key_hash"]))

    def _stray(self, file: VerifiedIndexFile, number: int, offset: int, key_hash: int) -> Iterator[Finding]:
        record = self.log.look(offset)
        if isinstance(record, str):
            detail = f"it points at {offset}, where no message is: {record}"
            severity: Severity = "leftover" if self.log.severity(offset) == "leftover" else file.severity
            yield from file.item("item that points nowhere", number, detail, severity)
            return
        hashes = {
            int(key)
            for item in read_columns(self.log.read, offset, offset + record.size, check_crc=False)
            if isinstance(item, RecordColumns)
            for key in item.key_hashes
        }
        if key_hash in hashes:
            detail = f"the message at {offset} has its key, and comes earlier or later in the index"
            yield from file.item("leftover repeated item", number, detail, "leftover")
        else:
            detail = f"no key of the message at {offset} has the hash {key_hash}"
            yield from file.item("wrong key hash", number, detail)

    # ── keys without item ───────────────────────────────────────────────────────────────────────────────────────

    def _open_gap(self, first: int, last: int, count: int) -> None:
        if self._gap is None:
            is_at_border = self._last is None or self._last[1] == self.files[self._last[0]].end - 1
            self._gap = _Gap(first, last, 0, is_at_border)
        self._gap.count += count
        self._gap.last = last

    def _close_gap(self, item: np.void | None) -> Iterator[Finding]:
        """Report the gap before ``item``, the next one with a message; ``None``: at the end of the index."""
        gap, self._gap = self._gap, None
        if gap is None:
            return
        if item is not None:
            self._after_gap = (int(item["file"]), int(item["number"]))
        summary = f"{gap.count} keys of the messages from {gap.first} to {gap.last} have no item"
        if gap.is_at_border or item is None or int(item["number"]) == 1:
            detail = f"{summary}, as after a crash; a query by these keys misses the messages"
            yield self.log.finding("leftover gap in the index", gap.first, detail, "leftover")
        else:
            yield self.log.finding("keys without item", gap.first, summary)

    def finish(self, end: int) -> Iterator[Finding]:
        """The findings that are left after all messages; ``end``: the CommitLog's."""
        yield from self._close_gap(None)
        while len(self._pending) or not self._is_read:
            yield from self._strays(self._pending, end)
            self._pending = self._pending[:0]
            yield from self._fill(_NEVER)
        for file in self.files:
            yield from file.finish()


_NEVER: Final = -(1 << 63)
"""No item lies before it."""


def _joined(places: Longs, hashes: Longs) -> Longs:
    return (places << 32) | (hashes & 0xFFFFFFFF)


def _ranked(places: Longs, hashes: Longs) -> list[tuple[int, int]]:
    """Each place and hash, and how many equal ones come before it."""
    joined = _joined(places, hashes).tolist()
    seen: dict[int, int] = {}
    ranked = []
    for key in joined:
        ranked.append((key, rank := seen.get(key, 0)))
        seen[key] = rank + 1
    return ranked
