"""The picture of a node: what ``warren top`` draws of a snapshot, for a given width. No line is ever wider.

A queue is one line. Its *bar* is the queue from its newest message (left) to the next one out (right): Q1, Q2, delta,
Q3, Q4, as broad as their shares; whatever is there shows. Green is in memory, yellow on the way from or to the disk,
blue on disk only. Without colours, letters say which list it is. The bar is the longer the more messages there are, by
their logarithm: ten messages and ten million both show. What the width has no room for is left out, the least important
first (:data:`_COLUMNS`).
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
from warren.top.snapshots import LISTS, Row, Snapshot

STYLES: Final = {"q1": "green", "q2": "yellow", "delta": "blue", "q3": "yellow", "q4": "green"}
LETTERS: Final = {"q1": "1", "q2": "2", "delta": "d", "q3": "3", "q4": "4"}
NAMES: Final = {"q1": "Q1", "q2": "Q2", "delta": "delta", "q3": "Q3", "q4": "Q4"}
_BLOCK: Final = "▆"
_TRACK: Final = "─"
_STATES: Final = {
    "running": ("●", "green"),
    "hibernated": ("○", "dim"),
    "busy": ("◐", "yellow"),
    "down": ("✖", "bold red"),
}
_STATE_WIDTH: Final = max(map(len, _STATES))
_LEAST_PATH: Final = 12
_MOST_BAR: Final = 60
_MOST_NAME: Final = 40


# ── numbers ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def short(number: float) -> str:
    """A count in at most six characters: 99,999 · 123k · 4.56M."""
    if number < 100_000:
        return f"{round(number):,}"
    for unit, size in (("k", 1e3), ("M", 1e6), ("G", 1e9), ("T", 1e12)):
        if number < 999.5 * size:
            scaled = number / size
            return f"{scaled:.{0 if scaled >= 99.95 or unit == 'k' else 1 if scaled >= 9.995 else 2}f}{unit}"
    return f"{number:.0e}"


def size(amount: float) -> str:
    """Bytes: 999 B · 1.2 kB · 34 MB."""
    value, unit = float(amount), "B"
    for larger in ("kB", "MB", "GB", "TB", "PB"):
        if value < 999.5:
            break
        value, unit = value / 1000, larger
    return f"{value:.{1 if value < 9.95 and unit != 'B' else 0}f} {unit}"


def duration(seconds: float) -> str:
    """The two largest units: 3 h 12 min."""
    whole = int(seconds)
    for name, unit, lower, below in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if whole >= unit:
            return f"{whole // unit} {name} {whole % unit // below} {lower}"
    return f"{whole} s"


def rate(per_second: float | None, nothing: str = "·") -> str:
    """Messages a second; "–" where it is not known yet."""
    if per_second is None:
        return "–"
    return nothing if per_second == 0 else f"{per_second:.1f}" if per_second < 10 else short(per_second)


# ── bars ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def shares(counts: list[int], width: int) -> list[int]:
    """How many of ``width`` cells each count gets: in proportion, at least one where there is anything."""
    total = sum(counts)
    if not total:
        return [0] * len(counts)
    cells = [max(1, count * width // total) if count else 0 for count in counts]
    while sum(cells) != width:  # what rounding left over goes to, or comes from, where it shows least
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


def _capacity(rows: list[Row]) -> int:
    """What a bar's whole width stands for: a power of ten, so that it seldom changes."""
    longest = max((sum(row[name] for name in LISTS) for row in rows), default=0)
    capacity: int = 10 ** max(2, len(str(longest)))
    return capacity


def _legend() -> Text:
    return Text(" ").join(Text(NAMES[name], f"bold {STYLES[name]}") for name in LISTS)


def _reason(row: Row, width: int) -> Text:
    """Why it is down. Such sentences begin with a long path: where there is no room their end is shown."""
    said = printable(" ".join(str(row["reason"]).split()))
    start = 0
    while cell_len(said[start:]) + bool(start) > width:
        start += 1
    return Text("…" * bool(start) + said[start:], "red")


def memory_bar(memory: dict[str, Any], width: int, *, coloured: bool) -> Text:
    """Memory against its limit, with a mark where paging begins."""
    limit = max(1, memory["limit_bytes"])
    used = min(width, round(memory["used_bytes"] / limit * width))
    mark = min(width - 1, round(memory["paging_bytes"] / limit * width))
    style = _memory_style(memory)
    text = Text()
    for cell in range(width):
        if cell == mark:
            text.append("┃", "bold" if cell < used else "white")
        elif cell < used:
            text.append(_BLOCK if coloured else "#", style)
        else:
            text.append(_TRACK, "bright_black")
    return text


