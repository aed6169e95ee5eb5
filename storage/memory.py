"""A file system in memory that can die, lose power, run full, fail and rot, all from a seed.

It owns a tree of nodes, whose bytes and names are held twice (:mod:`warren.storage.memory_tree`), and the pending
changes of names. For fair faults, and what they leave to guarantee, see :mod:`warren.storage.faults`.

Invariants: durable bytes with the pending writes applied are the issued bytes, unless a ``sync`` of that file failed;
durable names with the pending changes applied are the issued names.

What a crash leaves. After a crash of the process: everything issued, pending as before. After a power loss: the durable
state, and of what was pending whatever the generator chose; all of it durable now. Either is a *new* file system (the
only deep copies made here); the old one, with all its handles, is dead and raises :class:`SimulatedCrash`. It can be
asked again, for another outcome of the same moment.

*Volatile*: nothing of it is on a disk. It holds no byte twice, knows nothing pending, and a power loss leaves nothing.
For a node that is to be gone with its process.

Many threads may use it, each file by one writer at a time: ``lock_of_names`` then guards the tree.

Stricter than a real system: a second writer of a file is a ``RuntimeError``, directories cannot be renamed, a synced
file is lost with an unsynced directory. Relative paths begin at ``/``.
"""

from __future__ import annotations

import contextlib
import posixpath
import random
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import attrs

from warren.storage.errors import DirectoryLockedError, DiskFullError, StorageError
from warren.storage.faults import DrawnSurvivors, FaultPlan, FaultRules, NoSurvivors, Strike, Survivors
from warren.storage.memory_tree import Change, Directory, FileNode, Node, VolatileNode, copied, make_durable


