"""ConsumeQueues against the CommitLog: every message has its entry, and every entry its message.

The CommitLog is read once. A message says which queue it is in, and its number there is the place of its entry; so
entries are looked up directly, many at a time. A queue's *cursor* is the number up to which its entries are judged:
entries without a message are judged as the cursor moves over them, by what lies where they point.

Left over are entries of expired messages (before the CommitLog's first file), the filler ahead of a queue's first
message, and, if the store crashed, entries that point past the CommitLog's end. Entries that recovery rebuilds may then
be missing: those of messages that it reads and that come after the queue's last.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import Final

import attrs
import numpy as np
import numpy.typing as npt

from warren.msg_store.commit_log.commit_log_format import SCHEDULE_TOPIC, Record, decode_properties
from warren.queue_index.topics.consume_queue_format import (
    ENTRY,
    ENTRY_BYTES,
    FILLER_SIZE,
    Entries,
    are_extension_addresses,
    are_good,
    decode,
)
from warren.salvage.queue_directory import Finding, Severity
from warren.salvage.rocketmq.verify_commit_log import VerifiedCommitLog
from warren.salvage.rocketmq.verify_files import FindingRuns, MappedFile, StoreFiles, cut_short, finding
from warren.storage.java_hash import java_hash

_WINDOW_ENTRIES: Final = 1 << 16
_RECOVERED_FILES: Final = 3
"""Number of a queue's last files that recovery looks at."""

_NOTHING: Final = np.void(bytes(ENTRY_BYTES))

Longs = npt.NDArray[np.int64]
Rows = npt.NDArray[np.intp]


@attrs.frozen
class Messages:
    """Messages of one queue, in the order in which they lie."""

    queue_offsets: Longs
    positions: Longs
    physical_offsets: Longs
    sizes: Longs
    tags_codes: Longs


