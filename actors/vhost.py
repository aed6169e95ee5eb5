"""A vhost's directory, opened for writing: its queues, its two stores, and what a stop leaves for the next start.

The one place where queue indexes and message stores meet. Layout, names and files are RabbitMQ's, so the directory may
come from a stopped node and go back to one.

*Opening*, in steps, each synced before the next:

1. Take the lock.
2. Read recovery.dets, then empty it: from now on a crash leaves a directory that is recovered by scanning. (Left as
   it was, a broker would not see what is published from here on.)
3. Open the persistent store: with its shortcut if nothing ran here since warren's own clean stop, else by a scan. It
   deletes every shortcut, RabbitMQ's clean.dot first of all. Wipe the transient store.
4. Recover every queue that has a directory. One whose files are damaged, or are not this format's (a classic queue v2),
   is *down*: it is left alone, with the reason, and everything else serves; the store then deletes nothing, because
   nobody knows what that queue needs of it. Where the store was scanned, the queues' scans count its references; they
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
    down: dict[str, DataError]
    """Why a queue directory is left alone, by the directory's name."""
    damage: list[DataError]
    """What else was found damaged: recovery terms, store files."""
    _files: FileSystem
    _lock: Lock
    _clock: Clock
    _random: RandomBytes
    _sync: bool
    _references: Counter[bytes] | None
    """Bodies that queues refer to, while they are being counted."""
    _terms: dict[str, RecoveryTerms]
    """What the last clean stop said of the directories that are down: they keep it."""

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
        damage: list[DataError] = []
        terms, terms_data = _take_recovery_terms(files, path, damage)
        entries = files.list(f"{path}/{names.QUEUES_DIRECTORY}")
        all_clean = all(entry in terms for entry in entries)
        token = hashlib.sha256(terms_data).digest() if all_clean and terms_data else None
        persistent = MessageStore.open(files, f"{path}/{PERSISTENT_STORE}", settings, token=token, sync=sync)
        vhost = cls(
            name=name,
            path=path,
            settings=settings,
            msg_ids=MsgIds(random(8)),
            persistent_store=persistent,
            transient_store=MessageStore.create(files, f"{path}/{TRANSIENT_STORE}", settings),
            queues={},
            down={},
            damage=damage + persistent.unreadable,
            files=files,
            lock=lock,
            clock=clock,
            random=random,
            sync=sync,
            references=None if persistent.clean else Counter(),
            terms=terms,
        )
        for entry in entries:
            try:
                vhost._recover(entry)
            except DataError as error:
                vhost.down[entry] = error
        vhost._finish_counting()
        return vhost

    def _recover(self, entry: str) -> None:
        """Bring back the queue of one directory, if there is one in it."""
        queue = _queue_of(self._files, f"{self.path}/{names.QUEUES_DIRECTORY}/{entry}", self.name, entry)
        if queue is not None:
            self.queues[queue] = VariableQueue.recover(
                self._parts(queue, entry, durable=True),
                self._terms.get(entry),
                store_recovered=self.persistent_store.clean,
                step_by_step=True,
                on_references=self._refer,
            )

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
        if self._references is not None and not self.recovering and not self.down:
            self.persistent_store.set_references(self._references.items())
            self._references = None

    # ── working ─────────────────────────────────────────────────────────────────────────────────────────────────

    def queue(self, name: bytes, *, durable: bool = True) -> VariableQueue:
        """The queue of that name, made where it is missing.

        Raises the :class:`DataError` that says why it is down, and :class:`WarrenError` where it has messages and is
        not of that kind. Whether a queue is durable stands nowhere in its files, so one that was found on disk and
        holds nothing becomes what is asked for.
        """
        entry = names.queue_directory_name(self.name, name)
        if entry in self.down:
            raise self.down[entry]
        queue = self.queues.get(name)
        if queue is not None and queue.durable != durable:
            if queue.depth:
                raise WarrenError(f"queue {name!r} is {'durable' if queue.durable else 'not durable'}")
            queue.delete()
            queue = None
        if queue is None:
            queue = self.queues[name] = VariableQueue.create(self._parts(name, entry, durable=durable))
        return queue

    def envelope(
        self, queue: bytes, properties: Properties | None = None, *, exchange: bytes = b"", persistent: bool = True
    ) -> Envelope:
        """What messages to ``queue`` have around their bodies; by default the default exchange and its name."""
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
        """Stop cleanly: a start, warren's or RabbitMQ's, then needs no scan of the index.

        An error on the way leaves the directory as a crash would, and is raised.
        """
        try:
            self._close()
        except BaseException:
            self.abandon()
            raise
        self._release()

    def _close(self) -> None:
        while self.recover_step():
            pass
        terms = {entry: known for entry, known in self._terms.items() if entry in self.down}
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
        while parent not in ("", "/", "."):  # every directory that make_directories may have made
            parent = parent.rpartition("/")[0] or ("/" if parent.startswith("/") else ".")
            files.sync_directory(parent)
        if not files.exists(config_path):
            write_file(files, config_path, names.vhost_config(settings.segment_entry_count), sync=True)
        write_file(files, name_path, name, sync=True)  # last of all: what is named is there for good
    return names.parse_vhost_config(files.read(config_path), config_path)


def _take_recovery_terms(
    files: FileSystem, path: str, damage: list[DataError]
) -> tuple[dict[str, RecoveryTerms], bytes]:
    """Read recovery.dets and empty it; damaged ones are put aside, and the queues are then scanned."""
    terms_path = f"{path}/{names.RECOVERY_TERMS_FILE}"
    if not files.exists(terms_path):
        return {}, b""
    data = files.read(terms_path)
    try:
        terms = read_recovery_terms(data, terms_path)
    except DataError as error:
        damage.append(error)
        write_file(files, f"{terms_path}.damaged", data, sync=True)
        terms = {}
    write_file(files, terms_path, encode_recovery_terms({}), sync=True)
    return terms, data


def _queue_of(files: FileSystem, path: str, vhost: bytes, entry: str) -> bytes | None:
    """The queue whose directory this is; ``None`` where none was there yet: a crash cut the directory's making short.

    Raises :class:`DataError` where there are files of a queue that cannot be opened.
    """
    found = files.list(path)
    if other := [name for name in found if name.endswith((".qi", ".qs"))]:
        raise DataError(f"{path}/{other[0]}", None, "a classic queue v2: left alone")
    if names.QUEUE_NAME_FILE not in found:
        if any(name == names.JOURNAL_NAME or names.segment_number(name) is not None for name in found):
            raise DataError(path, None, f"no {names.QUEUE_NAME_FILE}: nobody can tell whose messages these are")
        return None
    name_path = f"{path}/{names.QUEUE_NAME_FILE}"
    owner, queue = names.parse_queue_name_file(files.read(name_path), name_path)
    if names.queue_directory_name(vhost, queue) != entry:
        raise DataError(name_path, 0, f"names the queue {queue!r} of vhost {owner!r}, whose directory this is not")
    return queue
