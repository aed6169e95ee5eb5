"""What the pipeline's tests share: tables read in this process, without Spark, and the golden directories unpacked."""

from __future__ import annotations

import functools
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import Filter
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from warren.pipeline.source import WarrenSource

GOLDEN = Path(__file__).parent / "golden"
RABBITMQ = sorted(path.name.removesuffix(".tar.gz") for path in GOLDEN.glob("*.tar.gz"))
ROCKETMQ = sorted(path.name.removesuffix(".tar.gz") for path in (GOLDEN / "rocketmq").glob("*.tar.gz"))

_UNPACKED = tempfile.TemporaryDirectory(prefix="warren-golden-")

Row = dict[str, Any]


@functools.cache
def rabbitmq_node(scenario: str) -> str:
    """The directory of a golden RabbitMQ node; not to be changed."""
    return _unpacked(GOLDEN / f"{scenario}.tar.gz", scenario)


@functools.cache
def rocketmq_node(scenario: str) -> str:
    """The store folder of a golden RocketMQ; not to be changed."""
    return str(Path(_unpacked(GOLDEN / "rocketmq" / f"{scenario}.tar.gz", f"rocketmq-{scenario}")) / "store")


def _unpacked(archive: Path, name: str) -> str:
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
    import json

    return {"paths": json.dumps(paths)} if len(paths) > 1 else {}
