"""The table ``findings``: what ``warren verify`` says of each directory.

A task reads a vhost, or a topic store: to say what of a store nobody needs, all that may need it must be known. The job
``verify`` (:mod:`warren.pipeline.jobs.verify`) gives the same rows and cuts a vhost into many tasks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from itertools import islice

import pyarrow as pa

from warren.pipeline.filters import Wanted
from warren.pipeline.options import ReadOptions
from warren.pipeline.places import Kind, Node, NodeContents
from warren.pipeline.schemas import FINDINGS
from warren.pipeline.table import Columns, Rows, Table, Task
from warren.salvage.names import as_text
from warren.salvage.queue_directory import Finding
from warren.salvage.read_only import ReadOnlyFileSystem
from warren.salvage.rocketmq.inference import infer
from warren.salvage.rocketmq.verify_store import verify_store
from warren.salvage.verify import verify_vhost
from warren.salvage.vhost import Vhost, VhostPlace

_ROWS = 8192


def plan(contents: NodeContents, options: ReadOptions, wanted: Wanted) -> Iterator[Task]:
    """A task for each vhost, and one for the topics."""
    for vhost in contents.vhosts or ():
        yield Task(contents.node, vhost)
    if contents.store is not None:
        yield Task(contents.node, contents.store)


def read(task: Task, options: ReadOptions, wanted: Wanted) -> Iterator[Rows]:
    """Every finding, in the order in which it is found."""
    yield from as_columns(task.node.name, findings(task.node, task.work, options))


def findings(node: Node, work: VhostPlace | str, options: ReadOptions) -> Iterator[Finding]:
    """Of a vhost, or of the topic store in a directory."""
    files = node.place().files
    return of_store(files, work, options) if isinstance(work, str) else of_vhost(files, work)


def of_vhost(files: ReadOnlyFileSystem, work: VhostPlace) -> Iterator[Finding]:
    """All of a vhost's findings."""
    with closing(Vhost.open(files, work)) as vhost:
        yield from verify_vhost(vhost)


def of_store(files: ReadOnlyFileSystem, directory: str, options: ReadOptions) -> Iterator[Finding]:
    """All of a topic store's findings."""
    settings, _, _ = infer(files, directory, options.settings)
    yield from verify_store(files, directory, settings)


def as_columns(node: str, found: Iterable[Finding]) -> Iterator[Columns]:
    """Findings as rows of :data:`warren.pipeline.schemas.FINDINGS`."""
    pending = iter(found)
    while rows := list(islice(pending, _ROWS)):
        columns = {name: pa.array([as_text(getattr(one, name)) for one in rows], pa.string()) for name in _TEXTS}
        columns["offset"] = pa.array([one.offset for one in rows], pa.int64())
        columns["node"] = pa.array([as_text(node)] * len(rows), pa.string())
        yield Columns(len(rows), columns)


_TEXTS = ("kind", "severity", "path", "detail")

TABLE = Table(name="findings", kinds=Kind.BOTH, schema=FINDINGS, plan=plan, read=read)
