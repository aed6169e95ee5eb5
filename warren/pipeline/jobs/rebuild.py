"""``rebuild``: ConsumeQueues and index files rebuilt from CommitLogs alone, byte for byte as on one machine.

1. The CommitLogs are read in ranges (:mod:`warren.tables.rocketmq.log_ranges`); what is to be built of each is written
   beside ``--out`` (:mod:`warren.pipeline.jobs.rebuild_columns`).
2. The ranges are put in a chain; those that began in a wrong place are read again, until the chain holds.
3. Recovery finds where each log ends, and what it cuts off: as on one machine, except that the reading is done.
4. Queues and index files are built by parallel tasks (:mod:`warren.pipeline.jobs.rebuild_parts`), and moved together.

Driver and executors need to see the same ``--out``. One node's files lie directly in it; of several, each has a
folder: the last names of its path, as many of them as tell it from all the others, with ``_`` between.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Final

import attrs

from warren.actors.engines.topics.store_files import INDEX
from warren.pipeline.jobs.parallel import ParallelMap, map_parallel, task_outputs
from warren.pipeline.jobs.rebuild_columns import ColumnFiles, read_range
from warren.pipeline.jobs.rebuild_parts import (
    BuiltQueue,
    BuiltQueues,
    IndexWork,
    QueuesWork,
    build_index_file,
    build_queues,
    index_works,
    moved,
    queues_works,
)
from warren.pipeline.jobs.running import running, staged
from warren.queue_index.topics.consume_queue import ConsumeQueue
from warren.salvage.names import Json
from warren.salvage.queue_directory import Finding
from warren.salvage.rocketmq.comparing import Compared, compare
from warren.salvage.rocketmq.rebuilding import Rebuilt, empty_store
from warren.salvage.rocketmq.walking import bad_record, gap
from warren.storage.descriptors import descriptor_bound
from warren.storage.filesystem import RealFileSystem
from warren.storage.mapped_files import MappedFiles
from warren.tables.pipeline_errors import PipelineError
from warren.tables.places import Node
from warren.tables.rocketmq.log_ranges import Chain, LogLayout, Range, chain, layout_of, ranges
from warren.tables.survey import recovered

_LEAST_RANGE_BYTES: Final = 16 << 20
_MOST_RANGE_BYTES: Final = 128 << 20
_RANGES_A_CORE: Final = 3
_MOST_BUCKETS: Final = 64


@attrs.frozen(kw_only=True)
class RebuiltNode:
    """The result for one node."""

    node: str
    out: str
    records: int
    files: tuple[str, ...]
    damage: tuple[Finding, ...]
    """What of the CommitLog could not be read, and which queues could not be built."""
    notes: tuple[str, ...]
    """For people: what recovery cut off, and what was guessed."""
    compared: tuple[Compared, ...] | None

    @property
    def differing(self) -> list[Compared]:
        return [file for file in self.compared or () if not file.is_good]

    def to_json(self) -> dict[str, Json]:
        """Return what ``warren topic rebuild`` reports, with the node."""
        report: dict[str, Json] = {
            "node": self.node,
            "out": self.out,
            "records": self.records,
            "files": list(self.files),
        }
        if self.compared is not None:
            files: list[Json] = [file.to_json() for file in self.compared]
            report["check"] = {"equal": not self.differing, "files": files}
        return report


def run(
    paths: list[str], master: str | None, settings: Mapping[str, str], out: str, *, check: bool = False
) -> list[RebuiltNode]:
    """Rebuild the nodes in ``paths``; return a report for each."""
    if "://" in out:
        raise PipelineError(f"{out}: files are built in place, so --out is a directory that driver and executors share")
    with running("Rebuilding", master, paths) as (spark, nodes), staged(out, nodes) as staging:
        each = partial(map_parallel, spark)
        return rebuild(nodes, staging, out, settings, each, cores=spark.sparkContext.defaultParallelism, check=check)


def rebuild(
    nodes: Sequence[Node],
    staging: str,
    out: str,
    changes: Mapping[str, str],
    each: ParallelMap,
    *,
    cores: int,
    check: bool = False,
    range_bytes: int | None = None,
) -> list[RebuiltNode]:
    """Build into ``staging``, which becomes ``out``. ``range_bytes``: the size of the ranges of the logs."""
    folders = folder_names(nodes)
    with task_outputs(staging) as outputs:
        layouts = _for_each(nodes, partial(layout_of, changes=changes), each)
        size = sum(len(layout.bases) * layout.settings.mapped_file_size_commit_log for layout in layouts)
        range_bytes = range_bytes or min(max(size // (_RANGES_A_CORE * cores), _LEAST_RANGE_BYTES), _MOST_RANGE_BYTES)
        buckets = min(max(2 * cores // max(len(nodes), 1), 1), _MOST_BUCKETS)
        logs = [_Log(layout, ranges(layout, range_bytes)) for layout in layouts]
        _read(logs, outputs, buckets, each)
        ends = _for_each([(log.layout, log.chain.good_until) for log in logs], partial(_settle, changes=changes), each)
        for log, (recovered_log, notes) in zip(logs, ends, strict=True):
            log.recovered, log.notes = recovered_log, notes
        _build(logs, outputs, each)
        places = [os.path.join(staging, folder) for folder in folders]
        for log, place in zip(logs, places, strict=True):
            log.index_names = moved(log.built, log.index_files, place)
    compared: list[Any] = [None] * len(logs)
    if check:
        works = [(log.layout, log.good_until, place, log.queues) for log, place in zip(logs, places, strict=True)]
        compared = each(works, partial(_check, changes=changes))
    return [
        _report(log, os.path.join(out, folder) if folder else out, differing)
        for log, folder, differing in zip(logs, folders, compared, strict=True)
    ]


def _for_each(pieces: Sequence[Any], work: Callable[[Any], Any], each: ParallelMap) -> list[Any]:
    """Return ``work`` of each piece; a single piece is not worth a task."""
    return [work(piece) for piece in pieces] if len(pieces) == 1 else each(pieces, work)


def folder_names(nodes: Sequence[Node]) -> list[str]:
    """Return a folder name for each node; a single node has an empty one."""
    if len(nodes) == 1:
        return [""]
    paths = [[part for part in node.directory.split("/") if part] for node in nodes]
    for count in range(1, max(map(len, paths), default=0) + 1):
        names = ["_".join(path[-count:]) for path in paths]
        if len(set(names)) == len(names):
            return names
    return [f"{'_'.join(path)}_{number}" for number, path in enumerate(paths)]


# ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@attrs.define
class _Log:
    """A node's CommitLog while its ranges are put together."""

    layout: LogLayout
    parts: list[Range]
    read: dict[int, ColumnFiles] = attrs.Factory(dict)
    """By the numbers of the parts."""
    chain: Chain = attrs.field(factory=lambda: Chain((), {}, 0, {}))
    recovered: LogLayout | None = None
    """The layout after recovery has found the end."""
    notes: tuple[str, ...] = ()
    built: list[BuiltQueues] = attrs.Factory(list)
    index_files: list[str] = attrs.Factory(list)
    index_names: list[str] = attrs.Factory(list)

    @property
    def queues(self) -> list[BuiltQueue]:
        return sorted((queue for part in self.built for queue in part.queues), key=lambda queue: queue.key)

    @property
    def chained(self) -> list[ColumnFiles]:
        return [self.read[number] for number in self.chain.chained]

    @property
    def good_until(self) -> int:
        """The checked end of the log, for recovery; 0 after a dirty stop, because recovery then has to read the log."""
        return self.chain.good_until if self.layout.was_clean and self.layout.checked_from is not None else 0

    def wrong(self) -> dict[int, tuple[Range, int]]:
        """Ranges that have to be read again: number → the range from where its first record is, and the last key before
        it."""
        self.chain = chain(self.parts, [self.read[number].outcome for number in range(len(self.parts))])
        wrong_ranges: dict[int, tuple[Range, int]] = {}
        floor = 0
        for number in sorted({*self.chain.chained, *self.chain.wrong}):
            columns, is_wrong = self.read[number], number in self.chain.wrong
            if is_wrong or columns.floor > floor or (columns.first_key is not None and columns.first_key < floor):
                first = self.chain.wrong.get(number, columns.outcome.start)
                wrong_ranges[number] = attrs.evolve(self.parts[number], first=first), floor
            floor = floor if is_wrong else max(floor, columns.last_key)
        return wrong_ranges

    def damage(self) -> list[Finding]:
        """Bad records and missing files, in order."""
        log = (self.recovered or self.layout).commit_log()
        findings = {
            failure.physical_offset: bad_record(log, failure)
            for columns in self.chained
            for failure in columns.outcome.failures
        }
        for before, after in pairwise(log.mapped.bases):
            file_end = before + log.mapped.file_size
            if file_end < min(after, log.end):
                findings[file_end] = gap(log, file_end)
        return [findings[physical_offset] for physical_offset in sorted(findings)]


