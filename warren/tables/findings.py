"""The table ``findings``: what ``warren verify`` says of each directory.

A task reads a vhost, or a topic store: to find a store's unreferenced bodies, all references must be known. The job
``verify`` (:mod:`warren.pipeline.jobs.verify`) gives the same rows and cuts a vhost into many tasks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import islice
from typing import Any

from warren.arrow.arrays import Columns, Rows
from warren.salvage.names import as_text
from warren.salvage.queue_directory import Finding, SizedFile
from warren.salvage.read_only import ReadOnlyFileSystem, below
from warren.salvage.rocketmq.inference import infer
from warren.salvage.rocketmq.verify_store import verify_store
from warren.salvage.verify import verify_vhost
from warren.salvage.vhost import STORES, Vhost, VhostPlace
from warren.tables.filters import Pushdown
from warren.tables.places import Kind, Node, NodeContents
from warren.tables.queue_parts import extent_of, files_of_store
from warren.tables.read_options import ReadOptions
from warren.tables.schemas import FINDINGS
from warren.tables.table import Table, Task

_ROWS = 8192


def plan(contents: NodeContents, options: ReadOptions, pushdown: Pushdown) -> Iterator[Task]:
    """A task for each vhost, and one for the topics."""
    for vhost in contents.vhosts or ():
        yield Task(contents.node, vhost)
    if contents.store is not None:
        yield Task(contents.node, contents.store)


def read(task: Task, options: ReadOptions, pushdown: Pushdown) -> Iterator[Rows]:
    """Every finding, in the order in which it is found."""
    pending = findings(task.node, task.work, options)
    while batch := list(islice(pending, _ROWS)):
        yield Columns(len(batch), {"node": as_text(task.node.name), **finding_columns(batch)})


def finding_columns(findings: Sequence[Finding]) -> dict[str, list[Any]]:
    """Findings as columns of :data:`warren.tables.schemas.FINDINGS`, but for the node."""
    texts = {
        name: [as_text(getattr(finding, name)) for finding in findings]
        for name in ("kind", "severity", "path", "detail")
    }
    return {**texts, "offset": [finding.offset for finding in findings]}


def findings(node: Node, work: VhostPlace | str | Finding, options: ReadOptions) -> Iterator[Finding]:
    """The findings of a vhost, or of the topic store in a directory, or the one about the directory itself."""
    if isinstance(work, Finding):
        yield work
        return
    files = node.place().files
    if isinstance(work, str):
        settings, _, _ = infer(files, work, options.settings)
        yield from verify_store(files, work, settings)
        return
    with closing(Vhost.open(files, work)) as vhost:
        yield from verify_vhost(vhost)


def files(task: Task, pushdown: Pushdown) -> Iterator[SizedFile]:
    """All files of a task's vhost, or of its topic store."""
    place, work = task.node.place(), task.work
    if isinstance(work, VhostPlace):
        with closing(Vhost.open(place.files, work)) as vhost:
            for queue in vhost.queues:
                yield from extent_of(queue).files()
            for store in STORES if vhost.path else ():
                yield from files_of_store(place.files, below(vhost.path, store))
    elif isinstance(work, str):
        yield from _files_below(place.files, work)


def _files_below(files: ReadOnlyFileSystem, directory: str) -> Iterator[SizedFile]:
    for path in (below(directory, name) for name in files.list(directory)):
        if files.is_directory(path):
            yield from _files_below(files, path)
        else:
            yield SizedFile(path, files.size(path))


TABLE = Table(name="findings", kinds=Kind.BOTH, schema=FINDINGS, plan=plan, read=read, files=files)
