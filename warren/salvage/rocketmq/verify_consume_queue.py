"""ConsumeQueues against the CommitLog: every message has its entry, and every entry its message.

The CommitLog is read once. A message says which queue it is in, and its number there is the place of its entry; so
entries are looked up directly, many at a time. A queue of batches has a unit for each record, in their order: those are
looked up by physical offset. A queue's *cursor* is the number up to which its entries are judged: entries without a
message are judged as the cursor moves over them, by what lies where they point.

Left over are entries of expired messages (before the CommitLog's first file), the filler ahead of a queue's first
message, and, if the store crashed, entries that point past the CommitLog's end. Entries that recovery rebuilds may then
be missing: those of messages that it reads and that come after the queue's last.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from typing import Final

import attrs
import numpy as np
import numpy.typing as npt

from warren.msg_store.commit_log.commit_log_format import SCHEDULE_TOPIC, Record, decode_properties
from warren.queue_index.topics.consume_queue_format import (
    ENTRY,
    FILLER_SIZE,
    Entries,
    are_extension_addresses,
    are_good,
)
from warren.salvage.queue_directory import Finding, Severity
from warren.salvage.rocketmq.batch_queues import are_good_units
from warren.salvage.rocketmq.verify_commit_log import VerifiedCommitLog
from warren.salvage.rocketmq.verify_files import FindingRuns, MappedFile, StoreFiles, cut_short, finding
from warren.storage.columns import Longs
from warren.storage.java_hash import java_hash

_WINDOW_ENTRIES: Final = 1 << 16
_RECOVERED_FILES: Final = 3
"""Number of a queue's last files that recovery looks at."""

_WRONG: Final = {
    "physical_offset": ("wrong physical offset", "it points at {}, as the record says; that lies at {}"),
    "size": ("wrong size", "it says {} bytes, the message has {}"),
    "tags_code": ("wrong tags code", "it says {}, the message's is {}"),
    "store_timestamp": ("wrong time", "it says {}, the message was stored at {}"),
    "queue_offset": ("wrong queue offset", "it says {}, the record begins with message {}"),
    "count": ("wrong number of messages", "it says {}, the record has {}"),
    "compacted_offset": ("wrong compacted offset", "it says {}, and not {}"),
}
"""The findings about an entry's fields, by their names, and how they name the entry's value and the expected one."""

Rows = npt.NDArray[np.intp]


@attrs.frozen
class Messages:
    """Messages of one queue, in the order in which they lie."""

    queue_offsets: Longs
    physical_offsets: Longs
    """According to the records."""
    entries: Mapping[str, Longs]
    """The fields of the entries that they should have."""

    @property
    def positions(self) -> Longs:
        """Where they lie."""
        return self.entries["physical_offset"]


