"""Tables of RocketMQ's stores: the answers of the single-machine commands, wherever the files are cut."""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import os
import pickle
import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, GreaterThanOrEqual, In, LessThan

from tests.support import rocketmq_golden as golden
from tests.support.effort import every, times
from tests.support.pipeline_tools import RABBITMQ, ROCKETMQ, Row, noted, rabbitmq_node, read_rows, rocketmq_node
from tests.support.topic_tools import RECORD
from warren.actors.engines.topics.store_opening import load_store
from warren.msg_store.commit_log.commit_log import Batch
from warren.msg_store.commit_log.commit_log_format import Host, Record, decode_properties, encode, encode_blank
from warren.msg_store.commit_log.record_check import Failure
from warren.msg_store.commit_log.record_search import RecordSearch
from warren.pipeline.jobs.running import load
from warren.pipeline.jobs.surveys import survey_node
from warren.pipeline.shown_columns import ShownTable
from warren.pipeline.spark_schemas import RECORDS
from warren.pipeline.spark_source import TableReader
from warren.salvage.queue_directory import Finding
from warren.salvage.rocketmq.record_lines import record_line
from warren.salvage.rocketmq.rocketmq_store import RocketmqStore, open_rocketmq
from warren.salvage.rocketmq.store_inspection import inspect_store
from warren.salvage.rocketmq.store_reading import queue_entries, scan_records
from warren.storage.errors import DataError, WarrenError
from warren.storage.filesystem import RealFileSystem
from warren.storage.topic_settings import ROCKETMQ_4_9, TopicSettings
from warren.tables.pipeline_errors import PipelineError
from warren.tables.places import find_nodes
from warren.tables.property_maps import PropertyMaps
from warren.tables.read_options import ReadOptions
from warren.tables.survey import Survey, survey, to_option

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Settings = dict[str, str]

FILES = RealFileSystem(16)
SEED = 20260711
V4, V6 = Host.parse("10.1.2.3:50123"), Host.parse("[2001:db8:0:0:0:0:0:1]:50555")


# ── what the commands of one machine say ─────────────────────────────────────────────────────────────────────────────


def assert_tables_agree(path: str, changes: Settings, **options: Any) -> None:
    said = ",".join(f"{name}={value}" for name, value in changes.items())
    with open_rocketmq(path, changes) as opened:
        assert scanned(read_rows("records", path, set=said, raw_bodies="true", **options)) == scan(opened)
        assert listed(read_rows("entries", path, set=said, **options)) == entries(opened)
        assert numbered(read_rows("index_items", path, set=said, **options)) == items(opened)
        groups = inspect_store(opened, lambda _: None, lambda _: None)["groups"]
    fields = ("topic", "group", "queue_id", "offset", "lag")
    assert [{name: row[name] for name in fields} for row in read_rows("offsets", path, set=said)] == groups


def scan(opened: RocketmqStore) -> list[Row]:
    return [json.loads(record_line(item)) for item in scan_records(opened) if isinstance(item, Record)]


def scanned(rows: list[Row]) -> list[Row]:
    """Rows as ``warren topic scan`` writes them; what it does not write is checked here."""
    lines = []
    for row in rows:
        body = row["body"]
        if row["file"] is not None and row["node"] in row["file"]:
            base = int(os.path.basename(row["file"]))
            with open(row["file"], "rb") as file:
                file.seek(row["file_offset"])
                head = file.read(40)
            assert int.from_bytes(head[28:36], "big") == row["physical_offset"]
            assert int.from_bytes(head[8:12], "big") == row["body_crc"]
            assert base + row["file_offset"] <= base + os.path.getsize(row["file"])
        line = {name: row[name] for name in row if name not in NOT_SCANNED}
        line["properties"] = dict(row["properties"])
        line["body"] = base64.b64encode(body).decode()
        line["body_sha256"] = hashlib.sha256(body).hexdigest()
        lines.append(line)
    return lines


