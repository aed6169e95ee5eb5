"""The check of a CommitLog as it lies on the disk: every record is read, and its checksum compared.

At bytes that are no record, the walk looks for a *whole record* after them: a sound one
(:mod:`warren.msg_store.commit_log.record_finder`) that is not older than what came before, or the first of a later file
that says it lies elsewhere. If there is one, the log is damaged in the middle, and the walk goes on with that record.
If not, this is the log's end. It is followed by zeros, what a crash left of the last write, or old bytes (cutting a log
does not overwrite them). A record that is older than those before it is among the old bytes.

After a clean stop the checkpoint has the time of the newest message with a ConsumeQueue entry. If the last good one has
that time, an earlier recovery may have ended the log after it. What follows is then old, unless it is of the same time
and has entries.

RocketMQ's recovery reads from a certain file on and ends the log at the first bad record. A finding says which messages
are lost by that.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Generator, Iterator
from typing import Final, Literal

import attrs
import numpy as np

from warren.actors.engines.topics.names import has_topic_characters
from warren.actors.engines.topics.store_recovery import reading_start
from warren.msg_store.commit_log.commit_log_format import (
    MAGIC_AT,
    MESSAGE_MAGIC_PREFIX,
    STORE_TIMESTAMP_STOP,
    Blank,
    Record,
    RecordError,
    decode,
    decode_physical_offset,
    decode_store_timestamp,
)
from warren.msg_store.commit_log.record_check import Failure, RecordHeader, check
from warren.msg_store.commit_log.record_columns import RecordColumns
from warren.msg_store.commit_log.record_finder import RecordFinder
from warren.msg_store.commit_log.record_scan import WINDOW_BYTES, read_columns
from warren.salvage.queue_directory import Finding, Severity
from warren.salvage.rocketmq.verify_files import FindingRuns, MappedFile, StoreFiles, cut_short, finding, mapped_files
from warren.storage.filesystem import data_windows

_SEARCH_BYTES: Final = 1 << 20
_SMALL_WINDOW_BYTES: Final = 64 << 10
"""Read at once after damage: at the next bad record all of it is read again."""

_MOST_LOOKS: Final = 200_000
"""Maximum number of single places that are read; more would take hours."""


@attrs.frozen
class End:
    """Where the walk ended, and what follows."""

    physical_offset: int
    what: Literal["zeros", "record", "bytes"]
    """Nothing but zeros; what may have been a record; other bytes."""
    reason: str = ""
    """Why there is no good record."""


Walked = Finding | RecordColumns


@attrs.define(eq=False, repr=False)
class VerifiedCommitLog:
    """One store's CommitLog; :meth:`walk` once, the rest at any time."""

    store_files: StoreFiles
    files: list[MappedFile]
    name_findings: list[Finding]
    known_until: int = -1
    """The index has keys of messages up to this physical offset."""
    dispatched_until: int = -1
    """The ConsumeQueues have entries of messages up to this physical offset; -1: no entries."""
    points_at: Callable[[int], bool] = lambda _: False
    """Whether an entry that is not judged yet points at a physical offset."""
    newest_ms: int = 0
    """When the newest good record was stored; 0 without any."""
    good_end: int = 0
    """The physical offset after the last good record, or blank one."""
    end: End = End(0, "zeros")
    is_end_forgivable: bool = False
    """Whether a crash explains what follows the end."""
    cut: int | None = None
    """Where recovery ends the log, if that is ahead of its end."""
    recovery_start: int = 0
    """Where RocketMQ's recovery begins to read."""
    _last_ms: int = 0
    _last_queued_ms: int = 0
    _looks_left: int = _MOST_LOOKS
    _walked: int = 0
    """Records that were good until now."""
    _runs: FindingRuns = attrs.Factory(FindingRuns)

    @classmethod
    def of(cls, store_files: StoreFiles) -> VerifiedCommitLog:
        files, findings = mapped_files(
            store_files, store_files.commit_log, store_files.settings.mapped_file_size_commit_log
        )
        log = cls(store_files, files, findings, good_end=files[0].base if files else 0)
        log.recovery_start = log._recovery_start()
        return log

    @property
    def min_offset(self) -> int:
        return self.files[0].base if self.files else 0

    @property
    def file_end(self) -> int:
        return self.files[-1].end if self.files else 0

    # ── single places ───────────────────────────────────────────────────────────────────────────────────────────

    def holding(self, physical_offset: int) -> MappedFile | None:
        """The file with this byte."""
        index = bisect_right(self.files, physical_offset, key=lambda file: file.base) - 1
        return self.files[index] if index >= 0 and physical_offset < self.files[index].end else None

    def read(self, physical_offset: int, size: int) -> bytes:
        """Up to ``size`` bytes, not beyond the end of their file."""
        file = self.holding(physical_offset)
        if file is None:
            return b""
        return self.store_files.read(file.path, min(size, file.end - physical_offset), physical_offset - file.base)

    def look(self, physical_offset: int) -> Record | str:
        """The record there, or why it is not one."""
        self._looks_left -= 1
        if self._looks_left < 0:
            return "not checked, because too much is wrong"
        file = self.holding(physical_offset)
        if file is None:
            return "the CommitLog has no such place"
        checked = check(self.read, physical_offset, file.end)
        if isinstance(checked, RecordHeader):
            try:
                return decode(self.read(physical_offset, checked.size))
            except RecordError as error:
                return str(error)
        return "a blank record lies there" if isinstance(checked, Blank) else checked.reason

    def severity(self, physical_offset: int) -> Severity:
        """The severity of a problem at a message: after a crash nothing past the log's end is damage."""
        is_after_end = self.cut is not None and physical_offset >= self.cut
        return "leftover" if is_after_end and self.store_files.is_crashed else "damage"

    def finding(self, kind: str, physical_offset: int, detail: str, severity: Severity | None = None) -> Finding:
        """A finding at a place in the log."""
        file = self.holding(physical_offset)
        path, offset = (self.store_files.commit_log, None) if file is None else (file.path, physical_offset - file.base)
        return finding(kind, severity or self.severity(physical_offset), path, offset, detail)

    # ── recovery ────────────────────────────────────────────────────────────────────────────────────────────────

    def _recovery_start(self) -> int:
        bases, store_files = [file.base for file in self.files], self.store_files
        if not bases:
            return 0
        return reading_start(
            self.read, bases, store_files.settings, store_files.checkpoint, was_clean=not store_files.is_crashed
        )

    def _cost(self, failure: Failure, is_sum: bool) -> str:
        at = failure.physical_offset
        if at < self.recovery_start or (is_sum and not self.store_files.settings.check_crc_on_recover):
            return "RocketMQ's recovery does not see it"
        if self.cut is not None:
            return "RocketMQ's recovery ends before it"
        self.cut = at
        return "RocketMQ's recovery ends the log here, and loses the messages after it"

    # ── the walk ────────────────────────────────────────────────────────────────────────────────────────────────

    def walk(self) -> Iterator[Walked]:
        """Every good record by columns, also those with only a wrong checksum; and findings between them."""
        yield from self.name_findings
        at: int | None = self.min_offset
        window_bytes = WINDOW_BYTES
        for index, file in enumerate(self.files):
            while at is not None and at < file.end:
                at = yield from self._file_part(index, max(at, file.base), window_bytes)
                window_bytes = _SMALL_WINDOW_BYTES if at is not None and at < file.end else WINDOW_BYTES
        yield from self._runs.finish()
        if at is not None:
            self.end = End(self.good_end, "zeros")
        end = self.end.physical_offset
        self.is_end_forgivable = self.store_files.is_crashed or (self._may_be_cut(end) and not self._is_missing(end))

    def _file_part(self, index: int, start: int, window_bytes: int) -> Generator[Walked, None, int | None]:
        """Walk in one file; return where to continue, or ``None`` at the log's end."""
        file = self.files[index]
        for item in self._columns(start, file.end, check_crc=True, window_bytes=window_bytes):
            match item:
                case RecordColumns():
                    yield from self._good(item)
                case Blank():
                    return (yield from self._blank(item, index))
                case Failure():
                    following = yield from self._failure(item, index)
                    if following is None or following != item.resume_at:
                        return following
        if index + 1 < len(self.files):
            yield self.finding("missing blank record", file.end - 1, "records up to the file's last byte")
        return file.end

    def _columns(
        self, start: int, stop: int, *, check_crc: bool, window_bytes: int
    ) -> Iterator[RecordColumns | Blank | Failure]:
        settings = self.store_files.settings
        return read_columns(
            self.read,
            start,
            stop,
            check_crc=check_crc,
            delay_levels_ms=settings.delay_levels_ms(),
            with_keys=settings.message_index_enable,
            window_bytes=window_bytes,
        )

    def _good(self, columns: RecordColumns) -> Iterator[Walked]:
        self.newest_ms = max(self.newest_ms, int(columns.store_timestamps.max()))
        self._last_ms = int(columns.store_timestamps[-1])
        queued = np.flatnonzero(columns.are_queued)
        if len(queued):
            self._last_queued_ms = int(columns.store_timestamps[queued[-1]])
        self.good_end = columns.stop
        for row in np.flatnonzero(columns.physical_offsets != columns.positions).tolist():
            position, stated_offset = int(columns.positions[row]), int(columns.physical_offsets[row])
            problem = self.finding(
                "wrong physical offset", position, f"the record lies at {position}, and says {stated_offset}"
            )
            yield from self._runs.add((problem.path, stated_offset - position), self._walked + row, problem)
        for number, topic in enumerate(columns.topics):
            if not has_topic_characters(topic):
                for row in np.flatnonzero(columns.topic_of == number).tolist():
                    detail = f"the record names the topic {topic!r}, which RocketMQ does not allow"
                    problem = self.finding("impossible topic", int(columns.positions[row]), detail)
                    yield from self._runs.add((problem.path, topic), self._walked + row, problem)
        self._walked += len(columns.positions)
        yield columns

    def _blank(self, blank: Blank, index: int) -> Generator[Walked, None, int | None]:
        file, at = self.files[index], blank.physical_offset
        if blank.size == file.end - at:
            self.good_end = file.end if index + 1 < len(self.files) else at
            return file.end
        detail = f"it says that {blank.size} bytes are left of the file; {file.end - at} are"
        following = self._next_whole(at, file)
        if following is not None:
            detail += f". A reader of the log skips the messages after it, from {following - file.base} on"
        yield self.finding("wrong blank record", at, detail)
        return file.end if following is None else following

    def _failure(self, failure: Failure, index: int) -> Generator[Walked, None, int | None]:
        at, file = failure.physical_offset, self.files[index]
        is_sum = isinstance(check(self.read, at, file.end), RecordHeader)
        is_over = is_sum and failure.resume_at is not None and not self.store_files.settings.check_crc_on_recover
        following = failure.resume_at if is_over else self._whole_after(failure, index)
        if following is None:
            end_kind = self._what_lies_at(at, index, is_sum=is_sum)
            self.end = End(at, end_kind, failure.reason)
            return None
        kind = failure.kind
        if not is_sum and following >= file.end and self._is_zero(at, file):
            kind, failure = "missing blank record", attrs.evolve(failure, reason="zeros up to the file's end")
        severity = self.severity(at)
        yield self.finding(kind, at, f"{failure.reason}. {self._cost(failure, is_sum)}", severity)
        if is_sum and failure.resume_at is not None:
            for item in self._columns(at, failure.resume_at, check_crc=False, window_bytes=WINDOW_BYTES):
                if isinstance(item, RecordColumns):
                    yield from self._good(item)
        return following

    # ── what follows ────────────────────────────────────────────────────────────────────────────────────────────

    def _whole_after(self, failure: Failure, index: int) -> int | None:
        """Where the next whole record after a bad one is."""
        if self._may_be_cut(failure.physical_offset) and self.dispatched_until <= failure.physical_offset:
            return None
        if failure.resume_at is not None and self._is_whole(failure.resume_at):
            return failure.resume_at
        places = (self._next_whole(failure.physical_offset + 1, file) for file in self.files[index:])
        return next((place for place in places if place is not None), None)

    def _may_be_cut(self, physical_offset: int) -> bool:
        """Whether an earlier recovery may have ended the log here: checkpoint and index name no later message."""
        is_last = self._last_queued_ms == self.store_files.checkpoint.logics_msg_timestamp != 0
        return is_last and not self.store_files.is_crashed and self.known_until < physical_offset

    def _is_missing(self, physical_offset: int) -> bool:
        """Whether a message with an entry is missing here that was there at the clean stop.

        RocketMQ's recovery leaves entries of what it cuts off, but that is newer than the checkpoint.
        """
        return self.points_at(physical_offset) and self._is_in_checkpoint(physical_offset)

    def _is_in_checkpoint(self, physical_offset: int) -> bool:
        """Whether a record is no newer than the checkpoint, as far as it can be read."""
        head = self.read(physical_offset, STORE_TIMESTAMP_STOP)
        is_readable = len(head) == STORE_TIMESTAMP_STOP and decode_physical_offset(head) == physical_offset
        return not is_readable or decode_store_timestamp(head) <= self.store_files.checkpoint.logics_msg_timestamp

    def _next_whole(self, start: int, file: MappedFile) -> int | None:
        """The next whole record of the file from ``start`` on: a sound one, not older than what came before."""
        handle = self.store_files.open(file.path)
        finder = RecordFinder(
            read=self.read, end=file.end, next_data=lambda at: file.base + handle.next_data(at - file.base)
        )
        positions = finder.positions(max(start, file.base), file.end)
        place = next((place for place in positions if self._is_recent(place)), None)
        is_misplaced = place is None and start <= file.base and self._is_of_another_place(file)
        return file.base if is_misplaced else place

    def _is_of_another_place(self, file: MappedFile) -> bool:
        """Whether a file begins with a record of another one; no crash leaves that."""
        first = self.look(file.base)
        return isinstance(first, Record) and first.physical_offset != file.base

    def _is_whole(self, physical_offset: int) -> bool:
        file = self.holding(physical_offset)
        is_sound = file is not None and RecordFinder(read=self.read, end=file.end).is_sound(physical_offset)
        return is_sound and self._is_recent(physical_offset)

    def _is_recent(self, physical_offset: int) -> bool:
        is_old = decode_store_timestamp(self.read(physical_offset, STORE_TIMESTAMP_STOP)) < self._last_ms
        is_cut_off = self._may_be_cut(physical_offset) and not self._is_in_checkpoint(physical_offset)
        return not (is_old or is_cut_off)

    def _what_lies_at(self, at: int, index: int, *, is_sum: bool) -> Literal["zeros", "record", "bytes"]:
        if is_sum or self.read(at + MAGIC_AT, len(MESSAGE_MAGIC_PREFIX)) == MESSAGE_MAGIC_PREFIX:
            return "record"
        return "zeros" if self._is_zero(at, self.files[index]) else "bytes"

    def _is_zero(self, start: int, file: MappedFile) -> bool:
        offsets = data_windows(self.store_files.open(file.path), start - file.base, file.size, _SEARCH_BYTES)
        windows = (self.store_files.read(file.path, min(_SEARCH_BYTES, file.size - at), at) for at in offsets)
        return all(data.count(0) == len(data) for data in windows)

    def files_after_end(self) -> Iterator[Finding]:
        """Files that begin at the log's end or after it, and the last one if it is short."""
        end, size = self.end, self.store_files.settings.mapped_file_size_commit_log
        yield from cut_short(
            self.files, size, ends_with_data=end.what != "zeros" or end.physical_offset == self.file_end
        )
        for file in self.files[1:]:
            if file.base >= self.end.physical_offset and file.base >= self.good_end:
                is_zero = self._is_zero(file.base, file)
                detail = "created ahead of need: zeros" if is_zero else "it begins after the log's end"
                kind = "leftover empty file" if is_zero else "leftover file"
                yield finding(kind, "leftover", file.path, None, detail)
