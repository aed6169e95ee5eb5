"""Mapped files: a long row of bytes in files of one fixed size, each named by the logical offset of its first byte.

RocketMQ keeps its CommitLog and its ConsumeQueues so. A file has its full size from the start, all zeros (and sparse:
what was never written takes no room); its name is 20 digits. The files do not say where the valid bytes end: their
owner finds the end (recovery) and keeps it.

Invariant: every file has the one size. A directory whose files do not is refused as a whole, as RocketMQ does.

Any number of threads may read while one writes.
"""

from __future__ import annotations

from bisect import bisect_right

import attrs

from warren.storage.errors import DataError, DiskFullError
from warren.storage.filesystem import File, FileSystem, delete_half_copies, replace_by_copy, retryable

NAME_DIGITS = 20

WRONG_LENGTH = "wrong file length"
"""Kind of a finding, whose detail :func:`wrong_length` says."""


def file_name(base: int) -> str:
    """The name of the file whose first byte is at logical offset ``base``."""
    return f"{base:0{NAME_DIGITS}d}"


def parse_file_name(name: str) -> int | None:
    """The logical offset that a name stands for; ``None`` if it is not a mapped file's name."""
    return int(name) if len(name) == NAME_DIGITS and name.isascii() and name.isdigit() else None


def wrong_length(size: int, file_size: int) -> str:
    """Return the error for a file of ``size`` bytes."""
    return f"{size} bytes, and not {file_size} as the settings say"


def missing_file(start: int, stop: int) -> str:
    """Return the error for a gap between two logical offsets."""
    return f"no file for the {stop - start} bytes from {start} to {stop}"


@attrs.define(eq=False, repr=False)
class MappedFiles:
    """The files of one directory; made by :meth:`load`."""

    files: FileSystem
    directory: str
    file_size: int
    bases: list[int] = attrs.Factory(list)
    """Logical offsets of the files' first bytes, ascending. Replaced, never changed: readers may hold an older list."""
    writable: bool = True
    _handles: dict[int, File] = attrs.Factory(dict)
    _unsynced: set[int] = attrs.Factory(set)
    _unsynced_names: bool = False

    @classmethod
    def load(
        cls, files: FileSystem, directory: str, file_size: int, *, writable: bool = True, lengthen: bool = False
    ) -> MappedFiles:
        """Load the existing files. Raises :class:`DataError` if a file is not ``file_size`` bytes long.

        ``lengthen``: a power loss may have left files too short; they get their zeros here.
        """
        if writable:
            delete_half_copies(files, directory, lambda name: parse_file_name(name) is not None)
        bases = sorted(base for name in files.list(directory) if (base := parse_file_name(name)) is not None)
        mapped = cls(files, directory, file_size, bases, writable)
        for base in bases:
            size = files.size(mapped.path(base))
            if size < file_size and lengthen:
                mapped._unsynced.add(base)
                mapped._handle(base).truncate(file_size)
            elif size != file_size:
                raise DataError(mapped.path(base), None, f"{WRONG_LENGTH}: {wrong_length(size, file_size)}")
        return mapped

    @property
    def min_offset(self) -> int:
        """The first byte of the first file; 0 without files."""
        return self.bases[0] if self.bases else 0

    @property
    def file_end(self) -> int:
        """The logical offset after the last file."""
        return self.bases[-1] + self.file_size if self.bases else 0

    def path(self, base: int) -> str:
        """The path of the file that begins at ``base``."""
        return f"{self.directory}/{file_name(base)}"

    def holding(self, offset: int) -> int | None:
        """The base of the file that holds the byte at ``offset``; ``None`` if no file does."""
        bases = self.bases
        index = bisect_right(bases, offset) - 1
        return bases[index] if index >= 0 and offset < bases[index] + self.file_size else None

    def after(self, base: int) -> int | None:
        """The base of the next existing file."""
        bases = self.bases
        index = bisect_right(bases, base)
        return bases[index] if index < len(bases) else None

    def read(self, offset: int, size: int) -> bytes:
        """Up to ``size`` bytes from ``offset``, not beyond the end of its file; empty if there is no file."""
        base = self.holding(offset)
        if base is None:
            return b""
        handle, left = self._handles.get(base) or self._handle(base), base + self.file_size - offset
        return handle.pread(size if size < left else left, offset - base)

    def write(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Write ``data`` at ``offset``, within one file, which must exist.

        Raises :class:`NoRoomError` if the disk is full; a part of the data may be in the file then.
        """
        base = self.holding(offset)
        if base is None or offset + len(data) > base + self.file_size:
            raise RuntimeError(f"{len(data)} bytes at {offset} do not lie in one file of {self.directory}")
        self._unsynced.add(base)
        with retryable():
            self._handle(base).pwrite(data, offset - base)

    def add(self, base: int) -> None:
        """Make the file that begins at ``base``: zeros."""
        if self.holding(base) is not None or self.holding(base + self.file_size - 1) is not None:
            raise RuntimeError(f"{self.path(base)} would overlap another file")
        with retryable():
            if not self.bases:
                self.files.make_directories(self.directory)
            handle = self.files.open_append(self.path(base))
            try:
                handle.truncate(self.file_size)
            except DiskFullError:
                handle.close()
                self.files.delete(self.path(base))
                raise
        self._handles[base] = handle
        self._unsynced.add(base)
        self._unsynced_names = True
        self.bases = sorted([*self.bases, base])

    def delete(self, base: int) -> None:
        """Delete the file that begins at ``base``."""
        self.bases = [other for other in self.bases if other != base]
        self._unsynced.discard(base)
        handle = self._handles.pop(base, None)
        if handle is not None:
            handle.close()
        self._unsynced_names = True
        self.files.delete(self.path(base))

    def clear_from(self, offset: int) -> None:
        """Zero the bytes from ``offset`` on in its file: cut them off and extend the file again."""
        base = self.holding(offset)
        if base is not None:
            self._unsynced.add(base)
            self._handle(base).truncate(offset - base)
            self._handle(base).truncate(self.file_size)

    def write_anew(self, base: int, end: int) -> None:
        """Replace the file that begins at ``base`` by a synced copy of it up to the logical offset ``end``."""
        handle = self._handles.pop(base, None)
        if handle is not None:
            handle.close()
        replace_by_copy(self.files, self.path(base), min(end - base, self.file_size), self.file_size)

    @property
    def has_unsynced(self) -> bool:
        return bool(self._unsynced) or self._unsynced_names

    def sync(self) -> None:
        """Make all writes survive a power loss, names included."""
        for base in sorted(self._unsynced):
            self._handle(base).sync()
            self._unsynced.discard(base)
        if self._unsynced_names:
            self.files.sync_directory(self.directory)
            self._unsynced_names = False

    def close(self) -> None:
        """Close the files; nothing is synced."""
        handles, self._handles = self._handles, {}
        for handle in handles.values():
            handle.close()

    def _handle(self, base: int) -> File:
        handle = self._handles.get(base)
        if handle is None:
            opened = self.files.open_append if self.writable else self.files.open_read
            handle = opened(self.path(base))
            registered = self._handles.setdefault(base, handle)
            if registered is not handle:  # another thread was first
                handle.close()
            handle = registered
        return handle
