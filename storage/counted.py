"""Files in memory that count: what an engine does to a disk, as numbers, for a simulation.

A :class:`CountedFileSystem` keeps what is written, for an engine reads it back, and charges every operation to one
:class:`DiskAccount`: the one whose turn it is (:meth:`CountedFileSystem.charging`). Nothing is ever lost, torn or
refused; a file system that does that is :mod:`storage.memory`.

Simulated bodies are zeros, and a backlog of them on a simulated disk would take as much real memory as it has bytes.
So a write above :data:`PACKED_FROM_BYTES` is kept compressed. Nobody sees it but for the memory.
"""

from __future__ import annotations

import bisect
import contextlib
import posixpath
from collections.abc import Iterator
from typing import Final

import attrs
from zlib_ng import zlib_ng

from storage.errors import DirectoryLockedError, StorageError
from storage.filesystem import File, Lock

PACKED_FROM_BYTES: Final = 4096
_LEVEL: Final = 1


@attrs.define(eq=False)
class DiskAccount:
    """What one owner has done to the disk. Sizes in bytes, ``syncs`` of files and of directories alike."""

    reads: int = 0
    read_bytes: int = 0
    writes: int = 0
    written_bytes: int = 0
    syncs: int = 0

    def copy(self) -> DiskAccount:
        """As it stands now."""
        return DiskAccount(self.reads, self.read_bytes, self.writes, self.written_bytes, self.syncs)

    def since(self, before: DiskAccount) -> DiskAccount:
        """What came since ``before`` was copied."""
        return DiskAccount(
            self.reads - before.reads,
            self.read_bytes - before.read_bytes,
            self.writes - before.writes,
            self.written_bytes - before.written_bytes,
            self.syncs - before.syncs,
        )

    def add(self, other: DiskAccount) -> None:
        """Take in what another one did."""
        self.reads += other.reads
        self.read_bytes += other.read_bytes
        self.writes += other.writes
        self.written_bytes += other.written_bytes
        self.syncs += other.syncs


class _Content:
    """A file's bytes, in the pieces in which they were written."""

    __slots__ = ("_last", "_pieces", "_starts", "modified_ms", "size")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._pieces: list[tuple[bool, bytes]] = []
        self._last: tuple[int, bytes] | None = None  # the piece that was unpacked last
        self.size = 0
        self.modified_ms = 0

    def append(self, data: bytes) -> None:
        if not data:
            return
        packed = len(data) >= PACKED_FROM_BYTES
        self._starts.append(self.size)
        self._pieces.append((packed, zlib_ng.compress(data, _LEVEL) if packed else data))
        self.size += len(data)

    def _piece(self, index: int) -> bytes:
        packed, data = self._pieces[index]
        if not packed:
            return data
        if self._last is None or self._last[0] != index:
            self._last = index, zlib_ng.decompress(data)
        return self._last[1]

    def read(self, size: int, offset: int) -> bytes:
        end = min(offset + size, self.size)
        if offset >= end:
            return b""
        parts: list[bytes] = []
        index = bisect.bisect_right(self._starts, offset) - 1
        while index < len(self._starts) and self._starts[index] < end:
            start = self._starts[index]
            parts.append(self._piece(index)[max(offset - start, 0) : end - start])
            index += 1
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def write(self, data: bytes, offset: int) -> None:
        if offset == self.size:
            self.append(data)
            return
        whole = bytearray(self.read(self.size, 0))
        whole.extend(bytes(max(0, offset - len(whole))))
        whole[offset : offset + len(data)] = data
        self._replace(bytes(whole))

    def truncate(self, size: int) -> None:
        if size == 0:
            self._replace(b"")
        elif size != self.size:
            whole = self.read(min(size, self.size), 0)
            self._replace(whole + bytes(size - len(whole)))

    def _replace(self, whole: bytes) -> None:
        self._starts, self._pieces, self._last, self.size = [], [], None, 0
        self.append(whole)