NOT_SCANNED = {"node", "file", "file_offset", "body_crc", "prepared_transaction_offset"}


def entries(opened: RocketmqStore) -> list[tuple[Any, ...]]:
    return sorted(
        (topic, queue_id, *entry)
        for (topic, queue_id), queue in opened.store.queues.items()
        for entry in queue_entries(queue, None, None)
        if not isinstance(entry, Finding)
    )


def listed(rows: list[Row]) -> list[tuple[Any, ...]]:
    """Rows of entries, sorted: those of a recovery come last."""
    names = ("topic", "queue_id", "queue_offset", "physical_offset", "size", "tags_code")
    return sorted(tuple(row[name] for name in names) for row in rows)


def items(opened: RocketmqStore) -> list[tuple[int, ...]]:
    found: list[tuple[int, ...]] = []
    for file in opened.store.index.index_files:
        begin, slots = file.header.begin_timestamp, file.layout.slot_count
        for number, (key_hash, physical_offset, seconds, previous) in enumerate(file.items().tolist(), 1):
            time = begin + 1000 * seconds
            found.append((number, key_hash % slots, key_hash, physical_offset, seconds, time, previous))
    return found


def numbered(rows: list[Row]) -> list[tuple[int, ...]]:
    names = ("position", "slot", "key_hash", "physical_offset", "time_diff", "timestamp", "previous")
    return [tuple(row[name] for name in names) for row in rows]


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ROCKETMQ)
def test_every_table_of_a_golden_store_is_what_the_commands_say(scenario: str) -> None:
    assert_tables_agree(rocketmq_node(scenario), {})
    assert_tables_agree(rocketmq_node(scenario), {}, partition_bytes=5000, batch_bytes=700)


@pytest.mark.parametrize("scenario", [name for name in ROCKETMQ if "after" in golden.manifest(name)])
def test_every_table_of_a_golden_store_after_its_recovery_is_what_the_commands_say(scenario: str) -> None:
    assert_tables_agree(golden.directory(scenario, "after"), {}, partition_bytes=9000)


VARIANTS = [(name, variant) for name in ROCKETMQ for variant in golden.manifest(name).get("variants", [])]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scenario", "variant"), VARIANTS, ids=[f"{name}-{variant['name']}" for name, variant in VARIANTS]
)
def test_every_table_of_a_damaged_store_is_what_the_commands_say(
    scenario: str, variant: dict[str, Any], tmp_path: Path
) -> None:
    place = str(tmp_path / "store")
    shutil.copytree(golden.directory(scenario), place)
    for step in variant["patch"]:
        golden.apply_step(FILES, place, step)
    changes = {name: str(value).lower() for name, value in variant["configOverride"].items()}
    if (refusal := refused(place, changes)) is None:
        assert_tables_agree(place, changes, partition_bytes=20_000)
        return
    for table in ("records", "entries", "index_items", "offsets"):
        with pytest.raises(WarrenError) as error:
            read_rows(table, place)
        assert str(error.value) == refusal


def refused(path: str, changes: Settings) -> str | None:
    """Return the error text if RocketMQ would not open the store."""
    try:
        with open_rocketmq(path, changes):
            return None
    except WarrenError as error:
        return str(error)


# ── wherever the files are cut ───────────────────────────────────────────────────────────────────────────────────────

FILE_BYTES = 16 << 10
LARGEST = 900


