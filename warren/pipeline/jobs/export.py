"""``export``: the messages of many nodes, in order, as lines of JSON or as Parquet.

The rows are those of ``warren export`` for queues and of ``warren topic scan`` (without its blanks) for topics. Each
has the ``node`` and its ``position`` in front, counted from 0 over the messages of one name in a vhost, or over a topic
store. They are written sorted by node, vhost, queue (names by their bytes) and position, the records of a node after
its queues; the files' names are in the order of their contents.

Each part is written by one task, by the code of the single machine (:mod:`~warren.pipeline.jobs.export_parts`). A part
that begins in the middle of a queue or a store needs the number of messages before it. They are counted first, from the
index alone; a message that is there and cannot be read has a position, too, which no row has then. If a count proves
wrong, as it would for files that change, the rest of its queue is written once more.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

import attrs
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf

from warren.pipeline.jobs.export_parts import Job, Problem, Written, count_chunk, write_part
from warren.pipeline.jobs.export_plan import (
    Chunk,
    Counts,
    NodeSurvey,
    Part,
    first_positions,
    pack,
    survey_node,
    uncounted,
)
from warren.pipeline.jobs.parallel import ParallelMap, map_parallel, task_outputs
from warren.pipeline.jobs.running import check_format, check_out, running, staged
from warren.pipeline.spark_schemas import EXPORTED_MESSAGES, EXPORTED_RECORDS, exported_columns, exported_schema
from warren.salvage.export import Selection, check_found
from warren.salvage.names import Json, to_json
from warren.storage.errors import WarrenError
from warren.tables.pipeline_errors import PipelineError
from warren.tables.places import Kind, Node
from warren.tables.read_options import DEFAULT_PARTITION_BYTES
from warren.tables.rocketmq.log_ranges import Outcome, Range, chain, walked

_PARTS_PER_CORE: Final = 16
"""More parts than cores, so that no core waits long for the last one."""

_LEAST_PART_BYTES: Final = 4 << 20
_FEW_NODES: Final = 2
"""Up to this number of nodes are surveyed at once, without tasks."""


def rows(messages: DataFrame) -> DataFrame:
    """The export's columns and order, of the table ``messages``."""
    return messages.select(*EXPORTED_MESSAGES.names).orderBy("node", "vhost", "queue", "position")


def record_rows(records: DataFrame) -> DataFrame:
    """The export's columns and order, of the table ``records``: positions are counted by a window over each node."""
    in_store = Window.partitionBy("node").orderBy("file", "file_offset")
    numbered = (
        records.withColumn("position", F.row_number().over(in_store).cast("long") - F.lit(1))
        .withColumn("body_sha256", F.sha2("body", 256))
        .withColumn("properties", arrow_udf(_as_json, "string")("properties"))  # type: ignore[call-overload]
    )
    columns = [F.col(field.name).cast(field.dataType).alias(field.name) for field in EXPORTED_RECORDS]
    return numbered.select(*columns).orderBy("node", "position")


def _as_json(properties: pa.Array) -> pa.Array:
    """Maps of properties as the text that the export writes."""
    return pa.array(
        [None if mapping is None else to_json(dict(mapping)).decode() for mapping in properties.to_pylist()],
        pa.string(),
    )


@attrs.define
class Exported:
    """The result of an export."""

    out: str
    format: str
    messages: int = 0
    payload_bytes: int = 0
    problems: list[Problem] = attrs.Factory(list)
    notes: list[str] = attrs.Factory(list)
    """The notes of the recovery of topic stores."""

    def to_json(self) -> dict[str, Json]:
        """The summary."""
        return {
            "out": self.out,
            "format": self.format,
            "messages": self.messages,
            "bytes": self.payload_bytes,
            "problems": len(self.problems),
        }


@attrs.frozen(kw_only=True)
class Order:
    """What to export, and where to."""

    out: str
    format: str = "jsonl"
    selection: Selection = attrs.Factory(Selection)
    settings: Mapping[str, str] = attrs.Factory(dict)
    """Settings of a RocketMQ, as given with ``--set``."""
    partition_bytes: int | None = None
    """About how much of the nodes' files goes into each written file; ``None``: depends on the number of cores."""


def run(paths: Sequence[str], order: Order, master: str | None = None) -> Exported:
    """Write the export. Raises :class:`WarrenError` if the order names a vhost or queue that no node has."""
    check_format(order.format)
    order.selection.conditions()  # raises for an invalid condition before Spark starts
    with running("Exporting", master, paths) as (spark, nodes):
        return export_nodes(nodes, order, partial(map_parallel, spark), spark.sparkContext.defaultParallelism)


