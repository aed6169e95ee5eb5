"""``warren.sql``: the tables that Spark has, in DuckDB; what of them is read, and what is not."""

from __future__ import annotations

import gc
import os
import stat
import tempfile
from collections.abc import Iterator
from itertools import product, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import duckdb
import pytest

import warren
import warren.sql
from tests.support.classic_tools import VhostOnDisk, encoded_message
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
from tests.support.rabbitmq_golden import QUORUM, STREAMS, V2, archives
from warren.msg_store.rdq.store_reader import StoreReader
from warren.salvage.message_batches import Batcher
from warren.salvage.read_only import ReadOnlyFileSystem
from warren.sql.dataset import TableDataset
from warren.sql.dataset import connect as connect_to
from warren.sql.directories import Directories
from warren.storage.errors import DirectoryLockedError, StorageError
from warren.storage.filesystem import RealFileSystem
from warren.tables import bodies
from warren.tables.places import Kind
from warren.tables.rocketmq import record_rows
from warren.tables.table import SCHEMAS, table_named

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
def queue_nodes() -> list[str]:
    return [*map(rabbitmq_node, RABBITMQ), *map(golden_node, [*archives(V2), *archives(QUORUM), *archives(STREAMS)])]


@pytest.fixture(scope="module")
def topic_nodes() -> list[str]:
    return [rocketmq_node(scenario) for scenario in ROCKETMQ]


def nodes_with(table: str, queue_nodes: list[str], topic_nodes: list[str]) -> list[str]:
    kinds = table_named(table).kinds
    return [*(queue_nodes if Kind.QUEUES in kinds else ()), *(topic_nodes if Kind.TOPICS in kinds else ())]


def answered(connection: duckdb.DuckDBPyConnection, query: str) -> Rows:
    connection.execute(query)
    names = [name for name, *_ in connection.description or ()]
    return [dict(zip(names, row, strict=True)) for row in connection.fetchall()]


def all_rows(table: str, *paths: str | Path, **options: Any) -> Rows:
    with warren.sql.connect(*paths, **options) as connection:
        return answered(connection, f'select * from "{table}"')


def plain(rows: Rows) -> Rows:
    """Arrow has a map as pairs."""
    return [{**row, "properties": dict(row["properties"])} if "born_host" in row else row for row in rows]


# ── the rows of Spark ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@pytest.mark.parametrize("table", SCHEMAS)
def test_rows_are_those_that_tasks_give_to_spark(table: str, queue_nodes: list[str], topic_nodes: list[str]) -> None:
    paths = nodes_with(table, queue_nodes, topic_nodes)
    rows = all_rows(table, *paths)
    assert len(rows) > 10
    for row, expected in zip_longest(rows, plain(read_rows(table, *paths))):
        assert row == expected


@pytest.mark.slow
@pytest.mark.spark
def test_every_table_has_the_rows_that_spark_has(
    spark: SparkSession, queue_nodes: list[str], topic_nodes: list[str]
) -> None:
    """On real Spark: all golden directories at once, column by column, in the same order."""
    for table in SCHEMAS:
        paths = nodes_with(table, queue_nodes, topic_nodes)
        rows = all_rows(table, *paths)
        reader = spark.read.format("warren").option("table", table).option("partition_bytes", "1g")
        found = [row.asDict(recursive=True) for row in reader.load(paths).collect()]
        assert len(found) == len(rows) > 10, table
        for row, other in zip(rows, found, strict=True):
            for name, value in other.items():
                assert row[name] == (bytes(value) if isinstance(value, bytearray) else value), (table, name, row)


def test_columns_have_the_types_that_spark_has() -> None:
    types = {
        "string": "VARCHAR",
        "bigint": "BIGINT",
        "int": "INTEGER",
        "boolean": "BOOLEAN",
        "binary": "BLOB",
        "array<string>": "VARCHAR[]",
        "map<string,string>": "MAP(VARCHAR, VARCHAR)",
    }
    from warren.pipeline.spark_schemas import as_spark

    with warren.sql.connect(rabbitmq_node(RABBITMQ[0])) as connection:
        for table, schema in SCHEMAS.items():
            described = answered(connection, f'describe "{table}"')
            sparks = {field.name: types[field.dataType.simpleString()] for field in as_spark(schema)}
            assert {one["column_name"]: one["column_type"] for one in described} == sparks


