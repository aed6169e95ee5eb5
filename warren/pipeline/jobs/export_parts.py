"""What the tasks of an export do: each writes one part, with the code that exports one directory on one machine.

A worker of Spark's keeps the last node's directory open from one task to the next: a store is scanned once then, not
once for each part.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final

import attrs

from warren.arrow.parquet_export import ParquetFile, ParquetRows
from warren.msg_store.commit_log.commit_log_format import decode
from warren.pipeline.jobs.export_plan import Chunk, Part
from warren.pipeline.jobs.parallel import task_output
from warren.pipeline.spark_schemas import exported_schema
from warren.salvage.export import Exporter, MessageWriter, Selection, problems_of
from warren.salvage.json_lines import JsonLines
from warren.salvage.names import split_level
from warren.salvage.queue_directory import Finding
from warren.salvage.queue_reader import QueueDirectory
from warren.salvage.rocketmq.store_reading import as_sent
from warren.salvage.rocketmq.walking import bad_record
from warren.salvage.source import Source
from warren.salvage.vhost import Vhost
from warren.tables.pipeline_errors import PipelineError
from warren.tables.places import Node
from warren.tables.queue_parts import QueuePart
from warren.tables.rocketmq.log_ranges import Outcome, Range, RangeWalk, walked

WRITE_BYTES: Final = 1 << 20
"""Smaller pieces of a file are written together."""

Problem = tuple[str, Finding]
"""A finding with the name of its node."""


@attrs.frozen(kw_only=True)
class Job:
    """What all parts of an export have in common."""

    run: str
    """Unique for each run."""
    outputs: str
    """The directory to write to."""
    format: str
    columns: tuple[str, ...]
    """For Parquet."""
    selection: Selection


@attrs.frozen(kw_only=True)
class Written:
    """The result of writing a part."""

    path: str
    """Empty: there was nothing to write."""
    messages: int
    payload_bytes: int
    counts: tuple[int, ...]
    """How far positions went in each chunk."""
    problems: tuple[Problem, ...]


def write_part(work: tuple[Part, int], job: Job) -> Written:
    """Write a part, its first message being the one at that position."""
    part, position = work
    path = task_output(job.outputs, "part")
    where, where_record = job.selection.conditions()
    problems: dict[Problem, None] = {}
    counts, messages, payload_bytes = [], 0, 0
    group: object = None
    opened_vhosts: dict[tuple[str, bytes, str], Vhost] = {}
    with _output(path, job) as writer_of:
        for chunk in part:
            if group is not None and chunk.group != group:
                position = 0
            node = chunk.node
            exporter = Exporter(
                writer_of(node.name),
                partial(_note, problems, node.name),
                position=position,
                where=where,
                where_record=where_record,
            )
            if isinstance(chunk.what, Range):
                _export_range(chunk.what, exporter, raw_bodies=job.selection.raw_bodies)
            else:
                vhost, directory = _OPEN.queue(node, chunk.what, job.run)
                runs = directory.message_runs(only=chunk.what.segments)
                exporter.messages(vhost.name, split_level(directory.name)[0], runs)
                opened_vhosts[node.name, vhost.name, vhost.path] = vhost
            exporter.writer.flush()
            counts.append(exporter.position - position)
            group, position = chunk.group, exporter.position
            messages += exporter.exported.messages
            payload_bytes += exporter.exported.payload_bytes
    for (name, *_), vhost in opened_vhosts.items():  # a store is read only when its first body is needed
        for problem in problems_of(vhost, job.selection.queues):
            if problem.severity == "damage":
                _note(problems, name, problem)
    if not messages:
        os.unlink(path)
        path = ""
    return Written(
        path=path,
        messages=messages,
        payload_bytes=payload_bytes,
        counts=tuple(counts),
        problems=tuple(problems),
    )


def count_chunk(chunk: Chunk, job: Job) -> int | Outcome:
    """How many messages a chunk has, as far as that is known without their bodies."""
    if isinstance(chunk.what, Range):
        return walked(chunk.what)
    return _OPEN.queue(chunk.node, chunk.what, job.run)[1].count(chunk.what.segments)


def _note(problems: dict[Problem, None], node: str, finding: Finding) -> None:
    problems[node, finding] = None


@contextmanager
def _output(path: str, job: Job) -> Iterator[Callable[[str], MessageWriter]]:
    """Yield a function that returns a node's writer to a new file."""
    if job.format == "parquet":
        table = ParquetFile(path, exported_schema(job.columns))
        yield partial(ParquetRows, table)
        table.close()
        return
    try:
        with open(path, "xb", buffering=WRITE_BYTES) as file:
            yield partial(JsonLines, file.write)
    except OSError as error:
        raise PipelineError(f"{path}: {error.strerror or error}") from error


def _export_range(part: Range, exporter: Exporter, *, raw_bodies: bool) -> None:
    walk = RangeWalk(part)
    for columns in walk.columns():
        for at in columns.spans.starts.tolist():
            record = decode(columns.spans.data, at)
            exporter.record(*((record,) if raw_bodies else as_sent((record,), part.path)))
    for failure in walk.outcome.failures:
        exporter.problem(bad_record(part.layout.commit_log(), failure))


@attrs.define
class _LastOpened:
    """The queues of the node that this process read last."""

    _key: tuple[str, Node] | None = None
    _source: Source | None = None
    _queues: dict[str, tuple[Vhost, QueueDirectory]] = attrs.Factory(dict)
    """By the paths of their directories."""

    def queue(self, node: Node, part: QueuePart, run: str) -> tuple[Vhost, QueueDirectory]:
        """A queue's vhost, and its directory; no run sees what another one opened."""
        if self._key != (run, node):
            if self._source is not None:
                self._source.close()
            self._key = self._source = None
            self._source = node.place().queues()
            self._queues = {queue.path: (vhost, queue) for vhost in self._source.vhosts for queue in vhost.queues}
            self._key = run, node
        if part.path not in self._queues:
            raise PipelineError(f"{node.name}: {part.path} was there, and is gone")
        return self._queues[part.path]


_OPEN = _LastOpened()
