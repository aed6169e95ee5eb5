"""The table ``store``: a row for each record of each store's files, bad ones too, in order of the files' age.

After the records that the scan of a file reached come the needed ones that are hidden there between garbage
(:mod:`warren.tables.bodies`).

Without bodies of messages (``bodies=false``) the messages of long records are not even read.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator
from typing import Final

import attrs
import numpy as np
import pyarrow as pa

from warren.arrow.arrays import Columns, Rows, hexadecimal, slices
from warren.msg_store.rdq.rdq_columns import MOST_RECORD_BYTES, ColumnScan, RdqColumns
from warren.msg_store.rdq.rdq_format import EndReason, Record, ScanEnd, file_name, in_age_order
from warren.salvage.names import as_text, to_text
from warren.salvage.queue_directory import SizedFile, sized
from warren.salvage.read_only import ReadOnlyFileSystem, below
from warren.salvage.vhost import PERSISTENT_STORE, STORES
from warren.storage.errors import StorageError
from warren.storage.filesystem import File
from warren.tables.bodies import Hidden, hidden_in, knows_needs
from warren.tables.damage import Damage
from warren.tables.filters import Pushdown
from warren.tables.packing import grouped
from warren.tables.places import Kind, Node, NodeContents
from warren.tables.read_options import ReadOptions
from warren.tables.schemas import STORE
from warren.tables.table import Table, Task


@attrs.frozen
class StoreFile:
    """One file of one store."""

    vhost: bytes
    store: str
    path: str

    @property
    def is_sound_without(self) -> bool:
        """Whether what is torn in it is no damage: a start wipes it, or it is the copy of a compaction that crashed."""
        return self.store != PERSISTENT_STORE or self.path.endswith(".rdt")


def plan(contents: NodeContents, options: ReadOptions, pushdown: Pushdown) -> Iterator[Task]:
    """Whole files, small ones together."""
    for _, files in grouped(_files(contents, pushdown), options.partition_bytes):
        yield Task(contents.node, tuple(files))


def _files(contents: NodeContents, pushdown: Pushdown) -> Iterator[tuple[int, StoreFile]]:
    """What is wanted, with its size."""
    for vhost in contents.opened_vhosts():
        if not pushdown.allows("vhost", as_text(to_text(vhost.name))):
            continue
        for store in filter(lambda name: pushdown.allows("store", name), STORES if vhost.is_whole else ()):
            directory = below(vhost.path, store)
            for number in in_age_order(vhost.files.list(directory)):
                path = below(directory, file_name(number))
                if pushdown.allows("file", path):
                    yield vhost.files.size(path), StoreFile(vhost.name, store, path)


def read(task: Task, options: ReadOptions, pushdown: Pushdown) -> Iterator[Rows]:
    """The records of a task's files, a window at a time."""
    files, damage = task.node.place().files, Damage(task.node, options)
    with_messages = options.bodies and pushdown.asks("message")
    for file in task.work:
        try:
            handle = files.open_read(file.path)
        except StorageError as error:
            damage.refused(file.path, error)
            continue
        try:
            for columns in _records(handle, files, file, damage, with_messages=with_messages):
                yield _columns(task.node, file, columns, with_messages=with_messages)
        finally:
            handle.close()


def files(task: Task, pushdown: Pushdown) -> Iterable[SizedFile]:
    """A task's files."""
    return sized(task.node.place().files, [file.path for file in task.work])


def _records(
    handle: File, files: ReadOnlyFileSystem, file: StoreFile, damage: Damage, *, with_messages: bool
) -> Iterator[RdqColumns]:
    window_bytes = damage.options.batch_bytes
    scanned = ColumnScan(handle, file.path, window_bytes=window_bytes, with_messages=with_messages)
    hidden: Hidden | None = None
    for columns in scanned:
        if not columns.good.all():
            hidden = hidden or _hidden(damage.node, files, file)
            if not (file.is_sound_without or hidden.explains_breaks):
                first = int(columns.offsets[columns.good.argmin()])
                damage.report(file.path, first, "torn record: it does not end in 0xFF")
        yield columns
    end = scanned.finish()
    if end.reason is not EndReason.CLEAN:
        hidden = hidden or _hidden(damage.node, files, file)
        if not hidden.explains_breaks:
            _look_at_end(damage, file, end)
    for run in _runs(hidden.records if hidden else (), window_bytes):
        yield _read_run(handle, run, with_messages=with_messages)


def _hidden(node: Node, files: ReadOnlyFileSystem, file: StoreFile) -> Hidden:
    return hidden_in(node, files, file.path, knows_needs=knows_needs(node, files, posixpath.dirname(file.path)))


def _runs(records: Iterable[Record], most_bytes: int) -> Iterator[list[Record]]:
    """Group records that follow each other directly, up to ``most_bytes``."""
    run: list[Record] = []
    for record in records:
        run_end = run[-1].offset + run[-1].size if run else None
        if run and (record.offset != run_end or record.offset + record.size - run[0].offset > most_bytes):
            yield run
            run = []
        run.append(record)
    if run:
        yield run


def _read_run(handle: File, run: list[Record], *, with_messages: bool) -> RdqColumns:
    start, stop = run[0].offset, run[-1].offset + run[-1].size
    data = handle.pread(stop - start, start) if with_messages and stop - start <= MOST_RECORD_BYTES else b""
    return RdqColumns(
        offsets=np.array([record.offset for record in run], np.int64),
        sizes=np.array([record.size for record in run], np.int64),
        msg_ids=np.frombuffer(b"".join(record.msg_id for record in run), np.uint8).reshape(len(run), -1),
        good=np.ones(len(run), np.bool_),
        data=data if len(data) == stop - start else b"",  # else the file was cut under the scan
        base=start,
    )


def _look_at_end(damage: Damage, file: StoreFile, end: ScanEnd) -> None:
    if end.damage is not None and not file.is_sound_without:
        reason = f"{end.damage}: {end.reason.value}; {end.unread_bytes} bytes after the last record"
        damage.report(file.path, end.offset, reason)


def _columns(node: Node, file: StoreFile, columns: RdqColumns, *, with_messages: bool) -> Columns:
    is_there = with_messages and columns.has_messages
    return Columns(
        len(columns),
        {
            "node": node.name,
            "vhost": as_text(to_text(file.vhost)),
            "store": file.store,
            "msg_id": lambda: hexadecimal(columns.msg_ids),
            "size": columns.sizes,
            "good": columns.good,
            "message": (lambda: _messages(columns)) if is_there else None,
            "file": file.path,
            "file_offset": columns.offsets,
        },
    )


def _messages(columns: RdqColumns) -> pa.Array:
    return slices(columns.data, columns.message_starts, columns.message_sizes.astype(np.int64))


TABLE: Final = Table(name="store", kinds=Kind.QUEUES, schema=STORE, plan=plan, read=read, files=files)
