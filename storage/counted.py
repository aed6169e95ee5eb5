"""Files in memory that count: what an engine does to a disk, as numbers, for a simulation.

A :class:`CountedFileSystem` keeps what is written, because an engine reads it back, and charges every operation to one
:class:`DiskAccount`: the one set by :meth:`CountedFileSystem.charging`. Nothing is ever lost, torn or refused; for a
file system that does that, see :mod:`warren.storage.memory`.

Simulated bodies are zeros, and a backlog of them on a simulated disk would take as much real memory as it has bytes.
So data written long ago is kept compressed (:mod:`warren.storage.packed_content`); only memory use shows it.
"""

from __future__ import annotations

import contextlib
import posixpath
from collections.abc import Iterator, Sequence

import attrs

from warren.storage.errors import DirectoryLockedError, StorageError
from warren.storage.filesystem import File, Lock
from warren.storage.packed_content import PackedContent, PlainBlocks


@attrs.define(eq=False, repr=False)
class DiskAccount:
    """The disk operations of one owner. Sizes in bytes; ``syncs`` counts files and directories."""

    reads: int = 0
    read_bytes: int = 0
    writes: int = 0
    written_bytes: int = 0
    syncs: int = 0

    def copy(self) -> DiskAccount:
        """As it stands now."""
        return DiskAccount(self.reads, self.read_bytes, self.writes, self.written_bytes, self.syncs)

    def since(self, before: DiskAccount) -> DiskAccount:
        """Return the operations since ``before`` was copied."""
        return DiskAccount(
            self.reads - before.reads,
            self.read_bytes - before.read_bytes,
            self.writes - before.writes,
            self.written_bytes - before.written_bytes,
            self.syncs - before.syncs,
        )

    def add(self, other: DiskAccount) -> None:
        """Add the operations of another account."""
        self.reads += other.reads
        self.read_bytes += other.read_bytes
        self.writes += other.writes
        self.written_bytes += other.written_bytes
        self.syncs += other.syncs


class _Content(PackedContent):
    """A file, whatever its name is."""

    __slots__ = ("linked", "modified_ms")

    def __init__(self, plain: PlainBlocks) -> None:
        super().__init__(plain)
        self.modified_ms = 0
        self.linked = True
        """Whether it has a name; a file with handles alone takes no room on the disk."""


