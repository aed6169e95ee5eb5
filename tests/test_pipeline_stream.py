"""Topics as a stream, in this process: offsets, limits, times, expiry, and what a store that is written may show."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import LongType, StructField, StructType

import warren
from tests.support import pipeline_tools
from tests.support.effort import times
from tests.support.pipeline_tools import ROCKETMQ, rocketmq_node
from warren.actors.engines.topics.store_opening import load_store
from warren.msg_store.commit_log.commit_log import Batch
from warren.pipeline import stream_reader
from warren.pipeline.live_store import LiveStore, View
from warren.pipeline.spark_schemas import RECORDS
from warren.pipeline.spark_source import WarrenSource
from warren.pipeline.stream_reader import Offsets, TopicStreamReader, rationed
from warren.pipeline.stream_rows import read_rows
from warren.queue_index.topics.consume_queue_format import ENTRY_BYTES
from warren.salvage.rocketmq.rocketmq_store import open_rocketmq
from warren.storage.errors import DataError, StorageError, WarrenError
from warren.storage.filesystem import RealFileSystem
from warren.storage.topic_settings import TopicSettings
from warren.tables.places import Node, find_nodes
from warren.tables.read_options import ReadOptions
from warren.values.topic_record import HERE
from warren.verbs.steps import run

ALL = ReadAllAvailable()
SMALL = TopicSettings(
    mapped_file_size_commit_log=4096,
    mapped_file_size_consume_queue=10 * ENTRY_BYTES,
    max_hash_slot_num=10,
    max_index_num=100,
)


class Store:
    """A topic store that is being written, without a node around it."""

    def __init__(self, directory: Path) -> None:
        self.directory = str(directory)
        (directory / "commitlog").mkdir(parents=True)
        self.now_ms = 1_000_000
        self.count = 0
        self.open()

    def open(self) -> None:
        names = iter(f"{number:017d}" for number in range(1, 1000))
        self.store = load_store(RealFileSystem(), self.directory, SMALL, new_index_name=names.__next__, writable=True)
        self.store.start()

    def write(self, queue_id: int, count: int = 1, topic: str = "orders", body_bytes: int = 10) -> None:
        """Append messages, without entries for them."""
        bodies = [f"{topic}:{queue_id}:{self.count + n}".encode().ljust(body_bytes) for n in range(count)]
        self.count += count
        batch = Batch(
            topic=topic,
            queue_id=queue_id,
            bodies=bodies,
            properties=b"KEYS\x01k",
            born_timestamp=1,
            born_host=HERE,
            store_host=HERE,
            as_one=False,
        )
        self.store.append(batch, self.now_ms)

    def dispatch(self) -> None:
        while self.store.dispatch():
            pass

    def append(self, queue_id: int, count: int = 1, topic: str = "orders", body_bytes: int = 10) -> None:
        self.write(queue_id, count, topic, body_bytes)
        self.dispatch()

    def crash(self) -> None:
        """The process is gone; the next one recovers."""
        self.store.abandon()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = Store(tmp_path / "store")
    yield made
    made.store.abandon()


def reader_of(*paths: str, schema: StructType | None = None, **options: object) -> TopicStreamReader:
    said = {"path": paths[0]} if len(paths) == 1 else {"paths": json.dumps(paths)}
    source = WarrenSource({**said, **{name: str(value) for name, value in options.items()}})
    made = source.streamReader(schema or RECORDS)
    assert isinstance(made, TopicStreamReader)
    return made


def rows_of(reader: TopicStreamReader, start: Offsets, end: Offsets) -> list[dict[str, Any]]:
    found = []
    for partition in reader.partitions(start, end):
        for batch in reader.read(partition):
            found += batch.to_pylist()
    return found


def queues_of(offsets: Offsets) -> Offsets:
    """Without the stores' anchors."""
    return {node: topics for node, topics in offsets.items() if node}


def numbers(rows: list[dict[str, Any]]) -> dict[tuple[str, int], list[int]]:
    """By topic and queue: the numbers of the messages, in the order that they came in."""
    found: dict[tuple[str, int], list[int]] = defaultdict(list)
    for row in rows:
        found[row["topic"], row["queue_id"]].append(row["queue_offset"])
    return dict(found)


