"""The bodies in a vhost's store, for the tasks that need some of them.

A store has no trustworthy index: it is scanned, once for each Python worker. The table of locations (36 bytes a
message) is kept from one task to the next, as long as the files have the same names and sizes. The stores that were
used last are kept; a task that needs no body scans no store.

Where a file's chain of records is broken and a message is missing, all that the vhost's queues need is looked for in
such files, once for each store that is kept: only then are the indexes of all queues read. A task that reads one file
of a store alone needs that too (:func:`hidden_in`): which messages lie after or within garbage, and whether that is
no damage, depends on all files of the store and on all queues of the vhost.

A Python worker of Spark does one task at a time, and keeps its caches for all of them. A process that reads several
tables at once gives each reading its own (:func:`alone`), because one may close what another still uses.
"""

from __future__ import annotations

import posixpath
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from contextvars import ContextVar, copy_context
from functools import partial
from typing import Any, Final, TypeVar

import attrs
import numpy as np

from warren.msg_store.rdq.rdq_format import Record, file_number
from warren.msg_store.rdq.store_reader import StoreReader
from warren.salvage.queue_directory import MSG_IDS, MsgIds
from warren.salvage.read_only import ReadOnlyFileSystem, below
from warren.salvage.vhost import LazyStore, Vhost
from warren.storage.errors import StorageError, WarrenError
from warren.tables.places import Node

MOST_STORES: Final = 4
MOST_MESSAGES: Final = 32 << 20
"""In all stores but the one asked for last: a gigabyte and some."""

Fingerprint = tuple[tuple[str, int], ...]

_Item = TypeVar("_Item")


@attrs.frozen(eq=False)
class TaskCaches:
    """Caches; the entry that was used last is the last one."""

    stores: OrderedDict[tuple[str, str], Any] = attrs.Factory(OrderedDict)
    """Scanned stores, by node and directory."""
    counts: OrderedDict[tuple[str, str, str], Any] = attrs.Factory(OrderedDict)
    """Of :mod:`warren.tables.messages`: by node, directory and fingerprint."""

    def forget(self) -> None:
        """Close all stores, and forget everything."""
        self.counts.clear()
        while self.stores:
            self.stores.popitem()[1].store.close()


_OF_THE_WORKER: Final = TaskCaches()
_CURRENT: Final[ContextVar[TaskCaches]] = ContextVar("task_caches", default=_OF_THE_WORKER)


def current_caches() -> TaskCaches:
    """Return the caches of the current reader."""
    return _CURRENT.get()


def alone(read: Callable[[], Iterator[_Item]]) -> Iterator[_Item]:
    """Yield what ``read`` yields, with a :class:`TaskCaches` of its own until it ends or is closed."""
    context, caches = copy_context(), TaskCaches()
    context.run(_CURRENT.set, caches)
    items = context.run(read)
    try:
        while (item := context.run(next, items, None)) is not None:
            yield item
    finally:
        close = getattr(items, "close", None)
        if close is not None:
            context.run(close)
        caches.forget()


@attrs.define(eq=False)
class _CachedStore:
    fingerprint: Fingerprint
    store: StoreReader
    looked_by: ReadOnlyFileSystem
    """Of the task that last checked whether the files have changed: each task checks once."""


def store_at(node: Node, files: ReadOnlyFileSystem, directory: str) -> StoreReader:
    """Return the reader of the store in a directory; a store that cannot be scanned is empty, as on one machine.

    For a remote one :class:`StorageError` is raised instead, so that Spark tries again.
    """
    key, stores = (node.path, directory), current_caches().stores
    cached: _CachedStore | None = stores.pop(key, None)
    if cached is None or cached.looked_by is not files:
        fingerprint = _fingerprint(files, directory)
        if cached is not None and (cached.fingerprint != fingerprint or cached.store.has_failed):
            cached.store.close()
            cached = None
        if cached is None:
            cached = _CachedStore(fingerprint, _scanned(node, files, directory), files)
        cached.looked_by = files
    stores[key] = cached
    while len(stores) > 1 and (
        len(stores) > MOST_STORES
        or sum(len(entry.store) for entry in stores.values()) - len(cached.store) > MOST_MESSAGES
    ):
        stores.popitem(last=False)[1].store.close()
    return cached.store


def _fingerprint(files: ReadOnlyFileSystem, directory: str) -> Fingerprint:
    names = [name for name in files.list(directory) if file_number(name) is not None]
    return tuple((name, files.size(below(directory, name))) for name in names)


def _scanned(node: Node, files: ReadOnlyFileSystem, directory: str) -> StoreReader:
    refused: dict[str, StorageError] | None = None if node.is_remote else {}  # there Spark tries again
    return StoreReader.open(files, directory, needed=partial(_needed, node, files, directory), refused=refused)


def _needed(node: Node, files: ReadOnlyFileSystem, directory: str) -> MsgIds:
    """Return the ids of the messages in a store that the queues of its vhost need."""
    with _vhost_of(node, files, directory) as vhost:
        if vhost is None:
            return np.empty(0, MSG_IDS)
        return vhost.needed(posixpath.basename(directory), all_or_none=node.is_remote)  # there Spark tries again


def knows_needs(node: Node, files: ReadOnlyFileSystem, directory: str) -> bool:
    """Whether every index that refers to the store in that directory can be read; reads those of its vhost."""
    with _vhost_of(node, files, directory) as vhost:
        return vhost is not None and vhost.knows_needs


@contextmanager
def _vhost_of(node: Node, files: ReadOnlyFileSystem, directory: str) -> Iterator[Vhost | None]:
    """Open the vhost of a store, with its classic queues alone: no other queue refers to the store."""
    for vhost_place in node.contents().vhosts or ():
        if vhost_place.path == posixpath.dirname(directory):
            with closing(Vhost.open(files, attrs.evolve(vhost_place, others=()))) as vhost:
                yield vhost
            return
    yield None


@attrs.frozen
class Hidden:
    """What is hidden in a file whose scan stopped before its end or met a bad record."""

    records: tuple[Record, ...] = ()
    """Needed messages that no scan reached, in the order of the file."""
    explains_breaks: bool = False
    """Whether what breaks the chain is only left over: it hides messages, and no needed message is missing."""


def hidden_in(node: Node, files: ReadOnlyFileSystem, path: str, *, knows_needs: bool) -> Hidden:
    """What is hidden in that file, which is broken; ``knows_needs``: what :func:`knows_needs` returns for it."""
    directory, name = posixpath.split(path)
    store = store_at(node, files, directory)
    has_all = store.has_all_needed()
    records = tuple(store.hidden(name))
    return Hidden(records, knows_needs and has_all and bool(records))


@attrs.define
class NodeBodies(LazyStore):
    """The store in a directory of a node."""

    _node: Node
    _files: ReadOnlyFileSystem
    _directory: str
    _store: StoreReader | None = None

    def read_each(self, msg_ids: MsgIds) -> Iterator[bytes | WarrenError]:
        for body_or_error in super().read_each(msg_ids):
            if isinstance(body_or_error, StorageError) and self._node.is_remote:
                raise body_or_error  # Spark tries again
            yield body_or_error

    @property
    def looked_into(self) -> StoreReader | None:
        """The store, if it was already opened with these files."""
        cached: _CachedStore | None = current_caches().stores.get((self._node.path, self._directory))
        return cached.store if cached is not None and cached.looked_by is self._files else None

    @property
    def store(self) -> StoreReader:
        """The store, scanned."""
        if self._store is None:
            self._store = store_at(self._node, self._files, self._directory)
        return self._store
