"""The CommitLog: the messages of all topics, one after the other, in the order of their arrival.

Its bytes lie in :class:`warren.storage.mapped_files.MappedFiles`; a record never crosses from one file into the next. A
message is known by its *physical offset*, the logical offset of its record. ``end`` is where the next record goes: the
files do not say it; recovery finds it and calls :meth:`CommitLog.set_end`. Up to ``flushed_end`` everything survives a
power loss.

Appending. A record must leave 8 bytes free after it in its file; if it does not fit, a *blank record* fills the file
and the next file is made. So every full file ends in a blank. A message larger than a file (or a batch that goes as
one) leaves two blanks and is not stored: the original does so too, and calls it END_OF_FILE.

Old bytes may lie after ``end``: they stay, unless a write fails there (what it left is cut off before the next one)
or :meth:`CommitLog.clear_behind_end` is called.

A crash leaves a prefix of what was appended, perhaps with a torn record at its end or, after a power loss, with holes,
which all lie after ``flushed_end``. A file's name and length are on the disk before data is written into it, and files
go one at a time from either end, so none is ever missing between two others, and only the last can be too short.

After an fsync that failed nothing tells which bytes are on the disk: ``failure`` says so, and nothing more is written.

Any number of threads may read while one writes.
"""

from __future__ import annotations

import posixpath
import struct
from collections.abc import Callable, Iterator
from typing import Final, Literal

import attrs
import numpy as np
import numpy.typing as npt

from warren.msg_store.commit_log.commit_log_expiry import Hold, expired_files
from warren.msg_store.commit_log.commit_log_format import (
    BLANK_HEADER_BYTES,
    BLANK_MAGIC,
    MESSAGE_MAGICS,
    STORE_TIMESTAMP_STOP,
    Blank,
    Record,
    RecordError,
    decode,
    decode_store_timestamp,
    encode_blank,
    peek,
)
from warren.msg_store.commit_log.message_batch import (
    Batch,
    Measured,
    MessageIllegalError,
    PropertiesSizeExceededError,
    measure,
)
from warren.msg_store.commit_log.packed_records import PackedRecords, pack_unchecked
from warren.msg_store.commit_log.record_check import Failure
from warren.msg_store.commit_log.record_columns import ColumnRequest, RecordColumns
from warren.msg_store.commit_log.record_encoding import AppendPosition, RecordEncoder, begins
from warren.msg_store.commit_log.record_scan import scan_columns, scan_records
from warren.storage.errors import DataError, StorageError
from warren.storage.filesystem import FileSystem
from warren.storage.mapped_files import MappedFiles
from warren.storage.topic_settings import TopicSettings

__all__ = [
    "Appended",
    "Batch",
    "Blank",
    "CommitLog",
    "Failure",
    "MessageIllegalError",
    "PropertiesSizeExceededError",
    "Record",
]

_FIRST_READ_BYTES: Final = 1024
"""The first read of a record of unknown size. Most are not larger; a larger one is read again as a whole."""

Status = Literal["PUT_OK", "END_OF_FILE"]


@attrs.frozen(eq=False, repr=False)
class Appended:
    """Where the messages of a batch went. ``END_OF_FILE``: nowhere, they are larger than a file."""

    physical_offsets: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int32]
    queue_offset: int
    """Of the first; the others follow. 0 for messages that take no number of their queue."""
    status: Status = "PUT_OK"


