"""A file system that can only be read, and that forgets where an archive was unpacked.

Everything that salvage does to a disk goes through here, so that no mistake elsewhere can change a foreign directory.
Paths are relative to a root, and errors and findings name files so: the temporary directory that an archive is unpacked
to says nothing to its owner. A directory's files have no root; they are named as the user named the directory.

A file is read whole only up to :data:`MOST_BYTES`: the size of a damaged or hostile one could exceed the memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NoReturn, TypeVar

import attrs

from warren.storage.errors import DataError, StorageError
from warren.storage.filesystem import File, FileSystem, data_windows

_Result = TypeVar("_Result")

MOST_BYTES: Final = 256 << 20
"""Of a file that is read whole: settings, names, tables. The largest ones, the recovery terms of a million queues or a
quorum queue's list of indexes, come near it; all others are a thousand times smaller."""

WHOLE_BYTES: Final = 24 << 20
"""A file of a queue up to this size is held in memory while it is open."""

WINDOW_BYTES: Final = 4 << 20
"""A larger file is read this much at a time."""

MAX_MESSAGE_BYTES: Final = 64 << 20
"""No message in a queue's own files is nearly this long: without a limit, damaged lengths would fill the memory."""


class UnchangingFileSystem(FileSystem):
    """A file system on which every write raises :class:`StorageError`."""

    __slots__ = ()

    def open_append(self, path: str) -> NoReturn:
        refuse(path)

    def rename(self, source: str, target: str) -> NoReturn:
        refuse(source)

    def delete(self, path: str) -> NoReturn:
        refuse(path)

    def delete_tree(self, path: str) -> NoReturn:
        refuse(path)

    def make_directories(self, path: str) -> NoReturn:
        refuse(path)

    def sync_directory(self, path: str) -> NoReturn:
        refuse(path)

    def lock(self, path: str, owner: str) -> NoReturn:
        refuse(path)


@attrs.frozen
class ReadOnlyFileSystem(UnchangingFileSystem):
    """``inner``, below ``root`` if there is one; whatever would write raises :class:`StorageError`."""

    inner: FileSystem
    root: str = ""

    def open_read(self, path: str) -> File:
        return self._ask(self.inner.open_read, path)

    def read(self, path: str) -> bytes:
        """The whole file; raises :class:`DataError` if it is too large to be read whole."""
        size = self.size(path)
        if size > MOST_BYTES:
            raise DataError(path, None, f"{size:,} bytes, which no such file has")
        return self._ask(self.inner.read, path)

    def exists(self, path: str) -> bool:
        return self.inner.exists(self._at(path))

    def is_directory(self, path: str) -> bool:
        return self.inner.is_directory(self._at(path))

    def size(self, path: str) -> int:
        return self._ask(self.inner.size, path)

    def modified_ms(self, path: str) -> int:
        return self._ask(self.inner.modified_ms, path)

    def list(self, path: str) -> list[str]:
        return self._ask(self.inner.list, path)

    def _at(self, path: str) -> str:
        return below(self.root, path) if path else self.root

    def _ask(self, operation: Callable[[str], _Result], path: str) -> _Result:
        """Run ``operation`` below the root; errors name the path that was passed."""
        try:
            return operation(self._at(path))
        except StorageError as error:
            raise type(error)(str(error).replace(self._at(path), path or ".", 1)) from error


def below(place: str, name: str) -> str:
    """The path of ``name`` in the directory ``place``; the root's path is empty."""
    return f"{place}/{name}" if place else name


def directories(files: FileSystem, place: str) -> list[str]:
    """The directories in ``place``, by name; empty if ``place`` is not a directory."""
    if not files.is_directory(place):
        return []
    return [inner for name in files.list(place) if files.is_directory(inner := below(place, name))]


def refuse(path: str) -> NoReturn:
    """Reject a write."""
    raise StorageError(f"{path}: opened read-only")


def has_bytes_behind(file: File, offset: int) -> bool:
    """Whether there is anything but zeros from ``offset`` on."""
    pieces = (file.pread(WINDOW_BYTES, at) for at in data_windows(file, offset, file.size(), WINDOW_BYTES))
    return any(piece.count(0) != len(piece) for piece in pieces)
