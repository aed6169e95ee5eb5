"""``warren spark export``: the bytes of the single-machine commands, whatever the parts, and the same as Parquet."""

from __future__ import annotations

import base64
import json
import random
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyspark.testing import assertDataFrameEqual

from tests.support.classic_tools import VhostOnDisk
from tests.support.cli_tools import warren
from tests.support.effort import times
from tests.support.pipeline_tools import (
    RABBITMQ,
    ROCKETMQ,
    expected_lines,
    exported,
    lines,
    on_one_machine,
    rabbitmq_node,
    rocketmq_node,
)
from warren.msg_store.commit_log.commit_log_format import MESSAGE_MAGIC, decode
from warren.pipeline.jobs import export_plan
from warren.pipeline.jobs.export import record_rows, rows
from warren.queue_index.index.record_format import BODY, segment_publish_head
from warren.salvage.export import Selection
from warren.salvage.names import to_json
from warren.storage.errors import WarrenError
from warren.where import WhereError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Json = dict[str, Any]


def twice(pieces: Sequence[Any], work: Callable[[Any], Any]) -> list[Any]:
    """Every task runs twice, in any order; whose answer is taken is chance."""
    random.seed(6)
    order = list(range(len(pieces))) * 2
    random.shuffle(order)
    answers: dict[int, list[Any]] = {number: [] for number in range(len(pieces))}
    for number in order:
        answers[number].append(work(pieces[number]))
    return [random.choice(answers[number]) for number in range(len(pieces))]


@pytest.fixture(autouse=True, scope="module")
def answers() -> Iterator[None]:
    """Keep the answers of the single machine for this file only."""
    yield
    on_one_machine.cache_clear()


ALL = [rabbitmq_node(scenario) for scenario in RABBITMQ] + [rocketmq_node(scenario) for scenario in ROCKETMQ]


@pytest.mark.slow
@pytest.mark.parametrize("partition_bytes", [1, 1 << 30])
def test_all_golden_nodes_in_one_load_have_the_lines_of_the_single_machine(
    tmp_path: Path, partition_bytes: int
) -> None:
    out = tmp_path / "out"
    summary = exported(out, *ALL, partition_bytes=partition_bytes)
    assert lines(out) == expected_lines(*ALL)
    assert summary.messages == len(lines(out))
    files = [file.name for file in sorted(out.iterdir())]
    assert files == [f"part-{number:05d}.jsonl" for number in range(len(files))]
    assert len(files) == 1 if partition_bytes > 1 else len(files) > 40
    complaints = [line for node in ALL for line in on_one_machine(node)[2].splitlines()]
    assert len(complaints) == len(summary.problems) + len(summary.notes)


@pytest.mark.slow
def test_parquet_says_what_the_lines_say(tmp_path: Path) -> None:
    exported(tmp_path / "lines", *ALL)
    exported(tmp_path / "parquet", *ALL, format="parquet", partition_bytes=300_000)
    files = sorted((tmp_path / "parquet").iterdir())
    assert len({str(pq.read_schema(file)) for file in files}) == 1
    rows = [row for file in files for row in pq.read_table(file).to_pylist()]
    of_lines = [json.loads(line) for line in lines(tmp_path / "lines")]
    assert len(rows) == len(of_lines)
    for row, said in zip(rows, of_lines, strict=True):
        assert said.keys() | {name for name, value in row.items() if value is None} == row.keys()
        assert {name: row[name] for name in said} == as_columns(said)


def as_columns(said: Json) -> Json:
    """A line as a row of Parquet has it."""

    def text(value: Any) -> Any:
        if isinstance(value, list):
            return [text(one) for one in value]
        return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value

    row = {name: text(value) for name, value in said.items()}
    for name in {"properties", "headers"} & said.keys():
        row[name] = None if said[name] is None else to_json(said[name]).decode()
    for name in {"body", "encoded_properties"} & said.keys():
        row[name] = base64.b64decode(said[name])
    return row


@pytest.mark.slow
@pytest.mark.parametrize("output_format", ["jsonl", "parquet"])
def test_a_task_that_is_done_twice_leaves_nothing_behind(tmp_path: Path, output_format: str) -> None:
    nodes = ALL[:3]
    exported(tmp_path / "once", *nodes, partition_bytes=1, format=output_format)
    exported(tmp_path / "twice", *nodes, partition_bytes=1, format=output_format, parallel=twice)
    once, again = ({file.name: file.read_bytes() for file in (tmp_path / name).iterdir()} for name in ("once", "twice"))
    assert once == again
    assert {path.name for path in tmp_path.iterdir()} == {"once", "twice"}


