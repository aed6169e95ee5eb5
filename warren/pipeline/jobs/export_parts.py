"""What the tasks of an export do: each writes one part, with the code that exports one directory on one machine.

A worker of Spark's keeps the last node's directory open from one task to the next: a store is scanned once then, not
once for each part.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final, Protocol

import attrs

from msg_store.commit_log_format import Record
from warren.pipeline.errors import PipelineError
from warren.pipeline.jobs.apart import attempt
from warren.pipeline.jobs.export_columns import ColumnExporter, ParquetPart
from warren.pipeline.jobs.export_log import LogChunk, Walked, log_records, walk
from warren.pipeline.jobs.export_plan import Chunk, Part, QueueChunk
from warren.pipeline.places import Node
from warren.salvage.export import Exported, Exporter, Report, Selection, Write, problems_of
from warren.salvage.names import to_json
from warren.salvage.queue_directory import Finding, QueueDirectory, StoredMessage, Stretch
from warren.salvage.rocketmq.message_lines import record_line
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
    attempts: str
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


class Sink(Protocol):
    """Where the messages of one node go."""

    number: int
    """The position of the next one."""

    @property
    def exported(self) -> Exported: ...

    def problem(self, finding: Finding) -> None: ...

    def messages(self, vhost: bytes, queue: bytes, found: Iterable[StoredMessage | Stretch | Finding]) -> None: ...

    def record(self, record: Record) -> None: ...

    def flush(self) -> None: ...


class NumberedLines(Exporter):
    """Lines of JSON with ``node`` and ``position`` in front."""

    def __init__(self, write: Write, report: Report, node: str) -> None:
        self._start = b'{"node": %b, "position": ' % to_json(node)
        super().__init__(write, report, self._start)

    def record(self, record: Record) -> None:
        """A record of a topic."""
        line = record_line(record)
        self.write(b"%b%d, %b" % (self._start, self.number, line[1:]))
        self.count(1, len(record.body))

    def flush(self) -> None:
        """Nothing is held back."""


def write_part(work: tuple[Part, int], job: Job) -> Written:
    """Write a part, its first message being the one at that position."""
    part, position = work
    path = attempt(job.attempts, f"part-{part.number:05d}")
    problems: dict[Problem, None] = {}
    counts, messages, payload_bytes = [], 0, 0
    group: object = None
    looked_at: dict[tuple[str, bytes, str], Vhost] = {}
    with _output(path, job) as sink_of:
        for chunk in part.chunks:
            if group is not None and chunk.group != group:
                position = 0
            node = chunk.node.name
            sink = sink_of(partial(_note, problems, node), node)
            sink.number = position
            if isinstance(chunk, LogChunk):
                _export_log(chunk, sink)
            else:
                vhost = _export_queue(chunk, sink, job)
                looked_at[node, vhost.name, vhost.path] = vhost
            sink.flush()
            counts.append(sink.number - position)
            group, position = chunk.group, sink.number
            messages += sink.exported.messages
            payload_bytes += sink.exported.payload_bytes
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
def _output(path: str, job: Job) -> Iterator[_SinkOf]:
    """What makes sinks that write to a new file."""
    if job.format == "parquet":
        part = ParquetPart(path, job.columns)
        yield partial(ColumnExporter, part)
        part.close()
        return
    try:
        with open(path, "xb", buffering=WRITE_BYTES) as file:
            yield partial(NumberedLines, file.write)
    except OSError as error:
        raise PipelineError(f"{path}: {error.strerror or error}") from error


class _SinkOf(Protocol):
    def __call__(self, report: Report, node: str) -> Sink: ...


def _export_log(chunk: LogChunk, sink: Sink) -> None:
    for item in log_records(chunk):
        if isinstance(item, Record):
            sink.record(item)
        else:
            sink.problem(item)


def _export_queue(chunk: QueueChunk, sink: Sink, job: Job) -> Vhost:
    vhost, directory = _OPEN.queue(chunk, job.run)
    sink.messages(chunk.vhost, chunk.queue, directory.stretches(only=chunk.segments))
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
