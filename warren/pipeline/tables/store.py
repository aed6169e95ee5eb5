"""The table ``store``: a row for each record of each store's files, bad ones too, in order of the files' age.

Without bodies of messages (``bodies=false``) the messages of long records are not even read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import attrs
import numpy as np
import pyarrow as pa

from msg_store.rdq_columns import ColumnScan, RdqColumns
from msg_store.rdq_format import EndReason, ScanEnd, file_name, in_age_order
from storage.errors import StorageError
from warren.pipeline.arrays import as_text, hexadecimal, repeated, slices
from warren.pipeline.filters import Wanted
from warren.pipeline.options import ReadOptions
from warren.pipeline.places import Kind, Node
from warren.pipeline.schemas import STORE
from warren.pipeline.table import Columns, Rows, Table, Task
from warren.pipeline.tables.damage import Damage
from warren.salvage.names import to_text
from warren.salvage.read_only import below
from warren.salvage.vhost import PERSISTENT_STORE, STORES


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


def plan(node: Node, options: ReadOptions, wanted: Wanted) -> Iterator[Task]:
    """Whole files, small ones together."""
    packed: list[StoreFile] = []
    packed_bytes = 0
    source = node.place().queues()
    try:
        for vhost in source.vhosts:
            if not wanted.allows("vhost", as_text(to_text(vhost.name))):
                continue
            for store in filter(lambda name: wanted.allows("store", name), STORES if vhost.is_whole else ()):
                directory = below(vhost.path, store)
                for number in in_age_order(vhost.files.list(directory)):
                    path = below(directory, file_name(number))
                    if not wanted.allows("file", path):
                        continue
                    size = vhost.files.size(path)
                    if packed and packed_bytes + size > options.partition_bytes:
                        yield Task(node, tuple(packed))
                        packed, packed_bytes = [], 0
                    packed.append(StoreFile(vhost.name, store, path))
                    packed_bytes += size
    finally:
        source.close()
    if packed:
        yield Task(node, tuple(packed))


def read(task: Task, options: ReadOptions, wanted: Wanted) -> Iterator[Rows]:
    """The records of a task's files, a window at a time."""
    files, damage = task.node.place().files, Damage(task.node, options)
    with_messages = options.bodies and wanted.asks("message")
    for one in task.work:
        try:
            handle = files.open_read(one.path)
        except StorageError as error:
            damage.refused(one.path, error)
            continue
        try:
            scanned = ColumnScan(handle, one.path, window_bytes=options.batch_bytes, with_messages=with_messages)
            for found in scanned:
                if not one.is_sound_without and not found.good.all():
                    first = int(found.offsets[found.good.argmin()])
                    damage.found(one.path, first, "torn record: it does not end in 0xFF")
                yield _columns(task.node, one, found, with_messages=with_messages)
            _look_at_end(damage, one, scanned.finish())
        finally:
            handle.close()


def _look_at_end(damage: Damage, one: StoreFile, end: ScanEnd) -> None:
    if not one.is_sound_without and end.reason in (EndReason.PAST_END, EndReason.TOO_SMALL):
        reason = f"record out of bounds: {end.reason.value}; {end.unread_bytes} bytes behind the last record"
        damage.found(one.path, end.offset, reason)


def _columns(node: Node, one: StoreFile, found: RdqColumns, *, with_messages: bool) -> Columns:
    count = len(found)
    is_there = with_messages and found.has_messages
    return Columns(
        count,
        {
            "node": lambda: repeated(node.name, count, pa.string()),
            "vhost": lambda: repeated(as_text(to_text(one.vhost)), count, pa.string()),
            "store": lambda: repeated(one.store, count, pa.string()),
            "msg_id": lambda: hexadecimal(found.msg_ids),
            "size": lambda: pa.array(found.sizes),
            "good": lambda: pa.array(found.good),
            "message": lambda: _messages(found) if is_there else pa.nulls(count, pa.binary()),
            "file": lambda: repeated(one.path, count, pa.string()),
            "file_offset": lambda: pa.array(found.offsets),
        },
    )


def _messages(found: RdqColumns) -> pa.Array:
    return slices(found.data, found.message_starts, found.message_sizes.astype(np.int64))


TABLE: Final = Table(name="store", kinds=Kind.QUEUES, schema=STORE, plan=plan, read=read)