@attrs.define(eq=False, repr=False)
class VerifiedQueue:
    """One queue's entries."""

    store_files: StoreFiles
    log: VerifiedCommitLog
    topic: str
    queue_id: int
    files: list[MappedFile]
    first: int = 0
    """The number of the first file's first entry."""
    end: int = 0
    """The number after the last good entry, whatever lies before it."""
    max_physical_offset: int = -1
    """Where the message of the last good entry ends; -1 without any."""
    cursor: int = 0
    _filler_end: int = 0
    _bytes_after_end: int | None = None
    """The number of the first place after the end that is not empty."""
    _runs: FindingRuns = attrs.Factory(FindingRuns)

    def load(self) -> None:
        """Find out where the entries begin and end."""
        self.first = -(-self.files[0].base // ENTRY_BYTES) if self.files else 0
        self.end = self.cursor = self._filler_end = self.first
        for file in reversed(self.files):
            last = self._last_good(file)
            if last is not None:
                self.end = last + 1
                entry = self.entries(last, self.end)[0]
                if int(entry["size"]) != FILLER_SIZE:
                    self.max_physical_offset = int(entry["physical_offset"]) + int(entry["size"])
                break
        for low, high in self._windows(self.first, self.end):
            non_filler = np.flatnonzero(~_are_filler(self.entries(low, high)))
            self._filler_end = low + int(non_filler[0]) if len(non_filler) else high
            if len(non_filler):
                break

    def _last_good(self, file: MappedFile) -> int | None:
        begin, stop = -(-file.base // ENTRY_BYTES), file.end // ENTRY_BYTES
        while stop > begin:
            start = max(begin, stop - _WINDOW_ENTRIES)
            entries = self.entries(start, stop)
            good = np.flatnonzero(are_good(entries))
            last = int(good[-1]) if len(good) else -1
            nonzero = np.flatnonzero(np.frombuffer(entries.tobytes(), f"V{ENTRY_BYTES}")[last + 1 :] != _NOTHING)
            if len(nonzero):
                self._bytes_after_end = start + last + 1 + int(nonzero[0])
            if len(good):
                return start + last
            stop = start
        return None

    def entries(self, start: int, stop: int) -> Entries:
        """The entries from number ``start`` to ``stop``; zeros outside the files."""
        data = bytearray((stop - start) * ENTRY_BYTES)
        at, end = start * ENTRY_BYTES, stop * ENTRY_BYTES
        index = max(bisect_right(self.files, at, key=lambda file: file.base) - 1, 0)
        for file in self.files[index:]:
            low, high = max(at, file.base), min(end, file.end)
            if file.base >= end:
                break
            if low < high:
                part = self.store_files.read(file.path, high - low, low - file.base)
                data[low - at : low - at + len(part)] = part
        return decode(bytes(data))

    def _windows(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """The numbers from ``start`` to ``stop`` that have a place in a file, many at a time."""
        for file in self.files:
            begin, end = max(start, -(-file.base // ENTRY_BYTES)), min(stop, file.end // ENTRY_BYTES)
            for low in range(begin, end, _WINDOW_ENTRIES):
                yield low, min(end, low + _WINDOW_ENTRIES)

    # ── messages ────────────────────────────────────────────────────────────────────────────────────────────────

    def take(self, messages: Messages) -> Iterator[Finding]:
        """Compare the next messages with their entries."""
        numbers = messages.queue_offsets
        start, stop = self.cursor, self.cursor + len(numbers)
        is_next = stop <= self.end and int(numbers[0]) == start and _are_consecutive(numbers)
        if is_next and _are_equal(self.entries(start, stop), messages):
            self.cursor = stop
        else:
            yield from self._compare(messages)

    def _compare(self, messages: Messages) -> Iterator[Finding]:
        numbers = messages.queue_offsets
        inside = np.flatnonzero((numbers >= self.first) & (numbers < self.end))
        entries = np.zeros(len(numbers), ENTRY)
        entries[inside] = self._gather(numbers[inside])
        is_in_file = np.zeros(len(numbers), bool)
        is_in_file[inside] = True
        points = entries["physical_offset"].astype(np.int64)
        matches = is_in_file & ((points == messages.positions) | (points == messages.physical_offsets))
        for row in np.flatnonzero(~matches).tolist():
            yield from self._without_entry(messages, row, entries[row] if is_in_file[row] else None)
        matched = np.flatnonzero(matches)
        yield from self._fields(messages, entries, matched)
        ahead = np.unique(numbers[matched])
        ahead = ahead[ahead >= self.cursor]
        starts = np.concatenate(([self.cursor], ahead[:-1] + 1))[: len(ahead)]
        for start, number in zip(starts.tolist(), ahead.tolist(), strict=True):
            if start < number:
                position = int(messages.positions[np.flatnonzero(matches & (numbers == number))[0]])
                yield from self._judge(start, number, is_recovered=position >= self.log.recovery_start)
        if len(ahead):
            self.cursor = int(ahead[-1]) + 1

    def _gather(self, numbers: Longs) -> Entries:
        if not len(numbers):
            return np.zeros(0, ENTRY)
        low, high = int(numbers.min()), int(numbers.max())
        if high - low < 4 * len(numbers) + 1024:
            return self.entries(low, high + 1)[numbers - low]
        return np.concatenate([self.entries(number, number + 1) for number in numbers.tolist()])

    def _fields(self, messages: Messages, entries: Entries, matched: Rows) -> Iterator[Finding]:
        physical_offsets, codes = entries["physical_offset"].astype(np.int64), entries["tags_code"].astype(np.int64)
        codes = np.where(are_extension_addresses(codes), messages.tags_codes, codes)
        wrong = (
            (physical_offsets != messages.positions)
            | (entries["size"] != messages.sizes)
            | (codes != messages.tags_codes)
        )
        for row in matched[wrong[matched]].tolist():
            position, entry = int(messages.positions[row]), entries[row]
            number = int(messages.queue_offsets[row])
            if int(physical_offsets[row]) != position:
                detail = f"it points at {int(physical_offsets[row])}, as the record says; that lies at {position}"
                yield from self._entry("wrong physical offset", number, detail)
            if int(entry["size"]) != int(messages.sizes[row]):
                detail = f"it says {int(entry['size'])} bytes, the message has {int(messages.sizes[row])}"
                yield from self._entry("wrong size", number, detail)
            code, expected = int(codes[row]), int(messages.tags_codes[row])
            if code != expected and not self._is_hash_of_tags(position, code):
                yield from self._entry("wrong tags code", number, f"it says {code}, the message's is {expected}")

    def _is_hash_of_tags(self, position: int, code: int) -> bool:
        """RocketMQ's recovery does not know the delay levels yet: a delayed message gets the hash of its tags."""
        record = self.log.look(position) if self.topic == SCHEDULE_TOPIC else ""
        return isinstance(record, Record) and code == java_hash(decode_properties(record.properties).get("TAGS", ""))

    def _without_entry(self, messages: Messages, row: int, entry: np.void | None) -> Iterator[Finding]:
        number, position = int(messages.queue_offsets[row]), int(messages.positions[row])
        name = f"message {number} of {self.topic}/{self.queue_id}"
        if entry is None or not are_good(np.array([entry]))[0]:
            is_after_end = number >= self.end and position >= self.max_physical_offset
            is_cut_off = is_after_end or self._is_recovered(number)
            is_recovered = self.store_files.is_crashed and is_cut_off and position >= self.log.recovery_start
            severity: Severity = "leftover" if is_recovered else self.log.severity(position)
            if is_recovered:
                fate = "RocketMQ's recovery rebuilds it"
            elif not self.store_files.is_crashed and is_after_end and position >= self.log.dispatched_until:
                fate = "RocketMQ builds it when it starts"
            else:
                fate = "RocketMQ does not rebuild it, and readers of the queue miss the message"
            problem = self.log.finding("message without entry", position, f"{name}: {fate}", severity)
        else:
            detail = f"{name}: its entry points at {int(entry['physical_offset'])}"
            torn: Severity | None = "leftover" if self._may_be_torn(number) else None
            problem = self.log.finding("message without entry", position, detail, torn)
        yield from self._runs.add("message", number, problem)

    # ── entries ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _may_be_torn(self, number: int) -> bool:
        """Whether a crash may have cut off the writing of this entry: the last one."""
        return self.store_files.is_crashed and number == self.end - 1

    def _is_recovered(self, number: int) -> bool:
        """Whether recovery looks at this entry; it rebuilds all entries after a bad one."""
        recovered = self.files[-_RECOVERED_FILES:]
        return bool(recovered) and number * ENTRY_BYTES >= recovered[0].base

    def _judge(self, start: int, stop: int, end: int | None = None, *, is_recovered: bool = False) -> Iterator[Finding]:
        """Judge entries without a message; ``end``: the CommitLog's end, if it is known.

        ``is_recovered``: recovery reads the messages after them.
        """
        for low, high in self._windows(start, stop):
            entries = self.entries(low, high)
            offsets = entries["physical_offset"].astype(np.int64)
            numbers = low + np.arange(len(entries))
            is_expired = are_good(entries) & (offsets < self.log.min_offset) & ~_are_filler(entries)
            yield from self._expired(numbers[is_expired])
            for index in np.flatnonzero(~is_expired & (numbers >= self._filler_end)).tolist():
                yield from self._judge_one(low + index, entries[index], end, is_recovered=is_recovered)

    def _expired(self, numbers: Longs) -> Iterator[Finding]:
        for run in np.split(numbers, np.flatnonzero(np.diff(numbers) != 1) + 1):
            if len(run):
                first = int(run[0])
                detail = f"message {first} is no longer in the CommitLog, which begins at {self.log.min_offset}"
                yield from self._entry("expired entry", first, detail, "leftover", len(run))

    def _judge_one(self, number: int, entry: np.void, end: int | None, *, is_recovered: bool) -> Iterator[Finding]:
        offset, size = int(entry["physical_offset"]), int(entry["size"])
        severity: Severity = "damage"
        if offset < 0 or size <= 0:
            if is_recovered and self.store_files.is_crashed and self._is_recovered(number):
                severity = "leftover"
            detail = f"it points at {offset}, {size} bytes; RocketMQ's recovery ends a queue at such an entry"
            yield from self._entry("invalid entry", number, detail, severity)
        elif size == FILLER_SIZE and not offset:
            yield from self._entry("misplaced filler", number, "there are messages before it")
        elif end is not None and offset >= end:
            detail = f"it points at {offset}, {size} bytes, after the CommitLog's end at {end}"
            severity = "leftover" if self.log.is_end_forgivable else "damage"
            yield from self._entry("entry that points nowhere", number, detail, severity)
        else:
            record = self.log.look(offset)
            if isinstance(record, str):
                detail = f"it points at {offset}, where no message is: {record}"
                yield from self._entry("entry that points nowhere", number, detail, self.log.severity(offset))
            else:
                message = f"message {record.queue_offset} of {record.topic}/{record.queue_id}"
                is_its = (record.queue_offset, record.size) == (number, size)  # but for the record's topic or queue
                detail = f"it points at {offset}, where {message} is"
                yield from self._entry("wrong entry", number, detail, may_be_torn=not is_its)

    def _entry(
        self,
        kind: str,
        number: int,
        detail: str,
        severity: Severity = "damage",
        count: int = 1,
        *,
        may_be_torn: bool = True,
    ) -> Iterator[Finding]:
        at = number * ENTRY_BYTES
        index = max(bisect_right(self.files, at, key=lambda file: file.base) - 1, 0)
        file = self.files[index]
        if may_be_torn and self._may_be_torn(number):
            severity = "leftover"
        problem = finding(kind, severity, file.path, at - file.base, f"entry {number}: {detail}")
        yield from self._runs.add("entry", number, problem, count)

    def points_at(self, physical_offset: int) -> bool:
        """Whether an entry that is not judged yet points there."""
        windows = self._windows(self.cursor, self.end)
        return any((self.entries(low, high)["physical_offset"] == physical_offset).any() for low, high in windows)

    def finish(self, end: int) -> Iterator[Finding]:
        """The findings that are left after all messages; ``end``: the CommitLog's."""
        last = self.files[-1].end if self.files else 0
        yield from cut_short(
            self.files,
            self.store_files.settings.mapped_file_size_consume_queue,
            ends_with_data=0 <= last - self.end * ENTRY_BYTES < ENTRY_BYTES,
        )
        yield from self._judge(self.cursor, self.end, end)
        if self._bytes_after_end is not None:
            yield from self._entry(
                "leftover bytes", self._bytes_after_end, "after the last entry, and not an entry", "leftover"
            )
        yield from self._runs.finish()


def _are_consecutive(numbers: Longs) -> bool:
    return int(numbers[-1]) - int(numbers[0]) == len(numbers) - 1 and bool((np.diff(numbers) == 1).all())


def _are_equal(entries: Entries, messages: Messages) -> bool:
    return (
        np.array_equal(entries["physical_offset"], messages.positions)
        and np.array_equal(entries["size"], messages.sizes)
        and np.array_equal(entries["tags_code"], messages.tags_codes)
    )


def _are_filler(entries: Entries) -> npt.NDArray[np.bool_]:
    filler: npt.NDArray[np.bool_] = (entries["physical_offset"] == 0) & (entries["size"] == FILLER_SIZE)
    return filler
