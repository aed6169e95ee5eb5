"""A bound on open descriptors: any number of files may be open, but only a limited number of them hold a descriptor.

A process may hold some thousand descriptors, often 1024; a node with ten thousand queues has that many journals. So the
files of a :class:`DescriptorCache` *borrow* a descriptor for the time of each call, and keep it until another file
needs one. The least recently used file then loses its own (*eviction*), and opens it again on its next use. Users of
a file do not notice.

* A file in use (``busy``) is never evicted: otherwise its descriptor could be closed, and the number given to another
  file, in the middle of a write. If every file is busy, the bound is exceeded, by at most the number of threads.
* A read of a file that has a descriptor takes no lock, because small reads are frequent. It joins the file's
  ``readers`` and then checks whether the file is ``leaving``; an eviction sets ``leaving`` and then checks for readers.
  So at least one of the two sees the other, and backs off. Such a read does not move the file to the end of the order
  either: it sets ``was_read``, and the next search for a file to evict moves it.
* A file that is about to lose its name (deleted, renamed, replaced) could not be opened again: it is *pinned*, and
  keeps its descriptor until it is closed.
* Unsynced writes. The data is the inode's, and a sync through a later descriptor covers it. But a failed write-back is
  reported only to open descriptors; Linux (since 4.16) also reports it to one opened later, but only while the inode
  stays in memory, which is not guaranteed once the descriptor is closed. So a file with unsynced writes is evicted
  last, and synced first (``sync_evicted``). If that fails, the file keeps its descriptor and refuses every write and
  sync from then on, so its owner sees the error.
* A file that was opened again must be the same one, by device and inode; otherwise it was replaced from outside.

Threads: each file is used as :class:`warren.storage.filesystem.File` says; different files by any thread at any time,
if the cache has a lock. It is held for bookkeeping and for opening and closing, and for a sync only if an eviction
needs one.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
from collections import OrderedDict
from collections.abc import Sequence
from itertools import islice
from typing import Any, Final

from warren.storage.errors import SettingsError, StorageError
from warren.storage.real_file import RealFile, open_regular, refused

RESERVED_DESCRIPTORS: Final = 256
"""Left to sockets, directories that are synced, whole files that are read, and the program around us."""
LAST_DESCRIPTORS: Final = 64
"""The part of the reserve that clients never get."""
_MOST: Final = 65536  # a table of descriptors without a limit is still memory of the kernel's
_LEAST: Final = 16


def descriptor_bound(reserved: int = RESERVED_DESCRIPTORS) -> int:
    """How many files to hold open: what the system allows this process (the soft limit), less a reserve."""
    soft_limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST if soft_limit == resource.RLIM_INFINITY else min(max(soft_limit - reserved, _LEAST), _MOST)


def among_last(descriptor: int) -> bool:
    """Whether it is one of the last descriptors that this process may have: the lowest free number is given out first.

    Code that opens sockets for clients closes such a descriptor again. Files that are open only for a moment, to read
    the memory in use or to sync a directory, cannot do without.
    """
    soft_limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft_limit != resource.RLIM_INFINITY and descriptor >= soft_limit - min(LAST_DESCRIPTORS, soft_limit // 4)


class DescriptorCache:
    """Lends descriptors to the files that it opened. ``lock`` guards it if several threads use its files."""

    __slots__ = ("_by_path", "_latest", "_lock", "_open", "evictions", "max_open_files", "sync_evicted")

    def __init__(
        self,
        max_open_files: int,
        lock: contextlib.AbstractContextManager[Any] | None = None,
        *,
        sync_evicted: bool = True,
    ) -> None:
        if max_open_files < 1:
            raise SettingsError(f"max_open_files must be at least 1, not {max_open_files}")
        self.max_open_files = max_open_files
        self.sync_evicted = sync_evicted
        self.evictions = 0
        self._lock: contextlib.AbstractContextManager[Any] = contextlib.nullcontext() if lock is None else lock
        self._open: OrderedDict[BoundedFile, None] = OrderedDict()
        """Files that have a descriptor, the one used longest ago first."""
        self._latest: BoundedFile | None = None
        self._by_path: dict[str, list[BoundedFile]] = {}
        """Every file that is not closed, by its normalized path."""

    def __len__(self) -> int:
        """Descriptors that are open."""
        return len(self._open)

    def open(self, path: str, flags: int) -> BoundedFile:
        with self._lock:
            file = BoundedFile(self, path, flags, *self._descriptor(path, flags))
            self._by_path.setdefault(os.path.normpath(path), []).append(file)
            self._open[file] = None
            self._latest = file
        return file

    def borrow(self, file: BoundedFile) -> None:
        """See that ``file`` has a descriptor, and keeps it until it is given back."""
        with self._lock:
            if self._latest is not file:  # else it has a descriptor, and is not closed
                if file.closed:
                    raise StorageError(f"{file.path}: closed")
                if file.evicted:
                    self._bring_back(file)
                else:
                    self._open.move_to_end(file)
                    self._latest = file
            file.busy += 1

    def give_back(self, file: BoundedFile) -> None:
        with self._lock:
            file.busy -= 1

    def forget(self, file: BoundedFile) -> None:
        """``file`` is closed by its owner."""
        with self._lock:
            if file.closed:
                return
            file.closed = True
            self._open.pop(file, None)
            if self._latest is file:
                self._latest = None
            others = self._by_path[path := os.path.normpath(file.path)]
            others.remove(file)
            if not others:
                del self._by_path[path]

    def pin(self, path: str) -> None:
        """Keep a descriptor for every open file at ``path``, which is about to lose this name."""
        with self._lock:
            for file in self._by_path.get(os.path.normpath(path), ()):
                if file.evicted:
                    self._bring_back(file)
                file.pinned = True

    def check_invariants(self) -> None:
        """Raise ``RuntimeError`` if the bookkeeping is wrong; to be called while no file is in use."""
        all_files = [file for files in self._by_path.values() for file in files]
        if any(file.closed or file.busy for file in all_files):
            raise RuntimeError("a closed or busy file is still registered")
        if {file for file in all_files if not file.evicted} != set(self._open):
            raise RuntimeError("the files with a descriptor differ from those counted")

    # ── with the lock held ──────────────────────────────────────────────────────────────────────────────────────

    def _descriptor(self, path: str, flags: int) -> tuple[int, os.stat_result]:
        """Open a file; at the bound, or where the system has no descriptor left, another one is evicted first."""
        while len(self._open) >= self.max_open_files and self._evict():
            pass
        while True:
            try:
                return open_regular(path, flags)
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE) or not self._evict():
                    raise refused(path, error) from error

    def _bring_back(self, file: BoundedFile) -> None:
        file.reopened(*self._descriptor(file.path, file.flags))
        self._open[file] = None
        self._latest = file

    def _evict(self) -> bool:
        """Take one file's descriptor away; ``False`` if every file needs its own."""
        while (victim := self._victim()) is not None:
            if victim.give_up(sync=self.sync_evicted):
                del self._open[victim]
                if self._latest is victim:
                    self._latest = None
                self.evictions += 1
                return True
        return False

    def _victim(self) -> BoundedFile | None:
        """The idle file that was used longest ago; of the older half rather one that needs no sync."""
        for _ in range(len(self._open)):
            first = next(iter(self._open))
            if not first.was_read:
                break
            first.was_read = False
            self._open.move_to_end(first)
            self._latest = first
        oldest = None
        for file in islice(self._open, len(self._open) // 2):
            if file.evictable and not file.was_read:
                if not (file.unsynced and self.sync_evicted):
                    return file
                oldest = oldest or file
        return oldest or next((file for file in self._open if file.evictable), None)


class BoundedFile(RealFile):
    """A file that may lose its descriptor while it is not in use. Made by :meth:`DescriptorCache.open`.

    What does not begin with an underscore is the cache's to read and write, under its lock.
    """

    __slots__ = (
        "_cache",
        "_failure",
        "busy",
        "closed",
        "flags",
        "identity",
        "leaving",
        "pinned",
        "readers",
        "unsynced",
        "was_read",
    )

    def __init__(self, cache: DescriptorCache, path: str, flags: int, descriptor: int, status: os.stat_result) -> None:
        self.path = path
        self._cache = cache
        self._descriptor = descriptor
        self._failure: StorageError | None = None
        self.busy = 0
        """Calls that use the descriptor right now."""
        self.closed = False
        self.flags = flags & ~os.O_CREAT
        """To open it again: a file that has vanished must not come back empty."""
        self.pinned = False
        self.readers: list[None] = []
        """One for each read in progress without the cache's lock."""
        self.leaving = False
        """The cache is about to take the descriptor away."""
        self.was_read = False
        """Whether it was read since it was moved to the end of ``_open``."""
        self.unsynced = False
        self.end = status.st_size
        self.identity = (status.st_dev, status.st_ino)

    @property
    def evicted(self) -> bool:
        return self._descriptor < 0

    @property
    def evictable(self) -> bool:
        return not self.busy and not self.readers and not self.pinned

    def reopened(self, descriptor: int, status: os.stat_result) -> None:
        """Take a newly opened descriptor, if it belongs to this file."""
        if (status.st_dev, status.st_ino) != self.identity:
            os.close(descriptor)
            raise StorageError(f"{self.path}: replaced by another file while it was in use")
        self._descriptor = descriptor

    def give_up(self, *, sync: bool) -> bool:
        """Close the descriptor, after a sync if one is due.

        Returns ``False``, and keeps the descriptor, if that fails or a read is in progress.
        """
        try:
            if self.unsynced and sync:
                os.fsync(self._descriptor)
                self.unsynced = False
            self.leaving = True
            if not self.readers:
                descriptor, self._descriptor = self._descriptor, -1
                os.close(descriptor)
        except OSError as error:
            self._failure = refused(self.path, error)
            self.pinned = True
        self.leaving = False
        return self._descriptor < 0

    def _refuse_after_failure(self) -> None:
        if self._failure is not None:
            raise StorageError(f"unusable since: {self._failure}") from self._failure

    def pwrite(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        self._cache.borrow(self)
        try:
            if self._failure is not None:
                self._refuse_after_failure()
            self.unsynced = True
            RealFile.pwrite(self, data, offset)
        finally:
            self._cache.give_back(self)

    def _pwritev(self, pieces: Sequence[bytes | bytearray | memoryview], offset: int) -> None:
        self._cache.borrow(self)
        try:
            if self._failure is not None:
                self._refuse_after_failure()
            self.unsynced = True
            RealFile._pwritev(self, pieces, offset)
        finally:
            self._cache.give_back(self)

    def pread(self, size: int, offset: int) -> bytes:
        self.readers.append(None)
        try:
            if not self.leaving and self._descriptor >= 0:
                self.was_read = True
                return RealFile.pread(self, size, offset)
        finally:
            self.readers.pop()
        self._cache.borrow(self)
        try:
            return RealFile.pread(self, size, offset)
        finally:
            self._cache.give_back(self)

    def next_data(self, offset: int) -> int:
        self._cache.borrow(self)
        try:
            return RealFile.next_data(self, offset)
        finally:
            self._cache.give_back(self)

    def truncate(self, size: int) -> None:
        self._cache.borrow(self)
        try:
            self._refuse_after_failure()
            self.unsynced = True
            RealFile.truncate(self, size)
        finally:
            self._cache.give_back(self)

    def size(self) -> int:
        self._cache.borrow(self)
        try:
            return RealFile.size(self)
        finally:
            self._cache.give_back(self)

    def sync(self) -> None:
        self._cache.borrow(self)
        try:
            self._refuse_after_failure()
            self.unsynced = False
            RealFile.sync(self)
        except StorageError:
            self.unsynced = True
            raise
        finally:
            self._cache.give_back(self)

    def close(self) -> None:
        self._cache.forget(self)
        RealFile.close(self)
