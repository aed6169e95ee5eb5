"""What ``warren simulate`` prints for people: the answer in a few lines, a table of queues, and a bar while it works.

The lines answer the questions about a backlog: when does paging start, are publishers blocked and for how long, what
was the longest wait of a message, and what is left at the end.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Literal

from rich import box
from rich.cells import cell_len
from rich.console import RenderableType
from rich.filesize import decimal
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from warren.salvage.names import printable
from warren.salvage.progress_bars import share_bar

if TYPE_CHECKING:
    from warren.simulation.compare import Comparison

Summary = Mapping[str, Any]

_SHOWN_QUEUES: Final = 15
_SHOWN_POINTS: Final = 40
_WIDTH_WITHOUT_TERMINAL: Final = 160
_BETWEEN: Final = 3
"""Characters between two columns."""
_ROUNDED_UP: Final = 0.9995
"""What three digits show as 1."""
_MINUTE_S, _HOUR_S, _DAY_S = 60, 3600, 86_400


# ── words ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def time_text(period_s: float | None) -> str:
    """How long: ``3.2 ms``, ``41.5 s``, ``3 min 2 s``, ``1 h 20 min``."""
    if period_s is None:
        return "–"
    if period_s >= _MINUTE_S - 0.05:
        whole = round(period_s)
        units = ((_DAY_S, "d", _HOUR_S, "h"), (_HOUR_S, "h", _MINUTE_S, "min"), (_MINUTE_S, "min", 1, "s"))
        unit_s, unit, part_s, smaller = next(entry for entry in units if whole >= entry[0])
        rest = whole % unit_s // part_s
        return f"{whole // unit_s} {unit}" + (f" {rest} {smaller}" if rest else "")
    for size, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if period_s >= _ROUNDED_UP * size:
            return f"{period_s / size:.3g} {unit}"
    return "0 s"


def moment_text(at_s: float, start_s: float) -> str:
    """Return a moment as text: since the start, or by the clock if the scenario begins at a time of day."""
    if not start_s:
        return f"after {time_text(at_s)}" if at_s else "at once"
    time_of_day_s = round(start_s + at_s) % _DAY_S
    return f"at {time_of_day_s // _HOUR_S:02}:{time_of_day_s // _MINUTE_S % 60:02}:{time_of_day_s % 60:02}"


def _share(share: float | None) -> str:
    return "–" if share is None else f"{share:.0%}" if share >= 0.1 or share == 0 else f"{share:.1%}"


def _messages(count: float) -> str:
    return f"{count:,.0f} message{'' if count == 1 else 's'}"


# ── one answer ───────────────────────────────────────────────────────────────────────────────────────────────────────


def summary_lines(summary: Summary, files: Sequence[str] = (), folder: str | None = None) -> Iterator[RenderableType]:
    """Yield the text about one simulation; ``summary`` as in summary.json."""
    yield Text.assemble(
        (printable(str(summary["name"])), "bold"), f"   {time_text(summary['length_s'])}, seed {summary['seed']}"
    )
    yield Text()
    for label, text in answers(summary):
        yield _line(label, text)
    yield from _files(files, folder)
    yield Text()
    yield from _queues(summary["queues"])


def _files(files: Sequence[str], folder: str | None) -> Iterator[RenderableType]:
    if folder is not None:
        yield _line("files", f"{printable(folder)}: {', '.join(files)}")


def _line(label: str, text: str) -> Text:
    return Text.assemble((f"{label:<9}", "dim"), text)


def answers(summary: Summary) -> Iterator[tuple[str, str]]:
    """The lines: what is asked, and the answer."""
    node, queues = summary["node"], summary["queues"]
    start_s = float(summary.get("start_s") or 0.0)
    yield "paging", _paging(summary, start_s)
    yield "alarms", _alarms(summary, start_s)
    ratio = "" if node["max_ratio"] is None else f", {_share(node['max_ratio'])} of the watermark"
    yield "memory", f"at most {decimal(node['max_used_bytes'])}{ratio} ({decimal(node['limit_bytes'])})"
    yield "latency", _latency(queues)
    ready, unacked = (sum(queue[name] for queue in queues.values()) for name in ("ready", "unacked"))
    most = max((queue["max_ready"] for queue in queues.values()), default=0)
    backlog = f"{_messages(ready + unacked)} at the end: {ready:,} ready, {unacked:,} unacked"
    yield "backlog", backlog + (f"; at most {most:,} ready" + (" in one queue" if len(queues) > 1 else ""))
    written, read = decimal(node["disk_write_bytes"]), decimal(node["disk_read_bytes"])
    yield "disk", f"{written} written, {read} read; busy {_share(node['disk_busy'])} of the time"


def _paging(summary: Summary, start_s: float) -> str:
    first = summary["node"]["first_paging_s"]
    if first is None:
        return "never"
    queues = dict.fromkeys(mark["queue"] for mark in summary["marks"] if mark["kind"] == "paging-starts")
    name = next(iter(queues), None)
    others = f" and {len(queues) - 1:,} more" if len(queues) > 1 else ""
    return f"starts {moment_text(first, start_s)}" + (f": {printable(name)}{others}" if name else "")


def _alarms(summary: Summary, start_s: float) -> str:
    parts = []
    open_count = 0
    for resource in ("memory", "disk"):
        begins = [mark["at_s"] for mark in summary["marks"] if mark["kind"] == f"{resource}-alarm"]
        ends = sum(mark["kind"] == f"{resource}-alarm-ends" for mark in summary["marks"])
        open_count += len(begins) - ends
        if begins:
            often = "" if len(begins) == 1 else f", {len(begins):,} times"
            parts.append(f"{resource} {moment_text(begins[0], start_s)}{often}")
    if not parts:
        return "none"
    blocked_s = summary["node"]["alarm_s"]
    share = _share(blocked_s / summary["length_s"])
    still = ", still at the end" if open_count else ""
    return f"{'; '.join(parts)}; publishers blocked for {time_text(blocked_s)} ({share}){still}"


def _latency(queues: Mapping[str, Summary]) -> str:
    measured = {name: queue for name, queue in queues.items() if queue["latency_p99_s"] is not None}
    if not measured:
        return "nothing was delivered"
    name, worst = max(measured.items(), key=lambda item: item[1]["latency_max_s"])
    suffix = f" of {printable(name)}" if len(queues) > 1 else ""
    quantiles = f"p50 {time_text(worst['latency_p50_s'])}, p99 {time_text(worst['latency_p99_s'])}"
    return f"at worst {time_text(worst['latency_max_s'])}{suffix} ({quantiles})"


def _queues(queues: Mapping[str, Summary]) -> Iterator[RenderableType]:
    """Yield a table of the queues with the longest backlogs."""
    shown = sorted(queues.items(), key=lambda item: -item[1]["max_ready"])[:_SHOWN_QUEUES]
    rows = []
    for name, queue in shown:
        many = f" ×{queue['queues']:,}" if queue["queues"] > 1 else ""
        counts = [f"{queue[key]:,}" for key in ("published", "delivered", "acked", "ready", "max_ready", "unacked")]
        waited = queue["latency_p99_s"] is not None
        times = [time_text(queue[f"latency_{key}_s"] if waited else None) for key in ("p50", "p99", "max")]
        rows.append([printable(name) + many, *counts, *times])
    titles = ("queue", "published", "delivered", "acked", "ready", "at most", "unacked", "p50", "p99", "worst")
    yield _table(titles, rows, first="left", dispensable=("acked", "unacked", "delivered", "p50", "p99", "published"))
    if len(queues) > len(shown):
        yield Text(f"{len(queues) - len(shown):,} more, with shorter backlogs", style="dim")


def _table(
    titles: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    first: Literal["left", "right"],
    dispensable: Sequence[str],
) -> Table:
    """Return a table that fits the terminal: if it is too wide, leave out columns in the order of ``dispensable``."""
    room = shutil.get_terminal_size().columns if sys.stdout.isatty() else _WIDTH_WITHOUT_TERMINAL
    widths = {
        title: max([cell_len(title), *(cell_len(row[number]) for row in rows)]) for number, title in enumerate(titles)
    }
    left_out: set[str] = set()
    for title in dispensable:
        if sum(width + _BETWEEN for name, width in widths.items() if name not in left_out) <= room:
            break
        left_out.add(title)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="dim")
    columns = [number for number, title in enumerate(titles) if title not in left_out]
    for number in columns:
        side: Literal["left", "right"] = first if not number else "right"
        table.add_column(Text(titles[number]), style=None if number else "bold", justify=side, overflow="fold")
    for row in rows:
        table.add_row(*(Text(row[number]) for number in columns))
    return table


def comparison_lines(
    comparison: Comparison, files: Sequence[str] = (), folder: str | None = None
) -> Iterator[RenderableType]:
    """The numbers of two answers beside each other."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    table.add_column("", style="dim", overflow="fold")
    for name in comparison.names:
        table.add_column(Text(printable(name)), justify="right", overflow="fold")
    table.add_column("", justify="right", no_wrap=True)
    for row in comparison.rows:
        if row.a is not None or row.b is not None:
            table.add_row(row.what, *map(Text, row.texts))
    yield table
    if folder is not None:
        yield from (Text(), *_files(files, folder))


