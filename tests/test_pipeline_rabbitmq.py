"""The tables of RabbitMQ's directories: the rows of the single-machine commands, however they are cut into tasks."""

from __future__ import annotations

import pickle
import random
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
)
from pyspark.sql.types import StructType

from tests.support.classic_tools import ENTRIES, QueueOnDisk, VhostOnDisk
from tests.support.effort import every, times
from tests.support.pipeline_tools import RABBITMQ, Row, check_messages, noted, rabbitmq_node, read_batches, read_rows
from warren.msg_store.rdq.rdq_format import encode_record, scan
from warren.pipeline.spark_schemas import as_spark
from warren.pipeline.spark_source import WarrenSource
from warren.queue_index.index import directory as disk
from warren.queue_index.message.message_format import decode_message
from warren.salvage.inspect import inspect_source
from warren.salvage.names import split_level, to_text
from warren.salvage.read_only import ReadOnlyFileSystem
from warren.storage.errors import DataError, StorageError
from warren.storage.filesystem import RealFileSystem
from warren.tables import bodies
from warren.tables.places import find_nodes
from warren.tables.table import SCHEMAS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAMES = ("queues", "index", "store", "messages")


def only(table: str, *columns: str) -> StructType:
    """The schema of some columns."""
    columns_of = as_spark(SCHEMAS[table])
    return StructType([columns_of[column] for column in columns])


# ── all golden directories ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@pytest.mark.parametrize("scenario", RABBITMQ)
def test_the_index_has_the_numbers_of_inspect(scenario: str) -> None:
    path = rabbitmq_node(scenario)
    rows = read_rows("index", path)
    with closing(find_nodes([path])[0].place().queues()) as source:
        for vhost in inspect_source(source)["vhosts"]:
            for queue in vhost["queues"]:
                bare, level = split_level(queue["name"].encode("utf-8", "surrogateescape"))
                its = [r for r in rows if (r["queue"], r["priority"]) == (to_text(bare), level)]
                its = [r for r in its if r["vhost"] == vhost["name"]]
                for segment in queue["segments"]:
                    first = segment["number"] * vhost["segment_entry_count"]
                    here = [r for r in its if first <= r["seq_id"] < first + vhost["segment_entry_count"]]
                    assert sum(not r["acked"] for r in here) == segment["unacked"]
                    assert sum(not r["in_journal"] for r in here) == segment["publish"]
                    assert sum(r["acked"] and not r["in_journal"] for r in here) >= segment["ack"]
                assert [r["seq_id"] for r in its] == sorted({r["seq_id"] for r in its})
    assert all(r["delivered"] for r in rows if r["acked"])


@pytest.mark.slow
@pytest.mark.parametrize("scenario", RABBITMQ)
def test_an_index_row_says_where_its_publish_stands(scenario: str) -> None:
    for row in read_rows("index", rabbitmq_node(scenario))[:200]:
        data = Path(row["file"]).read_bytes()[row["file_offset"] :]
        head = 8 if row["in_journal"] else 2
        assert row["file"].endswith(disk.JOURNAL_NAME) == row["in_journal"]
        assert data[head : head + 16].hex() == row["msg_id"]
        assert (int.from_bytes(data[head + 16 : head + 24]) or None) == row["expiry_us"]
        assert int.from_bytes(data[head + 24 : head + 28]) == row["size"]
        embedded = data[head + 32 : head + 32 + int.from_bytes(data[head + 28 : head + 32])]
        assert bool(embedded) == row["embedded"]
        assert not embedded or len(decode_message(embedded).body) == row["size"]


@pytest.mark.slow
@pytest.mark.parametrize("scenario", RABBITMQ)
def test_the_store_has_the_records_of_its_files(scenario: str) -> None:
    path = Path(rabbitmq_node(scenario))
    rows = read_rows("store", str(path))
    found = []
    for file in dict.fromkeys(row["file"] for row in rows):
        data = Path(file).read_bytes()
        handle = RealFileSystem().open_read(file)
        for record in scan(handle, file):
            message = data[record.offset + 24 : record.offset + record.size - 1]
            found.append((file, record.offset, record.size, record.msg_id.hex(), record.good, message))
        handle.close()
    columns = ("file", "file_offset", "size", "msg_id", "good", "message")
    assert [tuple(row[name] for name in columns) for row in rows] == found
    assert {row["file"] for row in rows} == {str(file) for file in path.rglob("*.rdq") if file.stat().st_size}
    with closing(find_nodes([str(path)])[0].place().queues()) as source:
        stores = [vhost["stores"] for vhost in inspect_source(source)["vhosts"]]
    inspected = sum(file["messages"] for store in stores for each in store.values() for file in each["files"])
    assert sum(row["good"] for row in rows) == inspected
    without = read_rows("store", str(path), bodies="false")
    assert without == [{**row, "message": None} for row in rows]