def record(at: int, generator: random.Random, number: int) -> bytes:
    """One that lies at ``at``; its body may hold copies of records, with the physical offsets where they then lie."""
    born, stored = generator.choice((V4, V6)), generator.choice((V4, V4, V6))
    flags = 0x10 * born.is_v6 | 0x20 * stored.is_v6
    body = generator.randbytes(generator.choice((0, 1, 40, 300)))
    if generator.random() < 0.3:
        body_at = at + 88 + 12 * born.is_v6 + 12 * stored.is_v6
        inner = inner_record(body_at + len(body), generator)
        body += inner
        if generator.random() < 0.5:
            body += inner_record(body_at + len(body), generator)
    made = attrs.evolve(
        RECORD,
        topic=generator.choice(("T", "orders", "é")),
        queue_id=generator.randrange(3),
        queue_offset=number,
        physical_offset=at,
        store_timestamp=1_700_000_000_000 + number,
        born_timestamp=1_600_000_000_000 + number,
        born_host=born,
        store_host=stored,
        sys_flag=flags,
        flag=number,
        reconsume_times=number % 3,
        prepared_transaction_offset=number,
        body=body,
        properties=generator.choice((b"", b"TAGS\x01a", b"KEYS\x01k 1\x02TAGS\x01b\x02", b"\xff\x01x\x02TAGS\x01\xc3")),
    )
    return encode(made)


def inner_record(at: int, generator: random.Random) -> bytes:
    body = generator.randbytes(generator.choice((0, 30)))
    return encode(attrs.evolve(RECORD, topic="fake", queue_id=9, physical_offset=at, store_timestamp=5, body=body))


@attrs.frozen
class Log:
    """A file of records, and where they lie."""

    data: bytearray
    base: int
    positions: list[int]


def log_file(base: int, generator: random.Random, *, is_passed: bool) -> Log:
    """One file; a passed one ends in a blank, followed by old records; in another one the last record may be torn."""
    data, positions, number = bytearray(), [], 0
    while True:
        made = record(base + len(data), generator, number)
        if len(data) + len(made) + 8 > FILE_BYTES:
            break
        positions.append(base + len(data))
        data += made
        number += 1
    left = FILE_BYTES - len(data)
    if is_passed:
        data += encode_blank(left)
        while len(data) + 200 < FILE_BYTES:
            data += inner_record(base + len(data), generator)
    else:
        data += record(base + len(data), generator, number)[: generator.randrange(left)]
    return Log(bytearray(data[:FILE_BYTES].ljust(FILE_BYTES, b"\0")), base, positions)


def found_in(log: Log, cuts: list[int], lookback: int, window: int) -> tuple[list[int], list[Failure]]:
    """Where records and failures are found when the file is cut there."""

    def read(at: int, size: int) -> bytes:
        return bytes(log.data[at - log.base : at - log.base + size])

    end = log.base + FILE_BYTES
    positions: list[int] = []
    failures = []
    for low, high in zip([log.base, *cuts], [*cuts, end], strict=True):
        search = RecordSearch(
            read=read, begin=log.base, end=end, file_end=end, lookback_bytes=lookback, window_bytes=window
        )
        for item in search.records(low, high):
            if isinstance(item, Failure):
                failures.append(item)
            else:
                positions += item.positions.tolist()
    return positions, failures


damages = st.lists(
    st.tuples(st.integers(0, FILE_BYTES - 1), st.integers(1, 1500), st.sampled_from(["zeros", "noise", "one byte"])),
    max_size=3,
)
some_cuts = st.lists(st.integers(1, FILE_BYTES - 1), unique=True, max_size=30).map(sorted)


@settings(max_examples=times(150))
@given(
    seed=st.integers(0, 1 << 32),
    is_passed=st.booleans(),
    cuts=some_cuts,
    damage=damages,
    window=st.sampled_from([64, 500, 5000, 1 << 20]),
)
def test_records_are_the_same_wherever_a_file_is_cut(
    seed: int, is_passed: bool, cuts: list[int], damage: list[tuple[int, int, str]], window: int
) -> None:
    generator = random.Random(seed)
    log = log_file(generator.choice((0, 5 * FILE_BYTES)), generator, is_passed=is_passed)
    sound = bytes(log.data)
    for at, longest, how in damage:
        size = 1 if how == "one byte" else min(longest, FILE_BYTES - at)
        log.data[at : at + size] = bytes(size) if how == "zeros" else generator.randbytes(size)
    whole = found_in(log, [], 1 << 20, 1 << 20)
    assert found_in(log, [log.base + cut for cut in cuts], 2 * LARGEST, window) == whole
    if log.data == sound:
        assert whole[0][: len(log.positions)] == log.positions
        assert len(whole[0]) == len(log.positions) or not is_passed
        assert bool(whole[1]) == (not is_passed)
    changed = np.flatnonzero(np.frombuffer(sound, "u1") != np.frombuffer(log.data, "u1")) + log.base
    stops = [*log.positions[1:], log.positions[-1] + int.from_bytes(sound[log.positions[-1] - log.base :][:4], "big")]
    for position, stop in zip(log.positions, stops, strict=True):
        if not ((changed >= position) & (changed < stop)).any():
            assert position in whole[0]


