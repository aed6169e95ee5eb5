"""The picture of a node: what ``warren top`` draws of a snapshot. No line is wider than the terminal.

Each queue is one line with its name, its bar and numbers. A narrow terminal has fewer columns
(:data:`_COLUMNS`).

A queue's bar runs from its newest message (left) to the next one out (right): Q1, Q2, delta, Q3, Q4, as broad as their
shares; a list that has any message has at least one column. Green is in memory, yellow on the way from or to the disk,
blue on disk only. Without colours, a letter stands for each list. The length of a bar is the logarithm of the number of
messages, so that ten messages and ten million both show.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, Final

import attrs
from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.text import Text

from warren.salvage.names import printable
from warren.top.numbers import duration, rate, short, size
from warren.top.snapshots import LISTS, Row, Snapshot

STYLES: Final = {"q1": "green", "q2": "yellow", "delta": "blue", "q3": "yellow", "q4": "green"}
LETTERS: Final = {"q1": "1", "q2": "2", "delta": "d", "q3": "3", "q4": "4"}
NAMES: Final = {"q1": "Q1", "q2": "Q2", "delta": "delta", "q3": "Q3", "q4": "Q4"}
_BLOCK: Final = "▆"
_TRACK: Final = "─"


def shares(counts: list[int], width: int) -> list[int]:
    """Return how many of ``width`` cells each count gets: in proportion, and at least one unless it is 0."""
    total = sum(counts)
    if not total:
        return [0] * len(counts)
    cells = [max(1, count * width // total) if count else 0 for count in counts]
    while sum(cells) != width:  # add or remove the cells that rounding left over where it shows least
        step = 1 if sum(cells) < width else -1
        most = max(range(len(cells)), key=lambda index: (counts[index] * width / total - cells[index]) * step)
        if cells[most] + step < 1:
            most = max(range(len(cells)), key=lambda index: cells[index])
        cells[most] += step
    return cells


def bar(row: Row, width: int, capacity: int, *, coloured: bool) -> Text:
    """A queue from its newest message to the next one out; ``capacity`` messages fill the width."""
    counts = [row[name] for name in LISTS]
    total = sum(counts)
    length = round(width * math.log10(1 + total) / math.log10(1 + max(capacity, total, 1)))
    cells = shares(counts, max(length, sum(map(bool, counts))))
    text = Text()
    for name, count in zip(LISTS, cells, strict=True):
        text.append((_BLOCK if coloured else LETTERS[name]) * count, STYLES[name])
    return text.append(_TRACK * (width - sum(cells)), "bright_black")


def memory_bar(memory: dict[str, Any], width: int, *, coloured: bool) -> Text:
    """Memory against its limit, with a mark where paging begins."""
    limit = max(1, memory["limit_bytes"])
    used = min(width, round(memory["used_bytes"] / limit * width))
    mark = min(width - 1, round(memory["paging_bytes"] / limit * width))
    style = memory_style(memory)
    text = Text()
    for cell in range(width):
        if cell == mark:
            text.append("┃", "bold" if cell < used else "white")
        elif cell < used:
            text.append(_BLOCK if coloured else "#", style)
        else:
            text.append(_TRACK, "bright_black")
    return text


def memory_style(memory: dict[str, Any]) -> str:
    if memory["used_bytes"] > memory["limit_bytes"]:
        return "red"
    return "yellow" if memory["used_bytes"] > memory["paging_bytes"] else "green"


STATES: Final = {
    "running": ("●", "green"),
    "hibernated": ("○", "dim"),
    "busy": ("◐", "yellow"),
    "down": ("✖", "bold red"),
}
_STATE_WIDTH: Final = max(map(len, STATES))
_LEAST_PATH: Final = 12
_MOST_BAR: Final = 60
_MOST_NAME: Final = 40


# ── the table ───────────────────────────────────────────────────────────────────────────────────────────────────────


@attrs.frozen
class _Column:
    """A column right of the bar; terminals narrower than ``from_width`` do not have it."""

    title: str
    width: int
    cell: Callable[[Row], Text]
    from_width: int = 0


def _count(name: str, style: str = "", full: bool = False) -> Callable[[Row], Text]:
    def cell(row: Row) -> Text:
        number = row[name]
        return Text(f"{number:,}" if full and number < 1e12 else short(number), style if number else "bright_black")

    return cell


def _rate(name: str) -> Callable[[Row], Text]:
    def cell(row: Row) -> Text:
        return Text(rate(row[name]), "" if row[name] else "bright_black")

    return cell


def _ram(row: Row) -> Text:
    """Messages in RAM and the target; yellow above the target."""
    if row["target"] is None:
        return Text(short(row["in_ram"]), "" if row["in_ram"] else "bright_black")
    over = row["in_ram"] > row["target"]
    return Text.assemble((short(row["in_ram"]), "yellow" if over else ""), ("/" + short(row["target"]), "bright_black"))


def _state_word(row: Row) -> Text:
    if row["type"] == "stream" and row["state"] == "running":
        return Text("stream", "blue")
    return Text(row["state"], STATES[row["state"]][1])


_COLUMNS: Final = (
    *(_Column(NAMES[name], 6, _count(name, STYLES[name]), from_width=180) for name in LISTS),
    _Column("ready", 7, _count("ready", "bold")),
    _Column("unacked", 7, _count("unacked")),
    _Column("in/s", 6, _rate("in_rate")),
    _Column("out/s", 6, _rate("out_rate")),
    _Column("RAM/target", 13, _ram),
    _Column("bytes", 7, lambda row: Text(size(row["bytes"]), "" if row["bytes"] else "bright_black"), from_width=110),
    _Column("cons", 4, _count("consumers"), from_width=110),
)
"""Right of name and bar, right-aligned."""


def _table(rows: list[Row], width: int, coloured: bool, selected: int | None) -> Iterator[Text]:
    """The heading, and a line for each queue. ``selected``: the number of the row that is marked."""
    columns = [column for column in _COLUMNS if width >= column.from_width]
    has_state = width >= 110
    names = [_name(row, rows) for row in rows]
    fixed = 2 + sum(1 + column.width for column in columns) + (2 + _STATE_WIDTH if has_state else 0)
    full = capacity(rows)
    longest = max([len("queue"), *map(cell_len, names)])
    room = width - fixed - 1
    name_width = max(5, min(longest, _MOST_NAME, max(room - 17, 0) if room < 45 else room * 11 // 20))
    bar_width = max(4, min(_MOST_BAR, room - name_width))

    def line(mark: Text, name: Text, middle: Text, cells: list[Text], last: Text) -> Text:
        text = Text.assemble(mark, fitted(name, name_width), " ", fitted(middle, bar_width))
        for column, cell in zip(columns, cells, strict=True):
            text.append(" ").append(fitted(cell, column.width, right=True))
        if has_state:
            text.append("  ").append(fitted(last, _STATE_WIDTH))
        return text

    titles = [Text(column.title, "dim") for column in columns]
    yield line(Text("  "), Text("queue", "dim"), legend(), titles, Text("state", "dim"))
    for number, (name, row) in enumerate(zip(names, rows, strict=True)):
        mark = Text.assemble(STATES[row["state"]], ("▸", "bold") if number == selected else " ")
        if row["state"] == "down":  # the reason takes the place of bar and numbers
            head = Text.assemble(mark, fitted(Text(name, "bold red"), name_width), " ")
            yield head.append(_reason(row, width - cell_len(head.plain)))
            continue
        cells = [column.cell(row) for column in columns]
        style = ("" if row["state"] == "hibernated" else "bold") + (" reverse" if number == selected else "")
        middle = bar(row, bar_width, full, coloured=coloured)
        yield line(mark, Text(name, style), middle, cells, _state_word(row))


def capacity(rows: list[Row]) -> int:
    """The number of messages that fills a bar: a power of ten, so that it seldom changes."""
    longest = max((sum(row[name] for name in LISTS) for row in rows), default=0)
    power: int = 10 ** max(2, len(str(longest)))
    return power


def legend() -> Text:
    return Text(" ").join(Text(NAMES[name], f"bold {STYLES[name]}") for name in LISTS)


def reason_text(text: object) -> str:
    """Return why something is down, which may be several lines, as one line that can be printed."""
    return printable(" ".join(str(text).split()))


def _reason(row: Row, width: int) -> Text:
    """Why a queue is down. Such a sentence begins with a long path, so its end is shown if it is too long."""
    reason = reason_text(row["reason"])
    start = 0
    while cell_len(reason[start:]) + bool(start) > width:
        start += 1
    return Text("…" * bool(start) + reason[start:], "red")


def _name(row: Row, rows: list[Row]) -> str:
    """The name; with the vhost if the node has other vhosts than "/"."""
    alone = all(other["vhost"] == "/" for other in rows)
    return printable(row["name"] if alone else f"{row['vhost']} {row['name']}") or "(no name)"


def _cut(text: Text, width: int) -> Text:
    if cell_len(text.plain) > width:
        text.truncate(width, overflow="ellipsis")
    return text


def fitted(text: Text, width: int, *, right: bool = False) -> Text:
    """``text`` cut or padded to ``width``."""
    _cut(text, width)
    missing = width - cell_len(text.plain)
    return Text.assemble(" " * missing, text) if right else Text.assemble(text, " " * missing)


# ── topics ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def topic_lags(row: dict[str, Any]) -> str:
    """Each group with its lag."""
    return ", ".join(f"{printable(group)} {lag:,}" for group, lag in sorted(row["groups"].items()))


def _topics(topics: dict[str, Any] | None, width: int) -> Iterator[Text]:
    """The heading, and a line for each topic."""
    if topics is None:
        return
    if topics["down"] is not None:
        yield _cut(Text(f"✖ the topics are down: {reason_text(topics['down'])}", "bold red"), width)
        return
    if topics.get("no_room"):
        yield _cut(Text(f"▲ the topics find no room: {reason_text(topics['no_room'])}", "yellow"), width)
    rows = topics["rows"]
    if not rows:
        return
    names = [printable(row["name"]) for row in rows]
    name_width = max(5, min(max(map(cell_len, names)), _MOST_NAME, max(width - 30, 0)))

    def line(name: Text, *cells: Text) -> Text:
        text = Text.assemble("  ", fitted(name, name_width))
        for cell, cell_width in zip(cells, (7, 9, 7), strict=False):
            text.append(" ").append(fitted(cell, cell_width, right=True))
        return _cut(text.append("  ").append(cells[-1]), width)

    yield line(*(Text(title, "dim") for title in ("topic", "queues", "messages", "in/s", "groups and lag")))
    for name, row in zip(names, rows, strict=True):
        counts = Text(f"{row['queues']:,}"), Text(short(row["messages"]), "bold"), Text(rate(row["in_rate"]))
        yield line(Text(name, "bold"), *counts, Text(topic_lags(row)))
    if topics.get("left_out"):
        yield Text(f"  … and {topics['left_out']:,} more", "dim")


# ── the whole ───────────────────────────────────────────────────────────────────────────────────────────────────────


def picture(
    snapshot: Snapshot, width: int, *, coloured: bool = True, note: str = "", selected: int | None = None
) -> RenderableType:
    """A node, ``width`` columns wide. ``note``: shown in place of its process. ``selected``: the row that is marked."""
    lines = [*_heading(snapshot, width, coloured, note), Text("")]
    rows = snapshot["queues"]
    topics = list(_topics(snapshot.get("topics"), width))
    if rows:
        lines += _table(rows, width, coloured, selected)
    elif not snapshot["left_out"] and not topics:
        lines.append(Text("  No queues.", "dim"))
    if snapshot["left_out"]:
        lines.append(Text(f"  … and {snapshot['left_out']:,} more", "dim"))
    lines += [Text(""), *topics] if topics and (rows or snapshot["left_out"]) else topics
    for line in lines:
        line.no_wrap, line.overflow = True, "ellipsis"
    return Group(*lines)


def _heading(snapshot: Snapshot, width: int, coloured: bool, note: str) -> Iterator[Text]:
    yield from node_lines(snapshot, width, coloured, note)
    yield _sums(snapshot["totals"], width)
    yield from _troubles(snapshot, width)


def node_lines(snapshot: Snapshot, width: int, coloured: bool, note: str) -> Iterator[Text]:
    """The node's directory, process and memory, in two lines."""
    process = note or f"process {snapshot['pid']} · up {duration(snapshot['up_s'])}"
    left = Text.assemble(
        ("warren ", "bold"), (_end_of(printable(snapshot["path"]), width - 9 - cell_len(process)), "bold cyan")
    )
    yield _spread(left, Text(process, "dim"), width)
    memory = snapshot["memory"]
    numbers = Text.assemble(
        (f" {size(memory['used_bytes'])}", f"bold {memory_style(memory)}"), f" of {size(memory['limit_bytes'])}"
    )
    disk = Text.assemble(("disk free ", "dim"), size(memory["disk_free_bytes"]))
    room = width - len("memory ") - cell_len(numbers.plain) - cell_len(disk.plain) - 3
    gauge = memory_bar(memory, max(4, min(_MOST_BAR, room)), coloured=coloured)
    yield _spread(Text.assemble(("memory ", "dim"), gauge, numbers), disk, width)


