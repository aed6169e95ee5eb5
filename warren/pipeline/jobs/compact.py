"""``compact``: which files of message stores a broker would combine, and how many bytes that frees.

What of a file is needed is not on disk: it is found by joining what all queues of a vhost refer to with the records of
its stores, which Spark does. A message that stands several times counts once, at its last place. Then the engine's own
rule (:class:`warren.msg_store.file_summary.FileSummary`) is asked for pairs until it has no more: there must be garbage
enough in the store, and the valid bytes of two neighbours must fit into a file. Files with nothing valid are deleted.
The file with the highest number is the one that a broker goes on writing, and stays.

Where a queue of the vhost cannot be read, nobody knows what is needed, and nothing is proposed.
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

from warren.msg_store.file_summary import FileSummary
from warren.msg_store.rdq_columns import ColumnScan
from warren.msg_store.rdq_format import EndReason
from warren.pipeline.errors import PipelineError
from warren.pipeline.jobs.running import running
from warren.pipeline.jobs.spreading import Batches, done, kept, planned
from warren.pipeline.jobs.vhost_parts import (
    Numbered,
    QueuesWork,
    SaidWork,
    StoreWork,
    node_number,
    plan_vhost,
    rdq_number,
)
from warren.pipeline.options import DEFAULT_PARTITION_BYTES
from warren.pipeline.places import Node
from warren.pipeline.tables.hidden import hidden_in
from warren.pipeline.tables.queue_parts import QueueOpener
from warren.salvage.names import Json, as_text
from warren.salvage.queue_directory import MSG_IDS
from warren.salvage.read_only import ReadOnlyFileSystem, below
from warren.salvage.vhost import PERSISTENT_STORE
from warren.storage.errors import DataError
from warren.storage.settings import Settings

SETTINGS: Final = {"msg_store_file_size_limit": int, "msg_store_garbage_fraction": float}
"""What may be set, and its type."""

REFERENCE, RECORD, FILE, PROBLEM = "reference", "record", "file", "problem"

_TYPES: Final = {
    "what": pa.string(),
    "place": pa.int64(),
    "persistent_store": pa.bool_(),
    "msg_id": pa.binary(),
    "age": pa.int32(),
    "file_offset": pa.int64(),
    "size": pa.int64(),
    "messages": pa.int64(),
    "name": pa.string(),
    "vhost": pa.string(),
    "known": pa.bool_(),
}
_SQL: Final = {
    pa.string(): "string",
    pa.int64(): "long",
    pa.int32(): "int",
    pa.bool_(): "boolean",
    pa.binary(): "binary",
}
_SCHEMA: Final = ", ".join(f"{name} {_SQL[of]}" for name, of in _TYPES.items())
_KEY: Final = ("place", "persistent_store", "msg_id")
_STORE: Final = ("place", "persistent_store")

Report = dict[str, Any]


def plan(numbered: Numbered, partition_bytes: int) -> Iterator[QueuesWork | StoreWork | SaidWork]:
    """What there is to do in a node; raises :class:`DataError` for one that is not all of a broker's queues."""
    node = numbered.node
    vhosts, _ = node.place().parts()
    if vhosts is None:
        raise DataError(node.name, None, "is a topic store, which has no .rdq files")
    for index, where in enumerate(vhosts):
        if where.only is not None:
            raise DataError(node.name, None, "is one queue's folder; what its store needs all queues of the vhost tell")
        yield from plan_vhost(numbered, index, where, partition_bytes, look=not node.is_remote)


def do(work: QueuesWork | StoreWork | SaidWork) -> Batches:
    """The rows that a task gives."""
    files = work.node.place().files
    match work:
        case QueuesWork():
            opener = QueueOpener(work.node)
            for queue in (opener.open(queue, work.vhost_path) for queue in work.queues):
                for is_persistent in (True, False):
                    for ids in queue.references(persistent=is_persistent):
                        yield _batch(REFERENCE, work.place, len(ids), persistent_store=is_persistent, msg_id=_ids(ids))
        case StoreWork():
            for age, name in work.names:
                yield from _store_file(files, work, age, name)
        case SaidWork():
            said = [as_text(str(one)) for one in work.findings if one.severity == "damage"]
            yield _batch(PROBLEM, work.place, len(said), name=pa.array(said, pa.string()))


