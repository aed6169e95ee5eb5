"""The file-system interface: all disk operations of warren, as two small protocols.

Nothing here depends on a file format. Engines receive a :class:`FileSystem`; the real one is below, one in memory that
injects faults is in :mod:`warren.storage.memory`.

Terms. A write is *issued* when ``append`` or ``pwrite`` returns: it survives the process, not the machine. It is
*synced* when ``sync`` of that file has returned. A name (a file created, renamed or deleted) is synced when
``sync_directory`` of its directory has returned.

Paths are strings with ``/``; a path is whatever the file system was given, so relative ones work.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, Protocol, runtime_checkable

from warren.storage import own_files
from warren.storage.descriptors import DescriptorCache
from warren.storage.errors import DirectoryLockedError, DiskFullError, NoRoomError, StorageError
from warren.storage.lock_file import RealLock
from warren.storage.real_file import RealFile, refused

BESIDE: Final = ".new"
"""The suffix of a file that will replace the file without it."""

FAILED: Final = ".failed"
"""The suffix of the empty file that marks a failed sync of the file or directory next to it."""

_COPY_BYTES: Final = 1 << 16
_DYING_ROUNDS: Final = 500
_DYING_PAUSE_S: Final = 0.002
"""A process that was killed has let go of all that it had by then."""


class File(Protocol):
    """An open file. Reads go by position, writes to the end or (compaction only) to a position.

    A file has one writer at a time and any number of readers. A write that failed may have left a prefix of its data.
    """

    @property
    def end(self) -> int:
        """The offset of the next append: the size, as the writer knows it."""

    def append(self, data: bytes | bytearray | memoryview) -> int:
        """Write ``data`` at the end; returns the offset at which it begins."""

    def appendv(self, pieces: Sequence[bytes | bytearray | memoryview]) -> int:
        """:meth:`append` of consecutive pieces, as one write: all of them are copied once at most.

        A view's items are single bytes.
        """

    def pwrite(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        """Write ``data`` at ``offset``, extending the file (with zeros) where needed."""

    def pread(self, size: int, offset: int) -> bytes:
        """Up to ``size`` bytes from ``offset``; fewer only at the end of the file."""

    def next_data(self, offset: int) -> int:
        """Where, from ``offset`` on, a hole of a sparse file ends: ``offset`` itself in none, the size in the last."""

    def truncate(self, size: int) -> None:
        """Cut the file to ``size`` bytes, or extend it with zeros."""

    def size(self) -> int:
        """The size of the file, with issued writes."""

    def sync(self) -> None:
        """Make every issued write of this file survive a power loss."""

    def close(self) -> None:
        """Give the file up; closing twice is allowed."""


class Lock(Protocol):
    """A held lock; given up by ``release`` or ``remove``, or with the process. Giving it up twice is allowed."""

    @property
    def in_place(self) -> bool:
        """Whether the lock is held, and its file was not moved: the directory was not removed or replaced."""

    def release(self) -> None:
        """Give it up as a crash would: the lock file stays."""

    def remove(self) -> None:
        """Remove the lock file, if it is in place, and give the lock up."""


@runtime_checkable
class FileSystem(Protocol):
    """What an engine may do to a disk. Every method raises :class:`StorageError` if the system refuses."""

    def open_append(self, path: str) -> File:
        """Open for reading and writing; creates the file, empty, if it is missing."""

    def open_read(self, path: str) -> File:
        """Open for reading only; a missing file is an error."""

    def read(self, path: str) -> bytes:
        """The whole file."""

    def rename(self, source: str, target: str) -> None:
        """Give a file another name, replacing what had it."""

    def delete(self, path: str) -> None:
        """Delete a file; a missing one is an error."""

    def delete_tree(self, path: str) -> None:
        """Delete a directory and everything in it; a missing one is not an error."""

    def list(self, path: str) -> list[str]:
        """Return the names in a directory, sorted; empty if the directory is missing."""

    def exists(self, path: str) -> bool: ...

    def is_directory(self, path: str) -> bool: ...

    def size(self, path: str) -> int:
        """Bytes in the file of that name."""

    def modified_ms(self, path: str) -> int:
        """When the file of that name was last written: milliseconds since 1970."""

    def make_directories(self, path: str) -> None:
        """Create a directory and those above it, their user's alone; existing ones are fine."""

    def sync_directory(self, path: str) -> None:
        """Make the names in a directory survive a power loss."""

    def lock(self, path: str, owner: str) -> Lock:
        """Take the lock file ``path`` for this process, writing ``owner`` into it.

        Raises :class:`DirectoryLockedError`, with what the present owner wrote, if another owner holds it.
        """


