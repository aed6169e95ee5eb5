"""Lock files: which process has a directory.

A lock is an ``flock`` on a file that says who holds it; the system drops it with the process. It is *in place* while
the file's path still leads to it. Only a lock that is in place counts:

* Whoever gets the ``flock`` looks whether the path still leads to that file. If its last holder has removed it
  meanwhile, the next one may have made another, and locks that; so the file is opened anew.
* Only the holder removes the file, before it lets go of the ``flock``, and only if it is still this one.
* A holder whose directory was removed, or replaced, holds nothing any more: :attr:`RealLock.in_place` says so.

A forked child would hold its parent's locks as long as it lives, for an ``flock`` belongs to what parent and child
share: the child closes its copies at once. One that was being taken when another thread forked is dropped, which the
child's copy feels too, and taken anew.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
import weakref
from typing import TYPE_CHECKING, ClassVar, Final

from warren.storage.errors import DirectoryLockedError
from warren.storage.real_file import open_regular, refused

if TYPE_CHECKING:
    from warren.storage.filesystem import FileSystem, Lock

LOCK_FILE: Final = "warren.lock"
"""Of a directory that a node, or a vhost by itself, has open."""

SHARED: Final = ", shared"
"""What a holder that lets others in says behind who it is."""

_ROUNDS: Final = 1000
"""So often a lock file vanishes between opening and locking it before we give up: each time somebody else had it."""

_DYING_ROUNDS: Final = 500
_DYING_PAUSE_S: Final = 0.002
"""A process that was killed has let go of all that it had by then."""

_HELD: weakref.WeakSet[RealLock] = weakref.WeakSet()


class RealLock:
    """A held lock of the operating system's; see :class:`warren.storage.filesystem.Lock`."""

    __slots__ = ("__weakref__", "_descriptor", "_identity", "_path")

    forks: ClassVar[int] = 0
    """How often this process began to fork."""

    def __init__(self, path: str, owner: str) -> None:
        """Raises :class:`DirectoryLockedError` where another process holds it, and ``StorageError``."""
        self._path = os.path.abspath(path)
        self._descriptor = -1
        self._identity = 0, 0
        try:
            while not self._take(path):
                continue
            os.ftruncate(self._descriptor, 0)
            with contextlib.suppress(
                OSError
            ):  # on a full disk the lock holds all the same, and does not say whose it is
                os.pwrite(self._descriptor, owner.encode(), 0)
        except OSError as error:
            self.release()
            raise refused(path, error) from error

    def _take(self, path: str) -> bool:
        """``False`` where another thread forked meanwhile."""
        forks = RealLock.forks
        self._descriptor, self._identity = _lock(path)
        _HELD.add(self)
        if forks != RealLock.forks:
            self.release()
            return False
        return True

    @property
    def in_place(self) -> bool:
        """Whether the lock is held, and is what whoever opens the path would find."""
        return self._descriptor >= 0 and _identity(self._path) == self._identity

    def remove(self) -> None:
        """Remove the file, if it is this one, and give the lock up. One that cannot be removed holds nobody up."""
        if self.in_place:
            with contextlib.suppress(OSError):
                os.unlink(self._path)
        self.release()

    def release(self) -> None:
        """Give the lock up; the file stays."""
        if self._descriptor >= 0:
            with contextlib.suppress(OSError):
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)  # for copies, too
        self.forget()

    def forget(self) -> None:
        """In a forked child: close the copy."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def lock_part(files: FileSystem, path: str, owner: str) -> Lock:
    """Take the lock file of what lies in a directory, as a vhost in that of a node.

    A process that dies lets go of its locks one after the other: who has taken that of the directory from it waits
    for those of the parts, up to a second. Raises as :meth:`~warren.storage.filesystem.FileSystem.lock` does.
    """
    for _ in range(_DYING_ROUNDS):
        try:
            return files.lock(path, owner)
        except DirectoryLockedError:
            time.sleep(_DYING_PAUSE_S)
    return files.lock(path, owner)


def _lock(path: str) -> tuple[int, tuple[int, int]]:
    """Lock the file at ``path``: its descriptor and identity. Raises :class:`DirectoryLockedError` and ``OSError``."""
    for _ in range(_ROUNDS):
        try:
            descriptor = open_regular(path, os.O_RDWR | os.O_CREAT)
        except FileNotFoundError:  # removed by its holder, just now; or there is no directory
            if os.path.isdir(os.path.dirname(path) or "."):
                continue
            raise
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            found = os.fstat(descriptor)
            identity = found.st_dev, found.st_ino
            if _identity(path) == identity:
                return descriptor, identity
        except BlockingIOError as error:
            holder = os.pread(descriptor, 200, 0).decode("utf-8", "replace").strip()
            os.close(descriptor)
            raise DirectoryLockedError(f"{path}: in use by {holder or 'another process'}") from error
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
    raise DirectoryLockedError(f"{path}: in use by others, in turn")


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _count_fork() -> None:
    RealLock.forks += 1


def _forget_all() -> None:
    for lock in list(_HELD):
        lock.forget()


os.register_at_fork(before=_count_fork, after_in_child=_forget_all)