@pytest.mark.slow
@pytest.mark.parametrize("partition_bytes", [1, 1 << 30])
@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("size > 1000 AND exchange = ''", lambda line: line.get("exchange") == "" and line["size"] > 1000),
        (
            "topic LIKE '%Test' AND queue_id = 0",
            lambda line: line.get("topic", "")[-4:] == "Test" and not line["queue_id"],
        ),
        ("FALSE", lambda line: False),
    ],
)
def test_a_condition_chooses_lines_and_changes_no_position(
    tmp_path: Path, partition_bytes: int, condition: str, holds: Callable[[Json], bool]
) -> None:
    nodes = ALL[:3] + ALL[-3:]
    exported(tmp_path / "out", *nodes, partition_bytes=partition_bytes, selection=Selection(where=condition))
    assert lines(tmp_path / "out") == [line for line in expected_lines(*nodes) if holds(json.loads(line))]


def test_a_condition_that_no_message_could_be_asked_is_refused() -> None:
    with pytest.raises(WhereError, match="no field 'colour'"):
        Selection(where="colour = 'red'").conditions()


def test_a_queue_in_many_parts_is_numbered_through(tmp_path: Path) -> None:
    queue = VhostOnDisk(tmp_path / "node").queue(b"q")  # 4 entries a segment
    for seq_id in (*range(25), *range(40, 43)):
        queue.segment(seq_id, b"%d" % seq_id)
    queue.journal(43, b"43")
    queue.journal(60, b"60")
    exported(tmp_path / "out", str(tmp_path / "node"), partition_bytes=1)
    assert len(list((tmp_path / "out").iterdir())) == 8
    assert lines(tmp_path / "out") == expected_lines(str(tmp_path / "node"))
    assert [json.loads(line)["position"] for line in lines(tmp_path / "out")] == list(range(30))


@pytest.mark.parametrize("output_format", ["jsonl", "parquet"])
@pytest.mark.parametrize("partition_bytes", [1, 1 << 30])
def test_what_cannot_be_read_is_counted_and_keeps_its_position(
    tmp_path: Path, partition_bytes: int, output_format: str
) -> None:
    queue = VhostOnDisk(tmp_path / "node").queue(b"q")
    for seq_id in range(12):
        if seq_id == 2:
            queue.append("0.idx", unreadable_record(seq_id))
        elif seq_id == 5:
            queue.bodyless(5, b"m" * 16, 9)  # the store does not have it: no message
        else:
            queue.segment(seq_id, b"%d" % seq_id)
    node, out = str(tmp_path / "node"), tmp_path / "out"
    summary = exported(out, node, partition_bytes=partition_bytes, format=output_format)
    assert (summary.messages, len(summary.problems)) == (10, 2)
    if output_format == "jsonl":
        rows = [json.loads(line) for line in lines(out)]
    else:
        rows = [row for file in sorted(out.iterdir()) for row in pq.read_table(file).to_pylist()]
    assert [row["seq_id"] for row in rows] == [0, 1, 3, 4, *range(6, 12)]
    assert [row["position"] for row in rows] == [0, 1, 3, 4, *range(5, 11)]
    single = warren("export", node)
    assert [str(finding) for _, finding in summary.problems] == [
        line.removeprefix("warren: ") for line in single.stderr.splitlines()
    ]


def unreadable_record(seq_id: int) -> bytes:
    """A publish of what is no message."""
    encoded = b"no message at all"
    head = segment_publish_head(seq_id % 4, persistent=True)
    return head + BODY.pack(b"x" * 16, 0, 4, len(encoded)) + encoded


# ── CommitLogs in ranges ─────────────────────────────────────────────────────────────────────────────────────────────


LOG_FILES = sorted((Path(rocketmq_node("crash-recovery")) / "commitlog").iterdir())[:4]