def test_a_false_record_in_a_body_larger_than_the_range_is_not_taken() -> None:
    outer = bytearray()
    inner_at = 88 + 20_000
    while len(outer) < 30_000:
        outer += inner_record(inner_at + len(outer), random.Random(1))
    first = attrs.evolve(RECORD, body=bytes(20_000) + bytes(outer))
    log = encode(first)
    second_at = len(log)
    log += encode(attrs.evolve(RECORD, physical_offset=second_at))

    def read(at: int, size: int) -> bytes:
        return log[at : at + size]

    search = RecordSearch(read=read, begin=0, end=len(log), file_end=1 << 20, lookback_bytes=2 * second_at)
    found = [search.records(low, low + 100) for low in range(0, len(log), 100)]
    stretches = [item for each in found for item in each]
    assert [int(item.positions[0]) for item in stretches if not isinstance(item, Failure)] == [
        0,
        second_at,
    ]
    assert len(stretches) == 2


def test_where_no_record_says_where_it_lies_the_search_goes_back_to_the_begin_of_the_file() -> None:
    log = b"".join(encode(attrs.evolve(RECORD, physical_offset=7, queue_offset=number)) for number in range(300))
    size = len(log) // 300

    def read(at: int, size: int) -> bytes:
        return log[at : at + size]

    search = RecordSearch(read=read, begin=0, end=len(log), file_end=1 << 20, lookback_bytes=500)
    (stretch,) = search.records(100 * size - 5, 101 * size)
    assert not isinstance(stretch, Failure)
    assert stretch.positions.tolist() == [100 * size]


# ── a store of our own ───────────────────────────────────────────────────────────────────────────────────────────────

SMALL: TopicSettings = attrs.evolve(
    ROCKETMQ_4_9,
    mapped_file_size_commit_log=FILE_BYTES,
    mapped_file_size_consume_queue=20 * 20,
    max_hash_slot_num=11,
    max_index_num=50,
    max_message_size=2000,
)
_STORES = tempfile.TemporaryDirectory(prefix="warren-stores-")


@functools.cache
def small_store(minutes_apart: int) -> str:
    """Eight CommitLog files of about fifty messages, stored ``minutes_apart`` and a millisecond; do not change them."""
    place = f"{_STORES.name}/{minutes_apart}"
    generator = random.Random(SEED)
    names = iter(range(20_260_101_000_000_000, 20_260_102_000_000_000))
    store = load_store(FILES, place, SMALL, new_index_name=lambda: str(next(names)))
    store.start()
    for number in range(400):
        born, stored = generator.choice((V4, V6)), V4
        batch = Batch(
            topic=generator.choice(("T", "orders")),
            queue_id=generator.randrange(2),
            bodies=[generator.randbytes(generator.randrange(400))],
            properties=f"KEYS\x01k{number}\x02TAGS\x01t{number % 3}".encode(),
            born_timestamp=number,
            born_host=born,
            store_host=stored,
        )
        store.append(batch, 1_700_000_000_000 + number * (1 + minutes_apart * 60_000))
        store.dispatch()
    store.close()
    return place


@pytest.fixture
def store(tmp_path: Path) -> str:
    """One that may be changed."""
    return shutil.copytree(small_store(0), str(tmp_path / "store"))


