"""Topics beyond the CommitLog: the index of keys, a rebuild from the CommitLog alone, and the runtime.

The peer that does the same work is an SQLite table with an index on the key, filled in transactions of as many
messages, without any fsync, as is ours here.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path

import attrs
import numpy as np

import warren
from benchmarks.figures import Bar, Figure, Spread, Unit, ratios
from benchmarks.measure import Tick, seconds_of
from warren.queue_index.key_index import KeyIndex
from warren.salvage.rocketmq.rebuilding import rebuild
from warren.salvage.rocketmq.store import open_rocketmq
from warren.steps import run
from warren.storage.filesystem import File, RealFileSystem
from warren.storage.topic_settings import TopicSettings

BATCH = 1000
BODY_BYTES = 128
QUERIES = 2000
_READ_BYTES = 1 << 20
_NOW_MS = 1_700_000_000_000


def topic_index(directory: str, *, scale: float, repeats: int, tick: Tick) -> list[Figure]:
    """All of these figures; ``directory`` is where the files lie meanwhile."""
    figures = _key_index(os.path.join(directory, "index"), scale, repeats, tick)
    figures += _runtime(directory, scale, repeats, tick)
    figures.append(_rebuild(directory, scale, repeats, tick))
    return figures


# ── the index of keys ────────────────────────────────────────────────────────────────────────────────────────────────


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


def _put(index: KeyIndex, hashes: np.ndarray, batch: int) -> None:  # type: ignore[type-arg]
    for start, stop in pairwise([*range(0, len(hashes), batch), len(hashes)]):
        part = hashes[start:stop]
        offsets = np.arange(start, stop, dtype=np.int64) * 250
        stamps = np.full(len(part), _NOW_MS + start // 1000, np.int64)
        none, one = np.zeros(len(part), np.bool_), np.ones(len(part), np.int32)
        index.put_many(offsets, stamps, none, one, part)


def _query(path: str, settings: TopicSettings, hashes: np.ndarray, repeats: int) -> Figure:  # type: ignore[type-arg]
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


# ── the runtime ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _runtime(directory: str, scale: float, repeats: int, tick: Tick) -> list[Figure]:
    count = max(10_000, int(500_000 * scale)) // BATCH * BATCH
    bodies = [os.urandom(BODY_BYTES) for _ in range(BATCH)]
    batches = [[f"order-{start + number:09d}" for number in range(BATCH)] for start in range(0, count, BATCH)]
    ours = _Rates()
    peer = _Rates()
    for number in range(repeats):
        _topic_round(os.path.join(directory, f"topic-{number}"), bodies, batches, ours)
        _sqlite_round(Path(directory, f"sqlite-{number}.db"), bodies, batches, peer)
        tick()
    beside = "SQLite, indexed table"
    return [
        _beside("topic, runtime: append_many(1000), a key each", ours.appended, peer.appended, beside),
        _beside("topic, runtime: the same, until every key can be found", ours.indexed, peer.appended, beside),
        _beside("topic, runtime: read by a group, 128 B", ours.read, peer.read, beside),
        _beside("topic, runtime: find by key", ours.found, peer.found, beside, "µs"),
        Figure(
            group="topic: runtime",
            title='topic, runtime: append one at a time, sync="os"',
            unit="messages/s",
            ours=Spread.of(ours.one_by_one),
            counterpart=Spread.of(ours.appended),
            counterpart_name="append_many(1000)",
            ratio=ratios(ours.one_by_one, ours.appended),
        ),
    ]


@attrs.define
class _Rates:
    """Messages a second, and microseconds of a find."""

    appended: list[float] = attrs.Factory(list)
    indexed: list[float] = attrs.Factory(list)
    read: list[float] = attrs.Factory(list)
    found: list[float] = attrs.Factory(list)
    one_by_one: list[float] = attrs.Factory(list)


def _beside(
    title: str,
    ours: list[float],
    peer: list[float],
    name: str,
    unit: Unit = "messages/s",
) -> Figure:
    return Figure(
        group="topic: runtime",
        title=title,
        unit=unit,
        ours=Spread.of(ours),
        counterpart=Spread.of(peer),
        counterpart_name=name,
        ratio=ratios(ours, peer),
    )


def _topic_round(path: str, bodies: list[bytes], batches: list[list[str]], rates: _Rates) -> None:
    count = len(batches) * BATCH
    with warren.open(path, sync="os", attach=False) as node:
        topic = node.topic("bench", queues=4)

        def append() -> None:
            for keys in batches:
                confirm = topic.append_many(bodies, keys=keys, queue=0)
            confirm.wait()

        start = time.perf_counter()
        append()
        appended = time.perf_counter()
        run(node._running.caught_up(with_index=True))
        rates.appended.append(count / (appended - start))
        rates.indexed.append(count / (time.perf_counter() - start))
        rates.read.append(count / seconds_of(lambda: _drain(topic)))
        rates.found.append(_micros_of_finding(lambda key: topic.find(key, limit=1), batches))
        few = min(count, 50_000)

        def one_by_one() -> None:
            for _ in range(few):
                confirm = topic.append(bodies[0])
            confirm.wait()

        rates.one_by_one.append(few / seconds_of(one_by_one))
    shutil.rmtree(path)


def _drain(topic: warren.Topic) -> None:
    with topic.reader("bench") as reader:
        while reader.read(BATCH):
            pass


def _micros_of_finding(find: Callable[[str], Sequence[object]], batches: list[list[str]]) -> float:
    wanted = [batches[number * 7919 % len(batches)][number * 104_729 % BATCH] for number in range(QUERIES // 2)]

    def look() -> None:
        for key in wanted:
            if not find(key):
                raise RuntimeError(f"{key} is not there")

    return 1e6 * seconds_of(look) / len(wanted)


def _sqlite_round(path: Path, bodies: list[bytes], batches: list[list[str]], rates: _Rates) -> None:
    count = len(batches) * BATCH
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = OFF")
    connection.execute("CREATE TABLE log (id INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT, body BLOB NOT NULL)")
    connection.execute("CREATE INDEX by_key ON log (key)")

    def append() -> None:
        for keys in batches:
            connection.execute("BEGIN")
            rows = zip(keys, bodies, strict=True)
            connection.executemany("INSERT INTO log (key, body) VALUES (?, ?)", rows)
            connection.execute("COMMIT")

    def drain() -> None:
        last = 0
        while rows := connection.execute(
            "SELECT id, key, body FROM log WHERE id > ? ORDER BY id LIMIT ?", (last, BATCH)
        ).fetchall():
            last = rows[-1][0]

    def find(key: str) -> Sequence[object]:
        return connection.execute("SELECT id, body FROM log WHERE key = ? ORDER BY id DESC LIMIT 1", (key,)).fetchall()

    rates.appended.append(count / seconds_of(append))
    rates.read.append(count / seconds_of(drain))
    rates.found.append(_micros_of_finding(find, batches))
    connection.close()
    for left in path.parent.glob(path.name + "*"):
        left.unlink()


# ── rebuilding ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _rebuild(directory: str, scale: float, repeats: int, tick: Tick) -> Figure:
    """Entries and index of a CommitLog file of 1 GiB (at full scale) that holds nothing else."""
    path = os.path.join(directory, "to-rebuild")
    bodies = [os.urandom(BODY_BYTES) for _ in range(BATCH)]
    log_bytes = max(4 << 20, int((1 << 30) * scale))
    with warren.open(path, sync="os", attach=False, mapped_file_size_commit_log=log_bytes) as node:
        topic, written = node.topic("bench"), 0
        record_bytes = topic.append_many(bodies, keys=["order-000000000"] * BATCH).wait()[0].size
        for start in range(BATCH, (log_bytes - (1 << 16)) // record_bytes // BATCH * BATCH, BATCH):
            topic.append_many(bodies, keys=[f"order-{start + number:09d}" for number in range(BATCH)])
        written = node._running.topics_now().log.store.commit_log.end
        topic.sync()
        written = node._running.topics_now().store.commit_log.end
    store = os.path.join(path, "topics")
    file = os.path.join(store, "commitlog", "0" * 20)
    ours, bare = [], []
    for number in range(min(repeats, 3)):
        bare.append(written / 1e6 / seconds_of(lambda: _read_bare(file, written)))
        out = os.path.join(directory, f"rebuilt-{number}")
        ours.append(written / 1e6 / seconds_of(lambda out=out: _rebuild_once(store, out)))  # type: ignore[misc]
        shutil.rmtree(out)
        tick()
    shutil.rmtree(path)
    return Figure(
        group="topic: index",
        title=f"topic, rebuild ConsumeQueues and index from {written / (1 << 30):.2f} GiB of CommitLog",
        unit="MB/s",
        ours=Spread.of(ours),
        counterpart=Spread.of(bare),
        counterpart_name="bare read of the file",
        ratio=ratios(ours, bare),
        note=f"{written // record_bytes:,} messages of 128 B with a key each",
    )


def _read_bare(file: str, size: int) -> None:
    with open(file, "rb", buffering=0) as handle:
        while handle.tell() < size:
            handle.read(_READ_BYTES)


def _rebuild_once(store: str, out: str) -> None:
    with open_rocketmq(store, {}) as opened:
        rebuild(opened, out, lambda _: None).close()
