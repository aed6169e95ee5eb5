"""The CommitLog as it lies: every record is read, its sum compared, and what is no record is looked at.

Where a walk comes to bytes that are no record, the question is what stands behind them: a *whole record* there, one
that knows where it lies and is not older than what came before, means that the log is damaged in the middle, and the
walk goes on with it. Nothing behind them means the log's end: zeros; or what a crash left of the last write; or old
bytes, for cutting never wipes anything. A record that is older than those before it is such an old one.

RocketMQ's recovery sees less: it reads from a certain file on and ends the log at the first bad record. What that costs
is said with the damage.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal

import attrs
import numpy as np

from actors.engines.topics.topic_store import COMMIT_LOG
from msg_store.commit_log_format import (
    HEAD_BYTES,
    MESSAGE_MAGIC,
    Blank,
    Record,
    RecordError,
    decode,
    decode_store_timestamp,
    peek,
)
from msg_store.record_check import Failure, Outline, check
from msg_store.record_columns import RecordColumns, read_columns
from warren.salvage.queue_directory import Finding
from warren.salvage.rocketmq.verify_ground import Ground, MappedFile, finding, mapped_files

_WINDOW_BYTES: Final = 1 << 20
_MAGIC: Final = MESSAGE_MAGIC.to_bytes(4, "big")
_MAGIC_OFFSET: Final = 4
_PHYSICAL_OFFSET: Final = 28
_FIRST_BYTES: Final = HEAD_BYTES + 20 + 8
"""Of a record, up to its store timestamp."""
_CLEAN_FILES: Final = 3
"""Recovery after a clean stop reads so many."""


@attrs.frozen
class End:
    """Where the walk came to an end, and what lies behind it."""

    physical_offset: int
    what: Literal["zeros", "record", "bytes", "nothing"]
    """Zeros alone; what may have been a record; other bytes; no more room."""
    reason: str = ""
    """Why there is no good record."""


@attrs.define(eq=False)
class CommitLog:
    """One store's CommitLog; :meth:`walk` once, the rest at any time."""

    ground: Ground
    files: list[MappedFile]
    name_findings: list[Finding]
    has_index_until: int = -1
    """The physical offset up to which somebody says that there are messages; see :attr:`_is_believed`."""
    newest_ms: int = 0
    """Of the good records, when the last was stored."""
    record_count: int = 0
    good_end: int = 0
    """The physical offset behind the last good record or blank."""
    end: End = End(0, "nothing")
    cut: int | None = None
    """Where recovery ends the log, if that is ahead of its end."""

    @classmethod
    def of(cls, ground: Ground) -> CommitLog:
        files, findings = mapped_files(ground, ground.path(COMMIT_LOG), ground.settings.mapped_file_size_commit_log)
        return cls(ground, files, findings, good_end=files[0].base if files else 0)

    @property
    def min_offset(self) -> int:
        return self.files[0].base if self.files else 0

    @property
    def file_end(self) -> int:
        return self.files[-1].end if self.files else 0

    # ── single records ──────────────────────────────────────────────────────────────────────────────────────────

    def holding(self, physical_offset: int) -> MappedFile | None:
        """The file with this byte."""
        low, high = 0, len(self.files)
        while low < high:
            middle = (low + high) // 2
            if self.files[middle].base <= physical_offset:
                low = middle + 1
            else:
                high = middle
        file = self.files[low - 1] if low else None
        return file if file is not None and physical_offset < file.end else None

    def read(self, physical_offset: int, size: int) -> bytes:
        """Up to ``size`` bytes, not beyond the end of their file."""
        file = self.holding(physical_offset)
        if file is None:
            return b""
        return self.ground.read(file.path, min(size, file.end - physical_offset), physical_offset - file.base)

    def look(self, physical_offset: int) -> Record | str:
        """The record there, or why there is none."""
        file = self.holding(physical_offset)
        if file is None:
            return "the CommitLog has no such place"
        found = check(self.read, physical_offset, file.end)
        if isinstance(found, Outline):
            try:
                return decode(self.read(physical_offset, found.size))
            except RecordError as error:
                return str(error)
        return "a blank record lies there" if isinstance(found, Blank) else found.reason

    def place_of(self, physical_offset: int) -> tuple[str, int | None]:
        """The path and the file offset of a byte."""
        file = self.holding(physical_offset)
        return (self.ground.path(COMMIT_LOG), None) if file is None else (file.path, physical_offset - file.base)

    # ── recovery ────────────────────────────────────────────────────────────────────────────────────────────────

    def recovery_start(self) -> int:
        """Where RocketMQ's recovery begins to read."""
        bases = [file.base for file in self.files]
        if not self.ground.is_crashed:
            return bases[max(len(bases) - _CLEAN_FILES, 0)] if bases else 0
        return next((base for base in reversed(bases) if self._is_safe_before(base)), self.min_offset)

    def _is_safe_before(self, base: int) -> bool:
        data = self.read(base, _FIRST_BYTES)
        if len(data) < _FIRST_BYTES or peek(data, 0)[1] != MESSAGE_MAGIC:
            return False
        settings, bound = self.ground.settings, self.ground.checkpoint.min_timestamp
        if settings.message_index_enable and settings.message_index_safe:
            bound = min(bound, self.ground.checkpoint.index_msg_timestamp)
        return 0 != decode_store_timestamp(data) <= bound

    # ── the walk ────────────────────────────────────────────────────────────────────────────────────────────────

    def walk(self) -> Iterator[Finding | RecordColumns]:
        """Every good record by columns, those whose body alone is damaged too; between them what is wrong."""
        yield from self.name_findings
        index, start = 0, self.recovery_start()
        at = self.min_offset
        while index < len(self.files):
            file = self.files[index]
            for item in read_columns(
                self.read,
                max(at, file.base),
                file.end,
                check_crc=True,
                delay_levels_ms=self.ground.settings.delay_levels_ms(),
                with_keys=self.ground.settings.message_index_enable,
            ):
                if isinstance(item, RecordColumns):
                    yield from self._good(item)
                    at = item.stop
                    continue
                if isinstance(item, Blank) and item.size == file.end - item.physical_offset:
                    self.good_end = at = file.end
                    break
                following = yield from self._bad(item, index, start)
                if following is None:
                    return
                at = following
                break
            else:
                at = file.end
                if index + 1 < len(self.files):
                    detail = "records up to the last byte, and no blank record"
                    yield finding("missing blank record", "damage", file.path, None, detail)
            while index < len(self.files) and self.files[index].end <= at:
                index += 1
        self.end = End(self.good_end, "nothing")

    def _good(self, columns: RecordColumns) -> Iterator[Finding | RecordColumns]:
        self.newest_ms = max(self.newest_ms, int(columns.store_timestamps.max()))
        self.record_count += len(columns)
        self.good_end = columns.stop
        for row in np.flatnonzero(columns.physical_offsets != columns.positions).tolist():
            position, said = int(columns.positions[row]), int(columns.physical_offsets[row])
            path, offset = self.place_of(position)
            yield self._finding("wrong physical offset", path, offset, f"it says {said} and lies at {position}")
        yield columns

    def _bad(
        self, item: Blank | Failure, index: int, recovery_start: int
    ) -> Iterator[Finding | RecordColumns]:  # and returns where to go on, or None at the log's end
        ...
