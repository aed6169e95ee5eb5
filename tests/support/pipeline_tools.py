"""What the pipeline's tests share: tables read in this process, without Spark, and the golden directories unpacked.

What a Spark job exports or reports is compared with what the single machine's commands print.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import pickle
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import Filter
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType
from typer.testing import CliRunner

from tests.support.cli_tools import warren
from warren.cli import app
from warren.pipeline.jobs.export import Exported, Order, export_nodes
from warren.pipeline.jobs.inspect import NODE, QUEUE, STORE_FILE, TOPIC, inspect_node
from warren.pipeline.jobs.parallel import Numbered
from warren.pipeline.spark_source import WarrenSource
from warren.salvage.export import Selection, export_source
from warren.salvage.names import as_text
from warren.salvage.queue_directory import Finding
from warren.storage.filesystem import FileSystem
from warren.tables.places import find_nodes

GOLDEN = Path(__file__).parents[1] / "golden"
RABBITMQ = sorted(path.name.removesuffix(".tar.gz") for path in GOLDEN.glob("*.tar.gz"))
ROCKETMQ = sorted(path.name.removesuffix(".tar.gz") for path in (GOLDEN / "rocketmq").glob("*.tar.gz"))

_UNPACKED = tempfile.TemporaryDirectory(prefix="warren-golden-")

Row = dict[str, Any]


@functools.cache
def rabbitmq_node(scenario: str) -> str:
    """The directory of a golden RabbitMQ node; not to be changed."""
    return unpacked(GOLDEN / f"{scenario}.tar.gz", scenario)


@functools.cache
def rocketmq_node(scenario: str) -> str:
    """The store folder of a golden RocketMQ; not to be changed."""
    return str(Path(unpacked(GOLDEN / "rocketmq" / f"{scenario}.tar.gz", f"rocketmq-{scenario}")) / "store")


@functools.cache
def golden_node(archive: Path) -> str:
    """The unpacked data directory of a golden archive of any kind of RabbitMQ's; not to be changed."""
    name = archive.name.removesuffix(".tar.gz")
    place = Path(unpacked(archive, f"{archive.parent.name}-{hashlib.md5(bytes(archive)).hexdigest()[:6]}-{name}"))
    return str(place / "node" if (place / "node").is_dir() else place)


def unpacked(archive: Path, name: str) -> str:
    target = Path(_UNPACKED.name) / name
    target.mkdir()
    with tarfile.open(archive) as opened:
        opened.extractall(target, filter="data")
    return str(target)


def read_batches(
    table: str,
    *paths: str,
    filters: list[Filter] | None = None,
    schema: str | StructType | None = None,
    **options: object,
) -> list[pa.RecordBatch]:
    """A table as Spark would read it, task by task, in this process.

    A ``schema`` that is text can only be understood where a session is active.
    """
    source = WarrenSource(
        {"table": table, "path": paths[0], **_paths(paths), **{k: str(v) for k, v in options.items()}}
    )
    wanted: Any = StructType.fromDDL(schema) if isinstance(schema, str) else schema or source.schema()
    reader = source.reader(wanted)
    reader.pushFilters(filters or [])
    found: list[Any] = [batch for partition in reader.partitions() for batch in reader.read(partition)]
    arrow = to_arrow_schema(wanted, timezone="UTC")
    assert all(batch.schema.equals(arrow) for batch in found)
    return found


def read_rows(table: str, *paths: str, **options: Any) -> list[Row]:
    """The same as rows."""
    return [row for batch in read_batches(table, *paths, **options) for row in batch.to_pylist()]


def _paths(paths: tuple[str, ...]) -> dict[str, str]:
    return {"paths": json.dumps(paths)} if len(paths) > 1 else {}


def noted(monkeypatch: pytest.MonkeyPatch, files: type[FileSystem]) -> list[str]:
    """The paths of the files that are opened from now on."""
    paths: list[str] = []
    open_read = files.open_read

    def noting(self: FileSystem, path: str) -> Any:
        paths.append(path)
        return open_read(self, path)

    monkeypatch.setattr(files, "open_read", noting)
    return paths


def _exported(path: str) -> tuple[list[Row], list[Finding]]:
    """The lines of ``warren export`` as rows of the table have them, and what could not be exported."""
    pieces: list[bytes | bytearray] = []
    problems: list[Finding] = []
    (node,) = find_nodes([path])
    with closing(node.place().queues()) as source:
        export_source(source, Selection(), pieces.append, problems.append)
    rows = [json.loads(line) for line in b"".join(pieces).splitlines()]
    for row in rows:
        row["body"] = base64.b64decode(row["body"])
        if "encoded_properties" in row:
            row["encoded_properties"] = base64.b64decode(row["encoded_properties"])
        if (row["expiry_us"] or 0) >= 1 << 63:
            row["expiry_us"] -= 1 << 64
        for name in ("vhost", "queue", "exchange"):
            row[name] = as_text(row[name])
        row["routing_keys"] = [as_text(key) for key in row["routing_keys"]]
    return rows, problems


