"""The journal's file, and what waits to be written to it.

What waits is the data that records are made from, so dropped records are never made. The file is created with the first
record; its directory names the owner before any of the queue's files is in it.

After a failed write or sync it is unknown how much of it is on the disk: everything is refused then
(:class:`Writing`). Appending after a torn record would make all later records unreadable, and a later
successful fsync proves nothing about the failed one. The files are consistent: recover from them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import Any

from warren.queue_index.index import directory as names
from warren.queue_index.index.record_format import journal_shorts_of
from warren.queue_index.index.record_matrix import ColumnRecords, RecordMatrix
from warren.storage.errors import DiskFullError, NoRoomError, StorageError
from warren.storage.filesystem import File, FileSystem, append_whole, write_file
from warren.storage.pieces import Piece, gathered

Part = bytes | ColumnRecords | tuple[int, range]
"""A part of the journal that waits to be written: records, or what they are made from; for short records, their kind
and their seq_ids."""


class JournalFile:
    """The journal's file in the directory ``path``. ``owner``: vhost and queue."""

    __slots__ = (
        "_file",
        "_files",
        "_matrix",
        "_named",
        "_owner",
        "_synced",
        "_syncs",
        "_waiting",
        "failure",
        "path",
    )

    def __init__(
        self,
        files: FileSystem,
        path: str,
        owner: tuple[bytes, bytes],
        matrix: RecordMatrix,
        *,
        sync: bool,
        synced: dict[str, bool],
    ) -> None:
        """``synced``: the paths of directories that are known to name their owner, and whether the names are synced."""
        self._files = files
        self.path = path
        self._owner = owner
        self._matrix = matrix
        self._syncs = sync
        self._synced = synced
        self._named = False
        """Whether the directory has its name, and all that the file needs to survive is synced."""
        self._file: File | None = None
        self._waiting: list[Part] = []
        self.failure: StorageError | None = None
        """Why everything is refused."""

    def append(self, parts: Iterable[Part]) -> None:
        """Let parts wait."""
        if self._file is None:
            with contextlib.suppress(NoRoomError):  # what waits to be written waits on
                self.open()
        self._waiting += parts

    def write(self, records: Sequence[bytes] = ()) -> None:
        """Write what waits, then these records."""
        parts: list[Any] = [*self._waiting, *records]
        if not parts:
            return
        file = self.open() if self._file is None else self._file
        if set(map(type, parts)) == {bytes}:
            append_whole(file, (parts,))
        else:
            append_whole(file, ((piece,) for piece in gathered(map(self._made, parts))))
        self._waiting.clear()

    def _made(self, part: Part) -> Piece:
        """The records of a part; to be used before the next call."""
        if isinstance(part, bytes):
            return part
        if isinstance(part, ColumnRecords):
            return self._matrix.journal_bytes(part)
        return journal_shorts_of(part[0], (part[1],))

    def sync(self) -> None:
        """Sync the file, with what was written before a :meth:`release` too."""
        if self._syncs:
            file = self.open() if self._file is None else self._file
            file.sync()

    def empty(self) -> None:
        """Drop everything: the segments say it."""
        file = self.open()
        self._waiting.clear()
        file.truncate(0)
        self.sync()

    def continue_at(self, size: int, records: bytes = b"") -> None:
        """Continue the journal that a stop left, after its first ``size`` bytes; the rest are not records.

        ``records`` are written at once; the index knows their contents, or will.
        """
        file = self.open()
        if size < file.size():
            file.truncate(size)
        if records:
            self._waiting.append(records)
            with contextlib.suppress(NoRoomError), Writing(self):
                self.write()

    def open(self) -> File:
        """Return the file, opening or creating it if necessary."""
        if self._file is None:
            try:
                self._file = self._opened()
            except DiskFullError as error:
                raise NoRoomError(str(error)) from error
        return self._file

    def _opened(self) -> File:
        files, journal_path = self._files, f"{self.path}/{names.JOURNAL_NAME}"
        syncs = self._syncs and not self._named
        if not self._named:
            self._name_directory()
        is_kept = not syncs or (self._synced.get(self.path, False) and files.exists(journal_path))
        file = files.open_append(journal_path)
        try:
            if not is_kept:
                files.sync_directory(self.path)
            if syncs and self.path not in self._synced:
                files.sync_directory(self.path.rpartition("/")[0])
        except BaseException:
            self._synced.pop(self.path, None)
            file.close()
            raise
        if not self._named:
            self._synced[self.path] = syncs
        self._named = True
        return file

    def _name_directory(self) -> None:
        """Make sure that the directory exists and names its owner before any of the queue's files is in it."""
        name_path = f"{self.path}/{names.QUEUE_NAME_FILE}"
        if self.path not in self._synced and not self._files.exists(name_path):
            self._files.make_directories(self.path)
            write_file(self._files, name_path, names.queue_name_file(*self._owner), sync=self._syncs)
        elif self._syncs and not self._synced.get(self.path):  # the process that named it may have synced nothing
            with contextlib.closing(self._files.open_append(name_path)) as name_file:
                name_file.sync()
            if not self._files.exists(f"{self.path}/{names.JOURNAL_NAME}"):
                self._files.sync_directory(self.path)

    def release(self) -> None:
        """Close the file, unless something waits."""
        if not self._waiting:
            self._close()

    def abandon(self) -> None:
        """Close the file and drop what waits, as a crash of the process would."""
        self._waiting.clear()
        self._named = False
        self._synced.pop(self.path, None)
        self._close()

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


class Writing:
    """Refuses after a failed write or sync of a journal, and notes one that fails now. A full disk is no failure."""

    __slots__ = ("_journal",)

    def __init__(self, journal: JournalFile) -> None:
        self._journal = journal

    def __enter__(self) -> None:
        failure = self._journal.failure
        if failure is not None:
            raise StorageError(f"{self._journal.path}: unusable since: {failure}") from failure

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if isinstance(error, StorageError) and not isinstance(error, NoRoomError):
            self._journal.failure = error
