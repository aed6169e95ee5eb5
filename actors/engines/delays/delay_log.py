"""DelayLog: the delayed messages of one vhost on disk, in order of time.

They are appended to a log (:class:`~warren.storage.record_log.RecordLog`), one file after the other. A file that is
full is *sealed*: an index in order of time is written beside it, and nothing of it stays in RAM but a few numbers
(:mod:`warren.actors.engines.delays.delay_file`). What is due next comes from a heap of the files by their first
message.

A message is *taken* when it is due, and *gone* once somebody says that it is published; or when it is called back. That
is written down in the file that is written then, whichever the message's own is. A file of which no message is left is
deleted. One that is mostly garbage is *reclaimed*: what lives in it, and what it says of others that are still there,
is written again at the end, and the file is deleted.

*A crash* leaves files of which the last may be torn at its end. What was taken and is not known to be gone waits again:
a message may be published twice, and none is lost that was written (or, with a power loss, synced). A record that says
where a message stands now says also that it does no more where it stood.

*A full disk* refuses what is added (:class:`~warren.storage.errors.NoRoomError`, nothing has changed); what is gone is
written down later.

*Damage.* Messages that cannot be read are told (:attr:`DelayLog.damage`) and passed over; their file is kept.

Invariants: a file's counts are those of its messages; every file with something that waits stands in the heap, at a
time that is not after its first message; targets' counts add up.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import attrs
import numpy as np

from warren.actors.engines.delays import delay_format as f
from warren.actors.engines.delays.delay_file import (
    DelayFile,
    OpenFile,
    SealedFile,
    index_path,
    log_path,
)
from warren.actors.engines.delays.delay_format import Entry, Place
from warren.actors.engines.delays.delay_recovery import index_of, recover
from warren.storage.errors import DataError, NoRoomError, StorageError
from warren.storage.filesystem import FileSystem, write_file
from warren.storage.record_log import HEAD, RecordLog

_LOG = logging.getLogger("warren.delays")

FILE_ENTRIES: Final = 16384
"""So many messages of a file are listed in RAM while it is written; then it is sealed, however small."""
GONE_AT_ONCE: Final = 65536
"""Places in one record, and those that may wait to be written."""
_CHUNK_BYTES: Final = 1 << 20


class NewMessage(NamedTuple):
    """A message that is to wait."""

    due_ms: int
    id_digest: int
    target: int
    term: bytes


class DueMessage(NamedTuple):
    """A message that was taken."""

    file: int
    entry: Entry
    term: bytes


@attrs.define(eq=False, repr=False)
class DelayLog:
    """See the module's prose. One caller at a time; :meth:`waiting_of` and ``len`` may be asked from any thread."""

    _files: FileSystem
    directory: str
    file_size_limit_bytes: int
    file_entries: int = FILE_ENTRIES
    damage: list[DataError] = attrs.Factory(list)
    _sealed: dict[int, SealedFile] = attrs.field(init=False, factory=dict)
    _open: OpenFile | None = attrs.field(init=False, default=None)
    _last_number: int = attrs.field(init=False, default=0)
    _heap: list[tuple[int, int]] = attrs.field(init=False, factory=list)
    """When the first message of which sealed file is due, or was: it may have been called back."""
    _by_target: Counter[int] = attrs.field(init=False, factory=Counter)
    _unwritten_gone: list[Place] = attrs.field(init=False, factory=list)
    _garbage: set[int] = attrs.field(init=False, factory=set)
    """Sealed files that may be worth reclaiming."""
    _count: int = attrs.field(init=False, default=0)
    _taken: int = attrs.field(init=False, default=0)

    # ── opening ─────────────────────────────────────────────────────────────────────────────────────────────────

    @classmethod
    def open(
        cls,
        files: FileSystem,
        directory: str,
        *,
        file_size_limit_bytes: int,
        file_entries: int = FILE_ENTRIES,
    ) -> DelayLog:
        """The log in a directory, which need not be there. Raises :class:`DataError` for files of another kind."""
        found = recover(files, directory)
        log = cls(files, directory, file_size_limit_bytes, file_entries, found.damage)
        log._sealed, log._open, log._last_number = found.sealed, found.open, found.last_number
        log._by_target, log._count = found.by_target, found.by_target.total()
        log._garbage |= found.sealed.keys()
        for sealed in found.sealed.values():
            log._push(sealed)
        return log

    # ── what there is ───────────────────────────────────────────────────────────────────────────────────────────

    def __len__(self) -> int:
        """Messages that wait."""
        return self._count - self._taken

    @property
    def taken(self) -> int:
        """Messages that were taken and are not gone."""
        return self._taken

    def waiting_of(self, target: int) -> int:
        """How many messages of a target are not gone."""
        return self._by_target.get(target, 0)

    @property
    def size_bytes(self) -> int:
        """Of all files' logs."""
        return sum(self._files.size(one.log.path) for one in self._all() if self._files.exists(one.log.path))

    def next_due_ms(self) -> int | None:
        """When the next message is due."""
        first = self._first()
        return None if first is None else first[0]

    def _all(self) -> list[DelayFile]:
        return [*self._sealed.values(), *([] if self._open is None else [self._open])]

    def _first(self) -> tuple[int, DelayFile] | None:
        """The file with the message that is due next, and when."""
        heap = self._heap
        sealed: SealedFile | None = None
        while heap:
            due_ms, number = heap[0]
            sealed = self._sealed.get(number)
            now = None if sealed is None else sealed.next_due_ms()
            if now == due_ms:
                break
            if now is None:
                heapq.heappop(heap)
            else:
                heapq.heapreplace(heap, (now, number))
            sealed = None
        open_ms = None if self._open is None else self._open.next_due_ms()
        if sealed is not None and (open_ms is None or heap[0][0] <= open_ms):
            return heap[0][0], sealed
        return None if open_ms is None or self._open is None else (open_ms, self._open)

    def _push(self, sealed: SealedFile) -> None:
        due_ms = sealed.next_due_ms()
        if due_ms is not None:
            heapq.heappush(self._heap, (due_ms, sealed.number))

    def waiting(self, target: int | None = None) -> Iterator[tuple[int, bytes]]:
        """Messages that wait, in order of time: when they are due, and themselves. To be read before anything changes.

        ``target``: of this one only.
        """
        streams = [zip(one.waiting(), itertools.repeat(one.number)) for one in self._all()]
        for entry, number in heapq.merge(*streams, key=lambda one: (one[0].due_ms, one[1], one[0].offset)):
            if target is None or entry.target == target:
                term = self._read(number, entry)
                if term is not None:
                    yield entry.due_ms, term
        self._close_sealed()

    def _file(self, number: int) -> DelayFile:
        if self._open is not None and self._open.number == number:
            return self._open
        return self._sealed[number]

    def _read(self, number: int, entry: Entry) -> bytes | None:
        """The encoded message; ``None``: it cannot be read, and that was told."""
        file = self._file(number)
        try:
            return f.message_in(file.log.read(entry.offset)).term
        except ValueError:
            error = DataError(file.log.path, entry.offset, "no delayed message")
        except DataError as found:
            error = found
        if not file.damaged:
            file.damaged = True
            self.damage.append(error)
        _LOG.error("a delayed message is lost: %s", error)
        return None

    def _close_sealed(self) -> None:
        for sealed in self._sealed.values():
            sealed.log.close()

    # ── adding ──────────────────────────────────────────────────────────────────────────────────────────────────

    def add(self, messages: Sequence[NewMessage]) -> None:
        """Let messages wait, all of them or (:class:`NoRoomError`) none; on return they survive the process."""
        self._append(
            [f.encode_message_record(*message) for message in messages],
            [(message.due_ms, message.id_digest, message.target) for message in messages],
        )

    def _append(self, payloads: list[bytes], heads: list[tuple[int, int, int]], replaced: Sequence[Place] = ()) -> None:
        """Write records of messages, and what is gone. ``replaced``: where they stood before."""
        log = self._written_file()
        gone = self._unwritten_gone
        for first in range(0, len(gone), GONE_AT_ONCE):
            log.log.append(f.encode_gone(gone[first : first + GONE_AT_ONCE]))
        entries = [
            Entry(*head, log.log.append(payload), HEAD.size + len(payload))
            for payload, head in zip(payloads, heads, strict=True)
        ]
        try:
            log.log.write()
        except NoRoomError:
            log.log.drop()
            raise
        log.gone += (*gone, *replaced)
        self._unwritten_gone = []
        for entry in entries:
            log.add(entry)
            self._count += 1
            self._by_target[entry.target] += 1
        if log.log.size_bytes >= self.file_size_limit_bytes or len(log.entries) >= self.file_entries:
            self._seal()

    def _written_file(self) -> OpenFile:
        if self._open is None:
            self._last_number += 1
            path = log_path(self.directory, self._last_number)
            self._open = OpenFile(self._last_number, RecordLog(self._files, path, f.KIND))
        return self._open

    def _seal(self) -> None:
        """The file that is written is full: the next record begins another one. Where there is no room, later."""
        full = self._open
        if full is None:
            return
        full.log.sync()
        path = index_path(self.directory, full.number)
        index = f.Index(f.entries_of(full.entries), f.gone_of(full.gone), full.damaged)
        try:
            write_file(self._files, path, f.encode_index(index, self._files.size(full.log.path)), sync=False)
        except NoRoomError:
            return
        sealed = self._sealed[full.number] = full.sealed(self._files, path)
        sealed.log.close()
        self._open = None
        self._push(sealed)

    def sync(self) -> None:
        """What was added survives a power loss."""
        if self._open is not None:
            self._open.log.sync()

    # ── when they are due ───────────────────────────────────────────────────────────────────────────────────────

    def take_due(self, now_ms: int, count: int, size_bytes: int) -> list[DueMessage]:
        """Take messages that are due, the first first: at most ``count``, and of ``size_bytes`` or one."""
        taken: list[DueMessage] = []
        if len(self._unwritten_gone) >= GONE_AT_ONCE:
            return taken  # nobody could write down what becomes of them
        while len(taken) < count and size_bytes > 0:
            first = self._first()
            if first is None or first[0] > now_ms:
                break
            file = first[1]
            entry = file.take()
            self._taken += 1
            term = self._read(file.number, entry)
            if term is not None:
                size_bytes -= entry.size
                taken.append(DueMessage(file.number, entry, term))
        self._close_sealed()
        return taken

    def settle(self, messages: Iterable[DueMessage]) -> None:
        """Messages that were taken are published, or lead nowhere: they are gone."""
        for message in messages:
            self._settle(self._file(message.file), message.entry, was_taken=True)
        self.write_gone()

    def _settle(self, file: DelayFile, entry: Entry, *, was_taken: bool) -> None:
        file.settle(entry.size, was_taken=was_taken)
        self._count -= 1
        self._taken -= was_taken
        left = self._by_target[entry.target] - 1
        if left:
            self._by_target[entry.target] = left
        else:
            del self._by_target[entry.target]
        self._unwritten_gone.append(Place(file.number, entry.offset))
        if isinstance(file, SealedFile) and file.is_garbage:
            self._garbage.add(file.number)

    def write_gone(self) -> None:
        """Write down what is gone; without room on the disk, later."""
        if self._unwritten_gone:
            with contextlib.suppress(NoRoomError):
                self._append([], [])

    def postpone(self, messages: Sequence[DueMessage], due_ms: int) -> None:
        """Messages that were taken could not be published: they wait again. Raises :class:`NoRoomError`."""
        payloads, heads = [], []
        replaced = [Place(message.file, message.entry.offset) for message in messages]
        for message, replaces in zip(messages, replaced, strict=True):
            entry = message.entry
            payloads.append(f.encode_message_record(due_ms, entry.id_digest, entry.target, message.term, replaces))
            heads.append((due_ms, entry.id_digest, entry.target))
        self._append(payloads, heads, replaced)
        for message in messages:
            self._settle(self._file(message.file), message.entry, was_taken=True)
        del self._unwritten_gone[len(self._unwritten_gone) - len(messages) :]  # the records say so

    # ── calling back ────────────────────────────────────────────────────────────────────────────────────────────

    def cancel(self, message_id: bytes, target: int | None = None) -> list[bytes]:
        """Call back those that wait and have this id (``target``: of this one only); returns the encoded messages.

        They are gone when this returns, as far as the process lives.
        """
        digest = f.digest_of_id(message_id)
        found = []
        for file in self._all():
            for number, entry in file.find("id_digest", digest):
                if target is not None and entry.target != target:
                    continue
                term = self._read(file.number, entry)
                if term is not None and f.has_id(term, message_id):
                    file.kill(number)
                    self._settle(file, entry, was_taken=False)
                    found.append(term)
        self._close_sealed()
        self.write_gone()
        return found

    def drop(self, target: int) -> int:
        """Call back all that wait of one target; returns how many."""
        dropped = 0
        if not self.waiting_of(target):
            return dropped
        for one in [file.number for file in self._all()]:
            file = self._file(one)  # that which was written may be sealed meanwhile
            for number, entry in file.find("target", target):
                file.kill(number)
                self._settle(file, entry, was_taken=False)
                dropped += 1
            self.write_gone()
        return dropped

    # ── reclaiming ──────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def has_garbage(self) -> bool:
        """Whether :meth:`reclaim` would do something."""
        return self._reclaimable() is not None

    def _reclaimable(self) -> SealedFile | None:
        for number in list(self._garbage):
            file = self._sealed.get(number)
            if file is not None and file.is_garbage:
                return file
            self._garbage.discard(number)
        return None

    def reclaim(self) -> bool:
        """Give back the room of one file that is mostly garbage; whether there was one. Raises :class:`NoRoomError`."""
        file = self._reclaimable()
        if file is None:
            return False
        self._say_again(file)
        live = file.all_live()
        for chunk in _chunks(live):
            self._move(file, chunk)
            if file.damaged:
                break
        file.log.close()
        if not file.damaged:
            self.sync()
            self._delete(file)
        return True

    def _say_again(self, file: SealedFile) -> None:
        """What a file says of others that are still there must not go with it."""
        places = index_of(self._files, file.log, file.path, self.damage).gone
        there = {one.number for one in self._all()} - {file.number}
        again = [Place(*pair) for pair in places[np.isin(places["file"], list(there))].tolist()]
        before = len(self._unwritten_gone)
        self._unwritten_gone += again
        try:
            if self._unwritten_gone:
                self._append([], [])
        except NoRoomError:
            del self._unwritten_gone[before:]
            raise

    def _move(self, file: SealedFile, live: list[tuple[int, Entry]]) -> None:
        """Write messages of a file again at the end."""
        payloads = []
        places = [Place(file.number, entry.offset) for _, entry in live]
        for place in places:
            try:
                payloads.append(f.moved(file.log.read(place.offset), place))
            except DataError as error:
                _LOG.error("a file of delayed messages is damaged, and kept: %s", error)
                self.damage.append(error)
                file.damaged = True
                return
        self._append(payloads, [entry[:3] for _, entry in live], places)
        for number, entry in live:
            file.kill(number)
            self._settle(file, entry, was_taken=False)
        del self._unwritten_gone[len(self._unwritten_gone) - len(live) :]  # the records say so

    def _delete(self, file: SealedFile) -> None:
        del self._sealed[file.number]
        self._garbage.discard(file.number)
        file.log.delete()
        if self._files.exists(file.path):
            self._files.delete(file.path)
        self._files.sync_directory(self.directory)  # no power loss may bring it back when it is not said what is gone

    # ── the end ─────────────────────────────────────────────────────────────────────────────────────────────────

    def close(self) -> None:
        """Write down what is gone, make safe what was added. Where nothing waits, nothing is left on disk."""
        self.write_gone()
        self.sync()
        self.abandon()
        if not self._count and not any(one.damaged for one in self._all()):
            for one in sorted(self._sealed.values(), key=lambda one: one.number):  # those go last that say what is gone
                self._delete(one)
            self._files.delete_tree(self.directory)

    def abandon(self) -> None:
        """Leave the files as a crash would."""
        for one in self._all():
            with contextlib.suppress(StorageError):
                one.log.close()

    def check_invariants(self) -> None:
        """Raise ``RuntimeError`` where the log contradicts itself."""
        files = self._all()
        for one in files:
            one.check_invariants()
        if (self._count, self._taken) != (sum(one.live for one in files), sum(one.taken for one in files)):
            raise RuntimeError(f"{self._count} live and {self._taken} taken are not those of the files")
        if sum(self._by_target.values()) != self._count or min(self._by_target.values(), default=1) < 1:
            raise RuntimeError("targets' counts do not add up")
        heads: dict[int, int] = {}
        for due_ms, number in self._heap:
            heads[number] = min(due_ms, heads.get(number, due_ms))
        for sealed in self._sealed.values():
            first_ms = sealed.next_due_ms()
            if first_ms is not None and heads.get(sealed.number, first_ms + 1) > first_ms:
                raise RuntimeError(f"{sealed.path}: what it has is not looked for")


def _chunks(live: list[tuple[int, Entry]]) -> Iterator[list[tuple[int, Entry]]]:
    """The same in parts of about a mebibyte."""
    chunk: list[tuple[int, Entry]] = []
    size_bytes = 0
    for one in live:
        chunk.append(one)
        size_bytes += one[1].size
        if size_bytes >= _CHUNK_BYTES:
            yield chunk
            chunk, size_bytes = [], 0
    if chunk:
        yield chunk