def _sums(totals: dict[str, Any], width: int) -> Text:
    parts = [
        Text.assemble((f"{totals['queues']:,}", "bold"), " queue" if totals["queues"] == 1 else " queues"),
        Text.assemble((f"{totals['ready']:,}", "bold"), " ready"),
        Text.assemble((f"{totals['unacked']:,}", "bold"), " unacked"),
        Text.assemble("in ", (rate(totals["in_rate"], "0"), "bold"), "/s"),
        Text.assemble("out ", (rate(totals["out_rate"], "0"), "bold"), "/s"),
    ]
    if totals["hibernated"]:
        parts.append(Text(f"{totals['hibernated']:,} hibernated", "dim"))
    if totals["busy"]:
        parts.append(Text(f"{totals['busy']:,} busy", "yellow"))
    while len(parts) > 1 and sum(cell_len(part.plain) + 3 for part in parts) - 3 > width:
        parts.pop()
    return _cut(Text(" · ", "bright_black").join(parts), width)


def _troubles(snapshot: Snapshot, width: int) -> Iterator[Text]:
    """Alarms, and what is down. There is always a line, so that the table below does not move."""
    alarm, down = memory_alarm(snapshot, width), snapshot["totals"]["down"]
    if alarm is not None:
        yield alarm
    for vhost, reason in snapshot["down_vhosts"].items():
        yield _cut(Text(f"✖ vhost {printable(vhost)} is down: {reason_text(reason)}", "bold red"), width)
    if down:
        yield Text("✖ 1 queue is down" if down == 1 else f"✖ {down:,} queues are down", "bold red")
    if not (alarm or down or snapshot["down_vhosts"]):
        yield Text("no alarms", "dim")


