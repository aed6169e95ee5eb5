"""What is measured on Spark: each case takes turns with what stands beside it, in one session.

``python -m benchmarks.spark_cases MASTER CASE PATHS`` is a process of its own (a master can be chosen once a process);
it prints a line of JSON: lists of seconds by name.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, SparkSession

from benchmarks.measure import seconds_of
from warren import pipeline

Times = dict[str, list[float]]


def session(master: str) -> SparkSession:
    """As a user's, with room for what is measured beside it."""
    settings = {
        "spark.driver.memory": "4g",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "4096",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.shuffle.partitions": "4",
    }
    return pipeline.session(master, app_name="benchmarks", config=settings)


def table(spark: SparkSession, name: str, paths: list[str], **options: object) -> DataFrame:
    """One of warren's tables."""
    reader = spark.read.format("warren").option("table", name)
    for option, value in options.items():
        reader = reader.option(option, str(value))
    return reader.load(paths)


def drain(frame: DataFrame) -> None:
    """Make every column of every row, and keep none."""
    frame.write.format("noop").mode("overwrite").save()


def in_turn(repeats: int, **works: Callable[[], object]) -> Times:
    """Each once to get warm, then all of them in turn."""
    for work in works.values():
        work()
    times: Times = {name: [] for name in works}
    for _ in range(repeats):
        for name, work in works.items():
            times[name].append(seconds_of(work))
    return times


def scan(spark: SparkSession, repeats: int, name: str, paths: list[str], scratch: str) -> Times:
    """A table with its bodies, beside Spark reading the same rows from Parquet."""
    frame = table(spark, name, paths, partition_bytes="32m")
    kept = os.path.join(scratch, "parquet")
    frame.write.option("compression", "none").parquet(kept)
    return in_turn(repeats, warren=lambda: drain(frame), parquet=lambda: drain(spark.read.parquet(kept)))


def beside_binary_file(spark: SparkSession, repeats: int, name: str, paths: list[str]) -> Times:
    """A table with its bodies, beside Spark's own source of whole files with a decoder in plain Python."""
    decoders = {
        "records": (_records_of, _RECORDS, "commitlog/*"),
        "store": (_stored_of, _STORED, "msg_store_persistent/*.rdq"),
    }
    decode, schema, pattern = decoders[name]
    files = [os.path.join(path, pattern) for path in paths]
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "1")
    whole = spark.read.format("binaryFile").load(files).select("path", "content")
    decoded = whole.repartition(spark.sparkContext.defaultParallelism).mapInPandas(partial(_decoded, decode), schema)
    frame = table(spark, name, paths, partition_bytes="32m")
    if frame.count() != decoded.count():
        raise RuntimeError("the plain decoder found another number of rows")
    return in_turn(repeats, warren=lambda: drain(frame), udf=lambda: drain(decoded))


def only(spark: SparkSession, repeats: int, name: str, paths: list[str]) -> Times:
    """A table with its bodies, alone."""
    frame = table(spark, name, paths, partition_bytes="32m")
    return in_turn(repeats, warren=lambda: drain(frame))


_RECORDS = "topic string, queue_id int, queue_offset long, physical_offset long, stored long, born long, body binary"
_STORED = "msg_id string, size long, message binary"
_HEAD = struct.Struct(">iIIiiqqiq8sq8siqi")
_RECORD_MAGIC = 0xDAA320A7


def _decoded(
    decode: Callable[[bytes], Iterator[tuple[Any, ...]]], frames: Iterable[pd.DataFrame]
) -> Iterator[pd.DataFrame]:
    for frame in frames:
        for content in frame["content"]:
            rows = list(decode(content))
            names = [part.split()[0] for part in (_RECORDS if decode is _records_of else _STORED).split(", ")]
            yield pd.DataFrame(rows, columns=names)


def _records_of(content: bytes) -> Iterator[tuple[Any, ...]]:
    """The decoder that one writes in an afternoon: a loop over the file."""
    at = 0
    while at + _HEAD.size <= len(content):
        (size, magic, _, queue_id, _, queue_offset, physical_offset, _, born, _, stored, _, _, _, body_size) = (
            _HEAD.unpack_from(content, at)
        )
        if magic != _RECORD_MAGIC:
            return
        body_at = at + _HEAD.size
        body = content[body_at : body_at + body_size]
        topic_at = body_at + body_size + 1
        topic = content[topic_at : topic_at + content[topic_at - 1]].decode()
        yield topic, queue_id, queue_offset, physical_offset, stored, born, body
        at += size


def _stored_of(content: bytes) -> Iterator[tuple[Any, ...]]:
    at = 0
    while at + 25 <= len(content):
        size = int.from_bytes(content[at : at + 8], "big")
        if size < 16:
            return
        yield content[at + 8 : at + 24].hex(), size + 9, content[at + 24 : at + 8 + size]
        at += size + 9


def main(master: str, case: str, repeats: str, *arguments: str) -> None:
    """One case, in a fresh session."""
    spark = session(master)
    spark.range(1000).count()
    with tempfile.TemporaryDirectory(prefix="warren-bench-") as scratch:
        cases: dict[str, Callable[[], Times]] = {
            "scan": lambda: scan(spark, int(repeats), arguments[0], list(arguments[1:]), scratch),
            "binary": lambda: beside_binary_file(spark, int(repeats), arguments[0], list(arguments[1:])),
            "only": lambda: only(spark, int(repeats), arguments[0], list(arguments[1:])),
        }
        print(json.dumps(cases[case]()), flush=True)
        shutil.rmtree(scratch, ignore_errors=True)
        os.makedirs(scratch)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
