"""Tables and jobs over classic, quorum queues and streams: what one machine answers, however they are cut."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual

from tests.support.classic_tools import VhostOnDisk
from tests.support.pipeline_tools import (
    GOLDEN,
    Row,
    by_a_task,
    check_messages,
    expected_lines,
    expected_rows,
    exported,
    golden_node,
    lines,
    noted,
    on_one_machine,
    read_rows,
    reported_on_one_machine,
    verified,
)
from tests.support.rabbitmq_golden import QUORUM, STREAMS, V1, V2, archives
from warren.pipeline.jobs import compact, verify
from warren.pipeline.jobs.inspect import QUEUE, STORE_FILE
from warren.queue_index.index import index_v2_format as v2
from warren.salvage.inspect import inspect_source
from warren.salvage.names import as_text, split_level, to_text
from warren.salvage.read_only import ReadOnlyFileSystem
from warren.salvage.source import open_source
from warren.storage.errors import DataError
from warren.storage.settings import Settings
from warren.tables import bodies
from warren.tables.places import find_nodes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

V1_ARCHIVES, V2_ARCHIVES, QUORUM_ARCHIVES, STREAM_ARCHIVES = map(archives, (V1, V2, QUORUM, STREAMS))


def each(found: list[Path]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "path", found, ids=lambda path: f"{path.parent.name.rpartition('-')[2]}-{path.name.removesuffix('.tar.gz')}"
    )


QUICK = [path for path in QUORUM_ARCHIVES if path.stat().st_size < 250_000]
"""Without those of long logs, which take a second or more to be replayed."""
LONG = [path for path in QUORUM_ARCHIVES if path not in QUICK]
every = each(V1_ARCHIVES + V2_ARCHIVES + QUORUM_ARCHIVES + STREAM_ARCHIVES)
most = each(V1_ARCHIVES + V2_ARCHIVES + QUICK + LONG[:1] + STREAM_ARCHIVES)


def the_one(folder: str, name: str) -> str:
    return golden_node(GOLDEN / folder / f"{name}.tar.gz")


@cache
def all_kinds() -> str:
    """A data directory with queues of all three kinds in one vhost."""
    classic, quorum = the_one(V2, "11-clean-policy-converted"), the_one(QUORUM, "01-clean-small-mixed")
    place = Path(classic).with_name("all-kinds")
    shutil.copytree(classic, place)
    shutil.copytree(Path(quorum) / "quorum", place / "quorum")
    return str(place)


@cache
def rows_of(table: str, node: str) -> list[Row]:
    """A table of a node that no test changes."""
    return read_rows(table, node)


@pytest.fixture(autouse=True, scope="module")
def stores() -> Iterator[None]:
    yield
    bodies.current_caches().forget()
    for cached in (rows_of, inspected, on_one_machine):
        cached.cache_clear()


@cache
def inspected(path: str) -> list[Row]:
    with closing(find_nodes([path])[0].place().queues()) as source:
        report = inspect_source(source)
    return [{"vhost": vhost["name"], **queue} for vhost in report["vhosts"] for queue in vhost["queues"]]


# ── tables ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@every
def test_messages_are_the_lines_of_the_export(path: Path) -> None:
    node = golden_node(path)
    rows = rows_of("messages", node)
    check_messages(rows, node)
    assert rows
    assert {row["delivery_count"] is None for row in rows} <= {path.parent.name != QUORUM}


@pytest.mark.slow
@each(V2_ARCHIVES + QUICK + STREAM_ARCHIVES)
def test_any_partitions_give_the_same_rows(path: Path) -> None:
    for table in ("messages", "index"):
        rows = rows_of(table, golden_node(path))
        assert read_rows(table, golden_node(path), partition_bytes=1, batch_bytes=5000) == rows


@pytest.mark.slow
@most
def test_queues_are_those_of_inspect(path: Path) -> None:
    node = golden_node(path)
    rows, expected = rows_of("queues", node), inspected(node)
    assert read_rows("queues", node, partition_bytes=1) == rows
    assert [(row["dir"], row["kind"]) for row in rows] == [(queue["dir"], queue["kind"]) for queue in expected]
    for row, queue in zip(rows, expected, strict=True):
        for column in ("ready", "bytes", "type", "vhost"):
            assert row[column] == as_text(queue[column]) if column == "vhost" else row[column] == queue[column]
        bare, level = split_level(queue["name"].encode("utf-8", "surrogateescape"))
        assert (row["queue"], row["priority"]) == (as_text(to_text(bare)), level)
        assert row["version"] == queue.get("version")
        assert json.loads(row["details"]).items() <= queue.items()
    messages = Counter((row["vhost"], row["queue"], row["priority"]) for row in rows_of("messages", node))
    assert messages == Counter({(row["vhost"], row["queue"], row["priority"]): row["ready"] for row in rows})


@pytest.mark.slow
@most
def test_findings_are_those_of_verify(path: Path) -> None:
    assert read_rows("findings", golden_node(path)) == verified(golden_node(path))


@pytest.mark.slow
@each(V2_ARCHIVES)
def test_the_index_of_version_2_has_the_numbers_of_inspect(path: Path) -> None:
    node = golden_node(path)
    rows = rows_of("index", node)
    for queue in inspected(node):
        bare, level = split_level(queue["name"].encode("utf-8", "surrogateescape"))
        its = [row for row in rows if (row["vhost"], row["queue"]) == (as_text(queue["vhost"]), as_text(to_text(bare)))]
        its = [row for row in its if row["priority"] == level]
        for segment in queue["segments"] if queue["version"] == 2 else ():
            here = [row for row in its if row["file"].endswith(f"/{segment['number']}.qi")]
            assert Counter(row["acked"] for row in here) == +Counter({False: segment["live"], True: segment["acked"]})
        assert [row["seq_id"] for row in its] == sorted({row["seq_id"] for row in its})
    read = {file: Path(file).read_bytes() for file in {row["file"] for row in rows}}
    for row in rows:
        if row["file"].endswith(".qi"):
            entry = v2.decode_entries(read[row["file"]][row["file_offset"] :][: v2.ENTRY_SIZE])[0]
            assert (entry["status"] == v2.MESSAGE, entry["size"]) == (not row["acked"], row["size"])
            assert int(entry["expiry_us"]) == (row["expiry_us"] or 0)
            assert row["msg_id"] in (None, entry["msg_id"].tobytes().hex())
            assert (row["msg_id"] is None) == (entry["location"] != v2.IN_VHOST_STORE)
            assert row["embedded"] == (entry["location"] == v2.IN_QUEUE_STORE)


@pytest.mark.slow
@each(QUICK + LONG[:1])
def test_the_index_of_a_quorum_queue_says_what_is_left_in_it(path: Path) -> None:
    node = golden_node(path)
    rows = rows_of("index", node)
    messages = {(row["vhost"], row["queue"], row["seq_id"]): row for row in rows_of("messages", node)}
    left = {(row["vhost"], row["queue"], row["seq_id"]): row for row in rows if not row["acked"]}
    assert left.keys() == messages.keys()
    for key, row in left.items():
        for column in ("msg_id", "persistent", "expiry_us", "size", "file", "file_offset"):
            assert row[column] == messages[key][column]
    for row in rows:
        assert (row["delivered"], row["embedded"], row["in_journal"]) == (None, True, False)
    data = {file: Path(file).read_bytes() for file in {row["file"] for row in rows}}
    for row in rows[:200]:
        body = messages.get((row["vhost"], row["queue"], row["seq_id"]), {"body": b""})["body"]
        assert body in data[row["file"]][row["file_offset"] :][: len(body) + 2000]


@pytest.mark.slow
def test_a_directory_with_all_three_kinds() -> None:
    node = all_kinds()
    rows = read_rows("queues", node)
    assert {row["kind"] for row in rows} == {"rabbitmq-classic-v1", "rabbitmq-classic-v2", "rabbitmq-quorum"}
    assert {(row["type"], row["version"]) for row in rows} == {("classic", 1), ("classic", 2), ("quorum", None)}
    for partition_bytes in (1, 40_000, 1 << 30):
        check_messages(read_rows("messages", node, partition_bytes=partition_bytes), node)
    assert read_rows("findings", node) == verified(node)
    assert {row["file"].rpartition(".")[2] for row in read_rows("index", node)} >= {"idx", "qi", "wal"}


def test_a_queue_that_was_being_converted_is_one_part(tmp_path: Path) -> None:
    place = tmp_path / "node"
    queue = VhostOnDisk(place).queue(b"q")
    for seq_id in range(12):
        queue.publish(seq_id, embedded=queue.message(seq_id, b"old %d" % seq_id), in_journal=seq_id > 9)
    message = queue.message(6, b"new 6")
    entries = bytes(6 * v2.ENTRY_SIZE) + v2.encode_entry(record=(v2.HEADER_SIZE, len(message)), size=5)
    (queue.path / "0.qi").write_bytes(v2.encode_header(v2.INDEX_MAGIC, 0) + entries)
    (queue.path / "0.qs").write_bytes(v2.encode_header(v2.STORE_MAGIC, 0) + v2.encode_record_v2(message))
    rows = read_rows("messages", str(place))
    assert [row["body"] for row in rows] == [b"%b %d" % (b"new" if n == 6 else b"old", n) for n in range(12)]
    for table in ("messages", "index", "queues"):
        rows = read_rows(table, str(place))
        assert read_rows(table, str(place), partition_bytes=1) == rows
        assert len(rows) == (1 if table == "queues" else 12)
    check_messages(read_rows("messages", str(place)), str(place))


# ── what is wanted, what is shared, damage ───────────────────────────────────────────────────────────────────────────


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return noted(monkeypatch, ReadOnlyFileSystem)


@pytest.mark.slow
def test_segments_of_version_2_that_are_not_wanted_are_not_read(opened: list[str]) -> None:
    node = the_one(V2, "04-crash-segments-4096")
    rows = rows_of("messages", node)
    wanted = [row for row in rows if row["seq_id"] >= 2 * v2.DEFAULT_ENTRIES]
    assert 0 < len(wanted) < len(rows)
    for partition_bytes in (1, 1 << 30):
        opened.clear()
        found = read_rows(
            "index", node, filters=[GreaterThanOrEqual(("seq_id",), 8192)], partition_bytes=partition_bytes
        )
        assert {row["seq_id"] for row in wanted} <= {row["seq_id"] for row in found}
        assert min(row["seq_id"] for row in found) >= 2 * v2.DEFAULT_ENTRIES
        found = read_rows(
            "messages", node, filters=[GreaterThanOrEqual(("seq_id",), 8192)], partition_bytes=partition_bytes
        )
        assert found == wanted


def test_a_filter_on_positions_cuts_nothing_of_a_quorum_queue_away() -> None:
    node = the_one(QUORUM, "01-clean-small-mixed")
    rows = rows_of("messages", node)
    assert read_rows("messages", node, filters=[GreaterThanOrEqual(("seq_id",), 50)]) == rows
    queue = rows[0]["queue"]
    some = read_rows("messages", node, filters=[EqualTo(("queue",), queue)])
    assert some == [row for row in rows if row["queue"] == queue]
    assert len(some) < len(rows)


def test_a_task_scans_a_write_ahead_log_once_for_all_of_its_queues(opened: list[str]) -> None:
    node = the_one(QUORUM, "08-crash-many-queues")
    logs = {str(path) for path in Path(node).rglob("*.wal")}

    def scans(table: str, **options: Any) -> int:
        opened.clear()
        read_rows(table, node, schema=None, **options)
        return min(opened.count(path) for path in logs)

    apart, together = scans("index", partition_bytes=1), scans("index")
    queues = len(read_rows("queues", node))
    assert queues > 5
    # What is left in a log is read by each queue, beside the scan.
    assert apart - together >= queues - 1


@pytest.mark.slow
def test_damage_of_either_kind_stops_where_it_shall(tmp_path: Path) -> None:
    place = tmp_path / "node"
    shutil.copytree(all_kinds(), place)
    rows = read_rows("index", str(place), mode="failfast")
    assert rows == read_rows("index", str(place))
    index = next(path for path in sorted(place.rglob("*.qi")) if path.stat().st_size > 100)
    whole = index.read_bytes()
    for spoiled in (b"XXXX" + whole[4:], whole[:-5]):
        index.write_bytes(spoiled)
        for table in ("queues", "index", "messages"):
            read_rows(table, str(place))
            with pytest.raises(DataError, match=index.name):
                read_rows(table, str(place), mode="failfast")
    index.write_bytes(whole)
    (log,) = place.rglob("*.wal")
    data = bytearray(log.read_bytes())
    data[len(data) // 2] ^= 0xFF
    log.write_bytes(data)
    for table in ("queues", "index", "messages"):
        assert read_rows(table, str(place))
        with pytest.raises(DataError, match=log.name):
            read_rows(table, str(place), mode="failfast")


def test_a_quorum_folder_alone_is_a_node(tmp_path: Path) -> None:
    place = tmp_path / "node"
    shutil.copytree(Path(the_one(QUORUM, "09-crash-restart-clean")) / "quorum", place / "quorum")
    for table in ("messages", "index", "queues"):
        assert read_rows(table, str(place))
    assert read_rows("store", str(place)) == []
    assert read_rows("findings", str(place)) == verified(str(place))


# ── jobs ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@pytest.mark.parametrize("partition_bytes", [1, 1 << 30])
def test_an_export_of_all_nodes_has_the_lines_of_the_single_machine(tmp_path: Path, partition_bytes: int) -> None:
    nodes = [*(golden_node(path) for path in V2_ARCHIVES + QUICK), all_kinds()]
    out = tmp_path / "out"
    summary = exported(out, *nodes, partition_bytes=partition_bytes)
    found = lines(out)
    assert found == expected_lines(*nodes)
    assert summary.messages == len(found)


def test_an_export_as_parquet_has_the_delivery_counts(tmp_path: Path) -> None:
    node = all_kinds()
    exported(tmp_path / "out", node, format="parquet", partition_bytes=20_000)
    rows = pq.read_table(tmp_path / "out").to_pylist()
    said = [json.loads(line) for line in expected_lines(node)]
    for column in ("node", "position", "queue", "seq_id", "msg_id", "size", "body_sha256", "redelivered"):
        assert [row[column] for row in rows] == [line[column] for line in said]
    assert [row["delivery_count"] for row in rows] == [line.get("delivery_count") for line in said]
    assert {row["delivery_count"] is None for row in rows} == {True, False}


def test_inspect_says_what_one_machine_says() -> None:
    for node in (all_kinds(), the_one(V2, "08-clean-vhost-unicode"), the_one(QUORUM, "06-crash-delivery-limit")):
        queues, stores = expected_rows(reported_on_one_machine(node))
        found = by_a_task(node)
        assert (found[QUEUE], found[STORE_FILE]) == (queues, stores)


def spoiled(place: Path) -> str:
    """The directory with all three kinds, with damage of each."""
    shutil.copytree(all_kinds(), place)
    for pattern, low in (("*.qs", 64), ("*.wal", 3000), ("*.idx", 40)):
        path = max(place.rglob(pattern), key=lambda path: path.stat().st_size)
        data = bytearray(path.read_bytes())
        for at in range(low, len(data), 1500):
            data[at] ^= 0xFF
        path.write_bytes(data)
    for path in place.rglob("msg_store_persistent/*.rdq"):
        path.write_bytes(path.read_bytes()[:-3000])
    return str(place)


@pytest.mark.slow
@pytest.mark.spark
def test_spark_reads_nodes_of_all_kinds_in_one_load_and_verifies_them(spark: SparkSession, tmp_path: Path) -> None:
    nodes = [all_kinds(), spoiled(tmp_path / "node"), the_one(QUORUM, "06-crash-delivery-limit")]
    for table, partition_bytes in (("index", 1 << 30), ("messages", 200_000)):
        reader = spark.read.format("warren").option("table", table).option("partition_bytes", partition_bytes)
        assert reader.load(nodes).toArrow().to_pylist() == read_rows(table, *nodes)
    with verify.findings(spark, find_nodes(nodes)) as (found, notes):
        rows = [row.asDict() for row in found.collect()]
    assert notes == []
    expected = [row for node in nodes for row in verified(node)]
    assert Counter(tuple(row.values()) for row in rows) == Counter(tuple(row.values()) for row in expected)
    damaged = {row["path"].rpartition(".")[2] for row in rows if row["severity"] == "damage"}
    assert damaged >= {"idx", "qi", "wal", "rdq"}


@pytest.mark.slow
@pytest.mark.spark
def test_compact_knows_what_queues_of_version_2_need(spark: SparkSession) -> None:
    nodes = [the_one(V2, "06-crash-fanout-shared"), all_kinds(), the_one(QUORUM, "05-clean-consumers")]
    found = compact.compacting(spark, find_nodes(nodes), Settings())
    assert found.problems == []
    needed: dict[tuple[str, str, str], list[Row]] = {}
    for node in nodes:
        with open_source(node) as source:
            for vhost in inspect_source(source)["vhosts"]:
                for store, said in vhost["stores"].items():
                    needed[node, as_text(vhost["name"]) or "", store] = said["files"]
    assert {(one["node"], one["vhost"], one["store"]): one["files"] for one in found.stores} == {
        key: files for key, files in needed.items() if files
    }
    stores: list[Row] = list(found.stores)
    assert sum(file["valid_bytes"] for one in stores for file in one["files"])
    assert all(one["known"] for one in found.stores)
