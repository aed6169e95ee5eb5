"""A tape of file operations: what an engine asks of the disk, recorded once, and replayed by bare system calls.

:class:`RecordingFileSystem` stands where the engine's file system stands and writes down every operation that changes
or reads the disk, the bytes included. :class:`Player` does the same operations in the same order on fresh files, with
nothing between the system call and the bytes. That is the *bare* counterpart that every figure is compared with: the
same bytes, in the same pieces, to files that are opened, appended to, truncated, synced and deleted at the same
moments.

What the tape leaves out, to the engine's disadvantage: looking around (names, sizes, existence), and the lock file.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from typing import Literal

import attrs

from warren.storage.filesystem import File, FileSystem, Lock, RealFileSystem

Kind = Literal[
    "open", "close", "write", "read", "truncate", "sync", "delete", "delete tree", "rename", "mkdir", "sync dir"
]


@attrs.frozen
class Operation:
    """One step of a tape. ``handle`` numbers an open file; ``number`` is an offset, a size, or flags of an open."""

    kind: Kind
    path: str = ""
    handle: int = -1
    data: bytes = b""
    number: int = 0
    size: int = 0
    target: str = ""


@attrs.define
class Tape:
    """Operations in order. Paths are relative to the directory that was recorded."""

    operations: list[Operation] = attrs.Factory(list)

    def __len__(self) -> int:
        return len(self.operations)

    @property
    def bytes_written(self) -> int:
        return sum(len(operation.data) for operation in self.operations)

    @property
    def bytes_read(self) -> int:
        return sum(operation.size for operation in self.operations if operation.kind == "read")

    @property
    def writes(self) -> int:
        return sum(operation.kind == "write" for operation in self.operations)


class RecordingFileSystem:
    """A :class:`warren.storage.filesystem.FileSystem` that lets another one do the work and keeps a tape of it."""

    def __init__(self, root: str) -> None:
        self._root = root.rstrip("/") + "/"
        self._files: FileSystem = RealFileSystem()
        self._tape = Tape()
        self._handles = 0

    def take(self) -> Tape:
        """What happened since the last call."""
        taken, self._tape = self._tape, Tape()
        return taken

    def note(self, operation: Operation) -> None:
        self._tape.operations.append(operation)

    def _relative(self, path: str) -> str:
        return path.removeprefix(self._root)

    def _opened(self, path: str, file: File, flags: int) -> _RecordedFile:
        self._handles += 1
        self.note(Operation("open", path=self._relative(path), handle=self._handles, number=flags))
        return _RecordedFile(self, self._handles, file)

    def open_append(self, path: str) -> File:
        return self._opened(path, self._files.open_append(path), os.O_RDWR | os.O_CREAT)

    def open_read(self, path: str) -> File:
        return self._opened(path, self._files.open_read(path), os.O_RDONLY)

    def read(self, path: str) -> bytes:
        handle = self.open_read(path)
        try:
            return handle.pread(handle.size(), 0)
        finally:
            handle.close()

    def rename(self, source: str, target: str) -> None:
        self._files.rename(source, target)
        self.note(Operation("rename", path=self._relative(source), target=self._relative(target)))

    def delete(self, path: str) -> None:
        self._files.delete(path)
        self.note(Operation("delete", path=self._relative(path)))

    def delete_tree(self, path: str) -> None:
        self._files.delete_tree(path)
        self.note(Operation("delete tree", path=self._relative(path)))

    def list(self, path: str) -> list[str]:
        return self._files.list(path)

    def exists(self, path: str) -> bool:
        return self._files.exists(path)

    def is_directory(self, path: str) -> bool:
        return self._files.is_directory(path)

    def size(self, path: str) -> int:
        return self._files.size(path)

    def modified_ms(self, path: str) -> int:
        return self._files.modified_ms(path)

    def make_directories(self, path: str) -> None:
        self._files.make_directories(path)
        self.note(Operation("mkdir", path=self._relative(path)))

    def sync_directory(self, path: str) -> None:
        self._files.sync_directory(path)
        if (path + "/").startswith(self._root):  # those above are outside of what is played
            self.note(Operation("sync dir", path=self._relative(path + "/").rstrip("/")))

    def lock(self, path: str, owner: str) -> Lock:
        return self._files.lock(path, owner)


class _RecordedFile:
    """An open file whose operations go onto the tape."""

    def __init__(self, recorder: RecordingFileSystem, handle: int, file: File) -> None:
        self._recorder = recorder
        self._handle = handle
        self._file = file

    @property
    def end(self) -> int:
        return self._file.end

    def append(self, data: bytes | bytearray | memoryview) -> int:
        offset = self._file.append(data)
        self._recorder.note(Operation("write", handle=self._handle, data=bytes(data), number=offset))
        return offset

    def appendv(self, pieces: Sequence[bytes | bytearray | memoryview]) -> int:
        return self.append(b"".join(pieces))

    def pwrite(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        self._file.pwrite(data, offset)
        self._recorder.note(Operation("write", handle=self._handle, data=bytes(data), number=offset))

    def pread(self, size: int, offset: int) -> bytes:
        data = self._file.pread(size, offset)
        self._recorder.note(Operation("read", handle=self._handle, number=offset, size=size))
        return data

    def next_data(self, offset: int) -> int:
        return self._file.next_data(offset)

    def truncate(self, size: int) -> None:
        self._file.truncate(size)
        self._recorder.note(Operation("truncate", handle=self._handle, number=size))

    def size(self) -> int:
        return self._file.size()

    def sync(self) -> None:
        self._file.sync()
        self._recorder.note(Operation("sync", handle=self._handle))

    def close(self) -> None:
        self._file.close()
        self._recorder.note(Operation("close", handle=self._handle))


class Player:
    """Plays tapes, one after the other, on the files of one directory."""

    def __init__(self, root: str) -> None:
        os.makedirs(root, exist_ok=True)
        self._root = root.rstrip("/") + "/"
        self._descriptors: dict[int, int] = {}

    def prepare(self, tape: Tape) -> Callable[[], None]:
        """Everything that is not the system's own work, done beforehand; what it returns is to be timed."""
        steps = [self._step(operation) for operation in tape.operations]

        def play() -> None:
            for step, arguments in steps:
                step(*arguments)

        return play

    def play(self, tape: Tape) -> None:
        self.prepare(tape)()

    def close(self) -> None:
        """Give up what the tapes left open."""
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()

    def _step(self, operation: Operation) -> tuple[Callable[..., object], tuple[object, ...]]:
        path, handle = self._root + operation.path, operation.handle
        match operation.kind:
            case "open":
                return self._open, (handle, path, operation.number)
            case "close":
                return self._close, (handle,)
            case "write":
                return self._write, (handle, operation.data, operation.number)
            case "read":
                return self._read, (handle, operation.size, operation.number)
            case "truncate":
                return self._truncate, (handle, operation.number)
            case "sync":
                return self._sync, (handle,)
            case "delete":
                return os.unlink, (path,)
            case "delete tree":
                return shutil.rmtree, (path, True)
            case "rename":
                return os.rename, (path, self._root + operation.target)
            case "mkdir":
                return os.makedirs, (path, 0o777, True)
            case "sync dir":
                return self._sync_directory, (path,)

    def _open(self, handle: int, path: str, flags: int) -> None:
        self._descriptors[handle] = os.open(path, flags | os.O_CLOEXEC, 0o644)

    def _close(self, handle: int) -> None:
        descriptor = self._descriptors.pop(handle, None)
        if descriptor is not None:
            os.close(descriptor)

    def _write(self, handle: int, data: bytes, offset: int) -> None:
        os.pwrite(self._descriptors[handle], data, offset)

    def _read(self, handle: int, size: int, offset: int) -> None:
        os.pread(self._descriptors[handle], size, offset)

    def _truncate(self, handle: int, size: int) -> None:
        os.ftruncate(self._descriptors[handle], size)

    def _sync(self, handle: int) -> None:
        os.fsync(self._descriptors[handle])

    @staticmethod
    def _sync_directory(path: str) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        os.fsync(descriptor)
        os.close(descriptor)
