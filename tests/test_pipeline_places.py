"""What paths name: directories of this machine and of object stores, globs of both; an S3 server stands on loopback."""

from __future__ import annotations

import logging
import os
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import pyarrow.fs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from moto.server import ThreadedMotoServer

from tests.support.pipeline_tools import GOLDEN, Row, rabbitmq_node, read_rows, rocketmq_node
from warren.pipeline.jobs.running import load
from warren.pipeline.spark_source import WarrenSource
from warren.storage.errors import DataError, StorageError, WarrenError
from warren.tables import arrow_files
from warren.tables.arrow_files import BLOCK_BYTES, ArrowFileSystem
from warren.tables.places import Kind, Node, find_nodes
from warren.tables.table import SCHEMAS, table_named

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


BUCKET = "warren"
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "somebody",
    "AWS_SECRET_ACCESS_KEY": "a-secret",
    "AWS_EC2_METADATA_DISABLED": "true",
}


@attrs.frozen
class S3:
    """The server; its one bucket is :data:`BUCKET`."""

    port: int
    requests: list[str]
    """Each as its access log has it."""

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def query(self) -> str:
        """What of a URI's query names this server."""
        return f"endpoint_override=127.0.0.1:{self.port}&scheme=http&region=us-east-1"

    def system(self) -> pyarrow.fs.S3FileSystem:
        """The server for those who write."""
        return pyarrow.fs.S3FileSystem(
            access_key=ENVIRONMENT["AWS_ACCESS_KEY_ID"],
            secret_key=ENVIRONMENT["AWS_SECRET_ACCESS_KEY"],
            endpoint_override=f"127.0.0.1:{self.port}",
            scheme="http",
            region="us-east-1",
            allow_bucket_creation=True,
        )

    def upload(self, directory: str, name: str) -> str:
        """Copy a directory; its URI."""
        target = f"{BUCKET}/{name}"
        pyarrow.fs.copy_files(directory, target, destination_filesystem=self.system())
        return f"s3://{target}"


class _Log(logging.Handler):
    def __init__(self, requests: list[str]) -> None:
        super().__init__()
        self._requests = requests

    def emit(self, record: logging.LogRecord) -> None:
        self._requests.append(record.getMessage())


@contextmanager
def s3_server() -> Iterator[S3]:
    """A server with an empty bucket."""
    requests: list[str] = []
    log = logging.getLogger("werkzeug")
    log.handlers, log.propagate = [_Log(requests)], False
    log.setLevel(logging.INFO)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        _, port = server.get_host_and_port()
        s3 = S3(port, requests)
        s3.system().create_dir(BUCKET)
        yield s3
    finally:
        server.stop()


QUEUES = "03-clean-fanout-refcount"
TOPICS = "basic-clean"


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    with pytest.MonkeyPatch.context() as patch, s3_server() as server:
        for name, value in {**ENVIRONMENT, "AWS_ENDPOINT_URL": server.endpoint}.items():
            patch.setenv(name, value)
        server.upload(rabbitmq_node(QUEUES), "fleet/broker-1")
        server.upload(rocketmq_node(TOPICS), "fleet/broker-2")
        yield server


def remote(name: str) -> str:
    return f"s3://{BUCKET}/fleet/{name}"


def renamed(rows: list[Row], old: str, new: str) -> list[Row]:
    return [{name: _renamed(value, old, new) for name, value in row.items()} for row in rows]


def _renamed(value: Any, old: str, new: str) -> Any:
    return value.replace(old, new) if isinstance(value, str) else value


# ── directories of this machine ──────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    for name in ("broker-2", "broker-10", "broker-1"):
        (tmp_path / name / "msg_stores" / "vhosts").mkdir(parents=True)
    return tmp_path


def names(*paths: object) -> list[str]:
    return [node.name for node in find_nodes([str(path) for path in paths])]


def test_nodes_stand_in_order_of_the_paths_and_those_of_a_glob_sorted(fleet: Path) -> None:
    assert names(fleet / "broker-2", fleet / "broker-1") == [f"{fleet}/broker-2", f"{fleet}/broker-1"]
    assert names(fleet / "broker-*") == [f"{fleet}/broker-1", f"{fleet}/broker-10", f"{fleet}/broker-2"]