# ── golden stores ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("scenario", ROCKETMQ)
def test_a_golden_store_is_streamed_as_its_queues_are(scenario: str) -> None:
    path = rocketmq_node(scenario)
    with open_rocketmq(path, {}) as opened:
        expected = {
            key: list(range(queue.first_offset(opened.store.commit_log.min_offset), queue.max_offset))
            for key, queue in opened.store.queues.items()
        }
    reader = reader_of(path, failOnDataLoss="false")
    start = reader.initialOffset()
    rows = rows_of(reader, start, reader.latestOffset(start, ALL))
    assert numbers(rows) == {key: found for key, found in expected.items() if found}


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ROCKETMQ)
def test_rows_of_a_stream_are_rows_of_the_table(scenario: str) -> None:
    path = rocketmq_node(scenario)
    table = {row["physical_offset"]: row for row in pipeline_tools.read_rows("records", path)}
    reader = reader_of(path, failOnDataLoss="false")
    start = reader.initialOffset()
    rows = rows_of(reader, start, reader.latestOffset(start, ALL))
    assert rows == [table[row["physical_offset"]] for row in rows]


# ── offsets ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_only_what_is_new_comes_and_nothing_new_is_the_same_offset(store: Store) -> None:
    reader = reader_of(store.directory)
    start = reader.initialOffset()
    assert reader.latestOffset(start, ALL) == start
    store.append(0, 3)
    store.append(1, 2)
    first = reader.latestOffset(start, ALL)
    assert queues_of(first) == {store.directory: {"orders": {"0": 3, "1": 2}}}
    assert numbers(rows_of(reader, start, first)) == {("orders", 0): [0, 1, 2], ("orders", 1): [0, 1]}
    assert json.dumps(reader.latestOffset(first, ALL)) == json.dumps(first)
    store.append(1)
    store.append(7, topic="new")
    second = reader.latestOffset(first, ALL)
    assert numbers(rows_of(reader, first, second)) == {("orders", 1): [2], ("new", 7): [0]}
    assert rows_of(reader, second, second) == []
    assert reader.reportLatestOffset() == queues_of(second)


def test_only_topics_that_are_named_are_read(store: Store) -> None:
    for topic in ("a", "b", "c"):
        store.append(0, topic=topic)
    reader = reader_of(store.directory, topic="a, c")
    start = reader.initialOffset()
    assert queues_of(start) == {store.directory: {"a": {"0": 0}, "c": {"0": 0}}}
    assert set(numbers(rows_of(reader, start, reader.latestOffset(start, ALL)))) == {("a", 0), ("c", 0)}


def test_nodes_are_told_apart(tmp_path: Path) -> None:
    stores = [Store(tmp_path / name) for name in ("one", "two")]
    for number, store in enumerate(stores):
        store.append(0, number + 1)
    reader = reader_of(str(tmp_path / "*"))
    end = reader.latestOffset(reader.initialOffset(), ALL)
    assert [list(topics.values()) for topics in queues_of(end).values()] == [[{"0": 1}], [{"0": 2}]]
    rows = rows_of(reader, reader.initialOffset(), end)
    assert [row["node"] for row in rows] == [stores[0].directory, stores[1].directory, stores[1].directory]
    with pytest.raises(WarrenError, match="the query's checkpoint has the node elsewhere, which is not loaded now"):
        reader.partitions({}, {"elsewhere": {"orders": {"0": 3}}})
    lax = reader_of(str(tmp_path / "*"), failOnDataLoss="false")
    assert lax.partitions({}, {"elsewhere": {"orders": {"0": 3}}}) == []
    for store in stores:
        store.store.abandon()


def test_a_node_without_a_message_is_waited_for(tmp_path: Path) -> None:
    path = str(tmp_path / "node")
    with warren.open(path, attach=False) as node:
        reader = reader_of(path)
        start = reader.initialOffset()
        assert reader.latestOffset(start, ALL) == start == {path: {}}
        node.topic("orders", queues=1).append(b"x").wait()
        run(node._running.caught_up())
        end = reader.latestOffset(start, ALL)
        assert [row["body"] for row in rows_of(reader, start, end)] == [b"x"]


def test_a_stream_may_begin_before_the_topic_it_reads(tmp_path: Path) -> None:
    path = str(tmp_path / "node")
    with warren.open(path, attach=False):
        pass
    reader = reader_of(path)
    start = reader.initialOffset()
    assert reader.latestOffset(start, ALL) == start == {path: {}}


