"""The tree of a file system in memory: files and directories, each held twice.

A :class:`FileNode` holds its bytes twice: *issued* (what every reader sees) and *durable* (what the disk surely has),
with the writes *pending* between them; ``sync`` applies them. A :class:`Directory` holds its names twice likewise; the
pending changes of names stand in the file system, in order, because a rename may touch two directories.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import attrs

from warren.storage.faults import Survivors, Write

BLOCK_BYTES: Final = 4096
"""The block size of the modelled file systems, for a failed sync."""


def _block_end(offset: int) -> int:
    return -(-offset // BLOCK_BYTES) * BLOCK_BYTES


def _apply(content: bytearray, offset: int, chunk: bytes | None) -> None:
    """Write ``chunk`` at ``offset``, or truncate there; a gap becomes zeros."""
    if offset > len(content):
        content.extend(bytes(offset - len(content)))
    if chunk is None:
        del content[offset:]
    else:
        content[offset : offset + len(chunk)] = chunk


@attrs.define(eq=False, repr=False)
class FileNode:
    """A file's bytes, whatever its names."""

    issued: bytearray = attrs.field(factory=bytearray)
    durable: bytearray = attrs.field(factory=bytearray)
    pending: list[Write] = attrs.field(factory=list)
    sync_failed: bool = False
    unwritten: list[tuple[int, int]] = attrs.field(factory=list)
    """Where blocks begin and end that a failed sync was to write for the first time."""
    modified_ms: int = 0
    _reached: int = 0
    """Behind the last byte that a sync has written."""

    def change(self, offset: int, chunk: bytes | None) -> None:
        """Issue a write or a truncation."""
        if chunk is None:
            self._reached = min(self._reached, offset)
            if self.unwritten:
                end = _block_end(offset)
                self.unwritten = [(low, min(high, end)) for low, high in self.unwritten if low < end]
        if chunk is not None and offset == len(self.issued):
            self.issued += chunk  # nearly every write there is
        else:
            _apply(self.issued, offset, chunk)
        self.pending.append((offset, chunk))

    def sync(self) -> None:
        """Bring the pending writes to the disk."""
        for offset, chunk in self.pending:
            _apply(self.durable, offset, chunk)
            if chunk is not None:
                self._reached = max(self._reached, offset + len(chunk))
        self.pending.clear()
        # Only after a failed sync is anything missing: the size is the file's, the bytes never came.
        self.durable.extend(bytes(len(self.issued) - len(self.durable)))
        self._hide_unwritten()

    def flip_bit(self, offset: int, bit: int) -> None:
        """Flip a bit of the issued and of the durable bytes."""
        changed = bytes([self.issued[offset] ^ 1 << bit])
        if offset < len(self.durable):
            _apply(self.durable, offset, changed)
        self.change(offset, changed)

    def fail_sync(self) -> None:
        """Forget the pending bytes as Linux does: readers see them until the power goes, no later sync writes them.

        Nor is anything read after a power loss that is written over them in place, where their block would have been
        written for the first time: as ext4 does, which goes on to call it unwritten until it is cut off.
        """
        fresh = _block_end(self._reached)
        for offset, chunk in self.pending:
            if chunk is not None and (end := _block_end(offset + len(chunk))) > fresh:
                self.unwritten.append((max(offset // BLOCK_BYTES * BLOCK_BYTES, fresh), end))
        self.pending = [(size, chunk) for size, chunk in self.pending if chunk is None]
        self.sync_failed = True

    def _hide_unwritten(self) -> None:
        for low, high in self.unwritten:
            self.durable[low:high] = bytes(max(min(high, len(self.durable)) - low, 0))

    def lose_power(self, survivors: Survivors) -> None:
        """Fall back to the durable bytes and the surviving pending writes."""
        for offset, chunk in survivors.writes(self.pending):
            _apply(self.durable, offset, chunk)
        self._hide_unwritten()
        self.pending.clear()
        self.unwritten.clear()
        self.issued = bytearray(self.durable)
        self.sync_failed = False

    def copy(self) -> FileNode:
        """Return an independent copy."""
        copied = type(self)(bytearray(self.issued), bytearray(self.durable), self.pending.copy(), self.sync_failed)
        copied.unwritten, copied._reached = self.unwritten.copy(), self._reached
        return copied

    def check_invariants(self, path: str) -> None:
        """Raise ``RuntimeError`` if issued, pending and durable bytes contradict each other."""
        content = bytearray(self.durable)
        for offset, chunk in self.pending:
            _apply(content, offset, chunk)
        if content != self.issued and not self.sync_failed:
            raise RuntimeError(f"{path}: durable and pending bytes do not add up to the issued ones")


class VolatileNode(FileNode):
    """A file that is on no disk."""

    __slots__ = ()

    def change(self, offset: int, chunk: bytes | None) -> None:
        _apply(self.issued, offset, chunk)

    def sync(self) -> None:
        pass

    def check_invariants(self, path: str) -> None:
        if self.durable or self.pending:
            raise RuntimeError(f"{path}: has durable or pending bytes, of a file that is volatile")


@attrs.define(eq=False, repr=False)
class Directory:
    """Names, each of a file or of another directory."""

    issued: dict[str, Node] = attrs.field(factory=dict)
    durable: dict[str, Node] = attrs.field(factory=dict)

    def files(self, above: str = "") -> Iterator[tuple[str, FileNode]]:
        """Yield the files below it, by path."""
        for name, node in sorted(self.issued.items()):
            if isinstance(node, FileNode):
                yield f"{above}/{name}", node
            else:
                yield from node.files(f"{above}/{name}")

    def directories(self) -> Iterator[Directory]:
        """Yield it and the directories below it."""
        yield self
        for node in self.issued.values():
            if isinstance(node, Directory):
                yield from node.directories()

    def settle(self) -> None:
        """Fall back to the durable names; what they do not reach is gone."""
        self.issued = dict(self.durable)
        for node in self.issued.values():
            if isinstance(node, Directory):
                node.settle()


Node = FileNode | Directory


Change = dict[tuple[Directory, str], Node | None]
"""One step of the tree, whole or not at all: names, and what they stand for from now on (``None``: nothing)."""


def make_durable(change: Change) -> None:
    for (parent, name), node in change.items():
        if node is None:
            parent.durable.pop(name, None)
        else:
            parent.durable[name] = node


def copied(
    root: Directory, changes: Sequence[Change], others: Sequence[Node] = ()
) -> tuple[Directory, list[Change], list[Node]]:
    """A tree, the changes pending in it, and other nodes of it, that share nothing with the ones given."""
    copies: dict[Node, Node] = {}

    def directory(original: Directory) -> Directory:
        existing = copies.get(original)
        if isinstance(existing, Directory):
            return existing
        copy = copies[original] = Directory()
        copy.issued = {name: node(inner) for name, inner in original.issued.items()}
        copy.durable = {name: node(inner) for name, inner in original.durable.items()}
        return copy

    def node(original: Node) -> Node:
        if isinstance(original, Directory):
            return directory(original)
        copy = copies.get(original)
        if copy is None:
            copy = copies[original] = original.copy()
        return copy

    top = directory(root)
    pending: list[Change] = [
        {(directory(parent), name): inner and node(inner) for (parent, name), inner in change.items()}
        for change in changes
    ]
    return top, pending, [node(other) for other in others]
