"""A vhost's directory, opened for writing: its queues, its two stores, and what a stop leaves for the next start.

The one place where queue indexes and message stores meet. Layout, names and files are RabbitMQ's, so the directory may
come from a stopped node and go back to one.

*Opening*, in steps, each synced before the next:

1. Take the lock.
2. Read recovery.dets, then empty it: from now on a crash leaves a directory that is recovered by scanning. (Left as
   it was, a broker would not see what is published from here on.)
3. Open the persistent store: with its shortcut if nothing ran here since warren's own clean stop, else by a scan. It
   deletes every shortcut, RabbitMQ's clean.dot first of all. Wipe the transient store.
4. Recover every queue that has a directory. Where the store was scanned, the queues' scans count its references; they
   are handed to it when the last one is through (:meth:`Vhost.recover_step`).

*Closing*: close every queue, then the stores, and write recovery.dets last of all.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from typing import Final

import attrs

from msg_store.message_store import MessageStore
from queue_index import directory as names
from queue_index.body_store import StoreClient
from queue_index.message_format import Envelope
from queue_index.msg_ids import MsgIds
from queue_index.properties import Properties, encode_properties
from queue_index.recovery_terms import RecoveryTerms, encode_recovery_terms, read_recovery_terms
from queue_index.state import Clock
from queue_index.variable_queue import QueueFiles, VariableQueue
from storage.errors import DataError, WarrenError
from storage.filesystem import FileSystem, Lock, write_file
from storage.settings import Settings

PERSISTENT_STORE: Final = "msg_store_persistent"
TRANSIENT_STORE: Final = "msg_store_transient"
LOCK_FILE: Final = "warren.lock"
RandomBytes = Callable[[int], bytes]


@attrs.define
class Vhost:
    """An open vhost. Made by :meth:`open`; to be closed by :meth:`close`."""

    name: bytes
    path: str
    settings: Settings
    msg_ids: MsgIds
    persistent_store: MessageStore
    transient_store: MessageStore
    queues: dict[bytes, VariableQueue]
    """Every queue, by name; a level of a priority queue is one of its own."""
    _files: FileSystem
    _lock: Lock
    _clock: Clock
    _random: RandomBytes
    _sync: bool
    _references: Counter[bytes] | None = None
    """Bodies that queues refer to, while they are being counted."""

    # ── opening ─────────────────────────────────────────────────────────────────────────────────────────────────

    @classmethod
    def open(
        cls,
        files: FileSystem,
        path: str,
        name: bytes,
        *,
        settings: Settings,
        clock: Clock,
        random: RandomBytes,
        sync: bool = True,
        owner: str = "warren",
    ) -> Vhost:
        """Open the vhost ``name`` in its directory ``path``, which is made where it is missing.

        An existing ``.config`` says the segment_entry_count, whatever the settings say. ``sync``: whether what is
        called safe survives a power loss. Raises :class:`DirectoryLockedError` where another process has it, and
        :class:`DataError` where the directory is another vhost's or no crash can have left what is there.
        """
        files.make_directories(f"{path}/{names.QUEUES_DIRECTORY}")
        lock = files.lock(f"{path}/{LOCK_FILE}", owner)
        try:
            return cls._open(files, path, name, settings=settings, clock=clock, random=random, sync=sync, lock=lock)
        except BaseException:
            lock.release()
            raise

    @classmethod
    def _open(
        cls,
        files: FileSystem,
        path: str,
        name: bytes,
        *,
        settings: Settings,
        clock: Clock,
        random: RandomBytes,
        sync: bool,
        lock: Lock,
    ) -> Vhost:
        settings = attrs.evolve(settings, segment_entry_count=_introduce(files, path, name, settings))
        terms, terms_data = _take_recovery_terms(files, path)
        entries = files.list(f"{path}/{names.QUEUES_DIRECTORY}")
        queue_names = {entry: _queue_name(files, path, entry) for entry in entries}
        all_clean = all(entry in terms for entry in entries)
        token = hashlib.sha256(terms_data).digest() if all_clean and terms_data else None
        persistent = MessageStore.open(files, f"{path}/{PERSISTENT_STORE}", settings, token=token, sync=sync)
        transient = MessageStore.create(files, f"{path}/{TRANSIENT_STORE}", settings)
        vhost = cls(
            name=name,
            path=path,
            settings=settings,
            msg_ids=MsgIds(random(8)),
            persistent_store=persistent,
            transient_store=transient,
            queues={},
            files=files,
            lock=lock,
            clock=clock,
            random=random,
            sync=sync,
            references=None if persistent.clean else Counter(),
        )
        for entry, queue in queue_names.items():
            if queue is not None:
                vhost.queues[queue] = VariableQueue.recover(
                    vhost._parts(queue, entry, durable=True),
                    terms.get(entry),
                    store_recovered=persistent.clean,
                    step_by_step=True,
                    on_references=vhost._refer,
                )
        vhost._finish_counting()
        return vhost

    def _parts(self, queue: bytes, entry: str, *, durable: bool) -> QueueFiles:
        return QueueFiles(
            files=self._files,
            path=f"{self.path}/{names.QUEUES_DIRECTORY}/{entry}",
            vhost=self.name,
            queue=queue,
            settings=self.settings,
            persistent_store=StoreClient(self.persistent_store) if durable else None,
            transient_store=StoreClient(self.transient_store),
            clock=self._clock,
            sync=self._sync,
        )

    def _refer(self, msg_ids: list[bytes]) -> None:
        if self._references is not None:
            self._references.update(msg_ids)

    @property
    def recovering(self) -> bool:
        """Whether a queue has segments left to scan."""
        return any(queue.recovering for queue in self.queues.values())

    def recover_step(self) -> bool:
        """Scan one more segment of one queue; returns whether there are more."""
        for queue in self.queues.values():
            if queue.recovering:
                queue.recover_step()
                break
        self._finish_counting()
        return self.recovering

    def _finish_counting(self) -> None:
        if self._references is not None and not self.recovering:
            self.persistent_store.set_references(self._references.items())
            self._references = None

    # ── working ─────────────────────────────────────────────────────────────────────────────────────────────────

    def queue(self, name: bytes, *, durable: bool = True) -> VariableQueue:
        """The queue of that name, made where it is missing."""
        if name not in self.queues:
            entry = names.queue_directory_name(self.name, name)
            self.queues[name] = VariableQueue.create(self._parts(name, entry, durable=durable))
        return self.queues[name]

    def envelope(
        self, queue: bytes, properties: Properties | None = None, *, exchange: bytes = b"", persistent: bool = True
    ) -> Envelope:
        """What messages to ``queue`` have around their bodies: the default exchange, the queue's name as routing key."""
        chosen = Properties() if properties is None else properties
        if chosen.delivery_mode is None:
            chosen = attrs.evolve(chosen, delivery_mode=2 if persistent else 1)
        return Envelope(self.name, exchange, (queue,), encode_properties(chosen), persistent)

    def sync(self) -> None:
        """Make everything that was published so far safe: bodies first, then positions."""
        self.persistent_store.sync()
        for queue in self.queues.values():
            queue.sync_index()

    def compact(self) -> None:
        """Combine the persistent store's files where garbage makes it worth while."""
        if self.persistent_store.needs_compaction():
            self.persistent_store.compact()

    # ── closing ─────────────────────────────────────────────────────────────────────────────────────────────────

    def close(self) -> None:
        """Stop cleanly: a start, warren's or RabbitMQ's, then needs no scan of the index."""
        while self.recover_step():
            pass
        terms: dict[str, RecoveryTerms] = {}
        for name, queue in self.queues.items():
            entry = names.queue_directory_name(self.name, name)
            if queue.durable:
                terms[entry] = queue.close(self._random(16))
            else:
                queue.delete()
        data = encode_recovery_terms(terms)
        self.persistent_store.close(hashlib.sha256(data).digest())
        self.transient_store.close()
        write_file(self._files, f"{self.path}/{names.RECOVERY_TERMS_FILE}", data, sync=True)
        self._release()

    def abandon(self) -> None:
        """Give everything up as a crash of the process would; for tests and for a supervisor."""
        for queue in self.queues.values():
            queue.abandon()
        self.persistent_store.abandon()
        self.transient_store.abandon()
        self._lock.release()

    def _release(self) -> None:
        self._files.delete(f"{self.path}/{LOCK_FILE}")
        self._lock.release()

    def __enter__(self) -> Vhost:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """Close; after an error of the engine's own its state must not be written: leave it as a crash would."""
        if isinstance(error, WarrenError | RuntimeError):
            self.abandon()
        else:
            self.close()

    def check_invariants(self) -> None:
        """Raise ``RuntimeError`` where a queue or a store contradicts itself."""
        for queue in self.queues.values():
            queue.check_invariants()
        self.persistent_store.check_invariants()
        self.transient_store.check_invariants()