@pytest.mark.slow
@settings(max_examples=times(40))
@given(
    st.sampled_from([name for name in RABBITMQ if "16384" not in name and "2048" not in name]),
    st.sampled_from(NAMES),
    st.integers(1, 200_000),
    st.integers(1, 100_000),
)
def test_any_partitions_give_the_same_rows(scenario: str, table: str, partition_bytes: int, batch_bytes: int) -> None:
    path = rabbitmq_node(scenario)
    expected = read_rows(table, path)
    assert read_rows(table, path, partition_bytes=partition_bytes, batch_bytes=batch_bytes) == expected


@pytest.mark.slow
@pytest.mark.parametrize("table", NAMES)
def test_segments_of_a_queue_in_tasks_of_their_own_give_the_same_rows(table: str) -> None:
    for scenario in ("05-clean-segments-2048", "06-crash-segments-16384"):
        path = rabbitmq_node(scenario)
        wanted = [GreaterThanOrEqual(("seq_id",), 10_000)]
        assert read_rows(table, path, partition_bytes=1, filters=wanted) == read_rows(table, path, filters=wanted)


@pytest.mark.spark
@pytest.mark.slow
def test_spark_reads_all_golden_nodes_in_one_load(spark: SparkSession) -> None:
    """In a quick run two of them."""
    paths = [rabbitmq_node(scenario) for scenario in RABBITMQ[:: every(7)]]
    for table in ("index", "store", "messages"):
        frame = spark.read.format("warren").option("table", table).load(paths)
        assert frame.toArrow().to_pylist() == read_rows(table, *paths)


# ── directories that were made up ────────────────────────────────────────────────────────────────────────────────────

QUEUES = (b"orders", b"a\xffb", "żółć".encode(), b"prio\0\0", b"prio\0\x09", b"prio\0\xc8")


def make_up(place: Path, seed: int) -> None:
    """A node with queues of all sorts: levels, names that are no text, messages that are gone, torn or no messages."""
    rng = random.Random(seed)
    vhost = VhostOnDisk(place, rng.choice([b"/", b"v\xfe"]), entries=rng.choice([4, 128]))
    for name in rng.sample(QUEUES, rng.randint(1, 3)):
        make_up_queue(vhost.queue(name), rng)
    if rng.random() < 0.4:
        cut = encode_record(b"torn".ljust(16), bytes(50))
        torn = rng.choice([cut[:40], cut[:-1] + b"\0", bytes(30), b"\0\0\0\0\0\0\0\1" + bytes(20)])
        vhost.append("msg_store_persistent/0.rdq", torn)


def make_up_queue(queue: QueueOnDisk, rng: random.Random) -> None:
    is_plain = rng.random() < 0.3  # many alike, as one publisher writes them
    is_embedded = rng.random() < 0.5
    seq_id = rng.choice([0, 0, 6])
    for _ in range(rng.choice([0, 3, 20, 90 if is_plain else 30])):
        body = b"%06d" % seq_id if is_plain else rng.randbytes(rng.choice([0, 1, 40, 300]))
        headers = {"correlation_id": str(rng.randint(0, 3))} if rng.random() < 0.3 and not is_plain else {}
        message = queue.message(seq_id, body, **headers)
        if rng.random() < (0.005 if is_plain else 0.05):
            message = rng.choice([b"no message", message[:-3]])
        embedded = is_embedded if is_plain else rng.random() < 0.5
        if not embedded and rng.random() < (0.99 if is_plain else 0.85):
            number = rng.choice([0, 0, 1])
            queue.vhost.store(number, queue.msg_id(seq_id), message)
        queue.publish(
            seq_id,
            body,
            embedded=message if embedded else None,
            in_journal=seq_id > 100 if is_plain else rng.random() < 0.2,
            persistent=is_plain or rng.random() < 0.95,
            shorts=rng.choice([0, 0, 1, 2]) if not is_plain or rng.random() < 0.02 else 0,
            expiry_us=rng.choice([0, 0, 1_700_000_000_000_000, 1 << 63]),
        )
        seq_id += 1 if is_plain else rng.choice([1, 1, 1, 1, 9])
    if rng.random() < 0.3:
        queue.append(rng.choice(["journal.jif", "0.idx"]), rng.choice([b"\x80", bytes(9), b"\0\0\1" * 9]))


