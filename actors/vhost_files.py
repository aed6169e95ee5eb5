"""A vhost's directory, open for writing: its lock, its two stores, and the state left by the last stop and by this one.

Layout, names and files are RabbitMQ's, so the directory may come from a stopped node and go back to one. The queues are
opened by the owner of this object: the plain :class:`warren.actors.vhost.Vhost`, or a node, each queue in its own
actor.

*Opening*, in steps, each synced before the next:

1. Take the lock.
2. Read recovery.dets, then empty it: from now on a crash leaves a directory that is recovered by scanning. (Otherwise
   a broker would not see what is published from here on.)
3. Open the persistent store: with its shortcut if nothing ran here since warren's own clean stop, else by a scan. This
   deletes every shortcut, RabbitMQ's clean.dot first of all. Wipe the transient store.
4. Identify the queues' directories. A directory whose files have another format (a classic queue v2), or no name, is
   *down*: it is left alone, with the reason, and everything else serves. The store then deletes nothing, because it is
   unknown which bodies that queue needs.

*Closing*: close the queues, then the stores, and write recovery.dets last of all.
"""

from __future__ import annotations

import contextlib
import hashlib
from typing import Final

import attrs

from warren.msg_store.rdq.message_store import MessageStore
from warren.msg_store.rdq.recovery import refuse_typed_files
from warren.queue_index.index import directory as names
from warren.queue_index.index.recovery_terms import RecoveryTerms, encode_recovery_terms, read_recovery_terms
from warren.queue_index.queue.body_store import StoreClient
from warren.queue_index.queue.state import Clock
from warren.queue_index.queue.variable_queue import QueueFiles
from warren.storage.errors import DataError, DirectoryLostError, DiskFullError, NoRoomError, StorageError, shortly
from warren.storage.filesystem import FileSystem, Lock, lock_part, sync_directories_above, write_file
from warren.storage.lock_file import LOCK_FILE
from warren.storage.settings import Settings

PERSISTENT_STORE: Final = "msg_store_persistent"
TRANSIENT_STORE: Final = "msg_store_transient"


