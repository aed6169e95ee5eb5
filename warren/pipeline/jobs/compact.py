"""``compact``: which files of message stores a broker would combine, and how many bytes that frees.

Which part of a file is needed is not on disk: Spark finds it by joining what all queues of a vhost refer to with the
records of its stores. A message that stands several times counts once, at its last place. Then the engine's own
rule (:class:`warren.msg_store.rdq.file_summary.FileSummary`) is asked for pairs until it has no more: there must be
garbage enough in the store, and the valid bytes of two neighbours must fit into a file. Files with nothing valid are
deleted. The file with the highest number is the one that a broker goes on writing, and stays. Typed files (``.sqs``)
are left out: they are compacted each on its own.

If a queue of the vhost cannot be read, it is not known what is needed, and nothing is proposed.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from typing import Any, Final

import attrs
import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from warren.arrow.arrays import Columns, as_batch, schema_of
from warren.msg_store.rdq.file_summary import FileSummary
from warren.msg_store.rdq.rdq_columns import ColumnScan
from warren.msg_store.rdq.rdq_format import MAX_FILE_NUMBER, EndReason, file_number
from warren.pipeline.jobs.parallel import Batches, Numbered, Work, planned
from warren.pipeline.jobs.running import running
from warren.pipeline.jobs.vhost_parts import Queues, StoreFiles, node_number, place_number, plan_vhost
from warren.salvage.names import Json, as_text
from warren.salvage.read_only import below
from warren.salvage.vhost import PERSISTENT_STORE
from warren.storage.errors import DataError
from warren.storage.settings import Settings
from warren.tables.bodies import hidden_in
from warren.tables.pipeline_errors import PipelineError
from warren.tables.places import Node
from warren.tables.queue_parts import QueueOpener
from warren.tables.read_options import DEFAULT_PARTITION_BYTES

SETTINGS: Final = {"msg_store_file_size_limit": int, "msg_store_garbage_fraction": float}
"""What may be set, and its type."""

REFERENCE, RECORD, FILE, PROBLEM = "reference", "record", "file", "problem"

_SCHEMA: Final = schema_of(
    "what string, place long, persistent_store boolean, msg_id binary, age int, file_offset long, size long, "
    "messages long, name string, vhost string, known boolean"
)
_REPORTS: Final = schema_of("place long, persistent_store boolean, vhost string, report string")
_KEY: Final = ("place", "persistent_store", "msg_id")
_STORE: Final = ("place", "persistent_store")

Report = dict[str, Any]


def plan(numbered: Numbered, partition_bytes: int) -> Iterator[Work]:
    """Plan the work for a node. Raises :class:`DataError` if the node is not all of a broker's queues."""
    node = numbered.node
    vhosts, _ = node.place().parts()
    if vhosts is None:
        raise DataError(node.name, None, "is a topic store, which has no .rdq files")
    for index, vhost_place in enumerate(vhosts):
        if vhost_place.only is not None:
            raise DataError(
                node.name, None, "is one queue's folder; only all queues of the vhost tell what their store needs"
            )
        yield from plan_vhost(node, place_number(numbered, index), vhost_place, partition_bytes)


def do(work: Work) -> Batches:
    """Yield the rows of one task."""
    match work.what:
        case Queues(vhost_path=vhost_path, queues=queues):
            opener = QueueOpener(work.node)
            for queue in (opener.open(queue, vhost_path) for queue in queues):
                for is_persistent in (True, False):
                    for ids in queue.references(persistent=is_persistent):
                        yield _rows(REFERENCE, work, len(ids), persistent_store=is_persistent, msg_id=_ids(ids))
        case StoreFiles() as part:
            for age, name in part.names:
                yield from _store_file(work, part, age, name)
        case findings:
            problems = [as_text(str(finding)) for finding in findings if finding.severity == "damage"]
            yield _rows(PROBLEM, work, len(problems), name=problems)


def _store_file(work: Work, part: StoreFiles, age: int, name: str) -> Batches:
    files, path, messages = work.node.place().files, below(part.directory, name), 0
    file_columns = {"persistent_store": part.is_persistent, "age": age}
    with closing(files.open_read(path)) as handle:
        scanned, is_broken = ColumnScan(handle, path), False
        for batch in scanned:
            good = batch.good
            messages += int(good.sum())
            is_broken = is_broken or not good.all()
            offsets, sizes = batch.offsets[good], batch.sizes[good]
            ids = _ids(batch.msg_ids[good])
            yield _rows(RECORD, work, len(offsets), **file_columns, msg_id=ids, file_offset=offsets, size=sizes)
        if is_broken or scanned.finish().reason is not EndReason.CLEAN:
            hidden = hidden_in(work.node, files, path, knows_needs=part.knows_needs).records
            messages += len(hidden)
            columns = {name: [getattr(record, name) for record in hidden] for name in ("msg_id", "size")}
            yield _rows(
                RECORD, work, len(hidden), **file_columns, **columns, file_offset=[record.offset for record in hidden]
            )
        size = handle.size()
    details = {"name": name, "vhost": part.vhost, "known": part.knows_needs}
    yield _rows(FILE, work, 1, **file_columns, size=size, messages=messages, **details)


def _ids(ids: Any) -> pa.Array:
    """Return message ids as an Arrow array of binary values."""
    data = np.ascontiguousarray(ids)
    return pa.Array.from_buffers(pa.binary(16), len(data), [None, pa.py_buffer(data.tobytes())]).cast(pa.binary())


def _rows(what: str, work: Work, count: int, **columns: Any) -> pa.RecordBatch:
    return as_batch(Columns(count, {"what": what, "place": work.place, **columns}), _SCHEMA)


