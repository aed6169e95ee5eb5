"""Columns with Spark's own types, the column ``_metadata``, and what definitions say of queues."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, LessThan
from pyspark.sql.types import StructType

import warren
from tests.support.classic_tools import VhostOnDisk
from tests.support.pipeline_tools import (
    GOLDEN,
    RABBITMQ,
    ROCKETMQ,
    Row,
    golden_node,
    noted,
    rabbitmq_node,
    read_rows,
    rocketmq_node,
)
from warren.pipeline.spark_source import WarrenSource
from warren.storage.errors import WarrenError
from warren.storage.filesystem import RealFileSystem
from warren.tables.schemas import QUEUES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
DEFINITIONS = sorted((GOLDEN / "rabbitmq-3.10.8-definitions").glob("*.tar.gz"))
QUORUM = sorted((GOLDEN / "rabbitmq-3.10.8-quorum").glob("*.tar.gz"))[0]


def after(number: int | None, unit_us: int) -> datetime | None:
    """The time that a number means."""
    return None if number is None else EPOCH + timedelta(microseconds=number * unit_us)


def mapped(text: str | None) -> list[tuple[str, str | None]] | None:
    """A JSON object as Arrow's maps come to Python."""
    if text is None:
        return None
    values = json.loads(text).items()
    return [(name, value if value is None or isinstance(value, str) else json.dumps(value)) for name, value in values]


# ── native types ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("scenario", [RABBITMQ[0], RABBITMQ[8], RABBITMQ[12]])
def test_messages_have_times_and_maps(scenario: str) -> None:
    rows, shown = (read_rows("messages", rabbitmq_node(scenario), native_types=native) for native in ("false", "true"))
    assert len(rows) == len(shown) > 0
    for row, native in zip(rows, shown, strict=True):
        assert native.pop("expiry") == after(row.pop("expiry_us"), 1)
        for name in ("properties", "headers"):
            assert native.pop(name) == mapped(row.pop(name))
        assert native == row


@pytest.mark.parametrize("scenario", ROCKETMQ[:2])
def test_records_and_index_items_have_times(scenario: str) -> None:
    path = rocketmq_node(scenario)
    for table, times in (("records", ("store_timestamp", "born_timestamp")), ("index_items", ("timestamp",))):
        rows, shown = read_rows(table, path), read_rows(table, path, nativeTypes="true")
        assert len(rows) == len(shown)
        for row, native in zip(rows, shown, strict=True):
            assert native == {**row, **{name: after(row[name], 1_000) for name in times}}


def test_a_time_that_spark_has_no_timestamp_for_is_null(tmp_path: Path) -> None:
    vhost = VhostOnDisk(tmp_path / "node")
    queue = vhost.queue(b"q")
    times = [0, 1, 253_402_300_799_999_999, 253_402_300_800_000_000, (1 << 64) - 1]
    for seq_id, expiry_us in enumerate(times):
        queue.publish(seq_id, b"body", embedded=queue.message(seq_id, b"body"), expiry_us=expiry_us)
    rows = read_rows("index", str(tmp_path / "node"), native_types="true")
    assert [row["expiry"] for row in rows] == [
        None, after(1, 1), datetime(9999, 12, 31, 23, 59, 59, 999_999, UTC), None, after(-1, 1),
    ]  # fmt: skip


def test_values_of_headers_are_texts_or_json(tmp_path: Path) -> None:
    headers = {"a": "text", "b": 7, "c": None, "d": [1, "x"], "e": {"f": True}, "g": "\u00fc"}
    with warren.open(str(tmp_path / "node")) as node:
        node.queue("q").publish(b"body", headers=headers).wait()
    (row,) = read_rows("messages", str(tmp_path / "node"), native_types="true")
    assert dict(row["headers"]) == {
        "a": "text", "b": "7", "c": None, "d": '[1, "x"]', "e": '{"f": true}', "g": "\u00fc",
    }  # fmt: skip


