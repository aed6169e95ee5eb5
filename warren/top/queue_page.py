"""The page of one queue: what ``warren top`` draws when a queue is opened. No line is wider than the terminal.

The page has the queue's bar, then a section each for its messages list by list, its rates, its messages in RAM, its
disk operations, its consumers and its declaration. The names are those of RabbitMQ's ``backing_queue_status`` where it
has one. A queue that is down has the reason and its declaration.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from rich.text import Text

from warren.salvage.names import printable
from warren.top.numbers import rate, short, size
from warren.top.picture import (
    NAMES,
    STATES,
    STYLES,
    bar,
    capacity,
    fitted,
    legend,
    memory_alarm,
    node_lines,
    reason_text,
)
from warren.top.snapshots import LISTS, Row, Snapshot

_LABEL_WIDTH: Final = 12
_MOST_BAR: Final = 120
_MOST_CHANNELS: Final = 8
_PLACES: Final = {
    "q1": "in RAM",
    "q2": "body on disk, position in RAM",
    "delta": "on disk",
    "q3": "body on disk, position in RAM",
    "q4": "in RAM",
}
_RATES: Final = ("avg_ingress_rate", "avg_egress_rate", "avg_ack_ingress_rate", "avg_ack_egress_rate")


def queue_page(snapshot: Snapshot, width: int, *, coloured: bool = True, note: str = "") -> list[Text]:
    """The lines of a page, ``width`` columns wide. ``snapshot``: from :meth:`~.snapshots.Snapshots.queue`."""
    row, stats = snapshot["queue"], snapshot["stats"]
    lines = [*node_lines(snapshot, width, coloured, note), memory_alarm(snapshot, width) or Text("")]
    lines += [_title(row), Text("")]
    if row["state"] == "down":
        lines += _wrapped("reason", reason_text(row["reason"]), width, "red")
    elif row["type"] == "stream":
        full = bar(row, min(width, _MOST_BAR), capacity([row]), coloured=coloured)
        lines += [full, Text(""), *_stream(row)]
    else:
        full = bar(row, min(width, _MOST_BAR), capacity([row]), coloured=coloured)
        lines += [legend(), full, Text(""), *_messages(row, stats), *_rates(row, stats)]
        lines += [*_ram(row, stats, snapshot["memory"]), *_consumers(row, stats, width)]
    lines += _wrapped("declared", " · ".join(_declared(snapshot["declared"])), width)
    return [_one_line(line, width) for line in lines]


def missing_page(key: tuple[str, str], why: str, width: int) -> list[Text]:
    """The page of a queue that a node has no numbers for, with the reason."""
    title = Text.assemble("queue ", (printable(key[1]), "bold"), f" in vhost {printable(key[0])}")
    return [_one_line(line, width) for line in (title, *_wrapped("reason", printable(why), width, "red"))]


def _title(row: Row) -> Text:
    mark, style = STATES[row["state"]]
    text = Text.assemble((f"{mark} ", style), (printable(row["name"]) or "(no name)", "bold"))
    text.append(f"  vhost {printable(row['vhost'])} · ", "dim").append(row["state"], style)
    text.append("" if row["mode"] is None else f" · mode {row['mode']}", "dim")
    text.append(" · stream" if row["type"] == "stream" else "", "dim")
    if row["state"] == "busy":
        text.append(" · did not answer in time: the numbers of its last answer", "yellow")
    return text


def _stream(row: Row) -> Iterator[Text]:
    last = f"offset {row['gone']:,} to {row['published'] - 1:,}" if row["ready"] else "none yet"
    yield _line("messages", _number(row["ready"], "on disk"), Text(last, "dim"))
    yield _line("rates", Text(f"in {rate(row['in_rate'], '0')}/s"))
    yield _line("consumers", Text(f"{row['consumers']:,}"))


def _messages(row: Row, stats: Mapping[str, Any] | None) -> Iterator[Text]:
    ready, unacked = row["ready"], row["unacked"]
    yield _line("messages", _number(ready, "ready"), _number(unacked, "unacked"), _number(ready + unacked, "in all"))
    delta = {} if stats is None else stats["backing_queue_status"]["delta"]
    for name in LISTS:
        count = Text(f"{NAMES[name]:<6}{row[name]:>15,}", STYLES[name] if row[name] else "bright_black")
        place = _PLACES[name]
        if name == "delta" and delta.get("count") and delta.get("start") is not None:
            place += f", seq_id {delta['start']:,} to {delta['end'] - 1:,}"
        yield Text.assemble(" " * _LABEL_WIDTH, count, (f"  {place}", "dim"))
    if stats is not None and "priority_lengths" in stats["backing_queue_status"]:
        lengths = stats["backing_queue_status"]["priority_lengths"].items()
        yield _line("", *(Text(f"priority {level}: {count:,}") for level, count in lengths if count))
    if stats is not None and stats["messages_dead_lettering"]:
        yield _line("", _number(stats["messages_dead_lettering"], "being dead-lettered"))


def _rates(row: Row, stats: Mapping[str, Any] | None) -> Iterator[Text]:
    yield _line("rates", Text(f"in {rate(row['in_rate'], '0')}/s"), Text(f"out {rate(row['out_rate'], '0')}/s"))
    if stats is not None:
        status = stats["backing_queue_status"]
        yield _line("", *(Text(f"{name} {rate(status[name], '0')}", "dim") for name in _RATES[:2]))
        yield _line("", *(Text(f"{name} {rate(status[name], '0')}", "dim") for name in _RATES[2:]))


def _ram(row: Row, stats: Mapping[str, Any] | None, memory: Mapping[str, Any]) -> Iterator[Text]:
    target = "infinity" if row["target"] is None else f"{row['target']:,}"
    over = row["target"] is not None and row["in_ram"] > row["target"]
    in_ram = Text.assemble((f"{row['in_ram']:,}", "bold yellow" if over else "bold"), " messages in RAM")
    yield _line("memory", in_ram, Text(f"target_ram_count {target}"))
    duration_s = memory["desired_duration_s"]
    desired = "infinity" if duration_s is None else f"{duration_s:.3g} s"
    bodies = Text(f"{size(row['bytes_in_ram'])} of {size(row['bytes'])} of bodies in RAM")
    yield _line("", bodies, Text(f"desired duration {desired}"))
    if stats is not None:
        reads, writes, persistent = stats["disk_reads"], stats["disk_writes"], stats["messages_persistent"]
        yield _line("disk", _number(reads, "reads"), _number(writes, "writes"), _number(persistent, "persistent"))


def _consumers(row: Row, stats: Mapping[str, Any] | None, width: int) -> Iterator[Text]:
    parts = [f"{row['consumers']:,}"]
    if stats is not None:
        for name in ("exclusive_consumer_tag", "single_active_consumer_tag"):
            if stats[name] is not None:
                parts.append(f"{name} {printable(stats[name])}")
        channels = sorted(stats["unacknowledged_by_channel"].items(), key=lambda entry: -entry[1])
        parts += [
            f"{printable(channel)} has {count:,} unacked" for channel, count in channels[:_MOST_CHANNELS] if count
        ]
        parts += [f"and {len(channels) - _MOST_CHANNELS:,} more channels"] if len(channels) > _MOST_CHANNELS else []
    yield from _wrapped("consumers", " · ".join(parts), width)


def _declared(declared: Mapping[str, Any]) -> Iterator[str]:
    yield "durable" if declared["durable"] else "transient"
    yield from (name for name in ("exclusive", "auto_delete") if declared[name])
    arguments = declared["arguments"]
    yield from (f"{printable(name)} {printable(_value(value))}" for name, value in sorted(arguments.items()))
    if not arguments:
        yield "no arguments"


def _value(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


# ── lines ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _number(number: int, word: str) -> Text:
    return Text.assemble((f"{number:,}" if number < 1e12 else short(number), "bold"), f" {word}")


def _line(label: str, *parts: Text) -> Text:
    return Text.assemble(fitted(Text(label, "dim"), _LABEL_WIDTH), Text(" · ", "bright_black").join(parts))


def _wrapped(label: str, text: str, width: int, style: str = "") -> Iterable[Text]:
    pieces = textwrap.wrap(text, max(20, width - _LABEL_WIDTH), break_on_hyphens=False) or [""]
    return [_line("" if number else label, Text(piece, style)) for number, piece in enumerate(pieces)]


def _one_line(line: Text, width: int) -> Text:
    line.truncate(width, overflow="ellipsis")
    line.no_wrap, line.overflow = True, "ellipsis"
    return line
