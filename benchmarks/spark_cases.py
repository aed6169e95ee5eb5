"""What is measured on Spark: each case takes turns with what stands beside it, in one session.

:func:`main` is run in a process of its own (a master can be chosen once a process); it prints a line of JSON: lists of
seconds by name.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import attrs
import pandas as pd
from pyspark.sql import DataFrame, SparkSession

from benchmarks.measure import seconds_of
from benchmarks.spark_reads import DIRECTORY as READS
from benchmarks.spark_reads import bytes_read
from warren import pipeline
from warren.commands.output import opened
from warren.pipeline.jobs.export import Exported, Order
from warren.pipeline.jobs.export import run as run_export
from warren.pipeline.jobs.rebuild import run as run_rebuild
from warren.salvage.export import Selection, export_source
from warren.salvage.rocketmq.rebuilding import rebuild
from warren.salvage.rocketmq.rocketmq_store import open_rocketmq
from warren.salvage.source import open_source

Times = dict[str, list[float]]


def session(master: str, *, counted: bool = False) -> SparkSession:
    """As a user's, with room for what is measured beside it; ``counted``: with workers that count what they read."""
    settings = {"spark.python.daemon.module": "benchmarks.spark_reads"} if counted else {}
    settings |= {
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


def scan(spark: SparkSession, repeats: int, scratch: str, arguments: Sequence[str]) -> Times:
    """A table with its bodies, beside Spark reading the same rows from Parquet."""
    name, *paths = arguments
    frame = table(spark, name, paths)
    kept = os.path.join(scratch, "parquet")
    frame.write.option("compression", "none").parquet(kept)
    return in_turn(repeats, warren=lambda: drain(frame), parquet=lambda: drain(spark.read.parquet(kept)))


def beside_binary_file(spark: SparkSession, repeats: int, scratch: str, arguments: Sequence[str]) -> Times:
    """A table with its bodies, beside Spark's own source of whole files with a decoder in plain Python."""
    name, *paths = arguments
    decoder = _DECODERS[name]
    files = [os.path.join(path, decoder.pattern) for path in paths]
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "1")  # a whole file is a row
    whole = spark.read.format("binaryFile").load(files).select("content")
    decoded = whole.repartition(_FILES_APART).mapInPandas(partial(_decoded, decoder), decoder.schema.replace(";", ","))
    frame = table(spark, name, paths)
    if frame.count() != decoded.count():
        raise RuntimeError("the plain decoder found another number of rows")
    return in_turn(repeats, warren=lambda: drain(frame), udf=lambda: drain(decoded))


def only(spark: SparkSession, repeats: int, scratch: str, arguments: Sequence[str]) -> Times:
    """A table with its bodies, alone."""
    name, *paths = arguments
    frame = table(spark, name, paths)
    return in_turn(repeats, warren=lambda: drain(frame))


def exporting(spark: SparkSession, repeats: int, scratch: str, paths: Sequence[str]) -> Times:
    """``warren spark export``, beside ``warren export`` of one node after the other."""
    ours, single = os.path.join(scratch, "ours"), os.path.join(scratch, "single")
    if not {_export(ours, paths).messages} == {_export_alone(single, paths)}:
        raise RuntimeError("the two exports differ in their number of messages")
    return in_turn(repeats, warren=lambda: _export(ours, paths), single=lambda: _export_alone(single, paths))


def _export(out: str, paths: Sequence[str]) -> Exported:
    shutil.rmtree(out, ignore_errors=True)
    return run_export(paths, Order(out=out))


def _export_alone(out: str, paths: Sequence[str]) -> int:
    shutil.rmtree(out, ignore_errors=True)
    os.makedirs(out)
    messages = 0
    for number, path in enumerate(paths):
        target = os.path.join(out, f"{number}.jsonl")
        with open_source(path) as source, opened(target, path) as write:
            messages += export_source(source, Selection(), write, lambda problem: None).messages
    return messages


def reading(spark: SparkSession, repeats: int, scratch: str, arguments: Sequence[str]) -> Times:
    """The megabytes that an export, or the scan of a table, reads from files."""
    job, path = arguments
    ours, reads = os.path.join(scratch, "ours"), os.environ[READS]
    read: list[float] = []
    for _ in range(repeats):
        before = bytes_read(reads)
        if job == "export":
            _export(ours, [path])
        else:
            drain(table(spark, job, [path]))
        read.append((bytes_read(reads) - before) / 1e6)
    return {"megabytes": read}