def _introduce(files: FileSystem, path: str, name: bytes, settings: Settings) -> int:
    """See that the directory says whose it is; returns its segment_entry_count."""
    name_path, config_path = f"{path}/{names.VHOST_NAME_FILE}", f"{path}/{names.VHOST_CONFIG_FILE}"
    if files.exists(name_path):
        if files.read(name_path) != name:
            raise DataError(name_path, 0, f"this is the directory of vhost {files.read(name_path)!r}, not of {name!r}")
        if not files.exists(config_path):
            return names.DEFAULT_SEGMENT_ENTRY_COUNT
    else:
        parent = path
        while "/" in parent.strip("/"):
            parent = parent.rpartition("/")[0]
            files.sync_directory(parent)
        if not files.exists(config_path):
            write_file(files, config_path, names.vhost_config(settings.segment_entry_count), sync=True)
        write_file(files, name_path, name, sync=True)  # last of all: what is named is there for good
    return names.parse_vhost_config(files.read(config_path), config_path)


def _take_recovery_terms(files: FileSystem, path: str) -> tuple[dict[str, RecoveryTerms], bytes]:
    """Read recovery.dets and empty it; damaged terms are none: the queues are then scanned."""
    terms_path = f"{path}/{names.RECOVERY_TERMS_FILE}"
    if not files.exists(terms_path):
        return {}, b""
    data = files.read(terms_path)
    try:
        terms = read_recovery_terms(data, terms_path)
    except DataError:
        terms = {}
    write_file(files, terms_path, encode_recovery_terms({}), sync=True)
    return terms, data


def _queue_name(files: FileSystem, path: str, entry: str) -> bytes | None:
    """The queue whose directory this is; ``None`` for one that nobody can name."""
    name_path = f"{path}/{names.QUEUES_DIRECTORY}/{entry}/{names.QUEUE_NAME_FILE}"
    if not files.exists(name_path):
        return None
    return names.parse_queue_name_file(files.read(name_path), name_path)[1]
