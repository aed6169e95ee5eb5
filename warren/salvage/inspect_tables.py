"""``warren inspect`` for people: tables of a report of :mod:`warren.salvage.inspect`.

For each vhost, first all of its queues in one table, whatever their type, with their messages and directories. Then a
table for each type of queue, with the contents of the files; finally the stores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Final, Literal

from rich import box
from rich.console import RenderableType
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from warren.salvage.inspect import Report
from warren.salvage.names import from_text, printable, shown

Rows = list[list[str]]

_MANY = 12
"""Segments and store files of one queue or store that are listed one by one."""

_NAMELESS: Final = "(no file says which)"

_WORDS: Final = {"type", "directory", "journal", "file"}
"""Columns of words; the others are of numbers."""

_RARE: Final = {"past_limit": "past limit", "past_length": "past length", "dead_letters": "dead letters"}
"""Fields of a quorum queue, and the headings of their columns."""

_FOLDED: Final = {"directory", "journal"}
"""Columns that are folded if a terminal is narrow, beside the names."""


def tables(report: Report) -> Iterator[RenderableType]:
    """One thing to print after another."""
    if not report["vhosts"]:
        yield Text("No vhosts in it.")
    for vhost in report["vhosts"]:
        name = shown(from_text(vhost["name"])) or _NAMELESS
        queues, of_type = vhost["queues"], _by_type(vhost["queues"])
        yield Text.assemble(("vhost ", "dim"), (name, "bold"), (f"   {vhost['dir']}" if vhost["dir"] else "", "dim"))
        yield Text(_headline(vhost, of_type), "dim")
        parts = [_overview(queues)] if queues else []
        parts += [_TYPES[kind](of_type[kind]) for kind in _TYPES if kind in of_type]
        parts += [_stores(vhost["stores"])] if vhost["stores"] else []
        for part in parts:
            yield ""
            yield part
        yield ""


def _headline(vhost: Report, of_type: dict[str, list[Report]]) -> str:
    words = [_counted(len(vhost["queues"]), "queue")]
    if "classic v1" in of_type or (vhost["dir"] and not of_type):
        words.append(f"{vhost['segment_entry_count']} entries a segment")
    return ", ".join(words)


def _by_type(queues: Sequence[Report]) -> dict[str, list[Report]]:
    """The queues that can be read, by what :data:`_TYPES` calls their type; one that has files of two is in both."""
    of_type: dict[str, list[Report]] = {}
    for queue in queues:
        if "unreadable" not in queue:
            of_type.setdefault(_type(queue), []).append(queue)
        if "converting" in queue:
            of_type.setdefault("classic v1", []).append({"name": queue["name"], **queue["converting"]})
    return of_type


def _type(queue: Report) -> str:
    return f"{queue['type']} v{queue['version']}" if "version" in queue else str(queue["type"])


def _whole_type(queue: Report) -> str:
    return f"{_type(queue)} and v1" if "converting" in queue else _type(queue)


def _overview(queues: Sequence[Report]) -> Table:
    table = _table("queue", "type", "ready", "payload", "directory")
    for queue in queues:
        name, directories = shown(from_text(queue["name"])), queue.get("directories") or [queue["dir"]]
        if "unreadable" in queue:
            reason = Text(printable(queue["unreadable"]), "red")
            table.add_row(name, _whole_type(queue), "–", "–", Text("\n").join([_dim(directories), reason]))
        else:
            table.add_row(name, _whole_type(queue), f"{queue['ready']:,}", decimal(queue["bytes"]), _dim(directories))
    return table


def _dim(lines: Sequence[str]) -> Text:
    return Text("\n".join(map(printable, lines)), "dim")


def _classic_v1(queues: Sequence[Report]) -> Table:
    table = _table("classic v1", "journal", "segment", "published", "acked", "unacked")
    for queue in queues:
        rows = [
            [str(segment["number"]), f"{segment['publish']:,}", f"{segment['ack']:,}", f"{segment['unacked']:,}"]
            for segment in queue["segments"]
        ]
        _add_rows(table, [shown(from_text(queue["name"])), _journal_text(queue["journal"])], shortened(rows))
    return table


def _journal_text(journal: Report) -> str:
    published = journal["publish_persistent"] + journal["publish_transient"]
    counts = ((published, "pub"), (journal["deliver"], "del"), (journal["ack"], "ack"))
    words = [f"{count:,} {name}" for count, name in counts if count]
    for field, name in (("torn_bytes", "torn record"), ("zero_bytes", "leftover zeros")):
        words += [f"{name}: {decimal(journal[field])}"] if journal[field] else []
    return ", ".join(words) or "empty"


def _classic_v2(queues: Sequence[Report]) -> Table:
    table = _table("classic v2", "segment", "entries", "live", "acked", "index", "bodies")
    for queue in queues:
        rows = [
            [
                str(segment["number"]),
                *(f"{segment[column]:,}" for column in ("entries", "live", "acked")),
                *(decimal(segment[column]) if segment[column] else "–" for column in ("qi_bytes", "qs_bytes")),
            ]
            for segment in queue["segments"]
        ]
        _add_rows(table, [shown(from_text(queue["name"]))], shortened(rows))
    return table


def _quorum(queues: Sequence[Report]) -> Table:
    """Members are named if there are several; a rare field has a column if a queue has it."""
    rare = [field for field in _RARE if any(queue[field] for queue in queues)]
    table = _table("quorum", "were out", *(_RARE[field] for field in rare), "log", "file", "entries", "indexes")
    for queue in queues:
        log, members = queue["log"], queue["members"]
        nodes = "".join(f"\n  {_node(member)}" for member in members) if len(members) > 1 else ""
        head: list[RenderableType] = [Text.assemble(shown(from_text(queue["name"])), (nodes, "not bold dim"))]
        head += [f"{queue[field]:,}" for field in ("outstanding", *rare)]
        head += [_indexes(log["first_index"], log["last_index"])]
        _add_rows(table, head, _log_files(queue))
    return table


def _node(member: str) -> str:
    """Where a member runs: both names may have an ``@`` in them, and a node's has exactly one."""
    return printable("@".join(member.split("@")[-2:]))