@attrs.define(eq=False, repr=False)
class VhostFiles:
    """A vhost's directory while it is open. Created by :meth:`open`; ended by :meth:`close` or :meth:`abandon`."""

    name: bytes
    path: str
    settings: Settings
    files: FileSystem
    sync: bool
    persistent_store: MessageStore
    transient_store: MessageStore
    queue_directories: dict[bytes, str]
    """The queues that have a directory, with its name; each level of a priority queue is a separate queue."""
    untouched: set[str]
    """The queues' directories that were there when the vhost was opened, by name; :meth:`is_there` takes them out."""
    terms: dict[str, RecoveryTerms]
    """The recovery terms of the last clean stop, by directory name."""
    down: dict[str, DataError]
    """Why queue directories are left alone, by name; the owner adds queues that cannot be opened."""
    damage: list[DataError]
    """Other damage: recovery terms, store files."""
    _lock: Lock
    _synced: dict[str, bool] = attrs.Factory(dict)
    """The paths of directories that are known to name their queue, and whether the names are synced."""

    @classmethod
    def open(
        cls, files: FileSystem, path: str, name: bytes, *, settings: Settings, sync: bool = True, owner: str = "warren"
    ) -> VhostFiles:
        """Open the vhost ``name`` in its directory ``path``, creating it if it is missing.

        An existing ``.config`` determines the segment_entry_count, whatever the settings are. Deliver records come
        later than their publish (``deliver_with_publish`` off) only if the ``.config`` says so, as that of a vhost
        created with these settings does: a RabbitMQ 3.10 cannot go on from such positions. ``sync``: whether what is
        reported safe survives a power loss. Raises :class:`DirectoryLockedError` if another process holds it, and
        :class:`DataError` if the directory is another vhost's or contains what no crash can have left.
        """
        refuse_typed_files(files, f"{path}/{PERSISTENT_STORE}")
        files.make_directories(f"{path}/{names.QUEUES_DIRECTORY}")
        lock = lock_part(files, f"{path}/{LOCK_FILE}", owner)
        try:
            config = _introduce(files, path, name, settings)
            config_path = f"{path}/{names.VHOST_CONFIG_FILE}"
            settings, requested = _as_configured(settings, config, config_path), settings.deliver_with_publish
            damage: list[DataError] = []
            terms, terms_data = _take_recovery_terms(files, path, damage)
            entries = files.list(f"{path}/{names.QUEUES_DIRECTORY}")
            if entries and sync:  # once for all queues
                files.sync_directory(f"{path}/{names.QUEUES_DIRECTORY}")
            all_clean = all(entry in terms for entry in entries)
            if requested and not settings.deliver_with_publish:
                # Only now: without terms a scan, of today or after a crash, gives every position its deliver record.
                settings = attrs.evolve(settings, deliver_with_publish=True)
                write_file(files, config_path, names.vhost_config(settings.segment_entry_count), sync=True)
                all_clean = False
            token = hashlib.sha256(terms_data).digest() if all_clean and terms_data else None
            persistent = MessageStore.open(files, f"{path}/{PERSISTENT_STORE}", settings, token=token, sync=sync)
            transient = MessageStore.create(files, f"{path}/{TRANSIENT_STORE}", settings)
            damage += persistent.unreadable
            vhost = cls(name, path, settings, files, sync, persistent, transient, {}, set(), terms, {}, damage, lock)
            vhost._look_at(entries)
        except BaseException:
            lock.release()
            raise
        return vhost

    def _look_at(self, entries: list[str]) -> None:
        for entry in entries:
            try:
                queue = _queue_of(self.files, self.queue_path(entry), self.name, entry)
            except DataError as error:
                self.down[entry] = error
            except StorageError:
                if self.files.is_directory(self.queue_path(entry)):
                    raise
            else:
                self.untouched.add(entry)
                if queue is not None:
                    self.queue_directories[queue] = entry
                    self._synced[self.queue_path(entry)] = False

    def queue_path(self, entry: str) -> str:
        return f"{self.path}/{names.QUEUES_DIRECTORY}/{entry}"

    def is_there(self, path: str, untouched: set[str]) -> bool:
        """Whether a directory exists. ``untouched``: those that exist for certain, by name; it is taken out of them."""
        entry = path.rpartition("/")[2]
        if entry in untouched:
            untouched.remove(entry)
            return True
        return self.files.is_directory(path)

    def forget(self, entry: str) -> None:
        """Forget a directory, because it is deleted."""
        self.untouched.discard(entry)
        self.down.pop(entry, None)
        self._synced.pop(self.queue_path(entry), None)

    def entry(self, queue: bytes) -> str:
        """Return the name of a queue's directory."""
        return self.queue_directories.get(queue) or names.queue_directory_name(self.name, queue)

    def parts(
        self, queue: bytes, *, clock: Clock, persistent_store: StoreClient | None, transient_store: StoreClient
    ) -> QueueFiles:
        """Return the parts of a queue; without a persistent store it is not durable."""
        entry = self.entry(queue)
        return QueueFiles(
            files=self.files,
            path=self.queue_path(entry),
            vhost=self.name,
            queue=queue,
            settings=self.settings,
            persistent_store=persistent_store,
            transient_store=transient_store,
            clock=clock,
            sync=self.sync,
            synced=self._synced,
        )

    def check_lock(self) -> None:
        """Raise :class:`DirectoryLostError` if the directory was removed, replaced, or inherited by a fork."""
        if not self._lock.in_place:
            raise self.lost()

    def lost(self) -> DirectoryLostError:
        """Return the error for a directory that is no longer held."""
        return DirectoryLostError(f"{self.path}: removed or replaced, or opened by the process before a fork")

    def close(self, terms: dict[str, RecoveryTerms]) -> None:
        """Stop cleanly: a start, warren's or RabbitMQ's, then needs no scan. ``terms``: those of the closed queues.

        Directories that are down keep their previous terms.
        """
        data = self.terms_data(terms)
        self.persistent_store.close(self.token(data))
        self.transient_store.close()
        self.leave(data)

    def terms_data(self, terms: dict[str, RecoveryTerms]) -> bytes:
        """Return the content of recovery.dets."""
        return encode_recovery_terms(
            {entry: level_terms for entry, level_terms in self.terms.items() if entry in self.down} | terms
        )

    @staticmethod
    def token(terms_data: bytes) -> bytes:
        """Return the token that ties the store's shortcut to these recovery terms."""
        return hashlib.sha256(terms_data).digest()

    def leave(self, terms_data: bytes) -> None:
        """Do the last step of a clean stop, when the stores are closed."""
        with contextlib.suppress(NoRoomError):  # then the next start scans
            write_file(self.files, f"{self.path}/{names.RECOVERY_TERMS_FILE}", terms_data, sync=True)
        self._lock.remove()

    def abandon(self) -> None:
        """Give everything up as a crash of the process would."""
        self.persistent_store.abandon()
        self.transient_store.abandon()
        self._lock.release()


