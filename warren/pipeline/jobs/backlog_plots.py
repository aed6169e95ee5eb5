"""The plots of the backlog. Each takes the rows of the tables and returns a figure, or ``None`` without data to show.

A plot shows at most :data:`TOP` names, the rest as one bar. Bars are labelled with their numbers instead of a grid.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from matplotlib import dates, rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator

from warren.pipeline.jobs.backlog_tables import MINUTE_MS
from warren.salvage.names import printable

Row = Mapping[str, Any]
Rows = Mapping[str, Sequence[Row]]

_dates: Any = dates  # it has no types

TOP: Final = 20
INK: Final = "#22302a"
PALE: Final = "#8a958f"
COLOURS: Final = {"rabbitmq": "#2f6f4f", "rocketmq": "#4a78b0"}
REST: Final = "#c9c3b4"
STACK: Final = ("#2f6f4f", "#4a78b0", "#d98e3a", "#8c5a8f", "#b8473d", "#5aa3a0")
NAMES: Final = {"rabbitmq": "RabbitMQ", "rocketmq": "RocketMQ"}

_WIDTH_INCHES: Final = 10.4
_NAME_LETTERS: Final = 40
_MOST_BINS: Final = 300
_LEAST_BINS: Final = 12
_NICE_MINUTES: Final = (1, 2, 5, 10, 15, 30, 60, 120, 360, 720, 1440, 10080, 43200)
_STYLE: Final[Any] = {
    "font.size": 9,
    "text.parse_math": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": REST,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": PALE,
    "ytick.color": INK,
    "svg.hashsalt": "warren",
}


# ── words ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def count_text(count: float) -> str:
    """A number of messages: exact up to a million."""
    for unit, name in ((1e9, "billion"), (1e6, "million")):
        if count >= unit:
            return f"{count / unit:.3g} {name}"
    return f"{count:,.0f}"


def bytes_text(size: float) -> str:
    """A number of bytes, with three digits that count."""
    for unit, name in ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size / unit:.3g} {name}" if size < 1000 * unit else f"{size / unit:,.0f} {name}"
    return f"{size:,.0f} B"


def duration_text(seconds: float) -> str:
    """A time in its largest unit."""
    for unit, name in ((365.25 * 86400, "years"), (86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.3g} {name}"
    return "1 second" if seconds == 1 else f"{seconds:.0f} seconds"


def age_text(row: Row) -> str:
    """The age of the oldest message: of a queue, a group, or all."""
    return "not known" if row["oldest_age_s"] is None else duration_text(row["oldest_age_s"])


def queue_name(row: Row) -> str:
    """A queue, or a topic's queue, with its vhost unless that is the usual one."""
    name = str(row["queue"])
    if row["queue_id"] is not None:
        return f"{name} / {row['queue_id']}"
    return name if row["vhost"] in (None, "/") else f"{row['vhost']} · {name}"


def short(name: str, letters: int = _NAME_LETTERS) -> str:
    """A name that fits beside a bar."""
    name = printable(name)
    keep = (letters - 1) // 2
    return name if len(name) <= letters else f"{name[:keep]}…{name[-keep:]}"


# ── plots ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def deepest(rows: Rows) -> Figure | None:
    """The queues with most messages: how many, how large, how old."""
    several = len({row["node"] for row in rows["queues"]}) > 1

    def name(row: Row) -> str:
        if not several:
            return short(queue_name(row))
        return f"{short(queue_name(row), _NAME_LETTERS - 12)} · {short(_last(row['node']), 14)}"

    return _ranked("Deepest queues", rows["queues"], name, ("messages", "messages"), ("bytes", "bytes"), _OLDEST)


def lagging(rows: Rows) -> Figure | None:
    """Plot the consumer groups with the largest lag."""
    groups = [{**row, "kind": "rocketmq"} for row in rows["groups"] if row["lag"] > 0]
    measures = (("messages not consumed", "lag"), ("bytes", "lag_bytes"), _OLDEST)
    return _ranked(
        "Lag of consumer groups", groups, lambda row: short(f"{row['group']} · {queue_name(row)}"), *measures
    )


