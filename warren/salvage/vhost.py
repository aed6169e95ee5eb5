"""One vhost's directory: what it is called, how it was stopped, its stores, and its queues.

What cannot be read is a finding, and is replaced as follows, so that the rest can be salvaged:

=====================  ==========================================================================================
the vhost's name       what the queues' ``.queue_name`` files say, else the directory's name
``.config``            16384 entries a segment, as without the file
``recovery.dets``      no terms: the queues count as not stopped cleanly, every message as redelivered
a queue's name         its directory's name
=====================  ==========================================================================================
"""

from __future__ import annotations

import posixpath
from abc import abstractmethod
from collections.abc import Collection, Iterator
from contextlib import closing, nullcontext, suppress
from functools import cached_property, partial
from typing import Final

import attrs
import numpy as np

from warren.msg_store.rdq.rdq_format import STORE_SUFFIXES, file_name, file_number, in_age_order
from warren.msg_store.rdq.store_reader import StoreReader
from warren.queue_index.index import directory as disk
from warren.queue_index.index.record_format import Bools, Octets
from warren.queue_index.index.recovery_terms import RecoveryTerms, read_recovery_terms, v2_index_state
from warren.salvage.names import to_text
from warren.salvage.queue_descriptor import QueueDescriptor, QueueFormat, QueuePlace
from warren.salvage.queue_directory import MSG_IDS, UNREADABLE_FILE, BodySource, Finding, MsgIds, Severity, damage_by
from warren.salvage.queue_reader import QueueDirectory
from warren.salvage.quorum.quorum_node import QuorumNodes
from warren.salvage.read_only import ReadOnlyFileSystem, below
from warren.storage.errors import DataError, StorageError, WarrenError

PERSISTENT_STORE: Final = "msg_store_persistent"
TRANSIENT_STORE: Final = "msg_store_transient"
STORES: Final = (PERSISTENT_STORE, TRANSIENT_STORE)
CLEAN_STOP: Final = "clean.dot"
"""A broker writes it into each store as it stops, and deletes it as it starts."""


@attrs.frozen
class VhostPlace:
    """Where a vhost is, for :meth:`Vhost.open`."""

    path: str | None
    """Of its folder with classic queues; ``None``: a queue's folder outside of a vhost, or other queues only."""
    only: str | None = None
    """The folder of the only classic queue to open."""
    others: tuple[QueuePlace, ...] = ()
    """Its quorum queues and streams."""
    problems: tuple[Finding, ...] = ()
    """Other findings about the place."""


