"""DelayFiles: the files of one vhost's delayed messages, their heap by time, and the counts. The inner half of
:class:`~warren.actors.engines.delays.delay_log.DelayLog`, which describes their use and what a crash leaves.

Invariants: a file's counts are those of its messages; every sealed file with waiting messages is in the heap, at a time
that is not after its first message; targets' counts add up.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final, Self

import attrs

from warren.actors.engines.delays import delay_format as f
from warren.actors.engines.delays.delay_file import (
    DelayFile,
    OpenFile,
    SealedFile,
    index_path,
    log_path,
)
from warren.actors.engines.delays.delay_format import Entry, Place
from warren.actors.engines.delays.delay_recovery import recover
from warren.actors.log_events import log_event, logger
from warren.storage.errors import DataError, NoRoomError
from warren.storage.filesystem import FileSystem, write_file
from warren.storage.record_log import HEAD, RecordLog

_LOG = logger("delays")

FILE_ENTRIES: Final = 16384
"""How many messages the open file may list in RAM before it is sealed, however small it is."""
REMOVED_AT_ONCE: Final = 65536
"""The most places in one record, and the most that may wait to be written."""


@attrs.define(eq=False, repr=False)
class DelayFiles:
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
    """When the first message of a sealed file is due, or was before it was cancelled, and the file's number."""
    _by_target: Counter[int] = attrs.field(init=False, factory=Counter)
    _unwritten_removed: list[Place] = attrs.field(init=False, factory=list)
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
    ) -> Self:
        """Open the log in a directory, which need not exist. Raises :class:`DataError` for files of another kind."""
        recovered = recover(files, directory)
        log = cls(files, directory, file_size_limit_bytes, file_entries, recovered.damage)
        log._sealed, log._open, log._last_number = recovered.sealed, recovered.open, recovered.last_number
        log._by_target, log._count = recovered.by_target, recovered.by_target.total()
        log._garbage |= recovered.sealed.keys()
        for sealed in recovered.sealed.values():
            log._push(sealed)
        return log

    # ── what there is ───────────────────────────────────────────────────────────────────────────────────────────

    def __len__(self) -> int:
        """How many messages wait."""
        return self._count - self._taken

    @property
    def taken(self) -> int:
        """How many messages were taken and are not removed."""
        return self._taken

    def waiting_of(self, target: int) -> int:
        """How many messages of a target are not removed."""
        return self._by_target.get(target, 0)

    @property
    def size_bytes(self) -> int:
        """The size of all logs."""
        return sum(self._files.size(file.log.path) for file in self._all() if self._files.exists(file.log.path))

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
        """The waiting messages in order of time: when due, and encoded. To be read before anything changes.

        ``target``: only the messages of this target.
        """
        streams = [zip(file.waiting(), itertools.repeat(file.number)) for file in self._all()]
        for entry, number in heapq.merge(*streams, key=lambda pair: (pair[0].due_ms, pair[1], pair[0].offset)):
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
        """The encoded message; ``None`` if it cannot be read, which is logged."""
        file = self._file(number)
        try:
            return f.message_in(file.log.read(entry.offset)).term
        except ValueError:
            error = DataError(file.log.path, entry.offset, "no delayed message")
        except DataError as data_error:
            error = data_error
        if not file.damaged:
            file.damaged = True
            self.damage.append(error)
        _LOG.error("a delayed message is lost: %s", error, extra=log_event("delayed_lost", error))
        return None

    def _close_sealed(self) -> None:
        for sealed in self._sealed.values():
            sealed.log.close()

    # ── writing ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _append(self, payloads: list[bytes], heads: list[tuple[int, int, int]], replaced: Sequence[Place] = ()) -> None:
        """Write records of messages, and of removed ones. ``replaced``: the messages' previous places."""
        log = self._written_file()
        places = self._unwritten_removed
        for first in range(0, len(places), REMOVED_AT_ONCE):
            log.log.append(f.encode_removed(places[first : first + REMOVED_AT_ONCE]))
        entries = [
            Entry(*head, log.log.append(payload), HEAD.size + len(payload))
            for payload, head in zip(payloads, heads, strict=True)
        ]
        try:
            log.log.write()
        except NoRoomError:
            log.log.drop()
            raise
        log.removed += (*places, *replaced)
        self._unwritten_removed = []
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
        """Seal the full file; the next record begins another one. If the disk is full, this happens later."""
        full = self._open
        if full is None:
            return
        full.log.sync()
        path = index_path(self.directory, full.number)
        index = f.Index(f.entries_of(full.entries), f.removed_of(full.removed), full.damaged)
        try:
            write_file(self._files, path, f.encode_index(index, self._files.size(full.log.path)), sync=False)
        except NoRoomError:
            return
        sealed = self._sealed[full.number] = full.sealed(self._files, path)
        sealed.log.close()
        self._open = None
        self._push(sealed)

    def sync(self) -> None:
        """Make additions survive a power loss."""
        if self._open is not None:
            self._open.log.sync()

    def _settle(self, file: DelayFile, entry: Entry, *, was_taken: bool) -> None:
        file.settle(entry.size, was_taken=was_taken)
        self._count -= 1
        self._taken -= was_taken
        remaining = self._by_target[entry.target] - 1
        if remaining:
            self._by_target[entry.target] = remaining
        else:
            del self._by_target[entry.target]
        self._unwritten_removed.append(Place(file.number, entry.offset))
        if isinstance(file, SealedFile) and file.is_garbage:
            self._garbage.add(file.number)

    def write_removed(self) -> None:
        """Record which messages are removed; later if the disk is full."""
        if self._unwritten_removed:
            with contextlib.suppress(NoRoomError):
                self._append([], [])

    def check_invariants(self) -> None:
        """Raise ``RuntimeError`` if the log contradicts itself."""
        files = self._all()
        for file in files:
            file.check_invariants()
        if (self._count, self._taken) != (sum(file.live for file in files), sum(file.taken for file in files)):
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
