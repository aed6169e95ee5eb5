"""``inspect``: the queues and topics of all nodes, each with the numbers that ``warren inspect`` has for it.

One task reads one node: most of what is counted is in small files, and what is needed of a store's bytes covers all of
its vhost's queues. What cannot be read of a node is listed in its problems; the other nodes are reported.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import closing
from functools import partial
from typing import Final

import attrs
import numpy as np
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from warren.arrow.arrays import Columns, as_batch, schema_of
from warren.pipeline.jobs.parallel import Batches, Numbered, numbered, parallel_rows, persisted
from warren.pipeline.jobs.running import check_format, running, write_tables
from warren.salvage.inspect import Report, inspect_source
from warren.salvage.names import as_text, to_json
from warren.salvage.rocketmq.rocketmq_store import opened_store
from warren.salvage.rocketmq.store_inspection import inspect_store
from warren.storage.errors import WarrenError
from warren.tables.pipeline_errors import PipelineError
from warren.tables.places import Node

QUEUE, TOPIC, STORE_FILE, NODE = "queue", "topic", "store file", "node"

_ROWS: Final = schema_of("number long, node string, what string, position long, report string")
_COLUMNS: Final = {
    QUEUE: "vhost string, name string, dir string, kind string, type string, version int, ready long, bytes long",
    TOPIC: "topic string, queue_id int, min_offset long, max_offset long",
    STORE_FILE: "vhost string, store string, number long, size long, messages long, valid_bytes long",
    NODE: "vhosts long, queues long, ready long, bytes long, topic_queues long, records long, clean boolean, "
    "problems array<string>",
}


def reports(spark: SparkSession, nodes: list[Node], settings: Mapping[str, str] | None = None) -> DataFrame:
    """A row of JSON for each queue, each topic's queue, each file of a store, and each node: see :func:`table`."""
    return parallel_rows(spark, numbered(nodes), partial(inspect_node, settings=settings or {}), _ROWS)


def table(reports: DataFrame, what: str) -> DataFrame:
    """Return the rows that are about :data:`QUEUE`, :data:`TOPIC`, :data:`STORE_FILE` or :data:`NODE`, as columns."""
    chosen = reports.where(F.col("what") == what).withColumn("parsed", F.from_json("report", _COLUMNS[what]))
    columns = ["node", "parsed.*"] + (["report"] if what in (QUEUE, NODE) else [])
    return chosen.orderBy("number", "position").select(*columns)


def inspect_node(given: Numbered, settings: Mapping[str, str]) -> Batches:
    """Return the reports on a node."""
    collected = _Collected()
    queues, topics = _read(given.node, settings, collected)
    for vhost in queues.get("vhosts", ()):
        for queue in vhost["queues"]:
            collected.add(QUEUE, {"vhost": vhost["name"], **queue})
        for store, store_report in vhost["stores"].items():
            for file in store_report["files"]:
                collected.add(STORE_FILE, {"vhost": vhost["name"], "store": store, **file})
    for queue in topics.get("queues", ()):
        collected.add(TOPIC, queue)
    collected.add(NODE, _totals(queues, topics, collected))
    columns = {
        "number": given.number,
        "node": as_text(given.node.name),
        "what": [what for what, _ in collected.rows],
        "position": np.arange(len(collected.rows)),
        "report": [to_json(report).decode() for _, report in collected.rows],
    }
    yield as_batch(Columns(len(collected.rows), columns), _ROWS)


@attrs.define
class _Collected:
    rows: list[tuple[str, Report]] = attrs.Factory(list)
    problems: list[str] = attrs.Factory(list)
    is_unread: bool = False
    """Whether something of the node cannot be read at all."""

    def add(self, what: str, report: Report) -> None:
        self.rows.append((what, report))

    def report_error(self, problem: object) -> None:
        self.problems.append(" ".join(str(problem).split()))


def _read(node: Node, settings: Mapping[str, str], collected: _Collected) -> tuple[Report, Report]:
    """Return what ``warren inspect`` reports of queues and of topics."""
    place = node.place()
    source, directory = place.both()
    queues: Report = {}
    if source is not None:
        with closing(source):
            queues = inspect_source(source, collected.report_error)
    if directory is None:
        return queues, {}
    try:
        with opened_store(place.path, place.files, directory, settings) as store:
            for note in store.notes:
                collected.report_error(note)
            return queues, inspect_store(store, collected.report_error, lambda _: None)
    except WarrenError as error:
        collected.report_error(error)
        collected.is_unread = True
        return queues, {}


def _totals(queues: Report, topics: Report, collected: _Collected) -> Report:
    """Return a node's totals, with everything that belongs to neither its queues nor its topics alone."""
    all_queues = [queue for vhost in queues.get("vhosts", ()) for queue in vhost["queues"]]
    log = topics.get("commit_log")
    other_keys = ("commit_log", "index_files", "groups", "checkpoint", "settings")
    return {
        "kinds": [report["kind"] for report in (queues, topics) if report],
        "vhosts": len(queues.get("vhosts", ())),
        "queues": len(all_queues),
        "ready": sum(queue["ready"] for queue in all_queues),
        "bytes": sum(queue["bytes"] for queue in all_queues),
        "topic_queues": len(topics.get("queues", ())),
        "records": sum(file["records"] for file in log["files"]) if log else 0,
        "clean": topics.get("clean"),
        **{name: topics.get(name) for name in other_keys},
        "problems": collected.problems,
        "unread": collected.is_unread,
    }


# ── the job ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@attrs.frozen
class Inspected:
    """The reports of all nodes: of queues, topics' queues, files of stores, and the nodes themselves.

    If they were written out, only those of the nodes.
    """

    queues: list[Report]
    topics: list[Report]
    stores: list[Report]
    nodes: list[Report]
    is_whole: bool
    """Whether all of every node could be read."""


def run(
    paths: list[str],
    master: str | None,
    settings: Mapping[str, str],
    *,
    out: str | None = None,
    output_format: str = "jsonl",
) -> Inspected:
    """Inspect nodes for the command. Raises :class:`PipelineError` if no node can be read."""
    check_format(output_format)
    with running("Inspecting", master, paths) as (spark, nodes), persisted(reports(spark, nodes, settings)) as frame:
        chosen = frame
        if out is not None:
            chosen = frame.where(F.col("what") == NODE)
            names = {QUEUE: "queues", TOPIC: "topics", STORE_FILE: "stores", NODE: "nodes"}
            write_tables({name: table(frame, what) for what, name in names.items()}, out, output_format, nodes)
        rows = chosen.orderBy("number", "position").collect()
    by_kind: dict[str, list[Report]] = {what: [] for what in (QUEUE, TOPIC, STORE_FILE, NODE)}
    for row in rows:
        by_kind[row["what"]].append({"node": row["node"], **json.loads(row["report"])})
    unread = [node for node in by_kind[NODE] if node.pop("unread")]
    if len(unread) == len(nodes) and not any(node["kinds"] for node in unread):
        raise PipelineError(unread[0]["problems"][-1])
    return Inspected(by_kind[QUEUE], by_kind[TOPIC], by_kind[STORE_FILE], by_kind[NODE], not unread)
