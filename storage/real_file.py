"""One file of the operating system, by its descriptor.

Errors of the system are raised as our own, with the file's path. A write that succeeds in one call, the common case,
only updates the file's end.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence
from typing import Final

from warren.storage import own_files
from warren.storage.errors import DiskFullError, StorageError
from warren.storage.pieces import LARGE_PIECE_BYTES

_MOST_PIECES: Final = 1024
"""Linux's IOV_MAX: more pieces no call takes."""


def refused(path: str, error: OSError) -> StorageError:
    """What the system refused to do with ``path``, as an error of ours."""
    kind = DiskFullError if error.errno in (errno.ENOSPC, errno.EDQUOT) else StorageError
    return kind(f"{path}: {error.strerror or error}")


def open_regular(path: str, flags: int) -> tuple[int, os.stat_result]:
    """A descriptor of a regular file, and the file's status; raises ``OSError`` for all else.

    Opening a FIFO would wait for its other end, and reading a terminal for input; opening some devices has side
    effects. So the path is checked before it is opened, and the opened file again, because the name may have been
    given to another file in between. Writing through a symbolic link is refused: its target is not ours.
    """
    flags |= os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
    writes = flags & (os.O_RDWR | os.O_WRONLY)
    if writes:
        flags |= os.O_NOFOLLOW
    descriptor = -1
    try:
        _check_regular((os.lstat if writes else os.stat)(path).st_mode)
    except FileNotFoundError:
        if not flags & os.O_CREAT:
            raise
        try:
            return own_files.create(path, flags)
        except FileExistsError:
            pass  # by another process, just now
    try:
        descriptor = os.open(path, flags & ~os.O_CREAT)
        status = os.fstat(descriptor)
        _check_regular(status.st_mode)
    except OSError:
        if descriptor >= 0:
            os.close(descriptor)
        raise
    return descriptor, status


def _check_regular(mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, f"not a file, but a {_KINDS.get(stat.S_IFMT(mode), 'special file')}")


_KINDS = {
    stat.S_IFLNK: "symbolic link",
    stat.S_IFIFO: "FIFO",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "device",
    stat.S_IFBLK: "device",
}


class RealFile:
    """An open file; see :class:`warren.storage.filesystem.File`."""

    __slots__ = ("_descriptor", "end", "path")

    def __init__(self, path: str, flags: int) -> None:
        self.path = path
        self._descriptor = -1
        try:
            self._descriptor, status = open_regular(path, flags)
        except OSError as error:
            raise refused(path, error) from error
        self.end = status.st_size

    def append(self, data: bytes | bytearray | memoryview) -> int:
        start = self.end
        self.pwrite(data, start)
        return start

    def appendv(self, pieces: Sequence[bytes | bytearray | memoryview]) -> int:
        start = self.end
        if len(pieces) == 1:
            self.pwrite(pieces[0], start)
        else:
            self._pwritev(pieces, start)
        return start

    def _pwritev(self, pieces: Sequence[bytes | bytearray | memoryview], offset: int) -> None:
        size = sum(map(len, pieces))
        if size < LARGE_PIECE_BYTES * len(pieces) // 2:  # a large one comes with a small one
            self.pwrite(b"".join(pieces), offset)
            return
        try:
            while size:
                written = os.pwritev(self._descriptor, pieces[:_MOST_PIECES], offset)
                size -= written
                offset += written
                self.end = max(self.end, offset)
                if size:
                    pieces = _behind(pieces, written)
        except OSError as error:
            raise refused(self.path, error) from error

    def pwrite(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        try:
            written = os.pwrite(self._descriptor, data, offset)
            size = len(data) if type(data) is bytes else memoryview(data).nbytes
            if written > 0 and self.end < offset + written:
                self.end = offset + written
            if written < size:
                self._write_rest(memoryview(data).cast("B"), written, offset)
        except OSError as error:
            raise refused(self.path, error) from error

    def _write_rest(self, view: memoryview, written: int, offset: int) -> None:
        """Continue after the first ``written`` bytes, if the system cut a write short."""
        while written < len(view):
            written += os.pwrite(self._descriptor, view[written:], offset + written)
            self.end = max(self.end, offset + written)

    def pread(self, size: int, offset: int) -> bytes:
        try:
            data = os.pread(self._descriptor, size, offset)
            if len(data) == size or not data:
                return data
            parts = [data]
            missing = size - len(data)
            while missing and (part := os.pread(self._descriptor, missing, offset + size - missing)):
                parts.append(part)
                missing -= len(part)
            return b"".join(parts)
        except OverflowError:  # no file is that long: read nothing, as after any file's end
            return b""
        except OSError as error:
            raise refused(self.path, error) from error

    def next_data(self, offset: int) -> int:
        try:
            return os.lseek(self._descriptor, offset, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return max(offset, self.size())
            if error.errno in (errno.EINVAL, errno.EOPNOTSUPP):  # a file system that knows no holes
                return offset
            raise refused(self.path, error) from error

    def truncate(self, size: int) -> None:
        try:
            os.ftruncate(self._descriptor, size)
        except OSError as error:
            raise refused(self.path, error) from error
        self.end = size

    def size(self) -> int:
        try:
            return os.fstat(self._descriptor).st_size  # not end: a reader's file grows under it
        except OSError as error:
            raise refused(self.path, error) from error

    def sync(self) -> None:
        if self._descriptor < 0:  # fsync calls a bad descriptor a ValueError, all others an OSError
            raise StorageError(f"{self.path}: closed")
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            raise refused(self.path, error) from error

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            try:
                os.close(descriptor)
            except OSError as error:
                raise refused(self.path, error) from error


def _behind(pieces: Sequence[bytes | bytearray | memoryview], written: int) -> Sequence[bytes | bytearray | memoryview]:
    """Return the rest of the pieces after their first ``written`` bytes."""
    for number, piece in enumerate(pieces):
        if written < len(piece):
            return [memoryview(piece)[written:], *pieces[number + 1 :]] if written else pieces[number:]
        written -= len(piece)
    return ()
