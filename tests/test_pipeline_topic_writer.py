"""Frames that are written to topics, in this process: what is staged, what is appended, and that it is there once."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import from_arrow_schema

import warren
from tests.support.effort import every
from warren.pipeline.spark_source import WarrenSource
from warren.pipeline.staging import WRITE_PROPERTY
from warren.pipeline.topic_writer import TopicStreamWriter, TopicWriter
from warren.pipeline.write_ledger import Intent, Ledger
from warren.storage.errors import DirectoryLockedError, WarrenError
from warren.storage.filesystem import RealFileSystem

Rows = list[dict[str, Any]]

BODIES = pa.schema([("body", pa.binary())])
KEYED = pa.schema([("body", pa.string()), ("keys", pa.string())])
EVERYTHING = pa.schema(
    [
        ("body", pa.binary()),
        ("topic", pa.string()),
        ("keys", pa.list_(pa.string())),
        ("tags", pa.string()),
        ("properties", pa.map_(pa.string(), pa.string())),
        ("queue_id", pa.int64()),
        ("delay_level", pa.int32()),
    ]
)
TOML = "[topics]\nmapped_file_size_commit_log = 16384\nmapped_file_size_consume_queue = 2000\nmax_index_num = 1000\n"


def writer_of(path: object, schema: pa.Schema = KEYED, **options: object) -> TopicWriter:
    source = WarrenSource({"path": str(path), **{name: str(value) for name, value in options.items()}})
    return source.writer(from_arrow_schema(schema), overwrite=False)


def stream_writer_of(path: object, schema: pa.Schema = KEYED, **options: object) -> TopicStreamWriter:
    source = WarrenSource({"path": str(path), **{name: str(value) for name, value in options.items()}})
    return source.streamWriter(from_arrow_schema(schema), overwrite=False)


def batch_of(rows: Rows, schema: pa.Schema = KEYED) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, schema=schema)


def write(path: object, *partitions: Rows, schema: pa.Schema = KEYED, **options: object) -> None:
    writer = writer_of(path, schema, **{"topic": "orders", **options})
    writer.commit([writer.write(iter([batch_of(rows, schema)])) for rows in partitions])


def stream(path: object, batch_id: int, *partitions: Rows, **options: object) -> None:
    """A stream's batch, as Spark has it committed: by another writer than those of the tasks."""
    options = {"topic": "orders", "query": "q", **options}
    tasks = [stream_writer_of(path, **options) for _ in partitions]
    messages: list[Any] = [task.write(iter([batch_of(rows)])) for task, rows in zip(tasks, partitions, strict=True)]
    stream_writer_of(path, **options).commit(messages, batch_id)


def numbered(*numbers: int) -> Rows:
    return [{"body": f"body {number}", "keys": f"k{number % 7}"} for number in numbers]


def read(path: object, topic: str = "orders", config: str | None = None) -> list[warren.TopicRecord]:
    with warren.open(str(path), config, attach=False) as node:
        return list(node.topic(topic).read("reader"))


def bodies(path: object, config: str | None = None) -> list[bytes]:
    return [record.body for record in read(path, config=config)]


def left_over(path: Path) -> list[str]:
    return sorted(str(found) for found in path.parent.rglob("*") if found.suffix == ".arrow")


# ── what is written ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_rows_become_messages_in_the_order_of_the_partitions(tmp_path: Path) -> None:
    node = tmp_path / "node"
    write(node, numbered(*range(10)), [], numbered(*range(10, 3000)), queues=1)
    assert bodies(node) == [f"body {number}".encode() for number in range(3000)]
    write(node, numbered(3000))
    assert bodies(node) == [b"body 3000"]
    assert os.listdir(tmp_path) == ["node"]
    assert not (node / "writes").exists()


@pytest.mark.slow
def test_every_column_has_its_meaning(tmp_path: Path) -> None:
    rows: Rows = [
        {"body": b"a", "keys": ["x", "y"], "tags": "new", "properties": [("one", "1")], "queue_id": 2},
        {"body": b"b", "topic": "other", "keys": None},
        {"body": b"c", "keys": ["order-1"]},
        {"body": b"later", "queue_id": 1, "delay_level": 1},
    ]
    write(tmp_path / "node", rows, schema=EVERYTHING, queues=3)
    with warren.open(tmp_path / "node", attach=False) as node:
        assert node.topics() == {"orders": 3, "other": 3, "SCHEDULE_TOPIC_XXXX": 1}
        orders = node.topic("orders")
        [first] = orders.find("y")
        assert (first.body, first.keys, first.tag, first.queue_id) == (b"a", ["x", "y"], "new", 2)
        assert first.properties["one"] == "1"
        assert WRITE_PROPERTY not in first.properties
        by_key = orders.append(b"same queue", key="order-1").wait()
        [third] = orders.find("order-1", limit=2)[1:]
        assert third.queue_id == by_key.queue_id
        assert [record.body for record in node.topic("other").read("g")] == [b"b"]
        later = [record for record in orders.read("g", timeout=3.0) if record.body == b"later"]
        assert [record.queue_id for record in later] == [1]


