"""What the tasks of ``verify`` do: the plan of a node, and the rows that each task gives.

:mod:`warren.pipeline.jobs.verify` joins them. A row is a *finding*; a *reference*, which is a body that an unacked
message needs from the store; or a *record* of a store's file, with what is compared of its message.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from itertools import islice
from typing import Any, Final

import attrs
import pyarrow as pa

from warren.msg_store.rdq_format import EndReason, Record, decode_record, scan
from warren.pipeline.jobs.spreading import Batches
from warren.pipeline.jobs.vhost_parts import (
    Numbered,
    QueuesWork,
    SaidWork,
    StoreWork,
    place_number,
    plan_vhost,
)
from warren.pipeline.places import Node
from warren.pipeline.tables.findings import of_vhost
from warren.pipeline.tables.hidden import Hidden, hidden_in
from warren.pipeline.tables.queue_parts import QueueOpener
from warren.salvage.names import as_text
from warren.salvage.needed_body import Contents, Reference, bad_record, contents_of, garbage, in_store
from warren.salvage.queue_directory import Finding
from warren.salvage.read_only import ReadOnlyFileSystem, below
from warren.salvage.rocketmq.inference import infer
from warren.salvage.rocketmq.verify_store import verify_store
from warren.salvage.verify import as_far_as_it_goes, file_end, garbage_end, leftover_file
from warren.salvage.vhost import PERSISTENT_STORE, VhostPlace
from warren.storage.filesystem import File
from warren.storage.topic_settings import TopicSettings

FINDING, REFERENCE, RECORD = "finding", "reference", "record"

NOTE: Final = "note"
"""In the column of severities: what was only guessed."""

KEY: Final = ("place", "persistent_store", "msg_id")
TYPES: Final = {
    "what": pa.string(),
    "place": pa.int64(),
    "persistent_store": pa.bool_(),
    "msg_id": pa.binary(),
    "kind": pa.string(),
    "severity": pa.string(),
    "path": pa.string(),
    "offset": pa.int64(),
    "detail": pa.string(),
    "seq_id": pa.int64(),
    "size": pa.int64(),
    "age": pa.int32(),
    "good": pa.bool_(),
    "judged": pa.bool_(),
    "found_id": pa.binary(),
    "payload_bytes": pa.int64(),
    "persistent": pa.bool_(),
}
"""Of the rows that tasks give: which of them a row has depends on what it is."""

_NAMES: Final = {
    pa.string(): "string",
    pa.int64(): "long",
    pa.int32(): "int",
    pa.bool_(): "boolean",
    pa.binary(): "binary",
}
SCHEMA: Final = ", ".join(f"{name} {_NAMES[of]}" for name, of in TYPES.items())
SAID: Final = "place long, kind string, severity string, path string, offset long, detail string"
SAID_NAMES: Final = ("place", "kind", "severity", "path", "offset", "detail")
_ROWS: Final = 8192

_Columns = dict[str, list[Any]]


@attrs.frozen(kw_only=True)
class StoreFindingsWork:
    """A topic store."""

    node: Node
    place: int
    weight: int
    directory: str
    settings: TopicSettings
    notes: tuple[str, ...]


@attrs.frozen(kw_only=True)
class QueueFolderWork:
    """One queue's folder, which is looked at alone."""

    node: Node
    place: int
    where: VhostPlace
    weight: int = 0


_Work = QueuesWork | StoreWork | SaidWork | StoreFindingsWork | QueueFolderWork


# ── what there is to do ──────────────────────────────────────────────────────────────────────────────────────────────


def plan(numbered: Numbered, settings: Mapping[str, str], partition_bytes: int) -> Iterator[_Work]:
    """What there is to do in a node."""
    node = numbered.node
    vhosts, store = node.place().parts()
    for index, where in enumerate(vhosts or ()):
        if where.only is None:
            yield from plan_vhost(numbered, index, where, partition_bytes, look=not node.is_remote)
        else:
            yield QueueFolderWork(node=node, place=place_number(numbered, index), where=where)
    if store is not None:
        inferred, _, notes = infer(node.place().files, store, settings)
        yield StoreFindingsWork(
            node=node,
            place=place_number(numbered, len(vhosts or ())),
            weight=partition_bytes,
            directory=store,
            settings=inferred,
            notes=tuple(notes),
        )


def do(work: _Work) -> Batches:
    """The rows that a task gives."""
    files = work.node.place().files
    match work:
        case SaidWork():
            yield from _finding_rows(work.place, work.findings)
        case QueuesWork():
            opener = QueueOpener(work.node)
            for queue in work.queues:
                own = opener.open(queue, work.vhost_path).own_findings()
                yield from _queue_rows(work.place, as_far_as_it_goes(queue.path, own))
        case StoreWork():
            found = as_far_as_it_goes(work.directory, _store_file_rows(files, work))
            yield from _store_rows(work, found)
        case StoreFindingsWork():
            yield from _note_rows(work)
            yield from _finding_rows(work.place, verify_store(files, work.directory, work.settings))
        case QueueFolderWork():
            yield from _finding_rows(work.place, of_vhost(files, work.where))


