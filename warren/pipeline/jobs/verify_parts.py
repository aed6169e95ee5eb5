"""What the tasks of ``verify`` do: the plan of a node, and the rows that each task gives.

:mod:`warren.pipeline.jobs.verify` joins them. A row is a *finding*; a *reference*, which is a body that an unacked
message needs from the store; or a *record* of a store's file, with what is compared of its message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from functools import partial
from itertools import islice
from typing import Any, Final

import attrs

from warren.arrow.arrays import Columns, as_batch, schema_of
from warren.msg_store.rdq.rdq_columns import ColumnScan, RdqColumns
from warren.msg_store.rdq.rdq_format import EndReason, Record
from warren.msg_store.rdq.sqs_format import decode_stored
from warren.pipeline.jobs.parallel import Batches, Numbered, Work
from warren.pipeline.jobs.vhost_parts import Queues, StoreFiles, place_number, plan_vhost
from warren.salvage.classic.needed_body import Contents, Reference, bad_record, contents_of, garbage, in_store
from warren.salvage.names import as_text
from warren.salvage.queue_directory import Finding
from warren.salvage.read_only import ReadOnlyFileSystem, below
from warren.salvage.rocketmq.inference import infer
from warren.salvage.rocketmq.verify_store import verify_store
from warren.salvage.verify import as_far_as_it_goes, file_end, garbage_end, leftover_file, verify_vhost
from warren.salvage.vhost import Vhost, VhostPlace
from warren.storage.filesystem import File
from warren.storage.topic_settings import TopicSettings
from warren.tables.bodies import Hidden, hidden_in
from warren.tables.findings import finding_columns
from warren.tables.places import Node
from warren.tables.queue_parts import QueueOpener

FINDING, REFERENCE, RECORD = "finding", "reference", "record"

NOTE: Final = "note"
"""In the column of severities: what was only guessed."""

KEY: Final = ("place", "persistent_store", "msg_id")
SCHEMA: Final = schema_of(
    "what string, place long, persistent_store boolean, msg_id binary, kind string, severity string, path string, "
    "offset long, detail string, seq_id long, size long, age int, good boolean, judged boolean, found_id binary, "
    "payload_bytes long, persistent boolean"
)
"""The columns of the rows that tasks return: which ones a row has depends on its kind."""

TASK_FINDINGS: Final = schema_of("place long, kind string, severity string, path string, offset long, detail string")
"""The columns of findings alone."""
_ROWS: Final = 8192

_Columns = dict[str, Any]


@attrs.frozen
class TopicStore:
    """A topic store, and what was guessed of it."""

    directory: str
    settings: TopicSettings
    notes: tuple[str, ...]


# ── what there is to do ──────────────────────────────────────────────────────────────────────────────────────────────


def plan(numbered: Numbered, settings: Mapping[str, str], partition_bytes: int) -> Iterator[Work]:
    """Plan the work for a node: that of :func:`plan_vhost`, one queue's folder, or a :class:`TopicStore`."""
    node = numbered.node
    vhosts, store = node.place().parts()
    for index, vhost_place in enumerate(vhosts or ()):
        place = place_number(numbered, index)
        if vhost_place.only is None:
            yield from plan_vhost(node, place, vhost_place, partition_bytes)
        else:
            yield Work(node, place, vhost_place)
    if store is not None:
        inferred, _, notes = infer(node.place().files, store, settings)
        what = TopicStore(store, inferred, tuple(notes))
        yield Work(node, place_number(numbered, len(vhosts or ())), what, partition_bytes)


def do(work: Work) -> Batches:
    """Yield the rows of one task."""
    files, place = work.node.place().files, work.place
    match work.what:
        case Queues(vhost_path=vhost_path, queues=queues):
            opener = QueueOpener(work.node)
            for queue in queues:
                own_findings = opener.open(queue, vhost_path).own_findings()
                yield from _rows(place, as_far_as_it_goes(queue.path, own_findings), REFERENCE, _reference_columns)
        case StoreFiles() as part:
            rows = as_far_as_it_goes(part.directory, _store_file_rows(files, work.node, part))
            yield from _rows(place, rows, RECORD, partial(_record_columns, part))
        case TopicStore(directory=directory, settings=settings, notes=notes):
            yield from _rows(place, notes, FINDING, _note_columns)
            yield from _rows(place, verify_store(files, directory, settings))
        case VhostPlace() as vhost_place:
            with closing(Vhost.open(files, vhost_place)) as vhost:
                yield from _rows(place, verify_vhost(vhost))
        case findings:
            yield from _rows(place, findings)


