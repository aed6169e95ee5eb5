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

from warren.msg_store.commit_log_format import Record
from warren.pipeline.errors import PipelineError
from warren.pipeline.jobs.export_columns import ParquetPart, ParquetRows
from warren.pipeline.jobs.export_log import LogChunk, Walked, log_records, walk
from warren.pipeline.jobs.export_plan import Chunk, Part, QueueChunk
from warren.pipeline.jobs.parallel import task_output
from warren.pipeline.places import Node
from warren.salvage.export import Exporter, MessageWriter, Selection, problems_of
from warren.salvage.json_lines import JsonLines
from warren.salvage.queue_directory import Finding
from warren.salvage.queue_reader import QueueDirectory
from warren.salvage.source import Source
from warren.salvage.vhost import Vhost

WRITE_BYTES: Final = 1 << 20
"""Smaller pieces of a file are written together."""

Problem = tuple[str, Finding]
"""With the name of its node."""


@attrs.frozen(kw_only=True)
class Job:
    """What all parts of an export have in common."""

    run: str
    """Tells it from every other run."""
    outputs: str
    """The directory to write to."""
    format: str
    columns: tuple[str, ...]
    """Of Parquet."""
    selection: Selection


@attrs.frozen(kw_only=True)
class Written:
    """What came of a part."""

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
    path = task_output(job.outputs, f"part-{part.number:05d}")
    problems: dict[Problem, None] = {}
    counts, messages, payload_bytes = [], 0, 0
    group: object = None
    looked_at: dict[tuple[str, bytes, str], Vhost] = {}
    with _output(path, job) as writer_of:
        for chunk in part.chunks:
            if group is not None and chunk.group != group:
                position = 0
            node = chunk.node.name
            exporter = Exporter(writer_of(node), partial(_note, problems, node), position=position)
            if isinstance(chunk, LogChunk):
                _export_log(chunk, exporter)
            else:
                vhost = _export_queue(chunk, exporter, job)
                looked_at[node, vhost.name, vhost.path] = vhost
            exporter.writer.flush()
            counts.append(exporter.position - position)
            group, position = chunk.group, exporter.position
            messages += exporter.exported.messages
            payload_bytes += exporter.exported.payload_bytes
    for (node, *_), vhost in looked_at.items():  # a store is looked at when its first body is wanted
        for problem in problems_of(vhost, job.selection.queues):
            if problem.severity == "damage":
                _note(problems, node, problem)
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


def count_chunk(chunk: Chunk, job: Job) -> int | Walked:
    """How many messages a chunk has, as far as that is known without their bodies."""
    if isinstance(chunk, LogChunk):
        return walk(chunk)
    _, directory = _OPEN.queue(chunk, job.run)
    return directory.count(chunk.segments)


def _note(problems: dict[Problem, None], node: str, finding: Finding) -> None:
    problems[node, finding] = None


@contextmanager
def _output(path: str, job: Job) -> Iterator[Callable[[str], MessageWriter]]:
    """What makes a node's writer to a new file."""
    if job.format == "parquet":
        part = ParquetPart(path, job.columns)
        yield partial(ParquetRows, part)
        part.close()
        return
    try:
        with open(path, "xb", buffering=WRITE_BYTES) as file:
            yield partial(JsonLines, file.write)
    except OSError as error:
        raise PipelineError(f"{path}: {error.strerror or error}") from error


def _export_log(chunk: LogChunk, exporter: Exporter) -> None:
    for item in log_records(chunk):
        if isinstance(item, Record):
            exporter.record(item)
        else:
            exporter.problem(item)


def _export_queue(chunk: QueueChunk, exporter: Exporter, job: Job) -> Vhost:
    vhost, directory = _OPEN.queue(chunk, job.run)
    exporter.messages(chunk.vhost, chunk.queue, directory.message_runs(only=chunk.segments))
    return vhost


@attrs.define
class _LastOpened:
    """The queues of the node that this process read last."""

    _key: tuple[str, Node] | None = None
    _source: Source | None = None
    _queues: dict[str, tuple[Vhost, QueueDirectory]] = attrs.Factory(dict)
    """By the paths of their directories."""

    def queue(self, chunk: QueueChunk, run: str) -> tuple[Vhost, QueueDirectory]:
        """A queue's directory, and its vhost; no run sees what another one opened."""
        if self._key != (run, chunk.node):
            if self._source is not None:
                self._source.close()
            self._key = self._source = None
            self._source = chunk.node.place().queues()
            self._queues = {queue.path: (vhost, queue) for vhost in self._source.vhosts for queue in vhost.queues}
            self._key = run, chunk.node
        if chunk.directory not in self._queues:
            raise PipelineError(f"{chunk.node.name}: {chunk.directory} was there, and is gone")
        return self._queues[chunk.directory]


_OPEN = _LastOpened()
