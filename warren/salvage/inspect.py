"""``warren inspect``: what is in a source, in numbers; as JSON, or as tables for people.

::

    {"kind", "vhosts": [{"name", "dir", "segment_entry_count", "queues": [queue], "stores": {directory: store}}]}
    queue  {"name", "dir", "kind", "ready", "bytes",
            "journal": {"publish_persistent", "publish_transient", "deliver", "ack", "torn_bytes"},
            "segments": [{"number", "publish", "deliver", "ack", "unacked"}]}
    store  {"files": [{"number", "size", "messages", "valid_bytes"}]}

``ready`` and ``bytes`` (of the payloads) count what export gives, as far as index and store can tell without reading
the messages. ``journal`` and ``segments`` count the records that stand in the files, ``unacked`` what file and journal
say together; a segment that only the journal publishes to is there, with no records of its own. A store's ``messages``
are its good records, ``valid_bytes`` those that unacked messages of the vhost's queues need. Of a queue's folder alone
no stores are said. Each level of a priority queue is a queue of its own. Names: :mod:`warren.salvage.names`.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from typing import Any

from rich import box
from rich.console import RenderableType
from rich.filesize import decimal
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from msg_store.rdq_format import file_number
from warren.salvage.names import from_text, shown, to_text
from warren.salvage.needed import NeededBodies
from warren.salvage.queue_directory import QueueDirectory
from warren.salvage.source import Source
from warren.salvage.vhost import STORES, Vhost

Report = dict[str, Any]

_MANY = 12
"""Segments and store files of one queue or store that are listed one by one for people."""


def inspect_source(source: Source) -> Report:
    """The whole of the JSON. What could not be read stands in the vhosts' ``problems``."""
    return {"kind": source.kind, "vhosts": [_vhost(vhost) for vhost in source.vhosts]}


def _vhost(vhost: Vhost) -> Report:
    return {
        "name": to_text(vhost.name),
        "dir": vhost.directory,
        "segment_entry_count": vhost.segment_entry_count,
        "queues": [_queue(queue) for queue in vhost.queues],
        "stores": {name: _store(vhost, name) for name in STORES} if vhost.is_whole else {},
    }


def _queue(queue: QueueDirectory) -> Report:
    summary = queue.summary()
    return {
        "name": to_text(queue.name),
        "dir": posixpath.basename(queue.path),
        "kind": queue.kind,
        "ready": summary.ready,
        "bytes": summary.payload_bytes,
        **summary.details,
    }


def _store(vhost: Vhost, name: str) -> Report:
    store = vhost.store(name)
    tallies = NeededBodies.of(vhost, name).tally(store)
    return {
        "files": [
            {
                "number": number,
                "size": store.ends[file].file_size,
                "messages": tally.messages,
                "valid_bytes": tally.valid_bytes,
            }
            for file, tally in tallies.items()
            if (number := file_number(file)) is not None and number >= 0
        ]
    }


# ── for people ───────────────────────────────────────────────────────────────────────────────────────────────────────


def tables(report: Report) -> Iterator[RenderableType]:
    """The same for people, one thing to print after another."""
    if not report["vhosts"]:
        yield Text("No vhosts in it.")
    for vhost in report["vhosts"]:
        name = shown(from_text(vhost["name"]))
        yield Text.assemble(("vhost ", "dim"), (name, "bold"), (f"   {vhost['dir']}", "dim"))
        yield Text(
            f"{_counted(len(vhost['queues']), 'queue')}, {vhost['segment_entry_count']} entries a segment", "dim"
        )
        if vhost["queues"]:
            yield Padding(_queue_table(vhost["queues"]), (1, 0, 0, 0))
        if vhost["stores"]:
            yield Padding(_store_table(vhost["stores"]), (1, 0, 0, 0))
        yield ""


def _queue_table(queues: list[Report]) -> Table:
    table = _table("queue", "ready", "payload", "journal", "segment", "published", "acked", "unacked")
    for queue in queues:
        head = [shown(from_text(queue["name"])), f"{queue['ready']:,}", decimal(queue["bytes"])]
        if "unreadable" in queue:
            table.add_row(*head, Text(queue["unreadable"], "red"))
            continue
        rows = [
            [str(segment["number"]), f"{segment['publish']:,}", f"{segment['ack']:,}", f"{segment['unacked']:,}"]
            for segment in queue["segments"]
        ]
        head.append(_journal_text(queue["journal"]))
        _add_rows(table, head, _shortened(rows))
    return table


def _journal_text(journal: Report) -> str:
    published = journal["publish_persistent"] + journal["publish_transient"]
    counts = ((published, "pub"), (journal["deliver"], "del"), (journal["ack"], "ack"))
    words = [f"{count:,} {name}" for count, name in counts if count]
    words += [f"{decimal(journal['torn_bytes'])} torn"] if journal["torn_bytes"] else []
    return ", ".join(words) or "empty"


def _store_table(stores: Report) -> Table:
    table = _table("store", "file", "size", "messages", "valid", "garbage")
    for name, store in stores.items():
        rows = [
            [
                f"{file['number']}.rdq",
                decimal(file["size"]),
                f"{file['messages']:,}",
                decimal(file["valid_bytes"]),
                f"{1 - file['valid_bytes'] / file['size']:.0%}" if file["size"] else "–",
            ]
            for file in store["files"]
        ]
        _add_rows(table, [name], _shortened(rows))
    return table


def _table(first: str, *others: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="dim")
    table.add_column(first, style="bold", overflow="fold")
    for name in others:
        table.add_column(name, justify="left" if name == "journal" else "right", overflow="fold")
    return table


def _add_rows(table: Table, head: list[str], rows: list[list[str]]) -> None:
    """``head`` stands in front of the first of ``rows`` only."""
    for row in rows or [[]]:
        table.add_row(*head, *row)
        head = [""] * len(head)


def _shortened(rows: list[list[str]]) -> list[list[str]]:
    """The first and the last of many rows, and how many there are between them."""
    if len(rows) <= _MANY:
        return rows
    left_out = len(rows) - 2 * (_MANY // 2)
    note = [f"… {left_out:,} more", *[""] * (len(rows[0]) - 1)]
    return [*rows[: _MANY // 2], note, *rows[-(_MANY // 2) :]]


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