def test_topics_of_a_column_and_other_settings(tmp_path: Path) -> None:
    config = tmp_path / "warren.toml"
    config.write_text(TOML)
    schema = pa.schema([("topic", pa.string()), ("body", pa.string())])
    rows = [{"topic": f"t{number % 2}", "body": "x" * 500} for number in range(200)]
    writer = writer_of(tmp_path / "node", schema, config=config, queues=2)
    writer.commit([writer.write(iter([batch_of(rows, schema)]))])
    assert len(list((tmp_path / "node/topics/commitlog").iterdir())) > 5
    assert len(read(tmp_path / "node", "t0", str(config))) == 100


def test_nothing_to_write_is_nothing(tmp_path: Path) -> None:
    write(tmp_path / "node", [], [])
    assert os.listdir(tmp_path) == []


# ── once ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_a_batch_of_a_stream_that_comes_again_is_there_once(tmp_path: Path) -> None:
    node = tmp_path / "node"
    stream(node, 0, numbered(*range(5)), numbered(*range(5, 9)))
    stream(node, 0, numbered(*range(9)))
    stream(node, 1, numbered(9))
    stream(node, 0, numbered(*range(9)))
    assert sorted(bodies(node)) == sorted(f"body {number}".encode() for number in range(10))
    assert Ledger.load(RealFileSystem(), str(node), "q").done == [(0, 1)]
    assert left_over(node) == []
    stream(node, 0, numbered(0), query="another")
    assert bodies(node) == [b"body 0"]


@pytest.mark.slow
def test_an_epoch_of_a_batch_is_there_once(tmp_path: Path) -> None:
    node = tmp_path / "node"
    for _ in range(2):
        write(node, numbered(1, 2), query="nightly", epoch=20261121)
    write(node, numbered(3), query="nightly", epoch=20261120)
    write(node, numbered(4))
    assert sorted(bodies(node)) == [b"body 1", b"body 2", b"body 3", b"body 4"]


def test_files_that_lost_attempts_left_go_with_the_batch(tmp_path: Path) -> None:
    node = tmp_path / "node"
    lost = stream_writer_of(node, topic="orders", query="q")
    lost.write(iter([batch_of(numbered(1))]))
    kept = stream_writer_of(node, topic="orders", query="other")
    kept.write(iter([batch_of(numbered(1))]))
    (tmp_path / "node.staging" / "q-None").rename(tmp_path / "node.staging" / "q-0")
    stream(node, 0, numbered(1))
    assert [Path(path).parent.name for path in left_over(node)] == ["other-None"]


@given(st.lists(st.integers(0, 30)))
def test_a_ledger_knows_the_epochs_that_are_done(epochs: list[int]) -> None:
    from warren.storage.memory import MemoryFileSystem

    files = MemoryFileSystem()
    files.make_directories("/node")
    ledger = Ledger.load(files, "/node", "q")
    for epoch in epochs:
        ledger.begin(epoch, 100, 2, ["a", "b"])
        assert Ledger.load(files, "/node", "q").intent == Intent(epoch, 100, 2, ("a", "b"))
        ledger.finish()
    loaded = Ledger.load(files, "/node", "q")
    assert {epoch for epoch in range(32) if loaded.is_done(epoch)} == set(epochs)
    assert loaded.intent is None
    assert all(after > last + 1 for (_, last), (after, _) in zip(loaded.done, loaded.done[1:], strict=False))


def test_a_ledger_that_is_damaged_is_an_error(tmp_path: Path) -> None:
    stream(tmp_path / "node", 0, numbered(1))
    ledger = tmp_path / "node/writes/q.json"
    ledger.write_text("{}")
    with pytest.raises(WarrenError, match=r"q\.json: is no ledger of a query"):
        stream(tmp_path / "node", 1, numbered(2))
    assert left_over(tmp_path / "node") == []


# ── killed ──────────────────────────────────────────────────────────────────────────────────────────────────────────

_CALLS = ("pwrite", "fsync", "ftruncate", "rename", "unlink")


