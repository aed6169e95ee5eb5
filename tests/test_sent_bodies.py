"""Bodies that producers compressed, and batches in one record: every face has them as they were sent."""

from __future__ import annotations

import asyncio
import base64
import csv
import io
import json
import shutil
import struct
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import warren
import warren.aio
import warren.sql
from tests.support.cli_tools import warren as command
from tests.support.pipeline_tools import read_rows
from warren import Node
from warren.actors.engines.topics.store_opening import load_store
from warren.actors.node.node_errors import TopicsDownError
from warren.msg_store.commit_log.commit_log import Batch
from warren.msg_store.commit_log.commit_log_format import Host
from warren.msg_store.commit_log.record_bodies import MOST_BODY_BYTES
from warren.salvage.rocketmq.batch_queues import UNIT
from warren.salvage.rocketmq.rocketmq_store import index_names
from warren.storage.errors import DataError, MessageError
from warren.storage.filesystem import RealFileSystem
from warren.storage.topic_settings import ROCKETMQ_4_9

BODY = b"hello " * 200
SIZES: dict[str, Any] = {"mapped_file_size_commit_log": 1 << 17, "max_hash_slot_num": 10, "max_index_num": 1000}
SMALL = attrs.evolve(ROCKETMQ_4_9, **SIZES)
HERE = Host.parse("10.0.0.1:1")


def by_pyarrow(codec: str) -> Callable[[bytes], bytes]:
    return lambda body: pa.compress(body, codec=codec, asbytes=True)


COMPRESSED: dict[int, Callable[[bytes], bytes]] = {
    0x001: zlib.compress,
    0x301: zlib.compress,
    0x101: by_pyarrow("lz4"),
    0x201: by_pyarrow("zstd"),
}
"""By the system flags, how a client of RocketMQ compresses."""


def stored(place: Path, *messages: tuple[int, bytes]) -> Path:
    """A topic store with messages: system flags and the body as it is stored. Returns the node's directory."""
    topics = place / "node" / "topics"
    topics.mkdir(parents=True)
    store = load_store(RealFileSystem(), str(topics), SMALL, new_index_name=index_names())
    store.start()
    for sys_flag, body in messages:
        store.append(
            Batch(
                topic="events",
                queue_id=0,
                bodies=[body],
                properties=b"KEYS\x01k",
                born_timestamp=1,
                born_host=HERE,
                store_host=HERE,
                sys_flag=sys_flag,
            ),
            1_700_000_000_000,
        )
    store.close()
    return place / "node"


def opened(directory: Path) -> Node:
    return warren.open(directory, **SIZES)


def lines_of(*arguments: Any) -> list[dict[str, Any]]:
    result = command("topic", *arguments)
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def bodies_of(lines: list[dict[str, Any]]) -> list[bytes]:
    return [base64.b64decode(line["body"]) for line in lines]


# ── a node that runs ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("sys_flag", COMPRESSED)
def test_readers_get_a_compressed_body_as_it_was_sent(tmp_path: Path, sys_flag: int) -> None:
    packed = COMPRESSED[sys_flag](BODY)
    directory = stored(tmp_path, (0, b"plain"), (sys_flag, packed), (0, b"last"))
    with opened(directory) as node:
        topic = node.topic("events")
        records = list(topic.read("g"))
        assert [record.body for record in records] == [b"plain", BODY, b"last"]
        assert [record.raw_body for record in records] == [b"plain", packed, b"last"]
        with topic.reader("batches") as reader:
            assert reader.read(9).bodies == [b"plain", BODY, b"last"]
        assert [record.body for record in topic.tail(2)] == [BODY, b"last"]
        assert [record.body for record in topic.pull(0, 1, max_records=1)] == [BODY]
        assert topic.get(0, 1).body == topic.message_at(records[1].physical_offset).body == BODY
        assert [record.body for record in topic.find("k")] == [b"last", BODY, b"plain"]
        assert topic.view_message(records[1].message_id).body == BODY

    async def first() -> bytes:
        async with await warren.aio.open(directory, **SIZES) as node:
            topic = await node.topic("events")
            return (await topic.get(0, 1)).body

    assert asyncio.run(first()) == BODY


