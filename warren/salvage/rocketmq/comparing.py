"""Compares rebuilt files with the existing ones, as far as their bytes matter.

What matters of a ConsumeQueue file are its entries of messages that the CommitLog has: older ones are expired, and
after the queue's end there may be anything. What matters of an index file are header, slots and the items that it
counts. Files are compared as they lie on the disk, not as recovery would leave them.

If the CommitLog's first files have expired, the existing index began earlier than one that can be built, so its files
hold other items each. Then the sequences of items (hash and physical offset) of messages that the CommitLog has are
compared, over all files.

================  =====================================================================================
``equal``         nothing that matters differs
``different``     from that offset of the file on
``missing``       was built, and is not there
``superfluous``   is there, and the CommitLog gives no reason for it
``expired``       is there, and holds only messages from before the CommitLog's first file
================  =====================================================================================
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any, Final, Literal

import attrs
import numpy as np
import numpy.typing as npt

from warren.actors.engines.topics.store_files import CONSUME_QUEUES, INDEX
from warren.actors.engines.topics.topic_store import queue_directories
from warren.queue_index.topics.consume_queue import ConsumeQueue
from warren.queue_index.topics.consume_queue_format import ENTRY_BYTES
from warren.queue_index.topics.index_file import IndexFile
from warren.queue_index.topics.index_file_format import is_file_name
from warren.salvage.names import Json
from warren.salvage.rocketmq.rebuilding import Rebuilt
from warren.salvage.rocketmq.rocketmq_store import RocketmqStore
from warren.storage.filesystem import FileSystem
from warren.storage.mapped_files import file_name, parse_file_name

Outcome = Literal["equal", "different", "missing", "superfluous", "expired"]

_GOOD: Final = ("equal", "expired")
_WINDOW_BYTES: Final = 1 << 20
_ITEMS_AT_ONCE: Final = 50_000


@attrs.frozen
class Compared:
    """One file."""

    name: str
    """Below the store's directory."""
    outcome: Outcome
    file_offset: int | None = None
    """Of the first byte that differs."""

    @property
    def is_good(self) -> bool:
        return self.outcome in _GOOD

    def to_json(self) -> dict[str, Json]:
        return {"file": self.name, "result": self.outcome, "offset": self.file_offset}


def compare(opened: RocketmqStore, rebuilt: Rebuilt) -> Iterator[Compared]:
    """Every file that exists or was built, ConsumeQueues first."""
    yield from _queues(opened, rebuilt)
    index = _Index(opened, rebuilt)
    yield from index.by_items() if index.began_earlier else index.by_bytes()


# ── ConsumeQueues ────────────────────────────────────────────────────────────────────────────────────────────────────


def _queues(opened: RocketmqStore, rebuilt: Rebuilt) -> Iterator[Compared]:
    place = f"{opened.directory}/{CONSUME_QUEUES}"
    existing = dict.fromkeys(queue_directories(opened.below, place))
    for key in sorted({*existing, *rebuilt.store.queues}):
        topic, queue_id = key
        name = f"{CONSUME_QUEUES}/{topic}/{queue_id}"
        yield from _queue(opened, name, opened.store.queues.get(key), rebuilt.store.queues.get(key))


def _queue(
    opened: RocketmqStore, name: str, recovered: ConsumeQueue | None, built: ConsumeQueue | None
) -> Iterator[Compared]:
    directory = f"{opened.directory}/{name}"
    existing_bases = {base for file in opened.below.list(directory) if (base := parse_file_name(file)) is not None}
    built_bases = set(built.mapped.bases) if built is not None else set()
    start, stop = (built.min_offset * ENTRY_BYTES, built.end_byte) if built is not None else (0, 0)
    existing_end = recovered.end_byte if recovered is not None else 0
    size = opened.settings.mapped_file_size_consume_queue
    for base in sorted(existing_bases | built_bases):
        path = f"{name}/{file_name(base)}"
        if built is not None and base in existing_bases and base in built_bases:
            begin, end = max(start, base), min(stop, base + size)
            existing_file, built_file = (
                (opened.below, f"{opened.directory}/{path}"),
                (built.mapped.files, built.mapped.path(base)),
            )
            at = _first_difference(existing_file, built_file, range(begin - base, end - base))
            if at is None and end < base + size and existing_end > end:
                at = end - base  # entries after those that were built
            yield Compared(path, "equal" if at is None else "different", at)
        elif base in built_bases:
            yield Compared(path, "missing")
        elif built is not None and base + size <= start:
            yield Compared(path, "expired")
        elif base < existing_end and not _is_expired(opened, recovered):
            yield Compared(path, "superfluous")
        else:
            yield Compared(path, "expired" if base < existing_end else "equal")


def _is_expired(opened: RocketmqStore, queue: ConsumeQueue | None) -> bool:
    """Whether all of its messages lie before the CommitLog's first file."""
    return queue is not None and queue.max_physical_offset <= opened.store.commit_log.min_offset