def _killed_at(operation: int, work: Callable[[], None]) -> int:
    """Do the work in a process that is killed before this operation on files. Return how many there were."""
    come, go = os.pipe()
    child = os.fork()
    if child == 0:
        count = 0

        def counted(real: Callable[..., Any]) -> Callable[..., Any]:
            def call(*arguments: Any, **named: Any) -> Any:
                nonlocal count
                if count == operation:
                    os.kill(os.getpid(), signal.SIGKILL)
                count += 1
                return real(*arguments, **named)

            return call

        with contextlib.suppress(BaseException):
            for name in _CALLS:
                setattr(os, name, counted(getattr(os, name)))
            work()
            os.write(go, count.to_bytes(4, "big"))
        os._exit(0)
    os.close(go)
    os.waitpid(child, 0)
    said = os.read(come, 4)
    os.close(come)
    return int.from_bytes(said, "big")


@pytest.mark.slow
def test_a_writer_killed_at_any_operation_has_written_once_after_the_retry(tmp_path: Path) -> None:
    """The retry has cut its rows otherwise; another writer's message lies between.

    Every third operation a run, in a quick one every sixth.
    """
    step = 3 * every(2)
    first = random.randrange(step)
    print("from operation", first)
    config = tmp_path / "warren.toml"
    config.write_text(TOML)
    base = tmp_path / "base"
    options = {"config": config, "queues": 3}
    stream(base, 0, numbered(*range(1000, 1005)), **options)
    rows = numbered(*range(60))

    def work(node: Path) -> Callable[[], None]:
        return lambda: stream(node, 1, rows[:25], rows[25:], **options)

    shutil.copytree(base, tmp_path / "counted")
    operations = _killed_at(-1, work(tmp_path / "counted"))
    assert operations > 20
    begun = 0
    for operation in range(first, operations + 1, step):
        node = tmp_path / f"node-{operation}"
        shutil.copytree(base, node)
        _killed_at(operation, work(node))
        begun += Ledger.load(RealFileSystem(), str(node), "q").intent is not None
        with warren.open(node, str(config), attach=False) as opened:
            opened.topic("orders").append(b"between", queue=0).wait()
        stream(node, 1, rows[:40], rows[40:], **options)
        found = bodies(node, str(config))
        expected = [row["body"].encode() for row in (*numbered(*range(1000, 1005)), *rows)]
        assert sorted(found) == sorted([*expected, b"between"]), operation
        of_one_key = [body for body in found if body in {row["body"].encode() for row in rows[::7]}]
        assert of_one_key == [row["body"].encode() for row in rows[::7]], operation
        assert left_over(node) == [], operation
        shutil.rmtree(node)
    assert begun


def test_an_intent_whose_messages_expired_is_an_error(tmp_path: Path) -> None:
    node = tmp_path / "node"
    config = tmp_path / "warren.toml"
    config.write_text(TOML)
    stream(node, 0, numbered(*range(500)), config=config)
    ledger = Ledger.load(RealFileSystem(), str(node), "q")
    ledger.begin(1, 0, 1, ["gone.arrow"])
    os.unlink(node / "topics/commitlog" / f"{0:020d}")
    with pytest.raises(WarrenError, match="epoch 1 of q was begun, but its messages have expired"):
        stream(node, 1, numbered(1), config=config)


def test_an_intent_whose_files_are_gone_is_an_error(tmp_path: Path) -> None:
    node = tmp_path / "node"
    stream(node, 0, numbered(1))
    ledger = Ledger.load(RealFileSystem(), str(node), "q")
    ledger.begin(1, 0, 1, ["gone.arrow"])
    with pytest.raises(WarrenError, match=r"gone\.arrow: a staged file cannot be read"):
        stream(node, 1, numbered(1))


# ── what cannot be ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_node_in_use_is_an_error_and_nothing_stays_staged(tmp_path: Path) -> None:
    path = tmp_path / "node"
    with warren.open(path, attach=False) as node:
        node.topic("orders")
        for work in (lambda: write(path, numbered(1)), lambda: stream(path, 0, numbered(1))):
            with pytest.raises(DirectoryLockedError, match="in use by"):
                work()
            assert os.listdir(tmp_path) == ["node"]