def test_many_records_at_once_are_decompressed_where_they_are_compressed(tmp_path: Path) -> None:
    messages = [(number % 2, zlib.compress(b"%d" % number) if number % 2 else b"%d" % number) for number in range(50)]
    with opened(stored(tmp_path, *messages)) as node, node.topic("events").reader("g") as reader:
        batch = reader.read(50)
        assert batch.bodies == [record.body for record in batch] == [b"%d" % number for number in range(50)]


def test_a_message_that_is_sent_back_keeps_its_stored_bytes(tmp_path: Path) -> None:
    packed = zlib.compress(BODY)
    with opened(stored(tmp_path, (1, packed))) as node:
        with node.topic("events").reader("g") as reader:
            reader.read(1)[0].retry(delay_level=-1)
        (record,) = node.topic("%DLQ%g").read("human")
        assert (record.raw_body, record.body, record.record.sys_flag & 1) == (packed, BODY, 1)


def test_a_body_that_does_not_decompress_is_an_error_and_the_reader_goes_on(tmp_path: Path) -> None:
    with opened(stored(tmp_path, (1, b"no zlib"), (0, b"last"))) as node:
        bad, last = node.topic("events").read("g")
        with pytest.raises(MessageError, match=r"the record at 0: the body is no zlib: .*raw_body"):
            _ = bad.body
        assert (bad.raw_body, last.body) == (b"no zlib", b"last")


def test_an_empty_body_is_not_decompressed(tmp_path: Path) -> None:
    with opened(stored(tmp_path, (1, b""))) as node:
        assert [record.body for record in node.topic("events").read("g")] == [b""]


# ── the command line ─────────────────────────────────────────────────────────────────────────────────────────────────

READ = ("--topic", "events", "--queue-id", "0")


def test_lines_have_the_body_that_was_sent_and_the_sum_of_the_stored_one(tmp_path: Path) -> None:
    packed = zlib.compress(BODY)
    directory = stored(tmp_path, (0, b"plain"), (1, packed))
    for arguments in (("read", directory, *READ), ("scan", directory), ("scan", directory, "--salvage")):
        lines, raw_lines = lines_of(*arguments), lines_of(*arguments, "--raw-bodies")
        assert bodies_of(lines) == [b"plain", BODY]
        assert bodies_of(raw_lines) == [b"plain", packed]
        assert [{**line, "body": ""} for line in lines] == [{**line, "body": ""} for line in raw_lines]
        assert [(line["sys_flag"], line["crc_ok"]) for line in lines] == [(0, True), (1, True)]
    (found, _) = lines_of("query", directory, "--topic", "events", "--key", "k")
    assert bodies_of([found, *lines_of("message", directory, found["message_id"])]) == [BODY, BODY]
    raw = lines_of("message", directory, found["message_id"], "--raw-bodies")
    assert bodies_of(raw) == bodies_of(lines_of("query", directory, *READ[:2], "--key", "k", "--raw-bodies")[:1])
    assert bodies_of(raw) == [packed]


def test_a_running_node_answers_the_commands_alike(tmp_path: Path) -> None:
    packed = zlib.compress(BODY)
    directory = stored(tmp_path, (1, packed))
    with warren.open(directory, share=True, **SIZES):
        assert bodies_of(lines_of("read", directory, *READ)) == [BODY]
        assert bodies_of(lines_of("read", directory, *READ, "--raw-bodies")) == [packed]
        assert command("tail", directory, "events").stdout_bytes == BODY + b"\n"
        assert command("tail", directory, "events", "--raw-bodies").stdout_bytes == packed + b"\n"
        assert command("topic", "consume", directory, "events", "--group", "g").stdout_bytes == BODY + b"\n"
        raw = command("topic", "consume", directory, "events", "--group", "h", "--raw-bodies")
        assert raw.stdout_bytes == packed + b"\n"