def _store_file(files: ReadOnlyFileSystem, work: StoreWork, age: int, name: str) -> Batches:
    path, is_persistent, messages = below(work.directory, name), work.store == PERSISTENT_STORE, 0
    with closing(files.open_read(path)) as handle:
        scanned, is_broken = ColumnScan(handle, path), False
        for found in scanned:
            good = found.good
            messages += int(good.sum())
            is_broken = is_broken or not good.all()
            yield _records(work, age, found.msg_ids[good], found.offsets[good], found.sizes[good])
        if is_broken or scanned.finish().reason is not EndReason.CLEAN:
            hidden = hidden_in(work.node, files, path, knows_needs=work.knows_needs).records
            messages += len(hidden)
            ids = np.array([record.msg_id for record in hidden], MSG_IDS)
            yield _records(work, age, ids, [record.offset for record in hidden], [record.size for record in hidden])
        size = handle.size()
    said = {"name": name, "vhost": work.vhost, "known": work.knows_needs}
    yield _batch(FILE, work.place, 1, persistent_store=is_persistent, age=age, size=size, messages=messages, **said)


def _records(work: StoreWork, age: int, msg_ids: Any, offsets: Any, sizes: Any) -> pa.RecordBatch:
    return _batch(
        RECORD,
        work.place,
        len(msg_ids),
        persistent_store=work.store == PERSISTENT_STORE,
        age=age,
        msg_id=_ids(msg_ids),
        file_offset=pa.array(offsets, pa.int64()),
        size=pa.array(sizes, pa.int64()),
    )


def _ids(ids: Any) -> pa.Array:
    """Sixteen bytes each."""
    data = np.ascontiguousarray(ids)
    return pa.Array.from_buffers(pa.binary(16), len(data), [None, pa.py_buffer(data.tobytes())]).cast(pa.binary())


def _batch(what: str, place: int, count: int, **columns: Any) -> pa.RecordBatch:
    """Rows with these columns; what is no array is the same for all."""
    columns |= {"what": what, "place": place}
    arrays = []
    for name, of in _TYPES.items():
        value = columns.get(name)
        if not isinstance(value, pa.Array):
            value = pa.nulls(count, of) if value is None else pa.repeat(pa.scalar(value, of), count)
        arrays.append(value)
    return pa.RecordBatch.from_arrays(arrays, names=list(_TYPES))


# ── the join ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def store_files(parts: DataFrame) -> DataFrame:
    """A row for each file of each store, with its valid bytes, of the rows that the tasks gave."""
    needed = _those(parts, REFERENCE).select(*_KEY).distinct()
    last = F.max(F.struct("age", "file_offset", "size")).alias("last")
    bodies = _those(parts, RECORD).groupBy(*_KEY).agg(last).join(needed, list(_KEY), "left_semi")
    by_file = bodies.groupBy(*_STORE, F.col("last.age").alias("age")).agg(F.sum("last.size").alias("valid_bytes"))
    files = _those(parts, FILE).select(*_STORE, "age", "name", "size", "messages", "vhost", "known")
    return files.join(by_file, [*_STORE, "age"], "left").fillna(0, ["valid_bytes"])


def _those(parts: DataFrame, what: str) -> DataFrame:
    return parts.where(F.col("what") == what)


def proposals(files: DataFrame, limits: Settings) -> DataFrame:
    """A row of JSON for each store: what :func:`propose` says of its files."""

    def proposing(batches: Batches) -> Batches:
        for batch in batches:
            rows = batch.to_pylist()
            said = [json.dumps(propose(row["files"], limits)) for row in rows]
            places = pa.array([row["place"] for row in rows], pa.int64())
            persistent = pa.array([row["persistent_store"] for row in rows], pa.bool_())
            columns = [places, persistent, pa.array([row["vhost"] for row in rows], pa.string()), pa.array(said)]
            yield pa.RecordBatch.from_arrays(columns, names=["place", "persistent_store", "vhost", "report"])

    row: Column = F.struct("age", "name", "size", "messages", "valid_bytes", "known")
    stores = files.groupBy(*_STORE, "vhost").agg(F.sort_array(F.collect_list(row)).alias("files"))
    return stores.mapInArrow(proposing, "place long, persistent_store boolean, vhost string, report string")