# ── the join ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def store_files(parts: DataFrame) -> DataFrame:
    """Return a row for each file of each store, with its valid bytes, from the rows of the tasks."""
    needed = _those(parts, REFERENCE).select(*_KEY).distinct()
    last = F.max(F.struct("age", "file_offset", "size")).alias("last")
    bodies = _those(parts, RECORD).groupBy(*_KEY).agg(last).join(needed, list(_KEY), "left_semi")
    by_file = bodies.groupBy(*_STORE, F.col("last.age").alias("age")).agg(F.sum("last.size").alias("valid_bytes"))
    files = _those(parts, FILE).select(*_STORE, "age", "name", "size", "messages", "vhost", "known")
    return files.join(by_file, [*_STORE, "age"], "left").fillna(0, ["valid_bytes"])


def _those(parts: DataFrame, what: str) -> DataFrame:
    return parts.where(F.col("what") == what)


def proposals(files: DataFrame, limits: Settings) -> DataFrame:
    """A row of JSON for each store: the result of :func:`propose` for its files."""

    def proposing(batches: Batches) -> Batches:
        for batch in batches:
            rows = [{**row, "report": json.dumps(propose(row["files"], limits))} for row in batch.to_pylist()]
            yield pa.RecordBatch.from_pylist(rows, schema=_REPORTS)

    row: Column = F.struct("age", "name", "size", "messages", "valid_bytes", "known")
    stores = files.groupBy(*_STORE, "vhost").agg(F.sort_array(F.collect_list(row)).alias("files"))
    return stores.mapInArrow(proposing, from_arrow_schema(_REPORTS))


def propose(files: Iterable[Mapping[str, Any]], limits: Settings) -> Report:
    """What a broker would do with a store's files, oldest first: name, size, messages, valid_bytes, known."""
    every = ((file_number(file["name"]), file) for file in files)
    numbered = [(number, file) for number, file in every if number is not None and 0 <= number <= MAX_FILE_NUMBER]
    numbered.sort(key=lambda pair: pair[0])
    is_known = all(file["known"] for _, file in numbered)
    columns = ("size", "messages", "valid_bytes")
    report: Report = {
        "files": [{"number": number, **{name: file[name] for name in columns}} for number, file in numbered],
        "known": is_known,
        "delete": [],
        "combine": [],
    }
    if is_known:
        _ask(numbered, limits, report)
    report["frees"] = sum(action["frees"] for action in (*report["delete"], *report["combine"]))
    return report


def _ask(numbered: list[tuple[int, Mapping[str, Any]]], limits: Settings, report: Report) -> None:
    summary = FileSummary()
    for number, file in numbered:
        summary.add(number, file["size"], file["valid_bytes"])
    for number, file in numbered[:-1]:
        if not file["valid_bytes"]:
            summary.remove(number)
            report["delete"].append({"file": number, "frees": file["size"]})
    while (pair := summary.find_pair(limits)) is not None:
        left, right = pair
        total_bytes, valid_bytes, moved_bytes = (
            summary[left].size_bytes + summary[right].size_bytes,
            summary[left].valid_bytes + summary[right].valid_bytes,
            summary[right].valid_bytes,
        )
        summary.resize(left, valid_bytes)
        summary.validate(left, moved_bytes)
        summary.validate(right, -moved_bytes)
        summary.remove(right)
        report["combine"].append({"into": left, "from": right, "frees": total_bytes - valid_bytes})


# ── the job ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@attrs.frozen
class Compacting:
    """The report on all nodes."""

    stores: list[dict[str, Json]]
    problems: list[str]

    @property
    def frees(self) -> int:
        return sum(int(str(store["frees"])) for store in self.stores)


def parse_limits(changes: Mapping[str, str]) -> Settings:
    """Parse the settings. Raises :class:`PipelineError` for an unknown setting or an invalid value."""
    values: dict[str, Any] = {}
    for name, text in changes.items():
        if name not in SETTINGS:
            raise PipelineError(f"--set {name}: unknown setting; {' and '.join(SETTINGS)} can be set")
        try:
            values[name] = SETTINGS[name](text)
        except ValueError as error:
            raise PipelineError(f"--set {name}={text}: not a number") from error
    return attrs.evolve(Settings(), **values)


def compacting(
    spark: SparkSession, nodes: list[Node], limits: Settings, *, partition_bytes: int = DEFAULT_PARTITION_BYTES
) -> Compacting:
    """Return what could be combined in all stores of the nodes."""
    planning = functools.partial(plan, partition_bytes=partition_bytes)
    with planned(spark, nodes, planning, do, _SCHEMA, partition_bytes=partition_bytes) as parts:
        stores = proposals(store_files(parts), limits).withColumn("number", node_number(F.col("place")))
        rows = stores.orderBy("place", F.col("persistent_store").desc()).collect()
        problem_rows = _those(parts, PROBLEM).orderBy("place").select("name").collect()
    reports = [
        {
            "node": as_text(nodes[row["number"]].name),
            "vhost": row["vhost"],
            "store": PERSISTENT_STORE if row["persistent_store"] else "msg_store_transient",
            **json.loads(row["report"]),
        }
        for row in rows
    ]
    return Compacting(reports, [row["name"] for row in problem_rows])


def run(paths: list[str], master: str | None, settings: Mapping[str, str]) -> Compacting:
    """Run the command."""
    limits = parse_limits(settings)
    with running("Counting what is needed", master, paths) as (spark, nodes):
        return compacting(spark, nodes, limits)