def test_a_node_that_is_just_opening_is_not_looked_for_in_its_folders(tmp_path: Path) -> None:
    node = tmp_path / "node"
    (node / "opening" / "msg_stores" / "vhosts").mkdir(parents=True)
    (node / "warren.lock").touch()
    (found,) = find_nodes([str(node)], may_run=True)
    assert found.directory == str(node)


def test_a_schema_may_leave_columns_out(store: Store) -> None:
    store.append(0)
    schema = StructType([RECORDS["body"], RECORDS["queue_offset"]])
    reader = reader_of(store.directory, schema=schema)
    [row] = rows_of(reader, {}, reader.latestOffset({}, ALL))
    assert row == {"body": b"orders:0:0", "queue_offset": 0}
    with pytest.raises(WarrenError, match="the table records has no column 'nonsense'"):
        reader_of(store.directory, schema=StructType([StructField("nonsense", LongType())]))


# ── where it begins and ends ────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def timed(store: Store) -> Store:
    """Queue 0 has messages of the seconds 1000 to 1009, queue 1 of every other one."""
    for second in range(10):
        store.now_ms = 1_000_000 + second * 1000
        store.append(0)
        if not second % 2:
            store.append(1)
    return store


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"startingOffsets": "earliest"}, {"0": 0, "1": 0}),
        ({"startingOffsets": "latest"}, {"0": 10, "1": 5}),
        ({"startingOffsets": '{"orders": {"0": 4}}'}, {"0": 4, "1": 0}),
        ({"startingOffsets": '{"orders": {"0": -1, "1": -2}}'}, {"0": 10, "1": 0}),
        ({"startingTimestamp": 1_003_000}, {"0": 3, "1": 2}),
        ({"startingTimestamp": 1_003_001}, {"0": 4, "1": 2}),
        ({"startingTimestamp": 0}, {"0": 0, "1": 0}),
        ({"startingTimestamp": 2_000_000}, {"0": 10, "1": 5}),
        ({"startingOffsetsByTimestamp": '{"orders": {"0": 1003000}}'}, {"0": 3, "1": 0}),
        (
            {"startingOffsetsByTimestamp": '{"orders": {"1": 1003000}}', "startingTimestamp": 2_000_000},
            {"0": 10, "1": 2},
        ),
    ],
)
def test_where_a_query_begins(timed: Store, options: dict[str, Any], expected: dict[str, int]) -> None:
    start = reader_of(timed.directory, **options).initialOffset()
    assert queues_of(start) == {timed.directory: {"orders": expected}}


def test_a_query_cannot_begin_after_the_end_of_a_queue(timed: Store) -> None:
    reader = reader_of(timed.directory, startingOffsets='{"orders": {"1": 6}}')
    with pytest.raises(WarrenError, match=r"startingOffsets: .*: topic orders, queue 1 ends at message 5, before 6"):
        reader.initialOffset()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"topic": "order"}, "option topic: there is no topic 'order'; did you mean 'orders'"),
        ({"topic": "orders,bills"}, "there is no topic 'bills'; there are orders"),
        ({"startingOffsets": '{"orders": {"2": 1}}'}, "topic orders, queue 2 has no messages, and cannot begin at"),
        ({"startingOffsets": '{"bills": {"0": 7}}'}, "topic bills, queue 0 has no messages, and cannot begin at"),
        ({"startingOffsets": '{"/elsewhere": {"orders": {"0": 7}}}'}, "startingOffsets: /elsewhere is not loaded"),
    ],
)
def test_a_query_cannot_begin_with_what_is_not_there(timed: Store, options: dict[str, Any], said: str) -> None:
    with pytest.raises(WarrenError, match=said):
        reader_of(timed.directory, **options).initialOffset()