def propose(files: Iterable[Mapping[str, Any]], limits: Settings) -> Report:
    """What a broker would do with a store's files, oldest first: name, size, messages, valid_bytes, known."""
    numbered = [(number, one) for one in files if (number := rdq_number(one["name"])) is not None]
    numbered.sort(key=lambda pair: pair[0])
    is_known = all(one["known"] for _, one in numbered)
    columns = ("size", "messages", "valid_bytes")
    report: Report = {
        "files": [{"number": number, **{name: one[name] for name in columns}} for number, one in numbered],
        "known": is_known,
        "delete": [],
        "combine": [],
    }
    if is_known:
        _ask(numbered, limits, report)
    report["frees"] = sum(one["frees"] for one in (*report["delete"], *report["combine"]))
    return report


def _ask(numbered: list[tuple[int, Mapping[str, Any]]], limits: Settings, report: Report) -> None:
    summary = FileSummary()
    for number, one in numbered:
        summary.add(number, one["size"], one["valid_bytes"])
    for number, one in numbered[:-1]:
        if not one["valid_bytes"]:
            summary.remove(number)
            report["delete"].append({"file": number, "frees": one["size"]})
    while (pair := summary.find_pair(limits)) is not None:
        left, right = pair
        before, valid, more = (
            summary[left].size_bytes + summary[right].size_bytes,
            summary[left].valid_bytes + summary[right].valid_bytes,
            summary[right].valid_bytes,
        )
        summary.resize(left, valid)
        summary.validate(left, more)
        summary.validate(right, -more)
        summary.remove(right)
        report["combine"].append({"into": left, "from": right, "frees": before - valid})


# ── the job ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@attrs.frozen
class Compacting:
    """What is to be said of all nodes."""

    stores: list[dict[str, Json]]
    problems: list[str]

    @property
    def frees(self) -> int:
        return sum(int(str(store["frees"])) for store in self.stores)


def parse_limits(changes: Mapping[str, str]) -> Settings:
    """Raises :class:`PipelineError` for what cannot be set, or not so."""
    values: dict[str, Any] = {}
    for name, text in changes.items():
        if name not in SETTINGS:
            raise PipelineError(f"--set {name}: there is none; {' and '.join(SETTINGS)} can be set")
        try:
            values[name] = SETTINGS[name](text)
        except ValueError as error:
            raise PipelineError(f"--set {name}={text}: is no number") from error
    return attrs.evolve(Settings(), **values)


def compacting(
    spark: SparkSession, nodes: list[Node], limits: Settings, *, partition_bytes: int = DEFAULT_PARTITION_BYTES
) -> Compacting:
    """What could be combined in all stores of the nodes."""
    every = [Numbered(number, node) for number, node in enumerate(nodes)]
    planning = functools.partial(plan, partition_bytes=partition_bytes)
    with planned(spark, every, planning, partition_bytes) as works, kept(done(works, do, _SCHEMA)) as parts:
        stores = proposals(store_files(parts), limits).withColumn("number", node_number(F.col("place")))
        rows = stores.orderBy("place", F.col("persistent_store").desc()).collect()
        said = _those(parts, PROBLEM).orderBy("place").select("name").collect()
    found = [
        {
            "node": as_text(nodes[row["number"]].name),
            "vhost": row["vhost"],
            "store": PERSISTENT_STORE if row["persistent_store"] else "msg_store_transient",
            **json.loads(row["report"]),
        }
        for row in rows
    ]
    return Compacting(found, [row["name"] for row in said])


def run(paths: list[str], master: str | None, settings: Mapping[str, str]) -> Compacting:
    """For the command."""
    limits = parse_limits(settings)
    with running("Counting what is needed", master, paths) as (spark, nodes):
        return compacting(spark, nodes, limits)
