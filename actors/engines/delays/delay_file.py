"""One log of delayed messages: the open one, which is appended to and lists its messages in RAM, or a sealed one.

A :class:`SealedFile` has an index of its messages on disk, in order of time. In RAM it keeps a few numbers, a small
block of the next messages, and, once one of them is taken or removed, a bit for each message. So messages that wait for
long cost nearly nothing.

Terms. *Taken*: handed out to be published. *Removed*: published or cancelled, and recorded as such. A message that is
taken is still *live*, until it is removed. *Waiting*: neither taken nor removed.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Final

import attrs
import numpy as np

from warren.actors.engines.delays import delay_format as f
from warren.actors.engines.delays.delay_format import Entry, Place
from warren.storage.filesystem import FileSystem
from warren.storage.record_log import RecordLog

BLOCK: Final = 64
"""How many of a sealed file's next messages are kept in RAM: 2 KiB."""


def log_path(directory: str, number: int) -> str:
    return f"{directory}/{number}.delayed"


def index_path(directory: str, number: int) -> str:
    return f"{directory}/{number}.due"


@attrs.define(eq=False, repr=False)
class DelayFile:
    """The common part of open and sealed files."""

    number: int
    log: RecordLog
    live: int = 0
    live_bytes: int = 0
    taken: int = 0
    damaged: bool = False
    """Whether something in it cannot be read. Such a file is never deleted."""

    def next_due_ms(self) -> int | None:
        """When the first waiting message is due."""
        raise NotImplementedError

    def take(self) -> Entry:
        """Take the message that is due at :meth:`next_due_ms`."""
        raise NotImplementedError

    def waiting(self) -> Iterator[Entry]:
        """The waiting messages, the next one first. To be read before anything changes."""
        raise NotImplementedError

    def find(self, column: str, value: int) -> list[tuple[int, Entry]]:
        """The waiting messages with this value, each with its number for :meth:`kill`."""
        raise NotImplementedError

    def kill(self, number: int) -> None:
        """Remove a waiting message. The caller settles it."""
        raise NotImplementedError

    def settle(self, size: int, *, was_taken: bool) -> None:
        """Note that one of its messages was removed."""
        self.live -= 1
        self.live_bytes -= size
        self.taken -= was_taken

    def check_invariants(self) -> None:
        """Raise ``RuntimeError`` if the file contradicts itself."""
        if not 0 <= self.taken <= self.live or self.live_bytes < 0 or bool(self.live) != bool(self.live_bytes):
            raise RuntimeError(f"{self.log.path}: {self.taken} taken of {self.live} live, {self.live_bytes} bytes")
        if sum(1 for _ in self.waiting()) != self.live - self.taken:
            raise RuntimeError(f"{self.log.path}: {self.live - self.taken} should wait")


@attrs.define(eq=False, repr=False)
class OpenFile(DelayFile):
    """The log that is appended to."""

    entries: list[Entry] = attrs.Factory(list)
    """All entries that were ever in it, in the order of the file."""
    removed: list[Place] = attrs.Factory(list)
    """The places that its records mark as removed."""
    _heap: list[tuple[int, int]] = attrs.Factory(list)
    """When each entry is due, and its index; killed entries stay until they come up."""
    _out: set[int] = attrs.Factory(set)
    """Entries that are taken or removed."""

    def add(self, entry: Entry, *, is_removed: bool = False) -> None:
        """Add an entry. ``is_removed``: it was removed already, when a log is replayed."""
        index = len(self.entries)
        self.entries.append(entry)
        if is_removed:
            self._out.add(index)
            return
        heapq.heappush(self._heap, (entry.due_ms, index))
        self.live += 1
        self.live_bytes += entry.size

    def next_due_ms(self) -> int | None:
        heap = self._heap
        while heap and heap[0][1] in self._out:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def take(self) -> Entry:
        _, index = heapq.heappop(self._heap)
        self._out.add(index)
        self.taken += 1
        return self.entries[index]

    def waiting(self) -> Iterator[Entry]:
        return (self.entries[index] for _, index in sorted(self._heap) if index not in self._out)

    def find(self, column: str, value: int) -> list[tuple[int, Entry]]:
        at = Entry._fields.index(column)
        return [(index, entry) for index, entry in enumerate(self.entries)
                if entry[at] == value and index not in self._out]  # fmt: skip

    def kill(self, number: int) -> None:
        self._out.add(number)

    def sealed(self, files: FileSystem, path: str) -> SealedFile:
        """Return this file as a sealed one, after its index was written to ``path``."""
        entries = f.entries_of(self.entries)
        order = np.lexsort((entries["offset"], entries["due_ms"]))
        out = np.zeros(len(entries), bool)
        out[list(self._out)] = True
        sealed = SealedFile(
            self.number,
            self.log,
            self.live,
            self.live_bytes,
            self.taken,
            self.damaged,
            files=files,
            path=path,
            count=len(entries),
            log_bytes=files.size(self.log.path),
        )
        sealed.mark(out[order])
        return sealed

    def check_invariants(self) -> None:
        """Check the module's terms, too."""
        DelayFile.check_invariants(self)
        if {index for _, index in self._heap} | self._out != set(range(len(self.entries))):
            raise RuntimeError(f"{self.log.path}: an entry neither waits nor is out")