def test_a_node_is_named_as_its_path_was_given_or_matched(fleet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(fleet)
    assert names("broker-1", "./broker-2/") == ["broker-1", "./broker-2/"]
    assert names("broker-?/") == ["broker-1/", "broker-2/"]
    assert find_nodes(["broker-?/"])[0].directory == f"{fleet}/broker-1"


def test_a_directory_that_several_paths_name_is_loaded_once(fleet: Path) -> None:
    (fleet / "latest").symlink_to(fleet / "broker-2")
    given = [fleet / "broker-2", f"{fleet}/broker-2/", f"file://{fleet}/broker-2", fleet / "latest"]
    assert names(*given) == [f"{fleet}/broker-2"]
    assert names(fleet / "latest", fleet / "broker-[12]") == [f"{fleet}/latest", f"{fleet}/broker-1"]


def test_a_file_uri_names_a_directory_of_this_machine(fleet: Path) -> None:
    (node,) = find_nodes([f"file://{fleet}/broker-1"])
    assert (node.name, node.directory, node.is_remote) == (f"file://{fleet}/broker-1", f"{fleet}/broker-1", False)
    assert names(f"file://{fleet}/broker-?") == [f"file://{fleet}/broker-1", f"file://{fleet}/broker-2"]
    (fleet / "a b").mkdir()
    assert find_nodes([f"file://{fleet}/a%20b"])[0].directory == f"{fleet}/a b"
    with pytest.raises(StorageError, match="is on another machine"):
        names("file://elsewhere/disks/broker-1")


def test_a_name_with_a_pattern_in_it_is_that_directory(fleet: Path) -> None:
    (fleet / "broker-[1]").mkdir()
    assert names(fleet / "broker-[1]") == [f"{fleet}/broker-[1]"]


def test_an_archive_is_refused(fleet: Path) -> None:
    with pytest.raises(DataError, match="an archive, which Spark cannot read in parts; unpack it first"):
        names(GOLDEN / f"{QUEUES}.tar.gz")


@pytest.mark.parametrize("table", sorted(SCHEMAS))
def test_a_directory_with_neither_kind_is_named(table: str, fleet: Path) -> None:
    (fleet / "empty").mkdir()
    with pytest.raises(WarrenError, match=f"{fleet}/empty: is no RabbitMQ data directory.*, and no RocketMQ store"):
        read_rows(table, f"{fleet}/empty")


def test_what_is_no_brokers_is_skipped_and_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "a-note").mkdir()
    queues, topics, note = rabbitmq_node(QUEUES), rocketmq_node(TOPICS), f"{tmp_path}/a-note"
    assert read_rows("queues", queues, topics, note, skip_others="true") == read_rows("queues", queues)
    assert [record.getMessage().split(": ")[1] for record in caplog.records] == [topics, note]
    rows = read_rows("findings", queues, note, skip_others="true")
    assert rows[:-1] == read_rows("findings", queues)
    assert (rows[-1]["node"], rows[-1]["kind"], rows[-1]["severity"]) == (note, "skipped directory", "unread")
    with pytest.raises(WarrenError, match=f"{note}: is no RabbitMQ data directory"):
        read_rows("queues", queues, note)


def test_a_path_that_is_not_there_fails_at_load(tmp_path: Path) -> None:
    for table in ("queues", "records"):
        for path, said in ((f"{tmp_path}/none", "no such directory"), (f"{tmp_path}/none-*", "nothing matches")):
            with pytest.raises(WarrenError, match=said):
                WarrenSource({"table": table, "path": path}).schema()


# ── an object store ──────────────────────────────────────────────────────────────────────────────────────────────────


KINDS = (("broker-1", Kind.QUEUES), ("broker-2", Kind.TOPICS))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("table", "name", "kind"),
    [(table, *one) for table in sorted(SCHEMAS) for one in KINDS if one[1] & table_named(table).kinds],
)
def test_every_table_is_the_same_on_s3(s3: S3, table: str, name: str, kind: Kind) -> None:
    local = rabbitmq_node(QUEUES) if kind is Kind.QUEUES else rocketmq_node(TOPICS)
    s3.requests.clear()
    rows = read_rows(table, remote(name))
    assert renamed(rows, remote(name), local) == read_rows(table, local)
    files = sum(len(files) for _, _, files in os.walk(local))
    assert len(s3.requests) < 12 * files + 40, "many small reads are not a request each"


@pytest.mark.slow
@pytest.mark.spark
def test_spark_reads_from_s3(s3: S3, spark: SparkSession) -> None:
    # the session, and with it the executors' environment, may be older than the server
    path = f"s3://somebody:a-secret@{BUCKET}/fleet/broker-[1]/?{s3.query}"
    nodes = find_nodes([path])
    found = [row.asDict() for row in load(spark, "queues", nodes).collect()]
    assert [row["node"] for row in found] == [remote("broker-1") + "/"] * len(found)
    assert renamed(found, remote("broker-1") + "/", rabbitmq_node(QUEUES)) == read_rows("queues", rabbitmq_node(QUEUES))


@pytest.mark.slow
def test_globs_on_s3_match_as_those_of_a_disk_do(s3: S3) -> None:
    assert names(remote("broker-*")) == [remote("broker-1"), remote("broker-2")]
    assert names(remote("broker-*/")) == [remote("broker-1/"), remote("broker-2/")]
    assert names(*(node.path for node in find_nodes([remote("broker-*/")]))) == [
        remote("broker-1/"),
        remote("broker-2/"),
    ]
    assert names(f"s3://{BUCKET}/*/broker-[2-9]", remote("broker-1")) == [remote("broker-2"), remote("broker-1")]
    assert names(remote("broker-1/"), remote("broker-1")) == [remote("broker-1/")]