class MemoryFile:
    """A handle on a file node."""

    __slots__ = ("_node", "_open", "_owner", "_plan", "_writable", "end", "path")

    def __init__(self, owner: MemoryFileSystem, path: str, node: FileNode, *, writable: bool) -> None:
        self.path = path
        self._owner = owner
        self._plan = owner.plan
        self._node = node
        self.end = len(node.issued)
        self._writable = writable
        self._open = True

    def append(self, data: bytes | bytearray | memoryview) -> int:
        start = self.end
        if start != len(self._node.issued) and self._writable:
            raise RuntimeError(f"{self.path}: has another writer beside the one that appends")
        self._write("append", bytes(data), start)
        return start

    def appendv(self, pieces: Sequence[bytes | bytearray | memoryview]) -> int:
        return self.append(b"".join(pieces))

    def pwrite(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        self._write("pwrite", bytes(data), offset)

    def _write(self, kind: str, chunk: bytes, offset: int) -> None:
        if not self._writable or offset < 0:
            self._refuse(kind)
        strike = self._plan.begin(kind, self.path)
        if strike is not None:
            chunk = chunk[: self._plan.surviving_bytes(strike, len(chunk))]
        elif self._owner.capacity_bytes is not None:
            growth = offset + len(chunk) - len(self._node.issued)
            if (missing := growth - self._owner.room_bytes) > 0:
                strike = Strike(DiskFullError(f"{self.path}: no space left on device"), self._owner.rules.torn_writes)
                chunk = chunk[: max(len(chunk) - missing, 0)] if strike.torn else b""
        if chunk:
            self._node.change(offset, chunk)
            self._node.modified_ms = self._owner.now_ms()
            self.end = len(self._node.issued)
        if strike is not None:
            raise strike.error

    def pread(self, size: int, offset: int) -> bytes:
        if not self._open or size < 0 or offset < 0:
            self._refuse("pread")
        self._plan.begin_read("pread", self.path)
        return bytes(self._node.issued[offset : offset + size])

    def next_data(self, offset: int) -> int:
        return min(max(offset, 0), len(self._node.issued))

    def truncate(self, size: int) -> None:
        if not self._writable or size < 0:
            self._refuse("truncate")
        self._plan.begin_whole("truncate", self.path)
        growth = size - len(self._node.issued)
        if growth > 0 and self._owner.capacity_bytes is not None and growth > self._owner.room_bytes:
            raise DiskFullError(f"{self.path}: no space left on device")
        self._node.change(size, None)
        self._node.modified_ms = self._owner.now_ms()
        self.end = size

    def size(self) -> int:
        if not self._open:
            self._refuse("size")
        self._plan.live(self.path)
        return len(self._node.issued)

    def sync(self) -> None:
        if not self._open:
            self._refuse("sync")
        strike = self._plan.begin("sync", self.path)
        if strike is None:
            self._node.sync()
            return
        if isinstance(strike.error, StorageError):
            self._node.fail_sync()
        raise strike.error

    def close(self) -> None:
        self._open = self._writable = False

    def _refuse(self, kind: str) -> NoReturn:
        self._plan.live(self.path)
        raise StorageError(f"{self.path}: {kind} refused: closed, read-only, or a negative position")


@attrs.frozen
class MemoryLock:
    """A held lock; see :class:`warren.storage.filesystem.Lock`."""

    _files: MemoryFileSystem
    _path: str
    _node: FileNode

    @property
    def in_place(self) -> bool:
        return self._node in self._files._locked and self._files._find(self._path) is self._node

    def release(self) -> None:
        self._files._locked.discard(self._node)

    def remove(self) -> None:
        if self.in_place:
            self._files.delete(self._path)
        self.release()


def _generator(seed: random.Random | int) -> random.Random:
    return seed if isinstance(seed, random.Random) else random.Random(seed)  # nosec B311 # faults


@attrs.define(eq=False, repr=False)
class MemoryFileSystem:
    """A :class:`warren.storage.filesystem.FileSystem` in memory.

    ``rng`` is the generator that every fault is drawn from, or a seed for one; ``capacity_bytes`` bounds the bytes in
    all files together (``None``: no bound) and may be changed at any time; ``now_ms`` is the clock that says when a
    file was modified. ``volatile``, ``lock_of_names``: see the module's prose.
    """

    rng: random.Random = attrs.field(factory=lambda: random.Random(0), converter=_generator)  # nosec B311 # faults
    rules: FaultRules = attrs.field(default=FaultRules(), kw_only=True)
    capacity_bytes: int | None = attrs.field(default=None, kw_only=True)
    now_ms: Callable[[], int] = attrs.field(default=lambda: 0, kw_only=True)
    volatile: bool = attrs.field(default=False, kw_only=True)
    lock_of_names: contextlib.AbstractContextManager[Any] = attrs.field(factory=contextlib.nullcontext, kw_only=True)
    plan: FaultPlan = attrs.field(init=False, default=attrs.Factory(lambda fs: FaultPlan(fs.rules, fs.rng), True))
    _root: Directory = attrs.field(init=False, factory=Directory)
    _changes: list[Change] = attrs.field(init=False, factory=list)
    _locked: set[FileNode] = attrs.field(init=False, factory=set)

    # Faults

    @property
    def operations(self) -> int:
        """Operations until now, failed ones included; the last 10,000 stand in ``plan.log`` as (kind, path)."""
        return self.plan.operations

    @property
    def used_bytes(self) -> int:
        """Bytes in all files, as issued."""
        return sum(len(node.issued) for _, node in self._root.files())

    @property
    def room_bytes(self) -> int:
        """The free bytes of the disk; only if it has a capacity."""
        if self.capacity_bytes is None:
            raise ValueError("a disk without a capacity has room for anything")
        return max(self.capacity_bytes - self.used_bytes, 0)

    def crash_at(self, operation: int, *, torn: bool = False) -> None:
        """Raise :class:`SimulatedCrash` from the ``operation``-th operation from now (1: the next).

        It takes no effect or, with ``torn``, a write leaves a prefix of its data (perhaps none, perhaps all).
        """
        self.plan.crash_at(operation, torn=torn)

    def fail(
        self,
        kind: str,
        path_pattern: str = "*",
        *,
        error: type[StorageError] = StorageError,
        skip: int = 0,
        times: int = 1,
    ) -> None:
        """Let ``times`` operations of ``kind`` on such paths (fnmatch) fail, after ``skip`` that pass."""
        self.plan.fail(kind, path_pattern, error=error, skip=skip, times=times)

    def fail_at(self, operation: int, *, error: type[StorageError] = StorageError) -> None:
        """Let the ``operation``-th operation from now (1: the next) fail, whatever it is; later ones pass."""
        self.plan.fail_at(operation, error=error)

    def flip_bit(self, path: str, offset: int, bit: int) -> None:
        """Turn bit ``bit`` (0 … 7) of the byte at ``offset`` over, on the disk too. Needs ``rules.damage``."""
        self.rules.demand(self.rules.damage, f"a flipped bit in {path}")
        node = self._file(path)
        if not (0 <= offset < len(node.issued) and 0 <= bit < 8):
            raise ValueError(f"{path} has no bit {bit} at offset {offset}")
        node.flip_bit(offset, bit)

    def flip_any_bit(self, path: str, rng: random.Random) -> tuple[int, int]:
        """Flip a bit that ``rng`` chooses; returns its offset and bit."""
        offset, bit = rng.randrange(self.size(path)), rng.randrange(8)
        self.flip_bit(path, offset, bit)
        return offset, bit

    def cut(self, path: str, size: int) -> None:
        """Cut the file at ``size``, as a tear there would. Below ``synced_size`` this needs ``rules.damage``."""
        node = self._file(path)
        if not 0 <= size <= len(node.issued):
            raise ValueError(f"{path} cannot be cut to {size} bytes: it has {len(node.issued)}")
        self.rules.demand(self.rules.damage or size >= len(node.durable), f"losing synced bytes of {path}")
        node.change(size, None)
        del node.durable[size:]

    def synced_size(self, path: str) -> int:
        """Bytes of the file that are on the disk for sure."""
        return len(self._file(path).durable)

    def sync_all(self) -> None:
        """Make everything durable, as ``sync(1)`` does; not counted as an operation."""
        for change in self._changes:
            make_durable(change)
        self._changes.clear()
        for _, node in self._root.files():
            node.sync()

    def after_process_crash(self) -> MemoryFileSystem:
        """Return the disk as the next process finds it: with every issued write, no more durable than before."""
        self.plan.dead = True
        disk = MemoryFileSystem(
            random.Random(self.rng.getrandbits(64)),  # nosec B311 # faults
            rules=self.rules,
            capacity_bytes=self.capacity_bytes,
            now_ms=self.now_ms,
            volatile=self.volatile,
            lock_of_names=self.lock_of_names,
        )
        disk._root, disk._changes, _ = copied(self._root, self._changes)
        return disk

    def after_power_loss(self, left: random.Random | Survivors | None) -> MemoryFileSystem:
        """Return the disk after a power loss: everything durable, and the pending changes that ``left`` chooses: a
        generator, within the rules, or a :class:`Survivors`; ``None``: nothing."""
        survivors: Survivors
        match left:
            case None:
                survivors = NoSurvivors()
            case random.Random():
                survivors = DrawnSurvivors(left, self.rules)
            case _:
                survivors = left
        disk = self.after_process_crash()
        for number in survivors.changes(disk._changes):
            make_durable(disk._changes[number])
        disk._changes.clear()
        disk._root.settle()
        for _, node in disk._root.files():
            node.lose_power(survivors)
        return disk

    def contents(self) -> dict[str, bytes]:
        """Every file's issued bytes by absolute path, in order; of a dead file system too."""
        return {path: bytes(node.issued) for path, node in self._root.files()}

    def check_invariants(self) -> None:
        """Raise ``RuntimeError`` if what is issued, pending and durable contradicts itself."""
        for path, file in self._root.files():
            file.check_invariants(path)
        if self.volatile:
            return
        names = {
            (directory, name): node
            for directory in self._root.directories()
            for name, node in directory.durable.items()
        }
        for change in self._changes:
            for key, node in change.items():
                names.pop(key, None)
                if node is not None:
                    names[key] = node
        reachable = set(self._root.directories())
        expected = {(directory, name): node for directory in reachable for name, node in directory.issued.items()}
        if {key: node for key, node in names.items() if key[0] in reachable} != expected:
            raise RuntimeError("durable names and pending changes do not add up to the issued ones")

    # The protocol

    def open_append(self, path: str) -> MemoryFile:
        parent, name = self._place(path)
        node = parent.issued.get(name)
        if node is None:
            self.plan.begin_whole("create", path)
            node = self._new_file()
            self._change({(parent, name): node})
        if isinstance(node, Directory):
            raise StorageError(f"{path}: is a directory")
        return MemoryFile(self, path, node, writable=True)

    def open_read(self, path: str) -> MemoryFile:
        return MemoryFile(self, path, self._file(path), writable=False)

    def read(self, path: str) -> bytes:
        node = self._file(path)
        self.plan.begin_read("read", path)
        return bytes(node.issued)

    def rename(self, source: str, target: str) -> None:
        node = self._file(source)
        source_place, target_place = self._place(source), self._place(target)
        if isinstance(target_place[0].issued.get(target_place[1]), Directory):
            raise StorageError(f"{target}: is a directory")
        self.plan.begin_whole("rename", source)
        if source_place != target_place:
            self._change({target_place: node, source_place: None})

    def delete(self, path: str) -> None:
        self._file(path)
        self.plan.begin_whole("delete", path)
        self._change({self._place(path): None})

    def delete_tree(self, path: str) -> None:
        tree = self._find(path)
        if tree is None:
            return
        if not isinstance(tree, Directory):
            raise StorageError(f"{path}: is not a directory")
        parent, name = self._place(path)
        for entry in sorted(tree.issued):
            inner = f"{path}/{entry}"
            if isinstance(tree.issued[entry], Directory):
                self.delete_tree(inner)
            else:
                self.plan.begin_whole("delete_tree", inner)
                self._change({(tree, entry): None})
        self.plan.begin_whole("delete_tree", path)
        self._change({(parent, name): None})

    def exists(self, path: str) -> bool:
        return self._find(path) is not None

    def is_directory(self, path: str) -> bool:
        return isinstance(self._find(path), Directory)

    def size(self, path: str) -> int:
        return len(self._file(path).issued)

    def modified_ms(self, path: str) -> int:
        return self._file(path).modified_ms

    def make_directories(self, path: str) -> None:
        at, prefix = self._root, ""
        for name in _split(path):
            prefix = f"{prefix}/{name}"
            node = at.issued.get(name)
            if node is None:
                self.plan.begin_whole("make_directory", prefix)
                node = Directory()
                self._change({(at, name): node})
            if not isinstance(node, Directory):
                raise StorageError(f"{path}: {name} is a file")
            at = node

    def sync_directory(self, path: str) -> None:
        directory = self._find(path)
        if not isinstance(directory, Directory):
            raise StorageError(f"{path}: no such directory")
        self.plan.begin_whole("sync_directory", path)
        with self.lock_of_names:
            self._sync_names(directory)

    def _sync_names(self, directory: Directory) -> None:
        pending: list[Change] = []
        synced: list[Change] = []
        names: set[tuple[Directory, str]] = set()
        # Backwards: a change goes to the disk with all earlier ones of the same names.
        for change in reversed(self._changes):
            if any(parent is directory for parent, _ in change) or not names.isdisjoint(change):
                names.update(change)
                synced.append(change)
            else:
                pending.append(change)
        for change in reversed(synced):
            make_durable(change)
        self._changes = pending[::-1]

    def lock(self, path: str, owner: str) -> MemoryLock:
        parent, name = self._place(path)
        node = parent.issued.get(name)
        if isinstance(node, Directory):
            raise StorageError(f"{path}: is a directory")
        if node in self._locked:
            holder = node.issued[:200].decode("utf-8", "replace").strip()
            raise DirectoryLockedError(f"{path}: in use by {holder or 'another process'}")
        self.plan.begin_whole("lock", path)
        if node is None:
            node = self._new_file()
            self._change({(parent, name): node})
        node.change(0, None)
        node.change(0, owner.encode())
        self._locked.add(node)
        return MemoryLock(self, path, node)

    def list(self, path: str) -> list[str]:
        directory = self._find(path)
        if isinstance(directory, FileNode):
            raise StorageError(f"{path}: is not a directory")
        return [] if directory is None else sorted(directory.issued)

    # The tree

    def _new_file(self) -> FileNode:
        return VolatileNode() if self.volatile else FileNode()

    def _change(self, change: Change) -> None:
        with self.lock_of_names:
            for (parent, name), node in change.items():
                if node is None:
                    del parent.issued[name]
                else:
                    parent.issued[name] = node
            if not self.volatile:
                self._changes.append(change)

    def _find(self, path: str) -> Node | None:
        self.plan.live(path)
        node: Node | None = self._root
        for name in _split(path):
            node = node.issued.get(name) if isinstance(node, Directory) else None
        return node

    def _file(self, path: str) -> FileNode:
        node = self._find(path)
        if not isinstance(node, FileNode):
            raise StorageError(f"{path}: {'no such file' if node is None else 'is a directory'}")
        return node

    def _place(self, path: str) -> tuple[Directory, str]:
        *above, name = _split(path) or [""]
        parent = self._find("/".join(above))
        if not isinstance(parent, Directory) or not name:
            raise StorageError(f"{path}: no such directory")
        return parent, name


def _split(path: str) -> list[str]:
    return [name for name in posixpath.normpath("/" + path).split("/") if name]