def _read(logs: Sequence[_Log], outputs: str, buckets: int, each: ParallelMap) -> None:
    """Read all ranges, and again those that were read from a wrong place."""
    pending = [(log, number, part, 0) for log in logs for number, part in enumerate(log.parts)]
    read = partial(read_range, outputs=outputs, buckets=buckets)
    while pending:
        answers = each([(part, floor) for _, _, part, floor in pending], read)
        for (log, number, _, _), answer in zip(pending, answers, strict=True):
            log.read[number] = answer
        pending = [(log, number, *reread) for log in logs for number, reread in log.wrong().items()]


def _settle(work: tuple[LogLayout, int], changes: Mapping[str, str]) -> tuple[LogLayout, tuple[str, ...]]:
    """Recover a node's log, which is good up to a place; return its layout and the notes of recovery."""
    layout, good_until = work
    with recovered(layout.node, changes, good_until if layout.checked_from is not None else 0) as opened:
        return LogLayout.of_recovered(layout.node, opened), tuple(opened.notes)


# ── building ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _build(logs: Sequence[_Log], outputs: str, each: ParallelMap) -> None:
    indexes = [index_works(log.layout, outputs, log.chained) for log in logs]
    queues = [queues_works(log.layout, outputs, log.chained) for log in logs]
    works = [
        *(work for node_works in indexes for work in node_works),
        *(work for node_works in queues for work in node_works),
    ]
    answers = iter(each(works, _build_one))  # index files first: one takes longer than some queues
    for log, node_works in zip(logs, indexes, strict=True):
        log.index_files = [next(answers) for _ in node_works]
    for log, log_works in zip(logs, queues, strict=True):
        log.built = [next(answers) for _ in log_works]


