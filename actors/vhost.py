"""A vhost as one plain object: its queues and its stores, in the caller's thread.

This is the only place where queue indexes and message stores meet without actors, for scripts, tests, and code that
needs no concurrency. The directory, with opening and closing, is in :mod:`warren.actors.vhost_files`.

Every queue with a directory is recovered when the vhost is opened. A queue whose files are damaged is *down*. If the
store was scanned, the scans of the queues count its references, and hand them over when the last one is complete
(:meth:`Vhost.recover_step`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import attrs

from warren.actors.vhost_files import VhostFiles
from warren.msg_store.rdq.message_store import MessageStore
from warren.queue_index.message.message_format import Envelope
from warren.queue_index.message.msg_ids import MsgIds
from warren.queue_index.properties import Properties, encode_properties
from warren.queue_index.queue.body_store import StoreClient
from warren.queue_index.queue.state import Clock
from warren.queue_index.queue.variable_queue import QueueFiles, VariableQueue
from warren.storage.errors import DataError, WarrenError
from warren.storage.filesystem import FileSystem
from warren.storage.settings import Settings

RandomBytes = Callable[[int], bytes]


@attrs.define
class Vhost:
    """An open vhost. Created by :meth:`open`; to be closed by :meth:`close`."""

    msg_ids: MsgIds
    queues: dict[bytes, VariableQueue]
    """All queues, by name; each level of a priority queue is a separate queue."""
    _directory: VhostFiles
    _clock: Clock
    _random: RandomBytes
    _references: Counter[bytes] | None
    """Bodies that queues refer to, while they are being counted."""
    abandoned: bool = False
    """Whether it was given up, by its host or in a forked child."""

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
        """Open the vhost ``name`` in its directory ``path``: see :meth:`VhostFiles.open`."""
        directory = VhostFiles.open(files, path, name, settings=settings, sync=sync, owner=owner)
        counting = None if directory.persistent_store.clean else Counter[bytes]()
        vhost = cls(MsgIds(random(8)), {}, directory, clock, random, counting)
        try:
            for queue, entry in directory.queue_directories.items():
                vhost._recover(queue, entry)
            vhost._finish_counting()
        except BaseException:
            vhost.abandon()
            raise
        return vhost

    def _recover(self, queue: bytes, entry: str) -> None:
        try:
            self.queues[queue] = VariableQueue.recover(
                self._parts(queue, durable=True),
                self._directory.terms.get(entry),
                store_recovered=self.persistent_store.clean,
                step_by_step=True,
                on_references=self._refer,
            )
        except DataError as error:
            self.down[entry] = error

    def _parts(self, queue: bytes, *, durable: bool) -> QueueFiles:
        return self._directory.parts(
            queue,
            clock=self._clock,
            persistent_store=StoreClient(self.persistent_store) if durable else None,
            transient_store=StoreClient(self.transient_store),
        )

    def _refer(self, msg_ids: list[bytes]) -> None:
        if self._references is not None:
            self._references.update(msg_ids)

    @property
    def name(self) -> bytes:
        return self._directory.name

    @property
    def path(self) -> str:
        return self._directory.path

    @property
    def settings(self) -> Settings:
        return self._directory.settings

    @property
    def persistent_store(self) -> MessageStore:
        return self._directory.persistent_store

    @property
    def transient_store(self) -> MessageStore:
        return self._directory.transient_store

    @property
    def down(self) -> dict[str, DataError]:
        """Why queue directories are left alone, by directory name."""
        return self._directory.down

    @property
    def damage(self) -> list[DataError]:
        """Other damage: recovery terms, store files."""
        return self._directory.damage

    @property
    def recovering(self) -> bool:
        """Whether a queue has segments left to scan."""
        return any(queue.recovering for queue in self.queues.values())

    def recover_step(self) -> bool:
        """Scan one more segment of one queue; return whether there are more."""
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
        """Return the queue of that name, creating it if it is missing.

        Raises the :class:`DataError` that explains why it is down, or :class:`WarrenError` if it has messages and its
        durability differs. The files do not say whether a queue is durable, so an empty queue found on disk becomes
        what is asked for.
        """
        self._directory.check_lock()
        entry = self._directory.entry(name)
        if entry in self.down:
            raise self.down[entry]
        queue = self.queues.get(name)
        if queue is not None and queue.durable != durable:
            if queue.depth:
                raise WarrenError(f"queue {name!r} is {'durable' if queue.durable else 'not durable'}")
            queue.delete()
            queue = None
        if queue is None:
            queue = self.queues[name] = VariableQueue.create(self._parts(name, durable=durable))
        return queue

    def envelope(
        self, queue: bytes, properties: Properties | None = None, *, exchange: bytes = b"", persistent: bool = True
    ) -> Envelope:
        """Return the envelope of messages to ``queue``; by default with the default exchange and the queue's name."""
        chosen = Properties() if properties is None else properties
        if chosen.delivery_mode is None:
            chosen = attrs.evolve(chosen, delivery_mode=2 if persistent else 1)
        return Envelope(self.name, exchange, (queue,), encode_properties(chosen), persistent)

    def sync(self) -> None:
        """Make everything published so far safe: bodies first, then positions.

        Raises :class:`DirectoryLostError` if it was lost with its directory.
        """
        self._directory.check_lock()
        self.persistent_store.sync()
        for queue in self.queues.values():
            queue.sync_index()
        self._directory.check_lock()  # it holds for everything that was synced

    def compact(self) -> None:
        """Combine the persistent store's files if they have enough garbage."""
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

    def _close(self) -> None:
        self._directory.check_lock()
        while self.recover_step():
            pass
        terms = {}
        for name, queue in self.queues.items():
            if queue.durable:
                terms[self._directory.entry(name)] = queue.close(self._random(16))
            else:
                queue.delete()
        self._directory.close(terms)

    def abandon(self) -> None:
        """Give everything up as a crash of the process would; for tests and for a supervisor."""
        self.abandoned = True
        for queue in self.queues.values():
            queue.abandon()
        self._directory.abandon()

    def forget(self) -> None:
        """Give everything up in a forked child: it is the parent's, and using it raises an error."""
        self.abandon()
        for queue in self.queues.values():
            queue.refuse(self._directory.lost())

    def __enter__(self) -> Vhost:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """Close. After an error of the engine its state must not be written: leave it as a crash would."""
        if self.abandoned:
            return
        if isinstance(error, WarrenError | RuntimeError):
            self.abandon()
        else:
            self.close()

    def check_invariants(self) -> None:
        """Raise ``RuntimeError`` if a queue or a store is inconsistent."""
        for queue in self.queues.values():
            queue.check_invariants()
        self.persistent_store.check_invariants()
        self.transient_store.check_invariants()