CONDITIONS = {
    "queues": ["ready > 3", "queue = 'orders'", "priority is null and bytes between 1 and 100000", "type <> 'classic'"],
    "index": ["seq_id >= 12", "acked", "not acked and seq_id in (1, 5, 40)", "queue in ('audit', 'orders')"],
    "store": ["good", "store = 'msg_store_persistent' and size > 4000", "octet_length(message) < 100"],
    "messages": [
        "seq_id between 3 and 9",
        "queue = 'orders' or queue = 'audit'",
        "(queue = 'orders' and seq_id < 9) or (queue = 'audit' and seq_id > 9)",
        "position = 2 and body is not null",
        "headers is null",
        "list_contains(routing_keys, 'orders')",
        "vhost <> '/'",
        "priority > 2",
        "queue > 'b' and queue < 'p'",
        "seq_id = 3.0 and queue not in ('audit')",
    ],
    "findings": ["severity = 'damage'", '"offset" > 100', "path like '%.rdq'"],
    "records": ["queue_id = 1", "topic = 'TopicTest' and queue_offset >= 5", "physical_offset between 5000 and 9000"],
    "entries": ["topic = 'TopicTest'", "queue_offset > 9 and queue_id in (0, 2)", "physical_offset < 5000"],
    "index_items": ["physical_offset > 8000", "slot = 40"],
    "offsets": ["\"group\" = 'g-2'", "lag < 0", "topic = 'TopicTest' or queue_id = 0"],
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("table", "condition"), [(table, one) for table, some in CONDITIONS.items() for one in some], ids=str
)
def test_a_condition_that_is_handed_down_chooses_the_rows_that_duckdb_would(
    table: str, condition: str, queue_nodes: list[str], topic_nodes: list[str]
) -> None:
    paths = nodes_with(table, queue_nodes, topic_nodes)
    with warren.sql.connect(*paths) as connection:
        connection.execute(f'create table copied as select * from "{table}"')
        expected = answered(connection, f"select * from copied where {condition}")
        assert answered(connection, f'select * from "{table}" where {condition}') == expected
        some = (
            answered(connection, f'select file_offset, node from "{table}" where {condition}')
            if ("file_offset" in SCHEMAS[table].names)
            else []
        )
        assert [row["node"] for row in some] == [row["node"] for row in expected if some]


@pytest.mark.slow
def test_conditions_of_the_list_choose_some_rows_and_not_all(queue_nodes: list[str], topic_nodes: list[str]) -> None:
    for table, some in CONDITIONS.items():
        with warren.sql.connect(*nodes_with(table, queue_nodes, topic_nodes)) as connection:
            counts = ", ".join(f"count(*) filter ({one})" for one in some)
            connection.execute(f'select count(*), {counts} from "{table}"')
            every, *chosen = connection.fetchone() or ()
            assert any(0 < count < every for count in chosen), table


# ── what is not needed is not read ───────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "node"


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return noted(monkeypatch, ReadOnlyFileSystem)


def with_queues(place: Path, *names: bytes, stored: bool = False) -> VhostOnDisk:
    vhost = VhostOnDisk(place)
    for name in names:
        queue = vhost.queue(name)
        for seq_id in range(12):
            body = b"body of %d" % seq_id
            message = queue.message(seq_id, body)
            queue.publish(seq_id, body, embedded=None if stored else message)
            if stored:
                vhost.store(0, queue.msg_id(seq_id), message)
    return vhost


def test_queues_that_no_row_can_be_of_are_not_opened(place: Path, opened: list[str]) -> None:
    with_queues(place, b"wanted", b"other")
    with warren.sql.connect(place) as connection:
        for condition in ("queue = 'wanted'", "queue in ('wanted', 'nobody')", "queue = 'wanted' and seq_id > 3"):
            opened.clear()
            rows = answered(connection, f"select count(*) n from messages where {condition}")
            assert rows[0]["n"] in (8, 12)
            wanted = warren_queue_directory(b"wanted")
            assert opened
            assert all(wanted in path for path in opened), condition


def warren_queue_directory(name: bytes) -> str:
    from warren.queue_index.index import directory as disk

    return disk.queue_directory_name(b"/", name)


def test_segments_that_no_row_can_be_in_are_not_opened(place: Path, opened: list[str]) -> None:
    with_queues(place, b"q")
    with warren.sql.connect(place) as connection:
        assert answered(connection, "select count(*) n from index where seq_id between 4 and 7") == [{"n": 4}]
    assert {path.rpartition("/")[2] for path in opened if path.endswith(".idx")} == {"1.idx"}