def _build_one(work: IndexWork | QueuesWork) -> str | BuiltQueues:
    return build_index_file(work) if isinstance(work, IndexWork) else build_queues(work)


def _check(work: tuple[LogLayout, int, str, Iterable[BuiltQueue]], changes: Mapping[str, str]) -> tuple[Compared, ...]:
    """Compare the rebuilt files with the existing ones."""
    layout, good_until, out, queues = work
    files = RealFileSystem(descriptor_bound())
    with recovered(layout.node, changes, good_until) as opened:
        store = empty_store(files, out, layout.settings, opened.store.commit_log)
        for queue in queues:
            size = layout.settings.mapped_file_size_consume_queue
            store.queues[queue.key] = ConsumeQueue(
                mapped=MappedFiles.load(files, f"{out}/{queue.directory}", size, writable=False),
                topic=queue.topic,
                queue_id=queue.queue_id,
                end_byte=queue.end_byte,
                max_physical_offset=queue.max_physical_offset,
                min_byte=queue.min_byte,
            )
        rebuilt = Rebuilt(store)
        try:
            return tuple(compare(opened, rebuilt))
        finally:
            rebuilt.close()


def _report(log: _Log, out: str, compared: tuple[Compared, ...] | None) -> RebuiltNode:
    not_built = [
        attrs.evolve(finding, path=out + finding.path.removeprefix(part.directory))
        for part in log.built
        for finding in part.damage
    ]
    return RebuiltNode(
        node=log.layout.node.name,
        out=out,
        records=sum(columns.outcome.records for columns in log.chained),
        files=(
            *(file for queue in log.queues for file in queue.files),
            *(f"{INDEX}/{name}" for name in log.index_names),
        ),
        damage=(*log.damage(), *not_built),
        notes=log.notes,
        compared=compared,
    )