def _log_files(queue: Report) -> Rows:
    """The files of the log, the oldest part first."""
    snapshot, in_wal = queue["snapshot"], queue["wal_records"]
    segments = [
        [
            printable(segment["name"]).removesuffix(".segment"),
            f"{segment['entries']:,}",
            _indexes(segment["first_index"], segment["last_index"]),
        ]
        for segment in queue["segments"]
    ]
    rows = [] if snapshot is None else [["snapshot", "", f"up to {snapshot['index']:,}"]]
    return [*rows, *shortened(segments), *([[".wal", f"{in_wal:,}", ""]] if in_wal else [])]


def _indexes(first: int | None, last: int | None) -> str:
    return "none" if first is None or last is None else f"{first:,} – {last:,}"


def _stream(queues: Sequence[Report]) -> Table:
    table = _table("stream", "segment", "size", "chunks", "messages", "offsets", "until")
    for queue in queues:
        rows = [
            [
                segment["name"],
                decimal(segment["bytes"]),
                *(f"{segment[column]:,}" for column in ("chunks", "messages")),
                _indexes(segment["first_offset"], segment["last_offset"]),
                _time(segment["last_timestamp_ms"]),
            ]
            for segment in queue["segments"]
        ]
        _add_rows(table, [shown(from_text(queue["name"]))], shortened(rows))
    return table


def _time(time_ms: int | None) -> str:
    try:
        return "" if time_ms is None else f"{datetime.fromtimestamp(time_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}"
    except (ValueError, OverflowError, OSError):
        return "no time"


_TYPES: Final[dict[str, Callable[[Sequence[Report]], Table]]] = {
    "classic v1": _classic_v1,
    "classic v2": _classic_v2,
    "quorum": _quorum,
    "stream": _stream,
}
"""In the order in which they are printed."""


def _stores(stores: Report) -> Table:
    table = _table("store", "file", "size", "messages", "valid", "garbage")
    for name, store in stores.items():
        rows = [
            [
                f"{file['number']}.{file.get('format', 'rdq')}",
                decimal(file["size"]),
                f"{file['messages']:,}",
                decimal(file["valid_bytes"]),
                f"{1 - file['valid_bytes'] / file['size']:.0%}" if file["size"] else "–",
            ]
            for file in store["files"]
        ]
        _add_rows(table, [name], shortened(rows))
    return table


def _table(first: str, *others: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="dim")
    table.add_column(first, style="bold", overflow="fold")
    for name in others:
        justify: Literal["left", "right"] = "left" if name in _WORDS else "right"
        table.add_column(name, justify=justify, overflow="fold", no_wrap=name not in _FOLDED)
    return table


def _add_rows(table: Table, head: Sequence[RenderableType], rows: Rows) -> None:
    """``head`` stands in front of the first of ``rows`` only."""
    for row in rows or [[]]:
        table.add_row(*head, *row)
        head = [""] * len(head)


def shortened(rows: Rows) -> Rows:
    """The first and the last of many rows, and how many there are between them."""
    if len(rows) <= _MANY:
        return rows
    left_out = len(rows) - 2 * (_MANY // 2)
    note = [f"… {left_out:,} more", *[""] * (len(rows[0]) - 1)]
    return [*rows[: _MANY // 2], note, *rows[-(_MANY // 2) :]]


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