def test_a_store_is_not_read_where_only_the_index_is_asked(place: Path, opened: list[str]) -> None:
    with_queues(place, b"q", stored=True)
    with warren.sql.connect(place) as connection:
        assert answered(connection, "select count(*) n, sum(size) s from index")[0]["n"] == 12
        assert not [path for path in opened if path.endswith(".rdq")]
        assert answered(connection, "select count(*) n from messages") == [{"n": 12}]
        assert [path for path in opened if path.endswith(".rdq")]


def test_columns_that_nobody_asks_for_are_not_made(topic_nodes: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    column = record_rows.RecordRows.column

    def noting(self: Any, name: str) -> Any:
        made.append(name)
        return column(self, name)

    monkeypatch.setattr(record_rows.RecordRows, "column", noting)
    with warren.sql.connect(topic_nodes[0]) as connection:
        answered(connection, "select topic, count(*) from records where queue_id = 1 group by topic")
    assert set(made) == {"topic", "queue_id"}


def test_bodies_that_nobody_asks_for_are_not_kept(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_queues(place, b"q")
    asked: list[bool] = []
    from warren.tables import messages

    batcher = Batcher

    def noting(batch_bytes: int, *, with_bodies: bool) -> Any:
        asked.append(with_bodies)
        return batcher(batch_bytes, with_bodies=with_bodies)

    monkeypatch.setattr(messages, "Batcher", noting)
    with warren.sql.connect(place) as connection:
        connection.execute("select queue, sum(size) from messages group by queue").fetchall()
        connection.execute("select body from messages").fetchall()
        connection.execute("select queue from messages where body_sha256 is null").fetchall()
    assert asked == [False, True, True]


@pytest.mark.slow
def test_who_wants_ten_rows_does_not_read_the_directory_to_its_end(place: Path, opened: list[str]) -> None:
    with_queues(place, *(b"q%03d" % number for number in range(300)))
    with connect_to(in_pieces(place, partition_bytes=1)) as connection:
        assert len(connection.execute("select * from messages limit 10").fetchall()) == 10
        assert len({path for path in opened if path.endswith(".idx")}) < 30
        connection.execute("select seq_id from messages")
        assert len(connection.fetchmany(5)) == 5
        assert len({path for path in opened if path.endswith(".idx")}) < 900


def in_pieces(*paths: Path, **sizes: Any) -> Directories:
    """What is read in smaller pieces than a user's."""
    directories = Directories.at(*paths)
    return attrs.evolve(directories, options=attrs.evolve(directories.options, **sizes))


# ── several scans at once ────────────────────────────────────────────────────────────────────────────────────────────


def test_two_scans_in_turns_scan_each_store_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each keeps the stores that it looked into: what one of them lets go, another is still reading."""
    monkeypatch.setattr(bodies, "MOST_STORES", 1)
    scanned: list[None] = []
    open_store = StoreReader.open

    def noting(*arguments: Any, **more: Any) -> StoreReader:
        scanned.append(None)
        return open_store(*arguments, **more)

    monkeypatch.setattr(StoreReader, "open", noting)
    places = [tmp_path / str(number) for number in range(4)]
    for place in places:
        with_queues(place, b"q", b"r", stored=True)
    table = TableDataset("messages", in_pieces(*places, partition_bytes=1, batch_bytes=1))
    first, second = (table.scanner(columns=["seq_id"]).to_reader() for _ in range(2))
    for _ in range(30):
        first.read_next_batch()
    assert sum(batch.num_rows for pair in zip(second, first, strict=False) for batch in pair) == 2 * 66
    assert len(scanned) == 4 + 3


@pytest.mark.slow
def test_a_query_may_read_a_table_twice_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "MOST_STORES", 1)
    places = [tmp_path / str(number) for number in range(5)]
    for place in places:
        with_queues(place, b"q", b"r", stored=True)
    with connect_to(in_pieces(*places, partition_bytes=1, batch_bytes=1)) as connection:
        for query in (
            "select count(*) n from messages a join messages b on a.body = b.body and a.node = b.node",
            "select count(*) n from (select body from messages union all select body from messages)",
        ):
            for threads in (1, 4):
                connection.execute(f"set threads = {threads}")
                assert answered(connection, query) == [{"n": 5 * 2 * 12 * 2}], query


def test_files_are_closed_when_a_query_has_enough(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_queues(place, b"q", stored=True)
    closed: list[Any] = []
    close = StoreReader.close

    def noting(self: StoreReader) -> None:
        closed.append(self)
        close(self)

    monkeypatch.setattr(StoreReader, "close", noting)
    with warren.sql.connect(place) as connection:
        connection.execute("select * from messages limit 1").fetchall()
        connection.execute("select 1").fetchall()
        gc.collect()
        assert closed


# ── what can be connected to ─────────────────────────────────────────────────────────────────────────────────────────


def test_archives_and_globs_and_directories_together(tmp_path: Path) -> None:
    archive = GOLDEN / f"{RABBITMQ[0]}.tar.gz"
    directory = rabbitmq_node(RABBITMQ[1])
    for number in range(2):
        with_queues(tmp_path / f"broker-{number}", b"q")
    with warren.sql.connect(archive, directory, tmp_path / "broker-*") as connection:
        rows = answered(connection, "select node, count(*) n from messages group by node order by node")
        of_archive = answered(connection, f"select * exclude (node, file) from messages where node = '{archive}'")
    assert {row["node"] for row in rows} == {
        str(archive),
        directory,
        str(tmp_path / "broker-0"),
        str(tmp_path / "broker-1"),
    }
    unpacked_rows = read_rows("messages", rabbitmq_node(RABBITMQ[0]))
    assert of_archive == [
        {name: value for name, value in row.items() if name not in ("node", "file")} for row in unpacked_rows
    ]


def test_files_of_an_archive_are_named_as_they_are_in_it() -> None:
    archive = GOLDEN / f"{RABBITMQ[0]}.tar.gz"
    files = {row["file"] for row in all_rows("store", archive)}
    assert files
    assert all(name.startswith("vhosts/") for name in files)


def test_an_archive_is_unpacked_once_and_gone_afterwards(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    connection = warren.sql.connect(GOLDEN / f"{RABBITMQ[0]}.tar.gz")

    def unpacked() -> list[str]:
        return [
            path.name for path in tmp_path.iterdir() if not path.name.startswith(("warren-surveys-", "warren-sql-"))
        ]

    assert len([name for name in unpacked() if name.startswith("warren-")]) == 1
    assert answered(connection, "select count(*) n from messages") == [{"n": 46}]
    connection.close()
    del connection
    gc.collect()
    assert unpacked() == []


def test_what_does_not_fit_into_memory_is_spilled_where_nobody_else_may_enter(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """DuckDB lets everybody read what it spills, and bodies of messages are in it."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def spilled_at() -> Path:
        connection = warren.sql.connect(GOLDEN / f"{RABBITMQ[0]}.tar.gz")
        (row,) = connection.execute("select current_setting('temp_directory')").fetchall()
        return Path(row[0])

    places = [spilled_at(), spilled_at()]
    assert places[0] != places[1]
    (folder,) = {place.parent for place in places}
    assert folder.parent == tmp_path
    assert (stat.S_IMODE(folder.stat().st_mode), folder.stat().st_uid) == (0o700, os.getuid())
    folder.chmod(0o755)  # another user's, made first
    other = spilled_at().parent
    assert other != folder
    assert stat.S_IMODE(other.stat().st_mode) == 0o700


def test_a_part_of_a_directory_is_enough(place: Path) -> None:
    vhost = with_queues(place, b"q", b"r")
    assert {row["queue"] for row in all_rows("messages", vhost.path / "queues" / warren_queue_directory(b"q"))} == {"q"}


def test_a_directory_that_a_node_runs_on_is_refused(tmp_path: Path) -> None:
    with warren.open(tmp_path / "data") as node:
        node.queue("q").publish(b"x").wait()
        with pytest.raises(DirectoryLockedError, match="a node of warren runs here"):
            warren.sql.connect(tmp_path / "data")
    assert all_rows("messages", tmp_path / "data")[0]["body"] == b"x"


def test_a_node_that_is_started_later_is_seen_by_the_next_query(tmp_path: Path) -> None:
    with warren.open(tmp_path / "data") as node:
        node.queue("q").publish(b"x").wait()
    with warren.sql.connect(tmp_path / "data") as connection:
        assert answered(connection, "select count(*) n from messages") == [{"n": 1}]
        with warren.open(tmp_path / "data"), pytest.raises(duckdb.Error, match="a node of warren runs here"):
            connection.execute("select * from messages")
        assert answered(connection, "select count(*) n from messages") == [{"n": 1}]


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/nowhere", "/nowhere: no such file or directory"),
        ("/nowhere/*", r"/nowhere/\*: nothing matches"),
    ],
)
def test_a_path_that_names_nothing_is_an_error(path: str, said: str) -> None:
    with pytest.raises(StorageError, match=said):
        warren.sql.connect(path)