@pytest.mark.slow
def test_any_partition_and_batch_bytes_give_the_same_rows(store: str) -> None:
    assert_tables_agree(store, {"maxMessageSize": "2000"})
    with open_rocketmq(store, {}) as opened:
        whole = scan(opened)
    assert len(whole) == 400
    for partition_bytes, batch_bytes in ((3000, 1), (7777, 300), (1 << 30, 100)):
        rows = read_rows(
            "records", store, set="maxMessageSize=2000", partition_bytes=partition_bytes, batch_bytes=batch_bytes
        )
        assert scanned(rows) == whole, (partition_bytes, batch_bytes)


@pytest.mark.slow
def test_rows_go_on_behind_damage_within_the_same_file(store: str) -> None:
    before = read_rows("records", store)
    hit = next(row for row in before if row["physical_offset"] > FILE_BYTES + 3000)
    with open(hit["file"], "r+b") as file:
        file.seek(hit["file_offset"])
        file.write(b"\xff" * 50)
    rows = read_rows("records", store)
    assert rows == [row for row in before if row["physical_offset"] != hit["physical_offset"]]
    assert read_rows("records", store, partition_bytes=900, set="maxMessageSize=2000") == rows
    with open_rocketmq(store, {}) as opened:
        lines = scan(opened)
    assert len(lines) < len(rows)
    assert [line for line in scanned(rows) if line in lines] == lines


def test_failfast_stops_at_damage_with_file_and_offset(store: str) -> None:
    hit = next(row for row in read_rows("records", store) if row["physical_offset"] > FILE_BYTES + 3000)
    with open(hit["file"], "r+b") as file:
        file.seek(hit["file_offset"] + 4)
        file.write(b"\xff" * 4)
    with pytest.raises(DataError) as error:
        read_rows("records", store, mode="failfast")
    said = f"{hit['file']}, offset {hit['file_offset']}: its magic is 0xFFFFFFFF"
    assert str(error.value) == said


def test_failfast_stops_where_a_file_is_missing(store: str) -> None:
    rows = read_rows("records", store)
    os.unlink(f"{store}/commitlog/{FILE_BYTES:020d}")
    left = [row for row in rows if not FILE_BYTES <= row["physical_offset"] < 2 * FILE_BYTES]
    assert read_rows("records", store) == left
    with pytest.raises(DataError, match="no file for the 16384 bytes from 16384 to 32768"):
        read_rows("records", store, mode="failfast")


def test_failfast_stops_where_a_file_of_entries_is_missing(store: str) -> None:
    names = sorted(os.listdir(f"{store}/consumequeue/T/0"))
    assert len(names) > 4
    os.unlink(f"{store}/consumequeue/T/0/{names[1]}")
    assert_tables_agree(store, {})
    with pytest.raises(DataError, match=r"the file with the entries from queue offset 20 on is missing"):
        read_rows("entries", store, mode="failfast")


def test_failfast_stops_where_consumer_offsets_cannot_be_read(store: str) -> None:
    os.makedirs(f"{store}/config", exist_ok=True)
    Path(f"{store}/config/consumerOffset.json").write_bytes(b"{nonsense")
    assert read_rows("offsets", store) == []
    with pytest.raises(DataError, match=r"consumerOffset\.json"):
        read_rows("offsets", store, mode="failfast")


def test_without_bodies_the_bodies_are_null_and_all_else_is_there(store: str) -> None:
    with_bodies, without = read_rows("records", store), read_rows("records", store, bodies="false")
    assert without == [{**row, "body": None} for row in with_bodies]


