"""What a ConsumeQueue and an index file are built from, read out of one range of a CommitLog and kept in two files.

*entries*: queue offset, physical offset, size and tags code of each queued message. The queues are dealt into a number
of *buckets*, by their names; a bucket is a batch, in which a queue's entries stand together and in their order.
*keys*: hash, physical offset and store timestamp of each key that is put into the index, in their order.

The files are Arrow's: a task that builds maps them and takes what it needs.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from warren.actors.engines.topics.queue_rows import QueueKey
from warren.arrow.arrays import schema_of
from warren.msg_store.commit_log.record_columns import RecordColumns
from warren.pipeline.jobs.parallel import task_output
from warren.queue_index.topics.key_index import is_put
from warren.storage.columns import stable_order
from warren.tables.rocketmq.log_ranges import Outcome, Range, RangeWalk

_ENTRIES: Final = schema_of("queue int, queue_offset long, physical_offset long, size int, tags_code long")
_KEYS: Final = schema_of("key_hash int, physical_offset long, store_timestamp long")
_QUEUES: Final = b"queues"

Column = npt.NDArray[Any]


@attrs.frozen(kw_only=True)
class ColumnFiles:
    """The files of a range, and its place in the chain."""

    outcome: Outcome
    floor: int
    """Physical offset of the last message before the range that has a key in the index, as assumed when it was read; 0
    without one."""
    entries: str | None
    """The path of the file; ``None``: nothing is queued."""
    buckets: tuple[int, ...]
    """The bucket of each of the file's batches, ascending."""
    keys: str | None
    key_count: int
    first_key: int | None
    """The physical offset of the first message whose keys are put."""
    last_key: int
    """The physical offset of the last such message; 0 without one."""
    ends_in_key: bool
    """Whether the range's last record is that message."""


def read_range(work: tuple[Range, int], outputs: str, buckets: int) -> ColumnFiles:
    """Read a range with its :attr:`~ColumnFiles.floor`, and write its files to the directory ``outputs``."""
    part, floor = work
    walk = RangeWalk(part, with_keys=part.layout.settings.message_index_enable)
    entries, keys = _Entries(buckets), _Keys(floor)
    for columns in walk.columns():
        entries.add(columns)
        keys.add(columns)
    name = f"{part.start:020d}"
    entries_path, bucket_numbers = entries.write(task_output(outputs, f"{name}.entries"))
    return ColumnFiles(
        outcome=walk.outcome,
        floor=floor,
        entries=entries_path,
        buckets=bucket_numbers,
        keys=keys.write(task_output(outputs, f"{name}.keys")),
        key_count=keys.count,
        first_key=keys.first,
        last_key=keys.last,
        ends_in_key=keys.ends_in_key,
    )


def bucket_of(key: QueueKey, buckets: int) -> int:
    """Return the bucket of a queue."""
    topic, queue_id = key
    return zlib.crc32(f"{queue_id} {topic}".encode("utf-8", "surrogatepass")) % buckets