def test_where_one_node_of_several_begins(timed: Store, tmp_path: Path) -> None:
    other = str(tmp_path / "copy")
    shutil.copytree(timed.directory, other)
    said = json.dumps({other: {"orders": {"0": 7, "1": -1}}})
    start = reader_of(timed.directory, other, startingOffsets=said).initialOffset()
    assert queues_of(start) == {timed.directory: {"orders": {"0": 0, "1": 0}}, other: {"orders": {"0": 7, "1": 5}}}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"endingOffsets": '{"orders": {"0": 4}}'}, {"0": 4, "1": 5}),
        ({"endingOffsets": '{"orders": {"0": 400}}'}, {"0": 10, "1": 5}),
        ({"endingTimestamp": 1_004_000}, {"0": 4, "1": 2}),
        ({"endingOffsetsByTimestamp": '{"orders": {"0": 1004000, "1": 1004000}}'}, {"0": 4, "1": 2}),
    ],
)
def test_where_a_query_ends(timed: Store, options: dict[str, Any], expected: dict[str, int]) -> None:
    reader = reader_of(timed.directory, **options)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    assert queues_of(end) == {timed.directory: {"orders": expected}}
    timed.append(0, 1000)
    assert reader.latestOffset(end, ALL)[timed.directory]["orders"]["1"] == expected["1"]


def test_the_names_of_kafkas_options_are_known(store: Store) -> None:
    store.append(0, 9)
    reader = reader_of(store.directory, maxOffsetsPerTrigger=6, minPartitions=3)
    end = reader.latestOffset({}, reader.getDefaultReadLimit())
    assert queues_of(end) == {store.directory: {"orders": {"0": 6}}}
    assert len(reader.partitions({}, end)) == 3
    assert numbers(rows_of(reader, {}, end)) == {("orders", 0): list(range(6))}


def test_available_now_ends_with_what_was_there_when_it_began(store: Store) -> None:
    store.append(0, 5)
    reader = reader_of(store.directory, maxRecordsPerTrigger=2)
    offset = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    store.append(0, 5)
    seen = []
    while (following := reader.latestOffset(offset, reader.getDefaultReadLimit())) != offset:
        seen.append(len(rows_of(reader, offset, following)))
        offset = following
    assert seen == [2, 2, 1]


# ── limits ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_limit_is_shared_out_evenly() -> None:
    assert rationed({"a": 100, "b": 2, "c": 100}, 30) == {"a": 14, "b": 2, "c": 14}
    assert rationed({"a": 1, "b": 9, "c": 5}, 2) == {"b": 1, "c": 1}
    assert rationed({"a": 1, "b": 2}, 10) == {"a": 1, "b": 2}
    assert rationed({}, 10) == {}


@given(st.dictionaries(st.integers(0, 20), st.integers(1, 50)), st.integers(1, 200))
def test_a_limit_is_used_up_and_nobody_gets_what_he_does_not_have(waiting: dict[int, int], most: int) -> None:
    shares = rationed(waiting, most)
    assert sum(shares.values()) == min(most, sum(waiting.values()))
    assert all(0 < share <= waiting[place] for place, share in shares.items())


def test_a_small_limit_passes_no_queue_over_for_ever() -> None:
    waiting = dict.fromkeys("abcdefg", 3) | {"h": 1}
    for _ in range(22):
        for place in rationed(waiting, 1):
            waiting[place] -= 1
    assert not any(waiting.values())


@settings(max_examples=times(25))
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 30), st.integers(1, 40)), max_size=8), st.booleans())
def test_each_message_comes_once_and_in_order_whatever_the_limits_and_the_growth(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, int, int]], restarts: bool
) -> None:
    store = Store(tmp_path_factory.mktemp("grows") / "store")
    options: dict[str, Any] = {"partition_bytes": 3000}
    reader = reader_of(store.directory, **options)
    offset = reader.initialOffset()
    seen: list[dict[str, Any]] = []
    for queue_id, grown, most in steps:
        if grown:
            store.append(queue_id, grown, body_bytes=queue_id * 100)
        end = reader.latestOffset(offset, ReadMaxRows(most))
        rows = rows_of(reader, offset, end)
        assert len(rows) <= most
        if restarts:
            reader = reader_of(store.directory, **options)
            again = rows_of(reader, json.loads(json.dumps(offset)), json.loads(json.dumps(end)))
            assert [row["body"] for row in again] == [row["body"] for row in rows]
        offset, seen = end, seen + rows
    seen += rows_of(reader, offset, reader.latestOffset(offset, ALL))
    queues = {key: queue.max_offset for key, queue in store.store.queues.items() if queue.max_offset}
    assert numbers(seen) == {key: list(range(count)) for key, count in queues.items()}
    assert len({row["body"] for row in seen}) == store.count
    store.store.abandon()