def test_a_body_whose_sum_is_wrong_is_a_row_that_says_so(store: str) -> None:
    hit = next(row for row in read_rows("records", store) if row["physical_offset"] > FILE_BYTES and row["body"])
    with open(hit["file"], "r+b") as file:
        file.seek(hit["file_offset"] + hit["size"] - 1)
        place = Path(hit["file"]).read_bytes().index(hit["body"], hit["file_offset"])
        file.seek(place)
        file.write(bytes([hit["body"][0] ^ 1]))
    bad = [row for row in read_rows("records", store) if not row["crc_ok"]]
    assert [row["physical_offset"] for row in bad] == [hit["physical_offset"]]
    assert bad[0]["body_crc"] == hit["body_crc"]


# ── filters ──────────────────────────────────────────────────────────────────────────────────────────────────────────


FILTERS: list[tuple[str, list[Filter], Any]] = [
    ("records", [EqualTo(("topic",), "orders")], lambda row: row["topic"] == "orders"),
    ("records", [In(("queue_id",), (1, 7))], lambda row: row["queue_id"] == 1),
    (
        "records",
        [EqualTo(("topic",), "T"), GreaterThan(("queue_offset",), 20), LessThan(("queue_offset",), 40)],
        lambda row: row["topic"] == "T" and 20 < row["queue_offset"] < 40,
    ),
    ("records", [EqualTo(("physical_offset",), 3)], lambda row: row["physical_offset"] == 3),
    (
        "records",
        [GreaterThanOrEqual(("physical_offset",), 40_000), LessThan(("physical_offset",), 50_000)],
        lambda row: 40_000 <= row["physical_offset"] < 50_000,
    ),
    ("records", [EqualTo(("store_timestamp",), 1_700_000_000_100)], lambda row: row["store_timestamp"] % 1000 == 100),
    ("records", [EqualTo(("node",), "elsewhere")], lambda row: False),
    (
        "entries",
        [EqualTo(("topic",), "T"), EqualTo(("queue_id",), 1)],
        lambda row: (row["topic"], row["queue_id"]) == ("T", 1),
    ),
    ("entries", [In(("queue_offset",), (3, 77))], lambda row: row["queue_offset"] in (3, 77)),
    ("entries", [GreaterThan(("physical_offset",), 60_000)], lambda row: row["physical_offset"] > 60_000),
    ("index_items", [GreaterThan(("physical_offset",), 60_000)], lambda row: row["physical_offset"] > 60_000),
]


@pytest.mark.slow
@pytest.mark.parametrize(("table", "filters", "is_wanted"), FILTERS, ids=[str(each[:2]) for each in FILTERS])
def test_a_filter_loses_no_row_that_it_wants(table: str, filters: list[Filter], is_wanted: Any, store: str) -> None:
    rows = read_rows(table, store, partition_bytes=3000, set="maxMessageSize=2000", filters=filters)
    whole = read_rows(table, store)
    assert [row for row in rows if is_wanted(row)] == [row for row in whole if is_wanted(row)]
    assert len(rows) < len(whole)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return noted(monkeypatch, RealFileSystem)


def surveyed(path: str) -> str:
    (node,) = find_nodes([path])
    return to_option([survey(node, {"maxMessageSize": "2000"})])


def test_a_filter_on_physical_offsets_opens_no_other_file(store: str, opened: list[str]) -> None:
    known = surveyed(store)
    opened.clear()
    low, high = 2 * FILE_BYTES + 100, 3 * FILE_BYTES - 1
    filters: list[Filter] = [GreaterThan(("physical_offset",), low), LessThan(("physical_offset",), high)]
    rows = read_rows("records", store, filters=filters, survey=known)
    assert rows
    assert set(opened) == {f"{store}/commitlog/{2 * FILE_BYTES:020d}"}
    low = 2 * FILE_BYTES + 6500
    tasks = TableReader(ShownTable("records"), options_of(store, known), RECORDS)
    tasks.pushFilters([EqualTo(("physical_offset",), low)])
    (task,) = tasks.partitions()
    assert [(work.start, work.stop) for work in task.value.work] == [(low, low + 1)]


def options_of(path: str, known: str, **options: str) -> ReadOptions:
    return ReadOptions.of({"path": path, "table": "records", "survey": known, **options})


