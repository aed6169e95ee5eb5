"""``backlog``: a report for operators on the messages that wait, as tables and as a page.

The tables are Spark's (:mod:`warren.pipeline.jobs.backlog_tables`). They are small, whatever waits: a row for a queue,
a minute, a size. So this process collects them, and writes a file each.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Literal

import attrs
import pyarrow as pa
import pyarrow.parquet
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from warren.pipeline.jobs.backlog_page import page
from warren.pipeline.jobs.backlog_tables import (
    MESSAGE_COLUMNS,
    RECORD_COLUMNS,
    ages,
    duplicates,
    groups,
    keys,
    queues,
    rates,
    repeated,
    repeated_total,
    sizes,
    waiting_messages,
    waiting_records,
)
from warren.pipeline.jobs.parallel import map_parallel
from warren.pipeline.jobs.running import load, running, staged
from warren.pipeline.spark_schemas import OFFSETS, columns_of
from warren.salvage.names import Json
from warren.tables.pipeline_errors import PipelineError
from warren.tables.places import Kind, Node

PAGE: Final = "index.html"

Format = Literal["parquet", "jsonl"]


@attrs.frozen(kw_only=True)
class Backlog:
    """The collected tables, and the nodes that they cover."""

    nodes: tuple[str, ...]
    tables: Mapping[str, pa.Table]
    repeated_total: Mapping[str, int]

    def to_json(self) -> dict[str, Json]:
        """The summary."""
        queue_table = self.tables["queues"]
        oldest = [ms for ms in queue_table.column("oldest_ms").to_pylist() if ms is not None]
        age_s = [age for age in queue_table.column("oldest_age_s").to_pylist() if age is not None]
        lag = self.tables["groups"].column("lag").to_pylist()
        return {
            "nodes": len(self.nodes),
            "queues": queue_table.num_rows,
            "messages": sum(queue_table.column("messages").to_pylist()),
            "bytes": sum(queue_table.column("bytes").to_pylist()),
            "timed": sum(queue_table.column("timed").to_pylist()),
            "oldest_ms": min(oldest, default=None),
            "oldest_age_s": max(age_s, default=None),
            "lag": sum(lag),
            "repeated": dict(self.repeated_total),
        }


def run(
    paths: list[str],
    master: str | None,
    settings: Mapping[str, str],
    out: str,
    *,
    format: Format = "jsonl",
    now: str | None = None,
) -> Backlog:
    """Write the tables and the page. ``now``: milliseconds since 1970, or ``files``: of each node when the newest of
    its files was written; ``None``: this moment."""
    if "://" in out:
        raise PipelineError(f"{out}: --out is a directory of this machine")
    if now is not None and now != "files" and not now.isdecimal():
        raise PipelineError(f"--now is {now!r}, neither milliseconds since 1970 nor files")
    with running("Counting the backlog", master, paths) as (spark, nodes), staged(out, nodes) as staging:
        backlog = collect(spark, nodes, settings, now)
        for name, table in backlog.tables.items():
            _write(table, Path(staging, f"{name}.{format}"))
        Path(staging, PAGE).write_text(page(backlog.tables, backlog.to_json()), encoding="utf-8")
    return backlog


def collect(spark: SparkSession, nodes: Sequence[Node], settings: Mapping[str, str], now: str | None) -> Backlog:
    """Return all tables of ``nodes``."""
    kinds = {node: node.contents().kinds for node in nodes}
    queue_nodes = [node for node, kind in kinds.items() if Kind.QUEUES in kind]
    topic_nodes = [node for node, kind in kinds.items() if Kind.TOPICS in kind]
    messages = _read(spark, "messages", queue_nodes, settings, MESSAGE_COLUMNS)
    records = _read(spark, "records", topic_nodes, settings, RECORD_COLUMNS)
    offsets = _read(spark, "offsets", topic_nodes, settings, OFFSETS.names).persist()
    moments = spark.createDataFrame(_moments(spark, nodes, now))
    waiting = waiting_messages(messages).unionByName(waiting_records(records)).persist()
    doubled = duplicates(waiting).persist()
    try:
        tables = {
            "queues": queues(waiting, moments),
            "groups": groups(offsets, waiting, moments),
            "sizes": sizes(waiting),
            "ages": ages(waiting, moments),
            "rates": rates(waiting, offsets),
            "keys": keys(waiting),
            "repeated": repeated(doubled),
        }
        return Backlog(
            nodes=tuple(node.name for node in nodes),
            tables={name: frame.toArrow() for name, frame in tables.items()},
            repeated_total=repeated_total(doubled).toArrow().to_pylist()[0],
        )
    finally:
        for frame in (doubled, waiting, offsets):
            frame.unpersist()


def _read(
    spark: SparkSession,
    table: str,
    nodes: Sequence[Node],
    settings: Mapping[str, str],
    columns: Sequence[str],
) -> DataFrame:
    """Return some columns of a table; without nodes, no rows."""
    if nodes:
        return load(spark, table, nodes, settings, columns=columns)
    schema = columns_of(table, columns)
    return spark.createDataFrame(to_arrow_schema(schema).empty_table())


def _moments(spark: SparkSession, nodes: Sequence[Node], now: str | None) -> pa.Table:
    """Return the moment from which ages are counted, for each node."""
    if now == "files":
        moments = map_parallel(spark, nodes, newest_ms)
    else:
        moments = [int(now) if now is not None else int(time.time() * 1000)] * len(nodes)
    return pa.table({"node": [node.name for node in nodes], "now_ms": pa.array(moments, pa.int64())})


def newest_ms(node: Node) -> int:
    """Return when the newest of a node's files was written."""
    files = node.files()

    def newest(directory: str) -> int:
        paths = (f"{directory}/{name}" for name in files.list(directory))
        return max((newest(path) if files.is_directory(path) else files.modified_ms(path) for path in paths), default=0)

    return newest(node.directory)


def _write(table: pa.Table, path: Path) -> None:
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(table, path)
        return
    with path.open("w", encoding="utf-8") as file:
        for row in table.to_pylist():
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
