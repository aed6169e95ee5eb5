"""``warren spark load``: what was exported stands in new directories, message for message."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from tests.support.broker import Broker, Message
from tests.support.classic_tools import VhostOnDisk
from tests.support.cli_tools import warren
from tests.support.pipeline_tools import RABBITMQ, ROCKETMQ, exported, lines, rabbitmq_node, read_rows, rocketmq_node
from warren.pipeline.jobs import rows_in
from warren.pipeline.jobs.load import build, engine_settings
from warren.storage.errors import WarrenError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Json = dict[str, Any]

OF_THE_NODE = ("node", "seq_id", "msg_id", "redelivered")
"""What a message does not take with it."""


def rows_of(out: Path) -> list[Json]:
    return [json.loads(line) for line in lines(out)]


def without(rows: list[Json], *names: str) -> list[Json]:
    return [{name: value for name, value in row.items() if name not in names} for row in rows]


def batches_of(rows: list[Json], rows_each: int = 7) -> Iterator[pa.RecordBatch]:
    """The lines as Spark hands them to the task of the one node there is."""
    said = pa.RecordBatch.from_pydict({"value": [json.dumps(row) for row in rows]})
    (parsed,) = rows_in._parsed(iter([said]))
    numbered = parsed.append_column("shard", pa.array([0] * len(rows), pa.int32()))
    for at in range(0, len(rows), rows_each):
        yield numbered.slice(at, rows_each)


@pytest.mark.slow
@pytest.mark.parametrize("scenario", RABBITMQ)
def test_a_golden_node_comes_back_as_it_was_exported(tmp_path: Path, scenario: str) -> None:
    exported(tmp_path / "first", rabbitmq_node(scenario))
    first = [row for row in rows_of(tmp_path / "first") if row["position"] < 500]
    assert first
    (tmp_path / "outputs").mkdir()
    list(build(rows_in.rows_of(batches_of(first)), str(tmp_path / "outputs")))
    (node,) = (tmp_path / "outputs").iterdir()
    exported(tmp_path / "second", str(node))
    assert without(rows_of(tmp_path / "second"), *OF_THE_NODE) == without(first, *OF_THE_NODE)


def test_every_value_that_a_header_can_have_comes_back(tmp_path: Path) -> None:
    headers = {
        "deep": {"list": [True, None, "ж", 1.5, -1, 1 << 40, {"in": []}]},
        "raw": b"\xff\xfe",
        "says base64": {"base64": "aGVsbG8="},
        "": "",
    }
    queue = VhostOnDisk(tmp_path / "first").queue(b"odd \xff name")
    queue.journal(0, b"", keys=(b"a", b"b\xff"), headers=headers, content_type=b"\xff", timestamp=1_700_000_000)
    queue.journal(1, b"\0" * 9_000, priority=3, expiration="60000", headers={})
    exported(tmp_path / "lines", str(tmp_path / "first"))
    (tmp_path / "outputs").mkdir()
    list(build(rows_in.rows_of(batches_of(rows_of(tmp_path / "lines"))), str(tmp_path / "outputs")))
    (node,) = (tmp_path / "outputs").iterdir()
    exported(tmp_path / "again", str(node))
    assert without(rows_of(tmp_path / "again"), *OF_THE_NODE) == without(rows_of(tmp_path / "lines"), *OF_THE_NODE)


def test_levels_that_the_rows_name_are_queues_of_their_own(tmp_path: Path) -> None:
    """The rows of the table ``messages`` say the level, those of an export do not."""
    node = rabbitmq_node("11-clean-priority-queue")
    table = [row for row in read_rows("messages", node) if row["priority"] is not None]
    assert len({row["priority"] for row in table}) > 1
    names = [field.name for field in rows_in._ARROW]
    rows = [{name: row[name] for name in names} for row in table]
    rows.sort(key=lambda row: (row["vhost"], row["queue"], row["position"]))
    batch = pa.RecordBatch.from_pylist(rows, schema=rows_in._ARROW)
    (tmp_path / "outputs").mkdir()
    shards = pa.array([0] * len(rows), pa.int32())
    list(build(rows_in.rows_of([batch.append_column("shard", shards)]), str(tmp_path / "outputs")))
    (built,) = (tmp_path / "outputs").iterdir()
    loaded = read_rows("messages", str(built))
    assert [(row["queue"], row["priority"], row["position"], row["body"]) for row in loaded] == [
        (row["queue"], row["priority"], row["position"], row["body"]) for row in rows
    ]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("nonsense", "no line of warren spark export"),
        ('{"vhost": "/"}', "no line of warren spark export"),
        ('{"node": "/disks/a", "position": 0, "topic": "t"}', "/disks/a: messages of topics, which go into no queue"),
    ],
)
def test_lines_that_are_none_of_queues_are_refused(line: str, said: str) -> None:
    with pytest.raises(WarrenError, match=said):
        list(rows_in._parsed(iter([pa.RecordBatch.from_pydict({"value": [line]})])))


def test_settings_that_are_none_are_refused() -> None:
    assert engine_settings({"segment_entry_count": "512"}).segment_entry_count == 512
    for changes in ({"segment_entry_counts": "512"}, {"segment_entry_count": "many"}):
        with pytest.raises(WarrenError, match="segment_entry_count"):
            engine_settings(changes)


@pytest.mark.slow
@pytest.mark.spark
def test_spark_shards_an_export_over_nodes(spark: SparkSession, tmp_path: Path) -> None:
    sources = [rabbitmq_node(scenario) for scenario in RABBITMQ[:2]]
    exported(tmp_path / "lines", *sources)
    exported(tmp_path / "parquet", *sources, format="parquet")
    expected: dict[tuple[str, str], list[str]] = {}
    for row in rows_of(tmp_path / "lines"):  # queues of one name become one
        expected.setdefault((row["vhost"], row["queue"]), []).append(row["body_sha256"])
    for kind in ("lines", "parquet"):
        out = tmp_path / f"loaded-{kind}"
        result = warren("spark", "load", tmp_path / kind, "--nodes", "3", "--out", out, "--json")
        assert result.exit_code == 0, result.output
        said = json.loads(result.stdout)
        nodes = sorted(str(node) for node in out.iterdir())
        assert nodes == [node["node"] for node in said["nodes"]] == [f"{out}/node-{number}" for number in range(3)]
        exported(tmp_path / f"again-{kind}", *nodes)
        found: dict[tuple[str, str], list[str]] = {}
        homes: dict[tuple[str, str], set[str]] = {}
        for row in rows_of(tmp_path / f"again-{kind}"):
            found.setdefault((row["vhost"], row["queue"]), []).append(row["body_sha256"])
            homes.setdefault((row["vhost"], row["queue"]), set()).add(row["node"])
        assert found == expected
        assert all(len(of_queue) == 1 for of_queue in homes.values())
        assert said["messages"] == sum(map(len, expected.values()))


@pytest.mark.slow
@pytest.mark.spark
def test_topics_are_refused_in_one_line(spark: SparkSession, tmp_path: Path) -> None:
    for output_format, said in (("jsonl", "messages of topics"), ("parquet", "has no column vhost")):
        exported(tmp_path / output_format, rocketmq_node(ROCKETMQ[0]), format=output_format)
        result = warren("spark", "load", tmp_path / output_format, "--nodes", "1", "--out", tmp_path / "out")
        assert result.exit_code == 2
        (line,) = result.stderr.splitlines()
        assert said in line
        assert not (tmp_path / "out").exists()


@pytest.mark.broker
def test_a_broker_delivers_what_was_loaded(broker: Broker, tmp_path: Path) -> None:
    broker.start()
    for queue in ("small", "large"):
        broker.declare(queue)
        broker.publish(Message(bytes([n % 251]) * (n * (50 if queue == "large" else 1)), queue) for n in range(300))
    broker.stop()
    exported(tmp_path / "lines", str(broker.node_directory))
    (tmp_path / "outputs").mkdir()
    list(build(rows_in.rows_of(batches_of(rows_of(tmp_path / "lines"))), str(tmp_path / "outputs")))
    (built,) = (tmp_path / "outputs").iterdir()
    shutil.rmtree(broker.vhosts_directory)
    shutil.copytree(built / "msg_stores" / "vhosts", broker.vhosts_directory)
    broker.start()
    for queue in ("small", "large"):
        sent = [base64.b64decode(row["body"]) for row in rows_of(tmp_path / "lines") if row["queue"] == queue]
        assert len(sent) == 300
        assert [delivery.body for delivery in broker.drain(queue)] == sent
    broker.stop()