_Named = tuple[FileSystem, str]


def _first_difference(first: _Named, second: _Named, span: range) -> int | None:
    """The first byte of ``span`` in which two files differ; a shorter one goes on in zeros."""
    (files, path), (other_files, other_path) = first, second
    with closing(files.open_read(path)) as file, closing(other_files.open_read(other_path)) as other:
        for at in span[::_WINDOW_BYTES]:
            size = min(_WINDOW_BYTES, span.stop - at)
            left, right = (handle.pread(size, at).ljust(size, b"\0") for handle in (file, other))
            if left != right:
                return at + int(np.flatnonzero(np.frombuffer(left, "u1") != np.frombuffer(right, "u1"))[0])
    return None


# ── the index ────────────────────────────────────────────────────────────────────────────────────────────────────────


class _Index:
    """The existing index, and the one that was built."""

    def __init__(self, opened: RocketmqStore, rebuilt: Rebuilt) -> None:
        below, directory = opened.below, f"{opened.directory}/{INDEX}"
        layout = rebuilt.store.index.layout
        names = filter(is_file_name, below.list(directory))
        self.first_there = opened.store.commit_log.min_offset
        self.there = [IndexFile.load(below, f"{directory}/{name}", layout, writable=False) for name in names]
        self.built = rebuilt.store.index.index_files

    @property
    def began_earlier(self) -> bool:
        """Whether it has items of messages that the CommitLog no longer has."""
        headers = (file.header for file in self.there)
        return any(header.index_count > 1 and header.begin_physical_offset < self.first_there for header in headers)

    def by_bytes(self) -> Iterator[Compared]:
        """File by file, in the order of their names."""
        for number in range(max(len(self.there), len(self.built))):
            if number >= len(self.there):
                yield Compared(f"{INDEX}/{self.built[number].name}", "missing")
                continue
            existing = self.there[number]
            name = f"{INDEX}/{existing.name}"
            if number >= len(self.built):
                yield Compared(name, "superfluous")
                continue
            built = self.built[number]
            stop = existing.layout.item_offset(max(existing.header.index_count, built.header.index_count))
            at = _first_difference((existing.files, existing.path), (built.files, built.path), range(stop))
            yield Compared(name, "equal" if at is None else "different", at)

    def by_items(self) -> Iterator[Compared]:
        """Item by item, over the files' borders."""
        ahead = _Row(self.built, self.first_there)
        for file in self.there:
            name = f"{INDEX}/{file.name}"
            outcome, at = self._items_of(file, ahead)
            yield Compared(name, outcome, at)
        if ahead.take(1).size:
            yield Compared(f"{INDEX}/{self.built[-1].name}", "missing")

    def _items_of(self, file: IndexFile, ahead: _Row) -> tuple[Outcome, int | None]:
        seen = 0
        for first, items in _items(file):
            rows = np.flatnonzero(items["physical_offset"] >= self.first_there)
            existing_items, built_items = items[rows], ahead.take(len(rows))
            seen += len(rows)
            same = _same(existing_items[: len(built_items)], built_items)
            if len(built_items) < len(existing_items) or not same.all():
                mismatch = int(np.flatnonzero(~same)[0]) if not same.all() else len(built_items)
                return "different", file.layout.item_offset(first + int(rows[mismatch]))
        return ("equal" if seen or file.header.index_count <= 1 else "expired"), None


class _Row:
    """The items of several files in sequence, limited to messages that the CommitLog has."""

    def __init__(self, files: list[IndexFile], first_there: int) -> None:
        self._windows = (items[items["physical_offset"] >= first_there] for file in files for _, items in _items(file))
        self._left: npt.NDArray[Any] = np.empty(0, np.void)

    def take(self, count: int) -> npt.NDArray[Any]:
        """The next ``count``; fewer only at the end."""
        parts: list[npt.NDArray[Any]] = []
        while count > 0:
            if not len(self._left):
                following = next(self._windows, None)
                if following is None:
                    break
                self._left = following
            part, self._left = self._left[:count], self._left[count:]
            parts.append(part)
            count -= len(part)
        return np.concatenate(parts) if parts else np.empty(0, np.void)


def _items(file: IndexFile) -> Iterator[tuple[int, npt.NDArray[Any]]]:
    """A file's items, many at a time, with the number of the first."""
    stop = min(file.header.index_count, file.layout.item_count)
    for first in range(1, stop, _ITEMS_AT_ONCE):
        yield first, file.items(first, min(first + _ITEMS_AT_ONCE, stop))


def _same(existing: npt.NDArray[Any], built: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    if not len(built):
        return np.ones(0, np.bool_)
    same: npt.NDArray[np.bool_] = (existing["key_hash"] == built["key_hash"]) & (
        existing["physical_offset"] == built["physical_offset"]
    )
    return same