class CountedFile:
    """An open file; see :class:`storage.filesystem.File`."""

    __slots__ = ("_content", "_files", "_open", "_writable", "path")

    def __init__(self, files: CountedFileSystem, path: str, content: _Content, *, writable: bool) -> None:
        self.path = path
        self._files = files
        self._content = content
        self._writable = writable
        self._open = True

    def append(self, data: bytes | bytearray | memoryview) -> int:
        start = self._content.size
        self.pwrite(data, start)
        return start

    def pwrite(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        self._check(offset >= 0 and self._writable, "write")
        before = self._content.size
        self._content.write(bytes(data), offset)
        self._files.wrote(self._content, len(data), self._content.size - before)

    def pread(self, size: int, offset: int) -> bytes:
        self._check(offset >= 0 and size >= 0, "read")
        data = self._content.read(size, offset)
        account = self._files.account
        account.reads += 1
        account.read_bytes += len(data)
        return data

    def truncate(self, size: int) -> None:
        self._check(size >= 0 and self._writable, "truncate")
        before = self._content.size
        self._content.truncate(size)
        self._files.wrote(self._content, 0, size - before)

    def size(self) -> int:
        return self._content.size

    def sync(self) -> None:
        self._check(True, "sync")
        self._files.account.syncs += 1

    def close(self) -> None:
        self._open = False

    def _check(self, fine: bool, kind: str) -> None:
        if not (fine and self._open):
            raise StorageError(f"{self.path}: {kind} refused: closed, read-only, or a negative position")


@attrs.frozen
class _CountedLock:
    _held: set[str]
    _path: str

    def release(self) -> None:
        self._held.discard(self._path)


@attrs.define(eq=False)
class CountedFileSystem:
    """A :class:`storage.filesystem.FileSystem` in memory; see the module's prose."""

    account: DiskAccount = attrs.Factory(DiskAccount)
    """Whom an operation is charged to."""
    used_bytes: int = 0
    """Bytes in all files."""
    _contents: dict[str, _Content] = attrs.Factory(dict)
    _directories: dict[str, dict[str, None]] = attrs.Factory(lambda: {"/": {}})
    """Names in each directory, in no order."""
    _locked: set[str] = attrs.Factory(set)

    @contextlib.contextmanager
    def charging(self, account: DiskAccount) -> Iterator[None]:
        """Charge ``account`` for what is done inside."""
        before, self.account = self.account, account
        try:
            yield
        finally:
            self.account = before

    def wrote(self, content: _Content, size: int, growth: int) -> None:
        """A write was issued: ``size`` bytes, by which its file grew as much or less."""
        self.account.writes += 1
        self.account.written_bytes += size
        self.used_bytes += growth
        content.modified_ms += 1

    # Files

    def open_append(self, path: str) -> File:
        path = _whole(path)
        content = self._contents.get(path)
        if content is None:
            self._enter(path)
            content = self._contents[path] = _Content()
        return CountedFile(self, path, content, writable=True)

    def open_read(self, path: str) -> File:
        return CountedFile(self, path, self._file(path), writable=False)

    def read(self, path: str) -> bytes:
        content = self._file(path)
        self.account.reads += 1
        self.account.read_bytes += content.size
        return content.read(content.size, 0)

    def rename(self, source: str, target: str) -> None:
        content = self._file(source)
        source, target = _whole(source), _whole(target)
        if source == target:
            return
        if target in self._contents:
            self.delete(target)
        self._enter(target)
        self._leave(source)
        self._contents[target] = self._contents.pop(source)
        self.account.writes += 1
        del content

    def delete(self, path: str) -> None:
        content = self._file(path)
        path = _whole(path)
        self._leave(path)
        del self._contents[path]
        self.used_bytes -= content.size
        self.account.writes += 1

    def delete_tree(self, path: str) -> None:
        path = _whole(path)
        if path not in self._directories:
            return
        for name in list(self._directories[path]):
            inner = f"{path}/{name}"
            if inner in self._directories:
                self.delete_tree(inner)
            else:
                self.delete(inner)
        del self._directories[path]
        self._leave(path)

    # Names

    def list(self, path: str) -> list[str]:
        path = _whole(path)
        if path in self._contents:
            raise StorageError(f"{path}: is not a directory")
        return sorted(self._directories.get(path, ()))

    def exists(self, path: str) -> bool:
        path = _whole(path)
        return path in self._contents or path in self._directories

    def is_directory(self, path: str) -> bool:
        return _whole(path) in self._directories

    def size(self, path: str) -> int:
        return self._file(path).size

    def modified_ms(self, path: str) -> int:
        """A number that rises with every write: there is no clock here."""
        return self._file(path).modified_ms

    def make_directories(self, path: str) -> None:
        path = _whole(path)
        if path in self._directories:
            return
        if path in self._contents:
            raise StorageError(f"{path}: is a file")
        self.make_directories(posixpath.dirname(path))
        self._directories[path] = {}
        self._enter(path)
        self.account.writes += 1

    def sync_directory(self, path: str) -> None:
        self.account.syncs += 1

    def lock(self, path: str, owner: str) -> Lock:
        path = _whole(path)
        if path in self._locked:
            raise DirectoryLockedError(f"{path}: in use")
        self.open_append(path).truncate(0)
        self._locked.add(path)
        return _CountedLock(self._locked, path)

    def _file(self, path: str) -> _Content:
        content = self._contents.get(_whole(path))
        if content is None:
            raise StorageError(f"{path}: no such file")
        return content

    def _enter(self, path: str) -> None:
        parent, name = posixpath.split(path)
        if parent not in self._directories:
            raise StorageError(f"{path}: no such directory")
        self._directories[parent][name] = None

    def _leave(self, path: str) -> None:
        parent, name = posixpath.split(path)
        self._directories[parent].pop(name, None)


def _whole(path: str) -> str:
    plain = path.startswith("/") and "//" not in path and "/." not in path and not path.endswith("/")
    return path if plain else posixpath.normpath("/" + path.lstrip("/"))