class CountedFile:
    """An open file; see :class:`warren.storage.filesystem.File`."""

    __slots__ = ("_content", "_files", "_open", "_writable", "path")

    def __init__(self, files: CountedFileSystem, path: str, content: _Content, *, writable: bool) -> None:
        self.path = path
        self._files = files
        self._content = content
        self._writable = writable
        self._open = True

    @property
    def end(self) -> int:
        return self._content.size

    def append(self, data: bytes | bytearray | memoryview) -> int:
        start = self.end
        self.pwrite(data, start)
        return start

    def appendv(self, pieces: Sequence[bytes | bytearray | memoryview]) -> int:
        return self.append(b"".join(pieces))

    def pwrite(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        self._check(offset >= 0 and self._writable, "write")
        content, before = self._content, self._content.size
        copy = bytes(data)
        content.write(copy, offset)
        self._files.wrote(content, len(copy), content.size - before)

    def pread(self, size: int, offset: int) -> bytes:
        self._check(offset >= 0 and size >= 0, "read")
        data = self._content.read(size, offset)
        account = self._files.account
        account.reads += 1
        account.read_bytes += len(data)
        return data

    def next_data(self, offset: int) -> int:
        return min(offset, self._content.size)

    def truncate(self, size: int) -> None:
        self._check(size >= 0 and self._writable, "truncate")
        before = self._content.size
        self._content.truncate(size)
        self._files.wrote(self._content, 0, size - before)

    def size(self) -> int:
        self._check(True, "size")
        return self._content.size

    def sync(self) -> None:
        self._check(True, "sync")
        self._files.account.syncs += 1

    def close(self) -> None:
        self._open = False

    def _check(self, is_valid: bool, kind: str) -> None:
        if not (is_valid and self._open):
            raise StorageError(f"{self.path}: {kind} refused: closed, read-only, or a negative position")


@attrs.frozen
class _CountedLock:
    _files: CountedFileSystem
    _path: str

    @property
    def in_place(self) -> bool:
        return self._path in self._files._locked and self._files.exists(self._path)

    def release(self) -> None:
        self._files._locked.pop(self._path, None)

    def remove(self) -> None:
        if self.in_place:
            self._files.delete(self._path)
        self.release()


@attrs.define(eq=False, repr=False)
class CountedFileSystem:
    """A :class:`warren.storage.filesystem.FileSystem` in memory; see the module's prose."""

    account: DiskAccount = attrs.Factory(DiskAccount)
    """The account that operations are charged to."""
    used_bytes: int = 0
    """Bytes in all files."""
    _contents: dict[str, _Content] = attrs.Factory(dict)
    _directories: dict[str, dict[str, None]] = attrs.Factory(lambda: {"/": {}})
    """Names in each directory, in no order."""
    _locked: dict[str, str] = attrs.Factory(dict)
    """The holders of the locks, by path."""
    _plain: PlainBlocks = attrs.Factory(PlainBlocks)

    @contextlib.contextmanager
    def charging(self, account: DiskAccount) -> Iterator[None]:
        """Charge operations inside the block to ``account``."""
        previous, self.account = self.account, account
        try:
            yield
        finally:
            self.account = previous

    def wrote(self, content: _Content, size: int, growth: int) -> None:
        """A write was issued: ``size`` bytes, by which its file grew as much or less."""
        self.account.writes += 1
        self.account.written_bytes += size
        if content.linked:
            self.used_bytes += growth
        content.modified_ms += 1

    # Files

    def open_append(self, path: str) -> File:
        path = _whole(path)
        content = self._contents.get(path)
        if content is None:
            self._enter(path)
            content = self._contents[path] = _Content(self._plain)
        return CountedFile(self, path, content, writable=True)

    def open_read(self, path: str) -> File:
        return CountedFile(self, path, self._file(path), writable=False)

    def read(self, path: str) -> bytes:
        content = self._file(path)
        self.account.reads += 1
        self.account.read_bytes += content.size
        return content.read(content.size, 0)

    def rename(self, source: str, target: str) -> None:
        self._file(source)
        source, target = _whole(source), _whole(target)
        if target in self._contents and source != target:
            self._unlink(target)
        self._enter(target)
        if source != target:
            self._leave(source)
            self._contents[target] = self._contents.pop(source)
        self.account.writes += 1

    def delete(self, path: str) -> None:
        self._file(path)
        self._unlink(_whole(path))
        self.account.writes += 1

    def _unlink(self, path: str) -> None:
        """Take a file's name away; handles keep the file."""
        content = self._contents.pop(path)
        content.linked = False
        self.used_bytes -= content.size
        self._leave(path)

    def delete_tree(self, path: str) -> None:
        path = _whole(path)
        if path in self._contents:
            raise StorageError(f"{path}: is not a directory")
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
        self._enter(path)
        self._directories[path] = {}
        self.account.writes += 1

    def sync_directory(self, path: str) -> None:
        if _whole(path) not in self._directories:
            raise StorageError(f"{path}: no such directory")
        self.account.syncs += 1

    def lock(self, path: str, owner: str) -> Lock:
        path = _whole(path)
        if path in self._locked:
            raise DirectoryLockedError(f"{path}: in use by {self._locked[path]}")
        handle = self.open_append(path)
        handle.truncate(0)
        handle.append(owner.encode())
        self._locked[path] = owner
        return _CountedLock(self, path)

    def check_invariants(self) -> None:
        """Raise ``RuntimeError`` if names, files and the bytes counted contradict each other."""
        for content in self._contents.values():
            content.check_invariants()
        used = sum(content.size for content in self._contents.values())
        if used != self.used_bytes or not all(content.linked for content in self._contents.values()):
            raise RuntimeError(f"{self.used_bytes} bytes counted, {used} in files")
        entries = {posixpath.join(path, name) for path, names in self._directories.items() for name in names}
        if entries != self._contents.keys() | self._directories.keys() - {"/"}:
            raise RuntimeError("directories name what is not there, or files have no name")

    def _file(self, path: str) -> _Content:
        content = self._contents.get(_whole(path))
        if content is None:
            raise StorageError(f"{path}: no such file")
        return content

    def _enter(self, path: str) -> None:
        parent, name = posixpath.split(path)
        if parent not in self._directories:
            raise StorageError(f"{path}: no such directory")
        if path in self._directories:
            raise StorageError(f"{path}: is a directory")
        self._directories[parent][name] = None

    def _leave(self, path: str) -> None:
        parent, name = posixpath.split(path)
        self._directories[parent].pop(name, None)


def _whole(path: str) -> str:
    plain = path.startswith("/") and "//" not in path and "/." not in path and not path.endswith("/")
    return path if plain else posixpath.normpath("/" + path.lstrip("/"))