def _introduce(files: FileSystem, path: str, name: bytes, settings: Settings) -> bytes:
    """Make sure that the directory names its vhost; return its ``.config``."""
    name_path, config_path = f"{path}/{names.VHOST_NAME_FILE}", f"{path}/{names.VHOST_CONFIG_FILE}"
    if files.exists(name_path):
        if files.read(name_path) != name:
            raise DataError(
                name_path, 0, f"this is the directory of vhost {shortly(files.read(name_path))}, not of {shortly(name)}"
            )
        if not files.exists(config_path):
            return names.vhost_config(names.DEFAULT_SEGMENT_ENTRY_COUNT)
    else:
        sync_directories_above(files, path)
        if not files.exists(config_path):
            config = names.vhost_config(
                settings.segment_entry_count, deliver_with_publish=settings.deliver_with_publish
            )
            write_file(files, config_path, config, sync=True)
        write_file(files, name_path, name, sync=True)  # last of all: a directory with a name is complete
    return files.read(config_path)


def _as_configured(settings: Settings, config: bytes, config_path: str) -> Settings:
    """Return the settings that apply in a directory with that ``.config``."""
    return attrs.evolve(
        settings,
        segment_entry_count=names.parse_vhost_config(config, config_path),
        deliver_with_publish=names.parse_deliver_with_publish(config),
    )


def _take_recovery_terms(
    files: FileSystem, path: str, damage: list[DataError]
) -> tuple[dict[str, RecoveryTerms], bytes]:
    """Read recovery.dets and empty it; a damaged one is set aside, and the queues are then scanned."""
    terms_path = f"{path}/{names.RECOVERY_TERMS_FILE}"
    if not files.exists(terms_path):
        return {}, b""
    data = files.read(terms_path)
    try:
        terms = read_recovery_terms(data, terms_path)
    except DataError as error:
        damage.append(error)
        files.rename(terms_path, f"{terms_path}.damaged")
        terms = {}
    try:
        write_file(files, terms_path, encode_recovery_terms({}), sync=True)
    except DiskFullError:  # a missing file means the same as an empty one, and needs no room
        if files.exists(terms_path):
            files.delete(terms_path)
        files.sync_directory(path)
    return terms, data


def _queue_of(files: FileSystem, path: str, vhost: bytes, entry: str) -> bytes | None:
    """Return the queue of a directory; ``None`` if a crash interrupted the creation of the directory.

    Raises :class:`DataError` if it contains files of a queue that cannot be opened.
    """
    file_names = files.list(path)
    if newer := [name for name in file_names if name.endswith((".qi", ".qs"))]:
        raise DataError(f"{path}/{newer[0]}", None, "a classic queue v2, which is ignored")
    if names.QUEUE_NAME_FILE not in file_names:
        if any(name == names.JOURNAL_NAME or names.segment_number(name) is not None for name in file_names):
            raise DataError(path, None, f"no {names.QUEUE_NAME_FILE}: these messages belong to an unknown queue")
        return None
    name_path = f"{path}/{names.QUEUE_NAME_FILE}"
    owner, queue = names.parse_queue_name_file(files.read(name_path), name_path)
    if names.queue_directory_name(vhost, queue) != entry:
        raise DataError(
            name_path, 0, f"names the queue {shortly(queue)} of vhost {shortly(owner)}, whose directory this is not"
        )
    return queue
