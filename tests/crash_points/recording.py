"""A file system in memory that keeps what was done to it, so that the disk of any moment can be made again.

An *operation* is a write or a truncation of a file, a change of names, or the sync of a file or of a directory. With
each goes what had been promised when it was issued: :attr:`Record.promises`, which has one more, of the end.

A process that dies goes on in :meth:`RecordingFileSystem.after_process_crash`, with the same files and the same record.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Any

import attrs

from warren.storage.faults import Write
from warren.storage.memory import MemoryFile, MemoryFileSystem, MemoryLock
from warren.storage.memory_tree import Change, Directory, FileNode, Node, copied


@attrs.frozen
class Written:
    """A write to a file, or a truncation."""

    file: int
    write: Write


@attrs.frozen
class Synced:
    """A file, or the names of a directory."""

    node: int


@attrs.frozen
class Named:
    """One change of names: directory and name, and what they stand for; a node that is new says what it is."""

    change: tuple[tuple[int, str, int | None], ...]
    made: tuple[tuple[int, bool], ...]
    """Numbers of new nodes; whether each is a directory."""


Operation = Written | Synced | Named


@attrs.define(eq=False, repr=False)
class Record:
    """What was done to a disk that began as ``base``."""

    base: MemoryFileSystem
    promised: Callable[[], Any]
    """What has been promised by now: a value of its own, which stays as it is."""
    operations: list[Operation] = attrs.Factory(list)
    promises: list[Any] = attrs.Factory(list)
    """By the number of the next operation. Promises that are the same are one object."""
    numbers: dict[Node, int] = attrs.Factory(dict)

    def add(self, operation: Operation) -> None:
        self._note_promises()
        self.operations.append(operation)

    def end(self) -> None:
        """Nothing more is done."""
        self._note_promises()

    def _note_promises(self) -> None:
        now = self.promised()
        last = self.promises[-1] if self.promises else None
        self.promises.append(last if now == last else now)

    def number(self, node: Node) -> int:
        return self.numbers.setdefault(node, len(self.numbers))


@attrs.define(eq=False, repr=False)
class RecordingFileSystem(MemoryFileSystem):
    """A disk whose changes are kept. Made by :func:`recording`."""

    record: Record = attrs.field(kw_only=True)

    def open_append(self, path: str) -> MemoryFile:
        handle = super().open_append(path)
        return RecordedFile(self, path, handle._node, writable=True)

    def lock(self, path: str, owner: str) -> MemoryLock:
        held = super().lock(path, owner)
        for write in held._node.pending[-2:]:
            self.record.add(Written(self.record.number(held._node), write))
        return held

    def _change(self, change: Change) -> None:
        super()._change(change)
        number, known = self.record.number, set(self.record.numbers)
        keys = tuple((number(parent), name, None if node is None else number(node))
                     for (parent, name), node in change.items())  # fmt: skip
        new = [node for node in change.values() if node is not None and node not in known]
        self.record.add(Named(keys, tuple((number(node), isinstance(node, Directory)) for node in new)))

    def _sync_names(self, directory: Directory) -> None:
        super()._sync_names(directory)
        self.record.add(Synced(self.record.number(directory)))

    def after_process_crash(self) -> MemoryFileSystem:
        """The same disk in the hands of the next process; what that does stands in the record, too."""
        self.plan.dead = True
        rng = random.Random(self.rng.getrandbits(64))
        heir = type(self)(rng, rules=self.rules, now_ms=self.now_ms, record=self.record)
        heir._root, heir._changes = self._root, self._changes
        return heir


class RecordedFile(MemoryFile):
    """A handle whose writes are kept."""

    __slots__ = ()

    def _write(self, kind: str, chunk: bytes, offset: int) -> None:
        with self._kept():
            super()._write(kind, chunk, offset)

    def truncate(self, size: int) -> None:
        with self._kept():
            super().truncate(size)

    def sync(self) -> None:
        super().sync()
        record = _record_of(self)
        record.add(Synced(record.number(self._node)))

    @contextlib.contextmanager
    def _kept(self) -> Iterator[None]:
        before = len(self._node.pending)
        try:
            yield
        finally:
            record = _record_of(self)
            for write in self._node.pending[before:]:
                record.add(Written(record.number(self._node), write))


def _record_of(file: MemoryFile) -> Record:
    assert isinstance(file._owner, RecordingFileSystem)
    return file._owner.record


def recording(base: MemoryFileSystem, promised: Callable[[], Any]) -> RecordingFileSystem:
    """A disk like ``base`` that records its changes; ``base`` must not be used any more."""
    record = Record(base, promised)
    root, changes, nodes = copied(base._root, base._changes, _nodes_of(base))
    for node in nodes:
        record.number(node)
    files = RecordingFileSystem(base.rng, rules=base.rules, now_ms=base.now_ms, record=record)
    files._root, files._changes = root, changes
    return files


def _nodes_of(files: MemoryFileSystem) -> list[Node]:
    """All that a name, synced or not, stands for or stood for; the same order for a copy."""
    found: dict[Node, None] = {}
    left: list[Node] = [node for change in files._changes for node in change.values() if node is not None]
    left.append(files._root)
    while left:
        node = left.pop()
        if node not in found:
            found[node] = None
            if isinstance(node, Directory):
                left += [*node.issued.values(), *node.durable.values()]
    return list(found)


@attrs.define(eq=False, repr=False)
class Replay:
    """The disk of a record, after any number of its operations."""

    disk: MemoryFileSystem
    nodes: list[Node]

    @classmethod
    def of(cls, record: Record) -> Replay:
        base = record.base
        return cls._of(base, _nodes_of(base))

    @classmethod
    def _of(cls, files: MemoryFileSystem, nodes: list[Node]) -> Replay:
        disk = MemoryFileSystem(0, rules=files.rules, now_ms=files.now_ms)
        disk._root, disk._changes, nodes = copied(files._root, files._changes, nodes)
        return cls(disk, nodes)

    def copy(self) -> Replay:
        return self._of(self.disk, self.nodes)

    def apply(self, operation: Operation) -> None:
        match operation:
            case Written(number, (offset, chunk)):
                self._file(number).change(offset, chunk)
            case Synced(number):
                node = self.nodes[number]
                if isinstance(node, FileNode):
                    node.sync()
                else:
                    self.disk._sync_names(node)
            case Named():
                self._name(operation)

    def _name(self, named: Named) -> None:
        for number, is_directory in named.made:
            assert number == len(self.nodes)
            self.nodes.append(Directory() if is_directory else FileNode())
        change: Change = {}
        for parent, name, target in named.change:
            directory = self.nodes[parent]
            assert isinstance(directory, Directory)
            change[directory, name] = None if target is None else self.nodes[target]
        self.disk._change(change)

    def _file(self, number: int) -> FileNode:
        node = self.nodes[number]
        assert isinstance(node, FileNode)
        return node