def test_a_filter_on_times_reads_only_the_first_record_of_other_files(opened: list[str]) -> None:
    store = small_store(10)
    known, whole = surveyed(store), read_rows("records", store)
    hit = next(row for row in whole if row["physical_offset"] > 4 * FILE_BYTES + FILE_BYTES // 2)
    opened.clear()
    rows = read_rows("records", store, filters=[EqualTo(("store_timestamp",), hit["store_timestamp"])], survey=known)
    assert rows == [hit]
    others = [path for path in opened if not path.endswith(f"{4 * FILE_BYTES:020d}")]
    assert len(others) == len(set(others)) == len(os.listdir(f"{store}/commitlog")) - 1
    assert len(opened) - len(others) == 2


def test_files_whose_times_go_back_are_all_read(tmp_path: Path) -> None:
    store = shutil.copytree(small_store(10), str(tmp_path / "store"))
    whole = read_rows("records", store)
    first = next(row for row in whole if row["physical_offset"] == 3 * FILE_BYTES)
    at = first["file_offset"] + 56 + 12 * (first["sys_flag"] >> 4 & 1)
    with open(first["file"], "r+b") as file:
        file.seek(at)
        file.write((5).to_bytes(8, "big"))
    rows = read_rows("records", store, filters=[EqualTo(("store_timestamp",), 5)])
    assert [row["physical_offset"] for row in rows] == [3 * FILE_BYTES]


def test_a_filter_on_queues_opens_no_other_queue(store: str, opened: list[str]) -> None:
    known = surveyed(store)
    opened.clear()
    rows = read_rows(
        "entries",
        store,
        filters=[EqualTo(("topic",), "T"), EqualTo(("queue_id",), 1), GreaterThanOrEqual(("queue_offset",), 40)],
        survey=known,
    )
    assert {(row["topic"], row["queue_id"]) for row in rows} == {("T", 1)}
    assert min(row["queue_offset"] for row in rows) == 40
    assert {os.path.dirname(path) for path in opened} == {f"{store}/consumequeue/T/1"}
    assert f"{store}/consumequeue/T/1/{0:020d}" not in opened


# ── surveys ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ROCKETMQ)
def test_a_survey_is_the_same_behind_json_and_spares_the_recovery(
    scenario: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = rocketmq_node(scenario)
    (node,) = find_nodes([path])
    made = survey(node, {})
    assert Survey.from_json(made.to_json()) == made
    assert pickle.loads(pickle.dumps(made)) == made
    whole = read_rows("records", path)
    file = tmp_path / "surveys.json"
    file.write_text(to_option([made]), encoding="utf-8")
    monkeypatch.setattr("warren.salvage.rocketmq.rocketmq_store.load_store", None)
    assert read_rows("records", path, survey=to_option([made])) == whole
    assert read_rows("records", path, survey=str(file)) == whole


@pytest.mark.parametrize("said", ["{}", '{"node": 3}', "/nowhere/surveys.json"])
def test_a_survey_that_is_none_is_an_error(said: str) -> None:
    with pytest.raises(PipelineError, match="option survey: "):
        read_rows("records", rocketmq_node(ROCKETMQ[0]), survey=said)


def test_a_survey_does_not_go_to_the_tasks(store: str) -> None:
    known = surveyed(store)
    reader = TableReader(ShownTable("records"), options_of(store, known), RECORDS)
    assert known.encode()[:200] not in pickle.dumps(reader)


# ── memory ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_a_task_reads_no_more_than_its_batch_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = str(tmp_path / "store")
    big = attrs.evolve(SMALL, mapped_file_size_commit_log=8 << 20, max_message_size=4 << 20)
    store = load_store(FILES, place, big, new_index_name=lambda: "20260101000000000")
    store.start()
    for size in [1000] * 2000 + [1 << 20] + [1000] * 500:
        batch = Batch(topic="T", queue_id=0, bodies=[bytes(size)], born_timestamp=1, born_host=V4, store_host=V4)
        store.append(batch, 1)
    store.close()
    known = surveyed(place)
    sizes: list[int] = []
    open_read = RealFileSystem.open_read

    def noting(files: RealFileSystem, path: str) -> Any:
        handle = open_read(files, path)
        pread = handle.pread

        class Noting:
            close = handle.close

            @staticmethod
            def pread(size: int, at: int) -> bytes:
                sizes.append(size)
                return pread(size, at)

        return Noting()

    monkeypatch.setattr(RealFileSystem, "open_read", noting)
    rows = read_rows("records", place, survey=known, batch_bytes=100_000, partition_bytes="1m")
    assert len(rows) == 2501
    assert sorted(set(filter((300_000).__lt__, sizes))) == [max(sizes)] == [(1 << 20) + 92]


# ── properties ───────────────────────────────────────────────────────────────────────────────────────────────────────

pieces = st.sampled_from([b"\x01", b"\x02", b"a", b"TAGS", b"KEYS", b"\x00", "é".encode(), b"\xff", b"\xed\xa0\x80"])


@settings(max_examples=times(200))
@given(st.lists(st.lists(pieces, max_size=24).map(b"".join), max_size=20))
def test_properties_are_read_as_one_by_one(properties: list[bytes]) -> None:
    data = b"".join(b"\0\2" + one for one in properties)
    sizes = np.array([len(one) for one in properties], np.int64)
    starts = np.cumsum(sizes + 2) - sizes
    found = PropertyMaps(data, starts, sizes)
    expected = [decode_properties(one) for one in properties]
    maps = found.maps()
    maps.validate(full=True)
    assert [list(entries) for entries in maps.to_pylist()] == [list(one.items()) for one in expected]
    for name in ("TAGS", "KEYS", "a"):
        assert found.named(name).to_pylist() == [one.get(name) for one in expected]


def test_many_properties_of_one_message_are_no_trouble() -> None:
    properties = b"\x02".join(b"%d\x01%d" % (number % 40, number) for number in range(2000))
    found = PropertyMaps(b"\0\0" + properties, np.array([2]), np.array([len(properties)]))
    assert dict(found.maps().to_pylist()[0]) == decode_properties(properties)
    assert found.maps().type == pa.map_(pa.string(), pa.string())


# ── Spark ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def spread() -> Iterator[str]:
    for scenario in ROCKETMQ:
        yield rocketmq_node(scenario)
        if "after" in golden.manifest(scenario):
            yield golden.directory(scenario, "after")


@pytest.mark.slow
@pytest.mark.spark
def test_spark_reads_all_golden_stores_in_one_load(spark: SparkSession) -> None:
    """In a quick run every fourth."""
    paths = list(spread())[:: every(4)]
    for table in ("entries", "index_items", "offsets"):
        frame = load(spark, table, find_nodes(paths))
        expected = [tuple(row.values()) for row in read_rows(table, *paths)]
        assert sorted(map(tuple, frame.collect()), key=repr) == sorted(expected, key=repr)
    frame = load(spark, "records", find_nodes(paths))
    rows = [{**row, "properties": dict(row["properties"])} for row in read_rows("records", *paths)]
    assert [row.asDict() for row in frame.collect()] == rows
    wanted = frame.filter((frame.topic == rows[0]["topic"]) & (frame.queue_offset < 7)).select("message_id").collect()
    assert [row.message_id for row in wanted] == [
        row["message_id"] for row in rows if row["topic"] == rows[0]["topic"] and row["queue_offset"] < 7
    ]


def test_a_task_surveys_topic_stores_and_leaves_out_other_nodes() -> None:
    nodes = find_nodes([rocketmq_node(ROCKETMQ[0]), rabbitmq_node(RABBITMQ[0]), rocketmq_node(ROCKETMQ[1])])
    made = [survey_node(node, {}) for node in nodes]
    assert made == [survey(nodes[0], {}), None, survey(nodes[2], {})]