def test_every_format_has_the_body_that_was_sent(tmp_path: Path) -> None:
    directory = stored(tmp_path, (1, zlib.compress(BODY)))
    assert command("topic", "scan", directory, "--format", "%S %s").stdout_bytes == b"1200 " + BODY
    (row,) = csv.DictReader(io.StringIO(command("topic", "scan", directory, "--format", "csv", "--text").stdout))
    assert (row["body"], row["body_encoding"]) == (BODY.decode(), "string")
    out = tmp_path / "records.parquet"
    assert command("topic", "scan", directory, "--out", out).exit_code == 0
    (parquet,) = pq.read_table(out).to_pylist()
    (line,) = lines_of("scan", directory)
    assert (parquet["body"], parquet["body_sha256"]) == (BODY, row["body_sha256"]) == (BODY, line["body_sha256"])
    assert bodies_of(lines_of("scan", directory, "--where", "body LIKE 'hello%' AND size = 1200")) == [BODY]


@pytest.mark.parametrize(
    ("sys_flag", "body", "reason"),
    [
        (0x001, zlib.compress(BODY)[:-3], "no zlib: it ends early"),
        (0x001, b"x" * 20, "no zlib: Error -3"),
        (0x101, b"x" * 20, "no lz4: "),
        (0x201, by_pyarrow("zstd")(BODY)[:-3], "no zstd: "),
        (0x401, b"x" * 20, "the unknown compression 4"),
        (0x001, zlib.compress(bytes(MOST_BODY_BYTES + 1)), "zlib of more than 67,108,864 bytes"),
        (0x0C0, struct.pack(">iiiii", 20, 0, 0, 0, 5), "a message of the batch in the body is not all there"),
    ],
)
def test_a_body_that_is_not_what_its_flags_say_is_damage(
    tmp_path: Path, sys_flag: int, body: bytes, reason: str
) -> None:
    directory = stored(tmp_path, (sys_flag, body), (0, b"last"))
    for arguments in (("read", directory, *READ), ("scan", directory), ("scan", directory, "--salvage")):
        result = command("topic", *arguments)
        assert (result.exit_code, len(result.stdout.splitlines())) == (1, 1)
        assert "unreadable body: physical offset 0, of 'events', queue 0, queue offset 0: " in result.stderr
        assert reason in result.stderr
        raw = lines_of(*arguments, "--raw-bodies")
        assert bodies_of(raw) == [body, b"last"]
    assert command("verify", directory).exit_code == 0
    if sys_flag & 1:
        assert [row["body"] for row in read_rows("records", str(directory))] == [None, b"last"]
        with pytest.raises(DataError, match=r"offset 0: the body is|offset 0: the body has"):
            read_rows("records", str(directory), mode="failfast")


def test_a_missing_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = stored(tmp_path, (0x101, COMPRESSED[0x101](BODY)))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    result = command("topic", "scan", directory)
    assert result.exit_code == 1
    assert "the body is lz4, which needs pyarrow: install warrenmq[parquet]" in result.stderr


# ── tables ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_tables_have_the_body_that_was_sent(tmp_path: Path) -> None:
    packed = zlib.compress(BODY)
    directory = str(stored(tmp_path, (0, b"plain"), (1, packed), (0x201, COMPRESSED[0x201](BODY)), (0, b"last")))
    rows = read_rows("records", directory)
    assert [row["body"] for row in rows] == [b"plain", BODY, BODY, b"last"]
    raw = read_rows("records", directory, raw_bodies="true")
    assert raw[1] == {**rows[1], "body": packed}
    assert [row["body"] for row in read_rows("records", directory, bodies="false")] == [None] * 4
    ask = "select body from records order by physical_offset"
    assert warren.sql.connect(directory).sql(ask).fetchall() == [(row["body"],) for row in rows]
    assert warren.sql.connect(directory, raw_bodies=True).sql(ask).fetchall() == [(row["body"],) for row in raw]
    result = command("sql", directory, "select octet_length(body) from records", "--raw-bodies", "--format", "csv")
    assert result.stdout.splitlines()[2] == str(len(packed))


