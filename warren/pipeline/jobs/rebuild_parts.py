"""ConsumeQueues and index files built by the engine out of columns that were read in ranges.

A task builds the queues of one bucket, or one index file, in a directory of its own, and returns a description of it.
The keys of an index file follow from counting, because each file but the last is full. The header of a file that
follows another is made from the key before its first key.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

import attrs

from warren.actors.engines.topics.queue_rows import QueueKey
from warren.actors.engines.topics.store_files import CONSUME_QUEUES, INDEX
from warren.pipeline.jobs.parallel import task_output
from warren.pipeline.jobs.rebuild_columns import ColumnFiles, entries_of, keys_of
from warren.queue_index.topics.consume_queue_format import ENTRY_BYTES
from warren.queue_index.topics.index_file import IndexFile
from warren.queue_index.topics.index_file_format import Header, Layout, name_after
from warren.salvage.queue_directory import Finding
from warren.salvage.rocketmq.rebuilding import empty_store, not_built
from warren.salvage.rocketmq.rocketmq_store import index_names
from warren.storage.descriptors import descriptor_bound
from warren.storage.filesystem import RealFileSystem
from warren.storage.mapped_files import file_name
from warren.storage.topic_settings import TopicSettings
from warren.tables.packing import counts, packed
from warren.tables.rocketmq.log_ranges import LogLayout

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
    """A queue that was built: its files, and the numbers that are not in them."""

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
        """Relative to the store's directory."""
        return f"{CONSUME_QUEUES}/{self.topic}/{self.queue_id}"

    @property
    def files(self) -> list[str]:
        return [f"{self.directory}/{file_name(base)}" for base in self.bases]


@attrs.frozen(kw_only=True)
class BuiltQueues:
    """The queues built from one bucket."""

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
        queues = tuple(
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
    return BuiltQueues(directory=out, queues=queues, damage=tuple(not_built(store)))


@attrs.frozen
class Keys:
    """Consecutive keys of one file."""

    path: str
    start: int
    stop: int

    def between(self, start: int, stop: int) -> Keys:
        """Return the keys with these numbers."""
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
    """Build an index file, and return its path."""
    layout = _layout(work.settings)
    header = Header()
    if work.before is not None:
        _, offsets, timestamps = keys_of(work.before.path, work.before.start, work.before.stop)
        end = Header(end_timestamp=int(timestamps[0]), end_physical_offset=int(offsets[0]))
        header = end.follow()
    path = task_output(work.outputs, f"index-{work.number}")
    file = IndexFile.create(RealFileSystem(descriptor_bound()), path, layout, header)
    try:
        for piece in work.pieces:
            hashes, offsets, timestamps = keys_of(piece.path, piece.start, piece.stop)
            for at in range(0, len(hashes), _KEYS_AT_ONCE):
                chunk = slice(at, at + _KEYS_AT_ONCE)
                file.put(hashes[chunk], offsets[chunk], timestamps[chunk])
        file.flush()
    finally:
        file.close()
    return path


def _layout(settings: TopicSettings) -> Layout:
    return Layout(settings.max_hash_slot_num, settings.max_index_num)


# ── what there is to build ───────────────────────────────────────────────────────────────────────────────────────────


def queues_works(layout: LogLayout, outputs: str, parts: Sequence[ColumnFiles]) -> list[QueuesWork]:
    """Return the work for the buckets that have entries. ``parts``: the ranges of the chain, in order."""
    batches: dict[int, list[tuple[str, int]]] = {}
    for part in parts:
        for batch, bucket in enumerate(part.buckets):
            if part.entries is not None:
                batches.setdefault(bucket, []).append((part.entries, batch))
    return [
        QueuesWork(layout=layout, outputs=outputs, bucket=bucket, batches=tuple(bucket_batches))
        for bucket, bucket_batches in sorted(batches.items())
    ]


def index_works(layout: LogLayout, outputs: str, parts: Sequence[ColumnFiles]) -> list[IndexWork]:
    """Return the work for the index files, oldest first.

    After a full file the next message starts a new one, with or without a key, so the last file may be empty.
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
    previous: Keys | None = None
    for number, pieces in enumerate(cuts):
        works.append(
            IndexWork(settings=layout.settings, outputs=outputs, number=number, before=previous, pieces=tuple(pieces))
        )
        if pieces:
            previous = pieces[-1].between(pieces[-1].stop - 1, pieces[-1].stop)
    return works


def moved(built: Sequence[BuiltQueues], index_files: Sequence[str], out: str) -> list[str]:
    """Move what the tasks built to ``out``; returns the names of the index files."""
    os.makedirs(f"{out}/{CONSUME_QUEUES}", exist_ok=True)
    for part in built:
        for queue in part.queues:
            if not queue.bases:
                continue  # none of its messages is in a file
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