@attrs.define
class _Entries:
    """Entries of a range, as they are collected."""

    buckets: int
    _numbers: dict[QueueKey, int] = attrs.Factory(dict)
    _parts: list[tuple[Column, ...]] = attrs.Factory(list)

    def add(self, columns: RecordColumns) -> None:
        """Add the entries of the records that are queued."""
        queued = columns.are_queued
        rows = slice(None) if queued.all() else np.flatnonzero(queued)
        topic_of, queue_ids = columns.topic_of[rows], columns.queue_ids[rows]
        if not len(topic_of):
            return
        pairs = pa.array((topic_of.astype(np.int64) << 32) + (queue_ids.astype(np.int64) & 0xFFFFFFFF))
        distinct = pairs.dictionary_encode()
        numbers = [self._number(columns.topics, pair) for pair in distinct.dictionary.to_pylist()]
        self._parts.append(
            (
                np.array(numbers, np.int32)[distinct.indices.to_numpy()],
                columns.queue_offsets[rows],
                columns.physical_offsets[rows],
                columns.sizes[rows],
                columns.tags_codes[rows],
            )
        )

    def _number(self, topics: tuple[str, ...], pair: int) -> int:
        queue_id = (pair & 0xFFFFFFFF) - ((pair & 0x80000000) << 1)
        return self._numbers.setdefault((topics[pair >> 32], queue_id), len(self._numbers))

    def write(self, path: str) -> tuple[str | None, tuple[int, ...]]:
        """Write the file if there are entries; return its path and the buckets of its batches."""
        if not self._parts:
            return None, ()
        columns = [np.concatenate(part) for part in zip(*self._parts, strict=True)]
        self._parts.clear()
        queue_buckets = np.array([bucket_of(key, self.buckets) for key in self._numbers], np.int64)
        # Queues by bucket; those of one bucket stay in the order of first sight.
        ranked = np.argsort(queue_buckets, kind="stable")
        rank = np.empty(len(ranked), np.int32)
        rank[ranked] = np.arange(len(ranked), dtype=np.int32)
        if len(ranked) > 1:
            order = stable_order(rank[columns[0]])
            columns = [column[order] for column in columns]
        row_buckets = queue_buckets[columns[0]]
        edges = [0, *(np.flatnonzero(np.diff(row_buckets)) + 1).tolist(), len(row_buckets)]
        schema = _ENTRIES.with_metadata({_QUEUES: json.dumps(list(self._numbers)).encode()})
        with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
            for first, stop in pairwise(edges):
                arrays = [pa.array(column[first:stop]) for column in columns]
                writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
        return path, tuple(int(row_buckets[first]) for first in edges[:-1])


@attrs.define
class _Keys:
    """Keys of a range, as they are collected."""

    floor: int
    first: int | None = None
    last: int = 0
    count: int = 0
    ends_in_key: bool = False
    _parts: list[tuple[Column, ...]] = attrs.Factory(list)

    def add(self, columns: RecordColumns) -> None:
        """Add the keys of the records that the index takes."""
        key_counts, offsets = columns.key_counts, columns.physical_offsets
        put = is_put(max(self.floor, self.last), offsets, key_counts > 0)
        self.ends_in_key = bool(put[-1])
        if not put.any():
            return
        owners, hashes = np.repeat(np.arange(len(columns)), key_counts), columns.key_hashes
        if not put.all():
            selected = put[owners]
            owners, hashes = owners[selected], hashes[selected]
        offsets = offsets[owners]
        self._parts.append((hashes, offsets, columns.store_timestamps[owners]))
        self.first = int(offsets[0]) if self.first is None else self.first
        self.last = int(offsets[-1])
        self.count += len(owners)

    def write(self, path: str) -> str | None:
        """Write the file if there are keys; return its path."""
        if not self._parts:
            return None
        columns = [np.concatenate(part) for part in zip(*self._parts, strict=True)]
        self._parts.clear()
        with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, _KEYS) as writer:
            writer.write_batch(pa.RecordBatch.from_arrays([pa.array(column) for column in columns], schema=_KEYS))
        return path


# ── reading them again ───────────────────────────────────────────────────────────────────────────────────────────────


def entries_of(path: str, batch: int) -> Iterator[tuple[QueueKey, list[Column]]]:
    """Yield each queue of a batch, with its queue offsets, physical offsets, sizes and tags codes, in order."""
    with pa.memory_map(path) as source, pa.ipc.open_file(source) as opened:
        names = json.loads(opened.schema.metadata[_QUEUES])
        numbers, *columns = (column.to_numpy() for column in opened.get_batch(batch).columns)
        edges = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
        for first, stop in pairwise(edges):
            topic, queue_id = names[numbers[first]]
            yield (topic, queue_id), [column[first:stop] for column in columns]


def keys_of(path: str, first: int, stop: int) -> list[Column]:
    """Return hashes, physical offsets and store timestamps of the keys from ``first`` on, before ``stop``."""
    with pa.memory_map(path) as source, pa.ipc.open_file(source) as opened:
        return [column.slice(first, stop - first).to_numpy() for column in opened.get_batch(0).columns]