def _memory_style(memory: dict[str, Any]) -> str:
    if memory["used_bytes"] > memory["limit_bytes"]:
        return "red"
    return "yellow" if memory["used_bytes"] > memory["paging_bytes"] else "green"


# ── the table ───────────────────────────────────────────────────────────────────────────────────────────────────────


@attrs.frozen
class _Column:
    """A column beside name and bar; those of a width below ``from_width`` have no room for it."""

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
    """Messages in RAM, and how many there may be: yellow above the target."""
    if row["target"] is None:
        return Text(short(row["in_ram"]), "" if row["in_ram"] else "bright_black")
    over = row["in_ram"] > row["target"]
    return Text.assemble((short(row["in_ram"]), "yellow" if over else ""), ("/" + short(row["target"]), "bright_black"))


def _state_mark(row: Row) -> Text:
    return Text(*_STATES[row["state"]])


def _state_word(row: Row) -> Text:
    return Text(row["state"], _STATES[row["state"]][1])


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
"""Right-aligned, behind name and bar."""


def _table(rows: list[Row], width: int, coloured: bool) -> Iterator[Text]:
    """The heading, and a line for each queue."""
    columns = [column for column in _COLUMNS if width >= column.from_width]
    words = width >= 110
    names = [_name(row, rows) for row in rows]
    fixed = 2 + sum(1 + column.width for column in columns) + (2 + _STATE_WIDTH if words else 0)
    capacity = _capacity(rows)
    longest = max([len("queue"), *map(cell_len, names)])
    room = width - fixed - 1
    name_width = max(5, min(longest, _MOST_NAME, max(room - 17, 0) if room < 45 else room * 11 // 20))
    bar_width = max(4, min(_MOST_BAR, room - name_width))

    def line(mark: Text, name: Text, middle: Text, cells: list[Text], last: Text) -> Text:
        text = Text.assemble(mark, " ", _fitted(name, name_width), " ", _fitted(middle, bar_width))
        for column, cell in zip(columns, cells, strict=True):
            text.append(" ").append(_fitted(cell, column.width, right=True))
        if words:
            text.append("  ").append(_fitted(last, _STATE_WIDTH))
        return text

    titles = [Text(column.title, "dim") for column in columns]
    yield line(Text(" "), Text("queue", "dim"), _legend(), titles, Text("state", "dim"))
    for name, row in zip(names, rows, strict=True):
        if row["state"] == "down":  # the reason has all of the room
            head = Text.assemble(_state_mark(row), " ", _fitted(Text(name, "bold red"), name_width), " ")
            yield head.append(_reason(row, width - cell_len(head.plain)))
            continue
        cells = [column.cell(row) for column in columns]
        style = "" if row["state"] == "hibernated" else "bold"
        middle = bar(row, bar_width, capacity, coloured=coloured)
        yield line(_state_mark(row), Text(name, style), middle, cells, _state_word(row))


def _name(row: Row, rows: list[Row]) -> str:
    """With its vhost where there is more than the usual one."""
    alone = all(other["vhost"] == "/" for other in rows)
    return printable(row["name"] if alone else f"{row['vhost']} {row['name']}") or "(no name)"


def _cut(text: Text, width: int) -> Text:
    if cell_len(text.plain) > width:
        text.truncate(width, overflow="ellipsis")
    return text


def _fitted(text: Text, width: int, *, right: bool = False) -> Text:
    """Exactly so wide."""
    _cut(text, width)
    missing = width - cell_len(text.plain)
    return Text.assemble(" " * missing, text) if right else Text.assemble(text, " " * missing)


# ── topics ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def topic_lags(row: dict[str, Any]) -> str:
    """Each group with how many messages lie before it."""
    return ", ".join(f"{printable(group)} {lag:,}" for group, lag in sorted(row["groups"].items()))


def _topics(topics: dict[str, Any] | None, width: int) -> Iterator[Text]:
    """The heading, and a line for each topic."""
    if topics is None:
        return
    if topics["down"] is not None:
        yield _cut(Text(f"✖ the topics are down: {printable(' '.join(topics['down'].split()))}", "bold red"), width)
        return
    rows = topics["rows"]
    if not rows:
        return
    names = [printable(row["name"]) for row in rows]
    name_width = max(5, min(max(map(cell_len, names)), _MOST_NAME, max(width - 30, 0)))

    def line(name: Text, *cells: Text) -> Text:
        text = Text.assemble("  ", _fitted(name, name_width))
        for cell, cell_width in zip(cells, (7, 9, 7), strict=False):
            text.append(" ").append(_fitted(cell, cell_width, right=True))
        return _cut(text.append("  ").append(cells[-1]), width)

    yield line(*(Text(title, "dim") for title in ("topic", "queues", "messages", "in/s", "groups, and how far behind")))
    for name, row in zip(names, rows, strict=True):
        counts = Text(f"{row['queues']:,}"), Text(short(row["messages"]), "bold"), Text(rate(row["in_rate"]))
        yield line(Text(name, "bold"), *counts, Text(topic_lags(row)))
    if topics.get("left_out"):
        yield Text(f"  … and {topics['left_out']:,} more", "dim")


# ── the whole ───────────────────────────────────────────────────────────────────────────────────────────────────────


def picture(snapshot: Snapshot, width: int, *, coloured: bool = True, note: str = "") -> RenderableType:
    """A node, ``width`` columns wide. ``note``: what is to be said of how it is looked at."""
    lines = [*_heading(snapshot, width, coloured, note), Text("")]
    rows = snapshot["queues"]
    topics = list(_topics(snapshot.get("topics"), width))
    if rows:
        lines += _table(rows, width, coloured)
    elif not snapshot["left_out"] and not topics:
        lines.append(Text("  No queues.", "dim"))
    if snapshot["left_out"]:
        lines.append(Text(f"  … and {snapshot['left_out']:,} more", "dim"))
    lines += [Text(""), *topics] if topics and (rows or snapshot["left_out"]) else topics
    for line in lines:
        line.no_wrap, line.overflow = True, "ellipsis"
    return Group(*lines)


def _heading(snapshot: Snapshot, width: int, coloured: bool, note: str) -> Iterator[Text]:
    said = note or f"process {snapshot['pid']} · up {duration(snapshot['up_s'])}"
    left = Text.assemble(
        ("warren ", "bold"), (_end_of(printable(snapshot["path"]), width - 9 - cell_len(said)), "bold cyan")
    )
    yield _spread(left, Text(said, "dim"), width)
    memory = snapshot["memory"]
    numbers = Text.assemble(
        (f" {size(memory['used_bytes'])}", f"bold {_memory_style(memory)}"), f" of {size(memory['limit_bytes'])}"
    )
    disk = Text.assemble(("disk free ", "dim"), size(memory["disk_free_bytes"]))
    room = width - len("memory ") - cell_len(numbers.plain) - cell_len(disk.plain) - 3
    gauge = memory_bar(memory, max(4, min(_MOST_BAR, room)), coloured=coloured)
    yield _spread(Text.assemble(("memory ", "dim"), gauge, numbers), disk, width)
    yield _sums(snapshot["totals"], width)
    yield from _troubles(snapshot, width)


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
    """Alarms, and what is down; one line where there is nothing, too, so that the picture does not jump."""
    alarms, down = snapshot["memory"]["alarms"], snapshot["totals"]["down"]
    if alarms:
        said = f" {' and '.join(alarms).upper()} ALARM: publishers wait, consumers go on "
        yield _cut(Text(said, "bold white on red"), width)
    for vhost, why in snapshot["down_vhosts"].items():
        yield _cut(Text(f"✖ vhost {printable(vhost)} is down: {printable(' '.join(why.split()))}", "bold red"), width)
    if down:
        yield Text("✖ 1 queue is down" if down == 1 else f"✖ {down:,} queues are down", "bold red")
    if not (alarms or down or snapshot["down_vhosts"]):
        yield Text("no alarms", "dim")


def _spread(left: Text, right: Text, width: int) -> Text:
    """One at each end; the right one goes first where there is no room."""
    gap = width - cell_len(left.plain) - cell_len(right.plain)
    if gap >= 2:
        return Text.assemble(left, " " * gap, right)
    return _cut(left, width)


def _end_of(path: str, room: int) -> str:
    """A path, or where it is long the end of it, which tells more."""
    if cell_len(path) <= room or room < _LEAST_PATH:
        return path
    while cell_len(path) >= room:
        path = path[1:]
    return "…" + path


def heading_lines(snapshot: Snapshot) -> int:
    """How many lines of a screen are no queue's."""
    topics = len(list(_topics(snapshot.get("topics"), 80)))
    count = bool(snapshot["memory"]["alarms"]) + len(snapshot["down_vhosts"]) + bool(snapshot["totals"]["down"])
    return 3 + max(1, count) + 1 + 1 + 1 + (1 + topics if topics else 0)


def is_coloured(console: Console) -> bool:
    """Whether colours will be seen."""
    return console.color_system is not None and not console.no_color
