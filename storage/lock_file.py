"""Lock files: which process has a directory.

A lock is an ``flock`` on a file that names its holder; the system drops it with the process. It is *in place* while the
file's path still leads to it. Only a lock that is in place counts:

* A process that gets the ``flock`` checks whether the path still leads to that file. If the last holder has removed it
  in the meantime, another process may have made and locked a new one; so the file is opened again.
* Only the holder removes the file, before it drops the ``flock``, and only if it is still the same file.
* A holder whose directory was removed or replaced holds nothing any more: see :attr:`RealLock.in_place`.

An ``flock`` cannot be queried, only tried, and a try can make the next holder fail. So the holder also takes an *open
file description lock* on the file, which can be queried from every process, in other containers too
(:func:`lock_holder`). Systems without such locks are queried by a try.

A forked child would hold its parent's locks as long as it lives, because an ``flock`` belongs to what parent and child
share: the child closes its copies at once. A lock that was being taken when another thread forked is dropped, which
also releases it in the child, and taken again.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import weakref
from typing import ClassVar, Final

from warren.storage.errors import DirectoryLockedError
from warren.storage.real_file import open_regular, refused

LOCK_FILE: Final = "warren.lock"
"""The lock file of a directory that a node, or a vhost by itself, has open."""

SHARED: Final = ", shared"
"""The text after a holder's name in the lock file if the holder lets others in."""

_ROUNDS: Final = 1000
"""How often another holder may remove the lock file between our opening and locking it before we give up."""

_RECORD_LOCK: Final = struct.Struct("hhqqi4x")
"""C's ``struct flock``: type, whence, start, length (0: to the end), process."""
_CAN_QUERY: Final = hasattr(fcntl, "F_OFD_GETLK")

_HELD: weakref.WeakSet[RealLock] = weakref.WeakSet()


class RealLock:
    """A held lock of the operating system's; see :class:`warren.storage.filesystem.Lock`."""

    __slots__ = ("__weakref__", "_descriptor", "_identity", "_path")

    forks: ClassVar[int] = 0
    """How often this process began to fork."""

    def __init__(self, path: str, owner: str) -> None:
        """Raises :class:`DirectoryLockedError` if another process holds it, and ``StorageError``."""
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
        """``False`` if another thread forked meanwhile."""
        forks = RealLock.forks
        self._descriptor, self._identity = _lock(path)
        _HELD.add(self)
        if forks != RealLock.forks:
            self.release()
            return False
        return True

    @property
    def in_place(self) -> bool:
        """Whether the lock is held, and its file is still the one at the path."""
        return self._descriptor >= 0 and identity_of(self._path) == self._identity

    def remove(self) -> None:
        """Remove the file, if it is this one, and release the lock. A file that cannot be removed is ignored."""
        if self.in_place:
            with contextlib.suppress(OSError):
                os.unlink(self._path)
        self.release()

    def release(self) -> None:
        """Give the lock up; the file stays."""
        if self._descriptor >= 0:
            with contextlib.suppress(OSError):
                _set_record_lock(self._descriptor, fcntl.F_UNLCK)
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)  # for copies, too
        self.forget()

    def forget(self) -> None:
        """In a forked child: close the copy."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def _lock(path: str) -> tuple[int, tuple[int, int]]:
    """Lock the file at ``path``: its descriptor and identity. Raises :class:`DirectoryLockedError` and ``OSError``."""
    for _ in range(_ROUNDS):
        try:
            descriptor, _ = open_regular(path, os.O_RDWR | os.O_CREAT)
        except FileNotFoundError:  # removed by its holder, just now; or there is no directory
            if os.path.isdir(os.path.dirname(path) or "."):
                continue
            raise
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            status = os.fstat(descriptor)
            identity = status.st_dev, status.st_ino
            if identity_of(path) == identity:
                _set_record_lock(descriptor, fcntl.F_WRLCK)
                return descriptor, identity
        except BlockingIOError as error:
            holder = _written(descriptor)
            os.close(descriptor)
            raise DirectoryLockedError(f"{path}: in use by {holder or 'another process'}") from error
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
    raise DirectoryLockedError(f"{path}: in use by others, in turn")


def lock_holder(path: str) -> str | None:
    """What the holder of the lock file at ``path`` wrote into it, ``""`` if it wrote nothing.

    ``None``: no process holds it, or the file does not exist or cannot be opened. Asking takes no lock.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        return _written(descriptor) if _is_held(descriptor) else None
    except OSError:
        return None
    finally:
        os.close(descriptor)


def _is_held(descriptor: int) -> bool:
    if _CAN_QUERY:
        query = _RECORD_LOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)
        answer: bytes = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, query)
        return bool(_RECORD_LOCK.unpack(answer)[0] == fcntl.F_WRLCK)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    return False


def _set_record_lock(descriptor: int, kind: int) -> None:
    if _CAN_QUERY:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _RECORD_LOCK.pack(kind, os.SEEK_SET, 0, 0, 0))


def _written(descriptor: int) -> str:
    return os.pread(descriptor, 200, 0).decode("utf-8", "replace").strip()


def identity_of(path: str) -> tuple[int, int] | None:
    """Device and inode of the file or directory at ``path``; ``None`` if it does not exist."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _count_fork() -> None:
    RealLock.forks += 1


def _forget_all() -> None:
    for lock in list(_HELD):
        lock.forget()


os.register_at_fork(before=_count_fork, after_in_child=_forget_all)
