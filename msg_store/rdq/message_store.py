"""The message store: bodies that several queues share, each on disk once, in one directory of files.

A body is *written* with one reference each time it is passed in, and *removed* one reference at a time; with the last
one it is gone. It waits in the buffer (:mod:`warren.msg_store.rdq.write_buffer`) until a *flush* gives it a place in
the current file. A file that has reached the size limit is closed and the next one opened. Removed bodies leave
garbage; a closed file with nothing but garbage is deleted, and two with much of it are combined
(:mod:`warren.msg_store.rdq.compaction`). A current file with nothing but garbage stays until its owner calls
:meth:`MessageStore.replace_current`, or closes the store.

*Tickets* number the messages passed in: a message passed in by the time ``written_ticket`` was n is durable once
``synced_ticket`` is n or more.

Opening. *Clean*: with the shortcut of the last clean stop. *Dirty*: by a scan; the store then can be read and
written at once, but knows no reference counts until ``set_references``, and neither deletes nor compacts. Whatever
shortcut there was, ours or RabbitMQ's, is deleted before anything is written.

One writer, in one thread. Reading is free of it: see :mod:`warren.msg_store.rdq.body_reader`.

Invariants: a message is in the buffer or among the locations, never both; a file's valid bytes are those of its
locations; only the current file grows. A crash leaves what :mod:`warren.msg_store.rdq.recovery` reads: everything
synced.
"""

from __future__ import annotations

import contextlib
import posixpath
from collections import Counter
from collections.abc import Iterable, Sequence

import attrs

from warren.msg_store.rdq import clean_stop
from warren.msg_store.rdq.body_reader import BodyReader, ReadHandles
from warren.msg_store.rdq.compaction import Compaction
from warren.msg_store.rdq.current_file import CurrentFile
from warren.msg_store.rdq.file_summary import FileSummary
from warren.msg_store.rdq.locations import Locations, pack_behind
from warren.msg_store.rdq.rdq_format import OVERHEAD_BYTES, leftover_of, records_in_pieces
from warren.msg_store.rdq.recovery import recover, refuse_typed_files
from warren.msg_store.rdq.write_buffer import WriteBuffer
from warren.storage.errors import DataError, NoRoomError, StorageError
from warren.storage.filesystem import FileSystem
from warren.storage.pieces import Whole
from warren.storage.settings import Settings

BUFFER_BYTES = 2 << 20
"""A buffer above this is flushed. More would let more writes and removes meet, and cost memory."""

REPLACED_BYTES = 1 << 20
"""A current file of garbage is replaced from this size on. A lower limit costs more syncs of the directory."""

WRITE_BYTES = 4 << 20
"""No write is much longer: where bodies are small its records are copied together for it, which costs as much memory
again."""


@attrs.frozen(kw_only=True)
class StoreStatus:
    """A store in numbers."""

    files: int
    messages: int
    size_bytes: int
    valid_bytes: int
    garbage_fraction: float
    buffered_messages: int
    buffered_bytes: int
    open_read_handles: int
    written_ticket: int
    synced_ticket: int
    counted: bool
    compacting: bool
    unreadable: tuple[DataError, ...]