def _rows(
    place: int,
    results: Iterable[Any],
    what: str = FINDING,
    columns_of: Callable[[list[Any]], _Columns] = finding_columns,
) -> Batches:
    """Yield findings as rows, and all other results as rows of the kind ``what``."""
    pending = iter(results)
    while chunk := list(islice(pending, _ROWS)):
        findings = [result for result in chunk if isinstance(result, Finding)]
        other_results = [result for result in chunk if not isinstance(result, Finding)]
        for kind, rows, columns in ((FINDING, findings, finding_columns), (what, other_results, columns_of)):
            if rows:
                yield as_batch(Columns(len(rows), {"what": kind, "place": place, **columns(rows)}), SCHEMA)


def _note_columns(notes: list[str]) -> _Columns:
    return {"severity": NOTE, "detail": [as_text(note) for note in notes]}


def _reference_columns(references: list[Reference]) -> _Columns:
    columns: _Columns = dict(zip(Reference._fields, zip(*references, strict=True), strict=True))
    columns["persistent_store"] = columns.pop("persistent")
    return columns | {"path": [as_text(path) for path in columns["path"]]}


# A record's file by its age and path, the record, and its message if it matters.
_StoredRecord = tuple[int, str, Record, Contents | None]


def _store_file_rows(files: ReadOnlyFileSystem, node: Node, work: StoreFiles) -> Iterator[Finding | _StoredRecord]:
    for age, name in work.names:
        path = below(work.directory, name)
        yield from leftover_file(path)
        with closing(files.open_read(path)) as handle:
            scanned, hidden = ColumnScan(handle, path, with_messages=work.is_persistent), None
            for record, message in (row for columns in scanned for row in _rows_of(columns)):
                if not record.good:
                    hidden = hidden or hidden_in(node, files, path, knows_needs=work.knows_needs)
                    if hidden.explains_breaks:
                        bad = bad_record(path, record.offset, record.msg_id, has_good_copy=False)
                        yield garbage(path, record.offset, bad.detail)
                        continue
                contents = _contents(handle, work, path, record) if message is None else contents_of(message)
                yield age, path, record, contents if record.good and work.is_persistent else None
            end = scanned.finish()
            if end.reason is not EndReason.CLEAN:
                hidden = hidden or hidden_in(node, files, path, knows_needs=work.knows_needs)
            hidden = hidden or Hidden()
            for record in hidden.records:
                yield age, path, record, _contents(handle, work, path, record)
        if hidden.explains_breaks and end.reason is not EndReason.CLEAN:
            yield garbage_end(path, end)
            continue
        for finding in file_end(files, path, end):
            yield in_store(finding, is_persistent=work.is_persistent)


def _rows_of(columns: RdqColumns) -> Iterator[tuple[Record, bytes | None]]:
    """Each record, and its message if that was read."""
    spans = zip(columns.message_starts.tolist(), columns.message_sizes.tolist(), strict=True)
    for record, (start, size) in zip(columns.records(), spans, strict=True):
        yield record, columns.data[start : start + size] if columns.has_messages else None


def _contents(handle: File, work: StoreFiles, path: str, record: Record) -> Contents | None:
    if not work.is_persistent or not record.good:
        return None
    data = handle.pread(record.size, record.offset)
    return contents_of(decode_stored(data, record.msg_id, path, record.offset, record.size))


def _record_columns(work: StoreFiles, rows: list[_StoredRecord]) -> _Columns:
    contents = [Contents(None, b"", 0, False) if content is None else content for _, _, _, content in rows]
    return {
        "persistent_store": work.is_persistent,
        "judged": work.knows_needs,
        "age": [age for age, _, _, _ in rows],
        "path": [as_text(path) for _, path, _, _ in rows],
        "msg_id": [record.msg_id for _, _, record, _ in rows],
        "offset": [record.offset for _, _, record, _ in rows],
        "size": [record.size for _, _, record, _ in rows],
        "good": [record.good for _, _, record, _ in rows],
        "detail": [as_text(content.problem) for content in contents],
        "found_id": [content.msg_id for content in contents],
        "payload_bytes": [content.payload_bytes for content in contents],
        "persistent": [content.persistent for content in contents],
    }
