"""ConsumeQueues and index files built by the engine out of columns that were read in ranges.

A task builds the queues of one bucket, or one index file, in a directory of its own; what it gives back says what is
in there. Which keys an index file has follows from counting: each but the last is full. What a file begins with (the
header of one that follows another) is in the key before its first.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

import attrs

from warren.actors.engines.topics.queue_rows import QueueKey
from warren.actors.engines.topics.store_files import CONSUME_QUEUES, INDEX
from warren.pipeline.jobs.parallel import task_output
from warren.pipeline.log_columns import ColumnFiles, entries_of, keys_of
from warren.queue_index.topics.consume_queue_format import ENTRY_BYTES
from warren.queue_index.topics.index_file import IndexFile
from warren.queue_index.topics.index_file_format import Header, Layout, name_after
from warren.salvage.queue_directory import Finding
from warren.salvage.rocketmq.rebuilding import empty_store, not_built
from warren.salvage.rocketmq.store import index_names
from warren.storage.descriptors import descriptor_bound
from warren.storage.filesystem import RealFileSystem
from warren.storage.mapped_files import file_name
from warren.storage.topic_settings import TopicSettings
from warren.tables.log_ranges import LogLayout
from warren.tables.packing import counts, packed

_KEYS_AT_ONCE: Final = 1 << 15


@attrs.frozen(kw_only=True)
class QueuesWork:
    """The queues of one bucket of a node."""

    layout: LogLayout
    outputs: str
    bucket: int
    batches: tuple[tuple[str, int], ...]
    """Files of entries in the order of the CommitLog, and the batch of each."""


@attrs.frozen(kw_only=True)
class BuiltQueue:
    """One that was built: the numbers that no file tells, and its files."""

    topic: str
    queue_id: int
    end_byte: int
    min_byte: int
    max_physical_offset: int
    bases: tuple[int, ...]

    @property
    def key(self) -> QueueKey:
        return self.topic, self.queue_id

    @property
    def directory(self) -> str:
        """Below the store's."""
        return f"{CONSUME_QUEUES}/{self.topic}/{self.queue_id}"

    @property
    def files(self) -> list[str]:
        return [f"{self.directory}/{file_name(base)}" for base in self.bases]


@attrs.frozen(kw_only=True)
class BuiltQueues:
    """What a bucket gave."""

    directory: str
    queues: tuple[BuiltQueue, ...]
    damage: tuple[Finding, ...]


def build_queues(work: QueuesWork) -> BuiltQueues:
    """Build the queues of a bucket."""
    out = task_output(work.outputs, f"queues-{work.bucket}")
    log = work.layout.commit_log()
    store = empty_store(RealFileSystem(descriptor_bound()), out, work.layout.settings, log)
    try:
        for path, batch in work.batches:
            for key, columns in entries_of(path, batch):
                store.put_entries(key, *columns)
        for queue in store.queues.values():
            queue.flush()
        built = tuple(
            BuiltQueue(
                topic=topic,
                queue_id=queue_id,
                end_byte=queue.end_byte,
                min_byte=queue.min_offset * ENTRY_BYTES,
                max_physical_offset=queue.max_physical_offset,
                bases=tuple(queue.mapped.bases),
            )
            for (topic, queue_id), queue in store.queues.items()
        )
    finally:
        store.abandon()
    return BuiltQueues(directory=out, queues=built, damage=tuple(not_built(store)))


@attrs.frozen
class Keys:
    """Keys in a row of one file."""

    path: str
    start: int
    stop: int

    def between(self, start: int, stop: int) -> Keys:
        """Those with these numbers."""
        return Keys(self.path, start, stop)


@attrs.frozen(kw_only=True)
class IndexWork:
    """One index file of a node."""

    settings: TopicSettings
    outputs: str
    number: int
    before: Keys | None
    """The key before its first; ``None``: the first index file."""
    pieces: tuple[Keys, ...]


def build_index_file(work: IndexWork) -> str:
    """Build an index file; its path."""
    layout = _layout(work.settings)
    header = Header()
    if work.before is not None:
        _, offsets, timestamps = keys_of(work.before.path, work.before.start, work.before.stop)
        end = Header(end_timestamp=int(timestamps[0]), end_physical_offset=int(offsets[0]))
        header = end.follow()
    built = task_output(work.outputs, f"index-{work.number}")
    file = IndexFile.create(RealFileSystem(descriptor_bound()), built, layout, header)
    try:
        for piece in work.pieces:
            hashes, offsets, timestamps = keys_of(piece.path, piece.start, piece.stop)
            for at in range(0, len(hashes), _KEYS_AT_ONCE):
                some = slice(at, at + _KEYS_AT_ONCE)
                file.put(hashes[some], offsets[some], timestamps[some])
        file.flush()
    finally:
        file.close()
    return built


def _layout(settings: TopicSettings) -> Layout:
    return Layout(settings.max_hash_slot_num, settings.max_index_num)


# ── what there is to build ───────────────────────────────────────────────────────────────────────────────────────────


def queues_works(layout: LogLayout, outputs: str, parts: Sequence[ColumnFiles]) -> list[QueuesWork]:
    """The buckets that have any entries. ``parts``: the ranges that count, in order."""
    batches: dict[int, list[tuple[str, int]]] = {}
    for part in parts:
        for batch, bucket in enumerate(part.buckets):
            if part.entries is not None:
                batches.setdefault(bucket, []).append((part.entries, batch))
    return [
        QueuesWork(layout=layout, outputs=outputs, bucket=bucket, batches=tuple(found))
        for bucket, found in sorted(batches.items())
    ]


def index_works(layout: LogLayout, outputs: str, parts: Sequence[ColumnFiles]) -> list[IndexWork]:
    """The index files, oldest first.

    A message makes the next file when the last one is full, whether it has a key or not; so the last may be empty.
    """
    if not layout.settings.message_index_enable or not any(part.outcome.records for part in parts):
        return []
    room = _layout(layout.settings).item_count - 1
    files = [Keys(part.keys, 0, part.key_count) for part in parts if part.keys is not None]
    cuts = list(packed(files, 1, room))
    last = next(part for part in reversed(parts) if part.outcome.records)
    if not cuts or (sum(counts(cuts[-1])) == room and not last.ends_in_key):
        cuts.append([])
    works = []
    before: Keys | None = None
    for number, pieces in enumerate(cuts):
        works.append(
            IndexWork(settings=layout.settings, outputs=outputs, number=number, before=before, pieces=tuple(pieces))
        )
        if pieces:
            before = pieces[-1].between(pieces[-1].stop - 1, pieces[-1].stop)
    return works


def moved(built: Sequence[BuiltQueues], index_files: Sequence[str], out: str) -> list[str]:
    """Move what the tasks built to ``out``; returns the names of the index files."""
    os.makedirs(f"{out}/{CONSUME_QUEUES}", exist_ok=True)
    for part in built:
        for queue in part.queues:
            if not queue.bases:
                continue  # its messages were put at no place that a file has
            os.makedirs(os.path.dirname(f"{out}/{queue.directory}"), exist_ok=True)
            os.rename(f"{part.directory}/{queue.directory}", f"{out}/{queue.directory}")
    if index_files:
        os.makedirs(f"{out}/{INDEX}", exist_ok=True)
    names: list[str] = []
    new_name = index_names()
    for path in index_files:
        names.append(name_after(new_name(), names[-1] if names else None))
        os.rename(path, f"{out}/{INDEX}/{names[-1]}")
    return names