def _batch(what: str, place: int, columns: _Columns) -> pa.RecordBatch:
    count = len(next(iter(columns.values())))
    arrays = [
        pa.array(columns[name], of) if name in columns else pa.nulls(count, of) for name, of in TYPES.items() if name
    ]
    whole = pa.RecordBatch.from_arrays(arrays, names=list(TYPES))
    whole = whole.set_column(0, "what", pa.repeat(pa.scalar(what), count))
    return whole.set_column(1, "place", pa.repeat(pa.scalar(place, pa.int64()), count))


def _finding_rows(place: int, findings: Iterable[Finding]) -> Batches:
    pending = iter(findings)
    while chunk := list(islice(pending, _ROWS)):
        yield _batch(FINDING, place, finding_columns(chunk))


def finding_columns(findings: list[Finding]) -> _Columns:
    columns: _Columns = {
        name: [as_text(getattr(one, name)) for one in findings] for name in ("kind", "severity", "path", "detail")
    }
    return columns | {"offset": [one.offset for one in findings]}


def _note_rows(work: StoreFindingsWork) -> Batches:
    if work.notes:
        notes = [as_text(note) for note in work.notes]
        yield _batch(FINDING, work.place, {"severity": [NOTE] * len(notes), "detail": notes})


def _queue_rows(place: int, found: Iterable[Finding | Reference]) -> Batches:
    pending = iter(found)
    while chunk := list(islice(pending, _ROWS)):
        yield from _finding_rows(place, [one for one in chunk if isinstance(one, Finding)])
        references = [one for one in chunk if isinstance(one, Reference)]
        if references:
            columns = dict(zip(Reference._fields, map(list, zip(*references, strict=True)), strict=True))
            columns["persistent_store"] = columns.pop("persistent")
            columns["path"] = [as_text(path) for path in columns["path"]]
            yield _batch(REFERENCE, place, columns)


# A record's file by its age and path, the record, and its message where it is of interest.
_StoredRecord = tuple[int, str, Record, Contents | None]


def _store_file_rows(files: ReadOnlyFileSystem, work: StoreWork) -> Iterator[Finding | _StoredRecord]:
    for age, name in work.names:
        path = below(work.directory, name)
        yield from leftover_file(path)
        with closing(files.open_read(path)) as handle:
            scanned, hidden = scan(handle, path), None
            for record in scanned:
                if not record.good:
                    hidden = hidden or hidden_in(work.node, files, path, knows_needs=work.knows_needs)
                    if hidden.explains_breaks:
                        bad = bad_record(path, record.offset, record.msg_id, has_good_copy=False)
                        yield garbage(path, record.offset, bad.detail)
                        continue
                yield age, path, record, _contents(handle, work, path, record)
            end = scanned.finish()
            if end.reason is not EndReason.CLEAN:
                hidden = hidden or hidden_in(work.node, files, path, knows_needs=work.knows_needs)
            hidden = hidden or Hidden()
            for record in hidden.records:
                yield age, path, record, _contents(handle, work, path, record)
        if hidden.explains_breaks and end.reason is not EndReason.CLEAN:
            yield garbage_end(path, end)
            continue
        for finding in file_end(files, path, end):
            yield in_store(finding, is_persistent=work.store == PERSISTENT_STORE)


def _contents(handle: File, work: StoreWork, path: str, record: Record) -> Contents | None:
    if work.store != PERSISTENT_STORE or not record.good:
        return None
    data = handle.pread(record.size, record.offset)
    return contents_of(decode_record(data, record.msg_id, path, record.offset, record.size))


def _store_rows(work: StoreWork, found: Iterable[Finding | _StoredRecord]) -> Batches:
    pending = iter(found)
    while chunk := list(islice(pending, _ROWS)):
        yield from _finding_rows(work.place, [one for one in chunk if isinstance(one, Finding)])
        rows = [one for one in chunk if not isinstance(one, Finding)]
        if rows:
            yield _batch(RECORD, work.place, _record_columns(work, rows))


def _record_columns(work: StoreWork, rows: list[_StoredRecord]) -> _Columns:
    contents = [Contents(None, b"", 0, False) if found is None else found for _, _, _, found in rows]
    return {
        "persistent_store": [work.store == PERSISTENT_STORE] * len(rows),
        "judged": [work.knows_needs] * len(rows),
        "age": [age for age, _, _, _ in rows],
        "path": [as_text(path) for _, path, _, _ in rows],
        "msg_id": [record.msg_id for _, _, record, _ in rows],
        "offset": [record.offset for _, _, record, _ in rows],
        "size": [record.size for _, _, record, _ in rows],
        "good": [record.good for _, _, record, _ in rows],
        "detail": [as_text(found.problem) for found in contents],
        "found_id": [found.msg_id for found in contents],
        "payload_bytes": [found.payload_bytes for found in contents],
        "persistent": [found.persistent for found in contents],
    }