def test_a_table_that_a_directory_does_not_have_is_an_error_that_says_so(topic_nodes: list[str]) -> None:
    with (
        warren.sql.connect(topic_nodes[0]) as connection,
        pytest.raises(duckdb.Error, match=f"{topic_nodes[0]}: is a topic store, which has no table messages"),
    ):
        connection.execute("select * from messages")


def test_a_missing_library_is_said_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    find_spec = importlib.util.find_spec
    for missing in ("duckdb", "pyarrow"):
        monkeypatch.setattr(
            importlib.util,
            "find_spec",
            lambda name, *rest, missing=missing: None if name == missing else find_spec(name, *rest),
        )
        with pytest.raises(warren.sql.MissingDuckDBError, match=rf'^{missing} is not installed: pip install "warrenmq'):
            warren.sql.connect("/nowhere")


# ── damage ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def damaged(place: Path) -> None:
    vhost = with_queues(place, b"q", stored=True)
    vhost.queue(b"lost").publish(0)


def test_rows_go_on_behind_damage_and_findings_say_what_is_lost(place: Path) -> None:
    damaged(place)
    assert len(all_rows("messages", place)) == 12
    kinds = [row["kind"] for row in all_rows("findings", place) if row["severity"] == "damage"]
    assert kinds == ["missing body"]