def test_a_filter_on_a_timestamp_leaves_rows_out() -> None:
    path = rocketmq_node(ROCKETMQ[0])
    rows = read_rows("records", path, native_types="true")
    times = sorted({row["store_timestamp"] for row in rows})
    middle = times[len(times) // 2]

    def filtered(predicate: Filter) -> list[Row]:
        return read_rows("records", path, native_types="true", filters=[predicate])

    assert filtered(EqualTo(("store_timestamp",), middle)) == [row for row in rows if row["store_timestamp"] == middle]
    assert filtered(GreaterThan(("store_timestamp",), times[-1] + timedelta(days=1))) == []
    assert {row["store_timestamp"] for row in filtered(LessThan(("store_timestamp",), middle))} >= set(
        times[: len(times) // 2]
    )
    assert filtered(LessThan(("store_timestamp",), EPOCH)) == []


def test_options_may_be_spelt_as_sparks_are() -> None:
    path = rabbitmq_node(RABBITMQ[0])
    rows = read_rows("queues", path, native_types="true")
    assert read_rows("queues", path, nativeTypes="TRUE", partitionBytes="1m") == rows
    with pytest.raises(WarrenError, match="option native_types is 'yes', not true or false"):
        read_rows("queues", path, nativeTypes="yes")


# ── metadata ─────────────────────────────────────────────────────────────────────────────────────────────────────────


NODES: dict[str, Callable[[], str]] = {
    "index": lambda: rabbitmq_node(RABBITMQ[0]),
    "store": lambda: rabbitmq_node(RABBITMQ[0]),
    "messages": lambda: golden_node(QUORUM),
    "records": lambda: rocketmq_node(ROCKETMQ[0]),
    "entries": lambda: rocketmq_node(ROCKETMQ[0]),
    "index_items": lambda: rocketmq_node(ROCKETMQ[0]),
}


@pytest.mark.parametrize("table", NODES)
def test_metadata_says_where_a_row_is_from(table: str) -> None:
    rows = read_rows(table, NODES[table](), include_metadata="true")
    assert rows
    for row in rows:
        metadata, file = row["_metadata"], Path(row["file"])
        status = file.stat()
        assert metadata == {
            "file_path": row["file"],
            "file_name": file.name,
            "file_size": status.st_size,
            "file_modification_time": after(status.st_mtime_ns // 1_000_000, 1_000),
            "file_offset": row["file_offset"],
        }


def test_metadata_alone_is_made_of_its_columns_and_filters_files(monkeypatch: pytest.MonkeyPatch) -> None:
    path = rabbitmq_node(next(scenario for scenario in RABBITMQ if "rollover" in scenario))
    source = WarrenSource({"table": "store", "path": path, "include_metadata": "true"})
    schema = StructType([source.schema()["_metadata"]])
    rows = read_rows("store", path, include_metadata="true", schema=schema)
    files = sorted({row["_metadata"]["file_path"] for row in rows})
    assert len(files) > 1
    opened = noted(monkeypatch, RealFileSystem)
    wanted = [EqualTo(("_metadata", "file_path"), files[0])]
    found = read_rows("store", path, include_metadata="true", schema=schema, filters=wanted)
    assert found == [row for row in rows if row["_metadata"]["file_path"] == files[0]]
    assert {name for name in opened if name.endswith(".rdq")} == {files[0]}


@pytest.mark.parametrize("table", ["queues", "findings"])
def test_a_row_that_is_from_no_single_file_has_no_metadata(table: str) -> None:
    with pytest.raises(WarrenError, match=f"include_metadata: a row of the table {table} is not from a single file"):
        read_rows(table, rabbitmq_node(RABBITMQ[0]), include_metadata="true")


@pytest.mark.spark
def test_spark_reads_and_filters_its_own_types(spark: SparkSession) -> None:
    reader = spark.read.format("warren").option("nativeTypes", "true").option("includeMetadata", "true")
    frame = reader.option("table", "records").load(rocketmq_node(ROCKETMQ[0]))
    expected = read_rows("records", rocketmq_node(ROCKETMQ[0]), native_types="true", include_metadata="true")
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    row = frame.selectExpr("min(store_timestamp) AS first", "count(DISTINCT _metadata.file_path) AS files").first()
    first = min(row["store_timestamp"] for row in expected)
    assert row is not None
    assert row.files == len({row["file"] for row in expected})
    later = frame.filter(f"store_timestamp > timestamp_micros({(first - EPOCH) // timedelta(microseconds=1)})")
    assert later.count() == sum(row["store_timestamp"] > first for row in expected)


# ── queues ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("archive", DEFINITIONS, ids=lambda archive: archive.name)
def test_queues_have_what_the_restarted_broker_said_of_them(archive: Path) -> None:
    document = json.loads(archive.with_name(archive.name.replace(".tar.gz", ".json")).read_bytes())
    queues: dict[tuple[str, str], Any] = {
        (queue["vhost"], queue["name"]): queue for queue in document["after_restart"]["queues"]
    }
    for row in read_rows("queues", golden_node(archive)):
        queue = queues.get((row["vhost"], row["queue"]))
        assert row["durable"] == (None if queue is None else queue["durable"])
        assert (row["arguments"] and json.loads(row["arguments"])) == (None if queue is None else queue["arguments"])


def test_queues_of_warrens_own_have_definitions_and_their_first_messages_time(tmp_path: Path) -> None:
    with warren.open(str(tmp_path / "node")) as node:
        orders = node.queue("orders", arguments={"x-message-ttl": 60_000_000})
        orders.publish(b"gone", timestamp=1_600_000_000).wait()
        message = orders.get()
        assert message is not None
        message.ack()
        orders.publish(b"first", timestamp=1_700_000_000).wait()
        orders.publish(b"second", timestamp=1_500_000_000).wait()
    rows = {row["queue"]: row for row in read_rows("queues", str(tmp_path / "node"))}
    assert rows["orders"]["durable"] is True
    assert json.loads(rows["orders"]["arguments"]) == {"x-message-ttl": 60_000_000}
    assert rows["orders"]["head_message_timestamp"] == 1_700_000_000
    (native,) = read_rows(
        "queues", str(tmp_path / "node"), filters=[EqualTo(("queue",), "orders")], native_types="true"
    )
    assert native["head_message_timestamp"] == after(1_700_000_000, 1_000_000)
    assert native["arguments"] == [("x-message-ttl", "60000000")]


@pytest.mark.parametrize(("scenario", "golden"), [(RABBITMQ[0], False), (RABBITMQ[10], False), (QUORUM, True)])
def test_the_first_messages_time_is_its_property(scenario: Any, golden: bool) -> None:
    path = golden_node(scenario) if golden else rabbitmq_node(scenario)
    firsts: dict[tuple[str, str, int | None], Row] = {}
    for row in read_rows("messages", path):
        firsts.setdefault((row["vhost"], row["queue"], row["priority"]), row)
    for row in read_rows("queues", path):
        first = firsts.get((row["vhost"], row["queue"], row["priority"]))
        expected = None if first is None else json.loads(first["properties"]).get("timestamp")
        assert row["head_message_timestamp"] == expected
        assert (row["durable"], row["arguments"]) == (None, None) or golden


def test_definitions_are_read_only_for_their_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warren.tables.queues._definitions", None)
    source = WarrenSource({"table": "queues", "path": "/"})
    schema = StructType([field for field in source.schema() if field.name not in ("durable", "arguments")])
    rows = read_rows("queues", rabbitmq_node(RABBITMQ[0]), schema=schema)
    assert [*rows[0]] == [name for name in QUEUES.names if name not in ("durable", "arguments")]