def test_an_aborted_batch_leaves_nothing(tmp_path: Path) -> None:
    writer = writer_of(tmp_path / "node", topic="orders")
    writer.abort([writer.write(iter([batch_of(numbered(1))])), None])
    streamed = stream_writer_of(tmp_path / "node", topic="orders", query="q")
    streamed.abort([None, streamed.write(iter([batch_of(numbered(1))]))], 0)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"body": None}, "row 1 of its partition: its body is null"),
        ({"body": b"x", "topic": "a/b"}, "row 1 of its partition: a topic cannot be called 'a/b'"),
        ({"body": b"x", "topic": "SCHEDULE_TOPIC_XXXX"}, "is the store's own"),
        ({"body": b"x", "keys": ["a b"]}, "row 1 of its partition: a key cannot be 'a b'"),
        ({"body": b"x", "properties": [("KEYS", "v")]}, "the property 'KEYS' is the store's own"),
        ({"body": b"x", "properties": [("p", "v" * 40_000)]}, "bytes of properties"),
        ({"body": b"x", "queue_id": -1}, "there is no queue -1"),
        ({"body": b"x", "delay_level": 19}, "there is no delay level 19"),
    ],
)
def test_a_row_that_cannot_be_appended_fails_its_task(tmp_path: Path, row: dict[str, Any], said: str) -> None:
    writer = writer_of(tmp_path / "node", EVERYTHING, topic="orders")
    with pytest.raises(WarrenError, match=said):
        writer.write(iter([batch_of([{"body": b"good"}, row], EVERYTHING)]))
    assert left_over(tmp_path / "node") == []


@pytest.mark.parametrize(
    ("row", "options", "said"),
    [
        (
            {"body": b"x", "queue_id": 3},
            {"queues": 3},
            "a row is for queue 3, but there are 3 queues; raise option queues",
        ),
        ({"body": bytes(5 << 20)}, {}, "a message takes 52[0-9]+ bytes in the CommitLog; at most 4194304 are possible"),
    ],
)
def test_what_the_node_would_refuse_is_said_before_anything_is_appended(
    tmp_path: Path, row: dict[str, Any], options: dict[str, int], said: str
) -> None:
    with pytest.raises(WarrenError, match=said):
        write(tmp_path / "node", [{"body": b"good"}], [row], schema=EVERYTHING, query="q", epoch=1, **options)
    assert bodies(tmp_path / "node") == []
    assert left_over(tmp_path / "node") == []


_AND_COUNT = pa.schema([("body", pa.string()), ("count", pa.int32())])


@pytest.mark.parametrize(
    ("schema", "options", "said"),
    [
        (pa.schema([("topic", pa.string())]), {}, "a frame needs a column body"),
        (BODIES, {}, "which topic: option topic, or a column topic"),
        (_AND_COUNT, {"topic": "t"}, "a topic has no column 'count'; it has body, topic, keys"),
        (pa.schema([("body", pa.int32())]), {"topic": "t"}, "the column body is int, and not binary or string"),
        (BODIES, {"topic": "a/b"}, "a topic cannot be called 'a/b'"),
        (BODIES, {"topic": "t", "queues": "0"}, "option queues is '0', not a whole number from 1 on"),
        (BODIES, {"topic": "t", "query": "q"}, "options query and epoch: give both, or neither"),
        (BODIES, {"topic": "t", "query": "a/b", "epoch": "1"}, "option query is 'a/b'"),
        (BODIES, {"topic": "t", "sync": "os"}, "option 'sync': unknown for writing; known are path,"),
        (BODIES, {"topic": "t", "stagingpaths": "/x"}, "unknown for writing; did you mean 'stagingPath'"),
        (
            BODIES,
            {"topic": "t", "path": "s3://bucket/node"},
            "the node to write to must be a directory of this machine",
        ),
        (BODIES, {"topic": "t", "path": "/dev/null"}, "/dev/null: is not a directory"),
    ],
)
def test_options_and_columns_that_cannot_be(
    tmp_path: Path, schema: pa.Schema, options: dict[str, str], said: str
) -> None:
    with pytest.raises(WarrenError, match=said):
        writer_of(options.pop("path", tmp_path / "node"), schema, **options)


def test_a_topic_cannot_be_overwritten(tmp_path: Path) -> None:
    source = WarrenSource({"path": str(tmp_path), "topic": "t"})
    for make in (source.writer, source.streamWriter):
        with pytest.raises(WarrenError, match="only appended to: mode append"):
            make(from_arrow_schema(BODIES), overwrite=True)


def test_the_folder_of_a_rocketmq_is_no_node(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    with pytest.raises(WarrenError, match="is a RocketMQ store folder, not a warren node's directory"):
        writer_of(tmp_path, topic="t")


def test_a_stream_that_names_no_query_is_refused(tmp_path: Path) -> None:
    writer = stream_writer_of(tmp_path / "node", topic="t")
    messages: Sequence[Any] = [writer.write(iter([batch_of(numbered(1))]))]
    with pytest.raises(WarrenError, match="a stream needs option query"):
        writer.commit(list(messages), 0)
