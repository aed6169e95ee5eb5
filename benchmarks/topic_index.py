"""The topics' index of keys: filled, and asked."""

from __future__ import annotations

import os
import shutil
from functools import partial
from itertools import pairwise

import attrs
import numpy as np

from benchmarks.figures import Bar, Figure, Spread
from benchmarks.measure import Tick, seconds_of
from warren.queue_index.topics.key_index import KeyIndex
from warren.storage.filesystem import File, RealFileSystem
from warren.storage.topic_settings import TopicSettings

BATCH = 1000
BODY_BYTES = 128
QUERIES = 2000
_READ_BYTES = 1 << 20
_NOW_MS = 1_700_000_000_000


def topic_index(directory: str, *, scale: float, repeats: int, tick: Tick) -> list[Figure]:
    """Its figures; ``directory`` is where the files lie meanwhile."""
    return _key_index(os.path.join(directory, "index"), scale, repeats, tick)


@attrs.define
class _CountingFile:
    """Counts reads."""

    inner: File
    counts: _Counts

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)

    def pread(self, size: int, offset: int) -> bytes:
        self.counts.reads += 1
        self.counts.bytes_read += size
        return self.inner.pread(size, offset)


@attrs.define
class _Counts:
    reads: int = 0
    bytes_read: int = 0


class _CountingFileSystem(RealFileSystem):
    """The real one, with its reads counted."""

    __slots__ = ("counts",)

    def __init__(self) -> None:
        super().__init__()
        self.counts = _Counts()

    def open_read(self, path: str) -> File:  # type: ignore[override]
        return _CountingFile(super().open_read(path), self.counts)  # type: ignore[return-value]


def _key_index(path: str, scale: float, repeats: int, tick: Tick) -> list[Figure]:
    settings = TopicSettings()
    full = settings.max_index_num - 1
    keys = max(20_000, int(1_000_000 * scale))
    hashes = np.random.default_rng(1).integers(0, 1 << 31, full, dtype=np.int32)
    rates = []
    for _ in range(repeats):
        index = _new_index(path, settings)
        seconds = seconds_of(partial(_put, index, hashes[:keys], BATCH))
        rates.append(keys / seconds)
        index.close()
        shutil.rmtree(path)
        tick()
    filled = full if scale >= 1 else keys
    index = _new_index(path, settings)
    _put(index, hashes[:filled], 100_000)
    index.flush()
    index.close()
    figures = [
        Figure(
            group="topic: index",
            title="topic, index put, batches of 1000 keys",
            unit="messages/s",
            ours=Spread.of(rates),
            bar=Bar("at least", 300_000, "value"),
            note="a key each, into a file of 5,000,000 slots",
        ),
        _query(path, settings, hashes[:filled], repeats),
    ]
    shutil.rmtree(path)
    return figures


def _new_index(path: str, settings: TopicSettings, files: RealFileSystem | None = None) -> KeyIndex:
    return KeyIndex.load(
        RealFileSystem() if files is None else files,
        path,
        max_hash_slot_num=settings.max_hash_slot_num,
        max_index_num=settings.max_index_num,
        new_name=lambda: "20260101000000000",
        writable=files is None,
    )


def _put(index: KeyIndex, hashes: np.ndarray, batch: int) -> None:
    for start, stop in pairwise([*range(0, len(hashes), batch), len(hashes)]):
        part = hashes[start:stop]
        offsets = np.arange(start, stop, dtype=np.int64) * 250
        stamps = np.full(len(part), _NOW_MS + start // 1000, np.int64)
        index.put_many(offsets, stamps, np.ones(len(part), np.int32), part)


def _query(path: str, settings: TopicSettings, hashes: np.ndarray, repeats: int) -> Figure:
    """Queries by keys that are there, each at another place."""
    files = _CountingFileSystem()
    index = _new_index(path, settings, files)
    wanted = np.random.default_rng(2).choice(hashes, QUERIES).tolist()
    micros = []
    for _ in range(repeats):
        seconds = seconds_of(lambda: [index.query(one, 64, 0, (1 << 63) - 1) for one in wanted])
        micros.append(1e6 * seconds / QUERIES)
    queries, counts = QUERIES * repeats, files.counts
    index.close()
    return Figure(
        group="topic: index",
        title=f"topic, query by key in {len(hashes):,} items",
        unit="µs",
        ours=Spread.of(micros),
        note=f"{counts.reads / queries:.1f} reads and {counts.bytes_read / queries:.0f} B a query",
    )