def test_rows_are_cut_where_decompressed_bodies_take_much_memory(tmp_path: Path) -> None:
    large = bytes(MOST_BODY_BYTES // 2 + 1)
    directory = stored(tmp_path, *[(1, zlib.compress(large, 9))] * 3, (0, b"last"))
    from tests.support.pipeline_tools import read_batches

    batches = read_batches("records", str(directory))
    assert [batch.num_rows for batch in batches] == [2, 2]
    assert [len(row["body"]) for batch in batches for row in batch.to_pylist()] == [*[len(large)] * 3, 4]


# ── batches in one record ────────────────────────────────────────────────────────────────────────────────────────────


def inner(body: bytes, properties: bytes, flag: int = 0) -> bytes:
    size = 22 + len(body) + len(properties)
    return struct.pack(">iiiii", size, 0, 0, flag, len(body)) + body + struct.pack(">h", len(properties)) + properties


@pytest.mark.parametrize(("sys_flag", "pack"), [(0xC0, bytes), (0xC1, zlib.compress)])
def test_a_batch_in_one_record_is_its_messages(tmp_path: Path, sys_flag: int, pack: Callable[[bytes], bytes]) -> None:
    batch = pack(inner(b"a", b"TAGS\x01t", flag=7) + inner(b"", b"") + inner(b"cc", b"KEYS\x01x y"))
    directory = stored(tmp_path, (sys_flag, batch), (0, b"last"))
    lines = lines_of("scan", directory)
    assert bodies_of(lines) == [b"a", b"", b"cc", b"last"]
    assert [line["queue_offset"] for line in lines[:3]] == [0, 1, 2]
    assert [(line["tags"], line["keys"], line["flag"]) for line in lines[:3]] == [
        ("t", None, 7),
        (None, None, 0),
        (None, "x y", 0),
    ]
    assert len({line["physical_offset"] for line in lines[:3]}) == 1
    assert all(line["crc_ok"] for line in lines)
    assert bodies_of(lines_of("scan", directory, "--raw-bodies")) == [batch, b"last"]


def with_batch_queue(directory: Path, *batches: tuple[int, int]) -> Path:
    """The store with a queue of batches in place of its ConsumeQueue; ``batches``: queue offset and messages of each
    record. Returns the unit file's path."""
    topics = directory / "topics"
    shutil.rmtree(topics / "consumequeue")
    place = topics / "batchconsumequeue" / "events" / "0"
    place.mkdir(parents=True)
    lines = lines_of("scan", topics, "--raw-bodies")
    assert len(lines) == len(batches)
    units = np.zeros(10, UNIT)
    for unit, line, (queue_offset, count) in zip(units, lines, batches, strict=False):
        unit["physical_offset"], unit["size"] = line["physical_offset"], line["size"]
        unit["store_timestamp"], unit["queue_offset"], unit["count"] = line["store_timestamp"], queue_offset, count
    (file := place / f"{0:020d}").write_bytes(units.tobytes())
    return file


def batch_of(*bodies: bytes) -> bytes:
    return b"".join(inner(body, b"") for body in bodies)


def test_a_queue_of_batches_is_read_message_by_message(tmp_path: Path) -> None:
    first, second = batch_of(b"a", b"b", b"c"), batch_of(b"d", b"e")
    directory = stored(tmp_path, (0xC0, first), (0xC0, second), (0, b"f"))
    with_batch_queue(directory, (0, 3), (3, 2), (5, 1))
    topics = directory / "topics"
    assert bodies_of(lines_of("read", topics, *READ)) == [b"a", b"b", b"c", b"d", b"e", b"f"]
    assert bodies_of(lines_of("read", topics, *READ, "--offset", 1, "--max", 3)) == [b"b", b"c", b"d"]
    assert bodies_of(lines_of("read", topics, *READ, "--raw-bodies")) == [first, second, b"f"]
    assert len(command("topic", "entries", topics, *READ).stdout.splitlines()) == 3
    report = json.loads(command("inspect", topics, "--json").stdout)
    assert report["queues"] == [{"topic": "events", "queue_id": 0, "min_offset": 0, "max_offset": 6}]
    (listed,) = json.loads(command("topic", "list", topics, "--json").stdout)
    assert (listed["topic"], listed["queues"], listed["messages"]) == ("events", 1, 6)
    late = command("topic", "offset-at", topics, *READ, "--timestamp", "1800000000000")
    assert late.stdout == "6\n"
    assert command("topic", "read", topics, *READ, "--offset", "7").exit_code == 2


def test_queues_of_other_kinds_are_named_and_no_damage(tmp_path: Path) -> None:
    directory = stored(tmp_path, (0, b"a"), (0, b"b"))
    with_batch_queue(directory, (0, 1), (1, 1))
    topics = directory / "topics"
    result = command("verify", topics)
    assert result.exit_code == 0
    assert "queues not read: those of batches" in result.stdout
    assert "No damage." in result.stdout
    with opened(directory) as node, pytest.raises(TopicsDownError, match="ConsumeQueues of batches"):
        node.topic("events")


def test_a_damaged_unit_ends_a_queue_of_batches(tmp_path: Path) -> None:
    directory = stored(tmp_path, (0, b"a"), (0, b"b"), (0, b"c"))
    file = with_batch_queue(directory, (0, 1), (1, 1), (2, 1))
    with open(file, "r+b") as units:
        units.seek(46 + 8)
        units.write(bytes(4))
    assert bodies_of(lines_of("read", directory / "topics", *READ)) == [b"a"]


def test_consume_queues_in_rocksdb_are_refused_by_name(tmp_path: Path) -> None:
    directory = stored(tmp_path, (0, b"a"))
    topics = directory / "topics"
    shutil.rmtree(topics / "consumequeue")
    (topics / "consumequeue").mkdir()
    for name in ("CURRENT", "MANIFEST-000005", "000012.sst", "LOCK"):
        (topics / "consumequeue" / name).write_bytes(b"x")
    result = command("topic", "read", topics, *READ)
    assert result.exit_code == 2
    assert "the ConsumeQueues are in RocksDB, which is not read" in result.stderr
    result = command("verify", topics)
    assert (result.exit_code, "queues not read: the ConsumeQueues are in RocksDB" in result.stdout) == (0, True)
    result = command("topic", "scan", topics)
    assert (result.exit_code, len(result.stdout.splitlines())) == (0, 1)
    with opened(directory) as node, pytest.raises(TopicsDownError, match="RocksDB"):
        node.topic("events")


def test_a_light_queue_has_the_messages_of_its_parents(tmp_path: Path) -> None:
    directory = stored(tmp_path, (0, b"a"), (1, zlib.compress(BODY)), (0, b"c"))
    topics = directory / "topics"
    entries = [json.loads(line) for line in command("topic", "entries", topics, *READ).stdout.splitlines()]
    place = topics / "consumequeue" / "%LMQ%clients" / "0"
    place.mkdir(parents=True)
    (existing,) = (topics / "consumequeue" / "events" / "0").iterdir()
    content = b"".join(struct.pack(">qiq", *entries[row]) for row in (1, 2))
    (place / existing.name).write_bytes(content.ljust(existing.stat().st_size, b"\0"))
    lines = lines_of("read", topics, "--topic", "%LMQ%clients", "--queue-id", 0)
    assert bodies_of(lines) == [BODY, b"c"]
    assert {line["topic"] for line in lines} == {"events"}
    result = command("verify", topics)
    assert (result.exit_code, "queues not read: those of %LMQ%" in result.stdout) == (0, True)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_an_export_by_spark_has_the_messages_that_were_sent(tmp_path: Path) -> None:
    packed = zlib.compress(BODY)
    directory = stored(tmp_path, (1, packed), (0xC0, batch_of(b"a", b"b")), (1, b"no zlib"))
    result = command("spark", "export", directory / "topics", "--out", tmp_path / "sent")
    assert result.exit_code == 1
    assert "unreadable body: physical offset" in result.stderr
    result = command("spark", "export", directory / "topics", "--out", tmp_path / "raw", "--raw-bodies")
    assert result.exit_code == 0
    exported = {
        name: [json.loads(line) for file in sorted((tmp_path / name).rglob("*.jsonl")) for line in file.open()]
        for name in ("sent", "raw")
    }
    assert bodies_of(exported["sent"]) == [BODY, b"a", b"b"]
    assert [line["position"] for line in exported["sent"]] == [0, 1, 1]
    assert bodies_of(exported["raw"]) == [packed, batch_of(b"a", b"b"), b"no zlib"]