def memory_alarm(snapshot: Snapshot, width: int) -> Text | None:
    """The alarms of memory and disk in a line, if there are any."""
    if not (alarms := snapshot["memory"]["alarms"]):
        return None
    warning = f" {' and '.join(alarms).upper()} ALARM: publishers wait, consumers go on "
    return _cut(Text(warning, "bold white on red"), width)


def _spread(left: Text, right: Text, width: int) -> Text:
    """A text at each end of the line; without the right one if there is no room for both."""
    gap = width - cell_len(left.plain) - cell_len(right.plain)
    if gap >= 2:
        return Text.assemble(left, " " * gap, right)
    return _cut(left, width)


def _end_of(path: str, room: int) -> str:
    """A path, or the end of it if it is too long."""
    if cell_len(path) <= room or room < _LEAST_PATH:
        return path
    while cell_len(path) >= room:
        path = path[1:]
    return "…" + path


def heading_lines(snapshot: Snapshot) -> int:
    """The number of lines above and below the rows of queues."""
    topics = len(list(_topics(snapshot.get("topics"), 80)))
    count = bool(snapshot["memory"]["alarms"]) + len(snapshot["down_vhosts"]) + bool(snapshot["totals"]["down"])
    return 3 + max(1, count) + 1 + 1 + 1 + (1 + topics if topics else 0)


def is_coloured(console: Console) -> bool:
    """Whether colours will be seen."""
    return console.color_system is not None and not console.no_color
