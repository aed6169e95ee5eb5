"""What a plan says of its size: the files and bytes that a scan may read, of all that it would read without filters."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.datasource import EqualTo, Filter, GreaterThanOrEqual, In

from tests.support.classic_tools import ENTRIES, VhostOnDisk
from tests.support.pipeline_tools import (
    GOLDEN,
    RABBITMQ,
    ROCKETMQ,
    golden_node,
    noted,
    rabbitmq_node,
    read_rows,
    rocketmq_node,
)
from warren.pipeline.spark_source import WarrenSource
from warren.storage.filesystem import RealFileSystem

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DATA = (".idx", ".qi", ".qs", ".rdq", ".rdt", ".jif", ".wal", ".segment")
"""What a table's rows are read from, of a RabbitMQ's files."""


def sizes(caplog: pytest.LogCaptureFixture) -> tuple[int, int, int, int]:
    """Files, all files, bytes and all bytes of the only scan since the last call."""
    (record,) = (record for record in caplog.records if getattr(record, "event", "") == "scan_planned")
    fields: dict[str, Any] = vars(record)
    caplog.clear()
    return fields["files"], fields["all_files"], fields["bytes"], fields["all_bytes"]


def planned(
    caplog: pytest.LogCaptureFixture, table: str, path: str, *filters: Filter, **options: str
) -> tuple[int, int, int, int]:
    """The sizes that a plan logs."""
    caplog.set_level(logging.INFO, "warren.tables")
    source = WarrenSource({"table": table, "path": path, **options})
    reader = source.reader(source.schema())
    list(reader.pushFilters(list(filters)))
    reader.partitions()
    return sizes(caplog)


def size_of(files: Sequence[Path]) -> tuple[int, int]:
    return len(files), sum(file.stat().st_size for file in files)


def filled(place: Path) -> str:
    """Three queues of three segments each, whose messages are in the index or in one of two files of the store."""
    vhost = VhostOnDisk(place, entries=ENTRIES)
    for name in (b"a", b"b", b"c"):
        queue = vhost.queue(name)
        for seq_id in range(2 * ENTRIES + 1):
            message = queue.message(seq_id, b"body")
            queue.publish(seq_id, b"body", embedded=None if seq_id % 2 else message)
            if seq_id % 2:
                vhost.store(seq_id % 4 // 2, queue.msg_id(seq_id), message)
    return str(place)


GOLDEN_NODES = [
    *(pytest.param(rabbitmq_node, scenario, id=scenario) for scenario in RABBITMQ[::4]),
    *(
        pytest.param(golden_node, archive, id=archive.name)
        for kind in ("cqv2", "quorum", "streams")
        for archive in sorted((GOLDEN / f"rabbitmq-3.10.8-{kind}").glob("*.tar.gz"))[:2]
    ),
]


@pytest.mark.parametrize(("node_of", "which"), GOLDEN_NODES)
@pytest.mark.parametrize("table", ["queues", "index", "store", "messages", "findings"])
def test_a_scan_opens_no_file_that_its_plan_did_not_count(
    node_of: Any, which: Any, table: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = node_of(which)
    opened = noted(monkeypatch, RealFileSystem)
    caplog.set_level(logging.INFO, "warren.tables")
    read_rows(table, path)
    files, all_files, byte_count, all_bytes = sizes(caplog)
    data = {Path(name) for name in opened if name.endswith(DATA)}
    assert (files, byte_count) == (all_files, all_bytes)
    assert len(data) <= files
    assert sum(file.stat().st_size for file in data) <= byte_count


def test_all_files_of_a_table_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = filled(tmp_path / "node")
    index = [*tmp_path.rglob("*.idx"), *tmp_path.rglob("*.jif")]
    store = list(tmp_path.rglob("*.rdq"))
    for table, files in (("index", index), ("store", store), ("queues", index + store), ("messages", index + store)):
        count, byte_count = size_of(files)
        for options in ({}, {"partition_bytes": "1"}):
            assert planned(caplog, table, path, **options) == (count, count, byte_count, byte_count)


def test_a_filter_on_queues_or_files_reads_a_part(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = filled(tmp_path / "node")
    (directory,) = (name.parent for name in tmp_path.rglob(".queue_name") if b"QUEUE: a" in name.read_bytes())
    own = size_of([*directory.glob("*.idx"), *directory.glob("*.jif")])
    files, all_files, byte_count, all_bytes = planned(caplog, "index", path, EqualTo(("queue",), "a"))
    assert ((files, byte_count), all_files) == (own, 3 * own[0])
    assert byte_count < all_bytes
    store = size_of(list(tmp_path.rglob("*.rdq")))
    files, _, byte_count, _ = planned(caplog, "messages", path, EqualTo(("queue",), "a"))
    assert (files, byte_count) == (own[0] + store[0], own[1] + store[1])
    (first, *_) = tmp_path.rglob("*.rdq")
    assert planned(caplog, "store", path, EqualTo(("file",), str(first))) == (
        1, store[0], first.stat().st_size, store[1],
    )  # fmt: skip
    assert planned(caplog, "store", path, In(("node",), ("another",)))[0::2] == (0, 0)


def test_segments_that_only_positions_need_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = filled(tmp_path / "node")
    last = GreaterThanOrEqual(("seq_id",), 2 * ENTRIES)
    segments = planned(caplog, "index", path, last)
    assert segments[:2] == (3 * 2, 3 * 4)  # of each queue the last segment and the journal
    assert planned(caplog, "messages", path, last)[0] == planned(caplog, "messages", path)[0]


@pytest.mark.parametrize("scenario", ROCKETMQ[:3])
def test_topics_count_the_parts_of_files_that_hold_something(scenario: str, caplog: pytest.LogCaptureFixture) -> None:
    path = rocketmq_node(scenario)
    for table in ("records", "entries", "index_items", "offsets"):
        files, all_files, byte_count, all_bytes = planned(caplog, table, path)
        assert (files, byte_count) == (all_files, all_bytes)
        on_disk = sum(file.stat().st_size for file in Path(path).rglob("*") if file.is_file())
        assert 0 <= byte_count <= on_disk
    rows = read_rows("records", path)
    caplog.clear()
    half = rows[len(rows) // 2]["physical_offset"]
    whole = planned(caplog, "records", path)
    part = planned(caplog, "records", path, GreaterThanOrEqual(("physical_offset",), half))
    assert part[3] == whole[3]
    assert part[2] == whole[2] - (half - rows[0]["physical_offset"])


def test_without_a_listener_nothing_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    logging.getLogger("warren.tables").setLevel(logging.NOTSET)
    monkeypatch.setattr("warren.tables.table.ScanSize.add", None)
    assert read_rows("queues", rabbitmq_node(RABBITMQ[0]))


@pytest.mark.spark
def test_spark_has_one_line_of_each_scan_among_its_workers_logs(spark: SparkSession, tmp_path: Path) -> None:
    path = filled(tmp_path / "node")
    spark.conf.set("spark.sql.pyspark.worker.logging.enabled", "true")
    try:
        frame = spark.read.format("warren").option("table", "index").load(path).filter("queue = 'b'")
        assert frame.count() == 2 * ENTRIES + 1
        logs = spark.tvf.python_worker_logs().filter("logger = 'warren.tables'")
        lines = [row.msg for row in logs.collect()]
    finally:
        spark.conf.unset("spark.sql.pyspark.worker.logging.enabled")
    assert len(lines) == 1
    assert lines[0].startswith("scan of index: ")