def test_failfast_ends_a_query_with_file_and_offset(place: Path) -> None:
    damaged(place)
    with (
        warren.sql.connect(place, failfast=True) as connection,
        pytest.raises(duckdb.Error, match=r"0\.idx, offset 0: missing body: message 0"),
    ):
        connection.execute("select count(*) from messages").fetchall()


def test_settings_of_a_topic_store_are_taken(topic_nodes: list[str]) -> None:
    with warren.sql.connect(topic_nodes[0], settings={"maxMessageSize": "2000"}) as connection:
        assert answered(connection, "select count(*) n from records")[0]["n"] > 0
    with (
        warren.sql.connect(topic_nodes[0], settings={"nonsense": "1"}) as connection,
        pytest.raises(duckdb.Error, match="nonsense"),
    ):
        connection.execute("select count(*) from records")


# ── what else DuckDB does ────────────────────────────────────────────────────────────────────────────────────────────


def test_json_of_headers_and_times_can_be_asked(place: Path) -> None:
    vhost = VhostOnDisk(place)
    queue = vhost.queue(b"q")
    message = encoded_message(queue.msg_id(0), b'{"total": 5}', headers={"tenant": "a"}, timestamp=1_700_000_000)
    queue.publish(0, embedded=message, expiry_us=1_700_000_000_000_000)
    with warren.sql.connect(place) as connection:
        (row,) = answered(
            connection,
            "select headers ->> '$.tenant' tenant, (properties ->> '$.timestamp')::bigint stamp, "
            "make_timestamp(expiry_us)::varchar expires, (decode(body) ->> '$.total')::int total from messages",
        )
    assert row == {"tenant": "a", "stamp": 1_700_000_000, "expires": "2023-11-14 22:13:20", "total": 5}


def test_a_connection_writes_nothing_to_the_directory(place: Path) -> None:
    with_queues(place, b"q", stored=True)
    before = {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in place.rglob("*")}
    with warren.sql.connect(place) as connection:
        connection.execute("create table mine as select * from messages")
        connection.execute("delete from mine")
        with pytest.raises(duckdb.Error):
            connection.execute("delete from messages")
    assert {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in place.rglob("*")} == before


def test_two_connections_at_once(place: Path) -> None:
    with_queues(place, b"q")
    with warren.sql.connect(place) as one, warren.sql.connect(place) as other:
        one.execute("select seq_id from messages")
        assert answered(other, "select count(*) n from messages") == [{"n": 12}]
        assert len(one.fetchall()) == 12


def test_files_are_read_and_closed(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_queues(place, b"q")
    handles: list[Any] = []
    open_read = RealFileSystem.open_read

    def noting(self: RealFileSystem, path: str) -> Any:
        handles.append(open_read(self, path))
        return handles[-1]

    monkeypatch.setattr(RealFileSystem, "open_read", noting)
    for table, limit in product(("messages", "index", "store"), ("", "limit 1")):
        with warren.sql.connect(place) as connection:
            connection.execute(f"select * from {table} {limit}").fetchall()
    assert handles


@pytest.fixture(autouse=True)
def _no_temporary_files_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """DuckDB puts what does not fit into memory into a directory; nothing of it may be left where one stands."""
    monkeypatch.chdir(tmp_path)
    yield
    assert not (tmp_path / ".tmp").exists()