def sync_directories_above(files: FileSystem, path: str) -> None:
    """Sync every directory that ``make_directories(path)`` may have made an entry in: no power loss takes them back."""
    while path not in ("", "/", "."):
        path = path.rpartition("/")[0] or ("/" if path.startswith("/") else ".")
        files.sync_directory(path)


def remove_tree(files: FileSystem, path: str, *, sync: bool) -> None:
    """Delete a directory with all that is in it; with ``sync`` no power loss brings it back, or a part of it."""
    files.delete_tree(path)
    parent = os.path.dirname(path)
    if sync and files.is_directory(parent):  # even if it was gone: a dead process syncs nothing
        files.sync_directory(parent)


def write_file(files: FileSystem, path: str, data: bytes, *, sync: bool) -> None:
    """Replace the file at ``path`` by ``data`` in one step: a reader sees either the old bytes or the new ones."""
    files.rename(write_beside(files, path, data, sync=sync), path)
    if sync:
        files.sync_directory(os.path.dirname(path))


def write_beside(files: FileSystem, path: str, data: bytes, *, sync: bool, suffix: str = BESIDE) -> str:
    """Write the bytes that are to be the file at ``path``; returns its path until then, which ends in ``suffix``."""
    return make_beside(files, path, lambda file: append_whole(file, ((data,),)), sync=sync, suffix=suffix)


def make_beside(
    files: FileSystem, path: str, write: Callable[[File], object], *, sync: bool, suffix: str = BESIDE
) -> str:
    """Call ``write`` for a file that is to replace the one at ``path``; return its path until then.

    If that fails, the new file is removed: on a full disk it would waste room.
    """
    scratch = path + suffix
    try:
        handle = files.open_append(scratch)
        try:
            if handle.end:  # left by a crash
                handle.truncate(0)
            write(handle)
            if sync:
                handle.sync()
        finally:
            handle.close()
    except StorageError:
        with contextlib.suppress(StorageError):
            files.delete(scratch)
        raise
    return scratch


def replace_by_copy(files: FileSystem, path: str, end: int, size: int) -> None:
    """Replace a file by a copy, in one step, and safely: its first ``end`` bytes, then zeros up to ``size``.

    For files whose sync has failed. What is read from them may be in memory alone, and a later sync does not write
    it to the disk. Overwriting in place does not help either: blocks whose first write failed stay "unwritten" in
    ext4, and are zeros after a power loss.
    """
    source = files.open_read(path)

    def copy(target: File) -> None:
        for at in data_windows(source, 0, end, _COPY_BYTES):
            target.pwrite(source.pread(min(_COPY_BYTES, end - at), at), at)
        target.truncate(size)

    try:
        scratch = make_beside(files, path, copy, sync=True)
    finally:
        source.close()
    files.rename(scratch, path)
    files.sync_directory(os.path.dirname(path))


def note_failed_sync(files: FileSystem, path: str) -> None:
    """Record next to a file, or next to its directory, that a sync has failed.

    The next reader, in this process or another one, then knows that what it reads may be in memory alone. The note
    need not survive a power loss: after one, reads return what the disk has.
    """
    with contextlib.suppress(StorageError):
        files.open_append(path + FAILED).close()


def take_failed_sync_back(files: FileSystem, path: str) -> None:
    """Remove the note of a failed sync, after everything has been rewritten to the disk."""
    if files.exists(path + FAILED):
        files.delete(path + FAILED)


def delete_half_copies(files: FileSystem, directory: str, is_original: Callable[[str], bool]) -> None:
    """Delete leftovers of a crash in :func:`replace_by_copy`, for files whose names pass ``is_original``."""
    for name in files.list(directory):
        if name.endswith(BESIDE) and is_original(name.removesuffix(BESIDE)):
            files.delete(f"{directory}/{name}")


@contextlib.contextmanager
def retryable() -> Iterator[None]:
    """What finds no room in here leaves nothing that counts, and may be done again: :class:`NoRoomError`."""
    try:
        yield
    except DiskFullError as error:
        raise NoRoomError(str(error)) from error


def append_whole(file: File, writes: Iterable[Sequence[bytes | bytearray | memoryview]]) -> None:
    """Append all of the writes, each of them in pieces, or nothing if the disk is full.

    Raises :class:`NoRoomError` then; a torn end would hide later appends from a scan, and waste space.
    """
    size = file.end
    try:
        for pieces in writes:
            file.appendv(pieces)
    except DiskFullError as error:
        file.truncate(size)
        raise NoRoomError(str(error)) from error