def came(rows: Rows) -> Figure | None:
    """Messages by when they came."""
    rates = rows["rates"]
    if not rates:
        return None
    first, last = rates[0]["minute_ms"], rates[-1]["minute_ms"]
    minutes = (last - first) // MINUTE_MS + 1
    step = next((nice for nice in _NICE_MINUTES if minutes / nice <= _MOST_BINS), minutes // _MOST_BINS + 1)
    bins = math.ceil(minutes / step)
    by_name: dict[str, list[float]] = defaultdict(lambda: [0.0] * bins)
    for row in rates:
        name = str(row["queue"] if row["kind"] == "rocketmq" else f"vhost {row['vhost']}")
        by_name[name][(row["minute_ms"] - first) // MINUTE_MS // step] += row["messages"] / step
    order = sorted(by_name, key=lambda name: -sum(by_name[name]))
    stacked = [(short(name), by_name[name]) for name in order[: len(STACK)]]
    if rest := order[len(STACK) :]:
        sums = [sum(values) for values in zip(*(by_name[name] for name in rest), strict=True)]
        stacked.append((f"{len(rest):,} more", sums))
    figure, (axes,) = _figure("When what waits came", 1, 3.0)
    begins = [_dates.date2num(datetime.fromtimestamp((first + n * step * MINUTE_MS) / 1000, UTC)) for n in range(bins)]
    bottom = [0.0] * bins
    width = step / 1440
    for (name, values), colour in zip(stacked, (*STACK, REST), strict=False):
        axes.bar(begins, values, width, bottom, align="edge", color=colour, label=name, linewidth=0)
        bottom = [base + height for base, height in zip(bottom, values, strict=True)]
    over = "" if step == 1 else f", mean of {duration_text(step * 60)}"
    axes.set_title(f"messages a minute{over}", loc="left", fontsize=9, color=PALE)
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    around = max(width * 0.5, (_LEAST_BINS * width - (begins[-1] - begins[0])) / 2)
    axes.set_xlim(begins[0] - around, begins[-1] + width + around)
    locator = _dates.AutoDateLocator(maxticks=12)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(_dates.ConciseDateFormatter(locator, show_offset=False))
    axes.set_xlabel(f"UTC, from {_moment(first)} to {_moment(last)}", color=PALE)
    if len(stacked) > 1:
        axes.legend(loc="upper left", bbox_to_anchor=(1.005, 1.02), frameon=False, fontsize=8)
    return figure


def by_size(rows: Rows) -> Figure | None:
    """How large messages are."""
    sizes = rows["sizes"]
    if not sizes:
        return None
    least = min((row["from_bytes"] for row in sizes if row["from_bytes"]), default=0)
    places = [place for place in _powers([row["from_bytes"] for row in sizes], 2) if place == 0 or place >= least]
    names = ["empty" if place == 0 else bytes_text(place).replace(" ", "\n") for place in places]
    return _histogram("Sizes: from this to below twice this", names, places, sizes, "from_bytes")


def by_age(rows: Rows) -> Figure | None:
    """How old messages are."""
    ages = rows["ages"]
    if not ages:
        return None
    bounds_s = [row["from_s"] for row in ages if row["from_s"] is not None]
    places: list[int | None] = [*_powers(bounds_s, 10)]
    names = ["below\n1 s" if place == 0 else _edge(place or 0).replace(" ", "\n") for place in places]
    if len(bounds_s) < len(ages):
        places.append(None)
        names.append("not\nknown")
    return _histogram("Ages: from this to below ten times this", names, places, ages, "from_s")


def by_key(rows: Rows) -> Figure | None:
    """The routing keys with most messages."""

    def name(row: Row) -> str:
        key = "without a key" if row["routing_key"] in (None, "") else str(row["routing_key"])
        return short(f"{row['exchange']} → {key}" if row["exchange"] else key)

    title = "Routing keys (RocketMQ: tags) with most messages"
    return _ranked(title, rows["keys"][:TOP], name, ("messages", "messages"), ("bytes", "bytes"))


PLOTS: Final[tuple[Callable[[Rows], Figure | None], ...]] = (deepest, lagging, came, by_size, by_age, by_key)


# ── drawing ──────────────────────────────────────────────────────────────────────────────────────────────────────────

_Column = tuple[str, list[Any], Callable[[float], str]]

_OLDEST: Final = ("age of the oldest", "oldest_age_s")


def _ranked(title: str, rows: Sequence[Row], name: Callable[[Row], str], *measures: tuple[str, str]) -> Figure | None:
    """Bars of the first rows, and one for all others: sums, and the oldest age that is known.

    ``measures``: what each column of bars is called, and the rows' column.
    """
    if not rows:
        return None
    shown, rest = rows[:TOP], rows[TOP:]
    columns: list[_Column] = []
    for measure, column in measures:
        values = [row[column] for row in shown]
        if rest:
            ages = [row[column] for row in rest if row[column] is not None]
            values.append(max(ages, default=None) if column == _OLDEST[1] else _sum(rest, column))
        text = duration_text if column == _OLDEST[1] else bytes_text if column.endswith("bytes") else count_text
        columns.append((measure, values, text))
    names = [*map(name, shown), *([f"{len(rest):,} more"] if rest else [])]
    return _bars(title, names, [*(COLOURS[row["kind"]] for row in shown), *([REST] if rest else [])], columns)


def _powers(numbers: Sequence[int], base: int) -> list[int]:
    """Return the powers of ``base`` from the smallest number to the largest; the numbers are powers or 0."""
    least = min(numbers, default=0)
    places = [0] if numbers and least == 0 else []
    power = least or 1
    while numbers and power <= max(numbers):
        places.append(power)
        power *= base
    return places


def _figure(title: str, count: int, height_inches: float) -> tuple[Figure, list[Axes]]:
    with rc_context(_STYLE):
        figure = Figure(figsize=(_WIDTH_INCHES, height_inches), layout="constrained", label=title)
        axes = figure.subplots(1, count, squeeze=False)[0]
    figure.suptitle(title, x=0.005, ha="left", fontsize=13, fontweight="bold", color=INK)
    return figure, list(axes)


def _bars(title: str, names: Sequence[str], colours: Sequence[str], columns: Sequence[_Column]) -> Figure:
    """Names down the side, a column of bars for each measure; the number is to the right of the bar."""
    figure, all_axes = _figure(title, len(columns), 0.95 + 0.24 * len(names))
    rows = range(len(names))
    for axes, (measure, values, text) in zip(all_axes, columns, strict=True):
        lengths = [value or 0 for value in values]
        axes.barh(rows, lengths, 0.68, color=colours)
        axes.set_xlim(0, (max(lengths) or 1) * 1.42)
        axes.set_ylim(len(names) - 0.4, -0.6)
        for row, value in zip(rows, values, strict=True):
            label = "not known" if value is None else text(value)
            axes.annotate(
                label,
                (value or 0, row),
                (4, 0),
                textcoords="offset points",
                va="center",
                fontsize=8,
                color=PALE if value is None else INK,
            )
        axes.set_title(measure, loc="left", fontsize=9, color=PALE)
        axes.set_xticks([])
        axes.spines["bottom"].set_visible(False)
        axes.set_yticks(list(rows), names if axes is all_axes[0] else [""] * len(names), fontsize=8.5)
        axes.tick_params(axis="y", length=0)
    kinds = [kind for kind, colour in COLOURS.items() if colour in colours]
    if len(kinds) > 1:
        _legend(figure, kinds)
    return figure


def _legend(figure: Figure, kinds: Sequence[str]) -> None:
    handles = [Patch(color=COLOURS[kind], label=NAMES[kind]) for kind in kinds]
    figure.legend(handles=handles, loc="upper right", ncols=2, frameon=False, fontsize=8)


def _histogram(
    title: str, names: Sequence[str], places: Sequence[int | None], rows: Sequence[Row], column: str
) -> Figure:
    """Messages and bytes in bins, the kinds of brokers stacked."""
    figure, all_axes = _figure(title, 2, 2.9)
    kinds = [kind for kind in COLOURS if any(row["kind"] == kind for row in rows)]
    for axes, (measure, text) in zip(all_axes, (("messages", count_text), ("bytes", bytes_text)), strict=True):
        bottom = [0] * len(places)
        for kind in kinds:
            values = [_sum([r for r in rows if r["kind"] == kind and r[column] == place], measure) for place in places]
            axes.bar(range(len(places)), values, 0.86, bottom, color=COLOURS[kind], label=NAMES[kind])
            bottom = [base + height for base, height in zip(bottom, values, strict=True)]
        axes.set_title(measure, loc="left", fontsize=9, color=PALE)
        stride = math.ceil(len(places) / 12)
        shown = [place for place in range(len(places)) if place % stride == 0]
        axes.set_xticks(shown, [names[place] for place in shown], fontsize=7.5)
        around = max(0.7, (_LEAST_BINS - len(places)) / 2)
        axes.set_xlim(-around, len(places) - 1 + around)
        axes.yaxis.set_major_locator(
            MaxNLocator(4) if measure == "messages" else FixedLocator(_byte_ticks(max(bottom)))
        )
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _, text=text: text(value)))
        axes.tick_params(axis="x", length=0)
    if len(kinds) > 1:
        _legend(figure, kinds)
    return figure


def _byte_ticks(largest: int) -> list[float]:
    """Round numbers of bytes, in the unit that the largest has."""
    unit = 1024 ** (max(largest - 1, 0).bit_length() // 10) if largest > 1 << 10 else 1
    return [tick * unit for tick in MaxNLocator(4).tick_values(0, max(largest / unit, 1))]


def _sum(rows: Sequence[Row], column: str) -> int:
    return sum(row[column] or 0 for row in rows)


def _last(node: str) -> str:
    """A node's path without all that leads to it."""
    parts = [part for part in node.split("/") if part]
    return parts[-2] if len(parts) > 1 and parts[-1] in ("store", "topics", "data") else parts[-1] if parts else node


def _edge(seconds: int) -> str:
    for unit, name in ((365.25 * 86400, "y"), (86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= unit:
            return f"{seconds / unit:.2g} {name}" if seconds < 100 * unit else f"{seconds / unit:.0f} {name}"
    return f"{seconds} s"


def _moment(ms: int) -> str:
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M}"
