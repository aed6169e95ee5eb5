"""``warren inspect``: what is in a source, in numbers, as JSON. For people: :mod:`warren.salvage.inspect_tables`.

::

    {"kind", "vhosts": [{"name", "dir", "segment_entry_count", "queues": [queue], "stores": {directory: store}}]}
    queue  {"name", "dir", "kind", "type", "version" (of a classic queue), "ready", "bytes", … what its format has}
    store  {"files": [{"number", "format": "sqs" (of a typed file), "size", "messages", "valid_bytes"}]}

``ready`` and ``bytes`` (of the payloads) count what export gives, as far as index and store can tell without reading
the messages. The other fields depend on the format:

==========  ===========================================================================================================
classic v1  "journal": {"publish_persistent", "publish_transient", "deliver", "ack", "torn_bytes", "zero_bytes"},
            "segments": [{"number", "publish", "deliver", "ack", "unacked"}]
classic v2  "segments": [{"number", "entries", "live", "acked", "qi_bytes", "qs_bytes"}];
            and "converting": {"journal", "segments"}, as v1 has them, where a change from v1 or to it was cut short
quorum      "machine_version", "outstanding", "past_limit", "past_length", "dead_letters",
            "log": {"first_index", "last_index", "term"}, "snapshot": {"index", "term", "machine_version"} or null,
            "segments": [{"name", "entries", "first_index", "last_index"}], "wal_records", "members": [node],
            "directories": [name]
stream      "first_offset", "last_offset", "segments": [{"name", "bytes", "chunks", "messages", "first_offset",
            "last_offset", "first_timestamp_ms", "last_timestamp_ms"}]
unreadable  "unreadable": why
==========  ===========================================================================================================

Of v1 ``journal`` and ``segments`` count the records that stand in the files, ``unacked`` what file and journal say
together; a segment that only the journal publishes to is there, with no records of its own. Of a quorum queue
``outstanding`` counts the ready messages that were at a consumer at the end of the log and came back; ``past_limit``
those that came back too often, ``past_length`` those for which the queue is too long then; a restarted broker would
deliver neither. ``dead_letters`` are on their way to another queue, and not among the ready ones. Of a stream
the chunks and offsets of the broker itself are counted, too; timestamps are milliseconds since the epoch, offsets and
timestamps null without chunks.

A store's ``messages`` are its good records, ``valid_bytes`` those that unacked messages of the vhost's queues need. A
queue's folder alone has no stores in the report. Neither has a vhost without classic queues: its ``dir`` is empty, its
``segment_entry_count`` null. Each level of a priority queue is a queue of its own. Names:
:mod:`warren.salvage.names`.
"""

from __future__ import annotations

import posixpath
from typing import Any

from warren.msg_store.rdq.rdq_format import TYPED_FILES, file_number
from warren.salvage.classic.needed import NeededBodies
from warren.salvage.names import to_text
from warren.salvage.queue_directory import OnFinding
from warren.salvage.queue_reader import QueueDirectory
from warren.salvage.source import Source
from warren.salvage.vhost import STORES, Vhost

Report = dict[str, Any]


def inspect_source(source: Source, report: OnFinding = lambda _: None) -> Report:
    """The whole of the JSON. ``report`` is called with what the numbers lack: damage, and what is not read."""
    return {"kind": source.kind, "vhosts": [_vhost(vhost, report) for vhost in source.vhosts]}


def _vhost(vhost: Vhost, report: OnFinding) -> Report:
    queues = [_queue(queue, report) for queue in vhost.queues]
    is_without_files = not vhost.path and all(queue["type"] != "classic" for queue in queues)
    numbers = {
        "name": to_text(vhost.name),
        "dir": vhost.directory,
        "segment_entry_count": None if is_without_files else vhost.segment_entry_count,
        "queues": queues,
        "stores": {name: _store(vhost, name) for name in STORES} if vhost.is_whole else {},
    }
    for problem in vhost.serious_problems():  # after the stores: they may have added some
        report(problem)
    return numbers


def _queue(queue: QueueDirectory, report: OnFinding) -> Report:
    summary = queue.summary(report)
    details: Report = dict(summary.details)
    kinds: Report = {name: details.pop(name) for name in ("type", "version") if name in details}
    return {
        "name": to_text(queue.name),
        "dir": posixpath.basename(queue.path),
        "kind": queue.kind,
        **kinds,
        "ready": summary.ready,
        "bytes": summary.payload_bytes,
        **details,
    }


def _store(vhost: Vhost, name: str) -> Report:
    store = vhost.store(name)
    tallies = NeededBodies.of(vhost, name).tally(store)
    return {
        "files": [
            {
                **({"number": number} if number < TYPED_FILES else {"number": number - TYPED_FILES, "format": "sqs"}),
                "size": store.ends[file].file_size,
                "messages": tally.messages,
                "valid_bytes": tally.valid_bytes,
            }
            for file, tally in tallies.items()
            if (number := file_number(file)) is not None and number >= 0
        ]
    }