def rebuilding(spark: SparkSession, repeats: int, scratch: str, paths: Sequence[str]) -> Times:
    """``warren spark rebuild``, beside ``warren topic rebuild`` of one store after the other."""
    ours, single = os.path.join(scratch, "ours"), os.path.join(scratch, "single")

    def on_spark() -> None:
        shutil.rmtree(ours, ignore_errors=True)
        run_rebuild(list(paths), None, {}, ours)

    def alone() -> None:
        shutil.rmtree(single, ignore_errors=True)
        for number, path in enumerate(paths):
            with open_rocketmq(path, {}) as store:
                rebuild(store, os.path.join(single, str(number)), lambda _: None).close()

    return in_turn(repeats, warren=on_spark, single=alone)


_FILES_APART = 8


_RECORDS = (
    "topic string, queue_id int, queue_offset long, physical_offset long, size int, store_timestamp long, "
    "born_timestamp long, born_host string, store_host string, sys_flag int, flag int, reconsume_times int, "
    "prepared_transaction_offset long, tags string, keys string, properties map<string;string>, body binary, "
    "body_crc long, crc_ok boolean, message_id string, file_offset long"
)
_STORED = "msg_id string, size long, good boolean, message binary, file_offset long"
_HEAD = struct.Struct(">iIIiiqqiq8sq8siqi")
_RECORD_MAGIC = 0xDAA320A7


@attrs.frozen
class Decoder:
    """What one writes in an afternoon: a loop over a whole file."""

    rows: Callable[[bytes], Iterator[tuple[Any, ...]]]
    schema: str
    pattern: str
    """Of the files, below a node's directory."""


def _decoded(decoder: Decoder, frames: Iterable[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    names = [part.split()[0] for part in decoder.schema.split(", ")]
    for frame in frames:
        for content in frame["content"]:
            yield pd.DataFrame(list(decoder.rows(content)), columns=names)


def _records_of(content: bytes) -> Iterator[tuple[Any, ...]]:
    """IPv4 hosts only."""
    at = 0
    while at + _HEAD.size <= len(content):
        size, magic, crc, queue_id, flag, queue_offset, physical_offset, sys_flag, born, *rest = _HEAD.unpack_from(
            content, at
        )
        born_host, stored, store_host, reconsumed, prepared, body_size = rest
        if magic != _RECORD_MAGIC:
            return
        body_at = at + _HEAD.size
        topic_at = body_at + body_size + 1
        topic_end = topic_at + content[topic_at - 1]
        body, text = content[body_at : topic_at - 1], content[topic_end + 2 : at + size].decode()
        properties = dict(entry.split("\x01", 1) for entry in text.split("\x02") if entry)
        yield (
            content[topic_at:topic_end].decode(),
            queue_id,
            queue_offset,
            physical_offset,
            size,
            stored,
            born,
            _host(born_host),
            _host(store_host),
            sys_flag,
            flag,
            reconsumed,
            prepared,
            properties.get("TAGS"),
            properties.get("KEYS"),
            properties,
            body,
            crc,
            zlib.crc32(body) & 0x7FFFFFFF == crc,
            (store_host + physical_offset.to_bytes(8, "big")).hex().upper(),
            at,
        )
        at += size


def _host(packed: bytes) -> str:
    return f"{socket.inet_ntoa(packed[:4])}:{int.from_bytes(packed[4:], 'big')}"


def _stored_of(content: bytes) -> Iterator[tuple[Any, ...]]:
    at = 0
    while at + 25 <= len(content):
        size = int.from_bytes(content[at : at + 8], "big")
        if size < 16:
            return
        end = at + 8 + size
        yield content[at + 8 : at + 24].hex(), size + 9, content[end] == 0xFF, content[at + 24 : end], at
        at = end + 1


_DECODERS = {
    "records": Decoder(_records_of, _RECORDS, "commitlog/*"),
    "store": Decoder(_stored_of, _STORED, "msg_store_persistent/*.rdq"),
}

Case = Callable[[SparkSession, int, str, Sequence[str]], Times]
"""Session, repeats, a directory to work in, arguments."""

CASES: dict[str, Case] = {
    "scan": scan,
    "binary": beside_binary_file,
    "only": only,
    "export": exporting,
    "rebuild": rebuilding,
    "reads": reading,
}


def main(master: str, case: str, repeats: str, scratch: str, *arguments: str) -> None:
    """One case, in a fresh session."""
    if case == "reads":
        os.environ[READS] = os.path.join(scratch, "reads")
        os.mkdir(os.environ[READS])
    spark = session(master, counted=case == "reads")
    spark.range(1000).count()
    print(json.dumps(CASES[case](spark, int(repeats), scratch, arguments)), flush=True)
    spark.stop()