@attrs.define(eq=False, repr=False)
class VerifiedQueue:
    """One queue's entries."""

    store_files: StoreFiles
    log: VerifiedCommitLog
    topic: str
    queue_id: int
    files: list[MappedFile]
    file_size: int
    layout: np.dtype[np.void] = ENTRY
    """Of an entry; another one in a queue of batches."""
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
        self.first = -(-self.files[0].base // self.layout.itemsize) if self.files else 0
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
        size = self.layout.itemsize
        begin, stop = -(-file.base // size), file.end // size
        while stop > begin:
            start = max(begin, stop - _WINDOW_ENTRIES)
            entries = self.entries(start, stop)
            good = np.flatnonzero(self._are_good(entries))
            last = int(good[-1]) if len(good) else -1
            nonzero = np.flatnonzero(entries[last + 1 :].view(f"V{size}") != np.void(bytes(size)))
            if len(nonzero):
                self._bytes_after_end = start + last + 1 + int(nonzero[0])
            if len(good):
                return start + last
            stop = start
        return None

    def entries(self, start: int, stop: int) -> Entries:
        """The entries from number ``start`` to ``stop``; zeros outside the files."""
        size = self.layout.itemsize
        data = bytearray((stop - start) * size)
        at, end = start * size, stop * size
        index = max(bisect_right(self.files, at, key=lambda file: file.base) - 1, 0)
        for file in self.files[index:]:
            low, high = max(at, file.base), min(end, file.end)
            if file.base >= end:
                break
            if low < high:
                part = self.store_files.read(file.path, high - low, low - file.base)
                data[low - at : low - at + len(part)] = part
        return np.frombuffer(bytes(data), self.layout)

    @property
    def _is_plain(self) -> bool:
        return self.layout is ENTRY

    @property
    def max_offset(self) -> int:
        """The queue offset after the last message."""
        if self._is_plain:
            return self.end
        last = self.entries(self.end - 1, self.end)[0]
        return int(last["queue_offset"]) + int(last["count"])

    def _are_good(self, entries: Entries) -> npt.NDArray[np.bool_]:
        return are_good(entries) if self._is_plain else are_good_units(entries)

    def _windows(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """The numbers from ``start`` to ``stop`` that have a place in a file, many at a time."""
        for file in self.files:
            size = self.layout.itemsize
            begin, end = max(start, -(-file.base // size)), min(stop, file.end // size)
            for low in range(begin, end, _WINDOW_ENTRIES):
                yield low, min(end, low + _WINDOW_ENTRIES)

    # ── messages ────────────────────────────────────────────────────────────────────────────────────────────────

    def take(self, messages: Messages) -> Iterator[Finding]:
        """Compare the next messages with their entries."""
        numbers = messages.queue_offsets
        start, stop = self.cursor, self.cursor + len(numbers)
        is_next = not self._is_plain or (int(numbers[0]) == start and _are_consecutive(numbers))
        if is_next and stop <= self.end and _are_equal(self.entries(start, stop), messages):
            self.cursor = stop
        else:
            yield from self._compare(messages)

    def _compare(self, messages: Messages) -> Iterator[Finding]:
        numbers = messages.queue_offsets if self._is_plain else self._units_of(messages)
        inside = np.flatnonzero((numbers >= self.first) & (numbers < self.end))
        entries = np.zeros(len(numbers), self.layout)
        entries[inside] = self._gather(numbers[inside])
        is_in_file = np.zeros(len(numbers), bool)
        is_in_file[inside] = True
        points = entries["physical_offset"].astype(np.int64)
        matches = is_in_file & ((points == messages.positions) | (points == messages.physical_offsets))
        for row in np.flatnonzero(~matches).tolist():
            yield from self._without_entry(messages, row, int(numbers[row]), entries[row] if is_in_file[row] else None)
        matched = np.flatnonzero(matches)
        yield from self._fields(messages, numbers, entries, matched)
        ahead = np.unique(numbers[matched])
        ahead = ahead[ahead >= self.cursor]
        starts = np.concatenate(([self.cursor], ahead[:-1] + 1))[: len(ahead)]
        for start, number in zip(starts.tolist(), ahead.tolist(), strict=True):
            if start < number:
                position = int(messages.positions[np.flatnonzero(matches & (numbers == number))[0]])
                yield from self._judge(start, number, is_recovered=position >= self.log.recovery_start)
        if len(ahead):
            self.cursor = int(ahead[-1]) + 1

    def _units_of(self, messages: Messages) -> Longs:
        """The numbers of the units of batches.

        Of one without a unit: the number after the unit before it if a damaged unit is there, or the queue's end; else
        -1.
        """
        numbers = np.full(len(messages.positions), -1)
        for low, high in self._windows(self.cursor, self.end):
            pointers = self.entries(low, high)["physical_offset"].astype(np.int64)
            order = np.argsort(pointers, kind="stable")
            for positions in (messages.physical_offsets, messages.positions):
                places = order[np.searchsorted(pointers, positions, sorter=order) % len(order)]
                numbers = np.where((numbers < 0) & (pointers[places] == positions), low + places, numbers)
            if numbers[-1] >= 0:
                break
        following = np.maximum.accumulate(np.append(self.cursor, numbers[:-1] + 1))
        is_lost = (following < self.end - 1) | np.isin(following, numbers)
        is_lost &= self._are_good(self._gather(following))
        return np.where(numbers < 0, np.where(is_lost, -1, following), numbers)

    def _gather(self, numbers: Longs) -> Entries:
        if not len(numbers):
            return np.zeros(0, self.layout)
        low, high = int(numbers.min()), int(numbers.max())
        if high - low < 4 * len(numbers) + 1024:
            return self.entries(low, high + 1)[numbers - low]
        return np.concatenate([self.entries(number, number + 1) for number in numbers.tolist()])

    def _fields(self, messages: Messages, numbers: Longs, entries: Entries, matched: Rows) -> Iterator[Finding]:
        actual = {name: entries[name].astype(np.int64) for name in messages.entries}
        if self._is_plain:
            codes = actual["tags_code"]
            actual["tags_code"] = np.where(are_extension_addresses(codes), messages.entries["tags_code"], codes)
        wrong = np.any([actual[name] != column for name, column in messages.entries.items()], axis=0)
        for row in matched[wrong[matched]].tolist():
            number, position = int(numbers[row]), int(messages.positions[row])
            for name, column in messages.entries.items():
                kind, detail = _WRONG[name]
                value, expected = int(actual[name][row]), int(column[row])
                if value != expected and not (name == "tags_code" and self._is_hash_of_tags(position, value)):
                    yield from self._entry(kind, number, detail.format(value, expected))

    def _is_hash_of_tags(self, position: int, code: int) -> bool:
        """RocketMQ's recovery does not know the delay levels yet: a delayed message gets the hash of its tags."""
        record = self.log.look(position) if self.topic == SCHEDULE_TOPIC else ""
        return isinstance(record, Record) and code == java_hash(decode_properties(record.properties).get("TAGS", ""))

    def _without_entry(self, messages: Messages, row: int, number: int, entry: np.void | None) -> Iterator[Finding]:
        queue_offset, position = int(messages.queue_offsets[row]), int(messages.positions[row])
        name = f"message {queue_offset} of {self.topic}/{self.queue_id}"
        if entry is None or not self._are_good(np.array([entry]))[0]:
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
        count = 1 if self._is_plain else int(messages.entries["count"][row])
        yield from self._runs.add("message", queue_offset, problem, count)

    # ── entries ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _may_be_torn(self, number: int) -> bool:
        """Whether a crash may have cut off the writing of this entry: the last one."""
        return self.store_files.is_crashed and number == self.end - 1

    def _is_recovered(self, number: int) -> bool:
        """Whether recovery looks at this entry; it rebuilds all entries after a bad one."""
        recovered = self.files[-_RECOVERED_FILES:]
        return bool(recovered) and number * self.layout.itemsize >= recovered[0].base

    def _judge(self, start: int, stop: int, end: int | None = None, *, is_recovered: bool = False) -> Iterator[Finding]:
        """Judge entries without a message; ``end``: the CommitLog's end, if it is known.

        ``is_recovered``: recovery reads the messages after them.
        """
        for low, high in self._windows(start, stop):
            entries = self.entries(low, high)
            offsets = entries["physical_offset"].astype(np.int64)
            numbers = low + np.arange(len(entries))
            is_expired = self._are_good(entries) & (offsets < self.log.min_offset) & ~_are_filler(entries)
            yield from self._expired(numbers[is_expired])
            for index in np.flatnonzero(~is_expired & (numbers >= self._filler_end)).tolist():
                yield from self._judge_one(low + index, entries[index], end, is_recovered=is_recovered)

    def _expired(self, numbers: Longs) -> Iterator[Finding]:
        for run in np.split(numbers, np.flatnonzero(np.diff(numbers) != 1) + 1):
            if len(run):
                first = int(run[0])
                detail = f"its message is no longer in the CommitLog, which begins at {self.log.min_offset}"
                yield from self._entry("expired entry", first, detail, "leftover", len(run))

    def _judge_one(self, number: int, entry: np.void, end: int | None, *, is_recovered: bool) -> Iterator[Finding]:
        offset, size = int(entry["physical_offset"]), int(entry["size"])
        severity: Severity = "damage"
        if not self._are_good(np.array([entry]))[0]:
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
                queue_offset = number if self._is_plain else int(entry["queue_offset"])
                is_its = (record.queue_offset, record.size) == (queue_offset, size)  # but for its topic or queue
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
        at = number * self.layout.itemsize
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
            self.file_size,
            ends_with_data=0 <= last - self.end * self.layout.itemsize < self.layout.itemsize,
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
    return all(np.array_equal(entries[name], column) for name, column in messages.entries.items())


def _are_filler(entries: Entries) -> npt.NDArray[np.bool_]:
    filler: npt.NDArray[np.bool_] = (entries["physical_offset"] == 0) & (entries["size"] == FILLER_SIZE)
    return filler