@attrs.define(eq=False, repr=False)
class SealedFile(DelayFile):
    """A full log with an index."""

    _files: FileSystem = attrs.field(kw_only=True)
    path: str = attrs.field(kw_only=True)
    """The path of the index."""
    count: int = attrs.field(kw_only=True)
    """How many messages were ever in it."""
    log_bytes: int = attrs.field(kw_only=True)
    _out: bytearray | None = None
    """A bit for each entry, set if taken or removed, in order of time; ``None`` if no entry is."""
    _next: int = 0
    """All entries before this one are taken or removed."""
    _block: f.Entries | None = None
    _block_at: int = 0

    def mark(self, out: f.Entries) -> None:
        """Mark entries as taken or removed."""
        self._out = bytearray(np.packbits(out, bitorder="little").tobytes()) if out.any() else None
        self._next, self._block = 0, None

    def _is_out(self, place: int) -> bool:
        return self._out is not None and bool(self._out[place >> 3] & 1 << (place & 7))

    def _set_out(self, place: int) -> None:
        if self._out is None:
            self._out = bytearray((self.count + 7) // 8)
        self._out[place >> 3] |= 1 << (place & 7)

    def _row(self, place: int) -> Entry:
        block = self._block
        if block is None or not 0 <= place - self._block_at < len(block):
            block = self._block = f.read_rows(self._files, self.path, self.count, place, BLOCK)
            self._block_at = place
        return Entry(*block[place - self._block_at].item())

    def next_due_ms(self) -> int | None:
        while self._next < self.count and self._is_out(self._next):
            self._next += 1
        if self._next < self.count:
            return self._row(self._next).due_ms
        self._block = None
        return None

    def take(self) -> Entry:
        entry = self._row(self._next)
        self._set_out(self._next)
        self._next += 1
        self.taken += 1
        return entry

    def waiting(self) -> Iterator[Entry]:
        for first in range(self._next, self.count, BLOCK):
            rows = f.read_rows(self._files, self.path, self.count, first, BLOCK)
            for place, row in enumerate(rows.tolist(), first):
                if not self._is_out(place):
                    yield Entry(*row)

    def _are_out(self) -> f.Entries:
        if self._out is None:
            return np.zeros(self.count, bool)
        return np.unpackbits(np.frombuffer(self._out, np.uint8), count=self.count, bitorder="little").astype(bool)

    def find(self, column: str, value: int) -> list[tuple[int, Entry]]:
        matching = f.read_column(self._files, self.path, self.count, column) == value
        if not matching.any():
            return []
        places = np.flatnonzero(matching & ~self._are_out())
        if not len(places):
            return []
        first = int(places[0])
        rows = f.read_rows(self._files, self.path, self.count, first, int(places[-1]) - first + 1)[places - first]
        return [(place, Entry(*row)) for place, row in zip(places.tolist(), rows.tolist(), strict=True)]

    def kill(self, number: int) -> None:
        self._set_out(number)

    @property
    def is_garbage(self) -> bool:
        """Whether most of it is garbage, and no message is taken, so that its live messages can be rewritten."""
        return not self.damaged and not self.taken and 2 * self.live_bytes < self.log_bytes

    def all_live(self) -> list[tuple[int, Entry]]:
        """The waiting messages, in the order of the log, each with its number for :meth:`kill`."""
        places = np.flatnonzero(~self._are_out())
        rows = f.read_rows(self._files, self.path, self.count, 0, self.count)[places]
        order = np.argsort(rows["offset"])
        return [(place, Entry(*row)) for place, row in zip(places[order].tolist(), rows[order].tolist(), strict=True)]
