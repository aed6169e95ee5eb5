"""Bodies that producers compressed, and batches in one record: every face has them as they were sent."""

from __future__ import annotations

import asyncio
import base64
import csv
import io
import json
import re
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
from warren.salvage.rocketmq.verify_store import verify_store
from warren.salvage.source import open_place
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


def stored(
    place: Path, *messages: tuple[int, bytes] | tuple[int, bytes, bytes], topic: str = "events", queue_id: int = 0
) -> Path:
    """A topic store with messages: system flags, the body as it is stored, and perhaps the properties.

    Returns the node's directory.
    """
    topics = place / "node" / "topics"
    topics.mkdir(parents=True)
    store = load_store(RealFileSystem(), str(topics), SMALL, new_index_name=index_names())
    store.start()
    for sys_flag, body, *properties in messages:
        store.append(
            Batch(
                topic=topic,
                queue_id=queue_id,
                bodies=[body],
                properties=properties[0] if properties else b"KEYS\x01k",
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
        (0x0C1, b"x" * 20, "no zlib: Error -3"),
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
    assert [row["body"] for row in read_rows("records", str(directory))] == [None, b"last"]
    with pytest.raises(DataError, match=f"offset 0: .*{re.escape(reason)}"):
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


def batch_of(*bodies: bytes) -> bytes:
    return b"".join(inner(body, b"") for body in bodies)


@pytest.mark.parametrize(("sys_flag", "pack"), [(0xC0, bytes), (0xC1, zlib.compress)])
def test_tables_have_a_row_for_each_message_of_a_batch(
    tmp_path: Path, sys_flag: int, pack: Callable[[bytes], bytes]
) -> None:
    batch = pack(inner(b"a", b"TAGS\x01t", flag=7) + inner(b"", b"") + inner(b"cc", b"KEYS\x01x y"))
    empty = pack(b"")
    directory = str(stored(tmp_path, (0, b"first"), (sys_flag, batch), (sys_flag, empty), (1, zlib.compress(BODY))))
    rows, lines = read_rows("records", directory), lines_of("scan", directory)
    assert [row["body"] for row in rows] == bodies_of(lines) == [b"first", b"a", b"", b"cc", BODY]
    same = ("queue_offset", "size", "flag", "tags", "keys", "sys_flag", "physical_offset", "crc_ok", "message_id")
    assert [[row[name] for name in same] for row in rows] == [[line[name] for name in same] for line in lines]
    assert [dict(row["properties"]) for row in rows] == [line["properties"] for line in lines]
    assert [row["body"] for row in read_rows("records", directory, bodies="false")] == [None] * len(rows)
    raw = read_rows("records", directory, raw_bodies="true")
    assert [row["body"] for row in raw] == [b"first", batch, empty, zlib.compress(BODY)]
    with warren.sql.connect(directory) as connection:
        assert connection.sql("select count(*) from records").fetchall() == [(5,)]
        ask = "select body from records where queue_offset = 3 and queue_id = 0 order by physical_offset"
        assert connection.sql(ask).fetchall() == [(b"cc",), (BODY,)]


QUEUE_OFFSET_AT = 20
UNIT_BYTES = UNIT.itemsize


def batches_stored(place: Path, *batches: tuple[bytes, ...]) -> tuple[Path, Path]:
    """A topic store as RocketMQ 5 makes it for a topic of the type BatchCQ: a record for each batch, with these bodies.

    Returns the store's directory and the file of units.
    """
    bases = [sum(map(len, batches[:number])) for number in range(len(batches))]
    topics = stored(
        place,
        *(
            (0xC0, batch_of(*bodies), f"INNER_NUM\x01{len(bodies)}\x02KEYS\x01k\x02INNER_BASE\x01{base}".encode())
            for bodies, base in zip(batches, bases, strict=True)
        ),
    ).joinpath("topics")
    shutil.rmtree(topics / "consumequeue")
    units = np.zeros(10, UNIT)
    with open(topics / "commitlog" / f"{0:020d}", "r+b") as log:
        lines = lines_of("scan", topics, "--raw-bodies")
        for unit, line, bodies, base in zip(units, lines, batches, bases, strict=False):
            unit["physical_offset"], unit["size"] = line["physical_offset"], line["size"]
            unit["store_timestamp"], unit["queue_offset"], unit["count"] = line["store_timestamp"], base, len(bodies)
            unit["compacted_offset"] = -1
            log.seek(line["physical_offset"] + QUEUE_OFFSET_AT)
            log.write(struct.pack(">q", base))
    file = topics / "batchconsumequeue" / "events" / "0" / f"{0:020d}"
    file.parent.mkdir(parents=True)
    file.write_bytes(units.tobytes())
    return topics, file


def overwrite(file: Path, position: int, data: bytes) -> None:
    with open(file, "r+b") as handle:
        handle.seek(position)
        handle.write(data)


def verified(topics: Path) -> tuple[int, list[tuple[str, str, int | None]]]:
    """The exit code of ``verify``, and the findings: their kind, the path below the store, and the place there."""
    result = command("verify", topics, "--json")
    findings = json.loads(result.stdout)["findings"]
    return result.exit_code, [
        (finding["kind"], str(Path(finding["path"]).relative_to(topics)), finding["offset"]) for finding in findings
    ]


def test_a_queue_of_batches_is_read_message_by_message(tmp_path: Path) -> None:
    topics, _ = batches_stored(tmp_path, (b"a", b"b", b"c"), (b"d", b"e"), (b"f",))
    assert bodies_of(lines_of("read", topics, *READ)) == [b"a", b"b", b"c", b"d", b"e", b"f"]
    assert bodies_of(lines_of("read", topics, *READ, "--offset", 1, "--max", 3)) == [b"b", b"c", b"d"]
    raw = bodies_of(lines_of("read", topics, *READ, "--raw-bodies"))
    assert raw == [batch_of(b"a", b"b", b"c"), batch_of(b"d", b"e"), batch_of(b"f")]
    assert len(command("topic", "entries", topics, *READ).stdout.splitlines()) == 3
    report = json.loads(command("inspect", topics, "--json").stdout)
    assert report["queues"] == [{"topic": "events", "queue_id": 0, "min_offset": 0, "max_offset": 6}]
    (listed,) = json.loads(command("topic", "list", topics, "--json").stdout)
    assert (listed["topic"], listed["queues"], listed["messages"]) == ("events", 1, 6)
    late = command("topic", "offset-at", topics, *READ, "--timestamp", "1800000000000")
    assert late.stdout == "6\n"
    assert command("topic", "read", topics, *READ, "--offset", "7").exit_code == 2


def test_a_node_does_not_open_a_store_with_queues_of_batches(tmp_path: Path) -> None:
    topics, _ = batches_stored(tmp_path, (b"a",))
    with opened(topics.parent) as node, pytest.raises(TopicsDownError, match="ConsumeQueues of batches"):
        node.topic("events")


def test_a_damaged_unit_ends_a_queue_of_batches(tmp_path: Path) -> None:
    topics, file = batches_stored(tmp_path, (b"a",), (b"b",), (b"c",))
    overwrite(file, UNIT_BYTES + 8, bytes(4))
    assert bodies_of(lines_of("read", topics, *READ)) == [b"a"]


# ── verify ───────────────────────────────────────────────────────────────────────────────────────────────────────────

LOG = f"commitlog/{0:020d}"
UNITS = f"batchconsumequeue/events/0/{0:020d}"
RECORD = 91 + len(batch_of(b"a", b"b", b"c")) + len("events") + len("INNER_NUM\x013\x02KEYS\x01k\x02INNER_BASE\x010")
"""The size of a record with three messages of a byte; a byte more for each further digit of its base."""


def three_batches(place: Path) -> tuple[Path, Path]:
    return batches_stored(place, (b"a", b"b", b"c"), (b"d", b"e", b"f"), (b"g", b"h", b"i"))


def test_a_sound_queue_of_batches_is_not_damaged(tmp_path: Path) -> None:
    topics, _ = three_batches(tmp_path)
    (topics / "config").mkdir(exist_ok=True)
    (topics / "config" / "consumerOffset.json").write_text('{"offsetTable":{"events@g":{0:9}}}')
    assert verified(topics) == (0, [])
    (topics / "config" / "consumerOffset.json").write_text('{"offsetTable":{"events@g":{0:10}}}')
    assert verified(topics) == (0, [("leftover position", "config/consumerOffset.json", None)])


@pytest.mark.parametrize(
    ("at", "data", "kind"),
    [
        (8, b"\0\0\0\1", "wrong size"),
        (12, b"\0\0\0\0\0\0\0\1", "wrong tags code"),
        (12, b"\x80\0\0\0\0\0\0\1", "wrong tags code"),
        (20, b"\0", "wrong time"),
        (28, b"\0\0\0\0\0\0\0\4", "wrong queue offset"),
        (36, b"\0\4", "wrong number of messages"),
        (38, bytes(4), "wrong compacted offset"),
    ],
)
def test_a_wrong_field_of_a_unit_is_damage(tmp_path: Path, at: int, data: bytes, kind: str) -> None:
    topics, file = three_batches(tmp_path)
    if kind == "wrong time":
        data = b"\1"
    overwrite(file, UNIT_BYTES + at, data)
    assert verified(topics) == (1, [(kind, UNITS, UNIT_BYTES)])


def test_every_byte_of_a_unit_is_compared(tmp_path: Path) -> None:
    topics, file = three_batches(tmp_path)
    units = file.read_bytes()
    for position in range(3 * UNIT_BYTES):
        overwrite(file, position, bytes((units[position] ^ 0x81,)))
        with open_place(str(topics)) as place:
            findings = [*verify_store(place.files, place.store(), SMALL)]
        is_reserved = position % UNIT_BYTES >= UNIT_BYTES - 4
        assert any(finding.severity == "damage" for finding in findings) != is_reserved, position
        file.write_bytes(units)


def test_a_batch_with_another_queue_offset_than_its_base_is_damage(tmp_path: Path) -> None:
    topics, _ = three_batches(tmp_path)
    overwrite(topics / LOG, RECORD + QUEUE_OFFSET_AT + 7, b"\4")
    assert verified(topics) == (1, [("wrong queue offset", LOG, RECORD)])


def test_a_unit_that_points_nowhere_is_damage(tmp_path: Path) -> None:
    topics, file = three_batches(tmp_path)
    overwrite(file, UNIT_BYTES, struct.pack(">q", RECORD + 1))
    code, findings = verified(topics)
    assert (code, set(findings)) == (
        1,
        {("entry that points nowhere", UNITS, UNIT_BYTES), ("message without entry", LOG, RECORD)},
    )


def test_a_unit_of_zeros_is_damage(tmp_path: Path) -> None:
    topics, file = three_batches(tmp_path)
    overwrite(file, UNIT_BYTES, bytes(UNIT_BYTES))
    code, findings = verified(topics)
    assert (code, set(findings)) == (
        1,
        {("invalid entry", UNITS, UNIT_BYTES), ("message without entry", LOG, RECORD)},
    )


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_batch_without_a_unit_is_damage(tmp_path: Path, lost: int) -> None:
    topics, file = three_batches(tmp_path)
    units = file.read_bytes()
    remaining = units[: lost * UNIT_BYTES] + units[(lost + 1) * UNIT_BYTES :]
    file.write_bytes(remaining.ljust(len(units), b"\0"))
    assert verified(topics) == (1, [("message without entry", LOG, lost * RECORD)])
    result = command("verify", topics, "--json")
    (detail,) = (finding["detail"] for finding in json.loads(result.stdout)["findings"])
    assert detail.startswith(f"message {3 * lost} of events/0: ")
    assert detail.endswith("3 in a row, this is the first")


def test_a_unit_for_another_record_is_damage(tmp_path: Path) -> None:
    topics, file = three_batches(tmp_path)
    units = file.read_bytes()
    overwrite(file, 3 * UNIT_BYTES, units[UNIT_BYTES : 2 * UNIT_BYTES])
    assert verified(topics) == (1, [("wrong entry", UNITS, 3 * UNIT_BYTES)])


def test_a_record_that_is_no_batch_has_no_unit(tmp_path: Path) -> None:
    """RocketMQ stores what a producer sends alone to such a topic, and makes no unit of it."""
    topics, file = three_batches(tmp_path)
    overwrite(topics / LOG, (topics / LOG).read_bytes().index(b"INNER_NUM"), b"OTHER_NUM")
    code, findings = verified(topics)
    assert (code, findings) == (1, [("wrong entry", UNITS, 0)])
    file.write_bytes(file.read_bytes()[UNIT_BYTES:] + bytes(UNIT_BYTES))
    assert verified(topics) == (0, [])


def test_after_a_crash_a_missing_last_unit_is_left_over(tmp_path: Path) -> None:
    topics, file = three_batches(tmp_path)
    overwrite(file, 2 * UNIT_BYTES, bytes(UNIT_BYTES))
    (topics / "abort").touch()
    code, findings = verified(topics)
    assert code == 0
    assert ("leftover message without entry", LOG, 2 * RECORD) in findings


def test_a_queue_of_batches_whose_file_is_too_short_is_damage(tmp_path: Path) -> None:
    topics, file = three_batches(tmp_path)
    file.with_name(f"{10 * UNIT_BYTES:020d}").write_bytes(bytes(5 * UNIT_BYTES))
    assert verified(topics) == (1, [("wrong file length", f"batchconsumequeue/events/0/{10 * UNIT_BYTES:020d}", None)])


def test_a_queue_of_both_kinds_is_damage(tmp_path: Path) -> None:
    topics, _ = three_batches(tmp_path)
    (topics / "consumequeue" / "events" / "0").mkdir(parents=True)
    assert verified(topics) == (1, [("misplaced file", "consumequeue/events/0", None)])


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


def light_queue_stored(place: Path) -> tuple[Path, Path]:
    """A topic store with three messages, two of them in a light queue too; and the file of its entries."""
    name = b"INNER_MULTI_DISPATCH\x01%LMQ%clients,%LMQ%others\x02KEYS\x01k\x02INNER_MULTI_QUEUE_OFFSET\x01"
    directory = stored(
        place, (0, b"a", b"KEYS\x01k"), (1, zlib.compress(BODY), name + b"0,0"), (0, b"c", name + b"1,1")
    )
    topics = directory / "topics"
    entries = [json.loads(line) for line in command("topic", "entries", topics, *READ).stdout.splitlines()]
    (existing,) = (topics / "consumequeue" / "events" / "0").iterdir()
    content = b"".join(struct.pack(">qiq", *entries[row]) for row in (1, 2))
    for queue in ("%LMQ%clients", "%LMQ%others"):
        file = topics / "consumequeue" / queue / "0" / existing.name
        file.parent.mkdir(parents=True)
        file.write_bytes(content.ljust(existing.stat().st_size, b"\0"))
    return topics, file


def test_a_light_queue_has_the_messages_of_its_parents(tmp_path: Path) -> None:
    topics, _ = light_queue_stored(tmp_path)
    lines = lines_of("read", topics, "--topic", "%LMQ%clients", "--queue-id", 0)
    assert bodies_of(lines) == [BODY, b"c"]
    assert {line["topic"] for line in lines} == {"events"}
    assert verified(topics) == (0, [])


def test_damaged_entries_of_a_light_queue_are_damage(tmp_path: Path) -> None:
    topics, file = light_queue_stored(tmp_path)
    path = str(file.relative_to(topics))
    second, third = (line["physical_offset"] for line in lines_of("scan", topics)[1:])
    entries = file.read_bytes()
    overwrite(file, 8, b"\0\0\0\1")
    assert verified(topics) == (1, [("wrong size", path, 0)])
    overwrite(file, 0, struct.pack(">qi", 0, second))
    assert set(verified(topics)[1]) == {("wrong entry", path, 0), ("message without entry", LOG, second)}
    file.write_bytes(entries[:20].ljust(len(entries), b"\0"))
    assert verified(topics) == (1, [("message without entry", LOG, third)])
    file.write_bytes(entries[:40] + entries[:20] + entries[60:])
    assert verified(topics) == (1, [("wrong entry", path, 40)])
    shutil.rmtree(file.parent.parent)
    assert verified(topics) == (1, [("message without entry", LOG, second)])


@pytest.mark.parametrize(
    ("topic", "names", "numbers", "queues"),
    [
        ("events", "%LMQ%a,%LMQ%b", "5,6", ["5 of %LMQ%a/0", "6 of %LMQ%b/0"]),
        ("events", "%LMQ%a,b", "5,6", ["5 of %LMQ%a/0", "6 of b/3"]),
        ("events", "%LMQ%a/c,%LMQ%b", "5,6", ["6 of %LMQ%b/0"]),
        ("events", "%LMQ%a,%LMQ%b", "5,x", ["5 of %LMQ%a/0"]),
        ("events", "%LMQ%a,%LMQ%b", "5,", []),
        ("events", "%LMQ%a", "", []),
        ("%RETRY%group", "%LMQ%a", "5", []),
        ("rmq_sys_wheel_timer", "%LMQ%a", "5", []),
    ],
)
def test_which_further_queues_a_record_is_in(
    tmp_path: Path, topic: str, names: str, numbers: str, queues: list[str]
) -> None:
    properties = f"INNER_MULTI_DISPATCH\x01{names}\x02INNER_MULTI_QUEUE_OFFSET\x01{numbers}".encode()
    topics = stored(tmp_path, (0, b"a", properties), topic=topic, queue_id=3) / "topics"
    findings = json.loads(command("verify", topics, "--json").stdout)["findings"]
    assert [finding["detail"].split(": ")[0] for finding in findings] == [f"message {queue}" for queue in queues]


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