@pytest.mark.slow
def test_tasks_are_cut_by_bytes_of_the_log(tmp_path: Path) -> None:
    path = str(tmp_path / "node")
    with warren.open(path, attach=False) as node:
        topic = node.topic("orders", queues=2)
        topic.append_many([bytes(1000)] * 20_000, queue=lambda body: 0).wait()
        topic.append_many([bytes(1000)] * 2_000, queue=lambda body: 1).wait()
    reader = reader_of(path, partition_bytes="1m")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    assert len(reader.partitions(start, end)) == 24
    assert numbers(rows_of(reader, start, end)) == {
        ("orders", 0): list(range(20_000)),
        ("orders", 1): list(range(2000)),
    }


# ── a store that is written, or was cut ─────────────────────────────────────────────────────────────────────────────


def test_a_message_without_an_entry_is_not_read_yet(store: Store) -> None:
    store.append(0, 2)
    store.write(0, 3)
    reader = reader_of(store.directory)
    assert reader.latestOffset({}, ALL)[store.directory] == {"orders": {"0": 2}}
    store.dispatch()
    assert reader.latestOffset({}, ALL)[store.directory] == {"orders": {"0": 5}}


def test_an_entry_whose_message_is_torn_is_not_read(store: Store) -> None:
    """A power loss may leave an entry of a message that never came to the disk; recovery replaces it."""
    store.append(0, 10)
    entry = store.store.queues["orders", 0].entries(7, 1)[0]
    store.crash()
    with open(f"{store.directory}/commitlog/{0:020d}", "r+b") as log:
        log.seek(int(entry["physical_offset"]) + int(entry["size"]) // 2)
        log.write(bytes(4096))
        log.truncate(4096)
    reader = reader_of(store.directory)
    end = reader.latestOffset({}, ALL)
    assert queues_of(end) == {store.directory: {"orders": {"0": 7}}}
    store.open()
    store.append(0, 5)
    assert store.store.queues["orders", 0].max_offset == 12
    later = reader.latestOffset(end, ALL)
    assert queues_of(later) == {store.directory: {"orders": {"0": 12}}}
    assert numbers(rows_of(reader, end, later)) == {("orders", 0): [7, 8, 9, 10, 11]}
    assert [row["body"] for row in rows_of(reader, end, later)] == [f"orders:0:{n}".encode() for n in range(10, 15)]


def test_behind_a_body_that_is_damaged_nothing_is_read_and_recovery_cuts_there(store: Store) -> None:
    store.append(0, 10)
    entry = store.store.queues["orders", 0].entries(3, 1)[0]
    store.crash()
    with open(f"{store.directory}/commitlog/{0:020d}", "r+b") as log:
        log.seek(int(entry["physical_offset"]) + 90)
        log.write(b"?")
    reader = reader_of(store.directory)
    assert queues_of(reader.latestOffset({}, ALL)) == {store.directory: {"orders": {"0": 3}}}
    store.open()
    assert store.store.queues["orders", 0].max_offset == 3
    store.append(0, 1)
    later = reader.latestOffset({}, ALL)
    assert [row["body"] for row in rows_of(reader, {}, later)][2:] == [b"orders:0:2", b"orders:0:10"]


@pytest.mark.parametrize(
    ("was_closed", "inside", "octets"),
    [(False, 4, b"\xda\xa3\x20\xac"), (True, 4, b"\xda\xa3\x20\xac"), (True, 0, b"\0\0\0\7"), (True, 0, bytes(60))],
    ids=["format-killed", "format-closed", "size-closed", "zeros-closed"],
)
def test_a_bad_record_that_no_crash_explains_stops_the_query(
    store: Store, was_closed: bool, inside: int, octets: bytes
) -> None:
    store.append(0, 10)
    entry = store.store.queues["orders", 0].entries(3, 1)[0]
    if was_closed:
        store.store.close()
    else:
        store.crash()
    at = int(entry["physical_offset"])
    with open(f"{store.directory}/commitlog/{0:020d}", "r+b") as log:
        log.seek(at + inside)
        log.write(octets)
    for fail_on_data_loss in ("true", "false"):
        reader = reader_of(store.directory, failOnDataLoss=fail_on_data_loss)
        for _ in range(2):
            with pytest.raises(DataError, match=f"offset {at}: .*a stream would miss what follows"):
                reader.latestOffset({}, ALL)


def test_an_old_entry_behind_the_end_of_a_queue_is_none(store: Store) -> None:
    """RocketMQ's recovery lets such entries stay; what they point at belongs to others by now."""
    store.append(0, 5)
    store.append(1, 5)
    other = store.store.queues["orders", 1].entries(3, 1).tobytes()
    with open(store.store.queues["orders", 0].mapped.path(0), "r+b") as queue:
        queue.seek(5 * ENTRY_BYTES)
        queue.write(other)
    reader = reader_of(store.directory)
    assert queues_of(reader.latestOffset({}, ALL)) == {store.directory: {"orders": {"0": 5, "1": 5}}}


def test_a_crash_of_the_writer_takes_nothing_back(store: Store) -> None:
    store.append(0, 10)
    reader = reader_of(store.directory)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    before = rows_of(reader, start, end)
    store.crash()
    assert reader.latestOffset(end, ALL) == end
    store.open()
    store.append(0, 1)
    assert rows_of(reader, start, end) == before
    assert len(rows_of(reader, end, reader.latestOffset(end, ALL))) == 1


def test_entries_that_are_built_anew_are_waited_for(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.append(0, 10)
    reader = reader_of(store.directory)
    end = reader.latestOffset({}, ALL)
    kept = f"{store.directory}/consumequeue"
    patched = SimpleNamespace(sleep=lambda _: os.rename(f"{kept}.away", kept), monotonic=time.monotonic)
    monkeypatch.setattr(stream_reader, "time", patched)
    os.rename(kept, f"{kept}.away")
    assert reader.latestOffset(end, ALL) == end
    os.rename(kept, f"{kept}.away")
    assert len(rows_of(reader, {}, end)) == 10
    os.rename(kept, f"{kept}.away")
    monkeypatch.setattr(stream_reader, "time", SimpleNamespace(sleep=lambda _: None, monotonic=time.monotonic))
    monkeypatch.setattr(stream_reader, "PATIENCE_S", 0.1)
    with pytest.raises(WarrenError, match="topic orders, queue 0, messages 0 to 9: its entries are gone"):
        reader.partitions({}, end)


def made_again(store: Store, count: int) -> None:
    """The store's files, with the same topic and ``count`` messages in each of its two queues."""
    store.store.abandon()
    shutil.rmtree(store.directory)
    os.makedirs(f"{store.directory}/commitlog")
    store.open()
    for queue_id in range(2):
        store.append(queue_id, count)


@pytest.mark.parametrize("count", [0, 3])
def test_a_topic_that_was_made_again_stops_the_query(store: Store, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_reader, "PATIENCE_S", 0)
    store.append(0, 10)
    reader = reader_of(store.directory)
    start = reader.latestOffset({}, ALL)
    made_again(store, count)
    error = (
        f"topic orders, queue 0: the query is at message 10, but the queue ends at {count}: the topic was created again"
    )
    with pytest.raises(WarrenError, match=error):
        reader_of(store.directory).latestOffset(start, ALL)
    available_now = reader_of(store.directory)
    available_now.prepareForTriggerAvailableNow()
    with pytest.raises(WarrenError, match=error):
        available_now.latestOffset(start, ALL)


@pytest.mark.parametrize("most", [1, 2, 100])
def test_a_topic_that_was_made_again_is_read_from_its_first_message(
    store: Store, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch that is planned again has the same messages."""
    monkeypatch.setattr(stream_reader, "PATIENCE_S", 0)
    store.append(0, 10)
    lax = reader_of(store.directory, failOnDataLoss="false", maxRecordsPerTrigger=most)
    offset = lax.latestOffset({}, ALL)
    made_again(store, 3)
    rows: list[dict[str, Any]] = []
    while (following := lax.latestOffset(offset, lax.getDefaultReadLimit())) != offset:
        rows += (batch := rows_of(lax, offset, following))
        assert rows_of(reader_of(store.directory, failOnDataLoss="false"), offset, following) == batch
        offset = following
    assert numbers(rows) == {("orders", 0): [0, 1, 2], ("orders", 1): [0, 1, 2]}
    store.append(0, 2)
    assert numbers(rows_of(lax, offset, lax.latestOffset(offset, ALL))) == {("orders", 0): [3, 4]}


@pytest.mark.parametrize("count", [1, 10, 12])
def test_another_store_in_the_place_of_one_is_noticed_whatever_it_holds(store: Store, count: int) -> None:
    store.append(0, 10)
    start = reader_of(store.directory).latestOffset({}, ALL)
    planned = {**start, store.directory: {"orders": {"0": 11}}}
    store.now_ms += 5
    made_again(store, count)
    strict = reader_of(store.directory)
    for question in (lambda: strict.latestOffset(start, ALL), lambda: strict.partitions(start, planned)):
        with pytest.raises(WarrenError, match="holds another store than the one that the query has read so far"):
            question()
    lax = reader_of(store.directory, failOnDataLoss="false")
    end = lax.latestOffset(start, ALL)
    both = {("orders", queue_id): list(range(count)) for queue_id in range(2)}
    assert numbers(rows_of(lax, start, end)) == numbers(rows_of(lax, start, end)) == both
    assert lax.latestOffset(end, ALL) == end
    store.append(1, 2)
    assert numbers(rows_of(strict, end, strict.latestOffset(end, ALL))) == {("orders", 1): [count, count + 1]}


def test_a_checkpoint_without_anchors_goes_on(store: Store) -> None:
    store.append(0, 3)
    reader = reader_of(store.directory)
    old = {store.directory: {"orders": {"0": 2}}}
    end = reader.latestOffset(old, ALL)
    assert numbers(rows_of(reader, old, end)) == {("orders", 0): [2]}
    assert end[""] == {store.directory: {"0": 1_000_000}}


def test_messages_that_expired_say_nothing_of_their_store(store: Store) -> None:
    store.append(0, 100)
    reader = reader_of(store.directory)
    start = reader.latestOffset({}, ALL)
    expire(store)
    assert reader.latestOffset(start, ALL) == start
    store.append(0, 1)
    end = reader.latestOffset(start, ALL)
    assert numbers(rows_of(reader, start, end)) == {("orders", 0): [100]}
    assert set(start[""][store.directory]) == {"0"} != set(end[""][store.directory])


def test_what_is_handed_out_is_synced_before(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (synced.append(os.readlink(f"/proc/self/fd/{fd}")), real(fd))[1])
    store.append(0, 100)
    reader = reader_of(store.directory)
    synced.clear()
    end = reader.latestOffset({}, ALL)
    assert synced == [store.store.commit_log.mapped.path(base) for base in store.store.commit_log.mapped.bases]
    synced.clear()
    reader.latestOffset(end, ALL)
    assert synced == []
    reader_of(store.directory, sync="false").latestOffset({}, ALL)
    assert synced == []


def test_reading_changes_no_file(store: Store) -> None:
    store.append(0, 100)
    store.crash()

    def state() -> list[tuple[str, int, int]]:
        return sorted((str(p), p.stat().st_size, p.stat().st_mtime_ns) for p in Path(store.directory).rglob("*"))

    before = state()
    reader = reader_of(store.directory)
    assert len(rows_of(reader, {}, reader.latestOffset({}, ALL))) == 100
    assert state() == before


# ── expiry ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def expire(store: Store) -> int:
    """Delete all but the last file of the log; the first message of queue 0 that is left."""
    mapped = store.store.commit_log.mapped
    for base in mapped.bases[:-1]:
        mapped.delete(base)
    store.store.expire_queues()
    return store.store.queues["orders", 0].first_offset(store.store.commit_log.min_offset)


def test_messages_that_expired_unread_stop_the_query(store: Store) -> None:
    store.append(0, 100)
    reader = reader_of(store.directory)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    first = expire(store)
    assert 0 < first < 100
    with pytest.raises(WarrenError, match=f"topic orders, queue 0: messages 0 to {first - 1} have expired before"):
        reader.partitions(start, end)
    lax = reader_of(store.directory, failOnDataLoss="false")
    assert numbers(rows_of(lax, start, end)) == {("orders", 0): list(range(first, 100))}
    assert lax.partitions(start, {store.directory: {"orders": {"0": first}}}) == []
    fresh = reader_of(store.directory)
    assert queues_of(fresh.initialOffset()) == {store.directory: {"orders": {"0": first}}}


def test_messages_that_expire_between_plan_and_reading(store: Store) -> None:
    store.append(0, 100)
    reader = reader_of(store.directory)
    [partition] = reader.partitions({}, {store.directory: {"orders": {"0": 95}}})
    first = expire(store)
    with pytest.raises(WarrenError, match=f"{first} messages expired while they were read"):
        list(reader.read(partition))
    [batch] = reader_of(store.directory, failOnDataLoss="false").read(partition)
    assert batch.column(3).to_pylist() == list(range(first, 95))


def test_a_file_that_expires_under_a_look_or_a_task(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.append(0, 100)
    reader = reader_of(store.directory)
    end = reader.latestOffset({}, ALL)
    real, failures = LiveStore.ends_of, iter([StorageError("gone"), None])

    def once_in_vain(self: LiveStore, view: View) -> dict[tuple[str, int], tuple[int, int]]:
        if (failure := next(failures)) is not None:
            raise failure
        return real(self, view)

    monkeypatch.setattr(LiveStore, "ends_of", once_in_vain)
    assert reader_of(store.directory).latestOffset({}, ALL) == end
    log, options = store.store.commit_log, ReadOptions(paths=(store.directory,), table="records")
    entries = store.store.queues["orders", 0].entries(0, 100)
    places = entries["physical_offset"].astype("i8"), entries["size"].astype("i8")
    os.unlink(log.mapped.path(0))
    node = Node(store.directory, store.directory)
    with pytest.raises(StorageError, match="No such file"):
        list(read_rows(node, log, *places, options, may_expire=False))
    kept = sum(len(rows) for rows in read_rows(node, log, *places, options, may_expire=True))
    assert kept == int((places[0] >= log.mapped.bases[1]).sum()) > 0


# ── what cannot be ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"topics": "orders"}, "option 'topics': unknown; did you mean 'topic'"),
        ({"maxRecordPerTrigger": "5"}, "unknown; did you mean 'maxRecordsPerTrigger'"),
        ({"topic": " , "}, "option topic is ' , '"),
        ({"topic": "a/b"}, "option topic is 'a/b'"),
        ({"table": "entries"}, "option table is 'entries': a stream has the table records"),
        ({"maxRecordsPerTrigger": "0"}, "option maxRecordsPerTrigger is '0', not a whole number from 1 on"),
        ({"maxRecordsPerTrigger": "many"}, "option maxRecordsPerTrigger is 'many'"),
        ({"startingOffsets": "first"}, "option startingOffsets is 'first', not earliest or latest or JSON"),
        ({"startingOffsets": '{"orders": 3}'}, "option startingOffsets is"),
        ({"startingOffsets": '{"orders": {"0": -3}}'}, "option startingOffsets is"),
        ({"startingOffsets": '{"orders": {"0": true}}'}, "option startingOffsets is"),
        ({"endingOffsets": "earliest"}, "option endingOffsets is 'earliest', not latest or JSON"),
        ({"startingTimestamp": "yesterday"}, "option startingTimestamp is 'yesterday'"),
        (
            {"startingTimestamp": "1", "startingOffsets": "latest"},
            "options startingOffsets and startingTimestamp: only",
        ),
        ({"maxOffsetsPerTriger": "5"}, "unknown; did you mean 'maxOffsetsPerTrigger'.* known are topic, maxRecordsPer"),
        ({"table": "records", "startingOfsets": "5"}, "unknown; did you mean 'startingOffsets'"),
        ({"maxOffsetsPerTrigger": "5", "maxRecordsPerTrigger": "5"}, "only one of them"),
        ({"subscribe": "orders"}, "option subscribe is Kafka's: the option topic has the names of topics"),
        ({"startingOffsetsByTimestamp": "5"}, "option startingOffsetsByTimestamp is '5', not JSON as"),
        ({"startingOffsetsByTimestamp": "{}", "startingOffsets": "latest"}, "only one of them"),
        ({"failOnDataLoss": "no"}, "option failOnDataLoss is 'no', not true or false"),
    ],
)
def test_options_that_cannot_be(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(WarrenError, match=said):
        reader_of(str(tmp_path), **options)


def test_a_stream_that_names_its_table_is_told_of_the_streams_options(tmp_path: Path) -> None:
    source = WarrenSource({"table": "records", "path": str(tmp_path), "startingofsets": "latest"})
    with pytest.raises(WarrenError, match="option 'startingofsets': unknown; did you mean 'startingOffsets'"):
        source.schema()


def test_a_directory_without_topics_cannot_be_streamed(tmp_path: Path) -> None:
    with pytest.raises(WarrenError, match="no RocketMQ store folder"):
        reader_of(str(tmp_path)).initialOffset()
    with pytest.raises(WarrenError, match="/nowhere: no such directory"):
        reader_of("/nowhere").initialOffset()