@attrs.define(slots=False)  # slots would leave no room for what is cached
class Vhost:
    """A vhost, or the part of it that one queue needs."""

    files: ReadOnlyFileSystem
    path: str
    """``""``: a queue's folder outside of a vhost."""
    name: bytes
    segment_entry_count: int
    terms: dict[str, RecoveryTerms]
    """By directory; without those that were not stopped cleanly."""
    queues: list[QueueDirectory]
    """In order of their names."""
    descriptors: dict[str, QueueDescriptor]
    """Of the same queues, by the paths of their directories."""
    is_whole: bool
    """Whether it has all of its queues, and not only some of them."""
    problems: list[Finding]
    """What could not be read so far, or contradicts itself."""
    _stores: dict[str, StoreReader] = attrs.field(factory=dict)

    @classmethod
    def open(
        cls,
        files: ReadOnlyFileSystem,
        place: VhostPlace,
        nodes: QuorumNodes | None = None,
        names: Collection[bytes] = (),
    ) -> Vhost:
        """The vhost in that place, or the selected part of it; ``nodes``: of quorum queues, shared with other vhosts.

        ``names``: bare names of queues; if their directories can be found by name, no other classic queues are read.
        """
        path, only = place.path, place.only
        is_whole = path is not None and only is None
        vhost = cls(files, path or "", b"", disk.DEFAULT_SEGMENT_ENTRY_COUNT, {}, [], {}, is_whole, [*place.problems])
        directories = [] if only is None else [only]
        if path is not None:
            vhost._read_settings()
            if vhost.is_whole and names:
                named_directories = vhost._directories_of(names)
                vhost.is_whole, directories = named_directories is None, named_directories or []
            if vhost.is_whole:
                directories = vhost._queue_directories()
        queue_names = [vhost._queue_name(directory) for directory in directories]
        vhost_names = [name.vhost for name in queue_names] + [other.vhost for other in place.others]
        if not vhost.name:
            vhost.name = next(filter(None, vhost_names), vhost.directory.encode())
        for directory, queue_name in zip(directories, queue_names, strict=True):
            vhost.descriptors[directory] = vhost._descriptor(directory, queue_name.queue, queue_name.index_version)
        for other in place.others:
            vhost.descriptors[other.queue.path] = other.queue
            vhost.problems += other.problems
        nodes, bodies = nodes or QuorumNodes(files), _PersistentStore(vhost)
        vhost.queues = [descriptor.open(files, bodies, nodes) for descriptor in vhost.descriptors.values()]
        vhost.queues.sort(key=lambda queue: (queue.name, queue.path))
        return vhost

    @cached_property
    def knows_needs(self) -> bool:
        """Whether all references to the store can be read: only then is an orphan certain."""
        return self.is_whole and all(queue.knows_references() for queue in self.queues)

    @property
    def directory(self) -> str:
        """Its directory's own name."""
        return posixpath.basename(self.path)

    def serious_problems(self) -> list[Finding]:
        """The :attr:`problems` so far that are damage, or parts that are not read."""
        return [problem for problem in self.problems if problem.severity != "leftover"]

    def store(self, name: str) -> StoreReader:
        """One of :data:`STORES`, scanned when it is first asked for, as far as its files can be read."""
        if name not in self._stores:
            path, refused, needed = below(self.path, name), dict[str, StorageError](), partial(self.needed, name)
            self._stores[name] = StoreReader.open(self.files, path, needed=needed, refused=refused)
            for file_path, error in refused.items():
                self._unreadable_store(path, file_path, error)
            if path not in refused:
                self._strange_files(path)
        return self._stores[name]

    def _unreadable_store(self, store: str, path: str, error: StorageError) -> None:
        """Report that a store, or one of its files, cannot be read."""
        self._report("unreadable store" if path == store else UNREADABLE_FILE, path, error)

    def _strange_files(self, path: str) -> None:
        """Report files in a store's directory that have similar names."""
        for name in self.files.list(path):
            if name.endswith(STORE_SUFFIXES) and file_number(name) is None:
                self._add("leftover file", below(path, name), "no store has a file of that name")

    def needed(self, store: str, *, all_or_none: bool = False) -> MsgIds:
        """What the queues need of a store, as far as their files can be read.

        ``all_or_none``: raises :class:`StorageError` if a queue cannot be read.
        """
        parts = [np.empty(0, MSG_IDS)]
        for queue in self.queues:
            with nullcontext() if all_or_none else suppress(StorageError):  # the reader of this queue reports it
                parts += queue.references(persistent=store == PERSISTENT_STORE)
        return np.concatenate(parts)

    def store_files(self, name: str, *, look: bool = True) -> list[str]:
        """The names of a store's files, oldest first; ``look``: without those that cannot be read (problems)."""
        path, readable = below(self.path, name), []
        try:
            names = [file_name(number) for number in in_age_order(self.files.list(path))]
        except StorageError as error:
            self._unreadable_store(path, path, error)
            return []
        for file in names:
            try:
                if look:
                    with closing(self.files.open_read(below(path, file))) as handle:
                        handle.pread(1, 0)
            except StorageError as error:
                self._unreadable_store(path, below(path, file), error)
            else:
                readable.append(file)
        return readable

    def close(self) -> None:
        """Close the stores' files."""
        for store in self._stores.values():
            store.close()

    def _read_settings(self) -> None:
        if (name := self._read(disk.VHOST_NAME_FILE)) is not None:
            self.name = name
            if disk.vhost_directory_name(name) != self.directory:
                detail = f"{to_text(name)!r} belongs in {disk.vhost_directory_name(name)}"
                self._add("wrong directory", below(self.path, disk.VHOST_NAME_FILE), detail)
        else:
            self._add("missing name", below(self.path, disk.VHOST_NAME_FILE), "no file says what this vhost is called")
        if (config := self._read(disk.VHOST_CONFIG_FILE)) is not None:
            path = below(self.path, disk.VHOST_CONFIG_FILE)
            try:
                self.segment_entry_count = disk.parse_vhost_config(config, path)
            except DataError as error:
                self._report("damaged settings", path, error)
        if (terms := self._read(disk.RECOVERY_TERMS_FILE)) is not None:
            path = below(self.path, disk.RECOVERY_TERMS_FILE)
            try:
                self.terms = read_recovery_terms(terms, path)
            except DataError as error:
                self._report("damaged recovery terms", path, error)
        elif any(self.files.exists(below(self.path, f"{store}/{CLEAN_STOP}")) for store in STORES):
            detail = f"a store has {CLEAN_STOP} of a clean stop, but the queues' terms of it are missing"
            self._add("missing recovery terms", below(self.path, disk.RECOVERY_TERMS_FILE), detail)

    def _directories_of(self, queue_names: Collection[bytes]) -> list[str] | None:
        """The directories of the classic queues with these names, and of their levels; ``None``: any may be theirs.

        That is so if a directory has a name that no broker gives, or if one of theirs names another queue or none.
        """
        queues = below(self.path, disk.QUEUES_DIRECTORY)
        try:
            names = self.files.list(queues)
        except StorageError:
            return None
        if not self.name or not all(map(disk.is_directory_name, names)):
            return None
        stored = [
            name for bare in queue_names for name in (bare, *(disk.level_name(bare, level) for level in range(256)))
        ]
        expected = {disk.queue_directory_name(self.name, name) for name in stored}
        directories = [below(queues, name) for name in names if name in expected]
        return directories if all(map(self._has_its_name, directories)) else None

    def _has_its_name(self, directory: str) -> bool:
        path = below(directory, disk.QUEUE_NAME_FILE)
        try:
            name = disk.parse_queue_name(self.files.read(path), path)
        except (DataError, StorageError):
            return False
        return disk.queue_directory_name(name.vhost, name.queue) == posixpath.basename(directory)

    def _queue_directories(self) -> list[str]:
        queues = below(self.path, disk.QUEUES_DIRECTORY)
        if not self.files.is_directory(queues):
            return []
        directories: list[str] = []
        try:
            names = self.files.list(queues)
        except StorageError as error:
            self._report("unreadable directory", queues, error)
            return directories
        for name in names:
            directory = below(queues, name)
            if not self.files.is_directory(directory):
                self._add("leftover file", directory, "a file among the queues' directories")
                continue
            try:
                is_empty = not self.files.list(directory)
            except StorageError as error:
                self._report("unreadable directory", directory, error)
                continue
            if is_empty:
                self._add("leftover directory", directory, "a queue's directory with nothing in it")
            else:
                directories.append(directory)
        return directories

    def _queue_name(self, directory: str) -> disk.QueueName:
        """The name in ``.queue_name``; the vhost is empty if the file cannot be read."""
        path = below(directory, disk.QUEUE_NAME_FILE)
        nameless = disk.QueueName(b"", posixpath.basename(directory).encode(), 1)
        try:
            name = disk.parse_queue_name(self.files.read(path), path)
        except DataError as error:
            self._report("damaged name", path, error)
            return nameless
        except StorageError:
            self._add("missing name", path, "no file says what this queue is called")
            return nameless
        if disk.queue_directory_name(name.vhost, name.queue) != posixpath.basename(directory):
            self._add("wrong directory", path, f"it belongs in {disk.queue_directory_name(name.vhost, name.queue)}")
        if self.name and name.vhost != self.name:
            self._add("wrong vhost", path, f"it belongs to the vhost {to_text(name.vhost)!r}")
        return name

    def _descriptor(self, path: str, name: bytes, index_version: int) -> QueueDescriptor:
        """The descriptor of the classic queue in that directory, by its files and its ``.queue_name``."""
        files = self.files.list(path)
        is_v2 = index_version == 2 or any(map(disk.is_of_v2, files))
        is_v1 = not is_v2 or any(map(disk.is_of_v1, files))
        form = QueueFormat.CLASSIC_V1
        if is_v2:
            form = QueueFormat.CONVERTING if is_v1 else QueueFormat.CLASSIC_V2
        count, terms = self.segment_entry_count, self._terms_of(path)
        return QueueDescriptor(format=form, path=path, name=name, segment_entry_count=count, terms=terms)

    def _terms_of(self, path: str) -> RecoveryTerms | None:
        """The queue's terms of a clean stop; ``None`` if they are missing or damaged."""
        terms = self.terms.get(posixpath.basename(path))
        if terms is not None:
            try:
                v2_index_state(terms, below(self.path, disk.RECOVERY_TERMS_FILE))
            except DataError as error:
                self._report("damaged recovery terms", error.path, error)
                return None
        return terms

    def _read(self, name: str) -> bytes | None:
        """A small file of the vhost; ``None`` if it is missing, or cannot be read (a finding)."""
        path = below(self.path, name)
        if not self.files.exists(path):
            return None
        try:
            return self.files.read(path)
        except (DataError, StorageError) as error:
            self._report("unreadable file", path, error)
            return None

    def _report(self, kind: str, path: str, error: WarrenError) -> None:
        self.problems.append(damage_by(error, kind, path))

    def _add(self, kind: str, path: str, detail: str) -> None:
        severity: Severity = "leftover" if kind.startswith("leftover") else "damage"
        self.problems.append(Finding(kind, severity, path, None, detail))


class LazyStore(BodySource):
    """A store that is scanned only when the first body is read: not every queue has bodies in it."""

    @property
    @abstractmethod
    def store(self) -> StoreReader:
        """The store, scanned."""

    def contains(self, msg_id: bytes) -> bool:
        return self.store.contains(msg_id)

    def read(self, msg_id: bytes) -> bytes:
        return self.store.read(msg_id)

    def contains_each(self, msg_ids: MsgIds) -> Bools:
        return self.store.contains_each(msg_ids)

    def read_each(self, msg_ids: MsgIds) -> Iterator[bytes | WarrenError]:
        return self.store.read_each(msg_ids)

    def read_uniform(self, msg_ids: MsgIds) -> Octets | None:
        return self.store.read_uniform(msg_ids)


@attrs.frozen
class _PersistentStore(LazyStore):
    """A vhost's store of persistent messages."""

    _vhost: Vhost

    @property
    def store(self) -> StoreReader:
        return self._vhost.store(PERSISTENT_STORE)