@pytest.mark.parametrize("embedded", [True, False])
def test_neighbours_of_one_length_in_segment_and_journal(embedded: bool, place: Path) -> None:
    queue = VhostOnDisk(place, entries=128).queue(b"q")
    for seq_id in range(100):
        message = queue.message(seq_id, b"%04d" % seq_id)
        if not embedded:
            queue.vhost.store(seq_id // 50, queue.msg_id(seq_id), message)
        is_late = seq_id >= 80 or 40 <= seq_id < 60
        queue.publish(seq_id, b"%04d" % seq_id, embedded=message if embedded else None, in_journal=is_late)
    rows = read_rows("messages", str(place))
    assert [row["body"] for row in rows] == [b"%04d" % seq_id for seq_id in range(100)]
    check_messages(rows, str(place))


@pytest.mark.slow
@settings(max_examples=times(20))
@given(st.integers(0, 1 << 32), st.just(1) | st.integers(1, 4000), st.integers(1, 2000))
def test_any_directory_gives_the_same_rows_however_it_is_cut(seed: int, partition_bytes: int, batch_bytes: int) -> None:
    with tempfile.TemporaryDirectory() as place:
        make_up(Path(place), seed)
        for table in NAMES:
            expected = read_rows(table, place)
            assert read_rows(table, place, partition_bytes=partition_bytes, batch_bytes=batch_bytes) == expected
            if table == "messages":
                check_messages(expected, place)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "node"
    bodies.current_caches().forget()


def a_queue_in_pieces(place: Path) -> QueueOnDisk:
    """Three segments: one embedded, one in the store, one of both."""
    queue = VhostOnDisk(place).queue(b"q")
    for seq_id in range(12):
        message = queue.message(seq_id, b"%d" % seq_id)
        is_embedded = seq_id < 4 or seq_id % 4 == 1
        queue.publish(seq_id, b"%d" % seq_id, embedded=message if is_embedded else None)
        if not is_embedded:
            queue.vhost.store(0, queue.msg_id(seq_id), message)
    return queue


def positions(rows: list[Row]) -> list[tuple[int, int]]:
    return [(row["position"], row["seq_id"]) for row in rows]


def test_a_message_that_the_store_does_not_have_has_no_position(place: Path) -> None:
    queue = a_queue_in_pieces(place)
    (queue.vhost.path / "msg_store_persistent/0.rdq").write_bytes(
        b"".join(
            encode_record(queue.msg_id(n), queue.message(n, b"%d" % n)) for n in range(4, 12) if n not in (4, 6, 8)
        )
    )
    for partition_bytes in (1, 1 << 30):
        rows = read_rows("messages", str(place), partition_bytes=partition_bytes)
        assert positions(rows) == list(enumerate([0, 1, 2, 3, 5, 7, 9, 10, 11]))


def test_a_message_that_cannot_be_read_leaves_its_number_out(place: Path) -> None:
    queue = VhostOnDisk(place).queue(b"q")
    for seq_id in range(12):
        queue.publish(seq_id, embedded=b"nonsense" if seq_id in (1, 6) else queue.message(seq_id, b"body"))
    for partition_bytes in (1, 1 << 30):
        rows = read_rows("messages", str(place), partition_bytes=partition_bytes)
        assert positions(rows) == [(n, n) for n in range(12) if n not in (1, 6)]


def test_positions_go_on_from_level_to_level(place: Path) -> None:
    vhost = VhostOnDisk(place)
    for level in (0, 5, 200):
        queue = vhost.queue(disk.level_name(b"p", level))
        for seq_id in range(5):
            queue.publish(seq_id, embedded=queue.message(seq_id, b"body"))
    for partition_bytes in (1, 1 << 30):
        rows = read_rows("messages", str(place), partition_bytes=partition_bytes)
        assert [row["position"] for row in rows] == list(range(15))
        assert [row["priority"] for row in rows] == [200] * 5 + [5] * 5 + [0] * 5
        assert {row["queue"] for row in rows} == {"p"}


def test_names_that_are_no_text_are_escaped(place: Path) -> None:
    queue = VhostOnDisk(place, b"v\xff").queue(b"q\x80")
    queue.publish(0, embedded=queue.message(0, b"body"))
    for table in ("queues", "index", "messages"):
        (row,) = read_rows(table, str(place))
        assert (row["vhost"], row["queue"]) == ("v\\udcff", "q\\udc80")
    assert read_rows("index", str(place), filters=[EqualTo(("queue",), "q\\udc80")])
    assert read_rows("messages", str(place))[0]["routing_keys"] == ["q\\udc80"]


# ── what is not wanted is not opened ─────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return noted(monkeypatch, ReadOnlyFileSystem)


def names_of(opened: list[str]) -> set[str]:
    """But for the journal, which is opened for what it says of the segments."""
    return {path.rpartition("/")[2] for path in opened} - {"journal.jif"}


@pytest.mark.parametrize("table", ["queues", "index", "messages"])
def test_queues_that_are_not_wanted_are_not_opened(table: str, place: Path, opened: list[str]) -> None:
    vhost = VhostOnDisk(place)
    for name in (b"wanted", b"other"):
        queue = vhost.queue(name)
        queue.publish(0, embedded=queue.message(0, b"body"))
        queue.publish(1, embedded=queue.message(1, b"body"), in_journal=True)
    rows = read_rows(table, str(place), filters=[EqualTo(("queue",), "wanted")])
    assert {row["queue"] for row in rows} == {"wanted"}
    wanted = disk.queue_directory_name(b"/", b"wanted")
    assert opened
    assert all(wanted in path for path in opened)


def test_planning_looks_at_no_queue_but_the_named_ones(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vhost = VhostOnDisk(place)
    for number in range(20):
        queue = vhost.queue(b"queue-%d" % number)
        queue.publish(0, embedded=queue.message(0, b"body"))
    looks: list[str] = []
    listing = ReadOnlyFileSystem.list
    monkeypatch.setattr(ReadOnlyFileSystem, "list", lambda files, path: (looks.append(path), listing(files, path))[1])
    rows = read_rows("messages", str(place), filters=[In(("queue",), ("queue-3", "queue-17", "no-queue"))])
    assert [row["queue"] for row in rows] == ["queue-17", "queue-3"]
    own = {str(Path(row["file"]).parent) for row in rows}
    assert not [path for path in looks if "/queues/" in path and path not in own]


@pytest.mark.parametrize("table", NAMES)
@pytest.mark.parametrize("column", ["node", "vhost"])
def test_nodes_and_vhosts_that_are_not_wanted_are_not_opened(
    table: str, column: str, place: Path, opened: list[str]
) -> None:
    a_queue_in_pieces(place)
    assert not read_rows(table, str(place), filters=[In((column,), ("another",))])
    assert not opened
    assert read_rows(table, str(place))


@pytest.mark.parametrize(
    ("filters", "segments"),
    [
        ([GreaterThanOrEqual(("seq_id",), 8)], {"2.idx"}),
        ([LessThan(("seq_id",), 3)], {"0.idx"}),
        ([In(("seq_id",), (1, 11))], {"0.idx", "2.idx"}),
        ([EqualTo(("seq_id",), 6)], {"1.idx"}),
        ([EqualTo(("seq_id",), 99)], set()),
        ([LessThan(("seq_id",), -5)], set()),
    ],
)
def test_segments_that_are_not_wanted_are_not_opened(
    filters: list[Filter], segments: set[str], place: Path, opened: list[str]
) -> None:
    a_queue_in_pieces(place)
    for options in ({}, {"partition_bytes": 1}):
        opened.clear()
        rows = read_rows("index", str(place), filters=filters, **options)
        assert names_of(opened) == segments
        assert {f"{row['seq_id'] // ENTRIES}.idx" for row in rows} == segments
        opened.clear()
        read_rows("messages", str(place), filters=filters, schema=only("messages", "seq_id", "body"), **options)
        assert names_of(opened) - {"0.rdq"} == segments


def test_positions_behind_segments_that_are_not_wanted_are_counted(place: Path) -> None:
    a_queue_in_pieces(place)
    expected = read_rows("messages", str(place))
    for partition_bytes in (1, 1 << 30):
        wanted: list[Filter] = [In(("seq_id",), (1, 5, 11))]
        rows = read_rows("messages", str(place), filters=wanted, partition_bytes=partition_bytes)
        assert rows == expected
        rows = read_rows("messages", str(place), filters=[EqualTo(("seq_id",), 9)], partition_bytes=partition_bytes)
        assert rows == expected[8:]


def partitions_of(place: Path, **options: str) -> tuple[DataSourceReader, Sequence[InputPartition]]:
    source = WarrenSource({"table": "messages", "path": str(place), **options})
    reader = source.reader(source.schema())
    return reader, reader.partitions()


def test_planning_opens_no_index_and_no_store(place: Path, opened: list[str]) -> None:
    a_queue_in_pieces(place)
    _, partitions = partitions_of(place, partition_bytes="1")
    assert len(partitions) == 3
    assert not opened
    assert all(len(pickle.dumps(partition)) < 2_000 for partition in partitions)


@pytest.mark.parametrize("task_segments", [2, 3, 4, 5])
def test_a_queue_is_cut_into_tasks_of_about_one_size(place: Path, task_segments: int) -> None:
    queue = VhostOnDisk(place).queue(b"q")
    for seq_id in range(13 * ENTRIES):
        queue.publish(seq_id, embedded=queue.message(seq_id, bytes(100)))
    size = (queue.path / "0.idx").stat().st_size
    _, partitions = partitions_of(place, partition_bytes=str(task_segments * size + size // 2))
    ranges = [partition.value.work[0].segments for partition in partitions]
    counts = [min(segments.stop, 13) - segments.start for segments in ranges]
    assert sum(counts) == 13
    assert max(counts) <= task_segments + 1
    assert max(counts) - min(counts) <= 1


def test_what_a_worker_has_read_it_does_not_count_again(place: Path, opened: list[str]) -> None:
    a_queue_in_pieces(place)
    reader, partitions = partitions_of(place, partition_bytes="1", mode="failfast")
    for number, partition in enumerate(partitions):
        opened.clear()
        assert sum(len(batch) for batch in reader.read(partition)) == ENTRIES
        assert {name for name in names_of(opened) if name.endswith(".idx")} == {f"{number}.idx"}
        assert sum(path.endswith(".idx") for path in opened) == 1
    _, again = partitions_of(place, partition_bytes="1")
    assert [one.value for one in again] == [one.value for one in partitions]


def test_a_task_that_begins_behind_what_nobody_counted_counts(place: Path, opened: list[str]) -> None:
    a_queue_in_pieces(place)
    reader, partitions = partitions_of(place, partition_bytes="1")
    for number in (2, 1, 2, 0):
        batches: Any = reader.read(partitions[number])
        found = [row["position"] for batch in batches for row in batch.to_pylist()]
        assert found == list(range(ENTRIES * number, ENTRIES * (number + 1)))


def test_a_store_is_not_scanned_for_messages_that_stand_in_the_index(place: Path, opened: list[str]) -> None:
    queue = a_queue_in_pieces(place)
    read_rows("messages", str(place), filters=[LessThan(("seq_id",), 3)])
    assert names_of(opened) == {"0.idx"}
    opened.clear()
    rows = read_rows("store", str(place), filters=[EqualTo(("store",), "msg_store_transient")])
    assert not rows
    assert not opened
    assert queue.vhost.path.is_dir()


def test_a_store_is_scanned_once_until_it_changes(place: Path, opened: list[str]) -> None:
    queue = a_queue_in_pieces(place)
    before = read_rows("messages", str(place), partition_bytes=1)
    scans = [path for path in opened if path.endswith(".rdq")]
    read_rows("messages", str(place), partition_bytes=1)
    assert [path for path in opened if path.endswith(".rdq")] == scans
    queue.publish(12, embedded=None, in_journal=True)
    queue.vhost.store(1, queue.msg_id(12), queue.message(12, b"body"))
    assert len(read_rows("messages", str(place))) == len(before) + 1


# ── damage, bodies, memory ───────────────────────────────────────────────────────────────────────────────────────────


def without_body(queue: QueueOnDisk) -> None:
    queue.publish(12)


def with_nonsense(queue: QueueOnDisk) -> None:
    queue.publish(12, embedded=b"nonsense")


def with_a_torn_segment(queue: QueueOnDisk) -> None:
    queue.append("2.idx", b"\x80\x00torn")


def with_a_torn_journal(queue: QueueOnDisk) -> None:
    queue.append("journal.jif", b"\x00\x00torn")


def with_a_torn_record(queue: QueueOnDisk) -> None:
    queue.vhost.append("msg_store_persistent/1.rdq", encode_record(b"x" * 16, b"x")[:-1] + b"\0")


def with_a_torn_end(queue: QueueOnDisk) -> None:
    queue.vhost.append("msg_store_persistent/1.rdq", encode_record(b"x" * 16, b"x")[:-1])


def with_damaged_settings(queue: QueueOnDisk) -> None:
    (queue.vhost.path / ".config").write_bytes(b"nonsense")


@pytest.mark.parametrize(
    ("damage", "table", "said"),
    [
        (without_body, "messages", r"/3\.idx, offset 0: missing body: message 12: the store has no"),
        (with_nonsense, "messages", r"/3\.idx, offset 0: unreadable message: message 12"),
        (with_a_torn_segment, "index", r"/2\.idx, offset \d+: torn record"),
        (with_a_torn_segment, "messages", r"/2\.idx, offset \d+: torn record"),
        (with_a_torn_segment, "queues", r"/2\.idx, offset \d+: torn record"),
        (with_a_torn_journal, "index", r"/journal\.jif, offset 0: torn record"),
        (with_a_torn_journal, "messages", r"/journal\.jif, offset 0: torn record"),
        (with_a_torn_record, "store", r"/1\.rdq, offset 0: torn record"),
        (with_a_torn_end, "store", r"/1\.rdq, offset 0: record out of bounds"),
        (with_damaged_settings, "queues", r"/\.config, offset 0: damaged settings"),
    ],
)
def test_damage_stops_where_it_shall_and_else_does_not(damage: Any, table: str, said: str, place: Path) -> None:
    queue = a_queue_in_pieces(place)
    assert read_rows(table, str(place), mode="failfast") == read_rows(table, str(place))
    count = len(read_rows(table, str(place)))
    damage(queue)
    assert len(read_rows(table, str(place))) >= count
    with pytest.raises(DataError, match=said):
        read_rows(table, str(place), mode="failfast")


def test_a_file_that_the_system_does_not_give_away_is_passed_over(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a_queue_in_pieces(place)

    def open_read(self: ReadOnlyFileSystem, path: str) -> Any:
        if path.endswith(("1.idx", ".rdq")):
            raise StorageError(f"{path}: Input/output error")
        return real(self, path)

    real = ReadOnlyFileSystem.open_read
    monkeypatch.setattr(ReadOnlyFileSystem, "open_read", open_read)
    assert [row["seq_id"] for row in read_rows("index", str(place))] == [0, 1, 2, 3, 8, 9, 10, 11]
    assert positions(read_rows("messages", str(place), partition_bytes=1)) == list(enumerate([0, 1, 2, 3, 9]))
    assert read_rows("store", str(place)) == []
    for table in ("index", "messages", "store"):
        with pytest.raises(DataError, match="Input/output error"):
            read_rows(table, str(place), mode="failfast")


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ["02-crash-small-mixed", "05-clean-segments-2048"])
def test_without_bodies_all_else_is_the_same(scenario: str) -> None:
    path = rabbitmq_node(scenario)
    rows = read_rows("messages", path, bodies="false")
    assert rows == [{**row, "body": None, "body_sha256": None} for row in read_rows("messages", path)]


def test_columns_that_are_not_asked_for_are_not_made() -> None:
    path = rabbitmq_node("02-crash-small-mixed")
    for table, names in (("messages", ("queue", "size")), ("store", ("msg_id", "size")), ("index", ("seq_id", "file"))):
        expected = [{name: row[name] for name in names} for row in read_rows(table, path)]
        assert read_rows(table, path, schema=only(table, *names)) == expected


def test_a_batch_is_about_as_large_as_it_may_be() -> None:
    path = rabbitmq_node("08-clean-rdq-rollover")
    for table, column in (("store", "message"), ("messages", "body")):
        batches = read_batches(table, path, batch_bytes=2 << 20)
        sizes = [sum(map(len, batch.column(column).to_pylist())) for batch in batches]
        largest = max(len(value) for batch in batches for value in batch.column(column).to_pylist())
        assert sum(sizes) > 15 << 20
        assert max(sizes) <= (2 << 20) + largest


def test_the_page_of_tables_has_every_column() -> None:
    page = (Path(__file__).parent.parent / "docs" / "spark-tables.md").read_text(encoding="utf-8")
    for table in NAMES:
        section = page.partition(f"\n### `{table}`\n")[2].partition("\n### ")[0]
        assert [name for name in SCHEMAS[table].names if f"`{name}`" not in section] == []