@pytest.mark.slow
def test_a_place_above_several_nodes_names_each_of_them(s3: S3) -> None:
    nodes = find_nodes([f"s3://somebody:a-secret@{BUCKET}/fleet?{s3.query}"])
    assert [node.name for node in nodes] == [remote("broker-1"), remote("broker-2")]
    assert [node.contents().kinds for node in nodes] == [Kind.QUEUES, Kind.TOPICS]
    assert find_nodes([node.path for node in nodes]) == nodes


@pytest.mark.slow
def test_what_opens_a_store_is_no_part_of_a_name(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ENDPOINT_URL", *ENVIRONMENT):
        monkeypatch.delenv(name)
    (node,) = find_nodes([f"s3://somebody:a-secret@{BUCKET}/fleet/broker-1?{s3.query}"])
    assert (node.name, node.directory) == (remote("broker-1"), remote("broker-1"))
    assert "a-secret" not in repr(node)
    assert "a-secret" not in repr(node.files())
    sent: Node = pickle.loads(pickle.dumps(node))
    assert sent.contents().kinds is Kind.QUEUES
    assert find_nodes([sent.path]) == [node]


@pytest.mark.parametrize(
    ("path", "said"),
    [
        (remote("broker-9"), "no such directory"),
        ("s3://no-such-bucket/broker", "no such bucket"),
        ("s3://no-such-bucket/broker-*", "no such bucket"),
        (remote("broker-9*"), "nothing matches"),
        (remote("broker-2/config"), "is no RabbitMQ data directory"),
        (remote("broker-2/checkpoint"), "an archive, which Spark cannot read in parts"),
        (f"{remote('broker-1')}?nonsense=1", "Unexpected query parameter"),
        ("gopher://host/broker", "Unrecognized filesystem type"),
    ],
)
def test_a_uri_without_a_store_is_an_error_of_one_line(s3: S3, path: str, said: str) -> None:
    with pytest.raises(WarrenError, match=said) as caught:
        read_rows("findings", path)
    assert str(caught.value).startswith(f"{path.partition('?')[0]}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_a_file_system_of_uris_answers_as_that_of_a_disk(s3: S3) -> None:
    from warren.storage.filesystem import RealFileSystem

    local, disk, away = rocketmq_node(TOPICS), RealFileSystem(), ArrowFileSystem(remote("broker-2"))
    for directory, folders, files in os.walk(local):
        there = remote("broker-2") + directory.removeprefix(local)
        if folders or files:  # an object store has no empty directories
            assert set(away.list(there)) >= set(files)
            assert (away.exists(there), away.is_directory(there)) == (True, True)
        for name in files:
            here, there_too = f"{directory}/{name}", f"{there}/{name}"
            assert (away.exists(there_too), away.is_directory(there_too)) == (True, False)
            assert away.size(there_too) == disk.size(here)
            assert away.modified_ms(there_too) > 0
            assert away.read(there_too) == disk.read(here)
    nowhere = remote("broker-2/nowhere/file")
    assert (away.list(nowhere), away.exists(nowhere), away.is_directory(nowhere)) == ([], False, False)
    for ask in (away.size, away.modified_ms, away.read, away.open_read):
        with pytest.raises(StorageError, match=f"{nowhere}: [Nn]o such file"):
            ask(nowhere)
    for refuse in (away.open_append, away.delete, away.delete_tree, away.make_directories):
        with pytest.raises(StorageError, match="opened read-only"):
            refuse(nowhere)


SIZE = 5 * BLOCK_BYTES // 2
DATA = bytes(range(251)) * (SIZE // 251 + 1)


class _Counted:
    """A file of pyarrow's, and how often it was read."""

    def __init__(self, data: bytes) -> None:
        self.data, self.reads = data, 0

    def size(self) -> int:
        return len(self.data)

    def read_at(self, size: int, offset: int) -> bytes:
        self.reads += 1
        return self.data[offset : offset + size]


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.integers(0, 3 * BLOCK_BYTES), st.integers(0, 3 * BLOCK_BYTES)), max_size=12),
    st.integers(1, 3),
)
def test_any_reads_in_any_order_give_the_bytes_of_the_file(reads: list[tuple[int, int]], cached: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrow_files, "CACHED_BLOCKS", cached)
        patch.setattr(arrow_files, "_UNCACHED_BLOCKS", 3)
        file = arrow_files.ArrowFile(ArrowFileSystem("s3://nowhere/x"), "s3://nowhere/x/file", _Counted(DATA[:SIZE]))
        for size, offset in reads:
            assert file.pread(size, offset) == DATA[:SIZE][offset : offset + size]


@pytest.mark.slow
def test_small_reads_one_behind_the_other_are_a_request_a_block() -> None:
    counted = _Counted(DATA[:SIZE])
    file = arrow_files.ArrowFile(ArrowFileSystem("s3://nowhere/x"), "s3://nowhere/x/file", counted)
    for offset in range(0, SIZE, 1000):
        assert file.pread(1000, offset) == DATA[:SIZE][offset : offset + 1000]
    assert counted.reads == 3
    assert file.pread(2 * BLOCK_BYTES, 0) == DATA[: 2 * BLOCK_BYTES]
    assert counted.reads == 3, "blocks that are here are not asked for again"