@attrs.define(eq=False, repr=False)
class MessageStore:
    """One directory of shared bodies; made by :meth:`create` or :meth:`open`."""

    _files: FileSystem
    _directory: str
    _settings: Settings
    _buffer_bytes: int
    _locations: Locations
    _summary: FileSummary
    _current: CurrentFile
    clean: bool
    """Whether it was opened with the shortcut of a clean stop, reference counts included."""
    unreadable: list[DataError]
    """What could not be read when the store was opened or compacted; after a crash, torn ends too."""
    _syncs: bool = True
    written_ticket: int = attrs.field(default=0, init=False)
    synced_ticket: int = attrs.field(default=0, init=False)
    _buffer: WriteBuffer = attrs.field(factory=WriteBuffer, init=False)
    _reader: BodyReader = attrs.field(init=False)
    _compaction: Compaction | None = attrs.field(default=None, init=False)
    _broken: str | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self._reader = BodyReader(self._buffer, self._locations, ReadHandles(self._files, self._directory))

    # Opening and closing

    @classmethod
    def create(
        cls, files: FileSystem, directory: str, settings: Settings, *, buffer_bytes: int = BUFFER_BYTES
    ) -> MessageStore:
        """A store that begins empty, whatever was in ``directory``, and need not survive: nothing is fsynced."""
        files.delete_tree(directory)
        files.make_directories(directory)
        summary = FileSummary()
        summary.add(0, 0)
        current = CurrentFile(files, directory, 0, 0, durable=False, unsynced=False, name_unsynced=False)
        return cls(files, directory, settings, buffer_bytes, Locations(), summary, current, clean=True, unreadable=[])

    @classmethod
    def open(
        cls,
        files: FileSystem,
        directory: str,
        settings: Settings,
        *,
        token: bytes | None = None,
        buffer_bytes: int = BUFFER_BYTES,
        sync: bool = True,
    ) -> MessageStore:
        """Open the store in ``directory``; create it if it is missing. Its parent directory must be permanent.

        If nothing changed since the last clean stop and ``token`` is the one passed then, it is ready (``clean``).
        Otherwise it was scanned, and needs :meth:`set_references`. Damage does not stop it: see ``unreadable``.
        Raises :class:`DataError` if the store has typed files.
        ``sync``: whether :meth:`sync` protects against a power loss too, or only against the end of the process.
        """
        refuse_typed_files(files, directory)
        files.make_directories(directory)
        recovered = clean_stop.load(files, directory, token) if token is not None else None
        clean_stop.discard(files, directory)
        clean = recovered is not None
        if recovered is None:
            files.sync_directory(posixpath.dirname(directory))
            recovered = recover(files, directory)
        return cls(
            files,
            directory,
            settings,
            buffer_bytes,
            recovered.locations,
            recovered.summary,
            _continued(files, directory, recovered.summary, clean=clean),
            clean,
            recovered.unreadable,
            sync,
        )

    def close(self, token: bytes | None = None) -> None:
        """Make everything durable and close the files; with a ``token``, leave a shortcut for the next start.

        Finishes a compaction that is under way. A store whose references were never set leaves no shortcut.
        """
        if self._compaction is not None:
            self.compact(until_idle=False)
        self.flush()
        if self.current_garbage_bytes >= REPLACED_BYTES:
            self.replace_current()
        self._current.sync()
        self._current.sync_rolled()
        self.abandon()
        if token is not None and self._current.durable and self._locations.counted:
            with contextlib.suppress(NoRoomError):  # the next start scans, then
                clean_stop.save(self._files, self._directory, token, self._locations, self._summary)

    def abandon(self) -> None:
        """Abandon the files, as a crash of the process would."""
        self._broken = "the store is closed"
        self._compaction = None
        self._reader.handles.close()
        self._current.close()

    def set_references(self, references: Iterable[tuple[bytes, int]]) -> list[bytes]:
        """Set what the queues referred to when the store was opened: (msg_id, count), an id any number of times.

        Writes and removals since then are added to it; unreferenced messages become garbage. Returns the ids that are
        referred to but missing: their bodies are lost. Raises ``RuntimeError`` on a store that is counted.
        """
        self._check_usable()
        if self._locations.counted:
            raise RuntimeError(f"{self._directory}: its references are known")
        missing: list[bytes] = []
        for location in self._locations.settle(self._present(references, missing)):
            self._summary.validate(location.file, -location.size)
        for number in list(self._summary):
            self._delete_if_empty(number)
        return missing

    def _present(self, references: Iterable[tuple[bytes, int]], missing: list[bytes]) -> Iterable[tuple[bytes, int]]:
        """Yield the references to messages in files; count those to buffered messages in the buffer."""
        for msg_id, count in references:
            if msg_id in self._locations:
                yield msg_id, count
            elif msg_id in self._buffer:
                self._buffer.reference(msg_id, count)
            else:
                missing.append(msg_id)

    # Writing

    def write_many(self, msg_ids: Sequence[bytes], messages: Sequence[Whole]) -> None:
        """Hand over messages, one reference for each id; one that the store knows already is not written again.

        The messages must not be changed any more: they are kept as they are until they are written.

        A :class:`StorageError` says that the buffer could not be written out; the messages are in it, and the next
        flush tries again.
        """
        self._check_usable()
        buffered, placed = self._buffer.messages, self._locations.places
        new_ids = set(msg_ids)
        if len(new_ids) == len(msg_ids) and placed.keys().isdisjoint(new_ids) and buffered.keys().isdisjoint(new_ids):
            self._buffer.add(msg_ids, messages)
        else:
            for msg_id, message in zip(msg_ids, messages, strict=True):
                if msg_id in buffered:
                    self._buffer.reference(msg_id)
                elif msg_id in placed:
                    self._locations.reference(msg_id)
                else:
                    self._buffer.add((msg_id,), (message,))
        self.written_ticket += len(msg_ids)
        if self._buffer.size_bytes > self._buffer_bytes:
            self.flush()

    def remove_many(self, msg_ids: Iterable[bytes]) -> None:
        """Take one reference from each; delete messages without references, and closed files without messages.

        Raises :class:`UnknownMessageError` at the first id that the store does not have; those before it are removed.
        """
        self._check_usable()
        emptied: set[int] = set()
        buffered = self._buffer.messages
        for msg_id in msg_ids:
            if msg_id in buffered:
                self._buffer.release(msg_id)
            elif (location := self._locations.release(msg_id)) is not None:
                file = _home(location.file)
                self._summary.validate(file, -location.size)
                if not self._summary[file].valid_bytes:
                    emptied.add(file)
        for file in sorted(emptied):
            self._delete_if_empty(file)

    def flush(self) -> None:
        """Write the buffered messages: they survive the process.

        Raises :class:`StorageError`; messages that were not written stay in the buffer.
        """
        self._check_usable()
        while self._buffer:
            self._flush_into_current()

    def sync(self) -> None:
        """Flush, make everything that was passed in durable, and advance ``synced_ticket``.

        After a failed fsync it is unknown which bytes are on the disk: the store refuses to go on.
        """
        ticket = self.written_ticket
        self.flush()
        if self._syncs:
            self._current.sync()
        self.synced_ticket = ticket

    def _flush_into_current(self) -> None:
        """Write the buffer's contents, up to one write or the room in the current file; roll if that is full."""
        number, limit = self._current.number, self._settings.msg_store_file_size_limit
        start = offset = self._current.size_bytes
        messages: list[tuple[bytes, Whole]] = []
        sizes: list[int] = []
        for entry in self._buffer.messages.items():
            message = entry[1]
            size = (len(message) if isinstance(message, bytes) else message.size) + OVERHEAD_BYTES
            messages.append(entry)
            sizes.append(size)
            offset += size
            if offset >= limit or offset - start >= WRITE_BYTES:
                break
        self._current.write(records_in_pieces(messages), offset - start)
        msg_ids = [msg_id for msg_id, _ in messages]
        self._summary.resize(number, offset)
        self._summary.validate(number, offset - start)
        # A reader looks into the buffer first: a message has its place before it leaves.
        self._locations.add(msg_ids, pack_behind(number, start, sizes), self._buffer.shared(msg_ids))
        self._buffer.drop(msg_ids, offset - start)
        if offset >= limit:
            self._current.roll(sync=self._syncs)
            self._summary.add(self._current.number, 0)
            self._delete_if_empty(number)

    @property
    def current_garbage_bytes(self) -> int:
        """The size of the current file if it holds no message in use, else 0."""
        entry = self._summary[self._current.number]
        if entry.valid_bytes or self._failure is not None or not self._locations.counted:
            return 0
        return entry.size_bytes

    def replace_current(self) -> None:
        """Go on in a new file if the current one holds only garbage, and delete that one.

        On a disk without room for a new name nothing is done.
        """
        if not self.current_garbage_bytes:
            return
        number = self._current.number
        with contextlib.suppress(NoRoomError):
            self._current.roll(sync=False)  # what it held is gone, and need not be safe
            self._summary.add(self._current.number, 0)
            self._delete_if_empty(number)

    def _delete_if_empty(self, number: int) -> None:
        in_use = number == self._current.number or (self._compaction is not None and number in self._compaction)
        if in_use or self._summary[number].valid_bytes:
            return
        self._reader.handles.drop(number)
        self._files.delete(self._reader.handles.path(number))
        self._summary.remove(number)

    # Reading

    def read(self, msg_id: bytes) -> bytes:
        """The body of a message.

        Raises :class:`UnknownMessageError`, and :class:`DataError` (path, offset, reason) where its record is damaged.
        """
        return self._reader.read(msg_id)

    def read_many(self, msg_ids: Sequence[bytes]) -> list[bytes]:
        """:meth:`read` for many at once, in the order asked for; the files are read front to back."""
        return self._reader.read_many(msg_ids)

    def contains(self, msg_id: bytes) -> bool:
        """Whether the store has a body; on one that is not counted yet, whether it has one on disk."""
        return msg_id in self._buffer or msg_id in self._locations

    def reference_count(self, msg_id: bytes) -> int:
        """References to a message, 0 if it is unknown; before ``set_references``, only those added since."""
        return self._buffer.count(msg_id) or self._locations.count(msg_id)

    # Compaction

    def needs_compaction(self) -> bool:
        """Whether two files are being combined, or there is garbage enough and a pair to combine."""
        if self._failure is not None or not self._locations.counted:
            return False
        return self._compaction is not None or self._summary.find_pair(self._settings) is not None

    def compact(self, max_steps: int | None = None, *, until_idle: bool = True) -> bool:
        """Do at most ``max_steps`` file operations; return ``True`` if there is more to do.

        Without a bound, goes on until there is nothing left to combine, or (``until_idle`` false) to the end of
        the pair under way.
        """
        self._check_usable()
        while self.needs_compaction():
            if max_steps == 0:
                return True
            if self._compaction is None:
                self._compaction = self._begin_compaction()
            if not self._step(self._compaction) and not until_idle:
                return self.needs_compaction()
            if max_steps is not None:
                max_steps -= 1
        return False

    def _begin_compaction(self) -> Compaction:
        pair = self._summary.find_pair(self._settings)
        if pair is None:
            raise RuntimeError(f"{self._directory}: nothing to combine")
        return Compaction(
            left=pair[0],
            right=pair[1],
            files=self._files,
            locations=self._locations,
            summary=self._summary,
            handles=self._reader.handles,
        )

    def _step(self, compaction: Compaction) -> bool:
        """One step; ``False`` when the pair is done."""
        try:
            if compaction.step():
                return True
        except Exception as error:
            if isinstance(error, NoRoomError):  # the compaction can be resumed
                raise
            self._compaction = None
            if compaction.must_finish:
                self._broken = f"a compaction broke off: {error}"
            else:  # the files are as they were; the .rdt, if there is one, is of no use
                with contextlib.suppress(StorageError):
                    self._files.delete(self._reader.handles.path(leftover_of(compaction.left)))
            raise
        self._compaction = None
        if compaction.damage is not None:
            self.unreadable.append(compaction.damage)
        for number in (compaction.left, compaction.right):
            if number in self._summary:
                self._delete_if_empty(number)
        return False

    # Looking

    def status(self) -> StoreStatus:
        """The store in numbers."""
        return StoreStatus(
            files=len(self._summary),
            messages=len(self._locations) + len(self._buffer),
            size_bytes=self._summary.size_bytes,
            valid_bytes=self._summary.valid_bytes,
            garbage_fraction=self._summary.garbage_fraction,
            buffered_messages=len(self._buffer),
            buffered_bytes=self._buffer.size_bytes,
            open_read_handles=len(self._reader.handles),
            written_ticket=self.written_ticket,
            synced_ticket=self.synced_ticket,
            counted=self._locations.counted,
            compacting=self._compaction is not None,
            unreadable=tuple(self.unreadable),
        )

    @property
    def is_usable(self) -> bool:
        """Whether the store is usable after an error that it has raised."""
        return self._failure is None

    @property
    def growing_bytes(self) -> int:
        """Bytes of the file that grows, with those that wait in the buffer."""
        return self._current.size_bytes + self._buffer.size_bytes

    def check_invariants(self) -> None:
        """Raise ``RuntimeError`` if the store contradicts itself. Walks all of it."""
        self._buffer.check_invariants()
        self._locations.check_invariants()
        self._summary.check_invariants()
        duplicates = self._buffer.messages.keys() & self._locations.places.keys()
        if duplicates:
            raise RuntimeError(f"{len(duplicates)} messages are in the buffer and in a file")
        valid: Counter[int] = Counter()
        for location in self._locations.locations():
            file = _home(location.file)
            if file not in self._summary:
                raise RuntimeError(f"{location} is in no file of the store")
            valid[file] += location.size
        if valid != Counter({number: self._summary[number].valid_bytes for number in self._summary}):
            raise RuntimeError(f"the files hold {dict(valid)} valid bytes")
        if self._summary.current != self._current.number or not 0 <= self.synced_ticket <= self.written_ticket:
            raise RuntimeError(f"current {self._current.number}, tickets {self.synced_ticket} … {self.written_ticket}")

    @property
    def _failure(self) -> str | None:
        return self._broken or self._current.failure

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise StorageError(f"{self._directory}: {self._failure}")


def _continued(files: FileSystem, directory: str, summary: FileSummary, *, clean: bool) -> CurrentFile:
    """Open the highest file of a store; an empty store gets its first one."""
    number = summary.current
    if number is None:
        number = 0
        summary.add(number, 0)
    # What a process that crashed has issued may still not be on the disk: to be synced before it is relied on.
    return CurrentFile(
        files,
        directory,
        number,
        summary[number].size_bytes,
        durable=True,
        unsynced=not clean,
        name_unsynced=not clean,
        rolled_unsynced=[] if clean else [other for other in summary if other != number],
    )


def _home(file: int) -> int:
    """The file that a location counts for: a message in a ``.rdt`` is on its way within the ``.rdq``."""
    return file if file >= 0 else leftover_of(file)
