"""What the pipeline's tests share: tables read in this process, without Spark, and the golden directories unpacked."""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import tarfile
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import Filter
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from warren.pipeline.source import WarrenSource
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
    wanted = StructType.fromDDL(schema) if isinstance(schema, str) else schema or source.schema()
    reader = source.reader(wanted)
    reader.pushFilters(filters or [])
    found = [batch for partition in reader.partitions() for batch in reader.read(partition)]
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


def exported(path: str) -> tuple[list[Row], list[Finding]]:
    """The lines of ``warren export`` as rows of the table have them, and what could not be exported."""
    pieces: list[bytes] = []
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
    for name in ("delivery_count", "encoded_properties"):
        if left[name] is None:
            del left[name]
    left["properties"] = json.loads(left["properties"])
    left["headers"] = None if left["headers"] is None else json.loads(left["headers"])
    return left


def check_messages(rows: list[Row], path: str) -> None:
    """The rows of ``messages`` are the lines of ``warren export``, and positions count through each queue."""
    lines, problems = exported(path)
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