def as_exported(row: Row) -> Row:
    """A row without what a line does not have."""
    left = {name: value for name, value in row.items() if name not in ("node", "priority", "position", "file")}
    del left["file_offset"]
    for name in ("delivery_count", "stream_offset", "encoded_properties"):
        if left[name] is None:
            del left[name]
    left["properties"] = json.loads(left["properties"])
    left["headers"] = None if left["headers"] is None else json.loads(left["headers"])
    return left


def check_messages(rows: list[Row], path: str) -> None:
    """The rows of ``messages`` are the lines of ``warren export``, and positions count through each queue."""
    lines, problems = _exported(path)
    assert [as_exported(row) for row in rows] == lines
    unread = sum(problem.kind in ("unreadable message", "unreadable body") for problem in problems)
    next_position: dict[tuple[str, str], int] = {}
    left_out = 0
    for row in rows:
        queue = row["vhost"], row["queue"]
        left_out += row["position"] - next_position.get(queue, 0)
        assert row["position"] >= next_position.get(queue, 0)
        next_position[queue] = row["position"] + 1
    assert left_out <= unread


def verified(path: str) -> list[Row]:
    """The findings of the single-machine command, as rows of the table."""
    found = json.loads(CliRunner().invoke(app, ["verify", path, "--json"]).stdout)["findings"]
    return [{"node": path, **row} for row in found]


def one_by_one(pieces: Sequence[Any], work: Callable[[Any], Any]) -> list[Any]:
    """What Spark's tasks do, in this process: what they are sent and send back is pickled, and none knows another."""
    return [
        pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(work))(pickle.loads(pickle.dumps(piece)))))
        for piece in pieces
    ]


def exported(out: Path, *paths: str, parallel: Any = one_by_one, **order: Any) -> Exported:
    return export_nodes(find_nodes(paths), Order(out=str(out), **order), parallel, cores=2)


def lines(out: Path) -> list[bytes]:
    return [line for file in sorted(out.iterdir()) for line in file.read_bytes().splitlines(keepends=True)]


@cache
def on_one_machine(node: str) -> tuple[tuple[bytes, ...], int, str]:
    """The lines of the single-machine command, sorted as the job sorts them; its exit code, and its complaints."""
    if "rocketmq" in node:
        scanned = warren("topic", "scan", node)
        found = scanned.stdout_bytes.splitlines(keepends=True)
        return tuple(line for line in found if not line.startswith(b'{"blank"')), scanned.exit_code, scanned.stderr
    result = warren("export", node)
    found = result.stdout_bytes.splitlines(keepends=True)
    found.sort(key=_names)  # stable: messages of a queue stay in order
    return tuple(found), result.exit_code, result.stderr


def _names(line: bytes) -> tuple[bytes, bytes]:
    said = json.loads(line)
    vhost, queue = (said[name].encode("utf-8", "surrogateescape") for name in ("vhost", "queue"))
    return vhost, queue


def expected_lines(*nodes: str) -> list[bytes]:
    """Those of the single machine with node and position in front."""
    found = []
    for node in sorted(nodes):
        position, group = 0, None
        for line in on_one_machine(node)[0]:
            names = None if "rocketmq" in node else _names(line)
            position = position + 1 if group is not None and names == group[0] else 0
            group = (names,)
            found.append(b'{"node": %b, "position": %d, %b' % (json.dumps(node).encode(), position, line[1:]))
    return found


Report = dict[str, Any]


def reported_on_one_machine(path: str, *options: str) -> Report:
    report: Report = json.loads(CliRunner().invoke(app, ["inspect", path, "--json", *options]).stdout)
    return report


def by_a_task(path: str, **settings: str) -> dict[str, list[Report]]:
    """What the task of a node says, by what it is about."""
    (node,) = find_nodes([path])
    (batch,) = inspect_node(Numbered(0, node), settings)
    found: dict[str, list[Report]] = {what: [] for what in (QUEUE, TOPIC, STORE_FILE, NODE)}
    for row in batch.to_pylist():
        assert row["node"] == path
        found[row["what"]].append(json.loads(row["report"]))
    return found


def expected_rows(report: Report) -> tuple[list[Report], list[Report]]:
    queues = [{"vhost": vhost["name"], **queue} for vhost in report["vhosts"] for queue in vhost["queues"]]
    stores = [
        {"vhost": vhost["name"], "store": store, **file}
        for vhost in report["vhosts"]
        for store, said in vhost["stores"].items()
        for file in said["files"]
    ]
    return queues, stores
