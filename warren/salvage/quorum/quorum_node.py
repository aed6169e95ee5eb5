"""A node's folder in ``quorum``: write-ahead logs, tables and directories that all of its queues share.

The write-ahead logs hold the entries of all queues; their problems are reported with the first of the directories.
Two tables, DETS files (:mod:`warren.queue_index.index.dets_format`), have an object for each queue::

    names.dets   {ServerName, UId}                        its process's name, and its directory's
    meta.dets    {UId, Term, VotedFor, LastApplied}       entries up to this index had been applied

Both are written up to 3 seconds late, and LastApplied is updated every few seconds only. A node that was killed leaves
them open; its next start repairs them, and so does a reader: what is in them counts.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

import attrs

from warren.queue_index.index.dets_format import surviving_terms
from warren.salvage.names import printable, to_text
from warren.salvage.queue_directory import Finding, SizedFile
from warren.salvage.quorum.ra.file_names import CONFIG_NAME, META_FILE, NAMES_FILE, is_wal_name
from warren.salvage.read_only import ReadOnlyFileSystem, below, directories
from warren.storage.erlang_terms import Atom, Term, decode
from warren.storage.errors import DataError, StorageError, TermError

if TYPE_CHECKING:
    from warren.salvage.quorum.ra.wal_columns import WalEntries
    from warren.salvage.quorum.ra.wal_index import WalIndex

_Content = TypeVar("_Content")


@attrs.frozen(eq=False, repr=False, slots=False)  # slots would leave no room for what is cached
class QuorumNode:
    """The contents of the folder; each is read once, when it is first used."""

    files: ReadOnlyFileSystem
    path: str

    @cached_property
    def wal(self) -> WalIndex:
        """Where the entries of its queues stand in the write-ahead logs."""
        from warren.salvage.quorum.ra.wal_index import WalIndex

        return WalIndex.scan(self.files, self._wal_paths, set(map(_uid, self._directories)))

    @cached_property
    def logs(self) -> tuple[SizedFile, ...]:
        """The write-ahead logs."""
        return tuple(SizedFile(path, self.files.size(path)) for path in self._wal_paths)

    @property
    def logs_share_bytes(self) -> int:
        """The bytes of the write-ahead logs, shared among the queues."""
        return sum(log.size_bytes for log in self.logs) // max(len(self._directories), 1)

    def applied(self, directory: str) -> int | None:
        """The last entry of that queue that it has applied; ``None`` if its table cannot be read."""
        return None if self._applied is None else self._applied.get(_uid(directory), 0)

    def is_anothers(self, directory: str, uid: bytes) -> bool:
        """Whether a config with that uid, in that directory, belongs to another existing directory."""
        return uid != _uid(directory) and uid in map(_uid, self._directories)

    def is_left_of_deletion(self, directory: str) -> bool:
        """Whether that queue was deleted while a segment of it was written: the file came back, and its folder with it.

        It then has no config, and is not among the node's names. False if those cannot be read.
        """
        if self.files.exists(below(directory, CONFIG_NAME)):
            return False
        return self._uids is not None and _uid(directory) not in self._uids

    def problems_at(self, directory: str) -> tuple[Finding, ...]:
        """The problems of the write-ahead logs: all of them with the first queue, none with the others.

        Entries of a queue without a directory are left over: it was deleted, or its name in the log is damaged.
        """
        if directory != self._first_queue:
            return ()
        uids = set(map(_uid, self._directories))
        orphaned = [self.wal.of(uid) for uid in self.wal.uids if uid not in uids]
        return (
            *self._without_wal(),
            *self.wal.problems,
            *(_without_directory(entries, self.path) for entries in orphaned),
        )

    def _without_wal(self) -> Iterator[Finding]:
        """A node has a write-ahead log from its first start on; a queue's directory alone need not have one."""
        tables = [name for name in (META_FILE, NAMES_FILE) if self.files.exists(below(self.path, name))]
        if tables and not self._wal_paths:
            detail = f"{tables[0]} is here and no write-ahead log; the last entries of the queues may be missing"
            yield Finding("missing write-ahead log", "damage", self.path, None, detail)

    @cached_property
    def _wal_paths(self) -> list[str]:
        return [below(self.path, name) for name in self.files.list(self.path) if is_wal_name(name)]

    @cached_property
    def _directories(self) -> list[str]:
        return directories(self.files, self.path)

    @cached_property
    def _first_queue(self) -> str | None:
        return next((directory for directory in self._directories if not self.is_left_of_deletion(directory)), None)

    @cached_property
    def _uids(self) -> frozenset[bytes] | None:
        return self._table(NAMES_FILE, read_uids)

    @cached_property
    def _applied(self) -> dict[bytes, int] | None:
        return self._table(META_FILE, read_applied)

    def _table(self, name: str, read: Callable[[bytes, str], _Content]) -> _Content | None:
        path = below(self.path, name)
        try:
            return read(self.files.read(path), path)
        except (DataError, StorageError):
            return None


class QuorumNodes:
    """The nodes that queues' directories lie in."""

    def __init__(self, files: ReadOnlyFileSystem) -> None:
        self._files = files
        self._nodes: dict[str, QuorumNode] = {}

    def of(self, directory: str) -> QuorumNode:
        """The node in whose folder that queue's directory lies."""
        path = posixpath.dirname(directory)
        node = self._nodes.get(path)
        if node is None:
            node = self._nodes[path] = QuorumNode(self._files, path)
        return node


def _uid(directory: str) -> bytes:
    return posixpath.basename(directory).encode()


def _without_directory(entries: WalEntries, node: str) -> Finding:
    path = entries.runs[0].path if entries.runs else node
    detail = f"{entries.count} entries of {printable(to_text(entries.uid))}, which has no directory"
    return Finding("leftover log entries", "leftover", path, None, detail)


# ── tables ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def read_uids(data: bytes, path: str) -> frozenset[bytes]:
    """The directories' names in the ``names.dets`` whose bytes are ``data``; :class:`DataError` for no DETS file."""
    return frozenset(uid for name, uid in _tuples(data, path, 2) if isinstance(name, Atom) and isinstance(uid, bytes))


def read_applied(data: bytes, path: str) -> dict[bytes, int]:
    """UId → LastApplied in the ``meta.dets`` whose bytes are ``data``; :class:`DataError` for no DETS file."""
    applied: dict[bytes, int] = {}
    for uid, _, _, index in _tuples(data, path, 4):
        if isinstance(uid, bytes) and type(index) is int:
            applied[uid] = max(index, applied.get(uid, 0))  # of two the older is a block that was never given back
    return applied


def _tuples(data: bytes, path: str, size: int) -> list[tuple[Term, ...]]:
    """The objects that are tuples of ``size`` elements; all others are damage."""
    terms = []
    for encoded in surviving_terms(data, path):
        try:
            term = decode(encoded, max_inflated_bytes=0)
        except TermError:
            continue
        if isinstance(term, tuple) and len(term) == size:
            terms.append(term)
    return terms