@pytest.mark.slow
@settings(max_examples=times(15, quick=5))
@given(
    chunk_bytes=st.integers(300, 20_000),
    partition_bytes=st.sampled_from([1, 1 << 30]),
    damage=st.lists(st.tuples(st.integers(0, 130_000), st.sampled_from([b"\xff", b"\0" * 300])), max_size=2),
    decoys=st.booleans(),
)
@example(chunk_bytes=400, partition_bytes=1, damage=[(20_000, b"\0" * 300)], decoys=False)
@example(chunk_bytes=400, partition_bytes=1, damage=[], decoys=True)
def test_a_commit_log_in_any_ranges_has_the_records_of_a_scan(
    chunk_bytes: int, partition_bytes: int, damage: list[tuple[int, bytes]], decoys: bool
) -> None:
    written = [bytearray(file.read_bytes()) for file in LOG_FILES]
    size = len(written[0])
    if decoys:
        put_decoys(written[0])
    for at, data in damage:
        written[at // size][at % size : at % size + len(data)] = data[: size - at % size]
    with tempfile.TemporaryDirectory(prefix="rocketmq-") as directory, pytest.MonkeyPatch.context() as patched:
        patched.setattr(export_plan, "FINEST_BYTES", chunk_bytes)
        store, out = Path(directory) / "store", Path(directory) / "out"
        (store / "commitlog").mkdir(parents=True)
        for file, content in zip(LOG_FILES, written, strict=True):
            (store / "commitlog" / file.name).write_bytes(content)
        summary = exported(out, str(store), partition_bytes=partition_bytes)
        on_one_machine.cache_clear()
        assert lines(out) == expected_lines(str(store))
        assert len(summary.problems) == on_one_machine(str(store))[2].count("damaged record")


def put_decoys(data: bytearray) -> None:
    """Put what looks like the beginning of a record into every body with enough room."""
    at = 0
    while int.from_bytes(data[at + 4 : at + 8], "big") == MESSAGE_MAGIC:
        record = decode(bytes(data), at)
        body_at = data.find(record.body, at + 80)
        if len(record.body) >= 40:
            data[body_at + 4 : body_at + 8] = MESSAGE_MAGIC.to_bytes(4, "big")
            data[body_at + 28 : body_at + 36] = body_at.to_bytes(8, "big")
            body = data[body_at : body_at + len(record.body)]
            data[at + 8 : at + 12] = (zlib.crc32(body) & 0x7FFF_FFFF).to_bytes(4, "big")
        at += record.size


# ── the command ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_queue_that_no_node_has_and_a_topic_store_are_refused(tmp_path: Path) -> None:
    with pytest.raises(WarrenError, match="2 nodes: no queue 'nowhere'"):
        exported(tmp_path / "out", *ALL[:2], selection=Selection(queues=("nowhere",)))
    with pytest.raises(WarrenError, match="no vhost 'nowhere'"):
        exported(tmp_path / "out", ALL[0], selection=Selection(vhost="nowhere"))
    with pytest.raises(WarrenError, match="is a topic store; --vhost and --queue are for queues"):
        exported(tmp_path / "out", ALL[0], ALL[-1], selection=Selection(queues=("orders",)))
    assert not (tmp_path / "out").exists()


def test_an_export_of_nothing_is_an_empty_file(tmp_path: Path) -> None:
    (tmp_path / "node" / "msg_stores" / "vhosts").mkdir(parents=True)
    exported(tmp_path / "lines", str(tmp_path / "node"))
    exported(tmp_path / "parquet", str(tmp_path / "node"), format="parquet")
    assert (tmp_path / "lines" / "part-00000.jsonl").read_bytes() == b""
    assert pq.read_table(tmp_path / "parquet").num_rows == 0


@pytest.mark.slow
@pytest.mark.spark
def test_spark_writes_what_was_written_here(spark: SparkSession, tmp_path: Path) -> None:
    nodes = ALL[:3] + ALL[-2:]
    result = warren("spark", "export", *nodes, "--out", tmp_path / "out", "--json")
    expected = [line for node in sorted(nodes) for line in expected_lines(node)]
    assert lines(tmp_path / "out") == expected
    said = json.loads(result.stdout)
    problems = len(result.stderr.splitlines())
    assert said == {
        "out": str(tmp_path / "out"),
        "format": "jsonl",
        "messages": len(expected),
        "bytes": sum(len(base64.b64decode(json.loads(line)["body"])) for line in expected),
        "problems": said["problems"],
    }
    assert result.exit_code == bool(said["problems"])
    assert problems >= said["problems"]


@pytest.mark.slow
@pytest.mark.spark
def test_the_tables_have_the_rows_that_the_command_writes(spark: SparkSession, tmp_path: Path) -> None:
    queues, topics = ALL[0], ALL[-1]
    for node, table, to_rows in ((queues, "messages", rows), (topics, "records", record_rows)):
        exported(tmp_path / table, node, format="parquet")
        frame = to_rows(spark.read.format("warren").option("table", table).load(node))
        assertDataFrameEqual(frame, spark.read.parquet(str(tmp_path / table)), checkRowOrder=True, ignoreNullable=True)