# ── a sweep ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def sweep_lines(sweep: Summary, files: Sequence[str] = (), folder: str | None = None) -> Iterator[RenderableType]:
    """Yield the text about a sweep, with a row for each point; ``sweep`` as in sweep.json."""
    keys = [axis["key"] for axis in sweep["axes"]]
    points = sweep["points"]
    yield Text.assemble((printable(str(sweep["name"])), "bold"), f"   {len(points):,} points")
    yield Text()
    numbers = ("paging from", "blocked", "memory", "most ready", "ready at end", "p99", "worst")
    rows = []
    for point in points[:_SHOWN_POINTS]:
        cells = list(_numbers(point))
        rows.append([*(_value(point["values"][key]) for key in keys), *cells, *[""] * (len(numbers) - len(cells))])
    titles = [*map(printable, keys), *numbers]
    yield _table(titles, rows, first="right", dispensable=("ready at end", "p99", "most ready", "worst"))
    if len(points) > _SHOWN_POINTS:
        yield Text(f"{len(points) - _SHOWN_POINTS:,} points more", style="dim")
    if folder is not None:
        yield from (Text(), *_files(files, folder))


def _value(value: Any) -> str:
    return printable(str(value).lower() if isinstance(value, bool) else str(value))


def _numbers(point: Summary) -> Iterator[str]:
    summary = point.get("summary")
    if summary is None:
        yield "failed"
        return
    node, queues = summary["node"], list(summary["queues"].values())

    def worst(name: str) -> str:
        return time_text(max((queue[name] for queue in queues if queue["latency_p99_s"] is not None), default=None))

    yield "never" if node["first_paging_s"] is None else time_text(node["first_paging_s"])
    yield time_text(node["alarm_s"]) if node["alarm_s"] else "never"
    yield _share(node["max_ratio"])
    yield f"{max((queue['max_ready'] for queue in queues), default=0):,}"
    yield f"{sum(queue['ready'] for queue in queues):,}"
    yield worst("latency_p99_s")
    yield worst("latency_max_s")


# ── while it works ───────────────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def bar(what: str, total: int | None = None) -> Iterator[Callable[[float], object]]:
    """Yield a function to call with what is done: a share of 1, or a number of ``total`` points."""
    steps = 1 if total is not None else 1000
    with share_bar(escape(printable(what)), total or steps) as advance_to:
        yield lambda done: advance_to(round(done * steps))