def export_nodes(nodes: Sequence[Node], order: Order, parallel: ParallelMap, cores: int) -> Exported:
    """Write the export with any function that runs tasks."""
    check_out(order.out, nodes)
    in_order = sorted(nodes, key=lambda node: os.fsencode(node.name))
    survey = partial(survey_node, selection=order.selection, settings=dict(order.settings))
    surveys = [survey(node) for node in in_order] if len(in_order) <= _FEW_NODES else parallel(in_order, survey)
    _check(in_order, surveys, order.selection)
    exported, kinds = Exported(order.out, order.format), Kind(0)
    for node, node_survey in zip(in_order, surveys, strict=True):
        kinds |= node_survey.kinds
        exported.notes += node_survey.notes
        exported.notes += [str(problem) for problem in node_survey.problems if problem.severity == "unread"]
        exported.problems += [(node.name, problem) for problem in node_survey.problems if problem.severity == "damage"]
    chunks = [chunk for node_survey in surveys for chunk in node_survey.chunks]
    parts = pack(chunks, order.partition_bytes or _part_bytes(chunks, cores))
    with staged(order.out, nodes) as staging, task_outputs(staging) as outputs:
        job = Job(
            run=uuid.uuid4().hex,
            outputs=outputs,
            format=order.format,
            columns=tuple(exported_columns(kinds)),
            selection=order.selection,
        )
        written = _write(parts, job, parallel)
        _settle(written, staging, job)
    for result in written:
        exported.messages += result.messages
        exported.payload_bytes += result.payload_bytes
        exported.problems += result.problems
    exported.problems = list(dict.fromkeys(exported.problems))
    return exported


def _check(nodes: Sequence[Node], surveys: Sequence[NodeSurvey], selection: Selection) -> None:
    """Raise if no node has what is selected by name."""
    if selection.vhost is None and not selection.queues:
        return
    for node, survey in zip(nodes, surveys, strict=True):
        if not survey.kinds:
            raise PipelineError(f"{node.name}: is a topic store; --vhost and --queue are for queues")
    where = nodes[0].name if len(nodes) == 1 else f"{len(nodes)} nodes"
    names = frozenset[bytes]().union(*(survey.names for survey in surveys))
    check_found(where, selection, names, [part for survey in surveys for part in survey.unread])
    if any(survey.matches for survey in surveys):
        return
    raise WarrenError(f"{where}: no vhost {selection.vhost!r}")


def _part_bytes(chunks: Sequence[Chunk], cores: int) -> int:
    share = sum(chunk.byte_count for chunk in chunks) // (_PARTS_PER_CORE * cores)
    return min(max(share, _LEAST_PART_BYTES), DEFAULT_PARTITION_BYTES)


def _write(parts: list[Part], job: Job, parallel: ParallelMap) -> list[Written]:
    """Write all parts, and again those whose first position proved wrong."""
    parts, counts = _counted(parts, job, parallel)
    begins = first_positions(parts, counts)
    written: dict[int, Written] = {}
    wrong = list(range(len(parts)))
    while wrong:
        work = [(parts[number], begins[number]) for number in wrong]
        for number, result in zip(wrong, parallel(work, partial(write_part, job=job)), strict=True):
            written[number] = result
            counts |= {(number, at): count for at, count in enumerate(result.counts)}
        actual_begins = first_positions(parts, counts)
        wrong = [number for number in range(len(parts)) if begins[number] != actual_begins[number]]
        begins = actual_begins
    return [written[number] for number in range(len(parts))]


def _counted(parts: list[Part], job: Job, parallel: ParallelMap) -> tuple[list[Part], Counts]:
    """Return what parts in the middle of a queue or a store need: counts, and where a range's first record begins."""
    unknown = uncounted(parts)
    answers = parallel([parts[number][at] for number, at in unknown], partial(count_chunk, job=job))
    results: dict[tuple[int, int], int | Outcome] = dict(zip(unknown, answers, strict=True))
    logs = {
        (number, at): chunk.what
        for number, part in enumerate(parts)
        for at, chunk in enumerate(part)
        if isinstance(chunk.what, Range)
    }
    ranges = list(logs.values())
    walks = [outcome if isinstance(outcome := results.get(place), Outcome) else None for place in logs]
    while (current := chain(ranges, walks)).wrong:
        retries = [attrs.evolve(ranges[number], first=first) for number, first in current.wrong.items()]
        for number, walk in zip(current.wrong, parallel(retries, walked), strict=True):
            walks[number] = walk
    counts = {place: count for place, count in results.items() if isinstance(count, int)}
    chained = set(current.chained)
    for number, (place, walk) in enumerate(zip(logs, walks, strict=True)):
        logs[place] = attrs.evolve(ranges[number], first=current.firsts[number])
        counts[place] = walk.records if walk is not None and number in chained else 0
    begun = [
        tuple(attrs.evolve(chunk, what=logs.get((number, at), chunk.what)) for at, chunk in enumerate(part))
        for number, part in enumerate(parts)
    ]
    return begun, counts


def _settle(written: Sequence[Written], staging: str, job: Job) -> None:
    """Name the files, in order; write an empty file if the list is empty."""
    paths = [result.path for result in written if result.path]
    width = max(5, len(str(len(paths) - 1)))
    for number, path in enumerate(paths):
        os.rename(path, os.path.join(staging, f"part-{number:0{width}d}.{job.format}"))
    if not paths:
        path = os.path.join(staging, f"part-{0:0{width}d}.{job.format}")
        if job.format == "parquet":
            pq.write_table(exported_schema(job.columns).empty_table(), path)
        else:
            with open(path, "xb"):
                pass
