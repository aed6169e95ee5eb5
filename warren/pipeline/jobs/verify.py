"""``verify``: the findings of all nodes, as ``warren verify`` has them; the join of index and store is Spark's.

A task reads some queues' own files, and gives what is wrong in them and a row for each body that an unacked message
needs from the store. Another reads some of a store's files, and gives what is wrong in them and a row for each record:
the message is decoded there, and only what is compared goes on. Joined by vhost, store and msg_id they show

* for a reference without a record, or with one that contradicts it: what is wrong with the message;
* for a record without a reference: an orphan, if all that may refer to it can be read;
* for a record that was not written whole: whether there is a good copy elsewhere.

Spark picks out the rows that may be findings, and the rules of :mod:`warren.salvage.classic.needed_body` decide. A
topic store is one task's: its files are compared with each other while its CommitLog is read from front to
back.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import attrs
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from warren.arrow.arrays import Columns, as_batch
from warren.pipeline.jobs.parallel import Batches, persisted, planned
from warren.pipeline.jobs.running import check_format, running, write_tables
from warren.pipeline.jobs.verify_parts import FINDING, KEY, NOTE, RECORD, REFERENCE, SCHEMA, TASK_FINDINGS, do, plan
from warren.pipeline.jobs.vhost_parts import node_number
from warren.pipeline.spark_schemas import FINDINGS
from warren.salvage.classic.needed_body import (
    Contents,
    Reference,
    answered,
    bad_record,
    in_store,
    orphan,
    orphaned_message,
    unanswered,
)
from warren.salvage.names import as_text
from warren.salvage.queue_directory import Finding
from warren.storage.errors import UnknownMessageError
from warren.tables.findings import finding_columns
from warren.tables.places import Node
from warren.tables.read_options import DEFAULT_PARTITION_BYTES

# ── the join ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def joined(parts: DataFrame) -> DataFrame:
    """Return the findings that need both, index and store, from the rows of the tasks."""
    records = parts.where(F.col("what") == RECORD)
    references = parts.where(F.col("what") == REFERENCE).select(*KEY, "seq_id", "size", "path", "offset")
    first = F.struct("age", "offset", "path", "size", "judged")
    last = F.struct("age", "offset", "detail", "found_id", "payload_bytes", "persistent")
    bodies = records.where("good").groupBy(*KEY).agg(F.min(first).alias("first"), F.max(last).alias("last"))
    pairs = references.join(bodies, list(KEY), "full_outer")
    doubtful = pairs.where(_is_suspicious() | _is_orphaned()).mapInArrow(
        _rows_of(_pair_findings), from_arrow_schema(TASK_FINDINGS)
    )
    bad_records = records.where(~F.col("good")).select(*KEY, "path", "offset")
    copies = bodies.select(*KEY, F.lit(True).alias("has_good_copy"))
    torn = bad_records.join(copies, list(KEY), "left").mapInArrow(
        _rows_of(_bad_findings), from_arrow_schema(TASK_FINDINGS)
    )
    return doubtful.union(torn)


def _is_suspicious() -> Column:
    """Whether a reference may be a finding."""
    last = F.col("last")
    is_sound = (
        last["detail"].isNull()
        & (last["found_id"] == F.col("msg_id"))
        & (last["payload_bytes"] == F.col("size"))
        & last["persistent"]
    )
    return F.col("seq_id").isNotNull() & F.col("persistent_store") & ~F.coalesce(is_sound, F.lit(False))


def _is_orphaned() -> Column:
    return F.col("seq_id").isNull() & F.col("first")["judged"]


def _rows_of(rule: Any) -> Any:
    """Return the findings of a rule about rows, as rows."""

    def saying(batches: Batches) -> Batches:
        for batch in batches:
            pairs = [(row["place"], finding) for row in batch.to_pylist() for finding in rule(row)]
            if pairs:
                columns = {"place": [place for place, _ in pairs], **finding_columns([finding for _, finding in pairs])}
                yield as_batch(Columns(len(pairs), columns), TASK_FINDINGS)

    return saying


def _pair_findings(row: dict[str, Any]) -> Iterator[Finding]:
    """Yield the findings about a reference, a record, or both."""
    msg_id, first, last = row["msg_id"], row["first"], row["last"]
    contents = None
    if last is not None:
        contents = Contents(last["detail"], last["found_id"], last["payload_bytes"], last["persistent"])
    if row["seq_id"] is not None:
        reference = Reference(msg_id, True, row["seq_id"], row["size"], row["path"], row["offset"])
        if contents is None:
            yield unanswered(reference, UnknownMessageError(msg_id.hex()))
        else:
            yield from answered(reference, contents)
        return
    yield orphan(first["path"], first["offset"], msg_id, first["size"])
    if row["persistent_store"] and contents is not None:
        yield from orphaned_message(first["path"], first["offset"], msg_id, contents)


def _bad_findings(row: dict[str, Any]) -> Iterator[Finding]:
    has_good_copy = row["has_good_copy"] is not None
    finding = bad_record(row["path"], row["offset"], row["msg_id"], has_good_copy=has_good_copy)
    yield in_store(finding, is_persistent=row["persistent_store"])


@contextmanager
def findings(
    spark: SparkSession,
    nodes: list[Node],
    settings: Mapping[str, str] | None = None,
    *,
    partition_bytes: int = DEFAULT_PARTITION_BYTES,
) -> Iterator[tuple[DataFrame, list[str]]]:
    """All findings of the nodes (:data:`warren.pipeline.spark_schemas.FINDINGS`), and what was only guessed.

    ``settings``: of topic stores, as ``--set`` has them. Within the context the frame may be asked for often: the files
    are read once.
    """
    planning = functools.partial(plan, settings=settings or {}, partition_bytes=partition_bytes)
    with planned(spark, nodes, planning, do, SCHEMA, partition_bytes=partition_bytes) as parts:
        task_findings = parts.where(F.col("what") == FINDING).select(*TASK_FINDINGS.names)
        all_findings = task_findings.union(joined(parts)).withColumn("number", node_number(F.col("place")))
        with persisted(
            all_findings.join(F.broadcast(_node_names(spark, nodes)), "number").select(*FINDINGS.names)
        ) as frame:
            notes = frame.where(F.col("severity") == NOTE).select("detail").collect()
            yield frame.where(F.col("severity") != NOTE), [note.detail for note in notes]


def _node_names(spark: SparkSession, nodes: list[Node]) -> DataFrame:
    numbers, names = pa.array(range(len(nodes)), pa.int64()), [as_text(node.name) for node in nodes]
    return spark.createDataFrame(pa.table({"number": numbers, "node": pa.array(names, pa.string())}))


# ── the job ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@attrs.frozen
class Verified:
    """The result of the command."""

    notes: list[str]
    damage: int
    leftover: int
    findings: Iterator[tuple[str, Finding]]
    """With their nodes, sorted by node, path and offset; empty if they were written out. To be used while
    :func:`verified` lasts."""


@contextmanager
def verified(
    paths: list[str],
    master: str | None,
    settings: Mapping[str, str],
    *,
    out: str | None = None,
    output_format: str = "jsonl",
) -> Iterator[Verified]:
    """Yield the result of the command."""
    check_format(output_format)
    with running("Verifying", master, paths) as (spark, nodes), findings(spark, nodes, settings) as (frame, notes):
        counts = {row["severity"]: row["count"] for row in frame.groupBy("severity").count().collect()}
        ordered = frame.orderBy("node", "path", "offset", "kind", "detail")
        if out is not None:
            write_tables({"": ordered}, out, output_format, nodes)
        rows = iter(()) if out is not None else ordered.toLocalIterator(prefetchPartitions=True)
        node_findings = ((row["node"], _to_finding(row)) for row in rows)
        yield Verified(notes, counts.get("damage", 0), counts.get("leftover", 0), node_findings)


def _to_finding(row: Any) -> Finding:
    return Finding(row["kind"], row["severity"], row["path"], row["offset"], row["detail"])