@attrs.define(eq=False, repr=False)
class CommitLog:
    """The log of one store; made by :meth:`load`."""

    mapped: MappedFiles
    settings: TopicSettings
    end: int
    """The highest physical offset: where the next record goes. All that the files hold, until recovery sets it."""
    flushed_end: int
    last_store_timestamp: int = 0
    """Of the last message appended in this process; 0 before the first."""
    flushed_store_timestamp: int = 0
    """Of the last message that was appended before the last flush."""
    failure: str | None = None
    appended: int = attrs.field(default=0, init=False)
    """How many messages of its batch the last append has written, also if it failed then."""
    _torn_end: int = 0
    """How far a failed write may have come; unused unless it is beyond ``end``."""
    _doubtful: set[int] = attrs.Factory(set)
    """Files that a previous process may have left unsynced, or whose length changed: a flush syncs them, and no new
    file is made before that."""
    _encoder: RecordEncoder = attrs.Factory(RecordEncoder)

    @classmethod
    def load(
        cls,
        files: FileSystem,
        directory: str,
        settings: TopicSettings,
        *,
        writable: bool = True,
        lengthen: bool = False,
    ) -> CommitLog:
        """Load the log in ``directory``. Raises :class:`DataError` if a file's length differs from the settings.

        ``lengthen``: allow a last file that is too short, as a crash may leave it.
        """
        size = settings.mapped_file_size_commit_log
        mapped = MappedFiles.load(files, directory, size, writable=writable, lengthen=lengthen)
        doubtful = set(mapped.bases) if writable else set()
        return cls(mapped, settings, mapped.file_end, mapped.min_offset, doubtful=doubtful)

    @property
    def min_offset(self) -> int:
        """The first byte in the log; 0 without files."""
        return self.mapped.min_offset

    def set_end(self, end: int) -> None:
        """Move the end of the log. Files that begin after it are deleted; nothing else changes but the position."""
        if not self.min_offset <= end <= self.mapped.file_end:
            raise ValueError(
                f"{self.mapped.directory} reaches from {self.min_offset} to {self.mapped.file_end}, not {end}"
            )
        self.end, self._torn_end = end, 0
        self.flushed_end = min(self.flushed_end, end)
        for base in [base for base in reversed(self.mapped.bases) if base > end]:
            self._delete(base)

    def clear_behind_end(self) -> None:
        """Zero the old bytes after the end, so that nothing that was cut off can ever come back; synced.

        warren's own: RocketMQ keeps them, and finds them again after the next crash if the data written over them ends
        where an old record begins.
        """
        self._must_work()
        if self.mapped.holding(self.end) is not None:
            self.mapped.clear_from(self.end)
            self._sync()

    # Appending

    def append(self, batch: Batch, queue_offset: int, store_timestamp: int) -> Appended:
        """Write the batch; its messages are number ``queue_offset`` and the following of their queue.

        Raises :class:`MessageIllegalError` (nothing was written) if RocketMQ refuses a message, and
        :class:`StorageError` if the system refuses. Then nothing was appended, except perhaps the first messages of a
        batch that does not go as one. After a :class:`NoRoomError` the log goes on; ``appended`` says how many.
        """
        self._must_work()
        measured = measure(batch, self.settings.max_message_size)
        count, appended = len(measured), 0
        self.appended = 0
        first = queue_offset if batch.is_queued else 0
        offsets = np.empty(count, np.int64)
        if count > 1 and not batch.as_one and measured.largest > self._largest_record:
            raise MessageIllegalError(f"{batch.topic}: a message is larger than a file of the CommitLog")
        while appended < count:
            fitting = self._make_room(measured, appended)
            if not fitting:
                return Appended(offsets[:0], measured.sizes[:0], first, "END_OF_FILE")
            position = AppendPosition(self.end, first + appended * batch.is_queued, store_timestamp)
            sizes = measured.sizes[appended : appended + fitting]
            data = self._encoder.encode(measured, appended, appended + fitting, position)
            offsets[appended : appended + fitting] = begins(position.physical_offset, sizes, measured.size)
            self._write(data)
            self.last_store_timestamp = store_timestamp
            self.appended = appended = appended + fitting
        return Appended(offsets, measured.sizes, first)

    @property
    def _largest_record(self) -> int:
        return self.mapped.file_size - BLANK_HEADER_BYTES

    def _make_room(self, measured: Measured, start: int) -> int:
        """Move the end to where records from the ``start``-th on fit; return how many, 0 if a file is too small."""
        for _ in range(2):
            room = self._file_at_end() + self.mapped.file_size - self.end
            fitting = measured.fitting(start, room - BLANK_HEADER_BYTES)
            if fitting:
                return fitting
            self._write_blank(room)
        return 0

    def _file_at_end(self) -> int:
        """Return the base of the file that holds the end; make the file if it is missing."""
        base = self.mapped.holding(self.end)
        if base is None:
            if self._doubtful:
                self._sync()
            base = self.end - self.end % self.mapped.file_size if not self.mapped.bases else self.mapped.file_end
            self.mapped.add(base)
            self._sync_file(base)
        return base

    def _write_blank(self, room: int) -> None:
        if room < BLANK_HEADER_BYTES:
            reason = f"the log ends {room} bytes before the file does: no room for a blank record"
            raise self._error(self.end, reason)
        self._write(encode_blank(room), room)

    def _write(self, data: bytes | memoryview, size: int | None = None) -> None:
        """Write ``data`` at the end, and advance the end by ``size`` bytes (default: the length of ``data``)."""
        if self._torn_end > self.end:
            self.mapped.clear_from(self.end)
            self._doubtful.add(self._file_at_end())
        self._torn_end = self.end + len(data)
        self.mapped.write(self.end, data)
        self.end += len(data) if size is None else size
        self._torn_end = 0

    # Reading

    def read(self, physical_offset: int, size: int) -> bytes:
        """Up to ``size`` bytes; fewer where the log or the file ends, or where the offset is not in the log."""
        available = self.end - physical_offset
        if available <= 0 or size <= 0 or physical_offset < 0:
            return b""
        return self.mapped.read(physical_offset, size if size < available else available)

    def record(self, physical_offset: int, size: int | None = None) -> Record:
        """The record that begins there; ``size``: its size, if known.

        Raises :class:`DataError` if there is no record, or one of another size. The caller checks the CRC.
        """
        data = self.read(physical_offset, _FIRST_READ_BYTES if size is None else size)
        data = self._record_data(physical_offset, data, size)
        try:
            return decode(data)
        except RecordError as error:
            raise self._error(physical_offset, str(error)) from None

    def packed(self, physical_offset: int) -> tuple[PackedRecords, bool]:
        """Return the same record, encoded, and whether its body matches its checksum."""
        data = self.read(physical_offset, _FIRST_READ_BYTES)
        try:
            return pack_unchecked(data)
        except RecordError:
            data = self._record_data(physical_offset, data)  # a longer record, or not a record
        try:
            return pack_unchecked(data)
        except RecordError as error:
            raise self._error(physical_offset, str(error)) from None

    def _record_data(self, physical_offset: int, data: bytes, size: int | None = None) -> bytes:
        """All of the record that begins with ``data``, and perhaps more."""
        if len(data) < BLANK_HEADER_BYTES:
            raise self._error(physical_offset, f"the log, from {self.min_offset} to {self.end}, has no record there")
        record_size, magic = peek(data, 0)
        if magic == BLANK_MAGIC:
            raise self._error(physical_offset, "a blank record instead of a message")
        if magic not in MESSAGE_MAGICS:
            raise self._error(physical_offset, f"no record begins here: its magic is 0x{magic:08X}")
        if size is not None and record_size != size:
            raise self._error(physical_offset, f"the record's size is {record_size}, not {size}")
        return self.read(physical_offset, record_size) if record_size > len(data) else data

    def store_timestamp_of(self, physical_offset: int, size: int) -> int | None:
        """When the message there, of ``size`` bytes, was stored; ``None`` if it cannot be read."""
        base = self.mapped.holding(physical_offset)
        if base is None or size < 0 or physical_offset + size > min(self.end, base + self.mapped.file_size):
            return None
        data = self.mapped.read(physical_offset, min(size, STORE_TIMESTAMP_STOP))
        try:
            store_timestamp = decode_store_timestamp(data)
        except struct.error:
            return None
        return store_timestamp if store_timestamp >= 0 else None

    def items(self, start: int, stop: int | None = None) -> Iterator[Record | Blank | Failure]:
        """Yield the records from ``start`` to ``stop`` (or the end), both record boundaries, in physical order.

        After a failure the scan continues where RocketMQ's dispatch does.
        """
        return scan_records(self.mapped, start, self.end if stop is None else stop)

    def columns(
        self,
        start: int,
        stop: int | None = None,
        *,
        check_crc: bool = False,
        delay_levels_ms: tuple[int, ...] = (),
        with_keys: bool = True,
        with_codes: bool = True,
    ) -> Iterator[RecordColumns | Blank | Failure]:
        """The same by columns, many records at a time. What can be asked for: :class:`ColumnRequest`."""
        stop = self.end if stop is None else stop
        request = ColumnRequest(
            check_crc=check_crc, delay_levels_ms=delay_levels_ms, with_keys=with_keys, with_codes=with_codes
        )
        return scan_columns(self.mapped, start, stop, request)

    # The disk

    @property
    def has_unflushed(self) -> bool:
        return self.flushed_end < self.end

    def flush(self) -> int:
        """Make everything that was appended survive a power loss; returns the end of that."""
        self._must_work()
        end, timestamp = self.end, self.last_store_timestamp
        self._sync()
        self.flushed_end, self.flushed_store_timestamp = end, timestamp
        return end

    def expire(
        self, now_ms: int, hour: int, disk_used_percent: float, hold: Callable[[int], Hold] = lambda _: "not held"
    ) -> list[int]:
        """Delete the files that are old enough, or in the way; returns their bases. ``hour``: of the local day.

        ``hold``: see :mod:`warren.msg_store.commit_log.commit_log_expiry`.
        """
        files, mapped = self.mapped.files, self.mapped
        times = [(base, files.modified_ms(mapped.path(base))) for base in mapped.bases]
        expired = expired_files(times, self.settings, now_ms, hour, disk_used_percent, hold=hold)
        for base in expired:
            self._delete(base)
        self.flushed_end = max(self.flushed_end, self.min_offset)
        return expired

    def close(self) -> None:
        """Close the files; nothing is flushed."""
        self.mapped.close()

    def check_invariants(self) -> None:
        """Raise ``RuntimeError`` if positions and files contradict each other."""
        mapped = self.mapped
        if not mapped.min_offset <= self.flushed_end <= self.end <= mapped.file_end:
            positions = f"{mapped.min_offset} ≤ {self.flushed_end} ≤ {self.end} ≤ {mapped.file_end}"
            raise RuntimeError(f"{mapped.directory}: not {positions}")
        if any(base > self.end for base in mapped.bases):
            raise RuntimeError(f"{mapped.directory}: a file begins after the end, {self.end}")
        if any(later - base < mapped.file_size for base, later in zip(mapped.bases, mapped.bases[1:], strict=False)):
            raise RuntimeError(f"{mapped.directory}: files overlap")

    def _delete(self, base: int) -> None:
        """Delete a file permanently, before the next one is deleted; a read-only log only forgets it."""
        self._doubtful.discard(base)
        if self.mapped.writable:
            self.mapped.delete(base)
            self.mapped.files.sync_directory(self.mapped.directory)
        else:
            self.mapped.bases = [other for other in self.mapped.bases if other != base]

    def _sync(self) -> None:
        try:
            for base in sorted(self._doubtful):
                self._sync_file(base)
                self._doubtful.discard(base)
            self.mapped.sync()
        except StorageError as error:
            self.failure = f"an fsync failed: {error}"
            raise

    def _sync_file(self, base: int) -> None:
        """A file as it is, and its name, and its directory's."""
        handle = self.mapped.files.open_append(self.mapped.path(base))
        try:
            handle.sync()
        finally:
            handle.close()
        self.mapped.files.sync_directory(self.mapped.directory)
        self.mapped.files.sync_directory(posixpath.dirname(self.mapped.directory))

    def _must_work(self) -> None:
        if self.failure is not None:
            raise StorageError(f"{self.mapped.directory}: {self.failure}")

    def _error(self, physical_offset: int, reason: str) -> DataError:
        base = self.mapped.holding(physical_offset)
        if base is None:
            return DataError(self.mapped.directory, None, f"at {physical_offset}: {reason}")
        return DataError(self.mapped.path(base), physical_offset - base, reason)