def data_windows(file: File, start: int, stop: int, step: int, *, overlap: int = 0) -> Iterator[int]:
    """Yield those of the offsets ``start``, ``start + step`` … below ``stop`` whose windows may hold more than zeros.

    A sparse file may have any size at no cost: holes are skipped, except the ``overlap`` bytes before data.
    """
    at = start
    while at < stop:
        data = file.next_data(at)
        if data >= stop:
            return
        at = max(at, start + (data - overlap - start) // step * step)
        yield at
        at += step


def make_data_directory(path: str) -> None:
    """Create a data directory, and its parents, if it is missing. Raises :class:`StorageError`."""
    with _system_errors(path):
        try:
            own_files.make_directories(path, for_owner=False)
        except FileExistsError as error:  # it may be a parent
            raise StorageError(f"{error.filename}: is a file, not a directory") from error


@contextlib.contextmanager
def _system_errors(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise refused(path, error) from error


class RealFileSystem:
    """The operating system's files.

    ``max_open_files``: how many descriptors its open files may have at a time (:mod:`warren.storage.descriptors`, which
    also says how many are good: ``descriptor_bound()``); ``None``: one each. With a bound, ``lock`` guards the
    bookkeeping if several threads use its files, and ``sync_evicted=False`` skips the sync before a descriptor is
    taken away, for callers that never sync.
    """

    __slots__ = ("descriptors",)

    def __init__(
        self,
        max_open_files: int | None = None,
        lock: contextlib.AbstractContextManager[Any] | None = None,
        *,
        sync_evicted: bool = True,
    ) -> None:
        self.descriptors = (
            None if max_open_files is None else DescriptorCache(max_open_files, lock, sync_evicted=sync_evicted)
        )

    def open_append(self, path: str) -> RealFile:
        return self._open(path, os.O_RDWR | os.O_CREAT)

    def open_read(self, path: str) -> RealFile:
        return self._open(path, os.O_RDONLY)

    def _open(self, path: str, flags: int) -> RealFile:
        return RealFile(path, flags) if self.descriptors is None else self.descriptors.open(path, flags)

    def read(self, path: str) -> bytes:
        with contextlib.closing(self.open_read(path)) as handle:
            return handle.pread(handle.end, 0)

    def rename(self, source: str, target: str) -> None:
        if self.descriptors is not None:
            self.descriptors.pin(source)
            self.descriptors.pin(target)
        with _system_errors(source):
            os.rename(source, target)

    def delete(self, path: str) -> None:
        if self.descriptors is not None:
            self.descriptors.pin(path)
        with _system_errors(path):
            os.unlink(path)

    def delete_tree(self, path: str) -> None:
        with _system_errors(path), contextlib.suppress(FileNotFoundError):
            if os.path.islink(path):
                os.unlink(path)  # the link's target is not ours
                return
            with os.scandir(path) as entries:
                below = [(entry.path, entry.is_dir(follow_symlinks=False)) for entry in entries]
            for entry_path, is_directory in below:
                (self.delete_tree if is_directory else self.delete)(entry_path)
            os.rmdir(path)

    def list(self, path: str) -> list[str]:
        with _system_errors(path), contextlib.suppress(FileNotFoundError):
            return sorted(os.listdir(path))
        return []

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def is_directory(self, path: str) -> bool:
        return os.path.isdir(path)

    def size(self, path: str) -> int:
        with _system_errors(path):
            return os.stat(path).st_size

    def modified_ms(self, path: str) -> int:
        with _system_errors(path):
            return os.stat(path).st_mtime_ns // 1_000_000

    def make_directories(self, path: str) -> None:
        with _system_errors(path):
            own_files.make_directories(path, for_owner=True)

    def sync_directory(self, path: str) -> None:
        with _system_errors(path):
            descriptor = os.open(path or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def lock(self, path: str, owner: str) -> RealLock:
        return RealLock(path, owner)


def lock_part(files: FileSystem, path: str, owner: str) -> Lock:
    """Take the lock file of a part of a directory, such as a vhost's in that of a node.

    A process that dies releases its locks one after the other: the next holder of the directory's lock waits for the
    locks of the parts, up to a second. Raises as :meth:`FileSystem.lock` does.
    """
    for _ in range(_DYING_ROUNDS):
        try:
            return files.lock(path, owner)
        except DirectoryLockedError:
            time.sleep(_DYING_PAUSE_S)
    return files.lock(path, owner)
